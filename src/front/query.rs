//! `status`, `why`, `show`, `log`, `path`, `update`, `pin`.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::Serialize;

use crate::digest::{BlobId, Digest, RecipeId, TreeId};
use crate::front::build::error_reports;
use crate::front::error::{FrontError, Result};
use crate::front::report::{AwaySource, NodeStatus, StatusReport, UpdateReport, UpdatedSource};
use crate::front::waits::Waits;
use crate::front::{IfAway, Looking, Project, Sources};
use crate::graph::lock::Pin;
use crate::graph::select::find;
use crate::graph::{Graph, Ref};
use crate::model::run::RunRecord;
use crate::model::tree::Tree;
use crate::plan::machine::NodeReport;
use crate::plan::{Reason, State};
use crate::sched::Events;
use crate::store::StoreError;
use crate::store::plain::Plain;

/// What `why` answers.
#[derive(Debug, Clone, Serialize)]
pub struct Why {
    /// The node.
    pub node: String,
    /// `fresh`, `run`, `await` or `blocked`.
    pub action: &'static str,
    /// Why it would run now.
    pub reasons: Vec<Reason>,
    /// What it waits for or is blocked by.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub on: Vec<String>,
    /// Why it can't run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The newest attempt at the recipe.
    pub last: Option<RunRecord>,
    /// Why that one ran, as it was told then.
    pub last_reasons: Vec<serde_json::Value>,
}

/// What `show` answers.
#[derive(Debug, Clone, Serialize)]
pub struct Shown {
    /// What was asked for.
    pub name: String,
    /// `node`, `recipe`, `tree` or `blob`.
    pub what: &'static str,
    /// The recipe's id.
    pub recipe: Option<RecipeId>,
    /// The recipe's text.
    pub recipe_text: Option<String>,
    /// Every attempt at it.
    pub runs: Vec<RunRecord>,
    /// The tree's id.
    pub tree: Option<TreeId>,
    /// The tree's listing.
    pub listing: Option<String>,
    /// Where it can be opened.
    #[serde(serialize_with = "crate::fsx::optional_path_text")]
    pub path: Option<PathBuf>,
    /// When its bytes were freed by `gc`, if they were and nobody made it since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collected: Option<String>,
}

/// What `log` answers.
#[derive(Debug, Clone, Serialize)]
pub struct LogText {
    /// The node.
    pub node: String,
    /// The attempt.
    pub run: RunRecord,
    /// Its log; lossy where it is no UTF-8.
    pub log: Option<String>,
}

/// What `pin` answers.
#[derive(Debug, Clone, Serialize)]
pub struct PinReport {
    /// The node.
    pub node: String,
    /// Its recipe, by which the pin is keyed.
    pub recipe: RecipeId,
    /// The pinned tree; `None` where the pin was taken away.
    pub tree: Option<TreeId>,
    /// The tree that was pinned before.
    pub was: Option<TreeId>,
}

// A node of the machine at rest, with everything copied out of it.
struct Rest {
    state: State,
    recipe: Option<RecipeId>,
    step: super::PlanStep,
    // Sources that are not there, and were taken as graph.lock has them.
    away: Vec<StoreError>,
}

impl Rest {
    fn of(n: &NodeReport<'_>) -> Self {
        Self { state: n.state.clone(), recipe: n.recipe.map(|r| r.id), step: super::PlanStep::of(n), away: Vec::new() }
    }

    fn run(&self) -> Option<&RunRecord> {
        match &self.state {
            State::Known(run) | State::Present { run, .. } => Some(run),
            _ => None,
        }
    }

    // The run whose tree is there. Errors: NotBuilt, Blocked.
    fn built(&self, node: &str) -> Result<&RunRecord> {
        if let Some(run) = self.run() {
            return Ok(run);
        }
        let (node, step) = (node.to_owned(), &self.step);
        if step.action == "blocked" && !step.on.is_empty() {
            return Err(FrontError::Blocked { node, by: step.on.clone() });
        }
        let reasons: Vec<String> = step.reasons.iter().map(ToString::to_string).collect();
        let why = if !reasons.is_empty() {
            reasons.join("; ")
        } else if let Some(e) = &step.error {
            e.clone()
        } else {
            format!("it waits for {}", step.on.join(", "))
        };
        Err(FrontError::NotBuilt { node, why })
    }
}

impl Project {
    /// How the goals stand, or every node.
    pub fn status(
        &self,
        goals: &[String],
        looking: Looking,
        events: &Events,
        cancel: &Arc<AtomicBool>,
    ) -> Result<StatusReport> {
        let wanted = self.select(goals)?.goals;
        let read = |m: &crate::plan::Machine<'_>| -> Vec<NodeStatus> {
            m.report().filter(|n| wanted.contains(&n.spec.name)).map(|n| self.node_status(&n)).collect()
        };
        let (nodes, sources) = self.at_rest(goals, (looking, IfAway::AsLocked), events, cancel, read)?;
        let away = sources.away.iter().map(|(name, e)| AwaySource {
            source: name.to_string(),
            error: e.to_string(),
            tree: sources.states.get(name).and_then(|s| Some(s.as_ref().ok()?.0.to_string())),
        });
        let away = away.collect();
        Ok(StatusReport { nodes, errors: error_reports(&sources.errors), away })
    }

    pub(super) fn node_status(&self, n: &NodeReport<'_>) -> NodeStatus {
        let run = match n.state {
            State::Known(run) | State::Present { run, .. } => Some(run),
            _ => None,
        };
        let state = match n.state {
            State::Known(_) | State::Present { .. } if run.and_then(RunRecord::verdict) == Some(false) => "failed",
            State::Known(_) | State::Present { .. } => "fresh",
            State::Needed | State::Ready | State::Running if n.reasons == [Reason::NeverBuilt] => "absent",
            State::Needed | State::Ready | State::Running if matches!(n.reasons, [Reason::Collected { .. }]) => {
                "collected"
            }
            State::Needed | State::Ready | State::Running
                if n.reasons.iter().any(|r| matches!(r, Reason::LastFailed { .. })) =>
            {
                "failed"
            }
            State::Needed | State::Ready | State::Running => "stale",
            State::Waiting => "await",
            State::Failed { .. } => "failed",
            State::Skipped { .. } | State::Blocked { .. } => "blocked",
        };
        let tree = run.and_then(RunRecord::tree);
        let path = tree.map(|t| self.store.view_path(t)).filter(|p| p.is_dir());
        NodeStatus {
            node: n.spec.name.to_string(),
            kind: n.spec.kind.name(),
            state,
            recipe: n.recipe.map(|r| r.id.to_string()),
            tree: tree.map(|t| t.to_string()),
            path,
        }
    }

    fn rest_of(&self, node: &str, looking: Looking, events: &Events, cancel: &Arc<AtomicBool>) -> Result<Rest> {
        find(&self.graph, node)?;
        let read =
            |m: &crate::plan::Machine<'_>| m.report().find(|n| n.spec.name.as_str() == node).map(|n| Rest::of(&n));
        let (rest, sources) = self.at_rest(&[node.to_owned()], (looking, IfAway::AsLocked), events, cancel, read)?;
        if !sources.errors.is_empty() {
            return Err(FrontError::of_sources(sources.errors));
        }
        match rest {
            Some(rest) => Ok(Rest { away: sources.away.into_iter().map(|(_, e)| e).collect(), ..rest }),
            None => Err(FrontError::NotBuilt { node: node.to_owned(), why: "it was not selected".to_owned() }),
        }
    }

    /// Why a node would run, or why it ran last time.
    pub fn why(&self, node: &str, looking: Looking, events: &Events, cancel: &Arc<AtomicBool>) -> Result<Why> {
        let rest = self.rest_of(node, looking, events, cancel)?;
        let roots = self.roots()?;
        // The newest attempt, failed or not: at this recipe, else at the one that was built last.
        let mut runs = match rest.recipe {
            Some(recipe) => self.store.runs(recipe)?,
            None => Vec::new(),
        };
        if runs.is_empty()
            && let Some(root) = roots.newest(node)
        {
            runs = self.store.runs(root.recipe)?;
        }
        let last = runs.pop();
        let last_reasons = last.as_ref().map(|r| r.reasons.clone()).unwrap_or_default();
        let step = rest.step;
        Ok(Why {
            node: node.to_owned(),
            action: step.action,
            reasons: step.reasons,
            on: step.on,
            error: step.error,
            last,
            last_reasons,
        })
    }

    /// Where a node's current tree can be opened: an absolute path; the view is made or mended first.
    pub fn path(&self, node: &str, looking: Looking, events: &Events, cancel: &Arc<AtomicBool>) -> Result<PathBuf> {
        let _listening = self.listen(events, cancel);
        let rest = self.rest_of(node, looking, events, cancel)?;
        let run = rest.built(node).cloned();
        // It can't be built either as long as a source is away.
        let run = run.map_err(|e| rest.away.into_iter().next().map_or(e, FrontError::from))?;
        let (id, tree) = self.tree_of(&run).map_err(FrontError::from)?;
        Ok(self.store.view(id, &tree)?)
    }

    /// The run in use of each node that is needed for the goals and has one, and what the sources are. Errors: NotBuilt
    /// and Blocked for a goal without one.
    pub(super) fn runs_for(
        &self,
        goals: &[String],
        events: &Events,
        cancel: &Arc<AtomicBool>,
    ) -> Result<(Vec<(String, RunRecord)>, Sources)> {
        let read = |m: &crate::plan::Machine<'_>| -> Vec<(String, Rest)> {
            m.report().map(|n| (n.spec.name.to_string(), Rest::of(&n))).collect()
        };
        let looking = (Looking::default(), IfAway::AsLocked);
        let (rests, sources) = self.at_rest(goals, looking, events, cancel, read)?;
        if !sources.errors.is_empty() {
            return Err(FrontError::of_sources(sources.errors));
        }
        let mut runs = Vec::new();
        for (name, rest) in rests {
            match rest.built(&name) {
                Ok(run) => runs.push((name, run.clone())),
                Err(e) if goals.contains(&name) => {
                    return Err(sources.away.into_iter().next().map_or(e, |(_, away)| away.into()));
                }
                Err(_) => {}
            }
        }
        Ok((runs, sources))
    }

    pub(super) fn tree_of(&self, run: &RunRecord) -> std::result::Result<(TreeId, Tree), StoreError> {
        let damaged = |what: String| StoreError::Damaged { path: self.store.dir().join("trees"), what };
        let id = run.tree().ok_or_else(|| damaged("was asked for a failed run".to_owned()))?;
        let tree = self.store.tree(id)?.ok_or_else(|| damaged(format!("lacks the listing of {id}")))?;
        Ok((id, tree))
    }

    /// Everything known of a node, or of a recipe, tree or blob by its id.
    pub fn show(&self, name: &str, looking: Looking, events: &Events, cancel: &Arc<AtomicBool>) -> Result<Shown> {
        if name.starts_with("b3:") {
            return self.show_id(name);
        }
        let rest = self.rest_of(name, looking, events, cancel)?;
        let mut shown = match rest.recipe {
            Some(recipe) => self.show_recipe(name, recipe)?,
            None => Shown {
                name: name.to_owned(),
                what: "node",
                recipe: None,
                recipe_text: None,
                runs: Vec::new(),
                tree: None,
                listing: None,
                path: None,
                collected: None,
            },
        };
        shown.what = "node";
        if let Some(run) = rest.run() {
            let (id, tree) = self.tree_of(run).map_err(FrontError::from)?;
            shown.tree = Some(id);
            shown.listing = Some(tree.to_text());
            shown.path = Some(self.store.view_path(id)).filter(|p| p.is_dir());
        }
        Ok(shown)
    }

    // Every run that made a tree. Looks through all records: for a question about one tree.
    fn runs_of(&self, tree: TreeId) -> Result<Vec<RunRecord>> {
        let mut runs = self.store.plain().survey_of_runs()?;
        runs.retain(|r| r.tree() == Some(tree));
        Ok(runs)
    }

    fn show_recipe(&self, name: &str, recipe: RecipeId) -> Result<Shown> {
        Ok(Shown {
            name: name.to_owned(),
            what: "recipe",
            recipe: Some(recipe),
            recipe_text: self.store.recipe(recipe)?,
            runs: self.store.runs(recipe)?,
            tree: None,
            listing: None,
            path: None,
            collected: None,
        })
    }

    fn show_id(&self, text: &str) -> Result<Shown> {
        let (what, digest) = one_id(&self.store.plain(), text)?;
        let blank = Shown {
            name: digest.to_string(),
            what,
            recipe: None,
            recipe_text: None,
            runs: Vec::new(),
            tree: None,
            listing: None,
            path: None,
            collected: None,
        };
        Ok(match what {
            "recipe" => self.show_recipe(text, RecipeId(digest))?,
            "tree" => {
                let id = TreeId(digest);
                let listing = self.store.tree(id)?.map(|t| t.to_text());
                let path = Some(self.store.view_path(id)).filter(|p| p.is_dir());
                // Only then are all records worth a look.
                let collected = match self.store.collected(id, []) {
                    Some(_) => self.store.collected(id, &self.runs_of(id)?),
                    None => None,
                };
                Shown { tree: Some(id), listing, path, collected, ..blank }
            }
            _ => {
                let path = self.store.presence(BlobId(digest), false)?.path().map(PathBuf::from);
                Shown { path, ..blank }
            }
        })
    }

    /// The log of a node's last attempt.
    pub fn log(&self, node: &str, looking: Looking, events: &Events, cancel: &Arc<AtomicBool>) -> Result<LogText> {
        let rest = self.rest_of(node, looking, events, cancel)?;
        let mut runs = match rest.recipe {
            Some(recipe) => self.store.runs(recipe)?,
            None => Vec::new(),
        };
        if runs.is_empty()
            && let Some(root) = self.roots()?.newest(node)
        {
            runs = self.store.runs(root.recipe)?;
        }
        let Some(run) = runs.pop() else {
            return Err(FrontError::NotBuilt { node: node.to_owned(), why: "it was never attempted".to_owned() });
        };
        let log = match &run.log {
            Some(name) => self.store.log_text(name)?,
            None => None,
        };
        Ok(LogText { node: node.to_owned(), run, log: log.map(|b| String::from_utf8_lossy(&b).into_owned()) })
    }

    /// Looks at the named sources, or all, byte by byte, and writes what they are into graph.lock.
    pub fn update(&self, names: &[String], events: &Events, cancel: &Arc<AtomicBool>) -> Result<UpdateReport> {
        let known = self.images();
        for n in names {
            if self.graph.source(n).is_none() && !known.contains(n.as_str()) {
                return Err(no_source(&self.graph, n));
            }
        }
        let images: Vec<&str> =
            known.into_iter().filter(|i| names.is_empty() || names.iter().any(|n| n == i)).collect();
        let (images, locked_images) = self.update_images(&images, events)?;
        let wanted = |n: &&crate::graph::Name| names.is_empty() || names.iter().any(|x| x == n.as_str());
        let sources = self.scan(self.graph.sources.keys().filter(wanted), (true, IfAway::Refuse), events, cancel)?;
        if !sources.errors.is_empty() {
            return Err(FrontError::of_sources(sources.errors));
        }
        let report = sources
            .locked
            .iter()
            .map(|(name, now)| UpdatedSource {
                source: name.to_string(),
                old: self.lock.sources.get(name).map(|l| l.tree.to_string()),
                new: now.tree.to_string(),
            })
            .collect();
        let sources = Sources { errors: Vec::new(), ..sources };
        let written = self.change_lock(&Waits::new(events, cancel), |lock| {
            lock.sources = self.merged(&lock.sources, &sources.locked);
            lock.images.extend(locked_images);
        })?;
        self.store.flush_index();
        Ok(UpdateReport { sources: report, images, written })
    }

    /// Pins a node's current recipe to one of its realisations: the given tree, else the one in use. With `remove`
    /// the pin goes.
    pub fn pin(
        &self,
        node: &str,
        tree: Option<&str>,
        remove: bool,
        looking: Looking,
        events: &Events,
        cancel: &Arc<AtomicBool>,
    ) -> Result<PinReport> {
        let _listening = self.listen(events, cancel);
        let waits = Waits::new(events, cancel);
        let rest = self.rest_of(node, looking, events, cancel)?;
        let Some(recipe) = rest.recipe else {
            return Err(FrontError::NotBuilt { node: node.to_owned(), why: "its inputs are not known".to_owned() });
        };
        if remove {
            let mut was = None;
            self.change_lock(&waits, |lock| was = lock.pins.remove(&recipe))?;
            return Ok(PinReport { node: node.to_owned(), recipe, tree: None, was: was.map(|p| p.tree) });
        }
        let trees: Vec<TreeId> = self.store.runs(recipe)?.iter().filter_map(RunRecord::tree).collect();
        let chosen = match tree {
            Some(text) => trees.iter().find(|t| t.to_string().starts_with(text)).copied(),
            None => rest.run().and_then(RunRecord::tree),
        };
        let Some(chosen) = chosen else {
            let known: Vec<String> = trees.iter().map(TreeId::short).collect();
            let what = format!("{node} has no realisation {}", tree.unwrap_or("that could be pinned"));
            let hint = if known.is_empty() {
                format!("`graftwerk build {node}` makes one")
            } else {
                format!("it has {}", known.join(", "))
            };
            return Err(FrontError::Argument { what, hint: Some(hint) });
        };
        self.store.hold_trees([chosen])?;
        let mut was = None;
        self.change_lock(&waits, |lock| was = lock.pins.insert(recipe, Pin { tree: chosen, node: node.to_owned() }))?;
        Ok(PinReport { node: node.to_owned(), recipe, tree: Some(chosen), was: was.map(|p| p.tree) })
    }
}

fn no_source(graph: &Graph, name: &str) -> FrontError {
    let Some(node) = graph.nodes.get(name) else {
        let near = crate::near::did_you_mean(name, graph.sources.keys().map(crate::graph::Name::as_str));
        let what = format!("there is no source {}", crate::canon::quote(name.as_bytes()));
        return FrontError::Argument { what, hint: near };
    };
    let sources: Vec<String> = node
        .inputs
        .values()
        .filter_map(|i| match &i.from {
            Ref::Source(s) => Some(format!("`{s}`")),
            Ref::Node(_) => None,
        })
        .collect();
    let takes =
        if sources.is_empty() { String::new() } else { format!("; of its sources, name {}", sources.join(", ")) };
    let what = format!("`{name}` is a node, and `update` resolves sources");
    let hint = format!("`graftwerk build {name}` builds it from the sources as they are now{takes}");
    FrontError::Argument { what, hint: Some(hint) }
}

/// What an id names, or the beginning of one: `recipe`, `tree` or `blob`, and its digest. Errors: Argument where that is
/// nothing, or several.
pub(super) fn one_id(plain: &Plain, text: &str) -> Result<(&'static str, Digest)> {
    let hits = plain.find_ids(text.trim_start_matches("b3:"))?;
    match hits.as_slice() {
        [one] => Ok(*one),
        [] => Err(FrontError::Argument {
            what: format!("nothing in the store has an id that begins with {text}"),
            hint: Some("`graftwerk status --json` lists ids".to_owned()),
        }),
        many => {
            let list: Vec<String> = many.iter().map(|(w, d)| format!("{w} {d}")).collect();
            let what = format!("{text} is the beginning of several ids: {}", list.join(", "));
            Err(FrontError::Argument { what, hint: Some("give more digits".to_owned()) })
        }
    }
}
