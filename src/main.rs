//! The graftwerk binary.
fn main() {}
