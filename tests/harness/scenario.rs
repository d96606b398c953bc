//! The scenarios.

use std::fs;

use crate::common::Project;

/// A command that is broken off.
pub struct Scenario {
    /// Its name, for people.
    pub name: &'static str,
    /// What is done before, once.
    pub prepare: fn(&Project),
    /// The command line.
    pub command: &'static [&'static str],
    /// What must hold at the end besides what always must.
    pub holds: fn(&Project),
}

/// Commands that must find nothing wrong once a scenario has gone on.
pub const CLEAN: &[&[&str]] = &[];

const fn of(name: &'static str, prepare: fn(&Project), command: &'static [&'static str]) -> Scenario {
    Scenario { name, prepare, command, holds: |_| () }
}

/// All of them.
pub fn all() -> &'static [Scenario] {
    ALL
}

const ALL: &[Scenario] = &[
    of("everything at once", |_| (), &["build", "-j2"]),
    of("a graft", |_| (), &["build", "graft"]),
    of("a quant", |p| built(p, "graft"), &["build", "quant"]),
    of("a splice", |p| built(p, "quant"), &["build", "splice"]),
    of("an edit", |p| built(p, "splice"), &["build", "edit"]),
    of("a process", |p| built(p, "edit"), &["build", "step"]),
    of("a check", |p| built(p, "edit"), &["build", "check"]),
    of("a seat", |p| built(p, "check"), &["build", "seat"]),
    Scenario {
        name: "a rebuild after a change",
        prepare: |p| {
            p.build();
            p.edit("calib.jsonl", "row 1", "row one");
            // What views link to stays: the view of an old tree would show the new bytes.
            p.edit("graph.toml", "\"/edited\" = true", "\"/edited\" = 2");
        },
        command: &["build"],
        holds: |p| assert!(p.read("out/edit/config.json").contains("\"edited\": 2")),
    },
    of("update", changed, &["update"]),
    Scenario {
        name: "a view",
        prepare: |p| {
            p.build();
            fs::remove_dir_all(p.path("store/artifacts")).unwrap();
        },
        command: &["path", "seat"],
        holds: |p| assert!(p.node_path("seat").join("compose.yaml").is_file()),
    },
    Scenario {
        name: "a pin",
        prepare: |p| drop(p.build()),
        command: &["pin", "step"],
        holds: |p| assert!(p.read("graph.lock").contains("node = \"step\"")),
    },
    of("an export", |p| drop(p.build()), &["export", "edit", "--archive", "closure"]),
    of("an export as a folder", |p| drop(p.build()), &["export", "edit", "folder"]),
    Scenario {
        name: "an import",
        prepare: |p| {
            p.build();
            let r = p.run(&["export", "edit", "--archive", "closure", "--with-inputs"]);
            assert_eq!(r.code, Some(0), "{}", r.stderr);
            fs::remove_dir_all(p.path("store")).unwrap();
        },
        command: &["import", "closure"],
        holds: |p| assert!(p.node_path("edit").join("config.json").is_file()),
    },
];

fn built(p: &Project, node: &str) {
    let r = p.run(&["build", node]);
    assert_eq!(r.code, Some(0), "{}", r.stderr);
}

fn changed(p: &Project) {
    p.build();
    p.edit("calib.jsonl", "row 1", "row one");
}
