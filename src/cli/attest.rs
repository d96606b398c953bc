//! `graftwerk attest`.

use crate::cli::args::Attest;
use crate::cli::exit::Exit;
use crate::cli::shell::{Ended, Shell};
use crate::cli::words;
use crate::front::{AttestOptions, AttestReport};

pub(crate) fn run(shell: &Shell, args: &Attest) -> Ended {
    let options = AttestOptions {
        key: args.key.as_deref().map(|k| shell.below(k)),
        out: args.out.as_deref().map(|o| shell.below(o)),
        oms: args.oms,
        builder: args.builder.clone(),
    };
    let (report, _) = shell.ask(|p, events, cancel| p.attest(&args.node, &options, events, cancel))?;
    match &args.out {
        // The signature is itself one JSON object.
        None => shell.terminal.print(&format!("{}\n", report.text)),
        Some(_) if shell.terminal.json => shell.answer_json(&report),
        Some(file) => shell.terminal.print(&text(&report, &file.to_string_lossy())),
    }
    if !shell.terminal.json && !shell.terminal.quiet {
        shell.terminal.say(&notes(&report));
    }
    Ok(Exit::Done)
}

fn text(report: &AttestReport, to: &str) -> String {
    let (files, bytes) = (words::count(report.files, "file"), words::bytes(report.bytes));
    let key = report.key.get(..12).unwrap_or_default();
    format!("attested {} to {to}: {files}, {bytes}, signed by the {} key {key}\n", report.node, report.algorithm)
}

fn notes(report: &AttestReport) -> String {
    let mut s = String::new();
    if !report.unsigned.is_empty() {
        let list = report.unsigned.iter().map(|l| words::plain(l)).collect::<Vec<_>>().join(", ");
        s.push_str(&format!("note: not signed, because the format has no place for it: {list}\n"));
    }
    if report.format == "oms" && !report.links.is_empty() {
        let links = words::count(report.links.len(), "file");
        s.push_str(&format!(
            "note: {links} of the node's folder may be links: model_signing wants --allow_symlinks there\n"
        ));
    }
    s
}
