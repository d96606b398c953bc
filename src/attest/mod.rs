//! Signed statements about files: what is signed, by which key, and what of it holds.
//!
//! An attestation is an in-toto Statement v1 in a DSSE envelope: with a SLSA provenance v1 predicate ([`provenance`]), or
//! with that of the OpenSSF model signing format in a Sigstore bundle ([`oms`]). Whoever verifies needs the files, the
//! signature and the public key, and neither a store nor this program.

pub mod dsse;
mod error;
pub mod files;
pub mod key;
pub mod manifest;
pub mod oms;
mod openssh;
mod pem;
pub mod provenance;
pub mod statement;
pub mod subjects;

pub use error::{AttestError, Result};

/// Bytes as lower-case hex digits.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}
