//! How much a step will write, said before it runs.

use std::iter::Sum;
use std::ops::Add;

use serde::Serialize;

/// Bytes that a step needs room for. Never more than it really does: what is refused for want of room must be what would
/// have failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Space {
    /// Bytes that are new.
    pub writes: u64,
    /// Bytes copied from what is there: a file system that can share extents needs no room for them.
    pub copies: u64,
}

impl Space {
    /// New bytes.
    pub fn of_writes(writes: u64) -> Self {
        Self { writes, copies: 0 }
    }

    /// A file of `len` bytes, of which so many are copied.
    pub fn of_file(len: u64, copies: u64) -> Self {
        Self { writes: len.saturating_sub(copies), copies }
    }
}

impl Add for Space {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let (writes, copies) = (self.writes.saturating_add(other.writes), self.copies.saturating_add(other.copies));
        Self { writes, copies }
    }
}

impl Sum for Space {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}
