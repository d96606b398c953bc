//! Leases: who of all processes on this host has which GPU. A lease is a kernel lock, which is gone when its holder is;
//! the text in it names the node and the store, for people.
//!
//! Leases are the second kind of lock, between recipes and windows: whoever holds a window only [`try_lease`]s.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::fsx::lock::{FileLock, Holder, Tried, holder, try_lock_common};
use crate::fsx::{self, FsError};
use crate::gpu::choose::{fitting, free_then, short, wanted};
use crate::gpu::{Gpu, GpuProcess, Inventory, NoFit, Request, Short};
use crate::{host, size};

/// What is asked for, and by whom.
pub struct Leasing<'a> {
    /// What.
    pub request: &'a Request,
    /// By whom, for others who wait: the node and the store.
    pub what: &'a str,
    /// Looks at the GPUs: [`crate::gpu::inventory`].
    pub inventory: &'a dyn Fn() -> Inventory,
    /// Whose memory counts as free, because they will be stopped before the step starts.
    pub yields: &'a dyn Fn(&GpuProcess) -> bool,
}

/// GPUs that nobody else on this host may take as long as this lives.
#[derive(Debug)]
pub struct Lease {
    /// The GPUs, by UUID.
    pub gpus: Vec<Gpu>,
    /// The driver's version.
    pub driver: Option<String>,
    _locks: Vec<FileLock>,
}

/// Why there is no lease.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Waiting would not help.
    #[error(transparent)]
    NoFit(#[from] NoFit),
    /// Others, who hold no lease, have the memory.
    #[error("{wanted}, and {}", list(short))]
    Memory {
        /// What is asked for.
        wanted: String,
        /// The GPUs that would fit.
        short: Vec<Short>,
    },
    /// The locks' folder.
    #[error(transparent)]
    Fs(#[from] FsError),
}

fn list(short: &[Short]) -> String {
    short.iter().map(Short::to_string).collect::<Vec<_>>().join("; ")
}

impl LeaseError {
    /// What to do.
    pub fn hint(&self) -> Option<String> {
        match self {
            LeaseError::NoFit(_) => Some("`graftwerk doctor` shows the GPUs of this machine".to_owned()),
            LeaseError::Memory { .. } => Some(
                "end what holds it, ask for less with `gpu.memory`, or list containers that may be stopped meanwhile in a \
                 [window.NAME] and let the node say window = \"NAME\""
                    .to_owned(),
            ),
            LeaseError::Fs(_) => Some(format!("{} says another folder", host::VARIABLE)),
        }
    }
}

// The driver gives memory back a moment after a process has ended.
const SETTLING: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Leases what is asked for, waiting for other leases as long as it takes; `busy` hears of each change of whom is waited
/// for, and `cancelled` ends the wait with `None`. Errors: [`LeaseError`] at once where waiting would not help.
pub fn lease(
    leasing: &Leasing<'_>,
    busy: &mut dyn FnMut(Option<&Holder>),
    cancelled: &dyn Fn() -> bool,
) -> Result<Option<Lease>, LeaseError> {
    let first = (leasing.inventory)();
    let mut last: Option<Option<Holder>> = None;
    let mut looked = false;
    let mut settled: Option<Instant> = None;
    let mut pause = Duration::from_millis(5);
    loop {
        match attempt(leasing, &first)? {
            Attempt::Leased(l) => return Ok(Some(l)),
            Attempt::Busy(who) => {
                settled = None;
                // Whoever has only just got it has not said yet who it is.
                if std::mem::replace(&mut looked, true) && last.as_ref() != Some(&who) {
                    busy(who.as_ref());
                    last = Some(who);
                }
            }
            // Whoever has just let go of its lease may still be giving its memory back.
            Attempt::Short(short) => {
                let begun = *settled.get_or_insert_with(Instant::now);
                if !looked || begun.elapsed() > SETTLING {
                    let wanted = wanted(leasing.request);
                    return Err(LeaseError::Memory { wanted, short });
                }
            }
        }
        if cancelled() {
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// What came of trying.
#[derive(Debug)]
pub enum Leased {
    /// We have it.
    Held(Lease),
    /// Others have it; who, if it has said so.
    Busy(Option<Holder>),
}

/// Leases what is asked for if it can be had at once. Errors: as [`lease`].
pub fn try_lease(leasing: &Leasing<'_>) -> Result<Leased, LeaseError> {
    match attempt(leasing, &(leasing.inventory)())? {
        Attempt::Leased(l) => Ok(Leased::Held(l)),
        Attempt::Busy(who) => Ok(Leased::Busy(who)),
        Attempt::Short(short) => Err(LeaseError::Memory { wanted: wanted(leasing.request), short }),
    }
}

enum Attempt {
    Leased(Lease),
    Busy(Option<Holder>),
    Short(Vec<Short>),
}

// Memory is looked at under the lock: before it, whoever had the lock may have been using it.
fn attempt(leasing: &Leasing<'_>, seen: &Inventory) -> Result<Attempt, LeaseError> {
    let count = leasing.request.count as usize;
    let mut order = fitting(seen, leasing.request)?;
    // The freest first; among equals the first, so that everybody tries the same.
    order.sort_by_key(|g| (std::cmp::Reverse(free_then(g, leasing.yields)), g.index));
    let (mut taken, mut lacking) = (BTreeMap::new(), BTreeMap::new());
    loop {
        let free = order.iter().filter(|g| !taken.contains_key(&g.uuid) && !lacking.contains_key(&g.uuid));
        // By UUID, always: two that want the same two do not each get one.
        let chosen: BTreeSet<&str> = free.take(count).map(|g| g.uuid.as_str()).collect();
        if chosen.len() < count {
            break;
        }
        let mut locks = Vec::new();
        for uuid in &chosen {
            match try_lock_common(&path(uuid)?, leasing.what, false)? {
                Tried::Held(l) => locks.push(l),
                Tried::Busy(who) => {
                    taken.insert((*uuid).to_owned(), who);
                    break;
                }
            }
        }
        if locks.len() < count {
            continue;
        }
        let now = (leasing.inventory)();
        let gpus: Vec<Gpu> = now.gpus.iter().filter(|g| chosen.contains(g.uuid.as_str())).cloned().collect();
        let want = leasing.request.memory_bytes;
        let lack: Vec<Short> = gpus.iter().filter_map(|g| short(g, want, leasing.yields)).collect();
        if lack.is_empty() && gpus.len() == count {
            return Ok(Attempt::Leased(Lease { gpus, driver: now.driver, _locks: locks }));
        }
        if lack.is_empty() {
            // One has gone since it was first seen.
            fitting(&now, leasing.request)?;
            return Ok(Attempt::Busy(None));
        }
        lacking.extend(lack.into_iter().map(|s| (s.gpu.uuid.clone(), s)));
    }
    // Waiting helps only where those that are leased would be enough.
    if taken.is_empty() || order.len() - lacking.len() < count {
        return Ok(Attempt::Short(lacking.into_values().collect()));
    }
    Ok(Attempt::Busy(taken.into_values().next().flatten()))
}

fn path(uuid: &str) -> Result<PathBuf, FsError> {
    // The driver's word for it becomes a file's name.
    let name: String = uuid.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
    Ok(host::locks()?.join(format!("gpu-{name}")))
}

/// Who has which GPU of this host, by UUID: for people. `None` for one who has not said who it is.
pub fn leases() -> Result<BTreeMap<String, Option<Holder>>, FsError> {
    let dir = host::locks_path();
    let mut all = BTreeMap::new();
    for name in fsx::names(&dir)? {
        let Some(uuid) = name.to_str().and_then(|n| n.strip_prefix("gpu-")) else { continue };
        if let Some(who) = holder(&dir.join(&name))? {
            all.insert(uuid.to_owned(), who);
        }
    }
    Ok(all)
}

/// Waits until so many bytes are free on each of these GPUs, at most for `limit`: those who give way have been stopped,
/// and the driver takes its time. Errors: the first that has too little, with who holds it.
pub fn wait_for_memory(
    uuids: &[String],
    bytes: u64,
    limit: Duration,
    inventory: &dyn Fn() -> Inventory,
    cancelled: &dyn Fn() -> bool,
) -> Result<(), Box<Short>> {
    let begun = Instant::now();
    loop {
        let now = inventory();
        let lack = now.gpus.iter().filter(|g| uuids.contains(&g.uuid)).find_map(|g| short(g, bytes, &|_| false));
        match lack {
            None => return Ok(()),
            Some(s) if begun.elapsed() >= limit || cancelled() => return Err(Box::new(s)),
            Some(_) => std::thread::sleep(LONGEST_PAUSE),
        }
    }
}

/// A lease for people: `GPU-… (NVIDIA H200, 139.8 GiB free)`.
impl std::fmt::Display for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let one = |g: &Gpu| format!("{} ({}, {} free)", g.uuid, g.model, size::shown(g.free_bytes));
        f.write_str(&self.gpus.iter().map(one).collect::<Vec<_>>().join(", "))
    }
}

/// The same for machines.
impl Serialize for Lease {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.gpus.serialize(to)
    }
}
