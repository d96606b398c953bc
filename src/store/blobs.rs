//! Blobs: presence, trust, import.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use crate::digest::BlobId;
use crate::fsx::{self, FileStat, at};
use crate::model::path::RelPath;
use crate::model::tree::Tree;
use crate::store::commit::Commit;
use crate::store::error::{Result, StoreError};
use crate::store::index::BlobStat;
use crate::store::{Store, objects};
use crate::tensors::hash::hash_file;

/// Where a blob's bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Presence {
    /// In the store, at this path.
    Stored(PathBuf),
    /// In a source that still looks as it did when it was hashed.
    Referenced(PathBuf),
    /// Nowhere that we know.
    Absent,
}

impl Presence {
    /// The path, unless absent.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Presence::Stored(p) | Presence::Referenced(p) => Some(p),
            Presence::Absent => None,
        }
    }
}

impl Store {
    pub(crate) fn blob_path(&self, blob: BlobId, executable: bool) -> PathBuf {
        let p = objects::sharded(&self.dir.join("blobs"), &blob.0);
        if executable { p.with_extension("x") } else { p }
    }

    /// Looks for a blob's bytes, at the files themselves. In the store, size, mtime and inode must be those of the
    /// last look, else it is hashed; one with a wrong digest counts as absent, is left where it is, and told in a note.
    pub fn presence(&self, blob: BlobId, executable: bool) -> Result<Presence> {
        for exec in [executable, !executable] {
            let path = self.blob_path(blob, exec);
            if self.stored_is_right(blob, exec, &path)? {
                return Ok(Presence::Stored(path));
            }
        }
        Ok(match self.refs.find(blob)? {
            Some(path) => Presence::Referenced(path),
            None => Presence::Absent,
        })
    }

    /// Whether the store itself holds the blob in this mode, and rightly.
    pub(crate) fn stored_is_right(&self, blob: BlobId, executable: bool, path: &Path) -> Result<bool> {
        let meta = match fs::symlink_metadata(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            other => other.map_err(at("look at", path))?,
        };
        let stat = BlobStat::of(&FileStat::of(&meta));
        let known = self.index.blob(blob, executable);
        if meta.is_file() && known == Some(stat) {
            return Ok(true);
        }
        if self.wrong.lock().is_ok_and(|w| w.contains(&(blob, executable, stat))) {
            return Ok(false);
        }
        let wrong = if meta.is_file() {
            let file = match fs::File::open(path) {
                // Collected since: whoever only asks holds nothing.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(false),
                opened => opened.map_err(at("open", path))?,
            };
            match hash_file(&file, meta.size(), false, &mut |_| {}, &|| false) {
                Ok(h) if h.blob == blob => None,
                Ok(h) => Some(format!("hashes to {}", h.blob)),
                Err(e) => Some(e.to_string()),
            }
        } else {
            Some("is no regular file".to_owned())
        };
        match wrong {
            None => {
                // Touched, but right: give it back the marks of a blob, where we may.
                let mode = if executable { 0o555 } else { 0o444 };
                if meta.mode() & 0o7777 != mode && !self.read_only() {
                    let _ = fsx::set_mode(path, mode);
                }
                if (meta.mtime() != 1 || meta.mtime_nsec() != 0) && !self.read_only() {
                    let _ = fsx::set_mtime_one(path);
                }
                // What was seen may be in memory only, of a process that has not flushed it yet.
                if self.read_only() || fsx::fsync(path).is_ok() {
                    self.remember_blob(blob, executable, path)?;
                }
                Ok(true)
            }
            Some(what) => {
                // Left where it is: whoever has right bytes to put there sets it aside.
                if let Ok(mut wrong) = self.wrong.lock() {
                    wrong.insert((blob, executable, stat));
                }
                if let Ok(mut notes) = self.notes.lock() {
                    let path = path.display();
                    notes
                        .push(format!("{path} (the blob {blob}) {what}: it counts as missing; see `graftwerk repair`"));
                }
                Ok(false)
            }
        }
    }

    pub(crate) fn remember_blob(&self, blob: BlobId, executable: bool, path: &Path) -> Result<()> {
        let stat = FileStat::at(path).map_err(at("look at", path))?;
        self.index.put_blob(blob, executable, BlobStat::of(&stat));
        Ok(())
    }

    /// The paths of a tree whose bytes are nowhere. Looks at every file, by all cores.
    pub fn absent(&self, tree: &Tree) -> Result<Vec<RelPath>> {
        self.lacking(tree, false)
    }

    /// As [`Store::absent`]; of a closed tree also those that are only referenced.
    pub fn lacking(&self, tree: &Tree, closed: bool) -> Result<Vec<RelPath>> {
        let files: Vec<_> = tree.files().collect();
        let look = |(path, blob, _, exec): &(&RelPath, BlobId, u64, bool)| -> Result<Option<RelPath>> {
            Ok(match self.presence_once(*blob, *exec)? {
                Presence::Absent => Some((*path).clone()),
                Presence::Referenced(_) if closed => Some((*path).clone()),
                _ => None,
            })
        };
        let found: Result<Vec<_>> =
            if files.len() > 64 { files.par_iter().map(look).collect() } else { files.iter().map(look).collect() };
        Ok(found?.into_iter().flatten().collect())
    }

    /// The same, looking again at blobs that were found right in this session: after a step that may have got at them.
    pub fn absent_now(&self, tree: &Tree) -> Result<Vec<RelPath>> {
        if let Ok(mut right) = self.right.lock() {
            for (_, blob, _, executable) in tree.files() {
                right.remove(&(blob, executable));
            }
        }
        self.absent(tree)
    }

    // Within one session a stored blob is looked at once: a graph of many nodes shares most of its files.
    fn presence_once(&self, blob: BlobId, exec: bool) -> Result<Presence> {
        if self.right.lock().is_ok_and(|r| r.contains(&(blob, exec))) {
            return Ok(Presence::Stored(self.blob_path(blob, exec)));
        }
        let p = self.presence(blob, exec)?;
        if matches!(p, Presence::Stored(_))
            && let Ok(mut r) = self.right.lock()
        {
            r.insert((blob, exec));
        }
        Ok(p)
    }

    /// Takes a finished file of ours in as a blob: read-only, mtime 1. The file is gone once the group is flushed.
    pub(crate) fn place_blob(&self, blob: BlobId, executable: bool, from: &Path, commit: &mut Commit) -> Result<()> {
        fsx::set_mode(from, if executable { 0o555 } else { 0o444 })?;
        fsx::set_mtime_one(from)?;
        commit.place_blob(from, self.blob_path(blob, executable), blob, executable);
        Ok(())
    }

    /// Copies what is only referenced into the store, by clone where the file system can; the copy is hashed.
    pub(crate) fn import(&self, blob: BlobId, executable: bool, commit: &mut Commit) -> Result<()> {
        let source = match self.presence(blob, executable)? {
            Presence::Stored(p) if p == self.blob_path(blob, executable) => return Ok(()),
            Presence::Stored(p) | Presence::Referenced(p) => p,
            Presence::Absent => return Err(self.gone(blob)),
        };
        let temp = commit.temp_path();
        fsx::copy_file(&source, &temp)?;
        let file = fs::File::open(&temp).map_err(at("open", &temp))?;
        let size = file.metadata().map_err(at("look at", &temp))?.len();
        let hashed = hash_file(&file, size, false, &mut |_| {}, &|| false)
            .map_err(|e| at("read", &temp)(std::io::Error::other(e.to_string())))?;
        if hashed.blob != blob {
            fsx::remove_file(&temp)?;
            return Err(StoreError::SourceChanged { path: source });
        }
        self.place_blob(blob, executable, &temp, commit)
    }

    pub(crate) fn gone(&self, blob: BlobId) -> StoreError {
        let places = self.refs.places(blob).unwrap_or_default();
        let damaged = [false, true].map(|x| self.blob_path(blob, x)).into_iter().find(|p| p.symlink_metadata().is_ok());
        let looked = if let Some(path) = damaged {
            format!("{} is damaged", path.display())
        } else if places.is_empty() {
            "no source is known to have had them".to_owned()
        } else {
            let list: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
            format!("changed or missing at {}", list.join(", "))
        };
        StoreError::Gone { blob, looked }
    }
}
