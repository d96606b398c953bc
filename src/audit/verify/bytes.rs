//! Files held against the digests that they should have: a few at once, each by all cores, in bounded memory.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::digest::{BlobId, Digest};
use crate::store::plain::Plain;
use crate::store::source::few_at_once;
use crate::store::{Result, StoreError};
use crate::tensors::hash::{HashError, hash_file};
use crate::tensors::header::Header;
use crate::tensors::table::TensorTable;

/// How far a look goes, and who hears of it.
pub struct Looking<'a> {
    /// Look at blobs only from outside: size, time and inode.
    pub quick: bool,
    /// Hears of bytes hashed and to hash.
    pub progress: &'a (dyn Fn(u64, u64) + Sync),
    /// Whether to stop.
    pub cancelled: &'a (dyn Fn() -> bool + Sync),
}

/// A file that should have these bytes.
#[derive(Debug, Clone)]
pub(super) struct Claim {
    /// Where it is.
    pub(super) path: PathBuf,
    /// What it should hash to.
    pub(super) blob: BlobId,
    /// Its size now, for the progress.
    pub(super) size: u64,
    /// How many bytes there should be, where that is known.
    pub(super) expected: Option<u64>,
}

/// How a file that was held against a digest came out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It has the bytes.
    Right,
    /// It is not there any more.
    Gone,
    /// It has not; what is wrong with it, and in which tensors.
    Wrong {
        /// To be read behind its path.
        what: String,
        /// The tensors whose bytes are others, where there is a table.
        tensors: Vec<String>,
    },
}

/// Hashes every file; the outcomes stand in the order of the claims. Also says how many bytes were hashed.
pub(super) fn hold(plain: &Plain, claims: &[Claim], looking: &Looking<'_>) -> Result<(Vec<Outcome>, u64)> {
    let total: u64 = claims.iter().map(|c| c.size).sum();
    let done = AtomicU64::new(0);
    let outcomes = few_at_once(claims.len(), |i| hold_one(plain, &claims[i], &done, total, looking).map(|o| (i, o)))?;
    let mut sorted = vec![Outcome::Right; claims.len()];
    for (i, outcome) in outcomes {
        sorted[i] = outcome;
    }
    Ok((sorted, done.into_inner()))
}

fn hold_one(plain: &Plain, c: &Claim, done: &AtomicU64, total: u64, looking: &Looking<'_>) -> Result<Outcome> {
    let wrong = |what: String| Ok(Outcome::Wrong { what, tensors: Vec::new() });
    if (looking.cancelled)() {
        return Err(StoreError::Cancelled);
    }
    let (file, size) = match File::open(&c.path).and_then(|f| f.metadata().map(|m| (f, m.len()))) {
        Ok(opened) => opened,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Outcome::Gone),
        Err(e) => return wrong(format!("can't be read: {e}")),
    };
    let mut last = 0;
    let mut progress = |at: u64| {
        let more = at - last;
        last = at;
        (looking.progress)(done.fetch_add(more, Ordering::Relaxed) + more, total);
    };
    let what = match hash_file(&file, size, false, &mut progress, looking.cancelled) {
        Ok(h) if h.blob == c.blob => return Ok(Outcome::Right),
        Ok(h) => match c.expected.filter(|e| *e != size) {
            Some(expected) => format!("has {size} bytes, and should have {expected}"),
            None => format!("hashes to {}, not to {}", h.blob, c.blob),
        },
        Err(HashError::Cancelled) => return Err(StoreError::Cancelled),
        Err(e) => return wrong(format!("can't be read: {e}")),
    };
    let Some(Ok(table)) = plain.table(c.blob)? else { return wrong(what) };
    let tensors = changed_tensors(&file, size, &table);
    let region = if tensors.is_empty() && size == table.file_len() { region(&file, size, &table) } else { "" };
    Ok(Outcome::Wrong { what: format!("{what}{region}"), tensors })
}

// The tensors of the table whose bytes in the file are others, or are not there.
fn changed_tensors(file: &File, size: u64, table: &TensorTable) -> Vec<String> {
    let right = |begin: u64, end: u64, digest: Digest| {
        let (mut at, end) = (table.data_start.saturating_add(begin), table.data_start.saturating_add(end));
        if end > size {
            return false;
        }
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; 1 << 20];
        while at < end {
            let want = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
            match file.read_at(&mut buffer[..want], at) {
                Ok(0) | Err(_) => return false,
                Ok(n) => {
                    hasher.update(&buffer[..n]);
                    at += n as u64;
                }
            }
        }
        Digest::from(hasher.finalize()) == digest
    };
    table.tensors.iter().filter(|t| !right(t.begin, t.end, t.digest)).map(|t| t.name.clone()).collect()
}

// Every tensor is right, so the difference is in front of them.
fn region(file: &File, size: u64, table: &TensorTable) -> &'static str {
    let same = |h: &Header| {
        let tensor = |(a, b): (&crate::tensors::header::TensorInfo, &crate::tensors::table::TensorEntry)| {
            a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && (a.begin, a.end) == (b.begin, b.end)
        };
        h.data_start == table.data_start
            && h.metadata == table.metadata
            && h.tensors.len() == table.tensors.len()
            && h.tensors.iter().zip(&table.tensors).all(tensor)
    };
    match Header::read(file, size) {
        Ok(h) if same(&h) => "; every tensor is right, the difference is in the header's padding",
        _ => "; every tensor is right, the difference is in the header",
    }
}

/// Whether a file has these bytes.
pub fn is_right(path: &Path, blob: BlobId) -> bool {
    let Ok(file) = File::open(path) else { return false };
    let Ok(meta) = file.metadata() else { return false };
    meta.is_file() && hash_file(&file, meta.len(), false, &mut |_| {}, &|| false).is_ok_and(|h| h.blob == blob)
}
