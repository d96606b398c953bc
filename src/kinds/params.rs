//! Parameters of a node and what a kind says of them.

use std::collections::BTreeMap;

use crate::canon::Value;

/// The parameters of a node by key.
pub type Params = BTreeMap<String, Value>;

/// The type that a key takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyType {
    /// A string.
    Str,
    /// An integer.
    Int,
    /// A boolean.
    Bool,
    /// A string or a list of strings.
    StrOrList,
    /// A list of strings.
    StrList,
    /// A table of strings.
    StrMap,
    /// A table; the kind's own `check` looks inside.
    Map,
    /// Any value.
    Any,
}

/// What a kind says of one of its keys.
#[derive(Debug, Clone, Copy)]
pub struct KeySpec {
    /// The key in graph.toml.
    pub name: &'static str,
    /// What it takes.
    pub ty: KeyType,
    /// Whether it must be there.
    pub required: bool,
    /// Whether it enters the recipe. An assertion (`expect`) does not: it can't change the output.
    pub hashed: bool,
    /// One line for the reference.
    pub about: &'static str,
}

impl KeySpec {
    /// A key that enters the recipe and may be left out.
    pub const fn optional(name: &'static str, ty: KeyType, about: &'static str) -> Self {
        Self { name, ty, required: false, hashed: true, about }
    }

    /// A key that enters the recipe and must be there.
    pub const fn required(name: &'static str, ty: KeyType, about: &'static str) -> Self {
        Self { name, ty, required: true, hashed: true, about }
    }

    /// A key that is asserted and never hashed.
    pub const fn asserted(name: &'static str, ty: KeyType, about: &'static str) -> Self {
        Self { name, ty, required: false, hashed: false, about }
    }
}
