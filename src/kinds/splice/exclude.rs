//! Exclusion lists: the modules that a server must not take for quantised ones.
//!
//! How a list is read stands in [`crate::kinds::exclusions`].
//!
//! What is added are exact names, since every server accepts those, and only where no entry covers the module yet. All
//! other bytes of the files stay. Source: vLLM 0.32 with checkpoints of both methods.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use crate::jsonedit::{Document, Parents, Pointer};
use crate::kinds::exclusions::{Coverage, Dialect, HF_QUANT_CONFIG, PLACE_IN_HF_QUANT_CONFIG, PLACES_IN_CONFIG};
use crate::kinds::weights::choice::Choice;
use crate::kinds::weights::document;
use crate::kinds::{Input, StepError};
use crate::tensors::checkpoint::Checkpoint;

/// What becomes of the lists.
#[derive(Debug, Default)]
pub struct Extended {
    /// Files that changed, whole.
    pub files: BTreeMap<&'static str, Vec<u8>>,
    /// File and list → the modules that it gained.
    pub added: BTreeMap<String, Vec<String>>,
    /// Lines for the record.
    pub notes: Vec<String>,
}

/// The linear modules among the tensors taken that are no quantised ones: of each rank-2 `.weight` in a plain float type
/// without scales beside it, the name without `.weight`; in byte order.
pub fn modules<'c>(chosen: &'c Choice<'_>) -> Vec<&'c str> {
    let linear = chosen.iter().filter(|(_, c)| c.entry.shape.len() == 2 && c.entry.dtype.is_plain_float());
    let named = linear.filter_map(|(name, _)| name.strip_suffix(".weight"));
    named.filter(|m| !chosen.contains_key(&format!("{m}.weight_scale"))).collect()
}

/// Extends every exclusion list of a checkpoint by those modules that it does not cover. Errors: [`StepError`] for a
/// method whose lists are not known, a list that is none, and a quantised checkpoint without a quantisation config.
pub fn extend(input: &Input, into: &Checkpoint, modules: &[&str]) -> Result<Extended, StepError> {
    let mut out = Extended::default();
    if modules.is_empty() {
        return Ok(out);
    }
    let mut found = false;
    if let Some(mut config) = document(input, "config.json")? {
        let mut changed = false;
        for place in PLACES_IN_CONFIG {
            let at = pointer(place)?;
            let Some(Json::Object(quant)) = config.value(&at) else { continue };
            let dialect = dialect(place, quant.get("quant_method"))?;
            found = true;
            changed |= add(&mut config, "config.json", &at.child("ignore"), dialect, modules, &mut out)?;
        }
        if changed {
            out.files.insert("config.json", config.finish());
        }
    }
    const HF: &str = HF_QUANT_CONFIG;
    if let Some(mut hf) = document(input, HF)? {
        let at = pointer(PLACE_IN_HF_QUANT_CONFIG)?;
        if !matches!(hf.value(&at), Some(Json::Object(_))) {
            return Err(StepError::invalid(format!("{HF}: there is no object `quantization`"), "is it modelopt's?"));
        }
        found = true;
        if add(&mut hf, HF, &at.child("exclude_modules"), Dialect::Globs, modules, &mut out)? {
            out.files.insert(HF, hf.finish());
        }
    }
    if !found {
        let scaled = into.names().into_iter().find(|n| n.ends_with(".weight_scale") || n.ends_with(".weight_packed"));
        if let Some(tensor) = scaled {
            let what =
                format!("the input `into` is quantised ({tensor}), but has no config.json with a quantization_config");
            let hint = "add \"config.json\", and hf_quant_config.json where there is one, to `uses`";
            return Err(StepError::invalid(what, hint));
        }
        out.notes.push("`into` is not quantised: there is no exclusion list to extend".to_owned());
    }
    Ok(out)
}

fn pointer(text: &str) -> Result<Pointer, StepError> {
    Pointer::parse(text).map_err(|e| StepError::invalid(e.to_string(), ""))
}

fn dialect(place: &str, method: Option<&Json>) -> Result<Dialect, StepError> {
    let place = place.trim_start_matches('/').replace('/', ".");
    match method.and_then(Json::as_str) {
        Some(method) => Dialect::of_method(method).ok_or_else(|| {
            StepError::invalid(
                format!(
                    "config.json: {place}.quant_method is {method:?}, and how its exclusion list is read is not known"
                ),
                "splice knows compressed-tensors and modelopt",
            )
        }),
        None => Err(StepError::invalid(
            format!("config.json: {place} has no quant_method"),
            "set it to \"compressed-tensors\" or \"modelopt\", whichever made the checkpoint",
        )),
    }
}

// Says whether the document changed.
fn add(
    doc: &mut Document,
    file: &str,
    list: &Pointer,
    dialect: Dialect,
    modules: &[&str],
    out: &mut Extended,
) -> Result<bool, StepError> {
    let key = format!("{file}: {}", list.tokens().join("."));
    let entries = match doc.value(list) {
        None | Some(Json::Null) => None,
        Some(Json::Array(items)) => Some(items),
        Some(_) => return Err(StepError::invalid(format!("{key} is no list"), "make it a list of module names")),
    };
    let coverage = Coverage::read(entries.as_deref().unwrap_or_default(), dialect)
        .map_err(|e| StepError::invalid(format!("{key}: {e}"), "remove it"))?;
    // Python knows more expressions than we do. An exact name beside an entry that covers it does no harm.
    out.notes.extend(coverage.skipped.iter().map(|s| format!("{key}: {s}")));
    let missing: Vec<&str> = modules.iter().copied().filter(|m| !coverage.covers(m)).collect();
    let json = |e: crate::jsonedit::JsonError| StepError::invalid(format!("{file}: {e}"), e.hint().unwrap_or_default());
    if missing.is_empty() {
        out.notes.push(format!("{key} covers all {} modules already", modules.len()));
    } else if entries.is_some() {
        for m in &missing {
            doc.append_value(list, &Json::from(*m)).map_err(json)?;
        }
    } else {
        doc.set_value(list, &Json::from(missing.clone()), Parents::Require).map_err(json)?;
    }
    if !missing.is_empty() {
        out.notes.push(format!("{key} gains {}", missing.join(", ")));
        out.added.insert(key, missing.iter().map(|m| (*m).to_owned()).collect());
    }
    Ok(!missing.is_empty())
}
