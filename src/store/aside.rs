//! `quarantine/`: what is damaged is moved there when right bytes take its place or a repair begins, and is never deleted.
//! Beside it stands a text that says what it was, what was wrong, when, and by which command.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::canon::{plain_or_quoted, quote};
use crate::fsx::lock::{host_name, lock};
use crate::fsx::{self, Placed};
use crate::store::error::{Result, StoreError};
use crate::store::objects::{Notes, read_plain};
use crate::store::plain::Plain;

// One at a time, so that nobody moves what another has put in the place of damage.
const LOCK: &str = "locks/aside";

/// Which file it was that somebody looked at: device and inode. `None` where there is none.
pub(crate) fn seen(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|m| (m.dev(), m.ino()))
}

/// Moves what is damaged to a fresh name in `quarantine/`, with a text beside it. `None` where the file that was
/// [`seen`] is not there any more: somebody was faster.
fn set_aside(
    store: &Path,
    path: &Path,
    looked_at: Option<(u64, u64)>,
    name: &str,
    what: &str,
) -> Result<Option<PathBuf>> {
    let dir = store.join("quarantine");
    fsx::create_dir_all(&dir)?;
    let held = lock(&store.join(LOCK), "setting damage aside", false, &mut |_| {}, &|| false)?;
    let Some(_held) = held else { return Err(StoreError::Cancelled) };
    if looked_at.is_none() || seen(path) != looked_at {
        return Ok(None);
    }
    let mut n = 1u32;
    loop {
        let target = dir.join(format!("{name}-{n}"));
        if target.symlink_metadata().is_err() {
            // Before it is moved, so that nothing lies there of which nobody knows what it is. One that stands alone was
            // written by whoever was killed between the two.
            write_note(&target, path, what)?;
            if fsx::rename_noreplace(path, &target)? == Placed::Placed {
                fsx::fsync(&dir)?;
                return Ok(Some(target));
            }
        }
        n += 1;
    }
}

/// The same, and says so in a note.
pub(crate) fn set_aside_telling(
    store: &Path,
    path: &Path,
    looked_at: Option<(u64, u64)>,
    (name, what): (&str, &str),
    notes: &Notes,
) -> Result<()> {
    if let Some(target) = set_aside(store, path, looked_at, name, what)?
        && let Ok(mut notes) = notes.lock()
    {
        notes.push(format!("{} {what}: set aside as {}", path.display(), target.display()));
    }
    Ok(())
}

/// Whether `path` holds just this text. What is there and is another, or no file, is damage (a broken disk leaves such),
/// and is set aside: the right text is at hand.
pub(crate) fn is_or_set_aside(store: &Path, path: &Path, text: &[u8], name: &str, notes: &Notes) -> Result<bool> {
    let looked_at = seen(path);
    let what = match read_plain(path) {
        Ok(None) => return Ok(false),
        Ok(Some(there)) if there == text => return Ok(true),
        Ok(Some(_)) => "is not what its name says".to_owned(),
        Err(StoreError::Damaged { what, .. }) => what,
        Err(e) => return Err(e),
    };
    set_aside_telling(store, path, looked_at, (name, &what), notes)?;
    Ok(false)
}

impl Plain {
    /// Moves what is damaged to a fresh name in `quarantine/`, with a text beside it that says what it was. `None` where
    /// there is nothing.
    pub fn set_aside(&self, path: &Path, name: &str, what: &str) -> Result<Option<PathBuf>> {
        set_aside(&self.dir, path, seen(path), name, what)
    }

    /// Writes down in `quarantine/` that something is gone for good, so that it is not looked for again.
    pub fn note_lost(&self, path: &Path, name: &str, what: &str) -> Result<()> {
        let dir = self.dir.join("quarantine");
        fsx::create_dir_all(&dir)?;
        let note = dir.join(format!("{name}-lost"));
        // Anew where it was brought back since: the time in it counts.
        write_note(&note, path, what)
    }

    /// When a repair gave up what has this name in `quarantine/`; `None` where none did. A note that does not say when is as
    /// good as one of just now.
    pub fn given_up(&self, name: &str) -> Option<jiff::Timestamp> {
        let note = beside(&self.dir.join("quarantine").join(format!("{name}-lost")));
        note.symlink_metadata().ok()?;
        let text = std::fs::read_to_string(&note).unwrap_or_default();
        let when = text.lines().find_map(|l| l.strip_prefix("set aside ")).and_then(|w| w.parse().ok());
        Some(when.unwrap_or_else(jiff::Timestamp::now))
    }
}

fn beside(file: &Path) -> PathBuf {
    let mut note = file.as_os_str().to_owned();
    note.push(".txt");
    PathBuf::from(note)
}

fn write_note(of: &Path, path: &Path, what: &str) -> Result<()> {
    let note = beside(of);
    // To the last digit: it is held against the times of runs.
    let when = jiff::Timestamp::now();
    let command: Vec<String> = std::env::args_os().enumerate().map(|(i, arg)| shown(i, &arg)).collect();
    let (pid, host) = (std::process::id(), host_name());
    let text = format!(
        "{} {what}\nset aside {when}\nby process {pid} on {host}: {}\n",
        plain_or_quoted(path.as_os_str().as_encoded_bytes()),
        command.join(" ")
    );
    fsx::remove_file(&note)?;
    fsx::write_new(&note, text.as_bytes(), 0o644)?;
    Ok(fsx::fsync(&note)?)
}

// As somebody would type it; whatever has odd characters in quotes.
fn shown(i: usize, arg: &OsString) -> String {
    let arg = if i == 0 { Path::new(arg).file_name().unwrap_or(arg).to_owned() } else { arg.clone() };
    let bytes = arg.as_encoded_bytes();
    let plain = !bytes.is_empty() && bytes.iter().all(|b| b.is_ascii_graphic() && !matches!(b, b'"' | b'\'' | b'\\'));
    if plain { String::from_utf8_lossy(bytes).into_owned() } else { quote(bytes) }
}
