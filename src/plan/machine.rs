//! The state of every selected node, from its inputs' trees to a realisation or a job.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use crate::digest::{Digest, RecipeId, TreeId};
use crate::graph::{Graph, Name, NodeSpec, Ref, Selection};
use crate::kinds::{Action, Input, ProcessStep, StepError};
use crate::model::recipe::Recipe;
use crate::model::run::{Isolation, RunRecord};
use crate::model::tree::Tree;
use crate::plan::prepare::{Prepared, step_error};
use crate::plan::reason::Reason;
use crate::store::roots::Roots;
use crate::store::{Store, StoreError};

/// Finds what a process step needs of the host: its executables, or the image that it names. The executor provides it.
pub trait HostTools: Send + Sync {
    /// Path inside → digest of every executable, interpreter and library.
    fn resolve(
        &self,
        step: &ProcessStep,
        inputs: &BTreeMap<String, Input>,
    ) -> Result<BTreeMap<String, Digest>, StepError>;

    /// What a step can see of the image of this name: the digest of its layers and runtime configuration.
    fn image(&self, reference: &str) -> Result<Digest, StepError>;
}

/// A source as it was found, or why it can't be used.
pub type SourceState = Result<(TreeId, Arc<Tree>), String>;

/// What the machine works from.
pub struct Setting<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// What of it is asked for.
    pub selection: &'a Selection,
    /// The store.
    pub store: Arc<Store>,
    /// The selected sources.
    pub sources: BTreeMap<Name, SourceState>,
    /// What was built last time.
    pub roots: &'a Roots,
    /// Pinned realisations.
    pub pins: &'a BTreeMap<RecipeId, TreeId>,
    /// The host's executables.
    pub tools: &'a dyn HostTools,
    /// Whether realisations of process steps without isolation count.
    pub unsandboxed: bool,
    /// Whether somebody relies on what is found: it is held, so that a collector leaves it.
    pub hold: bool,
}

/// Where a node stands.
#[derive(Debug, Clone, PartialEq)]
pub enum State {
    /// For inputs or gates.
    Waiting,
    /// Its realisation is known; nobody asked for its bytes.
    Known(RunRecord),
    /// Its realisation is known and all bytes are there. `built` says whether this build made it.
    Present {
        /// The run that made it.
        run: RunRecord,
        /// Whether that was now.
        built: bool,
    },
    /// It must run, and waits for its inputs' bytes or for its gates.
    Needed,
    /// It can run now.
    Ready,
    /// It runs.
    Running,
    /// It made nothing.
    Failed {
        /// Why.
        error: String,
        /// What to do.
        hint: Option<String>,
    },
    /// Something above it made nothing.
    Skipped {
        /// What: nodes, and sources that can't be taken.
        because: Vec<Name>,
    },
    /// A gate did not pass.
    Blocked {
        /// The gates.
        by: Vec<Name>,
    },
}

/// A step that is ready to run.
#[derive(Clone)]
pub struct Job {
    /// The node's number in the machine.
    pub id: usize,
    /// Its name, for people.
    pub node: Name,
    /// The node.
    pub spec: NodeSpec,
    /// What it is keyed by.
    pub recipe: Recipe,
    /// Its inputs.
    pub inputs: BTreeMap<String, Input>,
    /// How it is run.
    pub action: Action,
    /// The host's executables that its recipe covers: path inside → digest.
    pub tools: BTreeMap<String, Digest>,
    /// The image that its recipe covers: the digest of what a step can see of it.
    pub image: Option<Digest>,
    /// The least isolation with which a realisation counts.
    pub at_least: Isolation,
    /// Why it runs.
    pub reasons: Vec<Reason>,
    /// The pinned realisation, if there is one.
    pub pinned: Option<TreeId>,
    /// What the node made last time.
    pub last_tree: Option<TreeId>,
}

pub(super) struct Node {
    pub(super) spec: NodeSpec,
    goal: bool,
    wants_bytes: bool,
    pub(super) state: State,
    // The inputs' trees for which `prepared` was made.
    pub(super) prepared_for: Option<Vec<TreeId>>,
    pub(super) prepared: Option<Prepared>,
    reasons: Vec<Reason>,
    // The realisation's tree, where it is known and its bytes are being made again.
    pub(super) known: Option<TreeId>,
    above: Vec<usize>,
    gates: Vec<usize>,
    below: Vec<usize>,
}

/// The state of a build.
pub struct Machine<'a> {
    pub(super) setting: Setting<'a>,
    pub(super) nodes: Vec<Node>,
    by_name: HashMap<Name, usize>,
    todo: VecDeque<usize>,
    ready: VecDeque<usize>,
    pub(super) trees: HashMap<TreeId, Arc<Tree>>,
    pub(super) filtered: HashMap<(TreeId, Vec<String>), (TreeId, Arc<Tree>)>,
}

pub(super) type Outcome<T> = Result<T, StoreError>;

impl<'a> Machine<'a> {
    /// Sets up the selected nodes and settles all that can be without running anything.
    pub fn new(setting: Setting<'a>) -> Outcome<Self> {
        let mut nodes: Vec<Node> = Vec::new();
        let mut by_name = HashMap::new();
        for spec in setting.selection.in_order(setting.graph) {
            let id = nodes.len();
            let numbers = |names: &mut dyn Iterator<Item = &Name>| -> Vec<usize> {
                let mut v: Vec<usize> = names.filter_map(|n| by_name.get(n).copied()).collect();
                v.sort_unstable();
                v.dedup();
                v
            };
            let mut inputs = spec.inputs.values().filter_map(|i| match &i.from {
                Ref::Node(n) => Some(n),
                Ref::Source(_) => None,
            });
            let above = numbers(&mut inputs);
            let gates = numbers(&mut spec.gates.iter());
            for a in above.iter().chain(&gates) {
                if let Some(n) = nodes.get_mut(*a) {
                    n.below.push(id);
                }
            }
            let goal = setting.selection.goals.contains(&spec.name);
            by_name.insert(spec.name.clone(), id);
            nodes.push(Node {
                spec: spec.clone(),
                goal,
                wants_bytes: goal,
                state: State::Waiting,
                prepared_for: None,
                prepared: None,
                reasons: Vec::new(),
                known: None,
                above,
                gates,
                below: Vec::new(),
            });
        }
        let todo = (0..nodes.len()).collect();
        if setting.hold {
            // In one go, whatever a build that changes nothing relies on; what else it needs is held one by one.
            let sources = setting.sources.values().filter_map(|s| s.as_ref().ok().map(|(tree, _)| *tree));
            let newest = nodes.iter().filter_map(|n| setting.roots.newest(n.spec.name.as_str())).map(|r| r.tree);
            setting.store.hold_trees(sources.chain(newest))?;
        }
        let (trees, filtered) = (HashMap::new(), HashMap::new());
        let mut machine = Self { setting, nodes, by_name, todo, ready: VecDeque::new(), trees, filtered };
        machine.pump()?;
        Ok(machine)
    }

    /// The next step that can run; it counts as running from now on.
    pub fn next_job(&mut self) -> Option<Job> {
        self.next_job_where(|_| true)
    }

    /// As [`Machine::next_job`], of those that `fits` says can start now.
    pub fn next_job_where(&mut self, fits: impl Fn(&NodeSpec) -> bool) -> Option<Job> {
        let place = self.ready.iter().position(|id| self.nodes.get(*id).is_some_and(|n| fits(&n.spec)))?;
        let id = self.ready.remove(place)?;
        let last_tree = self.last_tree(&self.nodes.get(id)?.spec);
        let node = self.nodes.get_mut(id)?;
        let p = node.prepared.clone()?;
        node.state = State::Running;
        Some(Job {
            id,
            node: node.spec.name.clone(),
            spec: node.spec.clone(),
            pinned: self.setting.pins.get(&p.recipe.id).copied(),
            recipe: p.recipe,
            inputs: p.inputs,
            action: p.action,
            tools: p.ingredients.tools,
            image: p.ingredients.image,
            at_least: p.at_least,
            reasons: node.reasons.clone(),
            last_tree,
        })
    }

    /// The nodes whose steps can run and have not begun.
    pub fn ready(&self) -> impl Iterator<Item = &NodeSpec> {
        self.ready.iter().filter_map(|id| self.nodes.get(*id)).map(|n| &n.spec)
    }

    /// Gives a job back that can't start yet; it is offered again.
    pub fn put_back(&mut self, id: usize) {
        if let Some(n) = self.nodes.get_mut(id) {
            n.state = State::Ready;
            self.ready.push_back(id);
        }
    }

    /// Tells how a job ended well; `built` is false where another process or step had made it meanwhile.
    pub fn succeeded(&mut self, id: usize, run: RunRecord, built: bool) -> Outcome<()> {
        self.enter(id, State::Present { run, built });
        self.pump()
    }

    /// Tells that a job made nothing.
    pub fn failed(&mut self, id: usize, error: String, hint: Option<String>) -> Outcome<()> {
        self.enter(id, State::Failed { error, hint });
        self.pump()
    }

    /// Every selected node: its spec, state, recipe, reasons.
    pub fn report(&self) -> impl Iterator<Item = NodeReport<'_>> {
        self.nodes.iter().map(|n| NodeReport {
            spec: &n.spec,
            goal: n.goal,
            state: &n.state,
            recipe: n.prepared.as_ref().map(|p| &p.recipe),
            reasons: &n.reasons,
            awaits: self.awaits(n),
        })
    }

    fn awaits(&self, node: &Node) -> Vec<Name> {
        let unknown = |id: &&usize| self.nodes.get(**id).is_some_and(|n| self.tree_of(n).is_none());
        // A gate that has to run again is open, whatever it once gave.
        let open = |id: &&usize| {
            let state = self.nodes.get(**id).map(|n| &n.state);
            matches!(state, Some(State::Waiting | State::Needed | State::Ready | State::Running))
        };
        let (above, gates) = (node.above.iter().filter(unknown), node.gates.iter().filter(open));
        let mut names: Vec<Name> = Vec::new();
        for id in above.chain(gates) {
            let name = &self.nodes[*id].spec.name;
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        names
    }

    pub(super) fn enter(&mut self, id: usize, state: State) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        if node.state != state {
            node.state = state;
            self.todo.extend(node.below.iter().copied());
        }
    }

    fn pump(&mut self) -> Outcome<()> {
        while let Some(id) = self.todo.pop_front() {
            self.settle(id)?;
        }
        Ok(())
    }

    // The tree that those below take: of a realisation that is known, also while it is made again.
    fn tree_of(&self, node: &Node) -> Option<TreeId> {
        match &node.state {
            State::Known(run) | State::Present { run, .. } => run.tree(),
            State::Needed | State::Ready | State::Running => node.known,
            _ => None,
        }
    }

    fn settle(&mut self, id: usize) -> Outcome<()> {
        let node = &self.nodes[id];
        if matches!(node.state, State::Running | State::Ready | State::Failed { .. }) {
            return Ok(());
        }
        let because = self.broken_above(id);
        if !because.is_empty() {
            self.enter(id, State::Skipped { because });
            return Ok(());
        }
        let Some(inputs) = self.input_trees(id) else { return Ok(()) };
        match self.gates(id) {
            Gates::Failed(by) => {
                self.prepare_or_fail(id, inputs)?;
                self.enter(id, State::Blocked { by });
                return Ok(());
            }
            Gates::Open => {
                self.prepare_or_fail(id, inputs)?;
                return Ok(());
            }
            Gates::Passed => {}
        }
        if self.prepare_or_fail(id, inputs)? {
            self.look_up(id)?;
        }
        Ok(())
    }

    fn broken_above(&self, id: usize) -> Vec<Name> {
        let broken = |from: &Ref| match from {
            Ref::Source(s) => !matches!(self.setting.sources.get(s), Some(Ok(_))),
            Ref::Node(n) => self.by_name.get(n).and_then(|i| self.nodes.get(*i)).is_some_and(|above| {
                matches!(above.state, State::Failed { .. } | State::Skipped { .. } | State::Blocked { .. })
            }),
        };
        let inputs = self.nodes[id].spec.inputs.values().map(|i| &i.from);
        let mut names: Vec<Name> = inputs.filter(|from| broken(from)).map(|from| from.name().clone()).collect();
        names.sort();
        names.dedup();
        names
    }

    fn input_trees(&self, id: usize) -> Option<Vec<TreeId>> {
        let node = &self.nodes[id];
        node.spec
            .inputs
            .values()
            .map(|i| match &i.from {
                Ref::Source(s) => self.setting.sources.get(s)?.as_ref().ok().map(|(t, _)| *t),
                Ref::Node(n) => self.tree_of(self.nodes.get(*self.by_name.get(n)?)?),
            })
            .collect()
    }

    fn gates(&self, id: usize) -> Gates {
        let mut failed = Vec::new();
        let mut open = false;
        for g in &self.nodes[id].gates {
            let gate = &self.nodes[*g];
            match &gate.state {
                State::Known(run) | State::Present { run, .. } if run.verdict() == Some(false) => {
                    failed.push(gate.spec.name.clone());
                }
                State::Known(_) | State::Present { .. } => {}
                State::Failed { .. } | State::Skipped { .. } | State::Blocked { .. } => {
                    failed.push(gate.spec.name.clone());
                }
                State::Waiting | State::Needed | State::Ready | State::Running => open = true,
            }
        }
        if !failed.is_empty() {
            Gates::Failed(failed)
        } else if open {
            Gates::Open
        } else {
            Gates::Passed
        }
    }

    // With the recipe at hand: is there a realisation, are its bytes wanted and there, else can it run?
    fn look_up(&mut self, id: usize) -> Outcome<()> {
        let Some(p) = self.nodes[id].prepared.clone() else { return Ok(()) };
        let pin = self.setting.pins.get(&p.recipe.id).copied();
        let found = self.setting.store.realisation(p.recipe.id, p.at_least, pin, self.setting.hold)?;
        let mut missing = Vec::new();
        if let Some(run) = &found {
            if let Err(e) = self.nodes[id].spec.kind.still_holds(&self.nodes[id].spec.params, &run.facts) {
                let (error, hint) = step_error(e);
                self.enter(id, State::Failed { error, hint });
                return Ok(());
            }
            let listing = run.tree().map(|t| self.setting.store.tree(t)).transpose()?.flatten();
            // Without its listing nobody below can take it.
            self.nodes[id].known = run.tree().filter(|_| listing.is_some());
            if let State::Present { run: now, .. } = &self.nodes[id].state
                && now.recipe == run.recipe
            {
                return Ok(());
            }
            if listing.is_some() && !self.nodes[id].wants_bytes {
                self.enter(id, State::Known(run.clone()));
                return Ok(());
            }
            missing = match listing {
                Some(tree) => {
                    let lacking = self.setting.store.lacking(&tree, self.nodes[id].spec.kind.closed())?;
                    lacking.iter().map(ToString::to_string).collect()
                }
                None => vec!["its listing".to_owned()],
            };
            if missing.is_empty() {
                self.enter(id, State::Present { run: run.clone(), built: false });
                return Ok(());
            }
        }
        self.nodes[id].reasons = self.reasons(id, &p, missing, pin, found.as_ref())?;
        let mut all_present = true;
        for a in self.nodes[id].above.clone() {
            let above = &mut self.nodes[a];
            if !matches!(above.state, State::Present { .. }) {
                all_present = false;
                if !above.wants_bytes {
                    above.wants_bytes = true;
                    self.todo.push_back(a);
                }
            }
        }
        if all_present {
            self.nodes[id].state = State::Ready;
            self.ready.push_back(id);
        } else {
            self.enter(id, State::Needed);
        }
        Ok(())
    }
}

/// A node of the machine, to be reported.
pub struct NodeReport<'m> {
    /// The node.
    pub spec: &'m NodeSpec,
    /// Whether it was asked for.
    pub goal: bool,
    /// Where it stands.
    pub state: &'m State,
    /// Its recipe, once its inputs are known.
    pub recipe: Option<&'m Recipe>,
    /// Why it runs or ran.
    pub reasons: &'m [Reason],
    /// The nodes whose result it waits for.
    pub awaits: Vec<Name>,
}

enum Gates {
    Passed,
    Open,
    Failed(Vec<Name>),
}
