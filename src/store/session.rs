//! A process's own folder in `tmp/`, and the sweeping of what dead ones left.

use std::io;
use std::path::{Path, PathBuf};

use crate::fsx::lock::{FileLock, Tried, try_lock, try_lock_shared};
use crate::fsx::{self, FsError};
use crate::store::error::{Result, StoreError};

/// A folder that belongs to this process and goes with it. Where a full disk has no room for one, the store is as one that
/// can only be read, and a collector can still make room.
pub(super) struct Session {
    dir: PathBuf,
    _lock: Option<FileLock>,
    // Why the store can't be written to, where it can't.
    closed: Option<FsError>,
    // Where it can't: for what is half-made on the way to the project's own files.
    _elsewhere: Option<tempfile::TempDir>,
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.closed.is_none() {
            let _ = fsx::remove_tree(&self.dir);
        }
    }
}

const FOLDERS: [&str; 11] =
    ["blobs", "trees", "tensors", "recipes", "runs", "refs", "artifacts", "roots", "logs", "tmp", "locks"];

impl Session {
    /// In the store `dir`, whose folders are made where they are missing. A store that can't be written to gives one
    /// that writes nothing there.
    pub(super) fn open(dir: &Path) -> Result<Self> {
        match Self::open_writable(dir) {
            Err(StoreError::Fs(e)) if can_not_write(&e) => Ok(Self::closed(e)),
            opened => opened,
        }
    }

    fn open_writable(dir: &Path) -> Result<Self> {
        for sub in FOLDERS {
            let d = dir.join(sub);
            if !d.is_dir() {
                fsx::create_dir_all(&d)?;
            }
        }
        let tmp = dir.join("tmp");
        sweep_beginnings(dir);
        sweep(&tmp);
        sweep_locks(&dir.join("locks"));
        // A full disk may have no room for them when a collector needs them.
        for lock in ["gc", "gc-run"] {
            let path = dir.join("locks").join(lock);
            if !path.exists() {
                drop(try_lock_shared(&path)?);
            }
        }
        for n in 0u64.. {
            let name = format!("{}-{}", std::process::id(), fsx::stat::now_ns().unsigned_abs() + u128::from(n));
            let lock_path = tmp.join(format!("{name}.lock"));
            if let Tried::Held(lock) = try_lock(&lock_path, "temporary files", true)? {
                let dir = tmp.join(name);
                fsx::create_dir(&dir)?;
                return Ok(Self { dir, _lock: Some(lock), closed: None, _elsewhere: None });
            }
        }
        Err(StoreError::Cancelled)
    }

    fn closed(why: FsError) -> Self {
        let elsewhere = tempfile::tempdir().ok();
        let dir = elsewhere.as_ref().map_or_else(std::env::temp_dir, |t| t.path().to_owned());
        Self { dir, _lock: None, closed: Some(why), _elsewhere: elsewhere }
    }

    /// Its folder.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Why the store can't be written to; `None` where it can.
    pub(super) fn closed_because(&self) -> Option<&FsError> {
        self.closed.as_ref()
    }

    /// Whether it can't be written to for want of room only.
    pub(super) fn is_full(&self) -> bool {
        self.closed.as_ref().is_some_and(fsx::is_full)
    }
}

fn can_not_write(e: &FsError) -> bool {
    fsx::is_full(e) || matches!(e.source.kind(), io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied)
}

// Removes what whoever began this store, and died, left of its VERSION. There is one now, so nobody needs another.
fn sweep_beginnings(dir: &Path) {
    for name in fsx::names(dir).unwrap_or_default() {
        if name.to_string_lossy().starts_with(".graftwerk-") {
            let _ = fsx::remove_file(&dir.join(name));
        }
    }
}

// Removes the lock files of whoever died after its work was done: nobody would take such a lock again, and thousands of
// them would be left in time. One that is held is left alone.
fn sweep_locks(locks: &Path) {
    for name in fsx::names(locks).unwrap_or_default() {
        let text = name.to_string_lossy();
        if text.starts_with("recipe-") || text.starts_with("project-") {
            let _ = try_lock(&locks.join(&name), "sweeping", true);
        }
    }
}

/// Whether the process of this session is there still.
pub(super) fn lives(tmp: &Path, session: &str) -> bool {
    let lock = tmp.join(format!("{session}.lock"));
    lock.exists() && !matches!(try_lock(&lock, "looking", true), Ok(Tried::Held(_)))
}

// Removes what processes left that are gone: a folder whose lock can be taken belongs to nobody. Best effort: what can't
// be removed now is tried again next time.
pub(super) fn sweep(tmp: &Path) {
    for name in fsx::names(tmp).unwrap_or_default() {
        let text = name.to_string_lossy();
        let path = tmp.join(&name);
        if let Some(stem) = text.strip_suffix(".lock") {
            if let Ok(Tried::Held(_lock)) = try_lock(&path, "sweeping", true) {
                let _ = fsx::remove_tree(&tmp.join(stem));
            }
        } else if !tmp.join(format!("{text}.lock")).exists() {
            let _ = fsx::remove_tree(&path);
        }
    }
}
