//! What the doctor says of GPUs, and of what they are shared with.

use std::collections::BTreeMap;

use crate::front::doctor::{Finding, lacks, works};
use crate::fsx::lock::Holder;
use crate::{gpu, window};

pub(super) fn gpus(found: &gpu::Inventory, leases: &BTreeMap<String, Option<Holder>>) -> Vec<Finding> {
    if let Some(absent) = &found.absent {
        return vec![lacks("GPUs", absent.clone(), "only serving and GPU steps need one")];
    }
    let one = |g: &gpu::Gpu| {
        let free = format!("{} of {} free", crate::size::shown(g.free_bytes), crate::size::shown(g.total_bytes));
        let by = leases.get(&g.uuid).map(|who| match who {
            Some(who) => format!(", leased by {who}"),
            None => ", leased".to_owned(),
        });
        let used: Vec<String> = g.processes.iter().map(ToString::to_string).collect();
        let used = if used.is_empty() { String::new() } else { format!(", used by {}", used.join(", ")) };
        format!("{g}: {free}{}{used}", by.unwrap_or_default())
    };
    let driver = found.driver.as_deref().unwrap_or("of unknown version");
    let mut all = vec![works("GPUs", format!("{} known to the driver {driver}", found.gpus.len()))];
    all.extend(found.gpus.iter().map(|g| works("GPU", one(g))));
    let hint = "nvidia-smi says more; a restart of the host often helps";
    all.extend(found.faults.iter().map(|f| lacks("GPU", f.clone(), hint)));
    all
}

pub(super) fn windows() -> Option<Finding> {
    let all = window::status().ok()?;
    let left = all.iter().filter(|w| w.state == window::State::Left).count();
    if left > 0 {
        let found = format!("{left} left open by a crash: containers are still stopped");
        return Some(lacks("windows", found, "`graftwerk window restore` brings them back"));
    }
    (!all.is_empty()).then(|| works("windows", format!("{} open", all.len())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::doctor::Health;

    #[test]
    fn gpus_are_named_with_their_driver_what_is_free_and_who_has_them() {
        let none = gpu::Inventory { absent: Some("no driver".into()), ..gpu::Inventory::default() };
        assert_eq!(gpus(&none, &BTreeMap::new())[0].health, Health::Lacks);
        let card = gpu::Gpu {
            uuid: "GPU-1".into(),
            index: 0,
            minor: Some(0),
            model: "NVIDIA H200".into(),
            total_bytes: 140 << 30,
            free_bytes: 100 << 30,
            capability: None,
            processes: vec![gpu::GpuProcess { pid: 7, name: Some("vllm".into()), container: None, bytes: None }],
        };
        let one = gpu::Inventory { gpus: vec![card], driver: Some("570.1".into()), ..gpu::Inventory::default() };
        let who = Holder { pid: 9, host: "h".into(), what: "quant-a of /s".into(), since: "now".into() };
        let found = gpus(&one, &BTreeMap::from([("GPU-1".to_owned(), Some(who))]));
        assert_eq!(found[0].found, "1 known to the driver 570.1");
        assert_eq!(
            found[1].found,
            "GPU 0 (NVIDIA H200, GPU-1): 100.0 GiB of 140.0 GiB free, leased by process 9 on h (quant-a of /s, since \
             now), used by process 7 (vllm)"
        );
    }
}
