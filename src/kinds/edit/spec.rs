//! The parameters of an `edit`, read and held against the aliases.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use crate::canon::Value;
use crate::jsonedit::Pointer;
use crate::kinds::paths::PathGlob;
use crate::kinds::read::{boolean, dotted, globs, json, known, needs, pointer, rel, strings, table};
use crate::kinds::{ParamError, Params};
use crate::model::path::RelPath;

/// What is to be done.
#[derive(Debug, Clone, Default)]
pub(super) struct Spec {
    pub(super) drop: Vec<PathGlob>,
    pub(super) copy: Vec<(String, Vec<PathGlob>)>,
    pub(super) replace: bool,
    pub(super) add: Vec<(RelPath, Place)>,
    pub(super) files: BTreeMap<RelPath, JsonEdits>,
    pub(super) create_parents: bool,
}

/// The edits of one JSON file, in the order in which they are made.
#[derive(Debug, Clone, Default)]
pub(super) struct JsonEdits {
    pub(super) set_from: Vec<(Pointer, Place)>,
    pub(super) remove: Vec<Pointer>,
    pub(super) set: Vec<(Pointer, Json)>,
}

/// `ALIAS[/PATH][#/POINTER]`.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) text: String,
    pub(super) alias: String,
    pub(super) path: Option<RelPath>,
    pub(super) pointer: Option<Pointer>,
}

impl Spec {
    pub(super) fn parse(params: &Params, aliases: &[&str]) -> Result<Spec, ParamError> {
        if !aliases.contains(&"model") {
            return Err(ParamError::new("inputs", "`edit` edits the input `model`, and there is none")
                .hint(needs("model", aliases)));
        }
        let mut spec = Spec::default();
        for (key, value) in params {
            match key.as_str() {
                "drop" => spec.drop = globs("drop", value)?,
                "replace" => spec.replace = boolean("replace", value)?,
                "create_parents" => spec.create_parents = boolean("create_parents", value)?,
                "copy" => spec.copy = copies(value, aliases)?,
                "add" => {
                    for (path, from) in table("add", value)? {
                        let key = dotted("add", path);
                        spec.add.push((rel(&key, path)?, Place::parse(&key, from, aliases)?));
                    }
                }
                "set" | "set_from" | "remove" => {
                    for (file, edits) in table(key, value)? {
                        let at = dotted(key, file);
                        spec.files.entry(rel(&at, file)?).or_default().read(key, &at, edits, aliases)?;
                    }
                }
                _ => {}
            }
        }
        for (file, edits) in &spec.files {
            edits.check_overlap(file)?;
        }
        Ok(spec)
    }
}

impl JsonEdits {
    fn read(&mut self, verb: &str, at: &str, edits: &Value, aliases: &[&str]) -> Result<(), ParamError> {
        if verb == "remove" {
            let all = strings(at, edits)?;
            self.remove = all.iter().map(|t| pointer(at, t)).collect::<Result<_, _>>()?;
            return Ok(());
        }
        for (text, value) in table(at, edits)? {
            let key = dotted(at, text);
            let to = pointer(&key, text)?;
            if verb == "set" {
                self.set.push((to, json(&key, value)?));
            } else {
                let place = Place::parse(&key, value, aliases)?;
                if place.pointer.is_none() {
                    return Err(ParamError::new(key, format!("{:?} names no JSON value", place.text))
                        .hint("write it as \"ALIAS/PATH#/POINTER\""));
                }
                self.set_from.push((to, place));
            }
        }
        Ok(())
    }

    // Which of two edits of one place wins would be a matter of order, which nobody sees.
    fn check_overlap(&self, file: &RelPath) -> Result<(), ParamError> {
        let all = self.set_from.iter().map(|(p, _)| ("set_from", p));
        let all = all.chain(self.remove.iter().map(|p| ("remove", p)));
        let all: Vec<_> = all.chain(self.set.iter().map(|(p, _)| ("set", p))).collect();
        for (i, (verb, p)) in all.iter().enumerate() {
            for (earlier, q) in all.iter().take(i) {
                if earlier != verb && p == q {
                    let key = dotted(verb, &file.to_string());
                    return Err(ParamError::new(key, format!("{file}: {p} is edited by `{earlier}` and by `{verb}`"))
                        .hint("keep one of the two"));
                }
            }
        }
        Ok(())
    }
}

impl Place {
    fn parse(key: &str, value: &Value, aliases: &[&str]) -> Result<Place, ParamError> {
        let text = value
            .as_str()
            .ok_or_else(|| ParamError::new(key, format!("expected \"ALIAS/PATH\", found {}", value.type_name())))?;
        let (file, pointer_text) = match text.find("#/") {
            Some(i) => (&text[..i], Some(&text[i + 1..])),
            None => (text, None),
        };
        let (alias, path) = match file.split_once('/') {
            Some((alias, path)) => (alias, Some(rel(key, path)?)),
            None => (file, None),
        };
        known(key, alias, aliases)?;
        let pointer = pointer_text.map(|t| pointer(key, t)).transpose()?;
        Ok(Place { text: text.to_owned(), alias: alias.to_owned(), path, pointer })
    }
}

fn copies(value: &Value, aliases: &[&str]) -> Result<Vec<(String, Vec<PathGlob>)>, ParamError> {
    let mut all = Vec::new();
    for (alias, list) in table("copy", value)? {
        let key = dotted("copy", alias);
        known(&key, alias, aliases)?;
        if alias == "model" {
            return Err(ParamError::new(key, "the files of `model` are there already").hint("copy from another input"));
        }
        all.push((alias.clone(), globs(&key, list)?));
    }
    Ok(all)
}
