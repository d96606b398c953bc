//! Whether a quantised checkpoint still has everything that went into it: exit code 0 alone is no success.
//!
//! A tensor `X.weight` may have become
//!
//! | format | tensors |
//! | --- | --- |
//! | compressed-tensors | `X.weight_packed` and `X.weight_scale`, with FP8 scales also `X.weight_global_scale` |
//! | modelopt and FP8 | `X.weight` of a packed type and `X.weight_scale` or `X.weight_scale_inv`, with FP8 scales over bytes also `X.weight_scale_2` |
//!
//! Any other tensor must be there under its own name. New names (scales of inputs and of the cache) are free. A key of
//! config.json must not be lost either: `text_config.mtp_num_hidden_layers` goes away with the draft head.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;

use crate::jsonedit::{Document, Pointer};
use crate::tensors::checkpoint::Checkpoint;
use crate::tensors::dtype::Dtype;
use crate::tensors::pattern::{NoMatch, Pattern, matching};

/// Tensor names with their types.
pub type TensorNames = BTreeMap<String, Dtype>;

/// What was lost on the way.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lost {
    /// Tensors that are gone, in byte order.
    pub tensors: Vec<String>,
    /// Quantised weights that lack a scale: the weight, and the names that are not there.
    pub scales: Vec<(String, Vec<String>)>,
    /// Keys of config.json that are gone, dotted, the outermost only.
    pub config_keys: Vec<String>,
    /// Where the lost tensors seem to be: the old prefix, the new one, and how many of them.
    pub moved: Option<(String, String, usize)>,
}

impl Lost {
    /// Whether nothing was.
    pub fn is_nothing(&self) -> bool {
        self.tensors.is_empty() && self.scales.is_empty() && self.config_keys.is_empty()
    }

    /// One line for each thing that was lost, every name among them.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some((old, new, n)) = &self.moved {
            lines.push(format!("{n} of the tensors are there under another prefix: {old:?} became {new:?}"));
        }
        lines.extend(self.tensors.iter().map(|t| format!("the tensor {t} is gone")));
        for (weight, missing) in &self.scales {
            lines.push(format!("{weight} is quantised and lacks {}", missing.join(" and ")));
        }
        lines.extend(self.config_keys.iter().map(|k| format!("the key {k} of config.json is gone")));
        lines
    }
}

/// The names and types of a checkpoint.
pub fn names_of(checkpoint: &Checkpoint) -> TensorNames {
    checkpoint.tensors().map(|(_, t)| (t.name.clone(), t.dtype)).collect()
}

/// What of `was`, less what `drop` matches (by the tensor's name or its module's), is not in `now`. Errors: a pattern
/// that matches nothing in `was`.
pub fn names_kept(was: &TensorNames, now: &TensorNames, drop: &[Pattern]) -> Result<Lost, NoMatch> {
    let modules = |name: &str| name.rsplit_once('.').map(|(m, _)| m.to_owned());
    let mut known: Vec<String> = was.keys().cloned().collect();
    known.extend(was.keys().filter_map(|n| modules(n)));
    known.sort();
    known.dedup();
    matching(&known.iter().map(String::as_str).collect::<Vec<_>>(), drop)?;
    let dropped = |name: &str| {
        drop.iter().any(|p| p.matches(name) || name.rsplit_once('.').is_some_and(|(module, _)| p.matches(module)))
    };
    let mut lost = Lost::default();
    for (name, dtype) in was.iter().filter(|(n, _)| !dropped(n)) {
        match fate(name, *dtype, now) {
            Fate::Kept => {}
            Fate::Gone => lost.tensors.push(name.clone()),
            Fate::Lacks(missing) => lost.scales.push((name.clone(), missing)),
        }
    }
    lost.moved = moved(&lost.tensors, was, now);
    Ok(lost)
}

enum Fate {
    Kept,
    Gone,
    Lacks(Vec<String>),
}

fn fate(name: &str, was: Dtype, now: &TensorNames) -> Fate {
    let Some(module) = name.strip_suffix(".weight") else {
        return if now.contains_key(name) { Fate::Kept } else { Fate::Gone };
    };
    let part = |leaf: &str| format!("{module}.{leaf}");
    let mut missing = Vec::new();
    if now.contains_key(&part("weight_packed")) {
        match now.get(&part("weight_scale")) {
            None => missing.push(part("weight_scale")),
            Some(Dtype::F8E4M3) if !now.contains_key(&part("weight_global_scale")) => {
                missing.push(part("weight_global_scale"));
            }
            Some(_) => {}
        }
    } else {
        let Some(dtype) = now.get(name) else { return Fate::Gone };
        // Unquantised still, or quantised before.
        if *dtype == was || dtype.is_plain_float() {
            return Fate::Kept;
        }
        match now.get(&part("weight_scale")).or_else(|| now.get(&part("weight_scale_inv"))) {
            None => missing.push(part("weight_scale")),
            Some(Dtype::F8E4M3) if *dtype == Dtype::U8 && !now.contains_key(&part("weight_scale_2")) => {
                missing.push(part("weight_scale_2"));
            }
            Some(_) => {}
        }
    }
    if missing.is_empty() { Fate::Kept } else { Fate::Lacks(missing) }
}

/// Whether most lost names are there with another beginning, as a causal class saves them.
fn moved(lost: &[String], was: &TensorNames, now: &TensorNames) -> Option<(String, String, usize)> {
    let mut tried = BTreeSet::new();
    for name in lost.iter().take(20) {
        let cuts = name.match_indices('.').map(|(i, _)| i + 1);
        for cut in std::iter::once(0).chain(cuts.take(3)) {
            let (old, tail) = name.split_at(cut);
            for new in now.keys().filter_map(|n| n.strip_suffix(tail).or_else(|| quantised_prefix(n, tail))) {
                let is_prefix = new.is_empty() || new.ends_with('.');
                // A short tail fits many names; the right pair of prefixes is among the first.
                if new == old || !is_prefix || tried.len() > 64 || !tried.insert((old, new)) {
                    continue;
                }
                let there = |n: &&String| {
                    let Some(tail) = n.strip_prefix(old) else { return false };
                    // A name that was there before is that tensor, not this one.
                    let moved = format!("{new}{tail}");
                    !was.contains_key(&moved) && !matches!(fate(&moved, Dtype::Bf16, now), Fate::Gone)
                };
                let n = lost.iter().filter(there).count();
                if n * 2 > lost.len() {
                    return Some((old.to_owned(), new.to_owned(), n));
                }
            }
        }
    }
    None
}

fn quantised_prefix<'a>(name: &'a str, tail: &str) -> Option<&'a str> {
    name.strip_suffix("_packed")?.strip_suffix(tail)
}

/// The dotted keys of `was` that `now` lacks; of a lost object only the object itself.
pub fn config_keys_lost(was: &Document, now: &Document) -> Vec<String> {
    let root = Pointer::root();
    let mut lost = Vec::new();
    if let (Some(was), Some(now)) = (was.value(&root), now.value(&root)) {
        keys_lost(&was, &now, "", &mut lost);
    }
    lost
}

fn keys_lost(was: &Json, now: &Json, at: &str, lost: &mut Vec<String>) {
    let (Some(was), Some(now)) = (was.as_object(), now.as_object()) else { return };
    for (key, old) in was {
        let here = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
        match now.get(key) {
            None => lost.push(here),
            Some(new) => keys_lost(old, new, &here, lost),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[(&str, Dtype)]) -> TensorNames {
        list.iter().map(|(n, d)| ((*n).to_owned(), *d)).collect()
    }

    fn bf16(list: &[&str]) -> TensorNames {
        list.iter().map(|n| ((*n).to_owned(), Dtype::Bf16)).collect()
    }

    #[test]
    fn a_weight_may_become_packed_and_scales_in_either_dialect() {
        let was = bf16(&["a.weight", "b.weight", "c.weight", "n.weight", "x.A_log"]);
        let now = names(&[
            ("a.weight_packed", Dtype::U8),
            ("a.weight_scale", Dtype::F8E4M3),
            ("a.weight_global_scale", Dtype::F32),
            ("b.weight", Dtype::U8),
            ("b.weight_scale", Dtype::F8E4M3),
            ("b.weight_scale_2", Dtype::F32),
            ("b.input_scale", Dtype::F32),
            ("c.weight", Dtype::F8E4M3),
            ("c.weight_scale", Dtype::F32),
            ("n.weight", Dtype::F16),
            ("x.A_log", Dtype::Bf16),
        ]);
        assert!(names_kept(&was, &now, &[]).unwrap().is_nothing());
    }

    #[test]
    fn a_quantised_weight_without_its_scales_is_no_weight() {
        let was = bf16(&["a.weight", "b.weight", "c.weight"]);
        let now = names(&[
            ("a.weight_packed", Dtype::U8),
            ("a.weight_scale", Dtype::F8E4M3),
            ("b.weight", Dtype::U8),
            ("c.weight", Dtype::U8),
            ("c.weight_scale", Dtype::F8E4M3),
        ]);
        let lost = names_kept(&was, &now, &[]).unwrap();
        assert_eq!(
            lost.lines(),
            [
                "a.weight is quantised and lacks a.weight_global_scale",
                "b.weight is quantised and lacks b.weight_scale",
                "c.weight is quantised and lacks c.weight_scale_2",
            ]
        );
    }

    #[test]
    fn what_is_dropped_on_purpose_is_not_missed_and_a_pattern_for_nothing_is_an_error() {
        let was = bf16(&["a.weight", "mtp.fc.weight", "mtp.norm.weight"]);
        let now = bf16(&["a.weight"]);
        let lost = names_kept(&was, &now, &[]).unwrap();
        assert_eq!(lost.tensors, ["mtp.fc.weight", "mtp.norm.weight"]);
        assert!(names_kept(&was, &now, &[Pattern::glob("mtp.*")]).unwrap().is_nothing());
        assert_eq!(names_kept(&was, &now, &[Pattern::glob("mtp.fc")]).unwrap().tensors, ["mtp.norm.weight"]);
        assert!(names_kept(&was, &now, &[Pattern::glob("mpt.*")]).is_err());
    }

    #[test]
    fn names_cut_to_another_prefix_are_recognised() {
        let was = bf16(&["model.language_model.layers.0.q.weight", "model.language_model.layers.1.q.weight", "h"]);
        let mut now = bf16(&["h"]);
        for i in 0..2 {
            now.insert(format!("model.layers.{i}.q.weight_packed"), Dtype::U8);
            now.insert(format!("model.layers.{i}.q.weight_scale"), Dtype::F32);
        }
        let lost = names_kept(&was, &now, &[]).unwrap();
        assert_eq!(lost.moved, Some(("model.language_model.".into(), "model.".into(), 2)));
    }

    #[test]
    fn lost_config_keys_are_named_outermost_first() {
        let doc = |t: &str| Document::parse(t.as_bytes()).unwrap();
        let was = doc(r#"{"a": 1, "text_config": {"mtp_num_hidden_layers": 1, "x": 2}, "v": {"w": {"z": 1}}}"#);
        let now = doc(r#"{"text_config": {"x": 3}, "a": null, "quantization_config": {}}"#);
        assert_eq!(config_keys_lost(&was, &now), ["text_config.mtp_num_hidden_layers", "v"]);
    }
}
