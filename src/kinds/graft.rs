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

use serde_json::{Value as Json, json};

use crate::kinds::weights::choice::{self, Choice};
use crate::kinds::weights::write::{self, Planned, Source};
use crate::kinds::weights::{is_head, open, refuse_tied_head};
use crate::kinds::{Input, KeySpec, KeyType, Kind, Output, ParamError, Params, Report, Step, StepError};
use crate::tensors::checkpoint::{Checkpoint, SINGLE_NAME, is_weight_file};

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

    fn run(&self, step: &Step<'_>, out: &mut Output) -> Result<Report, StepError> {
        let (into_input, from_input) = (step.input("into")?, step.input("from")?);
        let (into, from) = (open(into_input)?, open(from_input)?);
        let chosen = choice::choose(step.params, &from)?;
        let sorted = Sorted::new(&chosen, &into);
        let fresh: Vec<&str> = sorted.fresh().collect();
        let head = fresh.iter().any(|n| is_head(n));
        // Where it is allowed, whether the model is tied decides what a later look at `allow_tied` asserts.
        let tied = head && refuse_tied_head(into_input, &fresh, false).is_err();
        let allow = choice::allow_tied(step.params).map_err(|e| StepError::invalid(e.to_string(), ""))?;
        refuse_tied_head(into_input, &fresh, allow)?;

        out.keep_all(into_input);
        let mut report = Report { facts: choice::facts(&chosen, tied), ..Report::default() };
        report.notes = [("into", &into), ("from", &from)]
            .iter()
            .flat_map(|(alias, c)| c.notes.iter().map(move |n| format!("{alias}: {n}")))
            .collect();
        sorted.tell(&mut report);
        tell_files_not_taken(from_input, &mut report);
        if fresh.is_empty() {
            report.notes.push("nothing is written: `into` holds all of them already".to_owned());
            return Ok(report);
        }

        let name = new_shard_name(step.params, into_input)?;
        let mut shards = remaining(&into, into_input, &sorted);
        let format = write::format_of(&into, &from);
        let tensors = chosen
            .iter()
            .filter(|(name, _)| !sorted.unchanged.contains(name.as_str()))
            .map(|(name, c)| Source { name, entry: c.entry, shard: c.shard, files: &*from_input.files })
            .collect();
        let metadata = write::with_format(Vec::new(), format);
        shards.push(Planned { file: name, old: None, kept: false, metadata, tensors });
        let renamed = free_the_bare_name(&mut shards, into_input);
        let (index, note) = write::index_of(&into, &shards);
        report.notes.extend(note);
        tell_shards(&into, &shards, renamed, &mut report);
        tell_metadata(&chosen, &into, &shards, &sorted, &mut report);
        write::put_shards(step, out, into_input, &into, &shards)?;
        write::put_index(out, &into, &index)?;
        Ok(report)
    }
}

/// What becomes of the chosen names.
struct Sorted<'c> {
    added: BTreeSet<&'c str>,
    replaced: BTreeSet<&'c str>,
    /// `into` holds the very same.
    unchanged: BTreeSet<&'c str>,
}

impl<'c> Sorted<'c> {
    fn new(chosen: &'c Choice<'_>, into: &Checkpoint) -> Self {
        let mut out = Self { added: BTreeSet::new(), replaced: BTreeSet::new(), unchanged: BTreeSet::new() };
        for (name, c) in chosen {
            let set = match into.get(name).map(|(_, e)| e) {
                None => &mut out.added,
                Some(e) if e.same_content(c.entry) => &mut out.unchanged,
                Some(_) => &mut out.replaced,
            };
            set.insert(name.as_str());
        }
        out
    }

    fn fresh(&self) -> impl Iterator<Item = &'c str> {
        self.added.union(&self.replaced).copied()
    }

    fn tell(&self, report: &mut Report) {
        let Self { added, replaced, unchanged } = self;
        report.notes.push(format!(
            "{} tensors taken: {} added, {} replaced, {} there already with the same bytes",
            added.len() + replaced.len() + unchanged.len(),
            added.len(),
            replaced.len(),
            unchanged.len()
        ));
        for (key, names) in [("added", added), ("replaced", replaced), ("unchanged", unchanged)] {
            report.facts.insert(key.to_owned(), json!(names));
        }
    }
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

fn tell_shards(into: &Checkpoint, shards: &[Planned<'_>], renamed: Option<String>, report: &mut Report) {
    let of = |pick: &dyn Fn(&&Planned<'_>) -> bool| {
        shards.iter().filter(|s| pick(s)).map(|s| s.file.clone()).collect::<Vec<_>>()
    };
    let new = of(&|s| s.old.is_none());
    let rewritten = of(&|s| s.old.is_some() && !s.kept);
    let still: BTreeSet<&str> = shards.iter().filter_map(|s| Some(s.old?.file.name.as_str())).collect();
    let left_out: Vec<&str> = into.shards.iter().map(|s| s.file.name.as_str()).filter(|n| !still.contains(n)).collect();
    for (what, names) in [("new", &new), ("rewritten", &rewritten)] {
        if !names.is_empty() {
            report.notes.push(format!("{what}: {}", names.join(", ")));
        }
    }
    if !left_out.is_empty() {
        report.notes.push(format!("left out, since all their tensors are replaced: {}", left_out.join(", ")));
    }
    if let Some(name) = &renamed {
        report.notes.push(format!("{SINGLE_NAME} is now {name}: loaders take the bare name before an index"));
    }
    let facts = json!({ "new": new, "rewritten": rewritten, "left_out": left_out, "renamed": renamed });
    report.facts.insert("shards".to_owned(), facts);
}

fn tell_metadata(
    chosen: &Choice<'_>,
    into: &Checkpoint,
    shards: &[Planned<'_>],
    sorted: &Sorted<'_>,
    report: &mut Report,
) {
    let kept: Vec<&[(String, String)]> = shards.iter().map(|s| s.metadata.as_slice()).collect();
    let donors: BTreeMap<&str, _> = chosen
        .iter()
        .filter(|(name, _)| !sorted.unchanged.contains(name.as_str()))
        .map(|(_, c)| (c.shard.file.name.as_str(), c.shard))
        .collect();
    let new: Vec<&[(String, String)]> =
        shards.iter().filter(|s| s.old.is_none()).map(|s| s.metadata.as_slice()).collect();
    let still: BTreeSet<&str> = shards.iter().filter_map(|s| Some(s.old?.file.name.as_str())).collect();
    let gone = into.shards.iter().filter(|s| !still.contains(s.file.name.as_str()));
    for (key, lost) in [
        ("metadata_dropped_of_from", write::lost_metadata(donors.into_values(), &new)),
        ("metadata_dropped_of_into", write::lost_metadata(gone, &kept)),
    ] {
        if !lost.is_empty() {
            let keys: BTreeSet<&str> = lost.values().flat_map(|m| m.keys().map(String::as_str)).collect();
            let keys: Vec<&str> = keys.into_iter().collect();
            let whose = key.rsplit('_').next().unwrap_or_default();
            report.notes.push(format!("dropped from __metadata__ of `{whose}`: {}", keys.join(", ")));
            report.facts.insert(key.to_owned(), json!(lost));
        }
    }
}

fn tell_files_not_taken(from: &Input, report: &mut Report) {
    let others: Vec<String> =
        from.tree.iter().filter(|(p, _)| !p.as_str().is_some_and(is_weight_file)).map(|(p, _)| p.to_string()).collect();
    if !others.is_empty() {
        let shown: Vec<&str> = others.iter().take(5).map(String::as_str).collect();
        let more = others.len().saturating_sub(shown.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        report.notes.push(format!("of `from` only tensors are taken, not {}{more}", shown.join(", ")));
        report.facts.insert("files_not_taken".to_owned(), json!(others));
    }
}

#[cfg(test)]
mod tests;
