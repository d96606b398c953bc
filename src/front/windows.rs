//! Windows that crashes left open: shown, and closed before anything else is done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use crate::front::{FrontError, Result};
use crate::sched::{Event, Events};
use crate::store::StoreError;
use crate::window::{self, LeftWindow};

/// What `window status` answers.
#[derive(Debug, Clone, Serialize)]
pub struct WindowsReport {
    /// Every window of this user that is open, or was left open.
    pub windows: Vec<LeftWindow>,
    /// Whether nothing was left open by a crash.
    pub ok: bool,
}

/// What became of a window that was left open.
#[derive(Debug, Clone, Serialize)]
pub struct RestoredWindow {
    /// Its name.
    pub window: String,
    /// Its id.
    pub id: String,
    /// What became of its containers.
    #[serde(flatten)]
    pub brought: window::Brought,
}

/// What could not be done for a window.
#[derive(Debug, Clone, Serialize)]
pub struct WindowFailure {
    /// What is wrong.
    pub error: String,
    /// What to do.
    pub hint: Option<String>,
}

/// What `window restore` answers.
#[derive(Debug, Clone, Serialize)]
pub struct RestoreReport {
    /// The windows that were left open.
    pub restored: Vec<RestoredWindow>,
    /// What could not be done.
    pub errors: Vec<WindowFailure>,
    /// Whether nothing went wrong.
    pub ok: bool,
}

/// The windows of this user. Errors: the host's folders.
pub fn windows() -> Result<WindowsReport> {
    let windows = window::status().map_err(|e| FrontError::Store(StoreError::from(e)))?;
    let ok = !windows.iter().any(|w| matches!(w.state, window::State::Left | window::State::Damaged));
    Ok(WindowsReport { windows, ok })
}

/// Closes every window that a crash left open, and says what could not be done. Where there is none, it costs a look at
/// a folder.
pub fn restore_windows(events: &Events, cancel: &Arc<AtomicBool>) -> RestoreReport {
    if !window::any_left() {
        return RestoreReport { restored: Vec::new(), errors: Vec::new(), ok: true };
    }
    let to = std::sync::Mutex::new(events.clone());
    let tell = |line: &str| {
        if let Ok(to) = to.lock() {
            let _ = to.send(Event::Notice(line.to_owned()));
        }
    };
    let left = window::restore_left(&tell, &|| cancel.load(Ordering::Relaxed));
    let ok = left.is_well();
    let restored = left.closed.into_iter().map(|(i, brought)| RestoredWindow { window: i.window, id: i.id, brought });
    let failure = |e: &window::WindowError| WindowFailure { error: e.to_string(), hint: e.hint() };
    RestoreReport { restored: restored.collect(), errors: left.errors.iter().map(failure).collect(), ok }
}
