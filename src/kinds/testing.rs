//! Running a kind in a test: inputs over folders, parameters as TOML, and the output readable like an input.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::canon::Value;
use crate::digest::BlobId;
use crate::kinds::{Input, InputFiles, Kind, Output, ParamError, Params, Progress, Report, Step, StepError};
use crate::model::path::RelPath;
use crate::model::tree::{Entry, Tree};
use crate::tensors::hash::hash_file;
use crate::tensors::table::TensorTable;

type TableOrFault = Result<Option<Arc<TensorTable>>, String>;

/// Blobs by digest, wherever they lie.
#[derive(Default)]
struct Files {
    blobs: BTreeMap<BlobId, (PathBuf, TableOrFault)>,
}

impl Files {
    fn add(&mut self, path: &Path) -> (BlobId, u64) {
        let file = File::open(path).unwrap();
        let size = file.metadata().unwrap().len();
        let tensors = path.extension().is_some_and(|e| e == "safetensors");
        let (blob, table) = match hash_file(&file, size, tensors, &mut |_| {}, &|| false) {
            Ok(hashed) => (hashed.blob, Ok(hashed.table.map(Arc::new))),
            Err(e) => {
                let what = format!("{}: {e}", path.display());
                (hash_file(&file, size, false, &mut |_| {}, &|| false).unwrap().blob, Err(what))
            }
        };
        self.blobs.insert(blob, (path.to_owned(), table));
        (blob, size)
    }

    fn find(&self, blob: BlobId) -> io::Result<&(PathBuf, TableOrFault)> {
        self.blobs.get(&blob).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, blob.to_string()))
    }
}

impl InputFiles for Files {
    fn open(&self, blob: BlobId) -> io::Result<File> {
        File::open(&self.find(blob)?.0)
    }

    fn location(&self, blob: BlobId) -> io::Result<PathBuf> {
        Ok(self.find(blob)?.0.clone())
    }

    fn table(&self, blob: BlobId) -> io::Result<Option<Arc<TensorTable>>> {
        self.find(blob)?.1.clone().map_err(|what| io::Error::new(io::ErrorKind::InvalidData, what))
    }
}

fn scan(dir: &Path, below: &str, tree: &mut Tree, files: &mut Files) {
    use std::os::unix::fs::PermissionsExt as _;
    let mut entries: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap()).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    if entries.is_empty() && !below.is_empty() {
        tree.insert(RelPath::try_from(below).unwrap(), Entry::EmptyDir).unwrap();
    }
    for e in entries {
        let name = e.file_name().into_string().unwrap();
        let name = if below.is_empty() { name } else { format!("{below}/{name}") };
        let path = e.path();
        if path.is_dir() {
            scan(&path, &name, tree, files);
        } else {
            let (blob, size) = files.add(&path);
            let executable = path.metadata().unwrap().permissions().mode() & 0o100 != 0;
            tree.insert(RelPath::try_from(name.as_str()).unwrap(), Entry::File { blob, size, executable }).unwrap();
        }
    }
}

fn input(alias: &str, tree: Tree, files: Files, single_file: bool) -> Input {
    Input { alias: alias.to_owned(), tree: Arc::new(tree), files: Arc::new(files), single_file, at: None }
}

/// The folder as an input.
pub(crate) fn folder(alias: &str, dir: &Path) -> Input {
    let (mut tree, mut files) = (Tree::new(), Files::default());
    scan(dir, "", &mut tree, &mut files);
    input(alias, tree, files, false)
}

/// Those of the folder's files for which `keep` holds, as an input.
pub(crate) fn filtered(alias: &str, dir: &Path, keep: impl Fn(&str) -> bool) -> Input {
    let mut all = folder(alias, dir);
    all.tree = Arc::new(all.tree.filtered(|p, _| p.as_str().is_some_and(&keep)));
    all
}

/// The file as a file source.
pub(crate) fn file(alias: &str, path: &Path) -> Input {
    let (mut tree, mut files) = (Tree::new(), Files::default());
    let (blob, size) = files.add(path);
    let name = path.file_name().unwrap().to_str().unwrap();
    tree.insert(RelPath::try_from(name).unwrap(), Entry::File { blob, size, executable: false }).unwrap();
    input(alias, tree, files, true)
}

/// A folder of these files, kept until the guard is dropped, as an input.
pub(crate) fn made(alias: &str, content: &[(&str, &[u8])]) -> (Input, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in content {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    (folder(alias, dir.path()), dir)
}

/// Parameters as they stand in graph.toml.
pub(crate) fn params(toml: &str) -> Params {
    match from_toml(toml::Value::Table(toml::from_str(toml).unwrap())) {
        Value::Map(m) => m,
        _ => unreachable!(),
    }
}

fn from_toml(v: toml::Value) -> Value {
    match v {
        toml::Value::String(s) => Value::Str(s),
        toml::Value::Integer(i) => Value::Int(i),
        toml::Value::Float(f) => Value::Float(f),
        toml::Value::Boolean(b) => Value::Bool(b),
        toml::Value::Datetime(d) => Value::Date(d.to_string()),
        toml::Value::Array(a) => Value::List(a.into_iter().map(from_toml).collect()),
        toml::Value::Table(t) => Value::Map(t.into_iter().map(|(k, v)| (k, from_toml(v))).collect()),
    }
}

/// Says nothing and never stops.
pub(crate) struct Quiet;

impl Progress for Quiet {
    fn bytes(&self, _done: u64, _total: u64) {}
    fn note(&self, _line: &str) {}
    fn cancelled(&self) -> bool {
        false
    }
}

/// What a step made. Written files lie in the scratch folder until it is dropped.
pub(crate) struct Ran {
    pub(crate) out: Input,
    pub(crate) report: Report,
    _scratch: tempfile::TempDir,
}

impl Ran {
    /// The bytes of a file of the output.
    pub(crate) fn read(&self, path: &str) -> Vec<u8> {
        self.out.read(&RelPath::try_from(path).unwrap(), u64::MAX).unwrap()
    }

    /// The text of a file of the output.
    pub(crate) fn text(&self, path: &str) -> String {
        String::from_utf8(self.read(path)).unwrap()
    }
}

/// Checks the parameters, then runs the step.
pub(crate) fn run(kind: &dyn Kind, toml: &str, inputs: &[&Input]) -> Result<Ran, StepError> {
    let params = params(toml);
    checked(kind, toml, inputs).map_err(|e| StepError::Invalid { what: format!("{}: {e}", e.key), hint: e.hint })?;
    let scratch = tempfile::tempdir().unwrap();
    let by_alias: BTreeMap<String, Input> = inputs.iter().map(|i| (i.alias.clone(), (*i).clone())).collect();
    let mut out = Output::new(scratch.path().to_owned());
    let report = kind.run(&Step { params: &params, inputs: &by_alias, progress: &Quiet }, &mut out)?;

    let mut files = Files::default();
    let written: BTreeMap<RelPath, (BlobId, u64)> = out
        .entries()
        .keys()
        .map(|p| (p, scratch.path().join(p.as_path())))
        .filter(|(_, at)| at.is_file())
        .map(|(p, at)| (p.clone(), files.add(&at)))
        .collect();
    let tree = out.tree(|p| written.get(p).copied()).unwrap();
    for (_, blob, ..) in tree.files() {
        let place = inputs.iter().find_map(|i| Some((i.files.location(blob).ok()?, i.files.table(blob).ok()?)));
        if let Some((path, table)) = place {
            files.blobs.entry(blob).or_insert((path, Ok(table)));
        }
    }
    for (path, tensors) in out.expected() {
        let (blob, _) = written[path];
        let table = files.table(blob).unwrap().unwrap();
        for (name, digest) in tensors {
            assert_eq!(table.get(name).unwrap().digest, *digest, "{path}: {name}");
        }
    }
    Ok(Ran { out: input("out", tree, files, false), report, _scratch: scratch })
}

/// Holds keys and parameters against what the kind says of them.
pub(crate) fn checked(kind: &dyn Kind, toml: &str, inputs: &[&Input]) -> Result<(), ParamError> {
    let params = params(toml);
    for key in params.keys() {
        assert!(kind.keys().iter().any(|k| k.name == key), "{} has no key {key}", kind.name());
    }
    let aliases: Vec<&str> = inputs.iter().map(|i| i.alias.as_str()).collect();
    kind.check(&params, &aliases)
}

/// What an error says, with its hint.
pub(crate) fn told<T>(result: Result<T, StepError>) -> String {
    match result {
        Ok(_) => panic!("the step succeeded"),
        Err(StepError::Invalid { what, hint: Some(hint) }) => format!("{what}\nhint: {hint}"),
        Err(e) => e.to_string(),
    }
}

/// A path below the repository's root.
pub(crate) fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}
