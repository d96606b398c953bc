//! `graftwerk import`.

use std::io;

use crate::cli::args::Import;
use crate::cli::exit::Exit;
use crate::cli::shell::{Ended, Shell};
use crate::cli::words;
use crate::front::{self, ImportFrom, ImportReport};

pub(crate) fn run(shell: &Shell, args: &Import) -> Ended {
    let (report, _) = shell.watch(|events, cancel| {
        if args.file.as_os_str() == "-" {
            let mut input = io::stdin().lock();
            front::import(shell.location(), ImportFrom::Stream(&mut input), events, cancel)
        } else {
            front::import(shell.location(), ImportFrom::File(&shell.below(&args.file)), events, cancel)
        }
    })?;
    if shell.terminal.json {
        shell.answer_json(&report);
    } else {
        shell.terminal.print(&text(&report));
    }
    Ok(Exit::Done)
}

fn text(report: &ImportReport) -> String {
    let mut s = String::new();
    for e in &report.exports {
        let name = e.node.as_deref().map_or_else(|| "tree".to_owned(), words::plain);
        s.push_str(&format!("{name} {}\n", e.tree));
    }
    let objects = words::count(usize::try_from(report.objects).unwrap_or(usize::MAX), "object");
    let runs = words::count(usize::try_from(report.new_runs).unwrap_or(usize::MAX), "run");
    let (bytes, new) = (words::bytes(report.bytes), words::bytes(report.new_bytes));
    s + &format!("imported {objects}, {bytes}; new were {new} and {runs}\n")
}
