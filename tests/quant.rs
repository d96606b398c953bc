//! The kind `quant` over whole checkpoints: against what llm-compressor made of the same one, and at the edges.
#![allow(clippy::unwrap_used)] // helpers of a test, too

mod support;

use std::path::PathBuf;

use graftwerk::kinds::quant::Quant;
use graftwerk::kinds::{Kind as _, Params, Report, Step, StepError};
use serde_json::{Value as Json, json};
use support::folder::{Folder, Watch, run, run_watched};
use support::{Quiet, params};

fn data(path: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests/data", path].iter().collect()
}

/// The finetune with the shard that the graft added.
fn grafted() -> Folder {
    Folder::of(&[&data("lineage/finetune"), &data("lineage/grafted")])
}

fn nvfp4(ignore: &[&str], drop: &[&str]) -> Params {
    params(&format!("method = \"nvfp4a16\"\nignore = {ignore:?}\ndrop = {drop:?}"))
}

/// What the reference was told to ignore.
const REFERENCE: [&str; 7] = [
    "lm_head",
    "re:.*visual.*",
    "re:^mtp.*",
    "re:.*linear_attn.in_proj_a$",
    "re:.*linear_attn.in_proj_b$",
    "re:.*conv1d.*",
    "re:.*embed_tokens.*",
];

/// The output, in a folder that lives as long as the guard.
fn quantise(input: &Folder, params: &Params) -> Result<(Folder, Report, tempfile::TempDir), StepError> {
    let scratch = tempfile::tempdir().unwrap();
    run(&Quant, params, &[("model", input)], scratch.path()).map(|(made, report)| (made, report, scratch))
}

fn told(result: Result<(Folder, Report, tempfile::TempDir), StepError>) -> String {
    match result {
        Ok(_) => panic!("the step succeeded"),
        Err(StepError::Invalid { what, hint }) => format!("{what} | {}", hint.unwrap_or_default()),
        Err(e) => e.to_string(),
    }
}

fn config(folder: &Folder) -> Json {
    serde_json::from_slice(&folder.read("config.json")).unwrap()
}

#[test]
fn the_quantised_lineage_is_what_llm_compressor_made_of_it() {
    let (input, reference) = (grafted(), Folder::of(&[&data("lineage/quant-ct-modelfree")]));
    let (made, report, _guard) = quantise(&input, &nvfp4(&REFERENCE, &[])).unwrap();
    let (before, after, wanted) = (input.tensors(), made.tensors(), reference.tensors());

    let quantised: Vec<_> = after.iter().filter(|(n, _)| !before.contains_key(*n)).collect();
    assert_eq!(quantised.len(), 75);
    for (name, tensor) in &quantised {
        assert!(wanted[*name] == **tensor, "{name}: {} against {}", tensor.0, wanted[*name].0);
    }
    // The reference's third shard is not committed: its tensors are the input's.
    for (name, tensor) in after.iter().filter(|(n, _)| before.contains_key(*n)) {
        assert!(before[name] == *tensor, "{name}");
        assert!(wanted.get(name).is_none_or(|w| w == tensor), "{name}");
    }
    assert_eq!(after.len(), 154);
    assert_eq!(wanted.len() + 15, 154);

    let (mut ours, mut theirs) = (config(&made), config(&reference));
    let ignored = ours["quantization_config"]["ignore"].take();
    theirs["quantization_config"]["ignore"].take();
    assert_eq!(ours, theirs);
    let ignored: Vec<&str> = ignored.as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect();
    assert_eq!(ignored.len(), 1 + 10 + 6 + 8);
    assert!(ignored.is_sorted() && ignored.contains(&"lm_head") && ignored.contains(&"mtp.fc"), "{ignored:?}");

    let index: Json = serde_json::from_slice(&made.read("model.safetensors.index.json")).unwrap();
    let theirs: Json = serde_json::from_slice(&reference.read("model.safetensors.index.json")).unwrap();
    assert_eq!(index["weight_map"], theirs["weight_map"]);
    assert_eq!(index["metadata"]["total_size"], theirs["metadata"]["total_size"]);
    assert_eq!(report.facts["quantised"], json!(25));
    assert_eq!(report.facts["bytes_out"], index["metadata"]["total_size"]);
}

#[test]
fn a_shard_without_a_quantised_tensor_and_the_sidecars_are_the_inputs_own() {
    let input = grafted();
    let (made, _, _guard) = quantise(&input, &nvfp4(&REFERENCE, &[])).unwrap();
    let changed: Vec<String> =
        made.tree.iter().filter(|(p, e)| input.tree.get(p) != Some(e)).map(|(p, _)| p.to_string()).collect();
    assert_eq!(
        changed,
        [
            "config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json"
        ]
    );
    assert_eq!(made.tree.len(), input.tree.len());
}

#[test]
fn dropped_tensors_go_with_their_shard_and_the_config_still_promises_them() {
    let input = grafted();
    let ignore = ["lm_head", "model.visual.*", "*.linear_attn.*", "*.embed_tokens"];
    let (made, report, _guard) = quantise(&input, &nvfp4(&ignore, &["mtp.*"])).unwrap();
    assert!(made.tree.at("model-mtp.safetensors").is_none());
    assert!(!made.tensors().keys().any(|n| n.starts_with("mtp.")));
    let index = String::from_utf8(made.read("model.safetensors.index.json")).unwrap();
    assert!(!index.contains("mtp"));
    let (before, after) = (input.read("config.json"), made.read("config.json"));
    let (before, after) = (String::from_utf8(before).unwrap(), String::from_utf8(after).unwrap());
    assert!(after.starts_with(before.trim_end().strip_suffix('}').unwrap().trim_end()), "{after}");
    assert!(after.contains("\"mtp_num_hidden_layers\": 1"));
    assert!(!config(&made)["quantization_config"]["ignore"].to_string().contains("mtp"));
    assert_eq!(report.facts["dropped"].as_array().unwrap().len(), 15);
}

/// A changed output must come with a new revision of the kind.
#[test]
fn the_tree_of_the_quantised_lineage_does_not_change_unnoticed() {
    let (made, _, _guard) = quantise(&grafted(), &nvfp4(&REFERENCE, &[])).unwrap();
    assert_eq!(
        (Quant.revision(), made.tree.id().to_string().as_str()),
        (1, "b3:6d13e0ebe53256309396c74bcb951c4765596fa91e79c40361244bf3b21948ed")
    );
}

/// Name, type, shape and bytes of a tensor.
type Made<'a> = (&'a str, &'a str, &'a [u64], &'a [u8]);

struct Small {
    dir: tempfile::TempDir,
}

impl Small {
    fn new(shards: &[(&str, &[Made<'_>])]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, tensors) in shards {
            std::fs::write(dir.path().join(name), shard(tensors)).unwrap();
        }
        std::fs::write(dir.path().join("config.json"), "{}").unwrap();
        Self { dir }
    }

    fn folder(&self) -> Folder {
        Folder::of(&[self.dir.path()])
    }

    fn add(&self, name: &str, text: &str) {
        std::fs::write(self.dir.path().join(name), text).unwrap();
    }
}

fn shard(tensors: &[Made<'_>]) -> Vec<u8> {
    let (mut header, mut body) = (serde_json::Map::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let begin = body.len();
        body.extend_from_slice(bytes);
        header
            .insert((*name).to_owned(), json!({ "dtype": dtype, "shape": shape, "data_offsets": [begin, body.len()] }));
    }
    let mut text = Json::Object(header).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    [&(text.len() as u64).to_le_bytes(), &text[..], &body].concat()
}

/// So many BF16 ones.
fn ones(n: usize) -> Vec<u8> {
    [0x80, 0x3f].repeat(n)
}

#[test]
fn a_bare_model_file_stays_bare_and_gets_no_index() {
    let small = Small::new(&[("model.safetensors", &[("a.weight", "BF16", &[2, 32], &ones(64))])]);
    let (made, _, _guard) = quantise(&small.folder(), &nvfp4(&[], &[])).unwrap();
    let names: Vec<_> = made.tree.iter().map(|(p, _)| p.to_string()).collect();
    assert_eq!(names, ["config.json", "model.safetensors"]);
    let tensors = made.tensors();
    // 1 / 6 in BF16, at a global scale of 2688: the code of 448; and every one is 6 of it.
    assert_eq!(tensors["a.weight_global_scale"], ("F32 [1]".into(), 2688f32.to_le_bytes().to_vec()));
    assert_eq!(tensors["a.weight_scale"], ("F8_E4M3 [2, 2]".into(), vec![0x7e; 4]));
    assert_eq!(tensors["a.weight_packed"], ("U8 [2, 16]".into(), vec![0x77; 32]));
}

#[test]
fn every_tensor_of_a_rewritten_shard_can_be_viewed_by_its_type() {
    // Three groups, hence three scale bytes, in front of everything; an odd number of BF16; an F32 behind them.
    let small = Small::new(&[(
        "model.safetensors",
        &[
            ("a.weight", "BF16", &[3, 16], &ones(48)),
            ("b.weight", "BF16", &[1, 16], &ones(16)),
            ("odd", "U8", &[1], &[7]),
            ("norm", "BF16", &[3], &ones(3)),
            ("f", "F32", &[1], &[0; 4]),
        ],
    )]);
    let (made, _, _guard) = quantise(&small.folder(), &nvfp4(&[], &[])).unwrap();
    let table = made.table("model.safetensors");
    for t in &table.tensors {
        let size = t.dtype.bits() / 8;
        assert_eq!((table.data_start + t.begin) % size, 0, "{}", t.name);
    }
    assert_eq!(made.tensors()["odd"].1, [7]);
}

#[test]
fn a_fused_group_shares_its_scale_across_shards() {
    let of = |x: f32| x.to_le_bytes().repeat(16);
    let small = Small::new(&[
        ("model-1.safetensors", &[("l.self_attn.q_proj.weight", "F32", &[1, 16], &of(1.0))]),
        ("model-2.safetensors", &[("l.self_attn.k_proj.weight", "F32", &[1, 16], &of(-8.0))]),
    ]);
    small.add(
        "model.safetensors.index.json",
        r#"{"weight_map": {"l.self_attn.q_proj.weight": "model-1.safetensors", "l.self_attn.k_proj.weight": "model-2.safetensors"}}"#,
    );
    let (made, _, _guard) = quantise(&small.folder(), &nvfp4(&[], &[])).unwrap();
    let tensors = made.tensors();
    for m in ["q", "k"] {
        assert_eq!(tensors[&format!("l.self_attn.{m}_proj.weight_global_scale")].1, 336f32.to_le_bytes(), "{m}");
    }
}

#[test]
fn an_infinity_is_refused_with_its_tensor_row_and_column() {
    let mut bytes = ones(64);
    bytes[2 * 37..][..2].copy_from_slice(&[0x80, 0xff]);
    let small = Small::new(&[("model.safetensors", &[("a.weight", "BF16", &[2, 32], &bytes)])]);
    let e = told(quantise(&small.folder(), &nvfp4(&[], &[])));
    assert_eq!(
        e,
        "a.weight of model.safetensors is -inf at [1, 5] and can't be quantised | repair the weight, or add its module to `ignore`"
    );
}

#[test]
fn a_quantised_input_and_a_missing_config_are_refused_with_what_to_do() {
    let tensors: &[Made<'_>] = &[("a.weight", "BF16", &[2, 32], &ones(64))];
    let small = Small::new(&[("model.safetensors", tensors)]);
    let hidden = small.folder().filtered(|p| p != "config.json");
    assert!(told(quantise(&hidden, &nvfp4(&[], &[]))).contains("add \"config.json\" to `uses` of inputs.model"));
    small.add("hf_quant_config.json", "{}");
    assert!(told(quantise(&small.folder(), &nvfp4(&[], &[]))).contains("quantised already: it has hf_quant_config"));
    let small = Small::new(&[("model.safetensors", tensors)]);
    small.add("config.json", r#"{"quantization_config": {"quant_method": "fp8"}}"#);
    assert!(told(quantise(&small.folder(), &nvfp4(&[], &[]))).contains("config.json has /quantization_config"));
}

#[test]
fn a_source_that_changed_since_it_was_hashed_is_refused() {
    let small = Small::new(&[("model.safetensors", &[("a.weight", "BF16", &[2, 32], &ones(64))])]);
    let before = small.folder();
    std::fs::write(
        small.dir.path().join("model.safetensors"),
        shard(&[("a.weight", "BF16", &[2, 32], &[0x00, 0x40].repeat(64))]),
    )
    .unwrap();
    assert!(told(quantise(&before, &nvfp4(&[], &[]))).contains("changed since it was hashed"));
}

#[test]
fn a_wrong_parameter_is_said_at_its_key() {
    let at = |toml: &str, aliases: &[&str]| Quant.check(&params(toml), aliases).unwrap_err().key;
    let model = &["model"][..];
    assert_eq!(at("", model), "method");
    assert_eq!(at("method = 'nvfp4a16'", &[]), "inputs");
    assert_eq!(at("method = 'nvfp4a16'\nargv = ['x']", model), "argv");
    assert_eq!(at("method = 'nvfp4'", model), "method");
    assert_eq!(at("method = 'nvfp4a16'\nignore = ['re:(']", model), "ignore");
    assert_eq!(at("method = 'nvfp4a16'\ntools = ['sh']", model), "tools");
    assert_eq!(at("method = 'nvfp4a16'", &["calib", "model"]), "inputs.calib");
    assert_eq!(at("argv = ['x']\nignore = ['lm_head']", model), "ignore");
    assert!(Quant.check(&params("argv = ['x']\ndrop = ['mtp.*']"), &["model", "s"]).is_ok());
}

#[test]
fn two_runs_give_one_tree() {
    let params = nvfp4(&REFERENCE, &[]);
    let trees: Vec<_> = (0..2).map(|_| quantise(&grafted(), &params).unwrap().0.tree.id()).collect();
    assert_eq!(trees[0], trees[1]);
}

#[test]
fn a_written_shard_is_entered_and_a_kept_one_is_not_copied() {
    let scratch = tempfile::tempdir().unwrap();
    run(&Quant, &nvfp4(&REFERENCE, &[]), &[("model", &grafted())], scratch.path()).unwrap();
    let here = |name: &str| scratch.path().join(name).exists();
    assert!(here("model-00001-of-00002.safetensors") && !here("model-mtp.safetensors") && !here("tokenizer.json"));
}

#[test]
fn a_stopped_step_says_so_at_once() {
    let scratch = tempfile::tempdir().unwrap();
    let watch = Watch::stop_after(5);
    let made = run_watched(&Quant, &nvfp4(&REFERENCE, &[]), &[("model", &grafted())], scratch.path(), &watch);
    assert!(matches!(made, Err(StepError::Cancelled)));
}

/// What a script made of `was`, looked at before it is published.
fn accepted(was: &Folder, now: &Folder, toml: &str) -> Result<Report, String> {
    let params = params(&format!("argv = ['quant.py']\n{toml}"));
    let inputs = [("model".to_owned(), was.input("model"))].into();
    let step = Step { params: &params, inputs: &inputs, progress: &Quiet };
    Quant.accept(&step, &now.input("out")).map_err(|e| match e {
        StepError::Invalid { what, hint } => format!("{what} | {}", hint.unwrap_or_default()),
        other => other.to_string(),
    })
}

#[test]
fn a_script_that_loses_the_draft_head_and_exits_0_has_failed_and_every_name_is_told() {
    let right = Folder::of(&[&data("lineage/quant-ct-right")]);
    let finetune = Folder::of(&[&data("lineage/finetune")]);
    let report = accepted(&finetune, &right, "").unwrap();
    assert_eq!(report.facts["bytes_in"], json!(finetune.tensors().values().map(|t| t.1.len()).sum::<usize>()));

    let sidecars = |f: &Folder| -> Vec<String> {
        let tree = f.input("x").tree;
        tree.iter().map(|(p, _)| p.to_string()).filter(|p| !p.contains("safetensors")).collect()
    };
    let left: Vec<String> = sidecars(&finetune).into_iter().filter(|p| !sidecars(&right).contains(p)).collect();
    assert!(left.contains(&"preprocessor_config.json".to_owned()) && !left.contains(&"config.json".to_owned()));
    assert_eq!(report.facts["files_left_behind"], json!(left));

    let told = accepted(&grafted(), &right, "").unwrap_err();
    for name in grafted().tensors().keys().filter(|n| n.starts_with("mtp.")) {
        assert!(told.contains(&format!("the tensor {name} is gone")), "{name}: {told}");
    }
    assert_eq!(told.matches("is gone").count(), 15, "{told}");
    assert!(accepted(&grafted(), &right, "drop = ['mtp.*']").is_ok());
    assert!(accepted(&grafted(), &right, "drop = ['mpt.*']").unwrap_err().contains("`drop`: the pattern \"mpt.*\""));
}

#[test]
fn a_script_that_loses_a_key_of_the_config_has_failed_unless_it_may() {
    let finetune = Folder::of(&[&data("lineage/finetune")]);
    let scratch = tempfile::tempdir().unwrap();
    let text = String::from_utf8(finetune.read("config.json")).unwrap();
    let line = text.lines().find(|l| l.contains("mtp_num_hidden_layers")).unwrap();
    std::fs::write(scratch.path().join("config.json"), text.replace(&format!("{line}\n"), "")).unwrap();
    let right = Folder::of(&[&data("lineage/quant-ct-right"), scratch.path()]);
    let told = accepted(&finetune, &right, "").unwrap_err();
    assert!(told.contains("the key text_config.mtp_num_hidden_layers of config.json is gone"), "{told}");
    assert!(accepted(&finetune, &right, "drop_config = ['text_config.mtp_num_hidden_layers']").is_ok());
    let bare = right.clone().filtered(|p| p != "config.json");
    assert!(accepted(&finetune, &bare, "").unwrap_err().contains("(all of it)"));
    let no_weights = right.filtered(|p| p == "config.json");
    assert!(accepted(&finetune, &no_weights, "").unwrap_err().contains("there is no *.safetensors file"));
}
