use super::*;
use serde_json::json;

use crate::digest::Digest;
use crate::kinds::testing::{Ran, at, checked, filtered, folder, made, params, run, told};
use crate::tensors::checkpoint::WeightFile;
use crate::tensors::index::INDEX_NAME;
use crate::tensors::testing::{Made, data, raw, shard};

const MTP: &str = r#"tensors = ["mtp.*"]"#;

fn one(name: &str, value: f32) -> Made {
    Made::f32(name, &[1], &[value])
}

fn pt(tensors: &[Made]) -> Vec<u8> {
    shard(Some(&[("format", "pt")]), tensors)
}

fn index(pairs: &[(&str, &str)], metadata: &str) -> Vec<u8> {
    let map: Vec<String> = pairs.iter().map(|(t, s)| format!("{t:?}: {s:?}")).collect();
    format!("{{\"metadata\": {metadata}, \"weight_map\": {{{}}}}}", map.join(", ")).into_bytes()
}

/// Tensor → the shard that holds it, over all headers of the output: each exactly once, as the index says.
fn held(ran: &Ran) -> BTreeMap<String, String> {
    let mut held = BTreeMap::new();
    for (path, blob, ..) in ran.out.tree.files() {
        if let Some(table) = ran.out.files.table(blob).unwrap() {
            for t in &table.tensors {
                let twice = held.insert(t.name.clone(), path.to_string());
                assert_eq!(twice, None, "{} stands twice", t.name);
            }
        }
    }
    // The reader under test is strict about index and shards.
    assert_eq!(open(&ran.out).unwrap().names(), held.keys().collect::<Vec<_>>());
    held
}

fn value_of(ran: &Ran, tensor: &str) -> f32 {
    let bytes = ran.read(&held(ran)[tensor]);
    let st = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    f32::from_le_bytes(st.tensor(tensor).unwrap().data().try_into().unwrap())
}

fn recorded(folder: &str) -> BTreeMap<String, (String, Vec<u64>, String)> {
    let text = std::fs::read(data("lineage-trained/tensors.json")).unwrap();
    let all: serde_json::Value = serde_json::from_slice(&text).unwrap();
    serde_json::from_value(all[folder].clone()).unwrap()
}

#[test]
fn the_demo_graft_is_the_recorded_one_and_copies_nothing_but_the_head() {
    let (into, from) = (folder("into", &at("demo/finetune")), folder("from", &at("demo/base")));
    let ran = run(&Graft, "tensors = [\"mtp.*\"]\nexpect = { count = 15, dtype = \"BF16\" }", &[&into, &from]).unwrap();
    let grafted = open(&ran.out).unwrap();
    let found: BTreeMap<_, _> = grafted
        .tensors()
        .map(|(_, e)| (e.name.clone(), (e.dtype.to_string(), e.shape.clone(), e.digest.hex())))
        .collect();
    assert_eq!(found, recorded("grafted"));
    for (path, entry) in into.tree.iter().filter(|(p, _)| p.as_str() != Some(INDEX_NAME)) {
        assert_eq!(ran.out.tree.get(path), Some(entry), "{path}");
    }
    assert_eq!(ran.out.tree.len(), into.tree.len() + 1);
    assert_eq!(grafted.index.unwrap().total_size(), Some(3_180_848));
    let reference = safetensors::SafeTensors::deserialize(&ran.read("model-graft.safetensors")).map(|s| s.len());
    assert_eq!(reference.unwrap(), 15);
    assert!(
        ran.report
            .notes
            .iter()
            .any(|n| n == "15 tensors taken: 15 added, 0 replaced, 0 there already with the same bytes")
    );
    assert_eq!(ran.report.facts["bytes"], json!(525_824));
    // Raise the revision when this changes.
    assert_eq!(ran.out.tree.id().to_string(), "b3:3b4a3b4b10f4b51cdfae81d55bf0cef2803b791062f7c2740e7a96a4de0b54e3");
    assert_eq!(Graft.revision(), 1);
}

#[test]
fn a_replacement_of_another_type_or_shape_is_told_with_both() {
    let (into, _a) = made("into", &[("model.safetensors", &pt(&[one("a", 1.0), one("b", 2.0)]))]);
    let from = [Made::f32("a", &[1, 1], &[1.0]), Made::new("b", "F16", &[1], &[0, 0])];
    let (from, _b) = made("from", &[("model.safetensors", &pt(&from))]);
    let ran = run(&Graft, "tensors = [\"*\"]", &[&into, &from]).unwrap();
    let told = ["a was F32 [1] and is F32 [1, 1]", "b was F32 [1] and is F16 [1]"];
    assert_eq!(ran.report.facts["reshaped"], json!(told));
    assert!(ran.report.notes.contains(&format!("replaced by another type or shape: {}", told.join(", "))));
}

#[test]
fn of_a_replaced_tensor_exactly_one_copy_is_left() {
    let (into, _a) = made(
        "into",
        &[
            ("model-00001-of-00002.safetensors", &pt(&[one("a", 1.0), one("mtp.fc.weight", 2.0), one("z", 3.0)])),
            ("model-00002-of-00002.safetensors", &pt(&[one("b", 4.0)])),
            (
                INDEX_NAME,
                &index(
                    &[
                        ("a", "model-00001-of-00002.safetensors"),
                        ("mtp.fc.weight", "model-00001-of-00002.safetensors"),
                        ("z", "model-00001-of-00002.safetensors"),
                        ("b", "model-00002-of-00002.safetensors"),
                    ],
                    "{\"total_size\": 16}",
                ),
            ),
        ],
    );
    let (from, _b) = made("from", &[("model.safetensors", &pt(&[one("mtp.fc.weight", 5.0)]))]);
    let ran = run(&Graft, MTP, &[&into, &from]).unwrap();
    let held = held(&ran);
    assert_eq!(held["mtp.fc.weight"], "model-graft.safetensors");
    assert_eq!(held["a"], "model-00001-of-00002.safetensors");
    assert_eq!((value_of(&ran, "mtp.fc.weight"), value_of(&ran, "z")), (5.0, 3.0));
    let second = "model-00002-of-00002.safetensors";
    assert_eq!(ran.out.tree.at(second), into.tree.at(second));
    assert_eq!(ran.report.facts["replaced"], json!(["mtp.fc.weight"]));
    assert_eq!(ran.report.facts["shards"]["rewritten"], json!(["model-00001-of-00002.safetensors"]));
}

#[test]
fn the_sums_of_the_index_follow_and_its_other_keys_stay() {
    let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let (into, _a) = made(
        "into",
        &[
            (shards[0], &pt(&[Made::f32("a", &[3], &[0.0; 3])])),
            (shards[1], &pt(&[Made::f32("b", &[5], &[0.0; 5])])),
            (
                INDEX_NAME,
                &index(
                    &[("a", shards[0]), ("b", shards[1])],
                    "{\"total_size\": 32, \"total_parameters\": 8, \"by\": {\"x\": 1.50}}",
                ),
            ),
        ],
    );
    let (from, _b) = made("from", &[("model.safetensors", &pt(&[Made::f32("mtp.x", &[2], &[1.0; 2])]))]);
    let ran = run(&Graft, MTP, &[&into, &from]).unwrap();
    let expected = "{\n  \"metadata\": {\n    \"total_size\": 40,\n    \"total_parameters\": 10,\n    \"by\": {\n      \
        \"x\": 1.50\n    }\n  },";
    assert!(ran.text(INDEX_NAME).starts_with(expected), "{}", ran.text(INDEX_NAME));
}

#[test]
fn a_wrong_total_size_is_noted_and_put_right() {
    let (into, _a) = made(
        "into",
        &[
            ("only.safetensors", &pt(&[one("a", 1.0)])),
            (INDEX_NAME, &index(&[("a", "only.safetensors")], "{\"total_size\": 77}")),
        ],
    );
    let (from, _b) = made("from", &[("model.safetensors", &pt(&[one("mtp.x", 1.0)]))]);
    let ran = run(&Graft, MTP, &[&into, &from]).unwrap();
    let note = "into: model.safetensors.index.json gives total_size as 77, and the tensors have 4 bytes";
    assert!(ran.report.notes.iter().any(|n| n == note), "{:?}", ran.report.notes);
    assert_eq!(open(&ran.out).unwrap().index.unwrap().total_size(), Some(8));
}

#[test]
fn the_new_shard_says_its_format_whatever_the_metadata_of_the_others() {
    let a = one("a", 1.0);
    let (into, _a) = made("into", &[("model.safetensors", &pt(&[a]))]);
    let x = r#""mtp.x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#;
    for (metadata, dropped) in [
        ("", None),
        (r#""__metadata__":{},"#, None),
        (r#""__metadata__":null,"#, None),
        (r#""__metadata__":{"format":"pt","note":"k"},"#, Some(json!({"model.safetensors": {"note": "k"}}))),
    ] {
        let (from, _b) = made("from", &[("model.safetensors", &raw(&format!("{{{metadata}{x}}}"), &[0; 4]))]);
        let ran = run(&Graft, MTP, &[&into, &from]).unwrap();
        let bytes = ran.read("model-graft.safetensors");
        let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        let written = header.metadata().clone().unwrap();
        assert_eq!(written.into_iter().collect::<Vec<_>>(), [("format".to_owned(), "pt".to_owned())], "{metadata}");
        assert_eq!(ran.report.facts.get("metadata_dropped_of_from"), dropped.as_ref(), "{metadata}");
        assert_eq!(
            ran.report.notes.iter().any(|n| n == "dropped from __metadata__ of `from`: note"),
            dropped.is_some()
        );
    }
}

#[test]
fn tensors_of_every_type_are_copied_byte_for_byte_and_never_decoded() {
    let tensors = [
        Made::new("mtp.f4", "F4", &[2, 8], &[1, 2, 3, 4, 5, 6, 7, 8]),
        Made::new("mtp.e8m0", "F8_E8M0", &[3], &[255, 0, 127]),
        Made::new("mtp.f6", "F6_E2M3", &[4], &[9, 8, 7]),
        Made::new("mtp.e5m2", "F8_E5M2", &[2], &[0x7c, 0xff]),
        Made::new("mtp.c64", "C64", &[1], &[1, 2, 3, 4, 5, 6, 7, 8]),
        Made::new("mtp.scalar", "F32", &[], &[0, 0, 0xc0, 0x7f]),
        Made::new("mtp.empty", "BF16", &[0, 3], &[]),
        Made::new("mtp. \"odd\"/../\u{1F600}\n", "U8", &[1], &[1]),
    ];
    let (into, _a) = made("into", &[("model.safetensors", &pt(&[one("a", 1.0)]))]);
    let (from, _b) = made("from", &[("model.safetensors", &pt(&tensors))]);
    let ran = run(&Graft, MTP, &[&into, &from]).unwrap();
    let bytes = ran.read("model-graft.safetensors");
    let st = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    for t in &tensors {
        assert_eq!(st.tensor(&t.name).unwrap().data(), t.bytes, "{}", t.name);
    }
    let total: usize = tensors.iter().map(|t| t.bytes.len()).sum();
    assert_eq!(open(&ran.out).unwrap().index.unwrap().total_size(), Some(total as u64 + 4));

    for (header, message) in [
        (
            r#"{"mtp.q":{"dtype":"Q4_K","shape":[1],"data_offsets":[0,1]}}"#,
            "the tensor \"mtp.q\" has the unknown element type \"Q4_K\"",
        ),
        (
            r#"{"mtp.q":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}"#,
            "the tensor \"mtp.q\" of type F4 and shape [3]: its 12 bits are no whole number of bytes",
        ),
    ] {
        let (from, _b) = made("from", &[("model.safetensors", &raw(header, &[0]))]);
        let error = told(run(&Graft, MTP, &[&into, &from]));
        assert!(error.starts_with("the input `from`: model.safetensors") && error.contains(message), "{error}");
    }
}

#[test]
fn a_pattern_of_another_namespace_is_an_error_that_shows_the_right_one() {
    let (into, _a) = made("into", &[("model.safetensors", &pt(&[one("model.layers.0.w", 1.0)]))]);
    let name = "model.language_model.layers.0.w";
    let (from, _b) = made("from", &[("model.safetensors", &pt(&[one(name, 2.0)]))]);
    let error = told(run(&Graft, "tensors = [\"model.layers.*\"]", &[&into, &from]));
    assert!(
        error.starts_with("tensors: the pattern \"model.layers.*\" matches none of 1 names of the input `from`"),
        "{error}"
    );
    assert!(error.contains("did you mean \"model.language_model.layers.*\" (matches 1)"), "{error}");

    // An explicit map, and nothing else, brings the names together.
    let renamed = "tensors = [\"model.*\"]\nrename = { \"model.language_model.*\" = \"model.*\" }";
    let ran = run(&Graft, renamed, &[&into, &from]).unwrap();
    assert_eq!(value_of(&ran, "model.layers.0.w"), 2.0);
    assert_eq!(held(&ran).len(), 1);
}

#[test]
fn renames_that_clash_or_meet_nothing_are_errors() {
    let (into, _a) = made("into", &[("model.safetensors", &pt(&[one("a", 1.0)]))]);
    let (from, _b) = made(
        "from",
        &[("model.safetensors", &pt(&[one("x.a", 1.0), one("y.a", 2.0), one("x.b.c", 3.0), one("x.d", 4.0)]))],
    );
    let with = |rename: &str| run(&Graft, &format!("tensors = [\"*\"]\nrename = {{ {rename} }}"), &[&into, &from]);
    assert!(told(with("\"x.*\" = \"y.*\"")).starts_with("rename: \"x.a\" and \"y.a\" would both become \"y.a\""));
    let error = told(with("\"x.c\" = \"q\""));
    assert!(
        error.starts_with("rename: \"x.c\" meets none of the 4 tensors") && error.contains("did you mean"),
        "{error}"
    );
    let error = told(with("\"x.a*\" = \"*\""));
    assert!(error.starts_with("rename: \"x.a\" would become \"\""), "{error}");
    // The longest prefix decides, and an exact name before any.
    let ran = with("\"x.*\" = \"p.*\", \"x.b.*\" = \"q.*\", \"x.a\" = \"r\"").unwrap();
    assert_eq!(held(&ran).into_keys().collect::<Vec<_>>(), ["a", "p.d", "q.c", "r", "y.a"]);
}

#[test]
fn every_other_file_of_into_arrives_and_those_of_from_are_named_as_not_taken() {
    let sidecars = [
        "generation_config.json",
        "preprocessor_config.json",
        "chat_template.jinja",
        "special_tokens_map.json",
        "modeling_x.py",
        "LICENSE",
        "assets/a.txt",
    ];
    let weights = pt(&[one("a", 1.0)]);
    let mut files: Vec<(&str, &[u8])> = sidecars.iter().map(|s| (*s, s.as_bytes())).collect();
    files.push(("model.safetensors", &weights));
    let (into, _a) = made("into", &files);
    let donor = pt(&[one("mtp.x", 1.0)]);
    let (from, _b) = made("from", &[("model.safetensors", &donor), ("LICENSE", b"another"), ("vocab.txt", b"v")]);
    let ran = run(&Graft, MTP, &[&into, &from]).unwrap();
    for s in sidecars {
        assert_eq!(ran.text(s), s);
    }
    assert!(ran.out.tree.at("vocab.txt").is_none());
    assert_eq!(ran.report.facts["files_not_taken"], json!(["LICENSE", "vocab.txt"]));
    assert!(ran.report.notes.iter().any(|n| n == "of `from` only tensors are taken, not LICENSE, vocab.txt"));
}

#[test]
fn a_head_goes_into_a_tied_model_only_where_that_is_asked_for() {
    let weights = pt(&[one("model.embed_tokens.weight", 1.0)]);
    let (from, _b) = made("from", &[("model.safetensors", &pt(&[one("lm_head.weight", 2.0)]))]);
    let head = "tensors = [\"lm_head.*\"]";
    for (config, place) in [
        ("{\"tie_word_embeddings\": true}", Some("tie_word_embeddings")),
        (
            "{\"tie_word_embeddings\": false, \"text_config\": {\"tie_word_embeddings\": true}}",
            Some("text_config.tie_word_embeddings"),
        ),
        ("{\"tie_word_embeddings\": false}", None),
        ("{}", None),
    ] {
        let (into, _a) = made("into", &[("model.safetensors", &weights), ("config.json", config.as_bytes())]);
        let plain = run(&Graft, head, &[&into, &from]);
        let Some(place) = place else {
            assert_eq!(plain.unwrap().report.facts["head_into_tied_model"], json!(false));
            continue;
        };
        let error = told(plain);
        assert!(
            error.starts_with(&format!(
                "lm_head.weight is to be put into a model whose config.json says {place} = true"
            )),
            "{error}"
        );
        assert!(error.contains("hint: set allow_tied = true"), "{error}");
        let allowed = run(&Graft, &format!("{head}\nallow_tied = true"), &[&into, &from]).unwrap();
        assert_eq!(value_of(&allowed, "lm_head.weight"), 2.0);
        // Not hashed, so a result that is reused is held against it again.
        assert!(Graft.still_holds(&params(&format!("{head}\nallow_tied = true")), &allowed.report.facts).is_ok());
        assert!(Graft.still_holds(&params(head), &allowed.report.facts).is_err());
    }
}

#[test]
fn a_bare_file_gets_a_number_and_an_index_so_that_loaders_see_both() {
    let (into, _a) = made("into", &[("model.safetensors", &pt(&[one("a", 1.0)]))]);
    let (from, _b) = made("from", &[("model.safetensors", &pt(&[one("mtp.x", 2.0)]))]);
    let ran = run(&Graft, MTP, &[&into, &from]).unwrap();
    assert_eq!(
        held(&ran).into_values().collect::<Vec<_>>(),
        ["model-00001-of-00002.safetensors", "model-graft.safetensors"]
    );
    assert!(ran.out.tree.at("model.safetensors").is_none());
    assert_eq!(ran.out.tree.at("model-00001-of-00002.safetensors"), into.tree.at("model.safetensors"));
    assert_eq!(ran.report.facts["shards"]["renamed"], json!("model-00001-of-00002.safetensors"));
    assert_eq!(
        ran.text(INDEX_NAME),
        "{\n  \"metadata\": {\n    \"total_size\": 8\n  },\n  \"weight_map\": {\n    \"a\": \
         \"model-00001-of-00002.safetensors\",\n    \"mtp.x\": \"model-graft.safetensors\"\n  }\n}\n"
    );
}

#[test]
fn a_shard_that_loses_all_its_tensors_is_left_out() {
    let (into, _a) = made(
        "into",
        &[
            ("model.safetensors", &shard(Some(&[("format", "pt"), ("note", "k")]), &[one("mtp.x", 1.0)])),
            ("model_2.safetensors", &pt(&[one("a", 2.0)])),
            (INDEX_NAME, &index(&[("mtp.x", "model.safetensors"), ("a", "model_2.safetensors")], "{}")),
        ],
    );
    let (from, _b) = made("from", &[("model.safetensors", &pt(&[one("mtp.x", 3.0)]))]);
    let ran = run(&Graft, MTP, &[&into, &from]).unwrap();
    assert_eq!(held(&ran).into_values().collect::<Vec<_>>(), ["model_2.safetensors", "model-graft.safetensors"]);
    assert_eq!(ran.report.facts["shards"]["left_out"], json!(["model.safetensors"]));
    assert_eq!(ran.report.facts["metadata_dropped_of_into"], json!({"model.safetensors": {"note": "k"}}));
}

#[test]
fn a_tensor_that_is_there_with_the_same_bytes_costs_nothing() {
    let there = pt(&[one("a", 1.0), one("mtp.x", 2.0)]);
    let (into, _a) = made("into", &[("model.safetensors", &there)]);
    let (from, _b) = made("from", &[("other.safetensors", &pt(&[one("mtp.x", 2.0)]))]);
    let ran = run(&Graft, MTP, &[&into, &from]).unwrap();
    assert_eq!(ran.out.tree.id(), into.tree.id());
    assert_eq!(ran.report.facts["unchanged"], json!(["mtp.x"]));
    assert!(ran.report.notes.iter().any(|n| n.starts_with("nothing is written")));

    // Beside one that is new, it stays where it is, and its shard is not rewritten.
    let (from, _b) = made("from", &[("other.safetensors", &pt(&[one("mtp.x", 2.0), one("mtp.y", 3.0)]))]);
    let ran = run(&Graft, MTP, &[&into, &from]).unwrap();
    assert_eq!(held(&ran)["mtp.x"], "model-00001-of-00002.safetensors");
    assert_eq!(ran.out.tree.at("model-00001-of-00002.safetensors"), into.tree.at("model.safetensors"));
    // Another type or shape over the same bytes is another tensor.
    let (from, _b) = made("from", &[("other.safetensors", &pt(&[Made::f32("mtp.x", &[1, 1], &[2.0])]))]);
    let ran = run(&Graft, MTP, &[&into, &from]).unwrap();
    assert_eq!(ran.report.facts["replaced"], json!(["mtp.x"]));
}

#[test]
fn a_second_graft_finds_another_name_and_a_given_name_must_be_free() {
    let (into, _a) = made("into", &[("model.safetensors", &pt(&[one("a", 1.0)]))]);
    let (from, _b) = made("from", &[("model.safetensors", &pt(&[one("mtp.x", 2.0), one("q", 3.0)]))]);
    let mut first = run(&Graft, MTP, &[&into, &from]).unwrap();
    first.out.alias = "into".to_owned();
    let second = run(&Graft, "tensors = [\"q\"]", &[&first.out, &from]).unwrap();
    assert_eq!(held(&second)["q"], "model-graft-2.safetensors");
    let named = |name: &str| run(&Graft, &format!("tensors = [\"q\"]\nshard = \"{name}\""), &[&first.out, &from]);
    assert_eq!(held(&named("model-q.safetensors").unwrap())["q"], "model-q.safetensors");
    assert!(
        told(named("model-graft.safetensors"))
            .starts_with("shard: model-graft.safetensors is in the input `into` already")
    );
    assert!(told(named("q.safetensors")).contains("does not start with `model-`"));
    assert!(told(named("model-../q.safetensors")).contains("is no name of a shard"));
}

#[test]
fn an_expectation_that_does_not_hold_says_both_values() {
    let (into, _a) = made("into", &[("model.safetensors", &pt(&[one("a", 1.0)]))]);
    let (from, _b) =
        made("from", &[("model.safetensors", &pt(&[one("mtp.x", 2.0), Made::new("mtp.y", "U8", &[1], &[1])]))]);
    let with = |expect: &str| run(&Graft, &format!("{MTP}\nexpect = {{ {expect} }}"), &[&into, &from]);
    assert!(told(with("count = 15")).starts_with("expect.count is 15, but `tensors` takes 2"));
    assert!(
        told(with("count = 2, dtype = \"F32\"")).starts_with("expect.dtype is F32, but `tensors` takes U8 (mtp.y)")
    );
    let ran = with("count = 2, dtype = [\"F32\", \"U8\"]").unwrap();
    let holds =
        |expect: &str| Graft.still_holds(&params(&format!("{MTP}\nexpect = {{ {expect} }}")), &ran.report.facts);
    assert!(holds("count = 2").is_ok());
    assert!(told(holds("count = 3")).starts_with("expect.count is 3, but `tensors` takes 2"));
    assert!(told(holds("dtype = \"BF16\"")).starts_with("expect.dtype is BF16, but `tensors` takes F32"));
}

#[test]
fn wrong_keys_are_refused_before_anything_runs() {
    let (into, _a) = made("into", &[]);
    let (from, _b) = made("from", &[]);
    let (more, _c) = made("more", &[]);
    let error = |toml: &str, inputs: &[&Input]| {
        let e = checked(&Graft, toml, inputs).unwrap_err();
        (e.key, e.what)
    };
    assert_eq!(error(MTP, &[&into]).0, "inputs.from");
    assert_eq!(error(MTP, &[&into, &from, &more]), ("inputs.more".into(), "`more` is no input of this kind".into()));
    let both = [&into, &from];
    assert_eq!(error("tensors = []", &both).0, "tensors");
    assert_eq!(error("tensors = [1]", &both).0, "tensors");
    assert_eq!(error("", &both).0, "tensors");
    for (more, key) in [
        ("expect = { cuont = 1 }", "expect.cuont"),
        ("expect = { count = -1 }", "expect.count"),
        ("expect = { dtype = \"BF17\" }", "expect.dtype"),
        ("rename = { \"a*\" = \"b\" }", "rename.a*"),
        ("rename = { \"a*b\" = \"b\" }", "rename.a*b"),
        ("rename = { a = \"\" }", "rename.a"),
        ("rename = { a = 1 }", "rename.a"),
        ("allow_tied = 1", "allow_tied"),
        ("shard = \"x.safetensors\"", "shard"),
    ] {
        assert_eq!(error(&format!("{MTP}\n{more}"), &both).0, key, "{more}");
    }
    assert!(checked(&Graft, "tensors = [\"mtp.*\"]\nexpect = { dtype = \"BF16\" }", &both).is_ok());
}

#[test]
fn index_and_shards_that_do_not_agree_are_refused_naming_the_input() {
    let (from, _b) = made("from", &[("model.safetensors", &pt(&[one("mtp.x", 2.0)]))]);
    for (case, message) in [
        ("i1-index-missing-shard", "there is no such file"),
        ("i3-tensor-not-in-index", "holds \"mtp.fc.weight\", which model.safetensors.index.json does not name"),
        ("i4-tensor-in-two-shards", "\"b\" stands in model-00001-of-00002.safetensors and in"),
        ("i6-index-and-single", "\"model.safetensors\" beside model.safetensors.index.json"),
    ] {
        let into = folder("into", &data("malformed").join(case));
        let error = told(run(&Graft, MTP, &[&into, &from]));
        assert!(error.starts_with("the input `into`: ") && error.contains(message), "{error}");
    }
    let cut = filtered("into", &at("demo/finetune"), |p| p.ends_with(".json"));
    assert!(told(run(&Graft, MTP, &[&cut, &from])).contains("there is no such file"));
}

#[test]
fn twenty_thousand_tensors_are_grafted() {
    let tensors: Vec<Made> = (0..20_000).map(|i| Made::new(&format!("mtp.{i}"), "U8", &[1], &[1])).collect();
    let (into, _a) = made("into", &[("model.safetensors", &pt(&[one("a", 1.0)]))]);
    let (from, _b) = made("from", &[("model.safetensors", &pt(&tensors))]);
    let ran = run(&Graft, MTP, &[&into, &from]).unwrap();
    assert_eq!(ran.report.facts["count"], json!(20_000));
    assert_eq!(open(&ran.out).unwrap().names().len(), 20_001);
}

#[test]
fn a_shard_behind_a_link_inside_the_tree_is_a_shard() {
    use crate::model::path::RelPath;
    use crate::model::tree::Entry;
    let (mut into, _a) = made("into", &[("weights/x.safetensors", &pt(&[one("a", 1.0)]))]);
    let mut tree = (*into.tree).clone();
    let link = Entry::Link { target: b"weights/x.safetensors".to_vec() };
    tree.insert(RelPath::try_from("model.safetensors").unwrap(), link).unwrap();
    into.tree = std::sync::Arc::new(tree);
    let found = open(&into).unwrap();
    let WeightFile { name, size, .. } = &found.shards[0].file;
    assert_eq!((name.as_str(), *size), ("model.safetensors", pt(&[one("a", 1.0)]).len() as u64));
    assert_eq!(found.names(), ["a"]);
    assert_ne!(found.shards[0].file.blob.0, Digest::of(b""));
}
