//! In-toto statements: read from an envelope, or from the Sigstore bundle around one.
//!
//! Source: github.com/in-toto/attestation, spec/v1 (statement.md, digest_set.md, resource_descriptor.md).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::attest::dsse::{Envelope, IN_TOTO};
use crate::attest::error::{AttestError, Result};
use crate::attest::files::{Claim, Expected, Piece};
use crate::attest::key::PublicKey;
use crate::attest::oms;
use crate::digest::{Digest, TreeId};

/// The type of a statement.
pub const STATEMENT: &str = "https://in-toto.io/Statement/v1";
// What tools wrote before; its fields are the same.
const STATEMENT_BEFORE: &str = "https://in-toto.io/Statement/v0.1";
/// The key of a tree's digest in a digest set: the BLAKE3 of the canonical listing of a folder (docs/store-format.md).
pub const TREE_DIGEST: &str = "graftwerkTree";
/// The name of a subject that is the folder as a whole.
pub const WHOLE: &str = ".";

/// A statement: something is said (the predicate) of some files (the subject).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Statement {
    /// The type of it all.
    #[serde(rename = "_type")]
    pub kind: String,
    /// Of what something is said.
    pub subject: Vec<Subject>,
    /// What kind of thing is said.
    #[serde(rename = "predicateType")]
    pub predicate_type: String,
    /// What is said.
    #[serde(default)]
    pub predicate: Value,
}

/// One of the things that something is said of.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Subject {
    /// Its path in the folder.
    #[serde(default)]
    pub name: String,
    /// Algorithm → digest in hex.
    pub digest: BTreeMap<String, String>,
}

/// A file that holds a signature.
#[derive(Debug, Clone)]
pub struct Signed {
    /// Whether the envelope is in a Sigstore bundle.
    pub bundled: bool,
    envelope: Envelope,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bundle {
    media_type: String,
    dsse_envelope: Envelope,
}

const AGAIN: &str = "copy the file again from where it was made";

impl Signed {
    /// Reads an envelope, or a Sigstore bundle that holds one. `place` is the file, for errors. Errors: Bad.
    pub fn parse(bytes: &[u8], place: &str) -> Result<Self> {
        let bad = |what: String| AttestError::bad(place, what, AGAIN);
        let json = |e: serde_json::Error| bad(format!("is no signature that can be read: {e}"));
        let value: Value = serde_json::from_slice(bytes).map_err(json)?;
        if value.get("dsseEnvelope").is_some() {
            let bundle: Bundle = serde_json::from_slice(bytes).map_err(json)?;
            if !bundle.media_type.starts_with("application/vnd.dev.sigstore.bundle") {
                return Err(bad(format!("is a bundle of the media type {:?}, which is not read", bundle.media_type)));
            }
            return Ok(Self { bundled: true, envelope: bundle.dsse_envelope });
        }
        if value.get("messageSignature").is_some() {
            let what = "is a bundle with a signature of one blob, and no statement about files".to_owned();
            return Err(AttestError::bad(place, what, "pass one that holds a DSSE envelope"));
        }
        if value.get("payload").is_none() {
            let what = "is neither a DSSE envelope (payload, payloadType, signatures) nor a Sigstore bundle";
            return Err(AttestError::bad(
                place,
                what,
                "pass a file that `graftwerk attest` or `model_signing sign` wrote",
            ));
        }
        Ok(Self { bundled: false, envelope: serde_json::from_slice(bytes).map_err(json)? })
    }

    /// The statement, where it is signed by this key. Errors: Bad where it is no statement; NotSigned.
    pub fn open(&self, key: &PublicKey, place: &str) -> Result<Statement> {
        let payload = self.envelope.open(key, place)?;
        let bad = |what: String| AttestError::bad(place, what, "pass a signature over files");
        if self.envelope.payload_type != IN_TOTO {
            return Err(bad(format!("holds a payload of the type {:?}, not {IN_TOTO:?}", self.envelope.payload_type)));
        }
        let statement: Statement =
            serde_json::from_slice(&payload).map_err(|e| bad(format!("holds no in-toto statement: {e}")))?;
        if statement.kind != STATEMENT && statement.kind != STATEMENT_BEFORE {
            return Err(bad(format!("holds a statement of the type {:?}, not {STATEMENT:?}", statement.kind)));
        }
        Ok(statement)
    }
}

impl Statement {
    /// What a folder of which this is said should hold. Errors: Bad where a name stands twice, leads out of the folder, or
    /// has no digest that is known here.
    pub fn expected(&self, place: &str) -> Result<Expected> {
        if self.predicate_type == oms::PREDICATE {
            return oms::expected(self, place);
        }
        let mut expected = Expected::default();
        for subject in self.subject.iter().filter(|s| s.name != WHOLE) {
            let name = relative(&subject.name, place)?;
            let of = |algorithm: &str| subject.digest.get(algorithm).map(|d| d.to_ascii_lowercase());
            let (sha256, blake3) = (of("sha256"), of("blake3"));
            if sha256.is_none() && blake3.is_none() {
                let known: Vec<&str> = subject.digest.keys().map(String::as_str).collect();
                let what =
                    format!("has no sha256 and no blake3 digest of {:?}, only {}", subject.name, known.join(", "));
                return Err(AttestError::bad(place, what, "verify it with the tool that made it"));
            }
            let piece = Piece { range: None, claim: Claim::All { sha256, blake3 } };
            if expected.files.insert(name, vec![piece]).is_some() {
                return Err(twice(&subject.name, place));
            }
        }
        if expected.files.is_empty() {
            return Err(AttestError::bad(place, "is signed, and names no file", "pass a signature over files"));
        }
        Ok(expected)
    }

    /// The tree that the folder as a whole is said to be.
    pub fn tree(&self) -> Option<TreeId> {
        let whole = self.subject.iter().find(|s| s.name == WHOLE)?;
        Digest::from_hex(whole.digest.get(TREE_DIGEST)?).ok().map(TreeId)
    }
}

pub(super) fn twice(name: &str, place: &str) -> AttestError {
    AttestError::bad(place, format!("names {name:?} twice: it can't be told which of the two counts"), AGAIN)
}

/// A path in a folder, without `.` and doubled slashes. Errors: Bad where it is absolute or leads out.
pub(super) fn relative(name: &str, place: &str) -> Result<String> {
    let parts: Vec<&str> = name.split('/').filter(|p| !p.is_empty() && *p != ".").collect();
    if name.starts_with('/') || parts.contains(&"..") || name.contains('\0') {
        let what = format!("names {name:?}, which is no path inside of a folder");
        return Err(AttestError::bad(place, what, "names are relative to the folder that is verified"));
    }
    if parts.is_empty() {
        return Err(AttestError::bad(place, "names a file without a name", AGAIN));
    }
    Ok(parts.join("/"))
}
