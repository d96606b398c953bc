//! `graftwerk roots`.

use std::path::Path;

use serde_json::json;

use crate::cli::args::Roots;
use crate::cli::exit::Exit;
use crate::cli::shell::{Ended, Shell};
use crate::cli::status::short;
use crate::cli::words;
use crate::front::{GenerationReport, RootsReport};

pub(crate) fn run(shell: &Shell, args: &Roots) -> Ended {
    if let Some(what) = &args.forget {
        let (forgotten, _) = shell.ask(|p, events, cancel| p.forget(Path::new(what), events, cancel))?;
        if shell.terminal.json {
            shell.answer_json(&json!({"forgotten": forgotten.to_string_lossy()}));
        } else {
            shell.terminal.print(&format!("let go of {}\n", forgotten.display()));
        }
        return Ok(Exit::Done);
    }
    let (report, _) = shell.ask(|p, _, _| p.held())?;
    if shell.terminal.json {
        shell.answer_json(&report);
    } else {
        shell.terminal.print(&text(&report, shell.terminal.verbose));
    }
    Ok(Exit::Done)
}

fn text(report: &RootsReport, verbose: bool) -> String {
    let mut s = String::new();
    for p in &report.projects {
        let (own, shared) = (words::bytes(p.own_bytes), words::bytes(p.shared_bytes));
        s.push_str(&format!("{}: {own} of its own, {shared} shared\n", p.graph.display()));
        if !p.graph_exists {
            let what = if p.folder_exists { "this graph" } else { "the folder of this graph" };
            let forget = format!("`graftwerk roots --forget {}` lets go", p.graph.display());
            s.push_str(&format!("  {what} is gone or can't be read; what it held is still held: {forget}\n"));
        }
        s.push_str(&rows(&p.holds, verbose));
    }
    if !report.others.is_empty() {
        s.push_str("links, seats and running processes\n");
        s.push_str(&rows(&report.others, verbose));
    }
    if s.is_empty() {
        s.push_str("nobody holds anything: no build has ended here\n");
    }
    s
}

fn rows(holds: &[GenerationReport], verbose: bool) -> String {
    let row = |h: &GenerationReport| {
        let hold = match h.generation {
            Some(n) => format!("  {} {n}", h.hold),
            None => format!("  {}", h.hold),
        };
        let id = if verbose { h.tree.as_str() } else { short(&h.tree) };
        let age = h.age_seconds.map_or_else(String::new, |a| words::age(a) + " old");
        let own = format!("{} own", words::bytes(h.own_bytes));
        vec![hold, h.name.clone(), id.to_owned(), age, own, format!("{} shared", words::bytes(h.shared_bytes))]
    };
    words::columns(&holds.iter().map(row).collect::<Vec<_>>())
}
