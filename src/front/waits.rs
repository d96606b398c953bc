//! Who waits for whom, told while it lasts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::front::Project;
use crate::fsx::lock::Holder;
use crate::sched::{Event, Events};
use crate::store::Store;
use crate::store::holds::Listening;

/// Whom to tell of a wait, and what ends it.
pub(crate) struct Waits<'a> {
    events: &'a Events,
    cancel: &'a Arc<AtomicBool>,
    always: bool,
}

impl<'a> Waits<'a> {
    /// For a command that hears events and can be cancelled.
    pub(crate) fn new(events: &'a Events, cancel: &'a Arc<AtomicBool>) -> Self {
        Self { events, cancel, always: false }
    }

    /// The same where what is waited for is done even if the command is being stopped: what was built counts.
    pub(crate) fn whatever_happens(events: &'a Events, cancel: &'a Arc<AtomicBool>) -> Self {
        Self { events, cancel, always: true }
    }

    pub(crate) fn cancelled(&self) -> bool {
        !self.always && self.cancel.load(Ordering::Relaxed)
    }

    /// Says that this process waits, and for whom.
    pub(crate) fn tell(&self, holder: Option<&Holder>, why: &str) {
        let _ = self.events.send(Event::Notice(line(holder, why)));
    }
}

/// `waiting for process 4711 on node-1 (gc, since …): …`
pub(crate) fn line(holder: Option<&Holder>, why: &str) -> String {
    let whom = holder.map_or_else(|| "another process, which has not said who it is".to_owned(), Holder::to_string);
    format!("waiting for {whom}: {why}")
}

/// While it lives, whoever waits for a collector's sweep of this store says so, and can be stopped.
pub(crate) fn listen<'s>(store: &'s Store, events: &Events, cancel: &Arc<AtomicBool>) -> Listening<'s> {
    let events = events.clone();
    let cancel = Arc::clone(cancel);
    store.listen(
        move |holder| drop(events.send(Event::Notice(line(holder, "it removes what nobody needs")))),
        move || cancel.load(Ordering::Relaxed),
    )
}

impl Project {
    /// As [`listen`], of the project's store.
    pub(crate) fn listen(&self, events: &Events, cancel: &Arc<AtomicBool>) -> Listening<'_> {
        listen(&self.store, events, cancel)
    }
}
