//! Assertions on the tensors of a model, alone and against another.

use super::findings::Findings;
use super::model::Model;
use super::spec::{NamesKept, TensorSpec};
use crate::kinds::StepError;
use crate::kinds::names_kept::{config_keys_lost, names_kept};
use crate::tensors::pattern::{NoMatch, Pattern, matching};
use crate::tensors::table::TensorEntry;

fn told(e: &NoMatch) -> String {
    match e.hint() {
        hint if hint.is_empty() => e.to_string(),
        hint => format!("{e} ({hint})"),
    }
}

/// The tensors that a pattern matches, or a fault that it matches none.
fn select<'m>(model: &'m Model, pattern: &Pattern, faults: &mut Vec<String>) -> Vec<&'m TensorEntry> {
    let names: Vec<&str> = model.tensors.keys().map(String::as_str).collect();
    match matching(&names, std::slice::from_ref(pattern)) {
        Ok(found) => found.into_iter().filter_map(|n| model.tensors.get(n)).collect(),
        Err(e) => {
            faults.push(told(&e));
            Vec::new()
        }
    }
}

/// Asserts what `tensors` says.
pub(super) fn assert(spec: &TensorSpec, model: &Model, found: &mut Findings) {
    if let Some(count) = spec.count {
        let n = model.tensors.len();
        found.instead(counted(count, "tensor"), (n as u64 != count).then(|| n.to_string()));
    }
    for pattern in &spec.names {
        let mut faults = Vec::new();
        select(model, pattern, &mut faults);
        found.add(format!("tensors {:?}", pattern.text()), faults);
    }
    for pattern in &spec.absent {
        let there = model.tensors.keys().filter(|n| pattern.matches(n)).cloned();
        found.instead(format!("no tensors {:?}", pattern.text()), there);
    }
    if let Some(prefixes) = &spec.prefixes {
        let others = model.tensors.keys().filter(|n| !prefixes.iter().any(|p| n.starts_with(p.as_str())));
        found.instead(format!("only tensor names that start with {}", prefixes.join(" or ")), others.cloned());
    }
    for (pattern, dtypes) in &spec.dtypes {
        let mut faults = Vec::new();
        let others = select(model, pattern, &mut faults).into_iter().filter(|t| !dtypes.contains(&t.dtype));
        let others: Vec<String> = others.map(|t| format!("{} is {}", t.name, t.dtype)).collect();
        faults.extend(others);
        let wanted: Vec<&str> = dtypes.iter().map(|d| d.name()).collect();
        found.add_alike(format!("tensors {:?} of type {}", pattern.text(), wanted.join(" or ")), faults);
    }
    for (pattern, shape) in &spec.shapes {
        let mut faults = Vec::new();
        let others = select(model, pattern, &mut faults).into_iter().filter(|t| t.shape != *shape);
        let others: Vec<String> = others.map(|t| format!("{} is {:?}", t.name, t.shape)).collect();
        faults.extend(others);
        found.add_alike(format!("tensors {:?} of shape {shape:?}", pattern.text()), faults);
    }
}

/// Asserts that what `was` had is still there. Errors: a `was` without tensors, of which nothing can be lost, and a
/// `drop` pattern that matches nothing.
pub(super) fn assert_names_kept(
    spec: &NamesKept,
    was: &Model,
    model: &Model,
    found: &mut Findings,
) -> Result<(), StepError> {
    if was.tensors.is_empty() {
        let what = format!("names_kept: the input `{}` holds no tensors", spec.input);
        return Err(StepError::invalid(what, "name the checkpoint, or add \"@weights\" to its `uses`"));
    }
    let lost = names_kept(&was.names(), &model.names(), &spec.drop);
    let mut lost = lost.map_err(|e| StepError::invalid(format!("names_kept.drop: {e}"), e.hint()))?;
    if let Some(old) = &was.config {
        lost.config_keys = match &model.config {
            None => vec!["(all of it)".to_owned()],
            Some(new) => config_keys_lost(old, new),
        };
        let dropped = |k: &String| spec.drop_config.iter().any(|d| k == d || k.starts_with(&format!("{d}.")));
        lost.config_keys.retain(|k| !dropped(k));
    }
    let assertion = format!("nothing of `{}` to be lost", spec.input);
    match (lost.is_nothing(), &was.config) {
        (true, None) => found.holds(assertion, vec![format!("`{}` shows no config.json to compare", spec.input)]),
        _ => found.add(assertion, lost.lines()),
    }
    Ok(())
}

/// Asserts that tensors of `was` have the same type, shape and bytes in `model`, by the digests of the tensor tables.
pub(super) fn assert_unchanged(alias: &str, globs: &[Pattern], was: &Model, model: &Model, found: &mut Findings) {
    for pattern in globs {
        let mut faults = Vec::new();
        let mut packed = Vec::new();
        let old = select(was, pattern, &mut faults);
        let count = old.len();
        for t in old {
            match model.tensors.get(&t.name) {
                now if is_packed(&t.name, now, model) => packed.push(t.name.as_str()),
                None => faults.push(format!("{} is gone", t.name)),
                Some(new) if new.dtype != t.dtype => {
                    faults.push(format!("{} was {} and is {}", t.name, t.dtype, new.dtype));
                }
                Some(new) if new.shape != t.shape => {
                    faults.push(format!("{} was {:?} and is {:?}", t.name, t.shape, new.shape));
                }
                Some(new) if new.digest != t.digest => {
                    faults.push(format!("{} was {} and is {}", t.name, t.digest.short(), new.digest.short()));
                }
                Some(_) => {}
            }
        }
        if !packed.is_empty() {
            let more = packed.len().saturating_sub(SHOWN_PACKED);
            let names = packed.iter().take(SHOWN_PACKED).copied().collect::<Vec<_>>().join(", ");
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let are = if packed.len() == 1 { "is" } else { "are" };
            faults.insert(0, format!("{} of {count} {are} quantised now: {names}{more}", packed.len()));
        }
        let assertion = format!("tensors {:?} with the bytes that they have in `{alias}`", pattern.text());
        if faults.is_empty() {
            found.holds(assertion, vec![format!("{count} with the same bytes")]);
        } else {
            found.add_alike(assertion, faults);
        }
    }
}

const SHOWN_PACKED: usize = 3;

/// Whether a weight stands in `model` in fewer bits: in a packed tensor of another name, or under its own with a scale.
fn is_packed(name: &str, now: Option<&TensorEntry>, model: &Model) -> bool {
    let Some(module) = name.strip_suffix(".weight") else { return false };
    let there = |leaf: &str| model.tensors.contains_key(&format!("{module}.{leaf}"));
    match now {
        None => there("weight_packed"),
        Some(t) => !t.dtype.is_plain_float() && (there("weight_scale") || there("weight_scale_inv")),
    }
}

/// `1 tensor`, `2 tensors`.
pub(super) fn counted(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}
