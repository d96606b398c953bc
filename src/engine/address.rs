//! Where a container engine is.

use std::path::{Path, PathBuf};

/// How to reach an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A socket of this machine.
    Unix(PathBuf),
    /// `HOST:PORT`, without encryption.
    Tcp(String),
    /// `[USER@]HOST[:PORT]`, where `docker system dial-stdio` is run.
    Ssh(String),
}

/// Who says where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// `DOCKER_HOST` in the environment.
    Environment,
    /// Nobody: the first of the usual sockets that is there.
    Usual,
}

/// An address that can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no address of a container engine: {what}")]
pub struct BadAddress {
    /// The text.
    pub text: String,
    /// What is wrong with it.
    pub what: &'static str,
}

impl BadAddress {
    /// What to do.
    pub fn hint(&self) -> &'static str {
        "write unix:///var/run/docker.sock, tcp://HOST:PORT or ssh://USER@HOST"
    }
}

impl std::str::FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let bad = |what| BadAddress { text: text.to_owned(), what };
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(bad("it has no scheme"));
        };
        if rest.is_empty() {
            return Err(bad("nothing stands behind the scheme"));
        }
        match scheme {
            "unix" if rest.starts_with('/') => Ok(Address::Unix(PathBuf::from(rest))),
            "unix" => Err(bad("a socket's path is absolute")),
            "tcp" | "http" if rest.contains(['/', '@', ' ']) => Err(bad("it is more than HOST:PORT")),
            "tcp" | "http" => Ok(Address::Tcp(rest.to_owned())),
            // What starts with a dash would be an option of ssh.
            "ssh" if rest.starts_with('-') || rest.contains([' ', '/']) => Err(bad("it is more than USER@HOST:PORT")),
            "ssh" => Ok(Address::Ssh(rest.to_owned())),
            "https" => Err(bad("encrypted connections go by ssh://")),
            _ => Err(bad("its scheme is none of unix, tcp and ssh")),
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Unix(p) => write!(f, "unix://{}", p.display()),
            Address::Tcp(a) => write!(f, "tcp://{a}"),
            Address::Ssh(a) => write!(f, "ssh://{a}"),
        }
    }
}

impl Address {
    /// Whether paths of this machine mean anything there. One behind tcp or ssh may still be this machine; only a look
    /// through a mount tells.
    pub fn is_local(&self) -> bool {
        matches!(self, Address::Unix(_))
    }
}

/// The sockets where an engine usually is: Docker's, then Podman's for all, then Podman's and Docker's of this user.
pub fn usual_sockets(runtime_dir: Option<&Path>) -> Vec<PathBuf> {
    let mut all = vec![PathBuf::from("/var/run/docker.sock"), PathBuf::from("/run/podman/podman.sock")];
    if let Some(dir) = runtime_dir {
        all.push(dir.join("podman/podman.sock"));
        all.push(dir.join("docker.sock"));
    }
    all
}

/// The engine that is at hand: what `DOCKER_HOST` says, else the first usual socket that is there. `None` where there is
/// none. Errors: [`BadAddress`] for a `DOCKER_HOST` that is no address.
pub fn at_hand() -> Result<Option<(Address, Said)>, BadAddress> {
    if let Some(host) = std::env::var_os("DOCKER_HOST").filter(|h| !h.is_empty()) {
        let text = host.to_string_lossy();
        return Ok(Some((text.parse()?, Said::Environment)));
    }
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let there = usual_sockets(runtime.as_deref()).into_iter().find(|p| p.exists());
    Ok(there.map(|p| (Address::Unix(p), Said::Usual)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_schemes_are_read_and_everything_else_says_what_is_wrong() {
        let good = [
            ("unix:///run/d.sock", Address::Unix("/run/d.sock".into())),
            ("tcp://10.0.0.1:2375", Address::Tcp("10.0.0.1:2375".into())),
            ("http://h:1", Address::Tcp("h:1".into())),
            ("ssh://me@h:22", Address::Ssh("me@h:22".into())),
        ];
        for (text, address) in &good {
            assert_eq!(text.parse::<Address>().unwrap(), *address);
        }
        assert_eq!(good[3].1.to_string(), "ssh://me@h:22");
        let bad = [
            "",
            "docker.sock",
            "unix://",
            "unix://run/x",
            "tcp://h:1/x",
            "ssh://-oProxyCommand=x",
            "npipe://x",
            "https://h",
        ];
        for text in bad {
            assert!(text.parse::<Address>().is_err(), "{text:?}");
        }
    }
}
