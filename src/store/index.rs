//! The index: what we know of files from an earlier look. Disposable: losing it costs time, never truth.
//!
//! Kept in sled, which one process at a time may open; we take a lock of our own first. Whoever does not get it works
//! from the plain files (`refs/`) and keeps what it learns in memory.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;

use crate::digest::{BlobId, Digest};
use crate::fsx::lock::{FileLock, Tried, try_lock};
use crate::fsx::{self, FileStat};

/// What identifies a blob's file since we last hashed it. Not ctime: each link of ours moves that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlobStat {
    pub(crate) size: u64,
    pub(crate) mtime_ns: i128,
    pub(crate) dev: u64,
    pub(crate) ino: u64,
}

impl BlobStat {
    pub(crate) fn of(s: &FileStat) -> Self {
        Self { size: s.size, mtime_ns: s.mtime_ns, dev: s.dev, ino: s.ino }
    }
}

#[derive(Default)]
struct Memory {
    sources: HashMap<(u64, u64), (FileStat, BlobId)>,
    blobs: HashMap<(BlobId, bool), BlobStat>,
}

struct Db {
    sources: sled::Tree,
    blobs: sled::Tree,
    db: sled::Db,
    _lock: FileLock,
}

/// Digests by stat.
pub(crate) struct Index {
    memory: Mutex<Memory>,
    db: Option<Db>,
}

impl Index {
    /// Opens the index below `dir`. `known` gives the sources' digests from the plain files; it is asked where sled is
    /// new, lost or held by another process.
    pub(crate) fn open(dir: &Path, lock: &Path, known: impl FnOnce() -> Vec<(FileStat, BlobId)>) -> Self {
        let mut index = Self { memory: Mutex::default(), db: None };
        if let Ok(Tried::Held(lock)) = try_lock(lock, "the index", false) {
            index.db = open_db(dir, lock);
        }
        let fresh = index.db.as_ref().is_none_or(|db| db.sources.is_empty());
        if fresh {
            for (stat, blob) in known() {
                index.put_source(&stat, blob);
            }
        }
        index
    }

    /// The digest of the file that has exactly this stat.
    pub(crate) fn source(&self, stat: &FileStat) -> Option<BlobId> {
        let key = (stat.dev, stat.ino);
        if let Ok(m) = self.memory.lock()
            && let Some((known, blob)) = m.sources.get(&key)
        {
            return (known == stat).then_some(*blob);
        }
        let raw = self.db.as_ref()?.sources.get(source_key(stat)).ok()??;
        let (known, blob) = decode_source(stat, &raw)?;
        (known == *stat).then_some(blob)
    }

    /// Remembers a digest.
    pub(crate) fn put_source(&self, stat: &FileStat, blob: BlobId) {
        if let Some(db) = &self.db {
            let _ = db.sources.insert(source_key(stat), encode_source(stat, blob));
        } else if let Ok(mut m) = self.memory.lock() {
            m.sources.insert((stat.dev, stat.ino), (*stat, blob));
        }
    }

    /// How a blob's file looked when it was last known to be right.
    pub(crate) fn blob(&self, blob: BlobId, executable: bool) -> Option<BlobStat> {
        if let Ok(m) = self.memory.lock()
            && let Some(s) = m.blobs.get(&(blob, executable))
        {
            return Some(*s);
        }
        let raw = self.db.as_ref()?.blobs.get(blob_key(blob, executable)).ok()??;
        let b: &[u8; 40] = raw.as_ref().try_into().ok()?;
        Some(BlobStat { size: u64_at(b, 0), mtime_ns: i128_at(b, 8), dev: u64_at(b, 24), ino: u64_at(b, 32) })
    }

    /// Remembers how a right blob's file looks.
    pub(crate) fn put_blob(&self, blob: BlobId, executable: bool, s: BlobStat) {
        if let Some(db) = &self.db {
            let mut v = Vec::with_capacity(40);
            v.extend(s.size.to_le_bytes());
            v.extend(s.mtime_ns.to_le_bytes());
            v.extend(s.dev.to_le_bytes());
            v.extend(s.ino.to_le_bytes());
            let _ = db.blobs.insert(blob_key(blob, executable), v);
        } else if let Ok(mut m) = self.memory.lock() {
            m.blobs.insert((blob, executable), s);
        }
    }

    /// Writes what is still in memory to the disk.
    pub(crate) fn flush(&self) {
        if let Some(db) = &self.db {
            let _ = db.db.flush();
        }
    }
}

fn open_db(dir: &Path, lock: FileLock) -> Option<Db> {
    let path = dir.join("sled");
    // sled opens whatever has the right name; a pipe there would keep us waiting for ever.
    if !only_files(&path) {
        fsx::remove_tree(&path).ok()?;
    }
    let try_open = || -> Option<(sled::Db, sled::Tree, sled::Tree)> {
        // A torn sled may panic while it recovers; the index is disposable, so that must not end a build.
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let opened = catch_unwind(AssertUnwindSafe(|| {
            let db = sled::Config::new().path(&path).cache_capacity(32 << 20).open()?;
            let sources = db.open_tree("sources 1")?;
            let blobs = db.open_tree("blobs 1")?;
            Ok::<_, sled::Error>((db, sources, blobs))
        }));
        std::panic::set_hook(hook);
        opened.ok()?.ok()
    };
    let opened = try_open().or_else(|| {
        fsx::remove_tree(&path).ok()?;
        try_open()
    });
    let (db, sources, blobs) = opened?;
    Some(Db { sources, blobs, db, _lock: lock })
}

fn only_files(dir: &Path) -> bool {
    let fine = |name: std::ffi::OsString| {
        let path = dir.join(name);
        std::fs::symlink_metadata(&path).is_ok_and(|m| m.is_file() || m.is_dir() && only_files(&path))
    };
    fsx::names(dir).is_ok_and(|names| names.into_iter().all(fine))
}

fn source_key(s: &FileStat) -> [u8; 16] {
    let mut k = [0; 16];
    k[..8].copy_from_slice(&s.dev.to_be_bytes());
    k[8..].copy_from_slice(&s.ino.to_be_bytes());
    k
}

fn encode_source(s: &FileStat, blob: BlobId) -> Vec<u8> {
    let mut v = Vec::with_capacity(72);
    v.extend(s.size.to_le_bytes());
    v.extend(s.mtime_ns.to_le_bytes());
    v.extend(s.ctime_ns.to_le_bytes());
    v.extend(blob.0.as_bytes());
    v
}

fn decode_source(key: &FileStat, raw: &[u8]) -> Option<(FileStat, BlobId)> {
    let b: &[u8; 72] = raw.try_into().ok()?;
    let stat =
        FileStat { dev: key.dev, ino: key.ino, size: u64_at(b, 0), mtime_ns: i128_at(b, 8), ctime_ns: i128_at(b, 24) };
    let digest: [u8; 32] = b[40..].try_into().ok()?;
    Some((stat, BlobId(Digest::from_bytes(digest))))
}

fn blob_key(blob: BlobId, executable: bool) -> [u8; 33] {
    let mut k = [0; 33];
    k[..32].copy_from_slice(blob.0.as_bytes());
    k[32] = u8::from(executable);
    k
}

fn u64_at(b: &[u8], at: usize) -> u64 {
    let mut x = [0; 8];
    x.copy_from_slice(&b[at..at + 8]);
    u64::from_le_bytes(x)
}

fn i128_at(b: &[u8], at: usize) -> i128 {
    let mut x = [0; 16];
    x.copy_from_slice(&b[at..at + 16]);
    i128::from_le_bytes(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(ino: u64) -> FileStat {
        FileStat { dev: 7, ino, size: 10, mtime_ns: -5, ctime_ns: 1 << 70 }
    }

    #[test]
    fn a_stat_that_differs_in_anything_finds_no_digest() {
        let t = tempfile::tempdir().unwrap();
        let blob = BlobId(Digest::of(b"x"));
        let open = || Index::open(t.path(), &t.path().join("lock"), Vec::new);
        let i = open();
        i.put_source(&stat(1), blob);
        i.put_blob(blob, true, BlobStat::of(&stat(9)));
        drop(i);
        let i = open();
        assert_eq!(i.source(&stat(1)), Some(blob));
        assert_eq!(i.source(&stat(2)), None);
        assert_eq!(i.source(&FileStat { mtime_ns: 0, ..stat(1) }), None);
        assert_eq!(i.blob(blob, true), Some(BlobStat::of(&stat(9))));
        assert_eq!(i.blob(blob, false), None);
    }

    #[test]
    fn a_second_opener_works_from_what_the_plain_files_say() {
        let t = tempfile::tempdir().unwrap();
        let blob = BlobId(Digest::of(b"x"));
        let first = Index::open(t.path(), &t.path().join("lock"), Vec::new);
        let second = Index::open(t.path(), &t.path().join("lock"), || vec![(stat(3), blob)]);
        assert!(first.db.is_some() && second.db.is_none());
        assert_eq!(second.source(&stat(3)), Some(blob));
    }

    #[test]
    fn a_torn_index_is_made_anew() {
        let t = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(t.path().join("sled")).unwrap();
        std::fs::write(t.path().join("sled/conf"), b"garbage").unwrap();
        std::fs::write(t.path().join("sled/db"), vec![0xff; 100_000]).unwrap();
        let blob = BlobId(Digest::of(b"x"));
        let i = Index::open(t.path(), &t.path().join("lock"), || vec![(stat(3), blob)]);
        assert_eq!(i.source(&stat(3)), Some(blob));
    }

    #[test]
    fn an_index_with_a_pipe_in_it_is_made_anew() {
        let t = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(t.path().join("sled")).unwrap();
        let pipe = t.path().join("sled/conf");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o644.into(), 0).unwrap();
        assert!(Index::open(t.path(), &t.path().join("lock"), Vec::new).db.is_some());
        assert!(pipe.is_file());
    }
}
