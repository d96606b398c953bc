//! The library's front: a project, and what can be asked of it.
//!
//! `argv → Goal → graph.select → Selection → plan(graph, selection, store) → scheduler.run(plan) → Report → rendering`

mod archive;
mod attest;
mod away;
mod build;
mod diff;
mod doctor;
mod draw;
mod error;
mod gc;
mod held;
mod images;
mod init;
mod query;
mod repair;
mod report;
mod signed;
mod unbuilt;
mod verify;
mod waits;
mod windows;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub use archive::{ArchiveReport, ExportTo, FolderReport, ImportFrom, ImportReport, import};
pub use attest::{AttestOptions, AttestReport, KEY_VARIABLE};
pub use build::BuildOptions;
pub use diff::{Diff, DiffReport, SideReport, diff};
pub use doctor::{Diagnosis, Finding, Health, doctor};
pub use draw::{Drawing, DrawnEdge, DrawnNode};
pub use error::{FrontError, Result};
pub use gc::{FreedTree, GcOptions, GcReport};
pub use held::{Explained, ExplainedTree, GenerationReport, HoldReport, ProjectRoots, RootsReport};
pub use init::{Starter, init};
pub use query::{LogText, PinReport, Shown, Why};
pub use repair::{RepairOptions, repair};
pub use report::{AwaySource, BuildReport, NodeStatus, PlanReport, PlanStep, StatusReport, StepReport, UpdateReport};
pub use signed::{Claims, SignedBy, VerifiedFiles, verify_files};
pub use unbuilt::{draw_unbuilt, unbuilt};
pub use verify::{Verify, verify};
pub use windows::{RestoreReport, RestoredWindow, WindowFailure, WindowsReport, restore_windows, windows};

use crate::digest::{RecipeId, TreeId};
use crate::fsx;
use crate::fsx::lock::{FileLock, Holder};
use crate::graph::lock::{LockedImage, LockedSource};
use crate::graph::{Excludes, Graph, Lock, Name, Selection, SourceKind, select};
use crate::plan::machine::SourceState;
use crate::plan::{Machine, Setting};
use crate::sched::{Event, Events, HostProcesses};
use crate::store::roots::Roots;
use crate::store::{ScanOptions, SourceForm, Store, StoreError};
use waits::Waits;

// Shorter ones are no news.
const LONG_WAIT: Duration = Duration::from_millis(500);

/// Where a project is.
#[derive(Debug, Clone, Default)]
pub struct Location {
    /// The folder to start from; the current one if empty.
    pub dir: PathBuf,
    /// The graph's file, relative to `dir`; `graph.toml` if not given.
    pub graph: Option<PathBuf>,
    /// The store's folder, relative to `dir`; else what the graph says, else `store` beside it.
    pub store: Option<PathBuf>,
}

/// What is done where there is no store yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfNoStore {
    /// One is made.
    Make,
    /// It is an error: there is nothing to be asked about.
    Refuse,
}

impl IfNoStore {
    fn open(self, dir: &Path) -> Result<Arc<Store>> {
        if self == IfNoStore::Refuse && Store::is_nothing(dir) {
            let path = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
            return Err(FrontError::NoStore { path });
        }
        Ok(Store::open(dir)?)
    }
}

/// How sources and realisations are looked at.
#[derive(Debug, Clone, Copy, Default)]
pub struct Looking {
    /// Read every byte of every source again.
    pub check_content: bool,
    /// Refuse where a source is not what graph.lock says.
    pub locked: bool,
    /// Run, and reuse, process steps without isolation.
    pub unsandboxed: bool,
}

/// A graph, its lock and its store.
pub struct Project {
    /// The graph.
    pub graph: Graph,
    /// The store.
    pub store: Arc<Store>,
    /// The folder that holds the graph's file, absolute.
    pub root: PathBuf,
    graph_path: PathBuf,
    lock_path: PathBuf,
    lock: Lock,
}

/// The sources that a selection takes, as they were found.
pub(crate) struct Sources {
    pub(crate) states: BTreeMap<Name, SourceState>,
    pub(crate) locked: BTreeMap<Name, LockedSource>,
    pub(crate) errors: Vec<StoreError>,
    /// Those that are not there and stand in `states` as graph.lock has them.
    pub(crate) away: Vec<(Name, StoreError)>,
}

/// What is made of a source that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IfAway {
    /// It is an error: a step may want its bytes.
    Refuse,
    /// It is what graph.lock says that it was last: enough for questions about what was made of it.
    AsLocked,
}

impl Project {
    /// Opens the project at `location`; a store is made where there is none. Errors: the graph's, with places; the
    /// store's; a damaged lock.
    pub fn open(location: &Location) -> Result<Self> {
        Self::open_with(location, IfNoStore::Make)
    }

    /// As [`Project::open`], for questions about what was built: no store is made. Errors: NoStore too.
    pub fn open_built(location: &Location) -> Result<Self> {
        Self::open_with(location, IfNoStore::Refuse)
    }

    fn open_with(location: &Location, if_no_store: IfNoStore) -> Result<Self> {
        let path = graph_file(location);
        let graph = read_graph(&path)?;
        let graph_path = path.canonicalize().map_err(crate::fsx::at("find", &path)).map_err(StoreError::from)?;
        let root = graph_path.parent().map_or_else(|| PathBuf::from("/"), Path::to_owned);
        let lock_path = graph_path.with_extension("lock");
        let lock = Lock::read(&lock_path)?;
        let store = if_no_store.open(&store_dir(location, &graph.store, &root))?;
        Ok(Self { graph, store, root, graph_path, lock_path, lock })
    }

    /// As [`Project::open`]; where there is no graph, but a store is named, the store alone, with a graph of nothing: for
    /// questions about ids. Errors: as there.
    pub fn open_for_ids(location: &Location, if_no_store: IfNoStore) -> Result<Self> {
        match (Self::open_with(location, if_no_store), &location.store) {
            (Err(FrontError::NoGraph { path, .. }), Some(named)) => {
                let store = if_no_store.open(&start(location).join(named))?;
                let root = store.dir().parent().map_or_else(|| PathBuf::from("/"), Path::to_owned);
                let graph = Graph::parse("graph.toml", "")?;
                Ok(Self {
                    graph,
                    store,
                    root,
                    lock_path: path.with_extension("lock"),
                    graph_path: path,
                    lock: Lock::default(),
                })
            }
            (opened, _) => opened,
        }
    }

    /// The graph at `location`, its folder, and where its store is or would be; nothing is made. Where there is no graph,
    /// the store is where it would be for one.
    pub fn places(location: &Location) -> (Result<Graph>, PathBuf, PathBuf) {
        let path = graph_file(location);
        let graph = read_graph(&path);
        let root = path.canonicalize().unwrap_or(path).parent().map_or_else(|| PathBuf::from("/"), Path::to_owned);
        let stated = graph.as_ref().ok().and_then(|g| g.store.clone());
        let store = store_dir(location, &stated, &root);
        (graph, root, std::path::absolute(&store).unwrap_or(store))
    }

    /// The pinned realisations.
    pub(crate) fn pins(&self) -> BTreeMap<RecipeId, TreeId> {
        self.lock.pins.iter().map(|(r, p)| (*r, p.tree)).collect()
    }

    pub(crate) fn roots(&self) -> Result<Roots> {
        Ok(self.store.roots(&self.graph_path)?)
    }

    pub(crate) fn select(&self, goals: &[String]) -> Result<Selection> {
        Ok(select(&self.graph, goals)?)
    }

    /// Looks at the given sources.
    pub(crate) fn scan<'n>(
        &self,
        names: impl Iterator<Item = &'n Name>,
        (check_content, if_away): (bool, IfAway),
        events: &Events,
        cancel: &AtomicBool,
    ) -> Result<Sources> {
        let mut sources =
            Sources { states: BTreeMap::new(), locked: BTreeMap::new(), errors: Vec::new(), away: Vec::new() };
        for name in names {
            let Some(spec) = self.graph.source(name.as_str()) else { continue };
            let excludes = Excludes::compile(&spec.exclude).unwrap_or_default();
            // `Sender` is not shared between threads; each scan has its own, behind a lock.
            let to = std::sync::Mutex::new(events.clone());
            let progress = |done: u64, total: u64| {
                if let Ok(to) = to.lock() {
                    let _ = to.send(Event::Scanning { source: name.to_string(), done, total });
                }
            };
            let options = ScanOptions {
                check_content,
                hides: &|path, folder| excludes.hides(path, folder),
                progress: &progress,
                cancelled: &|| cancel.load(Ordering::Relaxed),
            };
            match self.store.scan(&self.root.join(&spec.path), form(spec.kind), &options) {
                Ok(found) => {
                    for note in &found.notes {
                        let _ = events.send(Event::Notice(format!("source {name}: {note}")));
                    }
                    let hashed_bytes = found.hashed_bytes;
                    let unsettled = found.unsettled;
                    let _ = events.send(Event::Scanned { source: name.to_string(), hashed_bytes, unsettled });
                    let locked = LockedSource {
                        kind: spec.kind.key().to_owned(),
                        path: spec.path.clone(),
                        tree: found.id,
                        files: found.tree.files().count() as u64,
                        bytes: found.tree.total_bytes(),
                    };
                    sources.locked.insert(name.clone(), locked);
                    sources.states.insert(name.clone(), Ok((found.id, Arc::new(found.tree))));
                }
                Err(StoreError::Cancelled) => return Err(FrontError::Interrupted),
                Err(e) if e.is_damage() => return Err(e.into()),
                Err(e) => {
                    let locked = self.as_locked(name, &e, if_away)?;
                    let state = locked.clone().ok_or_else(|| e.to_string());
                    let e = away::told(e, name, spec, &self.root);
                    if let Some((id, _)) = locked {
                        let what = format!("{e}; taken as graph.lock has it, {}", id.short());
                        let _ = events.send(Event::Notice(what));
                        sources.away.push((name.clone(), e));
                    } else {
                        sources.errors.push(e);
                    }
                    sources.states.insert(name.clone(), state);
                }
            }
        }
        self.store.flush_scanned()?;
        Ok(sources)
    }

    /// Refuses where a source is not what the lock says.
    pub(crate) fn hold_lock(&self, sources: &Sources) -> Result<()> {
        let drifts: Vec<_> = self
            .lock
            .drifts(&self.merged(&self.lock.sources, &sources.locked))
            .into_iter()
            .filter(|d| sources.locked.contains_key(&d.source) || d.new.is_none())
            .collect();
        if drifts.is_empty() { Ok(()) } else { Err(FrontError::Drift { drifts }) }
    }

    // What the lock says of all sources of the graph, with what was found now.
    fn merged(
        &self,
        locked: &BTreeMap<Name, LockedSource>,
        found: &BTreeMap<Name, LockedSource>,
    ) -> BTreeMap<Name, LockedSource> {
        let mut all: BTreeMap<Name, LockedSource> = locked.clone();
        all.retain(|name, _| self.graph.source(name.as_str()).is_some());
        all.extend(found.iter().map(|(n, l)| (n.clone(), l.clone())));
        all
    }

    /// Writes what the sources and images are now into graph.lock, if that is news. An image that the lock holds stays
    /// what it was.
    pub(crate) fn write_lock(
        &self,
        sources: &Sources,
        images: &BTreeMap<String, LockedImage>,
        waits: &Waits<'_>,
    ) -> Result<bool> {
        self.change_lock(waits, |lock| {
            lock.sources = self.merged(&lock.sources, &sources.locked);
            let known = self.images();
            lock.images.retain(|name, _| known.contains(name.as_str()));
            for (name, image) in images {
                lock.images.entry(name.clone()).or_insert_with(|| image.clone());
            }
        })
    }

    /// Changes graph.lock, if that is news, from what it says now: a build may run for hours, and a pin that was set
    /// meanwhile holds.
    pub(crate) fn change_lock(&self, waits: &Waits<'_>, change: impl FnOnce(&mut Lock)) -> Result<bool> {
        let _writing = self.writing(waits)?;
        let mut lock = Lock::read(&self.lock_path)?;
        change(&mut lock);
        Ok(lock.write(&self.lock_path, self.store.temp_dir()).map_err(StoreError::from)?)
    }

    // Held while one of the project's own files is read, changed and written.
    fn writing(&self, waits: &Waits<'_>) -> Result<Option<FileLock>> {
        if self.store.read_only() {
            return Ok(None);
        }
        let path = self.store.project_lock(&self.graph_path);
        self.turn(&path, "the project's files", "its turn to write the project's roots and graph.lock", waits).map(Some)
    }

    // Takes a lock that everybody else holds for a moment; a wait is told only where it is long.
    pub(crate) fn turn(&self, path: &Path, what: &str, why: &str, waits: &Waits<'_>) -> Result<FileLock> {
        let holder = RefCell::new(None);
        let told = Cell::new(false);
        let begun = Instant::now();
        let look = || {
            if begun.elapsed() > LONG_WAIT && !told.replace(true) {
                waits.tell(holder.borrow().as_ref(), why);
            }
            waits.cancelled()
        };
        let mut busy = |now: Option<&Holder>| *holder.borrow_mut() = now.cloned();
        let held = fsx::lock::lock(path, what, true, &mut busy, &look);
        held.map_err(StoreError::from)?.ok_or(FrontError::Interrupted)
    }

    pub(crate) fn machine<'a>(
        &'a self,
        selection: &'a Selection,
        sources: BTreeMap<Name, SourceState>,
        (roots, pins): (&'a Roots, &'a BTreeMap<RecipeId, TreeId>),
        tools: &'a HostProcesses,
        (unsandboxed, hold): (bool, bool),
    ) -> Result<Machine<'a>> {
        Ok(Machine::new(Setting {
            graph: &self.graph,
            selection,
            store: Arc::clone(&self.store),
            sources,
            roots,
            pins,
            tools,
            unsandboxed,
            hold,
        })?)
    }

    pub(crate) fn processes(&self, looking: Looking) -> HostProcesses {
        HostProcesses::new(
            Arc::clone(&self.store),
            looking.unsandboxed,
            self.engine_images(),
            self.graph.windows.clone(),
        )
    }
}

fn start(location: &Location) -> PathBuf {
    if location.dir.as_os_str().is_empty() { PathBuf::from(".") } else { location.dir.clone() }
}

fn graph_file(location: &Location) -> PathBuf {
    start(location).join(location.graph.clone().unwrap_or_else(|| PathBuf::from("graph.toml")))
}

fn read_graph(path: &Path) -> Result<Graph> {
    let bytes = std::fs::read(path).map_err(|source| FrontError::NoGraph { path: path.to_owned(), source })?;
    let label = path.strip_prefix("./").unwrap_or(path).display().to_string();
    Ok(Graph::parse_bytes(&label, &bytes)?)
}

fn store_dir(location: &Location, stated: &Option<String>, root: &Path) -> PathBuf {
    match (&location.store, stated) {
        (Some(s), _) => start(location).join(s),
        (None, Some(s)) => root.join(s),
        (None, None) => root.join("store"),
    }
}

fn form(kind: SourceKind) -> SourceForm {
    match kind {
        SourceKind::Checkpoint => SourceForm::Checkpoint,
        SourceKind::File => SourceForm::File,
        SourceKind::Folder => SourceForm::Folder,
        SourceKind::Rows => SourceForm::Rows,
    }
}
