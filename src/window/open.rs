//! Opening a window.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::engine::neighbour::{Health, Seen};
use crate::fsx::lock::FileLock;
use crate::fsx::{self, FsError};
use crate::gpu::GpuProcess;
use crate::graph::WindowSpec;
use crate::host::Process;
use crate::window::intent::{Intent, Neighbour, fresh_id, records};
use crate::window::restore::{Patience, bring_back};
use crate::window::{Cancelled, Tell, WindowError, engine_error, locks};

/// What a window is opened for: for those who wait, and for whoever reads the intent later.
#[derive(Debug, Clone, Default)]
pub struct Purpose {
    /// The node.
    pub node: String,
    /// The store's folder.
    pub store: String,
}

/// A window that is open: its neighbours are stopped. It must be [`close`](OpenWindow::close)d; dropped otherwise, it
/// starts them again and asks no further.
pub struct OpenWindow {
    engine: Arc<Engine>,
    intent: Intent,
    held: Vec<Held>,
    life: Option<FileLock>,
}

/// The locks of a neighbour that is needed stopped.
pub(super) struct Held {
    pub(super) name: String,
    pub(super) users: FileLock,
    pub(super) owed: Option<FileLock>,
}

/// What stands before a change of what runs, for a harness that ends the process there.
pub(super) fn point(what: &'static str, name: &str) -> Result<(), FsError> {
    let path = Path::new(name);
    fsx::hit(what, path).map_err(fsx::at(what, path))
}

/// Stops the neighbours of a window, in their order; it first writes down how they are. Waits for its turn where
/// somebody else is at it just now. `None` when cancelled: everything is as it was. Errors: [`WindowError`]; what was
/// stopped until then is brought back.
pub fn open(
    spec: &WindowSpec,
    engine: &Arc<Engine>,
    purpose: &Purpose,
    tell: Tell<'_>,
    cancelled: Cancelled<'_>,
) -> Result<Option<OpenWindow>, WindowError> {
    let window = spec.name.as_str();
    let what = format!("window {window} for {} of {}", purpose.node, purpose.store);
    let process = Process::own();
    let id = fresh_id(&process);
    let life = locks::life(&id, &what)?;
    let Some(gate) = locks::gate(&what, tell, cancelled)? else { return Ok(None) };
    let engine_id = engine.identity().map_err(engine_error(window))?;
    // Nothing is stopped before all of them are known.
    let seen = spec.stop.iter().map(|name| see(engine, window, name)).collect::<Result<Vec<_>, _>>()?;
    let mut intent = Intent {
        id,
        window: window.to_owned(),
        engine: engine.address().to_string(),
        engine_id,
        node: purpose.node.clone(),
        store: purpose.store.clone(),
        process,
        opened: jiff::Timestamp::now().round(jiff::Unit::Second).unwrap_or_default().to_string(),
        grace_seconds: spec.grace_seconds,
        healthy_seconds: spec.healthy_seconds,
        neighbours: Vec::new(),
    };
    let mut held = Vec::new();
    for s in &seen {
        let paths = locks::of(&intent.engine_id, &s.name)?;
        let was_running = s.running || locks::alone(&paths.owed, &what)?.is_none() || left_stopped(&intent, s)?;
        let users = locks::together(&paths.users)?;
        let owed = if was_running { Some(locks::together(&paths.owed)?) } else { None };
        held.push(Held { name: s.name.clone(), users, owed });
        let was_unhealthy = s.health == Some(Health::Unhealthy);
        intent.neighbours.push(Neighbour { name: s.name.clone(), id: s.id.clone(), was_running, was_unhealthy });
    }
    intent.write()?;
    let mut open = OpenWindow { engine: Arc::clone(engine), intent, held, life };
    let stopped = stop_all(&open, &seen, tell, cancelled);
    drop(gate);
    match stopped {
        Ok(true) => Ok(Some(open)),
        Ok(false) => {
            open.restore(tell, &|| true)?;
            Ok(None)
        }
        Err(e) => {
            // The first thing that went wrong is what is told; an intent that could not be done stays.
            if let Err(more) = open.restore(tell, cancelled) {
                tell(&more.to_string());
            }
            Err(e)
        }
    }
}

fn see(engine: &Engine, window: &str, name: &str) -> Result<Seen, WindowError> {
    engine.see(name).map_err(engine_error(window))?.ok_or_else(|| WindowError::NoNeighbour {
        window: window.to_owned(),
        name: name.to_owned(),
        engine: engine.address().to_string(),
    })
}

// Whether an intent that a crash left owes this neighbour: then we owe it, too, and its own restoring finds us.
fn left_stopped(ours: &Intent, seen: &Seen) -> Result<bool, FsError> {
    let owes = |i: &Intent| {
        let same = |n: &Neighbour| n.was_running && (n.id == seen.id || n.name == seen.name);
        i.engine_id == ours.engine_id && i.neighbours.iter().any(same)
    };
    Ok(records()?.iter().filter_map(|r| r.intent.as_ref().ok()).any(owes))
}

// Whether all are stopped; not where it was cancelled.
fn stop_all(open: &OpenWindow, seen: &[Seen], tell: Tell<'_>, cancelled: Cancelled<'_>) -> Result<bool, WindowError> {
    let grace = Duration::from_secs(open.intent.grace_seconds.into());
    for s in seen.iter().filter(|s| s.running || s.restarting) {
        if cancelled() {
            return Ok(false);
        }
        tell(&format!("stopping {} for the window {}", s.name, open.intent.window));
        point("stop", &s.name)?;
        open.engine.stop(&s.id, grace).map_err(engine_error(&open.intent.window))?;
    }
    point("stopped", &open.intent.window)?;
    Ok(!cancelled())
}

impl OpenWindow {
    /// The id that the containers of its steps carry as the label [`crate::engine::labels::WINDOW`].
    pub fn id(&self) -> &str {
        &self.intent.id
    }

    /// Ends what is left of its steps, waits until their memory is free, starts the neighbours that ran before in the
    /// reverse order, and waits until each is healthy. Cancelled, it starts them and waits no more. One that somebody
    /// else needs stopped is left to them. Errors: [`WindowError::Sick`] with those that did not come back, whatever
    /// else came back.
    pub fn close(mut self, tell: Tell<'_>, cancelled: Cancelled<'_>) -> Result<(), WindowError> {
        self.restore(tell, cancelled)
    }

    fn restore(&mut self, tell: Tell<'_>, cancelled: Cancelled<'_>) -> Result<(), WindowError> {
        let Some(_life) = self.life.take() else { return Ok(()) };
        let held = std::mem::take(&mut self.held);
        let brought = bring_back(&self.engine, &self.intent, held, Patience::UntilItsTurn, tell, cancelled)?;
        brought.result()
    }
}

impl Drop for OpenWindow {
    fn drop(&mut self) {
        // What can't be done now is done by the next command: the intent says so.
        let _ = self.restore(&|_| {}, &|| true);
    }
}

/// Who gives way once a window is open.
#[derive(Debug, Clone, Default)]
pub struct GivesWay {
    containers: BTreeSet<String>,
    pids: BTreeSet<u32>,
}

impl GivesWay {
    /// Whether this process's memory will be free: for [`crate::gpu::Leasing::yields`].
    pub fn is(&self, process: &GpuProcess) -> bool {
        self.pids.contains(&process.pid) || process.container.as_ref().is_some_and(|c| self.containers.contains(c))
    }
}

/// Whose memory is free once the window is open, so that it can be counted before anything is stopped. Errors: as
/// [`open`], for a neighbour that is not there.
pub fn gives_way(spec: &WindowSpec, engine: &Engine) -> Result<GivesWay, WindowError> {
    let mut all = GivesWay::default();
    for name in &spec.stop {
        let seen = see(engine, spec.name.as_str(), name)?;
        if seen.running {
            all.pids.extend(engine.processes_of(&seen.id));
            all.containers.insert(seen.id);
        }
    }
    Ok(all)
}
