//! `logs/gc-<time>.log`: what a collector took.
//!
//! ```text
//! graftwerk gc 1 2026-11-30T19:22:00Z
//! b3:02c7…
//! sum b3:77d0…
//! ```
//!
//! A tree a line; the last line is the BLAKE3 of everything above it. Nothing relies on such a log: what must be there is
//! known by the roots. It says when a tree went, to people and to reasons.

use std::ffi::OsStr;

use crate::digest::{Digest, TreeId};

/// What a log says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GcLog {
    /// When, RFC 3339.
    pub when: String,
    /// The trees that lost files.
    pub trees: Vec<TreeId>,
}

const HEAD: &str = "graftwerk gc 1 ";

/// A log's name, by nanoseconds since the epoch.
pub(crate) fn name(now_ns: i128) -> String {
    format!("gc-{now_ns}.log")
}

/// Whether a file in `logs/` is one by its name.
pub(crate) fn is_one(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.starts_with("gc-") && name.ends_with(".log")
}

/// The text of a log.
pub(crate) fn text(when: jiff::Timestamp, trees: &[TreeId]) -> String {
    let mut text = String::with_capacity(70 * trees.len() + 130);
    text.push_str(&format!("{HEAD}{when}\n"));
    for tree in trees {
        text.push_str(&format!("{tree}\n"));
    }
    text.push_str(&format!("sum {}\n", Digest::of(text.as_bytes())));
    text
}

/// Reads a log. Errors: what is wrong with it, to be read behind its path.
pub(crate) fn read(bytes: &[u8]) -> Result<GcLog, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "is no UTF-8 text".to_owned())?;
    let cut = || "does not end with its sum: it is cut off or was edited".to_owned();
    let at = text.rfind("\nsum ").ok_or_else(cut)? + 1;
    let (body, sum) = text.split_at(at);
    let sum = sum.strip_prefix("sum ").and_then(|s| s.strip_suffix('\n')).ok_or_else(cut)?;
    let found = Digest::of(body.as_bytes()).to_string();
    if found != sum {
        return Err(format!("hashes to {found}, but says {sum}"));
    }
    let mut lines = body.lines();
    let when = lines.next().and_then(|l| l.strip_prefix(HEAD)).ok_or("is not in a form that this program reads")?;
    let trees: Result<Vec<TreeId>, String> =
        lines.map(|l| l.parse().map_err(|_| format!("has a line that is no tree: {l}"))).collect();
    Ok(GcLog { when: when.to_owned(), trees: trees? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_reads_back_and_every_flipped_bit_and_every_cut_is_seen() {
        let trees = [TreeId(Digest::of(b"x")), TreeId(Digest::of(b"y"))];
        let text = text(jiff::Timestamp::UNIX_EPOCH, &trees);
        let log = GcLog { when: "1970-01-01T00:00:00Z".to_owned(), trees: trees.to_vec() };
        assert_eq!(read(text.as_bytes()), Ok(log));
        for i in 0..text.len() {
            assert!(read(&text.as_bytes()[..i]).is_err(), "cut at {i}");
            for bit in 0..8 {
                let mut bytes = text.clone().into_bytes();
                bytes[i] ^= 1 << bit;
                assert!(read(&bytes).is_err(), "bit {bit} of byte {i}");
            }
        }
    }
}
