//! JSON records that are not named by their digest carry it themselves, as their last key, so that a flipped bit is
//! seen even where the text still reads as JSON.
//!
//! ```text
//! {
//!   …,
//!   "sum": "b3:77d0…"
//! }
//! ```
//!
//! The sum is the BLAKE3 of the same text without that line.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::digest::Digest;

const KEY: &str = ",\n  \"sum\": \"";
const END: &str = "\"\n}\n";

/// A value as sealed text. Errors: a value that is no JSON object with something in it.
pub(crate) fn seal(value: &impl Serialize) -> std::io::Result<Vec<u8>> {
    let text = serde_json::to_string_pretty(value)?;
    seal_text(&text).ok_or_else(|| std::io::Error::other("only an object can be sealed"))
}

fn seal_text(text: &str) -> Option<Vec<u8>> {
    let body = text.strip_suffix("\n}")?;
    let sum = Digest::of(text.as_bytes());
    Some(format!("{body}{KEY}{sum}{END}").into_bytes())
}

/// Reads a sealed text. Errors: what is wrong with it, to be read behind its path.
pub(crate) fn unseal<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "is no UTF-8 text".to_owned())?;
    let (body, sum) = text
        .strip_suffix(END)
        .and_then(|t| t.rsplit_once(KEY))
        .ok_or_else(|| "does not end with its sum: it is cut off or was edited".to_owned())?;
    let body = format!("{body}\n}}");
    let found = Digest::of(body.as_bytes()).to_string();
    if found != sum {
        return Err(format!("hashes to {found}, but says {sum}"));
    }
    serde_json::from_str(&body).map_err(|e| format!("does not read: {e}"))
}

/// The same record sealed, where it is not yet: what an older store wrote. `None` where it is sealed already. Errors:
/// what is wrong with it.
pub(crate) fn seal_older(bytes: &[u8]) -> Result<Option<Vec<u8>>, String> {
    if unseal::<serde_json::Value>(bytes).is_ok() {
        return Ok(None);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| "is no UTF-8 text".to_owned())?;
    serde_json::from_str::<serde_json::Value>(text).map_err(|e| format!("does not read: {e}"))?;
    seal_text(text.trim_end()).map(Some).ok_or_else(|| "is no object of a store".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_sealed_text_is_json_and_reads_back() {
        let value = json!({"a": [1, 2.5], "sum": "a key of that name is no sum", "b": {"c": "\n"}});
        let sealed = seal(&value).unwrap();
        assert_eq!(unseal::<Value>(&sealed).unwrap(), value);
        assert!(serde_json::from_slice::<Value>(&sealed).unwrap()["sum"].as_str().unwrap().starts_with("b3:"));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_seen() {
        let sealed = seal(&json!({"seq": 1, "tree": "b3:00"})).unwrap();
        for i in 0..sealed.len() {
            assert!(unseal::<Value>(&sealed[..i]).is_err(), "cut at {i}");
            for bit in 0..8 {
                let mut b = sealed.clone();
                b[i] ^= 1 << bit;
                assert!(unseal::<Value>(&b).is_err(), "bit {bit} of byte {i}");
            }
        }
    }

    #[test]
    fn an_older_record_is_sealed_once() {
        let old = b"{\n  \"seq\": 1\n}\n";
        let sealed = seal_older(old).unwrap().unwrap();
        assert_eq!(unseal::<Value>(&sealed).unwrap(), json!({"seq": 1}));
        assert_eq!(seal_older(&sealed).unwrap(), None);
        assert!(seal_older(b"{\n  \"seq\": ").is_err());
    }
}
