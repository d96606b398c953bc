//! Envelopes: a payload, its type, and signatures over both.
//!
//! Source: DSSE v1.0.2 (github.com/secure-systems-lab/dsse, protocol.md and envelope.md).

use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use base64::engine::{DecodePaddingMode, Engine};
use serde::{Deserialize, Serialize};

use crate::attest::error::{AttestError, Result};
use crate::attest::key::{PrivateKey, PublicKey};

/// The payload type of in-toto statements.
pub const IN_TOTO: &str = "application/vnd.in-toto+json";

/// An envelope as it stands in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Envelope {
    /// The payload in base64.
    pub payload: String,
    /// What it is.
    pub payload_type: String,
    /// Signatures over both.
    pub signatures: Vec<Signature>,
}

/// One signature of an envelope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// The signature in base64.
    pub sig: String,
    /// Which key made it. It is not signed: a help to find the key, and no more.
    #[serde(default)]
    pub keyid: Option<String>,
}

/// What is signed: the type and the payload, each behind its length, so that no two pairs give one text.
pub fn pae(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let head = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len());
    [head.as_bytes(), payload].concat()
}

/// Signs a payload. `keyid` is what the envelope says of the key.
pub fn sign(payload: &[u8], payload_type: &str, key: &PrivateKey, keyid: String) -> Envelope {
    let sig = STANDARD.encode(key.sign(&pae(payload_type, payload)));
    Envelope {
        payload: STANDARD.encode(payload),
        payload_type: payload_type.to_owned(),
        signatures: vec![Signature { sig, keyid: Some(keyid) }],
    }
}

// Whoever verifies takes both alphabets, and text with or without padding.
fn decode(text: &str) -> Option<Vec<u8>> {
    const CONFIG: GeneralPurposeConfig =
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let standard = GeneralPurpose::new(&alphabet::STANDARD, CONFIG);
    let url_safe = GeneralPurpose::new(&alphabet::URL_SAFE, CONFIG);
    Engine::decode(&standard, text).or_else(|_| Engine::decode(&url_safe, text)).ok()
}

impl Envelope {
    /// The payload, where one of the signatures is this key's. `place` is the envelope's file. Errors: Bad where it is no
    /// envelope; NotSigned where no signature is the key's.
    pub fn open(&self, key: &PublicKey, place: &str) -> Result<Vec<u8>> {
        let damaged = |what: &str| AttestError::bad(place, what, "copy the file again from where it was made");
        let payload = decode(&self.payload).ok_or_else(|| damaged("is damaged: its payload is no base64"))?;
        if self.signatures.is_empty() {
            return Err(damaged("is not signed: its list of signatures is empty"));
        }
        let message = pae(&self.payload_type, &payload);
        let mut readable = false;
        for signature in &self.signatures {
            let Some(sig) = decode(&signature.sig) else { continue };
            readable = true;
            if key.verifies(&message, &sig) {
                return Ok(payload);
            }
        }
        if !readable {
            return Err(damaged("is damaged: its signature is no base64"));
        }
        let fingerprint = key.fingerprint();
        let others: Vec<&str> =
            self.signatures.iter().filter_map(|s| s.keyid.as_deref()).filter(|k| !k.is_empty()).collect();
        let (what, hint) = if others.is_empty() || others.contains(&fingerprint.as_str()) {
            let what = format!("has no signature of the {} key {fingerprint} over its content", key.algorithm());
            (what, "it was changed since it was signed, or another key signed it: trust neither it nor the files")
        } else {
            let what = format!("says that the key {} signed it, and the key given is {fingerprint}", others.join(", "));
            (what, "pass the public key of whoever signed it, from a place that you trust")
        };
        Err(AttestError::NotSigned { place: place.to_owned(), what, hint: Some(hint.to_owned()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The example of DSSE's protocol.md.
    #[test]
    fn the_text_that_is_signed_is_that_of_the_specification() {
        let text = pae("http://example.com/HelloWorld", b"hello world");
        assert_eq!(text, b"DSSEv1 29 http://example.com/HelloWorld 11 hello world");
        assert_eq!(pae("", b""), b"DSSEv1 0  0 ");
    }

    #[test]
    fn both_alphabets_are_read_with_and_without_padding() {
        for text in ["+/+/YQ==", "-_-_YQ==", "+/+/YQ", "-_-_YQ"] {
            assert_eq!(decode(text).as_deref(), Some([0xfb, 0xff, 0xbf, b'a'].as_slice()), "{text}");
        }
        assert_eq!(decode("no base64"), None);
    }
}
