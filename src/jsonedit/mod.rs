//! JSON edited in place: an edit changes its own characters and no others.
//!
//! No float, key order, big integer or line of a document is ever rendered again. The strict scanner tolerates what
//! Python's `json` writes and RFC 8259 does not know: `NaN`, `Infinity` and `-Infinity` as values, and a byte-order
//! mark in front, which is kept.
//!
//! ```
//! use graftwerk::jsonedit::{Document, Pointer};
//! let mut config = Document::parse(b"{\n  \"eps\": 1e-06,\n  \"n\": 1\n}\n")?;
//! config.set(&Pointer::parse("/n")?, "2")?;
//! config.set(&Pointer::parse("/new")?, "true")?;
//! assert_eq!(config.finish(), b"{\n  \"eps\": 1e-06,\n  \"n\": 2,\n  \"new\": true\n}\n");
//! # Ok::<(), graftwerk::jsonedit::JsonError>(())
//! ```

mod compare;
mod document;
mod error;
mod layout;
mod pointer;
mod scan;
mod style;
#[cfg(test)]
mod tests;
mod walk;

pub use compare::{Numbers, same_value};
pub use document::{Document, Parents};
pub use error::JsonError;
pub use pointer::Pointer;
pub use style::{Style, shift};

/// Containers may be nested this deep.
pub const MAX_DEPTH: usize = 128;
