//! Why an archive is not taken or not made.

use std::path::PathBuf;

use crate::audit::archive::frame::START;
use crate::store::StoreError;

/// An error of an export or import.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The bytes are no archive that this program would have written. Nothing of it was placed.
    #[error("{entry}: {what}")]
    Bad {
        /// The entry at which that was seen, or what of the archive is meant.
        entry: String,
        /// What is wrong with it.
        what: String,
    },
    /// The archive could not be read to its end.
    #[error("cannot read the archive: {0}")]
    Read(std::io::Error),
    /// The archive could not be written.
    #[error("cannot write the archive: {0}")]
    Write(std::io::Error),
    /// There is not enough room for what it holds.
    #[error("{needed} bytes are needed below {}, and {free} are free", path.display())]
    NoRoom {
        /// Bytes that are not there yet.
        needed: u64,
        /// Bytes that are free.
        free: u64,
        /// Where.
        path: PathBuf,
    },
    /// There is something at the target.
    #[error("{} is there already", path.display())]
    Exists {
        /// The target.
        path: PathBuf,
    },
    /// Another process is making the same.
    #[error("another process is making {} at this moment", path.display())]
    Busy {
        /// The target.
        path: PathBuf,
    },
    /// An object is larger than an archive may hold.
    #[error("{name} has {size} bytes, and an archive holds at most {most} of such an object")]
    TooLarge {
        /// The object.
        name: String,
        /// Its bytes.
        size: u64,
        /// The most.
        most: u64,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<crate::fsx::FsError> for ArchiveError {
    fn from(e: crate::fsx::FsError) -> Self {
        ArchiveError::Store(e.into())
    }
}

impl ArchiveError {
    pub(crate) fn bad(entry: impl ToString, what: impl Into<String>) -> Self {
        ArchiveError::Bad { entry: entry.to_string(), what: what.into() }
    }

    /// What to do next, where it can be said.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            ArchiveError::Bad { entry, .. } if entry == START => {
                "an archive is a file that `graftwerk export NODE --archive FILE` wrote; nothing was taken in"
                    .to_owned()
            }
            ArchiveError::Bad { .. } => "nothing of it was taken in; export or copy it again".to_owned(),
            ArchiveError::Read(e) if e.kind() == std::io::ErrorKind::IsADirectory => {
                "a folder is taken in by a source of graph.toml; an archive is one file".to_owned()
            }
            ArchiveError::Write(_) => {
                "nothing half-made was kept: make room where it is written, and export again".to_owned()
            }
            ArchiveError::NoRoom { .. } => "make room there, or pass --store with a folder elsewhere".to_owned(),
            ArchiveError::Exists { .. } => {
                "choose another name, or move it away: graftwerk never replaces what is there".to_owned()
            }
            ArchiveError::Busy { .. } => "wait for it, or choose another name".to_owned(),
            ArchiveError::Store(e) => return e.hint(),
            ArchiveError::Read(_) | ArchiveError::TooLarge { .. } => return None,
        })
    }
}

/// A result of an export or import.
pub type Result<T> = std::result::Result<T, ArchiveError>;
