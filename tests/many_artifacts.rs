//! A store of many artifacts, written as plain files: what `gc` and `roots` say of it is right, and takes seconds.
//!
//! `GRAFTWERK_ARTIFACTS=100000 cargo test --release --test many_artifacts -- --nocapture` tells how long each command takes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant, UNIX_EPOCH};

use common::Project;
use graftwerk::digest::{BlobId, Digest, RecipeId};
use graftwerk::model::recipe::Ingredients;
use graftwerk::model::run::{Isolation, Outcome, RunRecord};
use graftwerk::model::tree::{Entry, Tree};
use graftwerk::store::Store;
use graftwerk::store::roots::{KEEP, Root, Roots};

const FEW: usize = 2_000;

fn object(store: &Path, folder: &str, name: &Digest, text: &[u8]) {
    let hex = name.hex();
    let path = store.join(folder).join(&hex[..2]).join(&hex[2..]);
    if !path.exists() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(1)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    }
}

fn sealed(run: &RunRecord) -> String {
    let text = serde_json::to_string_pretty(run).unwrap();
    let body = text.strip_suffix("\n}").unwrap();
    format!("{body},\n  \"sum\": \"{}\"\n}}\n", Digest::of(text.as_bytes()))
}

// One small file of its own, and one that ten of them share; a recipe, a record, a view.
fn artifact(store: &Path, i: usize) -> Root {
    let files = [("own", format!("artifact {i}")), ("shared", format!("shared by ten {}", i / 10))];
    let mut tree = Tree::new();
    for (name, bytes) in &files {
        let blob = Digest::of(bytes.as_bytes());
        object(store, "blobs", &blob, bytes.as_bytes());
        let entry = Entry::File { blob: BlobId(blob), size: bytes.len() as u64, executable: false };
        tree.insert((*name).try_into().unwrap(), entry).unwrap();
    }
    object(store, "trees", &tree.id().0, tree.to_text().as_bytes());
    let view = store.join("artifacts").join(tree.id().hex());
    fs::create_dir_all(&view).unwrap();
    for (name, bytes) in &files {
        let hex = Digest::of(bytes.as_bytes()).hex();
        fs::hard_link(store.join("blobs").join(&hex[..2]).join(&hex[2..]), view.join(name)).unwrap();
    }
    let recipe = Ingredients { kind: "edit".into(), platform: Some(i.to_string()), ..Default::default() }.recipe();
    object(store, "recipes", &recipe.id.0, recipe.text.as_bytes());
    let run = RunRecord {
        recipe: recipe.id,
        seq: 1,
        outcome: Outcome::Success { tree: tree.id(), verdict: None },
        isolation: Isolation::Builtin,
        started: "2026-01-01T00:00:00Z".into(),
        seconds: (i % 7) as f64,
        host: "h".into(),
        node: format!("n{}", i / 10),
        version: "0".into(),
        reasons: Vec::new(),
        facts: BTreeMap::new(),
        log: None,
    };
    let dir = store.join("runs").join(recipe.id.hex());
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("000001.json"), sealed(&run)).unwrap();
    Root { recipe: RecipeId(recipe.id.0), tree: tree.id(), seq: 1 }
}

#[test]
fn of_ten_generations_of_many_nodes_five_are_held_and_five_go() {
    let n = std::env::var("GRAFTWERK_ARTIFACTS").ok().and_then(|n| n.parse().ok()).unwrap_or(FEW);
    let p = Project::new("");
    let store = p.path("store");
    drop(Store::open(&store).unwrap());
    let graph = p.dir.canonicalize().unwrap().join("graph.toml");
    let mut roots = Roots { project: graph.parent().unwrap().to_owned(), graph: graph.clone(), ..Roots::default() };
    let begun = Instant::now();
    for i in 0..n {
        let root = artifact(&store, i);
        roots.enter(&format!("n{}", i / 10), root);
    }
    Store::open(&store).unwrap().put_roots(&graph, &roots).unwrap();
    eprintln!("{n} artifacts written in {:.1?}", begun.elapsed());
    let timed = |args: &[&str]| {
        let begun = Instant::now();
        let ran = p.run(&[args, &["--json"]].concat());
        eprintln!("graftwerk {}: {:.2?}", args.join(" "), begun.elapsed());
        assert_eq!(ran.code, Some(0), "{}\n{}", ran.stderr, &ran.stdout[..ran.stdout.len().min(3000)]);
        ran.json()
    };
    let count = |json: &serde_json::Value| json["trees"].as_array().unwrap().len();
    let held = timed(&["roots"]);
    assert_eq!(held["projects"][0]["holds"].as_array().unwrap().len(), n / 10 * KEEP);
    let said = timed(&["gc", "--dry-run"]);
    assert_eq!(count(&said), n / 2);
    let budget = said["left_bytes"].as_u64().unwrap() + said["freed_bytes"].as_u64().unwrap() / 2;
    let part = count(&timed(&["gc", "--dry-run", "--max-size", &budget.to_string()]));
    assert!(part > n / 8 && part < n / 2 - n / 8, "about half of what could go: {part}");
    let done = timed(&["gc"]);
    assert_eq!((count(&done), &done["freed_bytes"]), (n / 2, &said["freed_bytes"]));
    assert_eq!(count(&timed(&["gc"])), 0);
    assert_eq!(fs::read_dir(store.join("artifacts")).unwrap().count(), n / 2);
    timed(&["verify", "--quick"]);
}
