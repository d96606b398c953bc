//! `graftwerk status`.

use crate::cli::args::Status;
use crate::cli::exit::Exit;
use crate::cli::shell::{Ended, Shell};
use crate::cli::words;
use crate::front::{self, FrontError, Looking, NodeStatus, StatusReport};

pub(crate) fn run(shell: &Shell, args: &Status) -> Ended {
    let asked = shell.ask(|p, events, cancel| p.status(&args.nodes, Looking::default(), events, cancel));
    let report = match asked {
        Err(FrontError::NoStore { path }) => {
            shell.no_store(&path);
            front::unbuilt(shell.location(), &args.nodes)?
        }
        asked => asked?.0,
    };
    shell.empty_graph(report.nodes.len());
    shell.source_errors(report.errors.iter().map(|e| (e.error.as_str(), e.hint.as_deref())));
    if shell.terminal.json {
        shell.answer_json(&report);
    } else {
        shell.terminal.print(&text(&report, shell.terminal.verbose));
    }
    Ok(if report.errors.is_empty() { Exit::Done } else { Exit::Failed })
}

fn text(report: &StatusReport, verbose: bool) -> String {
    let row = |n: &NodeStatus| {
        let mut row = vec![n.state.to_owned(), n.node.clone(), n.kind.to_owned()];
        let id = |id: &Option<String>| {
            id.as_deref().map_or_else(String::new, |t| if verbose { t } else { short(t) }.to_owned())
        };
        row.push(id(&n.tree));
        if verbose {
            row.push(n.path.as_ref().map_or_else(String::new, |p| p.display().to_string()));
        }
        row
    };
    words::columns(&report.nodes.iter().map(row).collect::<Vec<_>>())
}

/// The beginning of an id, as long as people compare.
pub(crate) fn short(id: &str) -> &str {
    id.get(..15).unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_short_unless_asked_for() {
        let id = format!("b3:{}", "0123456789abcdef".repeat(4));
        let node = |node: &str, state, tree| NodeStatus {
            node: node.to_owned(),
            kind: "graft",
            state,
            recipe: None,
            tree,
            path: Some("/p/artifacts/x".into()),
        };
        let nodes = vec![node("graft-a", "fresh", Some(id.clone())), node("b", "stale", None)];
        let report = StatusReport { nodes, errors: vec![], away: vec![] };
        assert_eq!(text(&report, false), "fresh  graft-a  graft  b3:0123456789ab\nstale  b        graft\n");
        assert!(text(&report, true).contains(&id));
    }
}
