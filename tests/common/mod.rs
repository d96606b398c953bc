//! A project in a temporary folder, and the real binary run in it.
#![allow(dead_code, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod store_check;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// The binary under test.
pub const GRAFTWERK: &str = env!("CARGO_BIN_EXE_graftwerk");

/// Copies the program to `to`. Another process does it: while this one has a file open for writing, a child that another
/// thread starts has it too for a moment, and what is open for writing can't be run.
pub fn copy_program(to: &Path) {
    assert!(Command::new("cp").arg(GRAFTWERK).arg(to).status().unwrap().success());
}

/// The repository.
pub fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Copies a folder, following nothing.
pub fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            copy_tree(&entry.path(), &target);
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(entry.path()).unwrap(), target).unwrap();
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// A project in a folder of its own, gone with it.
pub struct Project {
    holder: tempfile::TempDir,
    /// The folder with graph.toml.
    pub dir: PathBuf,
}

/// What a command did.
pub struct Ran {
    /// Exit code; `None` if it died by a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Ran {
    fn of(o: &Output) -> Self {
        Self {
            code: o.status.code(),
            stdout: String::from_utf8_lossy(&o.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&o.stderr).into_owned(),
        }
    }

    /// The one object on standard output.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|e| panic!("no JSON ({e}), exit {:?}:\n{}\n{}", self.code, self.stdout, self.stderr))
    }

    /// Node → action, of `build` and `plan`. Where several nodes have one recipe, whichever came first runs it and the
    /// others find it done: which one that was is the clock's affair, so here it is always the first of them.
    pub fn actions(&self) -> BTreeMap<String, String> {
        let json = self.json();
        let steps = json["steps"].as_array().unwrap_or_else(|| panic!("no steps: {json:#}"));
        let text = |v: &Value| v.as_str().unwrap().to_owned();
        let mut actions: BTreeMap<String, String> =
            steps.iter().map(|s| (text(&s["node"]), text(&s["action"]))).collect();
        let mut first_of: BTreeMap<String, String> = BTreeMap::new();
        for s in steps.iter().filter(|s| s["recipe"].is_string()) {
            let (node, recipe) = (text(&s["node"]), text(&s["recipe"]));
            let first = first_of.entry(recipe).or_insert_with(|| node.clone()).clone();
            if s["action"] == "built" && first != node && actions[&first] == "fresh" {
                actions.insert(first, "built".to_owned());
                actions.insert(node, "fresh".to_owned());
            }
        }
        actions
    }

    /// The nodes with this action, sorted.
    pub fn nodes(&self, action: &str) -> Vec<String> {
        self.actions().into_iter().filter(|(_, a)| a == action).map(|(n, _)| n).collect()
    }

    /// One step of `build` or `plan`.
    pub fn step(&self, node: &str) -> Value {
        let json = self.json();
        let found = json["steps"].as_array().and_then(|s| s.iter().find(|s| s["node"] == node)).cloned();
        found.unwrap_or_else(|| panic!("no step {node} in {json:#}"))
    }
}

impl Project {
    /// An empty project with this graph.
    pub fn new(graph: &str) -> Self {
        Self::below(&std::env::temp_dir(), graph)
    }

    /// The same in memory, where flushes cost nothing.
    pub fn in_memory(graph: &str) -> Self {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Self::below(memory, graph) } else { Self::new(graph) }
    }

    /// The same somewhere below `place`.
    pub fn below(place: &Path, graph: &str) -> Self {
        let holder = tempfile::tempdir_in(place).unwrap();
        let dir = holder.path().join("project");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("graph.toml"), graph).unwrap();
        Self { holder, dir }
    }

    /// A copy of the repository's demo.
    pub fn demo() -> Self {
        let p = Self::new(&fs::read_to_string(repository().join("graph.toml")).unwrap());
        copy_tree(&repository().join("demo"), &p.dir.join("demo"));
        p
    }

    /// The folder that holds the project's.
    pub fn holder(&self) -> &Path {
        self.holder.path()
    }

    pub fn path(&self, rel: &str) -> PathBuf {
        self.dir.join(rel)
    }

    pub fn write(&self, rel: &str, text: impl AsRef<[u8]>) {
        let p = self.path(rel);
        fs::create_dir_all(p.parent().unwrap()).unwrap();
        fs::write(p, text).unwrap();
    }

    pub fn read(&self, rel: &str) -> String {
        fs::read_to_string(self.path(rel)).unwrap()
    }

    /// Replaces text in a file; it must be there.
    pub fn edit(&self, rel: &str, from: &str, to: &str) {
        let text = self.read(rel);
        assert!(text.contains(from), "{rel} does not hold {from:?}");
        self.write(rel, text.replacen(from, to, 1));
    }

    /// Flips one bit of a file in place.
    pub fn flip(&self, rel: &str, offset: usize) {
        let mut bytes = fs::read(self.path(rel)).unwrap();
        bytes[offset] ^= 1;
        fs::write(self.path(rel), bytes).unwrap();
    }

    /// The binary, set up to run here, with an environment that says nothing of the caller's terminal.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut c = Command::new(GRAFTWERK);
        c.args(args).current_dir(&self.dir).stdin(Stdio::null());
        c.env_remove("GRAFTWERK_FAILPOINT");
        c
    }

    /// Runs the binary here.
    pub fn run(&self, args: &[&str]) -> Ran {
        Ran::of(&self.command(args).output().unwrap())
    }

    /// `build --json`, which must succeed.
    pub fn build(&self) -> Ran {
        let r = self.run(&["build", "--json"]);
        assert_eq!(r.code, Some(0), "{}\n{}", r.stdout, r.stderr);
        assert_eq!(r.json()["ok"], true, "{}", r.stdout);
        r
    }

    /// Builds, and says which steps ran.
    pub fn built(&self) -> Vec<String> {
        self.build().nodes("built")
    }

    /// Node → tree, from `status`.
    pub fn trees(&self) -> BTreeMap<String, String> {
        let json = self.run(&["status", "--json"]).json();
        let nodes = json["nodes"].as_array().unwrap();
        nodes
            .iter()
            .map(|n| (n["node"].as_str().unwrap().to_owned(), n["tree"].as_str().unwrap_or("none").to_owned()))
            .collect()
    }

    /// The absolute path that `path NODE` prints.
    pub fn node_path(&self, node: &str) -> PathBuf {
        let r = self.run(&["path", node]);
        assert_eq!(r.code, Some(0), "{}", r.stderr);
        PathBuf::from(r.stdout.strip_suffix('\n').unwrap())
    }
}

/// How many damaged files were set aside; each has a text beside it.
pub fn set_aside(p: &Project) -> usize {
    let names = fs::read_dir(p.path("store/quarantine")).unwrap().map(|e| PathBuf::from(e.unwrap().file_name()));
    let (texts, damaged): (Vec<_>, Vec<_>) = names.partition(|n| n.extension().is_some());
    assert_eq!(texts.len(), damaged.len(), "{damaged:?} {texts:?}");
    damaged.len()
}

/// Every file below a folder, by path relative to it.
pub fn files(top: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut todo = vec![top.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                todo.push(path);
            } else {
                all.insert(path.strip_prefix(top).unwrap().to_owned(), fs::read(&path).unwrap());
            }
        }
    }
    all
}
