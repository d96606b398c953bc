//! `graftwerk repair`.

use std::collections::BTreeSet;

use crate::audit::repair::{Outcome, Repair, Repaired};
use crate::audit::verify::escaped;
use crate::cli::args::Repair as Args;
use crate::cli::exit::Exit;
use crate::cli::shell::{Ended, Shell};
use crate::front::{self, RepairOptions};
use crate::sched;

pub(crate) fn run(shell: &Shell, args: &Args) -> Ended {
    let options = RepairOptions {
        dry_run: args.dry_run,
        rebuild: args.rebuild,
        from: args.from.clone(),
        run: sched::Options { jobs: 1, keep_going: true, keep_failed: false },
    };
    let (done, _) = shell.look(|location, events, cancel| front::repair(location, &options, events, cancel))?;
    if shell.terminal.json {
        shell.answer_json(&done);
    } else {
        shell.terminal.print(&text(&done, shell.terminal.quiet));
    }
    Ok(if done.ok { Exit::Done } else { Exit::Failed })
}

fn verb(outcome: Outcome, dry_run: bool) -> &'static str {
    match (outcome, dry_run) {
        (Outcome::Restored, false) => "restored",
        (Outcome::Restored, true) => "restore",
        (Outcome::SetAside, false) => "set aside",
        (Outcome::SetAside, true) => "set aside",
        (Outcome::Rebuild, _) => "rebuild",
        (Outcome::Lost, _) => "lost",
    }
}

fn text(done: &Repaired, quiet: bool) -> String {
    let mut s = String::new();
    for r in &done.repairs {
        if quiet && matches!(r.outcome, Outcome::Restored | Outcome::SetAside) {
            continue;
        }
        s.push_str(&one(r, done.dry_run));
    }
    if !quiet {
        s.extend(done.notes.iter().map(|n| format!("note: {n}\n")));
    }
    let open: Vec<&Repair> = done.repairs.iter().filter(|r| r.outcome == Outcome::Rebuild).collect();
    let nodes: BTreeSet<&str> = open.iter().flat_map(|r| &r.nodes).map(|n| n.node.as_str()).collect();
    if !nodes.is_empty() {
        let nodes: Vec<&str> = nodes.into_iter().collect();
        s.push_str(&format!(
            "hint: `graftwerk build {}` builds them again; so does `graftwerk repair --rebuild`\n",
            nodes.join(" ")
        ));
    }
    if !quiet {
        s.push_str(&summary(done));
    }
    s
}

fn one(r: &Repair, dry_run: bool) -> String {
    let mut s = format!("{:<9} {} {} {}\n", verb(r.outcome, dry_run), r.part.name(), escaped(&r.path), r.what);
    s.push_str(&format!("          {}\n", r.how));
    if let Some(aside) = &r.set_aside {
        s.push_str(&format!("          the damaged one is {}\n", escaped(aside)));
    }
    s
}

fn summary(done: &Repaired) -> String {
    if done.repairs.is_empty() {
        return "all is right: nothing to repair\n".to_owned();
    }
    let of = |outcome: Outcome| done.repairs.iter().filter(|r| r.outcome == outcome).count();
    let would = if done.dry_run { "nothing was changed; would be: " } else { "" };
    format!(
        "{would}{} restored, {} set aside, {} to build again, {} lost\n",
        of(Outcome::Restored),
        of(Outcome::SetAside),
        of(Outcome::Rebuild),
        of(Outcome::Lost)
    )
}
