//! Keys: ed25519 and ECDSA on P-256, from PEM files of openssl and from ed25519 files of OpenSSH.
//!
//! A private key is never shown: neither its text nor a part of it stands in any message, and what was read of it is
//! overwritten when it is dropped.

use p256::ecdsa::signature::{Signer as _, Verifier as _};
use p256::pkcs8::{DecodePrivateKey as _, DecodePublicKey as _, EncodePublicKey as _, LineEnding};
use pkcs8::der::Decode as _;
use pkcs8::der::asn1::ObjectIdentifier;
use pkcs8::{PrivateKeyInfoRef, SecretDocument};
use sha2::{Digest as _, Sha256};

use crate::attest::error::{AttestError, Result};
use crate::attest::{hex, openssh, pem};

pub(super) const HOW_TO_MAKE: &str = "`openssl genpkey -algorithm ed25519 -out key.pem` makes one; for --oms, `-algorithm EC -pkeyopt ec_paramgen_curve:P-256`";
const HOW_TO_EXTRACT: &str = "`openssl pkey -in key.pem -pubout -out key.pub` writes the public half";

const ED25519: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.101.112");
const EC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");
const P256: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.3.1.7");

/// What a key signs with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub enum Algorithm {
    /// Ed25519 (RFC 8032).
    #[serde(rename = "ed25519")]
    Ed25519,
    /// ECDSA on P-256 with SHA-256; signatures in DER.
    #[serde(rename = "ecdsa-p256")]
    EcdsaP256,
}

impl std::fmt::Display for Algorithm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ed25519 => "ed25519",
            Self::EcdsaP256 => "ECDSA P-256",
        })
    }
}

/// A private key.
pub struct PrivateKey(Private);

enum Private {
    Ed25519(Box<ed25519_dalek::SigningKey>),
    P256(Box<p256::ecdsa::SigningKey>),
}

impl std::fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PrivateKey({})", self.public().algorithm())
    }
}

/// A public key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey(Public);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Public {
    Ed25519(ed25519_dalek::VerifyingKey),
    P256(p256::ecdsa::VerifyingKey),
}

fn damaged(place: &str) -> AttestError {
    AttestError::bad(place, "is no whole key", "copy it again from where it was made")
}

/// Whether a text looks like PEM, and so is no path.
pub fn is_pem(text: &str) -> bool {
    pem::is_pem(text)
}

impl PrivateKey {
    /// Reads an unencrypted private key: PKCS#8 (`PRIVATE KEY`), SEC 1 (`EC PRIVATE KEY`) or OpenSSH's, in PEM. `place`
    /// says where it was read, for errors. Errors: Bad.
    pub fn parse(text: &str, place: &str) -> Result<Self> {
        if openssh::public(text, place).is_some() {
            return Err(is_public(place));
        }
        let block = pem::key_block(text, place)?;
        match block.label {
            "PRIVATE KEY" => Self::of_pkcs8(block.text, place),
            "EC PRIVATE KEY" if block.text.contains("Proc-Type:") => Err(encrypted(place)),
            "EC PRIVATE KEY" => match p256::SecretKey::from_sec1_pem(block.text) {
                Ok(key) => Ok(Self(Private::P256(Box::new(key.into())))),
                Err(_) => {
                    let what = "is no EC key of the curve P-256, or not whole";
                    Err(AttestError::bad(place, what, HOW_TO_MAKE))
                }
            },
            "OPENSSH PRIVATE KEY" => {
                let (seed, public) = openssh::private(block.text, place)?;
                let key = ed25519_dalek::SigningKey::from_bytes(&seed);
                if key.verifying_key().to_bytes() != public {
                    return Err(damaged(place));
                }
                Ok(Self(Private::Ed25519(Box::new(key))))
            }
            "ENCRYPTED PRIVATE KEY" => Err(encrypted(place)),
            label if label.ends_with("PUBLIC KEY") => Err(is_public(place)),
            label => Err(AttestError::bad(place, format!("holds a key of the kind {label}"), HOW_TO_MAKE)),
        }
    }

    fn of_pkcs8(text: &str, place: &str) -> Result<Self> {
        let (_, der) = SecretDocument::from_pem(text).map_err(|_| damaged(place))?;
        let info = PrivateKeyInfoRef::from_der(der.as_bytes()).map_err(|_| damaged(place))?;
        let curve = info.algorithm.parameters_oid().ok();
        match info.algorithm.oid {
            ED25519 => {
                let key = ed25519_dalek::SigningKey::from_pkcs8_der(der.as_bytes()).map_err(|_| damaged(place))?;
                Ok(Self(Private::Ed25519(Box::new(key))))
            }
            EC if curve == Some(P256) => {
                let key = p256::ecdsa::SigningKey::from_pkcs8_der(der.as_bytes()).map_err(|_| damaged(place))?;
                Ok(Self(Private::P256(Box::new(key))))
            }
            other => Err(other_algorithm(other, curve, place)),
        }
    }

    /// Its public half.
    pub fn public(&self) -> PublicKey {
        PublicKey(match &self.0 {
            Private::Ed25519(k) => Public::Ed25519(k.verifying_key()),
            Private::P256(k) => Public::P256(*k.verifying_key()),
        })
    }

    /// Signs a message. The same key and message give the same signature (RFC 8032, RFC 6979).
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        match &self.0 {
            Private::Ed25519(k) => k.sign(message).to_bytes().to_vec(),
            Private::P256(k) => {
                let signature: p256::ecdsa::Signature = k.sign(message);
                signature.to_der().as_bytes().to_vec()
            }
        }
    }
}

impl PublicKey {
    /// Reads a public key: `PUBLIC KEY` in PEM, or a line `ssh-ed25519 …`. Errors: Bad.
    pub fn parse(text: &str, place: &str) -> Result<Self> {
        if let Some(bytes) = openssh::public(text, place) {
            let key = ed25519_dalek::VerifyingKey::from_bytes(&bytes?).map_err(|_| damaged(place))?;
            return Ok(Self(Public::Ed25519(key)));
        }
        let block = pem::key_block(text, place)?;
        if block.label.ends_with("PRIVATE KEY") {
            let what = "is a private key, and the public one is enough to verify";
            return Err(AttestError::bad(place, what, HOW_TO_EXTRACT));
        }
        if block.label != "PUBLIC KEY" {
            let what = format!("holds a key of the kind {}", block.label);
            return Err(AttestError::bad(place, what, HOW_TO_EXTRACT));
        }
        let (_, der) = pkcs8::Document::from_pem(block.text).map_err(|_| damaged(place))?;
        let info = pkcs8::SubjectPublicKeyInfoRef::from_der(der.as_bytes()).map_err(|_| damaged(place))?;
        let curve = info.algorithm.parameters_oid().ok();
        match info.algorithm.oid {
            ED25519 => {
                let key = ed25519_dalek::VerifyingKey::from_public_key_der(der.as_bytes());
                Ok(Self(Public::Ed25519(key.map_err(|_| damaged(place))?)))
            }
            EC if curve == Some(P256) => {
                let key = p256::ecdsa::VerifyingKey::from_public_key_der(der.as_bytes());
                Ok(Self(Public::P256(key.map_err(|_| damaged(place))?)))
            }
            other => Err(other_algorithm(other, curve, place)),
        }
    }

    /// What it verifies.
    pub fn algorithm(&self) -> Algorithm {
        match self.0 {
            Public::Ed25519(_) => Algorithm::Ed25519,
            Public::P256(_) => Algorithm::EcdsaP256,
        }
    }

    /// Its fingerprint: SHA-256 of its SubjectPublicKeyInfo in DER, in hex. It is what `keyid` says in an envelope, and
    /// `openssl pkey -pubin -in key.pub -outform DER | sha256sum` gives it too.
    pub fn fingerprint(&self) -> String {
        let der = match &self.0 {
            Public::Ed25519(k) => k.to_public_key_der(),
            Public::P256(k) => k.to_public_key_der(),
        };
        // Encoding a key of a fixed size fails only where memory does.
        der.map(|d| hex(&Sha256::digest(d.as_bytes()))).unwrap_or_default()
    }

    /// What the OpenSSF format calls its hint: SHA-256 of its PEM text, in hex.
    pub fn pem_fingerprint(&self) -> String {
        let text = match &self.0 {
            Public::Ed25519(k) => k.to_public_key_pem(LineEnding::LF),
            Public::P256(k) => k.to_public_key_pem(LineEnding::LF),
        };
        text.map(|t| hex(&Sha256::digest(t.as_bytes()))).unwrap_or_default()
    }

    /// Whether the signature is this key's over the message.
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        match &self.0 {
            Public::Ed25519(k) => {
                ed25519_dalek::Signature::from_slice(signature).is_ok_and(|s| k.verify_strict(message, &s).is_ok())
            }
            Public::P256(k) => p256::ecdsa::Signature::from_der(signature).is_ok_and(|s| k.verify(message, &s).is_ok()),
        }
    }
}

fn is_public(place: &str) -> AttestError {
    AttestError::bad(place, "is a public key, and only the private one signs", "pass the file that it was made from")
}

fn encrypted(place: &str) -> AttestError {
    let hint = "decrypt a copy of it: `umask 077; openssl pkey -in key.pem -out plain.pem`";
    AttestError::bad(place, "is encrypted, and nobody is asked for a passphrase", hint)
}

fn other_algorithm(oid: ObjectIdentifier, curve: Option<ObjectIdentifier>, place: &str) -> AttestError {
    let name = match (oid.to_string().as_str(), curve.map(|c| c.to_string()).as_deref()) {
        ("1.2.840.113549.1.1.1", _) => "an RSA key".to_owned(),
        ("1.3.101.113", _) => "an Ed448 key".to_owned(),
        ("1.3.101.110", _) => "an X25519 key, which signs nothing".to_owned(),
        (_, Some("1.3.132.0.34")) => "a key of the curve P-384".to_owned(),
        (_, Some("1.3.132.0.35")) => "a key of the curve P-521".to_owned(),
        (_, Some("1.3.132.0.10")) => "a key of the curve secp256k1".to_owned(),
        (oid, _) => format!("a key of the algorithm {oid}"),
    };
    AttestError::bad(place, format!("is {name}; ed25519 and ECDSA P-256 are taken"), HOW_TO_MAKE)
}
