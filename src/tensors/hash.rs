//! Hashing a file: one pass gives its blob digest and, for a safetensors file, its tensor table.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use crate::digest::{BlobId, Digest};
use crate::tensors::header::{Header, HeaderError};
use crate::tensors::table::TensorTable;

/// What one pass over a file gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hashed {
    /// BLAKE3 of all bytes.
    pub blob: BlobId,
    /// Their number.
    pub size: u64,
    /// What is in it, for a safetensors file.
    pub table: Option<TensorTable>,
}

/// Why a file has no digest. The caller adds the path.
#[derive(Debug, thiserror::Error)]
pub enum HashError {
    /// It is no sound safetensors file.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// It became shorter while it was read.
    #[error("the file shrank while it was read: {size} bytes at the start, {now} now")]
    Shrank {
        /// Its size at the start.
        size: u64,
        /// Where it ends now.
        now: u64,
    },
    /// It became longer while it was read.
    #[error("the file grew while it was read: {size} bytes at the start, more now")]
    Grew {
        /// Its size at the start.
        size: u64,
    },
    /// Its header is no longer the one that was read first.
    #[error("the header changed while the file was read")]
    HeaderChanged,
    /// The build is being stopped.
    #[error("stopped")]
    Cancelled,
    /// The disk said no.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl HashError {
    /// What to do next, where there is something to say.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Header(e) => e.hint(),
            Self::Shrank { .. } | Self::Grew { .. } | Self::HeaderChanged => {
                Some("something is writing to it: build again when that is done")
            }
            Self::Cancelled | Self::Io(_) => None,
        }
    }
}

// Two of these are all that a call needs: one is hashed while the other is read.
const PIECE: usize = 4 << 20;
// Below this a second thread costs more than it brings.
const WORTH_SHARING: usize = 256 << 10;

/// Hashes a file of `size` bytes in one pass, by pread. Memory: 8 MiB and the header's tensors. `progress` gets the
/// number of bytes done, `cancelled` is asked every 4 MiB.
/// Errors: [`HashError`]; a file that is not exactly `size` bytes long to the end of the pass is one.
pub fn hash_file(
    file: &File,
    size: u64,
    as_safetensors: bool,
    progress: &mut dyn FnMut(u64),
    cancelled: &dyn Fn() -> bool,
) -> Result<Hashed, HashError> {
    let header = if as_safetensors { Some(Header::read(file, size)?) } else { None };
    let mut blob = blake3::Hasher::new();
    let mut tensors = header.as_ref().map(Tensors::new);

    let piece = usize::try_from(size).unwrap_or(PIECE).min(PIECE);
    let mut now = vec![0u8; piece];
    let mut next = vec![0u8; if size > piece as u64 { piece } else { 0 }];
    let mut at = 0;
    let mut filled = fill(file, &mut now, at, size)?;
    while filled > 0 {
        if cancelled() {
            return Err(HashError::Cancelled);
        }
        let bytes = &now[..filled];
        let after = at + filled as u64;
        let (read, ()) = rayon::join(
            || fill(file, &mut next, after, size),
            || match &mut tensors {
                Some(t) => {
                    rayon::join(|| update(&mut blob, bytes), || t.update(at, bytes));
                }
                None => update(&mut blob, bytes),
            },
        );
        filled = read?;
        at = after;
        std::mem::swap(&mut now, &mut next);
        progress(at);
    }
    if file.read_at(&mut [0], size)? > 0 {
        return Err(HashError::Grew { size });
    }
    let digests = tensors.map(Tensors::finish);
    let table = match (header, digests) {
        (Some(header), Some((head, digests))) => {
            if head != header.digest {
                return Err(HashError::HeaderChanged);
            }
            Some(TensorTable::new(header, digests))
        }
        _ => None,
    };
    Ok(Hashed { blob: BlobId(blob.finalize().into()), size, table })
}

fn update(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    if bytes.len() >= WORTH_SHARING {
        hasher.update_rayon(bytes);
    } else {
        hasher.update(bytes);
    }
}

// Fills the buffer as far as the file goes; says how far that was.
fn fill(file: &File, buf: &mut [u8], at: u64, size: u64) -> Result<usize, HashError> {
    let want = usize::try_from(size.saturating_sub(at)).unwrap_or(usize::MAX).min(buf.len());
    let mut done = 0;
    while done < want {
        match file.read_at(&mut buf[done..want], at + done as u64) {
            Ok(0) => return Err(HashError::Shrank { size, now: at + done as u64 }),
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(done)
}

// Hashes the header and each tensor as their bytes come by.
struct Tensors {
    // Where each part ends in the file: the header, then the tensors by offset.
    ends: Vec<u64>,
    done: Vec<Digest>,
    hasher: blake3::Hasher,
}

impl Tensors {
    fn new(header: &Header) -> Self {
        let start = header.data_start;
        let ends = std::iter::once(start).chain(header.tensors.iter().map(|t| start + t.end)).collect();
        Self { ends, done: Vec::with_capacity(header.tensors.len() + 1), hasher: blake3::Hasher::new() }
    }

    fn close(&mut self) {
        self.done.push(self.hasher.finalize().into());
        self.hasher.reset();
    }

    fn update(&mut self, mut at: u64, mut bytes: &[u8]) {
        while let Some(end) = self.ends.get(self.done.len()) {
            let left = usize::try_from(end - at).unwrap_or(usize::MAX);
            let (mine, rest) = bytes.split_at(left.min(bytes.len()));
            update(&mut self.hasher, mine);
            at += mine.len() as u64;
            bytes = rest;
            if at < *end {
                return;
            }
            self.close();
        }
    }

    // The header's digest and those of the tensors. The header's check has shown that the parts cover the file.
    fn finish(mut self) -> (Digest, Vec<Digest>) {
        while self.done.len() < self.ends.len() {
            self.close();
        }
        let mut parts = self.done.into_iter();
        (parts.next().unwrap_or(Digest::of(b"")), parts.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::testing::{Made, file_of, shard};

    fn hash(file: &File, size: u64) -> Result<Hashed, HashError> {
        hash_file(file, size, true, &mut |_| {}, &|| false)
    }

    #[test]
    fn one_pass_gives_the_digest_of_the_file_and_of_every_tensor() {
        let big: Vec<u8> = (0..9_000_001u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let tensors = [
            Made::new("a", "U8", &[3], b"abc"),
            Made::new("empty", "F32", &[0, 7], b""),
            Made::new("big", "U8", &[big.len() as u64], &big),
            Made::f32("scalar", &[], &[1.5]),
            Made::new("z-empty", "F32", &[0], b""),
        ];
        let bytes = shard(Some(&[("format", "pt")]), &tensors);
        let file = file_of(&bytes);
        let mut seen = vec![];
        let hashed = hash_file(&file, bytes.len() as u64, true, &mut |n| seen.push(n), &|| false).unwrap();
        assert_eq!(hashed.blob.0, Digest::of(&bytes));
        assert_eq!(seen.last(), Some(&(bytes.len() as u64)));
        let table = hashed.table.unwrap();
        assert_eq!(table.tensors.len(), 5);
        for t in &tensors {
            assert_eq!(table.get(&t.name).unwrap().digest, Digest::of(&t.bytes), "{}", t.name);
        }
        assert_eq!(TensorTable::parse(&table.to_text()).unwrap(), table);
        let plain = hash_file(&file, bytes.len() as u64, false, &mut |_| {}, &|| false).unwrap();
        assert_eq!((plain.blob, plain.table), (hashed.blob, None));
    }

    #[test]
    fn a_file_that_is_not_as_long_as_it_was_is_an_error() {
        let bytes = shard(None, &[Made::new("a", "U8", &[3], b"abc")]);
        let n = bytes.len() as u64;
        let file = file_of(&bytes);
        assert!(
            matches!(hash_file(&file, n + 5, false, &mut |_| {}, &|| false), Err(HashError::Shrank { now, .. }) if now == n)
        );
        assert!(matches!(hash_file(&file, n - 1, false, &mut |_| {}, &|| false), Err(HashError::Grew { .. })));
    }

    #[test]
    fn a_pass_over_another_header_than_the_one_read_first_is_noticed() {
        let a = shard(None, &[Made::new("a", "U8", &[3], b"abc")]);
        let b = shard(None, &[Made::new("b", "U8", &[3], b"abc")]);
        let file = file_of(&a);
        let header = Header::read(&file, a.len() as u64).unwrap();
        let mut pass = Tensors::new(&header);
        pass.update(0, &b);
        assert_ne!(pass.finish().0, header.digest);
    }

    #[test]
    fn a_stopped_build_stops_hashing() {
        let file = file_of(&[0; 100]);
        assert!(matches!(hash_file(&file, 100, false, &mut |_| {}, &|| true), Err(HashError::Cancelled)));
    }

    #[test]
    fn an_empty_file_has_a_digest_and_is_no_safetensors_file() {
        let file = file_of(&[]);
        let h = hash_file(&file, 0, false, &mut |_| {}, &|| false).unwrap();
        assert_eq!(h.blob.0, Digest::of(b""));
        assert!(matches!(hash(&file, 0), Err(HashError::Header(HeaderError::TooShort { file_len: 0 }))));
    }
}
