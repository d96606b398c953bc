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
