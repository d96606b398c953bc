//! The GPUs of this host: what there is, which of them a node asks for, and who has which.
//!
//! ```text
//! nvml ─> Inventory ─┐
//!                    ├─ choose ─> the freest that fit ─ lease ─> Lease: kernel locks, one a GPU
//! gpu = {…} ─> Request ┘
//! ```
//!
//! A lease holds across processes, stores and users of the host ([`crate::host::locks`]). How a container is given what
//! was leased is [`crate::engine::gpu`]'s.

mod choose;
mod holders;
mod lease;
mod nvml;
mod request;

use serde::Serialize;

pub use choose::{NoFit, Short};
pub use lease::{Lease, LeaseError, Leased, Leasing, lease, leases, try_lease, wait_for_memory};
pub use nvml::{VARIABLE, inventory};
pub use request::{BadRequest, Capability, Request, Wanted};

/// A process that has memory of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GpuProcess {
    /// Its number, as the driver says it.
    pub pid: u32,
    /// Its program's name, as far as it can be told.
    pub name: Option<String>,
    /// The id of the container that it runs in, as far as it can be told.
    pub container: Option<String>,
    /// Bytes that it holds; `None` where the driver does not say.
    pub bytes: Option<u64>,
}

/// `process 4711 (python3, container vllm-a) with 40.0 GiB`.
impl std::fmt::Display for GpuProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {}", self.pid)?;
        let container = self.container.as_ref().map(|c| {
            // An id is shown as engines show it; a name whole.
            let id = c.len() == 64 && c.bytes().all(|b| b.is_ascii_hexdigit());
            format!("container {}", if id { &c[..12] } else { c })
        });
        let about: Vec<String> = self.name.clone().into_iter().chain(container).collect();
        if !about.is_empty() {
            write!(f, " ({})", about.join(", "))?;
        }
        match self.bytes {
            Some(n) => write!(f, " with {}", crate::size::shown(n)),
            None => Ok(()),
        }
    }
}

/// A GPU of this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Gpu {
    /// What names it on every host and in every order: `GPU-…`.
    pub uuid: String,
    /// Its place in the driver's order.
    pub index: u32,
    /// N of `/dev/nvidiaN`, where the driver says it.
    pub minor: Option<u32>,
    /// Its model.
    pub model: String,
    /// Bytes of memory.
    pub total_bytes: u64,
    /// Bytes of memory that nobody holds.
    pub free_bytes: u64,
    /// What it can compute; `None` where the driver does not say.
    pub capability: Option<Capability>,
    /// Who computes on it.
    pub processes: Vec<GpuProcess>,
}

/// `GPU 0 (NVIDIA H200, GPU-…)`.
impl std::fmt::Display for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GPU {} ({}, {})", self.index, self.model, self.uuid)
    }
}

/// What there is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Inventory {
    /// The GPUs, in the driver's order.
    pub gpus: Vec<Gpu>,
    /// The driver's version, where there is one.
    pub driver: Option<String>,
    /// Why nothing is known of GPUs here.
    pub absent: Option<String>,
    /// GPUs of which something could not be asked, and what.
    pub faults: Vec<String>,
}
