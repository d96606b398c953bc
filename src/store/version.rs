//! `VERSION`: which format a store has. An older one is upgraded, one that this program does not know is refused.

use std::path::{Path, PathBuf};

use crate::fsx;
use crate::store::error::{Result, StoreError};
use crate::store::objects::read_plain;
use crate::store::plain::Version;
use crate::store::sealed::seal_older;

/// The text of a VERSION file.
pub const VERSION: &str = "graftwerk store 2\n";

// Its records and roots have no sums.
const UNSEALED: &str = "graftwerk store 1\n";

// What a folder may hold and still count as empty: a repository keeps these in the place of its store.
const NEUTRAL: &[&str] = &["README.md", ".gitignore", ".gitkeep"];

/// What the VERSION of a store says, without changing anything.
pub(crate) fn look(dir: &Path) -> Result<Version> {
    Ok(match read_plain(&dir.join("VERSION")) {
        Ok(None) => Version::Missing,
        Ok(Some(text)) if text == VERSION.as_bytes() => Version::Right,
        Ok(Some(text)) if text == UNSEALED.as_bytes() => Version::Older,
        Ok(Some(text)) => {
            let found = String::from_utf8_lossy(&text[..text.len().min(60)]).trim_end().to_owned();
            Version::Wrong(format!("says {found:?}, this program reads {:?}", VERSION.trim_end()))
        }
        Err(StoreError::Damaged { what, .. }) => Version::Wrong(what),
        Err(e) => return Err(e),
    })
}

/// The VERSION that what lies in a store proves: listings that hash to their names are of a format that all versions
/// share; records and roots are sealed or are not. `None` where nothing reads.
pub(crate) fn proven(dir: &Path) -> Result<Option<&'static str>> {
    let (mut sealed, mut unsealed, mut listings) = (0u32, 0u32, 0u32);
    let mut records: Vec<PathBuf> = Vec::new();
    for folder in fsx::names(&dir.join("runs"))? {
        let folder = dir.join("runs").join(folder);
        records.extend(fsx::names(&folder).unwrap_or_default().iter().map(|n| folder.join(n)));
    }
    records.extend(fsx::names(&dir.join("roots"))?.iter().map(|n| dir.join("roots").join(n)));
    for record in records {
        let Ok(Some(bytes)) = read_plain(&record) else { continue };
        match seal_older(&bytes) {
            Ok(None) => sealed += 1,
            // A sum that does not hold is damage, and says nothing of a version.
            Ok(Some(_)) if !bytes.windows(6).any(|w| w == b"\"sum\":") => unsealed += 1,
            _ => {}
        }
    }
    for shard in fsx::names(&dir.join("trees"))? {
        let folder = dir.join("trees").join(&shard);
        for name in fsx::names(&folder).unwrap_or_default() {
            let Ok(Some(bytes)) = read_plain(&folder.join(&name)) else { continue };
            let hex = format!("{}{}", shard.to_string_lossy(), name.to_string_lossy());
            if crate::digest::Digest::of(&bytes).hex() == hex && bytes.starts_with(b"graftwerk tree 1\n") {
                listings += 1;
            }
        }
    }
    Ok(match (sealed, unsealed, listings) {
        (0, 0, 0) => None,
        // Also where an upgrade was cut off: it goes on.
        (_, 1.., _) => Some(UNSEALED),
        _ => Some(VERSION),
    })
}

/// Whether nobody has begun a store in this folder, which may be none.
pub(crate) fn is_nothing(dir: &Path) -> bool {
    !dir.is_dir() || fsx::names(dir).is_ok_and(|names| names.iter().all(is_neutral))
}

// Another process may be making it at this moment: the VERSION's temporary name is no content.
fn is_neutral(n: &std::ffi::OsString) -> bool {
    NEUTRAL.iter().any(|k| n.as_os_str() == *k) || n.to_string_lossy().starts_with(".graftwerk-")
}

/// Makes sure that `dir` is a store of this version: begins one where there is nothing, upgrades an older one. Errors:
/// NotAStore for anything else; Damaged where an older store's record does not read.
pub(crate) fn check(dir: &Path) -> Result<()> {
    let path = dir.join("VERSION");
    match read_plain(&path)? {
        Some(text) if text == VERSION.as_bytes() => return Ok(()),
        Some(text) if text == UNSEALED.as_bytes() => return upgrade(dir),
        Some(text) => {
            let found = String::from_utf8_lossy(&text[..text.len().min(60)]).trim_end().to_owned();
            let what = format!("its VERSION says {found:?}, this program reads {:?}", VERSION.trim_end());
            return Err(StoreError::NotAStore { path: dir.to_owned(), what });
        }
        None => {}
    }
    let names = fsx::names(dir)?;
    if let Some(other) = names.iter().find(|n| !is_neutral(n)) {
        // A store being made by another process has its VERSION first of all.
        if read_plain(&path)?.is_some() {
            return check(dir);
        }
        let what = format!("it has no VERSION, but holds {}", other.to_string_lossy());
        return Err(StoreError::NotAStore { path: dir.to_owned(), what });
    }
    match fsx::replace_file(&path, VERSION.as_bytes(), dir) {
        // Another process was first, and has swept ours away.
        Err(_) if read_plain(&path)?.as_deref() == Some(VERSION.as_bytes()) => Ok(()),
        written => Ok(written?),
    }
}

// Seals every record and every root, then says so. Each is replaced whole, and one that is sealed is left, so an upgrade
// that was cut off goes on where it was.
fn upgrade(dir: &Path) -> Result<()> {
    let lock = dir.join("locks/upgrade");
    let Some(_held) = fsx::lock::lock(&lock, "upgrading the store", true, &mut |_| {}, &|| false)? else {
        return Err(StoreError::Cancelled);
    };
    let path = dir.join("VERSION");
    if read_plain(&path)?.as_deref() != Some(UNSEALED.as_bytes()) {
        // Whoever held the lock has done it.
        return check(dir);
    }
    let mut records: Vec<PathBuf> = Vec::new();
    let runs = dir.join("runs");
    for recipe in fsx::names(&runs)? {
        let folder = runs.join(recipe);
        if folder.is_dir() {
            records.extend(fsx::names(&folder)?.iter().map(|n| folder.join(n)));
        }
    }
    let roots = dir.join("roots");
    records.extend(fsx::names(&roots)?.iter().map(|n| roots.join(n)));
    for record in records {
        let Some(bytes) = read_plain(&record)? else { continue };
        match seal_older(&bytes) {
            Ok(None) => {}
            Ok(Some(sealed)) => {
                fsx::replace_file(&record, &sealed, dir)?;
                if record.starts_with(&runs) {
                    fsx::set_mode(&record, 0o444)?;
                }
            }
            // Damage stays what it is, to be told by whoever reads it.
            Err(_) => {}
        }
    }
    Ok(fsx::replace_file(&path, VERSION.as_bytes(), dir)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_store_of_version_1_is_upgraded_and_an_unknown_one_is_refused() {
        let t = tempfile::tempdir().unwrap();
        let dir = t.path();
        fs::write(dir.join("VERSION"), UNSEALED).unwrap();
        let run = dir.join("runs/r/000001.json");
        fs::create_dir_all(run.parent().unwrap()).unwrap();
        fs::write(&run, "{\n  \"seq\": 1\n}\n").unwrap();
        fs::create_dir_all(dir.join("roots")).unwrap();
        fs::write(dir.join("roots/p.json"), "{ cut").unwrap();
        check(dir).unwrap();
        assert_eq!(fs::read_to_string(dir.join("VERSION")).unwrap(), VERSION);
        assert!(fs::read_to_string(&run).unwrap().contains("\"sum\": \"b3:"));
        assert_eq!(fs::read_to_string(dir.join("roots/p.json")).unwrap(), "{ cut", "damage is left as it is");
        for odd in ["graftwerk store 0\n", "graftwerk store 3\n", "graftwerk store 2", "", "\u{0}\u{0}"] {
            fs::write(dir.join("VERSION"), odd).unwrap();
            assert!(matches!(check(dir), Err(StoreError::NotAStore { .. })), "{odd:?}");
            assert_eq!(fs::read_to_string(dir.join("VERSION")).unwrap(), odd);
        }
    }

    #[test]
    fn a_version_is_proven_by_what_reads_and_by_nothing_else() {
        let t = tempfile::tempdir().unwrap();
        let dir = t.path();
        assert_eq!(proven(dir).unwrap(), None);
        let write = |path: &str, bytes: &[u8]| {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        };
        // Damage proves nothing.
        write("runs/r/000001.json", b"{\n  \"seq\": 1,\n  \"sum\": \"b3:00\"\n}\n");
        write("runs/r/000002.json", b"{\n  \"seq\"");
        write("trees/00/11", b"graftwerk tree 1\n");
        assert_eq!(proven(dir).unwrap(), None);
        let sealed = seal_older(b"{\n  \"seq\": 3\n}\n").unwrap().unwrap();
        write("runs/r/000003.json", &sealed);
        assert_eq!(proven(dir).unwrap(), Some(VERSION));
        // An upgrade that was cut off goes on.
        write("runs/r/000004.json", b"{\n  \"seq\": 4\n}\n");
        assert_eq!(proven(dir).unwrap(), Some(UNSEALED));
    }
}
