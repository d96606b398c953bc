//! What belongs to this host rather than to a store: who a process is, and the folders that every store and every user
//! of the host shares.
//!
//! | folder | holds | where |
//! | --- | --- | --- |
//! | [`locks`] | kernel locks: GPU leases, neighbours of windows | `/run/lock/graftwerk`, or below the first of `/dev/shm`, `/tmp` that everybody may write |
//! | [`state`] | what must outlive a reboot: intents of windows | `/var/lib/graftwerk` for root, else `$XDG_STATE_HOME/graftwerk` or `~/.local/state/graftwerk` |
//!
//! `GRAFTWERK_HOST_DIR` puts both below one folder: for tests, and for hosts that are odd.

mod process;

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

pub use process::{Process, boot_id, name};

use crate::fsx::{self, FsError, FsResult, Placed, at};

/// The environment variable that puts the host's folders elsewhere.
pub const VARIABLE: &str = "GRAFTWERK_HOST_DIR";

// Which of them is taken must not depend on who asks: two users who lock in two folders exclude nobody.
const BASES: [&str; 3] = ["/run/lock", "/dev/shm", "/tmp"];

fn stated() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).filter(|d| !d.is_empty()).map(PathBuf::from)
}

/// The folder of the host's locks, made where it is not there: usable by everybody, and nobody can remove what is
/// another's. Errors: it can't be made, or something else stands there.
pub fn locks() -> FsResult<PathBuf> {
    let dir = locks_path();
    match look(&dir) {
        Ok(()) => return Ok(dir),
        Err(e) if e.source.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    if let Some(above) = dir.parent() {
        fsx::create_dir_all(above)?;
    }
    // Under another name until its mode is right: whoever comes meanwhile must not find it closed.
    let fresh = dir.with_file_name(format!(".graftwerk-{}-{}", std::process::id(), fsx::stat::now_ns()));
    fsx::create_dir(&fresh)?;
    let placed = fsx::set_mode(&fresh, 0o1777).and_then(|()| fsx::rename_noreplace(&fresh, &dir));
    if !matches!(placed, Ok(Placed::Placed)) {
        let _ = fsx::remove_tree(&fresh);
    }
    // Whoever else made it meanwhile did as well.
    let _either = placed?;
    look(&dir)?;
    Ok(dir)
}

/// Where the host's locks are or would be; nothing is made.
pub fn locks_path() -> PathBuf {
    if let Some(dir) = stated() {
        return dir.join("locks");
    }
    let open = |base: &&&str| std::fs::metadata(base).is_ok_and(|m| m.is_dir() && m.mode() & 0o1002 == 0o1002);
    let base = BASES.iter().find(open).unwrap_or(&"/tmp");
    Path::new(base).join("graftwerk")
}

// A link that somebody laid there would let them choose whose files we touch.
fn look(dir: &Path) -> FsResult<()> {
    let found = std::fs::symlink_metadata(dir).map_err(at("look at", dir))?;
    if found.is_dir() {
        return Ok(());
    }
    let source = std::io::Error::other("it is no folder; remove it, or let GRAFTWERK_HOST_DIR say another place");
    Err(FsError { action: "keep locks in", path: dir.to_owned(), source })
}

/// Where what must outlive a reboot is or would be; nothing is made.
pub fn state() -> PathBuf {
    if let Some(dir) = stated() {
        return dir.join("state");
    }
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/lib/graftwerk");
    }
    set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state"))).map_or_else(
        // Without a home nothing of this user outlives a reboot; the name keeps users apart.
        || PathBuf::from(format!("/var/tmp/graftwerk-{}", rustix::process::geteuid().as_raw())),
        |d| d.join("graftwerk"),
    )
}
