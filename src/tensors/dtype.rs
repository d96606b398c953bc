//! Element types.

/// An element type that the safetensors format knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, non_camel_case_types)]
pub enum Dtype {
    Bf16,
}
