//! Damage to a store, file by file: `verify` names it and what depends on it, no other command takes it for empty or
//! right, `repair` and `build` bring back the same trees, and nothing is lost silently.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

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

    // A second copy of tensors is named with the file that has the first.
    fs::copy(copy.join("model-00002-of-00002.safetensors"), copy.join("planted.safetensors")).unwrap();
    let r = check();
    let said = r.json()["extra"].to_string();
    assert!(r.code == Some(4) && said.contains(" of model-00002-of-00002.safetensors and "), "{said}");
    assert!(said.contains("planted.safetensors") && said.contains("is a file that holds again "), "{said}");
    fs::remove_file(copy.join("planted.safetensors")).unwrap();

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
    assert_eq!(verify(&p, &[]).code, Some(1), "there is no store yet");
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

macro_rules! every_part_repaired {
    ($($name:ident: $how:expr;)*) => { $(
        #[test]
        fn $name() {
            let (how, spoil) = SPOILS[$how];
            PARTS.iter().for_each(|part| is_repaired(part, how, spoil));
        }
    )* };
}

every_part_repaired! {
    repair_mends_what_is_cut_off: 0;
    repair_mends_what_is_emptied: 1;
    repair_mends_what_is_zeroed_in_the_middle: 2;
    repair_mends_what_has_one_bit_flipped: 3;
    repair_mends_what_a_folder_has_taken_the_place_of: 4;
    repair_mends_what_is_deleted: 5;
}

/// No other command takes what is damaged for right or empty; `repair`, then `build`, bring back the same trees, and
/// nothing that was damaged is gone.
fn is_repaired(part: &str, how: &str, spoil: Spoil) {
    let p = project();
    p.build();
    let trees = p.trees();
    let file = victim(&p, part);
    spoil(&file);
    let before = snapshot(&p.path("store"));
    let dry = p.run(&["repair", "--dry-run", "--json"]);
    assert!(matches!(dry.code, Some(0 | 1)), "{part} {how}: {}\n{}", dry.stdout, dry.stderr);
    assert_eq!(snapshot(&p.path("store")), before, "{part} {how}: a dry run changed the store");

    // Damage is damage to those who meet it; whoever does not meet it answers as before.
    // Tables and refs are mended by whoever meets them, and left here to the repair.
    if !matches!(part, "index" | "table" | "ref") {
        let r = p.run(&["status", "--json"]);
        if r.code == Some(0) && !matches!(part, "blob" | "executable") && how != "deleted" {
            assert_eq!(p.trees(), trees, "{part} {how}");
        } else if r.code != Some(0) {
            assert_eq!(r.code, Some(3), "{part} {how}: {}", r.stderr);
            assert!(r.stderr.contains("graftwerk repair"), "{part} {how}: {}", r.stderr);
        }
    }

    let r = p.run(&["repair", "--json"]);
    let done = r.json();
    assert!(matches!(r.code, Some(0 | 1)), "{part} {how}: {}\n{}", r.stdout, r.stderr);
    if r.code == Some(1) {
        let r = p.run(&["repair", "--rebuild", "--json"]);
        assert_eq!(r.code, Some(0), "{part} {how}: {done:#}\n{}\n{}", r.stdout, r.stderr);
    }
    p.build();
    assert_eq!(p.trees(), trees, "{part} {how}: {done:#}");
    let r = verify(&p, &[]);
    assert_eq!(r.code, Some(0), "{part} {how}: {}\n{done:#}", r.stdout);
    common::store_check::check(&p.path("store"));
    // What was damaged is kept, with a note beside it.
    if how != "deleted" && !matches!(part, "index") {
        let kept: Vec<String> = fs::read_dir(p.path("store/quarantine"))
            .unwrap_or_else(|e| panic!("{part} {how}: {e}"))
            .map(|e| name_of(&e.unwrap().path()))
            .collect();
        assert!(kept.iter().any(|n| !n.ends_with(".txt")), "{part} {how}: {kept:?}");
    }
}

fn repairs(p: &Project, args: &[&str]) -> (Option<i32>, Vec<Value>) {
    let r = p.run(&[&["repair", "--json"], args].concat());
    let list = r.json()["repairs"].as_array().unwrap_or_else(|| panic!("{}\n{}", r.stdout, r.stderr)).clone();
    (r.code, list)
}

/// A blob of the seat alone: its compose file.
fn compose_blob(p: &Project) -> PathBuf {
    let blob = Digest::of(&fs::read(p.path("out/seat/compose.yaml")).unwrap());
    object(p, "blobs", &blob.hex())
}

#[test]
fn a_blob_comes_back_from_wherever_its_bytes_are() {
    // From a view, whose link has them still.
    let p = project();
    p.build();
    let blob = compose_blob(&p);
    fs::remove_file(&blob).unwrap();
    let (code, list) = repairs(&p, &[]);
    assert_eq!((code, list.len()), (Some(0), 1), "{list:#?}");
    assert!(list[0]["how"].as_str().unwrap().contains("store/artifacts/"), "{list:#?}");
    assert_eq!(p.built(), [""; 0]);

    // From a source, that the seat has a copy of.
    let config = p.path("demo/finetune/tokenizer_config.json");
    let copy = object(&p, "blobs", &Digest::of(&fs::read(&config).unwrap()).hex());
    rewrite(&copy, |b| b.truncate(10));
    fs::remove_dir_all(p.path("store/artifacts")).unwrap();
    let (code, list) = repairs(&p, &[]);
    assert_eq!(code, Some(0), "{list:#?}");
    assert!(list[0]["how"].as_str().unwrap().ends_with("demo/finetune/tokenizer_config.json"), "{list:#?}");
    assert_eq!(p.built(), [""; 0]);

    // From another store.
    common::copy_tree(&p.path("store"), &p.holder().join("other"));
    fs::remove_dir_all(p.path("store/artifacts")).unwrap();
    flip_in_place(&blob, 5, &fs::metadata(&blob).unwrap());
    let (code, list) = repairs(&p, &["--dry-run"]);
    assert_eq!((code, list[0]["outcome"].as_str()), (Some(1), Some("rebuild")), "{list:#?}");
    let (code, list) = repairs(&p, &["--from", "../other"]);
    assert_eq!((code, list[0]["outcome"].as_str()), (Some(0), Some("restored")), "{list:#?}");
    let aside = list[0]["set_aside"].as_str().unwrap();
    let note = fs::read_to_string(format!("{aside}.txt")).unwrap();
    assert!(note.contains(blob.to_str().unwrap()) && note.contains("hashes to"), "{note}");

    // From the twin with the other executable bit, which is all that is left.
    let (hex, twin) = (blob.clone(), blob.with_extension("x"));
    fs::copy(&hex, &twin).unwrap();
    fs::remove_dir_all(p.path("store/artifacts")).unwrap();
    flip_in_place(&blob, 5, &fs::metadata(&blob).unwrap());
    let (code, list) = repairs(&p, &[]);
    assert_eq!(code, Some(0), "{list:#?}");
    assert_eq!(list[0]["how"].as_str().unwrap(), format!("from {}", twin.display()));

    // From nowhere: its nodes run again, and that is said.
    fs::remove_file(&twin).unwrap();
    fs::remove_dir_all(p.path("store/artifacts")).unwrap();
    fs::remove_dir_all(p.path("store/quarantine")).unwrap();
    let trees = p.trees();
    fs::remove_file(&blob).unwrap();
    let r = p.run(&["repair"]);
    assert_eq!(r.code, Some(1), "{}", r.stdout);
    assert!(r.stdout.contains("graftwerk build seat"), "{}", r.stdout);
    let (code, list) = repairs(&p, &["--rebuild"]);
    assert_eq!((code, list[0]["how"].as_str()), (Some(0), Some("built again")), "{list:#?}");
    assert_eq!(p.trees(), trees);
    assert_eq!(verify(&p, &[]).code, Some(0));
}

#[test]
fn a_reading_command_tells_of_a_damaged_blob_and_leaves_it_where_it_is() {
    let p = project();
    p.build();
    let trees = p.trees();
    let blob = compose_blob(&p);
    rewrite(&blob, |b| b[3] ^= 1);
    let damaged = fs::read(&blob).unwrap();
    for args in
        [&["plan"][..], &["status"], &["why", "seat"], &["show", "seat"], &["log", "seat"], &["gc", "--dry-run"]]
    {
        let r = p.run(args);
        assert!(!matches!(r.code, Some(3) | None), "{args:?}: {}", r.stderr);
        let told = r.stderr.contains(blob.to_str().unwrap()) && r.stderr.contains("hashes to");
        assert!(told || args[0] == "gc", "{args:?}: {}", r.stderr);
        assert_eq!(fs::read(&blob).unwrap(), damaged, "{args:?}");
        assert!(!p.path("store/quarantine").exists(), "{args:?}");
    }
    assert_eq!(p.run(&["path", "seat"]).code, Some(1));
    assert_eq!(verify(&p, &[]).code, Some(3));
    // A build sets it aside when it has right bytes, and writes down what it was.
    p.build();
    assert_eq!(p.trees(), trees);
    let aside = fs::read_dir(p.path("store/quarantine")).unwrap().map(|e| e.unwrap().path());
    let note = aside.into_iter().find(|f| f.extension().is_some_and(|e| e == "txt")).unwrap();
    assert_eq!(fs::read(note.with_extension("")).unwrap(), damaged);
    let note = fs::read_to_string(note).unwrap();
    for part in [blob.to_str().unwrap(), "does not hash to its name", "set aside 2", "by process", "graftwerk build"] {
        assert!(note.contains(part), "no {part} in {note}");
    }
    assert_eq!(verify(&p, &[]).code, Some(0));
}

#[test]
fn a_damaged_tensor_table_is_set_aside_with_a_text_by_whoever_makes_it_again() {
    let p = project();
    p.build();
    let table = file_in(&p, "tensors", |_| true);
    rewrite(&table, |b| b[5] ^= 1);
    let damaged = fs::read(&table).unwrap();
    assert_eq!(repairs(&p, &[]).0, Some(0));
    assert_eq!(verify(&p, &[]).code, Some(0));
    let aside = file_in(&p, "quarantine", |f| f.extension().is_none());
    assert_eq!(fs::read(&aside).unwrap(), damaged);
    assert!(fs::read_to_string(aside.with_extension("txt")).unwrap().contains("repair"));
}

#[test]
fn a_missing_blob_is_told_once_however_many_artifacts_need_it_and_the_dry_run_is_right() {
    let p = project();
    p.build();
    // A file of the graft that no source has any more, in three artifacts; and one that only the graft had.
    let shard = object(&p, "blobs", &Digest::of(&fs::read(p.path("out/graft/model-graft.safetensors")).unwrap()).hex());
    fs::remove_file(&shard).unwrap();
    let r = verify(&p, &[]);
    assert_eq!(paths(&r.json(), "missing"), std::slice::from_ref(&shard), "{}", r.stdout);
    let found = &r.json()["missing"][0];
    assert_eq!(found["trees"].as_array().unwrap().len(), 3, "{found:#}");
    let nodes: Vec<_> = found["nodes"].as_array().unwrap().iter().map(|n| n["node"].as_str().unwrap()).collect();
    assert_eq!(nodes, ["graft", "named", "seat"]);
    assert!(found["what"].as_str().unwrap().contains("3 artifacts need"), "{found:#}");
    // The views have it still, but are damaged themselves, too.
    for node in ["graft", "named", "seat/model"] {
        let file = p.path("out").join(node).join("model-graft.safetensors");
        rewrite(&file, |b| b[9000] ^= 1);
    }
    let outcomes = |list: &[Value]| -> Vec<(String, String)> {
        let text = |r: &Value, key: &str| r[key].as_str().unwrap().to_owned();
        list.iter().map(|r| (text(r, "path"), text(r, "outcome"))).collect()
    };
    let (_, planned) = repairs(&p, &["--dry-run"]);
    assert_eq!(planned.len(), 4, "{planned:#?}");
    let (code, done) = repairs(&p, &[]);
    assert_eq!(outcomes(&planned), outcomes(&done));
    assert_eq!(code, Some(1), "{done:#?}");
    assert_eq!(
        outcomes(&done).iter().map(|o| o.1.as_str()).collect::<Vec<_>>(),
        ["rebuild", "set_aside", "set_aside", "set_aside"]
    );
    assert_eq!(repairs(&p, &["--rebuild"]).0, Some(0));
    assert_eq!(verify(&p, &[]).code, Some(0));
}

#[test]
fn a_repair_that_the_disk_stops_says_so_on_stderr_whatever_call_it_was() {
    for (rule, named) in [("eio", "Input/output error"), ("enospc", "No space left on device")] {
        let mut met = 0;
        for n in (1..90).step_by(8) {
            let p = project();
            p.build();
            rewrite(&compose_blob(&p), |b| b[3] ^= 1);
            rewrite(&file_in(&p, "tensors", |_| true), |b| b[5] ^= 1);
            let o = p.command(&["repair"]).env("GRAFTWERK_FAILPOINT", format!("{rule}@{n}")).output().unwrap();
            let said = String::from_utf8_lossy(&o.stderr);
            if !o.status.success() {
                met += 1;
                assert!(said.contains(named) && said.contains("/store"), "{rule}@{n}: {said}");
            }
            assert_eq!(p.run(&["repair", "--rebuild"]).code, Some(0), "{rule}@{n}");
            assert_eq!(verify(&p, &[]).code, Some(0), "{rule}@{n}");
        }
        assert!(met > 3, "{rule}: only {met} were met");
    }
}

#[test]
fn lost_roots_are_stood_in_for_by_roots_that_hold_everything() {
    for how in ["flipped", "deleted"] {
        let p = project();
        p.build();
        let first = p.trees();
        p.edit("graph.toml", "\"/note\" = \"x\"", "\"/note\" = \"y\"");
        p.build();
        let second = p.trees();
        let roots = victim(&p, "roots");
        if how == "flipped" {
            rewrite(&roots, |b| b[40] ^= 1);
        } else {
            fs::remove_file(&roots).unwrap();
        }
        let (code, list) = repairs(&p, &[]);
        assert_eq!(code, Some(0), "{list:#?}");
        let text = p.read("store/roots/recovered-1.json");
        for tree in first.values().chain(second.values()) {
            assert!(text.contains(tree.as_str()), "{how}: {tree} is not held by\n{text}");
        }
        let r = verify(&p, &[]);
        assert_eq!(r.code, Some(0), "{how}: {}", r.stdout);
        assert_eq!(p.built(), [""; 0], "{how}");
        // The next one has nothing to do.
        let (code, list) = repairs(&p, &[]);
        assert_eq!((code, list.len()), (Some(0), 0), "{how}");
        assert!(!p.path("store/roots/recovered-2.json").exists());
    }
}

#[test]
fn a_version_that_nothing_proves_is_not_guessed() {
    let p = project();
    p.build();
    fs::remove_file(p.path("store/VERSION")).unwrap();
    for folder in ["trees", "runs", "roots"] {
        fs::rename(p.path(&format!("store/{folder}")), p.holder().join(folder)).unwrap();
        fs::create_dir(p.path(&format!("store/{folder}"))).unwrap();
    }
    let r = p.run(&["repair", "--json"]);
    assert_eq!(r.code, Some(3), "{}", r.stdout);
    assert!(!p.path("store/VERSION").exists());
    // One listing is proof.
    fs::remove_dir(p.path("store/trees")).unwrap();
    fs::rename(p.holder().join("trees"), p.path("store/trees")).unwrap();
    p.run(&["repair", "--json"]);
    assert_eq!(p.read("store/VERSION"), "graftwerk store 2\n");
}

#[test]
fn a_repair_that_is_killed_anywhere_is_gone_on_with() {
    let damage = |p: &Project| {
        let (roots, tree) = (victim(p, "roots"), victim(p, "tree"));
        rewrite(&roots, |b| b[40] ^= 1);
        rewrite(&tree, |b| b[40] ^= 1);
        rewrite(&victim_run(p), |b| b[40] ^= 1);
        rewrite(&compose_blob(p), |b| b[3] ^= 1);
        rewrite(&p.path("store/VERSION"), |b| b.truncate(4));
    };
    let mut killed = 0;
    for n in [1u32, 3, 6, 9, 13, 18, 24, 31, 40, 55, 75, 100, 140] {
        let p = project();
        p.build();
        let trees = p.trees();
        damage(&p);
        let run = |args: &[&str]| p.command(args).env("GRAFTWERK_FAILPOINT", format!("kill@{n}")).output().unwrap();
        killed += u32::from(run(&["repair"]).status.code().is_none());
        let r = p.run(&["repair", "--rebuild", "--json"]);
        assert!(matches!(r.code, Some(0 | 1)), "{n}: {}\n{}", r.stdout, r.stderr);
        p.build();
        assert_eq!(p.trees(), trees, "{n}");
        assert_eq!(verify(&p, &[]).code, Some(0), "{n}: {}", verify(&p, &[]).stdout);
        common::store_check::check(&p.path("store"));
    }
    assert!(killed > 5, "only {killed} repairs were killed");
}

// Computed without `status`, which a store that is damaged elsewhere refuses.
fn victim_run(p: &Project) -> PathBuf {
    file_in(p, "runs", |f| fs::read_to_string(f).is_ok_and(|t| t.contains("\"node\": \"seat\"")))
}

#[test]
fn what_another_command_meets_is_left_to_repair() {
    let p = project();
    p.build();
    rewrite(&victim(&p, "tree"), |b| b[40] ^= 1);
    for args in [&["build"][..], &["status"], &["plan"], &["why", "graft"], &["path", "named"]] {
        let r = p.run(args);
        assert_eq!(r.code, Some(3), "{args:?}: {}", r.stderr);
        assert!(r.stderr.contains("graftwerk repair"), "{args:?}: {}", r.stderr);
    }
    let r = p.run(&["repair"]);
    assert_eq!(r.code, Some(0), "{}", r.stdout);
    assert!(r.stdout.contains("from its view"), "{}", r.stdout);
    assert_eq!(p.built(), [""; 0]);
}

/// Writes a store of `n` artifacts, each with a file of its own, a recipe, a run and a root.
fn many(store: &Path, n: usize) {
    use graftwerk::canon::Value as Canon;
    use graftwerk::digest::BlobId;
    use graftwerk::model::path::RelPath;
    use graftwerk::model::recipe::Ingredients;
    use graftwerk::model::tree::{Entry, Tree};
    let put = |folder: &str, hex: &str, bytes: &[u8]| {
        let path = store.join(folder).join(&hex[..2]).join(&hex[2..]);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    };
    let sealed = |text: String| {
        let sum = Digest::of(text.as_bytes());
        format!("{},\n  \"sum\": \"{sum}\"\n}}\n", text.strip_suffix("\n}").unwrap())
    };
    let mut nodes = serde_json::Map::new();
    let one = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1);
    for i in 0..n {
        let bytes = format!("artifact {i}");
        let blob = Digest::of(bytes.as_bytes());
        let path = put("blobs", &blob.hex(), bytes.as_bytes());
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(one).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
        let mut tree = Tree::new();
        let entry = Entry::File { blob: BlobId(blob), size: bytes.len() as u64, executable: false };
        tree.insert(RelPath::try_from("file").unwrap(), entry).unwrap();
        put("trees", &tree.id().hex(), tree.to_text().as_bytes());
        let params = [("n".to_owned(), Canon::Int(i as i64))].into();
        let recipe = Ingredients { kind: "edit".to_owned(), revision: 1, params, ..Default::default() }.recipe();
        put("recipes", &recipe.id.hex(), recipe.text.as_bytes());
        let run = serde_json::json!({
            "recipe": recipe.id, "seq": 1, "outcome": "success", "tree": tree.id(), "verdict": null,
            "isolation": "builtin", "started": "2026-01-01T00:00:00Z", "seconds": 1.0, "host": "h",
            "node": format!("n{i}"), "version": "0", "reasons": [], "facts": {}, "log": null,
        });
        let runs = store.join("runs").join(recipe.id.hex());
        fs::create_dir_all(&runs).unwrap();
        fs::write(runs.join("000001.json"), sealed(serde_json::to_string_pretty(&run).unwrap())).unwrap();
        nodes.insert(format!("n{i}"), serde_json::json!([{"recipe": recipe.id, "tree": tree.id(), "seq": 1}]));
    }
    let roots = serde_json::json!({"project": "/p", "graph": "/p/graph.toml", "nodes": nodes, "sources": {}});
    fs::create_dir_all(store.join("roots")).unwrap();
    fs::write(store.join("roots/p.json"), sealed(serde_json::to_string_pretty(&roots).unwrap())).unwrap();
    fs::write(store.join("VERSION"), "graftwerk store 2\n").unwrap();
}

/// For a measurement by hand, with a store in a place that is kept: `GRAFTWERK_ARTIFACTS=100000`.
#[test]
fn a_store_of_many_artifacts_is_verified() {
    let n = std::env::var("GRAFTWERK_ARTIFACTS").ok().and_then(|n| n.parse().ok()).unwrap_or(2000);
    let p = Project::new("");
    let store = p.path("store");
    many(&store, n);
    let timed = |args: &[&str]| {
        let begun = std::time::Instant::now();
        let r = verify(&p, args);
        println!("{n} artifacts, {args:?}: {:.2} s", begun.elapsed().as_secs_f64());
        (r.code, r.json())
    };
    let (code, found) = timed(&["--quick"]);
    assert_eq!((code, &found["hashed_bytes"]), (Some(0), &0.into()), "{found:#}");
    assert_eq!(timed(&[]).0, Some(0));
    // With an index that knows every blob.
    let open = graftwerk::store::Store::open(&store).unwrap();
    for (id, _) in open.survey().unwrap().trees {
        let tree = open.tree(id).unwrap().unwrap();
        assert!(open.absent(&tree).unwrap().is_empty());
    }
    open.flush_index();
    drop(open);
    assert_eq!(timed(&["--quick"]).0, Some(0));
    let blob = file_in(&p, "blobs", |f| f.is_file());
    fs::set_permissions(&blob, fs::Permissions::from_mode(0o644)).unwrap();
    rewrite(&blob, |b| b[0] ^= 1);
    let (code, found) = timed(&["--quick"]);
    assert_eq!((code, paths(&found, "changed")), (Some(3), vec![blob]), "{found:#}");
}

#[test]
fn a_store_that_may_only_be_read_is_verified() {
    let p = project();
    p.build();
    let store = p.path("store");
    let closed = |mode: u32| {
        for dir in ["", "index", "index/sled", "locks", "tmp", "blobs", "roots"] {
            fs::set_permissions(store.join(dir), fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    closed(0o555);
    let before = snapshot(&store);
    for args in [&[][..], &["--quick"], &["graft"], &["out/graft"]] {
        let r = verify(&p, args);
        assert_eq!(r.code, Some(0), "{args:?}: {}\n{}", r.stdout, r.stderr);
    }
    assert_eq!(snapshot(&store), before);
    closed(0o755);
}

#[test]
fn verify_beside_builds_never_takes_what_is_being_made_for_damage() {
    let p = project();
    p.build();
    for round in 0..4 {
        p.edit("graph.toml", "\"/note\" = \"x", &format!("\"/note\" = \"x{round}"));
        fs::remove_dir_all(p.path("store/artifacts")).unwrap();
        let mut build = p.command(&["build", "-q"]).spawn().unwrap();
        loop {
            let r = verify(&p, &[]);
            assert_eq!(r.code, Some(0), "{}", r.stdout);
            if build.try_wait().unwrap().is_some() {
                break;
            }
        }
        assert!(build.wait().unwrap().success());
    }
}

#[test]
fn a_collector_touches_nothing_in_a_store_that_does_not_read() {
    for part in ["tree", "recipe", "run", "roots", "version"] {
        let p = project();
        p.build();
        let file = victim(&p, part);
        // Something that it would free.
        p.edit("graph.toml", "\"/note\" = \"x\"", "\"/note\" = \"y\"");
        assert_eq!(p.run(&["build"]).code, Some(0));
        rewrite(&file, |b| b[3] ^= 1);
        let all =
            |p: &Project| common::files(&p.path("store/blobs")).len() + common::files(&p.path("store/artifacts")).len();
        let before = all(&p);
        let r = p.run(&["gc", "--keep", "1"]);
        assert_eq!((r.code, all(&p)), (Some(3), before), "{part}: {}\n{}", r.stdout, r.stderr);
        assert!(r.stderr.contains("graftwerk repair"), "{part}: {}", r.stderr);
    }
}

#[test]
fn what_was_collected_is_no_damage() {
    let p = project();
    p.build();
    let old = p.trees();
    p.edit("graph.toml", "\"/note\" = \"x\"", "\"/note\" = \"y\"");
    p.build();
    assert_eq!(p.run(&["gc", "--keep", "1"]).code, Some(0));
    let r = verify(&p, &[]);
    assert_eq!(r.code, Some(0), "{}", r.stdout);
    let hex = old["named"].trim_start_matches("b3:").to_owned();
    assert!(paths(&r.json(), "collected").contains(&object(&p, "trees", &hex)), "{}", r.stdout);
    let (code, list) = repairs(&p, &[]);
    assert_eq!((code, list.len()), (Some(0), 0), "{list:#?}");
}

#[test]
fn recovered_roots_hold_against_a_collector_until_they_are_forgotten() {
    let p = project();
    let mut all = Vec::new();
    for note in ["x", "y", "z"] {
        p.write("graph.toml", GRAPH.replace("\"/note\" = \"x\"", &format!("\"/note\" = \"{note}\"")));
        p.build();
        all.push(p.trees()["named"].clone());
    }
    let roots = victim(&p, "roots");
    rewrite(&roots, |b| b.truncate(100));
    assert_eq!(repairs(&p, &[]).0, Some(0));
    p.build();
    let gone = || {
        assert_eq!(p.run(&["gc", "--keep", "1"]).code, Some(0));
        let r = verify(&p, &[]);
        assert_eq!(r.code, Some(0), "{}", r.stdout);
        all.iter().filter(|t| paths(&r.json(), "collected").contains(&object(&p, "trees", &t[3..]))).count()
    };
    assert_eq!(gone(), 0);
    let r = p.run(&["roots", "--forget", "recovered-1.json"]);
    assert_eq!(r.code, Some(0), "{}", r.stderr);
    assert_eq!(gone(), 2);
}
