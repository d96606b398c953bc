//! The block of a PEM file that holds a key.

use crate::attest::error::{AttestError, Result};

/// The block of a text that holds a key.
pub(super) struct Block<'t> {
    /// What stands behind `BEGIN`.
    pub(super) label: &'t str,
    /// The block with its first and last line.
    pub(super) text: &'t str,
}

const BEGIN: &str = "-----BEGIN ";
const DASHES: &str = "-----";

/// Whether the text has the beginning of any block.
pub(super) fn is_pem(text: &str) -> bool {
    text.contains(BEGIN)
}

/// Finds the first block whose label ends in `KEY`: openssl writes one with the curve's parameters before it. Errors: Bad
/// where there is none, or its end is missing.
pub(super) fn key_block<'t>(text: &'t str, place: &str) -> Result<Block<'t>> {
    let mut other = None;
    let mut rest = text;
    while let Some(at) = rest.find(BEGIN) {
        let from = &rest[at..];
        let label = from[BEGIN.len()..].split(DASHES).next().unwrap_or_default();
        let plain = !label.is_empty()
            && label.len() < 40
            && label.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b' ');
        let end = format!("-----END {label}-----");
        let Some(to) = from.find(&end).filter(|_| plain) else {
            let what = "is cut off or damaged: a block in it has no end";
            return Err(AttestError::bad(place, what, "copy the file again, from its -----BEGIN to its -----END"));
        };
        if label.ends_with("KEY") {
            return Ok(Block { label, text: &from[..to + end.len()] });
        }
        other = Some(label);
        rest = &from[to + end.len()..];
    }
    let what = match other {
        Some("CERTIFICATE") => "holds a certificate, and a key is needed".to_owned(),
        Some(label) => format!("holds a block {label}, and no key"),
        None => "holds no key: there is no -----BEGIN … KEY----- in it".to_owned(),
    };
    Err(AttestError::bad(place, what, super::key::HOW_TO_MAKE))
}
