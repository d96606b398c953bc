//! Durability by groups: what many objects hold is flushed together, and only then do they get their names. So nothing
//! has a name whose bytes a power loss could take, and the run that names them is recorded last of all.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::digest::BlobId;
use crate::fsx::{self, Placed};
use crate::store::error::Result;
use crate::store::{Store, aside};

/// Objects that are finished and wait for their names.
#[derive(Debug)]
pub(crate) struct Commit {
    tmp: PathBuf,
    waiting: Vec<Waiting>,
    relied_on: Vec<PathBuf>,
}

#[derive(Debug)]
struct Waiting {
    from: PathBuf,
    to: PathBuf,
    what: What,
}

#[derive(Debug, Clone)]
enum What {
    Blob(BlobId, bool),
    // In quarantine, what is found in its place and is another gets this name.
    Text(String),
}

// A lone fsync takes about 1 ms; syncfs waits for everybody's data on that file system.
const SYNCFS_FROM: usize = 24;

static NEXT: AtomicU64 = AtomicU64::new(0);

impl Commit {
    /// A group whose half-made files lie in `tmp`, a folder of this process on the store's file system.
    pub(crate) fn new(tmp: PathBuf) -> Self {
        Self { tmp, waiting: Vec::new(), relied_on: Vec::new() }
    }

    /// A fresh name in `tmp`.
    pub(crate) fn temp_path(&self) -> PathBuf {
        self.tmp.join(format!("o{}", NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// Takes in a text object. `name` is what is called so that it can be set aside.
    pub(crate) fn place_text(&mut self, path: &Path, name: String, bytes: &[u8]) -> Result<()> {
        let from = self.temp_path();
        fsx::write_new(&from, bytes, 0o444)?;
        self.waiting.push(Waiting { from, to: path.to_owned(), what: What::Text(name) });
        Ok(())
    }

    /// Takes in a finished blob.
    pub(crate) fn place_blob(&mut self, from: &Path, to: PathBuf, blob: BlobId, executable: bool) {
        self.waiting.push(Waiting { from: from.to_owned(), to, what: What::Blob(blob, executable) });
    }

    /// Makes this group answer for an object that was there already: whoever placed it may not have flushed it yet, and
    /// may never come to it.
    pub(crate) fn rely_on(&mut self, path: &Path) {
        self.relied_on.push(path.to_owned());
    }
}

impl Store {
    /// Makes a group durable and gives every object its name, never replacing. One that is there already is compared
    /// and kept; where it is not what its name says it is set aside, and ours takes its place.
    pub(crate) fn flush(&self, commit: &mut Commit) -> Result<()> {
        if self.read_only() {
            // Nothing of ours needs what is there to last longer than we do.
            commit.relied_on.clear();
        }
        if commit.waiting.is_empty() && commit.relied_on.is_empty() {
            return Ok(());
        }
        self.must_write()?;
        commit.relied_on.sort();
        commit.relied_on.dedup();
        let bytes: Vec<&Path> = commit.waiting.iter().map(|w| &w.from).chain(&commit.relied_on).map(|p| &**p).collect();
        flush_all(&bytes, &commit.tmp)?;
        // What is said of blobs comes before them: who finds a blob there after a crash need not ask for its table.
        commit.waiting.sort_by_key(|w| matches!(w.what, What::Blob(..)));
        for w in &commit.waiting {
            self.name(w)?;
        }
        // With the folders that lead there: another process may have made one of them and died.
        let named = commit.waiting.iter().map(|w| &w.to).chain(&commit.relied_on);
        let folders: BTreeSet<&Path> =
            named.flat_map(|p| p.ancestors().skip(1).take_while(|d| d.starts_with(&self.dir))).collect();
        // The deepest first.
        let folders: Vec<&Path> = folders.into_iter().rev().collect();
        flush_all(&folders, &commit.tmp)?;
        for w in &commit.waiting {
            if let What::Blob(blob, executable) = w.what {
                self.remember_blob(blob, executable, &w.to)?;
            }
        }
        commit.waiting.clear();
        commit.relied_on.clear();
        Ok(())
    }

    /// Makes the listings of all sources durable that were [scanned](Self::scan): before anything names them.
    pub fn flush_scanned(&self) -> Result<()> {
        self.flush(&mut self.scanned.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn name(&self, w: &Waiting) -> Result<()> {
        loop {
            if let Some(dir) = w.to.parent()
                && !dir.is_dir()
            {
                fsx::create_dir_all(dir)?;
            }
            if fsx::rename_noreplace(&w.from, &w.to)? == Placed::Placed {
                return Ok(());
            }
            let right = match &w.what {
                What::Blob(blob, executable) => self.blob_is_right(*blob, *executable, w)?,
                What::Text(name) => self.text_is_right(w, name)?,
            };
            if right {
                // Somebody else's, who may not have flushed it.
                fsx::fsync(&w.to)?;
                return Ok(fsx::remove_file(&w.from)?);
            }
        }
    }

    fn blob_is_right(&self, blob: BlobId, executable: bool, w: &Waiting) -> Result<bool> {
        let looked_at = aside::seen(&w.to);
        if self.stored_is_right(blob, executable, &w.to)? {
            return Ok(true);
        }
        let name = if executable { format!("{}.x", blob.hex()) } else { blob.hex() };
        let what = format!("(the blob {blob}) does not hash to its name");
        aside::set_aside_telling(&self.dir, &w.to, looked_at, (&name, &what), &self.notes)?;
        Ok(false)
    }

    fn text_is_right(&self, w: &Waiting, name: &str) -> Result<bool> {
        let ours = fsx::read_optional(&w.from)?;
        aside::is_or_set_aside(&self.dir, &w.to, ours.as_deref().unwrap_or_default(), name, &self.notes)
    }
}

/// Flushes files or folders: each, or all of the file system where they are many.
pub(crate) fn flush_all(paths: &[&Path], tmp: &Path) -> Result<()> {
    if paths.len() >= SYNCFS_FROM {
        return Ok(fsx::syncfs(tmp)?);
    }
    for p in paths {
        fsx::fsync(p)?;
    }
    Ok(())
}
