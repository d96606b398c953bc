//! `graftwerk diff`: what differs between two checkpoints, whoever made them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs;
use std::path::Path;

use common::{Project, copy_tree, repository};
use serde_json::{Value, json};

fn lineage(name: &str) -> String {
    repository().join("tests/data/lineage").join(name).to_str().unwrap().to_owned()
}

// Writes a safetensors file with this text as its header.
fn write_shard(path: &Path, header: &str, data: &[u8]) {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(data);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

fn diff(p: &Project, a: &str, b: &str) -> (Option<i32>, Value) {
    let ran = p.run(&["diff", a, b, "--json"]);
    (ran.code, ran.json())
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|c| c["name"].as_str().or(c["path"].as_str()).unwrap()).collect()
}

#[test]
fn two_folders_that_no_graph_knows_are_compared_without_a_store() {
    let p = Project::new("");
    fs::remove_file(p.path("graph.toml")).unwrap();
    let (code, same) = diff(&p, &lineage("finetune"), &lineage("finetune"));
    assert_eq!((code, &same["same"], &same["tensors"]["identical"]), (Some(0), &json!(true), &json!(89)));
    let (code, differ) = diff(&p, &lineage("finetune"), &lineage("quant-ct-right"));
    assert_eq!((code, &differ["same"]), (Some(1), &json!(false)));
    assert_eq!(differ["tensors"]["changed"].as_array().unwrap().len(), 36);
    let config = &differ["files"]["changed"][0];
    assert_eq!((&config["path"], &config["role"]), (&json!("config.json"), &json!("config")));
    assert_eq!(config["details"]["keys"][0]["key"], "quantization_config");
    assert!(!p.path("store").exists(), "a question makes no store");
}

#[test]
fn a_checkpoint_that_was_saved_again_with_another_order_and_padding_has_identical_tensors() {
    let p = Project::new("");
    let data: Vec<u8> = (0..24).collect();
    write_shard(
        &p.path("one/model.safetensors"),
        r#"{"a":{"dtype":"U8","shape":[16],"data_offsets":[0,16]},"b":{"dtype":"F32","shape":[2],"data_offsets":[16,24]}}"#,
        &data,
    );
    let swapped: Vec<u8> = (16..24).chain(0..16).collect();
    write_shard(
        &p.path("two/model.safetensors"),
        r#"{"__metadata__":{"format":"pt"},"b":{"shape":[2],"dtype":"F32","data_offsets":[0,8]},"a":{"dtype":"U8","shape":[16],"data_offsets":[8,24]}}      "#,
        &swapped,
    );
    let (code, found) = diff(&p, "./one", "./two");
    assert_eq!(code, Some(1));
    assert_eq!((&found["tensors"]["identical"], names(&found["tensors"]["changed"]).len()), (&json!(2), 0));
    let shard = &found["files"]["changed"][0]["details"];
    assert_eq!((&shard["kind"], &shard["order"]), (&json!("shard"), &json!(true)));
    assert_eq!(shard["metadata"][0]["key"], "format");
    assert_eq!((&shard["gone"], &shard["new"]), (&json!(0), &json!(0)));
    // Where only tensors are asked for, there is nothing to tell.
    assert_eq!(p.run(&["diff", "./one", "./two", "--tensors"]).code, Some(0));
    let text = p.run(&["diff", "./one", "./two"]).stdout;
    assert!(text.contains("tensors: 2 identical (24 B)\n"), "{text}");
    assert!(text.contains("the tensors stand in another order"), "{text}");
}

#[test]
fn padding_alone_is_told_as_that() {
    let p = Project::new("");
    let header = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
    write_shard(&p.path("one/model.safetensors"), header, &[1, 2, 3, 4]);
    write_shard(&p.path("two/model.safetensors"), &format!("{header}        "), &[1, 2, 3, 4]);
    let (code, found) = diff(&p, "./one", "./two");
    assert_eq!((code, &found["tensors"]["identical"]), (Some(1), &json!(1)));
    let starts = &found["files"]["changed"][0]["details"]["data_start"];
    assert_eq!(starts[1].as_u64().unwrap() - starts[0].as_u64().unwrap(), 8);
}

#[test]
fn names_that_lost_a_level_are_one_line_and_quantised_parts_go_along() {
    let p = Project::new("");
    copy_tree(Path::new(&lineage("quant-ct-right")), &p.path("flat"));
    // The causal class saves `model.layers.…` in place of `model.language_model.layers.…`.
    let path = p.path("flat/model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let n = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
    let header = std::str::from_utf8(&bytes[8..8 + n]).unwrap().replace("model.language_model.", "model.");
    write_shard(&path, &header, &bytes[8 + n..]);
    let (code, found) = diff(&p, &lineage("quant-ct-right"), "./flat");
    assert_eq!(code, Some(1));
    let expected = json!([{"from": "model.language_model.", "to": "model.", "weights": 55}]);
    assert_eq!(found["tensors"]["prefixes"], expected);
    assert_eq!(names(&found["tensors"]["changed"]), [""; 0]);
    assert_eq!(found["tensors"]["identical"], 89);
}

#[test]
fn a_head_that_was_dropped_is_removed_and_nothing_else() {
    let p = Project::new("");
    for from in ["finetune", "grafted"] {
        copy_tree(Path::new(&lineage(from)), &p.path("grafted"));
    }
    let (code, found) = diff(&p, "./grafted", &lineage("finetune"));
    assert_eq!(code, Some(1));
    let removed = names(&found["tensors"]["removed"]);
    assert_eq!(removed.len(), 15);
    assert!(removed.iter().all(|n| n.starts_with("mtp.")), "{removed:?}");
    assert_eq!((&found["tensors"]["identical"], names(&found["tensors"]["changed"]).len()), (&json!(89), 0));
    assert_eq!(found["tensors"]["prefixes"], json!([]), "a head is no renamed stack");
}

#[test]
fn nodes_sources_past_realisations_and_ids_are_sides_and_equal_tensors_are_not_read() {
    let p = Project::demo();
    let built = p.build();
    assert_eq!(built.code, Some(0));
    let (code, found) = diff(&p, "finetune", "graft-a");
    assert_eq!(code, Some(1), "{found}");
    assert_eq!((&found["a"]["what"], &found["b"]["what"]), (&json!("source"), &json!("node")));
    assert_eq!(found["tensors"]["added"].as_array().unwrap().len(), 15);
    assert_eq!(found["tensors"]["read_bytes"], 0, "all digests are known");
    let tree = p.trees()["graft-a"].clone();
    let (code, same) = diff(&p, "graft-a", &tree);
    assert_eq!((code, &same["b"]["what"]), (Some(0), &json!("tree")));
    let (code, same) = diff(&p, "graft-a@1", "graft-a");
    assert_eq!((code, &same["a"]["run"]), (Some(0), &json!(1)));
    let view = p.node_path("graft-a");
    assert_eq!(diff(&p, view.to_str().unwrap(), "graft-a").0, Some(0), "the view is what the store says");
}

#[test]
fn what_cannot_be_compared_is_an_error_and_exits_2() {
    let p = Project::demo();
    p.build();
    for (a, b, what) in [
        ("graft-a", "graft-x", "there is no node \"graft-x\""),
        ("graft-a@7", "graft-a", "graft-a has no realisation 7: 1 are known"),
        ("./nothing", "graft-a", "is not there"),
        ("graft-a", "b3:ffffffffffff", "nothing in the store has an id that begins with b3:ffffffffffff"),
    ] {
        let ran = p.run(&["diff", a, b]);
        assert_eq!(ran.code, Some(2), "{a} {b}: {}", ran.stderr);
        assert!(ran.stderr.contains(what), "{a} {b}: {}", ran.stderr);
        assert_eq!(ran.stdout, "");
    }
}

#[test]
fn a_broken_shard_is_compared_as_bytes_and_told() {
    let p = Project::new("");
    for name in ["one", "two"] {
        copy_tree(Path::new(&lineage("finetune")), &p.path(name));
    }
    let shard = p.path("two/model-00002-of-00002.safetensors");
    let bytes = fs::read(&shard).unwrap();
    fs::write(&shard, &bytes[..bytes.len() / 2]).unwrap();
    let (code, found) = diff(&p, "./one", "./two");
    assert_eq!(code, Some(1));
    let note = found["b"]["notes"][0].as_str().unwrap();
    assert!(note.starts_with("model-00002-of-00002.safetensors is compared as bytes: "), "{note}");
    let first = &found["files"]["changed"][0]["details"]["first"];
    assert_eq!(first.as_u64(), Some(bytes.len() as u64 / 2), "where the shorter one ends");
}

#[test]
fn the_answer_of_a_diff_is_calm_in_a_pipe_and_names_the_worst_first() {
    let p = Project::new("");
    let ran = p.run(&["diff", &lineage("finetune"), &lineage("quant-ct-right")]);
    assert_eq!(ran.code, Some(1));
    assert!(!ran.stdout.contains('\u{1b}') && !ran.stdout.contains('\r'));
    let lines: Vec<&str> = ran.stdout.lines().filter(|l| l.trim_start().starts_with("~ model.")).collect();
    assert!(lines[0].contains("BF16 → NVFP4 (compressed-tensors)") && lines[0].contains("20.4 dB"), "{}", lines[0]);
    assert!(ran.stdout.contains("mlp.down_proj            ▇▇▇▇\n"), "{}", ran.stdout);
    assert_eq!(p.run(&["diff", &lineage("finetune"), &lineage("quant-ct-right"), "-q"]).stdout, "");
}
