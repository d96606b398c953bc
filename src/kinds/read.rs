//! Parameters read into types, each error at its dotted key.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use crate::canon::Value;
use crate::jsonedit::Pointer;
use crate::kinds::ParamError;
use crate::kinds::paths::PathGlob;
use crate::model::path::RelPath;
use crate::near::did_you_mean;

/// Holds an alias against those that there are. Errors: [`ParamError`] with near names.
pub(crate) fn known(key: &str, alias: &str, aliases: &[&str]) -> Result<(), ParamError> {
    if aliases.contains(&alias) {
        return Ok(());
    }
    let e = ParamError::new(key, format!("there is no input `{alias}`"));
    Err(e.hint(did_you_mean(alias, aliases.iter().copied()).unwrap_or_else(|| format!("add inputs.{alias}"))))
}

/// What to do where the input `needed` is not there: it may be there under a mistyped alias.
pub(crate) fn needs(needed: &str, aliases: &[&str]) -> String {
    match crate::near::near(needed, aliases.iter().copied(), 1).first() {
        Some(near) => format!("did you mean `inputs.{needed}` by `inputs.{near}`?"),
        None => format!("add inputs.{needed} = \"NODE\""),
    }
}

/// A key as graph.toml would have it.
pub(crate) fn dotted(key: &str, part: &str) -> String {
    let bare = !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if bare { format!("{key}.{part}") } else { format!("{key}.{part:?}") }
}

/// A table. Errors: [`ParamError`], here and below, says at `key` what was expected and found.
pub(crate) fn table<'a>(key: &str, value: &'a Value) -> Result<&'a BTreeMap<String, Value>, ParamError> {
    value.as_map().ok_or_else(|| ParamError::new(key, format!("expected a table, found {}", value.type_name())))
}

/// A boolean.
pub(crate) fn boolean(key: &str, value: &Value) -> Result<bool, ParamError> {
    value.as_bool().ok_or_else(|| ParamError::new(key, format!("expected true or false, found {}", value.type_name())))
}

/// A string or a list of strings.
pub(crate) fn strings<'a>(key: &str, value: &'a Value) -> Result<Vec<&'a str>, ParamError> {
    match value {
        Value::Str(s) => Ok(vec![s]),
        _ => value
            .as_str_list()
            .ok_or_else(|| ParamError::new(key, format!("expected strings, found {}", value.type_name()))),
    }
}

/// A glob over paths, or a list of them.
pub(crate) fn globs(key: &str, value: &Value) -> Result<Vec<PathGlob>, ParamError> {
    strings(key, value)?.iter().map(|t| PathGlob::parse(t).map_err(|e| ParamError::new(key, e.to_string()))).collect()
}

/// A path inside a tree.
pub(crate) fn rel(key: &str, text: &str) -> Result<RelPath, ParamError> {
    RelPath::try_from(text).map_err(|e| ParamError::new(key, e.to_string()))
}

/// A JSON pointer.
pub(crate) fn pointer(key: &str, text: &str) -> Result<Pointer, ParamError> {
    Pointer::parse(text).map_err(|e| {
        let hint = e.hint().unwrap_or_default();
        ParamError::new(key, e.to_string()).hint(hint)
    })
}

/// A TOML value as JSON. Errors: dates, infinities and NaN, which JSON does not have.
pub(crate) fn json(key: &str, value: &Value) -> Result<Json, ParamError> {
    let none = |what: String| Err(ParamError::new(key, what).hint("write it as a string, or copy it with set_from"));
    Ok(match value {
        Value::Bool(b) => Json::Bool(*b),
        Value::Int(i) => Json::from(*i),
        Value::Float(f) => match serde_json::Number::from_f64(*f) {
            Some(n) => Json::Number(n),
            None => return none(format!("JSON has no {}", crate::canon::float(*f))),
        },
        Value::Str(s) => Json::String(s.clone()),
        Value::Date(d) => return none(format!("JSON has no date {d}")),
        Value::List(items) => Json::Array(items.iter().map(|v| json(key, v)).collect::<Result<_, _>>()?),
        Value::Map(map) => Json::Object(
            map.iter().map(|(k, v)| Ok((k.clone(), json(key, v)?))).collect::<Result<serde_json::Map<_, _>, _>>()?,
        ),
    })
}

/// A number that is not negative.
pub(crate) fn count(key: &str, value: &Value) -> Result<u64, ParamError> {
    let n = value
        .as_int()
        .ok_or_else(|| ParamError::new(key, format!("expected a number, found {}", value.type_name())))?;
    u64::try_from(n).map_err(|_| ParamError::new(key, format!("expected a number from 0, found {n}")))
}

/// Only these keys may stand in the table. Errors: [`ParamError`] at the first other one, with near names.
pub(crate) fn only(key: &str, map: &BTreeMap<String, Value>, known: &[&str]) -> Result<(), ParamError> {
    match map.keys().find(|k| !known.contains(&k.as_str())) {
        None => Ok(()),
        Some(other) => Err(ParamError::new(dotted(key, other), format!("`{key}` has no key `{other}`")).hint(
            did_you_mean(other, known.iter().copied()).unwrap_or_else(|| format!("it takes {}", known.join(", "))),
        )),
    }
}
