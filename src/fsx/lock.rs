//! Kernel locks on files: never stale, since the kernel lets go of them when their holder dies.
//!
//! The holder writes into the file who it is. That text is for people; the lock is what counts. A lock file may be
//! removed by whoever holds it: a taker checks that what it locked is still what the path names.

use std::fs::{File, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::fsx::{self, Call, FileStat, FsResult, at, change};

/// Who holds a lock, as it says itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Process id on its host.
    pub pid: u32,
    /// Its host.
    pub host: String,
    /// What it does, for people.
    pub what: String,
    /// Since when, RFC 3339.
    pub since: String,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {} on {} ({}, since {})", self.pid, self.host, self.what, self.since)
    }
}

/// A held lock. Dropping it lets go.
#[derive(Debug)]
pub struct FileLock {
    file: File,
    path: PathBuf,
    remove: bool,
    alone: bool,
}

/// What came of trying.
#[derive(Debug)]
pub enum Tried {
    /// We hold it.
    Held(FileLock),
    /// Somebody else does; who, if it has said so.
    Busy(Option<Holder>),
}

/// This host's name.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn open(path: &Path) -> io::Result<File> {
    if let Some(dir) = path.parent().filter(|d| !d.is_dir()) {
        fsx::create_dir_all(dir).map_err(|e| e.source)?;
    }
    let open = |create| File::options().read(true).write(true).create(create).truncate(false).open(path);
    match open(false) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => change(Call::Create(path), || open(true)),
        opened => opened,
    }
}

/// Tries to take the lock at `path` alone, once. `what` is written into it for others to read; with `remove` the file
/// goes when the lock does.
pub fn try_lock(path: &Path, what: &str, remove: bool) -> FsResult<Tried> {
    try_alone(path, what, remove, open)
}

/// As [`try_lock`], in a folder that all users of the host share: the file can be locked by everybody, and is no link
/// of somebody else's.
pub fn try_lock_common(path: &Path, what: &str, remove: bool) -> FsResult<Tried> {
    try_alone(path, what, remove, open_common)
}

fn try_alone(path: &Path, what: &str, remove: bool, open: fn(&Path) -> io::Result<File>) -> FsResult<Tried> {
    loop {
        let mut file = open(path).map_err(at("open the lock", path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(Tried::Busy(read_holder(&mut file))),
            Err(TryLockError::Error(e)) => return Err(at("lock", path)(e)),
        }
        if !still_there(&file, path).map_err(at("look at the lock", path))? {
            continue;
        }
        let holder = Holder {
            pid: std::process::id(),
            host: host_name(),
            what: what.to_owned(),
            since: jiff::Timestamp::now().round(jiff::Unit::Second).unwrap_or_default().to_string(),
        };
        // Best effort: a full disk must not keep us from a lock that we hold.
        let _ = change(Call::Write(path), || write_holder(&mut file, &holder));
        return Ok(Tried::Held(FileLock { file, path: path.to_owned(), remove, alone: true }));
    }
}

/// Takes the lock, waiting as long as it takes. `busy` hears of each change of holder; `cancelled` ends the wait with
/// `None`.
pub fn lock(
    path: &Path,
    what: &str,
    remove: bool,
    busy: &mut dyn FnMut(Option<&Holder>),
    cancelled: &dyn Fn() -> bool,
) -> FsResult<Option<FileLock>> {
    let mut last: Option<Option<Holder>> = None;
    let mut looked = false;
    let mut pause = Duration::from_millis(5);
    loop {
        match try_lock(path, what, remove)? {
            Tried::Held(l) => return Ok(Some(l)),
            Tried::Busy(holder) => {
                // A sweep holds a lock for a moment, which is no news.
                if std::mem::replace(&mut looked, true) && last.as_ref() != Some(&holder) {
                    busy(holder.as_ref());
                    last = Some(holder);
                }
            }
        }
        if cancelled() {
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(200));
    }
}

/// Tries to take a lock that many may hold together, once. It is busy while somebody has it alone, who is then named.
pub fn try_lock_shared(path: &Path) -> FsResult<Tried> {
    try_together(path, open)
}

/// As [`try_lock_shared`], in a folder that all users of the host share.
pub fn try_lock_shared_common(path: &Path) -> FsResult<Tried> {
    try_together(path, open_common)
}

/// Who has the lock alone just now, as far as it has said so; `None` where nobody has, or there is no such file.
pub fn holder(path: &Path) -> FsResult<Option<Option<Holder>>> {
    let mut file = match existing(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(at("open the lock", path))?,
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => Ok(Some(read_holder(&mut file))),
        Err(TryLockError::Error(e)) => Err(at("lock", path)(e)),
    }
}

// Where everybody may make files, a link is somebody's trick, and O_CREAT on another's file is refused by the kernel
// (fs.protected_regular).
fn existing(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    match options.clone().write(true).open(path) {
        // A lock needs no more than reading; only the text can't be written then.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => options.open(path),
        other => other,
    }
}

fn open_common(path: &Path) -> io::Result<File> {
    loop {
        match existing(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
        match fsx::create_new(path, 0o666) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
            Ok(file) => {
                // Whatever the umask says.
                let everybody = std::fs::Permissions::from_mode(0o666);
                change(Call::Chmod(path, 0o666), || file.set_permissions(everybody))?;
                return Ok(file);
            }
        }
    }
}

fn try_together(path: &Path, open: fn(&Path) -> io::Result<File>) -> FsResult<Tried> {
    loop {
        let mut file = open(path).map_err(at("open the lock", path))?;
        match file.try_lock_shared() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(Tried::Busy(read_holder(&mut file))),
            Err(TryLockError::Error(e)) => return Err(at("lock", path)(e)),
        }
        if still_there(&file, path).map_err(at("look at the lock", path))? {
            return Ok(Tried::Held(FileLock { file, path: path.to_owned(), remove: false, alone: false }));
        }
    }
}

fn still_there(file: &File, path: &Path) -> io::Result<bool> {
    let ours = FileStat::of(&file.metadata()?);
    match FileStat::at(path) {
        Ok(s) => Ok((s.dev, s.ino) == (ours.dev, ours.ino)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

fn write_holder(file: &mut File, holder: &Holder) -> io::Result<()> {
    let text = serde_json::to_string(holder).map_err(io::Error::other)?;
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(text.as_bytes())
}

fn read_holder(file: &mut File) -> Option<Holder> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(4096).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if self.remove {
            // Removed while held: whoever waits for this inode finds that the path no longer names it.
            let _ = fsx::remove_file(&self.path);
        } else if self.alone {
            // Whoever comes next must not be told of us.
            let _ = self.file.set_len(0);
        }
        let _ = self.file.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_lock_names_its_holder_and_a_dropped_one_is_free() {
        let t = tempfile::tempdir().unwrap();
        let p = t.path().join("l");
        let Tried::Held(l) = try_lock(&p, "graft-a", true).unwrap() else { panic!("busy") };
        match try_lock(&p, "x", true).unwrap() {
            Tried::Busy(Some(h)) => assert_eq!((h.pid, h.what.as_str()), (std::process::id(), "graft-a")),
            other => panic!("{other:?}"),
        }
        drop(l);
        assert!(!p.exists());
        assert!(matches!(try_lock(&p, "x", true).unwrap(), Tried::Held(_)));
    }

    #[test]
    fn garbage_in_a_lock_file_stops_nobody() {
        let t = tempfile::tempdir().unwrap();
        let p = t.path().join("l");
        std::fs::write(&p, b"\xff\xfe 4711 other-host").unwrap();
        assert!(matches!(try_lock(&p, "x", false).unwrap(), Tried::Held(_)));
    }
}
