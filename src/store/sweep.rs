//! Freeing bytes: what is freed is let go of by the roots, then moved out of the way while nobody can hold it, and removed
//! afterwards. So whatever the roots name has its bytes, and what lacks them and is in no roots was collected.
//!
//! A crash in the middle leaves a tree with some of its files, which is what a look at it says, and what was moved lies in
//! `tmp/`, which the next command sweeps.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use crate::digest::{BlobId, TreeId};
use crate::fsx::{self, FsResult};
use crate::model::run::RunRecord;
use crate::store::Store;
use crate::store::error::{Result, StoreError};
use crate::store::gclog;
use crate::store::plain::Plain;

/// What is to be freed.
#[derive(Debug, Default)]
pub struct Sweep {
    /// The trees that lose files; they are written into a log first.
    pub trees: Vec<TreeId>,
    /// Blobs, by mode.
    pub blobs: Vec<(BlobId, bool)>,
    /// Views.
    pub views: Vec<TreeId>,
    /// Folders below `failed/`.
    pub failed: Vec<PathBuf>,
}

/// What was moved out of the way and is still to be removed.
#[derive(Debug)]
#[must_use]
pub struct Swept {
    dir: PathBuf,
    /// Whether it was stopped before everything was moved.
    pub cut_off: bool,
    // What there was no room to write down yet.
    log: Vec<TreeId>,
}

impl Store {
    /// Moves all of it out of the way. To be called [alone](Self::alone). Nothing of it is removed yet: see
    /// [`Store::remove_swept`]. Errors: the disk's; what was moved until then is swept by the next command.
    pub fn sweep(&self, what: &Sweep, cancelled: &(dyn Fn() -> bool + Sync)) -> Result<Swept> {
        self.must_free()?;
        let dir = self.temp_dir().join("gc");
        // On a full disk there may be no room for a folder: then things are removed where they are.
        let aside = match fsx::create_dir(&dir) {
            Ok(()) => !self.read_only(),
            Err(e) if fsx::is_full(&e) => false,
            Err(e) => return Err(e.into()),
        };
        // Whoever makes room is not kept from it by a line that has none: then that is written afterwards.
        let mut log = Vec::new();
        if !what.trees.is_empty() && !if_room(self.log_collected(&what.trees))? {
            log.clone_from(&what.trees);
        }
        let mut jobs: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
        for tree in &what.views {
            jobs.entry(format!("v{}", &tree.hex()[..2])).or_default().push(self.view_path(*tree));
        }
        for path in &what.failed {
            jobs.entry("failed".to_owned()).or_default().push(path.clone());
        }
        for (blob, executable) in &what.blobs {
            jobs.entry(format!("x{}", &blob.hex()[..2])).or_default().push(self.blob_path(*blob, *executable));
        }
        // Views before blobs, as the names say: a view that is there has all its files.
        let (views, blobs): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|(name, _)| !name.starts_with('x'));
        for group in [views, blobs] {
            let moved: Vec<FsResult<()>> = group
                .par_iter()
                .map(|(name, paths)| {
                    let to = dir.join(name);
                    let aside = aside && fsx::create_dir(&to).is_ok();
                    for (n, path) in paths.iter().enumerate() {
                        if cancelled() {
                            return Ok(());
                        }
                        take_away(path, aside.then(|| to.join(n.to_string())).as_deref())?;
                    }
                    Ok(())
                })
                .collect();
            moved.into_iter().collect::<FsResult<Vec<()>>>()?;
        }
        Ok(Swept { dir, cut_off: cancelled(), log })
    }

    /// Removes what was moved out of the way, and writes the log that there was no room for before. Errors: the disk's.
    pub fn remove_swept(&self, swept: &Swept) -> Result<()> {
        let folders = fsx::names(&swept.dir)?;
        folders.par_iter().map(|name| fsx::remove_tree(&swept.dir.join(name))).collect::<FsResult<Vec<()>>>()?;
        fsx::remove_tree(&swept.dir)?;
        if swept.log.is_empty() { Ok(()) } else { self.log_collected(&swept.log) }
    }

    // Before anything goes. For people: what is held is known by the roots alone.
    fn log_collected(&self, trees: &[TreeId]) -> Result<()> {
        let text = gclog::text(jiff::Timestamp::now(), trees);
        let path = self.log_path(&gclog::name(fsx::stat::now_ns()));
        Ok(fsx::create_whole(&path, text.as_bytes(), 0o444, self.temp_dir_or_top())?)
    }

    /// When a collector last took files of this tree, RFC 3339; `None` where none did, or where one of these runs made it
    /// again since. Read once a session.
    pub fn collected<'r>(&self, tree: TreeId, runs: impl IntoIterator<Item = &'r RunRecord>) -> Option<String> {
        let logs = self.collected.get_or_init(|| self.plain().collected());
        let when = logs.get(&tree)?;
        let at: jiff::Timestamp = when.parse().ok()?;
        let again =
            |r: &RunRecord| r.tree() == Some(tree) && r.started.parse::<jiff::Timestamp>().is_ok_and(|s| s > at);
        (!runs.into_iter().any(again)).then(|| when.clone())
    }
}

impl Plain {
    /// Every tree of which collectors took files, and when last, by their logs. One that does not read says nothing here; a
    /// [survey](Plain::survey) names it.
    pub fn collected(&self) -> HashMap<TreeId, String> {
        let dir = self.dir.join("logs");
        let mut all: HashMap<TreeId, String> = HashMap::new();
        // By name, and so by time: the newest counts.
        for name in fsx::names(&dir).unwrap_or_default() {
            if !gclog::is_one(&name) {
                continue;
            }
            let Ok(bytes) = std::fs::read(dir.join(&name)) else { continue };
            let Ok(log) = gclog::read(&bytes) else { continue };
            all.extend(log.trees.into_iter().map(|t| (t, log.when.clone())));
        }
        all
    }
}

/// Whether there was room for it. Errors: any other.
pub fn if_room(written: Result<()>) -> Result<bool> {
    match written {
        Err(StoreError::Fs(e)) if fsx::is_full(&e) => Ok(false),
        done => done.map(|()| true),
    }
}

// To another name where there is room for one. What is gone already is fine.
fn take_away(path: &Path, to: Option<&Path>) -> FsResult<()> {
    if let Some(to) = to {
        match fsx::rename_over(path, to) {
            Ok(()) => return Ok(()),
            Err(e) if e.source.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            // A folder that forbids it, or no room for the name.
            Err(_) => {}
        }
    }
    fsx::remove_tree(path)
}
