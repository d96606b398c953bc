//! `graftwerk build`.

use std::time::Instant;

use crate::cli::args::Build;
use crate::cli::exit::Exit;
use crate::cli::screen::{Told, verb_line};
use crate::cli::shell::{Ended, Shell};
use crate::cli::terminal::Tone;
use crate::cli::words;
use crate::front::{BuildOptions, BuildReport, StepReport};
use crate::sched;

/// Steps of different kinds overlap well, but each of ours already uses all cores for hashing.
const MOST_JOBS: usize = 4;

pub(crate) fn run(shell: &Shell, args: &Build) -> Ended {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let options = BuildOptions {
        looking: (&args.how).into(),
        run: sched::Options {
            jobs: args.jobs.map_or(cores.min(MOST_JOBS), std::num::NonZeroUsize::get),
            keep_going: args.keep_going,
            keep_failed: args.keep_failed,
        },
    };
    let begun = Instant::now();
    let (report, told) = shell.make(|p, events, cancel| p.build(&args.nodes, &options, events, cancel))?;
    shell.source_errors(report.errors.iter().map(|e| (e.error.as_str(), e.hint.as_deref())));
    shell.empty_graph(report.steps.len());
    for step in &report.steps {
        tell_rest(shell, step, &told);
    }
    if shell.terminal.json {
        shell.answer_json(&report);
    } else if !shell.terminal.quiet {
        shell.terminal.print(&summary(&report, begun.elapsed().as_secs_f64()));
    }
    Ok(match (report.interrupted, report.ok) {
        (true, _) => Exit::Interrupted,
        (false, true) => Exit::Done,
        (false, false) => Exit::Failed,
    })
}

// What ended without an event: nothing ran.
fn tell_rest(shell: &Shell, step: &StepReport, told: &Told) {
    let t = shell.terminal;
    let because = || step.error.as_ref().map_or_else(String::new, |e| format!(": {e}"));
    let hint = || step.hint.as_ref().map_or_else(String::new, |h| format!("    hint: {h}\n"));
    match step.action {
        "failed" if told.failed.contains(&step.node) => {}
        "failed" if step.error.is_none() => {
            let rest = format!(
                ": the check did not hold, and nothing that it looks at has changed\n    hint: `graftwerk log {}` says what it found",
                step.node
            );
            t.say(&verb_line(t, Tone::Bad, "failed", &step.node, &rest));
        }
        "failed" => t.say(&(verb_line(t, Tone::Bad, "failed", &step.node, &because()) + &hint())),
        "blocked" | "skipped" if !t.quiet => {
            t.say(&verb_line(t, Tone::Quiet, step.action, &step.node, &because()));
        }
        _ => {}
    }
}

fn summary(report: &BuildReport, seconds: f64) -> String {
    let steps = words::count(report.steps.len(), "step");
    let of = |action: &str| report.steps.iter().filter(|s| s.action == action).count();
    if report.ok && of("fresh") == report.steps.len() {
        let are = if report.steps.len() == 1 { "is" } else { "are" };
        return format!("nothing to do: {steps} {are} fresh\n");
    }
    let parts: Vec<String> = ["built", "fresh", "failed", "blocked", "skipped"]
        .into_iter()
        .map(|a| (of(a), a))
        .filter(|(n, _)| *n > 0)
        .map(|(n, a)| format!("{n} {a}"))
        .collect();
    let stopped = if report.interrupted { "stopped: " } else { "" };
    format!("{stopped}{steps}: {}, in {}\n", parts.join(", "), words::seconds(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(node: &str, action: &'static str) -> StepReport {
        StepReport {
            node: node.to_owned(),
            kind: "run",
            action,
            recipe: None,
            tree: None,
            reasons: Vec::new(),
            seconds: 0.0,
            verdict: None,
            error: None,
            hint: None,
        }
    }

    #[test]
    fn a_build_that_did_nothing_says_so() {
        let mut report = BuildReport {
            steps: vec![step("a", "fresh"), step("b", "fresh")],
            ok: true,
            errors: vec![],
            interrupted: false,
        };
        assert_eq!(summary(&report, 0.1), "nothing to do: 2 steps are fresh\n");
        report.steps.pop();
        assert_eq!(summary(&report, 0.1), "nothing to do: 1 step is fresh\n");
        report.steps.extend([step("b", "built"), step("c", "failed"), step("d", "blocked"), step("e", "built")]);
        report.ok = false;
        assert_eq!(summary(&report, 61.0), "5 steps: 2 built, 1 fresh, 1 failed, 1 blocked, in 1 min 01 s\n");
    }
}
