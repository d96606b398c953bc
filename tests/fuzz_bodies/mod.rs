//! What must hold of every input whatever, target by target: the same bodies are run by cargo-fuzz (`fuzz/`) and, over its
//! corpus and seeded mutations of it, by a plain test.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod archive;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;

use graftwerk::attest::key::{PrivateKey, PublicKey};
use graftwerk::attest::statement::{Signed, Statement};
use graftwerk::attest::{AttestError, manifest as digests};
use graftwerk::audit::archive::manifest;
use graftwerk::digest::{BlobId, Digest};
use graftwerk::graph::{Graph, Lock};
use graftwerk::kinds::{Input, InputFiles, Output, Progress, Step};
use graftwerk::model::recipe::{Ingredients, explain, parse_fields};
use graftwerk::model::tree::{Entry, Tree};
use graftwerk::tensors::header::{Header, HeaderError};
use graftwerk::tensors::index::Index;
use graftwerk::tensors::table::TensorTable;

#[allow(unused_imports, reason = "each target takes its own")]
pub use archive::{archive, archive_objects, archive_tar, objects_of, tar_of};

/// A target: its name, which is that of its corpus, and its body.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: &[Target] = &[
    ("graph", graph),
    ("lock", lock),
    ("header", header),
    ("index", index),
    ("tree", tree),
    ("recipe", recipe),
    ("table", table),
    ("rows", rows),
    ("manifest", manifest_text),
    ("archive", archive),
    ("archive_tar", archive_tar),
    ("archive_objects", archive_objects),
    ("signature", signature),
];

/// graph.toml: a graph, or errors that say something.
pub fn graph(data: &[u8]) {
    match Graph::parse_bytes("graph.toml", data) {
        Ok(g) => {
            let again = Graph::parse_bytes("graph.toml", data).unwrap();
            assert_eq!(g.order, again.order);
            assert_eq!(g.order.len(), g.nodes.len());
        }
        Err(e) => assert!(!e.to_string().is_empty()),
    }
}

/// Keys, envelopes, statements, lists of digests: whatever is none is an error that says so and shows nothing of a key, and
/// no path that is taken leads out of a folder.
pub fn signature(data: &[u8]) {
    let told = |e: AttestError| assert!(e.to_string().starts_with("place") && !e.to_string().contains("AAAA"), "{e}");
    let inside = |files: &BTreeMap<String, Vec<graftwerk::attest::files::Piece>>| {
        for name in files.keys() {
            assert!(!name.starts_with('/') && name.split('/').all(|p| p != ".." && !p.is_empty()), "{name:?}");
        }
    };
    if let Ok(text) = std::str::from_utf8(data) {
        match PrivateKey::parse(text, "place") {
            Ok(key) => assert!(key.public().verifies(b"message", &key.sign(b"message"))),
            Err(e) => told(e),
        }
        match PublicKey::parse(text, "place") {
            Ok(key) => assert_eq!((key.fingerprint().len(), key.verifies(b"message", data)), (64, false)),
            Err(e) => told(e),
        }
    }
    let key = PrivateKey::parse(include_str!("../../fuzz/corpus/signature/ed25519"), "place").unwrap().public();
    match Signed::parse(data, "place").and_then(|s| s.open(&key, "place")) {
        Ok(statement) => assert!(!statement.predicate_type.is_empty()),
        Err(e) => assert!(e.to_string().starts_with("place")),
    }
    if let Ok(expected) = serde_json::from_slice::<Statement>(data).map(|s| s.expected("place")) {
        expected.map_or_else(|e| assert!(e.to_string().starts_with("place")), |e| inside(&e.files));
    }
    digests::parse(data, "place").map_or_else(|e| assert!(e.to_string().starts_with("place")), |e| inside(&e.files));
}

/// graph.lock: one that reads is written so that it reads the same.
pub fn lock(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Lock::parse("graph.lock", text) {
        Ok(lock) => {
            let written = lock.to_text();
            let again = Lock::parse("graph.lock", &written).unwrap_or_else(|e| panic!("{e}\n{written}"));
            assert_eq!(again, lock);
            assert_eq!(again.to_text(), written);
        }
        Err(e) => assert!(!e.to_string().is_empty()),
    }
}

/// A safetensors file: what is taken here, the reference takes with the same tensors, and the other way round but for
/// what is listed in `header.rs`.
pub fn header(data: &[u8]) {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(data).unwrap();
    let ours = Header::read(&file, data.len() as u64);
    let theirs = safetensors::SafeTensors::read_metadata(data).and_then(|(n, m)| {
        // What its metadata alone does not look at: whether all of the file belongs to a tensor.
        safetensors::SafeTensors::deserialize(data).map(|_| (n, m))
    });
    match (&ours, &theirs) {
        (Ok(ours), Ok((n, theirs))) => {
            assert_eq!(ours.data_start, *n as u64 + 8);
            let tensors = theirs.tensors();
            assert_eq!(ours.tensors.len(), tensors.len());
            for t in &ours.tensors {
                let other = tensors.get(&t.name).unwrap_or_else(|| panic!("{:?} is not there", t.name));
                assert_eq!(t.dtype.to_string(), format!("{}", other.dtype), "{}", t.name);
                let shape: Vec<u64> = other.shape.iter().map(|d| *d as u64).collect();
                assert_eq!(t.shape, shape, "{}", t.name);
                assert_eq!((t.begin, t.end), (other.data_offsets.0 as u64, other.data_offsets.1 as u64), "{}", t.name);
            }
        }
        (Ok(ours), Err(e)) => panic!("taken here, and refused by the reference: {e}\n{ours:?}"),
        (Err(e), Ok(_)) => {
            let listed = match e {
                HeaderError::Duplicate { .. }
                | HeaderError::DuplicateMetadata
                | HeaderError::DuplicateMetadataKey { .. }
                | HeaderError::TooManyDimensions { .. } => true,
                HeaderError::BadTensor { what, .. } => what.contains("field"),
                _ => false,
            };
            assert!(listed, "refused here, and taken by the reference: {e:?}");
        }
        (Err(e), Err(_)) => assert!(!e.to_string().is_empty()),
    }
}

/// An index: one that reads is written so that it reads the same.
pub fn index(data: &[u8]) {
    match Index::parse(data) {
        Ok(index) => {
            let written = index.to_json();
            assert_eq!(Index::parse(written.as_bytes()).unwrap_or_else(|e| panic!("{e}\n{written}")), index);
        }
        Err(e) => assert!(!e.to_string().is_empty()),
    }
}

/// A listing: one tree has one text.
pub fn tree(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Tree::parse(text) {
        Ok(tree) => assert_eq!(tree.to_text(), text),
        Err(e) => assert!(!e.to_string().is_empty()),
    }
}

/// A recipe: one that reads can be explained.
pub fn recipe(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match parse_fields(text) {
        Ok(fields) => {
            let changes = explain(text, &Ingredients::default()).unwrap();
            assert!(changes.len() <= fields.len() + 2);
        }
        Err(e) => assert!(!e.to_string().is_empty()),
    }
}

/// A tensor table: one table has one text.
pub fn table(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match TensorTable::parse(text) {
        Ok(table) => assert_eq!(table.to_text(), text),
        Err(e) => assert!(!e.to_string().is_empty()),
    }
}

/// An archive's manifest: one archive has one text.
pub fn manifest_text(data: &[u8]) {
    let Ok(mut reader) = manifest::Reader::new(data) else { return };
    let head = reader.head().clone();
    let mut items = Vec::new();
    loop {
        match reader.item() {
            Ok(Some(item)) => items.push(item),
            Ok(None) => break,
            Err(e) => return assert!(!e.to_string().is_empty()),
        }
    }
    assert_eq!(manifest::to_text(&head.exports, &head.sources, &items).as_bytes(), data);
}

struct OneFile(PathBuf);

impl InputFiles for OneFile {
    fn open(&self, _: BlobId) -> io::Result<File> {
        File::open(&self.0)
    }

    fn location(&self, _: BlobId) -> io::Result<PathBuf> {
        Ok(self.0.clone())
    }

    fn table(&self, _: BlobId) -> io::Result<Option<Arc<TensorTable>>> {
        Ok(None)
    }
}

struct Quiet;

impl Progress for Quiet {
    fn bytes(&self, _: u64, _: u64) {}
    fn note(&self, _: &str) {}
    fn cancelled(&self) -> bool {
        false
    }
}

/// Calibration rows: the check comes to a verdict, and rows that it finds well-formed are JSON objects with messages or
/// a text for another reader, too.
pub fn rows(data: &[u8]) {
    use graftwerk::canon::Value;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.jsonl");
    fs::write(&path, data).unwrap();
    let mut tree = Tree::new();
    let entry = Entry::File { blob: BlobId(Digest::of(data)), size: data.len() as u64, executable: false };
    tree.insert("rows.jsonl".try_into().unwrap(), entry).unwrap();
    let input = Input {
        alias: "calib".to_owned(),
        tree: Arc::new(tree),
        files: Arc::new(OneFile(path)),
        single_file: true,
        at: None,
    };
    let spec = BTreeMap::from([("tool_arguments".to_owned(), Value::Str("string".to_owned()))]);
    let params = BTreeMap::from([(
        "calibration".to_owned(),
        Value::Map(BTreeMap::from([("calib".to_owned(), Value::Map(spec))])),
    )]);
    let inputs = BTreeMap::from([("calib".to_owned(), input)]);
    let scratch = dir.path().join("out");
    fs::create_dir(&scratch).unwrap();
    let mut out = Output::new(scratch);
    let check = graftwerk::kinds::all().iter().find(|k| k.name() == "check").unwrap();
    let report = check.run(&Step { params: &params, inputs: &inputs, progress: &Quiet }, &mut out).unwrap();
    let facts = &report.facts["calibration.calib"];
    let lines = data.iter().filter(|b| **b == b'\n').count() as u64 + 1;
    assert!(facts["rows"].as_u64().unwrap() <= lines);
    if report.verdict == Some(true) {
        for line in data.split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            match serde_json::from_slice::<serde_json::Value>(line) {
                Ok(v) => assert!(v.get("messages").is_some_and(|m| m.is_array()) || v["text"].is_string(), "{v}"),
                Err(e) if e.to_string().contains("recursion limit") => {}
                Err(e) => panic!("well-formed here, and not for another reader: {e}"),
            }
        }
    }
}
