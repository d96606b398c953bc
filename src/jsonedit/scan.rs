//! The scanner: one pass that holds a text against the grammar.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use crate::jsonedit::walk::{decode, skip_space};
use crate::jsonedit::{JsonError, MAX_DEPTH};

/// Line and column of a byte offset, from 1, the column in characters.
pub(super) fn place(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |i| i + 1);
    (before.bytes().filter(|b| *b == b'\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// Holds `text`, which will stand inside `depth` containers, against the grammar. Returns the span of its one value. Errors: the first fault, with its place.
pub(super) fn validate(text: &str, depth: usize) -> Result<Range<usize>, JsonError> {
    let mut v = Validator { text, pos: 0 };
    v.pos = skip_space(text, 0);
    let start = v.pos;
    v.value(depth)?;
    let end = v.pos;
    v.pos = skip_space(text, v.pos);
    if v.pos < text.len() {
        return Err(v.fault("text behind the value"));
    }
    Ok(start..end)
}

struct Validator<'a> {
    text: &'a str,
    pos: usize,
}

impl<'a> Validator<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.pos).copied()
    }

    fn fault(&self, what: impl Into<String>) -> JsonError {
        self.fault_at(self.pos, what)
    }

    fn fault_at(&self, at: usize, what: impl Into<String>) -> JsonError {
        let (line, column) = place(self.text, at);
        JsonError::Syntax { line, column, what: what.into() }
    }

    fn expected(&self, what: &str) -> JsonError {
        match self.text.get(self.pos..).and_then(|t| t.chars().next()) {
            Some(c) => self.fault(format!("expected {what}, found {c:?}")),
            None => self.fault(format!("expected {what}, found the end")),
        }
    }

    fn space(&mut self) {
        self.pos = skip_space(self.text, self.pos);
    }

    fn value(&mut self, depth: usize) -> Result<(), JsonError> {
        match self.peek() {
            Some(b'{' | b'[') if depth >= MAX_DEPTH => {
                let (line, column) = place(self.text, self.pos);
                Err(JsonError::TooDeep { line, column })
            }
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => self.string(),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => {
                // The last two are Python's; RFC 8259 does not know them.
                for word in ["true", "false", "null", "NaN", "Infinity"] {
                    if self.word(word) {
                        return Ok(());
                    }
                }
                Err(self.expected("a value"))
            }
        }
    }

    fn word(&mut self, word: &str) -> bool {
        let rest = self.text.get(self.pos..).unwrap_or("");
        let fits = rest.strip_prefix(word).is_some_and(|r| !r.starts_with(|c: char| c.is_alphanumeric() || c == '_'));
        if fits {
            self.pos += word.len();
        }
        fits
    }

    fn object(&mut self, depth: usize) -> Result<(), JsonError> {
        let mut keys: HashMap<Cow<'a, [u8]>, usize> = HashMap::new();
        self.pos += 1;
        self.space();
        if self.peek() == Some(b'}') {
            self.pos += 1;
            return Ok(());
        }
        loop {
            let at = self.pos;
            if self.peek() != Some(b'"') {
                return Err(self.expected("a key in double quotes"));
            }
            self.string()?;
            let key = decode(self.text.get(at..self.pos).unwrap_or(""));
            if let Some(first) = keys.get(&key) {
                let (line, column) = place(self.text, at);
                let first_line = place(self.text, *first).0;
                let key = String::from_utf8_lossy(&key).into_owned();
                return Err(JsonError::DuplicateKey { key, line, column, first_line });
            }
            keys.insert(key, at);
            self.space();
            if self.peek() != Some(b':') {
                return Err(self.expected("`:`"));
            }
            self.pos += 1;
            self.space();
            self.value(depth + 1)?;
            self.space();
            match self.peek() {
                Some(b',') => self.pos += 1,
                Some(b'}') => break,
                _ => return Err(self.expected("`,` or `}`")),
            }
            self.space();
        }
        self.pos += 1;
        Ok(())
    }

    fn array(&mut self, depth: usize) -> Result<(), JsonError> {
        self.pos += 1;
        self.space();
        if self.peek() == Some(b']') {
            self.pos += 1;
            return Ok(());
        }
        loop {
            self.value(depth + 1)?;
            self.space();
            match self.peek() {
                Some(b',') => self.pos += 1,
                Some(b']') => break,
                _ => return Err(self.expected("`,` or `]`")),
            }
            self.space();
        }
        self.pos += 1;
        Ok(())
    }

    fn string(&mut self) -> Result<(), JsonError> {
        let open = self.pos;
        self.pos += 1;
        loop {
            match self.peek() {
                None => return Err(self.fault_at(open, "a string without a closing quote")),
                Some(b'"') => break,
                Some(b'\\') => {
                    let escape = self.text.as_bytes().get(self.pos + 1).copied();
                    match escape {
                        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.pos += 2,
                        Some(b'u') => {
                            let hex = self.text.as_bytes().get(self.pos + 2..self.pos + 6);
                            if !hex.is_some_and(|h| h.iter().all(u8::is_ascii_hexdigit)) {
                                return Err(self.fault("`\\u` without four hex digits"));
                            }
                            self.pos += 6;
                        }
                        _ => return Err(self.fault("an escape that JSON does not know")),
                    }
                }
                Some(0..=0x1f) => return Err(self.fault("a control character inside a string")),
                Some(_) => self.pos += 1,
            }
        }
        self.pos += 1;
        Ok(())
    }

    fn number(&mut self) -> Result<(), JsonError> {
        if self.peek() == Some(b'-') {
            self.pos += 1;
            if self.word("Infinity") {
                return Ok(());
            }
        }
        match self.peek() {
            Some(b'0') => {
                self.pos += 1;
                if matches!(self.peek(), Some(b'0'..=b'9')) {
                    return Err(self.fault("a number with a leading zero"));
                }
            }
            _ => self.digits()?,
        }
        if self.peek() == Some(b'.') {
            self.pos += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.pos += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.pos += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        if !matches!(self.peek(), Some(b'0'..=b'9')) {
            return Err(self.expected("a digit"));
        }
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.pos += 1;
        }
        Ok(())
    }
}
