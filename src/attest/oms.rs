//! The OpenSSF model signing format: a manifest of a model's files as an in-toto statement, in a Sigstore bundle.
//!
//! Source: github.com/ossf/model-signing-spec, spec/v1.0.md and algorithm-registry.md.

use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::attest::dsse::{self, IN_TOTO};
use crate::attest::error::{AttestError, Result};
use crate::attest::files::{Claim, Expected, Piece};
use crate::attest::hex;
use crate::attest::key::{Algorithm, PrivateKey};
use crate::attest::statement::{STATEMENT, Statement, relative, twice};
use crate::attest::subjects::Subjects;

/// The type of the predicate.
pub const PREDICATE: &str = "https://model_signing/signature/v1.0";
const MEDIA_TYPE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";
/// What the format never signs where it stands at the top of a folder.
pub const NEVER_SIGNED: [&str; 4] = [".git", ".gitattributes", ".github", ".gitignore"];

/// Whether the format leaves a path out.
pub fn leaves_out(path: &str) -> bool {
    NEVER_SIGNED.contains(&path.split('/').next().unwrap_or_default())
}

/// A bundle for a model of this name, signed by a key: its text. Errors: Bad for a key that the format does not know, for a
/// link that opens no file, and where no file is left to sign.
pub fn bundle(name: &str, subjects: &Subjects, key: &PrivateKey, key_place: &str) -> Result<String> {
    let public = key.public();
    if public.algorithm() != Algorithm::EcdsaP256 {
        let what = format!("is an {} key, and the OpenSSF format takes ECDSA keys", public.algorithm());
        let hint = "`openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key.pem` makes one";
        return Err(AttestError::bad(key_place, what, hint));
    }
    if let Some(link) = subjects.other_links.first() {
        let what = format!("has the link {link:?}, which opens no file: the OpenSSF format can't say that");
        return Err(AttestError::bad(name, what, "sign it without --oms"));
    }
    let mut root = Sha256::new();
    let mut resources = Vec::new();
    for (path, digests) in subjects.files.iter().filter(|(path, _)| !leaves_out(path)) {
        root.update(digests.sha256);
        resources.push(json!({"name": path, "algorithm": "sha256", "digest": hex(&digests.sha256)}));
    }
    if resources.is_empty() {
        return Err(AttestError::bad(name, "has no file that the OpenSSF format would sign", "sign it without --oms"));
    }
    let statement = json!({
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": hex(&root.finalize())}}],
        "predicateType": PREDICATE,
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": subjects.links.iter().any(|l| !leaves_out(l)),
                "ignore_paths": NEVER_SIGNED,
            },
            "resources": resources,
        },
    });
    // The format names the key by its hint, and leaves the envelope's own field empty.
    let envelope = dsse::sign(statement.to_string().as_bytes(), IN_TOTO, key, String::new());
    let bundle = json!({
        "mediaType": MEDIA_TYPE,
        "verificationMaterial": {"publicKey": {"hint": public.pem_fingerprint()}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": envelope.payload,
            "payloadType": envelope.payload_type,
            "signatures": [{"sig": envelope.signatures.first().map(|s| s.sig.as_str()), "keyid": ""}],
        },
    });
    Ok(bundle.to_string())
}

#[derive(Deserialize)]
struct Predicate {
    serialization: Serialization,
    resources: Vec<Resource>,
}

#[derive(Deserialize)]
struct Serialization {
    method: String,
    hash_type: String,
    shard_size: Option<Value>,
    allow_symlinks: bool,
    #[serde(default)]
    ignore_paths: Vec<String>,
}

#[derive(Deserialize)]
struct Resource {
    name: String,
    digest: String,
    algorithm: String,
}

/// What a folder should hold of which a statement of this format is made. Errors: Bad.
pub fn expected(statement: &Statement, place: &str) -> Result<Expected> {
    let bad = |what: String| AttestError::bad(place, what, "verify it with the tool that made it");
    let predicate: Predicate = serde_json::from_value(statement.predicate.clone())
        .map_err(|e| bad(format!("is no OpenSSF model signature: {e}")))?;
    let [subject] = statement.subject.as_slice() else {
        return Err(bad(format!("names {} models, and a model signature names one", statement.subject.len())));
    };
    let shards = match predicate.serialization.method.as_str() {
        "files" => false,
        "shards" => true,
        other => return Err(bad(format!("hashes files by the method {other:?}, which is not known here"))),
    };
    let hash_type = &predicate.serialization.hash_type;
    if !matches!(hash_type.as_str(), "sha256" | "blake3") {
        return Err(bad(format!("hashes files with {hash_type}, and sha256 and blake3 are known here")));
    }
    if shards && predicate.serialization.shard_size.is_none() {
        return Err(bad("hashes parts of files, and does not say how long they are".to_owned()));
    }
    let mut expected = Expected { refuses_links: !predicate.serialization.allow_symlinks, ..Expected::default() };
    expected.skips_empty = shards;
    let mut root = Sha256::new();
    // The tool adds the length of parts to the name of the algorithm, the specification does not.
    let size = predicate.serialization.shard_size.map(|s| s.to_string());
    let sharded = size.map(|s| format!("{hash_type}-sharded-{}", s.trim_end_matches(".0")));
    for resource in &predicate.resources {
        if resource.algorithm != *hash_type && sharded.as_ref() != Some(&resource.algorithm) {
            let what =
                format!("hashes {:?} with {}, and all others with {hash_type}", resource.name, resource.algorithm);
            return Err(bad(what));
        }
        let digest = resource.digest.to_ascii_lowercase();
        let bytes = crate::digest::Digest::from_hex(&digest)
            .map_err(|_| bad(format!("has {:?} as the digest of {:?}", resource.digest, resource.name)))?;
        root.update(bytes.as_bytes());
        let claim = match hash_type.as_str() {
            "sha256" => Claim::All { sha256: Some(digest), blake3: None },
            _ => Claim::All { sha256: None, blake3: Some(digest) },
        };
        // A model that is one file is called `.` by some tools.
        let named = |n: &str| if n == "." { Ok(n.to_owned()) } else { relative(n, place) };
        if !shards {
            let name = named(&resource.name)?;
            if expected.files.insert(name, vec![Piece { range: None, claim }]).is_some() {
                return Err(twice(&resource.name, place));
            }
            continue;
        }
        let (name, from, to) = part(&resource.name)
            .ok_or_else(|| bad(format!("names a part {:?}, which is not of the form PATH:FROM:TO", resource.name)))?;
        let pieces = expected.files.entry(named(name)?).or_default();
        pieces.push(Piece { range: Some((from, to)), claim });
    }
    for (name, pieces) in &mut expected.files {
        pieces.sort_by_key(|p| p.range);
        let mut at = 0;
        for (from, to) in pieces.iter().filter_map(|p| p.range) {
            if from != at {
                return Err(bad(format!(
                    "has no gapless parts of {name:?}: one ends at {at}, the next begins at {from}"
                )));
            }
            at = to;
        }
    }
    if expected.files.is_empty() {
        return Err(bad("is signed, and names no file".to_owned()));
    }
    if subject.digest.get("sha256").is_some_and(|d| *d != hex(&root.finalize())) {
        return Err(bad("disagrees with itself: its root digest is not that of its files".to_owned()));
    }
    expected.ignored = predicate.serialization.ignore_paths.iter().filter_map(|p| relative(p, place).ok()).collect();
    expected.ignored.extend(NEVER_SIGNED.map(str::to_owned));
    Ok(expected)
}

// `PATH:FROM:TO`; colons may stand in the path.
fn part(name: &str) -> Option<(&str, u64, u64)> {
    let (rest, to) = name.rsplit_once(':')?;
    let (path, from) = rest.rsplit_once(':')?;
    let (from, to) = (from.parse().ok()?, to.parse().ok()?);
    (from < to).then_some((path, from, to))
}
