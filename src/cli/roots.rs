//! `graftwerk roots`.

use std::path::Path;

use serde_json::json;

use crate::cli::args::Roots;
use crate::cli::exit::Exit;
use crate::cli::shell::{Ended, Shell};
use crate::cli::status::short;
use crate::cli::{terminal, words};
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
        let columns = if shell.terminal.out.terminal { terminal::width() } else { None };
        shell.terminal.print(&text(&report, columns, shell.terminal.verbose));
    }
    Ok(Exit::Done)
}

fn text(report: &RootsReport, columns: Option<usize>, verbose: bool) -> String {
    let mut s = String::new();
    for p in &report.projects {
        let (own, shared) = (words::bytes(p.own_bytes), words::bytes(p.shared_bytes));
        s.push_str(&format!("{}: {own} of its own, {shared} shared\n", p.graph.display()));
        if !p.graph_exists {
            let what = if p.folder_exists { "this graph" } else { "the folder of this graph" };
            let forget = format!("`graftwerk roots --forget {}` lets go", p.graph.display());
            s.push_str(&format!("  {what} is gone or can't be read; what it held is still held: {forget}\n"));
        }
        s.push_str(&rows(&p.holds, p.graph.parent(), (columns, verbose)));
    }
    if !report.others.is_empty() {
        s.push_str(
            "links, seats, builds that did not end and running processes
",
        );
        s.push_str(&rows(&report.others, None, (columns, verbose)));
    }
    if s.is_empty() {
        s.push_str("nobody holds anything: no build has ended here\n");
    }
    s
}

// What all columns but that of the names take, at most.
const OTHER_COLUMNS: usize = 65;
const SHORTEST: usize = 12;

// Names below `folder` are told from there on.
fn rows(holds: &[GenerationReport], folder: Option<&Path>, (columns, verbose): (Option<usize>, bool)) -> String {
    if holds.is_empty() {
        return String::new();
    }
    let longest = columns.filter(|_| !verbose).map(|c| c.saturating_sub(OTHER_COLUMNS).max(SHORTEST));
    let row = |h: &GenerationReport| {
        let hold = match h.generation {
            Some(n) => format!("  {} {n}", h.hold),
            None => format!("  {}", h.hold),
        };
        let name = folder.and_then(|f| Path::new(&h.name).strip_prefix(f).ok()?.to_str()).unwrap_or(&h.name);
        let name = longest.map_or_else(|| name.to_owned(), |n| words::elided(name, n));
        let id = if verbose { h.tree.as_str() } else { short(&h.tree) };
        let age = h.age_seconds.map_or_else(String::new, words::age);
        vec![hold, name, id.to_owned(), age, words::bytes(h.own_bytes), words::bytes(h.shared_bytes)]
    };
    let head = ["  held as", "name", "tree", "age", "own", "shared"].map(str::to_owned).to_vec();
    words::columns(&std::iter::once(head).chain(holds.iter().map(row)).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_fit_eighty_columns_and_are_whole_in_a_pipe() {
        let hold = |name: &str, hold, generation| GenerationReport {
            name: name.to_owned(),
            hold,
            generation,
            tree: format!("b3:{}", "0123456789abcdef".repeat(4)),
            age_seconds: Some(59.0 * 60.0),
            own_bytes: 1_048_524,
            shared_bytes: 1_048_524,
        };
        let holds = [
            hold("a-node-with-quite-a-long-name", "generation", Some(5)),
            hold("/home/somebody/project/out/a-node-with-quite-a-long-name", "out", None),
        ];
        let at = |columns| rows(&holds, Some(Path::new("/home/somebody/project")), (columns, false));
        insta::assert_snapshot!(at(Some(80)), @r"
          held as       name             tree             age     own         shared
          generation 5  a-node-…ng-name  b3:0123456789ab  59 min  1023.9 KiB  1023.9 KiB
          out           out/a-n…ng-name  b3:0123456789ab  59 min  1023.9 KiB  1023.9 KiB
        ");
        assert!(at(Some(80)).lines().all(|l| l.chars().count() <= 80), "{}", at(Some(80)));
        assert!(at(None).contains("  out/a-node-with-quite-a-long-name  "), "{}", at(None));
    }
}
