//! `roots` and `gc --explain`: who holds what.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use jiff::Timestamp;
use serde::Serialize;

use crate::audit::gc::{age_seconds, newest_runs};
use crate::audit::hold::{Hold, Holders};
use crate::digest::{BlobId, Digest, TreeId};
use crate::front::Project;
use crate::front::error::{FrontError, Result};
use crate::front::waits::Waits;
use crate::fsx;
use crate::sched::Events;
use crate::store::links::artifact_in;
use crate::store::survey::Survey;
use crate::store::{StoreError, unended};

/// One reason for a tree to stay.
#[derive(Debug, Clone, Serialize)]
pub struct HoldReport {
    /// `generation`, `source`, `pin`, `out`, `link`, `seat`, `build` or `session`.
    pub hold: &'static str,
    /// The process, for a session that has said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// In words.
    pub text: String,
}

/// A tree that a project, a link, a seat or a process holds.
#[derive(Debug, Clone, Serialize)]
pub struct GenerationReport {
    /// The node, the source or the link that holds it.
    pub name: String,
    /// `generation`, `source`, `pin`, `out`, `link`, `seat`, `build` or `session`.
    pub hold: &'static str,
    /// Its number, 1 being the newest; null where there are none.
    pub generation: Option<usize>,
    /// The tree.
    pub tree: String,
    /// How long ago it was made, in seconds.
    pub age_seconds: Option<f64>,
    /// Bytes in the store that no other held tree has.
    pub own_bytes: u64,
    /// Bytes in the store that others have too.
    pub shared_bytes: u64,
}

/// What a project holds.
#[derive(Debug, Clone, Serialize)]
pub struct ProjectRoots {
    /// Its file in `roots/`.
    pub root: String,
    /// Its graph.
    #[serde(serialize_with = "fsx::path_text")]
    pub graph: PathBuf,
    /// Whether it is no project, but what was taken in from an archive; then `graph` says so.
    pub imported: bool,
    /// Whether its folder is there.
    pub folder_exists: bool,
    /// Whether its graph can be read.
    pub graph_exists: bool,
    /// What it holds.
    pub holds: Vec<GenerationReport>,
    /// Bytes in the store that no other project holds.
    pub own_bytes: u64,
    /// Bytes that others hold too.
    pub shared_bytes: u64,
}

/// What `roots` answers.
#[derive(Debug, Clone, Serialize)]
pub struct RootsReport {
    /// Every registered project.
    pub projects: Vec<ProjectRoots>,
    /// Links, seats and running processes.
    pub others: Vec<GenerationReport>,
}

/// A tree, and why it stays.
#[derive(Debug, Clone, Serialize)]
pub struct ExplainedTree {
    /// The tree.
    pub tree: String,
    /// The node that it was made for last.
    pub node: Option<String>,
    /// For a file that was asked for: where it is in the tree.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// When its bytes were collected, if they were and nobody made it since.
    pub collected: Option<String>,
    /// Why it stays; nothing where nobody holds it.
    pub holds: Vec<HoldReport>,
}

/// What `gc --explain` answers.
#[derive(Debug, Clone, Serialize)]
pub struct Explained {
    /// What was asked for.
    pub name: String,
    /// `node`, `tree` or `blob`.
    pub what: &'static str,
    /// Whether anybody holds it.
    pub held: bool,
    /// Its trees, those that are held first.
    pub trees: Vec<ExplainedTree>,
    /// Processes that hold a blob by itself.
    pub holds: Vec<HoldReport>,
}

impl HoldReport {
    fn of(hold: &Hold, holders: &Holders) -> Self {
        let pid = match hold {
            Hold::Session { holder: Some(h) } => Some(h.pid),
            _ => None,
        };
        Self { hold: hold.class(), pid, text: hold.text(&holders.projects) }
    }
}

enum Asked {
    Trees(&'static str, Vec<TreeId>),
    Blob(BlobId),
}

impl Project {
    /// Who holds what.
    pub fn held(&self) -> Result<RootsReport> {
        let survey = self.store.survey()?;
        let holders = Holders::read(&self.store, None)?;
        Ok(report(&survey, &holders, Timestamp::now()))
    }

    /// Lets go of a project, by its folder, its graph or its file in `roots/`, or of a registered link. Returns what it
    /// was. Errors: Argument for one that is not registered.
    pub fn forget(&self, what: &Path, events: &Events, cancel: &Arc<AtomicBool>) -> Result<PathBuf> {
        let waits = &Waits::new(events, cancel);
        let named = |p: &Path| {
            let full = std::path::absolute(what).unwrap_or_else(|_| what.to_owned());
            p == what || p == full || full.canonicalize().is_ok_and(|c| c == p)
        };
        let mut kept = Survey::default();
        self.store.plain().survey_roots(&mut kept)?;
        for (file, roots) in &kept.roots {
            if named(&roots.graph) || named(&roots.project) || named(Path::new(file)) {
                let lock = self.store.roots_lock(file);
                let _turn = self.turn(&lock, "the project's files", "its turn to write the project's roots", waits)?;
                self.store.forget(file)?;
                let builds = format!("{}{}-", unended::PREFIX, file.trim_end_matches(".json"));
                for build in kept.unended.keys().filter(|b| b.starts_with(&builds)) {
                    self.store.forget(build)?;
                }
                return Ok(roots.graph.clone());
            }
        }
        // A project whose first build was killed has nothing else there.
        let builds: Vec<_> = kept.unended.iter().filter(|(f, b)| named(&b.graph) || named(Path::new(f))).collect();
        if let Some((_, first)) = builds.first() {
            for (file, _) in &builds {
                self.store.forget(file)?;
            }
            return Ok(first.graph.clone());
        }
        for (file, link) in &kept.links {
            // A link is named by itself, never by what it leads to.
            let path = link.path();
            if path == what || std::path::absolute(what).is_ok_and(|p| p == path) || Path::new(file) == what {
                self.store.forget(file)?;
                return Ok(path);
            }
        }
        let what = format!("no project and no link is registered as {}", what.display());
        Err(FrontError::Argument { what, hint: Some("`graftwerk roots` lists them".to_owned()) })
    }

    /// What keeps a node's trees, a tree, a blob, or what a path is part of.
    pub fn explain_hold(&self, name: &str) -> Result<Explained> {
        let asked = self.asked(name)?;
        let survey = self.store.survey()?;
        let holders = Holders::read(&self.store, None)?;
        let newest = newest_runs(&survey);
        let reports = |holds: Option<&Vec<Hold>>| -> Vec<HoldReport> {
            holds.into_iter().flatten().map(|h| HoldReport::of(h, &holders)).collect()
        };
        let one = |tree: TreeId, paths: Vec<String>| ExplainedTree {
            tree: tree.to_string(),
            node: newest.get(&tree).map(|r| r.node.clone()),
            paths,
            collected: self.store.collected(tree, newest.get(&tree).copied()),
            holds: reports(holders.trees.get(&tree)),
        };
        let (what, mut trees, holds) = match asked {
            Asked::Trees(what, trees) => (what, trees.into_iter().map(|t| one(t, Vec::new())).collect(), Vec::new()),
            Asked::Blob(blob) => {
                let mut trees = Vec::new();
                for (id, _) in survey.trees.iter().filter(|(_, t)| t.files.iter().any(|(b, ..)| *b == blob)) {
                    let Some(listing) = self.store.tree(*id)? else { continue };
                    let paths = listing.files().filter(|(_, b, ..)| *b == blob).map(|(p, ..)| p.to_string());
                    trees.push(one(*id, paths.collect()));
                }
                ("blob", trees, reports(holders.blobs.get(&blob)))
            }
        };
        trees.sort_by_key(|t: &ExplainedTree| (t.holds.is_empty(), t.node.is_none(), t.tree.clone()));
        let held = !holds.is_empty() || trees.iter().any(|t| !t.holds.is_empty());
        Ok(Explained { name: name.to_owned(), what, held, trees, holds })
    }

    fn asked(&self, name: &str) -> Result<Asked> {
        if self.graph.node(name).is_some() {
            let roots = self.roots()?;
            let list = roots.nodes.get(name).into_iter().flatten().map(|r| r.tree);
            let mut seen = HashSet::new();
            return Ok(Asked::Trees("node", list.filter(|t| seen.insert(*t)).collect()));
        }
        if !name.starts_with("b3:")
            && let Some(asked) = self.asked_by_path(Path::new(name))?
        {
            return Ok(asked);
        }
        match self.store.plain().find_ids(name.trim_start_matches("b3:"))?.as_slice() {
            [("tree", d)] => Ok(Asked::Trees("tree", vec![TreeId(*d)])),
            [("blob", d)] => Ok(Asked::Blob(BlobId(*d))),
            [("recipe", d)] => {
                let runs = self.store.runs(crate::digest::RecipeId(*d))?;
                Ok(Asked::Trees("recipe", runs.iter().filter_map(crate::model::run::RunRecord::tree).collect()))
            }
            [] => Err(FrontError::Argument {
                what: format!("{} is no node, no id and no path of this store", crate::canon::quote(name.as_bytes())),
                hint: Some("`graftwerk status` lists nodes, `graftwerk roots` what is held".to_owned()),
            }),
            many => {
                let list: Vec<String> = many.iter().map(|(w, d)| format!("{w} {d}")).collect();
                let what = format!("{name} is the beginning of several ids: {}", list.join(", "));
                Err(FrontError::Argument { what, hint: Some("give more digits".to_owned()) })
            }
        }
    }

    // A path into the store, or a link that leads there.
    fn asked_by_path(&self, path: &Path) -> Result<Option<Asked>> {
        let full = path.canonicalize().or_else(|_| std::path::absolute(path)).map_err(fsx::at("find", path));
        let full = full.map_err(StoreError::from)?;
        let Ok(inside) = full.strip_prefix(self.store.dir()) else {
            return Ok(std::fs::read_link(path)
                .ok()
                .as_deref()
                .and_then(artifact_in)
                .map(|t| Asked::Trees("tree", vec![t])));
        };
        let parts: Vec<String> = inside.iter().map(|p| p.to_string_lossy().into_owned()).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        Ok(match parts.as_slice() {
            ["artifacts", tree] => Digest::from_hex(tree).ok().map(|d| Asked::Trees("tree", vec![TreeId(d)])),
            ["artifacts", tree, rest @ ..] => {
                let listing = match Digest::from_hex(tree) {
                    Ok(d) => self.store.tree(TreeId(d))?,
                    Err(_) => None,
                };
                let rel = rest.join("/");
                let found = listing.and_then(|l| l.files().find(|(p, ..)| p.to_string() == rel).map(|(_, b, ..)| b));
                found.map(Asked::Blob)
            }
            ["blobs", a, b] => {
                Digest::from_hex(&format!("{a}{}", b.trim_end_matches(".x"))).ok().map(|d| Asked::Blob(BlobId(d)))
            }
            ["trees", a, b] => Digest::from_hex(&format!("{a}{b}")).ok().map(|d| Asked::Trees("tree", vec![TreeId(d)])),
            _ => None,
        })
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Owner<'a, T> {
    One(&'a T),
    Several,
}

fn owned<'a, T: PartialEq>(owner: &mut Option<Owner<'a, T>>, by: &'a T) {
    *owner = Some(match owner {
        None => Owner::One(by),
        Some(Owner::One(o)) if *o == by => Owner::One(by),
        _ => Owner::Several,
    });
}

fn project_of(hold: &Hold) -> Option<&String> {
    match hold {
        Hold::Generation { project, .. }
        | Hold::Source { project, .. }
        | Hold::Pin { project, .. }
        | Hold::Out { project, .. } => Some(project),
        Hold::Link { .. } | Hold::Seat { .. } | Hold::Unended { .. } | Hold::Session { .. } => None,
    }
}

fn report(survey: &Survey, holders: &Holders, now: Timestamp) -> RootsReport {
    let nobody = String::new();
    let newest = newest_runs(survey);
    // For each blob: which held tree has it, and which project.
    let mut by_tree: HashMap<BlobId, Option<Owner<'_, TreeId>>> = HashMap::new();
    let mut by_project: HashMap<BlobId, Option<Owner<'_, String>>> = HashMap::new();
    let mut of_project: BTreeMap<&String, HashSet<BlobId>> = BTreeMap::new();
    for (tree, holds) in &holders.trees {
        for (blob, ..) in survey.trees.get(tree).map(|t| t.files.as_slice()).unwrap_or_default() {
            owned(by_tree.entry(*blob).or_default(), tree);
            for hold in holds {
                owned(by_project.entry(*blob).or_default(), project_of(hold).unwrap_or(&nobody));
                if let Some(project) = project_of(hold) {
                    of_project.entry(project).or_default().insert(*blob);
                }
            }
        }
    }
    let size = |blob: &BlobId| -> u64 {
        [false, true].iter().filter_map(|x| survey.blobs.get(&(*blob, *x))).map(|b| b.allocated).sum()
    };
    let one = |tree: &TreeId, hold: &Hold| {
        let (mut own_bytes, mut shared_bytes) = (0, 0);
        let files = survey.trees.get(tree).map(|t| t.files.as_slice()).unwrap_or_default();
        let blobs: HashSet<BlobId> = files.iter().map(|(b, ..)| *b).collect();
        for blob in &blobs {
            match by_tree.get(blob) {
                Some(Some(Owner::One(_))) => own_bytes += size(blob),
                _ => shared_bytes += size(blob),
            }
        }
        let (name, generation) = match hold {
            Hold::Generation { node, number, .. } => (node.clone(), Some(*number)),
            Hold::Source { source, number, .. } => (source.clone(), Some(*number)),
            Hold::Pin { node, .. } | Hold::Unended { node, .. } => (node.clone(), None),
            Hold::Out { path, .. } | Hold::Link { path, .. } | Hold::Seat { path } => {
                (path.display().to_string(), None)
            }
            Hold::Session { holder } => {
                (holder.as_ref().map_or_else(|| "a process".to_owned(), |h| format!("process {}", h.pid)), None)
            }
        };
        let age_seconds = newest.get(tree).map(|r| age_seconds(r, now));
        let (hold, tree) = (hold.class(), tree.to_string());
        GenerationReport { name, hold, generation, tree, age_seconds, own_bytes, shared_bytes }
    };
    let mut lists: BTreeMap<&String, Vec<GenerationReport>> = BTreeMap::new();
    for (tree, holds) in &holders.trees {
        for hold in holds {
            lists.entry(project_of(hold).unwrap_or(&nobody)).or_default().push(one(tree, hold));
        }
    }
    for list in lists.values_mut() {
        list.sort_by(|a, b| (a.hold, &a.name, a.generation, &a.tree).cmp(&(b.hold, &b.name, b.generation, &b.tree)));
    }
    let projects = holders.projects.iter().map(|(key, p)| {
        let (mut own_bytes, mut shared_bytes) = (0, 0);
        for blob in of_project.get(key).into_iter().flatten() {
            match by_project.get(blob) {
                Some(Some(Owner::One(_))) => own_bytes += size(blob),
                _ => shared_bytes += size(blob),
            }
        }
        ProjectRoots {
            root: key.clone(),
            graph: p.graph.clone(),
            imported: p.imported,
            folder_exists: p.folder_exists,
            graph_exists: p.graph_exists,
            holds: lists.get(key).cloned().unwrap_or_default(),
            own_bytes,
            shared_bytes,
        }
    });
    RootsReport { projects: projects.collect(), others: lists.get(&nobody).cloned().unwrap_or_default() }
}
