//! The scheduler: takes ready steps from the plan's machine, runs so many at once, and tells the machine how they
//! ended.
//!
//! Locks are always taken in one order: recipe, then GPU lease, then window.

mod container;
pub mod event;
pub mod images;
mod log;
mod process;
mod step;
mod windows;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::JoinSet;

pub use event::{End, Event, Events};
pub use images::Images;
pub use process::HostProcesses;

use crate::digest::{Digest, RecipeId};
use crate::graph::NodeSpec;
use crate::kinds::{Input, ProcessStep};
use crate::model::run::Isolation;
use crate::plan::Machine;
use crate::store::{Store, StoreError};
use step::{Context, StepEnd, execute};
use windows::{Windows, asks_for_a_gpu};

/// A process step to run.
pub struct ProcessRequest<'a> {
    /// The node's name, for people.
    pub node: &'a str,
    /// The recipe.
    pub recipe: RecipeId,
    /// The store's folder.
    pub store: &'a Path,
    /// What is run.
    pub step: &'a ProcessStep,
    /// Its inputs by alias.
    pub inputs: &'a BTreeMap<String, Input>,
    /// The host's executables that its recipe covers: path inside → digest.
    pub tools: &'a BTreeMap<String, Digest>,
    /// The image that its recipe covers.
    pub image: Option<Digest>,
    /// The empty folder that becomes `/out`.
    pub out: &'a Path,
    /// A folder for whatever else the executor needs; gone afterwards.
    pub scratch: &'a Path,
    /// Where the log goes.
    pub log: &'a Path,
    /// The least isolation that is asked for.
    pub at_least: Isolation,
    /// Hears each line of output.
    pub on_line: &'a (dyn Fn(&str) + Sync),
    /// Hears what is done around the step, such as stopping its neighbours.
    pub notice: &'a (dyn Fn(&str) + Sync),
    /// Hears for whom the step waits that has a GPU, whenever that changes.
    pub waiting: &'a (dyn Fn(Option<&crate::fsx::lock::Holder>) + Sync),
    /// Whether to stop.
    pub cancelled: &'a (dyn Fn() -> bool + Sync),
}

/// Why a process step made nothing.
pub enum ProcessFailure {
    /// The build is being stopped.
    Cancelled,
    /// It failed, or could not be started.
    Failed {
        /// Why.
        error: String,
        /// What to do.
        hint: Option<String>,
        /// The last lines of its log.
        tail: Vec<String>,
    },
    /// The store failed.
    Store(StoreError),
}

/// A process step that ended well.
#[derive(Debug)]
pub struct Ran {
    /// How well it was isolated.
    pub isolation: Isolation,
    /// What its record is to say of where it ran.
    pub facts: BTreeMap<String, serde_json::Value>,
}

/// Runs process steps.
pub trait Processes: Send + Sync {
    /// Runs one to its end; everything that it started is ended.
    fn run(&self, request: &ProcessRequest<'_>) -> Result<Ran, ProcessFailure>;

    /// Closes the window of this name, or every one, that steps left open and none is in; it takes as long as the
    /// neighbours need. Comes back: what did not come back as it was.
    fn close_windows(
        &self,
        _name: Option<&str>,
        _tell: &(dyn Fn(&str) + Sync),
        _cancelled: &(dyn Fn() -> bool + Sync),
    ) -> Vec<Trouble> {
        Vec::new()
    }
}

/// Something that is wrong beside the steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// What.
    pub error: String,
    /// What to do.
    pub hint: Option<String>,
}

/// How a build is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// How many steps at once; those that ask for a GPU wait for leases, and are not counted.
    pub jobs: usize,
    /// Whether independent steps go on after a failure.
    pub keep_going: bool,
    /// Whether a failed step's scratch folder is kept.
    pub keep_failed: bool,
}

/// How it ended.
#[derive(Debug, Default)]
pub struct Ended {
    /// Whether it was stopped by the user.
    pub interrupted: bool,
    /// The numbers of nodes that were running when the user stopped the build.
    pub stopped: HashSet<usize>,
    /// Seconds by node number.
    pub seconds: HashMap<usize, f64>,
    /// Neighbours that did not come back, whatever became of the steps.
    pub troubles: Vec<Trouble>,
}

/// How many steps may wait for GPUs, or have them, at once.
pub const MOST_ON_GPUS: usize = 16;

/// Runs what the machine offers until nothing is left that can run. Errors: only where the store itself is damaged;
/// a failed step is in the machine's report.
pub async fn run(
    machine: &mut Machine<'_>,
    store: &Arc<Store>,
    processes: Arc<dyn Processes>,
    options: &Options,
    events: &Events,
    cancel: &Arc<AtomicBool>,
) -> Result<Ended, StoreError> {
    let context = Context {
        store: Arc::clone(store),
        events: events.clone(),
        cancel: Arc::clone(cancel),
        processes,
        keep_failed: options.keep_failed,
    };
    let mut running = JoinSet::new();
    let mut windows = Windows::new(&context);
    let ran = run_steps(machine, options, &context, &mut running, &mut windows).await;
    // Whatever it was that ended the build: a step that still runs needs its window.
    while running.join_next().await.is_some() {}
    let troubles = windows.finish().await;
    ran.map(|ended| Ended { troubles, ..ended })
}

type Step = (usize, RecipeId, f64, StepEnd);

async fn run_steps(
    machine: &mut Machine<'_>,
    options: &Options,
    context: &Context,
    running: &mut JoinSet<Step>,
    windows: &mut Windows,
) -> Result<Ended, StoreError> {
    let (store, events, cancel) = (&context.store, &context.events, &context.cancel);
    let mut ended = Ended::default();
    // Those of them that wait for GPUs, or have them.
    let mut on_gpus: HashSet<usize> = HashSet::new();
    // Nodes that have a recipe which is being run already: they look again when it has ended.
    let mut same: HashMap<RecipeId, Vec<usize>> = HashMap::new();
    // Whoever comes later with a recipe that made nothing would only fail the same way.
    let mut failures: HashMap<RecipeId, (String, Option<String>)> = HashMap::new();
    let mut failed = false;
    let mut broken = None;
    loop {
        while !context.cancelled() && broken.is_none() && (!failed || options.keep_going) {
            let slot = running.len() - on_gpus.len() < options.jobs.max(1);
            let gpus = on_gpus.len() < MOST_ON_GPUS;
            let fits = |spec: &NodeSpec| if asks_for_a_gpu(spec) { gpus } else { slot };
            let Some(job) = machine.next_job_where(fits) else { break };
            if let Some((error, hint)) = failures.get(&job.recipe.id).cloned() {
                machine.failed(job.id, error, hint)?;
                continue;
            }
            if let Some(waiting) = same.get_mut(&job.recipe.id) {
                waiting.push(job.id);
                continue;
            }
            same.insert(job.recipe.id, Vec::new());
            windows.begins(job.id, &job.spec);
            if asks_for_a_gpu(&job.spec) {
                on_gpus.insert(job.id);
            }
            let context = context.clone();
            running.spawn_blocking(move || {
                let begun = std::time::Instant::now();
                // A panic is a bug of ours; it must not end the other steps, nor be taken for success.
                let end = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| execute(&context, &job)));
                let end = end.unwrap_or_else(|_| StepEnd::Failed {
                    error: "internal error: the step panicked".to_owned(),
                    hint: Some("please report this, with the lines above".to_owned()),
                });
                (job.id, job.recipe.id, begun.elapsed().as_secs_f64(), end)
            });
        }
        let Some(done) = running.join_next().await else { break };
        let (id, recipe, seconds, end) = match done {
            Ok(d) => d,
            Err(_) => break,
        };
        ended.seconds.insert(id, seconds);
        on_gpus.remove(&id);
        match end {
            StepEnd::Built(run) => machine.succeeded(id, run, true)?,
            StepEnd::Reused(run) => machine.succeeded(id, run, false)?,
            StepEnd::Failed { error, hint } => {
                failed = true;
                failures.insert(recipe, (error.clone(), hint.clone()));
                for waiting in same.remove(&recipe).unwrap_or_default() {
                    machine.failed(waiting, error.clone(), hint.clone())?;
                }
                machine.failed(id, error, hint)?;
            }
            StepEnd::Cancelled => {
                ended.interrupted = true;
                ended.stopped.insert(id);
                cancel.store(true, Ordering::Relaxed);
                machine.put_back(id);
            }
            StepEnd::Broken(e) => {
                broken = Some(e);
                machine.put_back(id);
            }
        }
        for waiting in same.remove(&recipe).unwrap_or_default() {
            machine.put_back(waiting);
        }
        windows.ended(id, machine);
        for line in store.take_notes() {
            let _ = events.send(Event::Notice(line));
        }
    }
    ended.interrupted |= context.cancelled();
    match broken {
        Some(e) => Err(e),
        None => Ok(ended),
    }
}
