//! A path inside a tree.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::canon::quote;

/// A relative path inside a tree, as bytes: components separated by `/`, none of them empty, `.` or `..`.
/// It can't leave the folder that it is joined to.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelPath(Vec<u8>);

/// Bytes that are no path inside a tree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} is no path inside a tree: {what}", quote(path))]
pub struct BadPath {
    /// The bytes.
    pub path: Vec<u8>,
    /// What is wrong with them.
    pub what: &'static str,
}

impl RelPath {
    /// Checks `bytes`. Errors: [`BadPath`] for an empty or absolute path, an empty, `.` or `..` component, or a NUL.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, BadPath> {
        let bytes = bytes.into();
        let bad = |what| Err(BadPath { path: bytes.clone(), what });
        if bytes.is_empty() {
            return bad("it is empty");
        }
        if bytes.contains(&0) {
            return bad("it holds a NUL byte");
        }
        if bytes[0] == b'/' {
            return bad("it is absolute");
        }
        for c in bytes.split(|b| *b == b'/') {
            match c {
                b"" => return bad("it has an empty component"),
                b"." | b".." => return bad("it has a `.` or `..` component"),
                _ => {}
            }
        }
        Ok(Self(bytes))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// As a path to join to a folder.
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// The text, where it is UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// The last component.
    pub fn file_name(&self) -> &[u8] {
        self.0.rsplit(|b| *b == b'/').next().unwrap_or(&self.0)
    }

    /// The path without its last component; `None` at the top.
    pub fn parent(&self) -> Option<RelPath> {
        let at = self.0.iter().rposition(|b| *b == b'/')?;
        Some(Self(self.0[..at].to_vec()))
    }

    /// `self/below`.
    pub fn join(&self, below: &RelPath) -> RelPath {
        let mut v = self.0.clone();
        v.push(b'/');
        v.extend_from_slice(&below.0);
        Self(v)
    }
}

impl TryFrom<&str> for RelPath {
    type Error = BadPath;
    fn try_from(s: &str) -> Result<Self, BadPath> {
        Self::new(s.as_bytes())
    }
}

/// Readable, with everything unprintable escaped; without quotes where the path is plain.
impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let q = quote(&self.0);
        let inner = &q[1..q.len() - 1];
        if inner.as_bytes() == self.0 && !inner.ends_with(' ') && !inner.starts_with(' ') {
            f.write_str(inner)
        } else {
            f.write_str(&q)
        }
    }
}

impl fmt::Debug for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&quote(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_could_leave_its_tree_is_refused() {
        for bad in ["", "/etc/passwd", "..", "a/../b", "a//b", "a/", "./a", "a/.", "a\0b"] {
            assert!(RelPath::try_from(bad).is_err(), "{bad:?}");
        }
        for good in ["a", "a/b", "...", "-rf", "#x", "a b", " "] {
            assert!(RelPath::try_from(good).is_ok(), "{good:?}");
        }
        assert!(RelPath::new(b"x\xff".to_vec()).is_ok());
    }

    #[test]
    fn odd_names_are_shown_quoted_and_plain_ones_plain() {
        assert_eq!(RelPath::try_from("a/b.txt").unwrap().to_string(), "a/b.txt");
        assert_eq!(RelPath::try_from("b ").unwrap().to_string(), "\"b \"");
        assert_eq!(RelPath::new(b"x\xff\n".to_vec()).unwrap().to_string(), r#""x\xff\n""#);
    }
}
