//! One window for steps that follow each other: it stays open from the first to the last of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::engine::Engine;
use crate::graph::WindowSpec;
use crate::window::{Cancelled, OpenWindow, Purpose, Tell, WindowError, open};

/// Keeps the windows of a build. Steps [`enter`](WindowKeeper::enter) and [`leave`](WindowKeeper::leave);
/// whoever knows what runs next closes what is idle ([`close_unless`](WindowKeeper::close_unless)) and, at the end,
/// everything ([`finish`](WindowKeeper::finish)).
#[derive(Default)]
pub struct WindowKeeper {
    slots: Mutex<BTreeMap<String, Arc<Mutex<Slot>>>>,
}

#[derive(Default)]
struct Slot {
    open: Option<OpenWindow>,
    steps: usize,
}

// A step that panicked left no slot half-changed.
fn locked<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WindowKeeper {
    /// A keeper of nothing.
    pub fn new() -> Self {
        Self::default()
    }

    fn slot(&self, name: &str) -> Arc<Mutex<Slot>> {
        Arc::clone(locked(&self.slots).entry(name.to_owned()).or_default())
    }

    /// Opens the window for a step, where it is not open yet; the id is what the step's container is labelled with. Each
    /// enter that gave an id must be followed by one leave. `None` when cancelled. Errors: as [`open`](fn@open).
    pub fn enter(
        &self,
        spec: &WindowSpec,
        engine: &Arc<Engine>,
        purpose: &Purpose,
        tell: Tell<'_>,
        cancelled: Cancelled<'_>,
    ) -> Result<Option<String>, WindowError> {
        let slot = self.slot(spec.name.as_str());
        let mut slot = locked(&slot);
        if slot.open.is_none() {
            slot.open = open(spec, engine, purpose, tell, cancelled)?;
        }
        let Some(id) = slot.open.as_ref().map(|w| w.id().to_owned()) else { return Ok(None) };
        slot.steps += 1;
        Ok(Some(id))
    }

    /// A step needs the window no more; it stays open.
    pub fn leave(&self, name: &str) {
        let slot = self.slot(name);
        let mut slot = locked(&slot);
        slot.steps = slot.steps.saturating_sub(1);
    }

    /// Closes the windows that no step is in, but for those of which `wanted` says that a step is about to enter. It
    /// takes as long as the neighbours need to be well. Errors: one for each window that did not close as it should.
    pub fn close_unless(
        &self,
        wanted: &dyn Fn(&str) -> bool,
        tell: Tell<'_>,
        cancelled: Cancelled<'_>,
    ) -> Vec<WindowError> {
        let all: Vec<(String, Arc<Mutex<Slot>>)> =
            locked(&self.slots).iter().map(|(n, s)| (n.clone(), Arc::clone(s))).collect();
        let mut errors = Vec::new();
        for (name, slot) in all {
            // Held until it is closed: whoever enters meanwhile opens it anew.
            let mut slot = locked(&slot);
            if slot.steps == 0
                && !wanted(&name)
                && let Some(window) = slot.open.take()
            {
                errors.extend(window.close(tell, cancelled).err());
            }
        }
        errors
    }

    /// Closes every window. Errors: as [`close_unless`](WindowKeeper::close_unless).
    pub fn finish(&self, tell: Tell<'_>, cancelled: Cancelled<'_>) -> Vec<WindowError> {
        for slot in locked(&self.slots).values() {
            locked(slot).steps = 0;
        }
        self.close_unless(&|_| false, tell, cancelled)
    }
}
