//! `refs/<blob>`: where a source that is referenced in place has these bytes.
//!
//! A place below the folder that holds the store is kept relative to it, so that a project moved as a whole finds its
//! sources again. The stat says when the bytes are still those that were hashed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

use crate::digest::{BlobId, Digest};
use crate::fsx::{self, FileStat, at};
use crate::store::error::{Result, StoreError};
use crate::store::objects::read_plain;
use crate::store::sealed::{seal, unseal};

/// One place of a blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Place {
    /// Path, as text where it is UTF-8.
    #[serde(default)]
    path: Option<String>,
    /// Path bytes in hex where it is not.
    #[serde(default)]
    path_hex: Option<String>,
    /// Whether the path is relative to the folder that holds the store.
    #[serde(default)]
    in_project: bool,
    // Not flattened: serde's buffer for that holds no 128-bit integers, and the ref would never read back.
    stat: FileStat,
    /// When it was hashed, ns since 1970: whether it was at rest then.
    #[serde(with = "crate::fsx::stat::ns")]
    looked_ns: i128,
}

impl Place {
    fn same_file(&self, other: &Place) -> bool {
        self.path == other.path && self.path_hex == other.path_hex && self.in_project == other.in_project
    }

    fn at_rest(&self) -> bool {
        self.stat.at_rest(self.looked_ns)
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Places {
    places: Vec<Place>,
}

/// Reads a ref. Errors: what is wrong with it, to be read behind its path.
pub(crate) fn read(bytes: &[u8]) -> std::result::Result<Places, String> {
    unseal(bytes).or_else(|what| {
        // Refs were not sealed at first, and were written on one line.
        let older = bytes.starts_with(b"{\"places\":[");
        older.then(|| serde_json::from_slice(bytes).ok()).flatten().ok_or(what)
    })
}

/// The folder `refs/`.
pub(crate) struct Refs {
    dir: PathBuf,
    project: PathBuf,
    // Where half-made files lie, to be swept after a crash.
    tmp: PathBuf,
    read_only: bool,
    // Places that this process hashed itself: good for it even where the file was not at rest.
    seen: Mutex<HashMap<BlobId, (PathBuf, FileStat)>>,
}

const MOST_PLACES: usize = 16;

impl Refs {
    pub(crate) fn new(dir: PathBuf, project: PathBuf, tmp: PathBuf, read_only: bool) -> Self {
        Self { dir, project, tmp, read_only, seen: Mutex::default() }
    }

    fn file(&self, blob: BlobId) -> PathBuf {
        let hex = blob.hex();
        self.dir.join(&hex[..2]).join(&hex[2..])
    }

    // A damaged ref is no damage of the store: the source is looked at and hashed again.
    fn load(&self, blob: BlobId) -> Result<Places> {
        let bytes = match read_plain(&self.file(blob)) {
            Err(StoreError::Damaged { .. }) => None,
            read => read?,
        };
        Ok(bytes.and_then(|b| read(&b).ok()).unwrap_or_default())
    }

    /// Remembers that `path` has the bytes of `blob` while it looks like `stat`. The newest place stands first; the
    /// same file at an earlier path or stat is replaced, so a moved source is followed.
    /// Comes back: the file that was written, to be flushed before a run names the blob.
    pub(crate) fn add(&self, blob: BlobId, path: &Path, stat: &FileStat, looked_ns: i128) -> Result<Option<PathBuf>> {
        if let Ok(mut seen) = self.seen.lock() {
            seen.insert(blob, (path.to_owned(), *stat));
        }
        if self.read_only {
            return Ok(None);
        }
        let place = self.place(path, stat, looked_ns);
        let mut places = self.load(blob)?.places;
        if places.iter().any(|p| p.same_file(&place) && p.stat == *stat && p.at_rest() >= place.at_rest()) {
            return Ok(None);
        }
        places.retain(|p| !p.same_file(&place) && (p.stat.dev, p.stat.ino) != (stat.dev, stat.ino));
        places.insert(0, place);
        places.truncate(MOST_PLACES);
        let file = self.file(blob);
        if let Some(dir) = file.parent() {
            fsx::create_dir_all(dir)?;
        }
        let text = seal(&Places { places }).map_err(at("write", &file))?;
        let temp = crate::store::commit::Commit::new(self.tmp.clone()).temp_path();
        fsx::write_new(&temp, &text, 0o644)?;
        if std::fs::symlink_metadata(&file).is_ok_and(|m| m.is_dir()) {
            fsx::remove_tree(&file)?;
        }
        fsx::rename_over(&temp, &file)?;
        Ok(Some(file))
    }

    fn place(&self, path: &Path, stat: &FileStat, looked_ns: i128) -> Place {
        let (path, in_project) = match path.strip_prefix(&self.project) {
            Ok(rel) => (rel, true),
            Err(_) => (path, false),
        };
        match path.to_str() {
            Some(s) => Place { path: Some(s.to_owned()), path_hex: None, in_project, stat: *stat, looked_ns },
            None => {
                use std::os::unix::ffi::OsStrExt as _;
                let hex = path.as_os_str().as_bytes().iter().map(|b| format!("{b:02x}")).collect();
                Place { path: None, path_hex: Some(hex), in_project, stat: *stat, looked_ns }
            }
        }
    }

    fn path_of(&self, p: &Place) -> Option<PathBuf> {
        let path = match (&p.path, &p.path_hex) {
            (Some(s), _) => PathBuf::from(s),
            (None, Some(hex)) => {
                use std::os::unix::ffi::OsStringExt as _;
                let bytes: Option<Vec<u8>> =
                    (0..hex.len() / 2).map(|i| u8::from_str_radix(hex.get(2 * i..2 * i + 2)?, 16).ok()).collect();
                PathBuf::from(std::ffi::OsString::from_vec(bytes?))
            }
            (None, None) => return None,
        };
        Some(if p.in_project { self.project.join(path) } else { path })
    }

    /// A place that still looks as it did when it was hashed.
    pub(crate) fn find(&self, blob: BlobId) -> Result<Option<PathBuf>> {
        let seen = self.seen.lock().ok().and_then(|s| s.get(&blob).cloned());
        if let Some((path, stat)) = seen
            && FileStat::at(&path).is_ok_and(|now| now == stat)
        {
            return Ok(Some(path));
        }
        for p in self.load(blob)?.places {
            // One that was not at rest may have changed since without its stat showing it.
            if p.at_rest()
                && let Some(path) = self.path_of(&p)
                && FileStat::at(&path).is_ok_and(|now| now == p.stat)
            {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    /// All known places of a blob, right or not, for messages.
    pub(crate) fn places(&self, blob: BlobId) -> Result<Vec<PathBuf>> {
        Ok(self.load(blob)?.places.iter().filter_map(|p| self.path_of(p)).collect())
    }

    /// Each place with its path: what it looked like, and whether it was at rest then.
    pub(crate) fn located(&self, places: &Places) -> Vec<(PathBuf, FileStat, bool)> {
        places.places.iter().filter_map(|p| Some((self.path_of(p)?, p.stat, p.at_rest()))).collect()
    }

    /// Every digest that the refs know, with its stat: what a lost index is made from. Ends early once `stop` is set.
    pub(crate) fn known(&self, stop: &AtomicBool) -> Vec<(FileStat, BlobId)> {
        let mut all = Vec::new();
        for sub in fsx::names(&self.dir).unwrap_or_default() {
            let dir = self.dir.join(&sub);
            for name in fsx::names(&dir).unwrap_or_default() {
                if stop.load(Ordering::Relaxed) {
                    return all;
                }
                let hex = format!("{}{}", sub.to_string_lossy(), name.to_string_lossy());
                let Ok(digest) = Digest::from_hex(&hex) else { continue };
                if let Ok(places) = self.load(BlobId(digest)) {
                    all.extend(places.places.iter().filter(|p| p.at_rest()).map(|p| (p.stat, BlobId(digest))));
                }
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ref_reads_back_and_is_not_written_again() {
        let t = tempfile::tempdir().unwrap();
        let source = t.path().join("source");
        std::fs::write(&source, "x").unwrap();
        let stat = FileStat::at(&source).unwrap();
        let blob = BlobId(Digest::of(b"x"));
        let refs = || Refs::new(t.path().join("refs"), t.path().to_owned(), t.path().to_owned(), false);
        for looked in [i128::MAX, stat.mtime_ns + 1] {
            refs().add(blob, &source, &stat, looked).unwrap();
            let before = FileStat::at(&refs().file(blob)).unwrap();
            assert_eq!(refs().places(blob).unwrap(), std::slice::from_ref(&source));
            refs().add(blob, &source, &stat, looked).unwrap();
            assert_eq!(FileStat::at(&refs().file(blob)).unwrap(), before, "written again");
            let at_rest = looked == i128::MAX;
            assert_eq!(refs().known(&AtomicBool::new(false)), if at_rest { vec![(stat, blob)] } else { vec![] });
            assert_eq!(refs().find(blob).unwrap().is_some(), at_rest);
            std::fs::remove_file(refs().file(blob)).unwrap();
        }
    }

    #[test]
    fn a_place_is_found_by_the_next_process_and_not_written_again_whatever_its_times_are() {
        let t = tempfile::tempdir().unwrap();
        let source = t.path().join("source");
        std::fs::write(&source, "x").unwrap();
        let year_9999 = std::time::UNIX_EPOCH + std::time::Duration::from_secs(253_370_764_800);
        // Where the file system can't hold that date, its own latest will do.
        std::fs::File::options().write(true).open(&source).unwrap().set_modified(year_9999).unwrap();
        let blob = BlobId(Digest::of(b"x"));
        let open = || Refs::new(t.path().join("refs"), t.path().join("elsewhere"), t.path().to_owned(), false);
        let stat = FileStat::at(&source).unwrap();
        open().add(blob, &source, &stat, i128::MAX).unwrap();
        assert_eq!(open().find(blob).unwrap().as_deref(), Some(source.as_path()));
        assert_eq!(open().known(&AtomicBool::new(false)), [(stat, blob)]);
        let before = FileStat::at(&open().file(blob)).unwrap();
        open().add(blob, &source, &stat, i128::MAX).unwrap();
        assert_eq!(FileStat::at(&open().file(blob)).unwrap(), before);
    }
}
