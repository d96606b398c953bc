//! The store as a step's input files.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::digest::BlobId;
use crate::kinds::input::InputFiles;
use crate::store::Store;
use crate::store::blobs::Presence;
use crate::store::error::{Result, StoreError};
use crate::tensors::hash::hash_file;
use crate::tensors::table::TensorTable;

fn io_error(e: StoreError) -> io::Error {
    match e {
        StoreError::Fs(f) => io::Error::new(f.source.kind(), f.to_string()),
        StoreError::Gone { .. } => io::Error::new(io::ErrorKind::NotFound, e.to_string()),
        other => io::Error::other(other.to_string()),
    }
}

impl Store {
    /// The tensor table of a blob, from the store or made by reading the blob. Errors: Source where it is no
    /// safetensors file.
    pub fn table_of(&self, blob: BlobId) -> Result<TensorTable> {
        if let Some(t) = self.objects.table(blob)? {
            return Ok(t);
        }
        match self.presence(blob, false)?.path() {
            Some(path) => self.table_from(blob, path),
            None => match self.plain().source_of(blob)? {
                // One that was not at rest when it was hashed has the bytes or not: it is hashed here.
                Some((path, _)) => self.table_from(blob, &path),
                None => Err(self.gone(blob)),
            },
        }
    }

    fn table_from(&self, blob: BlobId, path: &Path) -> Result<TensorTable> {
        let file = File::open(path).map_err(crate::fsx::at("open", path))?;
        let size = file.metadata().map_err(crate::fsx::at("look at", path))?.len();
        let hashed = hash_file(&file, size, true, &mut |_| {}, &|| false).map_err(|e| StoreError::Source {
            path: path.to_owned(),
            what: e.to_string(),
            hint: None,
            away: false,
        })?;
        match hashed.table {
            Some(t) if hashed.blob == blob => {
                let mut c = self.commit();
                self.objects.put_table(blob, &t, &mut c)?;
                self.flush(&mut c)?;
                Ok(t)
            }
            _ => Err(StoreError::SourceChanged { path: path.to_owned() }),
        }
    }
}

impl InputFiles for Store {
    fn open(&self, blob: BlobId) -> io::Result<File> {
        let path = self.location(blob)?;
        File::open(path)
    }

    fn location(&self, blob: BlobId) -> io::Result<PathBuf> {
        match self.presence(blob, false).map_err(io_error)? {
            Presence::Stored(p) | Presence::Referenced(p) => Ok(p),
            Presence::Absent => Err(io_error(self.gone(blob))),
        }
    }

    fn table(&self, blob: BlobId) -> io::Result<Option<Arc<TensorTable>>> {
        match self.table_of(blob) {
            Ok(t) => Ok(Some(Arc::new(t))),
            Err(e @ StoreError::Source { .. }) => Err(io::Error::new(io::ErrorKind::InvalidData, e.to_string())),
            Err(e) => Err(io_error(e)),
        }
    }
}
