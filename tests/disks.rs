//! Disks that are full, broken, or can't do what others can: told with the place, nothing half-made is kept, and the next
//! run goes on unaided.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod common;
mod harness;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use common::{GRAFTWERK, Project, files, store_check};
use harness::{Fault, Prepared, broken_off, each, long, model, prepare_all, spread};

/// Failing calls in CI, over all scenarios; `GRAFTWERK_FAULTS=N` asks for more, `GRAFTWERK_LONG=1` for all.
const FAULTS: u64 = 60;

#[test]
fn a_call_that_fails_is_told_with_its_place_and_the_next_run_goes_on() {
    let scenarios = prepare_all();
    let wanted = std::env::var("GRAFTWERK_FAULTS").ok().and_then(|n| n.parse().ok());
    let all = wanted.is_none() && long();
    let each_kind = if all { u64::MAX } else { wanted.unwrap_or(FAULTS).div_ceil(3 * scenarios.len() as u64) };
    let mut work: Vec<(&Prepared, Fault)> = Vec::new();
    for (n, s) in scenarios.iter().enumerate() {
        for (k, fault) in [Fault::Eio as fn(u64) -> Fault, Fault::Enospc, Fault::Full].into_iter().enumerate() {
            // A disk that is full from some moment on is like the next such moment.
            let wanted = if all && k == 2 { 25 } else { each_kind };
            work.extend(spread(s.calls, wanted, (3 * n + k) as u64).into_iter().map(|at| (s, fault(at))));
        }
    }
    let met: u64 = each(work.len(), |i| u64::from(broken_off(work[i].0, work[i].1))).iter().sum();
    println!("{} failing calls, {met} of which failed the command", work.len());
    // The index, a lock file's text and what is swept are not needed for the result.
    assert!(met * 3 >= work.len() as u64, "only {met} of {} failing calls were met", work.len());
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs shell lines in a mount namespace of their own, as root of it, in the project's folder.
fn with_mounts(p: &Project, script: &str) -> Output {
    let mut c = Command::new("unshare");
    c.arg(if is_root() { "-m" } else { "-rm" }).args(["sh", "-c", script]);
    c.env("GRAFTWERK", GRAFTWERK).env_remove("GRAFTWERK_FAILPOINT").current_dir(&p.dir).stdin(Stdio::null());
    c.output().unwrap()
}

/// A graft that needs 100 kB.
fn heavy() -> Project {
    let p = model::project();
    model::shard(&p.path("base/model.safetensors"), &[("mtp.fc.weight", [500, 100])]);
    p
}

#[test]
fn a_graft_that_needs_100_kb_on_a_disk_of_64_is_not_begun_and_is_built_once_there_is_room() {
    let p = Project::in_memory(
        "[source]\nbase = { checkpoint = \"base\" }\nfinetune = { checkpoint = \"finetune\" }\n\
         [node.graft]\nkind = \"graft\"\ninputs = { into = \"finetune\", from = \"base\" }\ntensors = [\"mtp.*\"]\n",
    );
    model::shard(&p.path("base/model.safetensors"), &[("mtp.fc.weight", [500, 100])]);
    model::shard(&p.path("finetune/model.safetensors"), &[("model.norm.weight", [1, 32])]);
    // Full, then with room and no cleaning.
    let script = "mkdir -p store && mount -t tmpfs -o size=64k tmpfs store || exit 99
        \"$GRAFTWERK\" build graft >&2; echo \"code $?\"
        find store/artifacts store/blobs -mindepth 1 | wc -l
        mount -o remount,size=4m store || exit 99
        \"$GRAFTWERK\" build graft >&2; echo \"code $?\"
        \"$GRAFTWERK\" build >&2; echo \"code $?\"
        ls -A store/tmp | wc -l";
    let o = with_mounts(&p, script);
    let (said, answers) = (String::from_utf8_lossy(&o.stderr), String::from_utf8_lossy(&o.stdout));
    assert_ne!(o.status.code(), Some(99), "{said}");
    assert_eq!(answers.split_whitespace().collect::<Vec<_>>().join(" "), "code 1 0 code 0 code 0 0", "{said}");
    let store = p.path("store").canonicalize().unwrap();
    let short = said.lines().find(|l| l.contains("bytes in")).unwrap_or_else(|| panic!("no needed bytes: {said}"));
    assert!(short.contains(&store.display().to_string()) && short.contains("are free there"), "{short}");
    let needed = short.split("needs ").nth(1).unwrap().split(' ').next().unwrap().parse::<u64>().unwrap();
    assert!((100_000..110_000).contains(&needed), "{short}");
}

#[test]
fn room_that_vanishes_while_a_step_writes_is_told_with_the_file_and_its_bytes() {
    let p = heavy();
    // Room for the estimate, and none for the writing.
    let trace = p.holder().join("trace");
    let plain = harness::copy_of(&p);
    let rule = format!("trace={}", trace.display());
    assert!(plain.command(&["build", "graft"]).env("GRAFTWERK_FAILPOINT", rule).status().unwrap().success());
    let trace = fs::read_to_string(trace).unwrap();
    let at = trace.lines().position(|l| l.starts_with("copy ") && l.contains("model-graft")).unwrap() + 1;
    let o = p.command(&["build", "graft"]).env("GRAFTWERK_FAILPOINT", format!("enospc@{at}+")).output().unwrap();
    let said = String::from_utf8_lossy(&o.stderr);
    assert_eq!(o.status.code(), Some(1), "{said}");
    assert!(said.contains("model-graft.safetensors (100") && said.contains("No space left"), "{said}");
    assert!(said.contains("bytes are free"), "{said}");
    store_check::check(&p.path("store"));
    p.build();
}

#[test]
fn a_step_that_needs_more_than_there_is_is_not_begun_whatever_its_kind() {
    let p = model::project();
    p.build();
    p.edit("scripts/step.sh", "echo made", "echo remade");
    for (node, free) in [("step", 20), ("graft", 1000), ("quant", 500), ("splice", 900), ("seat", 2)] {
        if node != "step" {
            fs::remove_dir_all(p.path("store")).unwrap();
        }
        let needed = ["graft", "quant", "splice", "edit", "check"];
        for above in needed.iter().take_while(|n| **n != node).filter(|_| node != "step") {
            assert_eq!(p.run(&["build", above]).code, Some(0));
        }
        let short = p.command(&["build", node]).env("GRAFTWERK_FAILPOINT", format!("free={free}")).output().unwrap();
        let said = String::from_utf8_lossy(&short.stderr);
        assert_eq!(short.status.code(), Some(1), "{node}: {said}");
        assert!(said.contains(&format!("and {free} are free there: it was not begun")), "{node}: {said}");
        assert_eq!(p.run(&["build", node]).code, Some(0), "{node}");
    }
}

#[test]
fn a_plan_says_how_much_room_each_step_needs() {
    let p = heavy();
    let plan = p.run(&["plan", "--json"]);
    let space = &plan.step("graft")["space"];
    assert_eq!(space["copies"], 100_000);
    assert!((100..2000).contains(&space["writes"].as_u64().unwrap()), "{space}");
    assert!(plan.step("quant")["space"].is_null(), "its input is not known yet");
    let text = p.run(&["plan"]).stdout;
    assert!(text.contains("copies 97.7 KiB"), "{text}");
    let graft = p.run(&["build", "graft"]);
    assert_eq!(graft.code, Some(0), "{}", graft.stderr);
    let new = fs::metadata(p.path("out/graft/model-graft.safetensors")).unwrap().len();
    assert_eq!(space["writes"].as_u64().unwrap() + 100_000, new, "the estimate is what is written");
}

#[test]
fn a_file_system_without_hard_links_and_clones_gives_the_same_trees_and_views_of_copies() {
    let reference = model::project();
    reference.build();
    let p = model::project();
    let deny = |args: &[&str]| {
        let o = p.command(args).env("GRAFTWERK_FAILPOINT", "deny=link,deny=clone").output().unwrap();
        assert!(o.status.success(), "{args:?}: {}", String::from_utf8_lossy(&o.stderr));
        String::from_utf8(o.stdout).unwrap()
    };
    deny(&["build"]);
    assert_eq!(p.trees(), reference.trees());
    store_check::check(&p.path("store"));
    let compose = p.path("out/seat/compose.yaml");
    assert_eq!(fs::metadata(&compose).unwrap().nlink(), 1);
    // They count as right, and are not made again each time.
    let before = fs::metadata(&compose).unwrap().ino();
    deny(&["build"]);
    deny(&["path", "seat"]);
    assert_eq!(fs::metadata(&compose).unwrap().ino(), before);
}

#[test]
fn temporary_files_on_another_file_system_change_nothing() {
    let p = Project::below(&std::env::temp_dir(), "");
    harness::copy_into(&model::project(), &p);
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    let o = p.command(&["build"]).env("TMPDIR", elsewhere.path()).output().unwrap();
    assert!(o.status.success(), "{}", String::from_utf8_lossy(&o.stderr));
    store_check::check(&p.path("store"));
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

const COPY: &str = "[source]\nm = { folder = \"m\" }\n[node.copy]\nkind = \"edit\"\ninputs.model = \"m\"\n\
                    set.\"c.json\" = { \"/n\" = 1 }\n";

#[test]
fn two_names_that_differ_by_case_only_are_refused_by_name_where_folders_do_not_tell_them_apart() {
    let p = Project::new(COPY);
    p.write("m/c.json", "{}");
    for (one, two) in [("Read.me", "read.ME"), ("a/x", "A/y")] {
        p.write(&format!("m/{one}"), "one");
        p.write(&format!("m/{two}"), "two");
        let o = p.command(&["build"]).env("GRAFTWERK_FAILPOINT", "fold").output().unwrap();
        let said = String::from_utf8_lossy(&o.stderr);
        assert_eq!(o.status.code(), Some(1), "{said}");
        let (one, two) = (one.split('/').next().unwrap(), two.split('/').next().unwrap());
        assert!(said.contains(one) && said.contains(two) && said.contains("upper and lower case"), "{said}");
        store_check::check(&p.path("store"));
        // Where they are told apart, both are there.
        p.build();
        assert!(p.path("out/copy").join(one).exists() && p.path("out/copy").join(two).exists());
        fs::remove_dir_all(p.path("m")).unwrap();
        fs::remove_dir_all(p.path("store/artifacts")).unwrap();
        p.write("m/c.json", "{}");
    }
}

#[test]
fn names_of_255_bytes_arrive_in_the_view() {
    let p = Project::new(COPY);
    p.write("m/c.json", "{}");
    let (flat, deep) = ("n".repeat(255), format!("{}/{}", "d".repeat(255), "é".repeat(127)));
    p.write(&format!("m/{flat}"), "flat");
    p.write(&format!("m/{deep}"), "deep");
    p.build();
    assert_eq!(p.read(&format!("out/copy/{flat}")), "flat");
    assert_eq!(p.read(&format!("out/copy/{deep}")), "deep");
    assert_eq!(p.built(), [""; 0]);
    store_check::check(&p.path("store"));
}

#[test]
fn a_folder_of_very_many_files_is_built_and_then_fresh() {
    let count = if long() { 100_000 } else { 5_000 };
    let p = Project::in_memory(COPY);
    p.write("m/c.json", "{}");
    for i in 0..count {
        let folder = p.path(&format!("m/{:03}", i % 997));
        if i < 997 {
            fs::create_dir_all(&folder).unwrap();
        }
        fs::write(folder.join(format!("{i}.txt")), i.to_string()).unwrap();
    }
    assert_eq!(p.built(), ["copy"]);
    assert_eq!(p.built(), [""; 0]);
    let view = p.node_path("copy");
    assert_eq!(files(&view).len(), count + 1);
}

#[test]
fn clocks_that_were_wrong_change_nothing() {
    let p = model::project();
    let set = |file: &str, time: SystemTime| {
        fs::File::options().write(true).open(p.path(file)).unwrap().set_modified(time).unwrap();
    };
    let year = Duration::from_secs(365 * 86_400);
    set("finetune/config.json", SystemTime::now() + 80 * year);
    set("finetune/tokenizer.json", SystemTime::UNIX_EPOCH - 10 * year);
    set("calib.jsonl", SystemTime::UNIX_EPOCH);
    p.build();
    let trees = p.trees();
    assert_eq!(p.built(), [""; 0]);
    // Other times, the same bytes.
    for file in ["finetune/config.json", "finetune/tokenizer.json", "calib.jsonl", "base/model.safetensors"] {
        set(file, SystemTime::now() - year);
    }
    assert_eq!(p.built(), [""; 0]);
    // Records from a day that has not come yet: which run is the earliest goes by number.
    p.edit("scripts/step.sh", "echo made", "echo remade");
    let ahead = "2099-01-01T00:00:00Z";
    for file in files(&p.path("store/runs")).into_keys().map(|f| p.path("store/runs").join(f)) {
        let mut run: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        run["started"] = ahead.into();
        fs::remove_file(&file).unwrap();
        fs::write(&file, harness::sealed(&run)).unwrap();
    }
    assert_eq!(p.built(), ["step"]);
    p.edit("scripts/step.sh", "echo remade", "echo made");
    assert_eq!(p.built(), [""; 0]);
    assert_eq!(p.trees(), trees);
    store_check::check(&p.path("store"));
}
