//! Files of two sides: added, removed, changed; JSON by key, text by line, shards by their headers.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

use rayon::prelude::*;
use serde::Serialize;
use serde_json::Value;

use crate::diff::Watching;
use crate::diff::json::{KeyChange, differences};
use crate::diff::side::{Side, SideFile};
use crate::diff::tensors::TensorsDiff;
use crate::fsx::at;
use crate::model::path::RelPath;
use crate::store::error::{Result, StoreError};

/// What a file is to a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// `chat_template.*`.
    ChatTemplate,
    /// What turns text into tokens.
    Tokenizer,
    /// config.json and its like.
    Config,
    /// A shard.
    Weights,
    /// The index of the shards.
    Index,
}

impl Role {
    /// By a file's path.
    pub fn of(path: &RelPath) -> Option<Self> {
        let name = std::str::from_utf8(path.file_name()).ok()?;
        match name {
            n if n.starts_with("chat_template") => Some(Self::ChatTemplate),
            "vocab.json" | "merges.txt" | "added_tokens.json" | "special_tokens_map.json" => Some(Self::Tokenizer),
            n if n.starts_with("tokenizer") || n.ends_with(".tiktoken") => Some(Self::Tokenizer),
            n if n.ends_with(".safetensors.index.json") => Some(Self::Index),
            n if n.ends_with(".safetensors") => Some(Self::Weights),
            n if n.ends_with("config.json") => Some(Self::Config),
            _ => None,
        }
    }

    /// In words.
    pub fn word(self) -> &'static str {
        match self {
            Self::ChatTemplate => "chat template",
            Self::Tokenizer => "tokenizer",
            Self::Config => "config",
            Self::Weights => "weights",
            Self::Index => "index",
        }
    }
}

/// A file that is not the same on both sides.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FileChange {
    /// Its path.
    pub path: String,
    /// What it is to the model, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Its size on the first side; `None` where it is no file there.
    pub a: Option<u64>,
    /// Its size on the second.
    pub b: Option<u64>,
    /// What differs.
    pub details: Details,
}

/// How two files differ.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Details {
    /// On one side only.
    OneSide,
    /// JSON, by key.
    Json {
        /// The first of them.
        keys: Vec<KeyChange>,
        /// How many more there are.
        more: usize,
    },
    /// The same JSON, written otherwise.
    JsonFormat,
    /// Text, as a unified diff.
    Text {
        /// The diff.
        diff: String,
    },
    /// A shard: what of its header differs; its values are the tensors' matter.
    Shard {
        /// Keys of `__metadata__`.
        metadata: Vec<KeyChange>,
        /// Whether the tensors stand in another order.
        order: bool,
        /// Where the data start, on both sides, if that differs.
        #[serde(skip_serializing_if = "Option::is_none")]
        data_start: Option<(u64, u64)>,
        /// Names that are in this file on the first side only.
        gone: usize,
        /// Names that are in this file on the second side only.
        new: usize,
    },
    /// Bytes of no known form; the first that differs.
    Bytes {
        /// Counted from 0; `None` where the bytes are not there to look.
        first: Option<u64>,
    },
    /// Whether it may be executed, before and after.
    Mode {
        /// On the first side.
        a: bool,
        /// On the second.
        b: bool,
    },
    /// A link, a folder or a file became another of these.
    Type {
        /// On the first side.
        a: String,
        /// On the second.
        b: String,
    },
}

/// What differs between the files of two sides.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct FilesDiff {
    /// Files with the same path and bytes.
    pub identical: usize,
    /// Of the second side only.
    pub added: Vec<FileChange>,
    /// Of the first side only.
    pub removed: Vec<FileChange>,
    /// Of both, and not the same.
    pub changed: Vec<FileChange>,
}

impl FilesDiff {
    /// Whether there is no difference at all.
    pub fn is_same(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }
}

/// Keys that a report holds of one file.
const MOST_KEYS: usize = 1000;

/// What is read whole to be shown by key or line.
const READABLE: u64 = 64 << 20;

/// Compares the files. With the tensors' comparison at hand, shards that hold what it found identical are not read
/// again. Errors: the disk's; Cancelled.
pub fn compare(a: &Side, b: &Side, tensors: Option<&TensorsDiff>, watching: &Watching<'_>) -> Result<FilesDiff> {
    let mut diff = FilesDiff::default();
    let touched = tensors.map(|t| touched(t, a, b));
    let paths: BTreeSet<&RelPath> = a.files.keys().chain(b.files.keys()).collect();
    for path in paths {
        if (watching.cancelled)() {
            return Err(StoreError::Cancelled);
        }
        let (x, y) = (a.files.get(path), b.files.get(path));
        let of = |details| FileChange {
            path: path.to_string(),
            role: Role::of(path),
            a: x.and_then(size),
            b: y.and_then(size),
            details,
        };
        match (x, y) {
            (Some(_), None) => diff.removed.push(of(Details::OneSide)),
            (None, Some(_)) => diff.added.push(of(Details::OneSide)),
            (Some(x), Some(y)) => {
                let untouched = touched.as_ref().is_some_and(|t| !t.contains(path));
                match both((a, x), (b, y), path, untouched, watching)? {
                    Some(details) => diff.changed.push(of(details)),
                    None => diff.identical += 1,
                }
            }
            (None, None) => {}
        }
    }
    Ok(diff)
}

fn size(file: &SideFile) -> Option<u64> {
    match file {
        SideFile::File { size, .. } => Some(*size),
        _ => None,
    }
}

// The files that hold a part of a weight that is not the same on both sides.
fn touched(diff: &TensorsDiff, a: &Side, b: &Side) -> BTreeSet<RelPath> {
    let names = diff.changed.iter().chain(&diff.removed).chain(&diff.added);
    let mut names: Vec<&str> = names.flat_map(|c| c.was.iter().chain([&c.name])).map(String::as_str).collect();
    names.extend(diff.renamed.iter().flat_map(|(x, y)| [x.as_str(), y.as_str()]));
    let mut files = BTreeSet::new();
    for side in [a, b] {
        for name in &names {
            // The parts of a quantised weight have its name before theirs.
            let parts = side.tensors.range((*name).to_owned()..).take_while(|(n, _)| n.starts_with(name));
            files.extend(parts.map(|(_, t)| t.file.clone()));
        }
    }
    files
}

fn both(
    (a, x): (&Side, &SideFile),
    (b, y): (&Side, &SideFile),
    path: &RelPath,
    untouched: bool,
    watching: &Watching<'_>,
) -> Result<Option<Details>> {
    let (
        SideFile::File { size: n, executable: ex, blob, .. },
        SideFile::File { size: m, executable: ey, blob: other, .. },
    ) = (x, y)
    else {
        let differ = x != y;
        return Ok(differ.then(|| Details::Type { a: word(x), b: word(y) }));
    };
    let shards = a.headers.contains_key(path) && b.headers.contains_key(path);
    let same = match (blob, other) {
        (Some(blob), Some(other)) => blob == other,
        _ if n != m => false,
        _ if shards && untouched => same_layout(a, b, path) && same_header(a, b, path)?,
        _ => first_difference(a, b, path, *n, watching)?.is_none(),
    };
    if same {
        return Ok((ex != ey).then_some(Details::Mode { a: *ex, b: *ey }));
    }
    if shards {
        return Ok(Some(shard(a, b, path)));
    }
    if (*n).max(*m) <= READABLE
        && let (Some(one), Some(two)) = (a.read_file(path)?, b.read_file(path)?)
    {
        if let Some(details) = readable(path, &one, &two) {
            return Ok(Some(details));
        }
        let first = one.iter().zip(&two).position(|(p, q)| p != q).unwrap_or_else(|| one.len().min(two.len()));
        return Ok(Some(Details::Bytes { first: Some(first as u64) }));
    }
    let first = match (a.path_of(path), b.path_of(path)) {
        (Some(_), Some(_)) => Some(first_difference(a, b, path, (*n).min(*m), watching)?.unwrap_or((*n).min(*m))),
        _ => None,
    };
    Ok(Some(Details::Bytes { first }))
}

fn word(file: &SideFile) -> String {
    match file {
        SideFile::File { .. } => "a file".to_owned(),
        SideFile::Link(to) => format!("a link to {}", crate::canon::quote(to)),
        SideFile::EmptyDir => "an empty folder".to_owned(),
    }
}

fn readable(path: &RelPath, one: &[u8], two: &[u8]) -> Option<Details> {
    let parse = |b: &[u8]| serde_json::from_slice::<Value>(b).ok();
    let jsonish = path.file_name().ends_with(b".json");
    if jsonish && let (Some(x), Some(y)) = (parse(one), parse(two)) {
        let mut keys = differences(&x, &y);
        if keys.is_empty() {
            return Some(Details::JsonFormat);
        }
        let more = keys.len().saturating_sub(MOST_KEYS);
        keys.truncate(MOST_KEYS);
        return Some(Details::Json { keys, more });
    }
    let text = |b: &'_ [u8]| std::str::from_utf8(b).ok().filter(|t| !t.contains('\0')).map(str::to_owned);
    let (x, y) = (text(one)?, text(two)?);
    Some(Details::Text { diff: unified(&x, &y) })
}

/// A unified diff with three lines of context, without file names. One of much text stops looking for the shortest after a
/// second.
pub fn unified(a: &str, b: &str) -> String {
    let mut config = similar::TextDiff::configure();
    config.algorithm(similar::Algorithm::Patience).timeout(std::time::Duration::from_secs(1));
    config.diff_lines(a, b).unified_diff().context_radius(3).missing_newline_hint(true).to_string()
}

fn same_layout(a: &Side, b: &Side, path: &RelPath) -> bool {
    a.headers.get(path) == b.headers.get(path) && in_order(a, path) == in_order(b, path)
}

fn in_order<'s>(side: &'s Side, path: &RelPath) -> Vec<(u64, u64, &'s str)> {
    let mut all: Vec<(u64, u64, &str)> =
        side.tensors.iter().filter(|(_, t)| t.file == *path).map(|(n, t)| (t.offset, t.len, n.as_str())).collect();
    all.sort_unstable();
    all
}

// The bytes before the data: key order and padding stand there, too.
fn same_header(a: &Side, b: &Side, path: &RelPath) -> Result<bool> {
    let start = |s: &Side| s.headers.get(path).map_or(0, |h| h.data_start);
    if start(a) != start(b) {
        return Ok(false);
    }
    let read = |side: &Side| -> Result<Vec<u8>> {
        let Some(path) = side.path_of(path) else { return Ok(Vec::new()) };
        let mut bytes = vec![0u8; usize::try_from(start(side)).unwrap_or(0)];
        let file = File::open(path).map_err(at("open", path))?;
        file.read_exact_at(&mut bytes, 0).map_err(at("read", path))?;
        Ok(bytes)
    };
    Ok(read(a)? == read(b)?)
}

fn shard(a: &Side, b: &Side, path: &RelPath) -> Details {
    let metadata = |side: &Side| -> Value {
        let pairs = side.headers.get(path).and_then(|h| h.metadata.clone()).unwrap_or_default();
        Value::Object(pairs.into_iter().map(|(k, v)| (k, Value::String(v))).collect())
    };
    let (x, y) = (in_order(a, path), in_order(b, path));
    let (names_x, names_y): (BTreeSet<&str>, BTreeSet<&str>) =
        (x.iter().map(|t| t.2).collect(), y.iter().map(|t| t.2).collect());
    let common = |all: &[(u64, u64, &str)], other: &BTreeSet<&str>| -> Vec<String> {
        all.iter().filter(|t| other.contains(t.2)).map(|t| t.2.to_owned()).collect()
    };
    let start = |s: &Side| s.headers.get(path).map_or(0, |h| h.data_start);
    Details::Shard {
        metadata: differences(&metadata(a), &metadata(b)),
        order: common(&x, &names_y) != common(&y, &names_x),
        data_start: (start(a) != start(b)).then(|| (start(a), start(b))),
        gone: names_x.difference(&names_y).count(),
        new: names_y.difference(&names_x).count(),
    }
}

// The first byte among `n` that differs. By all cores, and no further than needed, give or take a few pieces.
fn first_difference(a: &Side, b: &Side, path: &RelPath, n: u64, watching: &Watching<'_>) -> Result<Option<u64>> {
    const PIECE: u64 = 1 << 20;
    let (Some(x), Some(y)) = (a.path_of(path), b.path_of(path)) else { return Ok(Some(0)) };
    let (one, two) = (File::open(x).map_err(at("open", x))?, File::open(y).map_err(at("open", y))?);
    let piece = |i: u64| -> Result<Option<u64>> {
        if (watching.cancelled)() {
            return Err(StoreError::Cancelled);
        }
        let from = i * PIECE;
        let len = usize::try_from(PIECE.min(n - from)).unwrap_or(0);
        let (mut p, mut q) = (vec![0u8; len], vec![0u8; len]);
        one.read_exact_at(&mut p, from).map_err(at("read", x))?;
        two.read_exact_at(&mut q, from).map_err(at("read", y))?;
        if p == q {
            return Ok(None);
        }
        Ok(p.iter().zip(&q).position(|(s, t)| s != t).map(|i| from + i as u64))
    };
    let found =
        (0..n.div_ceil(PIECE)).into_par_iter().map(|i| piece(i).transpose()).find_first(Option::is_some).flatten();
    found.transpose()
}
