//! Container engines: reaching one, and what it can do. Docker from 20.10 up, and Podman's socket.

pub mod address;
pub mod container;
pub mod gpu;
pub mod image;
pub mod labels;
pub mod neighbour;

use std::future::Future;
use std::time::Duration;

use bollard::models::{SystemInfo, SystemInfoCgroupVersionEnum, SystemVersion};
use bollard::{API_DEFAULT_VERSION, Docker};

pub use address::{Address, BadAddress, Said, at_hand};

/// Which program an engine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Make {
    /// Docker, or what calls itself so.
    Docker,
    /// Podman's service, which speaks Docker's language with an accent of its own.
    Podman,
}

impl std::fmt::Display for Make {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Make::Docker => "Docker",
            Make::Podman => "Podman",
        })
    }
}

/// What an engine says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Portrait {
    /// Which program it is.
    pub make: Make,
    /// Its version, as it writes it.
    pub version: String,
    /// The version of its language that it was agreed to speak.
    pub api: String,
    /// Its storage driver.
    pub storage: String,
    /// How it makes control groups: `systemd`, `cgroupfs`.
    pub cgroup_driver: String,
    /// 1 or 2; 0 where it does not say.
    pub cgroup_version: u8,
    /// Whether it runs without root.
    pub rootless: bool,
    /// Whether its containers survive it.
    pub live_restore: bool,
    /// CDI names of devices that it knows, such as `nvidia.com/gpu=0`.
    pub cdi: Vec<String>,
    /// Its runtimes: `runc`, `nvidia`, ….
    pub runtimes: Vec<String>,
}

/// Why an engine can't be used.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// `DOCKER_HOST` is no address.
    #[error(transparent)]
    Address(#[from] BadAddress),
    /// Nothing, or nothing that is an engine, answers.
    #[error("the container engine at {address} does not answer: {}", root_cause(source))]
    Unreachable {
        /// Where.
        address: Address,
        /// What the client says.
        source: bollard::errors::Error,
    },
    /// It did not answer in time.
    #[error("the container engine at {address} did not answer within {} s", after.as_secs())]
    Silent {
        /// Where.
        address: Address,
        /// How long it had.
        after: Duration,
    },
    /// No runtime for talking to it.
    #[error("cannot start talking to a container engine: {0}")]
    Runtime(#[source] std::io::Error),
    /// It answered, and says no.
    #[error("the container engine can't {what}: {said}")]
    Refused {
        /// What it was asked to do.
        what: String,
        /// The status of its answer; 0 where that is not known.
        status: u16,
        /// What it says.
        said: String,
    },
}

impl EngineError {
    /// What to do.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            EngineError::Address(e) => e.hint().to_owned(),
            EngineError::Unreachable { address: Address::Unix(p), source } if denied(source) => {
                format!("let this user use {}: its group is most often `docker`", p.display())
            }
            EngineError::Unreachable { address: Address::Unix(_), .. } => {
                "start it (systemctl start docker, or podman system service), or let DOCKER_HOST say where it is"
                    .to_owned()
            }
            EngineError::Unreachable { address: Address::Ssh(host), .. } => {
                format!("`ssh {host} docker version` must work without a question")
            }
            EngineError::Unreachable { .. } | EngineError::Silent { .. } => {
                "look whether it runs and whether DOCKER_HOST is right".to_owned()
            }
            EngineError::Runtime(_) | EngineError::Refused { .. } => return None,
        })
    }
}

// The client's own words say only where in it something failed.
fn root_cause(e: &bollard::errors::Error) -> String {
    let mut cause: &dyn std::error::Error = e;
    while let Some(below) = cause.source() {
        cause = below;
    }
    cause.to_string()
}

fn denied(e: &bollard::errors::Error) -> bool {
    let mut cause: Option<&dyn std::error::Error> = Some(e);
    while let Some(c) = cause {
        if c.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::PermissionDenied) {
            return true;
        }
        cause = c.source();
    }
    false
}

/// A connection to an engine, with the version of its language agreed upon.
pub struct Engine {
    address: Address,
    docker: Docker,
    runtime: tokio::runtime::Runtime,
}

// How long an engine has for a question that costs it nothing.
const PATIENCE: Duration = Duration::from_secs(10);
// For what takes its time; a wait for a container is not bounded by it.
const CLIENT_SECONDS: u64 = 120;

impl Engine {
    /// Connects, and agrees upon a version. Errors: [`EngineError::Unreachable`] and [`EngineError::Silent`].
    pub fn connect(address: &Address) -> Result<Self, EngineError> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(EngineError::Runtime)?;
        let unreachable = |source| EngineError::Unreachable { address: address.clone(), source };
        // Some transports want to be made inside a runtime.
        let docker = {
            let _inside = runtime.enter();
            match address {
                Address::Unix(p) => {
                    Docker::connect_with_unix(&p.to_string_lossy(), CLIENT_SECONDS, API_DEFAULT_VERSION)
                }
                Address::Tcp(a) => Docker::connect_with_http(a, CLIENT_SECONDS, API_DEFAULT_VERSION),
                Address::Ssh(a) => Docker::connect_with_ssh(a, CLIENT_SECONDS, API_DEFAULT_VERSION, None),
            }
            .map_err(unreachable)?
        };
        let agreed = in_time(&runtime, address, docker.negotiate_version())?;
        Ok(Self { address: address.clone(), docker: agreed, runtime })
    }

    /// Where it is.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Asks it to do something, and waits for the answer, however long that takes; `what` completes "can't …". Errors:
    /// [`EngineError::Refused`] with what it says, [`EngineError::Unreachable`] where it does not answer.
    pub(crate) fn ask<T>(
        &self,
        what: &str,
        question: impl Future<Output = Result<T, bollard::errors::Error>>,
    ) -> Result<T, EngineError> {
        self.runtime.block_on(question).map_err(|e| self.refusal(what, e))
    }

    /// A client's error as ours.
    pub(crate) fn refusal(&self, what: &str, e: bollard::errors::Error) -> EngineError {
        match e {
            bollard::errors::Error::DockerResponseServerError { status_code, message } => {
                EngineError::Refused { what: what.to_owned(), status: status_code, said: message }
            }
            source => EngineError::Unreachable { address: self.address.clone(), source },
        }
    }

    /// The client, for what has no method of its own here.
    pub(crate) fn client(&self) -> &Docker {
        &self.docker
    }

    /// What it says of itself. Errors: as [`Engine::connect`].
    pub fn portrait(&self) -> Result<Portrait, EngineError> {
        let version = in_time(&self.runtime, &self.address, self.docker.version())?;
        let info = in_time(&self.runtime, &self.address, self.docker.info())?;
        Ok(portrait(version, info, self.docker.client_version().to_string()))
    }
}

fn in_time<T>(
    runtime: &tokio::runtime::Runtime,
    address: &Address,
    question: impl Future<Output = Result<T, bollard::errors::Error>>,
) -> Result<T, EngineError> {
    match runtime.block_on(async { tokio::time::timeout(PATIENCE, question).await }) {
        Ok(answer) => answer.map_err(|source| EngineError::Unreachable { address: address.clone(), source }),
        Err(_) => Err(EngineError::Silent { address: address.clone(), after: PATIENCE }),
    }
}

fn portrait(version: SystemVersion, info: SystemInfo, api: String) -> Portrait {
    let unknown = || "unknown".to_owned();
    let podman = version.components.iter().flatten().any(|c| c.name.to_lowercase().contains("podman"));
    let mut cdi: Vec<String> = info
        .discovered_devices
        .into_iter()
        .flatten()
        .filter(|d| d.source.as_deref() == Some("cdi"))
        .filter_map(|d| d.id)
        .collect();
    cdi.sort();
    let mut runtimes: Vec<String> = info.runtimes.into_iter().flatten().map(|(name, _)| name).collect();
    runtimes.sort();
    Portrait {
        make: if podman { Make::Podman } else { Make::Docker },
        version: version.version.unwrap_or_else(unknown),
        api,
        storage: info.driver.unwrap_or_else(unknown),
        cgroup_driver: info.cgroup_driver.map_or_else(unknown, |d| d.to_string()),
        cgroup_version: match info.cgroup_version {
            Some(SystemInfoCgroupVersionEnum::_1) => 1,
            Some(SystemInfoCgroupVersionEnum::_2) => 2,
            _ => 0,
        },
        rootless: info.security_options.iter().flatten().any(|o| o.contains("rootless")),
        live_restore: info.live_restore_enabled.unwrap_or(false),
        cdi,
        runtimes,
    }
}

/// A way of giving a container a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuWay {
    /// The engine's own device request, by a hook of NVIDIA's container toolkit.
    Request,
    /// A device by its CDI name.
    Cdi,
    /// Device nodes and the driver's libraries, mounted one by one.
    Nodes,
}

impl Portrait {
    /// Which ways of giving a container a GPU can work with this engine, and for each that can't, why.
    pub fn gpu_ways(&self) -> Vec<(GpuWay, Result<(), String>)> {
        let podman = self.make == Make::Podman;
        let cdi_known = self.cdi.iter().any(|d| d.contains("nvidia.com/gpu"));
        let request = if podman {
            // Before version 5.4 it drops the request and says nothing.
            Err("Podman ignores device requests in silence".to_owned())
        } else if cdi_known || self.runtimes.iter().any(|r| r == "nvidia") {
            Ok(())
        } else {
            Err("it has neither the `nvidia` runtime nor CDI devices; the container toolkit's hook, if it is there, is \
                 seen only when it is asked for"
                .to_owned())
        };
        let cdi = if cdi_known {
            Ok(())
        } else {
            Err("it knows no CDI device nvidia.com/gpu (nvidia-ctk cdi generate makes them known)".to_owned())
        };
        vec![(GpuWay::Request, request), (GpuWay::Cdi, cdi), (GpuWay::Nodes, Ok(()))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bollard::models::{DeviceInfo, SystemVersionComponents};

    #[test]
    fn podman_is_told_from_docker_by_its_components() {
        let component =
            SystemVersionComponents { name: "Podman Engine".into(), version: "4.3.1".into(), details: None };
        let version =
            SystemVersion { version: Some("4.3.1".into()), components: Some(vec![component]), ..Default::default() };
        let p = portrait(version, SystemInfo::default(), "1.41".into());
        assert_eq!((p.make, p.version.as_str(), p.cgroup_version), (Make::Podman, "4.3.1", 0));
        let ways = p.gpu_ways();
        assert!(ways[0].1.is_err() && ways[1].1.is_err() && ways[2].1.is_ok(), "{ways:?}");
    }

    #[test]
    fn cdi_devices_make_both_ways_work() {
        let device = DeviceInfo { source: Some("cdi".into()), id: Some("nvidia.com/gpu=0".into()) };
        let info = SystemInfo { discovered_devices: Some(vec![device]), ..Default::default() };
        let p = portrait(SystemVersion::default(), info, "1.48".into());
        assert_eq!(p.cdi, ["nvidia.com/gpu=0"]);
        assert!(p.gpu_ways().iter().all(|w| w.1.is_ok()));
    }

    #[test]
    fn what_does_not_answer_is_told_with_what_to_do() {
        let t = tempfile::tempdir().unwrap();
        let nobody = Address::Unix(t.path().join("s"));
        let e = Engine::connect(&nobody).err().unwrap();
        assert!(matches!(e, EngineError::Unreachable { .. }), "{e}");
        assert!(e.hint().unwrap().contains("systemctl start docker"));
        let Address::Unix(path) = &nobody else { unreachable!() };
        let listener = std::os::unix::net::UnixListener::bind(path).unwrap();
        let asked = std::thread::spawn(move || {
            use std::io::{Read as _, Write as _};
            let (mut s, _) = listener.accept().unwrap();
            let _ = s.read(&mut [0; 1024]).unwrap();
            s.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").unwrap();
        });
        assert!(matches!(Engine::connect(&nobody), Err(EngineError::Unreachable { .. })));
        asked.join().unwrap();
    }
}
