//! The demo at the repository's root, built by the real binary; then changed in one place at a time, each time with
//! exactly the steps that must run.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs;

use common::{Project, files};

const ALL: [&str; 13] = [
    "check-a",
    "check-b",
    "finetune-b",
    "graft-a",
    "graft-b",
    "model-a",
    "model-b",
    "quant-a",
    "quant-b",
    "seat-a",
    "seat-b",
    "splice-a",
    "splice-b",
];

#[test]
fn the_first_build_does_what_both_finetunes_share_once_and_the_second_does_nothing() {
    let p = Project::demo();
    let first = p.build();
    assert_eq!(first.actions().into_keys().collect::<Vec<_>>(), ALL);
    assert_eq!(first.nodes("fresh"), ["graft-b", "quant-b", "splice-b"]);
    assert_eq!(first.step("graft-a")["tree"], first.step("graft-b")["tree"]);
    assert_eq!(first.step("quant-a")["tree"], first.step("quant-b")["tree"]);
    let second = p.build();
    assert_eq!(second.nodes("fresh"), ALL);
    let said = p.run(&["build"]);
    assert_eq!(said.code, Some(0));
    assert!(
        said.stdout.contains("nothing to do") || said.stderr.contains("nothing to do"),
        "{}{}",
        said.stdout,
        said.stderr
    );
}

#[test]
fn one_byte_of_the_finetune_rebuilds_all_that_is_made_of_it_and_nothing_twice() {
    let p = Project::demo();
    p.build();
    p.flip("demo/finetune/model-00001-of-00002.safetensors", 400_000);
    assert_eq!(
        p.built(),
        [
            "check-a",
            "check-b",
            "finetune-b",
            "graft-a",
            "model-a",
            "model-b",
            "quant-a",
            "seat-a",
            "seat-b",
            "splice-a"
        ]
    );
}

#[test]
fn a_changed_calibration_row_rebuilds_the_checks_of_rows_and_nothing_else() {
    let p = Project::demo();
    p.build();
    p.edit("demo/calib.jsonl", "You are brief.", "You are short.");
    assert_eq!(p.built(), ["check-a", "check-b"]);
}

#[test]
fn an_edited_chat_template_costs_no_graft_no_quant_and_no_splice() {
    let p = Project::demo();
    p.build();
    let text = p.read("demo/terse.jinja");
    p.write("demo/terse.jinja", text + "\n");
    let planned = p.run(&["plan", "--json"]).step("finetune-b")["reasons"][0]["text"].clone();
    assert_eq!(p.built(), ["check-b", "finetune-b", "model-b", "seat-b"]);
    // `why` says afterwards what `plan` said before: old value, new value, and which file.
    let why = p.run(&["why", "finetune-b", "--json"]).json();
    assert_eq!(why["last_reasons"][0]["text"], planned);
    let why = p.run(&["why", "model-b", "--json"]).json();
    assert_eq!(why["last_reasons"][0]["files"], serde_json::json!(["~chat_template.jinja"]));
}

#[test]
fn a_stricter_check_runs_only_the_check() {
    let p = Project::demo();
    p.build();
    p.edit(
        "graph.toml",
        "unchanged.was = [\"mtp.*\", \"model.visual.*\"]",
        "unchanged.was = [\"mtp.*\", \"model.visual.*\", \"lm_head.*\"]",
    );
    assert_eq!(p.built(), ["check-a"]);
}

#[test]
fn comments_order_and_names_in_graph_toml_are_free() {
    let p = Project::demo();
    p.build();
    let text = p.read("graph.toml");
    p.write("graph.toml", format!("# another comment\n{text}\n# and one more\n"));
    assert_eq!(p.built(), [""; 0]);
    p.write("graph.toml", text.replace("graft-a", "transplant"));
    let renamed = p.build();
    assert_eq!(renamed.nodes("built"), [""; 0]);
    assert_eq!(renamed.actions()["transplant"], "fresh");
}

#[test]
fn a_project_moved_to_a_path_with_a_space_is_fresh_and_every_path_opens() {
    let p = Project::demo();
    p.build();
    let before = files(&p.node_path("seat-a"));
    let grafted = files(&p.node_path("graft-a"));
    let moved = p.holder().join("another place é");
    fs::rename(&p.dir, &moved).unwrap();
    let run = |args: &[&str]| {
        let o = std::process::Command::new(common::GRAFTWERK).args(args).current_dir(&moved).output().unwrap();
        assert!(o.status.success(), "{args:?}: {}", String::from_utf8_lossy(&o.stderr));
        String::from_utf8(o.stdout).unwrap()
    };
    for node in ALL {
        let path = run(&["path", node]);
        let path = std::path::PathBuf::from(path.strip_suffix('\n').unwrap());
        assert!(path.starts_with(moved.canonicalize().unwrap()), "{}", path.display());
        let now = files(&path);
        assert!(!now.is_empty());
        if node == "seat-a" {
            assert!(now == before);
        }
        if node == "graft-a" {
            assert!(now == grafted);
        }
        assert!(!files(&moved.join("out").join(node)).is_empty());
    }
    let report: serde_json::Value = serde_json::from_str(&run(&["build", "--json"])).unwrap();
    assert!(report["steps"].as_array().unwrap().iter().all(|s| s["action"] == "fresh"), "{report:#}");
}

#[test]
fn an_output_truncated_in_the_store_is_set_aside_and_made_again_and_nothing_below_it() {
    let p = Project::demo();
    p.build();
    let trees = p.trees();
    let shard = p.node_path("splice-a").join("model-00002-of-00002.safetensors");
    let shard = shard.canonicalize().unwrap();
    let whole = fs::read(&shard).unwrap();
    let f = fs::File::options().write(true).open(&shard).or_else(|_| {
        // Not as root: the owner may make it writable.
        let mut mode = fs::metadata(&shard).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o644);
        fs::set_permissions(&shard, mode).unwrap();
        fs::File::options().write(true).open(&shard)
    });
    f.unwrap().set_len(1000).unwrap();
    let r = p.build();
    assert_eq!(r.nodes("built"), ["splice-a"], "{}", r.stdout);
    assert_eq!(r.step("splice-a")["reasons"][0]["reason"], "output_missing");
    assert!(r.stderr.contains("set aside"), "{}", r.stderr);
    assert_eq!(common::set_aside(&p), 1);
    assert_eq!(p.trees(), trees);
    assert_eq!(fs::read(p.node_path("splice-a").join("model-00002-of-00002.safetensors")).unwrap(), whole);
}

#[test]
fn an_output_touched_in_the_store_is_hashed_and_found_right() {
    let p = Project::demo();
    p.build();
    let file = p.node_path("quant-a").join("config.json").canonicalize().unwrap();
    let f = fs::File::open(&file).unwrap();
    f.set_modified(std::time::SystemTime::now()).unwrap();
    assert_eq!(p.built(), [""; 0]);
}

#[test]
fn a_lost_index_costs_no_run() {
    let p = Project::demo();
    p.build();
    fs::remove_dir_all(p.path("store/index")).unwrap();
    assert_eq!(p.built(), [""; 0]);
    fs::remove_dir_all(p.path("store/artifacts")).unwrap();
    assert_eq!(p.built(), [""; 0]);
    assert!(!files(&p.path("out/seat-b")).is_empty());
}

#[test]
fn the_same_graph_elsewhere_gives_the_same_trees() {
    let (a, b) = (Project::demo(), Project::demo());
    a.build();
    b.build();
    assert_eq!(a.trees(), b.trees());
}

#[test]
fn sources_are_never_written() {
    let p = Project::demo();
    let before = files(&p.path("demo"));
    let times = |p: &Project| {
        let m = fs::metadata(p.path("demo/finetune/model-00001-of-00002.safetensors")).unwrap();
        (m.modified().unwrap(), std::os::unix::fs::MetadataExt::nlink(&m), m.permissions())
    };
    let stat = times(&p);
    p.build();
    assert!(files(&p.path("demo")) == before);
    assert_eq!(times(&p), stat);
}

#[test]
fn a_seat_is_closed_and_outlives_the_sources() {
    let p = Project::demo();
    p.build();
    let seat = p.node_path("seat-a");
    let before = files(&seat);
    assert!(before.contains_key(std::path::Path::new("model/tokenizer.json")), "{:?}", before.keys());
    let mut folders = vec![seat.clone()];
    while let Some(dir) = folders.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            assert!(!kind.is_symlink(), "{} is a link", entry.path().display());
            if kind.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    fs::remove_dir_all(p.path("demo")).unwrap();
    assert_eq!(files(&seat), before);
}
