//! A closure as one file: what a checkpoint is made of and how it came to be, to be carried to another store.
//!
//! ```text
//! one zstd frame:
//!   one tar, regular files only:
//!     graftwerk-archive      the manifest: what was exported, and every object with size and digest
//!     recipes/ab/cdef…       the objects in the manifest's order, under the store's own names
//!     trees/ab/cdef…
//!     tensors/ab/cdef…
//!     runs/<recipe>/<n>.json
//!     blobs/ab/cdef…[.x]
//! one skippable zstd frame: the BLAKE3 of all bytes before it
//! ```
//!
//! One closure has one text: entries are sorted, headers hold nothing of the machine. So a reader knows every byte of every
//! header in advance, and whatever differs is refused: there is nothing left for a link, a device or a name that leads
//! out to hide in. What it can't know is whether a run's record tells the truth: that is whoever made the archive's
//! word.

pub mod closure;
pub mod error;
pub mod folder;
mod frame;
pub mod import;
pub mod manifest;
mod read;
mod tarball;
pub mod write;

pub use closure::{Closure, Export, Wanted};
pub use error::{ArchiveError, Result};
pub use import::{Imported, import};
pub use write::write;

/// The largest listing or recipe that an archive may hold, in bytes: a listing of some 130,000 files.
pub const MAX_TEXT: u64 = 16 << 20;

/// The largest tensor table, in bytes: some 35,000 tensors. A larger one stays behind, and is made again from its blob.
pub const MAX_TABLE: u64 = 4 << 20;

/// The largest record of a run, in bytes. As JSON in memory it takes many times that.
pub const MAX_RUN: u64 = 1 << 20;

/// The largest manifest, in bytes: some 400,000 objects.
pub const MAX_MANIFEST: u64 = 64 << 20;
