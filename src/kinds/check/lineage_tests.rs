//! What quantisers did to a real model family, found by the checks that are there for it.

use serde_json::{Value as Json, json};

use super::Check;
use crate::kinds::Input;
use crate::kinds::testing::{at, folder, made, run};
use crate::tensors::testing::{Made, shard};

/// What the only assertion of these that fails found.
fn found(toml: &str, inputs: &[&Input]) -> Vec<String> {
    let ran = run(&Check, toml, inputs).unwrap();
    let report: Json = serde_json::from_str(&ran.text("report.json")).unwrap();
    let bad: Vec<&Json> = report["assertions"].as_array().unwrap().iter().filter(|a| a["ok"] == json!(false)).collect();
    let [one] = bad.as_slice() else { panic!("{bad:#?}") };
    one["found"].as_array().unwrap().iter().map(|f| f.as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_eleven_offset_norms_that_a_quantiser_altered_are_named_and_the_gated_ones_are_not() {
    let model = folder("model", &at("tests/data/lineage/quant-ct-right"));
    let was = folder("was", &at("tests/data/lineage/finetune"));
    let told = found("unchanged.was = [\"*norm.weight\"]", &[&model, &was]);
    let mut names: Vec<String> =
        (0..4).flat_map(|i| ["input", "post_attention"].map(|n| format!("layers.{i}.{n}_layernorm"))).collect();
    names.extend(["layers.3.self_attn.k_norm", "layers.3.self_attn.q_norm", "norm"].map(str::to_owned));
    let wanted: Vec<String> = names.iter().map(|n| format!("model.language_model.{n}.weight was b3:")).collect();
    assert_eq!(told.len(), 11, "{told:#?}");
    for name in &wanted {
        assert!(told.iter().any(|t| t.starts_with(name)), "{name}: {told:#?}");
    }
    assert!(run(&Check, "names_kept = \"was\"", &[&model, &was]).unwrap().report.notes.is_empty());
}

#[test]
fn the_thirty_three_tensors_of_a_lost_vision_tower_are_named() {
    let was = folder("was", &at("tests/data/lineage/finetune"));
    let index: Json =
        serde_json::from_slice(&std::fs::read(at("tests/data/lineage/finetune/model.safetensors.index.json")).unwrap())
            .unwrap();
    let names: Vec<&String> = index["weight_map"].as_object().unwrap().keys().collect();
    let (visual, rest): (Vec<&String>, Vec<&String>) = names.into_iter().partition(|n| n.starts_with("model.visual."));
    let tensors: Vec<Made> = rest.iter().map(|n| Made::new(n, "BF16", &[1], &[0, 0])).collect();
    let config = std::fs::read(at("tests/data/lineage/finetune/config.json")).unwrap();
    let (model, _guard) = made("model", &[("config.json", &config), ("model.safetensors", &shard(None, &tensors))]);
    let told = found("names_kept = \"was\"", &[&model, &was]);
    let wanted: Vec<String> = visual.iter().map(|n| format!("the tensor {n} is gone")).collect();
    assert_eq!((told.len(), told), (33, wanted));
}
