//! What a run's record says of tensors that were moved.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use crate::kinds::weights::choice::Choice;
use crate::kinds::weights::write::{Planned, lost_metadata};
use crate::kinds::{Input, Report};
use crate::tensors::checkpoint::{Checkpoint, is_weight_file};

/// The chosen names by what becomes of them.
pub struct Sorted<'c> {
    /// `into` has none of this name.
    pub added: BTreeSet<&'c str>,
    /// `into` has another one.
    pub replaced: BTreeSet<&'c str>,
    /// `into` has the very same.
    pub unchanged: BTreeSet<&'c str>,
    // Of the replaced ones those of another type or shape, with both.
    reshaped: Vec<String>,
}

impl<'c> Sorted<'c> {
    /// Holds the chosen tensors against those of `into`.
    pub fn new(chosen: &'c Choice<'_>, into: &Checkpoint) -> Self {
        let mut out = Self {
            added: BTreeSet::new(),
            replaced: BTreeSet::new(),
            unchanged: BTreeSet::new(),
            reshaped: Vec::new(),
        };
        for (name, c) in chosen {
            let set = match into.get(name).map(|(_, e)| e) {
                None => &mut out.added,
                Some(e) if e.same_content(c.entry) => &mut out.unchanged,
                Some(e) => {
                    let (was, is) = ((e.dtype, &e.shape), (c.entry.dtype, &c.entry.shape));
                    if was != is {
                        out.reshaped.push(format!("{name} was {} {:?} and is {} {:?}", was.0, was.1, is.0, is.1));
                    }
                    &mut out.replaced
                }
            };
            set.insert(name.as_str());
        }
        out
    }

    /// Those that are added or replaced, in byte order.
    pub fn fresh(&self) -> Vec<&'c str> {
        self.added.union(&self.replaced).copied().collect()
    }

    /// Numbers and names, for the record.
    pub fn tell(&self, report: &mut Report) {
        let Self { added, replaced, unchanged, reshaped } = self;
        let taken = added.len() + replaced.len() + unchanged.len();
        report.notes.push(format!(
            "{taken} tensor{} taken: {} added, {} replaced, {} there already with the same bytes",
            if taken == 1 { "" } else { "s" },
            added.len(),
            replaced.len(),
            unchanged.len()
        ));
        if !reshaped.is_empty() {
            report.notes.push(format!("replaced by another type or shape: {}", few(reshaped)));
            report.facts.insert("reshaped".to_owned(), json!(reshaped));
        }
        for (key, names) in [("added", added), ("replaced", replaced), ("unchanged", unchanged)] {
            report.facts.insert(key.to_owned(), json!(names));
        }
    }
}

/// What is odd and tolerated in the checkpoints.
pub fn tell_oddities(checkpoints: [(&str, &Checkpoint); 2], report: &mut Report) {
    for (alias, checkpoint) in checkpoints {
        report.notes.extend(checkpoint.notes.iter().map(|n| format!("{alias}: {n}")));
    }
}

/// Shards that are new, rewritten, left out or renamed.
pub fn tell_shards(into: &Checkpoint, shards: &[Planned<'_>], renamed: Option<String>, report: &mut Report) {
    let of = |pick: &dyn Fn(&&Planned<'_>) -> bool| {
        shards.iter().filter(|s| pick(s)).map(|s| s.file.clone()).collect::<Vec<_>>()
    };
    let new = of(&|s| s.old.is_none());
    let rewritten = of(&|s| s.old.is_some() && !s.kept);
    let left_out: Vec<&str> = gone(into, shards).iter().map(|s| s.file.name.as_str()).collect();
    for (what, names) in [("new", &new), ("rewritten", &rewritten)] {
        if !names.is_empty() {
            report.notes.push(format!("{what}: {}", names.join(", ")));
        }
    }
    if !left_out.is_empty() {
        report.notes.push(format!("left out, since all their tensors are replaced: {}", left_out.join(", ")));
    }
    if let Some(name) = &renamed {
        report.notes.push(format!("model.safetensors is now {name}: loaders take the bare name before an index"));
    }
    let facts = json!({ "new": new, "rewritten": rewritten, "left_out": left_out, "renamed": renamed });
    report.facts.insert("shards".to_owned(), facts);
}

fn gone<'a>(into: &'a Checkpoint, shards: &[Planned<'_>]) -> Vec<&'a crate::tensors::checkpoint::Shard> {
    let still: BTreeSet<&str> = shards.iter().filter_map(|s| Some(s.old?.file.name.as_str())).collect();
    into.shards.iter().filter(|s| !still.contains(s.file.name.as_str())).collect()
}

/// Keys of `__metadata__` that are written nowhere any more: those of the donor's shards that are not in the shards which
/// take the tensors, and those of shards that are left out.
pub fn tell_metadata(
    chosen: &Choice<'_>,
    sorted: &Sorted<'_>,
    into: &Checkpoint,
    shards: &[Planned<'_>],
    report: &mut Report,
) {
    let taken = chosen.iter().filter(|(name, _)| !sorted.unchanged.contains(name.as_str()));
    let donors: BTreeMap<&str, _> = taken.map(|(_, c)| (c.shard.file.name.as_str(), c.shard)).collect();
    let written: Vec<&[(String, String)]> = shards.iter().filter(|s| !s.kept).map(|s| s.metadata.as_slice()).collect();
    let all: Vec<&[(String, String)]> = shards.iter().map(|s| s.metadata.as_slice()).collect();
    for (whose, lost) in
        [("from", lost_metadata(donors.into_values(), &written)), ("into", lost_metadata(gone(into, shards), &all))]
    {
        if !lost.is_empty() {
            let keys: BTreeSet<&str> = lost.values().flat_map(|m| m.keys().map(String::as_str)).collect();
            let keys: Vec<&str> = keys.into_iter().collect();
            report.notes.push(format!("dropped from __metadata__ of `{whose}`: {}", keys.join(", ")));
            report.facts.insert(format!("metadata_dropped_of_{whose}"), json!(lost));
        }
    }
}

/// The donor's files that are no weights: none of them is taken.
pub fn tell_files_not_taken(from: &Input, report: &mut Report) {
    let others: Vec<String> =
        from.tree.iter().filter(|(p, _)| !p.as_str().is_some_and(is_weight_file)).map(|(p, _)| p.to_string()).collect();
    if !others.is_empty() {
        report.notes.push(format!("of `from` only tensors are taken, not {}", few(&others)));
        report.facts.insert("files_not_taken".to_owned(), json!(others));
    }
}

/// The first five of a list and how many more there are: facts hold all of them.
pub fn few(names: &[String]) -> String {
    let shown = names.get(..5).unwrap_or(names);
    let more = names.len() - shown.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", shown.join(", "))
}
