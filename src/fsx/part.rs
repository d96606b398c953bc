//! A file or folder in the making beside the place where it will stand.
//!
//! It is made as `.NAME.graftwerk-part`, under a kernel lock that its maker holds. What a killed maker left is taken over
//! by the next one that makes the same; a living one keeps the next one out. What is finished is flushed and renamed to
//! its place by a rename that replaces nothing.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::fsx::{self, Call, FsResult, Placed, at, change};

/// What is being made.
#[derive(Debug)]
pub struct Part {
    target: PathBuf,
    path: PathBuf,
    // Open on the file or folder itself, and locked: whoever else would make the same sees it.
    held: File,
    folder: bool,
    done: bool,
}

/// What came of beginning.
#[derive(Debug)]
pub enum Begun {
    /// It can be made.
    Part(Part),
    /// Somebody else is making it.
    Busy,
    /// There is something at the target already.
    Existed,
}

impl Part {
    /// Begins a file that will stand at `target`.
    pub fn file(target: &Path) -> FsResult<Begun> {
        Self::begin(target, false)
    }

    /// Begins a folder that will stand at `target`.
    pub fn folder(target: &Path) -> FsResult<Begun> {
        Self::begin(target, true)
    }

    fn begin(target: &Path, folder: bool) -> FsResult<Begun> {
        let path = part_path(target)?;
        loop {
            if fs::symlink_metadata(target).is_ok() {
                return Ok(Begun::Existed);
            }
            // What stands there of another kind was left by somebody who made the other kind.
            match fs::symlink_metadata(&path) {
                Ok(m) if m.is_dir() != folder || m.file_type().is_symlink() => fsx::remove_tree(&path)?,
                _ => {}
            }
            let held = match open(&path, folder) {
                // Its maker finished or swept it this moment.
                Err(e) if e.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(parent(&path)).is_ok() => {
                    continue;
                }
                other => other.map_err(at("create", &path))?,
            };
            match held.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(Begun::Busy),
                Err(TryLockError::Error(e)) => return Err(at("lock", &path)(e)),
            }
            let (ours, there) = (held.metadata(), fs::symlink_metadata(&path));
            if !matches!((&ours, &there), (Ok(a), Ok(b)) if (a.dev(), a.ino()) == (b.dev(), b.ino())) {
                continue;
            }
            // What a killed maker left; the lock on it is good for nothing once it is gone.
            if if folder { !fsx::names(&path)?.is_empty() } else { ours.is_ok_and(|m| m.len() > 0) } {
                fsx::remove_tree(&path)?;
                continue;
            }
            return Ok(Begun::Part(Self { target: target.to_owned(), path, held, folder, done: false }));
        }
    }

    /// Where it is being made.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Flushes it and puts it in place. `Existed`: somebody else has put something there meanwhile; that stays, and ours
    /// is removed.
    pub fn finish(mut self) -> FsResult<Placed> {
        if self.folder {
            fsx::syncfs(&self.path)?;
        } else {
            fsx::fsync(&self.path)?;
        }
        let placed = fsx::rename_noreplace(&self.path, &self.target)?;
        self.done = placed == Placed::Placed;
        if self.done {
            fsx::fsync(parent(&self.target))?;
        }
        Ok(placed)
    }
}

impl Write for Part {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        change(Call::Write(&self.path), || self.held.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.held.flush()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.done {
            let _ = fsx::remove_tree(&self.path);
        }
    }
}

fn open(path: &Path, folder: bool) -> io::Result<File> {
    if !folder {
        return change(Call::Create(path), || {
            File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o666)
                .custom_flags(libc::O_NOFOLLOW)
                .open(path)
        });
    }
    match change(Call::Mkdir(path), || fs::create_dir(path)) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    File::open(path)
}

// The parent of a bare name is the empty path.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn part_path(target: &Path) -> FsResult<PathBuf> {
    let Some(name) = target.file_name() else {
        return Err(at("create", target)(io::Error::new(io::ErrorKind::InvalidInput, "it ends without a name")));
    };
    let mut part = OsString::from(".");
    part.push(name);
    part.push(".graftwerk-part");
    Ok(parent(target).join(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(b: FsResult<Begun>) -> Part {
        match b.unwrap() {
            Begun::Part(p) => p,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_finished_stands_there_and_what_is_not_leaves_nothing() {
        let t = tempfile::tempdir().unwrap();
        let target = t.path().join("x");
        begun(Part::file(&target)).write_all(b"half").unwrap();
        assert!(fsx::names(t.path()).unwrap().is_empty());
        let mut p = begun(Part::file(&target));
        p.write_all(b"whole").unwrap();
        assert!(matches!(Part::file(&target).unwrap(), Begun::Busy));
        assert_eq!(p.finish().unwrap(), Placed::Placed);
        assert_eq!(fs::read(&target).unwrap(), b"whole");
        assert!(matches!(Part::file(&target).unwrap(), Begun::Existed));
        assert_eq!(fsx::names(t.path()).unwrap(), ["x"]);
    }

    #[test]
    fn what_a_killed_maker_left_is_taken_over() {
        let t = tempfile::tempdir().unwrap();
        let target = t.path().join("x");
        for left_folder in [false, true] {
            let left = part_path(&target).unwrap();
            if left_folder {
                fs::create_dir_all(left.join("sub")).unwrap();
            } else {
                fs::write(&left, "a long rest").unwrap();
            }
            let mut p = begun(Part::file(&target));
            p.write_all(b"new").unwrap();
            assert_eq!(p.finish().unwrap(), Placed::Placed);
            assert_eq!(fs::read(&target).unwrap(), b"new");
            fs::remove_file(&target).unwrap();
        }
    }

    #[test]
    fn nobody_is_replaced_who_came_first() {
        let t = tempfile::tempdir().unwrap();
        let target = t.path().join("x");
        let p = begun(Part::folder(&target));
        fs::write(p.path().join("f"), "ours").unwrap();
        fs::create_dir(&target).unwrap();
        assert_eq!(p.finish().unwrap(), Placed::Existed);
        assert_eq!(fsx::names(t.path()).unwrap(), ["x"]);
        assert!(fsx::names(&target).unwrap().is_empty());
    }
}
