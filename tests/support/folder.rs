//! Inputs over folders of any size, and a run of a builtin kind as the engine does it: outputs hashed, copied tensors
//! compared.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use graftwerk::digest::BlobId;
use graftwerk::kinds::{Input, InputFiles, Kind, Output, OutputEntry, Params, Progress, Report, Step, StepError};
use graftwerk::model::path::RelPath;
use graftwerk::model::tree::{Entry, Tree};
use graftwerk::tensors::hash::hash_file;
use graftwerk::tensors::table::TensorTable;

/// A hashed folder: where its blobs are and what is in them.
#[derive(Clone, Default)]
pub struct Folder {
    pub tree: Tree,
    places: HashMap<BlobId, PathBuf>,
    tables: HashMap<BlobId, Arc<TensorTable>>,
}

impl Folder {
    /// The files of `dirs`, in one tree; of two files of one path the later one counts.
    pub fn of(dirs: &[&Path]) -> Self {
        let mut files = BTreeMap::new();
        for dir in dirs {
            walk(dir, &mut Vec::new(), &mut files);
        }
        let mut folder = Self::default();
        for (path, place) in files {
            folder.add(path, &place, false);
        }
        folder
    }

    /// The same without what `keep` refuses.
    pub fn filtered(mut self, keep: impl Fn(&str) -> bool) -> Self {
        self.tree = self.tree.filtered(|p, _| keep(p.as_str().unwrap()));
        self
    }

    fn add(&mut self, path: RelPath, place: &Path, executable: bool) {
        let file = File::open(place).unwrap();
        let size = file.metadata().unwrap().len();
        let shard = path.as_bytes().ends_with(b".safetensors");
        let hashed = hash_file(&file, size, shard, &mut |_| {}, &|| false).unwrap();
        self.places.insert(hashed.blob, place.to_owned());
        if let Some(table) = hashed.table {
            self.tables.insert(hashed.blob, Arc::new(table));
        }
        self.tree.insert(path, Entry::File { blob: hashed.blob, size, executable }).unwrap();
    }

    /// The blob at `path`.
    pub fn blob(&self, path: &str) -> BlobId {
        match self.tree.at(path) {
            Some(Entry::File { blob, .. }) => *blob,
            other => panic!("{path}: {other:?}"),
        }
    }

    /// The bytes at `path`.
    pub fn read(&self, path: &str) -> Vec<u8> {
        std::fs::read(&self.places[&self.blob(path)]).unwrap()
    }

    /// The table of the shard at `path`.
    pub fn table(&self, path: &str) -> &TensorTable {
        &self.tables[&self.blob(path)]
    }

    /// The bytes of every tensor, with type and shape as text.
    pub fn tensors(&self) -> BTreeMap<String, (String, Vec<u8>)> {
        let mut all = BTreeMap::new();
        for (path, blob, ..) in self.tree.files() {
            let Some(table) = self.tables.get(&blob) else { continue };
            let bytes = self.read(path.as_str().unwrap());
            for t in &table.tensors {
                let at = |o: u64| (table.data_start + o) as usize;
                let kind = format!("{} {:?}", t.dtype, t.shape);
                let old = all.insert(t.name.clone(), (kind, bytes[at(t.begin)..at(t.end)].to_vec()));
                assert!(old.is_none(), "{} has two copies", t.name);
            }
        }
        all
    }

    /// As an input of a step.
    pub fn input(&self, alias: &str) -> Input {
        Input {
            alias: alias.to_owned(),
            tree: Arc::new(self.tree.clone()),
            files: Arc::new(self.clone()),
            single_file: false,
            at: None,
        }
    }
}

impl InputFiles for Folder {
    fn open(&self, blob: BlobId) -> io::Result<File> {
        File::open(self.location(blob)?)
    }

    fn location(&self, blob: BlobId) -> io::Result<PathBuf> {
        self.places.get(&blob).cloned().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }

    fn table(&self, blob: BlobId) -> io::Result<Option<Arc<TensorTable>>> {
        Ok(self.tables.get(&blob).cloned())
    }
}

fn walk(dir: &Path, below: &mut Vec<u8>, files: &mut BTreeMap<RelPath, PathBuf>) {
    use std::os::unix::ffi::OsStrExt as _;
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let len = below.len();
        if len > 0 {
            below.push(b'/');
        }
        below.extend(entry.file_name().as_bytes());
        if entry.path().is_dir() {
            walk(&entry.path(), below, files);
        } else {
            files.insert(RelPath::new(below.clone()).unwrap(), entry.path());
        }
        below.truncate(len);
    }
}

/// Progress that holds what it is told, and stops the step after so many calls.
pub struct Watch {
    /// Calls until the step is stopped; `u64::MAX` for never.
    pub calls: u64,
    seen: AtomicU64,
}

impl Watch {
    /// Stops after so many calls.
    pub fn stop_after(calls: u64) -> Self {
        Self { calls, seen: AtomicU64::new(0) }
    }
}

impl Progress for Watch {
    fn bytes(&self, done: u64, total: u64) {
        assert!(done <= total, "{done} of {total} bytes");
        self.seen.fetch_add(1, Ordering::Relaxed);
    }
    fn note(&self, _: &str) {}
    fn cancelled(&self) -> bool {
        self.seen.load(Ordering::Relaxed) >= self.calls
    }
}

/// Checks the parameters and runs the step in the empty folder `scratch`. What was written is hashed, and copied
/// tensors are held against what they must be.
pub fn run(
    kind: &dyn Kind,
    params: &Params,
    inputs: &[(&str, &Folder)],
    scratch: &Path,
) -> Result<(Folder, Report), StepError> {
    run_watched(kind, params, inputs, scratch, &Watch::stop_after(u64::MAX))
}

/// [`run`], watched.
pub fn run_watched(
    kind: &dyn Kind,
    params: &Params,
    inputs: &[(&str, &Folder)],
    scratch: &Path,
    watch: &Watch,
) -> Result<(Folder, Report), StepError> {
    let inputs: BTreeMap<_, _> = inputs.iter().map(|(alias, f)| ((*alias).to_owned(), (*f).clone())).collect();
    let aliases: Vec<_> = inputs.keys().map(String::as_str).collect();
    kind.check(params, &aliases).map_err(|e| StepError::Invalid { what: e.what, hint: e.hint })?;
    let as_inputs: BTreeMap<_, _> = inputs.iter().map(|(alias, f)| (alias.clone(), f.input(alias))).collect();
    let mut out = Output::new(scratch.to_owned());
    let report = kind.run(&Step { params, inputs: &as_inputs, progress: watch }, &mut out)?;

    let mut made = Folder::default();
    for f in inputs.values() {
        made.places.extend(f.places.clone());
        made.tables.extend(f.tables.clone());
    }
    for (path, entry) in out.entries() {
        match entry {
            OutputEntry::Kept(e) => made.tree.insert(path.clone(), e.clone()).unwrap(),
            OutputEntry::Written { executable } => made.add(path.clone(), &scratch.join(path.as_path()), *executable),
        }
    }
    for (path, tensors) in out.expected() {
        let table = made.table(path.as_str().unwrap());
        for (name, digest) in tensors {
            assert_eq!(table.get(name).map(|t| t.digest), Some(*digest), "{path}: {name}");
        }
    }
    Ok((made, report))
}
