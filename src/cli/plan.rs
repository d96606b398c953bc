//! `graftwerk plan`.

use crate::cli::args::Plan;
use crate::cli::exit::Exit;
use crate::cli::screen::reasons_text;
use crate::cli::shell::{Ended, Shell};
use crate::cli::words;
use crate::front::{PlanReport, PlanStep};

pub(crate) fn run(shell: &Shell, args: &Plan) -> Ended {
    let (report, _) = shell.make(|p, events, cancel| p.plan(&args.nodes, (&args.how).into(), events, cancel))?;
    shell.source_errors(report.errors.iter().map(|e| (e.error.as_str(), e.hint.as_deref())));
    shell.empty_graph(report.steps.len());
    if shell.terminal.json {
        shell.answer_json(&report);
    } else {
        shell.terminal.print(&text(&report, shell.terminal.verbose));
    }
    Ok(if report.errors.is_empty() { Exit::Done } else { Exit::Failed })
}

fn text(report: &PlanReport, verbose: bool) -> String {
    let rows: Vec<Vec<String>> = report
        .steps
        .iter()
        .map(|s| vec![s.action.to_owned(), s.node.clone(), s.kind.to_owned(), because(s, report.clones, verbose)])
        .collect();
    words::columns(&rows) + &time(report)
}

// Seconds below which nobody waits.
const WORTH_TELLING: f64 = 1.0;

// What the steps that would run took last time, all together: they may run beside each other.
fn time(report: &PlanReport) -> String {
    let would_run = report.steps.iter().filter(|s| matches!(s.action, "run" | "await"));
    let (known, unknown): (Vec<&PlanStep>, Vec<&PlanStep>) = would_run.partition(|s| s.last_seconds.is_some());
    let sum: f64 = known.iter().filter_map(|s| s.last_seconds).sum();
    match (known.len(), unknown.len()) {
        (0, _) => String::new(),
        _ if sum < WORTH_TELLING => String::new(),
        (_, 0) => format!("about {} of work, as last time\n", words::seconds(sum)),
        (_, n) => format!(
            "about {} of work, as last time, and {} never timed\n",
            words::seconds(sum),
            words::count(n, "step")
        ),
    }
}

// `clones`: whether what is copied shares its bytes with what it is copied from.
fn because(step: &PlanStep, clones: Option<bool>, verbose: bool) -> String {
    let reasons = reasons_text(&step.reasons, verbose);
    let mut parts: Vec<String> = Vec::new();
    if let Some(r) = reasons.strip_prefix(": ") {
        parts.push(r.to_owned());
    }
    if !step.on.is_empty() {
        let how = if step.action == "await" { "waits for" } else { "blocked by" };
        parts.push(format!("{how} {}", step.on.join(", ")));
    }
    if let Some(s) = step.last_seconds.filter(|s| *s >= WORTH_TELLING) {
        parts.push(format!("took {} last time", words::seconds(s)));
    }
    if let Some(space) = step.space.filter(|s| s.writes + s.copies > 0) {
        let how = if clones == Some(true) { "shares" } else { "copies" };
        let copies = if space.copies > 0 { format!(", {how} {}", words::bytes(space.copies)) } else { String::new() };
        parts.push(format!("writes {}{copies}", words::bytes(space.writes)));
    }
    if step.verdict == Some(false) {
        parts.push("does not hold".to_owned());
    }
    parts.extend(step.error.clone());
    parts.extend(step.hint.as_ref().map(|h| format!("hint: {h}")));
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::recipe::{Change, Class, FieldName};
    use crate::plan::Reason;

    #[test]
    fn every_step_is_shown_with_its_reasons_and_both_values() {
        let step = |node: &str, action, reasons, on: &[&str]| PlanStep {
            node: node.to_owned(),
            kind: "quant",
            action,
            reasons,
            on: on.iter().map(|s| (*s).to_owned()).collect(),
            recipe: None,
            space: (node == "quant-a").then_some(crate::kinds::Space { writes: 3 << 30, copies: 512 }),
            last_seconds: (node == "quant-a").then_some(1090.0),
            verdict: (node == "check-a").then_some(false),
            error: None,
            hint: None,
        };
        let change = Change {
            field: FieldName { class: Class::Param, name: "strength".to_owned() },
            old: Some("1".to_owned()),
            new: Some("1.0".to_owned()),
        };
        let steps = vec![
            step("graft-a", "fresh", vec![], &[]),
            step("quant-a", "run", vec![Reason::Changed { change, files: vec![] }], &[]),
            step("splice-a", "await", vec![], &["quant-a"]),
            step("check-a", "fresh", vec![], &[]),
            step("seat-a", "blocked", vec![], &["check-a"]),
        ];
        let mut report = PlanReport { steps, errors: vec![], clones: None };
        insta::assert_snapshot!(text(&report, false), @r"
        fresh    graft-a   quant
        run      quant-a   quant  param strength: 1 → 1.0; took 18 min 10 s last time; writes 3.0 GiB, copies 512 B
        await    splice-a  quant  waits for quant-a
        fresh    check-a   quant  does not hold
        blocked  seat-a    quant  blocked by check-a
        about 18 min 10 s of work, as last time, and 1 step never timed
        ");
        report.clones = Some(true);
        assert!(text(&report, false).contains("; writes 3.0 GiB, shares 512 B\n"));
    }
}
