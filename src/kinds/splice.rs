//! `splice`: tensors of a donor are put into a shard of a quantised checkpoint, and the quantisation config is told to
//! leave them alone.
//!
//! ```toml
//! [node.splice-a]
//! kind = "splice"
//! inputs.into = "quant-a"
//! inputs.from = { node = "base", uses = ["@weights"] }
//! tensors = ["mtp.*"]
//! ```
//!
//! | a tensor taken that | goes |
//! | --- | --- |
//! | `into` has with the same type, shape and bytes | nowhere: it is there |
//! | replaces one of as many bytes | into its slot, in whatever shard that is |
//! | is new, or replaces one of another length | behind the last tensor of the only shard, the one that `shard` names, or the last; its old copy is left out |
//!
//! Tensors are appended in the order of their names. Data that was there keeps its order, and where the header has room
//! it keeps its place. A bare `model.safetensors` stays one; an index follows. The exclusion lists gain the modules
//! brought ([`exclude`]).

pub mod exclude;

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use crate::kinds::weights::choice::{self, Choice};
use crate::kinds::weights::told::{Sorted, tell_files_not_taken, tell_metadata, tell_oddities, tell_shards};
use crate::kinds::weights::write::{self, Planned, Source};
use crate::kinds::weights::{open, tied_head};
use crate::kinds::{Input, KeySpec, KeyType, Kind, Output, ParamError, Params, Report, Space, Step, StepError};
use crate::near;
use crate::tensors::checkpoint::Checkpoint;

/// The kind `splice`.
pub struct Splice;

const KEYS: &[KeySpec] = &[
    choice::TENSORS,
    choice::RENAME,
    KeySpec::optional("shard", KeyType::Str, "the shard of `into` that takes new tensors, where not the last"),
    choice::EXPECT,
    choice::ALLOW_TIED,
];

impl Kind for Splice {
    fn name(&self) -> &'static str {
        "splice"
    }

    fn revision(&self) -> u32 {
        1
    }

    fn about(&self) -> &'static str {
        "puts tensors into a shard of a quantised checkpoint and on its exclusion list"
    }

    fn keys(&self) -> &'static [KeySpec] {
        KEYS
    }

    fn check(&self, params: &Params, aliases: &[&str]) -> Result<(), ParamError> {
        choice::check(params, aliases)?;
        choice::shard_name(params, "shard")?;
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
        let target = target_shard(step.params, &into)?;
        write::space_of(&plan(&into, into_input, &chosen, &sorted, from_input, &target)).map(Some)
    }

    fn run(&self, step: &Step<'_>, out: &mut Output) -> Result<Report, StepError> {
        let (into_input, from_input) = (step.input("into")?, step.input("from")?);
        let (into, from) = (open(into_input)?, open(from_input)?);
        let chosen = choice::choose(step.params, &from)?;
        let sorted = Sorted::new(&chosen, &into);
        refuse_half_a_module(&chosen, &into)?;
        let fresh = sorted.fresh();
        let tied = tied_head(into_input, &fresh, step.params)?;

        out.keep_all(into_input);
        let mut report = Report { facts: choice::facts(&chosen, tied), ..Report::default() };
        tell_oddities([("into", &into), ("from", &from)], &mut report);
        sorted.tell(&mut report);
        tell_files_not_taken(from_input, &mut report);

        let lists = exclude::extend(into_input, &into, &exclude::modules(&chosen))?;
        report.notes.extend(lists.notes);
        report.facts.insert("excluded".to_owned(), json!(lists.added));
        for (file, bytes) in &lists.files {
            out.write(write::rel(file)?, bytes).map_err(StepError::io(format!("writing {file}")))?;
        }
        if fresh.is_empty() {
            report.notes.push("no shard is written: `into` holds all of them already".to_owned());
            return Ok(report);
        }

        let target = target_shard(step.params, &into)?;
        let shards = plan(&into, into_input, &chosen, &sorted, from_input, &target);
        tell_shards(&into, &shards, None, &mut report);
        tell_metadata(&chosen, &sorted, &into, &shards, &mut report);
        write::put_shards(step, out, into_input, &into, &shards)?;
        if into.index.is_some() {
            let (index, note) = write::index_of(&into, &shards);
            report.notes.extend(note);
            write::put_index(out, &into, &index)?;
        }
        Ok(report)
    }
}

fn target_shard(params: &Params, into: &Checkpoint) -> Result<String, StepError> {
    let named = choice::shard_name(params, "shard").map_err(|e| StepError::invalid(e.to_string(), ""))?;
    let names = || into.shards.iter().map(|s| s.file.name.as_str());
    match named {
        Some(name) if into.shard(name).is_none() => Err(StepError::invalid(
            format!("shard: {name} is no shard of the input `into`"),
            near::did_you_mean(name, names())
                .unwrap_or_else(|| format!("it has {}", names().collect::<Vec<_>>().join(", "))),
        )),
        Some(name) => Ok(name.to_owned()),
        None => names()
            .next_back()
            .map(str::to_owned)
            .ok_or_else(|| StepError::invalid("the input `into` has no shard", "")),
    }
}

fn plan<'a>(
    into: &'a Checkpoint,
    input: &'a Input,
    chosen: &'a Choice<'_>,
    sorted: &Sorted<'_>,
    from: &'a Input,
    target: &str,
) -> Vec<Planned<'a>> {
    let donated = |name: &'a str| {
        let c = chosen.get(name)?;
        Some(Source { name, entry: c.entry, shard: c.shard, files: &*from.files })
    };
    let fits = |name: &str| {
        let (old, new) = (into.get(name)?.1, chosen.get(name)?.entry);
        Some(old.len() == new.len())
    };
    let mut shards = Vec::new();
    for shard in &into.shards {
        let mut planned = Planned::keep(shard, &*input.files);
        let mut changed = false;
        let mut tensors = Vec::with_capacity(planned.tensors.len());
        for t in planned.tensors {
            if !sorted.replaced.contains(t.name) {
                tensors.push(t);
                continue;
            }
            changed = true;
            if fits(t.name) == Some(true) {
                tensors.extend(donated(t.name));
            }
        }
        if shard.file.name == target {
            let appended = chosen.keys().filter(|n| {
                sorted.added.contains(n.as_str())
                    || (sorted.replaced.contains(n.as_str()) && fits(n.as_str()) == Some(false))
            });
            let before = tensors.len();
            tensors.extend(appended.filter_map(|n| donated(n)));
            changed |= tensors.len() > before;
        }
        if tensors.is_empty() && changed {
            continue;
        }
        planned.tensors = tensors;
        if changed {
            planned.kept = false;
            planned.metadata = write::with_format(planned.metadata, "pt");
        }
        shards.push(planned);
    }
    shards
}

// What quantisers put beside a weight, or in its place.
const QUANT_SUFFIXES: [&str; 10] = [
    "weight_packed",
    "weight_scale",
    "weight_scale_2",
    "weight_scale_inv",
    "weight_global_scale",
    "weight_zero_point",
    "weight_g_idx",
    "weight_shape",
    "input_scale",
    "input_global_scale",
];

// A weight whose old scales stayed would be read with them, or fail to load.
fn refuse_half_a_module(chosen: &Choice<'_>, into: &Checkpoint) -> Result<(), StepError> {
    for name in chosen.keys() {
        let Some(module) = name.strip_suffix(".weight") else { continue };
        let left: Vec<String> = QUANT_SUFFIXES
            .iter()
            .map(|s| format!("{module}.{s}"))
            .filter(|n| into.get(n).is_some() && !chosen.contains_key(n))
            .collect();
        if !left.is_empty() {
            return Err(StepError::invalid(
                format!("{name} would be put beside quantisation tensors of the same module: {}", left.join(", ")),
                "leave the module out of the quantisation (`ignore`), or take its scales from `from` too",
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
