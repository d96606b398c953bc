//! Which GPUs fit a request, and why the others do not.

use crate::gpu::{Gpu, GpuProcess, Inventory, Request};
use crate::size;

/// No GPU, or too few, can ever be what a node asks for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{wanted}, and {found}")]
pub struct NoFit {
    /// What is asked for.
    pub wanted: String,
    /// What there is, and why each does not fit.
    pub found: String,
}

/// A GPU with too little free memory, and who holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Short {
    /// The GPU, as it was.
    pub gpu: Gpu,
    /// Bytes that must be free.
    pub wanted_bytes: u64,
    /// Who keeps memory, the greediest first.
    pub holders: Vec<GpuProcess>,
}

/// `GPU 0 (…) has 3.0 GiB of 139.8 GiB free, held by process 4711 (…) with …`.
impl std::fmt::Display for Short {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (free, total) = (size::shown(self.gpu.free_bytes), size::shown(self.gpu.total_bytes));
        write!(f, "{} has {free} of {total} free", self.gpu)?;
        if self.holders.is_empty() {
            return f.write_str("; who holds the rest can't be seen from here");
        }
        let all: Vec<String> = self.holders.iter().map(GpuProcess::to_string).collect();
        write!(f, ", held by {}", all.join(", "))
    }
}

/// What is asked for, for messages: `2 GPUs with 55.0 GiB free each (NVIDIA H200*) are asked for`.
pub(super) fn wanted(r: &Request) -> String {
    let mut s = if r.count == 1 { "1 GPU".to_owned() } else { format!("{} GPUs", r.count) };
    if r.memory_bytes > 0 {
        let each = if r.count == 1 { "" } else { " each" };
        s.push_str(&format!(" with {} free{each}", size::shown(r.memory_bytes)));
    }
    let device = r.device.as_ref().map(ToString::to_string);
    let capability = r.capability.map(|c| format!("compute capability {c} at least"));
    let more: Vec<String> = device.into_iter().chain(capability).collect();
    if !more.is_empty() {
        s.push_str(&format!(" ({})", more.join(", ")));
    }
    s + if r.count == 1 { " is asked for" } else { " are asked for" }
}

/// The GPUs that could be what is asked for once nobody else has them. Errors: [`NoFit`] where they are too few.
pub(super) fn fitting<'i>(inventory: &'i Inventory, r: &Request) -> Result<Vec<&'i Gpu>, NoFit> {
    let no = |found: String| NoFit { wanted: wanted(r), found };
    if let Some(absent) = &inventory.absent {
        return Err(no(format!("no GPU can be seen here: {absent}")));
    }
    let mut fit = Vec::new();
    let mut others = inventory.faults.clone();
    for gpu in &inventory.gpus {
        match misfit(gpu, r) {
            None => fit.push(gpu),
            Some(why) => others.push(format!("{gpu} {why}")),
        }
    }
    if fit.len() >= r.count as usize {
        return Ok(fit);
    }
    others.extend(fit.iter().map(|g| format!("{g} fits")));
    Err(no(if others.is_empty() { "there is none".to_owned() } else { others.join("; ") }))
}

fn misfit(gpu: &Gpu, r: &Request) -> Option<String> {
    if let Some(device) = r.device.as_ref().filter(|d| !d.is(gpu)) {
        return Some(format!("is not {device}"));
    }
    if let Some(least) = r.capability {
        match gpu.capability {
            Some(has) if has < least => return Some(format!("has compute capability {has}")),
            None => return Some("does not say its compute capability".to_owned()),
            Some(_) => {}
        }
    }
    (gpu.total_bytes < r.memory_bytes).then(|| format!("has {} in all", size::shown(gpu.total_bytes)))
}

/// Bytes that are free once those who give way have gone.
pub(super) fn free_then(gpu: &Gpu, yields: &dyn Fn(&GpuProcess) -> bool) -> u64 {
    let going = gpu.processes.iter().filter(|p| yields(p));
    let freed = going.map(|p| p.bytes.unwrap_or(gpu.total_bytes)).fold(0u64, u64::saturating_add);
    gpu.free_bytes.saturating_add(freed).min(gpu.total_bytes)
}

/// Whether too little memory would be free there, those who give way gone.
pub(super) fn short(gpu: &Gpu, wanted_bytes: u64, yields: &dyn Fn(&GpuProcess) -> bool) -> Option<Short> {
    if free_then(gpu, yields) >= wanted_bytes {
        return None;
    }
    let mut holders: Vec<GpuProcess> = gpu.processes.iter().filter(|p| !yields(p)).cloned().collect();
    holders.sort_by_key(|p| std::cmp::Reverse(p.bytes));
    Some(Short { gpu: gpu.clone(), wanted_bytes, holders })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::gpu::Capability;

    pub(in crate::gpu) fn gpu(index: u32, free_gib: u64, held: &[(u32, u64)]) -> Gpu {
        let process = |(pid, gib): &(u32, u64)| GpuProcess {
            pid: *pid,
            name: Some("python3".into()),
            container: None,
            bytes: Some(gib << 30),
        };
        Gpu {
            uuid: format!("GPU-{index}"),
            index,
            minor: Some(index),
            model: "NVIDIA H200".into(),
            total_bytes: 140 << 30,
            free_bytes: free_gib << 30,
            capability: Some(Capability { major: 9, minor: 0 }),
            processes: held.iter().map(process).collect(),
        }
    }

    pub(in crate::gpu) fn request(count: u32, gib: u64) -> Request {
        Request { count, memory_bytes: gib << 30, device: None, capability: None }
    }

    #[test]
    fn each_gpu_that_does_not_fit_says_why() {
        let two = Inventory { gpus: vec![gpu(0, 140, &[]), gpu(1, 140, &[])], ..Inventory::default() };
        assert_eq!(fitting(&two, &request(2, 100)).unwrap().len(), 2);
        let e = fitting(&two, &Request { capability: "10.0".parse().ok(), ..request(1, 100) }).unwrap_err();
        assert_eq!(
            e.to_string(),
            "1 GPU with 100.0 GiB free (compute capability 10.0 at least) is asked for, and GPU 0 (NVIDIA H200, GPU-0) \
             has compute capability 9.0; GPU 1 (NVIDIA H200, GPU-1) has compute capability 9.0"
        );
        let e = fitting(&two, &request(1, 141)).unwrap_err().to_string();
        assert!(e.contains("GPU 0 (NVIDIA H200, GPU-0) has 140.0 GiB in all"), "{e}");
        let e = fitting(&two, &request(3, 1)).unwrap_err().to_string();
        assert!(e.contains("3 GPUs with 1.0 GiB free each are asked for") && e.contains("GPU-1) fits"), "{e}");
        let none = Inventory { absent: Some("no driver".into()), ..Inventory::default() };
        let e = fitting(&none, &request(1, 1)).unwrap_err().to_string();
        assert!(e.ends_with("no GPU can be seen here: no driver"), "{e}");
    }

    #[test]
    fn short_memory_names_who_holds_it_and_counts_what_gives_way_as_free() {
        let g = gpu(0, 3, &[(7, 30), (8, 100)]);
        let short_by = |yields: &dyn Fn(&GpuProcess) -> bool| short(&g, 55 << 30, yields);
        assert_eq!(
            short_by(&|_| false).unwrap().to_string(),
            "GPU 0 (NVIDIA H200, GPU-0) has 3.0 GiB of 140.0 GiB free, held by process 8 (python3) with 100.0 GiB, \
             process 7 (python3) with 30.0 GiB"
        );
        assert!(short_by(&|p| p.pid == 8).is_none());
        assert_eq!(short_by(&|p| p.pid == 7).unwrap().holders.len(), 1);
    }
}
