//! What must hold of a store at any moment, read from its plain files by other means than the program's.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use graftwerk::digest::{Digest, TreeId};
use graftwerk::model::run::RunRecord;
use graftwerk::model::tree::{Entry, Tree};

fn below(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut list: Vec<_> = fs::read_dir(dir).map(|d| d.map(|e| e.unwrap().path()).collect()).unwrap_or_default();
    list.sort();
    list
}

fn named(folder: &Path) -> Vec<(String, std::path::PathBuf)> {
    let mut all = Vec::new();
    for sub in below(folder) {
        for file in below(&sub) {
            let name = format!(
                "{}{}",
                sub.file_name().unwrap().to_str().unwrap(),
                file.file_name().unwrap().to_str().unwrap()
            );
            all.push((name, file));
        }
    }
    all
}

// The trees of which `gc` took files, by its logs.
fn collected(store: &Path) -> String {
    let is_log = |p: &std::path::PathBuf| p.file_name().unwrap().to_string_lossy().starts_with("gc-");
    below(&store.join("logs")).into_iter().filter(is_log).map(|p| fs::read_to_string(p).unwrap()).collect()
}

/// Panics where anything in the store is not what its name says, or where a run names what is not there and was not
/// collected.
pub fn check(store: &Path) {
    let collected = collected(store);
    for (name, file) in named(&store.join("blobs")) {
        let bytes = fs::read(&file).unwrap();
        assert_eq!(Digest::of(&bytes).hex(), name.trim_end_matches(".x"), "{}", file.display());
        let m = fs::metadata(&file).unwrap();
        assert_eq!(m.mode() & 0o222, 0, "{} is writable", file.display());
    }
    for folder in ["trees", "recipes"] {
        for (name, file) in named(&store.join(folder)) {
            assert_eq!(Digest::of(&fs::read(&file).unwrap()).hex(), name, "{}", file.display());
        }
    }
    for recipe in below(&store.join("runs")) {
        for file in below(&recipe) {
            let run: RunRecord =
                serde_json::from_slice(&fs::read(&file).unwrap()).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
            let hex = run.recipe.hex();
            assert!(store.join("recipes").join(&hex[..2]).join(&hex[2..]).exists(), "no recipe for {}", file.display());
            if let Some(id) = run.tree() {
                let tree = tree(store, id);
                for (path, blob, _, exec) in tree.files() {
                    let hex = blob.hex();
                    let name = if exec { format!("{}.x", &hex[2..]) } else { hex[2..].to_owned() };
                    let stored = store.join("blobs").join(&hex[..2]).join(name).exists();
                    let referenced = store.join("refs").join(&hex[..2]).join(&hex[2..]).exists();
                    let known = stored || referenced || collected.contains(&id.to_string());
                    assert!(known, "{path} of {} is nowhere", file.display());
                }
            }
        }
    }
    for view in below(&store.join("artifacts")) {
        let id = TreeId(Digest::from_hex(view.file_name().unwrap().to_str().unwrap()).unwrap());
        let tree = tree(store, id);
        let files = super::files(&view);
        let expected = tree.files().count();
        let links = tree.iter().filter(|(_, e)| matches!(e, Entry::Link { .. })).count();
        assert_eq!(files.len(), expected + links, "{}", view.display());
        for (path, blob, _, _) in tree.files() {
            assert_eq!(Digest::of(&files[path.as_path()]), blob.0, "{} in {}", path, view.display());
        }
    }
}

/// Panics where a run's record, of which there may be any number, names what is not there, or not right.
pub fn check_runs(store: &Path, what: &str) {
    let collected = collected(store);
    let right = |path: &Path, digest: Digest| fs::read(path).is_ok_and(|bytes| Digest::of(&bytes) == digest);
    let at = |folder: &str, digest: Digest| store.join(folder).join(&digest.hex()[..2]).join(&digest.hex()[2..]);
    for file in below(&store.join("runs")).iter().flat_map(|recipe| below(recipe)) {
        let run: RunRecord = serde_json::from_slice(&fs::read(&file).unwrap())
            .unwrap_or_else(|e| panic!("{what}: {} does not read: {e}", file.display()));
        let names = format!("{what}: {} names", file.display());
        assert!(right(&at("recipes", run.recipe.0), run.recipe.0), "{names} a recipe that is not there");
        if let Some(log) = &run.log {
            let text = fs::read(store.join("logs").join(log)).unwrap_or_default();
            assert!(text.iter().any(|b| *b != 0), "{names} the log {log}, which is not there or empty");
        }
        let Some(id) = run.tree() else { continue };
        assert!(right(&at("trees", id.0), id.0), "{names} a tree that is not there");
        for (path, blob, _, exec) in tree(store, id).files() {
            let mut stored = at("blobs", blob.0);
            if exec {
                stored.set_extension("x");
            }
            let known = fs::read_to_string(at("refs", blob.0)).unwrap_or_default();
            let gone = collected.contains(&id.to_string());
            assert!(
                gone || right(&stored, blob.0) || known.contains("\"looked_ns\""),
                "{names} {path}, which is nowhere"
            );
        }
    }
}

fn tree(store: &Path, id: TreeId) -> Tree {
    let hex = id.hex();
    let path = store.join("trees").join(&hex[..2]).join(&hex[2..]);
    Tree::parse(&fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))).unwrap()
}
