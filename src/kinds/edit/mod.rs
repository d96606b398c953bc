//! `edit`: JSON pointers set, copied or removed, files added, copied or dropped; all else stays byte-identical.
//!
//! The order is fixed: `drop`, `copy`, `add`, then in each JSON file `set_from`, `remove`, `set`. Weights are kept by
//! reference, and their index must still agree with them at the end.
//!
//! Which parent wins where two have a file: `add` names one path, so what it brings replaces what is there. `copy` takes
//! globs, so a file that is there with other bytes is an error, unless `replace = true`.

mod apply;
mod spec;
#[cfg(test)]
mod tests;

use crate::kinds::{KeySpec, KeyType, Kind, Output, ParamError, Params, Report, Space, Step, StepError};
use spec::Spec;

/// The kind `edit`.
pub struct Edit;

const REVISION: u32 = 1;

const KEYS: &[KeySpec] = &[
    KeySpec::optional(
        "set",
        KeyType::Map,
        "JSON values by file and pointer: set.\"config.json\" = { \"/text_config/x\" = 1 }",
    ),
    KeySpec::optional(
        "set_from",
        KeyType::Map,
        "JSON values copied as they are written, by file and pointer: { \"/x\" = \"ALIAS/config.json#/x\" }",
    ),
    KeySpec::optional("remove", KeyType::Map, "JSON pointers to remove by file: remove.\"config.json\" = [\"/x\"]"),
    KeySpec::optional(
        "add",
        KeyType::StrMap,
        "a file by path, replacing what is there: \"ALIAS\", \"ALIAS/PATH\", or \"ALIAS/PATH#/POINTER\" for one JSON value",
    ),
    KeySpec::optional("copy", KeyType::Map, "files by globs from another input: copy.ALIAS = [\"*token*.json\"]"),
    KeySpec::optional("drop", KeyType::StrOrList, "globs of files to leave out; a shard that the index names can't be"),
    KeySpec::optional("replace", KeyType::Bool, "whether `copy` may replace a file that has other bytes"),
    KeySpec::optional(
        "create_parents",
        KeyType::Bool,
        "whether objects on the way to a pointer are made where they are missing",
    ),
];

impl Kind for Edit {
    fn name(&self) -> &'static str {
        "edit"
    }

    fn revision(&self) -> u32 {
        REVISION
    }

    fn about(&self) -> &'static str {
        "JSON values set, copied or removed, files added or dropped; all else byte-identical"
    }

    fn keys(&self) -> &'static [KeySpec] {
        KEYS
    }

    fn check(&self, params: &Params, aliases: &[&str]) -> Result<(), ParamError> {
        Spec::parse(params, aliases).map(|_| ())
    }

    fn space(&self, step: &Step<'_>) -> Result<Option<Space>, StepError> {
        let aliases: Vec<&str> = step.inputs.keys().map(String::as_str).collect();
        let Ok(spec) = Spec::parse(step.params, &aliases) else { return Ok(None) };
        Ok(Some(apply::space(&spec, &step.input("model")?.tree)))
    }

    fn run(&self, step: &Step<'_>, out: &mut Output) -> Result<Report, StepError> {
        let aliases: Vec<&str> = step.inputs.keys().map(String::as_str).collect();
        let spec = Spec::parse(step.params, &aliases)
            .map_err(|e| StepError::Invalid { what: format!("{}: {}", e.key, e.what), hint: e.hint })?;
        apply::run(&spec, step, out)
    }
}
