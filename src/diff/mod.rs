//! What differs between two checkpoints, whoever made them: their files, and their tensors one by one.
//!
//! ```text
//! Side ── files ──> files::compare ──> FilesDiff       added, removed, changed; JSON by key, text by line
//!   └──── tensors ─> layout ─> Weight  a tensor, or the parts of a quantised one, with the shape that it stands for
//!                      └─> pairing      which is which: by name, by a prefix that became another, by the same bytes
//!                            └─> tensors::compare ──> TensorsDiff
//!                                  └─> elements, statistics: values in blocks by all cores; equal digests are not read
//! ```
//!
//! A [`Side`] comes from a tree of a store or from a plain folder; nothing below knows which.

pub mod elements;
pub mod files;
pub mod folder;
pub mod json;
pub mod layout;
pub mod pairing;
pub mod place;
pub mod side;
pub mod statistics;
pub mod tensors;

pub use files::{FileChange, FilesDiff};
pub use side::{Side, SideFile, SideTensor};
pub use statistics::Statistics;
pub use tensors::{TensorsDiff, WeightChange};

/// What a long comparison tells, and when it stops.
pub struct Watching<'a> {
    /// Hears of bytes done and of all.
    pub progress: &'a (dyn Fn(u64, u64) + Sync),
    /// Whether to stop.
    pub cancelled: &'a (dyn Fn() -> bool + Sync),
}
