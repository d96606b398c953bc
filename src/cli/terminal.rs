//! What the two output streams are: terminals or pipes, coloured or not, how wide.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

use annotate_snippets::renderer::{AnsiColor, Effects, Style};

/// An output stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stream {
    /// Whether somebody watches.
    pub(crate) terminal: bool,
    /// Whether colours are shown.
    pub(crate) colour: bool,
}

/// What is printed to, and how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terminal {
    pub(crate) out: Stream,
    pub(crate) err: Stream,
    pub(crate) json: bool,
    pub(crate) quiet: bool,
    pub(crate) verbose: bool,
}

/// Colours are for terminals whose user did not refuse them (no-color.org).
fn stream(terminal: bool, no_colour: bool) -> Stream {
    Stream { terminal, colour: terminal && !no_colour }
}

impl Terminal {
    /// As this process finds it.
    pub(crate) fn here(json: bool, quiet: bool, verbose: bool) -> Self {
        let set = |name: &str| std::env::var_os(name).is_some_and(|v| !v.is_empty());
        let no_colour = set("NO_COLOR") || std::env::var_os("TERM").is_some_and(|t| t == "dumb");
        let (out, err) = (io::stdout().is_terminal(), io::stderr().is_terminal());
        Self { out: stream(out, no_colour), err: stream(err, no_colour), json, quiet, verbose }
    }

    /// Prints to stdout. Nobody reading any more is no error: `graftwerk show | head` is fine. Anything else that keeps
    /// the answer from arriving is, and [`answer_lost`] says so at the end.
    pub(crate) fn print(&self, text: &str) {
        self.print_bytes(text.as_bytes());
    }

    /// As [`Terminal::print`], for what need not be UTF-8.
    pub(crate) fn print_bytes(&self, bytes: &[u8]) {
        let mut out = io::stdout().lock();
        match out.write_all(bytes).and_then(|()| out.flush()) {
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe && !ANSWER_LOST.swap(true, Ordering::Relaxed) => {
                self.say(&format!("error: cannot write the answer to standard output: {e}\n"));
            }
            _ => {}
        }
    }

    /// Prints to stderr.
    pub(crate) fn say(&self, text: &str) {
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }

    /// Prints one JSON value to stdout.
    pub(crate) fn print_json(&self, value: &serde_json::Value) {
        let text = if self.out.terminal { format!("{value:#}\n") } else { format!("{value}\n") };
        self.print(&text);
    }
}

static ANSWER_LOST: AtomicBool = AtomicBool::new(false);

/// Whether something that was printed did not arrive.
pub(crate) fn answer_lost() -> bool {
    ANSWER_LOST.load(Ordering::Relaxed)
}

/// The columns of the terminal behind stderr, if it is one.
pub(crate) fn width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stderr()).ok()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// What a colour means; nothing is said by colour alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Good,
    Bad,
    Busy,
    Quiet,
    Strong,
}

impl Stream {
    /// The text in a tone, or plain.
    pub(crate) fn paint(self, tone: Tone, text: &str) -> String {
        if !self.colour {
            return text.to_owned();
        }
        let style = match tone {
            Tone::Good => Style::new().fg_color(Some(AnsiColor::Green.into())),
            Tone::Bad => Style::new().fg_color(Some(AnsiColor::BrightRed.into())).effects(Effects::BOLD),
            Tone::Busy => Style::new().fg_color(Some(AnsiColor::Cyan.into())),
            Tone::Quiet => Style::new().effects(Effects::DIMMED),
            Tone::Strong => Style::new().effects(Effects::BOLD),
        };
        format!("{style}{text}{style:#}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_whose_user_did_not_refuse_them() {
        assert!(stream(true, false).colour);
        assert!(!stream(true, true).colour);
        assert!(!stream(false, false).colour);
        assert_eq!(stream(false, false).paint(Tone::Bad, "x"), "x");
        assert_eq!(stream(true, false).paint(Tone::Good, "x"), "\u{1b}[32mx\u{1b}[0m");
    }
}
