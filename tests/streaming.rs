//! A step's memory does not grow with the checkpoint: 3 GiB in tensors of 64 MiB, within 164 MiB.
#![allow(clippy::unwrap_used)] // helpers of a test, too

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use graftwerk::kinds::graft::Graft;
use graftwerk::kinds::quant::Quant;
use graftwerk::kinds::splice::Splice;
use support::cgroup::run_within;
use support::folder::{Folder, run};
use support::params;
use support::synthetic::Synthetic;

const MIB: u64 = 1 << 20;
const FOLDER: &str = "GRAFTWERK_TEST_FOLDER";
const STEP: &str = "GRAFTWERK_TEST_STEP";

/// Makes the inputs, runs a step over them in a cgroup of 164 MiB, and returns the bytes that it wrote.
fn written_within_164_mib(step: &str, inputs: &[(&str, Synthetic)]) -> u64 {
    // Not in /tmp, which may be memory itself.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut bytes = 0;
    for (alias, synthetic) in inputs {
        let input = dir.path().join(alias);
        std::fs::create_dir(&input).unwrap();
        bytes += synthetic.write(&input);
    }
    assert!(bytes >= 3 << 30, "{bytes}");

    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "--ignored", "a_step_of_its_own_process"]).env(FOLDER, dir.path()).env(STEP, step);
    let (output, peak) = run_within(164 * MIB, &child);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{} at {peak} bytes\n{said}", output.status);
    assert!(said.contains("1 passed"), "{said}");

    let shards = std::fs::read_dir(dir.path().join("out")).unwrap().map(|e| e.unwrap());
    shards.map(|e| e.metadata().unwrap().len()).sum()
}

#[test]
fn quantising_three_gib_needs_no_more_than_100_mib_and_the_largest_tensor() {
    let written = written_within_164_mib("quant", &[("model", Synthetic::THREE_GIB)]);
    // 36 of 48 weights at 4.5 bits instead of 16.
    let weights = 64 * MIB * 48;
    let wanted = weights / 4 + weights * 3 / 4 * 9 / 32;
    assert!((wanted..wanted + MIB).contains(&written), "{written} of {wanted}");
}

/// One layer, and 64 MiB that are no part of [`Synthetic::THREE_GIB`].
const HEAD: Synthetic = Synthetic { layers: 1, layers_per_shard: 1, mtp: 1, ..Synthetic::THREE_GIB };

#[test]
fn grafting_three_gib_needs_no_more_than_100_mib_and_the_largest_tensor() {
    let written = written_within_164_mib("graft", &[("into", HEAD), ("from", Synthetic::THREE_GIB)]);
    // All of the donor, and what is left of the shard whose layer it replaces.
    let wanted = 64 * MIB * (48 + 1);
    assert!((wanted..wanted + 3 * MIB).contains(&written), "{written} of {wanted}");
}

#[test]
fn splicing_into_three_gib_needs_no_more_than_100_mib_and_the_largest_tensor() {
    let whole = Synthetic { layers_per_shard: 12, ..Synthetic::THREE_GIB };
    let written = written_within_164_mib("splice", &[("into", whole), ("from", HEAD)]);
    let wanted = 64 * MIB * 49;
    assert!((wanted..wanted + 3 * MIB).contains(&written), "{written} of {wanted}");
}

#[test]
#[ignore = "run by the tests above, in a cgroup"]
fn a_step_of_its_own_process() {
    let dir = PathBuf::from(std::env::var(FOLDER).unwrap());
    let out = dir.join("out");
    std::fs::create_dir(&out).unwrap();
    let folder = |alias: &str| Folder::of(&[Path::new(&dir.join(alias))]);
    let (into, from) = ("into", "from");
    match std::env::var(STEP).unwrap().as_str() {
        "quant" => {
            let wanted = params("method = 'nvfp4a16'\nignore = ['*.plain']");
            let (_, report) = run(&Quant, &wanted, &[("model", &folder("model"))], &out).unwrap();
            assert_eq!(report.facts["quantised"], serde_json::json!(36));
        }
        "graft" => {
            let inputs = [(into, &folder(into)), (from, &folder(from))];
            let (_, report) = run(&Graft, &params("tensors = ['model.*']"), &inputs, &out).unwrap();
            assert_eq!(report.facts["count"], serde_json::json!(60));
        }
        "splice" => {
            let inputs = [(into, &folder(into)), (from, &folder(from))];
            let (_, report) = run(&Splice, &params("tensors = ['mtp.*']"), &inputs, &out).unwrap();
            assert_eq!(report.facts["count"], serde_json::json!(1));
        }
        other => panic!("{other}"),
    }
}
