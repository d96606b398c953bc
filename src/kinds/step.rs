//! A step as a kind sees it, and what it gives back.

use std::collections::BTreeMap;
use std::io;

use crate::canon::Value;
use crate::kinds::command::Text;
use crate::kinds::container::ContainerStep;
use crate::kinds::input::Input;
use crate::kinds::params::Params;

/// Where a step says how far it is, and asks whether it should stop.
pub trait Progress: Send + Sync {
    /// So many bytes of work are done out of so many in total.
    fn bytes(&self, done: u64, total: u64);
    /// A line for the log and the screen.
    fn note(&self, line: &str);
    /// Whether the build is being stopped: long loops look here between chunks and return [`StepError::Cancelled`].
    fn cancelled(&self) -> bool;
}

/// A step to run.
pub struct Step<'a> {
    /// Its parameters, asserted ones included.
    pub params: &'a Params,
    /// Its inputs by alias.
    pub inputs: &'a BTreeMap<String, Input>,
    /// Where it reports.
    pub progress: &'a dyn Progress,
}

impl Step<'_> {
    /// The input of this alias. Errors: [`StepError::Invalid`] where there is none.
    pub fn input(&self, alias: &str) -> Result<&Input, StepError> {
        self.inputs
            .get(alias)
            .ok_or_else(|| StepError::invalid(format!("there is no input `{alias}`"), format!("add inputs.{alias}")))
    }

    /// Stops here if the build is being stopped.
    pub fn go_on(&self) -> Result<(), StepError> {
        if self.progress.cancelled() { Err(StepError::Cancelled) } else { Ok(()) }
    }
}

/// How a step is to be run.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// In this program.
    Builtin,
    /// As a process.
    Process(Box<ProcessStep>),
}

/// A process step: what is run inside, with everything resolved but places and the host's tools.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ProcessStep {
    /// Program and arguments. The program is a path in an input (`{in.scripts}/quant.py`), or one of the host's or of
    /// the image's.
    pub argv: Vec<Text>,
    /// Declared environment.
    pub env: BTreeMap<String, Text>,
    /// Working directory, absolute; where none is given, the folder for what is temporary.
    pub workdir: Option<Text>,
    /// Whether it may use the network.
    pub network: bool,
    /// Further programs and libraries of the host that it needs, by name or absolute path.
    pub tools: Vec<String>,
    /// Values that the manifest shows.
    pub params: BTreeMap<String, Value>,
    /// Ended after this many seconds, if declared.
    pub timeout_seconds: Option<u64>,
    /// The container that it runs in; without one it is a process of this host.
    pub container: Option<ContainerStep>,
}

/// What a step reports of itself, for the run's record.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// For a check: whether everything that it asserts holds.
    pub verdict: Option<bool>,
    /// Lines for people: what was found, what failed.
    pub notes: Vec<String>,
    /// Facts for machines.
    pub facts: BTreeMap<String, serde_json::Value>,
}

/// The result of a single assertion.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Checked {
    /// What was asserted.
    pub assertion: String,
    /// Whether it holds.
    pub ok: bool,
    /// What was found where it does not: names, both values.
    pub found: Vec<String>,
}

/// A parameter or alias that a kind refuses before anything runs.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{what}")]
pub struct ParamError {
    /// The dotted key it is about (`expect.count`, `inputs.into`): a caret will point at it.
    pub key: String,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub hint: Option<String>,
}

impl ParamError {
    /// An error at `key`.
    pub fn new(key: impl Into<String>, what: impl Into<String>) -> Self {
        Self { key: key.into(), what: what.into(), hint: None }
    }

    /// The same with a hint.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// Why a step made nothing.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The inputs or parameters are not what the step needs: place, both values where two disagree.
    #[error("{what}")]
    Invalid {
        /// What is wrong and where.
        what: String,
        /// What to do next.
        hint: Option<String>,
    },
    /// The disk said no.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, with the path.
        what: String,
        /// What the system says.
        source: io::Error,
    },
    /// The build is being stopped.
    #[error("stopped")]
    Cancelled,
}

impl StepError {
    /// An error with a hint.
    pub fn invalid(what: impl Into<String>, hint: impl Into<String>) -> Self {
        let hint: String = hint.into();
        Self::Invalid { what: what.into(), hint: (!hint.is_empty()).then_some(hint) }
    }

    /// Wraps what the system says with what was being done.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
