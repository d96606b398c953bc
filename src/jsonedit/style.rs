//! How a document is laid out, so that what is new in it looks like the rest.

use std::fmt::Write as _;

use serde_json::Value;

use crate::jsonedit::walk;

/// The layout of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Style {
    /// One level of indentation; `None` where everything stands on one line.
    pub indent: Option<String>,
    /// `\n` or `\r\n`.
    pub newline: &'static str,
    /// Between items on one line: `, ` or `,`.
    pub comma: &'static str,
    /// Between key and value: `: ` or `:`.
    pub colon: &'static str,
}

impl Default for Style {
    /// Python's `json.dump(…, indent=2)`, in which config files are mostly written.
    fn default() -> Self {
        Self { indent: Some("  ".to_owned()), newline: "\n", comma: ", ", colon: ": " }
    }
}

impl Style {
    /// The style of a text that has passed the scanner.
    pub(super) fn of(text: &str) -> Self {
        let newline = if text.contains("\r\n") { "\r\n" } else { "\n" };
        let bytes = text.as_bytes();
        let spaced = |at: usize| bytes.get(at + 1) == Some(&b' ');
        let mut colon = None;
        let mut comma = None;
        let mut indent = None;
        let mut pos = 0;
        while let Some(b) = bytes.get(pos) {
            match b {
                b'"' => {
                    pos = walk::skip_string(text, pos);
                    continue;
                }
                b':' if colon.is_none() => colon = Some(if spaced(pos) { ": " } else { ":" }),
                b',' if comma.is_none() && !matches!(bytes.get(pos + 1), Some(b'\n' | b'\r')) => {
                    comma = Some(if spaced(pos) { ", " } else { "," });
                }
                b'{' | b'[' if indent.is_none() => {
                    let first = walk::skip_space(text, pos + 1);
                    let lead = text.get(pos + 1..first).unwrap_or("");
                    let empty = matches!(bytes.get(first), Some(b'}' | b']'));
                    if let (false, Some((_, inner))) = (empty, lead.rsplit_once('\n')) {
                        let outer = line_indent(text, pos);
                        indent = Some(inner.strip_prefix(outer).unwrap_or(inner).to_owned());
                    }
                }
                _ => {}
            }
            if colon.is_some() && comma.is_some() && indent.is_some() {
                break;
            }
            pos += 1;
        }
        let colon = colon.unwrap_or(": ");
        let comma = comma.unwrap_or(if colon == ":" { "," } else { ", " });
        Self { indent, newline, comma, colon }
    }

    /// The same, all on one line.
    pub fn inline(&self) -> Self {
        Self { indent: None, ..self.clone() }
    }

    /// The text of `value`; its first line carries no indentation, the others stand behind `base`. Numbers keep the text
    /// that they were read from.
    pub fn render(&self, value: &Value, base: &str) -> String {
        let mut out = String::new();
        self.write(value, base, &mut out);
        out
    }

    fn write(&self, value: &Value, base: &str, out: &mut String) {
        match value {
            Value::Array(items) if !items.is_empty() => {
                self.container(('[', ']'), base, out, items.iter(), |s, item, inner, out| s.write(item, inner, out));
            }
            Value::Object(map) if !map.is_empty() => {
                self.container(('{', '}'), base, out, map.iter(), |s, (key, item), inner, out| {
                    out.push_str(&string(key));
                    out.push_str(s.colon);
                    s.write(item, inner, out);
                });
            }
            Value::Array(_) => out.push_str("[]"),
            Value::Object(_) => out.push_str("{}"),
            Value::String(s) => out.push_str(&string(s)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {
                let _ = write!(out, "{value}");
            }
        }
    }

    fn container<T>(
        &self,
        brackets: (char, char),
        base: &str,
        out: &mut String,
        items: impl Iterator<Item = T>,
        mut write: impl FnMut(&Self, T, &str, &mut String),
    ) {
        let inner = self.indent.as_ref().map(|unit| format!("{base}{unit}"));
        out.push(brackets.0);
        for (i, item) in items.enumerate() {
            match &inner {
                Some(inner) => {
                    out.push_str(if i > 0 { "," } else { "" });
                    out.push_str(self.newline);
                    out.push_str(inner);
                }
                None => out.push_str(if i > 0 { self.comma } else { "" }),
            }
            write(self, item, inner.as_deref().unwrap_or(base), out);
        }
        if inner.is_some() {
            out.push_str(self.newline);
            out.push_str(base);
        }
        out.push(brackets.1);
    }
}

/// A string as a JSON token.
pub(super) fn string(s: &str) -> String {
    Value::String(s.to_owned()).to_string()
}

/// The white space at the start of the line on which `at` stands.
pub(super) fn line_indent(text: &str, at: usize) -> &str {
    let start = text.get(..at).and_then(|t| t.rfind('\n')).map_or(0, |i| i + 1);
    let line = text.get(start..).unwrap_or("");
    &line[..line.len() - line.trim_start_matches([' ', '\t']).len()]
}

/// The text of a value with the indentation `from` of its later lines replaced by `to`; nothing else changes, and no
/// line inside a string can be mistaken, as JSON strings hold no line breaks.
pub fn shift(raw: &str, from: &str, to: &str) -> String {
    if from == to {
        return raw.to_owned();
    }
    let mut out = String::with_capacity(raw.len());
    for (i, line) in raw.split('\n').enumerate() {
        if i == 0 {
            out.push_str(line);
            continue;
        }
        out.push('\n');
        match line.strip_prefix(from) {
            Some(rest) => {
                out.push_str(to);
                out.push_str(rest);
            }
            None => out.push_str(line),
        }
    }
    out
}
