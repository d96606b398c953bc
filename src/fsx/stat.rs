//! What a file looks like from outside: the facts by which trust in a known digest is decided.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Device, inode, size in bytes, and both times in nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileStat {
    /// Device.
    pub dev: u64,
    /// Inode.
    pub ino: u64,
    /// Size in bytes.
    pub size: u64,
    /// Last change of the bytes, ns.
    #[serde(with = "ns")]
    pub mtime_ns: i128,
    /// Last change of the inode, ns.
    #[serde(with = "ns")]
    pub ctime_ns: i128,
}

/// Nanoseconds in JSON: a number where it reads back as one, which serde_json does up to 64 bits, else its digits as
/// text. A file may well be dated to the year 9999.
pub(crate) mod ns {
    use serde::{Deserialize, Deserializer, Serialize as _, Serializer, de::Error as _};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Ns {
        Number(i64),
        Text(String),
    }

    pub(crate) fn serialize<S: Serializer>(ns: &i128, to: S) -> Result<S::Ok, S::Error> {
        match i64::try_from(*ns) {
            Ok(n) => n.serialize(to),
            Err(_) => ns.to_string().serialize(to),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<i128, D::Error> {
        match Ns::deserialize(from)? {
            Ns::Number(n) => Ok(n.into()),
            Ns::Text(t) => t.parse().map_err(D::Error::custom),
        }
    }
}

// Clocks of file systems tick in steps (4 ms for the kernel's coarse clock, 1 to 2 s for some old or remote ones).
// A file changed within this of the look at it could change again without its times showing it.
const GRAIN_NS: i128 = 2_000_000_000;

impl FileStat {
    /// From what the system says.
    pub fn of(m: &Metadata) -> Self {
        Self {
            dev: m.dev(),
            ino: m.ino(),
            size: m.size(),
            mtime_ns: i128::from(m.mtime()) * 1_000_000_000 + i128::from(m.mtime_nsec()),
            ctime_ns: i128::from(m.ctime()) * 1_000_000_000 + i128::from(m.ctime_nsec()),
        }
    }

    /// Of the file at `path`, links followed.
    pub fn at(path: &Path) -> io::Result<Self> {
        std::fs::metadata(path).map(|m| Self::of(&m))
    }

    /// Whether a digest taken at `looked_ns` may be kept for this stat: the inode must have been at rest for longer
    /// than the clock's grain. Goes by ctime alone: mtime is the user's to set, be it to 2100.
    pub fn at_rest(&self, looked_ns: i128) -> bool {
        self.ctime_ns + GRAIN_NS < looked_ns
    }
}

/// Nanoseconds since 1970, now.
pub fn now_ns() -> i128 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(d) => i128::try_from(d.as_nanos()).unwrap_or(i128::MAX),
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_changed_within_the_clocks_grain_is_not_at_rest() {
        let s = FileStat { dev: 1, ino: 1, size: 1, mtime_ns: 0, ctime_ns: 10_000_000_000 };
        assert!(!s.at_rest(10_000_000_001));
        assert!(!s.at_rest(9_000_000_000), "a clock that was set back proves nothing");
        assert!(s.at_rest(13_000_000_000));
    }

    #[test]
    fn a_stat_reads_back_from_json_whatever_its_times_are() {
        for ns in [0, -1, 1_796_071_366_277_324_867, i128::from(i64::MAX) + 1, 253_370_764_800_000_000_000, i128::MIN] {
            let s = FileStat { dev: u64::MAX, ino: 1, size: 1, mtime_ns: ns, ctime_ns: ns };
            let text = serde_json::to_string(&s).unwrap();
            assert_eq!(serde_json::from_str::<FileStat>(&text).unwrap(), s, "{text}");
        }
    }
}
