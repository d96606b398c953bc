//! Archives: as bytes; as the tar inside, rightly packed; as objects, rightly listed.

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use graftwerk::audit::archive::manifest::{Export, Item, MANIFEST, ObjectName, to_text};
use graftwerk::audit::archive::{ArchiveError, import};
use graftwerk::digest::{BlobId, Digest, RecipeId, TreeId};
use graftwerk::store::Store;

struct Place {
    store: Arc<Store>,
    _dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { store: Store::open(&dir.path().join("store")).unwrap(), _dir: dir }
    }
}

thread_local! {
    static PLACE: RefCell<Option<Place>> = const { RefCell::new(None) };
}

fn count(dir: &Path) -> usize {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    entries.map(|e| e.unwrap()).map(|e| if e.file_type().unwrap().is_dir() { count(&e.path()) } else { 1 }).sum()
}

/// The file itself: taken whole, or refused with nothing placed.
pub fn archive(data: &[u8]) {
    PLACE.with_borrow_mut(|place| {
        let p = place.get_or_insert_with(Place::new);
        let dir = p.store.dir().to_owned();
        let mut from = data;
        match import(&p.store, &mut from, &mut |_, _| {}, &|| false) {
            Ok(done) => {
                for e in &done.exports {
                    let tree = p.store.tree(e.tree).unwrap().expect("the listing of an export");
                    assert!(p.store.absent(&tree).unwrap().is_empty());
                }
                for (_, run) in &done.made_by {
                    assert!(p.store.runs(run.recipe).unwrap().contains(run));
                }
                // Taken in again, nothing is new.
                let mut from = data;
                let again = import(&p.store, &mut from, &mut |_, _| {}, &|| false).unwrap();
                assert_eq!((again.new_bytes, again.new_runs), (0, 0));
                *place = None;
            }
            Err(e) => {
                assert!(matches!(e, ArchiveError::Bad { .. } | ArchiveError::NoRoom { .. }), "{e:?}");
                for folder in ["blobs", "trees", "tensors", "recipes", "runs"] {
                    assert_eq!(count(&dir.join(folder)), 0, "{e}: {folder} holds something");
                }
            }
        }
    });
}

/// The tar inside, packed as it must be.
pub fn archive_tar(data: &[u8]) {
    let mut frame = zstd::stream::encode_all(data, 1).unwrap();
    let digest = *Digest::of(&frame).as_bytes();
    frame.extend([0x5f, 0x2a, 0x4d, 0x18, 32, 0, 0, 0]);
    frame.extend(digest);
    archive(&frame);
}

/// The tar inside an archive.
pub fn tar_of(archive: &[u8]) -> Vec<u8> {
    zstd::stream::decode_all(archive).unwrap()
}

// One object: what it is, its length in two bytes, its bytes.
const RECIPE: u8 = b'r';
const TREE: u8 = b't';
const TABLE: u8 = b's';
const RUN: u8 = b'u';
const BLOB: u8 = b'b';

/// Objects of any content, under names and in a manifest that are right: what is left to look at is the content.
pub fn archive_objects(data: &[u8]) {
    let mut objects: Vec<(ObjectName, Vec<u8>)> = Vec::new();
    let (mut recipe, mut blob, mut tree) = (None, None, None);
    let mut rest = data;
    while let [kind, a, b, tail @ ..] = rest {
        let len = usize::from(u16::from_le_bytes([*a, *b])).min(tail.len());
        let (bytes, after) = tail.split_at(len);
        rest = after;
        let d = Digest::of(bytes);
        let name = match *kind {
            RECIPE => {
                recipe = Some(RecipeId(d));
                ObjectName::Recipe(RecipeId(d))
            }
            TREE => {
                tree = Some(TreeId(d));
                ObjectName::Tree(TreeId(d))
            }
            BLOB => {
                blob = Some(BlobId(d));
                ObjectName::Blob(BlobId(d), false)
            }
            TABLE => match blob {
                Some(blob) => ObjectName::Table(blob),
                None => continue,
            },
            _ => match recipe {
                Some(recipe) => ObjectName::Run(recipe, 1),
                None => continue,
            },
        };
        objects.push((name, sealed(name, bytes)));
    }
    objects.sort();
    objects.dedup_by_key(|o| o.0);
    let exports: Vec<Export> = tree.into_iter().map(|tree| Export { made_by: None, tree }).collect();
    let items: Vec<Item> = objects
        .iter()
        .map(|(name, bytes)| Item { name: *name, size: bytes.len() as u64, digest: Digest::of(bytes) })
        .collect();
    let mut tar = Vec::new();
    entry(&mut tar, MANIFEST, to_text(&exports, &[], &items).as_bytes());
    for (name, bytes) in &objects {
        entry(&mut tar, &name.to_string(), bytes);
    }
    tar.resize(tar.len() + 1024, 0);
    archive_tar(&tar);
}

// Records and tables carry a sum of their own, which no mutation hits by chance.
fn sealed(name: ObjectName, bytes: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(bytes);
    match name {
        ObjectName::Run(..) => match text.strip_suffix("\n}") {
            Some(body) => format!("{body},\n  \"sum\": \"{}\"\n}}\n", Digest::of(bytes)).into_bytes(),
            None => bytes.to_vec(),
        },
        ObjectName::Table(_) => [bytes, format!("sum {}\n", Digest::of(bytes)).as_bytes()].concat(),
        _ => bytes.to_vec(),
    }
}

fn entry(tar: &mut Vec<u8>, name: &str, bytes: &[u8]) {
    let mut h = tar::Header::new_ustar();
    h.set_path(name).unwrap();
    h.set_size(bytes.len() as u64);
    h.set_mode(0o444);
    h.set_uid(0);
    h.set_gid(0);
    h.set_mtime(1);
    h.set_entry_type(tar::EntryType::Regular);
    h.set_cksum();
    tar.extend(h.as_bytes());
    tar.extend(bytes);
    tar.resize(tar.len().next_multiple_of(512), 0);
}

/// The objects of an archive as [`archive_objects`] takes them, without their sums.
pub fn objects_of(archive: &[u8]) -> Vec<u8> {
    use std::io::Read as _;
    let tar = tar_of(archive);
    let mut out = Vec::new();
    let mut parts = Vec::new();
    for e in tar::Archive::new(tar.as_slice()).entries().unwrap() {
        let mut e = e.unwrap();
        let name = e.path().unwrap().to_str().unwrap().to_owned();
        let mut bytes = Vec::new();
        e.read_to_end(&mut bytes).unwrap();
        parts.push((name, bytes));
    }
    // A blob before its table, a recipe before its run.
    parts.sort_by_key(|p| !p.0.starts_with("blobs/"));
    for (name, bytes) in parts {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (kind, bytes) = match name.split('/').next().unwrap() {
            "recipes" => (RECIPE, bytes),
            "trees" => (TREE, bytes),
            "blobs" => (BLOB, bytes),
            "tensors" => (TABLE, text.as_bytes()[..text.rfind("sum b3:").unwrap()].to_vec()),
            "runs" => (RUN, (text[..text.rfind(",\n  \"sum\"").unwrap()].to_owned() + "\n}").into_bytes()),
            _ => continue,
        };
        out.push(kind);
        out.extend(u16::try_from(bytes.len()).unwrap().to_le_bytes());
        out.extend(bytes);
    }
    out
}
