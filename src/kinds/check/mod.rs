//! `check`: asserts on its inputs and yields a report. A false verdict is a successful run whose output is the report.
//!
//! Every key enters the recipe: a stricter check is another check. The output holds one file, `report.json`, with every
//! assertion, whether it holds and what was found; the same inputs give the same bytes.

mod config;
mod findings;
#[cfg(test)]
mod lineage_tests;
mod metrics;
mod model;
mod rows;
#[cfg(test)]
mod rows_tests;
mod rules;
mod spec;
mod tensors;
#[cfg(test)]
mod tests;

use crate::kinds::{KeySpec, KeyType, Kind, Output, ParamError, Params, Report, Step, StepError};
use crate::model::path::RelPath;
use findings::Findings;
use model::Model;
use spec::Spec;

/// The kind `check`.
pub struct Check;

const REVISION: u32 = 3;

const KEYS: &[KeySpec] = &[
    KeySpec::optional(
        "tensors",
        KeyType::Map,
        "of `model`: count = N; names = globs that must match; absent = globs that must not; prefixes = all that names may start with; dtypes = { glob = \"BF16\" }; shapes = { glob = [..] }",
    ),
    KeySpec::optional(
        "config",
        KeyType::Map,
        "JSON values of `model` by file and pointer; numbers are compared by value",
    ),
    KeySpec::optional(
        "names_kept",
        KeyType::Any,
        "an input that `model` was quantised from: its tensors and config keys must all be there; or { input, drop = [globs], drop_config = [dotted keys] }",
    ),
    KeySpec::optional(
        "unchanged",
        KeyType::Map,
        "unchanged.ALIAS = globs of tensors that must have the same bytes in `model`",
    ),
    KeySpec::optional("files", KeyType::StrOrList, "globs of files that must be in `model`"),
    KeySpec::optional(
        "calibration",
        KeyType::Map,
        "calibration.ALIAS = { count = N, tool_arguments = \"object\" | \"string\", file = PATH }: JSONL chat rows, each well-formed",
    ),
    KeySpec::optional("metrics", KeyType::Map, "metrics.ALIAS.FILE = { \"/pointer\" = { min = X, max = Y } }"),
    KeySpec::optional(
        "architecture",
        KeyType::Bool,
        "tensor prefixes must be those that `architectures` of config.json loads",
    ),
    KeySpec::optional(
        "draft_head",
        KeyType::Bool,
        "true: config.json declares a draft head and `mtp.*` holds each of its layers; false: neither",
    ),
    KeySpec::optional(
        "exclusions",
        KeyType::Bool,
        "every unquantised Linear of a quantised `model` must be on the exclusion list",
    ),
    KeySpec::optional("tied", KeyType::Bool, "embedding and head must be what tie_word_embeddings says"),
    KeySpec::optional("processors", KeyType::Bool, "a multimodal `model` must have preprocessor_config.json"),
    KeySpec::optional(
        "allow_stray",
        KeyType::StrOrList,
        "globs of weight files that need not be in the index (that there is no other, and one copy of each tensor, is always asserted)",
    ),
];

impl Kind for Check {
    fn name(&self) -> &'static str {
        "check"
    }

    fn revision(&self) -> u32 {
        REVISION
    }

    fn about(&self) -> &'static str {
        "asserts on its inputs: tensors, config values, names kept, bytes unchanged, files, calibration rows, metrics"
    }

    fn keys(&self) -> &'static [KeySpec] {
        KEYS
    }

    fn check(&self, params: &Params, aliases: &[&str]) -> Result<(), ParamError> {
        Spec::parse(params, aliases).map(|_| ())
    }

    fn run(&self, step: &Step<'_>, out: &mut Output) -> Result<Report, StepError> {
        let aliases: Vec<&str> = step.inputs.keys().map(String::as_str).collect();
        let spec = Spec::parse(step.params, &aliases)
            .map_err(|e| StepError::Invalid { what: format!("{}: {}", e.key, e.what), hint: e.hint })?;
        let found = assert_all(&spec, step)?;
        let path = RelPath::try_from("report.json").map_err(|e| StepError::invalid(e.to_string(), ""))?;
        out.write(path, found.to_json().as_bytes()).map_err(StepError::io("writing report.json"))?;
        Ok(found.report())
    }
}

// The order of the assertions is that of the report.
fn assert_all(spec: &Spec, step: &Step<'_>) -> Result<Findings, StepError> {
    let mut found = Findings::default();
    if let Some(input) = step.inputs.get("model") {
        let model = Model::open(input, &spec.allow_stray)?;
        model.assert_weights(&mut found);
        // Most assertions hold of nothing: without tensors they would pass in silence.
        if spec.needs_tensors() && model.tensors.is_empty() {
            found.instead("tensors in `model`", ["none".to_owned()]);
        }
        tensors::assert(&spec.tensors, &model, &mut found);
        config::assert(&spec.config, input, &mut found)?;
        if let Some(kept) = &spec.names_kept {
            tensors::assert_names_kept(kept, &Model::open(step.input(&kept.input)?, &[])?, &model, &mut found)?;
        }
        for (alias, globs) in &spec.unchanged {
            step.go_on()?;
            tensors::assert_unchanged(alias, globs, &Model::open(step.input(alias)?, &[])?, &model, &mut found);
        }
        config::assert_files(&spec.files, input, &mut found);
        rules::assert(&spec.rules, input, &model, &mut found)?;
    }
    for (alias, rows) in &spec.calibration {
        rows::assert(alias, rows, step, &mut found)?;
    }
    for (alias, files) in &spec.metrics {
        metrics::assert(alias, files, step.input(alias)?, &mut found)?;
    }
    if found.is_empty() {
        let hint = "it holds no weights: give the check a key, such as `files`";
        return Err(StepError::invalid("there is nothing to assert of `model`", hint));
    }
    Ok(found)
}
