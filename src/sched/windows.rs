//! When windows close: as soon as no step is in one and no ready step is about to enter it, and all of them at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::task::JoinSet;

use crate::canon::Value;
use crate::graph::NodeSpec;
use crate::plan::Machine;
use crate::sched::Trouble;
use crate::sched::step::Context;

/// The window that a node's step needs.
pub(super) fn window_of(spec: &NodeSpec) -> Option<&str> {
    match spec.params.get("window") {
        Some(Value::Str(name)) => Some(name),
        _ => None,
    }
}

/// Whether a node's step waits for a GPU: then it takes no slot of a processor.
pub(super) fn asks_for_a_gpu(spec: &NodeSpec) -> bool {
    matches!(spec.params.get("gpu"), Some(Value::Map(_)))
}

/// The windows of a build.
pub(super) struct Windows {
    // By running node.
    needed: BTreeMap<usize, String>,
    // That may be open.
    opened: BTreeSet<String>,
    // Neighbours take minutes to be well; other steps go on meanwhile.
    closing: JoinSet<Vec<Trouble>>,
    context: Context,
}

impl Windows {
    pub(super) fn new(context: &Context) -> Self {
        let (needed, opened) = (BTreeMap::new(), BTreeSet::new());
        Self { needed, opened, closing: JoinSet::new(), context: context.clone() }
    }

    pub(super) fn begins(&mut self, id: usize, spec: &NodeSpec) {
        if let Some(name) = window_of(spec) {
            self.needed.insert(id, name.to_owned());
            self.opened.insert(name.to_owned());
        }
    }

    /// A step has ended: what no other is in and none is about to enter closes.
    pub(super) fn ended(&mut self, id: usize, machine: &Machine<'_>) {
        if self.needed.remove(&id).is_none() {
            return;
        }
        let mut wanted: BTreeSet<&str> = self.needed.values().map(String::as_str).collect();
        // Nothing more is begun by a build that is being stopped.
        if !self.context.cancelled() {
            wanted.extend(machine.ready().filter_map(window_of));
        }
        let idle: Vec<String> = self.opened.iter().filter(|name| !wanted.contains(name.as_str())).cloned().collect();
        for name in idle {
            self.opened.remove(&name);
            let context = self.context.clone();
            self.closing.spawn_blocking(move || context.close_windows(Some(&name)));
        }
    }

    /// Closes everything, and waits for it. Comes back: what did not come back.
    pub(super) async fn finish(mut self) -> Vec<Trouble> {
        let context = Arc::new(self.context);
        self.closing.spawn_blocking(move || context.close_windows(None));
        self.closing.join_all().await.into_iter().flatten().collect()
    }
}
