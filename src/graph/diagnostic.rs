//! Errors in a text, as data: what, where, and what to do. They are drawn with carets elsewhere.

use std::fmt;
use std::sync::Arc;

/// More than these would bury the first.
const MOST: usize = 50;

/// A stretch of a text, in bytes; the end is exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span {
    /// The first byte.
    pub start: usize,
    /// The byte behind the last.
    pub end: usize,
}

impl Span {
    /// From `start` up to and without `end`.
    pub const fn new(start: usize, end: usize) -> Self {
        Self { start, end }
    }
}

impl From<std::ops::Range<usize>> for Span {
    fn from(r: std::ops::Range<usize>) -> Self {
        Self { start: r.start, end: r.end }
    }
}

/// What is said of a stretch of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    /// The stretch.
    pub span: Span,
    /// What is said of it; may be empty.
    pub text: String,
}

/// An error before its line and column are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// What is wrong, in a line.
    pub message: String,
    /// The places; the first is the error's own.
    pub labels: Vec<Label>,
    /// What to do.
    pub hint: Option<String>,
}

impl Problem {
    /// A problem at `span`, with what is said of it there.
    pub fn new(span: Span, message: impl Into<String>, label: impl Into<String>) -> Self {
        Self { message: message.into(), labels: vec![Label { span, text: label.into() }], hint: None }
    }

    /// The same with another place.
    pub fn label(mut self, span: Span, text: impl Into<String>) -> Self {
        self.labels.push(Label { span, text: text.into() });
        self
    }

    /// The same with advice.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same with advice, if there is any.
    pub fn maybe_hint(mut self, hint: Option<String>) -> Self {
        self.hint = hint.or(self.hint);
        self
    }
}

/// Problems while a text is read. Behind the first [`MOST`], they are only counted, and their hints never made.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    list: Vec<Problem>,
    more: usize,
}

impl Problems {
    pub(crate) fn push(&mut self, make: impl FnOnce() -> Problem) {
        if self.list.len() < MOST {
            self.list.push(make());
        } else {
            self.more += 1;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len() + self.more
    }

    pub(crate) fn finish(mut self, text: &Arc<Text>) -> Diagnostics {
        self.list.sort_by_key(|p| p.labels.first().map(|l| l.span));
        let list = self.list.into_iter().map(|p| text.diagnostic(p)).collect();
        Diagnostics { list, more: self.more, text: text.clone() }
    }
}

/// One error in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// What the text is called.
    pub file: String,
    /// The line of the first label, from 1.
    pub line: usize,
    /// Its column in characters, from 1.
    pub column: usize,
    /// What is wrong, in a line.
    pub message: String,
    /// The places; the first is the error's own.
    pub labels: Vec<Label>,
    /// What to do.
    pub hint: Option<String>,
}

/// `graph.toml:12:8: message`.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: {}", self.file, self.line, self.column, self.message)
    }
}

impl std::error::Error for Diagnostic {}

/// All that is wrong with a text, in its order. Never empty.
#[derive(Debug, Clone)]
pub struct Diagnostics {
    /// The errors.
    pub list: Vec<Diagnostic>,
    /// How many further ones were found and are not listed.
    pub more: usize,
    text: Arc<Text>,
}

impl Diagnostics {
    /// The text that they are about.
    pub fn text(&self) -> &str {
        &self.text.text
    }
}

/// One error a line.
impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, d) in self.list.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{d}")?;
        }
        if self.more > 0 {
            write!(f, "\nand {} further errors", self.more)?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}

/// A text with its name and where its lines start.
#[derive(Debug)]
pub(crate) struct Text {
    pub(crate) file: String,
    pub(crate) text: String,
    starts: Vec<usize>,
}

const BOM: char = '\u{feff}';

impl Text {
    pub(crate) fn new(file: &str, text: &str) -> Self {
        // A byte order mark is no character of the first line.
        let first = if text.starts_with(BOM) { BOM.len_utf8() } else { 0 };
        let newlines = text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(i, _)| i + 1);
        let starts = std::iter::once(first).chain(newlines).collect();
        Self { file: file.to_owned(), text: text.to_owned(), starts }
    }

    /// Line and column, both from 1, the column in characters.
    pub(crate) fn locate(&self, offset: usize) -> (usize, usize) {
        let offset = self.text.floor_char_boundary(offset.min(self.text.len()));
        let line = self.starts.partition_point(|s| *s <= offset).max(1);
        let start = self.starts.get(line - 1).copied().unwrap_or_default();
        let column = self.text.get(start..offset).map_or(0, |s| s.chars().count());
        (line, column + 1)
    }

    fn diagnostic(&self, p: Problem) -> Diagnostic {
        let (line, column) = self.locate(p.labels.first().map_or(0, |l| l.span.start));
        Diagnostic { file: self.file.clone(), line, column, message: p.message, labels: p.labels, hint: p.hint }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_characters_and_a_byte_order_mark_is_none() {
        let t = Text::new("graph.toml", "\u{feff}é = 1\r\nab\n");
        assert_eq!(t.locate(3), (1, 1));
        assert_eq!(t.locate("\u{feff}é".len()), (1, 2));
        assert_eq!(t.locate("\u{feff}é = 1\r\n".len()), (2, 1));
        assert_eq!(t.locate(0), (1, 1));
        assert_eq!(t.locate(10_000), (3, 1));
        assert_eq!(Text::new("x", "").locate(0), (1, 1));
    }

    #[test]
    fn behind_the_first_fifty_problems_are_only_counted() {
        let mut p = Problems::default();
        for i in 0..60 {
            p.push(|| Problem::new(Span::new(i, i), "wrong", ""));
        }
        let d = p.finish(&Arc::new(Text::new("graph.toml", "")));
        assert_eq!((d.list.len(), d.more), (50, 10));
        assert!(d.to_string().ends_with("\nand 10 further errors"));
    }
}
