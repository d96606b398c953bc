//! Memory does not grow with the checkpoint: builds over 3 GiB in tensors of 64 MiB, in a cgroup of 164 MiB.
#![allow(clippy::unwrap_used)] // helpers of a test, too

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use support::cgroup::run_within;
use support::synthetic::Synthetic;

const MIB: u64 = 1 << 20;
/// 100 MiB and the largest tensor.
const LIMIT: u64 = 164 * MIB;

/// 3 GiB in four shards.
const BIG: Synthetic = Synthetic::THREE_GIB;
/// One layer, and 64 MiB that are no part of [`BIG`].
const HEAD: Synthetic = Synthetic { layers: 1, layers_per_shard: 1, mtp: 1, ..BIG };
const NORM: u64 = 8192;

/// Makes the sources, builds `node` of a graph in a cgroup, and returns the tensor bytes of its output.
fn built_within_the_limit(node: &str, sources: &[(&str, Synthetic, &str)]) -> u64 {
    // Not in /tmp, which may be memory itself.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut graph = String::from("[source]\n");
    for (name, synthetic, config) in sources {
        let at = dir.path().join(name);
        fs::create_dir(&at).unwrap();
        synthetic.write(&at);
        fs::write(at.join("config.json"), config).unwrap();
        graph += &format!("{name} = {{ checkpoint = \"{name}\" }}\n");
    }
    fs::write(dir.path().join("graph.toml"), format!("{graph}[node.made]\n{node}\n")).unwrap();

    let mut build = Command::new(env!("CARGO_BIN_EXE_graftwerk"));
    build.arg("-C").arg(dir.path()).arg("build");
    let (output, peak) = run_within(LIMIT, &build);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} at {peak} bytes\n{said}", output.status);
    tensor_bytes(&dir.path().join("out/made"))
}

/// The length of the data sections of a folder's shards, by their headers.
fn tensor_bytes(dir: &Path) -> u64 {
    let shards = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    let data = |path: &Path| {
        let mut head = [0; 8];
        std::io::Read::read_exact(&mut fs::File::open(path).unwrap(), &mut head).unwrap();
        fs::metadata(path).unwrap().len() - 8 - u64::from_le_bytes(head)
    };
    shards.filter(|p| p.extension().is_some_and(|e| e == "safetensors")).map(|p| data(&p)).sum()
}

#[test]
#[cfg_attr(debug_assertions, ignore = "minutes without optimisation: cargo test --release --test streaming")]
fn quantising_three_gib_needs_no_more_than_100_mib_and_the_largest_tensor() {
    let node = "kind = 'quant'\ninputs.model = 'big'\nmethod = 'nvfp4a16'\nignore = ['*.plain']";
    let made = built_within_the_limit(node, &[("big", BIG, "{}")]);
    // 36 of 48 weights at 4.5 bits instead of 16, and an F32 for each.
    let weights = 48 * 64 * MIB;
    assert_eq!(made, weights / 4 + weights * 3 / 4 * 9 / 32 + 12 * NORM + 36 * 4);
}

#[test]
fn grafting_three_gib_needs_no_more_than_100_mib_and_the_largest_tensor() {
    let node = "kind = 'graft'\ninputs = { into = 'head', from = 'big' }\ntensors = ['model.*']";
    let made = built_within_the_limit(node, &[("head", HEAD, "{}"), ("big", BIG, "{}")]);
    // All of the donor, and what is left of the shard whose layer it replaces.
    assert_eq!(made, 49 * 64 * MIB + 12 * NORM);
}

#[test]
fn splicing_into_three_gib_needs_no_more_than_100_mib_and_the_largest_tensor() {
    let whole = Synthetic { layers_per_shard: BIG.layers, ..BIG };
    let config = r#"{"quantization_config": {"quant_method": "compressed-tensors", "ignore": ["lm_head"]}}"#;
    let node = "kind = 'splice'\ninputs = { into = 'whole', from = 'head' }\ntensors = ['mtp.*']";
    let made = built_within_the_limit(node, &[("whole", whole, config), ("head", HEAD, "{}")]);
    assert_eq!(made, 49 * 64 * MIB + 12 * NORM);
}
