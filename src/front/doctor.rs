//! `doctor`: what of this machine works for graftwerk, what does not, and how to mend it.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::engine::{self, Address, Engine, GpuWay, Portrait};
use crate::front::{Location, Project};
use crate::fsx::probe::{Abilities, abilities};
use crate::{exec, fsx};

/// How a thing stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// It works.
    Works,
    /// It works less well than it could, or is not there and only some steps need it.
    Lacks,
    /// Builds fail as long as it is so.
    Fails,
}

/// One thing that was looked at.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub what: &'static str,
    /// How it stands.
    pub health: Health,
    /// What was found.
    pub found: String,
    /// How to mend it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// What `doctor` answers.
#[derive(Debug, Clone, Serialize)]
pub struct Diagnosis {
    /// Everything that was looked at.
    pub findings: Vec<Finding>,
    /// Whether nothing fails.
    pub ok: bool,
}

// Below this, a store of checkpoints is as good as full.
const LITTLE_SPACE: u64 = 10 << 30;
// A clock that says an earlier year was never set: 2025-01-01.
const EARLIEST_NOW: i128 = 1_735_689_600_000_000_000;
const SKEW: i128 = 2_000_000_000;

/// Looks at the project at `location`, where there is one, and at this machine. Changes nothing: what it tries out, it
/// tries in a temporary folder where the store is or would be.
pub fn doctor(location: &Location) -> Diagnosis {
    let mut all = Vec::new();
    let store = graph_and_store(location, &mut all);
    let near_store = store.ancestors().find(|d| d.is_dir()).unwrap_or(Path::new("/")).to_owned();
    file_system(&near_store, &mut all);
    all.push(space(&near_store));
    all.push(isolation());
    all.push(machine());
    engine(&mut all);
    all.push(gpus(Path::new("/proc/driver/nvidia")));
    let ok = all.iter().all(|f| f.health != Health::Fails);
    Diagnosis { findings: all, ok }
}

fn works(what: &'static str, found: impl Into<String>) -> Finding {
    Finding { what, health: Health::Works, found: found.into(), hint: None }
}

fn lacks(what: &'static str, found: impl Into<String>, hint: &str) -> Finding {
    Finding { what, health: Health::Lacks, found: found.into(), hint: Some(hint.to_owned()) }
}

fn fails(what: &'static str, found: impl Into<String>, hint: Option<String>) -> Finding {
    Finding { what, health: Health::Fails, found: found.into(), hint }
}

// Comes back: where the store is or would be.
fn graph_and_store(location: &Location, all: &mut Vec<Finding>) -> PathBuf {
    let (graph, store) = Project::places(location);
    match graph {
        Ok(graph) => {
            let (n, m) = (graph.nodes.len(), graph.sources.len());
            all.push(works("graph", format!("{n} nodes and {m} sources")));
        }
        Err(e @ crate::front::FrontError::NoGraph { .. }) => {
            all.push(lacks("graph", e.to_string(), "`graftwerk init` begins one, -C DIR names another folder"));
        }
        Err(e) => all.push(fails("graph", e.to_string(), Some("`graftwerk plan` shows the places".to_owned()))),
    }
    let version = store.join("VERSION");
    let at = store.display();
    all.push(match fsx::read_optional(&version) {
        Ok(None) => works("store", format!("none yet; it will be {at}")),
        Ok(Some(v)) if v == crate::store::VERSION.as_bytes() => works("store", format!("at {at}")),
        Ok(Some(v)) => {
            let said = String::from_utf8_lossy(&v[..v.len().min(60)]).trim_end().to_owned();
            let hint = "an older store is upgraded by the next command; any other needs the program that made it";
            lacks(
                "store",
                format!("{at} says {said:?}, this program reads {:?}", crate::store::VERSION.trim_end()),
                hint,
            )
        }
        Err(e) => fails("store", e.to_string(), None),
    });
    store
}

fn file_system(dir: &Path, all: &mut Vec<Finding>) {
    let what = "file system";
    let trial = match tempfile::Builder::new().prefix(".graftwerk-doctor-").tempdir_in(dir) {
        Ok(t) => t,
        Err(e) => {
            let found = format!("cannot write in {}: {e}", dir.display());
            all.push(fails(what, found, Some("let this user write there, or pass --store DIR".to_owned())));
            return;
        }
    };
    let a = match abilities(trial.path()) {
        Ok(a) => a,
        Err(e) => {
            let hint = crate::fsx::hint_if_full(&e.source, &e.path);
            all.push(fails(what, e.to_string(), hint));
            return;
        }
    };
    all.push(works(what, format!("{} at {}", a.kind, dir.display())));
    all.extend(ability_findings(&a));
}

fn ability_findings(a: &Abilities) -> Vec<Finding> {
    let mut found = Vec::new();
    found.push(if a.clones {
        works("clones", "copies share their bytes")
    } else {
        lacks("clones", "copies are whole copies", "XFS, Btrfs and ZFS share bytes: a splice then costs what is new")
    });
    found.push(match (a.hard_links, a.symlinks) {
        (true, true) => works("links", "hard and symbolic"),
        (false, true) => lacks("links", "no hard links", "views are copies here; use a file system that has them"),
        (_, false) => {
            fails("links", "no symbolic links", Some("a store needs them: pass --store DIR elsewhere".to_owned()))
        }
    });
    if !a.noreplace {
        let hint = "two builds at once may meet in one name; use one process at a time, or another file system";
        found.push(lacks("renames", "can't refuse to replace", hint));
    }
    if !a.case_sensitive {
        let hint = "outputs whose names differ by case only can't be kept here";
        found.push(lacks("names", "upper and lower case are one", hint));
    }
    let skew = a.clock_skew_ns;
    let now = fsx::stat::now_ns();
    found.push(if now < EARLIEST_NOW {
        lacks("clock", "it says a year before 2025", "set it: ages of artifacts are counted by it")
    } else if skew.abs() > SKEW {
        let seconds = skew / 1_000_000_000;
        let hint = "set both clocks (NTP): files that change within the difference are hashed again each time";
        lacks("clock", format!("the file system's is {seconds} s from this machine's"), hint)
    } else {
        works("clock", "it agrees with the file system's")
    });
    found
}

fn space(dir: &Path) -> Finding {
    match fsx::free_bytes(dir) {
        Err(e) => fails("space", e.to_string(), None),
        #[allow(clippy::cast_precision_loss, reason = "one digit is shown")]
        Ok(n) => {
            let found = format!("{:.1} GiB free at {}", n as f64 / f64::from(1 << 30), dir.display());
            if n < LITTLE_SPACE {
                lacks("space", found, "`graftwerk gc --dry-run` says what could go")
            } else {
                works("space", found)
            }
        }
    }
}

fn isolation() -> Finding {
    match exec::probe::isolation_works(None) {
        Ok(()) => works("isolation", "steps run in namespaces of their own"),
        Err(e) => {
            let hint = e.hint().unwrap_or_else(|| "builtin steps work; others need --unsandboxed".to_owned());
            lacks("isolation", e.to_string(), &hint)
        }
    }
}

fn machine() -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let memory = std::fs::read_to_string("/proc/meminfo").ok().and_then(|t| {
        let line = t.lines().find(|l| l.starts_with("MemTotal:"))?.to_owned();
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    let memory = memory.map_or_else(String::new, |k| format!(", {} GiB of memory", (k + (1 << 19)) >> 20));
    works("machine", format!("{cores} cores{memory}"))
}

fn engine(all: &mut Vec<Finding>) {
    let what = "engine";
    let address = match engine::at_hand() {
        Ok(Some((address, _))) => address,
        Ok(None) => {
            let hint = "only for serving and for steps in containers: start one, or let DOCKER_HOST say where it is";
            all.push(lacks(what, "neither Docker's nor Podman's socket is there", hint));
            return;
        }
        Err(e) => {
            all.push(lacks(what, format!("DOCKER_HOST: {e}"), e.hint()));
            return;
        }
    };
    match Engine::connect(&address).and_then(|e| e.portrait()) {
        Ok(p) => all.extend(engine_findings(&address, &p)),
        Err(e) => all.push(lacks(what, e.to_string(), &e.hint().unwrap_or_else(|| "look at its log".to_owned()))),
    }
}

fn engine_findings(address: &Address, p: &Portrait) -> Vec<Finding> {
    let cgroup = match p.cgroup_version {
        0 => p.cgroup_driver.clone(),
        n => format!("{} v{n}", p.cgroup_driver),
    };
    let rootless = if p.rootless { ", rootless" } else { "" };
    let about = format!("API {}, storage {}, cgroups {cgroup}{rootless}", p.api, p.storage);
    let mut found = vec![works("engine", format!("{} {} at {address}: {about}", p.make, p.version))];
    let ways = p.gpu_ways();
    let name = |w: &GpuWay| match w {
        GpuWay::Request => "device requests",
        GpuWay::Cdi => "CDI",
        GpuWay::Nodes => "device nodes",
    };
    let good: Vec<&str> = ways.iter().filter(|w| w.1.is_ok()).map(|w| name(&w.0)).collect();
    let bad: Vec<String> =
        ways.iter().filter_map(|w| Some(format!("{}: {}", name(&w.0), w.1.as_ref().err()?))).collect();
    let said = format!("{} can work", good.join(", "));
    found.push(if bad.is_empty() { works("GPU ways", said) } else { lacks("GPU ways", said, &bad.join("; ")) });
    found
}

fn gpus(driver: &Path) -> Finding {
    let folder = driver.join("gpus");
    let names = fsx::names(&folder).unwrap_or_default();
    if names.is_empty() {
        return lacks("GPUs", "no NVIDIA driver, or no card", "only serving and GPU steps need one");
    }
    let model = |bus: &std::ffi::OsString| {
        let text = std::fs::read_to_string(folder.join(bus).join("information")).unwrap_or_default();
        let line = text.lines().find_map(|l| l.strip_prefix("Model:").map(|m| m.trim().to_owned()));
        line.unwrap_or_else(|| "unknown model".to_owned())
    };
    let cards: Vec<String> = names.iter().map(model).collect();
    let version = std::fs::read_to_string(driver.join("version")).unwrap_or_default();
    let version = version.split_whitespace().find(|w| w.starts_with(|c: char| c.is_ascii_digit()) && w.contains('.'));
    works("GPUs", format!("{}; driver {}", cards.join(", "), version.unwrap_or("of unknown version")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lack_says_how_to_mend_it() {
        let poor = Abilities {
            kind: "vfat".into(),
            clones: false,
            hard_links: false,
            symlinks: false,
            noreplace: false,
            case_sensitive: false,
            clock_skew_ns: -3_600_000_000_000,
        };
        let found = ability_findings(&poor);
        let of = |what: &str| found.iter().find(|f| f.what == what).unwrap().health;
        assert_eq!(["clones", "renames", "names", "clock"].map(of), [Health::Lacks; 4]);
        assert_eq!(of("links"), Health::Fails);
        assert!(found.iter().all(|f| f.hint.is_some()), "{found:?}");
    }

    #[test]
    fn cards_are_named_with_their_driver() {
        let t = tempfile::tempdir().unwrap();
        assert_eq!(gpus(t.path()).health, Health::Lacks);
        let card = t.path().join("gpus/0000:17:00.0");
        std::fs::create_dir_all(&card).unwrap();
        std::fs::write(card.join("information"), "Model: \t\t NVIDIA H200\nIRQ: 1\n").unwrap();
        let version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build\n";
        std::fs::write(t.path().join("version"), version).unwrap();
        let f = gpus(t.path());
        assert_eq!((f.health, f.found.as_str()), (Health::Works, "NVIDIA H200; driver 570.124.06"));
    }
}
