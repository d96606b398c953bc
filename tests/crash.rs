//! kill -9 at any call that changes the disk: nothing half-made is ever taken for whole, and the next build goes on
//! unaided to the same trees.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs;
use std::os::unix::process::ExitStatusExt as _;

use common::{Project, store_check};

/// Kills in CI; `GRAFTWERK_KILLS` asks for more.
const KILLS: u64 = 100;

// xorshift64*: the points are random and the same each time.
fn random(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

fn calls_of_a_build(p: &Project) -> u64 {
    let trace = p.holder().join("trace");
    let o = p.command(&["build"]).env("GRAFTWERK_FAILPOINT", format!("trace={}", trace.display())).output().unwrap();
    assert!(o.status.success(), "{}", String::from_utf8_lossy(&o.stderr));
    fs::read_to_string(trace).unwrap().lines().count() as u64
}

#[test]
fn a_build_killed_at_any_point_goes_on_unaided_to_the_same_trees() {
    let reference = Project::demo();
    let calls = calls_of_a_build(&reference);
    assert!(calls > 200, "only {calls} calls pass a fail point");
    let trees = reference.trees();
    let kills = std::env::var("GRAFTWERK_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(KILLS);
    let workers = 2;
    let killed = std::thread::scope(|s| {
        let threads: Vec<_> = (0..workers)
            .map(|w| {
                let trees = &trees;
                s.spawn(move || {
                    let mut state = 0x9e37_79b9_7f4a_7c15 + w;
                    let mut killed = 0;
                    for _ in (w..kills).step_by(workers as usize) {
                        // A build makes some calls more or fewer than the one that was counted (who waits for whom
                        // differs): where it ended before its point, an earlier point is taken.
                        let mut bound = calls;
                        while bound > 0 {
                            let at = random(&mut state) % bound + 1;
                            if kill_and_go_on(at, trees) {
                                killed += 1;
                                break;
                            }
                            bound = at - 1;
                        }
                    }
                    killed
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum::<u64>()
    });
    assert_eq!(killed, kills);
}

fn kill_and_go_on(at: u64, trees: &std::collections::BTreeMap<String, String>) -> bool {
    let p = Project::demo();
    let o = p.command(&["build"]).env("GRAFTWERK_FAILPOINT", format!("kill@{at}")).output().unwrap();
    let died = o.status.signal() == Some(9);
    assert!(died || o.status.success(), "kill@{at}: {}", String::from_utf8_lossy(&o.stderr));
    store_check::check(&p.path("store"));
    let next = p.run(&["build", "--json"]);
    assert_eq!(next.code, Some(0), "after kill@{at}: {}\n{}", next.stdout, next.stderr);
    assert_eq!(&p.trees(), trees, "after kill@{at}");
    store_check::check(&p.path("store"));
    let left: Vec<_> = fs::read_dir(p.path("store/tmp")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.is_empty(), "after kill@{at} {left:?} is left in tmp/");
    let mut folders = vec![p.dir.clone(), p.path("out"), p.path("store"), p.path("store/roots")];
    folders.extend(fs::read_dir(p.path("store/refs")).unwrap().map(|e| e.unwrap().path()));
    for entry in folders.iter().flat_map(|f| fs::read_dir(f).unwrap()) {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let half_made = name.starts_with('.') || name.len() > 62 && name.contains('.');
        assert!(!half_made, "after kill@{at} {name} is left");
    }
    died
}
