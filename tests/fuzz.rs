//! The bodies of the fuzz targets, over their corpus and some thousand mutations of it, the same ones each time.
//!
//! `GRAFTWERK_MUTATIONS=N` asks for more of each target; `UPDATE_CORPUS=1` makes the seeds anew from what the tests have.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
mod fuzz_bodies;
mod hostile;
mod mutations;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Project, repository};
use fuzz_bodies::TARGETS;
use mutations::{Random, corpus, mutated, seeds, with_length};

/// The most memory that this process had at once, in bytes.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

fn run(target: &str) {
    let body = TARGETS.iter().find(|t| t.0 == target).unwrap().1;
    let seeds = seeds(target);
    assert!(!seeds.is_empty());
    seeds.iter().for_each(|s| body(s));
    let asked = std::env::var("GRAFTWERK_MUTATIONS").ok().and_then(|n| n.parse().ok());
    // An import writes files.
    let count = asked.unwrap_or(if target.starts_with("archive") { 600 } else { 4000 });
    let mut r = Random::of(target);
    for n in 0..count {
        let mut bytes = mutated(&mut r, &seeds);
        if target == "header" && n % 2 == 0 {
            bytes = with_length(bytes);
        }
        let kept = bytes.clone();
        if std::panic::catch_unwind(move || body(&bytes)).is_err() {
            let at = std::env::temp_dir().join(format!("graftwerk-{target}-{n}"));
            fs::write(&at, kept).unwrap();
            panic!("mutation {n} of {target} breaks it: {}", at.display());
        }
    }
    assert!(peak() < 1 << 30, "{} bytes of memory", peak());
}

macro_rules! targets {
    ($($test:ident: $target:literal,)*) => {
        $(#[test]
        fn $test() {
            run($target);
        })*

        #[test]
        fn every_target_is_run_here_and_by_cargo_fuzz() {
            let here = [$($target),*];
            let all: Vec<&str> = TARGETS.iter().map(|t| t.0).collect();
            assert_eq!(here.as_slice(), all);
            let manifest = fs::read_to_string(repository().join("fuzz/Cargo.toml")).unwrap();
            for target in all {
                assert!(manifest.contains(&format!("name = \"{target}\"")), "fuzz/Cargo.toml does not have {target}");
                let file = fs::read_to_string(repository().join(format!("fuzz/fuzz_targets/{target}.rs"))).unwrap();
                assert!(file.contains("fuzz_bodies/mod.rs"));
            }
        }
    };
}

targets! {
    no_graph_breaks_its_reader: "graph",
    no_lock_breaks_its_reader: "lock",
    no_header_breaks_its_reader_and_the_reference_agrees: "header",
    no_index_breaks_its_reader: "index",
    no_listing_breaks_its_reader: "tree",
    no_recipe_breaks_its_reader: "recipe",
    no_table_breaks_its_reader: "table",
    no_rows_break_the_check: "rows",
    no_manifest_breaks_its_reader: "manifest",
    no_archive_breaks_an_import: "archive",
    no_tar_breaks_an_import: "archive_tar",
    no_object_breaks_an_import: "archive_objects",
    no_key_and_no_signature_breaks_its_reader: "signature",
}

// ---- The seeds ----

fn keep(target: &str, name: &str, bytes: &[u8]) {
    let dir = corpus(target);
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join(name), bytes).unwrap();
}

/// Every file of the store below `folder`, the first few.
fn some_of(p: &Project, folder: &str, most: usize) -> Vec<Vec<u8>> {
    common::files(&p.path("store").join(folder)).into_values().filter(|b| b.len() < 4096).take(most).collect()
}

#[test]
fn the_seeds_are_made_on_request() {
    if std::env::var_os("UPDATE_CORPUS").is_none() {
        return;
    }
    let data = repository().join("tests/data");
    for (i, graph) in ["graph.toml", "tests/data/graph/lineage.toml"].iter().enumerate() {
        keep("graph", &format!("graph-{i}"), &fs::read(repository().join(graph)).unwrap());
    }
    let page = fs::read_to_string(repository().join("docs/graph-reference.md")).unwrap();
    for (i, block) in page.split("```toml\n").skip(1).enumerate() {
        keep("graph", &format!("reference-{i}"), block.split("```").next().unwrap().as_bytes());
    }
    let p = Project::demo();
    p.build();
    assert_eq!(p.run(&["pin", "graft-a"]).code, Some(0));
    keep("lock", "demo", p.read("graph.lock").as_bytes());
    for (target, folder) in [("tree", "trees"), ("recipe", "recipes"), ("table", "tensors")] {
        for (i, bytes) in some_of(&p, folder, 6).iter().enumerate() {
            let text = String::from_utf8(bytes.clone()).unwrap();
            // A table's sum is the store's affair.
            let text = text.rfind("sum b3:").filter(|_| target == "table").map_or(text.as_str(), |at| &text[..at]);
            keep(target, &format!("demo-{i}"), text.as_bytes());
        }
    }
    keep("tree", "all-kinds", b"graftwerk tree 1\nf 0 b3:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262 \"a b/\\n\"\nd - - \"cache\"\nl 5 - \"l\" -> \"a b/\\n\"\nx 0 b3:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262 \"run\\xff\"\n");
    keep("table", "all-kinds", b"graftwerk tensors 1\ndata 712\nmetadata 1\n\"format\" \"pt\"\ntensors 2\nBF16 [512,128] 0 131072 b3:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262 \"lm_head.weight\"\nF32 [] 131072 131076 b3:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262 \"scale\"\n");
    let mut small = Vec::new();
    walk(&data.join("malformed"), &mut small);
    for (i, f) in small.iter().filter(|f| f.extension().is_some_and(|e| e == "safetensors")).enumerate() {
        let bytes = fs::read(f).unwrap();
        if bytes.len() < 4096 {
            keep("header", &format!("malformed-{i:02}"), &bytes);
        }
    }
    for (name, json) in [
        (
            "two",
            r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[1,2],"data_offsets":[8,12]}}"#,
        ),
        ("empty", "{}"),
        (
            "scalar",
            r#"{"s":{"dtype":"F64","shape":[],"data_offsets":[0,8]},"z":{"dtype":"U8","shape":[0],"data_offsets":[8,8]}}"#,
        ),
        (
            "small-types",
            r#"{"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2]},"b":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[2,4]},"c":{"dtype":"BOOL","shape":[8],"data_offsets":[4,12]}}"#,
        ),
    ] {
        let json = json.as_bytes();
        let bytes = [
            &(json.len() as u64).to_le_bytes()[..],
            json,
            &[0; 12][..if name == "empty" {
                0
            } else if name == "scalar" {
                8
            } else {
                12
            }],
        ]
        .concat();
        keep("header", name, &bytes);
    }
    keep("index", "grafted", &fs::read(data.join("lineage/grafted/model.safetensors.index.json")).unwrap());
    keep("index", "small", br#"{"metadata": {"total_size": 12, "x": [1.50, null]}, "other": {"a": "b"}, "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#);
    let calib = fs::read(data.join("calib-bad.jsonl")).unwrap();
    keep("rows", "bad", &calib[..calib.len().min(8192)]);
    let calib = fs::read(repository().join("demo/calib.jsonl")).unwrap();
    keep("rows", "demo", &calib[..calib.len().min(4096)]);
    keep("rows", "calls", br#"{"id": 7, "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{\"a\": 1}"}}]}]}"#);
    let archive = hostile::good();
    keep("archive", "good", &archive);
    keep("archive_tar", "good", &fuzz_bodies::tar_of(&archive));
    keep("archive_objects", "good", &fuzz_bodies::objects_of(&archive));
    keep("manifest", "good", &hostile::parts_of(&archive)[0].bytes);
}

fn walk(dir: &Path, out: &mut Vec<PathBuf>) {
    for e in fs::read_dir(dir).unwrap() {
        let path = e.unwrap().path();
        if path.is_dir() { walk(&path, out) } else { out.push(path) }
    }
    out.sort();
}
