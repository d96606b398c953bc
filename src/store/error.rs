//! What can be wrong with a store.

use std::io;
use std::path::PathBuf;

use crate::digest::BlobId;
use crate::fsx::FsError;
use crate::model::path::RelPath;

/// An error of the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk said no.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// Something in the store is not what its name or its format says. Never read as empty.
    #[error("the store is damaged: {} {what}", path.display())]
    Damaged {
        /// What is damaged.
        path: PathBuf,
        /// How.
        what: String,
    },
    /// The folder is no store that this program knows.
    #[error("{} is not a store of this program: {what}", path.display())]
    NotAStore {
        /// The folder.
        path: PathBuf,
        /// What was found instead.
        what: String,
    },
    /// The store has to be written to and can't be.
    #[error("the store {} can't be written to: {why}", path.display())]
    ReadOnly {
        /// The store.
        path: PathBuf,
        /// What the system says.
        why: String,
    },
    /// A file that is needed is neither in the store nor at any known place of a source.
    #[error("the bytes of {blob} are neither in the store nor at any known source: {looked}")]
    Gone {
        /// The blob.
        blob: BlobId,
        /// Where we looked.
        looked: String,
    },
    /// A source can't be taken as it is.
    #[error("{}{}{what}", path.display(), if what.starts_with("is ") { " " } else { ": " })]
    Source {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
        /// What to do.
        hint: Option<String>,
        /// Whether it is not there at all.
        away: bool,
    },
    /// A source changed while it was read.
    #[error("{} changed while it was in use; nothing of it was recorded", path.display())]
    SourceChanged {
        /// The file.
        path: PathBuf,
    },
    /// A step's output can't be taken.
    #[error("the step's output {path}: {what}")]
    Output {
        /// The path in the output.
        path: RelPath,
        /// What is wrong with it.
        what: String,
    },
    /// A copied tensor has other bytes than its source had when it was hashed.
    #[error("tensor {tensor:?} in {path} hashes to {found}, but its source had {expected}")]
    TensorDiffers {
        /// The file in the output.
        path: RelPath,
        /// The tensor.
        tensor: String,
        /// The digest it should have.
        expected: crate::digest::Digest,
        /// The digest that it has.
        found: String,
    },
    /// The build is being stopped.
    #[error("stopped")]
    Cancelled,
}

impl StoreError {
    /// What to do next, where it can be said.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            StoreError::Damaged { .. } => {
                "`graftwerk repair` puts it right, or says what must be built again; it was not touched".to_owned()
            }
            StoreError::NotAStore { .. } => {
                "pass --store with an empty folder, or the store's own; `graftwerk repair` mends a VERSION that is damaged"
                    .to_owned()
            }
            StoreError::Gone { .. } => "bring the source back to where it was, or build the node again".to_owned(),
            StoreError::SourceChanged { .. } => "let whatever writes it finish, then build again".to_owned(),
            StoreError::TensorDiffers { .. } => {
                "the source's bytes changed, or the disk returned wrong ones: build with --check-content".to_owned()
            }
            StoreError::ReadOnly { .. } => {
                "mount it for writing, or build as a user who may write to it; `status`, `plan`, `why`, `show` and `log` \
                 work as it is"
                    .to_owned()
            }
            StoreError::Fs(e) if e.source.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                "remount it for writing, or pass --store DIR".to_owned()
            }
            StoreError::Fs(e) if e.source.kind() == io::ErrorKind::PermissionDenied => {
                "it belongs to another user, or its mode keeps you out: let this user read it, in the store also write"
                    .to_owned()
            }
            StoreError::Fs(e) if e.action == "create the folder" && e.source.kind() == io::ErrorKind::NotFound => {
                "nobody can make folders there: pass --store DIR with another place".to_owned()
            }
            StoreError::Source { hint, .. } => return hint.clone(),
            StoreError::Fs(e) => return crate::fsx::hint_if_full(&e.source, &e.path),
            StoreError::Output { .. } | StoreError::Cancelled => return None,
        })
    }

    /// Whether it says that the store itself is damaged or inconsistent.
    pub fn is_damage(&self) -> bool {
        matches!(self, StoreError::Damaged { .. } | StoreError::NotAStore { .. })
    }
}

/// A result of the store.
pub type Result<T> = std::result::Result<T, StoreError>;
