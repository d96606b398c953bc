//! The file-system floor: every call that changes the disk goes through here, past a fail point, so that a harness
//! can stop the program at each of them ([`failpoint`]).

pub mod copy;
pub mod failpoint;
pub mod lock;
pub mod part;
pub mod probe;
mod record;
pub mod stat;

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, CWD, RenameFlags, Timespec, Timestamps};

pub(crate) use failpoint::{Call, change};
pub use failpoint::{hit, hit_file};
pub use stat::FileStat;

/// An I/O error with the path and the operation that met it.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}", path.display())]
pub struct FsError {
    /// What was being done: `create`, `rename to`, `read` ….
    pub action: &'static str,
    /// Where.
    pub path: PathBuf,
    /// What the system says.
    pub source: io::Error,
}

/// Names the operation and the path of an I/O error.
pub fn at<'p>(action: &'static str, path: &'p Path) -> impl FnOnce(io::Error) -> FsError + 'p {
    move |source| FsError { action, path: path.to_owned(), source }
}

/// The result of a file-system operation that names its path.
pub type FsResult<T> = Result<T, FsError>;

/// Whether a no-replace operation put the thing there, or found something there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Placed {
    /// It is there now, and it is ours.
    Placed,
    /// Something was there already and is untouched.
    Existed,
}

/// Creates a folder and those above it.
pub fn create_dir_all(path: &Path) -> FsResult<()> {
    let mut missing: Vec<&Path> = Vec::new();
    for dir in path.ancestors().filter(|d| !d.as_os_str().is_empty()) {
        if dir.is_dir() {
            break;
        }
        missing.push(dir);
    }
    for dir in missing.into_iter().rev() {
        match change(Call::Mkdir(dir), || fs::create_dir(dir)) {
            // Another process was first.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => {}
            done => done.map_err(at("create the folder", dir))?,
        }
    }
    Ok(())
}

/// Creates a folder that must not exist.
pub fn create_dir(path: &Path) -> FsResult<()> {
    change(Call::Mkdir(path), || fs::create_dir(path)).map_err(at("create the folder", path))
}

/// Renames without ever replacing: an existing target, be it an empty folder, is left as it is.
pub fn rename_noreplace(from: &Path, to: &Path) -> FsResult<Placed> {
    let renamed =
        change(Call::Rename(from, to), || Ok(rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?));
    match renamed {
        Ok(()) => Ok(Placed::Placed),
        Err(e) if matches!(e.raw_os_error(), Some(libc::EEXIST | libc::ENOTEMPTY)) => Ok(Placed::Existed),
        // File systems without RENAME_NOREPLACE: a hard link is the other call that never replaces.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)) && from.is_file() => {
            match change(Call::Link(from, to), || fs::hard_link(from, to)) {
                Ok(()) => remove_file(from).map(|()| Placed::Placed),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(Placed::Existed),
                Err(e) => Err(at("rename to", to)(e)),
            }
        }
        Err(e) => Err(at("rename to", to)(e)),
    }
}

/// Renames over whatever is there: only for the few places of the store that may change, and for moving a thing out
/// of the way to a fresh name.
pub fn rename_over(from: &Path, to: &Path) -> FsResult<()> {
    change(Call::Rename(from, to), || fs::rename(from, to)).map_err(at("rename to", to))
}

/// A hard link, never replacing.
pub fn hard_link(from: &Path, to: &Path) -> FsResult<()> {
    change(Call::Link(from, to), || fs::hard_link(from, to)).map_err(at("link", to))
}

/// A symbolic link, never replacing.
pub fn symlink(target: &Path, at_path: &Path) -> FsResult<()> {
    change(Call::Symlink(target, at_path), || std::os::unix::fs::symlink(target, at_path)).map_err(at("link", at_path))
}

/// Removes a file or a link; one that is not there is no error.
pub fn remove_file(path: &Path) -> FsResult<()> {
    match change(Call::Unlink(path), || fs::remove_file(path)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(at("remove", path)(e)),
        _ => Ok(()),
    }
}

/// Removes a folder and all below it, following no link; folders without write permission are opened up first.
pub fn remove_tree(path: &Path) -> FsResult<()> {
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(at("look at", path)(e)),
        Ok(m) if !m.is_dir() => return remove_file(path),
        Ok(_) => {}
    }
    let removed = change(Call::Rmtree(path), || match fs::remove_dir_all(path) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(_) => {
            open_up(path)?;
            fs::remove_dir_all(path)
        }
    });
    removed.map_err(at("remove", path))
}

fn open_up(top: &Path) -> io::Result<()> {
    let mut todo = vec![top.to_owned()];
    while let Some(dir) = todo.pop() {
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700))?;
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                todo.push(entry.path());
            }
        }
    }
    Ok(())
}

/// Sets a file's permission bits.
pub fn set_mode(path: &Path, mode: u32) -> FsResult<()> {
    change(Call::Chmod(path, mode), || fs::set_permissions(path, fs::Permissions::from_mode(mode)))
        .map_err(at("set the mode of", path))
}

/// Sets a file's mtime to second 1, the mark of a blob of the store.
pub fn set_mtime_one(path: &Path) -> FsResult<()> {
    let one = Timespec { tv_sec: 1, tv_nsec: 0 };
    let times = Timestamps { last_access: one, last_modification: one };
    change(Call::Utime(path), || Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?))
        .map_err(at("set the time of", path))
}

/// Flushes a file's bytes and metadata to the disk.
pub fn fsync(path: &Path) -> FsResult<()> {
    change(Call::Fsync(path), || File::open(path)?.sync_all()).map_err(at("flush", path))
}

/// Flushes everything on the file system that holds `path`.
pub fn syncfs(path: &Path) -> FsResult<()> {
    change(Call::Syncfs(path), || Ok(rustix::fs::syncfs(File::open(path)?)?)).map_err(at("flush", path))
}

/// A new, empty file under a name that must not be taken, readable and writable.
pub fn create_new(path: &Path, mode: u32) -> io::Result<File> {
    change(Call::Create(path), || File::options().read(true).write(true).create_new(true).mode(mode).open(path))
}

/// Writes a small file whole under a name that must not be taken. It is not flushed.
pub fn write_new(path: &Path, bytes: &[u8], mode: u32) -> FsResult<()> {
    let written = create_new(path, mode).and_then(|mut f| change(Call::Write(path), || f.write_all(bytes)));
    written.map_err(at("write", path))
}

/// Writes bytes to an open file, at its place.
pub fn write_all(mut file: &File, bytes: &[u8]) -> io::Result<()> {
    hit_file("write", file)?;
    file.write_all(bytes)
}

/// Writes bytes to an open file, `offset` bytes into it.
pub fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    use std::os::unix::fs::FileExt as _;
    hit_file("write", file)?;
    file.write_all_at(bytes, offset)
}

/// Gives an open file its length.
pub fn set_len(file: &File, len: u64) -> io::Result<()> {
    hit_file("write", file)?;
    file.set_len(len)
}

/// Copies a file to a name that must not be taken, by clone where the file system can. It is not flushed, and its mode
/// is that of a new file.
pub fn copy_file(from: &Path, to: &Path) -> FsResult<()> {
    let src = File::open(from).map_err(at("open", from))?;
    let len = src.metadata().map_err(at("look at", from))?.len();
    let dst = create_new(to, 0o666).map_err(at("write", to))?;
    let go_on = &mut |_| std::ops::ControlFlow::Continue(());
    copy::copy_range(&src, 0, &dst, 0, len, go_on).map(drop).map_err(|e| match e {
        copy::CopyError::Io(e) => at("write", to)(e),
        other => at("write", to)(io::Error::other(other)),
    })
}

/// Adds to the end of a file, which is made where it is not there. What could be written only in part is taken back.
pub fn append(path: &Path, bytes: &[u8]) -> FsResult<()> {
    let open = |create| File::options().append(true).create(create).open(path);
    let opened = match open(false) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => change(Call::Create(path), || open(true)),
        other => other,
    };
    let append = |mut f: File| {
        let before = f.metadata()?.len();
        f.write_all(bytes).inspect_err(|_| drop(f.set_len(before)))
    };
    opened.and_then(|f| change(Call::Write(path), || append(f))).map_err(at("write", path))
}

/// Replaces a small file whole: written in `temp`, flushed, renamed over it. A reader sees the old or the new one. In
/// `temp` because what is left there by a crash is swept; where that is another file system, it is written beside the
/// file. Only for the places of the store and the project that may change.
pub fn replace_file(path: &Path, bytes: &[u8], temp: &Path) -> FsResult<()> {
    // The parent of a bare name is the empty path.
    let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match write_over(path, bytes, temp) {
        Err(e) if other_file_system(&e) => write_over(path, bytes, dir)?,
        done => done?,
    }
    fsync(dir)
}

/// Makes a small file, whole or not at all, under a name that must not be taken: written in `temp`, a folder on the same
/// file system, flushed, and renamed.
pub fn create_whole(path: &Path, bytes: &[u8], mode: u32, temp: &Path) -> FsResult<()> {
    let temp = fresh_name(temp);
    let placed = write_new(&temp, bytes, mode)
        .map_err(|e| FsError { path: path.to_owned(), ..e })
        .and_then(|()| fsync(&temp))
        .and_then(|()| rename_noreplace(&temp, path));
    match placed {
        Ok(Placed::Placed) => fsync(path.parent().unwrap_or(Path::new("."))),
        Ok(Placed::Existed) => {
            remove_file(&temp)?;
            Err(at("write", path)(io::ErrorKind::AlreadyExists.into()))
        }
        Err(e) => {
            let _ = remove_file(&temp);
            Err(e)
        }
    }
}

fn fresh_name(dir: &Path) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    dir.join(format!(".graftwerk-{}-{}-{n}", std::process::id(), stat::now_ns()))
}

fn write_over(path: &Path, bytes: &[u8], dir: &Path) -> FsResult<()> {
    let temp = fresh_name(dir);
    let placed = write_new(&temp, bytes, 0o644)
        .map_err(|e| FsError { path: path.to_owned(), ..e })
        .and_then(|()| fsync(&temp))
        .and_then(|()| rename_over(&temp, path));
    if placed.is_err() {
        // What is wrong with the disk is told by the error that there is already.
        let _ = remove_file(&temp);
    }
    placed
}

/// Puts a symbolic link at `path`, over whatever is there. `temp` is a path that is free: see [`replace_file`].
pub fn replace_link(path: &Path, target: &Path, temp: &Path) -> FsResult<()> {
    symlink(target, temp)?;
    let placed = rename_over(temp, path);
    if placed.is_err() {
        remove_file(temp)?;
    }
    match placed {
        Err(e) if other_file_system(&e) => {
            let mut beside = std::ffi::OsString::from(".");
            beside.push(path.file_name().unwrap_or_default());
            beside.push(format!(".{}", std::process::id()));
            let beside = path.with_file_name(beside);
            remove_file(&beside)?;
            symlink(target, &beside)?;
            rename_over(&beside, path)
        }
        done => done,
    }
}

fn other_file_system(e: &FsError) -> bool {
    e.source.raw_os_error() == Some(libc::EXDEV)
}

/// A path as JSON text, for people: what is no UTF-8 of it is replaced, since JSON has no other strings.
pub fn path_text<S: serde::Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&path.to_string_lossy())
}

/// As [`path_text`], for a path that may be missing.
pub fn optional_path_text<S: serde::Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
    match path {
        Some(p) => to.serialize_some(&p.to_string_lossy()),
        None => to.serialize_none(),
    }
}

/// Reads a file whole; `None` where there is none.
pub fn read_optional(path: &Path) -> FsResult<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(b) => Ok(Some(b)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(at("read", path)(e)),
    }
}

/// The names in a folder, sorted by bytes; none where there is no folder.
pub fn names(dir: &Path) -> FsResult<Vec<std::ffi::OsString>> {
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(at("list", dir))?,
    };
    let mut names =
        entries.map(|e| e.map(|e| e.file_name())).collect::<io::Result<Vec<_>>>().map_err(at("list", dir))?;
    names.sort();
    Ok(names)
}

/// Whether the disk, or the user's share of it, is full.
pub fn is_full(e: &FsError) -> bool {
    matches!(e.source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// What to do where the disk, or the user's share of it, is full: with the place and what is left there. `path` need not
/// exist. `None` for any other error.
pub fn hint_if_full(e: &io::Error, path: &Path) -> Option<String> {
    // By kind, not number: some errors come wrapped with a path.
    if !matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
        return None;
    }
    let dir = path.ancestors().find(|p| p.is_dir()).unwrap_or(path);
    let free = free_bytes(dir).map(|n| format!(" ({n} bytes are free)")).unwrap_or_default();
    let place = dir.display();
    Some(format!("make room on the file system of {place}{free}, then try again: nothing half-made was kept"))
}

/// Whether the folder `dir`, which must be one of ours, takes `a` and `A` for one name.
pub fn folds_case(dir: &Path) -> FsResult<bool> {
    if failpoint::folds() {
        return Ok(true);
    }
    let (lower, upper) = (dir.join(".graftwerk-case"), dir.join(".GRAFTWERK-CASE"));
    write_new(&lower, b"", 0o600)?;
    let folds = upper.exists();
    remove_file(&lower)?;
    Ok(folds)
}

/// Whether files in the folder `dir`, one of ours, can share extents, so that a copy needs no room.
pub fn shares_extents(dir: &Path) -> FsResult<bool> {
    let (a, b) = (dir.join(".graftwerk-extents-a"), dir.join(".graftwerk-extents-b"));
    let opened = create_new(&a, 0o600).and_then(|from| Ok((from, create_new(&b, 0o600)?)));
    let shares =
        opened.map(|(from, to)| hit_file("clone", &to).is_ok() && rustix::fs::ioctl_ficlone(&to, &from).is_ok());
    remove_file(&a)?;
    remove_file(&b)?;
    shares.map_err(at("write", &a))
}

/// Bytes that the file system holding `path` still has for us.
pub fn free_bytes(path: &Path) -> FsResult<u64> {
    if let Some(free) = failpoint::free() {
        return Ok(free);
    }
    let s = rustix::fs::statvfs(path).map_err(|e| at("look at", path)(e.into()))?;
    Ok(s.f_bavail.saturating_mul(s.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renaming_never_replaces_a_file_or_an_empty_folder() {
        let t = tempfile::tempdir().unwrap();
        let p = |n: &str| t.path().join(n);
        fs::write(p("a"), "a").unwrap();
        fs::write(p("b"), "b").unwrap();
        assert_eq!(rename_noreplace(&p("a"), &p("b")).unwrap(), Placed::Existed);
        assert_eq!(fs::read(p("b")).unwrap(), b"b");
        fs::create_dir(p("d")).unwrap();
        fs::create_dir(p("e")).unwrap();
        assert_eq!(rename_noreplace(&p("d"), &p("e")).unwrap(), Placed::Existed);
        assert!(p("d").is_dir());
        assert_eq!(rename_noreplace(&p("a"), &p("c")).unwrap(), Placed::Placed);
    }

    #[test]
    fn a_tree_with_unwritable_folders_is_removed_and_no_link_is_followed() {
        let t = tempfile::tempdir().unwrap();
        let keep = t.path().join("keep");
        fs::create_dir(&keep).unwrap();
        fs::write(keep.join("f"), "x").unwrap();
        let top = t.path().join("top");
        fs::create_dir_all(top.join("sub")).unwrap();
        fs::write(top.join("sub/f"), "y").unwrap();
        std::os::unix::fs::symlink(&keep, top.join("link")).unwrap();
        fs::set_permissions(top.join("sub"), fs::Permissions::from_mode(0o500)).unwrap();
        remove_tree(&top).unwrap();
        assert!(!top.exists() && keep.join("f").exists());
    }

    #[test]
    fn a_replaced_file_is_whole() {
        let t = tempfile::tempdir().unwrap();
        let f = t.path().join("f");
        replace_file(&f, b"one", t.path()).unwrap();
        replace_file(&f, b"two", t.path()).unwrap();
        assert_eq!(fs::read(&f).unwrap(), b"two");
        assert_eq!(names(t.path()).unwrap(), ["f"]);
    }

    #[test]
    fn a_file_and_a_link_are_replaced_from_another_file_system_too() {
        let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
        let t = tempfile::tempdir().unwrap();
        let (f, l) = (t.path().join("f"), t.path().join("l"));
        for text in ["one", "two"] {
            replace_file(&f, text.as_bytes(), elsewhere.path()).unwrap();
            replace_link(&l, Path::new(text), &elsewhere.path().join("temp")).unwrap();
            assert_eq!(fs::read_to_string(&f).unwrap(), text);
            assert_eq!(fs::read_link(&l).unwrap(), Path::new(text));
        }
        assert_eq!(names(t.path()).unwrap(), ["f", "l"]);
        assert!(names(elsewhere.path()).unwrap().is_empty());
    }
}
