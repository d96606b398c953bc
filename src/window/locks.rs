//! The kernel locks of windows.

use std::path::PathBuf;

use crate::digest::Digest;
use crate::fsx::FsError;
use crate::fsx::lock::{FileLock, Holder, Tried, holder, try_lock_common, try_lock_shared_common};
use crate::host;
use crate::window::{Cancelled, LOOK, Tell};

/// Waits for its turn to stop and start neighbours. `None` when cancelled.
pub(super) fn gate(what: &str, tell: Tell<'_>, cancelled: Cancelled<'_>) -> Result<Option<FileLock>, FsError> {
    let path = host::locks()?.join("window-gate");
    let mut last: Option<Option<Holder>> = None;
    let mut looked = false;
    loop {
        match try_lock_common(&path, what, false)? {
            Tried::Held(l) => return Ok(Some(l)),
            Tried::Busy(who) => {
                if std::mem::replace(&mut looked, true) && last.as_ref() != Some(&who) {
                    let whom = who.as_ref().map_or_else(|| "another process".to_owned(), Holder::to_string);
                    tell(&format!("waiting for {whom}: it stops or starts containers"));
                    last = Some(who);
                }
            }
        }
        if cancelled() {
            return Ok(None);
        }
        std::thread::sleep(LOOK);
    }
}

fn life_path(id: &str) -> Result<PathBuf, FsError> {
    // The id of an intent that was read is a file's name only where it is one of ours.
    let name: String = id.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    Ok(host::locks()?.join(format!("window-{name}")))
}

/// Held as long as the window's process lives, or while somebody else does what its intent says. `None` where
/// somebody else has it.
pub(super) fn life(id: &str, what: &str) -> Result<Option<FileLock>, FsError> {
    match try_lock_common(&life_path(id)?, what, true)? {
        Tried::Held(l) => Ok(Some(l)),
        Tried::Busy(_) => Ok(None),
    }
}

/// Whether somebody has a window's own lock.
pub(super) fn lives(id: &str) -> Result<bool, FsError> {
    Ok(holder(&life_path(id)?)?.is_some())
}

/// The two locks of a neighbour.
pub(super) struct Paths {
    pub(super) users: PathBuf,
    pub(super) owed: PathBuf,
}

/// Where the locks of a neighbour are: by engine and name, so that one that was made anew is still the same.
pub(super) fn of(engine_id: &str, name: &str) -> Result<Paths, FsError> {
    let hash = Digest::of(format!("{engine_id}\n{name}").as_bytes()).hex();
    let short: String = name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(40).collect();
    let stem = format!("neighbour-{short}-{}", &hash[..16]);
    let dir = host::locks()?;
    Ok(Paths { users: dir.join(format!("{stem}-users")), owed: dir.join(format!("{stem}-owed")) })
}

/// Takes a lock together with others; under the gate nobody has it alone for longer than a look.
pub(super) fn together(path: &std::path::Path) -> Result<FileLock, FsError> {
    loop {
        match try_lock_shared_common(path)? {
            Tried::Held(l) => return Ok(l),
            Tried::Busy(_) => std::thread::sleep(LOOK),
        }
    }
}

/// Takes a lock alone, if nobody has it. To be asked under the gate.
pub(super) fn alone(path: &std::path::Path, what: &str) -> Result<Option<FileLock>, FsError> {
    match try_lock_common(path, what, false)? {
        Tried::Held(l) => Ok(Some(l)),
        Tried::Busy(_) => Ok(None),
    }
}
