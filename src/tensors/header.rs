//! The header of a safetensors file: one strict reader that every other module goes through.
//!
//! It accepts what safetensors 0.8.0 accepts, but for these, which would lose or hide something: a key that stands
//! twice (also with equal values), a field of a tensor that the format does not know, and more than 255 dimensions.
//! Nothing is allocated because a header asks for it: the text is read in pieces of 64 KiB, and what is kept grows
//! with what was read.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt as _;

use crate::digest::Digest;
use crate::tensors::dtype::{Dtype, SizeError};

mod error;
mod json;
#[cfg(test)]
mod tests;

pub use error::HeaderError;

/// The largest header that the format allows, in bytes.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The most dimensions that are read.
pub const MAX_RANK: usize = 255;

const PIECE: usize = 64 * 1024;
const LFS: &[u8] = b"version https://git-lfs.github.com/spec/";

/// One tensor, as a header has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
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
}

/// A header that was read and found sound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Where the data section starts in the file: 8 + the header's length, padding included.
    pub data_start: u64,
    /// `__metadata__` in the order of the file; `None` where it is absent or null.
    pub metadata: Option<Vec<(String, String)>>,
    /// The tensors by offset; those without bytes before the one that starts at the same place, by name among
    /// themselves. They cover the data section without hole or overlap.
    pub tensors: Vec<TensorInfo>,
    /// BLAKE3 of the first `data_start` bytes of the file.
    pub digest: Digest,
}

impl Header {
    /// Reads the header of a file of `file_len` bytes, by pread. Errors: [`HeaderError`] naming tensor and values; the
    /// caller adds the path.
    pub fn read(file: &File, file_len: u64) -> Result<Header, HeaderError> {
        let mut start = [0u8; 64];
        let have = read_up_to(file, &mut start, file_len)?;
        if have.starts_with(LFS) {
            return Err(HeaderError::LfsPointer);
        }
        let Some((length, _)) = have.split_first_chunk::<8>() else {
            return Err(HeaderError::TooShort { file_len });
        };
        let header_len = u64::from_le_bytes(*length);
        if header_len > MAX_HEADER_BYTES {
            return Err(
                text_start(have).map_or(HeaderError::TooLong { header_len }, |start| HeaderError::Text { start })
            );
        }
        let left = file_len - 8;
        if header_len > left {
            return Err(HeaderError::PastEnd { header_len, left });
        }
        let data_start = 8 + header_len;
        let seen = json::Seen::default();
        let mut hasher = blake3::Hasher::new();
        hasher.update(length);
        let text = HeaderText {
            file,
            at: 8,
            end: data_start,
            hasher: RefCell::new(hasher),
            utf8: RefCell::default(),
            seen: &seen,
        };
        let parsed = json::parse(BufReader::with_capacity(PIECE, &text), &seen)?;
        text.finish()?;
        let hasher = text.hasher.into_inner();
        let mut header =
            Header { data_start, metadata: parsed.metadata, tensors: parsed.tensors, digest: hasher.finalize().into() };
        header.order_and_check(file_len)?;
        Ok(header)
    }

    /// The length of the data section in bytes.
    pub fn data_len(&self) -> u64 {
        self.tensors.last().map_or(0, |t| t.end)
    }

    fn order_and_check(&mut self, file_len: u64) -> Result<(), HeaderError> {
        self.tensors.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        for pair in self.tensors.windows(2) {
            if let [a, b] = pair
                && a.name == b.name
            {
                return Err(HeaderError::Duplicate { tensor: a.name.clone() });
            }
        }
        // Stable: tensors without bytes stay in name order.
        self.tensors.sort_by_key(|t| (t.begin, t.end));
        let mut start = 0;
        let mut before: Option<&TensorInfo> = None;
        for t in &self.tensors {
            let TensorInfo { name, dtype, shape, begin, end } = t;
            if end < begin {
                return Err(HeaderError::Backwards { tensor: name.clone(), begin: *begin, end: *end });
            }
            if *begin != start {
                let (tensor, before) = (name.clone(), before.map(|b| b.name.clone()));
                return Err(if *begin > start {
                    HeaderError::Hole { tensor, begin: *begin, expected: start, before }
                } else {
                    HeaderError::Overlap { tensor, begin: *begin, expected: start, before }
                });
            }
            let expected = dtype.byte_len(shape).map_err(|why: SizeError| HeaderError::NoSize {
                tensor: name.clone(),
                dtype: *dtype,
                shape: shape.clone(),
                why,
            })?;
            if end - begin != expected {
                return Err(HeaderError::SizeMismatch {
                    tensor: name.clone(),
                    dtype: *dtype,
                    shape: shape.clone(),
                    expected,
                    found: end - begin,
                });
            }
            start = *end;
            before = Some(t);
        }
        let have = file_len - self.data_start;
        if start != have {
            return Err(HeaderError::NotCovered { last: before.map(|t| t.name.clone()), covered: start, have });
        }
        Ok(())
    }
}

// The first line of what is read so far, where all of it is text.
fn text_start(have: &[u8]) -> Option<String> {
    let whole = match std::str::from_utf8(have) {
        Ok(text) => text,
        // The last character may be cut.
        Err(e) if e.error_len().is_none() => std::str::from_utf8(have.get(..e.valid_up_to())?).ok()?,
        Err(_) => return None,
    };
    let text = !whole.chars().any(|c| c.is_control() && !c.is_whitespace());
    text.then(|| whole.trim_start().lines().next().unwrap_or_default().to_owned())
}

fn read_up_to<'b>(file: &File, buf: &'b mut [u8], file_len: u64) -> io::Result<&'b [u8]> {
    let want = usize::try_from(file_len).unwrap_or(usize::MAX).min(buf.len());
    let buf = &mut buf[..want];
    file.read_exact_at(buf, 0)?;
    Ok(buf)
}

// The header's text as a reader: by pread, hashed, and looked at for UTF-8 on the way.
struct HeaderText<'a> {
    file: &'a File,
    at: u64,
    end: u64,
    hasher: RefCell<blake3::Hasher>,
    utf8: RefCell<Utf8>,
    seen: &'a json::Seen,
}

#[derive(Default)]
struct Utf8 {
    // The first bytes of a character that a piece cut off.
    pending: Vec<u8>,
    // The offset in the header of the next byte.
    at: u64,
    // Where the reader stands: the struct is shared with the parser, which reads through `&`.
    read: u64,
}

impl Utf8 {
    // Errors: the offset of the first byte that is no UTF-8.
    fn feed(&mut self, mut piece: &[u8]) -> Result<(), u64> {
        while !self.pending.is_empty() {
            let Some((b, rest)) = piece.split_first() else { return Ok(()) };
            piece = rest;
            self.pending.push(*b);
            match std::str::from_utf8(&self.pending) {
                Ok(_) => {
                    self.at += self.pending.len() as u64;
                    self.pending.clear();
                }
                Err(e) if e.error_len().is_some() => return Err(self.at),
                Err(_) => {}
            }
        }
        match std::str::from_utf8(piece) {
            Ok(_) => self.at += piece.len() as u64,
            Err(e) => {
                self.at += e.valid_up_to() as u64;
                if e.error_len().is_some() {
                    return Err(self.at);
                }
                self.pending.extend_from_slice(piece.get(e.valid_up_to()..).unwrap_or_default());
            }
        }
        Ok(())
    }
}

impl HeaderText<'_> {
    fn finish(&self) -> Result<(), HeaderError> {
        let utf8 = self.utf8.borrow();
        if utf8.pending.is_empty() { Ok(()) } else { Err(HeaderError::NotUtf8 { at: utf8.at }) }
    }
}

impl Read for &HeaderText<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut utf8 = self.utf8.borrow_mut();
        let at = self.at + utf8.read;
        let want = usize::try_from(self.end - at).unwrap_or(usize::MAX).min(buf.len());
        if want == 0 {
            return Ok(0);
        }
        let got = loop {
            match self.file.read_at(&mut buf[..want], at) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => break n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        };
        utf8.read += got as u64;
        let piece = &buf[..got];
        self.hasher.borrow_mut().update(piece);
        if let Err(at) = utf8.feed(piece) {
            self.seen.fail(HeaderError::NotUtf8 { at });
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(got)
    }
}
