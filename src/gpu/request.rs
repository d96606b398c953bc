//! `gpu = { count, memory, device, capability }`: what a node asks for.

use globset::{GlobBuilder, GlobMatcher};
use serde::Serialize;

use crate::canon::Value;
use crate::gpu::Gpu;
use crate::near::did_you_mean;
use crate::size;

/// What a GPU can compute, as NVIDIA counts it: 9.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Capability {
    /// Before the point.
    pub major: u32,
    /// Behind it.
    pub minor: u32,
}

impl std::fmt::Display for Capability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl std::str::FromStr for Capability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (major, minor) = text.split_once('.').unwrap_or((text, "0"));
        match (major.parse(), minor.parse()) {
            (Ok(major), Ok(minor)) => Ok(Self { major, minor }),
            _ => Err(format!("{text:?} is no compute capability: write it as \"9.0\"")),
        }
    }
}

/// Which GPU, where the node minds.
#[derive(Debug, Clone)]
pub enum Wanted {
    /// The one of this UUID, or whose UUID begins so.
    Uuid(String),
    /// The one of this index.
    Index(u32),
    /// One whose model matches, in upper or lower case.
    Model {
        /// The pattern as written.
        pattern: String,
        /// The same, compiled.
        matcher: GlobMatcher,
    },
}

impl Wanted {
    /// Whether this GPU is meant.
    pub fn is(&self, gpu: &Gpu) -> bool {
        match self {
            Wanted::Uuid(u) => gpu.uuid.starts_with(u.as_str()),
            Wanted::Index(i) => gpu.index == *i,
            Wanted::Model { matcher, .. } => matcher.is_match(&gpu.model),
        }
    }
}

impl std::fmt::Display for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Wanted::Uuid(u) => f.write_str(u),
            Wanted::Index(i) => write!(f, "index {i}"),
            Wanted::Model { pattern, .. } => f.write_str(pattern),
        }
    }
}

/// What a node asks for.
#[derive(Debug, Clone)]
pub struct Request {
    /// How many GPUs.
    pub count: u32,
    /// Bytes of memory that must be free on each of them.
    pub memory_bytes: u64,
    /// Which.
    pub device: Option<Wanted>,
    /// What each of them must be able to compute.
    pub capability: Option<Capability>,
}

/// A `gpu` that can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct BadRequest {
    /// The key below `gpu`; `None` where it is `gpu` itself.
    pub key: Option<String>,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub hint: Option<String>,
}

const KEYS: [&str; 4] = ["count", "memory", "device", "capability"];

impl Request {
    /// Reads the value of a node's `gpu`. `None` for `"none"`. Errors: [`BadRequest`], with the key.
    pub fn parse(value: &Value) -> Result<Option<Self>, BadRequest> {
        let bad = |key: Option<&str>, what: String, hint: &str| BadRequest {
            key: key.map(str::to_owned),
            what,
            hint: (!hint.is_empty()).then(|| hint.to_owned()),
        };
        let table = match value {
            Value::Str(s) if s == "none" => return Ok(None),
            Value::Map(m) => m,
            other => {
                let what = match other {
                    Value::Str(s) => format!("`gpu` must be a table or \"none\", found {s:?}"),
                    other => format!("`gpu` must be a table or \"none\", found {}", other.type_name()),
                };
                return Err(bad(None, what, "write gpu = { count = 1, memory = \"55GiB\" }"));
            }
        };
        let mut request = Self { count: 1, memory_bytes: 0, device: None, capability: None };
        for (key, value) in table {
            let wrong = |wanted: &str| {
                let what = format!("`gpu.{key}` must be {wanted}, found {}", value.type_name());
                bad(Some(key), what, "")
            };
            match (key.as_str(), value) {
                ("count", Value::Int(n)) => match u32::try_from(*n) {
                    Ok(n @ 1..=64) => request.count = n,
                    _ => {
                        let what = format!("`gpu.count` is {n}: it must lie in 1 ..= 64");
                        return Err(bad(Some(key), what, "for no GPU, leave `gpu` out"));
                    }
                },
                ("count", _) => return Err(wrong("an integer")),
                ("memory", Value::Int(n)) if *n >= 0 => request.memory_bytes = n.unsigned_abs(),
                ("memory", Value::Str(s)) => {
                    request.memory_bytes =
                        size::parse(s).map_err(|e| bad(Some(key), format!("`gpu.memory`: {e}"), ""))?;
                }
                ("memory", _) => return Err(wrong("a size such as \"55GiB\"")),
                ("device", Value::Int(n)) => {
                    let what = format!("`gpu.device` is {n}, which is no index");
                    let index = u32::try_from(*n).map_err(|_| bad(Some(key), what, ""))?;
                    request.device = Some(Wanted::Index(index));
                }
                ("device", Value::Str(s)) => request.device = Some(device(s).map_err(|e| bad(Some(key), e, ""))?),
                ("device", _) => return Err(wrong("a UUID, an index or a pattern of models")),
                ("capability", Value::Str(s)) => {
                    request.capability =
                        Some(s.parse().map_err(|e| bad(Some(key), format!("`gpu.capability`: {e}"), ""))?);
                }
                ("capability", Value::Float(_)) => {
                    // 10.10 and 10.1 are one float.
                    return Err(bad(Some(key), "`gpu.capability` is a float".to_owned(), "put it in quotes: \"9.0\""));
                }
                ("capability", _) => return Err(wrong("a string such as \"9.0\"")),
                _ => {
                    let hint = did_you_mean(key, KEYS)
                        .unwrap_or_else(|| "it takes count, memory, device, capability".to_owned());
                    return Err(bad(Some(key), format!("unknown key `{key}` of `gpu`"), &hint));
                }
            }
        }
        match (&request.device, request.count) {
            (Some(Wanted::Uuid(_) | Wanted::Index(_)), n @ 2..) => {
                let what = format!("`gpu.device` names one GPU, `gpu.count` is {n}");
                Err(bad(Some("count"), what, "name a model, or leave `device` out"))
            }
            _ => Ok(Some(request)),
        }
    }
}

fn device(text: &str) -> Result<Wanted, String> {
    let text = text.trim();
    if text.is_empty() {
        return Err("`gpu.device` is empty".to_owned());
    }
    if text.starts_with("GPU-") {
        return Ok(Wanted::Uuid(text.to_owned()));
    }
    if text.starts_with("MIG-") {
        return Err(format!("`gpu.device` is {text}: parts of a GPU can't be leased, name the whole one"));
    }
    if let Ok(index) = text.parse() {
        return Ok(Wanted::Index(index));
    }
    let matcher = GlobBuilder::new(text).case_insensitive(true).build().map_err(|e| format!("`gpu.device`: {e}"))?;
    Ok(Wanted::Model { pattern: text.to_owned(), matcher: matcher.compile_matcher() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn table(pairs: &[(&str, Value)]) -> Value {
        Value::Map(pairs.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect::<BTreeMap<_, _>>())
    }

    fn s(text: &str) -> Value {
        Value::Str(text.to_owned())
    }

    #[test]
    fn a_request_is_read_with_its_sizes_and_its_device() {
        let all = table(&[
            ("count", Value::Int(2)),
            ("memory", s("55GiB")),
            ("device", s("NVIDIA H200*")),
            ("capability", s("9.0")),
        ]);
        let r = Request::parse(&all).unwrap().unwrap();
        assert_eq!((r.count, r.memory_bytes), (2, 55 << 30));
        assert_eq!(r.capability, Some(Capability { major: 9, minor: 0 }));
        assert_eq!(r.device.unwrap().to_string(), "NVIDIA H200*");
        assert!(Request::parse(&s("none")).unwrap().is_none());
        let r = Request::parse(&table(&[("device", Value::Int(1)), ("memory", Value::Int(4096))])).unwrap().unwrap();
        assert_eq!((r.count, r.memory_bytes, r.device.unwrap().to_string().as_str()), (1, 4096, "index 1"));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_key() {
        let cases = [
            (s("all"), None, "found \"all\""),
            (table(&[("cuont", Value::Int(1))]), Some("cuont"), "unknown key `cuont`"),
            (table(&[("count", Value::Int(0))]), Some("count"), "`gpu.count` is 0"),
            (table(&[("memory", s("55 gigs"))]), Some("memory"), "is no size"),
            (table(&[("memory", Value::Int(-1))]), Some("memory"), "a size such as"),
            (table(&[("capability", Value::Float(9.0))]), Some("capability"), "a float"),
            (table(&[("device", s("MIG-1"))]), Some("device"), "can't be leased"),
            (table(&[("device", s("GPU-1")), ("count", Value::Int(2))]), Some("count"), "names one GPU"),
        ];
        for (value, key, what) in cases {
            let e = Request::parse(&value).unwrap_err();
            assert_eq!(e.key.as_deref(), key, "{e}");
            assert!(e.to_string().contains(what), "{e}");
        }
        let e = Request::parse(&table(&[("cuont", Value::Int(1))])).unwrap_err();
        assert_eq!(e.hint.as_deref(), Some("did you mean `count`?"));
    }
}
