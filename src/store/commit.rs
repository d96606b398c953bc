//! Durability by groups: many objects are placed, then flushed together, and only then is the run that names them
//! recorded.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::fsx::{self, Placed};
use crate::store::error::Result;

/// Objects that were placed and are not flushed yet.
#[derive(Debug)]
pub(crate) struct Commit {
    tmp: PathBuf,
    placed: Vec<PathBuf>,
}

// A lone fsync takes about 1 ms; syncfs waits for everybody's data on that file system.
const SYNCFS_FROM: usize = 24;

static NEXT: AtomicU64 = AtomicU64::new(0);

impl Commit {
    /// A group whose half-made files lie in `tmp`, a folder of this process on the store's file system.
    pub(crate) fn new(tmp: PathBuf) -> Self {
        Self { tmp, placed: Vec::new() }
    }

    /// A fresh name in `tmp`.
    pub(crate) fn temp_path(&self) -> PathBuf {
        self.tmp.join(format!("o{}", NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// Writes a text object and renames it in. One that is there already is kept.
    pub(crate) fn place_text(&mut self, path: &Path, bytes: &[u8]) -> Result<()> {
        let temp = self.temp_path();
        fsx::write_new(&temp, bytes, 0o444)?;
        if self.place(&temp, path)? == Placed::Existed {
            fsx::remove_file(&temp)?;
        }
        Ok(())
    }

    /// Renames a finished file or folder in, never replacing.
    pub(crate) fn place(&mut self, from: &Path, to: &Path) -> Result<Placed> {
        if let Some(dir) = to.parent()
            && !dir.is_dir()
        {
            fsx::create_dir_all(dir)?;
            if let Some(up) = dir.parent() {
                self.placed.push(up.to_owned());
            }
        }
        let placed = fsx::rename_noreplace(from, to)?;
        if placed == Placed::Placed {
            self.placed.push(to.to_owned());
        }
        Ok(placed)
    }

    /// Makes everything durable that was placed.
    pub(crate) fn flush(&mut self) -> Result<()> {
        if self.placed.is_empty() {
            return Ok(());
        }
        if self.placed.len() >= SYNCFS_FROM {
            fsx::syncfs(&self.tmp)?;
        } else {
            let mut dirs: Vec<&Path> = Vec::new();
            for p in &self.placed {
                fsx::fsync(p)?;
                if let Some(d) = p.parent()
                    && !dirs.contains(&d)
                {
                    dirs.push(d);
                }
            }
            for d in dirs {
                fsx::fsync(d)?;
            }
        }
        self.placed.clear();
        Ok(())
    }
}
