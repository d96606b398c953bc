//! One of two checkpoints that are compared: its files and its tensors, and where their bytes are.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::digest::{BlobId, Digest, TreeId};
use crate::fsx::at;
use crate::model::path::RelPath;
use crate::model::tree::{Entry, Tree};
use crate::store::error::{Result, StoreError};
use crate::store::{Presence, Store};
use crate::tensors::dtype::Dtype;
use crate::tensors::hash::HashError;
use crate::tensors::header::Header;
use crate::tensors::table::TensorTable;

/// A file, link or empty folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SideFile {
    /// A file.
    File {
        /// Its bytes' number.
        size: u64,
        /// Whether its owner may execute it.
        executable: bool,
        /// Its digest, where it is known.
        blob: Option<BlobId>,
        /// Where its bytes can be read; `None` where a collector took them.
        path: Option<PathBuf>,
    },
    /// A link, as it stands there.
    Link(Vec<u8>),
    /// A folder without anything in it.
    EmptyDir,
}

/// A tensor and where its bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SideTensor {
    /// Its element type.
    pub dtype: Dtype,
    /// Its shape; empty for a scalar.
    pub shape: Vec<u64>,
    /// The file that it stands in.
    pub file: RelPath,
    /// Where its bytes start in that file.
    pub offset: u64,
    /// Their number.
    pub len: u64,
    /// BLAKE3 of its bytes, where it is known.
    pub digest: Option<Digest>,
}

/// One of the two.
#[derive(Debug, Default)]
pub struct Side {
    /// As it was asked for.
    pub name: String,
    /// Its tree, where a store has it.
    pub tree: Option<TreeId>,
    /// What is in it, by path.
    pub files: BTreeMap<RelPath, SideFile>,
    /// Its tensors by name; those of a folder below have that before their names.
    pub tensors: BTreeMap<String, SideTensor>,
    /// `__metadata__` and the start of the data of each safetensors file.
    pub headers: BTreeMap<RelPath, ShardHeader>,
    /// What is odd in it.
    pub notes: Vec<String>,
    open: Mutex<HashMap<RelPath, Arc<File>>>,
}

/// What a shard's header says besides tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardHeader {
    /// Where the data start.
    pub data_start: u64,
    /// `__metadata__`, in the order of the file.
    pub metadata: Option<Vec<(String, String)>>,
}

/// Whether a file of this path is taken for safetensors.
pub fn is_safetensors(path: &RelPath) -> bool {
    path.file_name().ends_with(b".safetensors")
}

impl Side {
    /// A side without anything in it.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// A tree of a store. Bytes that a collector took are no error: their digests are known. Errors: the store's.
    pub fn of_tree(name: &str, id: TreeId, tree: &Tree, store: &Store) -> Result<Self> {
        let mut side = Self { tree: Some(id), ..Self::new(name) };
        let mut gone = 0usize;
        for (path, entry) in tree.iter() {
            let file = match entry {
                Entry::File { blob, size, executable } => {
                    let path = match store.presence(*blob, *executable)? {
                        Presence::Stored(p) | Presence::Referenced(p) => Some(p),
                        Presence::Absent => None,
                    };
                    gone += usize::from(path.is_none());
                    SideFile::File { size: *size, executable: *executable, blob: Some(*blob), path }
                }
                Entry::Link { target } => SideFile::Link(target.clone()),
                Entry::EmptyDir => SideFile::EmptyDir,
            };
            if let SideFile::File { blob: Some(blob), .. } = &file
                && is_safetensors(path)
            {
                match store.table_of(*blob) {
                    Ok(table) => side.take_table(path, &table),
                    Err(StoreError::Source { what, .. }) => {
                        side.notes.push(format!("{path} is compared as bytes: {what}"));
                    }
                    Err(StoreError::Gone { .. }) => {
                        side.notes.push(format!("{path} is gone, and so is what was known of its tensors"));
                    }
                    Err(e) => return Err(e),
                }
            }
            side.files.insert(path.clone(), file);
        }
        if gone > 0 {
            side.notes.push(format!("the bytes of {gone} of its files are not there: only digests are compared"));
        }
        Ok(side)
    }

    fn take_table(&mut self, path: &RelPath, table: &TensorTable) {
        let header = ShardHeader { data_start: table.data_start, metadata: table.metadata.clone() };
        self.headers.insert(path.clone(), header);
        for t in &table.tensors {
            let tensor = SideTensor {
                dtype: t.dtype,
                shape: t.shape.clone(),
                file: path.clone(),
                offset: table.data_start + t.begin,
                len: t.len(),
                digest: Some(t.digest),
            };
            self.take_tensor(&t.name, tensor);
        }
    }

    pub(super) fn take_header(&mut self, path: &RelPath, header: Header) {
        let shard = ShardHeader { data_start: header.data_start, metadata: header.metadata };
        for t in header.tensors {
            let (offset, len) = (shard.data_start + t.begin, t.end - t.begin);
            let tensor = SideTensor { dtype: t.dtype, shape: t.shape, file: path.clone(), offset, len, digest: None };
            self.take_tensor(&t.name, tensor);
        }
        self.headers.insert(path.clone(), shard);
    }

    fn take_tensor(&mut self, name: &str, tensor: SideTensor) {
        let name = match tensor.file.as_str().and_then(|f| f.rsplit_once('/')) {
            Some((folder, _)) => format!("{folder}/{name}"),
            None => name.to_owned(),
        };
        if let Some(first) = self.tensors.get(&name) {
            self.notes.push(format!(
                "{name} stands in {} and in {}: the second is compared, as servers take it",
                first.file, tensor.file
            ));
        }
        self.tensors.insert(name, tensor);
    }

    /// Whether the bytes of a tensor can be read.
    pub fn has_bytes(&self, tensor: &SideTensor) -> bool {
        matches!(self.files.get(&tensor.file), Some(SideFile::File { path: Some(_), .. }))
    }

    /// Where a file's bytes are.
    pub fn path_of(&self, file: &RelPath) -> Option<&Path> {
        match self.files.get(file) {
            Some(SideFile::File { path, .. }) => path.as_deref(),
            _ => None,
        }
    }

    fn opened(&self, file: &RelPath) -> Result<Arc<File>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(f) = open.get(file) {
            return Ok(Arc::clone(f));
        }
        let path = self.path_of(file).ok_or_else(|| StoreError::Source {
            path: file.as_path().to_owned(),
            what: "is not there any more".to_owned(),
            hint: None,
            away: true,
        })?;
        let opened = Arc::new(File::open(path).map_err(at("open", path))?);
        open.insert(file.clone(), Arc::clone(&opened));
        Ok(opened)
    }

    /// Fills `buffer` from byte `at` of a tensor. Errors: the disk's; a file that became shorter.
    pub fn read(&self, tensor: &SideTensor, from: u64, buffer: &mut [u8]) -> Result<()> {
        let file = self.opened(&tensor.file)?;
        let path = || self.path_of(&tensor.file).unwrap_or_else(|| tensor.file.as_path());
        file.read_exact_at(buffer, tensor.offset + from).map_err(|e| at("read", path())(e).into())
    }

    /// The digest of a tensor: the known one, else by reading its bytes. Errors: as [`Side::read`].
    pub fn digest_of(&self, tensor: &SideTensor, cancelled: &dyn Fn() -> bool) -> Result<Digest> {
        if let Some(known) = tensor.digest {
            return Ok(known);
        }
        const PIECE: u64 = 4 << 20;
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0u8; usize::try_from(tensor.len.min(PIECE)).unwrap_or(0)];
        let mut from = 0;
        while from < tensor.len {
            if cancelled() {
                return Err(StoreError::Cancelled);
            }
            let n = usize::try_from((tensor.len - from).min(PIECE)).unwrap_or(0);
            self.read(tensor, from, &mut buffer[..n])?;
            hasher.update_rayon(&buffer[..n]);
            from += n as u64;
        }
        Ok(hasher.finalize().into())
    }

    /// The bytes of a file. Errors: the disk's.
    pub fn read_file(&self, file: &RelPath) -> Result<Option<Vec<u8>>> {
        match self.path_of(file) {
            Some(path) => Ok(Some(std::fs::read(path).map_err(at("read", path))?)),
            None => Ok(None),
        }
    }
}

/// A header error as a note of the side.
pub(super) fn note_of(path: &RelPath, e: &HashError) -> String {
    format!("{path} is compared as bytes: {e}")
}
