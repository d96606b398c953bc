//! Who holds what: the reasons for which a tree's bytes stay.
//!
//! | who | holds | until |
//! | --- | --- | --- |
//! | a project | the newest generations of each node, the trees that its sources were | newer ones come, or it is forgotten |
//! | a pin in a project's graph.lock | the pinned tree | it is taken away |
//! | a link in a project's `out/` | the tree whose artifact it leads to | it is removed or leads elsewhere |
//! | a registered link elsewhere | the same | the same |
//! | a link below `seats/` | the same | the same |
//! | a build that did not end | what it made | its project's next build ends, and takes it into the roots |
//! | a running process | what it relies on | it ends |
//!
//! What can't be read holds more, never less: a project whose graph is gone holds what it held (its disk may be unmounted),
//! and whatever is there and can't be understood stops everybody who wants to remove something.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use crate::digest::{BlobId, Digest, RecipeId, TreeId};
use crate::fsx;
use crate::fsx::lock::Holder;
use crate::graph::lock::LockError;
use crate::graph::{Diagnostics, Graph, Lock};
use crate::store::links::{LinkState, artifact_in};
use crate::store::roots::Roots;
use crate::store::survey::{Damage, Survey};
use crate::store::{Store, StoreError};

/// One reason for a tree or a blob to stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hold {
    /// A project's node had it.
    Generation {
        /// The project, by its file in `roots/`.
        project: String,
        /// The node.
        node: String,
        /// 1 is the newest.
        number: usize,
        /// Of so many.
        of: usize,
        /// The recipe that gave it.
        recipe: RecipeId,
    },
    /// A project's source was it.
    Source {
        /// The project.
        project: String,
        /// The source.
        source: String,
        /// 1 is the newest.
        number: usize,
        /// Of so many.
        of: usize,
    },
    /// A project's graph.lock pins it.
    Pin {
        /// The project.
        project: String,
        /// The node that it was pinned for.
        node: String,
        /// The recipe.
        recipe: RecipeId,
    },
    /// A link in a project's `out/` leads to it.
    Out {
        /// The project.
        project: String,
        /// The link.
        path: PathBuf,
    },
    /// A registered link leads to it.
    Link {
        /// The link.
        path: PathBuf,
        /// Whether it can be seen: else its folder is gone, and it holds what it held.
        seen: bool,
    },
    /// A link below `seats/` leads to it.
    Seat {
        /// The link.
        path: PathBuf,
    },
    /// A build made it that has not ended, or was killed before it did.
    Unended {
        /// Its graph.
        graph: PathBuf,
        /// The node.
        node: String,
    },
    /// A running process relies on it.
    Session {
        /// Who, if it has said so.
        holder: Option<Holder>,
    },
}

/// A registered project.
#[derive(Debug, Clone)]
pub struct Registered {
    /// What it wants kept.
    pub roots: Roots,
    /// Its graph, where it lies now.
    pub graph: PathBuf,
    /// Whether it is no project, but what was taken in from an archive.
    pub imported: bool,
    /// Whether its folder is there.
    pub folder_exists: bool,
    /// Whether its graph is there.
    pub graph_exists: bool,
}

/// Everything that is held.
#[derive(Debug, Default)]
pub struct Holders {
    /// Tree → why it stays.
    pub trees: HashMap<TreeId, Vec<Hold>>,
    /// Blobs that running processes hold by themselves.
    pub blobs: HashMap<BlobId, Vec<Hold>>,
    /// The projects, by their file in `roots/`.
    pub projects: BTreeMap<String, Registered>,
}

/// Why it can't be said what is held: nothing may be removed then.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// The store, or the disk.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Files in `roots/` or `seats/` that do not read.
    #[error("{}", list(.0))]
    Damaged(Vec<Damage>),
    /// A registered project's graph.
    #[error(transparent)]
    Graph(#[from] Diagnostics),
    /// A registered project's graph.lock.
    #[error(transparent)]
    Lock(#[from] LockError),
}

fn list(damage: &[Damage]) -> String {
    damage.iter().map(|d| format!("{} {}", d.path.display(), d.what)).collect::<Vec<_>>().join("; ")
}

impl Holders {
    /// Asks everybody. `keep` is how many generations of a node hold, at most as many as were kept. The answer is exact
    /// while the caller is [alone](Store::alone); processes are asked first, since one that ends meanwhile has written its
    /// roots before.
    pub fn read(store: &Store, keep: Option<usize>) -> Result<Self, HoldError> {
        let mut holders = Self::default();
        for session in store.sessions()? {
            let hold = Hold::Session { holder: session.holder };
            session.trees.into_iter().for_each(|t| holders.add(t, hold.clone()));
            for blob in session.blobs {
                holders.blobs.entry(blob).or_default().push(hold.clone());
            }
        }
        let mut kept = Survey::default();
        store.plain().survey_roots(&mut kept)?;
        if !kept.damage.is_empty() {
            return Err(HoldError::Damaged(kept.damage));
        }
        for (key, roots) in kept.roots {
            holders.project(store, key, roots, keep.unwrap_or(usize::MAX))?;
        }
        for link in kept.links.values() {
            let state = link.state();
            if state != LinkState::LetGo {
                holders.add(link.tree, Hold::Link { path: link.path(), seen: state == LinkState::Leads });
            }
        }
        for build in kept.unended.into_values() {
            for made in build.made {
                holders.add(made.tree, Hold::Unended { graph: build.graph.clone(), node: made.node });
            }
        }
        holders.seats(&store.dir().join("seats"))?;
        Ok(holders)
    }

    fn add(&mut self, tree: TreeId, hold: Hold) {
        self.trees.entry(tree).or_default().push(hold);
    }

    fn project(&mut self, store: &Store, key: String, roots: Roots, keep: usize) -> Result<(), HoldError> {
        for (node, list) in &roots.nodes {
            for (n, root) in list.iter().enumerate().take(keep) {
                let (project, node) = (key.clone(), node.clone());
                let hold = Hold::Generation { project, node, number: n + 1, of: list.len(), recipe: root.recipe };
                self.add(root.tree, hold);
            }
        }
        for (source, list) in &roots.sources {
            for (n, tree) in list.iter().enumerate().take(keep) {
                let (project, source) = (key.clone(), source.clone());
                self.add(*tree, Hold::Source { project, source, number: n + 1, of: list.len() });
            }
        }
        // What was imported is held by a file of its own, which names no graph.
        // So is what lost roots may have held, which names no project at all.
        let lost = roots.project.as_os_str().is_empty();
        if lost || is_import(&roots.graph) {
            let import = format!("import of {}", roots.project.display());
            let graph = PathBuf::from(if lost { "what lost roots may have held".to_owned() } else { import });
            let registered = Registered { folder_exists: true, graph_exists: true, imported: true, graph, roots };
            self.projects.insert(key, registered);
            return Ok(());
        }
        let graph = find_graph(store, &key, &roots);
        let folder = graph.parent().map_or_else(|| PathBuf::from("/"), Path::to_owned);
        // Gone, or not ours to read: what it held last is held.
        let bytes = fs::read(&graph).ok();
        if let Some(bytes) = &bytes {
            Graph::parse_bytes(&graph.display().to_string(), bytes)?;
        }
        let lock = graph.with_extension("lock");
        match lock.symlink_metadata() {
            Ok(_) => {
                for (recipe, pin) in Lock::read(&lock)?.pins {
                    self.add(pin.tree, Hold::Pin { project: key.clone(), node: pin.node, recipe });
                }
            }
            // A graph without a lock has no pins; where the graph is not there either, nobody can tell.
            Err(_) if bytes.is_some() => {}
            Err(_) => {
                for (recipe, tree) in &roots.pins {
                    let (project, node) = (key.clone(), node_of(&roots, *recipe));
                    self.add(*tree, Hold::Pin { project, node, recipe: *recipe });
                }
            }
        }
        self.out_links(store, &key, &folder.join("out"));
        let registered =
            Registered { imported: false, folder_exists: folder.is_dir(), graph_exists: bytes.is_some(), graph, roots };
        self.projects.insert(key, registered);
        Ok(())
    }

    // Links that lead to this store's artifacts: also that of a node that has left the graph. Those of another store hold
    // nothing here.
    fn out_links(&mut self, store: &Store, project: &str, out: &Path) {
        for name in fsx::names(out).unwrap_or_default() {
            let path = out.join(name);
            let Some(tree) = fs::read_link(&path).ok().as_deref().and_then(artifact_in) else { continue };
            if store.knows_tree(tree) {
                self.add(tree, Hold::Out { project: project.to_owned(), path });
            }
        }
    }

    // Links to artifacts hold; links that stay inside (`current`) and folders are fine; anything else is not understood.
    fn seats(&mut self, top: &Path) -> Result<(), HoldError> {
        let mut todo = vec![top.to_owned()];
        while let Some(dir) = todo.pop() {
            for name in fsx::names(&dir).map_err(StoreError::from)? {
                let path = dir.join(name);
                let meta = fs::symlink_metadata(&path).map_err(fsx::at("look at", &path)).map_err(StoreError::from)?;
                if meta.is_dir() {
                    todo.push(path);
                    continue;
                }
                let target = fs::read_link(&path).ok();
                match target.as_deref().map(|t| (artifact_in(t), t)) {
                    Some((Some(tree), _)) => self.add(tree, Hold::Seat { path }),
                    Some((None, t)) if t.components().count() == 1 && dir.join(t).symlink_metadata().is_ok() => {}
                    _ => {
                        let part = crate::store::survey::Part::Roots;
                        let what = "is no generation of a seat that this program understands".to_owned();
                        return Err(HoldError::Damaged(vec![Damage { path, part, what }]));
                    }
                }
            }
        }
        Ok(())
    }
}

// `…/imported/<archive>`, as `import` names it.
fn is_import(graph: &Path) -> bool {
    let name = graph.file_name().and_then(|n| n.to_str());
    graph.parent().is_some_and(|p| p.ends_with("imported")) && name.is_some_and(|n| Digest::from_hex(n).is_ok())
}

fn node_of(roots: &Roots, recipe: RecipeId) -> String {
    let has = |(_, list): &(&String, &Vec<crate::store::roots::Root>)| list.iter().any(|r| r.recipe == recipe);
    roots.nodes.iter().find(has).map_or_else(String::new, |(node, _)| node.clone())
}

// Where a project's graph lies now. It is known by its path relative to the folder that holds the store, where it lies in
// there, so a project that was moved or copied as a whole is found beside its own store first.
fn find_graph(store: &Store, key: &str, roots: &Roots) -> PathBuf {
    let beside = store.dir().parent().unwrap_or(store.dir());
    let mut tail = PathBuf::new();
    for part in roots.graph.components().rev() {
        tail = if tail.as_os_str().is_empty() { PathBuf::from(part.as_os_str()) } else { Path::new(&part).join(&tail) };
        let candidate = beside.join(&tail);
        if key.strip_suffix(".json") == Some(&store.plain().project_key(&candidate)) && candidate.is_file() {
            return candidate;
        }
    }
    roots.graph.clone()
}

impl Hold {
    /// In a line, behind `held by`; projects are named by their graph.
    pub fn text(&self, projects: &BTreeMap<String, Registered>) -> String {
        let graph =
            |key: &String| projects.get(key).map_or_else(|| format!("roots/{key}"), |p| p.graph.display().to_string());
        match self {
            Hold::Generation { project, node, number, of, .. } => {
                format!("generation {number} of {of} of {node} in {}", graph(project))
            }
            Hold::Source { project, source, number, of } => {
                format!("the source {source} in {}, as it was at number {number} of {of}", graph(project))
            }
            Hold::Pin { project, node, .. } => format!("a pin for {node} in the lock of {}", graph(project)),
            Hold::Out { path, .. } => format!("the link {}", path.display()),
            Hold::Link { path, seen: true } => format!("the link {}", path.display()),
            Hold::Link { path, seen: false } => {
                format!("the link {}, whose folder is gone: `graftwerk roots --forget` lets go of it", path.display())
            }
            Hold::Seat { path } => format!("the seat {}", path.display()),
            Hold::Unended { graph, node } => {
                format!("a build of {} that has not ended, for {node}", graph.display())
            }
            Hold::Session { holder: Some(h) } => {
                format!("the running process {} on {}, since {}", h.pid, h.host, h.since)
            }
            Hold::Session { holder: None } => "a running process".to_owned(),
        }
    }

    /// What kind of hold it is, for machines.
    pub fn class(&self) -> &'static str {
        match self {
            Hold::Generation { .. } => "generation",
            Hold::Source { .. } => "source",
            Hold::Pin { .. } => "pin",
            Hold::Out { .. } => "out",
            Hold::Link { .. } => "link",
            Hold::Seat { .. } => "seat",
            Hold::Unended { .. } => "build",
            Hold::Session { .. } => "session",
        }
    }
}
