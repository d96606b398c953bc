//! A table of scenarios, each a command of the real binary that is broken off on purpose, and what must hold after.
//!
//! A scenario is prepared once and copied for each fault. Adding a command is adding a line to [`scenario::all`].
//!
//! `GRAFTWERK_LONG=1` breaks every scenario off at every call that changes the disk; `GRAFTWERK_KILLS=N` spreads N kills
//! evenly over all scenarios.
#![allow(dead_code, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod disk;
pub mod model;
pub mod scenario;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Project, Ran, store_check};
pub use scenario::Scenario;

/// How a command is broken off.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    /// SIGKILL just before the N-th call that changes the disk.
    Kill(u64),
    /// SIGKILL from outside, this long after the start.
    KillAfter(Duration),
    /// The N-th call fails with EIO.
    Eio(u64),
    /// The N-th call fails with ENOSPC.
    Enospc(u64),
    /// Every call from the N-th on that needs room fails with ENOSPC.
    Full(u64),
}

impl Fault {
    fn rule(self) -> String {
        match self {
            Fault::Kill(n) => format!("kill@{n}"),
            Fault::KillAfter(_) => String::new(),
            Fault::Eio(n) => format!("eio@{n}"),
            Fault::Enospc(n) => format!("enospc@{n}"),
            Fault::Full(n) => format!("enospc@{n}+"),
        }
    }

    fn kills(self) -> bool {
        matches!(self, Fault::Kill(_) | Fault::KillAfter(_))
    }
}

/// A scenario, set up, with what it comes to when nothing breaks it off.
pub struct Prepared {
    pub scenario: &'static Scenario,
    project: Project,
    /// Calls that change the disk.
    pub calls: u64,
    /// How long it takes.
    pub took: Duration,
    trees: BTreeMap<String, String>,
    sources: BTreeMap<std::path::PathBuf, Vec<u8>>,
}

/// Whether everything is to be tried.
pub fn long() -> bool {
    std::env::var_os("GRAFTWERK_LONG").is_some()
}

/// How many kills are asked for.
pub fn kills() -> Option<u64> {
    std::env::var("GRAFTWERK_KILLS").ok()?.parse().ok()
}

/// xorshift64*: random, and the same each time.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % n.max(1)
    }
}

/// A copy of a project with its links, times and modes.
pub fn copy_of(p: &Project) -> Project {
    // What a kill leaves does not depend on flushes; what a power loss leaves is another test's subject.
    let copy = Project::in_memory("");
    copy_into(p, &copy);
    copy
}

/// Copies a project over another one.
pub fn copy_into(p: &Project, to: &Project) {
    let from = p.dir.join(".");
    let done = Command::new("cp").arg("-a").arg(from).arg(&to.dir).stdin(Stdio::null()).status().unwrap();
    assert!(done.success(), "cp -a");
}

/// A run's record with a sum that is right, as the store keeps it.
pub fn sealed(run: &serde_json::Value) -> String {
    let mut run = run.clone();
    run.as_object_mut().unwrap().remove("sum");
    let text = serde_json::to_string_pretty(&run).unwrap();
    let sum = graftwerk::digest::Digest::of(text.as_bytes());
    format!("{},\n  \"sum\": \"{sum}\"\n}}\n", text.strip_suffix("\n}").unwrap())
}

/// Sets every scenario up.
pub fn prepare_all() -> Vec<Prepared> {
    at_once(scenario::all(), prepare)
}

/// Sets a scenario up.
pub fn prepare(scenario: &'static Scenario) -> Prepared {
    let project = model::project();
    (scenario.prepare)(&project);
    let plain = copy_of(&project);
    let trace = plain.holder().join("trace");
    let begun = Instant::now();
    let args: Vec<&str> = scenario.command.to_vec();
    let o = plain.command(&args).env("GRAFTWERK_FAILPOINT", format!("trace={}", trace.display())).output().unwrap();
    let took = begun.elapsed();
    assert!(o.status.success(), "{}: {}", scenario.name, String::from_utf8_lossy(&o.stderr));
    let calls = fs::read_to_string(trace).unwrap_or_default().lines().count() as u64;
    assert!(calls > 3, "{}: only {calls} calls pass a fail point", scenario.name);
    plain.build();
    let trees = plain.trees();
    let sources = model::sources(&plain);
    Prepared { scenario, project, calls, took, trees, sources }
}

/// Breaks a scenario off, looks at what is left, and goes on. Says whether it was broken off: a command may make fewer
/// calls than the one that was counted.
pub fn broken_off(prepared: &Prepared, fault: Fault) -> bool {
    let what = format!("{} after {fault:?}", prepared.scenario.name);
    let p = copy_of(&prepared.project);
    let mut command = p.command(prepared.scenario.command);
    command.env("GRAFTWERK_FAILPOINT", fault.rule());
    let (status, said) = match fault {
        Fault::KillAfter(wait) => {
            let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            std::thread::sleep(wait);
            let _ = child.kill();
            (child.wait().unwrap(), String::new())
        }
        _ => {
            let o = command.output().unwrap();
            (o.status, String::from_utf8_lossy(&o.stderr).into_owned())
        }
    };
    let hit = if fault.kills() { status.signal() == Some(9) } else { !status.success() };
    assert!(hit || status.success(), "{what}: {status}: {said}");
    if hit && !fault.kills() {
        assert_eq!(status.code(), Some(1), "{what}: {said}");
        let named = if matches!(fault, Fault::Eio(_)) { "Input/output error" } else { "No space left on device" };
        assert!(said.contains(named) && said.contains('/'), "{what} is told without its place: {said}");
    }
    // Where there is never any room, a collector can't write down what it took, and the store can't be checked for it.
    let unlogged = matches!(fault, Fault::Full(_)) && prepared.scenario.command.first() == Some(&"gc");
    check_after(prepared, &p, &what, !unlogged);
    hit
}

fn check_after(prepared: &Prepared, p: &Project, what: &str, logged: bool) {
    let store = p.path("store");
    if store.join("VERSION").exists() && !prepared.scenario.damaged && logged {
        store_check::check(&store);
    }
    (prepared.scenario.before_again)(p);
    fine(&p.run(prepared.scenario.command), prepared.scenario.command, what);
    let built = p.run(&["build", "--json"]);
    fine(&built, &["build"], what);
    assert_eq!(p.trees(), prepared.trees, "{what}");
    if logged {
        store_check::check(&store);
    }
    for command in scenario::CLEAN {
        fine(&p.run(command), command, what);
    }
    assert_eq!(model::sources(p), prepared.sources, "{what}: a source was changed");
    (prepared.scenario.holds)(p);
    tidy(p, what);
}

fn fine(r: &Ran, command: &[&str], what: &str) {
    assert_eq!(r.code, Some(0), "{what}: `{}` says: {}\n{}", command.join(" "), r.stdout, r.stderr);
}

/// Nothing that a dead process left is left still.
pub fn tidy(p: &Project, what: &str) {
    let names = |dir: &Path| -> Vec<String> {
        let list = fs::read_dir(dir).into_iter().flatten();
        list.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect()
    };
    assert_eq!(names(&p.path("store/tmp")), [""; 0], "{what}: left in tmp/");
    let locks = names(&p.path("store/locks"));
    let held: Vec<_> = locks.iter().filter(|n| n.starts_with("recipe-") || n.starts_with("project-")).collect();
    assert!(held.is_empty(), "{what}: left in locks/: {held:?}");
    let mut folders: Vec<_> = ["", "out", "store"].iter().map(|f| p.path(f)).collect();
    for sharded in ["blobs", "trees", "tensors", "recipes", "runs", "refs", "roots", "artifacts"] {
        let top = p.path("store").join(sharded);
        folders.extend(names(&top).iter().map(|n| top.join(n)).filter(|d| d.is_dir()));
        folders.push(top);
    }
    for folder in folders {
        for name in names(&folder) {
            let half_made = name.starts_with(".graftwerk") || name.starts_with('.') || name.contains(".tmp");
            assert!(!half_made, "{what}: {name} is left in {}", folder.display());
        }
    }
}

/// Runs `work` over a list, two at a time.
pub fn at_once<T: Sync, R: Send>(list: &'static [T], work: impl Fn(&'static T) -> R + Sync) -> Vec<R> {
    each(list.len(), |i| work(&list[i]))
}

/// Runs `work` for 0, 1, … n - 1, two at a time; what came of them, in order.
pub fn each<R: Send>(n: usize, work: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= n {
                return done;
            }
            done.push((i, work(i)));
        }
    };
    let mut all: Vec<(usize, R)> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..2).map(|_| s.spawn(worker)).collect();
        threads.into_iter().flat_map(|t| t.join().unwrap_or_else(|e| std::panic::resume_unwind(e))).collect()
    });
    all.sort_by_key(|(i, _)| *i);
    all.into_iter().map(|(_, r)| r).collect()
}

/// So many calls of a scenario, evenly spread, or all where it has no more: 1 is its first.
pub fn spread(calls: u64, wanted: u64, seed: u64) -> Vec<u64> {
    if wanted >= calls {
        return (1..=calls).collect();
    }
    let shift = Random(0x9e37_79b9_7f4a_7c15 ^ (seed + 1)).below(calls);
    let mut points: Vec<u64> = (0..wanted).map(|i| (i * calls / wanted + shift) % calls + 1).collect();
    points.sort_unstable();
    points
}
