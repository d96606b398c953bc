//! `graftwerk export`.

use std::io::{self, IsTerminal as _};
use std::path::Path;

use crate::cli::args::Export;
use crate::cli::exit::Exit;
use crate::cli::shell::{Ended, Shell};
use crate::cli::words;
use crate::front::{ArchiveReport, ExportTo, FrontError};

pub(crate) fn run(shell: &Shell, args: &Export) -> Ended {
    match &args.archive {
        None => folder(shell, args),
        Some(file) if file.as_os_str() == "-" => stream(shell, args),
        Some(file) => {
            let target = shell.below(file);
            let (report, _) = shell.ask_about(&all(args), |p, events, cancel| {
                p.export_archive(&args.what, ExportTo::File(&target), args.with_inputs, events, cancel)
            })?;
            if shell.terminal.json {
                shell.answer_json(&report);
            } else {
                shell.terminal.print(&text(&report, &file.to_string_lossy()));
            }
            Ok(Exit::Done)
        }
    }
}

fn all(args: &Export) -> Vec<&str> {
    args.what.iter().map(String::as_str).collect()
}

fn folder(shell: &Shell, args: &Export) -> Ended {
    let [what, dir] = args.what.as_slice() else {
        let what = format!("a folder is made of one node or ID, and {} names stand here", args.what.len());
        let hint = "`graftwerk export NODE DIR`, or `--archive FILE` for several in one file".to_owned();
        return Err(FrontError::Argument { what, hint: Some(hint) });
    };
    let target = shell.below(Path::new(dir));
    let (report, _) =
        shell.ask_about(&[what], |p, events, cancel| p.export_folder(what, &target, args.link, events, cancel))?;
    if shell.terminal.json {
        shell.answer_json(&report);
    } else {
        let files = words::count(usize::try_from(report.files).unwrap_or(usize::MAX), "file");
        shell.terminal.print(&format!("exported {what} to {dir}: {files}, {}\n", words::bytes(report.bytes)));
    }
    Ok(Exit::Done)
}

fn stream(shell: &Shell, args: &Export) -> Ended {
    let refuse =
        |what: &str, hint: &str| Err(FrontError::Argument { what: what.to_owned(), hint: Some(hint.to_owned()) });
    if shell.terminal.json {
        return refuse("the archive and the JSON object would both go to standard output", "name a file");
    }
    if io::stdout().is_terminal() {
        return refuse(
            "an archive is nothing to look at",
            "send it on, as in `--archive - | ssh HOST …`, or name a file",
        );
    }
    let mut out = io::stdout().lock();
    let (report, _) = shell.ask_about(&all(args), |p, events, cancel| {
        p.export_archive(&args.what, ExportTo::Stream(&mut out), args.with_inputs, events, cancel)
    })?;
    if !shell.terminal.quiet {
        shell.terminal.say(&text(&report, "standard output"));
    }
    Ok(Exit::Done)
}

fn text(report: &ArchiveReport, to: &str) -> String {
    let trees = words::count(report.exports.len(), "tree");
    let objects = words::count(usize::try_from(report.objects).unwrap_or(usize::MAX), "object");
    let (bytes, packed) = (words::bytes(report.bytes), words::bytes(report.archive_bytes));
    format!("exported {trees} to {to}: {objects}, {bytes}, packed {packed}\n")
}
