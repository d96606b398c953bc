//! Tensor files: one strict module that every reader and writer of safetensors shares.

pub mod checkpoint;
pub mod dtype;
pub mod hash;
pub mod header;
pub mod index;
pub mod pattern;
pub mod table;
pub mod write;

#[cfg(test)]
pub(crate) mod testing;
