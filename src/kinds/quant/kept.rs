//! Exit code 0 alone is no success: what went into a quantiser must be there afterwards, less what it was told to drop.

use crate::jsonedit::Document;
use crate::kinds::names_kept::{Lost, TensorNames, config_keys_lost, names_kept};
use crate::kinds::{Input, ParamError, Params, StepError};
use crate::tensors::checkpoint::is_weight_file;
use crate::tensors::pattern::Pattern;

/// Tensor names and config.json of a checkpoint; no config where it is not visible.
pub struct Side<'a> {
    /// Its tensors.
    pub names: TensorNames,
    /// Its config.
    pub config: Option<&'a Document>,
}

/// Dotted keys of config.json that a script may lose. Errors: [`ParamError`] for anything but a list of strings.
pub fn drop_config(params: &Params) -> Result<Vec<String>, ParamError> {
    let Some(value) = params.get("drop_config") else { return Ok(Vec::new()) };
    let keys = value.as_str_list().ok_or_else(|| {
        ParamError::new("drop_config", format!("`drop_config` takes a list of strings, found {}", value.type_name()))
    })?;
    Ok(keys.into_iter().map(str::to_owned).collect())
}

/// Files of `model`, weights and their index apart, that a script did not bring along: tokenizer, templates, licence.
/// No error, since an `edit` behind it may bring them back; but told.
pub fn files_left_behind(model: &Input, out: &Input) -> Vec<String> {
    let others = model.tree.iter().map(|(p, _)| p).filter(|p| !p.as_str().is_some_and(is_weight_file));
    others.filter(|p| out.tree.get(p).is_none()).map(ToString::to_string).collect()
}

/// Compares. Errors: [`StepError::Invalid`] naming every tensor, scale and key of config.json that was lost; a pattern
/// of `drop` that matches nothing.
pub fn nothing_lost(was: &Side<'_>, now: &Side<'_>, drop: &[Pattern], drop_config: &[String]) -> Result<(), StepError> {
    let mut lost: Lost = names_kept(&was.names, &now.names, drop)
        .map_err(|e| StepError::invalid(format!("`drop`: {e} in the input `model`"), e.hint()))?;
    lost.config_keys = match (was.config, now.config) {
        (None, _) => Vec::new(),
        (Some(_), None) => vec!["(all of it)".to_owned()],
        (Some(was), Some(now)) => config_keys_lost(was, now),
    };
    let may_go = |key: &String| drop_config.iter().any(|d| key == d || key.starts_with(&format!("{d}.")));
    lost.config_keys.retain(|k| !may_go(k));
    if lost.is_nothing() {
        return Ok(());
    }
    let lines = lost.lines();
    let what = format!("the output lost what the input `model` had:\n  {}", lines.join("\n  "));
    Err(StepError::invalid(what, "keep it, or name the tensors in `drop` and keys of config.json in `drop_config`"))
}
