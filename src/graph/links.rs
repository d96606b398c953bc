//! How nodes hang together: names resolved, cycles found, an order made.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use petgraph::Direction;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::{EdgeRef as _, Reversed};

use crate::graph::diagnostic::{Problem, Problems, Span};
use crate::graph::document::{Entry, Parts, shown};
use crate::graph::name::{Name, folded};
use crate::graph::node::{Draft, InputSpec, Mention, NodeSpec, Ref};
use crate::graph::source::SourceSpec;
use crate::kinds::Kind;
use crate::near::did_you_mean;

/// The kind that may stand in `gate`.
const CHECK: &str = "check";

/// What a name was declared as, even where the rest of its declaration is wrong: a name that is there is not unknown.
pub(crate) enum Declared {
    Source,
    /// A node, with its kind as far as it can be told.
    Node(Option<&'static dyn Kind>),
}

type Names<'d> = BTreeMap<&'d str, Declared>;

/// All declared names. Bad ones, those that stand for two things, and those that differ only in case are problems.
pub(crate) fn declare<'d>(parts: &Parts<'d, '_>, kinds: &[&'static dyn Kind], problems: &mut Problems) -> Names<'d> {
    let mut names = Names::new();
    let mut seen: HashMap<String, (&str, Span, &str)> = HashMap::new();
    let sources = parts.sources.iter().map(|e| ("source", e));
    for (what, e) in sources.chain(parts.nodes.iter().map(|e| ("node", e))) {
        if let Err(bad) = Name::new(e.name) {
            problems.push(|| Problem::new(e.span, format!("the {what} {bad}"), "not a name").maybe_hint(spare(e.name)));
        }
        if let Some((other, first, other_what)) = seen.insert(folded(e.name), (e.name, e.span, what)) {
            problems.push(|| collision((what, e), (other_what, other, first)));
        }
        let kind = e.item.get_ref().get("kind").and_then(|k| k.get_ref().as_str());
        let declared = match what {
            "source" => Declared::Source,
            _ => Declared::Node(kind.and_then(|name| kinds.iter().copied().find(|k| k.name() == name))),
        };
        names.insert(e.name, declared);
    }
    names
}

fn collision((what, e): (&str, &Entry<'_, '_>), (other_what, other, first): (&str, &str, Span)) -> Problem {
    if other == e.name {
        Problem::new(e.span, format!("{} is both a {other_what} and a {what}", shown(e.name)), format!("a {what}"))
            .label(first, format!("a {other_what}"))
            .hint("sources and nodes share one set of names: rename one of the two")
    } else {
        Problem::new(e.span, format!("{} and {} differ only in case", shown(other), shown(e.name)), "and this")
            .label(first, "this")
            .hint("out/NAME would be one file where the file system ignores case: rename one of the two")
    }
}

// The same name with what may not stand in it exchanged, if that is one.
fn spare(name: &str) -> Option<String> {
    let mended: String =
        name.chars().map(|c| if c.is_alphanumeric() || "_-.+".contains(c) { c } else { '-' }).collect();
    let mended = mended.trim_matches(['-', '.', '+']);
    Name::new(mended).ok().filter(|n| n.as_str() != name).map(|n| format!("call it `{n}`"))
}

/// Why one node comes before another.
#[derive(Clone, Copy)]
struct Need {
    span: Span,
    gate: bool,
}

/// Resolves the names in drafts and orders the nodes. Dangling names, gates that are no checks, and cycles are
/// problems; what is returned then is incomplete.
pub(crate) fn resolve(
    mut drafts: Vec<Draft>,
    sources: &BTreeMap<Name, SourceSpec>,
    declared: &Names<'_>,
    problems: &mut Problems,
) -> (BTreeMap<Name, NodeSpec>, Vec<Name>) {
    // By name: the order must not follow from the order of the text.
    drafts.sort_by(|a, b| a.name.cmp(&b.name));
    let index: HashMap<&str, NodeIndex> =
        drafts.iter().enumerate().map(|(i, d)| (d.name.as_str(), NodeIndex::new(i))).collect();
    let mut graph: DiGraph<(), Need> = DiGraph::with_capacity(drafts.len(), drafts.len());
    for _ in &drafts {
        graph.add_node(());
    }
    for (i, draft) in drafts.iter().enumerate() {
        let to = NodeIndex::new(i);
        for input in draft.inputs.values() {
            if known(&input.from, declared, problems) {
                edge(&mut graph, &index, draft, &input.from, to, false, problems);
            }
        }
        for gate in &draft.gates {
            if is_check(gate, declared, problems) {
                edge(&mut graph, &index, draft, gate, to, true, problems);
            }
        }
    }
    // From what needs to what is needed, and turned round: so each node stands right behind what it needs, and
    // independent ones by name.
    let order = match petgraph::algo::toposort(Reversed(&graph), None) {
        Ok(mut order) => {
            order.reverse();
            order
        }
        Err(_) => {
            cycles(&graph, &drafts, problems);
            Vec::new()
        }
    };
    let order = order.iter().filter_map(|i| drafts.get(i.index())).map(|d| d.name.clone()).collect();
    let nodes = drafts.into_iter().filter_map(|d| finish(d, sources)).map(|n| (n.name.clone(), n)).collect();
    (nodes, order)
}

fn known(mention: &Mention, declared: &Names<'_>, problems: &mut Problems) -> bool {
    let there = declared.contains_key(mention.name.as_str());
    if !there {
        problems.push(|| {
            let hint = did_you_mean(&mention.name, declared.keys().copied());
            let what = format!("there is no node or source {}", shown(&mention.name));
            let declare = || match Name::new(&mention.name) {
                Ok(name) => format!("declare [node.{0}] or [source.{0}]", quoted_key(name.as_str())),
                Err(_) => "write the name of a node or a source".to_owned(),
            };
            Problem::new(mention.span, what, "unknown").hint(hint.unwrap_or_else(declare))
        });
    }
    there
}

// A name as it stands in a table header.
fn quoted_key(name: &str) -> String {
    let bare = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
    if bare { name.to_owned() } else { crate::canon::quote(name.as_bytes()) }
}

fn is_check(mention: &Mention, declared: &Names<'_>, problems: &mut Problems) -> bool {
    let checks = || {
        declared
            .iter()
            .filter(|(_, d)| matches!(d, Declared::Node(Some(k)) if k.name() == CHECK))
            .map(|(name, _)| *name)
    };
    let name = shown(&mention.name);
    let (what, label) = match declared.get(mention.name.as_str()) {
        // A node whose own kind is wrong has its problem already.
        Some(Declared::Node(None)) => return true,
        Some(Declared::Node(Some(k))) if k.name() == CHECK => return true,
        Some(Declared::Node(Some(k))) => {
            (format!("{name} is a `{}`: only a `check` can be a gate", k.name()), "no check")
        }
        Some(Declared::Source) => (format!("{name} is a source: only a `check` can be a gate"), "no check"),
        None => (format!("there is no check {name}"), "unknown"),
    };
    problems.push(|| {
        let hint = did_you_mean(&mention.name, checks());
        let hint = hint.unwrap_or_else(|| "name a node of the kind `check`".to_owned());
        Problem::new(mention.span, what, label).hint(hint)
    });
    false
}

fn edge(
    graph: &mut DiGraph<(), Need>,
    index: &HashMap<&str, NodeIndex>,
    draft: &Draft,
    mention: &Mention,
    to: NodeIndex,
    gate: bool,
    problems: &mut Problems,
) {
    // Sources, and nodes whose own name is wrong, wait for nothing.
    let Some(from) = index.get(mention.name.as_str()).copied() else { return };
    if from == to {
        problems.push(|| {
            let how = if gate { "waits for itself" } else { "takes itself as an input" };
            Problem::new(
                mention.span,
                format!("{} {how}: {1} -> {1}", shown(draft.name.as_str()), draft.name),
                "itself",
            )
            .label(draft.span, "this node")
        });
        return;
    }
    graph.add_edge(from, to, Need { span: mention.span, gate });
}

fn finish(d: Draft, sources: &BTreeMap<Name, SourceSpec>) -> Option<NodeSpec> {
    let mut inputs = BTreeMap::new();
    for (alias, i) in d.inputs {
        let name = Name::new(&i.from.name).ok()?;
        let source = sources.get(&name);
        let at = i.at.or_else(|| source.and_then(|s| s.at.clone()));
        let from = if source.is_some() { Ref::Source(name) } else { Ref::Node(name) };
        inputs.insert(alias, InputSpec { from, uses: i.uses, at, span: i.span, uses_spans: i.uses_spans });
    }
    let gates: Option<BTreeSet<Name>> = d.gates.iter().map(|g| Name::new(&g.name).ok()).collect();
    Some(NodeSpec {
        name: d.name,
        kind: d.kind?,
        inputs,
        gates: gates?,
        params: d.params,
        platform: d.platform,
        about: d.about,
        span: d.span,
        key_spans: d.key_spans,
    })
}

/// A cycle longer than this is shown by its ends.
const SHOWN: usize = 12;

/// One problem for each group of nodes that wait for each other: its shortest cycle through its first name.
fn cycles(graph: &DiGraph<(), Need>, drafts: &[Draft], problems: &mut Problems) {
    let mut groups = petgraph::algo::kosaraju_scc(graph);
    groups.retain(|g| g.len() > 1);
    for g in &mut groups {
        g.sort_unstable();
    }
    groups.sort_unstable();
    for group in groups {
        problems.push(|| cycle(graph, drafts, &group));
    }
}

fn cycle(graph: &DiGraph<(), Need>, drafts: &[Draft], group: &[NodeIndex]) -> Problem {
    let name = |i: NodeIndex| drafts.get(i.index()).map_or("?", |d| d.name.as_str());
    let steps = shortest_cycle(graph, group);
    let mut names: Vec<&str> = steps.iter().map(|(from, _, _)| name(*from)).collect();
    names.extend(steps.first().map(|(from, _, _)| name(*from)));
    let count = steps.len();
    let line = if count > SHOWN {
        let (head, tail) = (&names[..SHOWN / 2], &names[names.len() - SHOWN / 2..]);
        format!("{} -> … -> {} ({count} nodes)", head.join(" -> "), tail.join(" -> "))
    } else {
        names.join(" -> ")
    };
    let says = |from: NodeIndex, need: Need, to: NodeIndex| {
        let how = if need.gate { "waits for the check" } else { "takes" };
        format!("{} {how} {}", shown(name(from)), shown(name(to)))
    };
    let mut labels = steps.iter().take(SHOWN).map(|(from, need, to)| (need.span, says(*from, *need, *to)));
    let (span, text) = labels.next().unwrap_or_default();
    let problem = Problem::new(span, format!("these nodes form a cycle: {line}"), text);
    labels.fold(problem, |p, (span, text)| p.label(span, text)).hint("take one of these inputs or gates out")
}

/// The shortest cycle through the group's first node, as steps (node, why, what it needs).
fn shortest_cycle(graph: &DiGraph<(), Need>, group: &[NodeIndex]) -> Vec<(NodeIndex, Need, NodeIndex)> {
    let Some(&start) = group.first() else { return Vec::new() };
    let inside: BTreeSet<NodeIndex> = group.iter().copied().collect();
    let mut came: HashMap<NodeIndex, (NodeIndex, Need)> = HashMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(node) = queue.pop_front() {
        // petgraph lists edges latest first; by target, so that one text has one message.
        let mut edges: Vec<_> =
            graph.edges_directed(node, Direction::Incoming).map(|e| (e.source(), *e.weight())).collect();
        edges.sort_by_key(|(needed, need)| (*needed, need.span));
        for (needed, need) in edges.into_iter().filter(|(n, _)| inside.contains(n)) {
            if came.contains_key(&needed) {
                continue;
            }
            came.insert(needed, (node, need));
            if needed == start {
                let mut steps = Vec::new();
                let mut at = start;
                while let Some((from, need)) = came.get(&at) {
                    steps.push((*from, *need, at));
                    at = *from;
                    if at == start {
                        break;
                    }
                }
                steps.reverse();
                return steps;
            }
            queue.push_back(needed);
        }
    }
    Vec::new()
}
