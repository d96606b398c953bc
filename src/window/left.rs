//! What crashes left open: shown, and closed.

use serde::Serialize;

use crate::engine::{Address, Engine};
use crate::fsx::FsError;
use crate::host;
use crate::window::intent::{Intent, Neighbour, Record, records};
use crate::window::restore::{Brought, Patience, bring_back};
use crate::window::{Cancelled, Tell, WindowError, engine_error, locks};

/// How a window stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Its process runs.
    Open,
    /// Its process is gone: its neighbours are still to be brought back.
    Left,
    /// It was opened on another host.
    Elsewhere,
    /// Its intent can't be read.
    Damaged,
}

/// A window that is written down.
#[derive(Debug, Clone, Serialize)]
pub struct LeftWindow {
    /// How it stands.
    pub state: State,
    /// The file.
    #[serde(serialize_with = "crate::fsx::path_text")]
    pub path: std::path::PathBuf,
    /// What it says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intent: Option<Intent>,
    /// What is wrong with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
}

impl LeftWindow {
    /// The neighbours that are to be brought back.
    pub fn owed(&self) -> impl Iterator<Item = &Neighbour> {
        self.intent.iter().flat_map(|i| &i.neighbours).filter(|n| n.was_running)
    }
}

fn state(record: &Record) -> Result<State, FsError> {
    Ok(match &record.intent {
        Err(_) => State::Damaged,
        Ok(i) if i.process.host != host::name() => State::Elsewhere,
        // The window's own lock is what counts; a process of its number alone may be another namespace's.
        Ok(i) if i.process.alive() || locks::lives(&i.id)? => State::Open,
        Ok(_) => State::Left,
    })
}

/// Whether anything is written down that a crash may have left: one look at a folder.
pub fn any_left() -> bool {
    records().is_ok_and(|all| all.iter().any(|r| state(r).is_ok_and(|s| matches!(s, State::Left | State::Damaged))))
}

/// All windows of this user that are written down. Errors: the host's folders.
pub fn status() -> Result<Vec<LeftWindow>, FsError> {
    let one = |r: Record| {
        let state = state(&r)?;
        let damage = r.intent.as_ref().err().cloned();
        Ok(LeftWindow { state, path: r.path, intent: r.intent.ok(), damage })
    };
    records()?.into_iter().map(one).collect()
}

/// What was found left, and done.
#[derive(Debug, Default)]
pub struct Left {
    /// By window: what became of its neighbours.
    pub closed: Vec<(Intent, Brought)>,
    /// What could not be done.
    pub errors: Vec<WindowError>,
}

impl Left {
    /// Whether everything is as it was before the windows.
    pub fn is_well(&self) -> bool {
        self.errors.is_empty()
    }
}

/// Closes every window of this user whose process is gone. A neighbour that somebody else still needs stopped is left
/// to them, or to the next command. What can't be done is among the errors, and its intent stays.
pub fn restore_left(tell: Tell<'_>, cancelled: Cancelled<'_>) -> Left {
    let mut left = Left::default();
    let all = match records() {
        Ok(all) => all,
        Err(e) => {
            left.errors.push(e.into());
            return left;
        }
    };
    for record in all {
        match state(&record) {
            Ok(State::Left) => {}
            Ok(State::Damaged) => {
                let what = record.intent.err().unwrap_or_default();
                left.errors.push(WindowError::Damaged { path: record.path, what });
                continue;
            }
            Ok(State::Open | State::Elsewhere) => continue,
            Err(e) => {
                left.errors.push(e.into());
                continue;
            }
        }
        match close(&record, tell, cancelled) {
            Ok(None) => {}
            Ok(Some((intent, mut brought))) => {
                let sick = std::mem::take(&mut brought.sick);
                if !sick.is_empty() {
                    left.errors.push(WindowError::Sick { sick });
                }
                left.closed.push((intent, brought));
            }
            Err(e) => left.errors.push(e),
        }
    }
    left
}

// `None` where somebody else has done it, or is doing it.
fn close(record: &Record, tell: Tell<'_>, cancelled: Cancelled<'_>) -> Result<Option<(Intent, Brought)>, WindowError> {
    let Ok(found) = &record.intent else { return Ok(None) };
    let Some(_life) = locks::life(&found.id, "bringing back what a crash left stopped")? else { return Ok(None) };
    let intent = match Intent::read(&record.path)? {
        Some(Ok(intent)) => intent,
        None => return Ok(None),
        Some(Err(what)) => return Err(WindowError::Damaged { path: record.path.clone(), what }),
    };
    let window = intent.window.clone();
    let address: Address =
        intent.engine.parse().map_err(|e: crate::engine::BadAddress| engine_error(&window)(e.into()))?;
    tell(&format!("the window {window} was left open by {}: its containers are brought back", intent.process));
    let engine = Engine::connect(&address).map_err(engine_error(&window))?;
    if engine.identity().map_err(engine_error(&window))? != intent.engine_id {
        return Err(WindowError::OtherEngine { window, address: address.to_string() });
    }
    let brought = bring_back(&engine, &intent, Vec::new(), Patience::None, tell, cancelled)?;
    Ok(Some((intent, brought)))
}
