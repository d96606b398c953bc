//! How much room a step needs, as far as that is known before it runs.

use std::collections::BTreeMap;

use crate::digest::TreeId;
use crate::graph::NodeSpec;
use crate::kinds::{Action, Input, Progress, Space, Step};
use crate::plan::machine::{Job, Machine, State};
use crate::store::{Presence, Store};

struct Silent;

impl Progress for Silent {
    fn bytes(&self, _: u64, _: u64) {}
    fn note(&self, _: &str) {}
    fn cancelled(&self) -> bool {
        false
    }
}

impl Machine<'_> {
    /// What each step needs that would run, in the order of [`Machine::report`]; `None` where that is not known.
    pub fn spaces(&self) -> Vec<Option<Space>> {
        let of = |id: usize| {
            let node = self.nodes.get(id)?;
            let p = node.prepared.as_ref()?;
            matches!(node.state, State::Needed | State::Ready)
                .then(|| space(&self.setting.store, &node.spec, &p.inputs, &p.action, self.last_tree(&node.spec)))?
        };
        (0..self.nodes.len()).map(of).collect()
    }

    pub(super) fn last_tree(&self, spec: &NodeSpec) -> Option<TreeId> {
        self.setting.roots.newest(spec.name.as_str()).map(|r| r.tree)
    }
}

impl Job {
    /// How much room it needs.
    pub fn space(&self, store: &Store) -> Option<Space> {
        space(store, &self.spec, &self.inputs, &self.action, self.last_tree)
    }
}

// A builtin says it of itself; a process will write about what it wrote last time. What can't be told (an input's table
// is not there any more) is told by the step itself when it runs.
fn space(
    store: &Store,
    spec: &NodeSpec,
    inputs: &BTreeMap<String, Input>,
    action: &Action,
    last: Option<TreeId>,
) -> Option<Space> {
    match action {
        Action::Process(_) => Some(Space::of_writes(store.tree(last?).ok()??.total_bytes())),
        Action::Builtin => {
            let step = Step { params: &spec.params, inputs, progress: &Silent };
            let own = spec.kind.space(&step).ok().flatten();
            match inputs.get("model").filter(|_| spec.kind.closed()) {
                // Of other inputs it may take some files and not others.
                Some(model) => Some(own.unwrap_or_default() + brought_in(store, model)),
                None => own,
            }
        }
    }
}

// What a closed tree takes over from sources.
fn brought_in(store: &Store, input: &Input) -> Space {
    let referenced = input
        .tree
        .files()
        .filter(|(_, blob, _, executable)| matches!(store.presence(*blob, *executable), Ok(Presence::Referenced(_))));
    let sizes: BTreeMap<_, u64> = referenced.map(|(_, blob, size, _)| (blob, size)).collect();
    Space { writes: 0, copies: sizes.values().sum() }
}
