//! `quant`: a checkpoint's Linear weights in fewer bits, natively where no calibration is needed, else by a script.
//!
//! ```toml
//! [node.quant]
//! kind = "quant"
//! inputs.model = "graft"
//! method = "nvfp4a16"
//! ignore = ["lm_head", "model.visual.*", "re:.*in_proj_[ab]$"]
//! drop = ["mtp.*"]
//! ```
//!
//! With `method` every shard is rewritten under its name ([`rewrite`]), the index is brought up to date, config.json
//! gains `quantization_config` ([`config`]) and nothing else of the input changes; [`mod@select`] says what counts as
//! Linear. With `argv` the step is a script, as with the kind `run`; its output is held to the same names.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde_json::json;

use crate::jsonedit::Document;
use crate::kinds::names_kept::{TensorNames, names_of};
use crate::kinds::read::needs;
use crate::kinds::run::{COMMAND_KEYS, command, command_action, something_written};
use crate::kinds::weights::told::few;
use crate::kinds::weights::write::{put_index, rel};
use crate::kinds::{
    Action, Input, KeySpec, KeyType, Kind, Output, ParamError, Params, Report, Space, Step, StepError, weights,
};
use crate::near::did_you_mean;
use crate::tensors::checkpoint::{Checkpoint, Shard};
use crate::tensors::dtype::elements;
use crate::tensors::index::{INDEX_NAME, Index};
use crate::tensors::pattern::Pattern;

pub mod config;
pub mod fuse;
pub mod kept;
pub mod nvfp4;
pub mod rewrite;
pub mod round;
pub mod select;

use kept::Side;
use rewrite::{Fate, Rewriter};
use select::{Selection, Tensor, select};

/// The kind `quant`.
pub struct Quant;

const CONFIG: &str = "config.json";

/// Methods that need no script.
const METHODS: [&str; 1] = ["nvfp4a16"];

static KEYS: LazyLock<Vec<KeySpec>> = LazyLock::new(|| {
    let mut keys = vec![
        KeySpec::optional("method", KeyType::Str, "a native method: \"nvfp4a16\""),
        KeySpec::optional("ignore", KeyType::StrList, "modules that stay plain: globs, or re: and an expression"),
        KeySpec::optional("drop", KeyType::StrList, "tensors or modules that are left out, likewise"),
    ];
    keys.push(KeySpec::optional(
        "drop_config",
        KeyType::StrList,
        "dotted keys of config.json that a script may lose, such as text_config.mtp_num_hidden_layers",
    ));
    keys.extend(COMMAND_KEYS.iter().map(|k| KeySpec { required: false, ..*k }));
    keys
});

impl Kind for Quant {
    fn name(&self) -> &'static str {
        "quant"
    }

    fn revision(&self) -> u32 {
        1
    }

    fn about(&self) -> &'static str {
        "quantises a checkpoint: natively (nvfp4a16) or by a script"
    }

    fn keys(&self) -> &'static [KeySpec] {
        &KEYS
    }

    fn check(&self, params: &Params, aliases: &[&str]) -> Result<(), ParamError> {
        if !aliases.contains(&"model") {
            let e = ParamError::new("inputs", "`quant` takes the input `model`, and there is none");
            return Err(e.hint(needs("model", aliases)));
        }
        patterns(params, "drop")?;
        match (params.get("method"), params.contains_key("argv")) {
            (Some(_), true) => Err(ParamError::new("argv", "`method` and `argv` exclude each other")
                .hint("keep `method` for the native quantiser, or `argv` for a script")),
            (None, false) => Err(ParamError::new("method", "neither `method` nor `argv` is given")
                .hint("method = \"nvfp4a16\", or argv = [\"…\"] for a script")),
            (None, true) if params.contains_key("ignore") => {
                Err(ParamError::new("ignore", "`ignore` goes with `method`")
                    .hint("give a script its own list in `params`"))
            }
            (None, true) => {
                kept::drop_config(params)?;
                command(params, aliases).map(|_| ())
            }
            (Some(method), false) => {
                let name = method.as_str().unwrap_or_default();
                if !METHODS.contains(&name) {
                    let hint = did_you_mean(name, METHODS).unwrap_or_else(|| format!("known are {METHODS:?}"));
                    return Err(ParamError::new("method", format!("{name:?} is no native method")).hint(hint));
                }
                patterns(params, "ignore")?;
                if let Some(key) = COMMAND_KEYS.iter().find(|k| params.contains_key(k.name)) {
                    return Err(ParamError::new(
                        key.name,
                        format!("`{}` goes with `argv`, not with `method`", key.name),
                    ));
                }
                match aliases.iter().find(|a| **a != "model") {
                    Some(other) => {
                        let what = format!("the native quantiser takes no input `{other}`, only `model`");
                        Err(ParamError::new(format!("inputs.{other}"), what))
                    }
                    None => Ok(()),
                }
            }
        }
    }

    fn action(&self, params: &Params, inputs: &BTreeMap<String, Input>) -> Result<Action, StepError> {
        if params.contains_key("argv") { command_action(params, inputs) } else { Ok(Action::Builtin) }
    }

    fn space(&self, step: &Step<'_>) -> Result<Option<Space>, StepError> {
        let model = step.input("model")?;
        let checkpoint = weights::open(model)?;
        let facts = config::facts(&read_config(model)?);
        rewrite::space_of(&checkpoint, &selected(step.params, &checkpoint, &facts)?).map(Some)
    }

    fn run(&self, step: &Step<'_>, out: &mut Output) -> Result<Report, StepError> {
        let model = step.input("model")?;
        let checkpoint = weights::open(model)?;
        let mut config = read_config(model)?;
        let facts = config::facts(&config);
        if let Some(at) = facts.quantised_at {
            let what = format!("the input `model` is quantised already: {CONFIG} has {at}");
            return Err(StepError::invalid(what, "quantise the checkpoint that it was made from"));
        }
        let drop = wanted(step.params, "drop")?;
        let selection = selected(step.params, &checkpoint, &facts)?;

        out.keep_all(model);
        let mut rewriter = Rewriter::new(step, model, &checkpoint, &selection);
        let mut fates = Vec::new();
        for shard in &checkpoint.shards {
            let path = rel(&shard.file.name)?;
            fates.push((shard, rewriter.shard(shard, &path, out)?));
        }
        let bytes_out = fates
            .iter()
            .map(|(shard, fate)| match fate {
                Fate::Kept => shard.table.data_len(),
                Fate::LeftOut => 0,
                Fate::Rewritten(specs) => specs.iter().filter_map(|s| s.dtype.byte_len(&s.shape).ok()).sum(),
            })
            .sum();
        let mut notes = Vec::new();
        if let Some(old) = &checkpoint.index {
            let (index, note) = index_of(old, &fates, bytes_out, &checkpoint, &selection);
            put_index(out, &checkpoint, &index)?;
            notes.extend(note);
        }
        let before = config.clone();
        let ignored: Vec<String> = selection.ignored.iter().cloned().collect();
        config::insert(&mut config, &config::nvfp4a16(&ignored))
            .map_err(|e| StepError::invalid(format!("{CONFIG}: {e}"), "it must be a JSON object"))?;
        // By construction nothing is lost; a fault of ours must not get out for all that.
        let was = Side { names: names_of(&checkpoint), config: Some(&before) };
        kept::nothing_lost(&was, &Side { names: names_after(&fates), config: Some(&config) }, &drop, &[])?;
        out.write(rel(CONFIG)?, &config.finish()).map_err(StepError::io(format!("writing {CONFIG}")))?;
        Ok(report(&checkpoint, &selection, bytes_out, notes))
    }

    fn accept(&self, step: &Step<'_>, out: &Input) -> Result<Report, StepError> {
        something_written(out)?;
        let as_step = |e: ParamError| StepError::Invalid { what: e.what, hint: e.hint };
        let (drop, drop_config) =
            (patterns(step.params, "drop").map_err(as_step)?, kept::drop_config(step.params).map_err(as_step)?);
        let model = step.input("model")?;
        let (was, now) = (weights::open(model)?, weights::open(out)?);
        let (was_config, now_config) = (weights::document(model, CONFIG)?, weights::document(out, CONFIG)?);
        kept::nothing_lost(
            &Side { names: names_of(&was), config: was_config.as_ref() },
            &Side { names: names_of(&now), config: now_config.as_ref() },
            &drop,
            &drop_config,
        )?;
        let (bytes_in, bytes_out) = (was.data_len(), now.data_len());
        let mut notes = now.notes.clone();
        notes.push(format!("nothing is lost; {bytes_in} bytes of tensors became {bytes_out}"));
        let mut facts: std::collections::BTreeMap<String, serde_json::Value> =
            [("bytes_in", json!(bytes_in)), ("bytes_out", json!(bytes_out))].map(|(k, v)| (k.to_owned(), v)).into();
        let left = kept::files_left_behind(model, out);
        if !left.is_empty() {
            notes.push(format!("of `model` the script left behind {}", few(&left)));
            facts.insert("files_left_behind".to_owned(), json!(left));
        }
        Ok(Report { verdict: None, notes, facts })
    }
}

/// What is quantised, left plain and dropped.
fn selected(params: &Params, checkpoint: &Checkpoint, facts: &config::Facts) -> Result<Selection, StepError> {
    let tensors: Vec<Tensor<'_>> =
        checkpoint.tensors().map(|(_, t)| Tensor { name: &t.name, dtype: t.dtype, shape: &t.shape }).collect();
    select(&tensors, facts, &wanted(params, "ignore")?, &wanted(params, "drop")?)
}

fn wanted(params: &Params, key: &str) -> Result<Vec<Pattern>, StepError> {
    patterns(params, key).map_err(|e| StepError::Invalid { what: e.what, hint: e.hint })
}

/// Patterns of a key, none where it is not there.
fn patterns(params: &Params, key: &str) -> Result<Vec<Pattern>, ParamError> {
    let Some(value) = params.get(key) else { return Ok(Vec::new()) };
    let texts = value
        .as_str_list()
        .ok_or_else(|| ParamError::new(key, format!("`{key}` takes a list of strings, found {}", value.type_name())))?;
    texts.into_iter().map(|t| Pattern::module(t).map_err(|e| ParamError::new(key, e.to_string()))).collect()
}

fn read_config(model: &Input) -> Result<Document, StepError> {
    if model.tree.at("hf_quant_config.json").is_some() {
        let what = "the input `model` is quantised already: it has hf_quant_config.json";
        return Err(StepError::invalid(what, "quantise the checkpoint that it was made from"));
    }
    weights::document(model, CONFIG)?.ok_or_else(|| {
        let what = format!("the input `{}` has no {CONFIG}, which says how its weights are stored", model.alias);
        StepError::invalid(what, format!("add {CONFIG:?} to `uses` of inputs.{}", model.alias))
    })
}

/// Names and types of the tensors as they are now.
fn names_after(fates: &[(&Shard, Fate)]) -> TensorNames {
    let of = |(shard, fate): &(&Shard, Fate)| -> Vec<_> {
        match fate {
            Fate::LeftOut => Vec::new(),
            Fate::Kept => shard.table.tensors.iter().map(|t| (t.name.clone(), t.dtype)).collect(),
            Fate::Rewritten(specs) => specs.iter().map(|s| (s.name.clone(), s.dtype)).collect(),
        }
    };
    fates.iter().flat_map(of).collect()
}

/// The index with the tensors as they are now; a note where one of its numbers could not be kept right.
fn index_of(
    old: &Index,
    fates: &[(&Shard, Fate)],
    total_size: u64,
    checkpoint: &Checkpoint,
    selection: &Selection,
) -> (Index, Option<String>) {
    let mut index = old.clone();
    let changed: BTreeSet<&str> =
        fates.iter().filter(|(_, f)| *f != Fate::Kept).map(|(s, _)| s.file.name.as_str()).collect();
    index.weight_map.retain(|_, shard| !changed.contains(shard.as_str()));
    for (shard, fate) in fates {
        if let Fate::Rewritten(specs) = fate {
            index.weight_map.extend(specs.iter().map(|s| (s.name.clone(), shard.file.name.clone())));
        }
    }
    // A packed weight still stands for as many parameters: only what is dropped is gone.
    let gone = checkpoint.tensors().filter(|(_, t)| selection.dropped.contains(&t.name));
    let gone = gone.filter_map(|(_, t)| elements(&t.shape)).sum();
    let note = index
        .update_sums(total_size, 0, gone)
        .map(|old| format!("{INDEX_NAME}: total_parameters = {old} could not be kept right and was removed"));
    (index, note)
}

fn report(checkpoint: &Checkpoint, selection: &Selection, bytes_out: u64, more: Vec<String>) -> Report {
    let bytes_in = checkpoint.data_len();
    let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let mut notes = checkpoint.notes.clone();
    notes.push(format!(
        "{} quantised, {} left plain, {} dropped; {bytes_in} bytes of tensors became {bytes_out}",
        count(selection.quantised.len(), "module"),
        count(selection.ignored.len() - selection.tied.len(), "Linear module"),
        count(selection.dropped.len(), "tensor"),
    ));
    if !selection.tied.is_empty() {
        let names: Vec<&str> = selection.tied.iter().map(String::as_str).collect();
        let are = if names.len() == 1 { "has no tensor, being" } else { "have no tensors, being" };
        notes.push(format!("{} {are} tied to the embedding; listed for loaders that build it", names.join(", ")));
    }
    notes.extend(more);
    notes.extend(split_groups(selection));
    let facts = [
        ("method", json!(METHODS[0])),
        ("quantised", json!(selection.quantised.len())),
        ("ignored", json!(selection.ignored)),
        ("dropped", json!(selection.dropped)),
        ("bytes_in", json!(bytes_in)),
        ("bytes_out", json!(bytes_out)),
    ];
    Report { verdict: None, notes, facts: facts.map(|(k, v)| (k.to_owned(), v)).into() }
}

/// Servers fuse q, k and v into one matrix, and refuse one that is half quantised.
fn split_groups(selection: &Selection) -> Vec<String> {
    let quantised: BTreeSet<&str> = selection.quantised.values().map(|w| w.group.as_str()).collect();
    let plain = selection.ignored.iter().filter(|m| quantised.contains(fuse::scale_group(m).as_str()));
    plain.map(|m| format!("{m} stays plain, but modules that servers fuse with it are quantised")).collect()
}
