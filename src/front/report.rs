//! What the commands answer, as data: the shapes of `--json`.

use std::path::PathBuf;

use serde::Serialize;

use crate::graph::{Name, Ref};
use crate::kinds::Space;
use crate::plan::Reason;
use crate::plan::State;
use crate::plan::machine::NodeReport;

/// One step of a build.
#[derive(Debug, Clone, Serialize)]
pub struct StepReport {
    /// The node.
    pub node: String,
    /// Its kind.
    pub kind: &'static str,
    /// `fresh`, `built`, `failed`, `skipped` or `blocked`.
    pub action: &'static str,
    /// Its recipe, once its inputs were known.
    pub recipe: Option<String>,
    /// Its tree, if it has one.
    pub tree: Option<String>,
    /// Why it ran.
    pub reasons: Vec<Reason>,
    /// How long it took in this build.
    pub seconds: f64,
    /// A check's verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<bool>,
    /// Why it made nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// What `build` answers.
#[derive(Debug, Clone, Serialize)]
pub struct BuildReport {
    /// Every selected node, each behind all that it needs.
    pub steps: Vec<StepReport>,
    /// Whether everything that was asked for is there and every check holds.
    pub ok: bool,
    /// Sources that could not be taken.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<ErrorReport>,
    /// Whether the user stopped it.
    #[serde(skip)]
    pub interrupted: bool,
}

/// An error with what to do.
#[derive(Debug, Clone, Serialize)]
pub struct ErrorReport {
    /// What is wrong, and where.
    pub error: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// One step of a plan.
#[derive(Debug, Clone, Serialize)]
pub struct PlanStep {
    /// The node.
    pub node: String,
    /// Its kind.
    pub kind: &'static str,
    /// `fresh`, `run`, `await` or `blocked`.
    pub action: &'static str,
    /// Why it runs.
    pub reasons: Vec<Reason>,
    /// What it waits for, or is blocked by.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub on: Vec<String>,
    /// Its recipe, where its inputs are known.
    pub recipe: Option<String>,
    /// How long its last good run took, in seconds, where it would run now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_seconds: Option<f64>,
    /// How much room it needs, where it would run and that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub space: Option<Space>,
    /// The verdict of a check that is fresh.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<bool>,
    /// Why it can't run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// What `plan` answers.
#[derive(Debug, Clone, Serialize)]
pub struct PlanReport {
    /// Every selected node, each behind all that it needs.
    pub steps: Vec<PlanStep>,
    /// Sources that can't be taken.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<ErrorReport>,
    /// Whether files of the store can share their bytes, where something is to be copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clones: Option<bool>,
}

/// A node, as it stands.
#[derive(Debug, Clone, Serialize)]
pub struct NodeStatus {
    /// The node.
    pub node: String,
    /// Its kind.
    pub kind: &'static str,
    /// `fresh`, `absent` (never built), `stale`, `await`, `blocked` or `failed`.
    pub state: &'static str,
    /// Its recipe, where its inputs are known.
    pub recipe: Option<String>,
    /// Its tree.
    pub tree: Option<String>,
    /// Where that can be opened.
    #[serde(serialize_with = "crate::fsx::optional_path_text")]
    pub path: Option<PathBuf>,
}

/// A source that is not there, and was taken as graph.lock has it.
#[derive(Debug, Clone, Serialize)]
pub struct AwaySource {
    /// Its name.
    pub source: String,
    /// Why it can't be read.
    pub error: String,
    /// The tree that it was last.
    pub tree: Option<String>,
}

/// What `status` answers.
#[derive(Debug, Clone, Serialize)]
pub struct StatusReport {
    /// Every node, each behind all that it needs.
    pub nodes: Vec<NodeStatus>,
    /// Sources that can't be taken.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<ErrorReport>,
    /// Sources that are not there; the states are those for what they were last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub away: Vec<AwaySource>,
}

/// What `update` answers.
#[derive(Debug, Clone, Serialize)]
pub struct UpdateReport {
    /// The sources that were looked at.
    pub sources: Vec<UpdatedSource>,
    /// The images that were looked at.
    pub images: Vec<UpdatedImage>,
    /// Whether graph.lock was rewritten.
    pub written: bool,
}

/// An image after `update`.
#[derive(Debug, Clone, Serialize)]
pub struct UpdatedImage {
    /// Its name.
    pub image: String,
    /// What the lock had: the digest of what a step can see of it.
    pub old: Option<String>,
    /// What it has now.
    pub new: String,
}

/// A source after `update`.
#[derive(Debug, Clone, Serialize)]
pub struct UpdatedSource {
    /// Its name.
    pub source: String,
    /// What the lock had.
    pub old: Option<String>,
    /// What it has now.
    pub new: String,
}

impl StepReport {
    pub(super) fn of(n: &NodeReport<'_>, seconds: f64) -> Self {
        let mut r = StepReport {
            node: n.spec.name.to_string(),
            kind: n.spec.kind.name(),
            action: "skipped",
            recipe: n.recipe.map(|r| r.id.to_string()),
            tree: None,
            reasons: Vec::new(),
            seconds,
            verdict: None,
            error: None,
            hint: None,
        };
        match n.state {
            State::Known(run) => {
                r.action = "fresh";
                r.tree = run.tree().map(|t| t.to_string());
                r.verdict = run.verdict();
            }
            State::Present { run, built } => {
                r.action = if *built { "built" } else { "fresh" };
                r.tree = run.tree().map(|t| t.to_string());
                r.verdict = run.verdict();
                if *built {
                    r.reasons = n.reasons.to_vec();
                }
            }
            State::Failed { error, hint } => {
                r.action = "failed";
                r.error = Some(error.clone());
                r.hint.clone_from(hint);
                r.reasons = n.reasons.to_vec();
            }
            State::Skipped { because } => r.error = Some(skipped_because(n, because)),
            State::Blocked { by } => {
                r.action = "blocked";
                let names: Vec<&str> = by.iter().map(Name::as_str).collect();
                r.error = Some(format!("the gate {} did not pass", names.join(", ")));
            }
            State::Waiting | State::Needed | State::Ready | State::Running => {
                r.error = Some("not started".to_owned());
                r.reasons = n.reasons.to_vec();
            }
        }
        // A check that does not hold is a good run with a bad answer.
        if r.verdict == Some(false) {
            r.action = "failed";
        }
        r
    }
}

// A source makes nothing anyway.
fn skipped_because(n: &NodeReport<'_>, because: &[Name]) -> String {
    let is_source = |name: &&Name| n.spec.inputs.values().any(|i| matches!(&i.from, Ref::Source(s) if s == *name));
    let (sources, nodes): (Vec<&Name>, Vec<&Name>) = because.iter().partition(is_source);
    let list = |names: &[&Name]| names.iter().map(|n| n.as_str()).collect::<Vec<_>>().join(", ");
    let mut parts = Vec::new();
    if !sources.is_empty() {
        parts.push(format!("{} can't be taken", list(&sources)));
    }
    if !nodes.is_empty() {
        parts.push(format!("{} made nothing", list(&nodes)));
    }
    parts.join("; ")
}

impl PlanStep {
    pub(super) fn of(n: &NodeReport<'_>) -> Self {
        let mut p = PlanStep {
            node: n.spec.name.to_string(),
            kind: n.spec.kind.name(),
            action: "fresh",
            reasons: Vec::new(),
            on: Vec::new(),
            recipe: n.recipe.map(|r| r.id.to_string()),
            last_seconds: None,
            space: None,
            verdict: None,
            error: None,
            hint: None,
        };
        match n.state {
            State::Known(run) | State::Present { run, .. } => p.verdict = run.verdict(),
            State::Needed | State::Ready | State::Running => {
                p.action = "run";
                p.reasons = n.reasons.to_vec();
            }
            State::Waiting => {
                p.action = "await";
                p.on = n.awaits.iter().map(ToString::to_string).collect();
            }
            State::Blocked { by } => {
                p.action = "blocked";
                p.on = by.iter().map(ToString::to_string).collect();
            }
            State::Skipped { because } => {
                p.action = "blocked";
                p.on = because.iter().map(ToString::to_string).collect();
            }
            State::Failed { error, hint } => {
                p.action = "blocked";
                p.error = Some(error.clone());
                p.hint.clone_from(hint);
            }
        }
        p
    }
}
