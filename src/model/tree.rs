//! A tree: a directory as a canonical, sorted listing.
//!
//! ```text
//! graftwerk tree 1
//! d - - "cache"
//! f 1969 b3:af7b… "config.json"
//! l 14 - "latest" -> "config.json"
//! x 12 b3:91c4… "run.sh"
//! ```
//!
//! One line an entry, flat, sorted by the bytes of the path: type (`f` file, `x` executable file, `l` link, `d` empty
//! directory), size, digest, quoted path. A directory that holds something is implied by what it holds. The TreeId is
//! the BLAKE3 of this text.

use std::collections::BTreeMap;

use crate::canon::{quote, unquote, unquote_prefix};
use crate::digest::{BlobId, Digest, TreeId};
use crate::model::path::RelPath;

/// What stands at a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Entry {
    /// A file.
    File {
        /// Its bytes.
        blob: BlobId,
        /// Their number.
        size: u64,
        /// Whether the owner's executable bit is set.
        executable: bool,
    },
    /// A symbolic link that stays inside the tree.
    Link {
        /// What it points to, as it was written.
        target: Vec<u8>,
    },
    /// A directory with nothing in it.
    EmptyDir,
}

/// A directory's content. Paths never conflict: none is a prefix of another.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tree {
    entries: BTreeMap<RelPath, Entry>,
}

/// Why a listing or an insertion is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// The text is not what [`Tree::to_text`] writes.
    #[error("line {line} of the listing: {what}")]
    Syntax {
        /// Line number, from 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// Two entries want one path, or one path is a folder of the other.
    #[error("{path} stands twice in one tree")]
    Conflict {
        /// The later one.
        path: RelPath,
    },
    /// A link leads out of its tree.
    #[error("the link {path} -> {} is absolute or leads out of its tree", quote(target))]
    Escape {
        /// The link.
        path: RelPath,
        /// Where it points.
        target: Vec<u8>,
    },
}

const HEADER: &str = "graftwerk tree 1";

impl Tree {
    /// An empty tree.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an entry. Errors: [`TreeError::Conflict`] where the path is taken, or is a folder of another entry's path;
    /// [`TreeError::Escape`] for a link that is absolute or leads out.
    pub fn insert(&mut self, path: RelPath, entry: Entry) -> Result<(), TreeError> {
        if let Entry::Link { target } = &entry
            && !link_stays_inside(&path, target)
        {
            return Err(TreeError::Escape { path, target: target.clone() });
        }
        if self.entries.contains_key(&path) || self.has_below(&path) {
            return Err(TreeError::Conflict { path });
        }
        let mut up = path.parent();
        while let Some(p) = up {
            if self.entries.contains_key(&p) {
                return Err(TreeError::Conflict { path });
            }
            up = p.parent();
        }
        self.entries.insert(path, entry);
        Ok(())
    }

    fn has_below(&self, path: &RelPath) -> bool {
        let mut prefix = path.as_bytes().to_vec();
        prefix.push(b'/');
        let Ok(first) = RelPath::new([prefix.as_slice(), b"\x01"].concat()) else { return false };
        self.entries.range(first..).next().is_some_and(|(p, _)| p.as_bytes().starts_with(&prefix))
    }

    /// Whether something stands at `path`: an entry, or a folder of entries.
    pub fn holds(&self, path: &RelPath) -> bool {
        self.entries.contains_key(path) || self.has_below(path)
    }

    /// The entry at `path`.
    pub fn get(&self, path: &RelPath) -> Option<&Entry> {
        self.entries.get(path)
    }

    /// The entry at a path given as text; `None` also where the text is no path.
    pub fn at(&self, path: &str) -> Option<&Entry> {
        self.entries.get(&RelPath::try_from(path).ok()?)
    }

    /// All entries by path, in byte order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&RelPath, &Entry)> {
        self.entries.iter()
    }

    /// All files: path, blob, size in bytes, executable.
    pub fn files(&self) -> impl Iterator<Item = (&RelPath, BlobId, u64, bool)> {
        self.entries.iter().filter_map(|(p, e)| match e {
            Entry::File { blob, size, executable } => Some((p, *blob, *size, *executable)),
            _ => None,
        })
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The sum of the files' sizes in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.files().map(|f| f.2).sum()
    }

    /// The tree of those entries for which `keep` holds.
    pub fn filtered(&self, mut keep: impl FnMut(&RelPath, &Entry) -> bool) -> Tree {
        Tree { entries: self.entries.iter().filter(|(p, e)| keep(p, e)).map(|(p, e)| (p.clone(), e.clone())).collect() }
    }

    /// The canonical listing.
    pub fn to_text(&self) -> String {
        use std::fmt::Write as _;
        let mut s = String::with_capacity(32 + self.entries.len() * 110);
        s.push_str(HEADER);
        s.push('\n');
        for (path, entry) in &self.entries {
            let p = quote(path.as_bytes());
            let _ = match entry {
                Entry::File { blob, size, executable } => {
                    writeln!(s, "{} {size} {blob} {p}", if *executable { 'x' } else { 'f' })
                }
                Entry::Link { target } => writeln!(s, "l {} - {p} -> {}", target.len(), quote(target)),
                Entry::EmptyDir => writeln!(s, "d - - {p}"),
            };
        }
        s
    }

    /// The digest of the canonical listing.
    pub fn id(&self) -> TreeId {
        TreeId(Digest::of(self.to_text().as_bytes()))
    }

    /// Reads a canonical listing. Errors: [`TreeError`] at the first line that [`Tree::to_text`] would not have written.
    pub fn parse(text: &str) -> Result<Tree, TreeError> {
        let syntax = |line: usize, what: String| TreeError::Syntax { line, what };
        let mut lines = text.split_terminator('\n').enumerate();
        if lines.next().map(|l| l.1) != Some(HEADER) {
            return Err(syntax(1, format!("expected {HEADER:?}")));
        }
        let mut tree = Tree::new();
        let mut last: Option<RelPath> = None;
        for (i, line) in lines {
            let n = i + 1;
            let mut parts = line.splitn(4, ' ');
            let (Some(kind), Some(size), Some(digest), Some(rest)) =
                (parts.next(), parts.next(), parts.next(), parts.next())
            else {
                return Err(syntax(n, "expected type, size, digest and path".to_owned()));
            };
            let (path, rest) = unquote_prefix(rest).map_err(|e| syntax(n, e.to_string()))?;
            let path = RelPath::new(path).map_err(|e| syntax(n, e.to_string()))?;
            let entry = match kind {
                "f" | "x" if rest.is_empty() => Entry::File {
                    size: size.parse().map_err(|_| syntax(n, format!("{size:?} is no size")))?,
                    blob: digest.parse().map_err(|e| syntax(n, format!("{e}")))?,
                    executable: kind == "x",
                },
                "l" => {
                    let target = rest.strip_prefix(" -> ").ok_or_else(|| syntax(n, "expected ` -> `".to_owned()))?;
                    Entry::Link { target: unquote(target).map_err(|e| syntax(n, e.to_string()))? }
                }
                "d" if rest.is_empty() => Entry::EmptyDir,
                _ => return Err(syntax(n, format!("unknown entry {line:?}"))),
            };
            if last.as_ref().is_some_and(|l| *l >= path) {
                return Err(syntax(n, "paths are not sorted".to_owned()));
            }
            last = Some(path.clone());
            tree.insert(path, entry)?;
        }
        if tree.to_text() != text {
            return Err(syntax(1, "the text is not in canonical form".to_owned()));
        }
        Ok(tree)
    }
}

/// Whether a link at `path` with this target is relative and, read as text, never climbs above the tree.
pub fn link_stays_inside(path: &RelPath, target: &[u8]) -> bool {
    if target.is_empty() || target[0] == b'/' || target.contains(&0) {
        return false;
    }
    let mut depth = path.as_bytes().iter().filter(|b| **b == b'/').count();
    for c in target.split(|b| *b == b'/') {
        match c {
            b"" | b"." => {}
            b".." => match depth.checked_sub(1) {
                Some(d) => depth = d,
                None => return false,
            },
            _ => depth += 1,
        }
    }
    true
}

/// Where a link that stays inside points, from the top of its tree, read as text; `None` for the top itself.
pub fn link_target(path: &RelPath, target: &[u8]) -> Option<RelPath> {
    let mut parts: Vec<&[u8]> = path.as_bytes().split(|b| *b == b'/').collect();
    parts.pop();
    for part in target.split(|b| *b == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    RelPath::new(parts.join(&b'/')).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn p(s: &str) -> RelPath {
        RelPath::try_from(s).unwrap()
    }

    fn sample() -> Tree {
        let mut t = Tree::new();
        t.insert(p("run.sh"), Entry::File { blob: BlobId(Digest::of(b"#!")), size: 2, executable: true }).unwrap();
        t.insert(p("cache"), Entry::EmptyDir).unwrap();
        t.insert(p("a b/\n"), Entry::File { blob: BlobId(Digest::of(b"")), size: 0, executable: false }).unwrap();
        t.insert(p("l"), Entry::Link { target: b"a b/\n".to_vec() }).unwrap();
        t
    }

    #[test]
    fn the_listing_is_canonical_and_its_digest_is_fixed() {
        let text = sample().to_text();
        assert_eq!(
            text,
            "graftwerk tree 1\n\
             f 0 b3:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262 \"a b/\\n\"\n\
             d - - \"cache\"\n\
             l 5 - \"l\" -> \"a b/\\n\"\n\
             x 2 b3:4f05ebbf8e2a5a10c9cff8a0c4b4aeed4e49ff6c2cae6fab8b1bf90b2f06be1e \"run.sh\"\n"
                .replace("4f05ebbf8e2a5a10c9cff8a0c4b4aeed4e49ff6c2cae6fab8b1bf90b2f06be1e", &Digest::of(b"#!").hex())
        );
        assert_eq!(Tree::parse(&text).unwrap(), sample());
        assert_eq!(Tree::new().id(), TreeId(Digest::of(b"graftwerk tree 1\n")));
    }

    #[test]
    fn a_file_and_a_folder_of_one_name_conflict() {
        let mut t = Tree::new();
        t.insert(p("a/b"), Entry::EmptyDir).unwrap();
        assert!(t.insert(p("a"), Entry::EmptyDir).is_err());
        assert!(t.insert(p("a/b/c"), Entry::EmptyDir).is_err());
        assert!(t.insert(p("a/b"), Entry::EmptyDir).is_err());
        t.insert(p("a/c"), Entry::EmptyDir).unwrap();
    }

    #[test]
    fn links_that_leave_the_tree_are_refused() {
        for (at, target) in [("l", "/etc/passwd"), ("l", ".."), ("a/l", "../../x"), ("l", "x/../../y"), ("l", "")] {
            let r = Tree::new().insert(p(at), Entry::Link { target: target.into() });
            assert!(matches!(r, Err(TreeError::Escape { .. })), "{at} -> {target}");
        }
        Tree::new().insert(p("a/l"), Entry::Link { target: b"../b".to_vec() }).unwrap();
    }

    #[test]
    fn a_link_leads_to_an_entry_a_folder_or_the_top() {
        assert_eq!(link_target(&p("a/l"), b"../b/./c"), Some(p("b/c")));
        assert_eq!(link_target(&p("a/l"), b"x"), Some(p("a/x")));
        assert_eq!(link_target(&p("a/l"), b".."), None);
        let t = sample();
        assert!(t.holds(&p("cache")) && t.holds(&p("a b")) && t.holds(&p("a b/\n")));
        assert!(!t.holds(&p("a")) && !t.holds(&p("a b/x")) && !t.holds(&p("cache/x")));
    }

    #[test]
    fn listings_that_are_not_canonical_are_refused() {
        let good = sample().to_text();
        assert!(Tree::parse(&good[..good.len() - 1]).is_err(), "cut off");
        assert!(Tree::parse(&good.replace("d - -", "d 0 -")).is_err(), "other text for the same entry");
        let mut lines: Vec<&str> = good.lines().collect();
        lines.swap(1, 2);
        assert!(Tree::parse(&(lines.join("\n") + "\n")).is_err(), "unsorted");
    }
}
