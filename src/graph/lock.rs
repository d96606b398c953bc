//! graph.lock: what the names in graph.toml resolve to, and which trees are pinned.
//!
//! ```text
//! # Written by graftwerk: what graph.toml resolves to. Keep it with graph.toml.
//! version = 1
//!
//! [source."base"]
//! kind = "checkpoint"
//! path = "models/base"
//! tree = "b3:…"
//! files = 3
//! bytes = 1048576
//!
//! [image."llm-compressor:0.9"]
//! id = "sha256:…"
//! identity = "b3:…"
//!
//! [[pin]]
//! recipe = "b3:…"
//! tree = "b3:…"
//! node = "quant-a"
//! ```
//!
//! Sources stand by name, pins by recipe, so one state has one text, and a text that says the same is not written
//! again. The trees of sources are a record: a build takes a source as it is now and renews the record, unless it is
//! told to be `--locked`; then every [`Drift`] is an error. An image's name is resolved once; from then on the lock
//! holds, until `update`.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use toml::Spanned;

use crate::digest::{Digest, RecipeId, TreeId};
use crate::fsx::{self, FsError};
use crate::graph::diagnostic::{Diagnostics, Problem, Problems, Span, Text};
use crate::graph::name::Name;

const VERSION: i64 = 1;

/// What a source resolved to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockedSource {
    /// The key in graph.toml that holds its path: `checkpoint`, `file`, `folder`, `rows`.
    pub kind: String,
    /// Its path as graph.toml has it.
    pub path: String,
    /// Its content.
    pub tree: TreeId,
    /// How many files that is.
    pub files: u64,
    /// How many bytes they have together.
    pub bytes: u64,
}

impl LockedSource {
    fn size(&self) -> String {
        let s = |n: u64| if n == 1 { "" } else { "s" };
        format!("{} file{}, {} byte{}", self.files, s(self.files), self.bytes, s(self.bytes))
    }
}

/// What an image's name resolved to.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockedImage {
    /// The engine's id for it, when it was resolved: another import of the same image has another one.
    pub id: String,
    /// What a step can see of it: layers and runtime configuration.
    pub identity: Digest,
}

/// A tree that a recipe is to give, whatever other runs of it gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// The tree.
    pub tree: TreeId,
    /// The node's name when it was pinned: for people, never a key.
    pub node: String,
}

/// The content of graph.lock.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lock {
    /// Sources by name.
    pub sources: BTreeMap<Name, LockedSource>,
    /// Images by the name in graph.toml.
    pub images: BTreeMap<String, LockedImage>,
    /// Pins by recipe.
    pub pins: BTreeMap<RecipeId, Pin>,
}

/// A lock that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The disk said no.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// The text is damaged, or by a newer version. It is never taken for an empty one.
    #[error("{0}")]
    Damaged(Diagnostics),
}

/// One way in which names resolve otherwise than the lock says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drift {
    /// The source.
    pub source: Name,
    /// What the lock says; `None` where it does not know the source.
    pub old: Option<LockedSource>,
    /// What is there now; `None` where graph.toml has no such source any more.
    pub new: Option<LockedSource>,
}

/// One line, with both values.
impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.source;
        match (&self.old, &self.new) {
            (Some(o), Some(n)) if o.kind != n.kind => write!(f, "source {name}: was a {}, is a {}", o.kind, n.kind),
            (Some(o), Some(n)) if o.path != n.path => {
                write!(f, "source {name}: lay at {:?}, lies at {:?}", o.path, n.path)
            }
            (Some(o), Some(n)) => {
                write!(f, "source {name}: was {} ({}), is {} ({})", o.tree.short(), o.size(), n.tree.short(), n.size())
            }
            (None, Some(n)) => write!(f, "source {name}: not in the lock, is {}", n.tree.short()),
            (Some(o), None) => write!(f, "source {name}: was {}, is no longer in the graph", o.tree.short()),
            (None, None) => write!(f, "source {name}"),
        }
    }
}

#[derive(Deserialize)]
struct Versioned {
    version: Option<Spanned<i64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    #[serde(rename = "version")]
    _version: i64,
    #[serde(default)]
    source: BTreeMap<Spanned<String>, RawSource>,
    #[serde(default)]
    image: BTreeMap<String, LockedImage>,
    #[serde(default)]
    pin: Vec<Spanned<RawPin>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSource {
    kind: String,
    path: String,
    tree: TreeId,
    files: u64,
    bytes: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPin {
    recipe: RecipeId,
    tree: TreeId,
    node: String,
}

impl Lock {
    /// Reads the lock at `path`; an empty one where there is no file. Errors: [`LockError`].
    pub fn read(path: &Path) -> Result<Lock, LockError> {
        let Some(bytes) = fsx::read_optional(path)? else { return Ok(Lock::default()) };
        let file = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        match std::str::from_utf8(&bytes) {
            Ok(text) => Lock::parse(&file, text).map_err(LockError::Damaged),
            Err(e) => {
                let before = String::from_utf8_lossy(bytes.get(..e.valid_up_to()).unwrap_or_default());
                let end = Span::new(before.len(), before.len());
                let problem = Problem::new(end, "what follows is no UTF-8", "not text from here on");
                Err(LockError::Damaged(damaged(&Text::new(&file, &before).into(), problem)))
            }
        }
    }

    /// Reads a lock's text; `file` is what messages call it. Errors: what is wrong and where.
    pub fn parse(file: &str, text: &str) -> Result<Lock, Diagnostics> {
        let of = Arc::new(Text::new(file, text));
        let wrong = |e: toml::de::Error| {
            let span: Span = e.span().unwrap_or(text.len()..text.len()).into();
            let marks = text.starts_with("<<<<<<<").then_some(0).or_else(|| text.find("\n<<<<<<<").map(|i| i + 1));
            damaged(
                &of,
                match marks {
                    Some(at) => {
                        Problem::new(Span::new(at, at + 7), "this file holds the marks of a merge", "from here on")
                    }
                    None => Problem::new(span, e.message().trim_end(), ""),
                },
            )
        };
        // The version comes first: a newer one may hold what this program does not know.
        let versioned: Versioned = toml::from_str(text).map_err(wrong)?;
        match &versioned.version {
            Some(v) if *v.get_ref() == VERSION => {}
            Some(v) => {
                let what = format!("this lock is of version {}, and this program reads version {VERSION}", v.get_ref());
                let problem = Problem::new(v.span().into(), what, "unknown version");
                return Err(damaged(&of, problem.hint("use the graftwerk that wrote it, or a newer one")));
            }
            None => return Err(damaged(&of, Problem::new(Span::default(), "this lock does not say its version", ""))),
        }
        let raw: Raw = toml::from_str(text).map_err(wrong)?;
        let mut lock = Lock { images: raw.image, ..Lock::default() };
        for (name, s) in raw.source {
            let span: Span = name.span().into();
            let name = Name::new(name.get_ref())
                .map_err(|e| damaged(&of, Problem::new(span, format!("the source {e}"), "not a name")))?;
            let RawSource { kind, path, tree, files, bytes } = s;
            lock.sources.insert(name, LockedSource { kind, path, tree, files, bytes });
        }
        for p in raw.pin {
            let span: Span = p.span().into();
            let RawPin { recipe, tree, node } = p.into_inner();
            if lock.pins.insert(recipe, Pin { tree, node }).is_some() {
                let what = format!("the recipe {recipe} is pinned twice");
                return Err(damaged(&of, Problem::new(span, what, "again here")));
            }
        }
        Ok(lock)
    }

    /// The text: one for each state.
    pub fn to_text(&self) -> String {
        let mut s = String::from("# Written by graftwerk: what graph.toml resolves to. Keep it with graph.toml.\n");
        let _ = writeln!(s, "version = {VERSION}");
        for (name, source) in &self.sources {
            let LockedSource { kind, path, tree, files, bytes } = source;
            let (name, kind, path) = (string(name.as_str()), string(kind), string(path));
            let _ = writeln!(s, "\n[source.{name}]\nkind = {kind}\npath = {path}\ntree = \"{tree}\"");
            let _ = writeln!(s, "files = {files}\nbytes = {bytes}");
        }
        for (name, LockedImage { id, identity }) in &self.images {
            let (name, id) = (string(name), string(id));
            let _ = writeln!(s, "\n[image.{name}]\nid = {id}\nidentity = \"{identity}\"");
        }
        for (recipe, Pin { tree, node }) in &self.pins {
            let _ = writeln!(s, "\n[[pin]]\nrecipe = \"{recipe}\"\ntree = \"{tree}\"\nnode = {}", string(node));
        }
        s
    }

    /// Writes the lock, unless the file says the same already. Says whether it was written. A reader, and a crash,
    /// leaves the old text or the new one. `temp` is a folder for what is half-made ([`fsx::replace_file`]).
    pub fn write(&self, path: &Path, temp: &Path) -> Result<bool, FsError> {
        let text = self.to_text();
        if fsx::read_optional(path)?.as_deref() == Some(text.as_bytes()) {
            return Ok(false);
        }
        fsx::replace_file(path, text.as_bytes(), temp)?;
        Ok(true)
    }

    /// Where the sources of `now` differ from the lock's, by name. Pins are no resolution and never drift.
    pub fn drifts(&self, now: &BTreeMap<Name, LockedSource>) -> Vec<Drift> {
        let names: std::collections::BTreeSet<&Name> = self.sources.keys().chain(now.keys()).collect();
        names
            .into_iter()
            .map(|n| Drift { source: n.clone(), old: self.sources.get(n).cloned(), new: now.get(n).cloned() })
            .filter(|d| d.old != d.new)
            .collect()
    }
}

fn damaged(text: &Arc<Text>, problem: Problem) -> Diagnostics {
    let mut problems = Problems::default();
    let hint = "restore it from version control, or remove it to let the next build record everything anew";
    let hint = problem.hint.clone().unwrap_or_else(|| hint.to_owned());
    problems.push(|| problem.hint(hint));
    problems.finish(text)
}

/// A TOML basic string.
fn string(text: &str) -> String {
    let mut s = String::with_capacity(text.len() + 2);
    s.push('"');
    for c in text.chars() {
        match c {
            '"' => s.push_str("\\\""),
            '\\' => s.push_str("\\\\"),
            c if c.is_control() => {
                let _ = write!(s, "\\u{:04X}", u32::from(c));
            }
            c => s.push(c),
        }
    }
    s.push('"');
    s
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locked(path: &str, content: &str) -> LockedSource {
        let tree = TreeId(Digest::of(content.as_bytes()));
        LockedSource { kind: "folder".into(), path: path.into(), tree, files: 1, bytes: content.len() as u64 }
    }

    fn name(n: &str) -> Name {
        Name::new(n).unwrap()
    }

    fn sample() -> Lock {
        let pin = Pin { tree: TreeId(Digest::of(b"t")), node: "quant-a".into() };
        let image = LockedImage { id: "sha256:01".into(), identity: Digest::of(b"i") };
        Lock {
            sources: [(name("v1.2"), locked("models/\"x\"\\\n", "abc")), (name("base"), locked("base", ""))].into(),
            images: [("a/b:1".to_owned(), image)].into(),
            pins: [(RecipeId(Digest::of(b"r")), pin)].into(),
        }
    }

    #[test]
    fn the_text_of_a_lock_is_fixed_and_reads_back() {
        insta::assert_snapshot!(sample().to_text(), @r#"
        # Written by graftwerk: what graph.toml resolves to. Keep it with graph.toml.
        version = 1

        [source."base"]
        kind = "folder"
        path = "base"
        tree = "b3:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
        files = 1
        bytes = 0

        [source."v1.2"]
        kind = "folder"
        path = "models/\"x\"\\\u000A"
        tree = "b3:6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"
        files = 1
        bytes = 3

        [image."a/b:1"]
        id = "sha256:01"
        identity = "b3:e9c0ba08015769a0c4354594b96ce0dfbf27c9eb534a2f8378508985f732ff6d"

        [[pin]]
        recipe = "b3:b2dea48d667b2821a9bcf69eded39a2458a1d8165ca7fcac64c3557b69a7ea08"
        tree = "b3:0538661423236a5d8df6286a8633369e2a03c5f90d48eded333222dbee8cdbdd"
        node = "quant-a"
        "#);
        assert_eq!(Lock::parse("graph.lock", &sample().to_text()).unwrap(), sample());
    }

    #[test]
    fn a_lock_that_says_the_same_is_not_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("graph.lock");
        assert_eq!(Lock::read(&path).unwrap(), Lock::default());
        assert!(sample().write(&path, dir.path()).unwrap());
        let before = std::fs::metadata(&path).unwrap();
        assert!(!sample().write(&path, dir.path()).unwrap());
        use std::os::unix::fs::MetadataExt as _;
        assert_eq!(std::fs::metadata(&path).unwrap().ino(), before.ino());
        assert_eq!(Lock::read(&path).unwrap(), sample());
        assert!(Lock::default().write(&path, dir.path()).unwrap());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_damaged_lock_is_an_error_with_its_place_and_never_empty() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("graph.lock");
        let good = sample().to_text();
        let cases: [(&str, String); 9] = [
            ("empty", String::new()),
            ("cut off", good[..good.len() - 30].to_owned()),
            ("no version", good.replace("version = 1\n", "")),
            ("newer", good.replace("version = 1", "version = 2\nmore = true")),
            ("unknown key", good.replace("files", "fils")),
            ("bad digest", good.replace("tree = \"b3:", "tree = \"b4:")),
            ("negative", good.replace("bytes = 3", "bytes = -3")),
            ("bad name", good.replace("[source.\"base\"]", "[source.\"../base\"]")),
            ("merge", good.replace("version = 1", "<<<<<<< ours\nversion = 1")),
        ];
        let mut seen = String::new();
        for (what, text) in cases {
            std::fs::write(&path, &text).unwrap();
            match Lock::read(&path) {
                Err(LockError::Damaged(d)) => {
                    let _ = writeln!(seen, "{what}: {d}");
                }
                other => panic!("{what}: {other:?}"),
            }
        }
        insta::assert_snapshot!(seen, @r#"
        empty: graph.lock:1:1: this lock does not say its version
        cut off: graph.lock:24:65: invalid basic string, expected `"`
        no version: graph.lock:1:1: this lock does not say its version
        newer: graph.lock:2:11: this lock is of version 2, and this program reads version 1
        unknown key: graph.lock:8:1: unknown field `fils`, expected one of `kind`, `path`, `tree`, `files`, `bytes`
        bad digest: graph.lock:7:8: "b4:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262" is no digest: expected `b3:` and 64 lower-case hex digits
        negative: graph.lock:16:9: invalid value: integer `-3`, expected u64
        bad name: graph.lock:4:9: the source "../base" is no name: it holds "/"; letters, digits, `_`, `-`, `.` and `+` may stand in it
        merge: graph.lock:2:1: this file holds the marks of a merge
        "#);
        std::fs::write(&path, b"version = \xff").unwrap();
        assert!(matches!(Lock::read(&path), Err(LockError::Damaged(_))));
    }

    #[test]
    fn a_recipe_that_is_pinned_twice_is_an_error() {
        let text = sample().to_text();
        let pin = text.find("[[pin]]").unwrap();
        let twice = format!("{text}\n{}", &text[pin..]);
        let e = Lock::parse("graph.lock", &twice).unwrap_err().to_string();
        assert!(e.contains("is pinned twice"), "{e}");
    }

    #[test]
    fn drifts_name_the_source_and_both_values() {
        let lock = Lock {
            sources: [(name("a"), locked("a", "1")), (name("b"), locked("b", "1")), (name("c"), locked("c", ""))]
                .into(),
            ..Lock::default()
        };
        assert_eq!(lock.drifts(&lock.sources), []);
        let now = [(name("a"), locked("a", "2")), (name("b"), locked("x", "1")), (name("d"), locked("d", ""))].into();
        let lines: Vec<String> = lock.drifts(&now).iter().map(Drift::to_string).collect();
        insta::assert_snapshot!(lines.join("\n"), @r#"
        source a: was b3:d63bd9a826af (1 file, 1 byte), is b3:813e9b729141 (1 file, 1 byte)
        source b: lay at "b", lies at "x"
        source c: was b3:af1349b9f5f9, is no longer in the graph
        source d: not in the lock, is b3:af1349b9f5f9
        "#);
    }
}
