//! A seat as declared: the parameters of a `serve` node, read into types.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::canon::Value;
use crate::kinds::{ParamError, Params};
use crate::model::path::RelPath;
use crate::near::did_you_mean;

/// One file of an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) alias: String,
    /// The path in the input's tree; `None` for an input that is a single file.
    pub(super) path: Option<RelPath>,
}

/// How the engine is asked whether it is well. Durations are Compose's (`10s`, `1m30s`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Health {
    pub(super) test: Vec<String>,
    pub(super) interval: String,
    pub(super) timeout: String,
    pub(super) retries: i64,
    pub(super) start_period: String,
}

/// What a `serve` node says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seat {
    pub(super) image: String,
    pub(super) args: Vec<String>,
    pub(super) entrypoint: Option<Vec<String>>,
    pub(super) env: BTreeMap<String, String>,
    /// Path inside → file, by path.
    pub(super) mounts: BTreeMap<String, Source>,
    pub(super) name: Option<String>,
    pub(super) ports: Vec<String>,
    pub(super) gpus: i64,
    pub(super) shm_size: Option<String>,
    pub(super) ipc: Option<String>,
    pub(super) network_mode: Option<String>,
    pub(super) user: Option<String>,
    pub(super) restart: Option<String>,
    pub(super) health: Option<Health>,
    pub(super) in_image: Vec<String>,
}

impl Seat {
    /// Reads the parameters. Errors: [`ParamError`] at the key whose value can't be what it should be.
    pub(super) fn read(params: &Params) -> Result<Seat, ParamError> {
        let image = string(params, "image")?.ok_or_else(|| ParamError::new("image", "a seat needs an image"))?;
        if image.is_empty() || image.contains(char::is_whitespace) || image.contains(char::is_control) {
            return Err(ParamError::new("image", format!("{image:?} is no image name")));
        }
        let seat = Seat {
            image,
            args: strings(params, "args")?.unwrap_or_default(),
            entrypoint: strings(params, "entrypoint")?,
            env: environment(params)?,
            mounts: mounts(params)?,
            name: string(params, "name")?,
            ports: ports(params)?,
            gpus: gpus(params)?,
            shm_size: string(params, "shm_size")?.map(size).transpose()?,
            ipc: word(params, "ipc")?,
            network_mode: word(params, "network_mode")?,
            user: word(params, "user")?,
            restart: word(params, "restart")?.map(restart).transpose()?,
            health: health(params)?,
            in_image: strings(params, "in_image")?.unwrap_or_default(),
        };
        if seat.entrypoint.as_ref().is_some_and(Vec::is_empty) {
            return Err(ParamError::new("entrypoint", "an empty entry point starts nothing")
                .hint("leave it out to use the image's own"));
        }
        Ok(seat)
    }
}

fn wrong(key: &str, wanted: &str, value: &Value) -> ParamError {
    ParamError::new(key, format!("{key} takes {wanted}, not {}", value.type_name()))
}

// A program's arguments and environment end at a NUL byte: what stands behind it would be lost in silence.
fn no_nul(key: &str, text: &str) -> Result<String, ParamError> {
    if text.contains('\0') {
        return Err(ParamError::new(key, format!("{text:?} holds a NUL byte, which no process can be given")));
    }
    Ok(text.to_owned())
}

fn string(params: &Params, key: &str) -> Result<Option<String>, ParamError> {
    params.get(key).map(|v| no_nul(key, v.as_str().ok_or_else(|| wrong(key, "a string", v))?)).transpose()
}

fn strings(params: &Params, key: &str) -> Result<Option<Vec<String>>, ParamError> {
    let Some(v) = params.get(key) else { return Ok(None) };
    let list = v.as_str_list().ok_or_else(|| wrong(key, "a list of strings", v))?;
    list.into_iter().map(|s| no_nul(key, s)).collect::<Result<_, _>>().map(Some)
}

fn word(params: &Params, key: &str) -> Result<Option<String>, ParamError> {
    match string(params, key)? {
        Some(s) if s.is_empty() || s.contains(char::is_whitespace) => {
            Err(ParamError::new(key, format!("{key} = {s:?} is empty or holds spaces")))
        }
        s => Ok(s),
    }
}

fn string_map<'a>(params: &'a Params, key: &str) -> Result<Vec<(&'a str, &'a str)>, ParamError> {
    let Some(v) = params.get(key) else { return Ok(Vec::new()) };
    let map = v.as_map().ok_or_else(|| wrong(key, "a table of strings", v))?;
    map.iter()
        .map(|(k, v)| match v.as_str() {
            Some(s) => Ok((k.as_str(), s)),
            None => {
                Err(ParamError::new(format!("{key}.{k}"), format!("{key}.{k} takes a string, not {}", v.type_name()))
                    .hint(format!("write it in quotes: {k} = {:?}", v.to_canon())))
            }
        })
        .collect()
}

fn environment(params: &Params) -> Result<BTreeMap<String, String>, ParamError> {
    let mut env = BTreeMap::new();
    for (name, value) in string_map(params, "env")? {
        let mut bytes = name.bytes();
        let good = bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
            && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !good {
            return Err(ParamError::new("env", format!("{name:?} is no name of an environment variable"))
                .hint("letters, digits and `_`, not starting with a digit"));
        }
        env.insert(name.to_owned(), no_nul(&format!("env.{name}"), value)?);
    }
    Ok(env)
}

fn mounts(params: &Params) -> Result<BTreeMap<String, Source>, ParamError> {
    let mut mounts = BTreeMap::new();
    for (target, source) in string_map(params, "mounts")? {
        if let Err(what) = path_inside(target) {
            return Err(ParamError::new("mounts", format!("{target:?} is no path inside: {what}"))
                .hint("an absolute path of a file, such as \"/shim/sitecustomize.py\""));
        }
        let (alias, path) = match source.split_once('/') {
            None => (source, None),
            Some((alias, path)) => {
                let path = RelPath::try_from(path).map_err(|e| {
                    ParamError::new("mounts", format!("{target:?} is taken from {source:?}: {e}"))
                        .hint("\"ALIAS/path\" names a file of an input, never a path of the host")
                })?;
                (alias, Some(path))
            }
        };
        mounts.insert(target.to_owned(), Source { alias: alias.to_owned(), path });
    }
    Ok(mounts)
}

/// Looks at an absolute path inside a container; says what is wrong with it.
pub(super) fn path_inside(path: &str) -> Result<RelPath, String> {
    let below = path.strip_prefix('/').ok_or("it is not absolute")?;
    RelPath::try_from(below).map_err(|e| e.what.to_owned())
}

fn ports(params: &Params) -> Result<Vec<String>, ParamError> {
    let ports = strings(params, "ports")?.unwrap_or_default();
    match ports.iter().find(|p| !is_port(p)) {
        Some(bad) => Err(ParamError::new("ports", format!("{bad:?} is no published port"))
            .hint("\"8018:8018\", or \"127.0.0.1:8018:8018\" to be reached from this machine only")),
        None => Ok(ports),
    }
}

fn is_port(text: &str) -> bool {
    let number = |s: &str| s.parse::<u16>().is_ok_and(|n| n > 0) && !s.starts_with('+');
    let bare = ["/tcp", "/udp"].iter().find_map(|p| text.strip_suffix(p)).unwrap_or(text);
    let mut parts = bare.rsplitn(3, ':');
    let inside = parts.next().is_some_and(number);
    let host = parts.next().is_none_or(number);
    let address = parts.next().is_none_or(|a| {
        let bare = a.strip_prefix('[').and_then(|a| a.strip_suffix(']')).unwrap_or(a);
        bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv4() || bare != a)
    });
    inside && host && address
}

fn gpus(params: &Params) -> Result<i64, ParamError> {
    let Some(v) = params.get("gpus") else { return Ok(0) };
    match v.as_int() {
        Some(n) if (0..=64).contains(&n) => Ok(n),
        Some(n) => Err(ParamError::new("gpus", format!("gpus = {n} is no number of GPUs"))),
        None => Err(wrong("gpus", "an integer", v)
            .hint("how many; which ones is not part of a seat, and is said in GRAFTWERK_GPUS when it starts")),
    }
}

fn size(text: String) -> Result<String, ParamError> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text.get(digits.len()..).unwrap_or("").to_ascii_lowercase();
    let good = !digits.is_empty()
        && digits.bytes().all(|b| b.is_ascii_digit())
        && matches!(unit.as_str(), "" | "b" | "k" | "kb" | "m" | "mb" | "g" | "gb");
    if good {
        Ok(text)
    } else {
        Err(ParamError::new("shm_size", format!("{text:?} is no size")).hint("such as \"8g\""))
    }
}

fn restart(text: String) -> Result<String, ParamError> {
    let tries = text.strip_prefix("on-failure:").is_some_and(|n| n.parse::<u32>().is_ok());
    if tries || matches!(text.as_str(), "no" | "always" | "on-failure" | "unless-stopped") {
        return Ok(text);
    }
    Err(ParamError::new("restart", format!("{text:?} is no restart policy"))
        .hint("\"no\", \"always\", \"on-failure\", \"on-failure:3\" or \"unless-stopped\""))
}

fn health(params: &Params) -> Result<Option<Health>, ParamError> {
    const KNOWN: [&str; 5] = ["test", "interval", "timeout", "retries", "start_period"];
    let Some(v) = params.get("health") else { return Ok(None) };
    let map = v.as_map().ok_or_else(|| wrong("health", "a table", v))?;
    if let Some(k) = map.keys().find(|k| !KNOWN.contains(&k.as_str())) {
        let hint = did_you_mean(k, KNOWN).unwrap_or_else(|| format!("the keys are {}", KNOWN.join(", ")));
        return Err(ParamError::new(format!("health.{k}"), format!("unknown key `health.{k}`")).hint(hint));
    }
    let test = match map.get("test") {
        Some(Value::Str(line)) => vec!["CMD-SHELL".to_owned(), no_nul("health.test", line)?],
        Some(v) => {
            let list = v.as_str_list().ok_or_else(|| wrong("health.test", "a list of strings or a string", v))?;
            list.into_iter().map(|s| no_nul("health.test", s)).collect::<Result<Vec<_>, _>>()?
        }
        None => return Err(ParamError::new("health", "a health check needs `test`")),
    };
    let first = test.first().map(String::as_str);
    if !matches!(first, Some("CMD" | "CMD-SHELL")) || test.len() < 2 {
        return Err(ParamError::new(
            "health.test",
            "a test starts with \"CMD\" or \"CMD-SHELL\", and then has something to run",
        )
        .hint("test = [\"CMD\", \"curl\", \"-fsS\", \"http://127.0.0.1:8018/health\"]"));
    }
    let duration = |key: &str, default: &str| match map.get(key) {
        None => Ok(default.to_owned()),
        Some(v) => {
            let key = format!("health.{key}");
            let text = v.as_str().ok_or_else(|| wrong(&key, "a duration in quotes", v))?;
            if is_duration(text) {
                Ok(text.to_owned())
            } else {
                Err(ParamError::new(key, format!("{text:?} is no duration")).hint("such as \"600s\" or \"1m30s\""))
            }
        }
    };
    let retries = match map.get("retries") {
        None => 3,
        Some(v) => match v.as_int() {
            Some(n) if n > 0 => n,
            _ => return Err(ParamError::new("health.retries", "health.retries takes an integer above 0")),
        },
    };
    Ok(Some(Health {
        test,
        interval: duration("interval", "10s")?,
        timeout: duration("timeout", "5s")?,
        retries,
        // A first start compiles kernels and loads weights for minutes; a short period restarts it for ever.
        start_period: duration("start_period", "600s")?,
    }))
}

// One or more of number and unit, from hours down: `1h`, `1m30s`, `500ms`.
fn is_duration(text: &str) -> bool {
    let mut rest = text;
    let mut last = usize::MAX;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let tail = rest.get(digits..).unwrap_or("");
        let unit = [("ms", 1), ("us", 0), ("s", 2), ("m", 3), ("h", 4)].into_iter().find(|(u, _)| tail.starts_with(u));
        match unit {
            Some((unit, rank)) if digits > 0 && digits < 10 && rank < last => {
                last = rank;
                rest = tail.get(unit.len()..).unwrap_or("");
            }
            _ => return false,
        }
    }
    last != usize::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_taken_as_compose_takes_them_and_nothing_else_is() {
        for good in ["8018", "8018:8018", "127.0.0.1:80:8018", "[::1]:80:8018", "53:53/udp"] {
            assert!(is_port(good), "{good}");
        }
        for bad in ["", ":", "0", "x:8018", "8018:", "70000:1", "::1:80:8018", "host:80:80", "80:80/sctp", "+1"] {
            assert!(!is_port(bad), "{bad}");
        }
    }

    #[test]
    fn durations_have_units_that_fall() {
        for good in ["600s", "1m30s", "500ms", "2h"] {
            assert!(is_duration(good), "{good}");
        }
        for bad in ["", "600", "s", "30s1m", "1.5s", "1m1m", "-1s", "9999999999s"] {
            assert!(!is_duration(bad), "{bad}");
        }
    }
}
