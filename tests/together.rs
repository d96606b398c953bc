//! Several processes on one store: one makes a recipe, the others wait, say for whom, and reuse.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Project, Ran, store_check};
use graftwerk::digest::Digest;

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

// Runs a command again and again, until told to stop; says how often.
fn looping(p: &Project, args: &[&str], fine: &[i32], stop: &AtomicBool) -> usize {
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) {
        let ran = p.run(args);
        let code = ran.code.unwrap_or(-1);
        // The builds may not have begun the store yet, and a question makes none.
        let early = code == 1 && ran.stderr.contains("there is no store yet");
        assert!(early || fine.contains(&code), "{args:?} exits {code}: {}\n{}", ran.stdout, ran.stderr);
        n += 1;
    }
    n
}

// Starts so many builds of each project at once, with other commands in loops beside them; every build must succeed.
fn build_all(projects: &[&Project], each: usize, beside: &[(&[&str], &[i32])]) -> Vec<Ran> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let loops: Vec<_> = beside
            .iter()
            .map(|(args, fine)| {
                let (stop, p) = (&stop, projects[0]);
                s.spawn(move || looping(p, args, fine, stop))
            })
            .collect();
        let builds: Vec<_> =
            (0..each).flat_map(|_| projects.iter()).map(|p| s.spawn(|| p.run(&["build", "--json"]))).collect();
        let ran: Vec<Ran> = builds.into_iter().map(|b| b.join().unwrap()).collect();
        stop.store(true, Ordering::Relaxed);
        for l in loops {
            assert!(l.join().unwrap() > 0);
        }
        for r in &ran {
            assert_eq!(r.code, Some(0), "{}\n{}", r.stdout, r.stderr);
            for line in r.stderr.lines().filter(|l| l.contains("waiting for") || l.contains("waits for")) {
                assert!(line.contains("process "), "who waits says for whom: {line}");
            }
        }
        ran
    })
}

// Node → tree, of a build.
fn trees_of(ran: &Ran) -> BTreeMap<String, String> {
    let json = ran.json();
    let steps = json["steps"].as_array().unwrap();
    steps.iter().map(|s| (s["node"].as_str().unwrap().into(), s["tree"].as_str().unwrap().into())).collect()
}

fn nothing_half_made(store: &Path) {
    store_check::check(store);
    let names = |dir: &str| -> Vec<String> {
        let all = fs::read_dir(store.join(dir)).unwrap();
        all.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    };
    assert!(names("tmp").is_empty(), "{:?}", names("tmp"));
    let mut locks = names("locks");
    // These stay, so that a full disk has them.
    locks.retain(|l| !["gc", "gc-run", "index"].contains(&l.as_str()));
    assert!(locks.is_empty(), "{locks:?}");
}

const LOOKS: [(&[&str], &[i32]); 3] =
    [(&["status", "--json"], &[0]), (&["why", "seat-a"], &[0]), (&["plan", "--json"], &[0])];

#[test]
fn ten_builds_at_once_make_each_recipe_once_while_gc_and_others_look() {
    let p = Project::demo();
    let reference = Project::demo();
    let trees = trees_of(&reference.build());
    let mut beside = LOOKS.to_vec();
    beside.push((&["gc", "--json"], &[0]));
    let ran = build_all(&[&p], 10, &beside);
    for r in &ran {
        assert_eq!(trees_of(r), trees);
    }
    for recipe in fs::read_dir(p.path("store/runs")).unwrap() {
        assert_eq!(fs::read_dir(recipe.unwrap().path()).unwrap().count(), 1);
    }
    nothing_half_made(&p.path("store"));
    assert_eq!(p.built(), [""; 0]);
}

const OVERLAPPING: &str = r#"
[source.m]
folder = "m"

[node.a]
kind = "edit"
inputs.model = "m"
set = { "config.json" = { "/n" = 1 } }

[node.b]
kind = "edit"
inputs.model = "a"
set = { "other.json" = { "/n" = N } }

[node.c]
kind = "edit"
inputs.model = "b"
drop = ["config.json"]
"#;

#[test]
fn two_projects_with_overlapping_graphs_share_a_store_with_a_collector_that_takes_all_it_may() {
    // Both projects in one folder: each graph file is a project of its own.
    let holder = Project::new("");
    let project = |name: &str| {
        let p = Project::below(holder.holder(), "");
        p.write("m/config.json", "{\"n\": 0}\n");
        p.write("m/other.json", "{\"n\": 0}\n");
        p.write("m/weights", vec![3u8; 50_000]);
        p.write("graph.toml", OVERLAPPING.replace("= N", if name == "p" { "= 2" } else { "= 3" }));
        let text = p.read("graph.toml");
        p.write("graph.toml", format!("store = \"{}\"\n{text}", holder.path("store").display()));
        p
    };
    let (p, q) = (project("p"), project("q"));
    let greedy: (&[&str], &[i32]) = (&["gc", "--keep", "1", "--max-size", "0"], &[0, 1]);
    let looks: [(&[&str], &[i32]); 2] = [(&["status", "--json"], &[0]), (&["plan", "--json"], &[0])];
    let mut known: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for (n, m) in [(2, 3), (4, 5), (2, 3), (6, 2)] {
        for (project, number) in [(&p, n), (&q, m)] {
            let text = project.read("graph.toml");
            let at = text.find("\"other.json\" = { \"/n\" = ").unwrap() + 24;
            let end = at + text[at..].find(' ').unwrap();
            project.write("graph.toml", format!("{}{number}{}", &text[..at], &text[end..]));
        }
        let ran = build_all(&[&p, &q], 5, &[greedy, looks[0], looks[1]]);
        for (i, r) in ran.iter().enumerate() {
            let number = if i % 2 == 0 { n } else { m };
            let trees = trees_of(r);
            assert_eq!(known.entry(number.to_string()).or_insert_with(|| trees.clone()), &trees, "n = {number}");
        }
        nothing_half_made(&holder.path("store"));
        for project in [&p, &q] {
            assert_eq!(project.built(), [""; 0]);
            for view in ["a", "b", "c"] {
                assert!(project.path("out").join(view).join("weights").exists(), "{view}");
            }
        }
    }
    assert_eq!(known.len(), 5);
}

#[test]
fn whoever_waits_for_the_collector_or_the_project_s_files_is_told_for_whom() {
    let p = Project::demo();
    p.run(&["plan"]);
    let key = Digest::of(b"graph.toml").hex()[..32].to_owned();
    for (lock, args) in [
        ("gc".to_owned(), &["build", "--json"][..]),
        (format!("project-{key}"), &["build", "--json"]),
        ("gc-run".to_owned(), &["gc", "--json"]),
    ] {
        let path = p.path(&format!("store/locks/{lock}"));
        let mut held = fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        held.lock().unwrap();
        held.write_all(br#"{"pid":4711,"host":"elsewhere","what":"w","since":"2026-01-01T00:00:00Z"}"#).unwrap();
        let mut c = p.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(c.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("waiting for process 4711 on elsewhere") {
            line.clear();
            assert!(said.read_line(&mut line).unwrap() > 0, "{lock}: it ended without waiting");
        }
        held.unlock().unwrap();
        drop(held);
        let mut rest = String::new();
        said.read_to_string(&mut rest).unwrap();
        assert!(c.wait_with_output().unwrap().status.success(), "{lock}: {rest}");
    }
}
