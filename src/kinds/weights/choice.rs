//! Which tensors of a donor are taken, under which names, and what was expected of them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value as Json, json};

use crate::canon::Value;
use crate::kinds::{KeySpec, KeyType, ParamError, Params, StepError};
use crate::near;
use crate::near::did_you_mean;
use crate::tensors::checkpoint::{Checkpoint, Shard};
use crate::tensors::dtype::Dtype;
use crate::tensors::pattern::{Pattern, matching};
use crate::tensors::table::TensorEntry;

/// Names of tensors to take, as globs.
pub const TENSORS: KeySpec =
    KeySpec::required("tensors", KeyType::StrList, "globs over the names in `from`; `*` crosses dots");
/// Other names for what is taken.
pub const RENAME: KeySpec =
    KeySpec::optional("rename", KeyType::StrMap, "NAME = NEW, or \"PREFIX*\" = \"NEW*\", over the names in `from`");
/// What must be true of what is taken.
pub const EXPECT: KeySpec =
    KeySpec::asserted("expect", KeyType::Map, "count and dtype of the tensors taken; asserted, never hashed");
/// A head may be put into a tied model.
pub const ALLOW_TIED: KeySpec =
    KeySpec::asserted("allow_tied", KeyType::Bool, "lets lm_head.weight into a model with tied embeddings");

/// A tensor of the donor, under the name that it gets.
#[derive(Debug, Clone, Copy)]
pub struct Chosen<'d> {
    /// Its shard.
    pub shard: &'d Shard,
    /// What it is.
    pub entry: &'d TensorEntry,
}

/// The chosen tensors by the name that they get.
pub type Choice<'d> = BTreeMap<String, Chosen<'d>>;

fn wrong(key: &str, wanted: &str, found: &Value) -> ParamError {
    ParamError::new(key, format!("`{key}` takes {wanted}, not {}", found.type_name()))
}

/// Looks at aliases and at the keys of this module. Errors: [`ParamError`] at the key.
pub fn check(params: &Params, aliases: &[&str]) -> Result<(), ParamError> {
    if let Some(other) = aliases.iter().find(|a| !["into", "from"].contains(a)) {
        let e = ParamError::new(format!("inputs.{other}"), format!("`{other}` is no input of this kind"));
        let near = did_you_mean(other, ["into", "from"].into_iter().filter(|a| !aliases.contains(a)));
        return Err(e.hint(near.unwrap_or_else(|| "it takes `into` and `from`".to_owned())));
    }
    for (needed, what) in [("into", "the checkpoint to change"), ("from", "the checkpoint to take tensors from")] {
        if !aliases.contains(&needed) {
            let key = format!("inputs.{needed}");
            return Err(ParamError::new(key, format!("there is no input `{needed}`")).hint(format!("add it: {what}")));
        }
    }
    let patterns = tensors(params)?;
    if patterns.is_empty() {
        return Err(ParamError::new("tensors", "`tensors` is empty").hint("name tensors of `from`, e.g. \"mtp.*\""));
    }
    renames(params)?;
    Expected::read(params)?;
    allow_tied(params)?;
    Ok(())
}

fn tensors(params: &Params) -> Result<Vec<Pattern>, ParamError> {
    let Some(value) = params.get("tensors") else {
        return Err(ParamError::new("tensors", "`tensors` is missing"));
    };
    let list = value.as_str_list().ok_or_else(|| wrong("tensors", "a list of strings", value))?;
    Ok(list.into_iter().map(Pattern::glob).collect())
}

/// Whether a head may be put into a tied model. Errors: [`ParamError`] for another type.
pub fn allow_tied(params: &Params) -> Result<bool, ParamError> {
    match params.get("allow_tied") {
        None => Ok(false),
        Some(v) => v.as_bool().ok_or_else(|| wrong("allow_tied", "a boolean", v)),
    }
}

/// A file name of a shard, where `key` gives one. Errors: [`ParamError`] for anything but a plain name that ends in
/// `.safetensors`.
pub fn shard_name<'p>(params: &'p Params, key: &str) -> Result<Option<&'p str>, ParamError> {
    let Some(value) = params.get(key) else { return Ok(None) };
    let name = value.as_str().ok_or_else(|| wrong(key, "a string", value))?;
    if name.contains(['/', '\0']) || !name.ends_with(".safetensors") || name.starts_with('.') {
        let e = ParamError::new(key, format!("{name:?} is no name of a shard"));
        return Err(e.hint("a plain file name that ends in .safetensors"));
    }
    Ok(Some(name))
}

// A rule of `rename`: the exact name or, for a prefix, what stands before the star; and what takes its place.
struct Rename<'p> {
    key: &'p str,
    old: &'p str,
    new: &'p str,
    prefix: bool,
}

fn renames(params: &Params) -> Result<Vec<Rename<'_>>, ParamError> {
    let Some(value) = params.get("rename") else { return Ok(Vec::new()) };
    let map = value.as_map().ok_or_else(|| wrong("rename", "a table of strings", value))?;
    let mut rules = Vec::new();
    for (old, new) in map {
        let key = format!("rename.{old}");
        let new = new.as_str().ok_or_else(|| wrong(&key, "a string", new))?;
        let rule = match (old.strip_suffix('*'), new.strip_suffix('*')) {
            (Some(o), Some(n)) => Rename { key: old, old: o, new: n, prefix: true },
            (None, None) => Rename { key: old, old, new, prefix: false },
            _ => {
                let e = ParamError::new(key, format!("{old:?} = {new:?}: one ends in `*` and the other does not"));
                return Err(e.hint("\"old.*\" = \"new.*\" renames by prefix, \"old\" = \"new\" one tensor"));
            }
        };
        if rule.old.contains('*') || rule.new.contains('*') {
            return Err(ParamError::new(key, format!("{old:?} = {new:?}: a `*` stands only at the end")));
        }
        if !rule.prefix && (new.is_empty() || new == "__metadata__") {
            return Err(ParamError::new(key, format!("{new:?} can't be a tensor's name")));
        }
        rules.push(rule);
    }
    // The exact name first, then the longest prefix.
    rules.sort_by_key(|r| (r.prefix, std::cmp::Reverse(r.old.len())));
    Ok(rules)
}

// What `expect` asserts.
struct Expected {
    count: Option<i64>,
    dtypes: Option<BTreeSet<String>>,
}

impl Expected {
    fn read(params: &Params) -> Result<Self, ParamError> {
        let mut out = Self { count: None, dtypes: None };
        let Some(value) = params.get("expect") else { return Ok(out) };
        for (key, v) in value.as_map().ok_or_else(|| wrong("expect", "a table", value))? {
            match key.as_str() {
                "count" => {
                    let n = v.as_int().filter(|n| *n >= 0);
                    out.count = Some(n.ok_or_else(|| {
                        ParamError::new("expect.count", format!("{} is no number of tensors", v.to_canon()))
                    })?);
                }
                "dtype" => {
                    let names = match v {
                        Value::Str(s) => Some(vec![s.as_str()]),
                        other => other.as_str_list(),
                    };
                    let names = names.ok_or_else(|| wrong("expect.dtype", "a string or a list of strings", v))?;
                    for name in &names {
                        if let Err(e) = name.parse::<Dtype>() {
                            let e = ParamError::new("expect.dtype", e.to_string());
                            let near = near::did_you_mean(name, Dtype::ALL.iter().map(|d| d.name()));
                            return Err(near.into_iter().fold(e, ParamError::hint));
                        }
                    }
                    out.dtypes = Some(names.into_iter().map(str::to_owned).collect());
                }
                other => {
                    let e = ParamError::new(format!("expect.{other}"), format!("`expect` has no key `{other}`"));
                    return Err(e.hint("it has `count` and `dtype`"));
                }
            }
        }
        Ok(out)
    }

    // `dtypes` gives, for each type found, one tensor that has it.
    fn hold(&self, count: u64, dtypes: &BTreeMap<String, Option<String>>) -> Result<(), StepError> {
        if let Some(wanted) = self.count
            && u64::try_from(wanted) != Ok(count)
        {
            return Err(StepError::invalid(
                format!("expect.count is {wanted}, but `tensors` takes {count}"),
                "compare the names in `from` with the patterns, or mend the count",
            ));
        }
        if let Some(wanted) = &self.dtypes
            && let Some((found, example)) = dtypes.iter().find(|(d, _)| !wanted.contains(*d))
        {
            let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
            let example = example.as_ref().map_or_else(String::new, |n| format!(" ({n})"));
            return Err(StepError::invalid(
                format!("expect.dtype is {}, but `tensors` takes {found}{example}", wanted.join(", ")),
                "take other tensors, or mend expect.dtype",
            ));
        }
        Ok(())
    }
}

fn invalid(e: ParamError) -> StepError {
    StepError::Invalid { what: format!("{}: {}", e.key, e.what), hint: e.hint }
}

/// The tensors of `from` that `tensors` names, renamed, with `expect` asserted. Errors: [`StepError`] for a pattern that
/// matches nothing (with near names), a rename that meets no chosen tensor, two tensors that get one name, and an
/// expectation that does not hold.
pub fn choose<'d>(params: &Params, from: &'d Checkpoint) -> Result<Choice<'d>, StepError> {
    let patterns = tensors(params).map_err(invalid)?;
    let names = from.names();
    let found = matching(&names, &patterns)
        .map_err(|e| StepError::invalid(format!("tensors: {e} of the input `from`"), e.hint()))?;
    let rules = renames(params).map_err(invalid)?;
    let mut used = vec![false; rules.len()];
    let mut choice = Choice::new();
    for name in &found {
        let Some((shard, entry)) = from.get(name) else { continue };
        let rule = rules.iter().position(|r| if r.prefix { name.starts_with(r.old) } else { *name == r.old });
        let target = match rule.and_then(|i| Some((used.get_mut(i)?, rules.get(i)?))) {
            None => (*name).to_owned(),
            Some((used, rule)) => {
                *used = true;
                format!("{}{}", rule.new, name.get(rule.old.len()..).unwrap_or_default())
            }
        };
        if target.is_empty() || target == "__metadata__" {
            let what = format!("rename: {name:?} would become {target:?}, which can't be a tensor's name");
            return Err(StepError::invalid(what, "give the prefix another new name"));
        }
        if let Some(other) = choice.get(&target) {
            let what = format!("rename: {:?} and {name:?} would both become {target:?}", other.entry.name);
            return Err(StepError::invalid(what, "give one of them another name, or leave it out of `tensors`"));
        }
        choice.insert(target, Chosen { shard, entry });
    }
    if let Some((rule, _)) = rules.iter().zip(used).find(|(_, used)| !used) {
        let what = format!("rename: {:?} meets none of the {} tensors that are taken", rule.key, found.len());
        return Err(StepError::invalid(what, near::did_you_mean(rule.old, found).unwrap_or_default()));
    }
    let (count, dtypes) = kinds_of(&choice);
    Expected::read(params).map_err(invalid)?.hold(count, &dtypes)?;
    Ok(choice)
}

fn kinds_of(choice: &Choice<'_>) -> (u64, BTreeMap<String, Option<String>>) {
    let mut dtypes = BTreeMap::new();
    for (name, c) in choice {
        dtypes.entry(c.entry.dtype.to_string()).or_insert_with(|| Some(name.clone()));
    }
    (choice.len() as u64, dtypes)
}

/// What [`still_holds`] needs of a choice, for the run's record.
pub fn facts(choice: &Choice<'_>, tied: bool) -> BTreeMap<String, Json> {
    let (count, dtypes) = kinds_of(choice);
    let bytes: u64 = choice.values().map(|c| c.entry.len()).sum();
    [
        ("count", json!(count)),
        ("bytes", json!(bytes)),
        ("dtypes", json!(dtypes.into_keys().collect::<Vec<_>>())),
        ("head_into_tied_model", json!(tied)),
    ]
    .map(|(k, v)| (k.to_owned(), v))
    .into()
}

/// Holds `expect` and `allow_tied` against the facts of an earlier run. Errors as [`choose`].
pub fn still_holds(params: &Params, facts: &BTreeMap<String, Json>) -> Result<(), StepError> {
    let count = facts.get("count").and_then(Json::as_u64);
    let dtypes = facts.get("dtypes").and_then(Json::as_array);
    if let (Some(count), Some(dtypes)) = (count, dtypes) {
        let dtypes = dtypes.iter().filter_map(|d| Some((d.as_str()?.to_owned(), None))).collect();
        Expected::read(params).map_err(invalid)?.hold(count, &dtypes)?;
    }
    let tied = facts.get("head_into_tied_model").and_then(Json::as_bool) == Some(true);
    if tied && !allow_tied(params).map_err(invalid)? {
        return Err(StepError::invalid(
            "lm_head.weight was put into a model with tied embeddings, and allow_tied is no longer true",
            "set allow_tied = true, or leave the head out of `tensors`",
        ));
    }
    Ok(())
}
