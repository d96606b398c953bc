//! The outside of an archive: one zstd frame, and behind it a skippable one with the digest of all bytes before. Every
//! zstd reads over that; this program takes nothing whose digest is not there and right, so no cut and no flipped bit goes
//! unseen, not even one that zstd itself would not mind.

use std::io::{self, BufReader, Read, Write};

use crate::audit::archive::error::{ArchiveError, Result};
use crate::digest::Digest;

const LEVEL: i32 = 3;

// The most memory that a frame may ask its reader for, as a power of two. Level 3 asks for 2 MiB.
const WINDOW_LOG: u32 = 23;

// A skippable frame: magic, length of its content, content.
const TRAILER_START: [u8; 8] = [0x5f, 0x2a, 0x4d, 0x18, 32, 0, 0, 0];
const TRAILER: usize = TRAILER_START.len() + 32;

/// Compresses what is written to it.
pub(crate) struct FrameWriter<W: Write> {
    zstd: zstd::stream::write::Encoder<'static, Hashing<W>>,
}

struct Hashing<W> {
    to: W,
    hasher: blake3::Hasher,
    written: u64,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.to.write(bytes)?;
        self.hasher.update(&bytes[..n]);
        self.written += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

impl<W: Write> FrameWriter<W> {
    pub(crate) fn new(to: W) -> io::Result<Self> {
        let hashing = Hashing { to, hasher: blake3::Hasher::new(), written: 0 };
        let mut zstd = zstd::stream::write::Encoder::new(hashing, LEVEL)?;
        zstd.include_checksum(true)?;
        Ok(Self { zstd })
    }

    /// Ends the frame and writes the digest behind it. Says how many bytes were written in all.
    pub(crate) fn finish(self) -> io::Result<(W, u64)> {
        let mut h = self.zstd.finish()?;
        let digest = h.hasher.finalize();
        h.to.write_all(&TRAILER_START)?;
        h.to.write_all(digest.as_bytes())?;
        h.to.flush()?;
        Ok((h.to, h.written + TRAILER as u64))
    }
}

impl<W: Write> Write for FrameWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.zstd.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.zstd.flush()
    }
}

/// Reads what a [`FrameWriter`] wrote.
pub(crate) struct FrameReader<R: Read> {
    zstd: zstd::stream::read::Decoder<'static, BufReader<HoldBack<R>>>,
}

// Hands on all bytes but the last ones, which are the digest of the others.
struct HoldBack<R> {
    from: R,
    buf: Vec<u8>,
    start: usize,
    end: usize,
    ended: bool,
    hasher: blake3::Hasher,
}

const PIECE: usize = 128 << 10;

impl<R: Read> HoldBack<R> {
    fn fill(&mut self) -> io::Result<()> {
        while !self.ended && self.end - self.start <= TRAILER {
            if self.start > 0 {
                self.buf.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
            }
            match self.from.read(&mut self.buf[self.end..]) {
                Ok(0) => self.ended = true,
                Ok(n) => self.end += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

impl<R: Read> Read for HoldBack<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.fill()?;
        let n = (self.end - self.start).saturating_sub(TRAILER).min(out.len());
        let bytes = &self.buf[self.start..self.start + n];
        out[..n].copy_from_slice(bytes);
        self.hasher.update(bytes);
        self.start += n;
        Ok(n)
    }
}

impl<R: Read> FrameReader<R> {
    pub(crate) fn new(from: R) -> io::Result<Self> {
        let held = HoldBack {
            from,
            buf: vec![0; PIECE + TRAILER],
            start: 0,
            end: 0,
            ended: false,
            hasher: blake3::Hasher::new(),
        };
        let mut zstd = zstd::stream::read::Decoder::with_buffer(BufReader::with_capacity(PIECE, held))?.single_frame();
        zstd.window_log_max(WINDOW_LOG)?;
        Ok(Self { zstd })
    }

    /// Holds the end of the archive against what it must be: nothing more in the frame, and the digest. Errors: Bad.
    pub(crate) fn finish(mut self) -> Result<()> {
        let bad = |what: &str| Err(ArchiveError::bad("the end of the archive", what));
        match self.zstd.read(&mut [0]) {
            Ok(0) => {}
            Ok(_) => return bad("there are bytes behind its last entry"),
            Err(e) => return Err(frame_error("the end of the archive", e)),
        }
        let mut rest = self.zstd.finish();
        match rest.read(&mut [0]) {
            Ok(0) => {}
            Ok(_) => return bad("there are bytes behind its frame"),
            Err(e) => return Err(ArchiveError::Read(e)),
        }
        let held = rest.into_inner();
        let trailer = &held.buf[held.start..held.end];
        let Some((start, digest)) = trailer.split_first_chunk::<8>().filter(|_| trailer.len() == TRAILER) else {
            return bad("it is cut off");
        };
        if *start != TRAILER_START {
            return bad("it does not end with its digest: it is cut off, or something was put behind it");
        }
        let found = held.hasher.finalize();
        if digest != found.as_bytes() {
            let said: [u8; 32] = digest.try_into().unwrap_or_default();
            let what = format!("it hashes to {}, but says {}", Digest::from(found), Digest::from_bytes(said));
            return bad(&what);
        }
        Ok(())
    }
}

impl<R: Read> Read for FrameReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.zstd.read(out)
    }
}

/// What an archive has before its first entry, as messages call it.
pub(crate) const START: &str = "the start of the archive";

/// An error met while an entry was read: of the disk, or of bytes that are no frame.
pub(crate) fn frame_error(entry: &str, e: io::Error) -> ArchiveError {
    // What the system says has a number; what zstd says of its input has none.
    if e.raw_os_error().is_some() {
        return ArchiveError::Read(e);
    }
    match e.kind() {
        io::ErrorKind::UnexpectedEof => ArchiveError::bad(entry, "the archive is cut off here"),
        _ if entry == START => ArchiveError::bad(entry, "this is no archive of graftwerk"),
        _ => ArchiveError::bad(entry, format!("the archive does not read here: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(bytes: &[u8]) -> Vec<u8> {
        let mut w = FrameWriter::new(Vec::new()).unwrap();
        w.write_all(bytes).unwrap();
        let (out, n) = w.finish().unwrap();
        assert_eq!(n, out.len() as u64);
        out
    }

    fn read(bytes: &[u8]) -> Result<Vec<u8>> {
        let mut r = FrameReader::new(bytes).map_err(ArchiveError::Read)?;
        let mut out = Vec::new();
        r.read_to_end(&mut out).map_err(|e| frame_error("x", e))?;
        r.finish()?;
        Ok(out)
    }

    #[test]
    fn what_was_written_reads_back_here_and_with_any_zstd() {
        for bytes in [vec![], b"abc".to_vec(), (0..3_000_000u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect()] {
            let f = framed(&bytes);
            assert_eq!(read(&f).unwrap(), bytes);
            assert_eq!(zstd::stream::decode_all(f.as_slice()).unwrap(), bytes);
        }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_seen_and_so_is_what_follows() {
        let f = framed(b"some bytes that are, some bytes that are not, some bytes");
        for i in 0..f.len() {
            assert!(read(&f[..i]).is_err(), "cut at {i}");
            for bit in 0..8 {
                let mut t = f.clone();
                t[i] ^= 1 << bit;
                assert!(read(&t).is_err(), "bit {bit} of byte {i}");
            }
        }
        assert!(read(&[f.as_slice(), b"x"].concat()).is_err());
        assert!(read(&[f.as_slice(), f.as_slice()].concat()).is_err());
    }

    #[test]
    fn a_frame_that_asks_for_much_memory_is_refused() {
        let mut z = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
        z.window_log(27).unwrap();
        z.write_all(&vec![7; 1 << 20]).unwrap();
        let e = read(&z.finish().unwrap()).unwrap_err();
        assert!(matches!(e, ArchiveError::Bad { .. }), "{e}");
    }
}
