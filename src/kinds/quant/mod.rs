//! The kind `quant`: a checkpoint's Linear weights in fewer bits.

pub mod config;
pub mod fuse;
pub mod nvfp4;
pub mod pattern;
pub mod round;
pub mod select;
