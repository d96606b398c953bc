//! Goals: the nodes that somebody asked for, and what they need. The only place where a name from the command line is
//! looked up.

use std::collections::BTreeSet;

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
            SelectError::Unknown { name, near } => did_you_mean(name, near.iter().map(String::as_str))
                .unwrap_or_else(|| "`graftwerk status` lists the nodes".to_owned()),
            SelectError::IsSource { used_by, .. } if used_by.is_empty() => "no node takes it".to_owned(),
            SelectError::IsSource { used_by, .. } => {
                let names: Vec<String> = used_by.iter().take(3).map(|n| format!("`{n}`")).collect();
                format!("{} takes it: name a node", names.join(", "))
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

/// Resolves goals; none at all means every node. Errors: one for each name that is no node's.
pub fn select(graph: &Graph, goals: &[String]) -> Result<Selection, Vec<SelectError>> {
    let mut selection = Selection::default();
    let mut errors = Vec::new();
    for name in goals {
        match find(graph, name) {
            Ok(node) => {
                selection.goals.insert(node.name.clone());
            }
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
        let inputs = node.inputs.values().filter_map(|i| match &i.from {
            Ref::Node(n) => Some(n),
            Ref::Source(s) => {
                selection.sources.insert(s.clone());
                None
            }
        });
        for needed in inputs.chain(&node.gates) {
            if seen.insert(needed) {
                stack.push(needed);
                selection.needed.insert(needed.clone());
            }
        }
    }
    Ok(selection)
}
