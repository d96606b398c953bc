//! What an edit does, told with the demo's models and small files.

use super::*;
use crate::kinds::testing::{at, checked, file, filtered, folder, made, run, told};

const CONFIG: &str = "{\n  \"architectures\": [\n    \"A\"\n  ],\n  \"text_config\": {\n    \"eps\": 1e-06,\n    \"theta\": 10000.0,\n    \"mtp_num_hidden_layers\": 1\n  },\n  \"dtype\": \"bfloat16\"\n}";
const PROCESSOR: &str = "{\n  \"image_processor\": {\n    \"do_resize\": true,\n    \"image_mean\": [\n      0.50,\n      5e-1\n    ]\n  },\n  \"processor_class\": \"P\"\n}\n";

fn model() -> (crate::kinds::Input, tempfile::TempDir) {
    made(
        "model",
        &[("config.json", CONFIG.as_bytes()), ("processor_config.json", PROCESSOR.as_bytes()), ("notes/a.txt", b"a")],
    )
}

#[test]
fn values_are_set_copied_and_removed_and_no_other_character_changes() {
    let (model, _a) = model();
    let (side, _b) = made("side", &[("other.json", b"{\"rope\": {\"theta\": 5e5}}")]);
    let ran = run(
        &Edit,
        r#"
        set."config.json" = { "/text_config/theta" = 10000, "/dtype" = "float16", "/architectures/-" = "B" }
        set_from."config.json" = { "/rope" = "side/other.json#/rope" }
        remove."config.json" = ["/text_config/mtp_num_hidden_layers"]
        "#,
        &[&model, &side],
    )
    .unwrap();
    let want = CONFIG
        .replace("\"A\"", "\"A\",\n    \"B\"")
        .replace("10000.0,\n    \"mtp_num_hidden_layers\": 1", "10000")
        .replace("\"bfloat16\"", "\"float16\",\n  \"rope\": {\"theta\": 5e5}");
    assert_eq!(ran.text("config.json"), want);
    assert_eq!(ran.out.tree.at("notes/a.txt"), model.tree.at("notes/a.txt"));
    assert_eq!(ran.report.facts["edited"], serde_json::json!(["config.json"]));
}

#[test]
fn editing_to_what_is_there_already_gives_the_same_tree_and_says_so() {
    let (model, _a) = model();
    let toml = "set.\"config.json\" = { \"/text_config/eps\" = 0.000001, \"/dtype\" = \"bfloat16\" }";
    let ran = run(&Edit, toml, &[&model]).unwrap();
    assert_eq!(ran.out.tree.id(), model.tree.id());
    assert_eq!(ran.report.notes[1], "config.json: /text_config/eps has that value already");
}

#[test]
fn a_preprocessor_config_is_made_from_the_image_processor_as_it_is_written() {
    let (model, _a) = model();
    let toml = "add.\"preprocessor_config.json\" = \"model/processor_config.json#/image_processor\"";
    let ran = run(&Edit, toml, &[&model]).unwrap();
    assert_eq!(
        ran.text("preprocessor_config.json"),
        "{\n  \"do_resize\": true,\n  \"image_mean\": [\n    0.50,\n    5e-1\n  ]\n}\n"
    );
}

#[test]
fn a_file_that_was_just_added_can_be_edited() {
    let (model, _a) = model();
    let toml =
        "add.\"p.json\" = \"model/processor_config.json#/image_processor\"\nset.\"p.json\" = { \"/new\" = [1, 2] }";
    let ran = run(&Edit, toml, &[&model]).unwrap();
    assert!(ran.text("p.json").ends_with("  ],\n  \"new\": [\n    1,\n    2\n  ]\n}\n"), "{}", ran.text("p.json"));
}

#[test]
fn the_demos_second_finetune_gets_another_template_and_keeps_all_else() {
    let model = folder("model", &at("demo/finetune"));
    let template = file("template", &at("demo/terse.jinja"));
    let ran = run(&Edit, "add = { \"chat_template.jinja\" = \"template\" }", &[&model, &template]).unwrap();
    let changed: Vec<_> = ran.out.tree.iter().filter(|(p, e)| model.tree.get(p) != Some(e)).map(|(p, _)| p).collect();
    assert_eq!(format!("{changed:?}"), "[\"chat_template.jinja\"]");
    assert_eq!(ran.out.tree.len(), model.tree.len());
    assert_eq!(ran.read("chat_template.jinja"), std::fs::read(at("demo/terse.jinja")).unwrap());
}

#[test]
fn the_demos_sidecars_return() {
    let side = folder("side", &at("demo/finetune"));
    let weights = |p: &str| p.contains("safetensors") || p == "config.json";
    let model = filtered("model", &at("demo/finetune"), weights);
    let toml = r#"copy.side = ["*token*.json", "generation_config.json", "*processor_config.json", "*.jinja"]"#;
    let ran = run(&Edit, toml, &[&model, &side]).unwrap();
    assert_eq!(ran.out.tree.id(), side.tree.id());
    assert_eq!(ran.report.facts["added"].as_array().unwrap().len(), 6);
}

#[test]
fn a_file_that_both_have_with_other_bytes_is_an_error_unless_replacing_is_asked_for() {
    let (model, _a) = model();
    let (side, _b) = made("side", &[("config.json", b"{}"), ("notes/a.txt", b"a")]);
    let e = told(run(&Edit, "copy.side = [\"**\"]", &[&model, &side]));
    assert_eq!(
        e,
        "copy.side: config.json is in `model` and in `side`, with other bytes\nhint: leave it out of the globs, or say `replace = true`"
    );
    assert!(run(&Edit, "copy.side = [\"notes/**\"]", &[&model, &side]).is_ok(), "the same bytes are no conflict");
    let ran = run(&Edit, "copy.side = [\"*.json\"]\nreplace = true", &[&model, &side]).unwrap();
    assert_eq!(ran.text("config.json"), "{}");
}

#[test]
fn globs_and_pointers_and_paths_that_match_nothing_are_errors_with_near_names() {
    let (model, _a) = model();
    let (side, _b) = made("side", &[("tokenizer.json", b"{}")]);
    let e = |toml: &str| told(run(&Edit, toml, &[&model, &side]));
    assert_eq!(
        e("drop = [\"procesor_config*.json\"]"),
        "drop: \"procesor_config*.json\" matches nothing\nhint: did you mean `processor_config.json`?"
    );
    assert_eq!(e("drop = \"*.txt\"").lines().next().unwrap(), "drop: \"*.txt\" matches nothing", "* does not cross /");
    assert!(e("copy.side = [\"tokeniser.json\"]").ends_with("hint: did you mean `tokenizer.json`?"));
    assert_eq!(
        e("remove.\"config.json\" = [\"/text_config/mtp_num_hiden_layers\"]"),
        "config.json: there is nothing at \"/text_config/mtp_num_hiden_layers\": \"/text_config\" has no \"mtp_num_hiden_layers\"\nhint: did you mean `mtp_num_hidden_layers`?"
    );
    let slip = e("set.\"confg.json\" = { \"/a\" = 1 }");
    assert!(slip.contains("did you mean `config.json`"), "{slip}");
    assert!(e("add.\"a\" = \"side/tokenizer.jsn\"").ends_with("did you mean `tokenizer.json`?"));
    assert!(e("add.\"a\" = \"model\"").starts_with("add.\"a\": the input `model` is no single file"));
    assert!(
        e("add.\"a\" = \"model/processor_config.json#/image_procesor\"").ends_with("did you mean `image_processor`?")
    );
    assert!(e("set_from.\"config.json\" = { \"/a\" = \"side/tokenizer.json#/nope\" }").contains("has no \"nope\""));
}

#[test]
fn missing_parents_are_made_only_when_asked() {
    let (model, _a) = model();
    let toml = "set.\"config.json\" = { \"/quantization_config/ignore\" = [\"lm_head\"] }";
    let e = told(run(&Edit, toml, &[&model]));
    assert!(e.ends_with("say `create_parents = true` to make what is missing on the way"), "{e}");
    let ran = run(&Edit, &format!("create_parents = true\n{toml}"), &[&model]).unwrap();
    let tail = ",\n  \"quantization_config\": {\n    \"ignore\": [\n      \"lm_head\"\n    ]\n  }\n}";
    assert_eq!(ran.text("config.json"), format!("{}{tail}", CONFIG.strip_suffix("\n}").unwrap()));
}

#[test]
fn broken_json_is_an_error_with_line_and_column() {
    let (model, _a) = made("model", &[("config.json", b"{\"a\": 1,\n \"a\": 2}")]);
    let e = told(run(&Edit, "set.\"config.json\" = { \"/a\" = 1 }", &[&model]));
    assert!(e.starts_with("config.json: line 2, column 2: the key \"a\" stands twice"), "{e}");
}

#[test]
fn weights_and_index_must_still_agree() {
    let model = folder("model", &at("demo/finetune"));
    let base = folder("base", &at("demo/base"));
    let e = |toml: &str| told(run(&Edit, toml, &[&model, &base]));
    let lost = e("drop = [\"model-00002-of-00002.safetensors\"]");
    assert!(
        lost.starts_with("model.safetensors.index.json names the shard model-00002-of-00002.safetensors"),
        "{lost}"
    );
    assert!(e("drop = [\"*.index.json\"]").starts_with("2 weight files and no model.safetensors.index.json"));
    let stray = e("add.\"model-mtp.safetensors\" = \"base/model-00001-of-00002.safetensors\"");
    assert!(stray.starts_with("model-mtp.safetensors would be a weight file that"), "{stray}");
    let other = e("set.\"model.safetensors.index.json\" = { \"/weight_map\" = { a = \"x.safetensors\" } }");
    assert!(other.contains("names the shard x.safetensors"), "{other}");
    assert!(run(&Edit, "drop = [\"*safetensors*\"]", &[&model]).is_ok(), "all weights may go together");
}

#[test]
fn wrong_parameters_are_said_at_their_key() {
    let (model, _a) = model();
    let key = |toml: &str| checked(&Edit, toml, &[&model]).unwrap_err().key;
    assert_eq!(key("add.\"a.json\" = \"nope/x\""), "add.\"a.json\"");
    assert_eq!(key("copy.nope = [\"*\"]"), "copy.nope");
    assert_eq!(key("copy.model = [\"*\"]"), "copy.model");
    assert_eq!(key("drop = [\"[\"]"), "drop");
    assert_eq!(key("set.\"config.json\".\"no-slash\" = 1"), "set.\"config.json\".no-slash");
    assert_eq!(key("set.\"config.json\".\"/a\" = 1979-05-27"), "set.\"config.json\".\"/a\"");
    assert_eq!(key("set.\"../x\".\"/a\" = 1"), "set.\"../x\"");
    assert_eq!(key("set_from.\"config.json\".\"/a\" = \"model/config.json\""), "set_from.\"config.json\".\"/a\"");
    assert_eq!(key("set.\"c.json\".\"/a\" = 1\nremove.\"c.json\" = [\"/a\"]"), "set.\"c.json\"");
    assert_eq!(Edit.check(&Params::new(), &["a"]).unwrap_err().key, "inputs");
}

/// Raise `REVISION` with this: another output for the same inputs is another recipe.
#[test]
fn the_same_edit_gives_the_same_tree_until_the_revision_is_raised() {
    let (model, _a) = model();
    let toml = r#"
        create_parents = true
        add."preprocessor_config.json" = "model/processor_config.json#/image_processor"
        drop = ["notes/**"]
        remove."config.json" = ["/dtype"]
        set."config.json" = { "/text_config/list" = [1, 2.5, { a = [], b = "é\n" }], "/q/ignore" = ["lm_head"] }
        "#;
    let ran = run(&Edit, toml, &[&model]).unwrap();
    assert_eq!((REVISION, ran.out.tree.id().short().as_str()), (1, "b3:72eb3382fa6b"));
}
