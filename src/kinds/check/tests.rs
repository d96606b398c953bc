//! What a check finds, told with the demo's models and small files. Each fault is one that people met.

use serde_json::{Value as Json, json};

use super::*;
use crate::kinds::Input;
use crate::kinds::testing::{Ran, at, checked, file, folder, made, run, told};
use crate::tensors::testing::{Made, shard};

fn report(ran: &Ran) -> Json {
    serde_json::from_str(&ran.text("report.json")).unwrap()
}

/// The assertions that fail: assertion, then what was found.
fn failed(toml: &str, inputs: &[&Input]) -> Vec<Vec<String>> {
    let ran = run(&Check, toml, inputs).unwrap();
    let report = report(&ran);
    let all = report["assertions"].as_array().unwrap();
    let bad: Vec<Vec<String>> = all
        .iter()
        .filter(|a| a["ok"] == json!(false))
        .map(|a| {
            let found = a["found"].as_array().unwrap().iter().map(|f| f.as_str().unwrap().to_owned());
            std::iter::once(a["assertion"].as_str().unwrap().to_owned()).chain(found).collect()
        })
        .collect();
    assert_eq!(ran.report.verdict, Some(bad.is_empty()));
    assert_eq!(report["verdict"], json!(bad.is_empty()));
    assert_eq!(ran.report.notes.len(), bad.len());
    bad
}

fn bf16(name: &str, shape: &[u64]) -> Made {
    let n = shape.iter().product::<u64>() as usize;
    Made::new(name, "BF16", shape, &vec![u8::try_from(name.len() % 251).unwrap(); n * 2])
}

/// A model of one shard with this config.
fn model(alias: &str, config: &Json, tensors: &[Made]) -> (Input, tempfile::TempDir) {
    let config = config.to_string();
    made(alias, &[("config.json", config.as_bytes()), ("model.safetensors", &shard(None, tensors))])
}

fn one(failures: Vec<Vec<String>>) -> Vec<String> {
    assert_eq!(failures.len(), 1, "{failures:?}");
    failures.into_iter().next().unwrap()
}

#[test]
fn the_demos_base_is_what_it_should_be() {
    let model = folder("model", &at("demo/base"));
    let toml = r#"
        architecture = true
        draft_head = true
        tied = true
        processors = true
        files = ["tokenizer*.json", "*.jinja"]
        [tensors]
        count = 104
        names = ["mtp.*", "model.visual.*"]
        absent = ["model.layers.*"]
        prefixes = ["model.language_model.", "model.visual.", "mtp.", "lm_head."]
        dtypes = { "*" = "BF16" }
        shapes = { "lm_head.weight" = [512, 128] }
        [config."config.json"]
        "/text_config/mtp_num_hidden_layers" = 1
        "/text_config/rms_norm_eps" = 0.000001
        "/text_config/rope_parameters/rope_theta" = 10000
        "#;
    let ran = run(&Check, toml, &[&model]).unwrap();
    assert_eq!(ran.report.notes, Vec::<String>::new());
    assert_eq!(ran.report.verdict, Some(true));
    assert_eq!(ran.report.facts["tensors"], json!(104));
    let again = run(&Check, toml, &[&model]).unwrap();
    assert_eq!(ran.read("report.json"), again.read("report.json"));
}

#[test]
fn a_finetune_without_its_head_is_told_its_fifteen_names() {
    let model = folder("model", &at("demo/finetune"));
    let base = folder("base", &at("demo/base"));
    let bad = one(failed("names_kept = \"base\"", &[&model, &base]));
    assert_eq!(bad[0], "nothing of `base` to be lost");
    assert_eq!(bad.len(), 16);
    assert_eq!(bad[1], "the tensor mtp.fc.weight is gone");
    let ran = run(&Check, "names_kept = \"base\"", &[&model, &base]).unwrap();
    let note = &ran.report.notes[0];
    assert!(
        note.starts_with("expected nothing of `base` to be lost: 15 faults: the tensor mtp.fc.weight is gone; "),
        "{note}"
    );
    assert!(failed("names_kept = { input = \"base\", drop = [\"mtp.*\"] }", &[&model, &base]).is_empty());
    let e = told(run(&Check, "names_kept = { input = \"base\", drop = [\"mpt.*\"] }", &[&model, &base]));
    assert!(e.starts_with("names_kept.drop: the pattern \"mpt.*\" matches none of"), "{e}");
    let bad = one(failed("draft_head = true", &[&model]));
    assert_eq!(bad[1], "there are no tensors mtp.*");
}

#[test]
fn a_quant_that_loses_the_head_and_its_config_key_is_told_both() {
    let config = json!({"text_config": {"mtp_num_hidden_layers": 1, "n": 2}});
    let (was, _a) = model("was", &config, &[bf16("a.weight", &[2, 16]), bf16("mtp.fc.weight", &[2])]);
    let packed = [
        Made::new("a.weight_packed", "U8", &[2, 8], &[0; 16]),
        Made::new("a.weight_scale", "F8_E4M3", &[2, 1], &[0; 2]),
        Made::f32("a.weight_global_scale", &[1], &[1.0]),
    ];
    let (now, _b) = model("model", &json!({"text_config": {"n": 2}, "quantization_config": {}}), &packed);
    let bad = one(failed("names_kept = \"was\"", &[&now, &was]));
    assert_eq!(
        bad[1..],
        ["the tensor mtp.fc.weight is gone", "the key text_config.mtp_num_hidden_layers of config.json is gone"]
    );
    let toml = "[names_kept]\ninput = \"was\"\ndrop = [\"mtp.*\"]\ndrop_config = [\"text_config\"]";
    assert!(failed(toml, &[&now, &was]).is_empty());
    let bad = one(failed("draft_head = true", &[&now]));
    assert_eq!(bad[1..], ["config.json declares none (mtp_num_hidden_layers)", "there are no tensors mtp.*"]);
    assert!(failed("draft_head = false", &[&now]).is_empty());
}

#[test]
fn unchanged_goes_by_bytes_type_and_shape() {
    let (was, _a) =
        model("was", &json!({}), &[bf16("v.a", &[2]), bf16("v.b", &[2]), bf16("v.c", &[2]), bf16("w", &[1])]);
    let changed = [bf16("v.a", &[2]), Made::new("v.b", "BF16", &[2], &[9; 4]), Made::new("v.c", "F16", &[2], &[3; 4])];
    let (now, _b) = model("model", &json!({}), &changed);
    let bad = one(failed("unchanged.was = [\"v.*\"]", &[&now, &was]));
    assert!(bad[1].starts_with("v.b was b3:"), "{bad:?}");
    assert_eq!(bad[2], "v.c was BF16 and is F16");
    assert_eq!(one(failed("unchanged.was = [\"w\"]", &[&now, &was]))[1], "w is gone");
    assert!(failed("unchanged.was = [\"v.a\"]", &[&now, &was]).is_empty());
    let bad = one(failed("unchanged.was = [\"x.*\"]", &[&now, &was]));
    assert!(bad[1].contains("matches none of 4 names"), "{bad:?}");
}

#[test]
fn weights_that_are_quantised_now_are_not_told_as_changed_and_a_line_names_a_few() {
    let names: Vec<String> = (0..30).map(|i| format!("l.{i:02}.weight")).collect();
    let (was, _a) = model("was", &json!({}), &names.iter().map(|n| bf16(n, &[2, 16])).collect::<Vec<_>>());
    let mut tensors: Vec<Made> = (0..3)
        .flat_map(|i| {
            [
                Made::new(&format!("l.{i:02}.weight_packed"), "U8", &[2, 8], &[0; 16]),
                Made::new(&format!("l.{i:02}.weight_scale"), "F8_E4M3", &[2, 1], &[0; 2]),
            ]
        })
        .collect();
    tensors.push(Made::new("l.03.weight", "U8", &[2, 8], &[0; 16]));
    tensors.push(Made::new("l.03.weight_scale", "F8_E4M3", &[2, 1], &[0; 2]));
    tensors.extend(names[4..18].iter().map(|n| Made::new(n, "BF16", &[2, 16], &[1; 64])));
    let (now, _b) = model("model", &json!({}), &tensors);
    let toml = "unchanged.was = [\"l.*\"]";
    let bad = one(failed(toml, &[&now, &was]));
    assert_eq!(bad[1], "4 of 30 are quantised now: l.00.weight, l.01.weight, l.02.weight and 1 more");
    assert_eq!(bad.len(), 2 + 26, "the report names all others");
    let note = run(&Check, toml, &[&now, &was]).unwrap().report.notes.remove(0);
    assert!(
        note.starts_with("expected tensors \"l.*\" with the bytes that they have in `was`: 27 faults: 4 of 30 are"),
        "{note}"
    );
    assert!(note.contains("; l.04.weight was b3:") && note.ends_with("; and 17 more"), "{note}");
}

#[test]
fn tensor_assertions_that_do_not_hold_name_the_tensors() {
    let (now, _a) = model("model", &json!({}), &[bf16("model.a", &[2]), Made::f32("model.b", &[1], &[1.0])]);
    let tensors = |toml: &str| one(failed(&format!("[tensors]\n{toml}"), &[&now]));
    assert_eq!(tensors("count = 3"), ["3 tensors", "2"]);
    assert_eq!(tensors("prefixes = [\"mtp.\", \"model.a\"]")[1..], ["model.b"]);
    assert_eq!(tensors("absent = [\"*.b\"]")[1..], ["model.b"]);
    assert_eq!(tensors("dtypes = { \"*\" = \"BF16\" }")[1..], ["model.b is F32"]);
    assert_eq!(tensors("shapes = { \"*\" = [2] }")[1..], ["model.b is [1]"]);
    let bad = tensors("names = [\"modl.a\"]");
    assert!(bad[1].contains("did you mean \"model.a\""), "{bad:?}");
}

#[test]
fn config_values_are_compared_by_type_and_numbers_by_value() {
    let config = json!({"a": 1.0, "s": "1", "t": true, "list": [1, {"x": null}], "big": 12345678901234567890_u64});
    let (now, _a) = model("model", &config, &[bf16("a", &[1])]);
    let values = |toml: &str| failed(&format!("config.\"config.json\" = {{ {toml} }}"), &[&now]);
    assert!(values("\"/a\" = 1, \"/t\" = true, \"/list/0\" = 1.0").is_empty());
    assert_eq!(one(values("\"/a\" = \"1\"")), ["config.json/a to be \"1\"", "1.0"]);
    assert_eq!(one(values("\"/s\" = 1"))[1], "\"1\"");
    assert_eq!(one(values("\"/t\" = 1"))[1], "true");
    let bad = one(values("\"/lst\" = 1"));
    assert!(bad[1].ends_with("(did you mean `list`?)"), "{bad:?}");
    let bad = one(failed("config.\"generation_config.json\" = { \"/a\" = 1 }", &[&now]));
    assert_eq!(bad[1], "no such file");
}

#[test]
fn keys_cut_to_model_layers_under_a_wrapper_class_are_found() {
    let wrapper = json!({"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
        "text_config": {"n": 1}, "vision_config": {"n": 1}});
    let (now, _a) = model("model", &wrapper, &[bf16("model.layers.0.q.weight", &[1]), bf16("lm_head.weight", &[1])]);
    let bad = one(failed("architecture = true", &[&now]));
    assert_eq!(
        bad[1..],
        [
            "Qwen3_5ForConditionalGeneration wants the text model under `language_model.`, found model.layers.0.q.weight",
            "Qwen3_5ForConditionalGeneration wants tensors model.language_model.*, and there is none",
            "Qwen3_5ForConditionalGeneration has a vision_config and wants tensors model.visual.*, and there is none",
        ]
    );
    let causal = json!({"architectures": ["Qwen3_5ForCausalLM"]});
    let (now, _b) = model("model", &causal, &[bf16("model.language_model.layers.0.q.weight", &[1])]);
    let bad = one(failed("architecture = true", &[&now]));
    assert_eq!(bad[1], "Qwen3_5ForCausalLM is a text model and loads no model.language_model.layers.0.q.weight");
    let (now, _c) = model("model", &causal, &[bf16("model.layers.0.q.weight", &[1])]);
    assert!(failed("architecture = true", &[&now]).is_empty());
    let (now, _d) = model("model", &json!({"architectures": ["Unheard"]}), &[bf16("a", &[1])]);
    assert!(one(failed("architecture = true", &[&now]))[1].starts_with("no rule is known for Unheard"));
}

#[test]
fn a_spliced_linear_that_no_list_covers_is_found_in_each_list() {
    let tensors = [
        bf16("lm_head.weight", &[4, 2]),
        bf16("model.embed_tokens.weight", &[4, 2]),
        bf16("model.norm.weight", &[2]),
        Made::new("model.layers.0.q_proj.weight", "U8", &[4, 2], &[0; 8]),
        bf16("mtp.fc.weight", &[2, 2]),
        bf16("mtp.layers.0.self_attn.q_proj.weight", &[2, 2]),
    ];
    let config =
        |method: &str, entries: &[&str]| json!({"quantization_config": {"quant_method": method, "ignore": entries}});
    let (now, _a) = model("model", &config("modelopt", &["lm_head"]), &tensors);
    let bad = one(failed("exclusions = true", &[&now]));
    assert_eq!(bad[1..], ["mtp.fc is not covered", "mtp.layers.0.self_attn.q_proj is not covered"]);
    for (method, entry, good) in [
        ("modelopt", "mtp*", true),
        ("compressed-tensors", "re:^mtp.*", true),
        ("modelopt", "re:^mtp.*", false),
        ("compressed-tensors", "mtp*", false),
    ] {
        let (now, _a) = model("model", &config(method, &["lm_head", entry]), &tensors);
        assert_eq!(failed("exclusions = true", &[&now]).is_empty(), good, "{method} {entry}");
    }
    let config = config("modelopt", &["lm_head", "mtp*"]).to_string();
    let hf = json!({"quantization": {"exclude_modules": ["lm_head"]}}).to_string();
    let files: [(&str, &[u8]); 3] = [
        ("config.json", config.as_bytes()),
        ("hf_quant_config.json", hf.as_bytes()),
        ("model.safetensors", &shard(None, &tensors)),
    ];
    let (now, _a) = made("model", &files);
    assert!(
        one(failed("exclusions = true", &[&now]))[0].ends_with("hf_quant_config.json/quantization/exclude_modules")
    );
    let (now, _a) = model("model", &json!({}), &tensors);
    assert_eq!(one(failed("exclusions = true", &[&now]))[1], "config.json has no quantization_config");
}

#[test]
fn tied_embeddings_are_what_the_config_says() {
    let embed = Made::new("model.embed_tokens.weight", "BF16", &[1], &[1, 2]);
    let same = Made::new("lm_head.weight", "BF16", &[1], &[1, 2]);
    let other = Made::new("lm_head.weight", "BF16", &[1], &[3, 4]);
    let of = |config: &Json, tensors: &[&Made]| {
        let tensors: Vec<Made> = tensors.iter().map(|t| (*t).clone()).collect();
        let (now, _a) = model("model", config, &tensors);
        let ran = run(&Check, "tied = true", &[&now]).unwrap();
        let report = report(&ran);
        let last = report["assertions"].as_array().unwrap().last().unwrap().clone();
        (last["ok"].as_bool().unwrap(), last["found"].as_array().unwrap().len())
    };
    for yes in [json!({"tie_word_embeddings": true}), json!({"text_config": {"tie_word_embeddings": true}})] {
        assert_eq!(of(&yes, &[&embed]), (true, 0));
        assert_eq!(of(&yes, &[&embed, &same]), (true, 1), "a note");
        assert_eq!(of(&yes, &[&embed, &other]), (false, 1));
        assert_eq!(of(&yes, &[&same]), (false, 1));
    }
    let no = json!({"tie_word_embeddings": false, "text_config": {"tie_word_embeddings": true}});
    assert_eq!(of(&no, &[&embed]), (false, 1), "the outer one counts");
    assert_eq!(of(&no, &[&embed, &other]), (true, 0));
    assert_eq!(of(&json!({}), &[&embed]), (true, 1), "a note");
}

#[test]
fn a_processor_config_alone_makes_no_multimodal_model() {
    let config = json!({"vision_config": {}}).to_string();
    let of = |name: &str| {
        let files: [(&str, &[u8]); 3] = [
            ("config.json", config.as_bytes()),
            (name, b"{}"),
            ("model.safetensors", &shard(None, &[bf16("a", &[1])])),
        ];
        let (now, _a) = made("model", &files);
        failed("processors = true", &[&now])
    };
    assert!(of("preprocessor_config.json").is_empty());
    assert!(
        one(of("processor_config.json"))[1].starts_with("there is only processor_config.json: make the other with")
    );
    assert!(one(of("x.json"))[1].starts_with("there is neither"));
}

#[test]
fn a_tensor_in_two_shards_and_a_stray_weight_file_fail_without_being_asked_about() {
    let index =
        json!({"metadata": {"total_size": 9}, "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})
            .to_string();
    let (one_shard, two) = (shard(None, &[bf16("a", &[1])]), shard(None, &[bf16("b", &[1]), bf16("a", &[1])]));
    let files: [(&str, &[u8]); 4] = [
        ("model-1.safetensors", &one_shard),
        ("model-2.safetensors", &two),
        ("consolidated.safetensors", &one_shard),
        ("model.safetensors.index.json", index.as_bytes()),
    ];
    let (now, _a) = made("model", &files);
    let bad = one(failed("", &[&now]));
    assert_eq!(
        bad,
        [
            "index and shards to agree, and one copy of each tensor",
            "a stands in model-1.safetensors and in model-2.safetensors",
            "consolidated.safetensors is a weight file that model.safetensors.index.json does not name; it holds again a of model-1.safetensors",
        ]
    );
    let bad = one(failed("allow_stray = [\"consolidated.*\"]", &[&now]));
    assert_eq!(bad.len(), 2);

    let (now, _a) = made("model", &[files[0], files[3], ("pytorch_model.bin", b"x")]);
    let bad = one(failed("", &[&now]));
    assert_eq!(
        bad[1..],
        [
            "model.safetensors.index.json names model-2.safetensors, and there is no such file",
            "pytorch_model.bin is a weight file beside the shards",
        ]
    );
    let (now, _a) = made("model", &files[..2]);
    let bad = one(failed("", &[&now]));
    assert_eq!(bad[2], "there are 2 shards and no model.safetensors.index.json");
}

#[test]
fn broken_files_are_errors_with_their_place_and_no_verdict() {
    let (now, _a) = made("model", &[("model.safetensors", b"{}")]);
    assert!(told(run(&Check, "", &[&now])).contains("model.safetensors"));
    let (now, _a) = made("model", &[("config.json", b"{\"a\": }"), ("model.safetensors", &shard(None, &[]))]);
    assert_eq!(
        told(run(&Check, "", &[&now])),
        "the input `model`: config.json: line 1, column 7: expected a value, found '}'"
    );
}

#[test]
fn metrics_are_held_against_bounds() {
    let (m, _a) = made("runs", &[("results.json", br#"{"drafts": 0.0, "tools": 0.967, "bad": NaN, "text": "1"}"#)]);
    let metrics = |toml: &str| failed(&format!("metrics.runs.\"results.json\" = {{ {toml} }}"), &[&m]);
    assert!(metrics("\"/tools\" = { min = 0.967, max = 1 }").is_empty());
    assert_eq!(
        one(metrics("\"/drafts\" = { min = 0.01 }")),
        ["results.json/drafts of `runs` to be at least 0.01", "0.0"]
    );
    assert_eq!(one(metrics("\"/bad\" = { min = 0 }"))[1], "NaN");
    assert_eq!(one(metrics("\"/text\" = { min = 0 }"))[1], "\"1\", which is no number");
    assert_eq!(one(metrics("\"/none\" = { max = 0 }"))[1], "nothing there");
}

#[test]
fn wrong_parameters_are_said_at_their_key() {
    let (now, _a) = made("model", &[]);
    let (other, _b) = made("other", &[]);
    let key = |toml: &str| checked(&Check, toml, &[&now]).unwrap_err().key;
    assert_eq!(key("names_kept = \"was\""), "names_kept");
    assert_eq!(key("unchanged.was = [\"*\"]"), "unchanged.was");
    assert_eq!(key("tensors.cuont = 3"), "tensors.cuont");
    assert_eq!(key("tensors.count = -3"), "tensors.count");
    assert_eq!(key("tensors.dtypes = { \"a.*\" = \"bf16\" }"), "tensors.dtypes.\"a.*\"");
    assert_eq!(key("calibration.model = { tool_arguments = \"dict\" }"), "calibration.model.tool_arguments");
    assert_eq!(key("architecture = false"), "architecture");
    assert_eq!(key("metrics.model.\"a.json\" = { \"/x\" = {} }"), "metrics.model.\"a.json\".\"/x\"");
    assert_eq!(checked(&Check, "", &[&other]).unwrap_err().to_string(), "this check asserts nothing");
    assert_eq!(checked(&Check, "draft_head = true", &[&other]).unwrap_err().key, "draft_head");
}

#[test]
fn the_demos_rows_are_well_formed() {
    let rows = file("calib", &at("demo/calib.jsonl"));
    let ran = run(&Check, "calibration.calib = { count = 24, tool_arguments = \"object\" }", &[&rows]).unwrap();
    assert_eq!(ran.report.notes, Vec::<String>::new());
    assert_eq!(ran.report.facts["calibration.calib"]["rows"], json!(24));
}

#[test]
fn assertions_about_no_tensors_at_all_do_not_hold_in_silence() {
    let config = json!({"quantization_config": {"quant_method": "modelopt"}}).to_string();
    let (now, _a) = made("model", &[("config.json", config.as_bytes())]);
    let bad = one(failed("exclusions = true", &[&now]));
    assert_eq!(bad, ["tensors in `model`", "none"]);
    assert_eq!(told(run(&Check, "", &[&now])).lines().next().unwrap(), "there is nothing to assert of `model`");
    let (was, _b) = made("was", &[("config.json", b"{}")]);
    let e = told(run(&Check, "names_kept = \"was\"", &[&now, &was]));
    assert!(e.starts_with("names_kept: the input `was` holds no tensors"), "{e}");
}

/// Raise `REVISION` with this: another report for the same inputs is another recipe.
#[test]
fn the_same_check_gives_the_same_report_until_the_revision_is_raised() {
    let config = json!({"architectures": ["XForCausalLM"], "tie_word_embeddings": false});
    let (now, _a) = model("model", &config, &[bf16("model.layers.0.a.weight", &[2, 4]), bf16("mtp.x", &[1])]);
    let rows = file("calib", &at("tests/data/calib-bad.jsonl"));
    let toml = r#"
        architecture = true
        draft_head = true
        tied = true
        exclusions = true
        files = ["*.json", "nope"]
        tensors = { count = 3, absent = ["mtp.*"] }
        calibration.calib = { count = 24, tool_arguments = "object" }
        "#;
    let ran = run(&Check, toml, &[&now, &rows]).unwrap();
    assert_eq!((REVISION, ran.out.tree.id().short().as_str()), (3, "b3:4e82d6458b4f"), "{}", ran.text("report.json"));
}
