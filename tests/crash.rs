//! kill -9 at any call that changes the disk, and at any moment, in every command: nothing half-made is ever taken for
//! whole, and the next run goes on unaided to the same trees.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod common;
mod harness;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use common::store_check;
use harness::{Fault, Prepared, Random, broken_off, each, kills, long, model, prepare_all, spread};

/// Kills in CI, over all scenarios.
const KILLS: u64 = 108;

#[test]
fn a_command_killed_at_any_point_goes_on_unaided_to_the_same_trees() {
    let scenarios = prepare_all();
    let wanted = if long() { u64::MAX } else { kills().unwrap_or(KILLS) };
    // One kill in six comes from outside, by time.
    let (by_call, by_time) = if long() { (u64::MAX, 10) } else { share(wanted, scenarios.len() as u64) };
    let mut work: Vec<(&Prepared, Fault)> = Vec::new();
    for (n, s) in scenarios.iter().enumerate() {
        let mut random = Random(n as u64 + 1);
        // Where a scenario has fewer calls than that, some are hit twice: once is not always like the other.
        let points = spread(s.calls, by_call, n as u64);
        let again = if long() { 0 } else { by_call.saturating_sub(points.len() as u64) };
        work.extend(points.into_iter().map(|at| (s, Fault::Kill(at))));
        work.extend((0..again).map(|_| (s, Fault::Kill(random.below(s.calls) + 1))));
        for _ in 0..by_time {
            work.push((s, Fault::KillAfter(s.took.mul_f64(random.below(900) as f64 / 1000.0))));
        }
    }
    let killed: u64 = each(work.len(), |i| u64::from(killed(work[i].0, work[i].1, i as u64))).iter().sum();
    let calls: u64 = scenarios.iter().map(|s| s.calls).sum();
    println!("{killed} kills in {} scenarios of {calls} calls that change the disk", scenarios.len());
    assert!(killed >= if long() { calls } else { wanted } * 95 / 100, "only {killed} kills were made");
}

fn share(wanted: u64, scenarios: u64) -> (u64, u64) {
    let each = wanted.div_ceil(scenarios);
    (each - each / 6, each / 6)
}

// A command makes some calls more or fewer than the one that was counted (who waits for whom differs), and takes more
// or less time: where it ended before its point, an earlier one is taken.
fn killed(s: &Prepared, fault: Fault, seed: u64) -> bool {
    let mut random = Random(seed + 77);
    let mut fault = fault;
    loop {
        if broken_off(s, fault) {
            return true;
        }
        fault = match fault {
            Fault::Kill(at) if at > 1 => Fault::Kill(random.below(at - 1) + 1),
            Fault::KillAfter(wait) if wait.as_millis() > 0 => Fault::KillAfter(wait / 2),
            _ => return false,
        };
    }
}

#[test]
fn a_build_that_was_killed_while_a_step_ran_leaves_no_lock_that_stops_the_next_one() {
    let p = model::project();
    p.edit("scripts/step.sh", "echo working", "echo working; sleep 2");
    p.edit("graph.toml", "\"mkdir\"", "\"mkdir\", \"sleep\"");
    let mut build = p.command(&["build", "step"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let said = BufReader::new(build.stderr.take().unwrap());
    assert!(said.lines().map_while(Result::ok).any(|l| l.contains("building step")), "the step did not start");
    build.kill().unwrap();
    build.wait().unwrap();
    store_check::check(&p.path("store"));
    p.build();
    harness::tidy(&p, "after a kill");
}

#[test]
fn lock_files_of_other_hosts_of_reused_process_ids_and_with_garbage_stop_nobody() {
    let p = model::project();
    p.build();
    let recipe =
        p.run(&["plan", "--json"]).step("step")["recipe"].as_str().unwrap().trim_start_matches("b3:").to_owned();
    let project = p.path("store/roots");
    let project = fs::read_dir(project).unwrap().next().unwrap().unwrap().file_name().into_string().unwrap();
    let names = [
        format!("locks/recipe-{recipe}"),
        format!("locks/project-{}", project.trim_end_matches(".json")),
        "locks/index".to_owned(),
        "locks/gc".to_owned(),
        "tmp/1-1.lock".to_owned(),
    ];
    let pid = std::process::id();
    let texts = [
        format!(r#"{{"pid":{pid},"host":"h","what":"x","since":"2026-01-01T00:00:00Z"}}"#).into_bytes(),
        format!(r#"{{"pid":{pid},"host":"other.example","what":"x","since":"2099-01-01T00:00:00Z"}}"#).into_bytes(),
        b"4711\n".to_vec(),
        b"\xff\x00garbage".to_vec(),
        Vec::new(),
    ];
    for text in texts {
        for name in &names {
            fs::write(p.path("store").join(name), &text).unwrap();
        }
        fs::remove_dir_all(p.path("store/runs")).unwrap();
        let r = p.build();
        assert!(!r.stderr.contains("waits"), "{}", r.stderr);
        harness::tidy(&p, "a stale lock");
    }
}
