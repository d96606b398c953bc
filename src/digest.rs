//! BLAKE3-256 digests and the identifiers made of them.
//!
//! A digest prints as `b3:` followed by 64 lower-case hex digits, so that `b3sum FILE` verifies a blob by hand.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// 32 bytes of BLAKE3.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// The text is not `b3:` and 64 lower-case hex digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no digest: expected `b3:` and 64 lower-case hex digits")]
pub struct BadDigest {
    /// What stood there instead.
    pub text: String,
}

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// A digest from its 32 bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// 64 lower-case hex digits, without prefix: the form used in file names.
    pub fn hex(&self) -> String {
        let mut s = String::with_capacity(64);
        for b in self.0 {
            s.push(char::from_digit(u32::from(b >> 4), 16).unwrap_or('0'));
            s.push(char::from_digit(u32::from(b & 15), 16).unwrap_or('0'));
        }
        s
    }

    /// The first 12 hex digits behind `b3:`, for people.
    pub fn short(&self) -> String {
        format!("b3:{}", &self.hex()[..12])
    }

    /// Reads 64 lower-case hex digits. Errors: [`BadDigest`] with the text.
    pub fn from_hex(text: &str) -> Result<Self, BadDigest> {
        let bad = || BadDigest { text: text.to_owned() };
        let bytes = text.as_bytes();
        if bytes.len() != 64 {
            return Err(bad());
        }
        let nibble = |c: u8| match c {
            b'0'..=b'9' => Ok(c - b'0'),
            b'a'..=b'f' => Ok(c - b'a' + 10),
            _ => Err(bad()),
        };
        let mut out = [0u8; 32];
        for (i, pair) in bytes.chunks_exact(2).enumerate() {
            out[i] = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Ok(Self(out))
    }
}

impl From<blake3::Hash> for Digest {
    fn from(h: blake3::Hash) -> Self {
        Self(*h.as_bytes())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b3:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = BadDigest;
    fn from_str(s: &str) -> Result<Self, BadDigest> {
        let hex = s.strip_prefix("b3:").ok_or_else(|| BadDigest { text: s.to_owned() })?;
        Self::from_hex(hex).map_err(|_| BadDigest { text: s.to_owned() })
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Digest);

        impl $name {
            /// 64 lower-case hex digits.
            pub fn hex(&self) -> String {
                self.0.hex()
            }
            /// The first 12 hex digits behind `b3:`, for people.
            pub fn short(&self) -> String {
                self.0.short()
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
        impl FromStr for $name {
            type Err = BadDigest;
            fn from_str(s: &str) -> Result<Self, BadDigest> {
                s.parse().map(Self)
            }
        }
    };
}

id!(
    /// Names the bytes of one file.
    BlobId
);
id!(
    /// Names a tree: the digest of its canonical listing.
    TreeId
);
id!(
    /// Names a recipe: the digest of its canonical text.
    RecipeId
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_reads_back_what_it_prints() {
        let d = Digest::of(b"graftwerk");
        assert_eq!(d.to_string().parse::<Digest>().unwrap(), d);
        assert_eq!(Digest::of(b"").to_string(), "b3:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
    }

    #[test]
    fn upper_case_short_and_unprefixed_digests_are_refused() {
        let hex = Digest::of(b"x").hex();
        assert!(hex.parse::<Digest>().is_err());
        assert!(format!("b3:{}", hex.to_uppercase()).parse::<Digest>().is_err());
        assert!(format!("b3:{}", &hex[1..]).parse::<Digest>().is_err());
    }
}
