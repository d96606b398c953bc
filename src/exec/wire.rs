//! What the parent tells the helper, and what the helper says back. Both are the same program, so the form may change
//! with any version.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes in JSON: each one as the character of its number, so that every name survives and plain ones stay readable.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Bytes(pub(super) Vec<u8>);

impl Bytes {
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(OsStr::from_bytes(&self.0))
    }

    /// `None` where a NUL stands in it.
    pub(super) fn c_string(&self) -> Option<CString> {
        CString::new(self.0.clone()).ok()
    }
}

impl From<&Path> for Bytes {
    fn from(p: &Path) -> Self {
        Self(p.as_os_str().as_bytes().to_vec())
    }
}

impl From<&str> for Bytes {
    fn from(s: &str) -> Self {
        Self(s.as_bytes().to_vec())
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if self.0.is_ascii() {
            return s.serialize_str(&String::from_utf8_lossy(&self.0));
        }
        s.serialize_str(&self.0.iter().map(|b| char::from(*b)).collect::<String>())
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        let byte = |c| u8::try_from(u32::from(c)).map_err(|_| serde::de::Error::custom("a character above 255"));
        Ok(Self(text.chars().map(byte).collect::<Result<_, _>>()?))
    }
}

/// Everything that the helper needs to know.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Orders {
    /// The process that waits for us.
    pub(super) parent: i32,
    /// Namespaces, or just a process.
    pub(super) namespaces: bool,
    /// The program to execute; none for a probe, which sets everything up and ends.
    pub(super) program: Option<Bytes>,
    pub(super) argv: Vec<Bytes>,
    /// `NAME=value`.
    pub(super) env: Vec<Bytes>,
    pub(super) workdir: Bytes,
    pub(super) network: bool,
    /// An empty folder of the host on which the new root is built.
    pub(super) root: Bytes,
    /// The host's folders that are seen as `/tmp` and `/out`.
    pub(super) tmp: Bytes,
    pub(super) out: Bytes,
    /// Links inside: where, and to what.
    pub(super) links: Vec<(Bytes, Bytes)>,
    pub(super) mounts: Vec<WireMount>,
}

/// Something of the host that is seen inside, read-only.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WireMount {
    /// Absolute, without links, `.` and `..`.
    pub(super) inside: Bytes,
    pub(super) source: WireSource,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum WireSource {
    /// A file; with `true` it must be executable inside.
    File(Bytes, bool),
    Dir(Bytes),
    /// Entries by relative path, a folder before what is in it.
    Tree(Vec<(Bytes, WireEntry)>),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum WireEntry {
    File(Bytes, bool),
    Link(Bytes),
    EmptyDir,
}

/// What the helper says, a line each.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub(super) enum Said {
    /// It is the helper, and it understood.
    Hello,
    /// The system does not let us have namespaces.
    Refused { call: String, errno: i32 },
    /// Something that was asked for can't be set up.
    Failed { what: String, errno: i32, hint: Option<String> },
    /// Everything is in place and the program about to be executed.
    Started,
    /// The program could not be executed.
    NotStarted { what: String, errno: i32 },
    /// The program ended: raw wait status.
    Ended { status: i32 },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives_the_wire() {
        let all = Bytes((0..=255).collect());
        let text = serde_json::to_string(&all).unwrap();
        assert_eq!(serde_json::from_str::<Bytes>(&text).unwrap(), all);
        let word = Bytes::from("a b/é");
        assert_eq!(serde_json::from_str::<Bytes>(&serde_json::to_string(&word).unwrap()).unwrap(), word);
    }
}
