//! What `gc` frees and what it leaves, who holds what, and what is still known of what was freed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use common::{Project, Ran, copy_tree, files, store_check};
use graftwerk::digest::{Digest, TreeId};
use graftwerk::model::run::RunRecord;
use graftwerk::store::Store;

const GRAPH: &str = r#"
[source.m]
folder = "m"

[node.a]
kind = "edit"
inputs.model = "m"
set = { "config.json" = { "/n" = 0 } }

[node.b]
kind = "edit"
inputs.model = "a"
set = { "other.json" = { "/n" = 100 } }
"#;

fn project() -> Project {
    let p = Project::new(GRAPH);
    for name in ["config", "other"] {
        p.write(&format!("m/{name}.json"), "{\"n\": -1}\n");
    }
    p.write("m/weights", vec![7u8; 100_000]);
    p
}

/// Builds `n` generations of every node, the first of which is n = 0.
fn generations(p: &Project, n: usize) -> Vec<BTreeMap<String, String>> {
    (0..n)
        .map(|i| {
            if i > 0 {
                p.edit("graph.toml", &format!("\"/n\" = {}", i - 1), &format!("\"/n\" = {i}"));
            }
            p.build();
            p.trees()
        })
        .collect()
}

fn gc(p: &Project, args: &[&str]) -> Ran {
    let r = p.run(&[&["gc", "--json"], args].concat());
    assert_eq!(r.code, Some(0), "{}\n{}", r.stdout, r.stderr);
    r
}

fn freed(r: &Ran) -> Vec<String> {
    let json = r.json();
    let mut trees: Vec<String> =
        json["trees"].as_array().unwrap().iter().map(|t| t["tree"].as_str().unwrap().to_owned()).collect();
    trees.sort();
    trees
}

fn blobs(p: &Project) -> usize {
    files(&p.path("store/blobs")).len()
}

/// Every file of the store but what opening it changes.
fn state(p: &Project) -> Vec<PathBuf> {
    let changes = |f: &&PathBuf| ["index", "tmp", "locks"].iter().any(|d| f.starts_with(d));
    files(&p.path("store")).into_keys().filter(|f| !changes(&f)).collect()
}

fn view(p: &Project, tree: &str) -> PathBuf {
    p.path(&format!("store/artifacts/{}", tree.trim_start_matches("b3:")))
}

// Changes the record of the run that made a tree, as this program would have written it.
fn rewrite(p: &Project, tree: &str, change: impl FnOnce(&mut RunRecord)) {
    let store = Store::open(&p.path("store")).unwrap();
    let mut runs = store.survey().unwrap().runs.into_values().flatten();
    let mut run = runs.find(|r| r.tree().is_some_and(|t| t.to_string() == tree)).unwrap();
    fs::remove_dir_all(p.path(&format!("store/runs/{}", run.recipe.hex()))).unwrap();
    change(&mut run);
    store.record(run).unwrap();
}

#[test]
fn the_newest_generations_stay_and_what_is_older_goes_as_the_dry_run_says() {
    let p = project();
    let trees = generations(&p, 7);
    let before = state(&p);
    let said = gc(&p, &["--dry-run"]);
    assert_eq!(state(&p), before, "a dry run changes nothing");
    let mut expected: Vec<String> = trees[..2].iter().flat_map(|t| t.values().cloned()).collect();
    expected.sort();
    assert_eq!(freed(&said), expected);
    let done = gc(&p, &[]);
    assert_eq!(freed(&done), expected);
    let (mut a, mut b) = (said.json(), done.json());
    for json in [&mut a, &mut b] {
        json["dry_run"] = false.into();
        json["trees"].as_array_mut().unwrap().iter_mut().for_each(|t| t["age_seconds"] = 0.into());
    }
    assert_eq!(a, b);
    for t in &expected {
        assert!(!view(&p, t).exists());
    }
    store_check::check(&p.path("store"));
    assert_eq!(p.built(), [""; 0], "what is current is held");
    assert!(freed(&gc(&p, &[])).is_empty(), "nothing is left to free");
    // Each listing, recipe and record of what went is still there.
    for t in &expected {
        let shown = p.run(&["show", t, "--json"]).json();
        assert!(shown["listing"].is_string() && shown["collected"].is_string(), "{shown:#}");
    }
    let kept = gc(&p, &["--keep", "1"]);
    assert_eq!(freed(&kept).len(), 8, "four older generations of two nodes");
    assert_eq!(p.built(), [""; 0]);
}

#[test]
fn what_was_collected_is_told_so_and_made_again_with_the_same_trees() {
    let p = project();
    let trees = generations(&p, 2);
    gc(&p, &["--keep", "1"]);
    p.edit("graph.toml", "\"/n\" = 1", "\"/n\" = 0");
    let plan = p.run(&["plan", "--json"]);
    let reason = plan.step("a")["reasons"][0].clone();
    assert_eq!(reason["reason"], "collected", "{reason:#}");
    assert!(reason["text"].as_str().unwrap().contains("freed by gc at 20"), "{reason:#}");
    let status = p.run(&["status", "--json"]).json();
    assert_eq!(status["nodes"][0]["state"], "collected", "{status:#}");
    assert!(p.run(&["why", "a"]).stdout.contains("freed by gc"));
    // With `a` wanted for nothing but its tree's name, it needs no bytes.
    let only = p.run(&["plan", "b", "--json"]);
    assert_eq!(only.step("a")["action"], "run", "b must be made, and needs it: {}", only.stdout);
    // b lacked only the file that it shares with a.
    assert_eq!(p.built(), ["a"]);
    assert_eq!(p.trees(), trees[0]);
    // Damage that comes after it was made again is no collection.
    let digest = Digest::of(b"{\"n\": 0}\n").hex();
    fs::remove_file(p.path(&format!("store/blobs/{}/{}", &digest[..2], &digest[2..]))).unwrap();
    assert_eq!(p.run(&["plan", "--json"]).step("a")["reasons"][0]["reason"], "output_missing");
}

#[test]
fn an_intermediate_whose_bytes_are_gone_stays_known() {
    let p = project();
    p.edit("graph.toml", r#"set = { "other.json" = { "/n" = 100 } }"#, r#"drop = ["config.json"]"#);
    let trees = generations(&p, 1);
    // Nobody holds a: the project is forgotten, and b has a link.
    fs::remove_dir_all(p.path("out")).unwrap();
    let root = fs::read_dir(p.path("store/roots")).unwrap().next().unwrap().unwrap().path();
    p.run(&["roots", "--forget", "graph.toml"]);
    assert!(!root.exists());
    fs::create_dir_all(p.path("elsewhere")).unwrap();
    let store = Store::open(&p.path("store")).unwrap();
    let link = p.path("elsewhere/b");
    let b = TreeId(trees[0]["b"].parse().unwrap());
    store.register_link(&link, b).unwrap();
    symlink(view(&p, &trees[0]["b"]), &link).unwrap();
    drop(store);
    assert!(freed(&gc(&p, &[])).contains(&trees[0]["a"]));
    let plan = p.run(&["plan", "b", "--json"]);
    assert_eq!((&plan.step("a")["action"], &plan.step("b")["action"]), (&"fresh".into(), &"fresh".into()));
    assert_eq!(p.run(&["build", "b", "--json"]).nodes("built"), [""; 0]);
    assert_eq!(p.run(&["build", "a", "--json"]).nodes("built"), ["a"]);
}

#[test]
fn a_pin_a_link_a_seat_and_a_running_process_hold_until_they_let_go() {
    let p = project();
    let trees = generations(&p, 6);
    let oldest = &trees[0]["a"];
    let explain = |what: &str| p.run(&["gc", "--explain", what, "--json"]).json();
    let holds = || -> Vec<String> {
        let e = explain(oldest);
        let list = e["trees"][0]["holds"].as_array().unwrap().clone();
        list.iter().map(|h| h["hold"].as_str().unwrap().to_owned()).collect()
    };
    assert!(holds().is_empty());
    assert!(p.run(&["gc", "--explain", oldest]).stdout.contains("nobody holds it"));

    // A pin.
    let recipe = p.run(&["show", oldest, "--json"]);
    assert_eq!(recipe.code, Some(0));
    p.edit("graph.toml", "\"/n\" = 5", "\"/n\" = 0");
    assert_eq!(p.run(&["pin", "a"]).code, Some(0));
    p.edit("graph.toml", "\"/n\" = 0", "\"/n\" = 5");
    assert_eq!(holds(), ["pin"]);
    assert!(!freed(&gc(&p, &["--dry-run"])).contains(oldest));
    p.edit("graph.toml", "\"/n\" = 5", "\"/n\" = 0");
    assert_eq!(p.run(&["pin", "a", "--remove"]).code, Some(0));
    p.edit("graph.toml", "\"/n\" = 0", "\"/n\" = 5");
    assert!(holds().is_empty());

    // A running process.
    let tree = TreeId(oldest.parse().unwrap());
    let running = Store::open(&p.path("store")).unwrap();
    running.hold_trees([tree]).unwrap();
    assert_eq!(holds(), ["session"]);
    assert_eq!(explain(oldest)["trees"][0]["holds"][0]["pid"], std::process::id());
    assert!(!freed(&gc(&p, &["--dry-run"])).contains(oldest));
    drop(running);
    assert!(holds().is_empty());

    // A seat.
    fs::create_dir_all(p.path("store/seats/s")).unwrap();
    symlink(view(&p, oldest), p.path("store/seats/s/gen-1")).unwrap();
    symlink("gen-1", p.path("store/seats/s/current")).unwrap();
    assert_eq!(holds(), ["seat"]);
    fs::write(p.path("store/seats/s/odd"), "x").unwrap();
    let refused = p.run(&["gc"]);
    assert_eq!(refused.code, Some(3), "{}", refused.stdout);
    assert!(refused.stderr.contains("seats/s/odd") && refused.stderr.contains("nothing was deleted"));
    fs::remove_dir_all(p.path("store/seats")).unwrap();

    // A link elsewhere: as long as it leads there, and also while its folder is gone.
    let folder = p.holder().join("disk");
    fs::create_dir(&folder).unwrap();
    let link = folder.join("model");
    Store::open(&p.path("store")).unwrap().register_link(&link, tree).unwrap();
    symlink(view(&p, oldest), &link).unwrap();
    assert_eq!(holds(), ["link"]);
    fs::rename(&folder, p.holder().join("unmounted")).unwrap();
    assert_eq!(holds(), ["link"]);
    assert!(p.run(&["roots"]).stdout.contains("model"));
    assert_eq!(p.run(&["roots", "--forget", link.to_str().unwrap()]).code, Some(0));
    assert!(holds().is_empty());
    assert!(freed(&gc(&p, &[])).contains(oldest));
}

#[test]
fn a_link_in_out_holds_and_one_that_was_removed_does_not() {
    let p = project();
    let trees = generations(&p, 1);
    // The node leaves the graph, and five other generations push it out of the roots of none: it has no newer one.
    p.edit("graph.toml", "[node.b]", "[node.c]");
    p.build();
    let root = p.run(&["roots", "--json"]).json();
    assert_eq!(root["projects"][0]["graph_exists"], true);
    let b = &trees[0]["b"];
    let e = p.run(&["gc", "--explain", "out/b", "--json"]).json();
    let holds = e["trees"][0]["holds"].to_string();
    assert_eq!(e["trees"][0]["tree"], **b);
    assert!(holds.contains("generation 1 of 1 of b") && holds.contains("out/b"), "{holds}");
}

#[test]
fn a_project_that_is_gone_still_holds_until_it_is_forgotten() {
    let p = project();
    let other = p.holder().join("other");
    common::copy_tree(&p.path("m"), &other.join("m"));
    fs::write(other.join("graph.toml"), GRAPH.replace("\"/n\" = 0", "\"/n\" = 55")).unwrap();
    p.build();
    let store = p.path("store");
    let at_other = |args: &[&str]| {
        let mut c = p.command(&[args, &["--store", store.to_str().unwrap()]].concat());
        c.current_dir(&other).output().unwrap()
    };
    assert!(at_other(&["build"]).status.success());
    let roots = p.run(&["roots", "--json"]).json();
    assert_eq!(roots["projects"].as_array().unwrap().len(), 2);
    // Moved to where nobody looks, as by an unmounted disk.
    fs::rename(&other, p.holder().join("gone")).unwrap();
    assert!(freed(&gc(&p, &[])).is_empty());
    let text = p.run(&["roots"]).stdout;
    assert!(text.contains("the folder of this graph is gone"), "{text}");
    let graph = other.join("graph.toml");
    assert_eq!(p.run(&["roots", "--forget", graph.to_str().unwrap()]).code, Some(0));
    assert_eq!(freed(&gc(&p, &[])).len(), 2);
    assert_eq!(p.run(&["roots", "--forget", graph.to_str().unwrap()]).code, Some(2));
    // A graph that does not read stops it: its pins can't be known.
    p.write("graph.toml.good", p.read("graph.toml"));
    fs::create_dir_all(&other).unwrap();
    fs::rename(p.holder().join("gone/graph.toml"), &graph).unwrap();
    fs::rename(p.holder().join("gone/m"), other.join("m")).unwrap();
    assert!(at_other(&["build"]).status.success());
    let before = state(&p);
    for (file, text) in [("graph.toml", "[node"), ("graph.lock", "version = 9\n")] {
        let good = fs::read(other.join(file)).unwrap();
        fs::write(other.join(file), text).unwrap();
        let r = p.run(&["gc", "--keep", "1"]);
        assert_eq!(r.code, Some(2), "{file}: {}", r.stderr);
        assert!(r.stderr.contains(file), "{}", r.stderr);
        assert_eq!(state(&p), before);
        fs::write(other.join(file), good).unwrap();
    }
}

#[test]
fn damage_of_what_says_who_needs_what_stops_it_and_is_named() {
    let p = project();
    generations(&p, 7);
    let first = |folder: &str| {
        let mut path = p.path("store").join(folder);
        while path.is_dir() {
            path = fs::read_dir(&path).unwrap().next().unwrap().unwrap().path();
        }
        path
    };
    for folder in ["trees", "recipes", "runs", "roots"] {
        let path = first(folder);
        let good = fs::read(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions();
        for bad in [good[..good.len() / 2].to_vec(), Vec::new()] {
            fs::remove_file(&path).unwrap();
            fs::write(&path, bad).unwrap();
            let before = state(&p);
            for args in [&["gc"][..], &["gc", "--dry-run"]] {
                let r = p.run(args);
                assert_eq!(r.code, Some(3), "{folder}: {}", r.stderr);
                let name = path.file_name().unwrap().to_str().unwrap();
                assert!(r.stderr.contains(name) && r.stderr.contains("nothing was deleted"), "{}", r.stderr);
                assert!(r.stderr.contains("graftwerk repair"), "{}", r.stderr);
            }
            assert_eq!(state(&p), before);
        }
        fs::remove_file(&path).unwrap();
        fs::write(&path, good).unwrap();
        fs::set_permissions(&path, mode).unwrap();
    }
    // A listing that is lost altogether, and held.
    let tree = p.trees()["a"].trim_start_matches("b3:").to_owned();
    let listing = p.path(&format!("store/trees/{}/{}", &tree[..2], &tree[2..]));
    let text = fs::read(&listing).unwrap();
    fs::remove_file(&listing).unwrap();
    let r = p.run(&["gc"]);
    assert_eq!(r.code, Some(3), "{}", r.stderr);
    assert!(r.stderr.contains(&tree[2..]) && r.stderr.contains("held by"), "{}", r.stderr);
    fs::write(&listing, text).unwrap();
    assert_eq!(freed(&gc(&p, &[])).len(), 4);
}

#[test]
fn a_budget_takes_what_is_cheapest_to_make_again_and_never_what_is_held() {
    let p = project();
    let trees = generations(&p, 3);
    // What each took is set here: a second of a GPU counts as ten.
    for (tree, seconds, gpu) in [(&trees[0]["a"], 2.0, 50.0), (&trees[1]["a"], 90.0, 0.0)] {
        rewrite(&p, tree, |run| {
            run.seconds = seconds;
            run.facts.insert("gpu_seconds".to_owned(), gpu.into());
        });
    }
    for tree in [&trees[0]["b"], &trees[1]["b"]] {
        rewrite(&p, tree, |run| run.seconds = 9000.0);
    }
    let all = gc(&p, &["--keep", "1", "--dry-run"]).json();
    let first: Vec<_> =
        all["trees"].as_array().unwrap().iter().map(|t| t["remake_seconds"].as_f64().unwrap()).collect();
    assert_eq!(first, [90.0, 502.0, 9000.0, 9000.0]);
    let stored = all["freed_bytes"].as_u64().unwrap() + all["left_bytes"].as_u64().unwrap();
    // A budget that everything fits into frees nothing.
    assert!(freed(&gc(&p, &["--keep", "1", "--max-size", &stored.to_string()])).is_empty());
    // One byte less: one tree goes, the one that costs least per byte; the others stay.
    let some = gc(&p, &["--keep", "1", "--dry-run", "--max-size", &(stored - 1).to_string()]);
    assert_eq!(freed(&some), [trees[1]["a"].clone()], "{}", some.stdout);
    // What is held does not go, whatever the budget.
    let r = p.run(&["gc", "--keep", "1", "--max-size", "0", "--json"]);
    assert_eq!(r.code, Some(1), "{}", r.stderr);
    assert_eq!(r.json()["ok"], false);
    assert!(r.stderr.contains("roots"), "{}", r.stderr);
    assert_eq!(p.built(), [""; 0]);
    assert_eq!(p.trees(), trees[2]);
    assert_eq!(p.run(&["gc", "--max-size", "12X"]).code, Some(2));
}

#[test]
fn age_is_that_of_the_newest_run_and_the_future_is_now() {
    let p = project();
    let trees = generations(&p, 7);
    assert!(freed(&gc(&p, &["--older-than", "1h"])).is_empty());
    assert_eq!(freed(&gc(&p, &["--older-than", "0s", "--dry-run"])).len(), 4);
    // A record from the future, and one from long ago, by their sums as this program writes them.
    for (tree, started) in [(&trees[0]["a"], "2999-01-01T00:00:00Z"), (&trees[1]["a"], "1999-01-01T00:00:00Z")] {
        rewrite(&p, tree, |run| run.started = started.to_owned());
    }
    let old = gc(&p, &["--older-than", "30d"]);
    assert_eq!(freed(&old), [trees[1]["a"].clone()]);
}

#[test]
fn whatever_a_killed_sweep_leaves_the_next_one_goes_on() {
    let count = {
        let p = project();
        generations(&p, 7);
        let trace = p.holder().join("trace");
        let o = p.command(&["gc"]).env("GRAFTWERK_FAILPOINT", format!("trace={}", trace.display())).output().unwrap();
        assert!(o.status.success());
        fs::read_to_string(trace).unwrap().lines().count()
    };
    assert!(count > 15, "{count}");
    let p = project();
    let trees = generations(&p, 7);
    for at in 1..=count {
        // What was freed is made again, so that there is something to free each time.
        let o = p.command(&["gc"]).env("GRAFTWERK_FAILPOINT", format!("kill@{at}")).output().unwrap();
        assert!(o.status.code().is_none() || o.status.success());
        store_check::check(&p.path("store"));
        assert_eq!(p.trees(), trees[6], "kill@{at}");
        if at % 6 == 0 {
            assert_eq!(p.built(), [""; 0], "kill@{at}");
            p.write("graph.toml", p.read("graph.toml").replace("\"/n\" = 6", "\"/n\" = 0"));
            assert_eq!(p.run(&["build"]).code, Some(0));
            p.write("graph.toml", p.read("graph.toml").replace("\"/n\" = 0", "\"/n\" = 6"));
            p.build();
        }
    }
    gc(&p, &[]);
    assert!(freed(&gc(&p, &[])).is_empty());
    assert_eq!(p.built(), [""; 0]);
}

#[test]
fn folders_that_forbid_it_and_files_that_nobody_names_go_too() {
    let p = project();
    generations(&p, 2);
    let odd = p.path("store/failed/a-1/deep/er");
    fs::create_dir_all(&odd).unwrap();
    fs::write(odd.join("f"), vec![0u8; 5000]).unwrap();
    for (dir, mode) in [(odd.as_path(), 0o500), (odd.parent().unwrap(), 0o500)] {
        fs::set_permissions(dir, fs::Permissions::from_mode(mode)).unwrap();
    }
    let digest = Digest::of(b"nobody's").hex();
    p.write(&format!("store/blobs/{}/{}", &digest[..2], &digest[2..]), b"nobody's");
    p.write("store/blobs/notes.txt", "not ours");
    p.write("store/quarantine/x", "kept");
    let before = blobs(&p);
    let r = gc(&p, &[]);
    assert_eq!((r.json()["orphans"].as_u64(), blobs(&p)), (Some(1), before - 1));
    assert!(!p.path("store/failed/a-1").exists());
    assert!(p.path("store/blobs/notes.txt").exists() && p.path("store/quarantine/x").exists());
    assert!(r.json()["freed_bytes"].as_u64().unwrap() >= 5000);
}

#[test]
fn explain_follows_a_file_to_its_trees_and_holders() {
    let p = project();
    let trees = generations(&p, 2);
    let at = |tree: &str, file: &str| view(&p, tree).join(file).to_string_lossy().into_owned();
    let e = p.run(&["gc", "--explain", &at(&trees[1]["a"], "config.json"), "--json"]).json();
    assert_eq!((&e["what"], &e["held"]), (&"blob".into(), &true.into()));
    let listed = e["trees"].as_array().unwrap();
    assert!(listed.iter().any(|t| t["tree"] == *trees[1]["a"] && t["paths"][0] == "config.json"), "{e:#}");
    assert!(listed.iter().any(|t| t["tree"] == *trees[1]["b"]), "the node below has the same file: {e:#}");
    let node = p.run(&["gc", "--explain", "a"]).stdout;
    assert!(node.contains("generation 1 of 2 of a in") && node.contains("generation 2 of 2 of a in"), "{node}");
    let r = p.run(&["gc", "--explain", "nothing"]);
    assert_eq!(r.code, Some(2));
    let conflict = p.run(&["gc", "--explain", "a", "--dry-run"]);
    assert_eq!(conflict.code, Some(2));
}

#[test]
fn a_moved_project_holds_as_before() {
    let p = project();
    generations(&p, 2);
    assert_eq!(p.run(&["pin", "a"]).code, Some(0));
    let moved = p.holder().join("moved");
    fs::rename(&p.dir, &moved).unwrap();
    let run = |args: &[&str]| {
        let o = p.command(args).current_dir(&moved).output().unwrap();
        assert!(o.status.success(), "{}", String::from_utf8_lossy(&o.stderr));
        serde_json::from_slice::<serde_json::Value>(&o.stdout).unwrap()
    };
    let roots = run(&["roots", "--json"]);
    let graph = Path::new(roots["projects"][0]["graph"].as_str().unwrap());
    assert_eq!(graph, moved.canonicalize().unwrap().join("graph.toml"));
    assert!(roots.to_string().contains("\"hold\":\"pin\""), "{roots:#}");
    assert!(run(&["gc", "--json"])["trees"].as_array().unwrap().is_empty());
    assert_eq!(run(&["build", "--json"])["ok"], true);
}

#[test]
fn what_was_imported_is_held_until_it_is_forgotten() {
    let p = project();
    generations(&p, 1);
    let archive = p.holder().join("b.tar.zst");
    let exported = p.run(&["export", "b", "--archive", archive.to_str().unwrap()]);
    assert_eq!(exported.code, Some(0), "{}", exported.stderr);
    let q = Project::new("");
    assert_eq!(q.run(&["import", archive.to_str().unwrap()]).code, Some(0));
    assert!(freed(&gc(&q, &[])).is_empty());
    let roots = q.run(&["roots", "--json"]).json();
    let root = roots["projects"][0].clone();
    assert_eq!(root["imported"], true, "{roots:#}");
    assert!(root["own_bytes"].as_u64().unwrap() > 0);
    assert_eq!(q.run(&["roots", "--forget", root["root"].as_str().unwrap()]).code, Some(0));
    assert!(!freed(&gc(&q, &[])).is_empty());
    assert_eq!(blobs(&q), 0);
}

/// Kills a build just behind the record of the run of `node`.
fn killed_behind_the_record_of(p: &Project, node: &str) {
    let copy = Project::new("");
    copy_tree(&p.dir, &copy.dir);
    let trace = copy.holder().join("trace");
    let traced = copy.command(&["build"]).env("GRAFTWERK_FAILPOINT", format!("trace={}", trace.display())).output();
    assert!(traced.unwrap().status.success());
    let trace = fs::read_to_string(trace).unwrap();
    let records: Vec<usize> = trace
        .lines()
        .enumerate()
        .filter(|(_, l)| l.starts_with("rename ") && l.contains("/runs/"))
        .map(|(i, _)| i)
        .collect();
    // One node is built after the other.
    let behind = records[usize::from(node == "b")] + 2;
    let o = p.command(&["build"]).env("GRAFTWERK_FAILPOINT", format!("kill@{behind}")).output().unwrap();
    assert!(o.status.code().is_none(), "it was not killed: {}", String::from_utf8_lossy(&o.stderr));
}

fn unended(p: &Project) -> usize {
    files(&p.path("store/roots")).keys().filter(|f| f.to_string_lossy().starts_with("build-")).count()
}

#[test]
fn what_a_killed_build_has_recorded_is_held_until_the_next_build_ends_and_by_its_roots_then() {
    for before in [0, 2] {
        let p = project();
        generations(&p, before);
        if before > 0 {
            p.edit("graph.toml", &format!("\"/n\" = {}", before - 1), "\"/n\" = 70");
        }
        killed_behind_the_record_of(&p, "a");
        assert_eq!(unended(&p), 1);
        let before_gc = blobs(&p);
        assert!(freed(&gc(&p, &["--keep", "1"])).iter().all(|t| !t.is_empty()));
        let json = p.run(&["roots", "--json"]).json();
        let held = json["others"].as_array().unwrap().iter().find(|h| h["hold"] == "build").unwrap().clone();
        assert_eq!(held["name"], "a", "{json:#}");
        let tree = held["tree"].as_str().unwrap().to_owned();
        let explained = p.run(&["gc", "--explain", &tree]);
        assert!(explained.stdout.contains("has not ended"), "{}", explained.stdout);
        assert!(before > 0 || blobs(&p) == before_gc);
        assert_eq!(p.run(&["verify"]).code, Some(0));
        // Another graph by then: last night's result stays, as an older generation.
        let graph = p.read("graph.toml");
        p.write("graph.toml", graph.replace("\"/n\" = 70", "\"/n\" = 71").replace("\"/n\" = 0 ", "\"/n\" = 71 "));
        p.build();
        assert_eq!(unended(&p), 0);
        assert!(freed(&gc(&p, &[])).is_empty());
        p.write("graph.toml", graph);
        assert_eq!(p.built(), ["b"], "what the killed build made is reused");
        assert_eq!(p.trees()["a"], tree);
        // From here on it follows the rules of all.
        p.edit("graph.toml", if before > 0 { "\"/n\" = 70" } else { "\"/n\" = 0 " }, "\"/n\" = 72 ");
        p.build();
        assert!(freed(&gc(&p, &["--keep", "1"])).contains(&tree));
        store_check::check(&p.path("store"));
    }
}

#[test]
fn a_killed_build_of_a_project_that_is_gone_is_let_go_of_by_its_graph() {
    let p = project();
    killed_behind_the_record_of(&p, "a");
    assert!(freed(&gc(&p, &[])).is_empty());
    let graph = p.path("graph.toml").canonicalize().unwrap();
    let r = p.run(&["roots", "--forget", graph.to_str().unwrap()]);
    assert_eq!(r.code, Some(0), "{}", r.stderr);
    assert_eq!(unended(&p), 0);
    assert_eq!(freed(&gc(&p, &[])).len(), 1);
}

#[test]
fn what_a_killed_build_wrote_down_stops_a_collector_where_it_does_not_read() {
    let p = project();
    killed_behind_the_record_of(&p, "b");
    let file = files(&p.path("store/roots")).into_keys().next().unwrap();
    let file = p.path("store/roots").join(file);
    let mut bytes = fs::read(&file).unwrap();
    bytes[100] ^= 1;
    fs::write(&file, bytes).unwrap();
    let before = state(&p);
    let r = p.run(&["gc"]);
    assert_eq!(r.code, Some(3), "{}", r.stderr);
    assert!(r.stderr.contains("build-"), "{}", r.stderr);
    assert_eq!(state(&p), before);
    assert_eq!(p.run(&["repair"]).code, Some(0));
    assert!(freed(&gc(&p, &[])).is_empty(), "what it named is held by what stands in for it");
}

/// What `verify` says in one of its lists, by path (without its slashes).
fn verified(p: &Project, list: &str, code: i32) -> Vec<(String, String)> {
    let r = p.run(&["verify", "--json"]);
    assert_eq!(r.code, Some(code), "{}", r.stdout);
    let json = r.json();
    let lines = json[list].as_array().unwrap().iter();
    lines.map(|f| (f["path"].as_str().unwrap().replace('/', ""), f["what"].as_str().unwrap().to_owned())).collect()
}

fn of<'l>(lines: &'l [(String, String)], tree: &str) -> &'l str {
    let tree = tree.trim_start_matches("b3:");
    &lines.iter().find(|l| l.0.ends_with(tree)).unwrap_or_else(|| panic!("{tree}: {lines:#?}")).1
}

fn gc_log(p: &Project) -> PathBuf {
    let logs = fs::read_dir(p.path("store/logs")).unwrap().map(|e| e.unwrap().path());
    logs.filter(|l| l.file_name().unwrap().to_string_lossy().starts_with("gc-")).max().unwrap()
}

/// Removes the file of a tree that is its own, from the store and from its view.
fn lose(p: &Project, tree: &str) -> PathBuf {
    let blob = Digest::of(&fs::read(view(p, tree).join("config.json")).unwrap()).hex();
    let file = p.path(&format!("store/blobs/{}/{}", &blob[..2], &blob[2..]));
    fs::remove_file(&file).unwrap();
    for view in fs::read_dir(p.path("store/artifacts")).unwrap().map(|e| e.unwrap().path()) {
        if fs::read(view.join("config.json")).is_ok_and(|bytes| Digest::of(&bytes).hex() == blob) {
            fs::remove_dir_all(view).unwrap();
        }
    }
    file
}

#[test]
fn a_generation_that_is_kept_and_was_lost_is_damage_and_one_that_was_collected_is_none_whatever_became_of_the_log() {
    let p = project();
    let trees = generations(&p, 7);
    assert!(!freed(&gc(&p, &["--keep", "4"])).is_empty());
    let lines = verified(&p, "collected", 0);
    for old in [&trees[0], &trees[1], &trees[2]] {
        assert!(of(&lines, &old["a"]).contains("collected 2"), "{lines:#?}");
    }
    // A file of the third generation, which is held, vanishes.
    let file = lose(&p, &trees[4]["a"]);
    let lines = verified(&p, "missing", 3);
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert_eq!(lines[0].0, file.canonicalize().unwrap_or(file).to_string_lossy().replace('/', ""));
    // Without its log less is known of what was collected, and nothing is taken for what it is not.
    fs::remove_dir_all(p.path("store/logs")).unwrap();
    assert_eq!(verified(&p, "missing", 3), lines);
    assert!(of(&verified(&p, "collected", 3), &trees[0]["a"]).contains("nobody holds it"));
    // It is given up, and from then on known to be gone; once it is made again and lost again, that is damage again.
    let repair = p.run(&["repair"]);
    assert_eq!(repair.code, Some(1), "{}\n{}", repair.stdout, repair.stderr);
    assert!(repair.stdout.contains("only older generations had it"), "{}", repair.stdout);
    assert!(verified(&p, "collected", 0).iter().any(|l| l.1.contains("not coming back")));
    p.edit("graph.toml", "\"/n\" = 6", "\"/n\" = 4");
    p.build();
    assert_eq!(p.trees()["a"], trees[4]["a"]);
    assert!(verified(&p, "missing", 0).is_empty());
    lose(&p, &trees[4]["a"]);
    assert_eq!(verified(&p, "missing", 3).len(), 1);
}

#[test]
fn what_is_freed_leaves_the_roots_and_what_is_kept_stays_in_them() {
    let p = project();
    let trees = generations(&p, 7);
    let named = || -> Vec<String> {
        let roots = p.run(&["roots", "--json"]).json();
        let holds = roots["projects"][0]["holds"].as_array().unwrap().clone();
        let ours = holds.iter().filter(|h| h["hold"] == "generation" && h["name"] == "a");
        ours.map(|h| h["tree"].as_str().unwrap().to_owned()).collect()
    };
    let newest = |n: usize| -> Vec<String> { trees.iter().rev().take(n).map(|t| t["a"].clone()).collect() };
    gc(&p, &[]);
    assert_eq!(named(), newest(5));
    // A budget that everything fits into frees nothing, and so nothing is let go of.
    gc(&p, &["--keep", "1", "--max-size", "1T"]);
    assert_eq!(named(), newest(5));
    // What something else holds stays named.
    symlink(view(&p, &trees[3]["a"]), p.path("out/old")).unwrap();
    gc(&p, &["--keep", "2"]);
    assert_eq!(named(), [newest(2), vec![trees[3]["a"].clone()]].concat());
    fs::remove_file(p.path("out/old")).unwrap();
    gc(&p, &["--keep", "2"]);
    assert_eq!(named(), newest(2));
    assert_eq!(p.built(), [""; 0]);
    assert!(verified(&p, "missing", 0).is_empty());
}

#[test]
fn a_damaged_gc_log_is_named_set_aside_and_hides_nothing() {
    let p = project();
    let trees = generations(&p, 2);
    gc(&p, &["--keep", "1"]);
    let log = gc_log(&p);
    let good = fs::read(&log).unwrap();
    let mut flipped = good.clone();
    flipped[60] ^= 1;
    let mut edited = String::from_utf8(good.clone()).unwrap();
    edited.insert_str(edited.find('\n').unwrap() + 1, &format!("{}\n", trees[1]["a"]));
    for bad in
        [flipped, edited.into_bytes(), good[..good.len() / 2].to_vec(), good[..good.len() - 1].to_vec(), Vec::new()]
    {
        fs::remove_file(&log).unwrap();
        fs::write(&log, bad).unwrap();
        let lines = verified(&p, "changed", 3);
        assert_eq!(lines.len(), 1, "{lines:#?}");
        assert!(lines[0].0.contains("storelogsgc-"), "{lines:#?}");
        // What it says is believed by nobody: this tree is there, and would be missed.
        assert_eq!(p.built(), [""; 0]);
        // It keeps no collector from its work, and a repair puts it aside.
        gc(&p, &["--dry-run"]);
        let repair = p.run(&["repair", "--json"]);
        assert_eq!(repair.code, Some(0), "{}\n{}", repair.stdout, repair.stderr);
        assert_eq!(repair.json()["repairs"][0]["outcome"], "set_aside", "{}", repair.stdout);
        assert!(!log.exists() && verified(&p, "changed", 0).is_empty());
        fs::write(&log, &good).unwrap();
    }
    assert!(of(&verified(&p, "collected", 0), &trees[0]["a"]).contains("collected 2"));
}

#[test]
fn an_intermediate_that_was_collected_and_is_not_needed_is_no_damage() {
    let p = project();
    p.edit("graph.toml", r#"set = { "other.json" = { "/n" = 100 } }"#, r#"drop = ["config.json"]"#);
    let trees = generations(&p, 1);
    fs::create_dir(p.path("store/seats")).unwrap();
    symlink(view(&p, &trees[0]["b"]), p.path("store/seats/b")).unwrap();
    assert_eq!(p.run(&["roots", "--forget", "graph.toml"]).code, Some(0));
    assert!(freed(&gc(&p, &[])).contains(&trees[0]["a"]));
    // It is taken as known, for b needs no byte of it.
    assert_eq!(p.run(&["build", "b", "--json"]).nodes("built"), [""; 0]);
    assert!(verified(&p, "missing", 0).is_empty());
    assert_eq!(p.built(), ["a"]);
}
