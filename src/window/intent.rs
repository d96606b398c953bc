//! What a window is about to do, written down before it does anything: it outlives the process and the boot.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::fsx::{self, FsError};
use crate::host::{self, Process};
use crate::store::sealed;

/// A neighbour, as it was when the window opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbour {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: String,
    /// Whether it must be brought back: it ran, or somebody else had stopped it who owed the same.
    pub was_running: bool,
    /// Whether its own check said that it was not well: then nobody waits for that afterwards.
    pub was_unhealthy: bool,
}

/// A window's intent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// Its id, which the containers of its steps carry as a label.
    pub id: String,
    /// The window's name.
    pub window: String,
    /// Where the engine is.
    pub engine: String,
    /// What tells that engine from others.
    pub engine_id: String,
    /// The node that it was opened for.
    pub node: String,
    /// The store's folder.
    pub store: String,
    /// Who opened it.
    pub process: Process,
    /// When, RFC 3339.
    pub opened: String,
    /// Seconds that each neighbour has to end by itself.
    pub grace_seconds: u32,
    /// Seconds that each has to get healthy again.
    pub healthy_seconds: u32,
    /// The neighbours, in the order in which they are stopped.
    pub neighbours: Vec<Neighbour>,
}

/// An intent's file, as it was found.
#[derive(Debug, Clone)]
pub struct Record {
    /// The file.
    pub path: PathBuf,
    /// What it says, or what is wrong with it.
    pub intent: Result<Intent, String>,
}

fn folder() -> PathBuf {
    host::state().join("windows")
}

impl Intent {
    pub(super) fn path(&self) -> PathBuf {
        folder().join(format!("{}.json", self.id))
    }

    /// Writes it down, durably.
    pub(super) fn write(&self) -> Result<(), FsError> {
        let dir = folder();
        if !dir.is_dir() {
            fsx::create_dir_all(&dir)?;
            // A folder whose name is lost has lost what is in it.
            for made in dir.ancestors().skip(1).take(3).filter(|d| !d.as_os_str().is_empty()) {
                fsx::fsync(made)?;
            }
        }
        let path = self.path();
        let bytes = sealed::seal(self).map_err(fsx::at("write", &path))?;
        fsx::replace_file(&path, &bytes, &dir)
    }

    /// Takes it back: everything is as it was.
    pub(super) fn remove(&self) -> Result<(), FsError> {
        fsx::remove_file(&self.path())?;
        fsx::fsync(&folder())
    }

    /// Reads one again; `None` where it is gone.
    pub(super) fn read(path: &Path) -> Result<Option<Result<Intent, String>>, FsError> {
        Ok(fsx::read_optional(path)?.map(|bytes| sealed::unseal(&bytes)))
    }
}

/// All intents of this user that are written down, by file name. One look at a folder where there are none. Errors: the
/// folder can't be read.
pub fn records() -> Result<Vec<Record>, FsError> {
    let dir = folder();
    let mut all = Vec::new();
    for name in fsx::names(&dir)? {
        let path = dir.join(&name);
        // Whatever else lies there, such as the half of a file that a crash left, is no intent.
        if path.extension().is_none_or(|e| e != "json") || name.to_string_lossy().starts_with('.') {
            continue;
        }
        if let Some(intent) = Intent::read(&path)? {
            all.push(Record { path, intent });
        }
    }
    Ok(all)
}

/// A fresh id: no two windows of a host, in whatever boot, have one.
pub(super) fn fresh_id(process: &Process) -> String {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let n = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    format!("{:x}-{}-{n}", fsx::stat::now_ns(), process.pid)
}
