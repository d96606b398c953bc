//! What can be wrong with a header.

use std::io;

use super::{Dtype, MAX_HEADER_BYTES, MAX_RANK, SizeError};

/// Why a header is refused. The caller adds the path.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    /// Less than the header's length fits in.
    #[error("the file has {file_len} bytes, too few for the 8 bytes of a header's length")]
    TooShort {
        /// The file's length.
        file_len: u64,
    },
    /// A pointer of git-lfs stands where the weights should be.
    #[error("the file is a git-lfs pointer, not the weights themselves")]
    LfsPointer,
    /// A text stands where the weights should be: a link saved as text, an error page saved as a download.
    #[error("the file is a text that begins with {start:?}, not weights")]
    Text {
        /// The beginning of its first line.
        start: String,
    },
    /// The header is longer than the format allows.
    #[error(
        "the header's length is given as {header_len} bytes, more than the {MAX_HEADER_BYTES} that the format allows"
    )]
    TooLong {
        /// The length given.
        header_len: u64,
    },
    /// The header is longer than the file.
    #[error("the header's length is given as {header_len} bytes, but only {left} follow")]
    PastEnd {
        /// The length given.
        header_len: u64,
        /// What the file has behind the first 8 bytes.
        left: u64,
    },
    /// The header is no UTF-8.
    #[error("the header is not UTF-8: byte {at} of it starts no character")]
    NotUtf8 {
        /// Offset in the header.
        at: u64,
    },
    /// The header is no JSON object.
    #[error("the header is not a JSON object: {what}")]
    NotJson {
        /// What the parser says, with line and column of the header.
        what: String,
    },
    /// A tensor stands twice in the header.
    #[error("the tensor {tensor:?} stands twice in the header")]
    Duplicate {
        /// The tensor.
        tensor: String,
    },
    /// `__metadata__` stands twice.
    #[error("__metadata__ stands twice in the header")]
    DuplicateMetadata,
    /// A key of `__metadata__` stands twice.
    #[error("the key {key:?} stands twice in __metadata__")]
    DuplicateMetadataKey {
        /// The key.
        key: String,
    },
    /// A value of `__metadata__` is no string, or it is no table.
    #[error("__metadata__{}: {what}", .key.as_ref().map(|k| format!(", key {k:?}")).unwrap_or_default())]
    BadMetadata {
        /// The key, where it is about one.
        key: Option<String>,
        /// What the parser says.
        what: String,
    },
    /// An element type that the format does not know.
    #[error("the tensor {tensor:?} has the unknown element type {dtype:?}")]
    UnknownDtype {
        /// The tensor.
        tensor: String,
        /// The word that stands there.
        dtype: String,
    },
    /// A tensor's description is not of the form of the format.
    #[error("the tensor {tensor:?}: {what}")]
    BadTensor {
        /// The tensor.
        tensor: String,
        /// What is wrong with it.
        what: String,
    },
    /// A dimension or offset that is no integer from 0 to 2^64 - 1.
    #[error("the tensor {tensor:?}: {field} holds {value}, which is no unsigned 64-bit integer")]
    BadNumber {
        /// The tensor.
        tensor: String,
        /// `shape` or `data_offsets`.
        field: &'static str,
        /// The number as written.
        value: String,
    },
    /// More dimensions than are read.
    #[error("the tensor {tensor:?} has more than {MAX_RANK} dimensions")]
    TooManyDimensions {
        /// The tensor.
        tensor: String,
    },
    /// Type and shape have no size in bytes.
    #[error("the tensor {tensor:?} of type {dtype} and shape {shape:?}: {why}")]
    NoSize {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<u64>,
        /// Why.
        why: SizeError,
    },
    /// Type and shape ask for another number of bytes than the offsets span.
    #[error(
        "the tensor {tensor:?} of type {dtype} and shape {shape:?} has {expected} bytes, but its offsets span {found}"
    )]
    SizeMismatch {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<u64>,
        /// Bytes by type and shape.
        expected: u64,
        /// Bytes by offsets.
        found: u64,
    },
    /// A tensor ends before it starts.
    #[error("the tensor {tensor:?} starts at {begin} and ends before that, at {end}")]
    Backwards {
        /// The tensor.
        tensor: String,
        /// Its start.
        begin: u64,
        /// Its end.
        end: u64,
    },
    /// Bytes before a tensor belong to none.
    #[error("the tensor {tensor:?} starts at {begin}, but {} ends at {expected}: the bytes between belong to no tensor", before_name(.before))]
    Hole {
        /// The tensor.
        tensor: String,
        /// Its start.
        begin: u64,
        /// Where it had to start.
        expected: u64,
        /// The tensor before it.
        before: Option<String>,
    },
    /// Bytes belong to two tensors.
    #[error("the tensor {tensor:?} starts at {begin}, inside {}, which ends at {expected}", before_name(.before))]
    Overlap {
        /// The tensor.
        tensor: String,
        /// Its start.
        begin: u64,
        /// Where it had to start.
        expected: u64,
        /// The tensor before it.
        before: Option<String>,
    },
    /// The data section is longer or shorter than the tensors.
    #[error("the tensors end at {covered} (the last is {}), but the file has {have} bytes of data", before_name(.last))]
    NotCovered {
        /// The last tensor.
        last: Option<String>,
        /// Where it ends.
        covered: u64,
        /// The length of the data section.
        have: u64,
    },
    /// The disk said no.
    #[error("the header can't be read: {0}")]
    Io(#[from] io::Error),
}

fn before_name(name: &Option<String>) -> String {
    name.as_ref().map_or_else(|| "the header".to_owned(), |n| format!("{n:?}"))
}

impl HeaderError {
    /// What to do next, where there is something to say.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::LfsPointer => "fetch the weights: `git lfs pull`, or download them again",
            Self::Text { start } if start.starts_with("../") || start.starts_with('/') => {
                "a link that was saved as text, as git does without core.symlinks: fetch the file itself, or make the \
                 link again"
            }
            Self::Text { .. } => "perhaps an error page that was saved as a download: fetch the file again",
            Self::TooShort { .. } | Self::PastEnd { .. } => "the download was cut off: fetch the file again",
            Self::NotCovered { covered, have, .. } if covered > have => "the file was cut off: fetch it again",
            Self::TooLong { .. } | Self::NotUtf8 { .. } | Self::NotJson { .. } => {
                "this is no safetensors file, or a damaged one: fetch it again"
            }
            Self::UnknownDtype { .. } => "a newer format, or no safetensors at all; convert the tensor first",
            Self::Duplicate { .. } => "two values under one name: write the file again with one of them",
            Self::Io(_) => return None,
            _ => "the header contradicts itself: write the file again with the tool that made it",
        })
    }
}
