//! What can be wrong with a document or an edit.

use crate::jsonedit::MAX_DEPTH;
use crate::near::did_you_mean;

fn place(pointer: &str) -> String {
    if pointer.is_empty() { "the top level".to_owned() } else { format!("{pointer:?}") }
}

/// Why a document is refused or an edit can't be made. Lines and columns count from 1, columns in characters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// The text is no JSON.
    #[error("line {line}, column {column}: {what}")]
    Syntax {
        /// Line of the first character that does not fit.
        line: usize,
        /// Its column.
        column: usize,
        /// What was expected or found.
        what: String,
    },
    /// The bytes are no UTF-8.
    #[error("line {line}, column {column}: the bytes are no UTF-8")]
    NotUtf8 {
        /// Line of the first wrong byte.
        line: usize,
        /// Its column.
        column: usize,
    },
    /// An object has one key twice: readers differ in which of the values they take.
    #[error("line {line}, column {column}: the key {key:?} stands twice in one object, first in line {first_line}")]
    DuplicateKey {
        /// The key.
        key: String,
        /// Line of the later one.
        line: usize,
        /// Column of the later one.
        column: usize,
        /// Line of the earlier one.
        first_line: usize,
    },
    /// Containers are nested too deep.
    #[error("line {line}, column {column}: nested deeper than {MAX_DEPTH} levels")]
    TooDeep {
        /// Line of the container that is one too many.
        line: usize,
        /// Its column.
        column: usize,
    },
    /// The text is no JSON pointer.
    #[error("{text:?} is no JSON pointer: {what}")]
    BadPointer {
        /// The text.
        text: String,
        /// What is wrong.
        what: &'static str,
    },
    /// Nothing stands at the pointer.
    #[error("there is nothing at {pointer:?}: {} has no {missing:?}", place(parent))]
    Missing {
        /// The pointer.
        pointer: String,
        /// The deepest part of it that is there.
        parent: String,
        /// The next part, which is not.
        missing: String,
        /// Keys of that parent that look alike.
        near: Vec<String>,
    },
    /// The pointer leads through a value that holds nothing.
    #[error("{pointer:?} leads through {parent:?} (line {line}, column {column}), which is {found}")]
    NotAContainer {
        /// The pointer.
        pointer: String,
        /// Where the value stands.
        parent: String,
        /// What it is.
        found: &'static str,
        /// Its line.
        line: usize,
        /// Its column.
        column: usize,
    },
    /// The part of the pointer is no index of this array.
    #[error("{index:?} is no place in the array at {parent:?}, which has {len} items")]
    BadIndex {
        /// Where the array stands.
        parent: String,
        /// The part of the pointer.
        index: String,
        /// The array's length.
        len: usize,
    },
    /// The document itself can't be removed.
    #[error("the whole document can't be removed")]
    RemoveRoot,
    /// The text that was to be put in is no JSON value.
    #[error("the new value {text:?} is no JSON: {what}")]
    BadValue {
        /// Its first characters.
        text: String,
        /// What is wrong.
        what: String,
    },
}

impl JsonError {
    /// What to do next.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Missing { missing, near, .. } => did_you_mean(missing, near.iter().map(String::as_str)),
            Self::BadPointer { .. } => Some("write it as \"/key/0/key\", with ~1 for / and ~0 for ~".to_owned()),
            Self::BadIndex { .. } => Some("append with \"-\"".to_owned()),
            Self::DuplicateKey { .. } => Some("remove one of the two".to_owned()),
            _ => None,
        }
    }
}
