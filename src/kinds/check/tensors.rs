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
        let fault = (n as u64 != count).then(|| format!("there are {n}"));
        found.add(format!("there are {count} tensors"), fault.into_iter().collect());
    }
    for pattern in &spec.names {
        let mut faults = Vec::new();
        select(model, pattern, &mut faults);
        found.add(format!("there are tensors {:?}", pattern.text()), faults);
    }
    for pattern in &spec.absent {
        let there = model.tensors.keys().filter(|n| pattern.matches(n)).cloned().collect();
        found.add(format!("there are no tensors {:?}", pattern.text()), there);
    }
    if let Some(prefixes) = &spec.prefixes {
        let others = model.tensors.keys().filter(|n| !prefixes.iter().any(|p| n.starts_with(p.as_str())));
        let faults = others.cloned().collect();
        found.add(format!("all tensor names start with one of {}", prefixes.join(", ")), faults);
    }
    for (pattern, dtypes) in &spec.dtypes {
        let mut faults = Vec::new();
        let others = select(model, pattern, &mut faults).into_iter().filter(|t| !dtypes.contains(&t.dtype));
        let others: Vec<String> = others.map(|t| format!("{} is {}", t.name, t.dtype)).collect();
        faults.extend(others);
        let wanted: Vec<&str> = dtypes.iter().map(|d| d.name()).collect();
        found.add(format!("tensors {:?} are {}", pattern.text(), wanted.join(" or ")), faults);
    }
    for (pattern, shape) in &spec.shapes {
        let mut faults = Vec::new();
        let others = select(model, pattern, &mut faults).into_iter().filter(|t| t.shape != *shape);
        let others: Vec<String> = others.map(|t| format!("{} is {:?}", t.name, t.shape)).collect();
        faults.extend(others);
        found.add(format!("tensors {:?} have the shape {shape:?}", pattern.text()), faults);
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
    let assertion = format!("nothing of `{}` is lost", spec.input);
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
        let old = select(was, pattern, &mut faults);
        let count = old.len();
        for t in old {
            match model.tensors.get(&t.name) {
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
        let assertion = format!("tensors {:?} are those of `{alias}`", pattern.text());
        if faults.is_empty() {
            found.holds(assertion, vec![format!("{count} with the same bytes")]);
        } else {
            found.add(assertion, faults);
        }
    }
}
