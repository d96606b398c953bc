//! What tests of kinds share: inputs made of bytes in hand, and an output laid out as a folder.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used)]

pub mod cgroup;
pub mod folder;
pub mod synthetic;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use graftwerk::canon::Value;
use graftwerk::digest::{BlobId, Digest};
use graftwerk::kinds::{Input, InputFiles, Kind, Output, OutputEntry, Params, Progress, Report, Step, StepError};
use graftwerk::model::path::RelPath;
use graftwerk::model::tree::{Entry, Tree};
use graftwerk::tensors::hash::hash_file;
use graftwerk::tensors::table::TensorTable;

/// Blobs in a temporary folder, named by their digests.
pub struct Shelf {
    dir: tempfile::TempDir,
}

struct ShelfFiles(PathBuf);

impl InputFiles for ShelfFiles {
    fn open(&self, blob: BlobId) -> io::Result<File> {
        File::open(self.location(blob)?)
    }

    fn location(&self, blob: BlobId) -> io::Result<PathBuf> {
        Ok(self.0.join(blob.hex()))
    }

    fn table(&self, blob: BlobId) -> io::Result<Option<Arc<TensorTable>>> {
        let file = self.open(blob)?;
        let size = file.metadata()?.len();
        let hashed = hash_file(&file, size, true, &mut |_| {}, &|| false)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.to_string()))?;
        Ok(hashed.table.map(Arc::new))
    }
}

impl Shelf {
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    /// A file entry with these bytes.
    pub fn file(&self, bytes: &[u8], executable: bool) -> Entry {
        let blob = BlobId(Digest::of(bytes));
        fs::write(self.dir.path().join(blob.hex()), bytes).unwrap();
        Entry::File { blob, size: bytes.len() as u64, executable }
    }

    pub fn input_of(&self, alias: &str, tree: Tree) -> Input {
        Input {
            alias: alias.to_owned(),
            tree: Arc::new(tree),
            files: Arc::new(ShelfFiles(self.dir.path().to_owned())),
            single_file: false,
            at: None,
        }
    }

    /// An input of files with these bytes.
    pub fn input(&self, alias: &str, files: &[(&str, &[u8])]) -> Input {
        let mut tree = Tree::new();
        for (path, bytes) in files {
            tree.insert(RelPath::try_from(*path).unwrap(), self.file(bytes, false)).unwrap();
        }
        self.input_of(alias, tree)
    }

    /// Lays an output out as a folder.
    pub fn lay_out(&self, out: &Output, to: &Path) {
        for (path, entry) in out.entries() {
            let at = to.join(path.as_path());
            fs::create_dir_all(at.parent().unwrap()).unwrap();
            let (from, executable) = match entry {
                OutputEntry::Written { executable } => (out.scratch().join(path.as_path()), *executable),
                OutputEntry::Kept(Entry::File { blob, executable, .. }) => {
                    (self.dir.path().join(blob.hex()), *executable)
                }
                OutputEntry::Kept(Entry::EmptyDir) => {
                    fs::create_dir(at).unwrap();
                    continue;
                }
                OutputEntry::Kept(Entry::Link { target }) => {
                    use std::os::unix::ffi::OsStrExt as _;
                    std::os::unix::fs::symlink(std::ffi::OsStr::from_bytes(target), at).unwrap();
                    continue;
                }
            };
            fs::copy(from, &at).unwrap();
            fs::set_permissions(&at, fs::Permissions::from_mode(if executable { 0o555 } else { 0o444 })).unwrap();
        }
    }
}

/// The bytes of a safetensors file with one F32 [1] tensor for each name.
pub fn safetensors(names: &[&str]) -> Vec<u8> {
    let mut header = String::from("{\"__metadata__\":{\"format\":\"pt\"}");
    for (i, name) in names.iter().enumerate() {
        let (begin, end) = (i * 4, i * 4 + 4);
        header += &format!(",{name:?}:{{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[{begin},{end}]}}");
    }
    header.push('}');
    while header.len() % 8 != 0 {
        header.push(' ');
    }
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    for _ in names {
        bytes.extend(1f32.to_le_bytes());
    }
    bytes
}

/// Progress that nobody watches.
pub struct Quiet;

impl Progress for Quiet {
    fn bytes(&self, _: u64, _: u64) {}
    fn note(&self, _: &str) {}
    fn cancelled(&self) -> bool {
        false
    }
}

/// The parameters of a node, from the text of its table in graph.toml.
pub fn params(toml_text: &str) -> Params {
    fn value(v: &toml::Value) -> Value {
        match v {
            toml::Value::String(s) => Value::Str(s.clone()),
            toml::Value::Integer(i) => Value::Int(*i),
            toml::Value::Float(f) => Value::Float(*f),
            toml::Value::Boolean(b) => Value::Bool(*b),
            toml::Value::Datetime(d) => Value::Date(d.to_string()),
            toml::Value::Array(a) => Value::List(a.iter().map(value).collect()),
            toml::Value::Table(t) => Value::Map(t.iter().map(|(k, v)| (k.clone(), value(v))).collect()),
        }
    }
    let table: toml::Table = toml_text.parse().unwrap();
    table.iter().map(|(k, v)| (k.clone(), value(v))).collect()
}

/// Runs a builtin step into a fresh scratch folder.
pub fn run_step(
    kind: &dyn Kind,
    params: &Params,
    inputs: Vec<Input>,
) -> Result<(Output, Report, tempfile::TempDir), StepError> {
    let inputs: BTreeMap<String, Input> = inputs.into_iter().map(|i| (i.alias.clone(), i)).collect();
    let scratch = tempfile::tempdir().unwrap();
    let mut out = Output::new(scratch.path().to_owned());
    let report = kind.run(&Step { params, inputs: &inputs, progress: &Quiet }, &mut out)?;
    Ok((out, report, scratch))
}
