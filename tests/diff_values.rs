//! Values of two checkpoints held against numpy: statistics, and what each layout of quantised weights stands for.
//!
//! `scripts/test` makes the Python environment that these tests need.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use graftwerk::diff::{Side, Statistics, TensorsDiff, Watching, tensors};
use serde_json::Value;

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn python(script: &str, args: &[&Path]) -> Vec<u8> {
    let python = repository().join("target/venv/bin/python");
    let done = Command::new(&python)
        .arg(repository().join("tests/data").join(script))
        .args(args)
        .output()
        .unwrap_or_else(|e| panic!("{}: {e}; scripts/test makes it", python.display()));
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    done.stdout
}

fn compared(a: &Path, b: &Path) -> TensorsDiff {
    let (a, b) = (Side::of_path("a", a).unwrap(), Side::of_path("b", b).unwrap());
    assert_eq!((&a.notes, &b.notes), (&vec![], &vec![]));
    tensors::compare(&a, &b, &Watching { progress: &|_, _| {}, cancelled: &|| false }).unwrap()
}

fn near(name: &str, what: &str, found: f64, wanted: f64) {
    let off = (found - wanted).abs();
    assert!(off <= 1e-6 * wanted.abs().max(1e-300), "{name}: {what} is {found}, numpy has {wanted}");
}

fn held_against_numpy(a: &Path, b: &Path, weights: usize) -> TensorsDiff {
    let diff = compared(a, b);
    let reference: BTreeMap<String, Value> = serde_json::from_slice(&python("diff_reference.py", &[a, b])).unwrap();
    let found: BTreeMap<&str, &Statistics> = diff
        .changed
        .iter()
        .filter_map(|c| Some((c.name.as_str(), c.statistics.as_ref().filter(|s| s.changed > 0.0)?)))
        .collect();
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), reference.keys().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(found.len(), weights);
    for (name, wanted) in &reference {
        let s = found[name.as_str()];
        for (what, value) in [
            ("max_abs", s.max_abs),
            ("mean_abs", s.mean_abs),
            ("relative_l2", s.relative_l2),
            ("cosine", s.cosine),
            ("changed", s.changed),
            ("snr_db", s.snr_db),
        ] {
            near(name, what, value, wanted[what].as_f64().unwrap());
        }
    }
    diff
}

fn lineage(name: &str) -> PathBuf {
    repository().join("tests/data/lineage").join(name)
}

#[test]
fn the_figures_of_a_quant_and_its_origin_are_those_of_numpy() {
    let diff = held_against_numpy(&lineage("finetune"), &lineage("quant-ct-right"), 36);
    let q = diff.changed.iter().find(|c| c.name.ends_with("layers.0.mlp.down_proj.weight")).unwrap();
    assert_eq!(q.a.as_ref().unwrap().encoding, "BF16");
    assert_eq!(q.b.as_ref().unwrap().encoding, "NVFP4 (compressed-tensors)");
    let snr = q.statistics.unwrap().snr_db;
    assert!((18.0..24.0).contains(&snr), "FP4 with a scale for 16 has about 20 dB: {snr}");
}

#[test]
fn the_figures_of_two_quants_of_one_layout_are_those_of_numpy_too() {
    let diff = held_against_numpy(&lineage("quant-ct-right"), &lineage("quant-ct-modelfree"), 11);
    // The one wrote its offset norms anew, the other left them alone.
    assert!(diff.changed.iter().all(|c| c.name.contains("norm")), "{:?}", diff.changed);
    assert_eq!((diff.identical, diff.added.len(), diff.removed.len()), (78, 0, 0));
}

#[test]
fn every_layout_of_quantised_weights_stands_for_the_values_that_numpy_makes_of_it() {
    let dir = tempfile::tempdir().unwrap();
    python("make_quantised.py", &[dir.path()]);
    let mut seen = BTreeMap::new();
    for entry in fs::read_dir(dir.path()).unwrap() {
        let folder = entry.unwrap().path();
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let diff = compared(&folder.join("values.safetensors"), &folder.join("quantised.safetensors"));
        assert_eq!(
            (diff.added.len(), diff.removed.len()),
            (0, 0),
            "{name}: its parts are one weight: {:?}",
            diff.added
        );
        let [change] = &diff.changed[..] else { panic!("{name}: {diff:?}") };
        let s = change.statistics.unwrap_or_else(|| panic!("{name}: {change:?}"));
        assert!(s.relative_l2 < 1e-7, "{name}: {s:?}");
        seen.insert(name, change.b.as_ref().unwrap().encoding.clone());
    }
    let expected = [
        ("fp8-block", "F8_E4M3, a scale a block of 128×128"),
        ("fp8-one", "F8_E4M3, one scale"),
        ("fp8-row", "F8_E4M3, a scale a row"),
        ("int3-groups", "INT3, groups of 32"),
        ("int4-groups", "INT4, groups of 32"),
        ("int4-order", "INT4, groups of 16"),
        ("int4-zeros", "INT4, groups of 32"),
        ("int8-packed", "INT8, a scale a row"),
        ("int8-row", "I8, a scale a row"),
        ("mxfp4", "MXFP4"),
        ("nvfp4-compressed-tensors", "NVFP4 (compressed-tensors)"),
        ("nvfp4-modelopt", "NVFP4 (modelopt)"),
        ("nvfp4-stack", "NVFP4 (compressed-tensors)"),
    ];
    assert_eq!(seen, expected.map(|(a, b)| (a.to_owned(), b.to_owned())).into());
}

#[test]
fn two_folders_with_the_same_tensors_are_the_same_whatever_their_headers() {
    let diff = compared(&lineage("finetune"), &lineage("finetune"));
    assert!(diff.is_same());
    assert_eq!(diff.identical, 89);
}
