//! `export` and `import`.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::audit::archive::closure::exports_of;
use crate::audit::archive::folder::{begun, folder};
use crate::audit::archive::manifest::MadeBy;
use crate::audit::archive::{self, ArchiveError, Closure, Export, Wanted};
use crate::digest::{RecipeId, TreeId};
use crate::front::error::{FrontError, Result};
use crate::front::query::one_id;
use crate::front::waits::listen;
use crate::front::{IfNoStore, Location, Project};
use crate::fsx::part::Part;
use crate::fsx::{self, Placed, at};
use crate::model::run::RunRecord;
use crate::sched::{Event, Events};
use crate::store::roots::{Root, Roots};
use crate::store::{Store, StoreError};

/// Where an archive goes.
pub enum ExportTo<'a> {
    /// To a file that must not be there.
    File(&'a Path),
    /// To somebody who reads along.
    Stream(&'a mut dyn Write),
}

/// Where an archive comes from.
pub enum ImportFrom<'a> {
    /// From a file.
    File(&'a Path),
    /// From somebody who writes it.
    Stream(&'a mut dyn Read),
}

/// A tree that is in an archive with its bytes.
#[derive(Debug, Clone, Serialize)]
pub struct ExportedTree {
    /// The node that made it; null where it is known as a tree alone.
    pub node: Option<String>,
    /// Its recipe.
    pub recipe: Option<RecipeId>,
    /// The tree.
    pub tree: TreeId,
}

/// What `export --archive` answers.
#[derive(Debug, Clone, Serialize)]
pub struct ArchiveReport {
    /// The file; null where it was streamed.
    #[serde(serialize_with = "crate::fsx::optional_path_text")]
    pub archive: Option<PathBuf>,
    /// What was exported.
    pub exports: Vec<ExportedTree>,
    /// The number of objects in it.
    pub objects: u64,
    /// The sum of their sizes.
    pub bytes: u64,
    /// The size of the archive.
    pub archive_bytes: u64,
}

/// What `export NODE DIR` answers.
#[derive(Debug, Clone, Serialize)]
pub struct FolderReport {
    /// What was exported.
    pub name: String,
    /// Its tree.
    pub tree: TreeId,
    /// The folder.
    #[serde(serialize_with = "crate::fsx::path_text")]
    pub path: PathBuf,
    /// The number of files.
    pub files: u64,
    /// The sum of their sizes.
    pub bytes: u64,
}

/// What `import` answers.
#[derive(Debug, Clone, Serialize)]
pub struct ImportReport {
    /// The file; null where it was streamed.
    #[serde(serialize_with = "crate::fsx::optional_path_text")]
    pub archive: Option<PathBuf>,
    /// What was exported, and is held by a root of its own from now on.
    pub exports: Vec<ExportedTree>,
    /// The number of objects in the archive.
    pub objects: u64,
    /// The sum of their sizes.
    pub bytes: u64,
    /// Bytes among them that the store did not have.
    pub new_bytes: u64,
    /// Runs among them that the store did not have.
    pub new_runs: u64,
}

fn reports(exports: &[Export]) -> Vec<ExportedTree> {
    let one = |e: &Export| ExportedTree {
        node: e.made_by.as_ref().map(|m| m.node.clone()),
        recipe: e.made_by.as_ref().map(|m| m.recipe),
        tree: e.tree,
    };
    exports.iter().map(one).collect()
}

impl Project {
    /// Writes the closure of nodes and ids to an archive. Errors: Archive where the target is there; NotBuilt.
    pub fn export_archive(
        &self,
        what: &[String],
        to: ExportTo<'_>,
        with_inputs: bool,
        events: &Events,
        cancel: &Arc<AtomicBool>,
    ) -> Result<ArchiveReport> {
        let _listening = self.listen(events, cancel);
        // The target first: nobody waits for a scan to hear that it is taken.
        let (path, mut part, stream) = match to {
            ExportTo::File(path) => {
                let part = begun(Part::file(path).map_err(StoreError::from)?, path)?;
                (Some(path), Some(part), None)
            }
            ExportTo::Stream(s) => (None, None, Some(s)),
        };
        let wanted = self.wanted(what, with_inputs, events, cancel)?;
        let closure = Closure::of(&self.store, &wanted)?;
        let mut progress = Progress::new("export", events);
        let mut tell = |done, total| progress.tell(done, total);
        let cancelled = || cancel.load(Ordering::Relaxed);
        let to: &mut dyn Write = match (&mut part, stream) {
            (Some(part), _) => part,
            (None, Some(s)) => s,
            (None, None) => return Err(FrontError::Interrupted),
        };
        let mut to = BufWriter::with_capacity(1 << 20, to);
        let archive_bytes = archive::write(&self.store, &closure, &mut to, &mut tell, &cancelled)?;
        to.flush().map_err(ArchiveError::Write)?;
        drop(to);
        if let (Some(part), Some(path)) = (part, path)
            && part.finish().map_err(StoreError::from)? == Placed::Existed
        {
            return Err(ArchiveError::Exists { path: path.to_owned() }.into());
        }
        Ok(ArchiveReport {
            archive: path.map(Path::to_owned),
            exports: reports(closure.exports()),
            objects: closure.items().len() as u64,
            bytes: closure.items().iter().map(|i| i.size).sum(),
            archive_bytes,
        })
    }

    /// Makes a folder with the files of a node's tree, or of an id's. Errors: Archive where the target is there;
    /// NotBuilt.
    pub fn export_folder(
        &self,
        what: &str,
        target: &Path,
        link: bool,
        events: &Events,
        cancel: &Arc<AtomicBool>,
    ) -> Result<FolderReport> {
        let _listening = self.listen(events, cancel);
        if std::fs::symlink_metadata(target).is_ok() {
            return Err(ArchiveError::Exists { path: target.to_owned() }.into());
        }
        let wanted = self.wanted(&[what.to_owned()], false, events, cancel)?;
        let Some(id) = wanted.exports.first().map(|e| e.tree) else { return Err(FrontError::Interrupted) };
        let tree = self.store.tree(id)?.ok_or_else(|| StoreError::Damaged {
            path: self.store.dir().join("trees"),
            what: format!("lacks the listing of {id}"),
        })?;
        let mut progress = Progress::new("export", events);
        let mut tell = |done, total| progress.tell(done, total);
        folder(&self.store, &tree, target, link, &mut tell, &|| cancel.load(Ordering::Relaxed))?;
        let path = target.canonicalize().map_err(at("find", target)).map_err(StoreError::from)?;
        let files = tree.files().count() as u64;
        Ok(FolderReport { name: what.to_owned(), tree: id, path, files, bytes: tree.total_bytes() })
    }

    fn wanted(&self, what: &[String], with_inputs: bool, events: &Events, cancel: &Arc<AtomicBool>) -> Result<Wanted> {
        let mut wanted = Wanted { with_inputs, ..Wanted::default() };
        let (ids, nodes): (Vec<&String>, Vec<&String>) = what.iter().partition(|w| w.starts_with("b3:"));
        for id in ids {
            wanted.exports.extend(self.exports_of_id(id)?);
        }
        if nodes.is_empty() {
            return Ok(wanted);
        }
        let nodes: Vec<String> = nodes.into_iter().cloned().collect();
        let (runs, sources) = self.runs_for(&nodes, events, cancel)?;
        for (name, run) in runs {
            let Some(tree) = run.tree() else { continue };
            if nodes.contains(&name) {
                let made_by = MadeBy { node: name, recipe: run.recipe, seq: run.seq };
                wanted.exports.push(Export { made_by: Some(made_by), tree });
            } else {
                wanted.above.push(tree);
            }
        }
        let found = sources.states.iter().filter_map(|(n, s)| Some((n.to_string(), s.as_ref().ok()?.0)));
        wanted.sources = found.collect();
        Ok(wanted)
    }

    fn exports_of_id(&self, text: &str) -> Result<Vec<Export>> {
        let (what, digest) = one_id(&self.store.plain(), text)?;
        match what {
            "tree" => {
                let exports = exports_of(&self.store, TreeId(digest))?;
                if exports.is_empty() {
                    let what = format!("no run made the tree {text}: a source, or a part of a tree, is no export");
                    let hint = "`graftwerk show b3:…` shows a listing; --with-inputs takes sources along".to_owned();
                    return Err(FrontError::Argument { what, hint: Some(hint) });
                }
                Ok(exports)
            }
            "recipe" => {
                let recipe = RecipeId(digest);
                let run = self.store.realisation(recipe, crate::model::run::Isolation::None, None, false)?;
                let made = run.as_ref().and_then(|r| Some((r.tree()?, r)));
                let Some((tree, run)) = made else {
                    return Err(FrontError::NotBuilt {
                        node: text.to_owned(),
                        why: "no run of it made a tree".to_owned(),
                    });
                };
                let made_by = MadeBy { node: run.node.clone(), recipe, seq: run.seq };
                Ok(vec![Export { made_by: Some(made_by), tree }])
            }
            _ => {
                let what = format!("{text} is a blob, and only nodes, recipes and trees are exported");
                let hint = format!("`graftwerk show {text}` says where its bytes are");
                Err(FrontError::Argument { what, hint: Some(hint) })
            }
        }
    }
}

/// Takes an archive in: into the store of the project at `location`, or, where there is no graph, into the store that
/// it names. Errors: Archive with the entry for whatever is not exactly what an export writes.
pub fn import(
    location: &Location,
    from: ImportFrom<'_>,
    events: &Events,
    cancel: &Arc<AtomicBool>,
) -> Result<ImportReport> {
    let store = Project::open_for_ids(location, IfNoStore::Make)?.store;
    let _listening = listen(&store, events, cancel);
    let mut file;
    let (path, from): (Option<&Path>, &mut dyn Read) = match from {
        ImportFrom::File(path) => {
            file = File::open(path).map_err(|source| FrontError::NoArchive { path: path.to_owned(), source })?;
            (Some(path), &mut file)
        }
        ImportFrom::Stream(s) => (None, s),
    };
    let mut progress = Progress::new("import", events);
    let mut tell = |done, total| progress.tell(done, total);
    let done = archive::import(&store, from, &mut tell, &|| cancel.load(Ordering::Relaxed))?;
    let path = path.map(|p| p.canonicalize().unwrap_or_else(|_| p.to_owned()));
    hold(&store, path.as_deref(), &done, cancel)?;
    store.flush_index();
    for line in store.take_notes() {
        let _ = events.send(Event::Notice(line));
    }
    Ok(ImportReport {
        archive: path,
        exports: reports(&done.exports),
        objects: done.objects,
        bytes: done.bytes,
        new_bytes: done.new_bytes,
        new_runs: done.new_runs,
    })
}

// Roots of its own, named by the archive's content: taking it in twice holds it once. There is no such graph, so whoever
// looks for one finds that these are held until somebody lets go of them.
fn hold(store: &Store, path: Option<&Path>, done: &archive::Imported, cancel: &AtomicBool) -> Result<()> {
    let mut roots = Roots {
        project: path.map_or_else(|| PathBuf::from("-"), Path::to_owned),
        graph: store.dir().join("imported").join(done.archive.hex()),
        ..Roots::default()
    };
    for (node, run) in &done.made_by {
        if let Some(tree) = RunRecord::tree(run) {
            // All of them, however many of one node they are.
            roots.nodes.entry(node.clone()).or_default().push(Root { recipe: run.recipe, tree, seq: run.seq });
        }
    }
    let graph = roots.graph.clone();
    // A collector may be letting go of what an earlier import of it held.
    let lock =
        fsx::lock::lock(&store.project_lock(&graph), "import", true, &mut |_| {}, &|| cancel.load(Ordering::Relaxed));
    let Some(_turn) = lock.map_err(StoreError::from)? else { return Err(FrontError::Interrupted) };
    Ok(store.put_roots(&graph, &roots)?)
}

// Tells of bytes done, at most so often as somebody can see.
struct Progress<'a> {
    what: &'static str,
    events: &'a Events,
    last: Option<Instant>,
}

impl<'a> Progress<'a> {
    fn new(what: &'static str, events: &'a Events) -> Self {
        Self { what, events, last: None }
    }

    fn tell(&mut self, done: u64, total: u64) {
        if done < total && self.last.is_some_and(|l| l.elapsed() < Duration::from_millis(50)) {
            return;
        }
        self.last = Some(Instant::now());
        let _ = self.events.send(Event::Progress { node: self.what.to_owned(), done, total });
    }
}
