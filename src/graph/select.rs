//! Goals: the nodes that somebody asked for, and what they need. The only place where a name from the command line is
//! looked up.
//!
//! | goal | means |
//! | --- | --- |
//! | `quant-a` | that node |
//! | `quant-*` | every node whose name matches: `*`, `?`, `[ab]`, `{a,b}` |
//! | `+quant-a` | that node and every node that it needs |
//! | `quant-a+` | that node and every node that depends on it |

use std::collections::{BTreeMap, BTreeSet};

use crate::canon::quote;
use crate::graph::Graph;
use crate::graph::name::Name;
use crate::graph::node::{NodeSpec, Ref};
use crate::near::{did_you_mean, near};

/// What a build is about.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selection {
    /// The nodes whose trees must be present in the end.
    pub goals: BTreeSet<Name>,
    /// The nodes that goals need, as inputs or gates, directly or not, and that are no goals themselves: they must be
    /// known, and present only where something that is to be built needs them.
    pub needed: BTreeSet<Name>,
    /// The sources that any of them takes.
    pub sources: BTreeSet<Name>,
}

impl Selection {
    /// Whether the node is a goal or needed by one.
    pub fn contains(&self, node: &str) -> bool {
        self.goals.contains(node) || self.needed.contains(node)
    }

    /// The selected nodes, each behind all that it needs.
    pub fn in_order<'g>(&self, graph: &'g Graph) -> impl Iterator<Item = &'g NodeSpec> {
        graph.order.iter().filter(|n| self.contains(n.as_str())).filter_map(|n| graph.nodes.get(n))
    }
}

/// A name on the command line that is no node's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// Nothing is called so.
    #[error("there is no node {}", quote(name.as_bytes()))]
    Unknown {
        /// The name.
        name: String,
        /// Names of nodes that may have been meant.
        near: Vec<String>,
    },
    /// No node's name matches.
    #[error("no node's name matches {}", quote(pattern.as_bytes()))]
    NoMatch {
        /// The pattern.
        pattern: String,
        /// Names of nodes that may have been meant.
        near: Vec<String>,
    },
    /// The pattern is none.
    #[error("{} is no pattern of names: {what}", quote(pattern.as_bytes()))]
    BadPattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        what: String,
    },
    /// A source is called so.
    #[error("`{name}` is a source: there is nothing to build")]
    IsSource {
        /// The name.
        name: String,
        /// Nodes that take it directly.
        used_by: Vec<String>,
    },
}

impl SelectError {
    /// What to do.
    pub fn hint(&self) -> String {
        match self {
            SelectError::BadPattern { .. } => "quote it for the shell: 'quant-*'".to_owned(),
            SelectError::Unknown { name, near } | SelectError::NoMatch { pattern: name, near } => {
                did_you_mean(name, near.iter().map(String::as_str))
                    .unwrap_or_else(|| "`graftwerk status` lists the nodes".to_owned())
            }
            SelectError::IsSource { used_by, .. } if used_by.is_empty() => "no node takes it".to_owned(),
            SelectError::IsSource { used_by, .. } => {
                let names: Vec<String> = used_by.iter().take(3).map(|n| format!("`{n}`")).collect();
                let more = used_by.len() - names.len();
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                let take = if used_by.len() == 1 { "takes" } else { "take" };
                format!("{}{more} {take} it: name a node", names.join(", "))
            }
        }
    }
}

/// The node that a name on the command line means. Errors: [`SelectError`].
pub fn find<'g>(graph: &'g Graph, name: &str) -> Result<&'g NodeSpec, SelectError> {
    if let Some(node) = graph.nodes.get(name) {
        return Ok(node);
    }
    if let Some(source) = graph.sources.get(name) {
        let takes = |n: &&NodeSpec| n.inputs.values().any(|i| i.from == Ref::Source(source.name.clone()));
        let used_by = graph.nodes.values().filter(takes).map(|n| n.name.to_string()).collect();
        return Err(SelectError::IsSource { name: name.to_owned(), used_by });
    }
    let near = near(name, graph.nodes.keys().map(Name::as_str), 3).into_iter().map(str::to_owned).collect();
    Err(SelectError::Unknown { name: name.to_owned(), near })
}

// The nodes that one goal of the command line means.
fn goal(graph: &Graph, text: &str) -> Result<BTreeSet<Name>, SelectError> {
    // No name starts or ends with `+`.
    let (with_needs, rest) = text.strip_prefix('+').map_or((false, text), |r| (true, r));
    let (with_dependants, pattern) = rest.strip_suffix('+').map_or((false, rest), |r| (true, r));
    let mut found: BTreeSet<Name> = if pattern.contains(['*', '?', '[', '{']) {
        let glob = globset::Glob::new(pattern)
            .map_err(|e| SelectError::BadPattern { pattern: pattern.to_owned(), what: e.kind().to_string() })?
            .compile_matcher();
        graph.nodes.keys().filter(|n| glob.is_match(n.as_str())).cloned().collect()
    } else {
        [find(graph, pattern)?.name.clone()].into()
    };
    if found.is_empty() {
        let near = near(pattern, graph.nodes.keys().map(Name::as_str), 3).into_iter().map(str::to_owned).collect();
        return Err(SelectError::NoMatch { pattern: pattern.to_owned(), near });
    }
    let named = found.clone();
    if with_needs {
        spread(&named, &mut found, |n| graph.nodes.get(n).map(|n| needs(n).collect()).unwrap_or_default());
    }
    if with_dependants {
        let mut dependants: BTreeMap<&Name, Vec<&Name>> = BTreeMap::new();
        for node in graph.nodes.values() {
            for needed in needs(node) {
                dependants.entry(needed).or_default().push(&node.name);
            }
        }
        spread(&named, &mut found, |n| dependants.get(n).cloned().unwrap_or_default());
    }
    Ok(found)
}

// The nodes that a node takes as input or is gated by.
fn needs(node: &NodeSpec) -> impl Iterator<Item = &Name> {
    let inputs = node.inputs.values().filter_map(|i| match &i.from {
        Ref::Node(n) => Some(n),
        Ref::Source(_) => None,
    });
    inputs.chain(&node.gates)
}

// Everything that is reached from `start` by steps of `next`.
fn spread<'g>(start: &BTreeSet<Name>, found: &mut BTreeSet<Name>, next: impl Fn(&Name) -> Vec<&'g Name>) {
    let mut todo: Vec<Name> = start.iter().cloned().collect();
    let mut seen = start.clone();
    while let Some(name) = todo.pop() {
        for n in next(&name) {
            if seen.insert(n.clone()) {
                found.insert(n.clone());
                todo.push(n.clone());
            }
        }
    }
}

/// Resolves goals, names or patterns; none at all means every node. Errors: one for each that is no node's.
pub fn select(graph: &Graph, goals: &[String]) -> Result<Selection, Vec<SelectError>> {
    let mut selection = Selection::default();
    let mut errors = Vec::new();
    for name in goals {
        match goal(graph, name) {
            Ok(found) => selection.goals.extend(found),
            Err(e) => errors.push(e),
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    if goals.is_empty() {
        selection.goals = graph.nodes.keys().cloned().collect();
    }
    let mut stack: Vec<&Name> =
        selection.goals.iter().filter_map(|n| graph.nodes.get_key_value(n)).map(|e| e.0).collect();
    let mut seen: BTreeSet<&Name> = stack.iter().copied().collect();
    while let Some(name) = stack.pop() {
        let Some(node) = graph.nodes.get(name) else { continue };
        for input in node.inputs.values() {
            if let Ref::Source(source) = &input.from {
                selection.sources.insert(source.clone());
            }
        }
        for needed in needs(node) {
            if seen.insert(needed) {
                stack.push(needed);
                selection.needed.insert(needed.clone());
            }
        }
    }
    Ok(selection)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRAPH: &str = "[source]\nm = { folder = \"m\" }\n\
        [node.graft-a]\nkind = \"edit\"\ninputs.model = \"m\"\nset.\"c.json\" = { \"/n\" = 1 }\n\
        [node.graft-b]\nkind = \"edit\"\ninputs.model = \"m\"\nset.\"c.json\" = { \"/n\" = 2 }\n\
        [node.quant-a]\nkind = \"edit\"\ninputs.model = \"graft-a\"\nset.\"c.json\" = { \"/n\" = 3 }\n\
        [node.seat-a]\nkind = \"edit\"\ninputs.model = \"quant-a\"\nset.\"c.json\" = { \"/n\" = 4 }\n";

    fn goals(text: &str) -> Result<Vec<String>, SelectError> {
        let graph = Graph::parse("graph.toml", GRAPH).unwrap();
        select(&graph, &[text.to_owned()])
            .map(|s| s.goals.iter().map(ToString::to_string).collect())
            .map_err(|mut e| e.remove(0))
    }

    #[test]
    fn a_goal_is_a_name_or_a_pattern_with_what_it_needs_or_what_depends_on_it() {
        assert_eq!(goals("quant-a").unwrap(), ["quant-a"]);
        assert_eq!(goals("graft-*").unwrap(), ["graft-a", "graft-b"]);
        assert_eq!(goals("*-{a,b}").unwrap(), ["graft-a", "graft-b", "quant-a", "seat-a"]);
        assert_eq!(goals("+quant-a").unwrap(), ["graft-a", "quant-a"]);
        assert_eq!(goals("quant-a+").unwrap(), ["quant-a", "seat-a"]);
        assert_eq!(goals("+quant-a+").unwrap(), ["graft-a", "quant-a", "seat-a"]);
        assert_eq!(goals("graft-*+").unwrap(), ["graft-a", "graft-b", "quant-a", "seat-a"]);
    }

    #[test]
    fn a_goal_that_means_nothing_names_what_was_near() {
        let e = goals("grafft-*").unwrap_err();
        assert_eq!(
            (e.to_string(), e.hint()),
            ("no node's name matches \"grafft-*\"".to_owned(), "did you mean `graft-a` or `graft-b`?".to_owned(),)
        );
        assert_eq!(goals("+quantt-a").unwrap_err().hint(), "did you mean `quant-a`?");
        assert!(matches!(goals("graft-[a"), Err(SelectError::BadPattern { .. })));
        assert!(matches!(goals("m+"), Err(SelectError::IsSource { .. })));
        assert!(goals("+").is_err() && goals("").is_err());
    }
}
