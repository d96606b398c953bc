//! A run: one attempt at a recipe, successful or not.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::digest::{RecipeId, TreeId};

/// How well a step was kept from what it did not declare; a later one is stronger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// A process that could read whatever the caller can.
    None,
    /// A process in namespaces of its own that sees only what it declares.
    Namespaces,
    /// A locked container that sees only its image and what it declares.
    Container,
    /// Code of this program, which reads only its inputs.
    Builtin,
}

impl std::fmt::Display for Isolation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Isolation::None => "none",
            Isolation::Namespaces => "namespaces",
            Isolation::Container => "container",
            Isolation::Builtin => "builtin",
        })
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum Outcome {
    /// It made this tree.
    Success {
        /// The tree.
        tree: TreeId,
        /// For a check: whether what it asserts holds. A false verdict is a successful run.
        verdict: Option<bool>,
    },
    /// It made nothing.
    Failure {
        /// Why, in a line.
        error: String,
    },
}

/// The record of one attempt. Append-only: never changed once written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// What was attempted.
    pub recipe: RecipeId,
    /// Its number among the attempts at this recipe, from 1: "earliest" goes by it, not by the clock.
    pub seq: u64,
    /// How it ended.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// How well it was isolated.
    pub isolation: Isolation,
    /// When it started, RFC 3339.
    pub started: String,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// The host's name.
    pub host: String,
    /// The node's name at the time: for people, never a key.
    pub node: String,
    /// The version of this program.
    pub version: String,
    /// Why it ran, as it was told then: data for machines, with a `text` for people.
    #[serde(default)]
    pub reasons: Vec<serde_json::Value>,
    /// What the step reports of itself: counts, dropped keys, notes.
    #[serde(default)]
    pub facts: BTreeMap<String, serde_json::Value>,
    /// Name of the log below `logs/`, where there is one.
    #[serde(default)]
    pub log: Option<String>,
}

impl RunRecord {
    /// The tree, if the attempt made one.
    pub fn tree(&self) -> Option<TreeId> {
        match self.outcome {
            Outcome::Success { tree, .. } => Some(tree),
            Outcome::Failure { .. } => None,
        }
    }

    /// A check's verdict, if it is one.
    pub fn verdict(&self) -> Option<bool> {
        match self.outcome {
            Outcome::Success { verdict, .. } => verdict,
            Outcome::Failure { .. } => None,
        }
    }
}
