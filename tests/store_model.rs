//! The store against a model of it: publish, record, view, scan, change a source, lose or damage a blob, close, die,
//! verify, repair, collect, carry elsewhere, in any order. Whatever was recorded reads back the same, nothing right is ever lost or
//! overwritten, and damage is never read as truth.
//!
//! `GRAFTWERK_MODEL_CASES=N` asks for more sequences.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use graftwerk::audit::archive::{self, Closure, Export, Wanted};
use graftwerk::audit::gc::{Limits, Measured, plan};
use graftwerk::audit::hold::Holders;
use graftwerk::audit::repair;
use graftwerk::audit::verify::{Looking, verify};
use graftwerk::digest::{BlobId, Digest, RecipeId, TreeId};
use graftwerk::front::{self, Location, RepairOptions};
use graftwerk::kinds::Output;
use graftwerk::model::recipe::Ingredients;
use graftwerk::model::run::{Isolation, Outcome, RunRecord};
use graftwerk::model::tree::{Entry, Tree};
use graftwerk::store::roots::{Root, Roots};
use graftwerk::store::survey::Part;
use graftwerk::store::{Presence, ScanOptions, SourceForm, Store, StoreError};
use proptest::prelude::*;

/// Sequences in CI.
const CASES: u32 = 24;

const NAMES: [&str; 4] = ["a", "b/c", "b/d", "model.safetensors"];
const CONTENTS: u8 = 5;
const SOURCES: u8 = 2;
const RECIPES: u8 = 3;

/// The bytes of a file: few of them, so that trees share blobs.
fn content(n: u8) -> Vec<u8> {
    let value = f32::from(n).to_le_bytes();
    let header = br#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}  "#;
    [&(header.len() as u64).to_le_bytes()[..], header, &value].concat()
}

fn blob(n: u8) -> BlobId {
    BlobId(Digest::of(&content(n)))
}

#[derive(Debug, Clone)]
enum Op {
    /// Files of a step's output, by name: content and executable bit.
    Publish(BTreeMap<u8, (u8, bool)>),
    Record {
        recipe: u8,
        tree: usize,
        fails: bool,
    },
    View(usize),
    Scan(u8),
    ChangeSource {
        source: u8,
        name: u8,
        content: Option<u8>,
    },
    LoseBlob(u8, bool),
    DamageBlob(u8, bool, Damage),
    LoseView(usize),
    LoseIndex,
    Reopen,
    /// A process that died left these.
    Die,
    Verify,
    Repair,
    CarryElsewhere(usize),
    /// A project wants a tree kept.
    Keep(usize),
    Gc,
}

#[derive(Debug, Clone, Copy)]
enum Damage {
    Flip,
    Cut,
    Empty,
    Link,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let file = (0..CONTENTS, any::<bool>());
    let damage = prop_oneof![Just(Damage::Flip), Just(Damage::Cut), Just(Damage::Empty), Just(Damage::Link)];
    let op = prop_oneof![
        6 => proptest::collection::btree_map(0..NAMES.len() as u8, file, 0..4).prop_map(Op::Publish),
        5 => (0..RECIPES, any::<usize>(), proptest::bool::weighted(0.2))
            .prop_map(|(recipe, tree, fails)| Op::Record { recipe, tree, fails }),
        4 => any::<usize>().prop_map(Op::View),
        3 => (0..SOURCES).prop_map(Op::Scan),
        3 => (0..SOURCES, 0..NAMES.len() as u8, proptest::option::weighted(0.8, 0..CONTENTS))
            .prop_map(|(source, name, content)| Op::ChangeSource { source, name, content }),
        2 => (0..CONTENTS, any::<bool>()).prop_map(|(n, x)| Op::LoseBlob(n, x)),
        3 => (0..CONTENTS, any::<bool>(), damage).prop_map(|(n, x, d)| Op::DamageBlob(n, x, d)),
        1 => any::<usize>().prop_map(Op::LoseView),
        1 => Just(Op::LoseIndex),
        2 => Just(Op::Reopen),
        1 => Just(Op::Die),
        2 => Just(Op::Verify),
        2 => Just(Op::Repair),
        2 => any::<usize>().prop_map(Op::CarryElsewhere),
        3 => any::<usize>().prop_map(Op::Keep),
        2 => Just(Op::Gc),
    ];
    proptest::collection::vec(op, 1..40)
}

/// What must be true.
#[derive(Default)]
struct Model {
    trees: BTreeMap<TreeId, Tree>,
    published: Vec<TreeId>,
    recipes: BTreeMap<u8, RecipeId>,
    runs: BTreeMap<RecipeId, Vec<RunRecord>>,
    // Stored blobs that nobody has touched, with their inodes.
    right: BTreeMap<(BlobId, bool), u64>,
    // Those that were damaged, with the bytes they have now, until somebody looks.
    damaged: BTreeMap<(BlobId, bool), Option<Vec<u8>>>,
    // Every damaged file that was set aside, by bytes.
    quarantine: usize,
    sources: BTreeMap<(u8, u8), (u8, u64)>,
    kept: Vec<TreeId>,
}

struct World {
    top: tempfile::TempDir,
    store: Option<Arc<Store>>,
    model: Model,
}

fn recipe(n: u8) -> graftwerk::model::recipe::Recipe {
    Ingredients { kind: "edit".to_owned(), revision: u32::from(n), ..Ingredients::default() }.recipe()
}

/// Every file below a folder.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(d) = todo.pop() {
        for e in fs::read_dir(&d).into_iter().flatten() {
            let e = e.unwrap();
            if e.file_type().unwrap().is_dir() { todo.push(e.path()) } else { all.push(e.path()) }
        }
    }
    all
}

impl World {
    fn new() -> Self {
        let top = tempfile::tempdir().unwrap();
        for s in 0..SOURCES {
            fs::create_dir_all(top.path().join(format!("source-{s}/b"))).unwrap();
        }
        let store = Some(Store::open(&top.path().join("store")).unwrap());
        Self { top, store, model: Model::default() }
    }

    fn store(&self) -> Arc<Store> {
        Arc::clone(self.store.as_ref().unwrap())
    }

    fn dir(&self) -> PathBuf {
        self.top.path().join("store")
    }

    fn blob_path(&self, blob: BlobId, executable: bool) -> PathBuf {
        let hex = blob.hex();
        self.dir().join("blobs").join(&hex[..2]).join(format!("{}{}", &hex[2..], if executable { ".x" } else { "" }))
    }

    fn source_path(&self, source: u8, name: u8) -> PathBuf {
        self.top.path().join(format!("source-{source}")).join(NAMES[name as usize])
    }

    fn a_tree(&self, n: usize) -> Option<TreeId> {
        let len = self.model.published.len();
        (len > 0).then(|| self.model.published[n % len])
    }

    // After something may have looked at blobs: what is gone from its place was damaged, and is set aside.
    fn settle(&mut self) {
        let damaged = std::mem::take(&mut self.model.damaged);
        for ((blob, x), bytes) in damaged {
            let path = self.blob_path(blob, x);
            let there = fs::symlink_metadata(&path).is_ok();
            let now = fs::read(&path).ok();
            if there && now == bytes {
                // Nobody has looked yet.
                self.model.damaged.insert((blob, x), bytes);
                continue;
            }
            self.model.quarantine += 1;
            if there {
                // Made again since: it must be right.
                assert_eq!(Digest::of(&now.unwrap()), blob.0);
                self.model.right.insert((blob, x), fs::metadata(&path).unwrap().ino());
            }
        }
    }

    // Whatever lies in blobs/ and is not known to be damaged is right from now on.
    fn learn(&mut self) {
        self.settle();
        for n in 0..CONTENTS {
            for x in [false, true] {
                let path = self.blob_path(blob(n), x);
                if path.exists() && !self.model.damaged.contains_key(&(blob(n), x)) {
                    self.model.right.entry((blob(n), x)).or_insert_with(|| fs::metadata(&path).unwrap().ino());
                }
            }
        }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Publish(wanted) => self.publish(wanted),
            Op::Record { recipe: r, tree, fails } => self.record(*r, *tree, *fails),
            Op::View(n) => self.view(*n),
            Op::Scan(s) => self.scan(*s),
            Op::ChangeSource { source, name, content } => self.change_source(*source, *name, *content),
            Op::LoseBlob(n, x) => {
                let key = (blob(*n), *x);
                let path = self.blob_path(key.0, *x);
                if fs::symlink_metadata(&path).is_ok() {
                    fs::remove_file(path).unwrap();
                }
                self.model.right.remove(&key);
                self.model.damaged.remove(&key);
                // What a process has looked at it does not look at again.
                self.reopen();
            }
            Op::DamageBlob(n, x, how) => self.damage(*n, *x, *how),
            Op::LoseView(n) => {
                if let Some(id) = self.a_tree(*n) {
                    let _ = fs::remove_dir_all(self.store().view_path(id));
                }
            }
            Op::LoseIndex => {
                self.store = None;
                let _ = fs::remove_dir_all(self.dir().join("index"));
                self.reopen();
            }
            Op::Reopen => self.reopen(),
            Op::Die => self.die(),
            Op::Verify => self.verify(),
            Op::Repair => self.repair(),
            Op::CarryElsewhere(n) => self.carry(*n),
            Op::Keep(n) => self.keep(*n),
            Op::Gc => self.gc(),
        }
        self.learn();
    }

    fn publish(&mut self, wanted: &BTreeMap<u8, (u8, bool)>) {
        let store = self.store();
        let scratch = store.scratch().unwrap();
        let mut out = Output::new(scratch);
        let mut tree = Tree::new();
        for (name, (n, x)) in wanted {
            let path = NAMES[*name as usize].try_into().unwrap();
            out.write_as(path, *x, &content(*n)).unwrap();
            let entry = Entry::File { blob: blob(*n), size: content(*n).len() as u64, executable: *x };
            tree.insert(NAMES[*name as usize].try_into().unwrap(), entry).unwrap();
        }
        let made = store.publish(&out, false, &mut |_| {}, &|| false).unwrap();
        assert_eq!((made.id, &made.tree), (tree.id(), &tree));
        // What was just published is there, whatever was in its place before.
        for (n, x) in wanted.values() {
            assert_eq!(fs::read(self.blob_path(blob(*n), *x)).unwrap(), content(*n));
        }
        if !self.model.trees.contains_key(&made.id) {
            self.model.published.push(made.id);
        }
        self.model.trees.insert(made.id, tree);
    }

    fn record(&mut self, n: u8, tree: usize, fails: bool) {
        let outcome = match self.a_tree(tree) {
            Some(tree) if !fails => Outcome::Success { tree, verdict: None },
            _ => Outcome::Failure { error: "no".to_owned() },
        };
        let r = recipe(n);
        let store = self.store();
        store.put_recipe(&r).unwrap();
        let before = self.model.runs.entry(r.id).or_default();
        let run = RunRecord {
            recipe: r.id,
            seq: 0,
            outcome,
            isolation: Isolation::Builtin,
            started: format!("2026-11-30T19:22:{:02}Z", before.len()),
            seconds: 0.25,
            host: "h".to_owned(),
            node: format!("node-{n}"),
            version: "0.1.0".to_owned(),
            reasons: Vec::new(),
            facts: BTreeMap::new(),
            log: None,
        };
        let kept = store.record(run.clone()).unwrap();
        assert_eq!(kept, RunRecord { seq: before.len() as u64 + 1, ..run });
        before.push(kept);
        self.model.recipes.insert(n, r.id);
    }

    fn view(&mut self, n: usize) {
        let Some(id) = self.a_tree(n) else { return };
        let tree = self.model.trees[&id].clone();
        match self.store().view(id, &tree) {
            Ok(path) => {
                let found: BTreeMap<PathBuf, Digest> = files(&path)
                    .into_iter()
                    .map(|f| (f.strip_prefix(&path).unwrap().to_owned(), Digest::of(&fs::read(&f).unwrap())))
                    .collect();
                let wanted = tree.files().map(|(p, b, ..)| (p.as_path().to_owned(), b.0)).collect();
                assert_eq!(found, wanted, "a view is not its tree");
            }
            Err(StoreError::Gone { blob: gone, .. }) => {
                let sure = [false, true].iter().any(|x| self.model.right.contains_key(&(gone, *x)));
                assert!(!sure, "{gone} is said to be gone, and is there");
            }
            Err(e) => panic!("{e}"),
        }
    }

    fn scan(&mut self, source: u8) {
        let options =
            ScanOptions { check_content: false, hides: &|_, _| false, progress: &|_, _| {}, cancelled: &|| false };
        let dir = self.top.path().join(format!("source-{source}"));
        let store = self.store();
        let found = store.scan(&dir, SourceForm::Folder, &options).unwrap();
        store.flush_scanned().unwrap();
        let mut wanted = Tree::new();
        for ((s, name), (n, _)) in &self.model.sources {
            if *s == source {
                let size = content(*n).len() as u64;
                let entry = Entry::File { blob: blob(*n), size, executable: false };
                wanted.insert(NAMES[*name as usize].try_into().unwrap(), entry).unwrap();
            }
        }
        if !dir.join("b/c").exists() && !dir.join("b/d").exists() {
            wanted.insert("b".try_into().unwrap(), Entry::EmptyDir).unwrap();
        }
        assert_eq!(found.tree, wanted);
        self.model.trees.insert(found.id, wanted);
    }

    fn change_source(&mut self, source: u8, name: u8, new: Option<u8>) {
        let path = self.source_path(source, name);
        let before = fs::metadata(&path).ok().map(|m| (m.ctime(), m.ctime_nsec()));
        match new {
            None => {
                let _ = fs::remove_file(&path);
                self.model.sources.remove(&(source, name));
            }
            Some(n) => loop {
                fs::write(&path, content(n)).unwrap();
                let m = fs::metadata(&path).unwrap();
                // A file system's clock ticks: two changes within a tick look like one, and are not what is tested.
                if before != Some((m.ctime(), m.ctime_nsec())) {
                    self.model.sources.insert((source, name), (n, m.ino()));
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            },
        }
    }

    fn damage(&mut self, n: u8, x: bool, how: Damage) {
        let key = (blob(n), x);
        let path = self.blob_path(key.0, x);
        if fs::symlink_metadata(&path).is_err() {
            return;
        }
        // Not in place: other names of the inode are a view's.
        let mut bytes = fs::read(&path).unwrap_or_default();
        fs::remove_file(&path).unwrap();
        match how {
            Damage::Flip if !bytes.is_empty() => {
                let last = bytes.len() - 1;
                bytes[last] ^= 1;
            }
            Damage::Cut => bytes.truncate(bytes.len() / 2),
            Damage::Empty => bytes.clear(),
            _ => {}
        }
        if matches!(how, Damage::Link) {
            std::os::unix::fs::symlink("/etc/hostname", &path).unwrap();
            bytes = fs::read(&path).unwrap_or_default();
        } else {
            fs::write(&path, &bytes).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
        }
        self.model.right.remove(&key);
        let right = !matches!(how, Damage::Link) && Digest::of(&bytes) == key.0.0;
        self.model.damaged.remove(&key);
        if !right {
            self.model.damaged.insert(key, fs::read(&path).ok());
        }
        self.reopen();
    }

    fn reopen(&mut self) {
        self.store = None;
        self.store = Some(Store::open(&self.dir()).unwrap());
    }

    // What a process that was killed leaves: its folder, with a lock that nobody holds.
    fn die(&mut self) {
        let tmp = self.dir().join("tmp");
        let left = tmp.join("1-1");
        fs::create_dir_all(left.join("o1/sub")).unwrap();
        fs::write(left.join("o2"), content(0)).unwrap();
        fs::set_permissions(left.join("o1/sub"), fs::Permissions::from_mode(0o500)).unwrap();
        fs::write(tmp.join("1-1.lock"), "").unwrap();
        self.reopen();
        assert!(!left.exists(), "what a dead process left is there still");
    }

    fn verify(&mut self) {
        self.store().flush_index();
        let looking = Looking { quick: false, progress: &|_, _| {}, cancelled: &|| false };
        let found = verify(&self.store().plain(), None, &looking).unwrap();
        // Every damaged blob is named, and no right one is.
        let named: BTreeSet<PathBuf> =
            found.changed.iter().map(|f| f.path.canonicalize().unwrap_or(f.path.clone())).collect();
        let named_as_is: BTreeSet<PathBuf> = found.changed.iter().map(|f| f.path.clone()).collect();
        let top = self.dir().canonicalize().unwrap();
        let at = |path: PathBuf| top.join(path.strip_prefix(self.dir()).unwrap());
        for (b, x) in self.model.damaged.keys() {
            let path = at(self.blob_path(*b, *x));
            assert!(
                named.contains(&path) || named_as_is.contains(&path),
                "{} is damaged and not named",
                path.display()
            );
        }
        for (b, x) in self.model.right.keys() {
            let path = at(self.blob_path(*b, *x));
            assert!(!named_as_is.contains(&path), "{} is right, and named as damaged", path.display());
        }
    }

    // A damaged blob is right again where its bytes are at hand, and out of the way elsewhere; a second repair has nothing
    // left to do.
    fn repair(&mut self) {
        self.store = None;
        let right: Vec<BlobId> = self.model.right.keys().map(|(b, _)| *b).collect();
        let location = Location { dir: self.top.path().to_owned(), graph: None, store: Some(self.dir()) };
        let run = graftwerk::sched::Options { jobs: 1, keep_going: true, keep_failed: false };
        let options = RepairOptions { dry_run: false, rebuild: false, from: Vec::new(), run };
        let repaired = || {
            let (events, _heard) = std::sync::mpsc::channel();
            front::repair(&location, &options, &events, &Arc::default()).unwrap().repairs
        };
        repaired();
        for (b, x) in self.model.damaged.keys() {
            let path = self.blob_path(*b, *x);
            let bytes = fs::symlink_metadata(&path).ok().map(|_| fs::read(&path).unwrap());
            assert!(
                bytes.is_none_or(|bytes| Digest::of(&bytes) == b.0),
                "{} is damaged after a repair",
                path.display()
            );
        }
        self.reopen();
        let store = self.store();
        for b in right {
            assert_ne!(store.presence(b, false).unwrap(), Presence::Absent, "{b} is lost by a repair");
        }
        drop(store);
        self.settle();
        assert!(self.model.damaged.is_empty());
        self.store = None;
        // What is missing is told as often as somebody asks.
        let again: Vec<_> = repaired()
            .into_iter()
            .filter(|r| r.part == Part::Blob && (r.there || r.outcome == repair::Outcome::Restored))
            .collect();
        assert!(again.is_empty(), "{again:?}");
        self.reopen();
    }

    // To a store of its own, and back: the same there, nothing new here.
    fn carry(&mut self, n: usize) {
        let Some(id) = self.a_tree(n) else { return };
        let store = self.store();
        let wanted = Wanted { exports: vec![Export { made_by: None, tree: id }], ..Wanted::default() };
        let closure = match Closure::of(&store, &wanted) {
            Ok(c) => c,
            Err(archive::ArchiveError::Store(StoreError::Gone { blob: gone, .. })) => {
                assert!(![false, true].iter().any(|x| self.model.right.contains_key(&(gone, *x))), "{gone}");
                return;
            }
            Err(e) => panic!("{e}"),
        };
        let mut bytes = Vec::new();
        archive::write(&store, &closure, &mut bytes, &mut |_, _| {}, &|| false).unwrap();
        let there = tempfile::tempdir().unwrap();
        let other = Store::open(&there.path().join("store")).unwrap();
        archive::import(&other, &mut bytes.as_slice(), &mut |_, _| {}, &|| false).unwrap();
        let tree = &self.model.trees[&id];
        assert_eq!(other.tree(id).unwrap().as_ref(), Some(tree));
        assert!(other.absent(tree).unwrap().is_empty());
        for (recipe, runs) in &self.model.runs {
            for run in runs.iter().filter(|r| r.tree() == Some(id)) {
                let found = other.runs(*recipe).unwrap();
                assert!(found.iter().any(|r| *r == RunRecord { seq: r.seq, ..run.clone() }));
            }
        }
        let back = archive::import(&store, &mut bytes.as_slice(), &mut |_, _| {}, &|| false).unwrap();
        assert_eq!(back.new_runs, 0);
    }

    fn keep(&mut self, n: usize) {
        let Some(tree) = self.a_tree(n) else { return };
        if !self.model.kept.contains(&tree) {
            self.model.kept.push(tree);
        }
        let kept = self.model.kept.iter().map(|tree| Root { recipe: recipe(0).id, tree: *tree, seq: 1 });
        // Without a graph that could be read: what it held last is held.
        let graph = self.top.path().join("graph.toml");
        let roots = Roots {
            project: self.top.path().to_owned(),
            graph: graph.clone(),
            nodes: [("n".to_owned(), kept.collect())].into(),
            ..Roots::default()
        };
        self.store().put_roots(&graph, &roots).unwrap();
    }

    fn gc(&mut self) {
        let store = self.store();
        let measured = Measured::read(&store).unwrap();
        assert!(measured.obstacles().is_empty());
        let alone = store.alone("gc", &|| false).unwrap().unwrap();
        let holders = Holders::read(&store, None).unwrap();
        let since = store.listed_since(&measured.survey).unwrap();
        let plan = plan(&measured, &holders, &since, &Limits::default(), jiff::Timestamp::now()).unwrap();
        let swept = store.sweep(&plan.sweep, &|| false).unwrap();
        drop(alone);
        store.remove_swept(&swept).unwrap();
        let m = &mut self.model;
        let held: BTreeSet<BlobId> = m.kept.iter().flat_map(|t| m.trees[t].files().map(|f| f.1)).collect();
        m.right.retain(|(b, _), _| held.contains(b));
        let (dir, damaged) = (self.dir(), std::mem::take(&mut self.model.damaged));
        for ((b, x), bytes) in damaged {
            // One that nobody wants may go, also if nobody has seen yet what it is.
            if fs::symlink_metadata(self.blob_path(b, x)).is_ok() || held.contains(&b) {
                self.model.damaged.insert((b, x), bytes);
            }
        }
        for n in (0..CONTENTS).filter(|n| !held.contains(&blob(*n))) {
            for x in [false, true].into_iter().filter(|x| !self.model.damaged.contains_key(&(blob(n), *x))) {
                assert!(!self.blob_path(blob(n), x).exists(), "nobody holds {n}, and it is left in {}", dir.display());
            }
        }
        // What this process remembers of its looks counts only for what it holds.
        drop(store);
        self.reopen();
    }

    fn check(&self) {
        let store = self.store();
        let m = &self.model;
        for (id, tree) in &m.trees {
            assert_eq!(store.tree(*id).unwrap().as_ref(), Some(tree), "a listing reads back otherwise");
        }
        for (n, id) in &m.recipes {
            assert_eq!(store.recipe(*id).unwrap(), Some(recipe(*n).text));
        }
        for (id, runs) in &m.runs {
            assert_eq!(&store.runs(*id).unwrap(), runs, "runs read back otherwise");
        }
        for ((b, x), inode) in &m.right {
            let path = self.blob_path(*b, *x);
            let meta = fs::symlink_metadata(&path).unwrap_or_else(|e| panic!("{} is lost: {e}", path.display()));
            assert_eq!(meta.ino(), *inode, "{} was replaced", path.display());
            assert_eq!(Digest::of(&fs::read(&path).unwrap()), b.0, "{} was changed", path.display());
        }
        for ((source, name), (n, inode)) in &m.sources {
            let path = self.source_path(*source, *name);
            assert_eq!(fs::read(&path).unwrap(), content(*n), "a source was changed");
            assert_eq!(fs::metadata(&path).unwrap().ino(), *inode, "a source was replaced");
            assert_eq!(fs::metadata(&path).unwrap().nlink(), 1, "a source was linked");
        }
        // Each with a text beside it; what a repair gave up has a text only.
        let aside = files(&self.dir().join("quarantine"));
        let (notes, damaged): (Vec<_>, Vec<_>) = aside
            .iter()
            .filter(|f| !f.to_string_lossy().ends_with("-lost.txt"))
            .partition(|f| f.extension().is_some_and(|e| e == "txt"));
        assert_eq!((damaged.len(), notes.len()), (m.quarantine, m.quarantine), "{aside:?}");
    }

    // Looks at everything as a reader would: whatever is said to be there has the right bytes.
    fn read_all(&mut self) {
        let store = self.store();
        for n in 0..CONTENTS {
            for x in [false, true] {
                let presence = store.presence(blob(n), x).unwrap();
                match &presence {
                    Presence::Stored(p) | Presence::Referenced(p) => {
                        assert_eq!(
                            Digest::of(&fs::read(p).unwrap()),
                            blob(n).0,
                            "damage is read as truth: {presence:?}"
                        );
                    }
                    Presence::Absent => {
                        let right = [false, true].iter().any(|x| self.model.right.contains_key(&(blob(n), *x)));
                        assert!(!right, "{n} is right, and reads as absent");
                    }
                }
            }
        }
        self.learn();
    }
}

fn cases() -> u32 {
    std::env::var("GRAFTWERK_MODEL_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(CASES)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, max_shrink_iters: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_store_is_what_the_model_says_whatever_happens_in_whatever_order(ops in ops()) {
        let mut world = World::new();
        for op in &ops {
            world.apply(op);
            world.check();
        }
        world.read_all();
        world.check();
        world.reopen();
        world.read_all();
        world.check();
    }
}
