//! Answers about a graph of which nothing was ever built: no store is opened, no source looked at.

use crate::front::draw::{Drawing, DrawnNode, edges};
use crate::front::error::Result;
use crate::front::report::{NodeStatus, StatusReport};
use crate::front::{Location, Project};
use crate::graph::{Name, NodeSpec, select};

/// How the goals of a graph stand that nothing was ever built of: no store is opened, no source looked at.
pub fn unbuilt(location: &Location, goals: &[String]) -> Result<StatusReport> {
    let graph = Project::places(location).0?;
    let selection = select(&graph, goals)?;
    let status = |n: &NodeSpec| NodeStatus {
        node: n.name.to_string(),
        kind: n.kind.name(),
        state: "absent",
        recipe: None,
        tree: None,
        path: None,
    };
    let nodes = selection.in_order(&graph).filter(|n| selection.goals.contains(&n.name)).map(status).collect();
    Ok(StatusReport { nodes, errors: Vec::new(), away: Vec::new() })
}

/// The graph of the goals where nothing was ever built: no store is opened, no source looked at.
pub fn draw_unbuilt(location: &Location, goals: &[String]) -> Result<Drawing> {
    let graph = Project::places(location).0?;
    let selection = select(&graph, goals)?;
    let source = |n: &Name| DrawnNode { name: n.to_string(), kind: "source", state: "source" };
    let node = |n: &NodeSpec| DrawnNode { name: n.name.to_string(), kind: n.kind.name(), state: "absent" };
    let nodes = selection.sources.iter().map(source).chain(selection.in_order(&graph).map(node)).collect();
    Ok(Drawing { nodes, edges: edges(&graph, &selection), errors: Vec::new() })
}
