//! The last lines of a log, kept in bounded memory while it is written.

use std::collections::VecDeque;

/// How many lines are kept.
pub const LAST_LINES: usize = 20;
// Of one line; the log itself is whole.
const LINE_BYTES: usize = 4096;

/// Cuts a stream of bytes into lines and keeps the last ones. A line that is rewritten by carriage returns (a
/// progress bar) counts once, with its latest text, as on a terminal.
#[derive(Debug, Default)]
pub struct Tail {
    lines: VecDeque<String>,
    current: Vec<u8>,
    // Bytes of the current line that were not kept.
    cut: u64,
    carriage_return: bool,
}

impl Tail {
    /// Takes the next bytes; `on_line` gets every line that they end. What is not UTF-8 is replaced.
    pub fn push(&mut self, bytes: &[u8], on_line: &dyn Fn(&str)) {
        for piece in bytes.split_inclusive(|b| matches!(b, b'\n' | b'\r')) {
            let (text, end) = match piece.split_last() {
                Some((e @ (b'\n' | b'\r'), text)) => (text, Some(*e)),
                _ => (piece, None),
            };
            if self.carriage_return && !(text.is_empty() && end == Some(b'\n')) && !piece.is_empty() {
                self.current.clear();
                self.cut = 0;
            }
            self.carriage_return = end == Some(b'\r');
            let room = LINE_BYTES.saturating_sub(self.current.len()).min(text.len());
            self.current.extend_from_slice(&text[..room]);
            self.cut += (text.len() - room) as u64;
            if end == Some(b'\n') {
                self.end_line(on_line);
            }
        }
    }

    fn end_line(&mut self, on_line: &dyn Fn(&str)) {
        let mut line = String::from_utf8_lossy(&self.current).into_owned();
        if self.cut > 0 {
            line.push_str(&format!("… ({} more bytes)", self.cut));
        }
        self.current.clear();
        self.cut = 0;
        on_line(&line);
        if self.lines.len() == LAST_LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// The last lines, an unfinished one among them.
    pub fn finish(mut self, on_line: &dyn Fn(&str)) -> Vec<String> {
        if !self.current.is_empty() || self.cut > 0 {
            self.end_line(on_line);
        }
        self.lines.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(pieces: &[&[u8]]) -> Vec<String> {
        let mut t = Tail::default();
        for p in pieces {
            t.push(p, &|_| {});
        }
        t.finish(&|_| {})
    }

    #[test]
    fn only_the_last_lines_are_kept() {
        let text: String = (0..100).map(|i| format!("{i}\n")).collect();
        let got = tail(&[text.as_bytes()]);
        assert_eq!(got.len(), LAST_LINES);
        assert_eq!((got[0].as_str(), got[19].as_str()), ("80", "99"));
    }

    #[test]
    fn a_line_in_pieces_is_one_line_and_an_unfinished_one_counts() {
        assert_eq!(tail(&[b"a", b"b\nc", b"d"]), ["ab", "cd"]);
        assert_eq!(tail(&[b""]), Vec::<String>::new());
        assert_eq!(tail(&[b"\n\n"]), ["", ""]);
    }

    #[test]
    fn ten_megabytes_on_one_line_stay_small() {
        let got = tail(&[&vec![b'x'; 10_000_000], b"\nend"]);
        assert_eq!(got[0].len(), LINE_BYTES + "… (9995904 more bytes)".len());
        assert_eq!(got[1], "end");
    }

    #[test]
    fn a_progress_bar_counts_once_and_windows_line_ends_are_line_ends() {
        assert_eq!(tail(&[b"10%\r50%\r", b"100%\n", b"a\r\nb\r", b"\nc"]), ["100%", "a", "b", "c"]);
        assert_eq!(tail(&[b"10%\r50%\r"]), ["50%"]);
    }

    #[test]
    fn bytes_that_are_no_utf8_are_replaced_not_fatal() {
        assert_eq!(tail(&[b"x\xff\n"]), ["x\u{fffd}"]);
    }
}
