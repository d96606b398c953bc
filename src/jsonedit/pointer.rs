//! JSON pointers, RFC 6901.

use std::fmt;

use crate::jsonedit::JsonError;

/// A place in a document: the keys and indices that lead to it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Pointer {
    tokens: Vec<String>,
}

impl Pointer {
    /// The whole document.
    pub fn root() -> Self {
        Self::default()
    }

    /// The pointer through these keys and indices, as they are (nothing escaped).
    pub fn new<S: Into<String>>(tokens: impl IntoIterator<Item = S>) -> Self {
        Self { tokens: tokens.into_iter().map(Into::into).collect() }
    }

    /// Reads `/a/0/b~1c`; the empty text is the whole document. Errors: [`JsonError::BadPointer`].
    pub fn parse(text: &str) -> Result<Self, JsonError> {
        let bad = |what| JsonError::BadPointer { text: text.to_owned(), what };
        if text.is_empty() {
            return Ok(Self::root());
        }
        let body = text.strip_prefix('/').ok_or_else(|| bad("it does not start with \"/\""))?;
        let mut tokens = Vec::new();
        for part in body.split('/') {
            let mut token = String::with_capacity(part.len());
            let mut chars = part.chars();
            while let Some(c) = chars.next() {
                match c {
                    '~' => match chars.next() {
                        Some('0') => token.push('~'),
                        Some('1') => token.push('/'),
                        _ => return Err(bad("\"~\" is followed by neither 0 nor 1")),
                    },
                    c => token.push(c),
                }
            }
            tokens.push(token);
        }
        Ok(Self { tokens })
    }

    /// The keys and indices.
    pub fn tokens(&self) -> &[String] {
        &self.tokens
    }

    /// Whether it is the whole document.
    pub fn is_root(&self) -> bool {
        self.tokens.is_empty()
    }

    /// One step further down.
    pub fn child(&self, token: impl Into<String>) -> Self {
        let mut tokens = self.tokens.clone();
        tokens.push(token.into());
        Self { tokens }
    }

    /// The first `len` steps of it.
    pub(super) fn prefix(&self, len: usize) -> Self {
        Self { tokens: self.tokens.iter().take(len).cloned().collect() }
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for t in &self.tokens {
            write!(f, "/{}", t.replace('~', "~0").replace('/', "~1"))?;
        }
        Ok(())
    }
}

impl std::str::FromStr for Pointer {
    type Err = JsonError;
    fn from_str(s: &str) -> Result<Self, JsonError> {
        Self::parse(s)
    }
}
