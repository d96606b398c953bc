//! A full disk at any call that writes: told with its place and what to do, nothing half-made is kept, and the next
//! build goes on unaided.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs;

use common::{Project, copy_tree, repository, store_check};

const GRAPH: &str = r#"
[source]
base = { checkpoint = "base" }
finetune = { checkpoint = "finetune" }

[node.graft]
kind = "graft"
inputs = { into = "finetune", from = "base" }
tensors = ["mtp.*"]

[node.slim]
kind = "edit"
inputs.model = "graft"
drop = ["*.jinja"]
"#;

fn project() -> Project {
    let p = Project::new(GRAPH);
    for name in ["base", "finetune"] {
        copy_tree(&repository().join("demo").join(name), &p.path(name));
    }
    p
}

#[test]
fn a_full_disk_is_told_with_its_place_and_the_next_build_goes_on() {
    let reference = project();
    let trace = reference.holder().join("trace");
    let build = |p: &Project, fail: &str| p.command(&["build"]).env("GRAFTWERK_FAILPOINT", fail).output().unwrap();
    assert!(build(&reference, &format!("trace={}", trace.display())).status.success());
    let calls = fs::read_to_string(trace).unwrap().lines().count();
    let trees = reference.trees();
    let mut failed = 0;
    for at in (1..=calls).step_by(calls / 10) {
        let p = project();
        let o = build(&p, &format!("enospc@{at}"));
        let said = String::from_utf8_lossy(&o.stderr);
        // Not every write is needed for the result: the index and the log are not.
        if !o.status.success() {
            failed += 1;
            assert_eq!(o.status.code(), Some(1), "enospc@{at}: {said}");
            assert!(said.contains("No space left on device"), "enospc@{at}: {said}");
            assert!(said.contains("make room on the file system of /"), "enospc@{at}: {said}");
            assert!(said.contains("bytes are free"), "enospc@{at}: {said}");
        }
        store_check::check(&p.path("store"));
        p.build();
        assert_eq!(p.trees(), trees, "after enospc@{at}");
    }
    assert!(failed > 5, "only {failed} builds met a full disk");
}

/// Two generations, of which one may go.
fn with_something_to_free() -> Project {
    let p = project();
    p.write("graph.toml", format!("{GRAPH}set.\"config.json\" = {{ \"/n\" = 0 }}\n"));
    p.build();
    p.edit("graph.toml", "\"/n\" = 0", "\"/n\" = 1");
    p.build();
    p
}

#[test]
fn gc_makes_room_where_no_call_finds_any() {
    let p = with_something_to_free();
    let all = common::files(&p.path("store/blobs")).len();
    let full = |args: &[&str]| p.command(args).env("GRAFTWERK_FAILPOINT", "enospc@1+").output().unwrap();
    let status = full(&["status"]);
    assert_eq!(status.status.code(), Some(0), "{}", String::from_utf8_lossy(&status.stderr));
    p.edit("graph.toml", "\"/n\" = 1", "\"/n\" = 2");
    let build = full(&["build"]);
    let said = String::from_utf8_lossy(&build.stderr);
    assert_eq!(build.status.code(), Some(1), "{said}");
    assert!(said.contains("No space left on device") && said.contains("make room on the file system of /"), "{said}");
    p.edit("graph.toml", "\"/n\" = 2", "\"/n\" = 1");
    let gc = full(&["gc", "--keep", "1", "--json"]);
    let said = String::from_utf8_lossy(&gc.stderr);
    // It has freed what it could. That roots could not be written without it is told, and done by the next one.
    assert_eq!(gc.status.code(), Some(1), "{said}");
    assert!(said.contains("No space left on device") && said.contains("make room on the file system of /"), "{said}");
    assert!(!p.path("store/tmp").read_dir().unwrap().any(|_| true));
    assert!(common::files(&p.path("store/blobs")).len() < all);
    assert_eq!(p.built(), [""; 0]);
    assert_eq!(p.run(&["gc", "--keep", "1"]).code, Some(0));
    assert_eq!(p.run(&["verify"]).code, Some(0));
}

#[test]
fn gc_makes_room_on_a_file_system_that_is_full_to_the_last_block_and_the_last_inode() {
    for options in ["size=16m", "size=16m,nr_inodes=600"] {
        let p = with_something_to_free();
        let root = rustix::process::geteuid().is_root();
        let script = format!(
            "mv store away && mkdir store && mount -t tmpfs -o {options} tmpfs store && cp -a away/. store || exit 99
            i=0; while touch store/failed-$i 2>/dev/null; do i=$((i+1)); [ $i -lt 700 ] || break; done
            dd if=/dev/zero of=store/failed-0 bs=4k 2>/dev/null
            \"$GRAFTWERK\" status >&2; echo \"code $?\"
            \"$GRAFTWERK\" gc --keep 1 --json; echo \"code $?\"
            rm store/failed-*
            \"$GRAFTWERK\" build >&2; echo \"code $?\"
            \"$GRAFTWERK\" verify >&2; echo \"code $?\""
        );
        let mut c = std::process::Command::new("unshare");
        c.arg(if root { "-m" } else { "-rm" }).args(["sh", "-c", &script]);
        let o = c.env("GRAFTWERK", common::GRAFTWERK).env_remove("GRAFTWERK_FAILPOINT").current_dir(&p.dir);
        let o = o.stdin(std::process::Stdio::null()).output().unwrap();
        let (said, answers) = (String::from_utf8_lossy(&o.stderr), String::from_utf8_lossy(&o.stdout));
        assert_ne!(o.status.code(), Some(99), "{said}");
        let codes: Vec<&str> = answers.lines().filter(|l| l.starts_with("code")).collect();
        assert_eq!(codes, ["code 0", "code 0", "code 0", "code 0"], "{options}: {answers}\n{said}");
        assert!(answers.contains("\"slim\""), "{options}: {answers}");
    }
}
