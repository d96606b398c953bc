//! A checkpoint under suspicion: opened also where index and shards disagree, with everything that is wrong on a list.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::findings::Findings;
use crate::jsonedit::Document;
use crate::kinds::names_kept::TensorNames;
use crate::kinds::paths::PathGlob;
use crate::kinds::weights::{document, file_behind};
use crate::kinds::{Input, StepError};
use crate::model::path::RelPath;
use crate::tensors::checkpoint::is_shard_name;
use crate::tensors::index::{INDEX_NAME, Index, MAX_INDEX_BYTES};
use crate::tensors::table::{TensorEntry, TensorTable};

type Shard = (String, Arc<TensorTable>);

/// The tensors of an input, its config.json, and what is wrong with its weight files.
pub(super) struct Model {
    pub(super) tensors: BTreeMap<String, TensorEntry>,
    pub(super) config: Option<Document>,
    has_weights: bool,
    // Tensor → the shard that holds it.
    holders: BTreeMap<String, String>,
    faults: Vec<String>,
    notes: Vec<String>,
}

impl Model {
    /// Opens the weights and config.json of an input. Weight files that `allow_stray` matches and the index does not
    /// name are passed over. Errors: a shard, an index or a config.json that is broken.
    pub(super) fn open(input: &Input, allow_stray: &[PathGlob]) -> Result<Model, StepError> {
        let mut model = Model {
            tensors: BTreeMap::new(),
            config: document(input, "config.json")?,
            has_weights: false,
            holders: BTreeMap::new(),
            faults: Vec::new(),
            notes: Vec::new(),
        };
        let index = read_index(input)?;
        let named: BTreeSet<&str> = index.iter().flat_map(|i| i.weight_map.values()).map(String::as_str).collect();
        let mut shards: Vec<Shard> = Vec::new();
        let mut strays: Vec<Shard> = Vec::new();
        let mut others: Vec<&str> = Vec::new();
        for (path, entry) in input.tree.iter() {
            let Some(name) = path.as_str().filter(|n| is_weights(n)) else { continue };
            let Some((blob, _)) = file_behind(&input.tree, path, entry) else {
                model.faults.push(format!("{name} leads to no file"));
                continue;
            };
            let is_named = named.contains(name);
            if !is_named && allow_stray.iter().any(|g| g.matches(path)) {
                model.notes.push(format!("{name} is allowed beside the weights"));
            } else if is_shard_name(name) {
                let place = format!("the input `{}`: {name}", input.alias);
                let table = input.files.table(blob).map_err(StepError::io(place.clone()))?;
                let broken = || StepError::invalid(format!("{place} is no safetensors file"), "fetch or make it again");
                let list = if index.is_some() && !is_named { &mut strays } else { &mut shards };
                list.push((name.to_owned(), table.ok_or_else(broken)?));
            } else {
                others.push(name);
            }
        }
        model.has_weights = index.is_some() || !shards.is_empty();
        model.compare(index.as_ref(), &shards);
        model.compare_strays(&strays);
        if model.has_weights {
            model.faults.extend(others.iter().map(|name| format!("{name} is a weight file beside the shards")));
        }
        Ok(model)
    }

    fn compare_strays(&mut self, strays: &[Shard]) {
        for (name, table) in strays {
            let twice = table.tensors.iter().filter(|t| self.holders.contains_key(&t.name));
            let shown = twice.clone().take(5).map(|t| match self.holders.get(&t.name) {
                Some(shard) => format!("{} of {shard}", t.name),
                None => t.name.clone(),
            });
            let shown: Vec<String> = shown.collect();
            let more = twice.count().saturating_sub(shown.len());
            let mut fault = format!("{name} is a weight file that {INDEX_NAME} does not name");
            if !shown.is_empty() {
                fault.push_str(&format!("; it holds again {}", shown.join(", ")));
            }
            if more > 0 {
                fault.push_str(&format!(" and {more} more"));
            }
            self.faults.push(fault);
        }
    }

    fn compare(&mut self, index: Option<&Index>, shards: &[Shard]) {
        for (shard, table) in shards {
            for t in &table.tensors {
                match self.holders.get(&t.name) {
                    Some(first) => self.faults.push(format!("{} stands in {first} and in {shard}", t.name)),
                    None => {
                        self.holders.insert(t.name.clone(), shard.clone());
                        self.tensors.insert(t.name.clone(), t.clone());
                    }
                }
            }
        }
        let Some(index) = index else {
            if shards.len() > 1 {
                self.faults.push(format!("there are {} shards and no {INDEX_NAME}", shards.len()));
            }
            return;
        };
        let there: BTreeSet<&str> = shards.iter().map(|s| s.0.as_str()).collect();
        let mut missing: BTreeSet<&str> = BTreeSet::new();
        for (tensor, shard) in &index.weight_map {
            let holds = |s: &Shard| s.0 == *shard && s.1.get(tensor).is_some();
            if !there.contains(shard.as_str()) {
                missing.insert(shard);
            } else if self.holders.get(tensor) != Some(shard) && !shards.iter().any(holds) {
                let place = self.holders.get(tensor).map_or("no shard holds it".to_owned(), |s| format!("{s} does"));
                self.faults.push(format!("{INDEX_NAME} puts {tensor} into {shard}, but {place}"));
            }
        }
        self.faults.extend(missing.iter().map(|s| format!("{INDEX_NAME} names {s}, and there is no such file")));
        for (tensor, shard) in self.holders.iter().filter(|(t, _)| !index.weight_map.contains_key(*t)) {
            self.faults.push(format!("{shard} holds {tensor}, which {INDEX_NAME} does not name"));
        }
        let bytes: u64 = shards.iter().map(|s| s.1.data_len()).sum();
        if let Some(given) = index.total_size().filter(|n| *n != bytes) {
            self.notes.push(format!("total_size of {INDEX_NAME} is {given}, and the tensors have {bytes} bytes"));
        }
    }

    /// Index and shards agree, and each tensor has one copy. Asserted of everything that has weights.
    pub(super) fn assert_weights(&self, found: &mut Findings) {
        if !self.has_weights {
            return;
        }
        let assertion = "index and shards to agree, and one copy of each tensor";
        if self.faults.is_empty() {
            found.holds(assertion, self.notes.clone());
        } else {
            found.add(assertion, self.faults.clone());
        }
        found.fact("tensors", self.tensors.len());
    }

    /// Names and types of all tensors.
    pub(super) fn names(&self) -> TensorNames {
        self.tensors.iter().map(|(n, t)| (n.clone(), t.dtype)).collect()
    }
}

/// Shards, and other files that a loader might take for weights.
fn is_weights(name: &str) -> bool {
    let other = [".bin", ".pt", ".pth", ".gguf"].iter().any(|e| name.ends_with(e));
    let like_weights = ["pytorch_model", "model", "consolidated"].iter().any(|s| name.starts_with(s));
    is_shard_name(name) || (!name.contains('/') && other && (like_weights || name.ends_with(".gguf")))
}

fn read_index(input: &Input) -> Result<Option<Index>, StepError> {
    let Ok(path) = RelPath::try_from(INDEX_NAME) else { return Ok(None) };
    if input.tree.get(&path).is_none() {
        return Ok(None);
    }
    let place = format!("the input `{}`: {INDEX_NAME}", input.alias);
    let bytes = input.read(&path, MAX_INDEX_BYTES).map_err(StepError::io(place.clone()))?;
    let index = Index::parse(&bytes);
    index.map(Some).map_err(|e| StepError::invalid(format!("{place}: {e}"), "write it again from the shards"))
}
