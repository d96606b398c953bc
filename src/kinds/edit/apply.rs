//! The edit itself: a tree in memory, in which only touched files have bytes.

use std::collections::{BTreeMap, BTreeSet};

use super::spec::{JsonEdits, Place, Spec};
use crate::digest::Digest;
use crate::jsonedit::{Document, JsonError, Parents, Pointer};
use crate::kinds::paths::{PathGlob, select_all};
use crate::kinds::{Output, Report, Space, Step, StepError};
use crate::model::path::RelPath;
use crate::model::tree::{Entry, Tree};
use crate::near::did_you_mean;
use crate::tensors::checkpoint::is_shard_name;
use crate::tensors::index::INDEX_NAME;

/// JSON files larger than this are no sidecars.
const MAX_JSON_BYTES: u64 = 64 << 20;

/// What a path of the output holds.
enum Staged {
    /// An entry of an input.
    Kept { alias: String, from: RelPath, entry: Entry },
    /// New bytes.
    Text { bytes: Vec<u8>, executable: bool },
}

struct Stage<'a> {
    step: &'a Step<'a>,
    files: BTreeMap<RelPath, Staged>,
    touched: BTreeSet<RelPath>,
    report: Report,
    dropped: Vec<String>,
    added: Vec<String>,
    edited: Vec<String>,
}

/// Makes the output of `spec`. Errors: a glob, path or pointer that is not there, with near names; a file that is no JSON;
/// weights and index that would disagree.
pub(super) fn run(spec: &Spec, step: &Step<'_>, out: &mut Output) -> Result<Report, StepError> {
    let model = step.input("model")?;
    let mut stage = Stage {
        step,
        files: BTreeMap::new(),
        touched: BTreeSet::new(),
        report: Report::default(),
        dropped: Vec::new(),
        added: Vec::new(),
        edited: Vec::new(),
    };
    for (path, entry) in model.tree.iter() {
        let kept = Staged::Kept { alias: "model".to_owned(), from: path.clone(), entry: entry.clone() };
        stage.files.insert(path.clone(), kept);
    }
    stage.drop(&spec.drop)?;
    for (alias, globs) in &spec.copy {
        stage.copy(alias, globs, spec.replace)?;
    }
    for (path, place) in &spec.add {
        stage.add(path, place)?;
    }
    for (path, edits) in &spec.files {
        step.go_on()?;
        stage.edit(path, edits, spec.create_parents)?;
    }
    stage.check_weights()?;
    stage.finish(out)
}

/// The size of the files that are written again, where nothing is taken out of them.
pub(super) fn space(spec: &Spec, model: &Tree) -> Space {
    let grown = spec.files.iter().filter(|(_, edits)| edits.remove.is_empty());
    let size = |path: &RelPath| match model.get(path) {
        // A value may get shorter, too, but not many of them in one file.
        Some(Entry::File { size, .. }) => *size / 2,
        _ => 0,
    };
    Space::of_writes(grown.map(|(path, _)| size(path)).sum())
}

impl Stage<'_> {
    fn drop(&mut self, globs: &[PathGlob]) -> Result<(), StepError> {
        let gone = select_all(globs, self.files.keys()).map_err(|e| invalid(format!("drop: {e}"), e.hint.clone()))?;
        for path in gone {
            self.files.remove(&path);
            self.dropped.push(path.to_string());
            self.touched.insert(path);
        }
        Ok(())
    }

    fn copy(&mut self, alias: &str, globs: &[PathGlob], replace: bool) -> Result<(), StepError> {
        let input = self.step.input(alias)?;
        let paths: Vec<&RelPath> = input.tree.iter().map(|(p, _)| p).collect();
        let chosen = select_all(globs, paths.iter().copied())
            .map_err(|e| invalid(format!("copy.{alias}: {e} in the input `{alias}`"), e.hint.clone()))?;
        for path in chosen {
            let Some(entry) = input.tree.get(&path) else { continue };
            match self.files.get(&path) {
                Some(Staged::Kept { entry: old, .. }) if old == entry => continue,
                Some(Staged::Kept { alias: other, .. }) if !replace => {
                    return Err(invalid(
                        format!("copy.{alias}: {path} is in `{other}` and in `{alias}`, with other bytes"),
                        "leave it out of the globs, or say `replace = true`",
                    ));
                }
                _ => {}
            }
            self.put(path.clone(), Staged::Kept { alias: alias.to_owned(), from: path, entry: entry.clone() })?;
        }
        Ok(())
    }

    fn add(&mut self, path: &RelPath, place: &Place) -> Result<(), StepError> {
        let at = |what: String| format!("add.\"{path}\": {what}");
        let (from, entry) = self.find(place).map_err(|(what, hint)| invalid(at(what), hint))?;
        let Some(pointer) = &place.pointer else {
            return self.put(path.clone(), Staged::Kept { alias: place.alias.clone(), from, entry });
        };
        let doc = self.document(&place.alias, &from)?;
        let mut text = doc.extract(pointer).map_err(|e| json_error(&at(place.text.clone()), &e))?;
        if doc.text().ends_with('\n') {
            text.push('\n');
        }
        self.put(path.clone(), Staged::Text { bytes: text.into_bytes(), executable: false })
    }

    /// The file that a place names. Errors: what is wrong, and a hint.
    fn find(&self, place: &Place) -> Result<(RelPath, Entry), (String, String)> {
        let alias = &place.alias;
        let input = self.step.input(alias).map_err(|e| (e.to_string(), String::new()))?;
        let found = match &place.path {
            Some(path) => input.tree.get(path).map(|e| (path.clone(), e.clone())),
            None => match input.only_file() {
                Some((path, ..)) => input.tree.get(path).map(|e| (path.clone(), e.clone())),
                None => {
                    let what = format!("the input `{alias}` is no single file but holds {}", input.tree.len());
                    return Err((what, format!("name one of them: \"{alias}/PATH\"; or take many with copy.{alias}")));
                }
            },
        };
        match found {
            Some((path, entry)) if !matches!(entry, Entry::EmptyDir) => Ok((path, entry)),
            _ => {
                let path = place.path.as_ref().map(ToString::to_string).unwrap_or_default();
                let hint = did_you_mean(&path, input.tree.iter().filter_map(|(p, _)| p.as_str()));
                let hint = hint.unwrap_or_else(|| format!("a folder is copied by copy.{alias}"));
                Err((format!("there is no file {path} in the input `{alias}`"), hint))
            }
        }
    }

    fn put(&mut self, path: RelPath, staged: Staged) -> Result<(), StepError> {
        // An empty directory gives way to what comes to lie in it.
        let mut up = path.parent();
        while let Some(p) = up {
            match self.files.get(&p) {
                Some(Staged::Kept { entry: Entry::EmptyDir, .. }) => drop(self.files.remove(&p)),
                Some(_) => return Err(invalid(format!("{path} can't be added: {p} is a file"), "choose another path")),
                None => {}
            }
            up = p.parent();
        }
        self.added.push(path.to_string());
        self.touched.insert(path.clone());
        self.files.insert(path, staged);
        Ok(())
    }

    fn edit(&mut self, path: &RelPath, edits: &JsonEdits, create_parents: bool) -> Result<(), StepError> {
        let (old, executable) = match self.files.get(path) {
            Some(Staged::Text { bytes, executable }) => (bytes.clone(), *executable),
            Some(Staged::Kept { alias, from, entry: Entry::File { executable, .. } }) => {
                (self.read(alias, from)?, *executable)
            }
            Some(_) => {
                return Err(invalid(format!("{path} is a link or a folder, no JSON file"), "edit what it points to"));
            }
            None => {
                let hint = did_you_mean(&path.to_string(), self.files.keys().filter_map(RelPath::as_str));
                let hint = hint.unwrap_or_else(|| "add it with `add` or `copy` first".to_owned());
                return Err(invalid(format!("there is no file {path} to edit"), hint));
            }
        };
        let place = path.to_string();
        let before = Digest::of(&old);
        let mut doc = Document::parse(&old).map_err(|e| json_error(&place, &e))?;
        drop(old);
        let parents = if create_parents { Parents::Create } else { Parents::Require };
        let failed = |e: JsonError| {
            let error = json_error(&place, &e);
            match (error, &e) {
                (StepError::Invalid { what, hint: None }, JsonError::Missing { .. }) => {
                    invalid(what, "say `create_parents = true` to make what is missing on the way")
                }
                (error, _) => error,
            }
        };
        for (to, from) in &edits.set_from {
            let (file, _) = self.find(from).map_err(|(what, hint)| invalid(format!("{place}: {what}"), hint))?;
            let other = self.document(&from.alias, &file)?;
            let pointer = from.pointer.clone().unwrap_or_else(Pointer::root);
            // A wrong source is not mended by making parents.
            other.extract(&pointer).map_err(|e| json_error(&from.text, &e))?;
            let changed = doc.set_from(to, &other, &pointer, parents).map_err(failed)?;
            self.said(&place, to, changed);
        }
        for at in &edits.remove {
            doc.remove(at).map_err(|e| json_error(&place, &e))?;
        }
        for (to, value) in &edits.set {
            let changed = doc.set_value(to, value, parents).map_err(failed)?;
            self.said(&place, to, changed);
        }
        let bytes = doc.finish();
        if Digest::of(&bytes) != before {
            self.edited.push(place);
            self.touched.insert(path.clone());
            self.files.insert(path.clone(), Staged::Text { bytes, executable });
        }
        Ok(())
    }

    fn said(&mut self, place: &str, at: &Pointer, changed: bool) {
        if !changed {
            self.report.notes.push(format!("{place}: {at} has that value already"));
        }
    }

    fn read(&self, alias: &str, path: &RelPath) -> Result<Vec<u8>, StepError> {
        self.step
            .input(alias)?
            .read(path, MAX_JSON_BYTES)
            .map_err(StepError::io(format!("reading {path} of `{alias}`")))
    }

    fn document(&self, alias: &str, path: &RelPath) -> Result<Document, StepError> {
        Document::parse(&self.read(alias, path)?).map_err(|e| json_error(&format!("{path} of `{alias}`"), &e))
    }

    /// Holds index and shards together where either was touched.
    fn check_weights(&self) -> Result<(), StepError> {
        let is_weights = |p: &RelPath| p.as_str().is_some_and(is_shard_name);
        let index = match RelPath::try_from(INDEX_NAME) {
            Ok(path) => path,
            Err(_) => return Ok(()),
        };
        if !self.touched.iter().any(|p| is_weights(p) || *p == index) {
            return Ok(());
        }
        let shards: Vec<String> = self.files.keys().filter(|p| is_weights(p)).map(ToString::to_string).collect();
        let bytes = match self.files.get(&index) {
            Some(Staged::Text { bytes, .. }) => bytes.clone(),
            Some(Staged::Kept { alias, from, .. }) => self.read(alias, from)?,
            None if shards.len() > 1 => {
                return Err(invalid(
                    format!("{} weight files and no {INDEX_NAME} that names them", shards.len()),
                    "keep the index, or drop all weight files but model.safetensors",
                ));
            }
            None => return Ok(()),
        };
        let doc = Document::parse(&bytes).map_err(|e| json_error(INDEX_NAME, &e))?;
        let map = doc.value(&Pointer::new(["weight_map"]));
        let named: BTreeSet<String> = match map.as_ref().and_then(|m| m.as_object()) {
            Some(map) => map.values().filter_map(|v| v.as_str()).map(str::to_owned).collect(),
            None => return Err(invalid(format!("{INDEX_NAME} has no object at /weight_map"), "leave it as it was")),
        };
        if let Some(lost) = named.iter().find(|n| !shards.contains(n)) {
            return Err(invalid(
                format!("{INDEX_NAME} names the shard {lost}, which would not be there"),
                "keep the shard, or drop all shards and the index together",
            ));
        }
        let fresh = |s: &&String| !named.contains(*s) && self.touched.iter().any(|p| p.to_string() == **s);
        if let Some(stray) = shards.iter().find(fresh) {
            return Err(invalid(
                format!("{stray} would be a weight file that {INDEX_NAME} does not name"),
                "tensors are added by the kinds `graft` and `splice`",
            ));
        }
        Ok(())
    }

    fn finish(mut self, out: &mut Output) -> Result<Report, StepError> {
        for (path, staged) in self.files {
            match staged {
                Staged::Kept { entry, .. } => out.keep(path, &entry),
                Staged::Text { bytes, executable } => {
                    let what = format!("writing {path} ({} bytes)", bytes.len());
                    out.write_as(path, executable, &bytes).map_err(StepError::io(what))?;
                }
            }
        }
        for (name, mut list) in [("added", self.added), ("dropped", self.dropped), ("edited", self.edited)] {
            list.sort();
            list.dedup();
            self.report.facts.insert(name.to_owned(), list.into());
        }
        Ok(self.report)
    }
}

fn invalid(what: impl Into<String>, hint: impl Into<String>) -> StepError {
    StepError::invalid(what, hint)
}

fn json_error(place: &str, e: &JsonError) -> StepError {
    invalid(format!("{place}: {e}"), e.hint().unwrap_or_default())
}
