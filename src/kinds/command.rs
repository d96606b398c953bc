//! The command of a process step: arguments with placeholders, and the manifest that lists its inputs.
//!
//! | placeholder | becomes |
//! | --- | --- |
//! | `{in.NAME}` | where the input NAME is: `/in/NAME`, or where its `at` puts it; `{in.NAME}/sub/file` goes on below it |
//! | `{param.X}`, `{param.X.Y}` | a value of the node's table `params`, as text |
//! | `{out}` | the empty folder that becomes the node's tree: `/out` |
//! | `{manifest}` | the JSON file that lists all inputs: `/in.json` |
//! | `{secret.NAME}` | only in `env`: the value of a secret, set inside the container and nowhere else |
//! | `{{`, `}}` | `{`, `}` |
//!
//! A step without isolation can't have its inputs at `/in`. Places therefore stay symbolic in a [`Text`] until a
//! [`Layout`] says where they are.

use std::collections::BTreeMap;

use crate::canon::{Value, float};
use crate::kinds::input::Input;
use crate::kinds::step::ParamError;
use crate::near::did_you_mean;

/// A text with places in it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Text(pub Vec<Part>);

/// A piece of a [`Text`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Characters as they are.
    Literal(String),
    /// Where the input of this alias is.
    In(String),
    /// Where the output goes.
    Out,
    /// Where the manifest is.
    Manifest,
    /// The value of this secret.
    Secret(String),
}

/// Where a step finds its things.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Alias → absolute path of the input.
    pub inputs: BTreeMap<String, String>,
    /// The folder for the output.
    pub out: String,
    /// The manifest file.
    pub manifest: String,
    /// The folder for what is temporary; the working directory where none is declared.
    pub tmp: String,
}

impl Layout {
    /// The places inside a sandbox, the same on every machine.
    pub fn inside(inputs: &BTreeMap<String, Input>) -> Self {
        Self {
            inputs: inputs.iter().map(|(alias, i)| (alias.clone(), place_inside(alias, i))).collect(),
            out: "/out".to_owned(),
            manifest: "/in.json".to_owned(),
            tmp: "/tmp".to_owned(),
        }
    }
}

fn place_inside(alias: &str, input: &Input) -> String {
    input.at.clone().unwrap_or_else(|| format!("/in/{alias}"))
}

impl Text {
    /// A text without places.
    pub fn literal(text: impl Into<String>) -> Self {
        Self(vec![Part::Literal(text.into())])
    }

    /// Whether a secret stands in it.
    pub fn is_secret(&self) -> bool {
        self.0.iter().any(|p| matches!(p, Part::Secret(_)))
    }

    /// The text with every place filled in. A place that the layout lacks becomes nothing; [`parse`] lets none through.
    pub fn render(&self, layout: &Layout) -> String {
        self.0
            .iter()
            .map(|part| match part {
                Part::Literal(s) => s.as_str(),
                Part::In(alias) => layout.inputs.get(alias).map_or("", String::as_str),
                Part::Out => layout.out.as_str(),
                Part::Manifest => layout.manifest.as_str(),
                // Nobody but the step itself gets to see it.
                Part::Secret(_) => "",
            })
            .collect()
    }
}

/// Reads a text with placeholders. `key` is where it stands (`argv`, `env.NAME`), for errors; `values` is the node's
/// table `params`. Errors: [`ParamError`] at `key` for an unknown placeholder (with near names), a brace without its
/// partner, and a parameter that is no text, number, boolean or date.
pub fn parse(key: &str, text: &str, aliases: &[&str], values: &BTreeMap<String, Value>) -> Result<Text, ParamError> {
    let mut parts = Vec::new();
    let mut literal = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        literal.push_str(&rest[..at]);
        let here = &rest[at..];
        if let Some(after) = here.strip_prefix("{{") {
            literal.push('{');
            rest = after;
        } else if let Some(after) = here.strip_prefix("}}") {
            literal.push('}');
            rest = after;
        } else if let Some(after) = here.strip_prefix('{') {
            let (name, after) = after.split_once('}').ok_or_else(|| lone_brace(key, text, '{'))?;
            match place(key, text, name, aliases, values)? {
                Part::Literal(s) => literal.push_str(&s),
                part => {
                    if !literal.is_empty() {
                        parts.push(Part::Literal(std::mem::take(&mut literal)));
                    }
                    parts.push(part);
                }
            }
            rest = after;
        } else {
            return Err(lone_brace(key, text, '}'));
        }
    }
    literal.push_str(rest);
    if !literal.is_empty() || parts.is_empty() {
        parts.push(Part::Literal(literal));
    }
    Ok(Text(parts))
}

fn lone_brace(key: &str, text: &str, brace: char) -> ParamError {
    ParamError::new(key, format!("a `{brace}` without its partner in {text:?}"))
        .hint(format!("write `{brace}{brace}` for the character itself"))
}

fn place(
    key: &str,
    text: &str,
    name: &str,
    aliases: &[&str],
    values: &BTreeMap<String, Value>,
) -> Result<Part, ParamError> {
    if let Some(alias) = name.strip_prefix("in.") {
        if aliases.contains(&alias) {
            return Ok(Part::In(alias.to_owned()));
        }
    } else if let Some(path) = name.strip_prefix("param.") {
        if let Some(value) = lookup(values, path) {
            return scalar(value).map(Part::Literal).ok_or_else(|| {
                ParamError::new(
                    key,
                    format!("{{{name}}} in {text:?} is {}: it can't stand in a text", value.type_name()),
                )
                .hint("name one of its values, or let the script read the manifest")
            });
        }
    } else if let Some(secret) = name.strip_prefix("secret.") {
        if key.starts_with("env.") {
            return Ok(Part::Secret(secret.to_owned()));
        }
        return Err(ParamError::new(key, format!("{{{name}}} in {text:?}: a secret stands only in `env`"))
            .hint(format!("the step finds it in /run/secrets/{secret} too")));
    } else if name == "out" {
        return Ok(Part::Out);
    } else if name == "manifest" {
        return Ok(Part::Manifest);
    }
    let mut known = vec!["out".to_owned(), "manifest".to_owned()];
    known.extend(aliases.iter().map(|a| format!("in.{a}")));
    leaves(values, "param", &mut known);
    let hint = did_you_mean(name, known.iter().map(String::as_str)).unwrap_or_else(|| {
        let shown: Vec<String> = known.iter().take(8).map(|k| format!("{{{k}}}")).collect();
        format!("known are {}; write {{{{ and }}}} for braces themselves", shown.join(", "))
    });
    Err(ParamError::new(key, format!("unknown placeholder {{{name}}} in {text:?}")).hint(hint))
}

// A key may hold a dot itself, so the whole rest is tried before it is split.
fn lookup<'a>(values: &'a BTreeMap<String, Value>, path: &str) -> Option<&'a Value> {
    if let Some(v) = values.get(path) {
        return Some(v);
    }
    path.match_indices('.').find_map(|(at, _)| lookup(values.get(&path[..at])?.as_map()?, &path[at + 1..]))
}

fn leaves(values: &BTreeMap<String, Value>, prefix: &str, into: &mut Vec<String>) {
    for (k, v) in values {
        let name = format!("{prefix}.{k}");
        match v {
            Value::Map(m) => leaves(m, &name, into),
            _ => into.push(name),
        }
    }
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::Str(s) | Value::Date(s) => Some(s.clone()),
        Value::Int(i) => Some(i.to_string()),
        Value::Float(f) => Some(float(*f)),
        Value::Bool(b) => Some(b.to_string()),
        Value::List(_) | Value::Map(_) => None,
    }
}

/// The text of the manifest: one JSON object.
///
/// ```json
/// { "version": 1,
///   "inputs": { "model": { "path": "/in/model", "tree": "b3:…", "single_file": false,
///       "files": [ { "path": "config.json", "size": 1969, "digest": "b3:…", "executable": false } ],
///       "links": [ { "path": "latest", "target": "config.json" } ],
///       "empty_folders": [ { "path": "cache" } ] } },
///   "params": { "rows": 512 },
///   "out": "/out" }
/// ```
///
/// The `path` of a file is relative to its input's; a single file is its input's path itself, and has the path `""`.
/// A name that is not UTF-8 has `path_hex` (its bytes in hex) instead of `path`, and a link's target likewise, so that
/// every name can be told from every other one. Floats that JSON lacks (`inf`, `nan`) and dates are strings.
pub fn manifest(inputs: &BTreeMap<String, Input>, params: &BTreeMap<String, Value>, layout: &Layout) -> String {
    use serde_json::{Map, Value as Json, json};
    let mut listed = Map::new();
    for (alias, input) in inputs {
        let (mut files, mut links, mut folders) = (Vec::new(), Vec::new(), Vec::new());
        for (path, entry) in input.tree.iter() {
            let mut o = Map::new();
            // The own name of a file source is not hashed, so a step must not see it.
            bytes_field(&mut o, "path", if input.single_file { b"" } else { path.as_bytes() });
            match entry {
                crate::model::tree::Entry::File { blob, size, executable } => {
                    o.insert("size".into(), json!(size));
                    o.insert("digest".into(), json!(blob.to_string()));
                    o.insert("executable".into(), json!(executable));
                    files.push(Json::Object(o));
                }
                crate::model::tree::Entry::Link { target } => {
                    bytes_field(&mut o, "target", target);
                    links.push(Json::Object(o));
                }
                crate::model::tree::Entry::EmptyDir => folders.push(Json::Object(o)),
            }
        }
        // A single file's tree holds its name.
        let tree = if input.single_file { Json::Null } else { json!(input.tree.id().to_string()) };
        let at = layout.inputs.get(alias).cloned().unwrap_or_default();
        let shown = json!({
            "path": at, "tree": tree, "single_file": input.single_file,
            "files": files, "links": links, "empty_folders": folders,
        });
        listed.insert(alias.clone(), shown);
    }
    let params: Map<String, Json> = params.iter().map(|(k, v)| (k.clone(), to_json(v))).collect();
    let whole = json!({ "version": 1, "inputs": listed, "params": params, "out": layout.out });
    format!("{whole:#}\n")
}

fn bytes_field(o: &mut serde_json::Map<String, serde_json::Value>, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => o.insert(name.to_owned(), text.into()),
        Err(_) => {
            let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
            o.insert(format!("{name}_hex"), hex.into())
        }
    };
}

fn to_json(value: &Value) -> serde_json::Value {
    match value {
        Value::Bool(b) => (*b).into(),
        Value::Int(i) => (*i).into(),
        Value::Float(f) => serde_json::Number::from_f64(*f).map_or_else(|| float(*f).into(), serde_json::Value::Number),
        Value::Str(s) | Value::Date(s) => s.clone().into(),
        Value::List(l) => l.iter().map(to_json).collect(),
        Value::Map(m) => serde_json::Value::Object(m.iter().map(|(k, v)| (k.clone(), to_json(v))).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> BTreeMap<String, Value> {
        let lr = [("rate".to_owned(), Value::Float(1.0))].into();
        [
            ("rows".to_owned(), Value::Int(512)),
            ("name".to_owned(), Value::Str("{out}".into())),
            ("opt".to_owned(), Value::Map(lr)),
            ("a.b".to_owned(), Value::Bool(true)),
            ("list".to_owned(), Value::List(vec![])),
        ]
        .into()
    }

    fn layout() -> Layout {
        Layout {
            inputs: [("model".to_owned(), "/in/model".to_owned()), ("a.b".to_owned(), "/opt/x".to_owned())].into(),
            out: "/out".into(),
            manifest: "/in.json".into(),
            tmp: "/tmp".into(),
        }
    }

    fn rendered(text: &str) -> String {
        parse("argv", text, &["model", "a.b"], &values()).unwrap().render(&layout())
    }

    fn error(text: &str) -> ParamError {
        parse("argv", text, &["model"], &values()).unwrap_err()
    }

    #[test]
    fn every_placeholder_becomes_its_place_or_value() {
        assert_eq!(rendered("{in.model}/config.json"), "/in/model/config.json");
        assert_eq!(rendered("{in.a.b}:{out}:{manifest}"), "/opt/x:/out:/in.json");
        assert_eq!(rendered("--rows={param.rows} {param.opt.rate} {param.a.b}"), "--rows=512 1.0 true");
        assert_eq!(rendered("plain"), "plain");
        assert_eq!(rendered(""), "");
    }

    #[test]
    fn doubled_braces_are_braces_and_a_value_is_not_read_again() {
        assert_eq!(rendered(r#"{{"rows": {param.rows}}}"#), r#"{"rows": 512}"#);
        assert_eq!(rendered("{param.name}"), "{out}");
        assert_eq!(rendered("{{out}}"), "{out}");
    }

    #[test]
    fn an_unknown_placeholder_is_an_error_with_near_names() {
        let e = error("{in.modle}/x");
        assert_eq!(e.key, "argv");
        assert_eq!(e.what, "unknown placeholder {in.modle} in \"{in.modle}/x\"");
        assert_eq!(e.hint.as_deref(), Some("did you mean `in.model`?"));
        assert!(error("{param.row}").hint.unwrap().starts_with("did you mean `param.rows`"));
        assert!(error("{zzzzzz}").hint.unwrap().contains("{out}"));
    }

    #[test]
    fn a_brace_without_its_partner_and_a_list_in_a_text_are_errors() {
        for text in ["{out", "out}", "a}b", "{"] {
            assert!(error(text).what.contains("without its partner"), "{text}");
        }
        assert!(error("{param.list}").what.contains("is a list"));
    }

    #[test]
    fn floats_and_integers_stay_apart_in_the_manifest() {
        let v = [
            ("a".to_owned(), Value::Int(1)),
            ("b".to_owned(), Value::Float(1.0)),
            ("c".to_owned(), Value::Float(f64::INFINITY)),
        ]
        .into();
        let text = manifest(&BTreeMap::new(), &v, &layout());
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["params"].to_string(), r#"{"a":1,"b":1.0,"c":"inf"}"#);
    }
}
