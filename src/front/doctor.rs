//! `doctor`: what of this machine works for graftwerk, what does not, and how to mend it.

mod gpus;

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
    let stated = Project::places(location).0.ok().and_then(|g| g.engine.host);
    engine(stated.as_deref(), &mut all);
    all.push(compose(&programs(), &plugin_folders()));
    all.extend(gpus::gpus(&crate::gpu::inventory(), &crate::gpu::leases().unwrap_or_default()));
    all.extend(gpus::windows());
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
    let (graph, root, store) = Project::places(location);
    match graph {
        Ok(graph) => {
            let (n, m) = (graph.nodes.len(), graph.sources.len());
            let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
            all.push(works("graph", format!("{} and {}", count(n, "node"), count(m, "source"))));
            let paths = graph.sources.values().map(|s| (s.name.as_str(), root.join(&s.path)));
            all.extend(sources(&paths.collect::<Vec<_>>()));
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

// How many missing sources a line names.
const MOST_SOURCES: usize = 5;

fn sources(paths: &[(&str, PathBuf)]) -> Option<Finding> {
    let gone: Vec<String> =
        paths.iter().filter(|(_, p)| !p.exists()).map(|(name, p)| format!("{name} at {}", p.display())).collect();
    if paths.is_empty() {
        return None;
    }
    if gone.is_empty() {
        return Some(works("sources", "all of them are where the graph says"));
    }
    let mut shown = gone.iter().take(MOST_SOURCES).cloned().collect::<Vec<_>>().join(", ");
    if gone.len() > MOST_SOURCES {
        shown.push_str(&format!(", and {} more", gone.len() - MOST_SOURCES));
    }
    let hint = "put the folder there, mount its drive, or mend the path in graph.toml; what was built of it can be asked for all the same";
    Some(lacks("sources", format!("not there: {shown}"), hint))
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

fn engine(stated: Option<&str>, all: &mut Vec<Finding>) {
    let what = "engine";
    let at_hand = match (engine::at_hand(), stated) {
        // What the environment says wins over what the graph says.
        (Ok(None | Some((_, engine::Said::Usual))), Some(host)) => host.parse().map(|a| Some((a, engine::Said::Usual))),
        (at_hand, _) => at_hand,
    };
    let address = match at_hand {
        Ok(Some((address, _))) => address,
        Ok(None) => {
            let hint = "only for serving and for steps in containers: start one, or let DOCKER_HOST say where it is";
            all.push(lacks(what, "neither Docker's nor Podman's socket is there", hint));
            return;
        }
        Err(e) => {
            all.push(lacks(what, e.to_string(), e.hint()));
            return;
        }
    };
    match Engine::connect(&address).and_then(|e| e.portrait()) {
        Ok(p) => all.extend(engine_findings(&address, &p)),
        Err(e) => all.push(lacks(what, e.to_string(), &e.hint().unwrap_or_else(|| "look at its log".to_owned()))),
    }
}

// Where a shell looks for programs.
fn programs() -> Vec<PathBuf> {
    std::env::var_os("PATH").map_or_else(Vec::new, |p| std::env::split_paths(&p).collect())
}

// Where the docker command looks for its plugins.
fn plugin_folders() -> Vec<PathBuf> {
    let own = std::env::var_os("DOCKER_CONFIG").map(PathBuf::from);
    let own = own.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".docker")));
    let system = ["/usr/local/lib", "/usr/local/libexec", "/usr/lib", "/usr/libexec"];
    let system = system.into_iter().map(|d| Path::new(d).join("docker/cli-plugins"));
    own.map(|d| d.join("cli-plugins")).into_iter().chain(system).collect()
}

// A seat is a compose file: something has to start it.
fn compose(programs: &[PathBuf], plugins: &[PathBuf]) -> Finding {
    let first = |folders: &[PathBuf], name: &str| folders.iter().map(|d| d.join(name)).find(|p| p.is_file());
    if let Some(at) = first(plugins, "docker-compose") {
        return works("compose", format!("`docker compose`, by {}", at.display()));
    }
    for name in ["docker-compose", "podman-compose"] {
        if let Some(at) = first(programs, name) {
            return works("compose", format!("`{name}`, at {}: write that for `docker compose`", at.display()));
        }
    }
    let hint =
        "only for starting seats: the packages are called docker-compose-plugin, docker-compose-v2 or docker-compose";
    lacks("compose", "neither `docker compose` nor `docker-compose` is there", hint)
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
    fn compose_is_found_as_a_plugin_or_as_a_program() {
        let t = tempfile::tempdir().unwrap();
        let (programs, plugins) = (vec![t.path().join("bin")], vec![t.path().join("plugins")]);
        assert_eq!(compose(&programs, &plugins).health, Health::Lacks);
        for (folder, name, says) in [
            ("bin", "podman-compose", "`podman-compose`, at "),
            ("bin", "docker-compose", "`docker-compose`, at "),
            ("plugins", "docker-compose", "`docker compose`, by "),
        ] {
            std::fs::create_dir_all(t.path().join(folder)).unwrap();
            std::fs::write(t.path().join(folder).join(name), "").unwrap();
            let f = compose(&programs, &plugins);
            assert!(f.health == Health::Works && f.found.starts_with(says), "{f:?}");
        }
    }

    #[test]
    fn sources_that_are_not_there_are_named_and_hinder_nothing_else() {
        let t = tempfile::tempdir().unwrap();
        let there = ("here", t.path().to_owned());
        assert_eq!(sources(std::slice::from_ref(&there)).unwrap().health, Health::Works);
        let names = ["a", "b", "c", "d", "e", "f"].map(|n| (n, t.path().join(n)));
        let f = sources(&[&[there], &names[..]].concat()).unwrap();
        assert_eq!(f.health, Health::Lacks);
        assert!(f.found.starts_with(&format!("not there: a at {}/a, b at ", t.path().display())), "{}", f.found);
        assert!(f.found.ends_with(", and 1 more"), "{}", f.found);
    }
}
