//! `graph`: the graph as nodes and edges with their states, and as text for programs that draw.

use std::fmt::Write as _;

use serde::Serialize;

use crate::front::Project;
use crate::front::error::{FrontError, Result};
use crate::front::report::ErrorReport;
use crate::graph::{Graph, Selection};

/// One thing in the picture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DrawnNode {
    /// Its name.
    pub name: String,
    /// A node's kind; `source` for a source.
    pub kind: &'static str,
    /// As in `status`; a source is `source`, or `failed` where it can't be taken.
    pub state: &'static str,
}

/// What goes into what.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct DrawnEdge {
    /// A source's or a node's name.
    pub from: String,
    /// The node that takes it.
    pub to: String,
    /// `input`, or `gate` for a check that must pass before.
    pub what: &'static str,
}

/// What `graph` answers.
#[derive(Debug, Clone, Serialize)]
pub struct Drawing {
    /// Sources first, then nodes, each behind all that it needs.
    pub nodes: Vec<DrawnNode>,
    /// In the order of the nodes that take.
    pub edges: Vec<DrawnEdge>,
    /// Sources that can't be taken.
    #[serde(skip)]
    pub errors: Vec<ErrorReport>,
}

// How a state looks: fill, line, both readable under black text.
fn colours(state: &str) -> (&'static str, &'static str) {
    match state {
        "source" => ("#eceff1", "#607d8b"),
        "fresh" => ("#d7f0d8", "#2e7d32"),
        "stale" => ("#fff3c4", "#b26a00"),
        "absent" => ("#ffffff", "#757575"),
        "await" => ("#e3f0fd", "#1565c0"),
        "blocked" => ("#f3e3f7", "#7b1fa2"),
        _ => ("#fbdcdc", "#c62828"),
    }
}

impl Drawing {
    /// Graphviz' language.
    pub fn to_dot(&self) -> String {
        let mut s = String::from("digraph graftwerk {\n    rankdir=LR;\n");
        for n in &self.nodes {
            let (fill, line) = colours(n.state);
            let shape = if n.kind == "source" { "ellipse" } else { "box" };
            let label =
                if n.kind == "source" { n.name.clone() } else { format!("{}\\n{}, {}", n.name, n.kind, n.state) };
            let _ = writeln!(
                s,
                "    \"{}\" [label=\"{label}\", shape={shape}, style=filled, fillcolor=\"{fill}\", color=\"{line}\"];",
                n.name
            );
        }
        for e in &self.edges {
            let style = if e.what == "gate" { " [style=dashed]" } else { "" };
            let _ = writeln!(s, "    \"{}\" -> \"{}\"{style};", e.from, e.to);
        }
        s.push_str("}\n");
        s
    }

    /// Mermaid, as Markdown pages show it.
    pub fn to_mermaid(&self) -> String {
        let id = |name: &str| {
            self.nodes.iter().position(|n| n.name == name).map_or_else(|| "x".to_owned(), |i| format!("n{i}"))
        };
        let mut s = String::from("flowchart LR\n");
        for n in &self.nodes {
            let _ = if n.kind == "source" {
                writeln!(s, "    {}([\"{}\"]):::{}", id(&n.name), n.name, n.state)
            } else {
                writeln!(s, "    {}[\"{}<br/>{}, {}\"]:::{}", id(&n.name), n.name, n.kind, n.state, n.state)
            };
        }
        for e in &self.edges {
            let arrow = if e.what == "gate" { "-.->" } else { "-->" };
            let _ = writeln!(s, "    {} {arrow} {}", id(&e.from), id(&e.to));
        }
        let mut states: Vec<&str> = self.nodes.iter().map(|n| n.state).collect();
        states.sort_unstable();
        states.dedup();
        for state in states {
            let (fill, line) = colours(state);
            let _ = writeln!(s, "    classDef {state} fill:{fill},stroke:{line},color:#000");
        }
        s
    }
}

impl Drawing {
    /// A picture, laid out from left to right: as `to_dot`, for browsers and pages.
    pub fn to_svg(&self) -> String {
        use layout::backends::svg::SVGWriter;
        use layout::core::base::Orientation;
        use layout::core::color::Color;
        use layout::core::geometry::Point;
        use layout::core::style::{LineStyleKind, StyleAttr};
        use layout::std_shapes::shapes::{Arrow, Element, LineEndKind, ShapeKind};
        use layout::topo::layout::VisualGraph;

        const FONT: usize = 14;
        const GREY: u32 = 0x5f_6b_73_ff;
        let colour = |hex: &str| {
            let rgb = u32::from_str_radix(hex.trim_start_matches('#'), 16).unwrap_or_default();
            Color::new(rgb << 8 | 0xff)
        };
        let mut picture = VisualGraph::new(Orientation::LeftToRight);
        let mut handles = std::collections::BTreeMap::new();
        for n in &self.nodes {
            let (fill, line) = colours(n.state);
            let source = n.kind == "source";
            let second = if source { n.state.to_owned() } else { format!("{}, {}", n.kind, n.state) };
            let label = format!("{}\n{second}", n.name);
            // Wide enough for the longer line in any sans-serif font.
            let letters = n.name.chars().count().max(second.chars().count());
            #[allow(clippy::cast_precision_loss, reason = "a name has at most 100 letters")]
            let size = Point::new(letters as f64 * 8.6 + 24.0, 46.0);
            let look = StyleAttr::new(colour(line), 2, Some(colour(fill)), if source { 22 } else { 4 }, FONT);
            let element = Element::create(ShapeKind::new_box(&label), look, Orientation::LeftToRight, size);
            handles.insert(n.name.as_str(), picture.add_node(element));
        }
        for e in &self.edges {
            let (Some(from), Some(to)) = (handles.get(e.from.as_str()), handles.get(e.to.as_str())) else { continue };
            let line = if e.what == "gate" { LineStyleKind::Dashed } else { LineStyleKind::Normal };
            let look = StyleAttr::new(Color::new(GREY), 1, None, 0, FONT);
            let arrow = Arrow::new(LineEndKind::None, LineEndKind::Arrow, line, "", &look, &None, &None);
            picture.add_edge(arrow, *from, *to);
        }
        let mut svg = SVGWriter::new();
        picture.do_it(false, false, false, &mut svg);
        svg.finalize().replace("font-family: Times, serif", "font-family: system-ui, sans-serif").replacen(
            "<svg ",
            "<svg role=\"img\" aria-label=\"the build graph\" style=\"background:#fff\" ",
            1,
        ) + "\n"
    }
}

pub(super) fn edges(graph: &Graph, selection: &Selection) -> Vec<DrawnEdge> {
    let mut edges = Vec::new();
    for node in selection.in_order(graph) {
        let mut into: Vec<DrawnEdge> = node
            .inputs
            .values()
            .map(|i| DrawnEdge { from: i.from.name().to_string(), to: node.name.to_string(), what: "input" })
            .chain(node.gates.iter().map(|g| DrawnEdge {
                from: g.to_string(),
                to: node.name.to_string(),
                what: "gate",
            }))
            .collect();
        into.sort();
        into.dedup();
        edges.extend(into);
    }
    edges
}

impl Project {
    /// The graph of the goals and all that they need, or of everything.
    pub fn draw(
        &self,
        goals: &[String],
        events: &crate::sched::Events,
        cancel: &std::sync::Arc<std::sync::atomic::AtomicBool>,
    ) -> Result<Drawing> {
        let selection = self.select(goals)?;
        let looking = crate::front::Looking::default();
        let read = |m: &crate::plan::Machine<'_>| -> Vec<DrawnNode> {
            m.report()
                .map(|n| {
                    let status = self.node_status(&n);
                    DrawnNode { name: status.node, kind: status.kind, state: status.state }
                })
                .collect()
        };
        let (nodes, sources) = self.at_rest(goals, (looking, crate::front::IfAway::AsLocked), events, cancel, read)?;
        if cancel.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(FrontError::Interrupted);
        }
        let mut all: Vec<DrawnNode> = selection
            .sources
            .iter()
            .map(|name| {
                let there = sources.states.get(name).is_some_and(std::result::Result::is_ok);
                let taken = there && !sources.away.iter().any(|(away, _)| away == name);
                DrawnNode { name: name.to_string(), kind: "source", state: if taken { "source" } else { "failed" } }
            })
            .collect();
        all.extend(nodes);
        let edges = edges(&self.graph, &selection);
        Ok(Drawing { nodes: all, edges, errors: crate::front::build::error_reports(&sources.errors) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawing() -> Drawing {
        let node = |name: &str, kind, state| DrawnNode { name: name.to_owned(), kind, state };
        let edge = |from: &str, to: &str, what| DrawnEdge { from: from.to_owned(), to: to.to_owned(), what };
        Drawing {
            nodes: vec![
                node("base", "source", "source"),
                node("graft-a", "graft", "fresh"),
                node("check-a", "check", "failed"),
                node("quant-a", "quant", "blocked"),
            ],
            edges: vec![
                edge("base", "graft-a", "input"),
                edge("graft-a", "check-a", "input"),
                edge("check-a", "quant-a", "gate"),
                edge("graft-a", "quant-a", "input"),
            ],
            errors: Vec::new(),
        }
    }

    #[test]
    fn states_are_words_and_colours_and_gates_are_dashed() {
        let dot = drawing().to_dot();
        assert!(dot.contains("\"graft-a\" [label=\"graft-a\\ngraft, fresh\", shape=box"), "{dot}");
        assert!(dot.contains("\"check-a\" -> \"quant-a\" [style=dashed];"), "{dot}");
        let mermaid = drawing().to_mermaid();
        assert!(mermaid.contains("n1[\"graft-a<br/>graft, fresh\"]:::fresh"), "{mermaid}");
        assert!(mermaid.contains("n2 -.-> n3") && mermaid.contains("classDef blocked"), "{mermaid}");
        let svg = drawing().to_svg();
        for text in ["graft-a", "graft, fresh", "check, failed", "stroke-dasharray"] {
            assert!(svg.contains(text), "{text} in {svg}");
        }
    }

    #[test]
    fn a_picture_is_the_same_each_time() {
        assert_eq!(drawing().to_svg(), drawing().to_svg());
    }
}
