//! A record of every call that changed the disk, for a model of what a power loss leaves: `DIR/calls`, one JSON object a
//! line, and the bytes of files as they were then, in `DIR/BLAKE3`.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::fsx::failpoint::Call;

/// Writes the record.
pub(super) struct Recorder {
    dir: PathBuf,
    calls: File,
}

impl Recorder {
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        Ok(Self { dir: dir.to_owned(), calls: File::options().append(true).create(true).open(dir.join("calls"))? })
    }

    /// Notes a call that was done. Errors: the record's own; a harness must not take half of one for the whole.
    pub(super) fn note(&mut self, call: Call<'_>) -> io::Result<()> {
        let (op, path) = call.parts();
        let path = std::path::absolute(path)?;
        let mut line = json!({ "op": op, "path": path.to_string_lossy() });
        match call {
            Call::Rename(from, _) | Call::Link(from, _) => {
                line["from"] = std::path::absolute(from)?.to_string_lossy().into();
            }
            Call::Symlink(target, _) => line["target"] = target.to_string_lossy().into(),
            Call::Chmod(_, mode) => line["mode"] = mode.into(),
            _ => {}
        }
        if matches!(call, Call::Write(_) | Call::Rename(..) | Call::Link(..) | Call::Fsync(_))
            && fs::symlink_metadata(&path).is_ok_and(|m| m.is_file())
        {
            line["content"] = self.keep(&path)?.into();
        }
        writeln!(self.calls, "{line}")
    }

    fn keep(&self, path: &Path) -> io::Result<String> {
        let bytes = fs::read(path)?;
        let name = blake3::hash(&bytes).to_hex().to_string();
        let at = self.dir.join(&name);
        if !at.exists() {
            fs::write(at, bytes)?;
        }
        Ok(name)
    }
}
