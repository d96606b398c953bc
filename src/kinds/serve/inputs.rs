//! Where the inputs of a seat lie in its tree, and where they are mounted.

use std::collections::BTreeMap;

use crate::kinds::{Input, Output, StepError};
use crate::model::path::RelPath;
use crate::model::tree::Entry;
use crate::near::did_you_mean;

use super::seat::{Seat, Source, path_inside};

/// Something of the tree that is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Placed {
    /// Its path in the tree.
    pub(super) at: String,
    /// Its absolute path inside the container.
    pub(super) target: String,
}

const MODEL: &str = "model";

fn rel(path: &str) -> Result<RelPath, StepError> {
    RelPath::try_from(path).map_err(|e| StepError::invalid(e.to_string(), ""))
}

/// Keeps the model under `model` (a folder, or the file itself where the input is a single file). It is mounted where
/// `inputs.model.at` says, at `/model` otherwise.
pub(super) fn place_model(model: &Input, out: &mut Output) -> Result<Vec<Placed>, StepError> {
    if model.tree.is_empty() {
        return Err(StepError::invalid("there is nothing in the model that is to be served", "look at its `uses`"));
    }
    let top = rel(MODEL)?;
    if model.single_file {
        for (_, entry) in model.tree.iter() {
            out.keep(top.clone(), entry);
        }
    } else {
        for (path, entry) in model.tree.iter() {
            out.keep(top.join(path), entry);
        }
    }
    let target = model.at.clone().unwrap_or_else(|| format!("/{MODEL}"));
    path_inside(&target).map_err(|what| {
        StepError::invalid(
            format!("the model can't be mounted at {target:?}: {what}"),
            "inputs.model.at takes an absolute path",
        )
    })?;
    Ok(vec![Placed { at: MODEL.to_owned(), target }])
}

/// Keeps every mounted file under `mounts/`, at its path inside. Errors: [`StepError::Invalid`] with near names where the
/// input has no such file: the engine would create a folder of that name.
pub(super) fn place_mounts(
    seat: &Seat,
    inputs: &BTreeMap<String, Input>,
    out: &mut Output,
) -> Result<Vec<Placed>, StepError> {
    let mut placed = Vec::new();
    for (target, source) in &seat.mounts {
        let input = inputs.get(&source.alias).ok_or_else(|| {
            StepError::invalid(format!("there is no input `{}`", source.alias), format!("add inputs.{}", source.alias))
        })?;
        let entry = mounted_file(input, source, target)?;
        let below = path_inside(target).map_err(|what| StepError::invalid(format!("{target:?}: {what}"), ""))?;
        let at = rel("mounts")?.join(&below);
        out.keep(at, entry);
        placed.push(Placed { at: format!("mounts{target}"), target: target.clone() });
    }
    Ok(placed)
}

fn mounted_file<'a>(input: &'a Input, source: &Source, target: &str) -> Result<&'a Entry, StepError> {
    let alias = &source.alias;
    let Some(path) = &source.path else {
        return match input.tree.iter().next() {
            Some((_, entry @ Entry::File { .. })) if input.single_file => Ok(entry),
            _ => Err(StepError::invalid(
                format!("{target} is to be the input `{alias}`, which is a folder: only files are mounted"),
                some_file(input, alias),
            )),
        };
    };
    match input.tree.get(path) {
        Some(entry @ Entry::File { .. }) => Ok(entry),
        Some(Entry::Link { target: to }) => Err(StepError::invalid(
            format!("{target} is to be {path} of the input `{alias}`, which is a link to {}", crate::canon::quote(to)),
            "name the file that it leads to",
        )),
        Some(Entry::EmptyDir) => Err(folder(target, path, alias, "it is empty".to_owned())),
        None => {
            let below = [path.as_bytes(), b"/"].concat();
            let inside = input.tree.files().find(|f| f.0.as_bytes().starts_with(&below));
            if let Some((first, ..)) = inside {
                return Err(folder(target, path, alias, format!("name a file in it, such as \"{alias}/{first}\"")));
            }
            let wanted = path.to_string();
            let names: Vec<String> = input.tree.files().map(|f| f.0.to_string()).collect();
            Err(StepError::invalid(
                format!("{target} is to be {path} of the input `{alias}`, which has no such file"),
                did_you_mean(&wanted, names.iter().map(String::as_str)).unwrap_or_else(|| some_file(input, alias)),
            ))
        }
    }
}

fn folder(target: &str, path: &RelPath, alias: &str, hint: String) -> StepError {
    StepError::invalid(
        format!("{target} is to be {path} of the input `{alias}`, which is a folder: only files are mounted"),
        hint,
    )
}

fn some_file(input: &Input, alias: &str) -> String {
    match input.tree.files().next() {
        Some((first, ..)) => format!("name a file of it, such as \"{alias}/{first}\""),
        None => "there is no file in it".to_owned(),
    }
}

/// Refuses two mounts of which one lies at or below the other: the mount point would have to be made in a read-only one.
pub(super) fn refuse_conflicts(placed: &[Placed]) -> Result<(), StepError> {
    for (i, a) in placed.iter().enumerate() {
        for b in placed.iter().skip(i + 1) {
            let (outer, inner) = if a.target.len() <= b.target.len() { (a, b) } else { (b, a) };
            let below = inner.target.strip_prefix(outer.target.as_str());
            if below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) {
                return Err(StepError::invalid(
                    format!("{} can't be mounted below {}, which is mounted read-only", inner.target, outer.target),
                    "mount it elsewhere, or add the file to the model by an `edit` node",
                ));
            }
        }
    }
    Ok(())
}
