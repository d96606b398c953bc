//! `graft`: tensors of a donor are added to a checkpoint, or take the place of its own.
//!
//! ```toml
//! [node.graft-a]
//! kind = "graft"
//! inputs.into = { node = "finetune", uses = ["@weights", "config.json"] }
//! inputs.from = { node = "base", uses = ["@weights"] }
//! tensors = ["mtp.*"]
//! expect = { count = 15, dtype = "BF16" }
//! ```
//!
//! | of `into` | becomes |
//! | --- | --- |
//! | a shard that holds none of the replaced tensors | kept, nothing is copied |
//! | a shard that holds replaced tensors | rewritten without them; left out where none are left |
//! | `model.safetensors`, where other shards stand beside it afterwards | `model-00001-of-00002.safetensors`, since loaders take the bare name before an index |
//! | the index | its map and sums follow the tensors, everything else in it stays |
//! | any other file | kept |
//!
//! All tensors taken go into one new shard, `model-graft[-N].safetensors`, in the order of their names. A tensor that
//! `into` holds already with the same type, shape and bytes is left where it is. Of the donor nothing but tensors is
//! taken: its other files and the keys of its `__metadata__` are dropped and named in the run's record.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;

use crate::kinds::weights::choice;
use crate::kinds::weights::told::{Sorted, tell_files_not_taken, tell_metadata, tell_oddities, tell_shards};
use crate::kinds::weights::write::{self, Planned, Source};
use crate::kinds::weights::{open, tied_head};
use crate::kinds::{Input, KeySpec, KeyType, Kind, Output, ParamError, Params, Report, Space, Step, StepError};
use crate::tensors::checkpoint::{Checkpoint, SINGLE_NAME};

/// The kind `graft`.
pub struct Graft;

const KEYS: &[KeySpec] = &[
    choice::TENSORS,
    choice::RENAME,
    KeySpec::optional("shard", KeyType::Str, "name of the new shard instead of model-graft.safetensors"),
    choice::EXPECT,
    choice::ALLOW_TIED,
];

impl Kind for Graft {
    fn name(&self) -> &'static str {
        "graft"
    }

    fn revision(&self) -> u32 {
        1
    }

    fn about(&self) -> &'static str {
        "adds tensors of a donor to a checkpoint, or replaces its own by them"
    }

    fn keys(&self) -> &'static [KeySpec] {
        KEYS
    }

    fn check(&self, params: &Params, aliases: &[&str]) -> Result<(), ParamError> {
        choice::check(params, aliases)?;
        if let Some(name) = choice::shard_name(params, "shard")?
            && !name.starts_with("model-")
        {
            let e = ParamError::new("shard", format!("{name:?} does not start with `model-`"));
            return Err(e.hint("loaders that take model-*.safetensors would pass it over"));
        }
        Ok(())
    }

    fn still_holds(&self, params: &Params, facts: &BTreeMap<String, Json>) -> Result<(), StepError> {
        choice::still_holds(params, facts)
    }

    fn space(&self, step: &Step<'_>) -> Result<Option<Space>, StepError> {
        let (into_input, from_input) = (step.input("into")?, step.input("from")?);
        let (into, from) = (open(into_input)?, open(from_input)?);
        let chosen = choice::choose(step.params, &from)?;
        let sorted = Sorted::new(&chosen, &into);
        if sorted.fresh().is_empty() {
            return Ok(Some(Space::default()));
        }
        let shards = planned(step.params, (into_input, &into), (from_input, &from), &chosen, &sorted)?;
        write::space_of(&shards).map(Some)
    }

    fn run(&self, step: &Step<'_>, out: &mut Output) -> Result<Report, StepError> {
        let (into_input, from_input) = (step.input("into")?, step.input("from")?);
        let (into, from) = (open(into_input)?, open(from_input)?);
        let chosen = choice::choose(step.params, &from)?;
        let sorted = Sorted::new(&chosen, &into);
        let fresh = sorted.fresh();
        let tied = tied_head(into_input, &fresh, step.params)?;

        out.keep_all(into_input);
        let mut report = Report { facts: choice::facts(&chosen, tied), ..Report::default() };
        tell_oddities([("into", &into), ("from", &from)], &mut report);
        sorted.tell(&mut report);
        tell_files_not_taken(from_input, &mut report);
        if fresh.is_empty() {
            report.notes.push("nothing is written: `into` holds all of them already".to_owned());
            return Ok(report);
        }

        let mut shards = planned(step.params, (into_input, &into), (from_input, &from), &chosen, &sorted)?;
        let renamed = free_the_bare_name(&mut shards, into_input);
        let (index, note) = write::index_of(&into, &shards);
        report.notes.extend(note);
        tell_shards(&into, &shards, renamed, &mut report);
        tell_metadata(&chosen, &sorted, &into, &shards, &mut report);
        write::put_shards(step, out, into_input, &into, &shards)?;
        write::put_index(out, &into, &index)?;
        Ok(report)
    }
}

fn planned<'a>(
    params: &Params,
    (into_input, into): (&'a Input, &'a Checkpoint),
    (from_input, from): (&'a Input, &Checkpoint),
    chosen: &'a choice::Choice<'_>,
    sorted: &Sorted<'_>,
) -> Result<Vec<Planned<'a>>, StepError> {
    let name = new_shard_name(params, into_input)?;
    let mut shards = remaining(into, into_input, sorted);
    let format = write::format_of(into, from);
    let tensors = chosen
        .iter()
        .filter(|(name, _)| !sorted.unchanged.contains(name.as_str()))
        .map(|(name, c)| Source { name, entry: c.entry, shard: c.shard, files: &*from_input.files })
        .collect();
    let metadata = write::with_format(Vec::new(), format);
    shards.push(Planned { file: name, old: None, kept: false, metadata, tensors });
    Ok(shards)
}

fn remaining<'a>(into: &'a Checkpoint, input: &'a Input, sorted: &Sorted<'_>) -> Vec<Planned<'a>> {
    let mut shards = Vec::new();
    for shard in &into.shards {
        let mut planned = Planned::keep(shard, &*input.files);
        planned.tensors.retain(|t| !sorted.replaced.contains(t.name));
        if planned.tensors.len() < shard.table.tensors.len() {
            planned.kept = false;
            planned.metadata = write::with_format(planned.metadata, "pt");
            if planned.tensors.is_empty() {
                continue;
            }
        }
        shards.push(planned);
    }
    shards
}

fn new_shard_name(params: &Params, into: &Input) -> Result<String, StepError> {
    let taken = |name: &str| into.tree.at(name).is_some();
    let named = choice::shard_name(params, "shard").map_err(|e| StepError::invalid(e.to_string(), ""))?;
    if let Some(name) = named {
        if taken(name) {
            let what = format!("shard: {name} is in the input `into` already");
            return Err(StepError::invalid(what, "choose another name, or leave `shard` out"));
        }
        return Ok(name.to_owned());
    }
    let mut name = "model-graft.safetensors".to_owned();
    let mut n = 1u32;
    while taken(&name) {
        n += 1;
        name = format!("model-graft-{n}.safetensors");
    }
    Ok(name)
}

// Loaders take `model.safetensors` before an index, and would not see what stands beside it.
fn free_the_bare_name(shards: &mut [Planned<'_>], into: &Input) -> Option<String> {
    let count = shards.len();
    if count < 2 {
        return None;
    }
    let names: BTreeSet<String> = shards.iter().map(|s| s.file.clone()).collect();
    let bare = shards.iter_mut().find(|s| s.file == SINGLE_NAME)?;
    let numbered = (1u32..).map(|i| format!("model-{i:05}-of-{count:05}.safetensors"));
    let free = numbered.into_iter().find(|n| !names.contains(n) && into.tree.at(n).is_none())?;
    bare.file.clone_from(&free);
    Some(free)
}

#[cfg(test)]
mod tests;
