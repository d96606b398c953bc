//! Ed25519 keys as `ssh-keygen` writes them.
//!
//! Source: OpenSSH's PROTOCOL.key (the private file) and RFC 8709 (the public line).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use crate::attest::error::{AttestError, Result};

const MAGIC: &[u8] = b"openssh-key-v1\0";
const ED25519: &[u8] = b"ssh-ed25519";

// Takes fields off the front of a binary text: a length of 4 bytes, big end first, and so many bytes.
struct Fields<'b>(&'b [u8]);

impl<'b> Fields<'b> {
    fn number(&mut self) -> Option<u32> {
        let (head, rest) = self.0.split_first_chunk::<4>()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*head))
    }

    fn bytes(&mut self) -> Option<&'b [u8]> {
        let n = usize::try_from(self.number()?).ok()?;
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }
}

/// The seed and the public half of an `OPENSSH PRIVATE KEY` block. Errors: Bad where it is encrypted, of another kind, or
/// damaged.
pub(super) fn private(block: &str, place: &str) -> Result<(Zeroizing<[u8; 32]>, [u8; 32])> {
    let damaged = || AttestError::bad(place, "is no whole OpenSSH key", "copy it again from where it was made");
    let lines = block.lines().filter(|l| !l.starts_with("-----")).map(str::trim);
    let text: Zeroizing<String> = Zeroizing::new(lines.collect());
    let bytes = Zeroizing::new(STANDARD.decode(text.as_bytes()).map_err(|_| damaged())?);
    let mut fields = Fields(bytes.strip_prefix(MAGIC).ok_or_else(damaged)?);
    let mut outer = || {
        Some((fields.bytes()?, fields.bytes()?, fields.bytes()?, fields.number()?, fields.bytes()?, fields.bytes()?))
    };
    let (cipher, _kdf, _options, keys, _public, private) = outer().ok_or_else(damaged)?;
    if cipher != b"none" {
        let hint = "take the passphrase off a copy of it: `ssh-keygen -p -N '' -f COPY`";
        return Err(AttestError::bad(place, "is encrypted, and nobody is asked for a passphrase", hint));
    }
    let mut inner = Fields(private);
    let mut head = || Some((inner.number()?, inner.number()?, inner.bytes()?));
    let (check, again, kind) = head().ok_or_else(damaged)?;
    if keys != 1 || check != again {
        return Err(damaged());
    }
    if kind != ED25519 {
        return Err(other_kind(kind, place));
    }
    let mut halves = || Some((inner.bytes()?, inner.bytes()?));
    let (public, pair) = halves().ok_or_else(damaged)?;
    let (seed, public_again) = pair.split_first_chunk::<32>().ok_or_else(damaged)?;
    let public: [u8; 32] = public.try_into().map_err(|_| damaged())?;
    if public_again != public {
        return Err(damaged());
    }
    Ok((Zeroizing::new(*seed), public))
}

/// The public half of a line `ssh-ed25519 AAAA… comment`; `None` where the text is no such line of any kind. Errors: Bad.
pub(super) fn public(text: &str, place: &str) -> Option<Result<[u8; 32]>> {
    let mut words = text.split_whitespace();
    let kind = words.next().filter(|w| w.starts_with("ssh-") || w.starts_with("ecdsa-") || w.starts_with("sk-"))?;
    let damaged = || AttestError::bad(place, "is no whole OpenSSH key", "copy the line again from where it was made");
    Some((|| {
        if kind.as_bytes() != ED25519 {
            return Err(other_kind(kind.as_bytes(), place));
        }
        let bytes = words.next().and_then(|w| STANDARD.decode(w).ok()).ok_or_else(damaged)?;
        let mut fields = Fields(&bytes);
        match (fields.bytes(), fields.bytes(), fields.0) {
            (Some(ED25519), Some(key), []) => key.try_into().map_err(|_| damaged()),
            _ => Err(damaged()),
        }
    })())
}

// Only a name that looks like one is shown: in a key that is damaged, anything may stand in its place.
fn other_kind(kind: &[u8], place: &str) -> AttestError {
    let plain = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-@.".contains(b);
    let known = [&b"ssh-"[..], b"ecdsa-", b"sk-"].iter().any(|k| kind.starts_with(k));
    let what = match std::str::from_utf8(kind) {
        Ok(name) if known && kind.len() < 40 && kind.iter().all(plain) => {
            format!("is an OpenSSH key of the kind {name}")
        }
        _ => "is an OpenSSH key of another kind".to_owned(),
    };
    AttestError::bad(place, what, "of OpenSSH's keys, ed25519 ones are taken: `ssh-keygen -t ed25519`")
}
