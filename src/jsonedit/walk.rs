//! Cheap walks over text that has passed the scanner. They never index out of a text that has not.

use std::borrow::Cow;
use std::ops::Range;

use serde_json::Value;

/// A member of an object or an item of an array, as spans of the text.
#[derive(Debug, Clone)]
pub(super) struct Child {
    /// The key with its quotes; `None` in an array.
    pub(super) key: Option<Range<usize>>,
    /// The value.
    pub(super) value: Range<usize>,
}

impl Child {
    /// Where it starts: at its key, or at its value in an array.
    pub(super) fn start(&self) -> usize {
        self.key.as_ref().map_or(self.value.start, |k| k.start)
    }
}

/// The first position from `pos` that is no JSON whitespace.
pub(super) fn skip_space(text: &str, pos: usize) -> usize {
    let bytes = text.as_bytes();
    let rest = bytes.get(pos..).unwrap_or(&[]);
    pos + rest.iter().take_while(|b| matches!(b, b' ' | b'\t' | b'\n' | b'\r')).count()
}

/// The position behind the string that opens at `pos`.
pub(super) fn skip_string(text: &str, pos: usize) -> usize {
    let bytes = text.as_bytes();
    let mut i = pos + 1;
    while let Some(b) = bytes.get(i) {
        match b {
            b'"' => return i + 1,
            b'\\' => i += 2,
            _ => i += 1,
        }
    }
    text.len()
}

/// The position behind the value that starts at `pos`.
pub(super) fn skip_value(text: &str, pos: usize) -> usize {
    let bytes = text.as_bytes();
    let mut depth = 0usize;
    let mut i = pos;
    while let Some(b) = bytes.get(i) {
        match b {
            b'"' => {
                i = skip_string(text, i);
                if depth == 0 {
                    return i;
                }
            }
            b'{' | b'[' => {
                depth += 1;
                i += 1;
            }
            b'}' | b']' => {
                i += 1;
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return i;
                }
            }
            b',' | b':' | b' ' | b'\t' | b'\n' | b'\r' => i += 1,
            _ => {
                while bytes.get(i).is_some_and(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.')) {
                    i += 1;
                }
                if depth == 0 {
                    return i;
                }
                // A byte that fits nothing can't stand in a text that passed the grammar; move on all the same.
                if !bytes.get(i).is_some_and(|b| b",:{}[]\" \t\n\r".contains(b)) {
                    i += 1;
                }
            }
        }
    }
    text.len()
}

/// Visits what the container at `span` holds, until `visit` returns false. Nothing happens at a scalar.
pub(super) fn each_child(text: &str, span: &Range<usize>, mut visit: impl FnMut(Child) -> bool) {
    let bytes = text.as_bytes();
    let is_object = match bytes.get(span.start) {
        Some(b'{') => true,
        Some(b'[') => false,
        _ => return,
    };
    let last = span.end.saturating_sub(1);
    let mut pos = skip_space(text, span.start + 1);
    while pos < last {
        let key = is_object.then(|| pos..skip_string(text, pos));
        if let Some(k) = &key {
            // Behind the key: space, colon, space.
            pos = skip_space(text, skip_space(text, k.end) + 1);
        }
        let value = pos..skip_value(text, pos);
        pos = skip_space(text, skip_space(text, value.end) + 1);
        if !visit(Child { key, value }) {
            return;
        }
    }
}

/// The bytes of a string token with its quotes. A lone surrogate keeps its three bytes (WTF-8), so that two different
/// keys never decode to one.
pub(super) fn decode(token: &str) -> Cow<'_, [u8]> {
    let inner = token.get(1..token.len().saturating_sub(1)).unwrap_or("");
    if !inner.contains('\\') {
        return Cow::Borrowed(inner.as_bytes());
    }
    let mut out = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while let Some(at) = rest.find('\\') {
        out.extend_from_slice(&rest.as_bytes()[..at]);
        let escape = &rest[at + 1..];
        let mut used = 1;
        match escape.as_bytes().first() {
            Some(b'b') => out.push(8),
            Some(b'f') => out.push(12),
            Some(b'n') => out.push(b'\n'),
            Some(b'r') => out.push(b'\r'),
            Some(b't') => out.push(b'\t'),
            Some(b'u') => {
                used = 5;
                let unit = hex4(escape.get(1..5));
                let low =
                    escape.get(5..7).filter(|s| *s == "\\u").and_then(|_| escape.get(7..11)).map(|h| hex4(Some(h)));
                match (unit, low) {
                    (0xd800..=0xdbff, Some(low @ 0xdc00..=0xdfff)) => {
                        used = 11;
                        push_wtf8(&mut out, 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00));
                    }
                    _ => push_wtf8(&mut out, unit),
                }
            }
            Some(other) => out.push(*other),
            None => used = 0,
        }
        rest = escape.get(used..).unwrap_or("");
    }
    out.extend_from_slice(rest.as_bytes());
    Cow::Owned(out)
}

fn hex4(text: Option<&str>) -> u32 {
    text.and_then(|t| u32::from_str_radix(t, 16).ok()).unwrap_or(0xfffd)
}

fn push_wtf8(out: &mut Vec<u8>, code: u32) {
    match char::from_u32(code) {
        Some(c) => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        // A surrogate: the three-byte form, with the low bits that `as u8` is meant to keep.
        None => out.extend([0xe0 | (code >> 12) as u8, 0x80 | (code >> 6 & 0x3f) as u8, 0x80 | (code & 0x3f) as u8]),
    }
}

/// The value at `span`, as serde_json holds it.
pub(super) fn build(text: &str, span: &Range<usize>) -> Value {
    let raw = text.get(span.clone()).unwrap_or("");
    match raw.as_bytes().first() {
        Some(b'{') => {
            let mut map = serde_json::Map::new();
            each_child(text, span, |c| {
                if let Some(k) = &c.key {
                    map.insert(string(text.get(k.clone()).unwrap_or("")), build(text, &c.value));
                }
                true
            });
            Value::Object(map)
        }
        Some(b'[') => {
            let mut items = Vec::new();
            each_child(text, span, |c| {
                items.push(build(text, &c.value));
                true
            });
            Value::Array(items)
        }
        Some(b'"') => Value::String(string(raw)),
        // Null also for NaN and the infinities, which no serde_json value can hold.
        _ => serde_json::from_str(raw).unwrap_or(Value::Null),
    }
}

fn string(token: &str) -> String {
    match decode(token) {
        Cow::Borrowed(b) => String::from_utf8_lossy(b).into_owned(),
        Cow::Owned(b) => String::from_utf8(b).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()),
    }
}

/// The first string with a lone surrogate: its offset.
pub(super) fn lone_surrogate(text: &str) -> Option<usize> {
    let mut pos = 0;
    while let Some(at) = text.get(pos..)?.find('"') {
        let open = pos + at;
        let close = skip_string(text, open);
        if std::str::from_utf8(&decode(text.get(open..close)?)).is_err() {
            return Some(open);
        }
        pos = close;
    }
    None
}
