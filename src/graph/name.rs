//! Names of sources, nodes and aliases.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use crate::canon::quote;

/// The longest name, in bytes: a file name has at most 255, and ours get endings.
pub const LONGEST: usize = 100;

/// The name of a source or a node: letters, digits, `_`, `-`, `.` and `+`, at most [`LONGEST`] bytes. It neither
/// starts with `.`, `-` or `+` nor ends with `+`, so it is no hidden file, no option of the command line, and leaves
/// `+` at the ends of a name to mean something there.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

/// A text that is no name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} is no name: {what}", quote(name.as_bytes()))]
pub struct BadName {
    /// The text.
    pub name: String,
    /// What is wrong with it.
    pub what: String,
}

impl Name {
    /// Checks `text`. Errors: [`BadName`].
    pub fn new(text: &str) -> Result<Self, BadName> {
        match fault(text) {
            None => Ok(Self(text.into())),
            Some(what) => Err(BadName { name: text.chars().take(LONGEST).collect(), what }),
        }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn fault(text: &str) -> Option<String> {
    let allowed = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '+');
    if text.is_empty() {
        return Some("it is empty".to_owned());
    }
    if text.len() > LONGEST {
        return Some(format!("it has {} bytes, more than {LONGEST}", text.len()));
    }
    if let Some(c) = text.chars().find(|c| !allowed(*c)) {
        let c = quote(c.to_string().as_bytes());
        return Some(format!("it holds {c}; letters, digits, `_`, `-`, `.` and `+` may stand in it"));
    }
    if let Some(c) = text.chars().next().filter(|c| matches!(c, '.' | '-' | '+')) {
        return Some(format!("it starts with `{c}`"));
    }
    text.ends_with('+').then(|| "it ends with `+`".to_owned())
}

/// The form in which two names are one to a file system that ignores case.
pub(crate) fn folded(name: &str) -> String {
    name.to_lowercase()
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl serde::Serialize for Name {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_safe_file_name_and_no_option() {
        for good in ["a", "quant-a", "v1.2", "c++x", "Qwen3.5_0.8B", "é", "0"] {
            assert!(Name::new(good).is_ok(), "{good}");
        }
        let long = "x".repeat(LONGEST + 1);
        for bad in ["", "a/b", "..", ".hidden", "-rf", "+a", "a+", "a b", "a\n", "a\0", "#x", "a*", "b3:ff", &long] {
            assert!(Name::new(bad).is_err(), "{bad:?}");
        }
        assert!(Name::new(&"x".repeat(LONGEST)).is_ok());
    }

    #[test]
    fn a_refused_name_is_shown_escaped() {
        let e = Name::new("a\nb").unwrap_err().to_string();
        assert_eq!(e, r#""a\nb" is no name: it holds "\n"; letters, digits, `_`, `-`, `.` and `+` may stand in it"#);
    }
}
