use super::*;
use crate::kinds::testing::{Ran, at, checked, filtered, folder, made, run, told};
use crate::tensors::checkpoint::is_weight_file;
use crate::tensors::index::INDEX_NAME;
use crate::tensors::testing::{Made, data, shard};

const MTP: &str = r#"tensors = ["mtp.*"]"#;
const EIGHT: [&str; 8] = [
    "mtp.fc",
    "mtp.layers.0.mlp.down_proj",
    "mtp.layers.0.mlp.gate_proj",
    "mtp.layers.0.mlp.up_proj",
    "mtp.layers.0.self_attn.k_proj",
    "mtp.layers.0.self_attn.o_proj",
    "mtp.layers.0.self_attn.q_proj",
    "mtp.layers.0.self_attn.v_proj",
];

fn base() -> Input {
    filtered("from", &at("demo/base"), is_weight_file)
}

fn one(name: &str, value: f32) -> Made {
    Made::f32(name, &[1], &[value])
}

fn pt(tensors: &[Made]) -> Vec<u8> {
    shard(Some(&[("format", "pt")]), tensors)
}

fn tensors_of(input: &Input) -> BTreeMap<String, (String, Vec<u64>, String)> {
    open(input)
        .unwrap()
        .tensors()
        .map(|(_, e)| (e.name.clone(), (e.dtype.to_string(), e.shape.clone(), e.digest.hex())))
        .collect()
}

/// Names in the order of the data.
fn order(ran: &Ran, file: &str) -> Vec<String> {
    let c = open(&ran.out).unwrap();
    c.shard(file).unwrap().table.tensors.iter().map(|t| t.name.clone()).collect()
}

fn list(ran: &Ran, file: &str, at: &str) -> Vec<String> {
    let json: Json = serde_json::from_str(&ran.text(file)).unwrap();
    serde_json::from_value(json.pointer(at).unwrap().clone()).unwrap()
}

/// The lines that the new text has and the old one does not, where nothing else differs but commas behind them.
fn lines_added(old: &str, new: &str) -> Vec<String> {
    let mut old: Vec<&str> = old.lines().collect();
    let mut added = vec![];
    for line in new.lines() {
        match old.first() {
            Some(o) if *o == line || format!("{o},") == line => drop(old.remove(0)),
            _ => added.push(line.trim().trim_matches([',', '"']).to_owned()),
        }
    }
    assert!(old.is_empty(), "lines were lost: {old:?}");
    added
}

#[test]
fn a_head_spliced_into_a_modelopt_quant_is_the_recorded_one_and_excluded_by_exact_names_in_both_files() {
    let into = folder("into", &data("lineage-trained/quant-modelopt"));
    let ran = run(&Splice, &format!("{MTP}\nexpect = {{ count = 15, dtype = \"BF16\" }}"), &[&into, &base()]).unwrap();
    let facts: Json = serde_json::from_slice(&std::fs::read(data("lineage-trained/tensors.json")).unwrap()).unwrap();
    let recorded: BTreeMap<String, (String, Vec<u64>, String)> =
        serde_json::from_value(facts["spliced-modelopt"].clone()).unwrap();
    assert_eq!(tensors_of(&ran.out), recorded);
    for (file, pointer) in
        [("config.json", "/quantization_config/ignore"), ("hf_quant_config.json", "/quantization/exclude_modules")]
    {
        let old = std::fs::read_to_string(data("lineage-trained/quant-modelopt").join(file)).unwrap();
        assert_eq!(lines_added(&old, &ran.text(file)), EIGHT, "{file}");
        assert!(list(&ran, file, pointer).ends_with(&EIGHT.map(str::to_owned)));
    }
    // Still one bare file, as the reference reads it.
    assert_eq!(ran.out.tree.len(), 3);
    let bytes = ran.read("model.safetensors");
    assert_eq!(safetensors::SafeTensors::deserialize(&bytes).unwrap().len(), 179);
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(header.metadata().as_ref().unwrap()["format"], "pt");
    // Raise the revision when this changes.
    assert_eq!(ran.out.tree.id().to_string(), "b3:ff755fe35adf9f401868dda561987d8a20e91e217aa0af63f71f886f80db2547");
    assert_eq!(Splice.revision(), 1);
}

#[test]
fn a_head_spliced_into_a_compressed_tensors_quant_is_excluded_by_exact_names() {
    let into = folder("into", &data("lineage/quant-ct-right"));
    let ran = run(&Splice, MTP, &[&into, &base()]).unwrap();
    let (before, donor, after) = (tensors_of(&into), tensors_of(&base()), tensors_of(&ran.out));
    assert_eq!((before.len(), after.len()), (139, 154));
    for (name, facts) in &after {
        assert_eq!(Some(facts), before.get(name).or_else(|| donor.get(name)), "{name}");
    }
    let old = std::fs::read_to_string(data("lineage/quant-ct-right/config.json")).unwrap();
    assert_eq!(lines_added(&old, &ran.text("config.json")), EIGHT);
    let old_order: Vec<String> = open(&into).unwrap().shards[0].table.tensors.iter().map(|t| t.name.clone()).collect();
    let new_order = order(&ran, "model.safetensors");
    assert_eq!(new_order[..139], old_order);
    assert!(new_order[139..].is_sorted());
    assert_eq!(ran.out.tree.id().to_string(), "b3:384d03f9600babb3580eb48f318212110e3ae99cfb87f589f1e0bd208a69c437");
}

#[test]
fn an_entry_that_covers_a_module_is_left_in_the_dialect_of_its_method() {
    let donor = pt(&[Made::f32("mtp.fc.weight", &[1, 2], &[0.0; 2]), one("mtp.norm.weight", 1.0)]);
    let (from, _b) = made("from", &[("model.safetensors", &donor)]);
    for (method, entry, covered) in [
        ("modelopt", "mtp*", true),
        ("modelopt", "mtp.fc", true),
        ("modelopt", "mtp.[ef]c", true),
        ("modelopt", "mtp", false),
        ("modelopt", "re:^mtp.*", false),
        ("modelopt_fp4", "mtp*", true),
        ("compressed-tensors", "re:^mtp.*", true),
        ("compressed-tensors", "re:.*fc$", true),
        ("compressed-tensors", "mtp.fc", true),
        ("compressed-tensors", "mtp*", false),
        ("compressed-tensors", "re:fc", false),
        ("compressed-tensors", "mtp.fc.weight", false),
        // What only Python's expressions know is passed over.
        ("compressed-tensors", "re:(?=mtp).*", false),
    ] {
        let config = format!("{{\"quantization_config\":{{\"quant_method\":\"{method}\",\"ignore\":[\"{entry}\"]}}}}");
        let weights = pt(&[one("a", 1.0)]);
        let (into, _a) = made("into", &[("config.json", config.as_bytes()), ("model.safetensors", &weights)]);
        let ran = run(&Splice, MTP, &[&into, &from]).unwrap();
        let mut expected = vec![entry.to_owned()];
        expected.extend((!covered).then(|| "mtp.fc".to_owned()));
        assert_eq!(list(&ran, "config.json", "/quantization_config/ignore"), expected, "{method} {entry}");
        if covered {
            assert_eq!(ran.text("config.json"), config);
        }
    }
}

#[test]
fn each_list_is_extended_by_what_it_lacks_itself() {
    let donor = pt(&[Made::f32("mtp.fc.weight", &[1, 2], &[0.0; 2])]);
    let (from, _b) = made("from", &[("model.safetensors", &donor)]);
    let weights = pt(&[one("a", 1.0)]);
    let (into, _a) = made(
        "into",
        &[
            ("config.json", br#"{"quantization_config": {"quant_method": "modelopt", "ignore": ["mtp*"]}}"#),
            ("hf_quant_config.json", br#"{"quantization": {"quant_algo": "NVFP4", "exclude_modules": null}}"#),
            ("model.safetensors", &weights),
        ],
    );
    let ran = run(&Splice, MTP, &[&into, &from]).unwrap();
    assert_eq!(ran.out.tree.at("config.json"), into.tree.at("config.json"));
    assert_eq!(list(&ran, "hf_quant_config.json", "/quantization/exclude_modules"), ["mtp.fc"]);
    assert_eq!(ran.report.facts["excluded"], json!({"hf_quant_config.json: quantization.exclude_modules": ["mtp.fc"]}));

    // A list that is not there is made.
    let (into, _a) = made(
        "into",
        &[
            ("config.json", br#"{"quantization_config": {"quant_method": "modelopt"}}"#),
            ("model.safetensors", &weights),
        ],
    );
    let ran = run(&Splice, MTP, &[&into, &from]).unwrap();
    assert_eq!(list(&ran, "config.json", "/quantization_config/ignore"), ["mtp.fc"]);
}

#[test]
fn a_renamed_module_is_excluded_under_its_new_name() {
    let (from, _b) = made("from", &[("model.safetensors", &pt(&[Made::f32("mtp.fc.weight", &[1, 1], &[0.0])]))]);
    let config = br#"{"quantization_config": {"quant_method": "compressed-tensors", "ignore": ["lm_head"]}}"#;
    let (into, _a) = made("into", &[("config.json", config), ("model.safetensors", &pt(&[one("a", 1.0)]))]);
    let ran = run(&Splice, &format!("{MTP}\nrename = {{ \"mtp.*\" = \"draft.*\" }}"), &[&into, &from]).unwrap();
    assert_eq!(list(&ran, "config.json", "/quantization_config/ignore"), ["lm_head", "draft.fc"]);
    assert_eq!(order(&ran, "model.safetensors"), ["a", "draft.fc.weight"]);
}

#[test]
fn a_module_that_is_there_already_is_excluded_all_the_same() {
    let weights = pt(&[Made::f32("mtp.fc.weight", &[1, 1], &[0.0])]);
    let config = br#"{"quantization_config": {"quant_method": "compressed-tensors", "ignore": []}}"#;
    let (into, _a) = made("into", &[("config.json", config), ("model.safetensors", &weights)]);
    let (from, _b) = made("from", &[("model.safetensors", &weights)]);
    let ran = run(&Splice, MTP, &[&into, &from]).unwrap();
    assert_eq!(ran.out.tree.at("model.safetensors"), into.tree.at("model.safetensors"));
    assert_eq!(list(&ran, "config.json", "/quantization_config/ignore"), ["mtp.fc"]);
}

#[test]
fn methods_that_are_not_known_and_quants_without_a_config_are_refused() {
    let (from, _b) = made("from", &[("model.safetensors", &pt(&[Made::f32("mtp.fc.weight", &[1, 1], &[0.0])]))]);
    let quantised = pt(&[Made::new("x.weight", "U8", &[1], &[1]), one("x.weight_scale", 1.0)]);
    let told_by = |files: &[(&str, &[u8])]| {
        let mut files = files.to_vec();
        files.push(("model.safetensors", &quantised));
        let (into, _a) = made("into", &files);
        told(run(&Splice, MTP, &[&into, &from]))
    };
    assert!(told_by(&[]).starts_with("the input `into` is quantised (x.weight_scale), but has no config.json"));
    assert!(told_by(&[("config.json", b"{}")]).starts_with("the input `into` is quantised"));
    let awq = br#"{"quantization_config": {"quant_method": "awq"}}"#;
    assert!(told_by(&[("config.json", awq)]).starts_with("config.json: quantization_config.quant_method is \"awq\""));
    let none = br#"{"quantization_config": {}}"#;
    assert!(told_by(&[("config.json", none)]).starts_with("config.json: quantization_config has no quant_method"));
    let text = br#"{"quantization_config": {"quant_method": "modelopt", "ignore": "lm_head"}}"#;
    assert!(told_by(&[("config.json", text)]).starts_with("config.json: quantization_config.ignore is no list"));
    let number = br#"{"quantization_config": {"quant_method": "modelopt", "ignore": [1]}}"#;
    assert!(told_by(&[("config.json", number)]).contains("holds 1, which is no string"));
    assert!(told_by(&[("config.json", b"{")]).starts_with("the input `into`: config.json: line 1"));

    // A checkpoint that is not quantised has no list, and that is said.
    let (into, _a) = made("into", &[("model.safetensors", &pt(&[one("a", 1.0)]))]);
    let ran = run(&Splice, MTP, &[&into, &from]).unwrap();
    assert!(ran.report.notes.iter().any(|n| n == "`into` is not quantised: there is no exclusion list to extend"));
}

#[test]
fn a_replacement_of_equal_length_stays_in_its_slot_and_another_one_is_appended() {
    let old = [one("a", 1.0), one("mtp.y", 2.0), one("mtp.x", 3.0), Made::f32("z", &[2], &[4.0, 5.0])];
    let (into, _a) = made("into", &[("model.safetensors", &pt(&old))]);
    let donor = [
        Made::f32("mtp.x", &[2], &[6.0, 7.0]),
        Made::new("mtp.y", "U8", &[4], b"four"),
        one("mtp.b", 8.0),
        one("mtp.c", 9.0),
    ];
    let (from, _b) = made("from", &[("model.safetensors", &pt(&donor))]);
    let ran = run(&Splice, MTP, &[&into, &from]).unwrap();
    assert_eq!(order(&ran, "model.safetensors"), ["a", "mtp.y", "z", "mtp.b", "mtp.c", "mtp.x"]);
    let bytes = ran.read("model.safetensors");
    let st = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(st.tensor("mtp.y").unwrap().data(), b"four");
    assert_eq!(st.tensor("mtp.x").unwrap().shape(), [2]);
    assert_eq!(ran.report.facts["replaced"], json!(["mtp.x", "mtp.y"]));
    assert!(ran.out.tree.at(INDEX_NAME).is_none());
}

#[test]
fn of_several_shards_the_last_or_the_named_one_takes_what_is_new() {
    let names =
        ["model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors"];
    let map = format!(
        r#"{{"metadata": {{"total_size": 20}}, "weight_map": {{"a": "{0}", "mtp.long": "{0}", "mtp.same": "{1}", "mtp.alone": "{2}", "b": "{1}"}}}}"#,
        names[0], names[1], names[2]
    );
    let (into, _a) = made(
        "into",
        &[
            (names[0], &pt(&[one("a", 1.0), one("mtp.long", 2.0)])),
            (names[1], &pt(&[one("mtp.same", 3.0), one("b", 4.0)])),
            (names[2], &pt(&[one("mtp.alone", 5.0)])),
            (INDEX_NAME, map.as_bytes()),
        ],
    );
    let donor = [
        Made::f32("mtp.long", &[2], &[6.0; 2]),
        one("mtp.same", 7.0),
        one("mtp.new", 8.0),
        Made::f32("mtp.alone", &[3], &[0.0; 3]),
    ];
    let (from, _b) = made("from", &[("model.safetensors", &pt(&donor))]);
    let ran = run(&Splice, MTP, &[&into, &from]).unwrap();
    assert_eq!(order(&ran, names[0]), ["a"]);
    assert_eq!(order(&ran, names[1]), ["mtp.same", "b"]);
    assert_eq!(order(&ran, names[2]), ["mtp.alone", "mtp.long", "mtp.new"]);
    let index = open(&ran.out).unwrap().index.unwrap();
    assert_eq!(index.total_size(), Some(4 + 8 + 24));
    assert_eq!(index.weight_map["mtp.long"], names[2]);

    // The third shard loses its only tensor to the named one, and is left out.
    let ran = run(&Splice, &format!("{MTP}\nshard = \"{}\"", names[0]), &[&into, &from]).unwrap();
    assert_eq!(order(&ran, names[0]), ["a", "mtp.alone", "mtp.long", "mtp.new"]);
    assert!(ran.out.tree.at(names[2]).is_none());
    assert_eq!(ran.report.facts["shards"]["left_out"], json!([names[2]]));
    let error = told(run(&Splice, &format!("{MTP}\nshard = \"model-00001-of-00002.safetensors\""), &[&into, &from]));
    assert!(error.starts_with("shard: model-00001-of-00002.safetensors is no shard of the input `into`"), "{error}");
    assert!(error.contains("did you mean"), "{error}");
}

#[test]
fn an_index_that_is_still_right_is_kept_as_it_is() {
    let (into, _a) = made(
        "into",
        &[
            ("model.safetensors", &pt(&[one("mtp.x", 1.0)])),
            (INDEX_NAME, br#"{"weight_map": {"mtp.x":"model.safetensors"},   "metadata": {"total_size":4}}"#),
        ],
    );
    let (from, _b) = made("from", &[("model.safetensors", &pt(&[one("mtp.x", 2.0)]))]);
    let ran = run(&Splice, MTP, &[&into, &from]).unwrap();
    assert_eq!(ran.out.tree.at(INDEX_NAME), into.tree.at(INDEX_NAME));
    assert_ne!(ran.out.tree.at("model.safetensors"), into.tree.at("model.safetensors"));
}

#[test]
fn a_weight_is_not_put_beside_the_scales_of_another() {
    let (into, _a) = made(
        "into",
        &[("model.safetensors", &pt(&[Made::new("q.weight_packed", "U8", &[1, 1], &[1]), one("q.weight_scale", 1.0)]))],
    );
    let (from, _b) = made("from", &[("model.safetensors", &pt(&[Made::f32("q.weight", &[1, 2], &[0.0; 2])]))]);
    let error = told(run(&Splice, "tensors = [\"q.*\"]", &[&into, &from]));
    assert!(
        error.starts_with(
            "q.weight would be put beside quantisation tensors of the same module: q.weight_packed, q.weight_scale"
        ),
        "{error}"
    );
}

#[test]
fn the_metadata_of_the_target_wins_and_what_only_the_donor_has_is_named() {
    let into_weights = shard(Some(&[("format", "pt"), ("mine", "1")]), &[one("a", 1.0)]);
    let donor = shard(Some(&[("format", "np"), ("theirs", "2")]), &[one("mtp.x", 2.0)]);
    let (into, _a) = made("into", &[("model.safetensors", &into_weights)]);
    let (from, _b) = made("from", &[("model.safetensors", &donor)]);
    let ran = run(&Splice, MTP, &[&into, &from]).unwrap();
    let bytes = ran.read("model.safetensors");
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let metadata: BTreeMap<String, String> = header.metadata().clone().unwrap().into_iter().collect();
    assert_eq!(metadata, BTreeMap::from([("format", "pt"), ("mine", "1")].map(|(k, v)| (k.into(), v.into()))));
    let dropped = json!({"model.safetensors": {"format": "np", "theirs": "2"}});
    assert_eq!(ran.report.facts["metadata_dropped_of_from"], dropped);
}

#[test]
fn quantised_types_are_spliced_byte_for_byte_and_never_excluded() {
    let donor = [
        Made::new("mtp.q.weight_packed", "F4", &[2, 8], &[1, 2, 3, 4, 5, 6, 7, 8]),
        Made::new("mtp.q.weight_scale", "F8_E8M0", &[3], &[1, 2, 3]),
        Made::new("mtp.f6.weight", "F6_E2M3", &[2, 2], &[1, 2, 3]),
        Made::new("mtp.c.weight", "C64", &[1, 1], &[0; 8]),
        Made::new("mtp.e.weight", "F8_E5M2", &[1, 1], &[0x7c]),
        Made::new("mtp.conv.weight", "BF16", &[1, 1, 1], &[0; 2]),
        Made::new("mtp.scalar", "F32", &[], &[0; 4]),
        Made::new("mtp.empty.weight", "BF16", &[0, 4], &[]),
    ];
    let config = br#"{"quantization_config": {"quant_method": "compressed-tensors", "ignore": []}}"#;
    let (into, _a) = made("into", &[("config.json", config), ("model.safetensors", &pt(&[one("a", 1.0)]))]);
    let (from, _b) = made("from", &[("model.safetensors", &pt(&donor))]);
    let ran = run(&Splice, MTP, &[&into, &from]).unwrap();
    let bytes = ran.read("model.safetensors");
    let st = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    for t in &donor {
        assert_eq!(st.tensor(&t.name).unwrap().data(), t.bytes, "{}", t.name);
    }
    assert_eq!(list(&ran, "config.json", "/quantization_config/ignore"), ["mtp.empty"]);
}

#[test]
fn wrong_keys_are_refused_before_anything_runs() {
    let (into, _a) = made("into", &[]);
    let (from, _b) = made("from", &[]);
    assert_eq!(checked(&Splice, MTP, &[&from]).unwrap_err().key, "inputs.into");
    assert_eq!(
        checked(&Splice, &format!("{MTP}\nshard = \"../x.safetensors\""), &[&into, &from]).unwrap_err().key,
        "shard"
    );
    assert!(checked(&Splice, MTP, &[&into, &from]).is_ok());
}
