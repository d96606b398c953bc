//! The scenarios.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::common::Project;

/// A command that is broken off.
pub struct Scenario {
    /// Its name, for people.
    pub name: &'static str,
    /// What is done before, once.
    pub prepare: fn(&Project),
    /// The command line.
    pub command: &'static [&'static str],
    /// Whether it begins with a store that is damaged.
    pub damaged: bool,
    /// What is looked at, and made fit, before the same command is run again.
    pub before_again: fn(&Project),
    /// What must hold at the end besides what always must.
    pub holds: fn(&Project),
}

/// Commands that must find nothing wrong once a scenario has gone on.
pub const CLEAN: &[&[&str]] = &[&["verify", "--json"]];

const fn of(name: &'static str, prepare: fn(&Project), command: &'static [&'static str]) -> Scenario {
    Scenario { name, prepare, command, damaged: false, before_again: |_| (), holds: |_| () }
}

/// All of them.
pub fn all() -> &'static [Scenario] {
    ALL
}

// The file in `roots/` of a graph.toml beside its store: of a copied project the path is not known yet.
const ROOTS: &str = "462475ee60eda8264acf5e189b0de97d.json";

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
        holds: |p| assert!(p.read("out/edit/config.json").contains("\"edited\": 2")),
        ..of("a rebuild after a change", edited, &["build"])
    },
    of("update", changed, &["update"]),
    Scenario {
        holds: |p| assert!(p.node_path("seat").join("compose.yaml").is_file()),
        ..of("a view", without_views, &["path", "seat"])
    },
    Scenario {
        holds: |p| assert!(p.read("graph.lock").contains("node = \"step\"")),
        ..of("a pin", all_built, &["pin", "step"])
    },
    of("verify", all_built, &["verify"]),
    Scenario { damaged: true, ..of("a repair", spoilt, &["repair", "--rebuild"]) },
    of("gc", rebuilt, &["gc", "--keep", "1"]),
    Scenario {
        before_again: registered,
        ..of("a project that is forgotten", all_built, &["roots", "--forget", ROOTS])
    },
    Scenario { before_again: whole_folder, ..of("an export", all_built, &["export", "seat", "exported"]) },
    Scenario {
        before_again: whole_archive,
        ..of("an archive", all_built, &["export", "--archive", "exported.tar.zst", "--with-inputs", "seat", "step"])
    },
    Scenario {
        before_again: whole_signature,
        ..of("a signature", keyed, &["attest", "step", "--key", "key.pem", "--out", "step.json"])
    },
    Scenario {
        holds: |p| assert!(p.node_path("edit").join("config.json").is_file()),
        ..of("an import", archived, &["import", "exported.tar.zst"])
    },
];

fn all_built(p: &Project) {
    p.build();
}

// Every node has an older tree.
fn rebuilt(p: &Project) {
    edited(p);
    p.edit("scripts/step.sh", "echo made", "echo remade");
    p.build();
}

fn registered(p: &Project) {
    if fs::read_dir(p.path("store/roots")).unwrap().next().is_none() {
        p.build();
    }
}

// Of every class of files one, cut off.
fn spoilt(p: &Project) {
    p.build();
    for class in ["blobs", "trees", "recipes", "tensors"] {
        let folder = fs::read_dir(p.path("store").join(class)).unwrap().map(|e| e.unwrap().path()).min().unwrap();
        let file = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).min().unwrap();
        let bytes = fs::read(&file).unwrap();
        // In its place, so that its views are spoilt with it.
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    }
}

fn edited(p: &Project) {
    p.build();
    p.edit("calib.jsonl", "row 1", "row one");
    // What views link to stays: the view of an old tree would show the new bytes.
    p.edit("graph.toml", "\"/edited\" = true", "\"/edited\" = 2");
}

fn without_views(p: &Project) {
    p.build();
    fs::remove_dir_all(p.path("store/artifacts")).unwrap();
}

// What is there under its name is whole.
fn whole_folder(p: &Project) {
    if p.path("exported").exists() {
        let r = p.run(&["verify", "exported", "--against", "seat"]);
        assert_eq!(r.code, Some(0), "{}", r.stderr);
        fs::remove_dir_all(p.path("exported")).unwrap();
    }
}

fn whole_archive(p: &Project) {
    if p.path("exported.tar.zst").exists() {
        let r = p.run(&["import", "exported.tar.zst", "--store", "other"]);
        assert_eq!(r.code, Some(0), "{}", r.stderr);
        fs::remove_dir_all(p.path("other")).unwrap();
        fs::remove_file(p.path("exported.tar.zst")).unwrap();
    }
}

// The example of RFC 8410.
const KEYS: [(&str, &str); 2] = [
    ("key.pem", "PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC"),
    ("key.pub", "PUBLIC KEY-----\nMCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE="),
];

fn keyed(p: &Project) {
    p.build();
    for (name, text) in KEYS {
        let label = text.split("-----").next().unwrap();
        p.write(name, format!("-----BEGIN {text}\n-----END {label}-----\n"));
        fs::set_permissions(p.path(name), fs::Permissions::from_mode(0o600)).unwrap();
    }
}

fn whole_signature(p: &Project) {
    if p.path("step.json").exists() {
        let r = p.run(&["verify", "step", "--key", "key.pub", "--signature", "step.json"]);
        assert_eq!(r.code, Some(0), "{}{}", r.stdout, r.stderr);
        fs::remove_file(p.path("step.json")).unwrap();
    }
}

fn archived(p: &Project) {
    p.build();
    let r = p.run(&["export", "--archive", "exported.tar.zst", "--with-inputs", "seat", "step"]);
    assert_eq!(r.code, Some(0), "{}", r.stderr);
    fs::remove_dir_all(p.path("store")).unwrap();
}

fn built(p: &Project, node: &str) {
    let r = p.run(&["build", node]);
    assert_eq!(r.code, Some(0), "{}", r.stderr);
}

fn changed(p: &Project) {
    p.build();
    p.edit("calib.jsonl", "row 1", "row one");
}
