//! Seeded mutations of the fuzz corpus: the same ones each time.
#![allow(dead_code, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};

/// Where a target's seeds are.
pub fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target)
}

/// A target's seeds, always in the same order.
pub fn seeds(target: &str) -> Vec<Vec<u8>> {
    let mut files: Vec<PathBuf> = fs::read_dir(corpus(target))
        .unwrap_or_else(|e| panic!("no corpus of {target}: {e}; UPDATE_CORPUS=1 makes it"))
        .map(|e| e.unwrap().path())
        .collect();
    files.sort();
    files.into_iter().map(|f| fs::read(f).unwrap()).collect()
}

/// SplitMix64.
pub struct Random(u64);

impl Random {
    /// The same one each time for a name.
    pub fn of(name: &str) -> Self {
        Self(name.bytes().fold(1u64, |n, b| n.wrapping_mul(31) + u64::from(b)))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n.max(1) as u64).unwrap()
    }
}

const PIECES: &[&[u8]] = &[
    b"\0",
    b"\n",
    b"\r\n",
    b"\"",
    b"\\",
    b"\\ud800",
    b"\\x00",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"=",
    b"/",
    b"..",
    b"-",
    b"0",
    b"1e999",
    b"18446744073709551616",
    b"9223372036854775808",
    b"-1",
    b"null",
    b"true",
    b"b3:",
    b"\xff",
    b"\xef\xbb\xbf",
    "\u{202e}".as_bytes(),
    "é".as_bytes(),
];

/// A seed with a few changes.
pub fn mutated(r: &mut Random, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = seeds[r.below(seeds.len())].clone();
    for _ in 0..=r.below(5) {
        let at = r.below(bytes.len() + 1);
        let len = r.below(64).min(bytes.len() - at);
        match r.below(8) {
            0 => drop(bytes.drain(at..at + len)),
            1 => bytes.truncate(at),
            2 if at < bytes.len() => bytes[at] ^= 1 << r.below(8),
            3 if at < bytes.len() => bytes[at] = r.next() as u8,
            4 => {
                let again = bytes[at..at + len].to_vec();
                let to = r.below(bytes.len() + 1);
                bytes.splice(to..to, again);
            }
            5 => {
                let other = &seeds[r.below(seeds.len())];
                let from = r.below(other.len() + 1);
                let n = r.below(200).min(other.len() - from);
                bytes.splice(at..at + len, other[from..from + n].iter().copied());
            }
            6 => {
                let piece = PIECES[r.below(PIECES.len())];
                bytes.splice(at..at, piece.iter().copied());
            }
            _ => {
                let piece = PIECES[r.below(PIECES.len())];
                bytes.splice(at..at + piece.len().min(bytes.len() - at), piece.iter().copied());
            }
        }
    }
    bytes
}

/// A header whose length is right again, so that what follows is looked at.
pub fn with_length(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(end) = bytes.iter().rposition(|b| *b == b'}').filter(|e| *e >= 8) {
        bytes[..8].copy_from_slice(&(end as u64 - 7).to_le_bytes());
    }
    bytes
}
