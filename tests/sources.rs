//! Sources through the real binary: what counts as a change, what is refused, what graph.lock says.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use common::{Project, files};

/// A node that takes a folder as it is.
const FOLDER: &str = "[source]\ndata = { folder = \"data\" }\n[node.n]\nkind = \"edit\"\ninputs.model = \"data\"\nset.\"c.json\" = { \"/n\" = 1 }\n";

fn folder() -> Project {
    let p = Project::new(FOLDER);
    p.write("data/c.json", "{\"n\": 0}");
    p.write("data/sub/a.txt", "a");
    p
}

fn set_time(path: &Path, t: SystemTime) {
    fs::File::options().write(true).open(path).unwrap().set_modified(t).unwrap();
}

#[test]
fn times_are_free_and_content_counts_even_behind_an_unchanged_size_and_mtime() {
    let p = folder();
    assert_eq!(p.built(), ["n"]);
    let file = p.path("data/sub/a.txt");
    for t in [SystemTime::now(), SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH + Duration::from_secs(4_102_444_800)] {
        set_time(&file, t);
        assert_eq!(p.built(), [""; 0]);
    }
    let before = fs::metadata(&file).unwrap().modified().unwrap();
    fs::write(&file, "b").unwrap();
    set_time(&file, before);
    assert_eq!(p.built(), ["n"]);
    assert_eq!(fs::read_to_string(p.node_path("n").join("sub/a.txt")).unwrap(), "b");
}

#[test]
fn an_executable_bit_counts_and_other_mode_bits_do_not() {
    let p = folder();
    p.write("data/run.sh", "#!/bin/sh\n");
    fs::set_permissions(p.path("data/run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(p.path("data/cache")).unwrap();
    assert_eq!(p.built(), ["n"]);
    assert!(p.node_path("n").join("cache").is_dir(), "an empty folder is kept");
    fs::set_permissions(p.path("data/run.sh"), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(p.built(), [""; 0]);
    fs::set_permissions(p.path("data/run.sh"), fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(p.built(), ["n"]);
}

#[test]
fn odd_names_are_stored_faithfully() {
    let p = folder();
    let odd: [&[u8]; 7] = [b"a b", b"b ", b"a\nb", b"x\xff", b"-rf", b"#x", &[b'n'; 255]];
    for name in odd {
        fs::write(p.path("data").join(std::ffi::OsStr::from_bytes(name)), name).unwrap();
    }
    assert_eq!(p.built(), ["n"]);
    let all = files(&p.node_path("n"));
    for name in odd {
        assert_eq!(all[Path::new(std::ffi::OsStr::from_bytes(name))], name);
    }
    assert_eq!(p.built(), [""; 0]);
}

#[test]
fn links_in_a_source_are_followed_and_stated_excludes_are_invisible() {
    let p = folder();
    p.write("elsewhere/blob", "linked");
    symlink("../elsewhere/blob", p.path("data/linked.txt")).unwrap();
    symlink("../elsewhere", p.path("data/dir")).unwrap();
    p.write("data/__pycache__/x.pyc", "1");
    p.write("data/.cache/y", "1");
    assert_eq!(p.built(), ["n"]);
    let all = files(&p.node_path("n"));
    assert_eq!(all[Path::new("linked.txt")], b"linked");
    assert_eq!(all[Path::new("dir/blob")], b"linked");
    assert!(all.keys().all(|k| !k.starts_with("__pycache__") && !k.starts_with(".cache")));
    p.write("data/__pycache__/x.pyc", "2");
    assert_eq!(p.built(), [""; 0]);
    p.write("elsewhere/blob", "changed");
    assert_eq!(p.built(), ["n"]);
}

#[test]
fn a_loop_of_links_a_dangling_one_and_a_pipe_are_refused_by_name() {
    for (what, make) in [
        ("loop", (|d: &Path| symlink(".", d.join("loop")).unwrap()) as fn(&Path)),
        ("gone", |d| symlink("nowhere", d.join("gone")).unwrap()),
        ("self", |d| symlink("self", d.join("self")).unwrap()),
        ("pipe", |d| {
            rustix::fs::mkfifoat(rustix::fs::CWD, d.join("pipe"), rustix::fs::Mode::RUSR).unwrap();
        }),
    ] {
        let p = folder();
        make(&p.path("data"));
        let r = p.run(&["build", "--json"]);
        assert_eq!(r.code, Some(1), "{what}: {}", r.stderr);
        let errors = r.json()["errors"].to_string();
        assert!(errors.contains(what), "{what}: {errors}");
        assert_eq!(r.actions()["n"], "skipped");
    }
}

/// A hub's cache: a snapshot of links into a folder of blobs.
fn hub(p: &Project) -> std::path::PathBuf {
    let repo = p.path("hub/models--o--m");
    let snap = repo.join("snapshots/rev");
    fs::create_dir_all(repo.join("blobs")).unwrap();
    fs::create_dir_all(&snap).unwrap();
    for f in fs::read_dir(common::repository().join("demo/finetune")).unwrap() {
        let f = f.unwrap();
        let name = f.file_name().to_str().unwrap().to_owned();
        fs::copy(f.path(), repo.join("blobs").join(format!("h-{name}"))).unwrap();
        symlink(format!("../../blobs/h-{name}"), snap.join(&name)).unwrap();
    }
    snap
}

const HUB: &str = "[source]\nm = { checkpoint = \"hub/models--o--m/snapshots/rev\" }\n[node.n]\nkind = \"edit\"\ninputs.model = \"m\"\nset.\"config.json\" = { \"/x\" = 1 }\n";

#[test]
fn a_hub_snapshot_of_links_is_taken_and_a_half_filled_one_refused_with_what_is_missing() {
    let p = Project::new(HUB);
    let snap = hub(&p);
    assert_eq!(p.built(), ["n"]);
    let shard = "model-00002-of-00002.safetensors";
    let blob = p.path("hub/models--o--m/blobs").join(format!("h-{shard}"));
    let whole = fs::read(&blob).unwrap();
    let refused = |what: &str| {
        let r = p.run(&["build", "--json"]);
        assert_eq!(r.code, Some(1), "{what}");
        let said = r.json()["errors"].to_string();
        assert!(said.contains(shard), "{what}: {said}");
    };
    fs::rename(&blob, blob.with_extension("incomplete")).unwrap();
    refused("dangling");
    fs::write(&blob, "").unwrap();
    refused("empty");
    fs::write(&blob, &whole[..whole.len() - 1]).unwrap();
    refused("truncated");
    fs::remove_file(snap.join(shard)).unwrap();
    refused("not linked");
    symlink(format!("../../blobs/h-{shard}"), snap.join(shard)).unwrap();
    fs::write(&blob, whole).unwrap();
    assert_eq!(p.built(), [""; 0]);
}

#[test]
fn the_lock_is_written_once_and_locked_refuses_what_it_does_not_say() {
    let p = folder();
    p.build();
    let lock = p.read("graph.lock");
    let time = |p: &Project| fs::metadata(p.path("graph.lock")).unwrap().modified().unwrap();
    let written = time(&p);
    p.build();
    assert_eq!(time(&p), written, "not rewritten when nothing changed");
    p.write("data/sub/a.txt", "changed");
    let r = p.run(&["build", "--locked"]);
    assert_eq!(r.code, Some(2));
    assert!(r.stderr.contains("data") && r.stderr.contains("b3:"), "{}", r.stderr);
    assert_eq!(p.read("graph.lock"), lock);
    let u = p.run(&["update", "data", "--json"]);
    assert_eq!(u.code, Some(0), "{}", u.stderr);
    assert_ne!(p.read("graph.lock"), lock);
    assert_eq!(p.run(&["build", "--locked", "--json"]).nodes("built"), ["n"]);
    p.write("graph.lock", "<<<<<<< ours\n");
    let damaged = p.run(&["build"]);
    assert_eq!(damaged.code, Some(2));
    assert!(damaged.stderr.contains("graph.lock:1"), "{}", damaged.stderr);
    assert_eq!(p.read("graph.lock"), "<<<<<<< ours\n", "never taken for an empty one");
}

#[test]
fn check_content_finds_what_no_stat_shows() {
    let p = folder();
    p.build();
    assert_eq!(p.run(&["build", "--json", "--check-content"]).nodes("fresh"), ["n"]);
    let r = p.run(&["build", "--check-content"]);
    assert!(r.stderr.contains("hashed data"), "{}", r.stderr);
}

#[test]
fn a_pinned_realisation_is_used_and_one_that_is_not_there_is_said() {
    let p = folder();
    p.build();
    let tree = p.trees()["n"].clone();
    let r = p.run(&["pin", "n", "--json"]);
    assert_eq!(r.code, Some(0), "{}", r.stderr);
    assert_eq!(r.json()["tree"], tree.as_str());
    assert!(p.read("graph.lock").contains(&tree));
    assert_eq!(p.built(), [""; 0]);
    let other = p.run(&["pin", "n", "b3:0000", "--json"]);
    assert_ne!(other.code, Some(0));
}

#[test]
fn a_folder_that_is_no_store_is_not_made_one() {
    let p = folder();
    p.write("precious/model.bin", "only copy");
    let r = p.run(&["build", "--store", "precious"]);
    assert_eq!(r.code, Some(3));
    assert_eq!(fs::read_dir(p.path("precious")).unwrap().count(), 1);
    p.write("old/VERSION", "graftwerk store 0\n");
    let r = p.run(&["build", "--store", "old"]);
    assert_eq!(r.code, Some(3));
    assert!(r.stderr.contains("graftwerk store 0"), "{}", r.stderr);
}

#[test]
fn something_of_the_users_at_out_node_is_left_alone() {
    let p = folder();
    p.write("out/n/mine", "mine");
    let r = p.build();
    assert!(r.stderr.contains("out/n"), "{}", r.stderr);
    assert_eq!(p.read("out/n/mine"), "mine");
}

#[test]
fn damaged_records_are_reported_and_never_read_as_empty() {
    let p = folder();
    p.build();
    let damage = |rel: &str| {
        let dir = p.path(rel);
        let sub = fs::read_dir(dir).unwrap().next().unwrap().unwrap().path();
        let file = if sub.is_dir() { fs::read_dir(&sub).unwrap().next().unwrap().unwrap().path() } else { sub };
        let kept = fs::read(&file).unwrap();
        fs::remove_file(&file).unwrap();
        fs::write(&file, "x").unwrap();
        let r = p.run(&["build"]);
        assert_eq!(r.code, Some(3), "{rel}: {}", r.stderr);
        assert!(r.stderr.contains("damaged"), "{rel}: {}", r.stderr);
        fs::write(&file, kept).unwrap();
    };
    damage("store/runs");
    damage("store/roots");
    assert_eq!(p.built(), [""; 0]);
}

#[test]
fn a_lost_listing_is_said_and_its_node_built_again() {
    let p = Project::new(&format!("{FOLDER}\n[node.below]\nkind = \"edit\"\ninputs.model = \"n\"\ndrop = \"sub/\"\n"));
    p.write("data/c.json", "{\"n\": 0}");
    p.write("data/sub/a.txt", "a");
    assert_eq!(p.built(), ["below", "n"]);
    let trees = p.trees();
    for goals in [&["build", "--json"][..], &["build", "below", "--json"]] {
        fs::remove_dir_all(p.path("store/trees")).unwrap();
        let r = p.run(goals);
        assert_eq!(r.code, Some(0), "{}", r.stderr);
        assert_eq!(r.step("n")["reasons"][0]["paths"][0], "its listing", "{}", r.stdout);
        assert_eq!(r.nodes("built"), ["below", "n"]);
        assert_eq!(p.trees(), trees);
    }
}

/// A folder, a step whose output is all its own, and one whose output refers to the folder's files.
const AWAY: &str = r#"
[source]
data = { folder = "drive/data" }

[node.report]
kind = "check"
inputs.model = "data"
files = ["c.json"]

[node.kept]
kind = "edit"
inputs.model = "data"
drop = ["sub/"]
"#;

fn built_and_away() -> Project {
    let p = Project::new(AWAY);
    p.write("drive/data/c.json", "{\"n\": 0}");
    p.write("drive/data/sub/a.txt", "a");
    p.build();
    fs::rename(p.path("drive"), p.path("unmounted")).unwrap();
    p
}

#[test]
fn what_was_built_is_found_though_its_source_is_not_there() {
    let p = built_and_away();
    let lock = p.read("graph.lock");
    let tree = lock.lines().find_map(|l| l.strip_prefix("tree = \"")).unwrap()[..15].to_owned();
    for args in
        [&["path", "report"][..], &["status"], &["export", "report", "copy"], &["why", "report"], &["log", "report"]]
    {
        let r = p.run(args);
        assert_eq!(r.code, Some(0), "{args:?}: {}", r.stderr);
        let notice = format!("data is not there (source `data`); taken as graph.lock has it, {tree}\n");
        assert!(r.stderr.contains(&notice), "{args:?}: {}", r.stderr);
    }
    assert!(p.path("copy/report.json").is_file() && p.node_path("report").join("report.json").is_file());
    assert!(p.run(&["export", "report", "--archive", "report.tar.zst"]).code == Some(0));
    let status = p.run(&["status", "--json"]).json();
    assert_eq!((status["nodes"][1]["state"].as_str(), status.get("errors")), (Some("fresh"), None), "{status:#}");
    assert_eq!(status["away"][0]["source"], "data");
    assert_eq!(p.read("graph.lock"), lock);
    // An empty folder is what the mount point of a drive looks like.
    fs::create_dir_all(p.path("drive")).unwrap();
    assert_eq!(p.run(&["path", "report"]).code, Some(0));

    // What needs the bytes says whose they are; so do commands that would take the source as it is.
    for args in [&["path", "kept"][..], &["build"], &["update"], &["plan"]] {
        let r = p.run(args);
        assert_eq!(r.code, Some(1), "{args:?}: {}", r.stderr);
        assert!(
            r.stderr.contains("error: ") && r.stderr.contains("is not there (source `data`)\n"),
            "{args:?}: {}",
            r.stderr
        );
    }
    fs::remove_dir(p.path("drive")).unwrap();
    fs::rename(p.path("unmounted"), p.path("drive")).unwrap();
    assert_eq!(p.built(), [""; 0]);
}

#[test]
fn a_source_that_the_lock_has_elsewhere_is_not_taken_for_the_one_that_is_named() {
    let p = built_and_away();
    p.edit("graph.toml", "drive/data", "drive/dta");
    for args in [&["path", "report"][..], &["status"]] {
        let r = p.run(args);
        assert_eq!(r.code, Some(1), "{args:?}: {}", r.stderr);
        assert!(r.stderr.contains("drive/dta is not there (source `data`)\n"), "{args:?}: {}", r.stderr);
    }
}

#[test]
fn an_empty_mount_point_is_a_checkpoint_that_is_not_there() {
    let p = Project::new("[source]\nm = { checkpoint = \"mnt\" }\n[node.n]\nkind = \"check\"\ninputs.model = \"m\"\n");
    common::copy_tree(&common::repository().join("demo/finetune"), &p.path("mnt"));
    p.build();
    fs::rename(p.path("mnt"), p.path("unmounted")).unwrap();
    fs::create_dir(p.path("mnt")).unwrap();
    let r = p.run(&["path", "n"]);
    assert_eq!(r.code, Some(0), "{}", r.stderr);
    assert!(r.stderr.contains("taken as graph.lock has it"), "{}", r.stderr);
}

#[test]
fn every_source_that_is_not_there_is_named() {
    let p = Project::new(
        "[source]\na = { file = \"x\" }\nb = { file = \"y\" }\n[node.n]\nkind = \"run\"\ninputs = { a = \"a\", b = \"b\" }\nargv = [\"true\"]\n",
    );
    assert_eq!(p.run(&["plan"]).stdout, "blocked  n  run  blocked by a, b\n");
    assert!(p.run(&["build"]).stderr.contains(" skipped n: a, b can't be taken\n"));
    for args in [&["plan"][..], &["path", "n"], &["build"], &["update"], &["status"]] {
        let r = p.run(args);
        assert_eq!(r.code, Some(1), "{args:?}: {}", r.stderr);
        for source in ["x is not there (source `a`)", "y is not there (source `b`)"] {
            assert!(r.stderr.contains(source), "{args:?}: {}", r.stderr);
        }
    }
}
