//! One step, from the lock of its recipe to the record of its run.
//!
//! 1. Take the recipe's lock; whoever held it may have made the tree: look again.
//! 2. An empty scratch folder. A builtin runs here, a process in the executor.
//! 3. Everything that it read must still be what was hashed.
//! 4. Publish: hash, move in, make durable. Then, and only then, record the run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::digest::TreeId;
use crate::fsx;
use crate::fsx::lock::host_name;
use crate::kinds::{Action, Input, Output, OutputEntry, ProcessStep, Progress, Report, Step, StepError};
use crate::model::run::{Isolation, Outcome, RunRecord};
use crate::plan::Job;
use crate::sched::event::{End, Event, Events};
use crate::sched::log::{compressed, write_log};
use crate::store::{Store, StoreError, collect};

/// What a step runs in.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) store: Arc<Store>,
    pub(crate) events: Events,
    pub(crate) cancel: Arc<AtomicBool>,
    pub(crate) processes: Arc<dyn super::Processes>,
    pub(crate) keep_failed: bool,
}

impl Context {
    pub(crate) fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    pub(super) fn close_windows(&self, name: Option<&str>) -> Vec<super::Trouble> {
        let tell = |line: &str| self.tell(Event::Notice(line.to_owned()));
        self.processes.close_windows(name, &tell, &|| self.cancelled())
    }

    fn tell(&self, event: Event) {
        // Nobody may be listening any more; the build goes on.
        let _ = self.events.send(event);
    }
}

/// How a step came out.
pub(crate) enum StepEnd {
    Built(RunRecord),
    Reused(RunRecord),
    Failed {
        error: String,
        hint: Option<String>,
    },
    Cancelled,
    /// The store itself is damaged: nothing more is started.
    Broken(StoreError),
}

struct NodeProgress<'a> {
    context: &'a Context,
    node: &'a str,
    log: std::sync::Mutex<String>,
}

impl Progress for NodeProgress<'_> {
    fn bytes(&self, done: u64, total: u64) {
        self.context.tell(Event::Progress { node: self.node.to_owned(), done, total });
    }

    fn note(&self, line: &str) {
        if let Ok(mut log) = self.log.lock() {
            log.push_str(line);
            log.push('\n');
        }
        self.context.tell(Event::Line { node: self.node.to_owned(), line: line.to_owned() });
    }

    fn cancelled(&self) -> bool {
        self.context.cancelled()
    }
}

// Why a step made nothing, with the log's end where it has one.
struct Failure {
    error: String,
    hint: Option<String>,
    tail: Vec<String>,
}

enum Stop {
    Failure(Failure),
    Cancelled,
    Broken(StoreError),
}

impl From<StoreError> for Stop {
    fn from(e: StoreError) -> Self {
        match e {
            StoreError::Cancelled => Stop::Cancelled,
            e if e.is_damage() => Stop::Broken(e),
            e => Stop::Failure(Failure { hint: e.hint(), error: e.to_string(), tail: Vec::new() }),
        }
    }
}

impl Stop {
    // Of a step of this store.
    fn of(e: StepError, store: &Path) -> Self {
        match e {
            StepError::Cancelled => Stop::Cancelled,
            StepError::Invalid { what, hint } => Stop::Failure(Failure { error: what, hint, tail: Vec::new() }),
            StepError::Io { ref source, .. } => {
                // Only what a step writes can fill a disk, and that is in its scratch folder there.
                let hint = fsx::hint_if_full(source, store);
                Stop::Failure(Failure { error: e.to_string(), hint, tail: Vec::new() })
            }
        }
    }
}

/// What a step made, before it is recorded.
struct Made {
    record: RunRecord,
    written_bytes: u64,
    notes: Vec<String>,
}

/// Runs a step to its end. Never panics the build: what goes wrong comes back.
pub(crate) fn execute(context: &Context, job: &Job) -> StepEnd {
    let node = job.node.as_str();
    let kind = job.spec.kind.name();
    let begun = Instant::now();
    let finish = |end: End| {
        context.tell(Event::Finished { node: node.to_owned(), kind, end, seconds: begun.elapsed().as_secs_f64() });
    };
    let mut busy = |holder: Option<&crate::fsx::lock::Holder>| {
        context.tell(Event::Waiting { node: node.to_owned(), holder: holder.cloned() });
    };
    let lock = context.store.lock_recipe(job.recipe.id, node, &mut busy, &|| context.cancelled());
    let _lock = match lock {
        Ok(Some(l)) => l,
        Ok(None) => {
            finish(End::Cancelled);
            return StepEnd::Cancelled;
        }
        Err(e) => return StepEnd::Broken(e),
    };
    match made_meanwhile(context, job) {
        Ok(Some(run)) => {
            finish(End::Reused);
            return StepEnd::Reused(run);
        }
        Ok(None) => {}
        Err(e) => return StepEnd::Broken(e),
    }
    context.tell(Event::Started { node: node.to_owned(), kind, reasons: job.reasons.clone() });
    let log_name = format!("{}-{}.log", &job.recipe.id.hex()[..16], fsx::stat::now_ns());
    let log_path = context.store.log_path(&log_name);
    let started = jiff::Timestamp::now().to_string();
    let progress = NodeProgress { context, node, log: std::sync::Mutex::default() };
    let attempt = attempt(context, job, &progress, &log_path, &started, begun);
    let text = progress.log.lock().map(|l| l.clone()).unwrap_or_default();
    let log = write_log(&text, &log_path).then_some(log_name);
    match attempt {
        Ok(mut made) => {
            made.record.log = log.map(|name| compressed(&log_path, name));
            made.record.seconds = begun.elapsed().as_secs_f64();
            let verdict = made.record.verdict();
            match context.store.record(made.record) {
                Ok(run) if job.pinned.is_some_and(|pin| run.tree() != Some(pin)) => {
                    fail(&finish, Stop::Failure(not_the_pinned(job, &run)), None)
                }
                Ok(run) => {
                    finish(End::Built { written_bytes: made.written_bytes, verdict, notes: made.notes });
                    StepEnd::Built(run)
                }
                Err(e) => fail(&finish, Stop::from(e), None),
            }
        }
        Err(Stop::Failure(f)) => {
            let outcome = Outcome::Failure { error: f.error.clone() };
            let mut record = blank_record(job, outcome, job.at_least, &started, begun);
            let shown = log.as_ref().map(|_| log_path.clone());
            record.log = log;
            // A failure that can't be recorded (a full disk) is still told.
            let _ = context.store.put_recipe(&job.recipe).and_then(|()| context.store.record(record));
            fail(&finish, Stop::Failure(f), shown)
        }
        Err(stop) => fail(&finish, stop, None),
    }
}

fn fail(finish: &dyn Fn(End), stop: Stop, log: Option<PathBuf>) -> StepEnd {
    match stop {
        Stop::Cancelled => {
            finish(End::Cancelled);
            StepEnd::Cancelled
        }
        Stop::Broken(e) => StepEnd::Broken(e),
        Stop::Failure(f) => {
            finish(End::Failed { error: f.error.clone(), hint: f.hint.clone(), tail: f.tail, log });
            StepEnd::Failed { error: f.error, hint: f.hint }
        }
    }
}

// It stays recorded, so that it can be pinned in its turn; but nobody gets another tree than the one that is asked for.
fn not_the_pinned(job: &Job, run: &RunRecord) -> Failure {
    let short = |t: Option<TreeId>| t.map_or_else(|| "nothing".to_owned(), |t| t.short());
    let (pinned, made, node) = (short(job.pinned), short(run.tree()), &job.node);
    Failure {
        error: format!("it is pinned to {pinned}, which is not there any more, and running it again made {made}"),
        hint: Some(format!(
            "`graftwerk pin {node} {made}` takes the new one, `graftwerk pin {node} --remove` the earliest that is there"
        )),
        tail: Vec::new(),
    }
}

// Another process may have held the lock because it was building this very recipe.
fn made_meanwhile(context: &Context, job: &Job) -> Result<Option<RunRecord>, StoreError> {
    let Some(run) = context.store.realisation(job.recipe.id, job.at_least, job.pinned, true)? else { return Ok(None) };
    let Some(tree) = run.tree() else { return Ok(None) };
    let Some(tree) = context.store.tree(tree)? else { return Ok(None) };
    Ok(context.store.lacking(&tree, job.spec.kind.closed())?.is_empty().then_some(run))
}

fn blank_record(job: &Job, outcome: Outcome, isolation: Isolation, started: &str, begun: Instant) -> RunRecord {
    RunRecord {
        recipe: job.recipe.id,
        seq: 0,
        outcome,
        isolation,
        started: started.to_owned(),
        seconds: begun.elapsed().as_secs_f64(),
        host: host_name(),
        node: job.node.to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        reasons: job.reasons.iter().filter_map(|r| serde_json::to_value(r).ok()).collect(),
        facts: std::collections::BTreeMap::new(),
        log: None,
    }
}

fn attempt(
    context: &Context,
    job: &Job,
    progress: &NodeProgress<'_>,
    log: &Path,
    started: &str,
    begun: Instant,
) -> Result<Made, Stop> {
    let scratch = context.store.scratch()?;
    if let Err(stop) = room_for(context, job, &scratch) {
        let _ = fsx::remove_tree(&scratch);
        return Err(stop);
    }
    let result = attempt_in(context, job, progress, log, &scratch, started, begun);
    if matches!(result, Err(Stop::Failure(_))) && context.keep_failed {
        match context.store.keep_failed(&scratch, job.node.as_str()) {
            Ok(kept) => {
                context.tell(Event::Notice(format!("{}: the scratch folder is kept at {}", job.node, kept.display())))
            }
            Err(e) => context.tell(Event::Notice(format!("{}: the scratch folder could not be kept: {e}", job.node))),
        }
    }
    // What can't be removed now is swept by a later command.
    let _ = fsx::remove_tree(&scratch);
    result
}

// Hours of work are not begun where their result can't be kept.
fn room_for(context: &Context, job: &Job, scratch: &Path) -> Result<(), Stop> {
    let Some(space) = job.space(&context.store) else { return Ok(()) };
    let free = fsx::free_bytes(scratch).map_err(StoreError::from)?;
    let most = space.writes.saturating_add(space.copies);
    if most <= free || space.writes <= free && fsx::shares_extents(scratch).unwrap_or(false) {
        return Ok(());
    }
    let dir = context.store.dir().display();
    Err(Stop::Failure(Failure {
        error: format!("the step needs {most} bytes in {dir}, and {free} are free there: it was not begun"),
        hint: Some(
            "make room there, or pass --store with a folder of another file system, then build again".to_owned(),
        ),
        tail: Vec::new(),
    }))
}

fn attempt_in(
    context: &Context,
    job: &Job,
    progress: &NodeProgress<'_>,
    log: &Path,
    scratch: &Path,
    started: &str,
    begun: Instant,
) -> Result<Made, Stop> {
    let out_dir = scratch.join("out");
    fsx::create_dir(&out_dir).map_err(StoreError::from)?;
    let step = Step { params: &job.spec.params, inputs: &job.inputs, progress };
    let mut where_it_ran = std::collections::BTreeMap::new();
    let (output, mut report, isolation) = match &job.action {
        Action::Builtin => {
            let mut output = Output::new(out_dir);
            let report = job.spec.kind.run(&step, &mut output).map_err(|e| Stop::of(e, context.store.dir()))?;
            (output, report, Isolation::Builtin)
        }
        Action::Process(process) => {
            let ran = run_process(context, job, process, &out_dir, scratch, log)?;
            let output = collect(&out_dir)?;
            where_it_ran = ran.facts;
            (output, Report::default(), ran.isolation)
        }
    };
    if context.cancelled() {
        return Err(Stop::Cancelled);
    }
    inputs_unchanged(context, job)?;
    let total = written_bytes(&output);
    let mut hashed = 0;
    let mut on_bytes = |n: u64| {
        hashed += n;
        context.tell(Event::Progress { node: job.node.to_string(), done: hashed, total });
    };
    let published = context.store.publish(&output, job.spec.kind.closed(), &mut on_bytes, &|| context.cancelled())?;
    if matches!(job.action, Action::Process(_)) {
        let files: Arc<dyn crate::kinds::InputFiles> = Arc::<Store>::clone(&context.store);
        let out = Input {
            alias: crate::kinds::input::OUTPUT.to_owned(),
            tree: Arc::new(published.tree.clone()),
            files,
            single_file: false,
            at: None,
        };
        report = job.spec.kind.accept(&step, &out).map_err(|e| Stop::of(e, context.store.dir()))?;
    }
    for note in &report.notes {
        progress.note(note);
    }
    inputs_unchanged(context, job)?;
    context.store.put_recipe(&job.recipe)?;
    let outcome = Outcome::Success { tree: published.id, verdict: report.verdict };
    let mut record = blank_record(job, outcome, isolation, started, begun);
    record.facts = report.facts;
    record.facts.extend(where_it_ran);
    Ok(Made { record, written_bytes: published.written_bytes, notes: report.notes })
}

// What is about to be hashed and moved in.
fn written_bytes(output: &Output) -> u64 {
    let written = output.entries().iter().filter(|(_, e)| matches!(e, OutputEntry::Written { .. }));
    written.filter_map(|(p, _)| std::fs::metadata(output.scratch().join(p.as_path())).ok()).map(|m| m.len()).sum()
}

// A run counts only if every source that it read still has the stat that it had at hashing.
fn inputs_unchanged(context: &Context, job: &Job) -> Result<(), Stop> {
    let process = matches!(job.action, Action::Process(_));
    for (alias, input) in &job.inputs {
        // A process of root's, or one without isolation, can get at the store's own files.
        let absent =
            if process { context.store.absent_now(&input.tree)? } else { context.store.absent(&input.tree)? };
        if let Some(path) = absent.first() {
            return Err(Stop::Failure(Failure {
                error: format!("{path} of the input `{alias}` changed while the step ran; nothing of it was recorded"),
                hint: Some("let whatever writes it finish, then build again".to_owned()),
                tail: Vec::new(),
            }));
        }
    }
    Ok(())
}

fn run_process(
    context: &Context,
    job: &Job,
    process: &ProcessStep,
    out_dir: &Path,
    scratch: &Path,
    log: &Path,
) -> Result<super::Ran, Stop> {
    let node = job.node.to_string();
    let on_line = |line: &str| context.tell(Event::Line { node: node.clone(), line: line.to_owned() });
    let request = super::ProcessRequest {
        node: &node,
        recipe: job.recipe.id,
        store: context.store.dir(),
        image: job.image,
        step: process,
        inputs: &job.inputs,
        tools: &job.tools,
        out: out_dir,
        scratch,
        log,
        at_least: job.at_least,
        on_line: &on_line,
        notice: &|line| context.tell(Event::Notice(line.to_owned())),
        waiting: &|holder| context.tell(Event::Waiting { node: node.clone(), holder: holder.cloned() }),
        cancelled: &|| context.cancelled(),
    };
    match context.processes.run(&request) {
        Ok(ran) => Ok(ran),
        Err(super::ProcessFailure::Cancelled) => Err(Stop::Cancelled),
        Err(super::ProcessFailure::Failed { error, hint, tail }) => Err(Stop::Failure(Failure { error, hint, tail })),
        Err(super::ProcessFailure::Store(e)) => Err(Stop::from(e)),
    }
}
