//! `verify`: a store, what a node needs of it, or a folder, held against what they should be. Nothing is opened for
//! writing: a store that is damaged, or that may only be read, can be looked at.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::audit::verify::{self as audit, Finding, Held, Looking, Needs, Subject, Verified, escaped};
use crate::digest::{BlobId, RecipeId, TreeId};
use crate::front::error::{FrontError, Result};
use crate::front::query::one_id;
use crate::front::{Location, graph_file, read_graph, start, store_dir};
use crate::fsx;
use crate::graph::Graph;
use crate::graph::select::find;
use crate::model::path::RelPath;
use crate::model::tree::{Entry, Tree};
use crate::sched::{Event, Events};
use crate::store::plain::Plain;
use crate::store::survey::Part;
use crate::store::{Store, StoreError};

/// What is verified.
#[derive(Debug, Clone, Default)]
pub struct Verify {
    /// Nodes, ids and paths; nothing for the whole store.
    pub targets: Vec<String>,
    /// What the paths among them are held against, where that is no view.
    pub against: Option<String>,
    /// Look at blobs only from outside.
    pub quick: bool,
}

/// A store that is only looked at, and the graph that names its nodes, where there is one.
pub(super) struct Place {
    pub(super) plain: Plain,
    pub(super) graph: Option<(Graph, PathBuf)>,
    dir: PathBuf,
}

impl Place {
    // Where the store is said on the command line, a graph that is missing or wrong keeps nobody from it.
    pub(super) fn find(location: &Location) -> Result<Self> {
        let path = graph_file(location);
        let graph = match read_graph(&path) {
            Ok(graph) => {
                let path = path.canonicalize().map_err(fsx::at("find", &path)).map_err(StoreError::from)?;
                Some((graph, path))
            }
            Err(FrontError::NoGraph { .. } | FrontError::Graph(_)) if location.store.is_some() => None,
            Err(e) => return Err(e),
        };
        let stated = graph.as_ref().and_then(|(g, _)| g.store.clone());
        let root = graph.as_ref().and_then(|(_, p)| p.parent()).map_or_else(|| start(location), Path::to_owned);
        let store = store_dir(location, &stated, &root);
        if Store::is_nothing(&store) {
            return Err(FrontError::NoStore { path: std::path::absolute(&store).unwrap_or(store) });
        }
        Ok(Self { plain: Plain::at(&store)?, graph, dir: start(location) })
    }

    // A path of the command line.
    pub(super) fn from(&self, path: &Path) -> PathBuf {
        self.dir.join(path)
    }

    // The newest realisation of a node.
    pub(super) fn node(&self, name: &str) -> Result<TreeId> {
        let Some((graph, path)) = &self.graph else {
            let what = format!("{name} is neither an id nor a path, and there is no graph to look it up in");
            return Err(FrontError::Argument { what, hint: Some("pass -C DIR or --graph FILE".to_owned()) });
        };
        find(graph, name)?;
        let roots = self.plain.roots(path)?;
        roots.newest(name).map(|r| r.tree).ok_or_else(|| FrontError::NotBuilt {
            node: name.to_owned(),
            why: "no build has entered it in the store's roots".to_owned(),
        })
    }

    // Roots that are gone look like those of a project that was never built. But `out/` says that it was.
    pub(super) fn lost_roots(&self) -> Option<Finding> {
        let (_, graph_path) = self.graph.as_ref()?;
        let path = self.plain.roots_path(graph_path);
        let out = graph_path.parent()?.join("out");
        let artifacts = self.plain.dir().join("artifacts");
        let recovered = |n: &std::ffi::OsString| n.to_string_lossy().starts_with("recovered-");
        if path.symlink_metadata().is_ok() || fsx::names(&self.plain.dir().join("roots")).ok()?.iter().any(recovered) {
            return None;
        }
        let built = fsx::names(&out).ok()?.into_iter().find(|n| {
            let target = std::fs::read_link(out.join(n)).map(|t| out.join(t));
            target.is_ok_and(|t| t.parent().and_then(|p| p.canonicalize().ok()).is_some_and(|p| p == artifacts))
        })?;
        let what = format!("is not there, and out/{} was built in this store", built.to_string_lossy());
        let mut f = Finding::new(path, Part::Roots, what, Subject::Other);
        f.hint = Some("`graftwerk repair` writes down again what must be kept; until then, let no gc run".to_owned());
        Some(f)
    }

    pub(super) fn is_node(&self, name: &str) -> bool {
        self.graph.as_ref().is_some_and(|(g, _)| find(g, name).is_ok())
    }
}

/// Looks, and says what is not as it should be. Errors: NotBuilt for a node that never was; Argument for a name that
/// means nothing, and for a folder of which nothing says what it should be.
pub fn verify(location: &Location, what: &Verify, events: &Events, cancel: &AtomicBool) -> Result<Verified> {
    let begun = Instant::now();
    let place = Place::find(location)?;
    // `Sender` is not shared between threads.
    let to = Mutex::new(events.clone());
    let progress = |done: u64, total: u64| {
        if let Ok(to) = to.lock() {
            let _ = to.send(Event::Progress { node: "verify".to_owned(), done, total });
        }
    };
    let looking = Looking { quick: what.quick, progress: &progress, cancelled: &|| cancel.load(Ordering::Relaxed) };
    if what.targets.is_empty() {
        let mut found = audit::verify(&place.plain, None, &looking)?;
        if let Some(lost) = place.lost_roots() {
            found.missing.push(lost);
            found.close();
        }
        return Ok(found);
    }
    let mut all = Verified { store: place.plain.dir().to_owned(), quick: what.quick, ..Verified::default() };
    let mut needs = Needs::default();
    let mut asked: Vec<(TreeId, String)> = Vec::new();
    let mut paths: Vec<PathBuf> = Vec::new();
    for target in &what.targets {
        let path = place.dir.join(target);
        if what.against.is_some() {
            paths.push(path);
        } else if target.starts_with("b3:") {
            match one_id(&place.plain, target)? {
                ("tree", d) => asked.push((TreeId(d), target.clone())),
                ("recipe", d) => drop(needs.recipes.insert(RecipeId(d))),
                (_, d) => drop(needs.blobs.insert(BlobId(d))),
            }
        } else if !place.is_node(target) && (target.contains('/') || path.symlink_metadata().is_ok()) {
            paths.push(path);
        } else {
            asked.push((place.node(target)?, target.clone()));
        }
    }
    needs.trees.extend(asked.iter().map(|(t, _)| *t));
    if !needs.trees.is_empty() || !needs.recipes.is_empty() || !needs.blobs.is_empty() {
        let found = audit::verify(&place.plain, Some(&needs), &looking)?;
        let absent = |t: &TreeId| found.collected.iter().any(|f| f.subject == Subject::Tree(*t));
        all.not_built.extend(asked.iter().filter(|(t, _)| absent(t)).map(|(_, name)| name.clone()));
        all.add(found);
    }
    for path in paths {
        all.add(hold_path(&place, &path, what.against.as_deref(), &looking)?);
    }
    all.seconds = begun.elapsed();
    all.close();
    Ok(all)
}

// What a path is held against.
enum Claimed {
    Tree(TreeId, Tree),
    File(TreeId, Entry),
}

fn hold_path(place: &Place, path: &Path, against: Option<&str>, looking: &Looking<'_>) -> Result<Verified> {
    let top = path.canonicalize().map_err(|e| FrontError::Argument {
        what: format!("{} can't be read: {e}", escaped(path)),
        hint: Some("name a node, an id, or a file or folder that is there".to_owned()),
    })?;
    let claimed = match against {
        Some(text) => place.against(text, &top)?,
        None => place.view_of(&top)?,
    };
    let plain = &place.plain;
    let mut found = match &claimed {
        Claimed::Tree(id, tree) => {
            let held = Held { plain, top: &top, tree, id: *id, part: Part::Path, blobs_are_known: false };
            audit::hold_folder(&held, looking)?
        }
        Claimed::File(id, entry) => {
            let none = Tree::new();
            let held = Held { plain, top: &top, tree: &none, id: *id, part: Part::Path, blobs_are_known: false };
            let mut found = audit::hold_file(&held, entry, looking)?;
            found.files += 1;
            found
        }
    };
    let (Claimed::Tree(id, _) | Claimed::File(id, _)) = &claimed;
    let in_store = top.starts_with(plain.dir());
    for f in found.changed.iter_mut().chain(&mut found.missing) {
        f.trees = vec![*id];
        f.hint = Some(if in_store {
            "it is a part of the store: `graftwerk verify` says what else it concerns, `graftwerk repair` puts it right"
                .to_owned()
        } else {
            format!("copy it again from {}", escaped(&plain.view_path(*id)))
        });
    }
    Ok(found)
}

impl Place {
    // A folder of the store's artifacts/, or something in one.
    fn view_of(&self, top: &Path) -> Result<Claimed> {
        let unknown = || FrontError::Argument {
            what: format!("{} is no view of this store, and nothing says what it should be", escaped(top)),
            hint: Some("pass --against NODE, or --against ID".to_owned()),
        };
        let below = top.strip_prefix(self.plain.dir().join("artifacts")).map_err(|_| unknown())?;
        let mut parts = below.components();
        let id: TreeId = parts
            .next()
            .and_then(|c| format!("b3:{}", c.as_os_str().to_string_lossy()).parse().ok())
            .ok_or_else(unknown)?;
        let tree = self.tree(id)?;
        use std::os::unix::ffi::OsStrExt as _;
        let rest = parts.as_path().as_os_str().as_bytes();
        let Ok(rel) = RelPath::new(rest) else { return Ok(Claimed::Tree(id, tree)) };
        if let Some(entry) = tree.get(&rel) {
            return Ok(Claimed::File(id, entry.clone()));
        }
        if !tree.holds(&rel) {
            let what = format!("{} has no business in {id}: nothing of that name is in it", escaped(top));
            return Err(FrontError::Argument { what, hint: Some("verify the folder as a whole".to_owned()) });
        }
        let mut below = Tree::new();
        for (path, entry) in tree.iter() {
            let inside = path.as_bytes().strip_prefix(rel.as_bytes()).and_then(|p| p.strip_prefix(b"/"));
            if let Some(Ok(path)) = inside.map(|p| RelPath::new(p.to_vec())) {
                // A link that leads out of this folder stays inside of the tree: it can't be said of a part.
                let _ = below.insert(path, entry.clone());
            }
        }
        Ok(Claimed::Tree(id, below))
    }

    fn tree(&self, id: TreeId) -> Result<Tree> {
        let path = || self.plain.object_path("trees", &id.0);
        let lost = || StoreError::Damaged { path: path(), what: "is not there".to_owned() };
        Ok(self.plain.tree(id)?.ok_or_else(lost)?)
    }

    fn against(&self, text: &str, top: &Path) -> Result<Claimed> {
        let id = if text.starts_with("b3:") {
            match one_id(&self.plain, text)? {
                ("tree", d) => TreeId(d),
                ("recipe", d) => {
                    let survey = self.plain.survey()?;
                    let runs = survey.runs.get(&RecipeId(d));
                    let made = runs.into_iter().flatten().find_map(|r| r.tree());
                    made.ok_or_else(|| FrontError::NotBuilt {
                        node: format!("the recipe {text}"),
                        why: "no run of it has made a tree".to_owned(),
                    })?
                }
                (_, d) => {
                    let size = top.metadata().map_or(0, |m| m.len());
                    let executable = is_executable(top);
                    let entry = Entry::File { blob: BlobId(d), size, executable };
                    return Ok(Claimed::File(TreeId(d), entry));
                }
            }
        } else {
            self.node(text)?
        };
        let tree = self.tree(id)?;
        if top.is_dir() {
            return Ok(Claimed::Tree(id, tree));
        }
        // A file by itself: the one of its name, or the only one.
        use std::os::unix::ffi::OsStrExt as _;
        let name = top.file_name().map(|n| n.as_bytes().to_vec()).unwrap_or_default();
        let named: Vec<&Entry> = tree.iter().filter(|(p, _)| p.file_name() == name).map(|(_, e)| e).collect();
        let all: Vec<&Entry> = tree.iter().map(|(_, e)| e).collect();
        match (named.as_slice(), all.as_slice()) {
            ([one], _) | ([], [one]) => Ok(Claimed::File(id, (*one).clone())),
            (found, _) => {
                let many = if found.is_empty() { "no file" } else { "several files" };
                let what = format!("{text} has {many} of the name of {}", escaped(top));
                let hint = "pass the blob's ID to --against: `graftwerk show NODE` lists them".to_owned();
                Err(FrontError::Argument { what, hint: Some(hint) })
            }
        }
    }
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|m| m.permissions().mode() & 0o100 != 0)
}
