//! The inventory, by NVIDIA's management library, which is loaded when it is asked for: a machine without it is fine.

use std::ffi::OsString;

use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use crate::gpu::{Capability, Gpu, GpuProcess, Inventory, holders};

/// The environment variable that names another library: for tests, and for hosts that keep it in an odd place.
pub const VARIABLE: &str = "GRAFTWERK_NVML";

// The linker's own search first; then where container hosts and NixOS have it.
const PLACES: [&str; 3] =
    ["libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1", "/run/opengl-driver/lib/libnvidia-ml.so.1"];

/// Looks at the GPUs of this host. None, with the reason, where there is no library or no driver; a GPU that does not
/// answer is left out, and named among the faults.
pub fn inventory() -> Inventory {
    let nvml = match load() {
        Ok(nvml) => nvml,
        Err(absent) => return Inventory { absent: Some(absent), ..Inventory::default() },
    };
    let mut found = Inventory { driver: nvml.sys_driver_version().ok(), ..Inventory::default() };
    let count = match nvml.device_count() {
        Ok(n) => n,
        Err(e) => return Inventory { absent: Some(format!("NVML does not count its GPUs: {e}")), ..found },
    };
    for index in 0..count {
        match nvml.device_by_index(index).and_then(|d| look(&nvml, &d, index)) {
            Ok(gpu) => found.gpus.push(gpu),
            Err(e) => found.faults.push(format!("GPU {index} does not answer: {e}")),
        }
    }
    if count == 0 {
        found.absent = Some("the NVIDIA driver knows no GPU".to_owned());
    }
    found
}

fn load() -> Result<Nvml, String> {
    let stated = std::env::var_os(VARIABLE).filter(|p| !p.is_empty());
    let places: Vec<OsString> = stated.map_or_else(|| PLACES.map(OsString::from).to_vec(), |p| vec![p]);
    let mut first = None;
    for place in &places {
        match Nvml::builder().lib_path(place).init() {
            Ok(nvml) => return Ok(nvml),
            // It is there, and it does not work: no other one will.
            Err(e) if !matches!(e, NvmlError::LibloadingError(_)) => return Err(format!("NVML does not start: {e}")),
            Err(NvmlError::LibloadingError(e)) => first = first.or_else(|| Some(e.to_string())),
            Err(_) => {}
        }
    }
    let why = first.unwrap_or_default();
    Err(format!("no NVIDIA driver: the library libnvidia-ml.so.1 can't be loaded ({why})"))
}

fn look(nvml: &Nvml, device: &Device<'_>, index: u32) -> Result<Gpu, NvmlError> {
    let memory = device.memory_info()?;
    Ok(Gpu {
        uuid: device.uuid()?,
        index,
        minor: device.minor_number().ok(),
        model: device.name()?,
        total_bytes: memory.total,
        free_bytes: memory.free,
        capability: device.cuda_compute_capability().ok().map(|c| Capability {
            major: u32::try_from(c.major).unwrap_or_default(),
            minor: u32::try_from(c.minor).unwrap_or_default(),
        }),
        processes: processes(nvml, device),
    })
}

// Both kinds: a desktop's memory is as gone as another job's.
fn processes(nvml: &Nvml, device: &Device<'_>) -> Vec<GpuProcess> {
    let computing = device.running_compute_processes().unwrap_or_default();
    let drawing = device.running_graphics_processes().unwrap_or_default();
    let mut all: Vec<GpuProcess> = Vec::new();
    for p in computing.into_iter().chain(drawing) {
        if all.iter().any(|known| known.pid == p.pid) {
            continue;
        }
        let name = holders::name(p.pid).or_else(|| nvml.sys_process_name(p.pid, 256).ok()).filter(|n| !n.is_empty());
        let bytes = match p.used_gpu_memory {
            UsedGpuMemory::Used(n) => Some(n),
            UsedGpuMemory::Unavailable => None,
        };
        all.push(GpuProcess { pid: p.pid, name, container: holders::container(p.pid), bytes });
    }
    all
}
