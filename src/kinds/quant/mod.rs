//! The kind `quant`: a checkpoint's Linear weights in fewer bits.

pub mod fuse;
pub mod nvfp4;
pub mod round;
