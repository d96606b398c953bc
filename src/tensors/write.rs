//! Writing a shard: the header first, laid out so that a later splice can keep the data where it is, then the tensors,
//! copied from other files or streamed.
//!
//! The layout is a function of names, types, shapes and [`Placement`] alone, never of the file system: the same output
//! everywhere.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;

use crate::fsx;
use crate::fsx::copy::{Copied, CopyError, copy_range};
use crate::tensors::dtype::{Dtype, SizeError};
use crate::tensors::header::{MAX_HEADER_BYTES, TensorInfo};

/// From this size on, a shard's data is placed so that it can be shared with other shards block by block.
pub const BIG_SHARD_BYTES: u64 = 64 << 20;
/// Data of big shards starts at a multiple of this.
pub const START_MULTIPLE: u64 = 1 << 20;
/// What a big new shard's header leaves free at least.
pub const HEADER_ROOM: u64 = 64 << 10;

/// A tensor to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<u64>,
}

/// Where the data section of a shard may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// A new shard: from [`BIG_SHARD_BYTES`] on at a multiple of [`START_MULTIPLE`], [`HEADER_ROOM`] behind the header.
    New,
    /// A shard that takes the place of one of `file_len` bytes whose data started at `data_start`: where that one was
    /// big, it starts at the same place, or at the next that equals it modulo [`START_MULTIPLE`].
    Rewritten {
        /// Size of the old file.
        file_len: u64,
        /// Where its data started.
        data_start: u64,
    },
}

/// Why tensors can't be laid out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// A name stands twice.
    #[error("the tensor {tensor:?} stands twice in one shard")]
    Duplicate {
        /// The tensor.
        tensor: String,
    },
    /// A name that the format keeps for itself.
    #[error("a tensor can't be called __metadata__")]
    Reserved,
    /// Type and shape have no size.
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
    /// The shard's size exceeds 64 bits.
    #[error("the shard's size overflows 64 bits")]
    Overflow,
    /// The header would be longer than the format allows.
    #[error("the header would have {header_len} bytes, more than the {MAX_HEADER_BYTES} that the format allows")]
    HeaderTooLong {
        /// Its length.
        header_len: u64,
    },
}

/// Where everything in a shard stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardLayout {
    // The first `data_start` bytes, without the trailing spaces.
    header: Vec<u8>,
    data_start: u64,
    tensors: Vec<TensorInfo>,
}

impl ShardLayout {
    /// Lays out tensors in the given order, which is the order of the data and of the header. Errors: [`LayoutError`].
    pub fn new(
        metadata: Option<&[(String, String)]>,
        tensors: Vec<TensorSpec>,
        placement: Placement,
    ) -> Result<Self, LayoutError> {
        let mut names: Vec<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
        names.sort_unstable();
        if let Some([twice, _]) = names.windows(2).find(|w| w.first() == w.last()) {
            return Err(LayoutError::Duplicate { tensor: (*twice).to_owned() });
        }
        if names.binary_search(&"__metadata__").is_ok() {
            return Err(LayoutError::Reserved);
        }
        let mut at = 0u64;
        let mut infos = Vec::with_capacity(tensors.len());
        for TensorSpec { name, dtype, shape } in tensors {
            let len = match dtype.byte_len(&shape) {
                Ok(len) => len,
                Err(why) => return Err(LayoutError::NoSize { tensor: name, dtype, shape, why }),
            };
            let end = at.checked_add(len).ok_or(LayoutError::Overflow)?;
            infos.push(TensorInfo { name, dtype, shape, begin: at, end });
            at = end;
        }
        let text = header_text(metadata, &infos);
        let data_start = place(text.len() as u64, at, placement).ok_or(LayoutError::Overflow)?;
        let header_len = data_start - 8;
        if header_len > MAX_HEADER_BYTES {
            return Err(LayoutError::HeaderTooLong { header_len });
        }
        data_start.checked_add(at).ok_or(LayoutError::Overflow)?;
        let mut header = header_len.to_le_bytes().to_vec();
        header.extend_from_slice(text.as_bytes());
        Ok(Self { header, data_start, tensors: infos })
    }

    /// Where the data section starts.
    pub fn data_start(&self) -> u64 {
        self.data_start
    }

    /// The length of the data section.
    pub fn data_len(&self) -> u64 {
        self.tensors.last().map_or(0, |t| t.end)
    }

    /// The size of the file.
    pub fn file_len(&self) -> u64 {
        self.data_start + self.data_len()
    }

    /// The tensors in order, with their places in the data section.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }
}

fn header_text(metadata: Option<&[(String, String)]>, tensors: &[TensorInfo]) -> String {
    use std::fmt::Write as _;
    // Display of a JSON string never fails and escapes what must be.
    let quoted = |s: &str| serde_json::Value::from(s).to_string();
    let mut s = String::from("{");
    if let Some(pairs) = metadata {
        s.push_str("\"__metadata__\":{");
        for (i, (k, v)) in pairs.iter().enumerate() {
            let _ = write!(s, "{}{}:{}", if i > 0 { "," } else { "" }, quoted(k), quoted(v));
        }
        s.push('}');
    }
    for t in tensors {
        if s.len() > 1 {
            s.push(',');
        }
        let _ = write!(s, "{}:{{\"dtype\":\"{}\",\"shape\":[", quoted(&t.name), t.dtype);
        for (i, d) in t.shape.iter().enumerate() {
            let _ = write!(s, "{}{d}", if i > 0 { "," } else { "" });
        }
        let _ = write!(s, "],\"data_offsets\":[{},{}]}}", t.begin, t.end);
    }
    s.push('}');
    s
}

// Where the data starts, behind 8 bytes and `text_len` bytes of header; `None` where it overflows.
fn place(text_len: u64, data_len: u64, placement: Placement) -> Option<u64> {
    let least = text_len.checked_add(8)?.checked_next_multiple_of(8)?;
    match placement {
        Placement::New if least.checked_add(data_len)? >= BIG_SHARD_BYTES => {
            least.checked_add(HEADER_ROOM)?.checked_next_multiple_of(START_MULTIPLE)
        }
        Placement::Rewritten { file_len, data_start } if file_len >= BIG_SHARD_BYTES => {
            // The text need not end at a multiple of 8 here: the old start says where the data goes.
            let short = text_len.checked_add(8)?.saturating_sub(data_start);
            data_start.checked_add(short.checked_next_multiple_of(START_MULTIPLE)?)
        }
        _ => Some(least),
    }
}

/// Why a shard was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The caller said stop.
    #[error("stopped")]
    Stopped,
    /// A tensor could not be copied.
    #[error("copying the tensor {tensor:?}: {source}")]
    Copy {
        /// The first tensor of the run.
        tensor: String,
        /// Why.
        source: CopyError,
    },
    /// Bytes for a tensor outside its range, or for one that is not there.
    #[error("{end} bytes for the tensor {tensor:?}, which has {len}")]
    OutOfRange {
        /// The tensor.
        tensor: String,
        /// Where the bytes would have ended.
        end: u64,
        /// Its length.
        len: u64,
    },
    /// A tensor that did not get all its bytes.
    #[error("the tensor {tensor:?} got {got} of its {len} bytes")]
    Incomplete {
        /// The tensor.
        tensor: String,
        /// Bytes that came.
        got: u64,
        /// Its length.
        len: u64,
    },
    /// The disk said no.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Where the bytes of a tensor are copied from.
#[derive(Debug, Clone, Copy)]
pub struct CopyFrom<'s> {
    /// The file.
    pub file: &'s File,
    /// Offset of the tensor's first byte in it.
    pub at: u64,
}

/// Writes one shard into an empty file.
pub struct ShardWriter<'f> {
    file: &'f File,
    layout: ShardLayout,
    got: Vec<u64>,
    copied: Copied,
}

impl<'f> ShardWriter<'f> {
    /// Writes the header and gives the file its length. Errors: what the disk says.
    pub fn start(file: &'f File, layout: ShardLayout) -> io::Result<Self> {
        fsx::write_all_at(file, &layout.header, 0)?;
        let spaces = [b' '; 4096];
        let mut at = layout.header.len() as u64;
        while at < layout.data_start {
            let n = usize::try_from(layout.data_start - at).unwrap_or(spaces.len()).min(spaces.len());
            fsx::write_all_at(file, &spaces[..n], at)?;
            at += n as u64;
        }
        fsx::set_len(file, layout.file_len())?;
        let got = vec![0; layout.tensors.len()];
        Ok(Self { file, layout, got, copied: Copied::default() })
    }

    /// What is where.
    pub fn layout(&self) -> &ShardLayout {
        &self.layout
    }

    /// Copies tensors: the i-th of `sources` is where the i-th tensor comes from, `None` leaves it to
    /// [`write`](Self::write). Tensors that follow each other in both files are copied as one range. `step` gets the
    /// bytes done in this call and may end it. Memory: 1 MiB. Errors: [`WriteError`].
    pub fn copy(
        &mut self,
        sources: &[Option<CopyFrom<'_>>],
        step: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<(), WriteError> {
        let mut done = 0;
        let mut i = 0;
        while let (Some(source), Some(first)) = (sources.get(i), self.layout.tensors.get(i)) {
            let Some(from) = source else {
                i += 1;
                continue;
            };
            let mut end = first.end;
            let mut next = i + 1;
            while let (Some(Some(s)), Some(t)) = (sources.get(next), self.layout.tensors.get(next)) {
                if !std::ptr::eq(s.file, from.file) || s.at != from.at + (t.begin - first.begin) {
                    break;
                }
                end = t.end;
                next += 1;
            }
            let (to, len) = (self.layout.data_start + first.begin, end - first.begin);
            let copied =
                copy_range(from.file, from.at, self.file, to, len, &mut |n| step(done + n)).map_err(|e| match e {
                    CopyError::Stopped => WriteError::Stopped,
                    source => WriteError::Copy { tensor: first.name.clone(), source },
                })?;
            self.copied.cloned += copied.cloned;
            self.copied.in_kernel += copied.in_kernel;
            self.copied.by_hand += copied.by_hand;
            done += len;
            for (got, t) in self.got.iter_mut().zip(&self.layout.tensors).take(next).skip(i) {
                *got = t.end - t.begin;
            }
            i = next;
        }
        Ok(())
    }

    /// Writes bytes of the i-th tensor, `at` bytes into it. Errors: [`WriteError::OutOfRange`], or what the disk says.
    pub fn write(&mut self, i: usize, at: u64, bytes: &[u8]) -> Result<(), WriteError> {
        let end = at.saturating_add(bytes.len() as u64);
        let (Some(t), Some(got)) = (self.layout.tensors.get(i), self.got.get_mut(i)) else {
            return Err(WriteError::OutOfRange { tensor: format!("number {i}"), end, len: 0 });
        };
        let len = t.end - t.begin;
        if end > len {
            return Err(WriteError::OutOfRange { tensor: t.name.clone(), end, len });
        }
        fsx::write_all_at(self.file, bytes, self.layout.data_start + t.begin + at)?;
        *got += bytes.len() as u64;
        Ok(())
    }

    /// Says how the copied bytes came over. Errors: [`WriteError::Incomplete`] where a tensor did not get as many bytes
    /// as it has.
    pub fn finish(self) -> Result<Copied, WriteError> {
        for (t, got) in self.layout.tensors.iter().zip(self.got) {
            let len = t.end - t.begin;
            if got != len {
                return Err(WriteError::Incomplete { tensor: t.name.clone(), got, len });
            }
        }
        Ok(self.copied)
    }
}

#[cfg(test)]
mod tests;
