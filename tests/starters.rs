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

/// One shard with these tensors, each of F32 zeros.
fn safetensors(tensors: &[(&str, [usize; 2])]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut at = 0;
    for (name, shape) in tensors {
        let end = at + shape[0] * shape[1] * 4;
        header
            .insert((*name).to_owned(), serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [at, end]}));
        at = end;
    }
    let header = serde_json::Value::from(header).to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; at]].concat()
}

#[test]
fn a_model_of_another_make_is_told_all_that_does_not_fit_it_step_by_step() {
    let p = Project::new("");
    fs::remove_file(p.path("graph.toml")).unwrap();
    p.run(&["init", "quantise"]);
    let shard = safetensors(&[
        ("embeddings.word_embeddings.weight", [64, 32]),
        ("encoder.layer.0.attention.self.query.weight", [32, 32]),
        ("encoder.layer.0.output.dense.weight", [32, 32]),
    ]);
    for name in ["finetune", "base"] {
        p.write(&format!("models/{name}/model.safetensors"), &shard);
        p.write(&format!("models/{name}/config.json"), r#"{"architectures": ["BertModel"], "vocab_size": 64}"#);
        p.write(&format!("models/{name}/tokenizer.json"), "{}");
    }
    let ran = p.run(&["build", "model-a"]);
    assert_eq!(ran.code, Some(1));
    let all =
        "`ignore`: the patterns \"lm_head\", \"model.visual.*\", \"*.linear_attn.*\", \"*.embed_tokens\" match none of";
    assert!(ran.stderr.contains(all), "{}", ran.stderr);
    p.edit(
        "graph.toml",
        "ignore = [\"lm_head\", \"model.visual.*\", \"*.linear_attn.*\", \"*.embed_tokens\"]\n",
        "ignore = [\"*embedings*\"]\n",
    );
    let ran = p.run(&["build", "model-a"]);
    assert!(ran.stderr.contains("did you mean \"*embeddings*\" (matches 1)"), "{}", ran.stderr);
    p.edit("graph.toml", "ignore = [\"*embedings*\"]\n", "ignore = []\n");
    let ran = p.run(&["build", "model-a"]);
    let all = "copy.side: \"generation_config.json\", \"*processor_config.json\", \"*.jinja\" match nothing in the input `side`";
    assert!(ran.stderr.contains(all), "{}", ran.stderr);
    assert!(!ran.stderr.contains("did you mean"), "{}", ran.stderr);
}

#[test]
fn every_line_that_fits_only_the_demos_model_is_marked_in_the_starters() {
    for template in ["accelerate", "quantise", "family"] {
        let p = project(template);
        let text = p.read("graph.toml");
        let lines: Vec<&str> = text.lines().collect();
        assert!(text.contains("marked `Yours?`"), "{template}");
        for (i, line) in lines.iter().enumerate() {
            let fits = ["ignore = ", "copy.side", "architecture = ", "draft_head = "];
            if fits.iter().any(|f| line.starts_with(f)) {
                let marked = line.contains("# Yours?") || lines[i - 1].starts_with("# Yours?");
                assert!(marked, "{template}: {line}");
            }
        }
    }
}

#[test]
fn a_hubs_name_in_place_of_a_folder_is_told_from_a_mistyped_path() {
    let p = Project::new(
        "[source]\nm = { checkpoint = \"org/name-1.5B\" }\n[node.n]\nkind = \"check\"\ninputs.model = \"m\"\n",
    );
    let ran = p.run(&["plan"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("`hf download org/name-1.5B --local-dir models/name-1.5B`"), "{}", ran.stderr);
    let mine = Project::new("");
    fs::remove_file(mine.path("graph.toml")).unwrap();
    mine.run(&["init", "quantise"]);
    let ran = mine.run(&["plan"]);
    assert!(ran.stderr.contains("check the path in graph.toml") && !ran.stderr.contains("hf "), "{}", ran.stderr);
    fs::create_dir(p.path("org")).unwrap();
    let ran = p.run(&["plan"]);
    assert!(ran.stderr.contains("check the path in graph.toml"), "{}", ran.stderr);
}
