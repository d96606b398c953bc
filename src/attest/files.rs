//! Files held against the digests that a statement or a list has for them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::attest::error::{AttestError, Result};
use crate::attest::hex;
use crate::attest::subjects::{Digests, Watch, digest_range};
use crate::canon::quote;
use crate::store::source::few_at_once;
use crate::store::{self, StoreError};

/// What is said of some bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// Every digest that is there, in hex.
    All {
        /// SHA-256.
        sha256: Option<String>,
        /// BLAKE3.
        blake3: Option<String>,
    },
    /// One digest of 256 bits, and not by which algorithm: no bytes can be found for which the other one gives it.
    Either(String),
}

impl Claim {
    fn holds(&self, found: &Digests) -> bool {
        let (sha256, blake3) = (hex(&found.sha256), found.blake3.hex());
        match self {
            Self::All { sha256: s, blake3: b } => {
                (s.is_some() || b.is_some())
                    && s.as_ref().is_none_or(|s| *s == sha256)
                    && b.as_ref().is_none_or(|b| *b == blake3)
            }
            Self::Either(one) => *one == sha256 || *one == blake3,
        }
    }

    // Both digests, of each algorithm that says something.
    fn differs(&self, found: &Digests) -> String {
        let (sha256, blake3) = (hex(&found.sha256), found.blake3.hex());
        match self {
            Self::All { sha256: Some(s), .. } if *s != sha256 => {
                format!("hashes to sha256:{sha256}, not to sha256:{s}")
            }
            Self::All { blake3: Some(b), .. } => format!("hashes to b3:{blake3}, not to b3:{b}"),
            Self::All { .. } => format!("hashes to sha256:{sha256}, and no digest is said of it"),
            Self::Either(one) => format!("hashes to sha256:{sha256} and b3:{blake3}, not to {one}"),
        }
    }
}

/// Bytes of a file, and what is said of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// From where to where; `None` for the whole file.
    pub range: Option<(u64, u64)>,
    /// What is said.
    pub claim: Claim,
}

/// What a folder should hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expected {
    /// Path in the folder → pieces of the file there, which follow each other without a gap.
    pub files: BTreeMap<String, Vec<Piece>>,
    /// Paths in the folder of which nothing is said, with all that is below them.
    pub ignored: Vec<String>,
    /// Whether a link in place of a file is a difference.
    pub refuses_links: bool,
    /// Whether nothing is ever said of empty files.
    pub skips_empty: bool,
}

/// What stands in the way of `all is right`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Difference {
    /// Other bytes, or no file.
    Changed,
    /// Not there.
    Missing,
    /// Nothing is said of it.
    Extra,
}

/// What holding found.
#[derive(Debug, Clone, Default)]
pub struct Held {
    /// What differs: where, and how, to be read behind the path.
    pub differences: Vec<(Difference, PathBuf, String)>,
    /// Files that were looked at.
    pub files: u64,
    /// Bytes that were hashed.
    pub hashed_bytes: u64,
}

// A path of a folder that opens as a file.
struct There {
    path: PathBuf,
    size: u64,
    link: bool,
}

/// Holds a folder, or one file of it, against what is said. Files at one of the `own` paths (the signature itself) count as
/// not there. Errors: Bad where `top` is a file of which nothing is said; Cancelled.
pub fn hold(top: &Path, expected: &Expected, own: &[PathBuf], watch: &Watch<'_>) -> Result<Held> {
    let mut held = Held::default();
    let meta = fs::metadata(top).map_err(|e| unreadable(top, &e))?;
    let (files, pieces) = if meta.is_dir() {
        let own: Vec<(u64, u64)> =
            own.iter().filter_map(|p| fs::metadata(p).ok()).map(|m| (m.dev(), m.ino())).collect();
        let mut walk = Walk { top, expected, own, found: BTreeMap::new(), held: &mut held };
        walk.folder("");
        let files = walk.found;
        for name in expected.files.keys().filter(|n| !files.contains_key(*n)) {
            let path = top.join(name);
            if !held.differences.iter().any(|(_, p, _)| *p == path) {
                held.differences.push((Difference::Missing, path, "is not there".to_owned()));
            }
        }
        (files, expected.files.clone())
    } else {
        one_file(top, meta.len(), expected)?
    };
    let jobs: Vec<(&There, &Vec<Piece>)> =
        files.iter().filter_map(|(name, there)| Some((there, pieces.get(name)?))).collect();
    let total = jobs.iter().map(|(t, _)| t.size).sum();
    let done = AtomicU64::new(0);
    let tell = |n: u64| (watch.progress)(done.fetch_add(n, Ordering::Relaxed) + n, total);
    let outcomes = few_at_once(jobs.len(), |i| hold_file(jobs[i].0, jobs[i].1, &tell, watch.cancelled));
    let outcomes = outcomes.map_err(|_| AttestError::Cancelled)?;
    held.differences.extend(outcomes.into_iter().flatten());
    for there in files.values().filter(|t| t.link && expected.refuses_links) {
        let what = "is a link, and the signature is of a folder without links".to_owned();
        held.differences.push((Difference::Changed, there.path.clone(), what));
    }
    held.differences.sort();
    held.hashed_bytes = done.into_inner();
    held.files += files.len() as u64;
    Ok(held)
}

fn unreadable(path: &Path, e: &std::io::Error) -> AttestError {
    AttestError::bad(crate::canon::plain_or_quoted(path.as_os_str().as_bytes()), format!("can't be read: {e}"), "")
}

type Chosen = (BTreeMap<String, There>, BTreeMap<String, Vec<Piece>>);

// A file by itself: the one of its name, or the only one.
fn one_file(top: &Path, size: u64, expected: &Expected) -> Result<Chosen> {
    let name = top.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let is_named = |n: &&String| n.rsplit('/').next() == Some(name.as_str()) || *n == ".";
    let named: Vec<&String> = expected.files.keys().filter(is_named).collect();
    let key = match named.as_slice() {
        [one] => (*one).clone(),
        [] => {
            let what = "is a file of which nothing is said: none of its name is signed or listed";
            return Err(AttestError::bad(top.display().to_string(), what, "verify the folder that it belongs to"));
        }
        several => {
            let what = format!("has the name of {} files that are signed or listed", several.len());
            return Err(AttestError::bad(top.display().to_string(), what, "verify the folder that it belongs to"));
        }
    };
    let pieces = expected.files.get(&key).cloned().unwrap_or_default();
    let there = There { path: top.to_owned(), size, link: false };
    Ok((BTreeMap::from([(key.clone(), there)]), BTreeMap::from([(key, pieces)])))
}

fn hold_file(
    there: &There,
    pieces: &[Piece],
    tell: &dyn Fn(u64),
    cancelled: &dyn Fn() -> bool,
) -> store::Result<Option<(Difference, PathBuf, String)>> {
    let changed = |what: String| Ok(Some((Difference::Changed, there.path.clone(), what)));
    let mut end = 0;
    for piece in pieces {
        let range = piece.range.unwrap_or((0, u64::MAX));
        let found = match digest_range(&there.path, range, tell, cancelled) {
            Ok(found) => found,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => return Err(StoreError::Cancelled),
            Err(e) => return changed(format!("can't be read: {e}")),
        };
        end = range.1;
        if piece.range.is_some_and(|(from, to)| found.size != to - from) {
            return changed(format!("has {} bytes, and should have {end} or more", there.size));
        }
        if !piece.claim.holds(&found) {
            let part = piece.range.map_or_else(String::new, |(from, to)| format!("bytes {from} to {to}: "));
            return changed(format!("{part}{}", piece.claim.differs(&found)));
        }
    }
    if end != u64::MAX && there.size != end {
        return changed(format!("has {} bytes, and should have {end}", there.size));
    }
    Ok(None)
}

struct Walk<'a> {
    top: &'a Path,
    expected: &'a Expected,
    // Device and inode of what is no part of the folder.
    own: Vec<(u64, u64)>,
    found: BTreeMap<String, There>,
    held: &'a mut Held,
}

impl Walk<'_> {
    fn extra(&mut self, path: PathBuf, what: impl Into<String>) {
        self.held.differences.push((Difference::Extra, path, what.into()));
    }

    fn folder(&mut self, dir: &str) {
        let at = self.top.join(dir);
        let names: std::io::Result<BTreeSet<_>> =
            fs::read_dir(&at).and_then(|list| list.map(|e| e.map(|e| e.file_name())).collect());
        let names = match names {
            Ok(names) => names,
            Err(e) => return self.held.differences.push((Difference::Changed, at, format!("can't be read: {e}"))),
        };
        for name in names {
            self.entry(dir, &at, &name);
        }
    }

    fn entry(&mut self, dir: &str, at: &Path, name: &OsStr) {
        let path = at.join(name);
        let Some(name) = name.to_str() else {
            return self.extra(path, "is a name that is no UTF-8, which no signature has");
        };
        let rel = if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") };
        if self.expected.ignored.contains(&rel) {
            return;
        }
        let meta = match fs::symlink_metadata(&path) {
            Ok(meta) => meta,
            // It went meanwhile; where it should be there, it is missing.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return,
            Err(e) => return self.held.differences.push((Difference::Changed, path, format!("can't be read: {e}"))),
        };
        if meta.is_dir() {
            return self.folder(&rel);
        }
        let link = meta.is_symlink();
        let known = self.expected.files.contains_key(&rel);
        let target = if link { fs::metadata(&path) } else { Ok(meta) };
        match target {
            Ok(t) if t.is_file() => {
                if self.own.contains(&(t.dev(), t.ino())) || (self.expected.skips_empty && t.len() == 0) {
                    return;
                }
                if known {
                    self.found.insert(rel, There { path, size: t.len(), link });
                } else {
                    self.held.files += 1;
                    self.extra(path, "is a file of which nothing is signed or listed");
                }
            }
            Ok(t) if t.is_dir() => {
                let to = fs::read_link(&path).map(|t| quote(t.as_os_str().as_bytes())).unwrap_or_default();
                self.extra(path, format!("is a link to the folder {to}, which is not followed"));
            }
            Ok(_) => self.extra(path, "is no file"),
            Err(e) if known => {
                self.held.differences.push((Difference::Changed, path, format!("is a link that opens nothing: {e}")));
            }
            Err(_) => self.extra(path, "is a link that opens nothing"),
        }
    }
}
