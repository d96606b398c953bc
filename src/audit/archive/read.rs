//! Reading an archive: what comes must be, byte for byte, the header that the manifest leads to, then as many bytes as it
//! says, then the next.

use crate::audit::archive::frame::START;
use std::io::Read;

use crate::audit::archive::MAX_MANIFEST;
use crate::audit::archive::error::{ArchiveError, Result};
use crate::audit::archive::frame::{FrameReader, frame_error};
use crate::audit::archive::manifest::MANIFEST;
use crate::audit::archive::tarball::{BLOCK, diagnose, header, padding};

/// An archive that is being read.
pub(crate) struct Entries<R: Read> {
    from: FrameReader<R>,
    buf: Vec<u8>,
}

const PIECE: usize = 1 << 20;

impl<R: Read> Entries<R> {
    pub(crate) fn new(from: R) -> Result<Self> {
        Ok(Self { from: FrameReader::new(from).map_err(ArchiveError::Read)?, buf: vec![0; PIECE] })
    }

    /// The manifest, which comes first, in pieces to `take`.
    pub(crate) fn manifest(&mut self, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let block = self.block(START)?;
        let found = tar::Header::from_byte_slice(&block);
        // Its size is the one thing that nothing has announced.
        let size = found.size().unwrap_or(0);
        if !is_header(&block, MANIFEST, size) {
            let (name, what) = diagnose(&block, MANIFEST, size);
            return Err(ArchiveError::bad(name, what));
        }
        if size > MAX_MANIFEST {
            let what = format!("has {size} bytes, and at most {MAX_MANIFEST} are read");
            return Err(ArchiveError::bad(MANIFEST, what));
        }
        self.body(MANIFEST, size, take)
    }

    /// The entry that must come next, its bytes in pieces to `take`.
    pub(crate) fn entry(&mut self, name: &str, size: u64, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let block = self.block(name)?;
        if !is_header(&block, name, size) {
            let (found, what) = diagnose(&block, name, size);
            return Err(ArchiveError::bad(found, what));
        }
        self.body(name, size, take)
    }

    /// Holds what is left against an archive's end.
    pub(crate) fn finish(mut self) -> Result<()> {
        for _ in 0..2 {
            let block = self.block("the end of the archive")?;
            if block.iter().any(|b| *b != 0) {
                let (found, _) = diagnose(&block, "", 0);
                return Err(ArchiveError::bad(found, "is not in the manifest"));
            }
        }
        self.from.finish()
    }

    fn body(&mut self, name: &str, size: u64, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut left = size;
        while left > 0 {
            let want = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
            self.from.read_exact(&mut self.buf[..want]).map_err(|e| frame_error(name, e))?;
            take(&self.buf[..want])?;
            left -= want as u64;
        }
        let pad = &mut [0; BLOCK][..padding(size)];
        self.from.read_exact(pad).map_err(|e| frame_error(name, e))?;
        if pad.iter().any(|b| *b != 0) {
            return Err(ArchiveError::bad(name, "something is hidden behind its last byte"));
        }
        Ok(())
    }

    fn block(&mut self, expected: &str) -> Result<[u8; BLOCK]> {
        let mut block = [0; BLOCK];
        self.from.read_exact(&mut block).map_err(|e| frame_error(expected, e))?;
        Ok(block)
    }
}

fn is_header(block: &[u8; BLOCK], name: &str, size: u64) -> bool {
    header(name, size).is_ok_and(|h| h.as_bytes() == block)
}
