//! The index: what we know of files from an earlier look. Disposable: losing it costs time, never truth.
//!
//! Kept in sled, which one process at a time may open; we take a lock of our own first. Whoever does not get it works
//! from the plain files (`refs/`) and keeps what it learns in memory.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::digest::{BlobId, Digest};
use crate::fsx::lock::{FileLock, Tried, try_lock};
use crate::fsx::{self, FileStat};
use crate::store::plain::{BlobStats, IndexState};

/// What identifies a blob's file since we last hashed it. Not ctime: each link of ours moves that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
    held: Arc<Held>,
    // Whoever fills an index that was new, lost or torn, until somebody waits for it.
    filling: Mutex<Option<JoinHandle<()>>>,
    stop: Arc<AtomicBool>,
}

struct Held {
    memory: Mutex<Memory>,
    db: Option<Db>,
}

impl Index {
    /// Opens the index below `dir`. `known` gives the sources' digests from the plain files; it is asked where sled is
    /// new, lost or held by another process, and in the background: only a look-up that finds nothing waits for it.
    pub(crate) fn open(
        dir: &Path,
        lock: &Path,
        known: impl FnOnce(&AtomicBool) -> Vec<(FileStat, BlobId)> + Send + 'static,
    ) -> Self {
        let mut db = None;
        if let Ok(Tried::Held(lock)) = try_lock(lock, "the index", false) {
            db = open_db(dir, lock);
        }
        let fresh = db.as_ref().is_none_or(|db| db.sources.is_empty());
        let held = Arc::new(Held { memory: Mutex::default(), db });
        let stop = Arc::new(AtomicBool::new(false));
        let filling = fresh.then(|| {
            let (held, stop) = (Arc::clone(&held), Arc::clone(&stop));
            std::thread::spawn(move || {
                for (stat, blob) in known(&stop) {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    held.fill_source(&stat, blob);
                }
            })
        });
        Self { held, filling: Mutex::new(filling), stop }
    }

    /// The digest of the file that has exactly this stat.
    pub(crate) fn source(&self, stat: &FileStat) -> Option<BlobId> {
        if let Some(found) = self.held.source(stat) {
            return Some(found);
        }
        // Held while it is waited for, so that everybody waits.
        let mut filling = self.filling.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = filling.take() {
            let _ = thread.join();
        }
        drop(filling);
        self.held.source(stat)
    }

    /// Remembers a digest.
    pub(crate) fn put_source(&self, stat: &FileStat, blob: BlobId) {
        self.held.put_source(stat, blob);
    }

    /// How a blob's file looked when it was last known to be right.
    pub(crate) fn blob(&self, blob: BlobId, executable: bool) -> Option<BlobStat> {
        if let Ok(m) = self.held.memory.lock()
            && let Some(s) = m.blobs.get(&(blob, executable))
        {
            return Some(*s);
        }
        let raw = self.held.db.as_ref()?.blobs.get(blob_key(blob, executable)).ok()??;
        decode_blob(&raw)
    }

    /// Remembers how a right blob's file looks.
    pub(crate) fn put_blob(&self, blob: BlobId, executable: bool, s: BlobStat) {
        if let Some(db) = &self.held.db {
            let mut v = Vec::with_capacity(40);
            v.extend(s.size.to_le_bytes());
            v.extend(s.mtime_ns.to_le_bytes());
            v.extend(s.dev.to_le_bytes());
            v.extend(s.ino.to_le_bytes());
            let _ = db.blobs.insert(blob_key(blob, executable), v);
        } else if let Ok(mut m) = self.held.memory.lock() {
            m.blobs.insert((blob, executable), s);
        }
    }

    /// Writes what is still in memory to the disk.
    pub(crate) fn flush(&self) {
        if let Some(db) = &self.held.db {
            let _ = db.db.flush();
        }
    }
}

impl Drop for Index {
    // The lock and sled go with the last of us.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let filling = self.filling.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = filling.take() {
            let _ = thread.join();
        }
    }
}

impl Held {
    fn source(&self, stat: &FileStat) -> Option<BlobId> {
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

    fn put_source(&self, stat: &FileStat, blob: BlobId) {
        if let Some(db) = &self.db {
            let _ = db.sources.insert(source_key(stat), encode_source(stat, blob));
        } else if let Ok(mut m) = self.memory.lock() {
            m.sources.insert((stat.dev, stat.ino), (*stat, blob));
        }
    }

    // What is known already is newer than what the plain files say.
    fn fill_source(&self, stat: &FileStat, blob: BlobId) {
        if let Some(db) = &self.db {
            let none: Option<&[u8]> = None;
            let _ = db.sources.compare_and_swap(source_key(stat), none, Some(encode_source(stat, blob)));
        } else if let Ok(mut m) = self.memory.lock() {
            m.sources.entry((stat.dev, stat.ino)).or_insert((*stat, blob));
        }
    }
}

/// What an index says, read from a copy below `temp`: opening sled writes to it. Every entry is read.
pub(crate) fn look(dir: &Path, lock: &Path, temp: &Path) -> IndexState {
    let sled = dir.join("sled");
    match std::fs::symlink_metadata(&sled) {
        Err(_) => return IndexState::Unknown,
        Ok(m) if !m.is_dir() => return IndexState::Damaged("is no folder".to_owned()),
        Ok(_) if !only_files(&sled) => return IndexState::Damaged("holds something that is no file".to_owned()),
        Ok(_) => {}
    }
    let _lock = match try_lock(lock, "a look at the index", false) {
        Ok(Tried::Held(lock)) => Some(lock),
        Ok(Tried::Busy(_)) => return IndexState::Unknown,
        // Where we may not write, nobody else can be writing as this user.
        Err(_) => None,
    };
    let copy = temp.join("sled");
    if copy_files(&sled, &copy).is_err() {
        return IndexState::Unknown;
    }
    let read = || -> sled::Result<HashMap<(BlobId, bool), BlobStat>> {
        let db = sled::Config::new().path(&copy).cache_capacity(32 << 20).open()?;
        for entry in &db.open_tree(SOURCES)? {
            let (key, value) = entry?;
            if key.len() != 16 || value.len() != 72 {
                return Err(sled::Error::Corruption { at: None, bt: () });
            }
        }
        let mut blobs = HashMap::new();
        for entry in &db.open_tree(BLOBS)? {
            let (key, value) = entry?;
            let known = key.split_last().and_then(|(x, digest)| {
                let digest: [u8; 32] = digest.try_into().ok()?;
                Some(((BlobId(Digest::from_bytes(digest)), *x == 1), decode_blob(&value)?))
            });
            let Some((key, stat)) = known else { return Err(sled::Error::Corruption { at: None, bt: () }) };
            blobs.insert(key, stat);
        }
        Ok(blobs)
    };
    match quietly(read) {
        Some(Ok(blobs)) => IndexState::Blobs(BlobStats::new(blobs)),
        Some(Err(e)) => IndexState::Damaged(format!("does not read: {e}")),
        None => IndexState::Damaged("does not read".to_owned()),
    }
}

fn copy_files(from: &Path, to: &Path) -> crate::fsx::FsResult<()> {
    fsx::create_dir_all(to)?;
    for name in fsx::names(from)? {
        let path = from.join(&name);
        if path.is_dir() {
            copy_files(&path, &to.join(&name))?;
        } else if let Some(bytes) = fsx::read_optional(&path)? {
            fsx::write_new(&to.join(&name), &bytes, 0o600)?;
        }
    }
    Ok(())
}

// A torn sled may panic while it recovers; the index is disposable, so that must not end a build.
fn quietly<T>(work: impl FnOnce() -> T) -> Option<T> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let done = catch_unwind(AssertUnwindSafe(work));
    std::panic::set_hook(hook);
    done.ok()
}

const SOURCES: &str = "sources 1";
const BLOBS: &str = "blobs 1";

fn open_db(dir: &Path, lock: FileLock) -> Option<Db> {
    let path = dir.join("sled");
    // sled opens whatever has the right name; a pipe there would keep us waiting for ever.
    if !only_files(&path) {
        fsx::remove_tree(&path).ok()?;
    }
    let try_open = || -> Option<(sled::Db, sled::Tree, sled::Tree)> {
        let opened = quietly(|| {
            let db = sled::Config::new().path(&path).cache_capacity(32 << 20).open()?;
            let sources = db.open_tree(SOURCES)?;
            let blobs = db.open_tree(BLOBS)?;
            Ok::<_, sled::Error>((db, sources, blobs))
        });
        opened?.ok()
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

fn decode_blob(raw: &[u8]) -> Option<BlobStat> {
    let b: &[u8; 40] = raw.try_into().ok()?;
    Some(BlobStat { size: u64_at(b, 0), mtime_ns: i128_at(b, 8), dev: u64_at(b, 24), ino: u64_at(b, 32) })
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
        let open = || Index::open(t.path(), &t.path().join("lock"), |_| Vec::new());
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
        let first = Index::open(t.path(), &t.path().join("lock"), |_| Vec::new());
        let second = Index::open(t.path(), &t.path().join("lock"), move |_| vec![(stat(3), blob)]);
        assert!(first.held.db.is_some() && second.held.db.is_none());
        assert_eq!(second.source(&stat(3)), Some(blob));
    }

    #[test]
    fn only_a_look_up_that_finds_nothing_waits_for_an_index_that_is_being_made_anew() {
        let t = tempfile::tempdir().unwrap();
        let (blob, other) = (BlobId(Digest::of(b"x")), BlobId(Digest::of(b"y")));
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let i = Index::open(t.path(), &t.path().join("lock"), move |_| {
            let _ = wait.recv();
            vec![(stat(3), blob), (FileStat { size: 9, ..stat(4) }, blob)]
        });
        // The files are not read yet, and nobody waits for them.
        i.put_source(&stat(4), other);
        i.put_blob(blob, false, BlobStat::of(&stat(9)));
        assert_eq!(i.source(&stat(4)), Some(other));
        assert_eq!(i.blob(blob, false), Some(BlobStat::of(&stat(9))));
        assert_eq!(i.blob(blob, true), None);
        go.send(()).unwrap();
        assert_eq!(i.source(&stat(3)), Some(blob));
        assert_eq!(i.source(&stat(4)), Some(other), "what was learnt meanwhile is newer");
    }

    #[test]
    fn a_torn_index_is_made_anew() {
        let t = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(t.path().join("sled")).unwrap();
        std::fs::write(t.path().join("sled/conf"), b"garbage").unwrap();
        std::fs::write(t.path().join("sled/db"), vec![0xff; 100_000]).unwrap();
        let blob = BlobId(Digest::of(b"x"));
        let i = Index::open(t.path(), &t.path().join("lock"), move |_| vec![(stat(3), blob)]);
        assert_eq!(i.source(&stat(3)), Some(blob));
    }

    #[test]
    fn an_index_with_a_pipe_in_it_is_made_anew() {
        let t = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(t.path().join("sled")).unwrap();
        let pipe = t.path().join("sled/conf");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o644.into(), 0).unwrap();
        assert!(Index::open(t.path(), &t.path().join("lock"), |_| Vec::new()).held.db.is_some());
        assert!(pipe.is_file());
    }
}
