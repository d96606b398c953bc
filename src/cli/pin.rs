//! `graftwerk pin`.

use crate::cli::args::Pin;
use crate::cli::exit::Exit;
use crate::cli::shell::{Ended, Shell};
use crate::front::Looking;

pub(crate) fn run(shell: &Shell, args: &Pin) -> Ended {
    let (report, _) = shell.ask(|p, events, cancel| {
        p.pin(&args.node, args.tree.as_deref(), args.remove, Looking::default(), events, cancel)
    })?;
    let t = &shell.terminal;
    if t.json {
        shell.answer_json(&report);
    } else if !t.quiet {
        let (node, recipe) = (&report.node, report.recipe.short());
        t.print(&match (report.tree, report.was) {
            (Some(tree), _) => format!("{node} (recipe {recipe}) is pinned to {tree}\n"),
            (None, None) => format!("{node} (recipe {recipe}) was not pinned\n"),
            (None, Some(_)) => format!("{node} (recipe {recipe}) is no longer pinned\n"),
        });
    }
    Ok(Exit::Done)
}
