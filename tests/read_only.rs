//! A store that can't be written to: whoever only asks gets an answer, nothing in it changes, and a build says so.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
mod harness;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::{GRAFTWERK, Project};
use harness::model;

const QUESTIONS: [&[&str]; 7] = [
    &["status", "--json"],
    &["plan", "--json"],
    &["why", "quant", "--json"],
    &["show", "step", "--json"],
    &["log", "step", "--json"],
    &["path", "seat"],
    &["build", "--json"],
];

/// Every path below a folder with what a write would change.
fn looks(top: &Path) -> BTreeMap<PathBuf, (u64, i64, i64, u32)> {
    let mut all = BTreeMap::new();
    let mut todo = vec![top.to_owned()];
    while let Some(path) = todo.pop() {
        let m = fs::symlink_metadata(&path).unwrap();
        if m.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
        }
        all.insert(path, (m.ino(), m.mtime(), m.mtime_nsec(), m.mode()));
    }
    all
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs the binary where the store is mounted read-only.
fn mounted(p: &Project, args: &[&str]) -> Output {
    let script = "mount --bind store store && mount -o remount,bind,ro store && exec \"$@\"";
    let mut c = Command::new("unshare");
    c.arg(if is_root() { "-m" } else { "-rm" });
    c.args(["sh", "-c", script, "sh", GRAFTWERK]).args(args).current_dir(&p.dir).stdin(Stdio::null());
    c.env_remove("GRAFTWERK_FAILPOINT").output().unwrap()
}

/// Runs the binary as a user who may read all of the project and write none of it.
fn as_reader(p: &Project, args: &[&str]) -> Output {
    let binary = p.holder().join("graftwerk");
    if !binary.exists() {
        common::copy_program(&binary);
    }
    let mut c = Command::new(binary);
    c.args(args).current_dir(&p.dir).stdin(Stdio::null()).env_remove("GRAFTWERK_FAILPOINT");
    if is_root() {
        c.uid(65534).gid(65534);
    }
    c.output().unwrap()
}

fn close_to_others(p: &Project) {
    fs::set_permissions(p.holder(), fs::Permissions::from_mode(0o755)).unwrap();
    for (path, (_, _, _, mode)) in looks(&p.dir) {
        let folder = path.is_dir() && !path.is_symlink();
        let open = if folder { 0o555 } else { 0o444 };
        if !path.is_symlink() && (folder || mode & 0o444 != 0o444) {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode & 0o7000 | open)).unwrap();
        }
    }
}

fn open_again(p: &Project) {
    for path in looks(&p.dir).into_keys().filter(|p| p.is_dir() && !p.is_symlink()) {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

type Runner = fn(&Project, &[&str]) -> Output;

fn answers_and_writes_nothing(prepare: fn(&Project), run: Runner) {
    let p = model::project();
    p.build();
    prepare(&p);
    let before = looks(&p.path("store"));
    for question in QUESTIONS {
        let o = run(&p, question);
        let said = String::from_utf8_lossy(&o.stderr);
        assert_eq!(o.status.code(), Some(0), "{question:?}: {said}");
        assert!(said.contains("can't be written to"), "{question:?} does not say it: {said}");
        assert!(!o.stdout.is_empty(), "{question:?}");
        assert_eq!(looks(&p.path("store")), before, "{question:?} wrote to the store");
    }
    open_again(&p);
}

#[test]
fn questions_are_answered_where_the_store_is_mounted_read_only() {
    answers_and_writes_nothing(|_| (), mounted);
}

#[test]
fn questions_are_answered_to_a_user_who_may_not_write_to_the_store() {
    answers_and_writes_nothing(close_to_others, as_reader);
}

#[test]
fn what_would_be_built_is_told_and_a_build_says_that_it_can_not_write() {
    let p = model::project();
    p.build();
    p.edit("calib.jsonl", "row 1", "row one");
    p.edit("scripts/step.sh", "echo made", "echo remade");
    let before = looks(&p.path("store"));
    let o = mounted(&p, &["plan", "--json"]);
    let plan: serde_json::Value = serde_json::from_slice(&o.stdout).unwrap();
    let runs: Vec<&str> = plan["steps"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|s| s["action"] == "run")
        .map(|s| s["node"].as_str().unwrap())
        .collect();
    assert_eq!(runs, ["check", "step"], "{plan:#}");
    let why = String::from_utf8(mounted(&p, &["why", "step"]).stdout).unwrap();
    assert!(why.contains("step.sh"), "{why}");
    let o = mounted(&p, &["build"]);
    let said = String::from_utf8_lossy(&o.stderr);
    assert_eq!(o.status.code(), Some(1), "{said}");
    let store = p.path("store").canonicalize().unwrap();
    let error = format!("the store {} can't be written to", store.display());
    assert!(said.contains(&error) && said.contains("mount it for writing"), "{said}");
    assert_eq!(looks(&p.path("store")), before);
    // With room to write, nothing is in the way.
    assert_eq!(p.built(), ["check", "step"]);
}

#[test]
fn a_view_that_is_not_there_is_refused_and_not_made() {
    let p = model::project();
    p.build();
    fs::remove_dir_all(p.path("store/artifacts")).unwrap();
    let o = mounted(&p, &["path", "seat"]);
    let said = String::from_utf8_lossy(&o.stderr);
    assert_eq!(o.status.code(), Some(1), "{said}");
    assert!(said.contains("can't be written to"), "{said}");
}

#[test]
fn sources_that_can_only_be_read_are_built_from() {
    let p = model::project();
    for folder in ["base", "finetune", "scripts"] {
        let name = p.path(folder);
        for file in fs::read_dir(&name).unwrap() {
            fs::set_permissions(file.unwrap().path(), fs::Permissions::from_mode(0o444)).unwrap();
        }
        fs::set_permissions(&name, fs::Permissions::from_mode(0o555)).unwrap();
    }
    let script = "for d in base finetune scripts; do mount --bind $d $d && mount -o remount,bind,ro $d || exit 9; done; exec \"$@\"";
    let mut c = Command::new("unshare");
    c.arg(if is_root() { "-m" } else { "-rm" });
    c.args(["sh", "-c", script, "sh", GRAFTWERK, "build"]).current_dir(&p.dir).stdin(Stdio::null());
    let o = c.output().unwrap();
    assert!(o.status.success(), "{}", String::from_utf8_lossy(&o.stderr));
    assert_eq!(p.built(), [""; 0]);
    open_again(&p);
}
