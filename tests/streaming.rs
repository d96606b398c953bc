//! A step's memory does not grow with the checkpoint: 3 GiB in tensors of 64 MiB, within 164 MiB.
#![allow(clippy::unwrap_used)] // helpers of a test, too

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use graftwerk::kinds::quant::Quant;
use support::cgroup::run_within;
use support::folder::{Folder, run};
use support::params;
use support::synthetic::Synthetic;

const MIB: u64 = 1 << 20;
const FOLDER: &str = "GRAFTWERK_TEST_FOLDER";

#[test]
fn quantising_three_gib_needs_no_more_than_100_mib_and_the_largest_tensor() {
    // Not in /tmp, which may be memory itself.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let input = dir.path().join("in");
    std::fs::create_dir(&input).unwrap();
    let bytes = Synthetic::THREE_GIB.write(&input);
    assert!(bytes >= 3 << 30, "{bytes}");

    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "--ignored", "a_step_of_its_own_process"]).env(FOLDER, dir.path());
    let (output, peak) = run_within(164 * MIB, &child);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{} at {peak} bytes\n{said}", output.status);
    assert!(said.contains("1 passed"), "{said}");

    // 36 of 48 weights at 4.5 bits instead of 16.
    let shards = std::fs::read_dir(dir.path().join("out")).unwrap().map(|e| e.unwrap());
    let written: u64 = shards.map(|e| e.metadata().unwrap().len()).sum();
    let weights = 64 * MIB * 48;
    let wanted = weights / 4 + weights * 3 / 4 * 9 / 32;
    assert!((wanted..wanted + MIB).contains(&written), "{written} of {wanted}");
}

#[test]
#[ignore = "run by the test above, in a cgroup"]
fn a_step_of_its_own_process() {
    let dir = PathBuf::from(std::env::var(FOLDER).unwrap());
    let out = dir.join("out");
    std::fs::create_dir(&out).unwrap();
    let input = Folder::of(&[Path::new(&dir.join("in"))]);
    let wanted = params("method = 'nvfp4a16'\nignore = ['*.plain']");
    let (_, report) = run(&Quant, &wanted, &[("model", &input)], &out).unwrap();
    assert_eq!(report.facts["quantised"], serde_json::json!(36));
}
