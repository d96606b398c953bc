//! The graphs that `init` writes: each is built whole with the demo's models in place of the user's.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs;

use common::{Project, copy_tree, repository};

fn project(template: &str) -> Project {
    let p = Project::new("");
    fs::remove_file(p.path("graph.toml")).unwrap();
    let ran = p.run(&["init", template]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for name in ["base", "finetune"] {
        copy_tree(&repository().join("demo").join(name), &p.path(&format!("models/{name}")));
    }
    fs::copy(repository().join("demo/terse.jinja"), p.path("models/terse.jinja")).unwrap();
    p
}

#[test]
fn every_starter_builds_with_models_in_its_folders_and_is_fresh_the_second_time() {
    for template in ["accelerate", "quantise", "family", "replace"] {
        let p = project(template);
        let built = p.built();
        assert!(built.len() >= 3, "{template}: {built:?}");
        assert_eq!(p.built(), [""; 0], "{template}");
    }
}

#[test]
fn what_two_finetunes_of_a_family_share_is_done_once() {
    let p = project("family");
    assert_eq!(p.built(), ["b", "graft-a", "nvfp4-a", "plain-a"]);
}

#[test]
fn a_starter_touches_nothing_that_is_there() {
    let p = Project::new("# mine\n");
    for args in [&["init"][..], &["init", "family", "--json"]] {
        let ran = p.run(args);
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains("is there already; it was not touched"), "{}", ran.stderr);
    }
    assert_eq!(p.read("graph.toml"), "# mine\n");
    let ran = p.run(&["init", "--graph", "sub/other.toml"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(p.read("sub/other.toml").contains("[node.graft]"));
    let names: Vec<_> = fs::read_dir(&p.dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}
