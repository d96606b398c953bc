//! What happens during a command, on stderr: lines in a pipe; on a terminal the same lines above a bar for each running
//! step, with bytes, rate, time left and the step's last line.

use std::collections::{BTreeSet, HashMap};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::cli::terminal::{Terminal, Tone};
use crate::cli::words;
use crate::plan::Reason;
use crate::sched::{End, Event};

/// The failures that were shown already.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) failed: BTreeSet<String>,
}

/// Shows events.
pub(crate) struct Screen {
    terminal: Terminal,
    bars: Option<Bars>,
    told: Told,
}

struct Bars {
    all: MultiProgress,
    running: HashMap<String, ProgressBar>,
}

impl Bars {
    fn new() -> Self {
        Self { all: MultiProgress::with_draw_target(ProgressDrawTarget::stderr()), running: HashMap::new() }
    }

    fn bar(&mut self, name: &str) -> &ProgressBar {
        self.running.entry(name.to_owned()).or_insert_with(|| {
            let bar = self.all.add(ProgressBar::new_spinner());
            bar.set_style(style("{spinner} {prefix}  {elapsed}  {wide_msg}"));
            bar.set_prefix(name.to_owned());
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        })
    }

    fn bytes(&mut self, name: &str, done: u64, total: u64) {
        let bar = self.bar(name);
        if total > 0 && bar.length() != Some(total) {
            // Another phase of the step: what was done in the one before says nothing of this one.
            bar.set_position(0);
            bar.set_length(total);
            bar.reset_elapsed();
            bar.reset_eta();
            bar.set_style(
                style("{spinner} {prefix}  {binary_bytes}/{binary_total_bytes}{rate}  {wide_msg}")
                    .with_key("rate", rate),
            );
        }
        bar.set_position(done);
    }

    fn end(&mut self, name: &str) {
        if let Some(bar) = self.running.remove(name) {
            bar.finish_and_clear();
            self.all.remove(&bar);
        }
    }
}

// Before so much time, what was read in the first moments (a cache, one buffer) says nothing of the rate.
const RATE_AFTER: Duration = Duration::from_secs(1);

fn rate(state: &ProgressState, to: &mut dyn std::fmt::Write) {
    let left = state.len().unwrap_or(0).saturating_sub(state.pos());
    let _ = to.write_str(&rate_text(state.elapsed(), state.pos(), left));
}

/// `  120.0 MiB/s  4.2 s left` by what was done so far; nothing before it means something.
fn rate_text(elapsed: Duration, done: u64, left: u64) -> String {
    if elapsed < RATE_AFTER || done == 0 {
        return String::new();
    }
    #[allow(clippy::cast_precision_loss, reason = "few digits are shown")]
    let (per_second, left) = (done as f64 / elapsed.as_secs_f64(), left as f64);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative; casts saturate")]
    let rate = words::bytes(per_second as u64);
    format!("  {rate}/s  {} left", words::seconds(left / per_second))
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}

impl Screen {
    pub(crate) fn new(terminal: Terminal) -> Self {
        let bars = (terminal.err.terminal && !terminal.quiet).then(Bars::new);
        Self { terminal, bars, told: Told::default() }
    }

    /// Shows events until nobody sends any more; says what was told.
    pub(crate) fn run(mut self, events: &Receiver<Event>) -> Told {
        for event in events {
            let text = self.hear(&event);
            if !text.is_empty() {
                self.print(&text);
            }
        }
        if let Some(bars) = &self.bars {
            let _ = bars.all.clear();
        }
        self.told
    }

    fn print(&self, text: &str) {
        match &self.bars {
            Some(bars) => bars.all.suspend(|| self.terminal.say(text)),
            None => self.terminal.say(text),
        }
    }

    /// Takes an event in; what is to be printed for it.
    fn hear(&mut self, event: &Event) -> String {
        match event {
            Event::Scanning { source, done, total } => {
                if let Some(bars) = &mut self.bars {
                    bars.bytes(&format!("source {source}"), *done, *total);
                }
                String::new()
            }
            Event::Scanned { source, hashed_bytes, unsettled } => {
                self.end(&format!("source {source}"));
                if *hashed_bytes == 0 {
                    return String::new();
                }
                let again = if *unsettled { "; written a moment ago, so it will be hashed once more" } else { "" };
                self.line(Tone::Quiet, "hashed", source, &format!(" {}{again}", words::bytes(*hashed_bytes)))
            }
            Event::Started { node, reasons, .. } => {
                if let Some(bars) = &mut self.bars {
                    bars.bar(node);
                }
                self.line(Tone::Busy, "building", node, &reasons_text(reasons, self.terminal.verbose))
            }
            Event::Progress { node, done, total } => {
                if let Some(bars) = &mut self.bars {
                    bars.bytes(node, *done, *total);
                }
                String::new()
            }
            Event::Line { node, line } => {
                let line = words::plain(line);
                if let Some(bars) = &mut self.bars {
                    bars.bar(node).set_message(line.clone());
                }
                if self.terminal.verbose { format!("{node} | {line}\n") } else { String::new() }
            }
            Event::Waiting { node, holder } => {
                let whom = match holder {
                    Some(h) => format!(" for {h}"),
                    None => " for another process that builds the same".to_owned(),
                };
                self.line(Tone::Busy, "waiting", node, &whom)
            }
            Event::Planned { run: 0, .. } => String::new(),
            Event::Planned { run, waiting, fresh, blocked } => {
                let blocked = if *blocked > 0 { format!(", {blocked} blocked") } else { String::new() };
                let what = format!("{run} to run, {waiting} behind them, {fresh} fresh{blocked}");
                self.line(Tone::Quiet, "plan", &what, "")
            }
            Event::Finished { node, end, seconds, .. } => {
                self.end(node);
                self.finished(node, end, *seconds)
            }
            Event::Notice(text) => self.line(Tone::Quiet, "notice", &words::plain(text), ""),
        }
    }

    fn end(&mut self, name: &str) {
        if let Some(bars) = &mut self.bars {
            bars.end(name);
        }
    }

    fn finished(&mut self, node: &str, end: &End, seconds: f64) -> String {
        let took = format!(" in {}", words::seconds(seconds));
        match end {
            End::Built { verdict: Some(false), notes, .. } => {
                self.told.failed.insert(node.to_owned());
                self.always(Tone::Bad, "failed", node, &format!("{took}: the check does not hold")) + &indented(notes)
            }
            End::Built { verdict, written_bytes, notes } => {
                let verb = if *verdict == Some(true) { "passed" } else { "built" };
                let mut rest = took;
                if *written_bytes > 0 {
                    rest.push_str(&format!(", {} written", words::bytes(*written_bytes)));
                }
                let line = self.line(Tone::Good, verb, node, &rest);
                // In verbose mode they were shown as lines of the step.
                if self.terminal.verbose || self.terminal.quiet || *verdict == Some(true) {
                    line
                } else {
                    line + &indented(notes)
                }
            }
            End::Reused => self.line(Tone::Good, "reused", node, ": its recipe has just been built"),
            End::Failed { error, hint, tail, log } => {
                self.told.failed.insert(node.to_owned());
                let mut s = self.always(Tone::Bad, "failed", node, &format!("{took}: {error}"));
                s.push_str(&indented(tail));
                if let Some(log) = log {
                    s.push_str(&format!("     log: {}\n", log.display()));
                }
                if let Some(hint) = hint {
                    s.push_str(&format!("    hint: {hint}\n"));
                }
                s
            }
            End::Cancelled => self.line(Tone::Bad, "stopped", node, ""),
        }
    }

    /// A line that is left out in quiet mode.
    fn line(&self, tone: Tone, verb: &str, what: &str, rest: &str) -> String {
        if self.terminal.quiet { String::new() } else { self.always(tone, verb, what, rest) }
    }

    fn always(&self, tone: Tone, verb: &str, what: &str, rest: &str) -> String {
        verb_line(self.terminal, tone, verb, what, rest)
    }
}

/// `   built quant-a in 4.2 s`: verbs end in one column.
pub(crate) fn verb_line(terminal: Terminal, tone: Tone, verb: &str, what: &str, rest: &str) -> String {
    format!("{}{} {what}{rest}\n", " ".repeat(8usize.saturating_sub(verb.len())), terminal.err.paint(tone, verb))
}

fn indented(lines: &[String]) -> String {
    lines.iter().map(|l| format!("         | {}\n", words::plain(l))).collect()
}

/// How many reasons a line names.
const MOST: usize = 3;

/// `: method "a" → "b"; …`, or nothing.
pub(crate) fn reasons_text(reasons: &[Reason], all: bool) -> String {
    let most = if all { reasons.len() } else { MOST };
    let mut texts: Vec<String> = reasons.iter().take(most).map(|r| words::plain(&r.to_string())).collect();
    if reasons.len() > most {
        texts.push(format!("and {} more", reasons.len() - most));
    }
    if texts.is_empty() { String::new() } else { format!(": {}", texts.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::terminal::Stream;

    fn told(quiet: bool, verbose: bool, events: Vec<Event>) -> (String, Vec<String>) {
        let pipe = Stream { terminal: false, colour: false };
        let mut screen = Screen::new(Terminal { out: pipe, err: pipe, json: false, quiet, verbose });
        let text = events.iter().map(|e| screen.hear(e)).collect();
        (text, screen.told.failed.into_iter().collect())
    }

    fn a_build() -> Vec<Event> {
        let node = |n: &str| n.to_owned();
        let finished = |n: &str, end| Event::Finished { node: node(n), kind: "run", end, seconds: 1.25 };
        vec![
            Event::Scanning { source: node("base"), done: 1, total: 2 },
            Event::Scanned { source: node("base"), hashed_bytes: 3_758_096_384, unsettled: false },
            Event::Scanned { source: node("calib"), hashed_bytes: 0, unsettled: true },
            Event::Started { node: node("quant"), kind: "quant", reasons: vec![Reason::NeverBuilt] },
            Event::Progress { node: node("quant"), done: 1, total: 2 },
            Event::Line { node: node("quant"), line: "layer 1\u{1b}[0m\r".to_owned() },
            Event::Waiting { node: node("graft"), holder: None },
            finished("graft", End::Reused),
            finished(
                "quant",
                End::Built { written_bytes: 2048, verdict: None, notes: vec!["3 modules left alone".into()] },
            ),
            finished(
                "check",
                End::Built { written_bytes: 9, verdict: Some(false), notes: vec!["15 names are gone".into()] },
            ),
            finished("check-2", End::Built { written_bytes: 0, verdict: Some(true), notes: vec!["fine".into()] }),
            finished(
                "train",
                End::Failed {
                    error: "exited with 3".to_owned(),
                    hint: Some("look at the log".to_owned()),
                    tail: vec!["Traceback".to_owned(), "\u{1b}[31mno such file".to_owned()],
                    log: Some("/s/logs/x.log".into()),
                },
            ),
            finished("last", End::Cancelled),
            Event::Notice("a source moved".to_owned()),
        ]
    }

    #[test]
    fn a_build_in_a_pipe_is_told_in_calm_lines() {
        let (text, failed) = told(false, false, a_build());
        insta::assert_snapshot!(text, @r"
          hashed base 3.5 GiB
        building quant: never built
         waiting graft for another process that builds the same
          reused graft: its recipe has just been built
           built quant in 1.2 s, 2.0 KiB written
                 | 3 modules left alone
          failed check in 1.2 s: the check does not hold
                 | 15 names are gone
          passed check-2 in 1.2 s
          failed train in 1.2 s: exited with 3
                 | Traceback
                 | no such file
             log: /s/logs/x.log
            hint: look at the log
         stopped last
          notice a source moved
        ");
        assert_eq!(failed, ["check", "train"]);
    }

    #[test]
    fn a_rate_is_told_when_there_is_one() {
        let of = |ms, done| rate_text(Duration::from_millis(ms), done, 300 << 20);
        assert_eq!([of(0, 1 << 20), of(999, 900 << 20), of(5000, 0)], ["", "", ""]);
        assert_eq!(of(2000, 200 << 20), "  100.0 MiB/s  3.0 s left");
        assert_eq!(of(1000, 1), "  1 B/s  87381 h 20 min left");
    }

    #[test]
    fn quiet_tells_only_what_failed_and_verbose_every_line() {
        insta::assert_snapshot!(told(true, false, a_build()).0, @r"
        failed check in 1.2 s: the check does not hold
               | 15 names are gone
        failed train in 1.2 s: exited with 3
               | Traceback
               | no such file
           log: /s/logs/x.log
          hint: look at the log
        ");
        assert!(told(false, true, a_build()).0.contains("quant | layer 1\n"));
    }
}
