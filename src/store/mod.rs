//! The store: content-addressed files that are the truth, and views, roots and an index made from them.
//!
//! ```text
//! store/
//!   VERSION                one line
//!   blobs/ab/cdef…         read-only; content = name; executable ones end in .x (one inode has one mode)
//!   trees/ab/cdef…         canonical listing
//!   tensors/ab/cdef…       tensor table of a blob
//!   recipes/ab/cdef…       recipe text
//!   runs/<recipe>/<seq>    append-only records, failures included
//!   refs/ab/cdef…          where a source that is referenced in place has these bytes, with its stat
//!   artifacts/<tree>/      a tree as a directory that programs can open: a view, made again from the rest
//!   roots/<project>        what must be kept, and who says so
//!   quarantine/            what was damaged, set aside, never deleted
//!   failed/                scratch folders kept on request
//!   logs/, tmp/, locks/
//!   index/                 sled: digests by stat
//! ```
//!
//! Presence means complete: everything is written under `tmp/`, hashed, made read-only and renamed in with
//! no-replace. Nothing in the store is ever changed, save `roots/`, `refs/`, `locks/`, `index/` and views.

mod aside;
mod blobs;
mod commit;
pub mod error;
mod gclog;
pub mod holds;
mod index;
pub(crate) mod intake;
pub mod links;
mod locate;
mod objects;
pub mod plain;
mod publish;
mod refs;
mod restore;
pub mod roots;
mod runs;
pub(crate) mod sealed;
mod session;
pub mod source;
pub mod survey;
pub mod sweep;
pub mod unended;
mod version;
mod views;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

pub use blobs::Presence;
pub use error::{Result, StoreError};
pub use publish::{Published, collect};
pub use source::{ScanOptions, Scanned, SourceForm};
pub use version::VERSION;

use crate::digest::{BlobId, Digest, RecipeId, TreeId};
use crate::fsx::lock::FileLock;
use crate::fsx::{self, FsError, Placed};
use crate::model::recipe::Recipe;
use crate::model::run::{Isolation, RunRecord};
use crate::model::tree::Tree;
use commit::Commit;
use index::BlobStat;
use plain::Plain;

/// An open store. Cheap to share; safe to use from many threads and beside other processes.
pub struct Store {
    dir: PathBuf,
    session: session::Session,
    holds: holds::Holds,
    objects: objects::Objects,
    refs: Arc<refs::Refs>,
    runs: runs::Runs,
    index: index::Index,
    // Blobs that this process has found to be right: looked at once a session.
    right: Mutex<HashSet<(BlobId, bool)>>,
    // Files that this process has found to be wrong, as they looked then: hashed once a session.
    wrong: Mutex<HashSet<(BlobId, bool, BlobStat)>>,
    notes: objects::Notes,
    // Where a build says what it made, until its roots do.
    building: Mutex<unended::Building>,
    // What collectors took, by their logs.
    collected: std::sync::OnceLock<HashMap<TreeId, String>>,
    // Listings of sources that were placed and are not flushed yet.
    scanned: Mutex<Commit>,
}

impl Store {
    /// Opens the store in `dir`, or makes one where there is nothing. Errors: NotAStore for a folder with something
    /// else in it or another version.
    pub fn open(dir: &Path) -> Result<Arc<Self>> {
        let new = !dir.is_dir();
        fsx::create_dir_all(dir)?;
        let dir = dir.canonicalize().map_err(fsx::at("find", dir))?;
        if let (true, Some(above)) = (new, dir.parent()) {
            fsx::fsync(above)?;
        }
        version::check(&dir)?;
        let session = session::Session::open(&dir)?;
        let read_only = session.closed_because().is_some();
        let project = dir.parent().map_or_else(|| dir.clone(), Path::to_owned);
        let refs = Arc::new(refs::Refs::new(dir.join("refs"), project, session.dir().to_owned(), read_only));
        let known = Arc::clone(&refs);
        let index = index::Index::open(&dir.join("index"), &dir.join("locks/index"), move |stop| known.known(stop));
        let notes = objects::Notes::default();
        if let (Some(why), Ok(mut notes)) = (session.closed_because(), notes.lock()) {
            let why = &why.source;
            notes.push(format!("{} can't be written to ({why}): nothing that is found out is kept", dir.display()));
        }
        let scanned = Mutex::new(Commit::new(session.dir().to_owned()));
        Ok(Arc::new(Self {
            scanned,
            objects: objects::Objects::new(dir.clone(), read_only),
            runs: runs::Runs::new(dir.join("runs")),
            holds: holds::Holds::new(dir.join(holds::LOCK), session.dir().join(holds::FILE), read_only),
            session,
            refs,
            index,
            right: Mutex::default(),
            wrong: Mutex::default(),
            building: Mutex::default(),
            notes,
            collected: std::sync::OnceLock::new(),
            dir,
        }))
    }

    /// Whether there is no store in `dir` yet: [`open`](Self::open) would make one.
    pub fn is_nothing(dir: &Path) -> bool {
        version::is_nothing(dir)
    }

    /// The store's folder, absolute.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether it can only be read. Commands that only ask work all the same, and keep what they find out to themselves.
    pub fn read_only(&self) -> bool {
        self.session.closed_because().is_some()
    }

    /// For a collector, which a full disk must not keep from making room. Errors: as [`Store::must_write`] otherwise.
    pub fn must_free(&self) -> Result<()> {
        if self.session.is_full() { Ok(()) } else { self.must_write() }
    }

    /// Errors: ReadOnly where nothing can be written, Fs where the disk is full.
    pub fn must_write(&self) -> Result<()> {
        match self.session.closed_because() {
            None => Ok(()),
            Some(why) if self.session.is_full() => Err(StoreError::Fs(FsError {
                action: why.action,
                path: why.path.clone(),
                source: match why.source.raw_os_error() {
                    Some(number) => std::io::Error::from_raw_os_error(number),
                    None => std::io::Error::from(why.source.kind()),
                },
            })),
            Some(why) => Err(StoreError::ReadOnly { path: self.dir.clone(), why: why.source.to_string() }),
        }
    }

    /// The same store, as its plain files say.
    pub fn plain(&self) -> Plain {
        Plain::of(self.dir.clone())
    }

    fn commit(&self) -> Commit {
        Commit::new(self.session.dir().to_owned())
    }

    /// A fresh empty folder on the store's file system, swept when its process is gone.
    pub fn scratch(&self) -> Result<PathBuf> {
        self.must_write()?;
        let dir = self.commit().temp_path();
        fsx::create_dir(&dir)?;
        Ok(dir)
    }

    /// A fresh name on the store's file system, for what is to be renamed to its place; swept as [`Store::scratch`] is.
    pub fn temp_path(&self) -> PathBuf {
        self.commit().temp_path()
    }

    /// The folder of such names.
    pub fn temp_dir(&self) -> &Path {
        self.session.dir()
    }

    // For small files that are written on a disk that was too full for a folder; what is left there is swept as well.
    pub(crate) fn temp_dir_or_top(&self) -> &Path {
        if self.read_only() { &self.dir } else { self.temp_dir() }
    }

    /// Keeps a listing, durably.
    pub fn put_tree(&self, tree: &Tree) -> Result<TreeId> {
        let mut c = self.commit();
        let id = self.objects.put_tree(tree, &mut c)?;
        self.flush(&mut c)?;
        Ok(id)
    }

    /// A kept tree; `None` where it is not known.
    pub fn tree(&self, id: TreeId) -> Result<Option<Tree>> {
        self.objects.tree(id)
    }

    /// Whether a listing of this name is there; it was not read.
    pub fn knows_tree(&self, id: TreeId) -> bool {
        objects::sharded(&self.dir.join("trees"), &id.0).is_file()
    }

    /// The trees whose listing is there now and was not when the survey was made.
    pub fn listed_since(&self, survey: &survey::Survey) -> Result<Vec<Tree>> {
        let mut new = Vec::new();
        for shard in fsx::names(&self.dir.join("trees"))? {
            for name in fsx::names(&self.dir.join("trees").join(&shard))? {
                let Ok(digest) = Digest::from_hex(&format!("{}{}", shard.to_string_lossy(), name.to_string_lossy()))
                else {
                    continue;
                };
                if !survey.trees.contains_key(&TreeId(digest)) {
                    new.extend(self.tree(TreeId(digest))?);
                }
            }
        }
        Ok(new)
    }

    /// Keeps a recipe's text.
    pub fn put_recipe(&self, recipe: &Recipe) -> Result<()> {
        let mut c = self.commit();
        self.objects.put_recipe(recipe, &mut c)?;
        self.flush(&mut c)
    }

    /// A kept recipe's text.
    pub fn recipe(&self, id: RecipeId) -> Result<Option<String>> {
        self.objects.recipe(id)
    }

    /// Every attempt at a recipe, by number.
    pub fn runs(&self, recipe: RecipeId) -> Result<Vec<RunRecord>> {
        self.runs.all(recipe)
    }

    /// The realisation of a recipe that is used: the pinned tree's, else the earliest one all of whose bytes are
    /// there, else the earliest that is known. Only those isolated at least so well count. Whoever relies on the answer
    /// asks with `hold`: all of them are [held](Self::hold_trees) before their bytes are looked at.
    pub fn realisation(
        &self,
        recipe: RecipeId,
        at_least: Isolation,
        pinned: Option<TreeId>,
        hold: bool,
    ) -> Result<Option<RunRecord>> {
        let mut runs = self.runs.realisations(recipe, at_least)?;
        if hold {
            self.hold_trees(runs.iter().filter_map(RunRecord::tree))?;
        }
        if let Some(pin) = pinned {
            return Ok(runs.into_iter().find(|r| r.tree() == Some(pin)));
        }
        if runs.len() > 1 {
            for r in &runs {
                if let Some(id) = r.tree()
                    && let Some(tree) = self.tree(id)?
                    && self.absent(&tree)?.is_empty()
                {
                    return Ok(Some(r.clone()));
                }
            }
        }
        Ok(if runs.is_empty() { None } else { Some(runs.swap_remove(0)) })
    }

    /// Records a run. Whatever it names must have been published before: this is the moment from which it counts.
    pub fn record(&self, run: RunRecord) -> Result<RunRecord> {
        self.must_write()?;
        self.note_made(&run)?;
        self.runs.append(run, &self.commit().temp_path())
    }

    /// Where the log of an attempt goes; below `logs/`.
    pub fn log_path(&self, name: &str) -> PathBuf {
        self.dir.join("logs").join(name)
    }

    /// The text of a log of this name, unpacked where it was packed; `None` where there is none. Errors: the disk's.
    pub fn log_text(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let path = self.log_path(name);
        let Some(bytes) = fsx::read_optional(&path)? else { return Ok(None) };
        if !name.ends_with(".zst") {
            return Ok(Some(bytes));
        }
        Ok(Some(zstd::decode_all(bytes.as_slice()).map_err(fsx::at("unpack", &path))?))
    }

    /// Takes the lock of a recipe, waiting for whoever holds it; `busy` hears who that is. `None` when cancelled.
    pub fn lock_recipe(
        &self,
        recipe: RecipeId,
        what: &str,
        busy: &mut dyn FnMut(Option<&fsx::lock::Holder>),
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Option<FileLock>> {
        self.must_write()?;
        let path = self.dir.join("locks").join(format!("recipe-{}", recipe.hex()));
        Ok(fsx::lock::lock(&path, what, true, busy, cancelled)?)
    }

    /// Moves a failed step's scratch folder to where it stays.
    pub fn keep_failed(&self, scratch: &Path, name: &str) -> Result<PathBuf> {
        let dir = self.dir.join("failed");
        fsx::create_dir_all(&dir)?;
        for n in 1u32.. {
            let target = dir.join(format!("{name}-{n}"));
            if fsx::rename_noreplace(scratch, &target)? == Placed::Placed {
                return Ok(target);
            }
        }
        Ok(scratch.to_owned())
    }

    /// Lines about what was found damaged or set aside since the last call.
    pub fn take_notes(&self) -> Vec<String> {
        self.notes.lock().map(|mut n| std::mem::take(&mut *n)).unwrap_or_default()
    }

    /// Writes what the index still has in memory to the disk.
    pub fn flush_index(&self) {
        self.index.flush();
    }
}
