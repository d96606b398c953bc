//! Lists of digests as `sha256sum`, `b3sum` and their like write them.
//!
//! Source: GNU coreutils' manual (cksum output modes: `DIGEST  NAME`, `DIGEST *NAME`, `ALGORITHM (NAME) = DIGEST`, a
//! backslash before a line whose name is escaped), b3sum's README.

use std::collections::BTreeMap;

use crate::attest::error::{AttestError, Result};
use crate::attest::files::{Claim, Expected, Piece};
use crate::attest::statement::relative;

/// What a folder should hold that a list is of. `place` is the list's file. Errors: Bad, with the line.
pub fn parse(bytes: &[u8], place: &str) -> Result<Expected> {
    let text = std::str::from_utf8(bytes).map_err(|e| {
        let line = bytes[..e.valid_up_to()].iter().filter(|b| **b == b'\n').count() + 1;
        AttestError::bad(format!("{place}:{line}:"), "a line that is no UTF-8", WRITE)
    })?;
    let mut expected = Expected::default();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for (i, line) in text.lines().enumerate() {
        let place = format!("{place}:{}:", i + 1);
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let (escaped, line) = line.strip_prefix('\\').map_or((false, line), |rest| (true, rest));
        let (name, claim) = match tagged(line) {
            Some((algorithm, name, digest)) => (name, claim_of(algorithm, digest, &place)?),
            None => {
                let (digest, name) = line.split_once(' ').unwrap_or((line, ""));
                // A second blank, or a star for a file read as bytes.
                let name = name.strip_prefix(' ').or_else(|| name.strip_prefix('*')).unwrap_or(name);
                (name, claim_of("", digest, &place)?)
            }
        };
        let name = if escaped { unescape(name, &place)? } else { name.to_owned() };
        let name = relative(&name, &place)?;
        if let Some(first) = seen.insert(name.clone(), i + 1) {
            let what = format!("names {name:?} again, which stands in line {first} already");
            return Err(AttestError::bad(place, what, "leave one of the two lines"));
        }
        expected.files.insert(name, vec![Piece { range: None, claim }]);
    }
    if expected.files.is_empty() {
        return Err(AttestError::bad(place, "lists no file", WRITE));
    }
    Ok(expected)
}

const WRITE: &str = "a line is a digest, two blanks and a path, as `sha256sum` and `b3sum` write them";

// `SHA256 (name) = digest`
fn tagged(line: &str) -> Option<(&str, &str, &str)> {
    let (algorithm, rest) = line.split_once(" (")?;
    let (name, digest) = rest.rsplit_once(") = ")?;
    let plain = !algorithm.is_empty() && algorithm.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    plain.then_some((algorithm, name, digest))
}

fn claim_of(algorithm: &str, digest: &str, place: &str) -> Result<Claim> {
    let hex = !digest.is_empty() && digest.bytes().all(|b| b.is_ascii_hexdigit());
    if !hex {
        return Err(AttestError::bad(place, "is no line of a list of digests", WRITE));
    }
    let hint = "make the list with `sha256sum` or `b3sum`";
    if digest.len() != 64 {
        let which = match digest.len() {
            32 => " (MD5?)",
            40 => " (SHA-1?)",
            96 => " (SHA-384?)",
            128 => " (SHA-512 or BLAKE2b?)",
            _ => "",
        };
        let what = format!("has a digest of {} digits{which}, and SHA-256 and BLAKE3 have 64", digest.len());
        return Err(AttestError::bad(place, what, hint));
    }
    let digest = digest.to_ascii_lowercase();
    match algorithm.to_ascii_uppercase().as_str() {
        "" => Ok(Claim::Either(digest)),
        "SHA256" | "SHA2-256" | "SHA-256" => Ok(Claim::All { sha256: Some(digest), blake3: None }),
        "BLAKE3" => Ok(Claim::All { sha256: None, blake3: Some(digest) }),
        other => Err(AttestError::bad(place, format!("has a digest by {other}, which is not known here"), hint)),
    }
}

fn unescape(name: &str, place: &str) -> Result<String> {
    let mut out = String::with_capacity(name.len());
    let mut chars = name.chars();
    while let Some(c) = chars.next() {
        let plain = match (c, c == '\\') {
            (c, false) => c,
            _ => match chars.next() {
                Some('\\') => '\\',
                Some('n') => '\n',
                Some('r') => '\r',
                _ => return Err(AttestError::bad(place, "has a name with a backslash that escapes nothing", WRITE)),
            },
        };
        out.push(plain);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn error(text: &str) -> String {
        parse(text.as_bytes(), "sums").unwrap_err().to_string()
    }

    #[test]
    fn the_forms_that_the_tools_write_are_read() {
        let text = format!(
            "{A}  ./a\n{A} *b c\n\\{A}  d\\ne\\\\f\nSHA256 (g (1)) = {}\nBLAKE3 (h) = {A}\r\n\n# a comment\n",
            A.to_uppercase()
        );
        let found = parse(text.as_bytes(), "sums").unwrap();
        let claim = |n: &str| &found.files[n][0].claim;
        assert_eq!(found.files.keys().collect::<Vec<_>>(), ["a", "b c", "d\ne\\f", "g (1)", "h"]);
        assert_eq!(claim("a"), &Claim::Either(A.to_owned()));
        assert_eq!(claim("g (1)"), &Claim::All { sha256: Some(A.to_owned()), blake3: None });
        assert_eq!(claim("h"), &Claim::All { sha256: None, blake3: Some(A.to_owned()) });
    }

    #[test]
    fn a_line_that_is_none_is_an_error_with_its_place() {
        insta::assert_snapshot!(
            [
                error("hello world"),
                error(&format!("{A}  a\n{A}  a")),
                error(&format!("{A}  /etc/passwd")),
                error(&format!("{A}  a/../../b")),
                error(&format!("{}  a", &A[..40])),
                error(&format!("MD5 (a) = {}", &A[..32])),
                error(A),
                error(""),
            ]
            .join("\n"),
            @r#"
        sums:1: is no line of a list of digests
        sums:2: names "a" again, which stands in line 1 already
        sums:1: names "/etc/passwd", which is no path inside of a folder
        sums:1: names "a/../../b", which is no path inside of a folder
        sums:1: has a digest of 40 digits (SHA-1?), and SHA-256 and BLAKE3 have 64
        sums:1: has a digest of 32 digits (MD5?), and SHA-256 and BLAKE3 have 64
        sums:1: names a file without a name
        sums lists no file
        "#
        );
    }
}
