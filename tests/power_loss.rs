//! A power loss at any moment, whatever the kernel had written by then: what is recorded is there and right, and the next
//! build goes on unaided to the same trees.
//!
//! `GRAFTWERK_LONG=1` looks at 2,000 states, `GRAFTWERK_STATES=N` at N of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod common;
mod harness;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use common::{Project, store_check};
use harness::disk::{Disk, Loss, calls};
use harness::{Random, each, long, model, tidy};

/// States in CI.
const STATES: usize = 120;

/// A project in which several commands were run, and the record of what they did to the disk.
struct Recorded {
    project: Project,
    record: PathBuf,
    trees: BTreeMap<String, String>,
}

fn recorded() -> Recorded {
    let project = model::project();
    // A file that has just been written is not trusted by its times, and its place in a source not either.
    std::thread::sleep(Duration::from_millis(2100));
    let record = project.holder().join("record");
    let run = |args: &[&str]| {
        let rule = format!("record={}", record.display());
        let o = project.command(args).env("GRAFTWERK_FAILPOINT", rule).output().unwrap();
        assert!(o.status.success(), "{args:?}: {}", String::from_utf8_lossy(&o.stderr));
    };
    run(&["build", "-j1"]);
    project.edit("graph.toml", "\"/edited\" = true", "\"/edited\" = 2");
    run(&["build", "-j1"]);
    run(&["pin", "step"]);
    fs::remove_dir_all(project.path("store/artifacts")).unwrap();
    run(&["path", "seat"]);
    project.build();
    let trees = project.trees();
    Recorded { project, record, trees }
}

#[test]
fn a_power_loss_at_any_moment_costs_reruns_and_never_truth() {
    let wanted = match std::env::var("GRAFTWERK_STATES") {
        Ok(n) => n.parse().unwrap(),
        Err(_) if long() => 2000,
        Err(_) => STATES,
    };
    let looked: usize = each(2, |worker| look(worker, wanted.div_ceil(2))).iter().sum();
    println!("{looked} states of a disk that lost power");
    assert!(looked >= wanted, "only {looked} states were looked at");
}

// Each worker has a project of its own, and its own states of it: where a source lies is part of what is recorded.
fn look(worker: usize, wanted: usize) -> usize {
    let recorded = recorded();
    let calls = calls(&recorded.record);
    assert!(calls.len() > 300, "only {} calls were recorded", calls.len());
    let mut disk = Disk::new(&recorded.project.dir, &recorded.record);
    let mut random = Random(worker as u64 + 1);
    // Every moment has its turn, more than once if there are fewer of them than states.
    let mut left = wanted;
    for (at, call) in calls.iter().enumerate() {
        disk.replay(call);
        let moments = calls.len() - at;
        let mut here = left / moments;
        if random.below(moments as u64) < (left % moments) as u64 {
            here += 1;
        }
        left -= here;
        for _ in 0..here {
            let loss = any_loss(&mut random, disk.pending());
            let what = format!("a power loss after call {at} ({} {}), {loss:?}", call["op"], call["path"]);
            look_at(&recorded, &disk, loss, &what);
        }
    }
    wanted
}

fn any_loss(random: &mut Random, pending: usize) -> Loss {
    let one = random.below(pending as u64) as usize;
    match random.below(6) {
        0 => Loss::Everything,
        1 => Loss::Bytes,
        2 => Loss::Zeros,
        3 if pending > 0 => Loss::Name(one),
        4 if pending > 0 => Loss::AllNamesBut(one),
        _ => Loss::Some(random.below(u64::MAX)),
    }
}

fn look_at(recorded: &Recorded, disk: &Disk, loss: Loss, what: &str) {
    let p = &recorded.project;
    for made in ["store", "out"] {
        let _ = fs::remove_dir_all(p.path(made));
    }
    let _ = fs::remove_file(p.path("graph.lock"));
    disk.leave(loss);
    store_check::check_runs(&p.path("store"), what);
    let r = p.run(&["build", "--json"]);
    assert_eq!(r.code, Some(0), "{what}: {}\n{}", r.stdout, r.stderr);
    assert_eq!(p.trees(), recorded.trees, "{what}");
    store_check::check(&p.path("store"));
    for command in harness::scenario::CLEAN {
        let r = p.run(command);
        assert_eq!(r.code, Some(0), "{what}: {command:?}: {}\n{}", r.stdout, r.stderr);
    }
    tidy(p, what);
}
