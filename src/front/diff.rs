//! `diff`: two checkpoints, whoever made them, held against each other.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde::Serialize;

use crate::diff::{FilesDiff, Side, TensorsDiff, Watching, files, tensors};
use crate::digest::{RecipeId, TreeId};
use crate::front::error::{FrontError, Result};
use crate::front::query::one_id;
use crate::front::{IfAway, IfNoStore, Location, Project, start};
use crate::graph::select::find;
use crate::model::run::RunRecord;
use crate::sched::{Event, Events};
use crate::store::StoreError;

/// What is compared, and how far.
#[derive(Debug, Clone, Default)]
pub struct Diff {
    /// The first side: a node, `NODE@N`, a source, an id, a folder or a file.
    pub a: String,
    /// The second.
    pub b: String,
    /// Compare files.
    pub files: bool,
    /// Compare tensors.
    pub tensors: bool,
}

/// What a side was found to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SideReport {
    /// As it was asked for.
    pub name: String,
    /// `node`, `source`, `tree`, `recipe`, `folder` or `file`.
    pub what: &'static str,
    /// Its tree, where a store has it.
    pub tree: Option<TreeId>,
    /// The number of the run that made it, for a node and a recipe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<u64>,
    /// What is odd in it.
    pub notes: Vec<String>,
}

/// What `diff` answers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DiffReport {
    /// The first side.
    pub a: SideReport,
    /// The second.
    pub b: SideReport,
    /// Whether nothing differs in what was compared.
    pub same: bool,
    /// The files, if they were compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<FilesDiff>,
    /// The tensors, if they were compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensors: Option<TensorsDiff>,
}

struct Found {
    side: Side,
    report: SideReport,
}

/// Compares. A project is opened only if a name needs one. Errors: a name that means nothing, a node that was never
/// built, what can't be read.
pub fn diff(location: &Location, what: &Diff, events: &Events, cancel: &Arc<AtomicBool>) -> Result<DiffReport> {
    let mut project = None;
    let a = find_side(location, &mut project, &what.a, events, cancel)?;
    let b = find_side(location, &mut project, &what.b, events, cancel)?;
    // `Sender` is not shared between threads.
    let to = Mutex::new(events.clone());
    let progress = |done: u64, total: u64| {
        if let Ok(to) = to.lock() {
            let _ = to.send(Event::Progress { node: "diff".to_owned(), done, total });
        }
    };
    let cancelled = || cancel.load(Ordering::Relaxed);
    let watching = Watching { progress: &progress, cancelled: &cancelled };
    let stopped = |e: StoreError| if matches!(e, StoreError::Cancelled) { FrontError::Interrupted } else { e.into() };
    let compared =
        if what.tensors { Some(tensors::compare(&a.side, &b.side, &watching).map_err(stopped)?) } else { None };
    let files = if what.files {
        Some(files::compare(&a.side, &b.side, compared.as_ref(), &watching).map_err(stopped)?)
    } else {
        None
    };
    let same = compared.as_ref().is_none_or(TensorsDiff::is_same) && files.as_ref().is_none_or(FilesDiff::is_same);
    Ok(DiffReport { a: a.report, b: b.report, same, files, tensors: compared })
}

fn find_side(
    location: &Location,
    project: &mut Option<Project>,
    name: &str,
    events: &Events,
    cancel: &Arc<AtomicBool>,
) -> Result<Found> {
    let path = start(location).join(name);
    if name.starts_with("b3:") {
        let opened = open(project, || Project::open_for_ids(location, IfNoStore::Refuse))?;
        return opened.side_of_id(name);
    }
    // What looks like a path is one; else a name of the graph goes before a folder of that name.
    if name.contains('/') || name == "." || name == ".." {
        return side_of_path(name, &path);
    }
    let opened = match open(project, || Project::open_built(location)) {
        Ok(opened) => opened,
        Err(FrontError::NoGraph { .. } | FrontError::NoStore { .. }) if path.exists() => {
            return side_of_path(name, &path);
        }
        Err(e) => return Err(e),
    };
    if opened.graph.source(name).is_some() {
        return opened.side_of_source(name, events, cancel);
    }
    let (node, run) = match name.rsplit_once('@') {
        Some((node, n)) => match n.parse::<u64>() {
            Ok(n) => (node, Some(n)),
            Err(_) => (name, None),
        },
        None => (name, None),
    };
    if !opened.graph.nodes.contains_key(node) && path.exists() {
        return side_of_path(name, &path);
    }
    opened.side_of_node(name, node, run, events, cancel)
}

fn open(project: &mut Option<Project>, opener: impl FnOnce() -> Result<Project>) -> Result<&Project> {
    let opened = match project.take() {
        Some(p) => p,
        None => opener()?,
    };
    Ok(project.insert(opened))
}

fn side_of_path(name: &str, path: &Path) -> Result<Found> {
    let side = Side::of_path(name, path)?;
    let what = if path.is_dir() { "folder" } else { "file" };
    Ok(Found::of(side, what, None))
}

impl Found {
    fn of(side: Side, what: &'static str, run: Option<u64>) -> Self {
        let report = SideReport { name: side.name.clone(), what, tree: side.tree, run, notes: side.notes.clone() };
        Self { side, report }
    }
}

impl Project {
    fn side_of_tree(&self, name: &str, what: &'static str, tree: TreeId, run: Option<u64>) -> Result<Found> {
        let listing = self.store.tree(tree)?.ok_or_else(|| StoreError::Damaged {
            path: self.store.dir().join("trees"),
            what: format!("lacks the listing of {tree}"),
        })?;
        Ok(Found::of(Side::of_tree(name, tree, &listing, &self.store)?, what, run))
    }

    fn side_of_id(&self, name: &str) -> Result<Found> {
        match one_id(&self.store.plain(), name)? {
            ("tree", digest) => self.side_of_tree(name, "tree", TreeId(digest), None),
            ("recipe", digest) => {
                let runs = self.store.runs(RecipeId(digest))?;
                let made = runs.iter().rev().find_map(|r| Some((r.tree()?, r.seq)));
                let (tree, seq) = made.ok_or_else(|| FrontError::NotBuilt {
                    node: format!("the recipe {name}"),
                    why: "no run of it has made a tree".to_owned(),
                })?;
                self.side_of_tree(name, "recipe", tree, Some(seq))
            }
            (what, _) => Err(FrontError::Argument {
                what: format!("{name} is a {what}: two trees are compared"),
                hint: Some("name the node, the tree or the recipe that it stands in".to_owned()),
            }),
        }
    }

    fn side_of_source(&self, name: &str, events: &Events, cancel: &Arc<AtomicBool>) -> Result<Found> {
        let names = self.graph.sources.keys().filter(|n| n.as_str() == name);
        let mut found = self.scan(names, (false, IfAway::AsLocked), events, cancel)?;
        if !found.errors.is_empty() {
            return Err(FrontError::of_sources(found.errors));
        }
        match found.states.pop_first() {
            Some((_, Ok((id, tree)))) => Ok(Found::of(Side::of_tree(name, id, &tree, &self.store)?, "source", None)),
            _ => Err(FrontError::NotBuilt { node: name.to_owned(), why: "it is not known what it holds".to_owned() }),
        }
    }

    fn side_of_node(
        &self,
        name: &str,
        node: &str,
        number: Option<u64>,
        events: &Events,
        cancel: &Arc<AtomicBool>,
    ) -> Result<Found> {
        find(&self.graph, node)?;
        let run = match number {
            Some(n) => self.numbered_run(node, n)?,
            None => self.run_in_use(node, events, cancel)?,
        };
        let (tree, seq) = (run.tree(), run.seq);
        let tree = tree
            .ok_or_else(|| FrontError::NotBuilt { node: name.to_owned(), why: "that run made nothing".to_owned() })?;
        self.side_of_tree(name, "node", tree, Some(seq))
    }

    // The run in use; where the node would run again, the one that the last build ended with.
    fn run_in_use(&self, node: &str, events: &Events, cancel: &Arc<AtomicBool>) -> Result<RunRecord> {
        let goals = [node.to_owned()];
        match self.runs_for(&goals, events, cancel) {
            Ok((runs, _)) => runs
                .into_iter()
                .find(|(n, _)| n == node)
                .map(|(_, run)| run)
                .ok_or_else(|| FrontError::NotBuilt { node: node.to_owned(), why: "it was not selected".to_owned() }),
            Err(e @ (FrontError::NotBuilt { .. } | FrontError::Blocked { .. })) => {
                let roots = self.roots()?;
                let Some(root) = roots.newest(node) else { return Err(e) };
                let runs = self.store.runs(root.recipe)?;
                let run = runs.into_iter().find(|r| r.seq == root.seq).ok_or(e)?;
                let what = format!("{node} would run again: what its last build made is compared");
                let _ = events.send(Event::Notice(what));
                Ok(run)
            }
            Err(e) => Err(e),
        }
    }

    fn numbered_run(&self, node: &str, n: u64) -> Result<RunRecord> {
        let roots = self.roots()?;
        let list = roots.nodes.get(node).map(Vec::as_slice).unwrap_or_default();
        // 1 is the oldest that the roots remember; the newest stands first in them.
        let at = usize::try_from(n).ok().and_then(|n| list.len().checked_sub(n));
        let root = at.filter(|_| n > 0).and_then(|at| list.get(at)).ok_or_else(|| FrontError::Argument {
            what: format!("{node} has no realisation {n}: {} are known", list.len()),
            hint: Some(format!("`graftwerk history {node}` lists them")),
        })?;
        let runs = self.store.runs(root.recipe)?;
        runs.into_iter().find(|r| r.seq == root.seq).ok_or_else(|| FrontError::NotBuilt {
            node: node.to_owned(),
            why: "the record of that run is not there".to_owned(),
        })
    }
}
