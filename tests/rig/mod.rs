//! What tests of the process executor share: a step with inputs, run by the real helper.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used)]

#[path = "../support/mod.rs"]
pub mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use graftwerk::exec::tools::MemoryDigests;
use graftwerk::exec::{ExecError, Exit, Places, ProcessSpec, resolve, run};
use graftwerk::kinds::run::command;
use graftwerk::kinds::{Input, ProcessStep};
use graftwerk::model::run::Isolation;
use support::{Shelf, params};

/// Where the binary under test is. A test that runs as another user gets a copy which that user may execute.
pub fn binary() -> PathBuf {
    std::env::var_os("GRAFTWERK_TEST_BINARY").map_or_else(|| env!("CARGO_BIN_EXE_graftwerk").into(), PathBuf::from)
}

/// A step that is being put together, and folders for it.
pub struct Rig {
    pub shelf: Shelf,
    pub inputs: BTreeMap<String, Input>,
    pub isolation: Isolation,
    pub dir: tempfile::TempDir,
}

/// What a step left behind.
pub struct Ran {
    pub exit: Exit,
    pub log: Vec<u8>,
    pub out: PathBuf,
}

impl Ran {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.log).into_owned()
    }

    /// The log of a step that must have succeeded.
    pub fn ok(&self) -> String {
        assert!(self.exit.success(), "the step {}:\n{}", self.exit.ending, self.text());
        self.text()
    }
}

impl Rig {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for d in ["out", "scratch"] {
            fs::create_dir(dir.path().join(d)).unwrap();
        }
        Self { shelf: Shelf::new(), inputs: BTreeMap::new(), isolation: Isolation::Namespaces, dir }
    }

    pub fn with(mut self, input: Input) -> Self {
        self.inputs.insert(input.alias.clone(), input);
        self
    }

    /// An input of files with these bytes.
    pub fn files(self, alias: &str, files: &[(&str, &[u8])]) -> Self {
        let input = self.shelf.input(alias, files);
        self.with(input)
    }

    /// A folder with one script that is executable.
    pub fn script(self, alias: &str, name: &str, text: &str) -> Self {
        let mut tree = graftwerk::model::tree::Tree::new();
        tree.insert(name.try_into().unwrap(), self.shelf.file(text.as_bytes(), true)).unwrap();
        let input = self.shelf.input_of(alias, tree);
        self.with(input)
    }

    pub fn out(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    pub fn places(&self) -> Places {
        Places { out: self.out(), scratch: self.dir.path().join("scratch"), log: self.dir.path().join("log") }
    }

    /// The step of a node whose table in graph.toml is this.
    pub fn step(&self, toml: &str) -> ProcessStep {
        let aliases: Vec<&str> = self.inputs.keys().map(String::as_str).collect();
        command(&params(toml), &aliases).unwrap()
    }

    pub fn spec(&self, toml: &str) -> ProcessSpec {
        let step = self.step(toml);
        let tools = resolve(&step, &self.inputs, &MemoryDigests::default()).unwrap();
        let mut spec = ProcessSpec::new(&step, &self.inputs, &tools, self.places(), self.isolation).unwrap();
        spec.helper = binary();
        spec
    }

    pub fn try_run(&self, toml: &str) -> Result<Ran, ExecError> {
        self.finish(&self.spec(toml), &|| false)
    }

    pub fn finish(&self, spec: &ProcessSpec, cancelled: &dyn Fn() -> bool) -> Result<Ran, ExecError> {
        let exit = run(spec, cancelled, &|_| {})?;
        Ok(Ran { exit, log: fs::read(&spec.places.log).unwrap(), out: self.out() })
    }

    pub fn run(&self, toml: &str) -> Ran {
        self.try_run(toml).unwrap()
    }

    /// Runs a shell script that may use these programs.
    pub fn sh(&self, tools: &[&str], script: &str) -> Ran {
        self.run(&sh(tools, script))
    }
}

/// The table of a node that runs a shell script.
pub fn sh(tools: &[&str], script: &str) -> String {
    let script = script.replace('{', "{{").replace('}', "}}");
    format!("argv = [\"sh\", \"-c\", {script:?}]\ntools = {tools:?}\n")
}

/// The user and group that own a path.
pub fn owner(path: &Path) -> (u32, u32) {
    use std::os::unix::fs::MetadataExt as _;
    let m = fs::symlink_metadata(path).unwrap();
    (m.uid(), m.gid())
}
