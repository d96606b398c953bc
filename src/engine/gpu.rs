//! How a container is given the GPUs that were leased for it.
//!
//! | way | when it works | how it is asked for |
//! | --- | --- | --- |
//! | [`Access::Request`] | Docker with NVIDIA's container toolkit | a device request with the UUIDs |
//! | [`Access::Cdi`] | an engine that lists CDI devices | a device request with the driver `cdi` and the devices' names |
//! | [`Access::Nodes`] | everywhere | `/dev/nvidia…` as devices, the driver's libraries mounted read-only |

use std::path::{Path, PathBuf};

use bollard::models::{DeviceMapping, DeviceRequest, HostConfig, Mount, MountType};

use crate::engine::{GpuWay, Make, Portrait};
use crate::gpu::Gpu;

/// Which way is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Access {
    /// The first that can work: device requests, CDI, device nodes.
    #[default]
    Auto,
    /// The engine's own device request.
    Request,
    /// A device by its CDI name.
    Cdi,
    /// Device nodes and the driver's libraries.
    Nodes,
}

impl std::str::FromStr for Access {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Access::Auto),
            "request" => Ok(Access::Request),
            "cdi" => Ok(Access::Cdi),
            "nodes" => Ok(Access::Nodes),
            other => Err(format!("{other:?} is no way of giving a GPU: expected auto, request, cdi or nodes")),
        }
    }
}

/// What a container is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GpuAccess {
    /// A device request.
    Request {
        /// The GPUs.
        uuids: Vec<String>,
    },
    /// CDI devices.
    Cdi {
        /// Their names, such as `nvidia.com/gpu=GPU-…`.
        names: Vec<String>,
    },
    /// Device nodes.
    Nodes {
        /// The nodes, which have the same path inside.
        devices: Vec<PathBuf>,
        /// Files of the driver, each with its path inside; all read-only.
        mounts: Vec<(PathBuf, String)>,
    },
}

/// Why GPUs can't be given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot give the container its GPU by {way}: {why}")]
pub struct AccessError {
    /// The way.
    pub way: &'static str,
    /// Why not.
    pub why: String,
}

impl AccessError {
    /// What to do.
    pub fn hint(&self) -> String {
        THREE_WAYS.to_owned()
    }
}

/// The folder inside where the driver's libraries are, by device nodes: the one where NVIDIA's images look, too.
pub const LIBRARIES: &str = "/usr/local/nvidia/lib64";

const THREE_WAYS: &str = "a container gets a GPU in one of three ways: gpu access `request` needs NVIDIA's container \
    toolkit (nvidia-ctk runtime configure, then restart the engine), `cdi` a device list (nvidia-ctk cdi generate \
    --output=/etc/cdi/nvidia.yaml) and Docker 28.2 or Podman 5.4, `nodes` only /dev/nvidia* and the driver's libraries";

/// What to do about an engine's refusal, where it is about a GPU; `None` for any other.
pub fn hint_for_refusal(said: &str) -> Option<&'static str> {
    let about = |s: &str| said.contains(s);
    let lacks = about("could not select device driver") && about("gpu");
    (lacks || about("unresolvable CDI devices") || about("nvidia-container-cli")).then_some(THREE_WAYS)
}

/// How these GPUs are given to a container of this engine. Errors: the way that is wanted can't work, and why.
pub fn access(wanted: Access, gpus: &[Gpu], portrait: &Portrait) -> Result<GpuAccess, AccessError> {
    match wanted {
        Access::Auto => {
            let ways = portrait.gpu_ways();
            let works = |way: GpuWay| ways.iter().any(|(w, can)| *w == way && can.is_ok());
            if works(GpuWay::Request) && portrait.make == Make::Docker && has_toolkit(portrait) {
                return Ok(request(gpus));
            }
            match cdi(gpus, portrait) {
                Ok(named) => Ok(named),
                Err(_) => nodes(gpus, Path::new("/dev"), &driver_libraries()),
            }
        }
        // Docker's hook is seen only when it is asked for.
        Access::Request if portrait.make == Make::Podman => {
            Err(AccessError { way: "device request", why: "Podman ignores device requests in silence".to_owned() })
        }
        Access::Request => Ok(request(gpus)),
        Access::Cdi => cdi(gpus, portrait),
        Access::Nodes => nodes(gpus, Path::new("/dev"), &driver_libraries()),
    }
}

fn has_toolkit(portrait: &Portrait) -> bool {
    portrait.runtimes.iter().any(|r| r == "nvidia")
}

fn request(gpus: &[Gpu]) -> GpuAccess {
    GpuAccess::Request { uuids: gpus.iter().map(|g| g.uuid.clone()).collect() }
}

fn cdi(gpus: &[Gpu], portrait: &Portrait) -> Result<GpuAccess, AccessError> {
    let name = |gpu: &Gpu| {
        let by_uuid = format!("nvidia.com/gpu={}", gpu.uuid);
        let by_index = format!("nvidia.com/gpu={}", gpu.index);
        let known = [&by_uuid, &by_index].into_iter().find(|n| portrait.cdi.contains(n));
        known.cloned().ok_or_else(|| AccessError {
            way: "CDI",
            why: format!("the engine lists neither {by_uuid} nor {by_index}"),
        })
    };
    Ok(GpuAccess::Cdi { names: gpus.iter().map(name).collect::<Result<_, _>>()? })
}

fn nodes(gpus: &[Gpu], dev: &Path, libraries: &[PathBuf]) -> Result<GpuAccess, AccessError> {
    let no = |why: String| AccessError { way: "device nodes", why };
    let mut devices = Vec::new();
    for gpu in gpus {
        let minor = gpu.minor.ok_or_else(|| no(format!("the driver does not say which node {gpu} is")))?;
        devices.push(dev.join(format!("nvidia{minor}")));
    }
    devices.push(dev.join("nvidiactl"));
    devices.push(dev.join("nvidia-uvm"));
    if let Some(lacking) = devices.iter().find(|d| !d.exists()) {
        return Err(no(format!("there is no {} (nvidia-modprobe -u -c 0 makes the nodes)", lacking.display())));
    }
    devices.extend(Some(dev.join("nvidia-uvm-tools")).filter(|d| d.exists()));
    let is_cuda = |p: &PathBuf| p.file_name().is_some_and(|n| n == "libcuda.so.1");
    if !libraries.iter().any(is_cuda) {
        return Err(no("libcuda.so.1 is in none of the folders where the driver's libraries usually are".to_owned()));
    }
    let inside = |p: &PathBuf| {
        let name = p.file_name()?.to_str()?;
        // A bind of a link would be the link's own target: the file is mounted under the name that is looked for.
        Some((p.canonicalize().ok()?, format!("{LIBRARIES}/{name}")))
    };
    Ok(GpuAccess::Nodes { devices, mounts: libraries.iter().filter_map(inside).collect() })
}

// Libraries of the driver that a program with CUDA of its own opens, as far as they are there.
const STEMS: [&str; 11] = [
    "libcuda",
    "libcudadebugger",
    "libnvidia-ml",
    "libnvidia-ptxjitcompiler",
    "libnvidia-nvvm",
    "libnvidia-nvvm70",
    "libnvidia-gpucomp",
    "libnvidia-cfg",
    "libnvidia-allocator",
    "libnvidia-opencl",
    "libnvidia-fatbinaryloader",
];

fn driver_libraries() -> Vec<PathBuf> {
    let known = [
        "/usr/local/nvidia/lib64",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/usr/lib/wsl/lib",
        "/run/opengl-driver/lib",
    ];
    let cached = linker_cache();
    let folders = cached.iter().map(PathBuf::as_path).chain(known.iter().map(Path::new));
    let there = |dir: &&Path| dir.join("libcuda.so.1").exists();
    folders.into_iter().find(there).map(libraries_in).unwrap_or_default()
}

// The folders where the linker knows a libcuda.so.1 of this machine's kind.
fn linker_cache() -> Vec<PathBuf> {
    let ask =
        |program: &str| std::process::Command::new(program).arg("-p").output().ok().filter(|o| o.status.success());
    let Some(said) = ask("ldconfig").or_else(|| ask("/sbin/ldconfig")) else { return Vec::new() };
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let lines = text.lines().filter(|l| l.trim_start().starts_with("libcuda.so.1 ") && l.contains("64"));
    lines.filter_map(|l| Path::new(l.rsplit_once("=> ")?.1.trim()).parent().map(Path::to_owned)).collect()
}

fn libraries_in(dir: &Path) -> Vec<PathBuf> {
    let names = crate::fsx::names(dir).unwrap_or_default();
    let wanted = |name: &str| {
        name.split_once(".so")
            .is_some_and(|(stem, end)| STEMS.contains(&stem) && (end.is_empty() || end.starts_with('.')))
    };
    names.iter().filter(|n| n.to_str().is_some_and(wanted)).map(|n| dir.join(n)).filter(|p| p.is_file()).collect()
}

/// What the environment of a step without a GPU has, so that an image or a default runtime that hands out every GPU
/// hands out none.
pub const NO_GPU: &str = "NVIDIA_VISIBLE_DEVICES=void";

impl GpuAccess {
    /// The way, for a run's record: `request`, `cdi`, `nodes`.
    pub fn way(&self) -> &'static str {
        match self {
            GpuAccess::Request { .. } => "request",
            GpuAccess::Cdi { .. } => "cdi",
            GpuAccess::Nodes { .. } => "nodes",
        }
    }

    /// Puts it into what a container is made from; `env` is the container's whole environment, as `NAME=VALUE`.
    pub fn apply(&self, config: &mut HostConfig, env: &mut Vec<String>) {
        let mut ask = |driver: Option<&str>, ids: &[String], capabilities: Option<Vec<Vec<String>>>| {
            config.device_requests.get_or_insert_default().push(DeviceRequest {
                driver: driver.map(str::to_owned),
                device_ids: Some(ids.to_vec()),
                capabilities,
                ..DeviceRequest::default()
            });
        };
        match self {
            GpuAccess::Request { uuids } => {
                ask(None, uuids, Some(vec![vec!["gpu".to_owned(), "compute".to_owned(), "utility".to_owned()]]));
                set(env, "NVIDIA_VISIBLE_DEVICES", &uuids.join(","));
            }
            GpuAccess::Cdi { names } => {
                ask(Some("cdi"), names, None);
                set(env, "NVIDIA_VISIBLE_DEVICES", "void");
            }
            GpuAccess::Nodes { devices, mounts } => {
                let device = |d: &PathBuf| {
                    let path = Some(d.to_string_lossy().into_owned());
                    let permissions = Some("rwm".to_owned());
                    DeviceMapping {
                        path_on_host: path.clone(),
                        path_in_container: path,
                        cgroup_permissions: permissions,
                    }
                };
                config.devices.get_or_insert_default().extend(devices.iter().map(device));
                let mount = |(from, to): &(PathBuf, String)| Mount {
                    typ: Some(MountType::BIND),
                    source: Some(from.to_string_lossy().into_owned()),
                    target: Some(to.clone()),
                    read_only: Some(true),
                    ..Mount::default()
                };
                config.mounts.get_or_insert_default().extend(mounts.iter().map(mount));
                set(env, "NVIDIA_VISIBLE_DEVICES", "void");
                let before = env.iter().find_map(|e| e.strip_prefix("LD_LIBRARY_PATH=")).unwrap_or_default();
                let folders: Vec<&str> = before.split(':').filter(|f| !f.is_empty() && *f != LIBRARIES).collect();
                let all = [&[LIBRARIES], folders.as_slice()].concat().join(":");
                set(env, "LD_LIBRARY_PATH", &all);
            }
        }
    }
}

fn set(env: &mut Vec<String>, name: &str, value: &str) {
    env.retain(|e| e.split_once('=').is_none_or(|(n, _)| n != name));
    env.push(format!("{name}={value}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: u32, minor: u32) -> Gpu {
        Gpu {
            uuid: format!("GPU-{index}"),
            index,
            minor: Some(minor),
            model: "NVIDIA H200".into(),
            total_bytes: 1,
            free_bytes: 1,
            capability: None,
            processes: Vec::new(),
        }
    }

    fn portrait(make: Make, runtimes: &[&str], cdi: &[&str]) -> Portrait {
        Portrait {
            make,
            version: String::new(),
            api: String::new(),
            storage: String::new(),
            cgroup_driver: String::new(),
            cgroup_version: 2,
            rootless: false,
            live_restore: false,
            cdi: cdi.iter().map(|s| (*s).to_owned()).collect(),
            runtimes: runtimes.iter().map(|s| (*s).to_owned()).collect(),
        }
    }

    #[test]
    fn the_first_way_that_can_work_is_taken_and_gpus_go_by_uuid() {
        let gpus = [gpu(0, 3), gpu(1, 4)];
        let toolkit = portrait(Make::Docker, &["nvidia", "runc"], &[]);
        assert_eq!(access(Access::Auto, &gpus, &toolkit).unwrap(), request(&gpus));
        let listed = portrait(Make::Podman, &[], &["nvidia.com/gpu=0", "nvidia.com/gpu=GPU-0", "nvidia.com/gpu=1"]);
        let names = vec!["nvidia.com/gpu=GPU-0".to_owned(), "nvidia.com/gpu=1".to_owned()];
        assert_eq!(access(Access::Auto, &gpus, &listed).unwrap(), GpuAccess::Cdi { names });
        let e = access(Access::Request, &gpus, &listed).unwrap_err();
        assert!(e.to_string().contains("ignores device requests in silence"), "{e}");
        let e = access(Access::Cdi, &gpus, &toolkit).unwrap_err();
        assert!(e.to_string().contains("neither nvidia.com/gpu=GPU-0 nor nvidia.com/gpu=0"), "{e}");
        assert!(["request", "cdi", "nodes"].iter().all(|w| e.hint().contains(&format!("`{w}`"))));
    }

    #[test]
    fn nodes_bring_the_drivers_libraries_under_the_names_that_are_looked_for() {
        let t = tempfile::tempdir().unwrap();
        let (dev, lib) = (t.path().join("dev"), t.path().join("lib"));
        std::fs::create_dir(&dev).unwrap();
        std::fs::create_dir(&lib).unwrap();
        for name in ["libcuda.so.570.1", "libnvidia-ml.so.570.1", "libcudart.so.12", "libnvidia-glcore.so.570.1"] {
            std::fs::write(lib.join(name), "").unwrap();
        }
        std::os::unix::fs::symlink("libcuda.so.570.1", lib.join("libcuda.so.1")).unwrap();
        let found = libraries_in(&lib);
        let e = nodes(&[gpu(0, 3)], &dev, &found).unwrap_err();
        assert!(e.to_string().contains("dev/nvidia3"), "{e}");
        for name in ["nvidia3", "nvidiactl", "nvidia-uvm"] {
            std::fs::write(dev.join(name), "").unwrap();
        }
        assert!(nodes(&[gpu(0, 3)], &dev, &[]).unwrap_err().to_string().contains("libcuda.so.1"));
        let given = nodes(&[gpu(0, 3)], &dev, &found).unwrap();
        let GpuAccess::Nodes { devices, mounts } = &given else { panic!("{given:?}") };
        assert_eq!(devices.len(), 3);
        let names: Vec<&str> = mounts.iter().map(|m| m.1.rsplit('/').next().unwrap()).collect();
        assert_eq!(names, ["libcuda.so.1", "libcuda.so.570.1", "libnvidia-ml.so.570.1"]);
        assert!(mounts[0].0.ends_with("libcuda.so.570.1"));
        let mut config = HostConfig::default();
        let mut env = vec!["LD_LIBRARY_PATH=/opt/lib".to_owned(), "NVIDIA_VISIBLE_DEVICES=all".to_owned()];
        given.apply(&mut config, &mut env);
        assert_eq!(env, ["NVIDIA_VISIBLE_DEVICES=void", "LD_LIBRARY_PATH=/usr/local/nvidia/lib64:/opt/lib"]);
        assert!(config.mounts.unwrap().iter().all(|m| m.read_only == Some(true)));
    }

    #[test]
    fn the_refusal_of_an_engine_without_the_toolkit_names_the_three_ways() {
        let said = "could not select device driver \"\" with capabilities: [[gpu]]";
        assert!(hint_for_refusal(said).unwrap().contains("nvidia-ctk"));
        assert!(hint_for_refusal("no such image").is_none());
    }
}
