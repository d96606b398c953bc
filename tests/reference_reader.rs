//! What graftwerk writes opens with the reference safetensors library, and holds, tensor by tensor, the types, shapes and
//! bytes that were recorded independently of it (tests/data/lineage-trained).
//!
//! `scripts/test` makes the Python environment that these tests need.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use common::{Project, copy_tree, repository};
use serde_json::Value;

/// Name → [dtype, shape, BLAKE3].
type Tensors = BTreeMap<String, Value>;

fn read(folder: &Path) -> Tensors {
    let python = repository().join("target/venv/bin/python");
    let done = Command::new(&python)
        .arg(repository().join("tests/data/read_checkpoint.py"))
        .arg(folder)
        .output()
        .unwrap_or_else(|e| panic!("{}: {e}; scripts/test makes it", python.display()));
    assert!(done.status.success(), "{}:\n{}", folder.display(), String::from_utf8_lossy(&done.stderr));
    serde_json::from_slice(&done.stdout).unwrap()
}

fn facts(of: &str) -> Tensors {
    let text = std::fs::read(repository().join("tests/data/lineage-trained/tensors.json")).unwrap();
    let all: BTreeMap<String, Tensors> = serde_json::from_slice(&text).unwrap();
    all[of].clone()
}

fn head(tensors: &Tensors) -> Tensors {
    tensors.iter().filter(|(n, _)| n.starts_with("mtp.")).map(|(n, t)| (n.clone(), t.clone())).collect()
}

/// Fails with the names that differ, not with two walls of text.
fn same(found: &Tensors, wanted: &Tensors) {
    let differ: Vec<String> = found
        .keys()
        .chain(wanted.keys())
        .filter(|n| found.get(*n) != wanted.get(*n))
        .map(|n| format!("{n}: {:?}, wanted {:?}", found.get(n), wanted.get(n)))
        .collect();
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}

#[test]
fn the_grafted_folder_of_the_demo_holds_exactly_the_recorded_tensors() {
    let p = Project::demo();
    p.build();
    let grafted = read(&p.node_path("graft-a"));
    assert_eq!(grafted.len(), 104);
    same(&grafted, &facts("grafted"));
}

#[test]
fn the_spliced_and_the_finished_folder_of_the_demo_open_and_hold_the_base_s_head() {
    let p = Project::demo();
    p.build();
    let grafted = facts("grafted");
    for node in ["splice-a", "model-a"] {
        let found = read(&p.node_path(node));
        same(&head(&found), &head(&grafted));
        assert_eq!(head(&found).len(), 15);
        // What the quant left alone is what went in.
        let kept: Tensors = found.into_iter().filter(|(n, _)| grafted.contains_key(n)).collect();
        assert!(kept.keys().any(|n| n.starts_with("model.visual.")));
        let wanted = kept.keys().map(|n| (n.clone(), grafted[n].clone())).collect();
        same(&kept, &wanted);
    }
}

#[test]
fn a_spliced_modelopt_quant_holds_exactly_the_recorded_tensors() {
    let p = Project::new(
        r#"
        [source]
        base = { checkpoint = "base" }
        quant = { checkpoint = "quant" }

        [node.spliced]
        kind = "splice"
        inputs.into = "quant"
        inputs.from = { node = "base", uses = ["@weights"] }
        tensors = ["mtp.*"]
        "#,
    );
    copy_tree(&repository().join("demo/base"), &p.path("base"));
    copy_tree(&repository().join("tests/data/lineage-trained/quant-modelopt"), &p.path("quant"));
    p.build();
    let spliced = read(&p.node_path("spliced"));
    assert_eq!(spliced.len(), 179);
    same(&spliced, &facts("spliced-modelopt"));
}
