//! The kinds of a node, each one file behind the trait [`Kind`].
//!
//! A kind reads its inputs, writes only in its scratch folder, and reports what it did. It knows neither the store
//! nor the graph.

pub mod check;
pub mod command;
pub mod container;
pub mod edit;
pub mod exclusions;
pub mod graft;
pub mod input;
pub mod names_kept;
pub mod output;
pub mod params;
pub mod paths;
pub mod quant;
pub(crate) mod read;
pub mod run;
pub mod serve;
pub mod space;
pub mod splice;
pub mod step;
#[cfg(test)]
pub(crate) mod testing;
pub mod weights;

pub use input::{Input, InputFiles};
pub use output::{Output, OutputEntry};
pub use params::{KeySpec, KeyType, Params};
pub use space::Space;
pub use step::{Action, Checked, ParamError, ProcessStep, Progress, Report, Step, StepError};

/// What a kind of node does.
pub trait Kind: Send + Sync {
    /// The word in graph.toml.
    fn name(&self) -> &'static str;

    /// The revision of the implementation: raised whenever its output for the same inputs changes.
    fn revision(&self) -> u32;

    /// One line for `help` and the reference.
    fn about(&self) -> &'static str;

    /// The keys that a node of this kind takes besides the common ones (`kind`, `inputs`, `gate`, `platform`, `about`).
    fn keys(&self) -> &'static [KeySpec];

    /// Looks at parameters and aliases before anything runs. Errors name the key, so that a caret can point at it.
    fn check(&self, params: &Params, aliases: &[&str]) -> Result<(), ParamError>;

    /// How the step is to be run: here, or as a process. The default is here.
    fn action(&self, params: &Params, inputs: &std::collections::BTreeMap<String, Input>) -> Result<Action, StepError> {
        let _ = (params, inputs);
        Ok(Action::Builtin)
    }

    /// Runs a builtin step. Never called for a step whose action is a process.
    fn run(&self, step: &Step<'_>, out: &mut Output) -> Result<Report, StepError>;

    /// How much room the step needs, as far as its inputs' listings and tables say. `None` where that is not known before
    /// it runs, or not worth the question.
    fn space(&self, step: &Step<'_>) -> Result<Option<Space>, StepError> {
        let _ = step;
        Ok(None)
    }

    /// Whether the output must be wholly in the store: nothing of it may be a mere reference to a source that somebody
    /// else may delete.
    fn closed(&self) -> bool {
        false
    }

    /// Holds what is asserted and not hashed (`expect`) against the facts that a run of this recipe recorded, so that
    /// an expectation that was changed is asserted of a result that is reused, too. The default has nothing to assert.
    fn still_holds(
        &self,
        params: &Params,
        facts: &std::collections::BTreeMap<String, serde_json::Value>,
    ) -> Result<(), StepError> {
        let _ = (params, facts);
        Ok(())
    }

    /// Looks at the output of a process step before it is published. `out` is that output, readable like an input.
    /// The default accepts everything.
    fn accept(&self, step: &Step<'_>, out: &Input) -> Result<Report, StepError> {
        let _ = (step, out);
        Ok(Report::default())
    }
}

/// All kinds, in the order of the reference.
pub fn all() -> &'static [&'static dyn Kind] {
    &[&graft::Graft, &splice::Splice, &quant::Quant, &edit::Edit, &run::Run, &check::Check, &serve::Serve]
}

/// The kind of this name.
pub fn by_name(name: &str) -> Option<&'static dyn Kind> {
    all().iter().copied().find(|k| k.name() == name)
}
