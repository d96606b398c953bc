//! A tree as a plain folder that is the user's own: nothing of it is the store's, unless hard links were asked for.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::audit::archive::error::{ArchiveError, Result};
use crate::fsx::part::{Begun, Part};
use crate::fsx::{self, FileStat, Placed, at};
use crate::model::tree::{Entry, Tree};
use crate::store::{Presence, Store, StoreError};

/// Makes `target`, which must not be there, a folder with the files of a tree: by clone where the file system can, else
/// by copy; with `link`, what lies in the store by hard link. Whole or not at all. `progress` hears of bytes done, of all.
/// Errors: Exists, Busy; the store's where bytes are nowhere.
pub fn folder(
    store: &Store,
    tree: &Tree,
    target: &Path,
    link: bool,
    progress: &mut dyn FnMut(u64, u64),
    cancelled: &dyn Fn() -> bool,
) -> Result<()> {
    store.hold_trees([tree.id()])?;
    let part = begun(Part::folder(target)?, target)?;
    let top = part.path();
    let total = tree.total_bytes();
    let mut done = 0;
    // Whatever the umask: a folder is for whoever may see the one that it stands in.
    fsx::set_mode(top, 0o755)?;
    for (rel, entry) in tree.iter() {
        if cancelled() {
            return Err(StoreError::Cancelled.into());
        }
        let mut above = Vec::new();
        let mut up = rel.parent();
        while let Some(dir) = up {
            up = dir.parent();
            above.push(dir);
        }
        for dir in above.iter().rev() {
            make_dir(&top.join(dir.as_path()))?;
        }
        let to = top.join(rel.as_path());
        match entry {
            Entry::EmptyDir => make_dir(&to)?,
            Entry::Link { target } => fsx::symlink(Path::new(OsStr::from_bytes(target)), &to)?,
            Entry::File { blob, size, executable } => {
                let presence = store.presence(*blob, *executable)?;
                let Some(from) = presence.path() else { return Err(store.gone(*blob).into()) };
                if link && matches!(presence, Presence::Stored(_)) && from == store.blob_path(*blob, *executable) {
                    fsx::hard_link(from, &to)?;
                } else {
                    copy(&presence, *size, &to)?;
                    fsx::set_mode(&to, if *executable { 0o755 } else { 0o644 })?;
                }
                done += size;
                progress(done, total);
            }
        }
    }
    match part.finish()? {
        Placed::Placed => Ok(()),
        Placed::Existed => Err(ArchiveError::Exists { path: target.to_owned() }),
    }
}

// A source may change under our hands; a blob of the store does not.
fn copy(presence: &Presence, size: u64, to: &Path) -> Result<()> {
    let Some(from) = presence.path() else { return Ok(()) };
    let before = FileStat::at(from).map_err(at("look at", from))?;
    fsx::copy_file(from, to)?;
    let copied = FileStat::at(to).map_err(at("look at", to))?.size;
    let same = FileStat::at(from).is_ok_and(|now| now == before);
    match presence {
        Presence::Referenced(_) if !same || copied != size => {
            Err(StoreError::SourceChanged { path: from.to_owned() }.into())
        }
        _ if copied != size => {
            let what = format!("has {copied} bytes, not {size}");
            Err(StoreError::Damaged { path: from.to_owned(), what }.into())
        }
        _ => Ok(()),
    }
}

fn make_dir(path: &Path) -> Result<()> {
    if !path.is_dir() {
        fsx::create_dir(path)?;
        fsx::set_mode(path, 0o755)?;
    }
    Ok(())
}

/// What came of beginning, as a result.
pub fn begun(begun: Begun, target: &Path) -> Result<Part> {
    match begun {
        Begun::Part(part) => Ok(part),
        Begun::Busy => Err(ArchiveError::Busy { path: target.to_owned() }),
        Begun::Existed => Err(ArchiveError::Exists { path: target.to_owned() }),
    }
}
