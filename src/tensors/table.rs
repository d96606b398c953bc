//! Tensor table of a safetensors blob: what its header says, and the BLAKE3 of every tensor's bytes.

use crate::digest::Digest;
use crate::tensors::dtype::Dtype;

/// One tensor of a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorEntry {
    /// Its name: data, never a path.
    pub name: String,
    /// Its element type.
    pub dtype: Dtype,
    /// Its shape; empty for a scalar.
    pub shape: Vec<u64>,
    /// Where its bytes start, counted from the start of the data section.
    pub begin: u64,
    /// Where they end.
    pub end: u64,
    /// BLAKE3 of its bytes.
    pub digest: Digest,
}

/// What a safetensors blob holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorTable {
    /// Where the data section starts in the file: 8 + the header's length.
    pub data_start: u64,
    /// The header's `__metadata__`, in the order of the file; `None` where there is none.
    pub metadata: Option<Vec<(String, String)>>,
    /// The tensors, by offset; those without bytes by name among their equals.
    pub tensors: Vec<TensorEntry>,
}
