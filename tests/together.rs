//! Several processes on one store: one makes a recipe, the others wait, say for whom, and reuse.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::Stdio;

use common::{Project, store_check};

#[test]
fn four_builds_at_once_make_each_recipe_once() {
    let p = Project::demo();
    let builds: Vec<_> = (0..4)
        .map(|_| p.command(&["build", "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
        .collect();
    let mut built: BTreeMap<String, u32> = BTreeMap::new();
    for b in builds {
        let o = b.wait_with_output().unwrap();
        assert!(o.status.success(), "{}", String::from_utf8_lossy(&o.stderr));
        let report: serde_json::Value = serde_json::from_slice(&o.stdout).unwrap();
        for s in report["steps"].as_array().unwrap() {
            if s["action"] == "built" {
                *built.entry(s["recipe"].as_str().unwrap().to_owned()).or_default() += 1;
            }
        }
    }
    assert_eq!(built.len(), 10, "{built:?}");
    assert!(built.values().all(|n| *n == 1), "{built:?}");
    for recipe in fs::read_dir(p.path("store/runs")).unwrap() {
        assert_eq!(fs::read_dir(recipe.unwrap().path()).unwrap().count(), 1);
    }
    store_check::check(&p.path("store"));
}

#[test]
fn a_build_waits_for_whoever_holds_a_recipe_and_says_for_whom() {
    let p = Project::demo();
    let plan = p.run(&["plan", "--json"]);
    let recipe = plan.step("finetune-b")["recipe"].as_str().unwrap().trim_start_matches("b3:").to_owned();
    let lock = p.path(&format!("store/locks/recipe-{recipe}"));
    let mut held = fs::File::options().read(true).write(true).create_new(true).open(&lock).unwrap();
    held.lock().unwrap();
    held.write_all(br#"{"pid":4711,"host":"elsewhere","what":"finetune-z","since":"2026-01-01T00:00:00Z"}"#).unwrap();
    let mut build = p.command(&["build", "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(build.stderr.take().unwrap());
    let mut line = String::new();
    loop {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "the build ended without waiting");
        if line.contains("4711") {
            break;
        }
    }
    assert!(line.contains("finetune-b") && line.contains("elsewhere") && line.contains("finetune-z"), "{line}");
    held.unlock().unwrap();
    drop(held);
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    let o = build.wait_with_output().unwrap();
    assert!(o.status.success(), "{rest}");
    let report: serde_json::Value = serde_json::from_slice(&o.stdout).unwrap();
    assert_eq!(report["ok"], true);
}

#[test]
fn a_lock_file_left_by_the_dead_or_filled_with_garbage_stops_nobody() {
    let p = Project::demo();
    let plan = p.run(&["plan", "--json"]);
    let recipe = plan.step("finetune-b")["recipe"].as_str().unwrap().trim_start_matches("b3:").to_owned();
    let pid = std::process::id();
    let texts =
        [format!(r#"{{"pid":{pid},"host":"h","what":"x","since":"s"}}"#).into_bytes(), b"\xff\x00garbage".to_vec()];
    for text in texts {
        fs::write(p.path(&format!("store/locks/recipe-{recipe}")), text).unwrap();
        p.build();
        fs::remove_dir_all(p.path("store/runs")).unwrap();
    }
}
