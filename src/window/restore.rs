//! Bringing neighbours back: after a step, and after a crash.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::engine::labels::WINDOW;
use crate::engine::neighbour::{Health, Seen};
use crate::engine::{Engine, EngineError};
use crate::window::intent::{Intent, Neighbour};
use crate::window::open::{Held, point};
use crate::window::{Cancelled, LOOK, Tell, WindowError, engine_error, locks};

/// A neighbour that did not come back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sick {
    /// Its name.
    pub name: String,
    /// The window that it was stopped for.
    pub window: String,
    /// What is wrong.
    pub why: String,
    /// The last lines that it wrote.
    pub lines: Vec<String>,
}

impl std::fmt::Display for Sick {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} was stopped for the window `{}` and did not come back: {}", self.name, self.window, self.why)?;
        if !self.lines.is_empty() {
            f.write_str("; its last lines:")?;
        }
        self.lines.iter().try_for_each(|l| write!(f, "\n    {l}"))
    }
}

/// What became of the neighbours of a window.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Brought {
    /// Those that are back.
    pub back: Vec<String>,
    /// Those that others need stopped, who will bring them back.
    pub left_to_others: Vec<String>,
    /// Those that wait until nobody needs them stopped.
    pub waiting: Vec<String>,
    /// Those that did not come back.
    pub sick: Vec<Sick>,
}

impl Brought {
    pub(super) fn result(self) -> Result<(), WindowError> {
        if self.sick.is_empty() { Ok(()) } else { Err(WindowError::Sick { sick: self.sick }) }
    }
}

/// Where nobody else owes a neighbour that somebody needs stopped: whether to wait for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// As long as it takes.
    UntilItsTurn,
    /// Not at all: the intent stays.
    None,
}

// How long what a step held may take to be free.
const MEMORY: Duration = Duration::from_secs(120);
// One without a check is well when it has run for so long.
const STEADY: Duration = Duration::from_secs(3);
const LAST_LINES: usize = 20;

/// Does what an intent says, then takes it back; it stays where something could not be done that may be possible later.
/// `held` are the locks of the window's own process. Whoever calls this holds the window's own lock. Errors: the engine
/// does not answer.
pub(super) fn bring_back(
    engine: &Engine,
    intent: &Intent,
    mut held: Vec<Held>,
    patience: Patience,
    tell: Tell<'_>,
    cancelled: Cancelled<'_>,
) -> Result<Brought, WindowError> {
    let window = intent.window.as_str();
    if intent.neighbours.iter().any(|n| n.was_running) {
        end_steps(engine, intent, tell).map_err(engine_error(window))?;
    }
    let mut brought = Brought::default();
    let mut unfinished = false;
    for n in intent.neighbours.iter().rev() {
        let own = held.iter().position(|h| h.name == n.name).map(|i| held.remove(i));
        if !n.was_running {
            continue;
        }
        match give_back(engine, intent, n, own, patience, tell)? {
            Given::ToOthers => {
                tell(&format!("{} stays stopped: another window needs it so, and will bring it back", n.name));
                brought.left_to_others.push(n.name.clone());
            }
            Given::NotYet => {
                tell(&format!("{} stays stopped as long as another window needs it so", n.name));
                brought.waiting.push(n.name.clone());
                unfinished = true;
            }
            Given::Gone => brought.sick.push(sick(engine, intent, n, "it was removed meanwhile".to_owned())),
            Given::Refused(said) => {
                brought.sick.push(sick(engine, intent, n, said));
                unfinished = true;
            }
            Given::Runs { begun, started_now } => match until_well(engine, intent, n, begun, started_now, cancelled)? {
                Ok(()) => brought.back.push(n.name.clone()),
                Err(why) => brought.sick.push(sick(engine, intent, n, why)),
            },
        }
    }
    if !unfinished {
        intent.remove()?;
    }
    Ok(brought)
}

fn sick(engine: &Engine, intent: &Intent, n: &Neighbour, why: String) -> Sick {
    let lines = engine.last_lines(&n.name, LAST_LINES);
    Sick { name: n.name.clone(), window: intent.window.clone(), why, lines }
}

// A step whose client was killed may still run, and hold the memory that the neighbours need.
fn end_steps(engine: &Engine, intent: &Intent, tell: Tell<'_>) -> Result<(), EngineError> {
    let left = engine.containers_with(&format!("{WINDOW}={}", intent.id))?;
    let mut pids = Vec::new();
    for c in &left {
        tell(&format!("ending the step {} that is left of the window {}", &c.id[..c.id.len().min(12)], intent.window));
        pids.extend(engine.processes_of(&c.id));
        engine.remove(&c.id)?;
    }
    if left.is_empty() {
        return Ok(());
    }
    let begun = Instant::now();
    loop {
        let gpus = crate::gpu::inventory().gpus;
        let ours = |p: &&crate::gpu::GpuProcess| {
            pids.contains(&p.pid) || left.iter().any(|c| p.container.as_ref() == Some(&c.id))
        };
        let Some(holder) = gpus.iter().flat_map(|g| &g.processes).find(ours) else { return Ok(()) };
        if begun.elapsed() > MEMORY {
            // Their neighbours may find too little; that will be told of them.
            tell(&format!("{holder}, of the window's own step, still holds memory"));
            return Ok(());
        }
        std::thread::sleep(LOOK);
    }
}

enum Given {
    Runs { begun: Instant, started_now: bool },
    ToOthers,
    NotYet,
    Gone,
    Refused(String),
}

fn give_back(
    engine: &Engine,
    intent: &Intent,
    n: &Neighbour,
    own: Option<Held>,
    patience: Patience,
    tell: Tell<'_>,
) -> Result<Given, WindowError> {
    let what = format!("bringing {} back", n.name);
    let paths = locks::of(&intent.engine_id, &n.name)?;
    let mut own = own;
    let mut told = false;
    loop {
        // Never cancelled: whoever was stopped comes back.
        let Some(_gate) = locks::gate(&what, tell, &|| false)? else { continue };
        if let Some(h) = own.take() {
            drop(h.users);
            drop(h.owed);
        }
        if let Some(_alone) = locks::alone(&paths.users, &what)? {
            return start(engine, intent, n, tell);
        }
        if locks::alone(&paths.owed, &what)?.is_none() {
            return Ok(Given::ToOthers);
        }
        if patience == Patience::None {
            return Ok(Given::NotYet);
        }
        drop(_gate);
        if !std::mem::replace(&mut told, true) {
            tell(&format!("waiting until no other window needs {} stopped", n.name));
        }
        std::thread::sleep(LOOK);
    }
}

fn start(engine: &Engine, intent: &Intent, n: &Neighbour, tell: Tell<'_>) -> Result<Given, WindowError> {
    let window = intent.window.as_str();
    let Some(seen) = by_id_or_name(engine, n).map_err(engine_error(window))? else { return Ok(Given::Gone) };
    let begun = Instant::now();
    if seen.running {
        return Ok(Given::Runs { begun, started_now: false });
    }
    tell(&format!("bringing {} back", n.name));
    point("start", &n.name)?;
    match engine.start(&seen.id) {
        Ok(()) => {
            point("started", &n.name)?;
            Ok(Given::Runs { begun, started_now: true })
        }
        Err(e @ EngineError::Refused { .. }) => Ok(Given::Refused(e.to_string())),
        Err(e) => Err(engine_error(window)(e)),
    }
}

// Somebody may have made it anew meanwhile, under its name.
fn by_id_or_name(engine: &Engine, n: &Neighbour) -> Result<Option<Seen>, EngineError> {
    match engine.see(&n.id)? {
        Some(seen) => Ok(Some(seen)),
        None => engine.see(&n.name),
    }
}

// Errors: the engine's. The inner one says why the neighbour is not well.
fn until_well(
    engine: &Engine,
    intent: &Intent,
    n: &Neighbour,
    begun: Instant,
    started_now: bool,
    cancelled: Cancelled<'_>,
) -> Result<Result<(), String>, WindowError> {
    let limit = Duration::from_secs(intent.healthy_seconds.into());
    let mut since: Option<(String, Instant)> = None;
    loop {
        let Some(seen) = by_id_or_name(engine, n).map_err(engine_error(&intent.window))? else {
            return Ok(Err("it was removed meanwhile".to_owned()));
        };
        if seen.running && !seen.restarting {
            // One that keeps ending and being started again is not steady.
            let steady = match &since {
                Some((start, t)) if *start == seen.started_at => t.elapsed() >= STEADY,
                _ => {
                    since = Some((seen.started_at.clone(), Instant::now()));
                    false
                }
            };
            match seen.health.filter(|_| !n.was_unhealthy) {
                Some(Health::Healthy) => return Ok(Ok(())),
                None if steady || !started_now => return Ok(Ok(())),
                _ => {}
            }
        } else if !seen.restarting {
            let users = locks::of(&intent.engine_id, &n.name)?.users;
            if locks::alone(&users, "looking whether it is needed stopped")?.is_none() {
                // Somebody else's window has opened meanwhile.
                return Ok(Ok(()));
            }
            return Ok(Err(format!("it ended with code {}", seen.exit_code)));
        }
        if cancelled() {
            return Ok(Ok(()));
        }
        if begun.elapsed() > limit {
            let how = match seen.health {
                Some(Health::Unhealthy) => "it is unhealthy",
                Some(_) => "it is not yet healthy",
                None => "it keeps ending and starting",
            };
            return Ok(Err(format!("{how} after {} s", limit.as_secs())));
        }
        std::thread::sleep(LOOK);
    }
}
