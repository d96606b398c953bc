//! Canonical text: the one way in which bytes and typed values are written where they are hashed.
//!
//! Every field is one line, every name and string is quoted, so that no value can forge a field. Values keep their
//! type: `1`, `1.0`, `"1"` and `true` are four values.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A typed parameter value, as graph.toml has it.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `true` or `false`.
    Bool(bool),
    /// A 64-bit integer.
    Int(i64),
    /// A 64-bit float; `-0.0` and `0.0` are two values.
    Float(f64),
    /// A string.
    Str(String),
    /// A TOML date, time or date-time, as its text.
    Date(String),
    /// A list, in order.
    List(Vec<Value>),
    /// A table; its order is the names' byte order, never the author's.
    Map(BTreeMap<String, Value>),
}

impl Value {
    /// The canonical text, on one line.
    pub fn to_canon(&self) -> String {
        let mut s = String::new();
        self.write(&mut s);
        s
    }

    fn write(&self, out: &mut String) {
        match self {
            Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
            Value::Int(i) => {
                let _ = write!(out, "{i}");
            }
            Value::Float(f) => out.push_str(&float(*f)),
            Value::Str(s) => out.push_str(&quote(s.as_bytes())),
            Value::Date(s) => {
                out.push_str("date ");
                out.push_str(&quote(s.as_bytes()));
            }
            Value::List(items) => {
                out.push('[');
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        out.push_str(", ");
                    }
                    item.write(out);
                }
                out.push(']');
            }
            // Sorted by BTreeMap: these bytes are hashed, and TOML order is the author's whim.
            Value::Map(map) => {
                out.push('{');
                for (i, (k, v)) in map.iter().enumerate() {
                    if i > 0 {
                        out.push_str(", ");
                    }
                    out.push_str(&quote(k.as_bytes()));
                    out.push_str(" = ");
                    v.write(out);
                }
                out.push('}');
            }
        }
    }

    /// The type's name, for messages.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Bool(_) => "a boolean",
            Value::Int(_) => "an integer",
            Value::Float(_) => "a float",
            Value::Str(_) => "a string",
            Value::Date(_) => "a date",
            Value::List(_) => "a list",
            Value::Map(_) => "a table",
        }
    }

    /// The string, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Str(s) => Some(s),
            _ => None,
        }
    }

    /// The integer, if it is one.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Value::Int(i) => Some(*i),
            _ => None,
        }
    }

    /// The boolean, if it is one.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(b) => Some(*b),
            _ => None,
        }
    }

    /// The items, if it is a list.
    pub fn as_list(&self) -> Option<&[Value]> {
        match self {
            Value::List(l) => Some(l),
            _ => None,
        }
    }

    /// The table, if it is one.
    pub fn as_map(&self) -> Option<&BTreeMap<String, Value>> {
        match self {
            Value::Map(m) => Some(m),
            _ => None,
        }
    }

    /// The strings, if it is a list of nothing else.
    pub fn as_str_list(&self) -> Option<Vec<&str>> {
        self.as_list()?.iter().map(Value::as_str).collect()
    }
}

/// The shortest text that reads back as exactly this float; it always shows that it is a float. `inf`, `-inf` and
/// `nan` are spelt.
pub fn float(f: f64) -> String {
    if f.is_nan() {
        return "nan".to_owned();
    }
    if f.is_infinite() {
        return if f > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    // `{:?}` is Rust's shortest round-trip form and keeps `.0` or an exponent.
    format!("{f:?}")
}

/// Bytes in double quotes. Printable ASCII and valid UTF-8 stay readable; `"` and `\` are escaped, control characters
/// and bytes that are no UTF-8 become `\xNN`. Two byte strings never give one text.
pub fn quote(bytes: &[u8]) -> String {
    let mut s = String::with_capacity(bytes.len() + 2);
    s.push('"');
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' => s.push_str("\\\""),
                '\\' => s.push_str("\\\\"),
                '\n' => s.push_str("\\n"),
                '\r' => s.push_str("\\r"),
                '\t' => s.push_str("\\t"),
                c if c.is_control() || is_invisible(c) => {
                    let mut buf = [0u8; 4];
                    for b in c.encode_utf8(&mut buf).bytes() {
                        let _ = write!(s, "\\x{b:02x}");
                    }
                }
                c => s.push(c),
            }
        }
        for b in chunk.invalid() {
            let _ = write!(s, "\\x{b:02x}");
        }
    }
    s.push('"');
    s
}

/// As it is where that shows every byte, else in quotes and escaped.
pub fn plain_or_quoted(bytes: &[u8]) -> String {
    let quoted = quote(bytes);
    let inner = &quoted[1..quoted.len() - 1];
    if inner.as_bytes() == bytes { inner.to_owned() } else { quoted }
}

// Line separators and direction marks would let a name look like another one, or like two lines.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// Text that is no canonical quoting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a quoted string: {what}")]
pub struct BadQuote {
    /// The text.
    pub text: String,
    /// What is wrong with it.
    pub what: &'static str,
}

/// The inverse of [`quote`]. Errors: [`BadQuote`]; text that [`quote`] would not have written is refused, so that one
/// value has one text.
pub fn unquote(text: &str) -> Result<Vec<u8>, BadQuote> {
    let (bytes, rest) = unquote_prefix(text)?;
    if rest.is_empty() {
        Ok(bytes)
    } else {
        Err(BadQuote { text: text.to_owned(), what: "text behind the closing quote" })
    }
}

/// Reads one quoted string at the start of `text`; returns its bytes and what follows. Errors as [`unquote`].
pub fn unquote_prefix(text: &str) -> Result<(Vec<u8>, &str), BadQuote> {
    let bad = |what| BadQuote { text: text.chars().take(80).collect(), what };
    let body = text.strip_prefix('"').ok_or_else(|| bad("it does not open with a quote"))?;
    let mut out = Vec::with_capacity(body.len());
    let bytes = body.as_bytes();
    let mut i = 0;
    loop {
        match bytes.get(i) {
            None => return Err(bad("no closing quote")),
            Some(b'"') => break,
            Some(b'\\') => {
                let (b, used) = match bytes.get(i + 1) {
                    Some(b'"') => (b'"', 2),
                    Some(b'\\') => (b'\\', 2),
                    Some(b'n') => (b'\n', 2),
                    Some(b'r') => (b'\r', 2),
                    Some(b't') => (b'\t', 2),
                    Some(b'x') => {
                        let hex = body.get(i + 2..i + 4).ok_or_else(|| bad("a cut-off escape"))?;
                        (u8::from_str_radix(hex, 16).map_err(|_| bad("a wrong escape"))?, 4)
                    }
                    _ => return Err(bad("an unknown escape")),
                };
                out.push(b);
                i += used;
            }
            Some(b) => {
                out.push(*b);
                i += 1;
            }
        }
    }
    let consumed = &text[..i + 2];
    if quote(&out) != consumed {
        return Err(bad("not in canonical form"));
    }
    Ok((out, &body[i + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_and_one_point_zero_and_quoted_one_and_true_are_four_values() {
        let texts = [Value::Int(1), Value::Float(1.0), Value::Str("1".into()), Value::Bool(true)].map(|v| v.to_canon());
        assert_eq!(texts, ["1", "1.0", "\"1\"", "true"]);
        assert_eq!(Value::Float(-0.0).to_canon(), "-0.0");
        assert_eq!(Value::Float(1e300).to_canon(), "1e300");
        assert_eq!(Value::Float(f64::NAN).to_canon(), "nan");
    }

    #[test]
    fn a_newline_in_a_value_cannot_forge_a_field() {
        let v = Value::Str("a\nparam \"x\" = 1".into());
        assert_eq!(v.to_canon(), r#""a\nparam \"x\" = 1""#);
    }

    #[test]
    fn a_table_is_written_in_byte_order() {
        let m = [("b".to_owned(), Value::Int(2)), ("a".to_owned(), Value::List(vec![]))].into_iter().collect();
        assert_eq!(Value::Map(m).to_canon(), r#"{"a" = [], "b" = 2}"#);
    }

    proptest! {
        #[test]
        fn quoting_is_reversible_and_on_one_line(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let q = quote(&bytes);
            prop_assert!(!q.contains('\n'));
            prop_assert_eq!(unquote(&q).unwrap(), bytes);
        }
    }
}
