//! `graftwerk why`.

use crate::cli::args::One;
use crate::cli::exit::Exit;
use crate::cli::shell::{Ended, Shell};
use crate::cli::words;
use crate::front::{Looking, Why};
use crate::model::run::{Outcome, RunRecord};
use crate::plan::Reason;

pub(crate) fn run(shell: &Shell, args: &One) -> Ended {
    let (why, _) = shell.ask(|p, events, cancel| p.why(&args.node, Looking::default(), events, cancel))?;
    if shell.terminal.json {
        shell.answer_json(&why);
    } else {
        shell.terminal.print(&text(&why));
    }
    Ok(Exit::Done)
}

fn text(why: &Why) -> String {
    let mut s = match why.action {
        "fresh" if why.last.as_ref().and_then(RunRecord::verdict) == Some(false) => {
            format!("{0} does not hold, and nothing that it looks at has changed: see `graftwerk log {0}`\n", why.node)
        }
        "fresh" => format!("{} is fresh: built, and nothing that it is made of has changed\n", why.node),
        "run" => format!("{} would run:\n{}", why.node, list(&why.reasons)),
        "await" => format!("{} waits for {}: only then is its recipe known\n", why.node, why.on.join(", ")),
        _ if why.on.is_empty() => format!("{} can't run\n", why.node),
        _ => format!("{} is blocked by {}\n", why.node, why.on.join(", ")),
    };
    if let Some(e) = &why.error {
        s.push_str(&format!("  {e}\n"));
    }
    if let Some(last) = &why.last {
        s.push_str(&format!("last run: {}\n", one_line(last)));
        if !why.last_reasons.is_empty() {
            let texts = why.last_reasons.iter().filter_map(|r| r["text"].as_str());
            let told: String = texts.map(|t| format!("  {}\n", words::plain(t))).collect();
            s.push_str(&format!("it ran because:\n{told}"));
        }
    }
    s
}

fn list(reasons: &[Reason]) -> String {
    reasons.iter().map(|r| format!("  {}\n", words::plain(&r.to_string()))).collect()
}

/// A run in a line: number, when, how long, where, how isolated, what came of it.
pub(crate) fn one_line(run: &RunRecord) -> String {
    let came = match &run.outcome {
        Outcome::Success { tree, verdict: Some(false) } => format!("does not hold, report {}", tree.short()),
        Outcome::Success { tree, verdict: Some(true) } => format!("holds, report {}", tree.short()),
        Outcome::Success { tree, verdict: None } => format!("tree {}", tree.short()),
        Outcome::Failure { error } => format!("failed: {}", words::plain(error)),
    };
    let (seq, took) = (run.seq, words::seconds(run.seconds));
    let when = run.started.split('.').next().unwrap_or(&run.started).trim_end_matches('Z');
    format!("#{seq}, {when}Z, {took}, on {}, isolation {}, {came}", run.host, run.isolation)
}
