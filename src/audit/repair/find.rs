//! Where right bytes are.

use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::audit::repair::{Outcome, Way};
use crate::audit::verify::{Finding, Subject, escaped, is_right};
use crate::digest::{BlobId, TreeId};
use crate::fsx::{self, at};
use crate::model::path::RelPath;
use crate::model::tree::{Entry, Tree};
use crate::store::Result;
use crate::store::plain::{Plain, Ref};
use crate::store::survey::{Part, Survey};
use crate::tensors::hash::hash_file;

pub use super::roots::recovered;

/// What may have right bytes besides the store itself.
pub struct Elsewhere<'a> {
    /// What the store holds.
    pub survey: &'a Survey,
    /// Other stores that the user named.
    pub stores: &'a [Plain],
    /// Whether there is a graph whose sources and recipes can be looked at.
    pub graph: bool,
}

/// The best way to right bytes.
pub(super) fn way(plain: &Plain, f: &Finding, elsewhere: &Elsewhere<'_>) -> Result<Way> {
    let survey = elsewhere.survey;
    Ok(match &f.subject {
        Subject::Blob(blob, x) => match blob_from(plain, *blob, *x, &f.path, f, elsewhere)? {
            Some(path) => Way::File(path),
            None if f.trees.is_empty() => Way::Unneeded,
            None if only_older(survey, &f.trees) => Way::Older,
            None => build_or_none(f),
        },
        Subject::Tree(id) => {
            let view = plain.view_path(*id);
            let shown = tree_of_view(&view).ok().flatten();
            let other = |s: &Plain| matches!(s.tree(*id), Ok(Some(_))).then(|| s.object_path("trees", &id.0));
            if let Some(path) = elsewhere.stores.iter().find_map(other) {
                Way::File(path)
            } else if shown.is_some_and(|t| t.id() == *id) {
                Way::View(view)
            } else if elsewhere.graph && is_input(survey, *id) {
                Way::Sources
            } else {
                build_or_none(f)
            }
        }
        Subject::Recipe(id) => {
            let other = |s: &Plain| s.recipe_reads(*id).ok()?.then(|| s.object_path("recipes", &id.0));
            match elsewhere.stores.iter().find_map(other) {
                Some(path) => Way::File(path),
                None if elsewhere.graph => Way::Plan,
                None => Way::None,
            }
        }
        Subject::Run(recipe, Some(seq)) => {
            let other = |s: &Plain| s.run_reads(*recipe, *seq).ok()?.then(|| s.run_path(*recipe, *seq));
            elsewhere.stores.iter().find_map(other).map_or(Way::Aside, Way::File)
        }
        Subject::Run(_, None) => Way::Aside,
        Subject::Table(blob) => {
            let stored = [false, true].iter().any(|x| plain.blob_path(*blob, *x).is_file());
            let other =
                |s: &Plain| matches!(s.table(*blob), Ok(Some(Ok(_)))).then(|| s.object_path("tensors", &blob.0));
            if stored || plain.source_of(*blob)?.is_some() {
                Way::Blob
            } else {
                elsewhere.stores.iter().find_map(other).map_or(Way::Aside, Way::File)
            }
        }
        Subject::Ref(_) if f.part == Part::Source => Way::Yours,
        Subject::Ref(_) if elsewhere.graph => Way::Sources,
        Subject::Ref(_) => Way::Aside,
        Subject::View(_) => Way::Rest,
        Subject::Other => match f.part {
            Part::Version => plain.proven_version()?.map_or(Way::None, Way::Proof),
            Part::Log => Way::Aside,
            _ => Way::Rest,
        },
    })
}

// Whether older generations are kept of which these trees are some, and no newest one is: no build of a graph as it was last
// makes them again. Where roots do not read, nobody knows.
fn only_older(survey: &Survey, trees: &[TreeId]) -> bool {
    let lists = || survey.roots.values().flat_map(|r| r.nodes.values());
    let unended = survey.unended.values().flat_map(|b| &b.made).map(|m| m.tree);
    let mut newest = lists().filter_map(|list| list.first()).map(|r| r.tree).chain(unended);
    let mut older = lists().flat_map(|list| list.iter().skip(1));
    let known = !survey.damage.iter().any(|d| d.part == Part::Roots);
    known && older.any(|r| trees.contains(&r.tree)) && !newest.any(|t| trees.contains(&t))
}

fn build_or_none(f: &Finding) -> Way {
    if f.nodes.is_empty() { Way::None } else { Way::Build }
}

// A source's listing, or the part of a tree that a step takes: no run made it.
fn is_input(survey: &Survey, id: TreeId) -> bool {
    !survey.runs.values().flatten().any(|r| r.tree() == Some(id))
}

/// How a way is told, before it is gone.
pub(super) fn told(f: &Finding, way: &Way) -> (Outcome, String) {
    match way {
        Way::File(p) => (Outcome::Restored, format!("from {}", escaped(p))),
        Way::View(p) => (Outcome::Restored, format!("from its view {}", escaped(p))),
        Way::Blob => (Outcome::Restored, "made again from its blob".to_owned()),
        Way::Sources if f.part == Part::Ref => (Outcome::Restored, "by a look at the sources".to_owned()),
        Way::Sources => (Outcome::Restored, "by a look at the sources and a plan of the graph".to_owned()),
        Way::Plan => (Outcome::Restored, "by a plan of the graph, where it still makes it".to_owned()),
        Way::Rest if f.part == Part::Roots => {
            (Outcome::Restored, "as roots that hold all that no other roots hold".to_owned())
        }
        Way::Rest => (Outcome::Restored, "made again from the rest".to_owned()),
        Way::Proof(_) => (Outcome::Restored, "as the store's objects prove it".to_owned()),
        Way::Aside if f.part == Part::Run => {
            (Outcome::Rebuild, "what it recorded is lost; its nodes run again".to_owned())
        }
        Way::Aside if f.part == Part::Log => (Outcome::SetAside, "it was for people; nothing relies on it".to_owned()),
        Way::Aside => (Outcome::SetAside, "it is made again when it is needed".to_owned()),
        Way::Older => (
            Outcome::Lost,
            "its bytes are nowhere, and only older generations had it: build one of them again, and it is back"
                .to_owned(),
        ),
        Way::Unneeded => (Outcome::SetAside, "nothing needs it".to_owned()),
        Way::Yours => {
            (Outcome::Lost, "it is yours: bring it back, or take it with `graftwerk build --check-content`".to_owned())
        }
        Way::Build => (Outcome::Rebuild, "its bytes are nowhere else; its nodes run again".to_owned()),
        Way::None => (Outcome::Lost, lost(f).to_owned()),
    }
}

fn lost(f: &Finding) -> &'static str {
    match f.part {
        Part::Recipe => "what its runs were made of can't be told any more; their trees are untouched",
        Part::Version => "nothing in the store proves its format",
        _ => "its bytes are nowhere, and no node is known that makes it",
    }
}

fn blob_from(
    plain: &Plain,
    blob: BlobId,
    x: bool,
    damaged: &Path,
    f: &Finding,
    elsewhere: &Elsewhere<'_>,
) -> Result<Option<PathBuf>> {
    let mut candidates: Vec<PathBuf> = vec![plain.blob_path(blob, !x)];
    // What was set aside may be right: a read that failed once, a file that was replaced and brought back.
    let aside = plain.dir().join("quarantine");
    let hex = blob.hex();
    candidates
        .extend(fsx::names(&aside)?.iter().filter(|n| n.to_string_lossy().starts_with(&hex)).map(|n| aside.join(n)));
    if let Ref::Places(places) = plain.places(blob)? {
        candidates.extend(places.into_iter().map(|(path, _, _)| path));
    }
    for id in &f.trees {
        let view = plain.view_path(*id);
        if let Ok(Some(tree)) = plain.tree(*id)
            && view.is_dir()
        {
            candidates.extend(tree.files().filter(|e| e.1 == blob).map(|e| view.join(e.0.as_path())));
        }
    }
    for other in elsewhere.stores {
        candidates.extend([false, true].map(|x| other.blob_path(blob, x)));
        if let Ref::Places(places) = other.places(blob)? {
            candidates.extend(places.into_iter().map(|(path, _, _)| path));
        }
    }
    let same = |a: &Path| match (fs::metadata(a), fs::metadata(damaged)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    };
    Ok(candidates.into_iter().find(|c| c != damaged && !same(c) && is_right(c, blob)))
}

/// The tree that a view shows. A link that leads out of it stands for the source's file there. `None` where it is no
/// folder, or holds what no tree holds.
pub(super) fn tree_of_view(view: &Path) -> Result<Option<Tree>> {
    if !fs::symlink_metadata(view).is_ok_and(|m| m.is_dir()) {
        return Ok(None);
    }
    let mut tree = Tree::new();
    let mut todo: Vec<Vec<u8>> = vec![Vec::new()];
    while let Some(dir) = todo.pop() {
        use std::os::unix::ffi::OsStrExt as _;
        let dir_path = view.join(std::ffi::OsStr::from_bytes(&dir));
        let names = fsx::names(&dir_path)?;
        if names.is_empty()
            && let Ok(rel) = RelPath::new(dir.clone())
        {
            let _ = tree.insert(rel, Entry::EmptyDir);
        }
        for name in names {
            let mut rel = dir.clone();
            if !rel.is_empty() {
                rel.push(b'/');
            }
            rel.extend(name.into_vec());
            let Ok(path) = RelPath::new(rel.clone()) else { return Ok(None) };
            let full = view.join(path.as_path());
            let meta = fs::symlink_metadata(&full).map_err(at("look at", &full))?;
            if meta.is_dir() {
                todo.push(rel);
                continue;
            }
            let entry = match entry_of(&full, &path, &meta)? {
                Some(entry) => entry,
                None => return Ok(None),
            };
            if tree.insert(path, entry).is_err() {
                return Ok(None);
            }
        }
    }
    Ok(Some(tree))
}

fn entry_of(full: &Path, rel: &RelPath, meta: &fs::Metadata) -> Result<Option<Entry>> {
    let mut meta = meta.clone();
    if meta.is_symlink() {
        let target = fs::read_link(full).map_err(at("read the link", full))?.into_os_string().into_vec();
        if crate::model::tree::link_stays_inside(rel, &target) {
            return Ok(Some(Entry::Link { target }));
        }
        meta = match fs::metadata(full) {
            Ok(m) => m,
            Err(_) => return Ok(None),
        };
    }
    if !meta.is_file() {
        return Ok(None);
    }
    let file = fs::File::open(full).map_err(at("open", full))?;
    let hashed = hash_file(&file, meta.len(), false, &mut |_| {}, &|| false);
    let executable = meta.mode() & 0o100 != 0;
    Ok(hashed.ok().map(|h| Entry::File { blob: h.blob, size: h.size, executable }))
}
