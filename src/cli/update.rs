//! `graftwerk update`.

use crate::cli::args::Update;
use crate::cli::exit::Exit;
use crate::cli::shell::{Ended, Shell};
use crate::cli::status::short;
use crate::cli::words;
use crate::front::UpdateReport;

pub(crate) fn run(shell: &Shell, args: &Update) -> Ended {
    let (report, _) = shell.make(|p, events, cancel| p.update(&args.names, events, cancel))?;
    if shell.terminal.json {
        shell.answer_json(&report);
    } else if !shell.terminal.quiet {
        shell.terminal.print(&text(&report, shell.terminal.verbose));
    }
    Ok(Exit::Done)
}

fn text(report: &UpdateReport, verbose: bool) -> String {
    let id = |t: &str| if verbose { t.to_owned() } else { short(t).to_owned() };
    let row = |name: &String, old: &Option<String>, new: &String| {
        let what = match old {
            Some(old) if old == new => format!("{} as before", id(new)),
            Some(old) => format!("{} → {}", id(old), id(new)),
            None => format!("{} is new", id(new)),
        };
        vec![name.clone(), what]
    };
    let mut rows: Vec<Vec<String>> = report.sources.iter().map(|s| row(&s.source, &s.old, &s.new)).collect();
    rows.extend(report.images.iter().map(|i| row(&i.image, &i.old, &i.new)));
    let end = if report.written { "graph.lock was rewritten\n" } else { "graph.lock stays as it is\n" };
    words::columns(&rows) + end
}
