//! What a step reads.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::digest::BlobId;
use crate::model::path::RelPath;
use crate::model::tree::{Entry, Tree};
use crate::tensors::table::TensorTable;

/// Opens the blobs of an input. The engine provides it; a test makes one over a folder.
pub trait InputFiles: Send + Sync {
    /// Opens a blob for reading. Read with `pread` (`FileExt::read_exact_at`), never by a map: a source may be
    /// truncated under us.
    fn open(&self, blob: BlobId) -> io::Result<File>;

    /// Where the blob can be read on this host, for messages and for mounts.
    fn location(&self, blob: BlobId) -> io::Result<PathBuf>;

    /// The tensor table of a safetensors blob, made in the pass that hashed it. `None` for a blob that is none.
    /// A file whose name ends in `.safetensors` and that is broken is an error of kind `InvalidData`.
    fn table(&self, blob: BlobId) -> io::Result<Option<Arc<TensorTable>>>;
}

/// One input of a step: a tree under an alias.
#[derive(Clone)]
pub struct Input {
    /// The name inside; never the node's name.
    pub alias: String,
    /// The (filtered) tree. A file source is a tree of one file.
    pub tree: Arc<Tree>,
    /// Its bytes.
    pub files: Arc<dyn InputFiles>,
    /// Whether the input is a single file source (its own name is not hashed; it is mounted as `/in/ALIAS`).
    pub single_file: bool,
    /// Where it is mounted instead of `/in/ALIAS`, if declared.
    pub at: Option<String>,
}

/// The alias under which a step's own output is looked at.
pub const OUTPUT: &str = "out";

impl Input {
    /// What messages call it.
    pub fn called(&self) -> String {
        if self.alias == OUTPUT { "the step's output".to_owned() } else { format!("the input `{}`", self.alias) }
    }

    /// Reads a whole file of at most `limit` bytes. Errors: `NotFound`, `FileTooLarge`, or what the disk says; the
    /// message names the path and the alias.
    pub fn read(&self, path: &RelPath, limit: u64) -> io::Result<Vec<u8>> {
        let Some(Entry::File { blob, size, .. }) = self.tree.get(path) else {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("{path} is not in {}", self.called())));
        };
        if *size > limit {
            let what = format!("{path} of {} has {size} bytes, more than {limit}", self.called());
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
        }
        let file = self.files.open(*blob)?;
        let mut buf = vec![0; usize::try_from(*size).map_err(io::Error::other)?];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut buf, 0)?;
        Ok(buf)
    }

    /// The single file of a file source.
    pub fn only_file(&self) -> Option<(&RelPath, BlobId, u64)> {
        let mut files = self.tree.files();
        let (path, blob, size, _) = files.next()?;
        if files.next().is_some() { None } else { Some((path, blob, size)) }
    }
}
