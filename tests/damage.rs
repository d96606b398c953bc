//! Damage to a store, file by file: `verify` names it and what depends on it, no other command takes it for empty or
//! right, `repair` and `build` bring back the same trees, and nothing is lost silently.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use common::{Project, Ran};
use graftwerk::digest::Digest;
use serde_json::Value;

const GRAPH: &str = r#"
[source]
base = { checkpoint = "demo/base" }
finetune = { checkpoint = "demo/finetune" }
[node.graft]
kind = "graft"
inputs = { into = "finetune", from = "base" }
tensors = ["mtp.*"]
[node.named]
kind = "edit"
inputs.model = "graft"
set."config.json" = { "/note" = "x" }
[node.seat]
kind = "serve"
inputs = { model = "named" }
image = "vllm/vllm-openai:v0.32.0"
name = "a"
args = ["--model", "/model", "--served-model-name", "a"]
"#;

/// A project whose store has a file of every part, an executable blob (the seat's launch.sh) among them.
fn project() -> Project {
    let p = Project::demo();
    p.write("graph.toml", GRAPH);
    p
}

fn verify(p: &Project, args: &[&str]) -> Ran {
    p.run(&[&["verify", "--json"], args].concat())
}

fn paths(found: &Value, list: &str) -> Vec<PathBuf> {
    found[list].as_array().unwrap().iter().map(|f| PathBuf::from(f["path"].as_str().unwrap())).collect()
}

#[test]
fn a_store_that_is_right_verifies() {
    let p = project();
    p.build();
    for args in [&[][..], &["--quick"], &["graft"], &["graft", "named", "seat"], &["out/graft", "out/seat"]] {
        let r = verify(&p, args);
        assert_eq!(r.code, Some(0), "{args:?}: {}\n{}", r.stdout, r.stderr);
        assert_eq!(r.json()["ok"], true);
    }
}

/// A file of the store below `folder` of which `want` is true.
fn file_in(p: &Project, folder: &str, want: impl Fn(&Path) -> bool) -> PathBuf {
    let top = p.path("store").canonicalize().unwrap().join(folder);
    common::files(&top).keys().map(|f| top.join(f)).find(|f| want(f)).unwrap()
}

fn recipe_of(p: &Project, node: &str) -> String {
    let json = p.run(&["status", "--json"]).json();
    let found = json["nodes"].as_array().unwrap().iter().find(|n| n["node"] == node).unwrap().clone();
    found["recipe"].as_str().unwrap().trim_start_matches("b3:").to_owned()
}

fn object(p: &Project, folder: &str, hex: &str) -> PathBuf {
    p.path("store").canonicalize().unwrap().join(folder).join(&hex[..2]).join(&hex[2..])
}

/// The parts of a store, and one file of each.
const PARTS: [&str; 10] = ["blob", "executable", "tree", "recipe", "run", "table", "roots", "ref", "version", "index"];

fn victim(p: &Project, part: &str) -> PathBuf {
    let tree = |node: &str| p.trees()[node].trim_start_matches("b3:").to_owned();
    match part {
        "blob" => file_in(p, "blobs", |f| fs::metadata(f).unwrap().len() > 100_000),
        "executable" => file_in(p, "blobs", |f| f.extension().is_some()),
        "tree" => object(p, "trees", &tree("graft")),
        "recipe" => object(p, "recipes", &recipe_of(p, "graft")),
        "run" => p.path("store").canonicalize().unwrap().join("runs").join(recipe_of(p, "graft")).join("000001.json"),
        "table" => file_in(p, "tensors", |_| true),
        "roots" => file_in(p, "roots", |_| true),
        "ref" => {
            let blob = Digest::of(&fs::read(p.path("demo/finetune/model-00001-of-00002.safetensors")).unwrap());
            object(p, "refs", &blob.hex())
        }
        "version" => p.path("store").canonicalize().unwrap().join("VERSION"),
        _ => file_in(p, "index", |f| f.ends_with("db")),
    }
}

type Spoil = fn(&Path);

const SPOILS: [(&str, Spoil); 6] = [
    ("cut", |f| rewrite(f, |b| b.truncate(b.len() / 2))),
    ("emptied", |f| rewrite(f, Vec::clear)),
    ("zeroed in the middle", |f| {
        rewrite(f, |b| {
            let (from, to) = (b.len() / 3, 2 * b.len() / 3 + 1);
            b[from..to].fill(0);
        });
    }),
    ("flipped", |f| {
        rewrite(f, |b| {
            let at = b.len() / 2;
            b[at] ^= 1;
        });
    }),
    ("a folder", |f| {
        fs::remove_file(f).unwrap();
        fs::create_dir_all(f.join("sub")).unwrap();
    }),
    ("deleted", |f| fs::remove_file(f).unwrap()),
];

fn rewrite(file: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(file).unwrap();
    change(&mut bytes);
    fs::remove_file(file).unwrap();
    fs::write(file, bytes).unwrap();
}

// Each way by itself, so that they run side by side.
macro_rules! every_part {
    ($($name:ident: $how:expr;)*) => { $(
        #[test]
        fn $name() {
            let (how, spoil) = SPOILS[$how];
            PARTS.iter().for_each(|part| verify_names(part, how, spoil));
        }
    )* };
}

every_part! {
    verify_names_what_is_cut_off: 0;
    verify_names_what_is_emptied: 1;
    verify_names_what_is_zeroed_in_the_middle: 2;
    verify_names_what_has_one_bit_flipped: 3;
    verify_names_what_a_folder_has_taken_the_place_of: 4;
    verify_names_what_is_deleted: 5;
}

/// `verify` names just this file, what depends on it and what to do, and changes nothing.
fn verify_names(part: &str, how: &str, spoil: Spoil) {
    let p = project();
    p.build();
    let file = victim(&p, part);
    spoil(&file);
    let before = snapshot(&p.path("store"));
    let r = verify(&p, &[]);
    let found = r.json();
    assert_eq!(snapshot(&p.path("store")), before, "{part} {how}: verify changed the store");
    let named = [paths(&found, "changed"), paths(&found, "missing")].concat();
    // The index is a cache: what of it is gone, or heals by itself, is no damage.
    if part == "index" {
        assert!(r.code == Some(0) || named == [file.parent().unwrap()], "{part} {how}: {}", r.stdout);
        return;
    }
    assert_eq!(r.code, Some(3), "{part} {how}: {}", r.stdout);
    assert_eq!(named, std::slice::from_ref(&file), "{part} {how}");
    let entry = &found[if how == "deleted" { "missing" } else { "changed" }][0];
    if !matches!(part, "roots" | "version") {
        let nodes: Vec<&str> = entry["nodes"].as_array().unwrap().iter().map(|n| n["node"].as_str().unwrap()).collect();
        assert!(nodes.contains(&"seat"), "{part} {how}: {entry:#}");
    }
    assert!(entry["hint"].as_str().unwrap().contains("graftwerk repair"), "{entry:#}");
}

// Everything below a folder: names, sizes, inodes and times of change. Locks are written by whoever takes them.
fn snapshot(top: &Path) -> Vec<(PathBuf, u64, u64, i64, i64)> {
    let mut all = Vec::new();
    let mut todo = vec![top.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let m = fs::symlink_metadata(&path).unwrap();
            if m.is_dir() && !path.ends_with("store/locks") {
                todo.push(path.clone());
            }
            if !path.starts_with(top.join("locks")) {
                all.push((path, m.len(), m.ino(), m.mtime(), m.mtime_nsec()));
            }
        }
    }
    all.sort();
    all
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

fn names(found: &Value, list: &str) -> Vec<String> {
    paths(found, list).iter().map(|p| name_of(p)).collect()
}

/// Where a tensor's bytes are in a safetensors file.
fn offset_of(file: &Path, tensor: &str) -> usize {
    let bytes = fs::read(file).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let json: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    8 + header + json[tensor]["data_offsets"][0].as_u64().unwrap() as usize
}

#[test]
fn a_folder_held_against_its_tree_has_three_lists_and_extra_alone_has_an_exit_code_of_its_own() {
    let p = project();
    p.build();
    let copy = p.path("copy");
    let r = std::process::Command::new("cp").args(["-rL", "out/graft", "copy"]).current_dir(&p.dir).status();
    assert!(r.unwrap().success());
    let check = || verify(&p, &["copy", "--against", "graft"]);
    assert_eq!(check().code, Some(0), "{}", check().stdout);

    // Only extra: a file, a loop of links, a link that leads outside, a name that is no UTF-8.
    fs::write(copy.join(".gitattributes"), "* text\n").unwrap();
    symlink(".", copy.join("loop")).unwrap();
    symlink("/etc/hostname", copy.join("host")).unwrap();
    use std::os::unix::ffi::OsStrExt as _;
    fs::write(copy.join(std::ffi::OsStr::from_bytes(b"odd\xff")), "").unwrap();
    let r = check();
    let found = r.json();
    assert_eq!(r.code, Some(4), "{}", r.stdout);
    assert_eq!(names(&found, "extra"), [".gitattributes", "host", "loop", "odd\\xff\""], "{found:#}");
    let said: Vec<&str> = found["extra"].as_array().unwrap().iter().map(|f| f["what"].as_str().unwrap()).collect();
    assert_eq!(said[1], "is a link that leads outside, to \"/etc/hostname\"");
    assert_eq!(said[2], "is a link to \".\"");

    // Changed and missing as well.
    let shard = "model-00002-of-00002.safetensors";
    let tensor = "model.language_model.norm.weight";
    let at = offset_of(&copy.join(shard), tensor);
    fs::set_permissions(copy.join(shard), fs::Permissions::from_mode(0o644)).unwrap();
    p.flip(&format!("copy/{shard}"), at);
    fs::remove_file(copy.join("config.json")).unwrap();
    fs::set_permissions(copy.join("tokenizer.json"), fs::Permissions::from_mode(0o755)).unwrap();
    let r = check();
    let found = r.json();
    assert_eq!(r.code, Some(1), "{}", r.stdout);
    assert_eq!(names(&found, "changed"), [shard, "tokenizer.json"]);
    assert_eq!(found["changed"][0]["tensors"], serde_json::json!([tensor]));
    assert_eq!(found["changed"][1]["what"], "is executable");
    assert_eq!(names(&found, "missing"), ["config.json"]);
    assert_eq!(names(&found, "extra").len(), 4);
    let text = p.run(&["verify", "copy", "--against", "graft"]).stdout;
    for line in ["changed\n", "missing\n", "extra\n", tensor, "copy/host is a link that leads outside"] {
        assert!(text.contains(line), "{line:?} in\n{text}");
    }

    // Nothing says what the folder should be.
    let r = verify(&p, &["copy"]);
    assert_eq!(r.code, Some(2));
    assert!(r.json()["hint"].as_str().unwrap().contains("--against"), "{}", r.stdout);
}

#[test]
fn a_flipped_byte_in_a_view_is_told_with_its_tensor_and_as_damage_of_the_store() {
    let p = project();
    p.build();
    let shard = fs::read_dir(p.path("out/graft"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .find(|f| !f.is_symlink() && f.extension().is_some_and(|e| e == "safetensors"))
        .unwrap();
    let bytes = fs::read(&shard).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let json: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let tensor = json.as_object().unwrap().keys().find(|k| *k != "__metadata__").unwrap().clone();
    let stat = fs::metadata(&shard).unwrap();
    flip_in_place(&shard, offset_of(&shard, &tensor), &stat);
    // By stat nothing has changed: only a full look finds it.
    assert_eq!(verify(&p, &["--quick"]).code, Some(0));
    let r = verify(&p, &[]);
    assert_eq!(r.code, Some(3), "{}", r.stdout);
    assert_eq!(r.json()["changed"][0]["tensors"], serde_json::json!([tensor]));
    assert_eq!(r.json()["changed"][0]["part"], "blob");
    assert_eq!(verify(&p, &["graft"]).code, Some(3));
    assert_eq!(verify(&p, &[&p.trees()["graft"]]).code, Some(3));
    let r = verify(&p, &["out/graft"]);
    assert_eq!((r.code, names(&r.json(), "changed")), (Some(1), vec![name_of(&shard)]), "{}", r.stdout);
    // In the header, where no tensor is.
    flip_in_place(&shard, offset_of(&shard, &tensor), &stat);
    assert_eq!(verify(&p, &[]).code, Some(0));
    flip_in_place(&shard, 12, &stat);
    let r = verify(&p, &[]);
    assert!(r.json()["changed"][0]["what"].as_str().unwrap().contains("in the header"), "{}", r.stdout);
}

// As a disk does it: nobody's time of change moves.
fn flip_in_place(file: &Path, at: usize, stat: &fs::Metadata) {
    use std::os::unix::fs::FileExt as _;
    fs::set_permissions(file, fs::Permissions::from_mode(0o644)).unwrap();
    let f = fs::File::options().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    f.read_exact_at(&mut byte, at as u64).unwrap();
    f.write_all_at(&[byte[0] ^ 1], at as u64).unwrap();
    f.set_modified(stat.modified().unwrap()).unwrap();
    fs::set_permissions(file, stat.permissions()).unwrap();
}

#[test]
fn a_source_that_moved_on_is_no_damage() {
    let p = project();
    // Without the seat, which has everything in the store.
    p.write("graph.toml", GRAPH.split("[node.named]").next().unwrap());
    p.write("demo/finetune/notes.txt", "notes");
    p.build();
    p.write("demo/finetune/notes.txt", "other notes");
    let r = verify(&p, &[]);
    assert_eq!(r.code, Some(0), "{}", r.stdout);
    assert!(!r.json()["collected"].as_array().unwrap().is_empty(), "{}", r.stdout);
    assert_eq!(verify(&p, &["graft"]).code, Some(1), "it is known, and not all of it is there");
    p.build();
    let r = verify(&p, &[]);
    assert_eq!(r.code, Some(0), "{}", r.stdout);
}

#[test]
fn a_node_that_is_not_built_and_a_name_that_is_none_are_told() {
    let p = project();
    assert_eq!(verify(&p, &[]).code, Some(3), "there is no store");
    assert_eq!(p.run(&["build", "graft"]).code, Some(0));
    assert_eq!(verify(&p, &["named"]).code, Some(1));
    let r = verify(&p, &["nmed"]);
    assert_eq!(r.code, Some(2));
    assert!(r.stdout.contains("named"), "{}", r.stdout);
    assert_eq!(verify(&p, &["b3:0000"]).code, Some(2));
    assert_eq!(verify(&p, &["no/such/folder"]).code, Some(2));
}

#[test]
fn a_stranger_in_the_store_is_extra() {
    let p = project();
    p.build();
    p.write("store/blobs/notes.txt", "x");
    let r = verify(&p, &[]);
    assert_eq!((r.code, names(&r.json(), "extra")), (Some(4), vec!["notes.txt".to_owned()]), "{}", r.stdout);
}

#[test]
fn verify_needs_no_graph_where_the_store_is_named() {
    let p = project();
    p.build();
    p.write("graph.toml", "what = ");
    assert_eq!(verify(&p, &[]).code, Some(2));
    assert_eq!(verify(&p, &["--store", "store"]).code, Some(0));
}
