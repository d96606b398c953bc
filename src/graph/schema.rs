//! A JSON schema of graph.toml, for editors, made from the same types that read it.

use serde_json::{Map, Value, json};

use crate::graph::document::wanted;
use crate::graph::name::LONGEST;
use crate::graph::node::COMMON_KEYS;
use crate::graph::source::SourceKind;
use crate::graph::{engine, window};
use crate::kinds::{KeySpec, KeyType, Kind};

/// The schema (draft 7, which editors read). Names that do not resolve, cycles and what a kind looks at inside its
/// tables are beyond it.
pub fn schema(kinds: &[&'static dyn Kind]) -> Value {
    let name = format!("^[^.+\\-][\\w.+\\-]{{0,{}}}$", LONGEST - 1);
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "graph.toml of graftwerk",
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "store": {"type": "string", "minLength": 1, "description": "where the store lies, relative to this file"},
            "source": {
                "type": "object",
                "description": "what is only read: weights, data, scripts",
                "propertyNames": {"pattern": name},
                "additionalProperties": source(),
            },
            "node": {
                "type": "object",
                "description": "the steps",
                "propertyNames": {"pattern": name},
                "additionalProperties": node(kinds),
            },
            "window": {
                "type": "object",
                "description": "containers that are stopped while the nodes that name the window run",
                "propertyNames": {"pattern": name},
                "additionalProperties": window(),
            },
            "engine": engine(),
        },
    })
}

fn source() -> Value {
    let mut properties = Map::new();
    for kind in SourceKind::ALL {
        let what = match kind {
            SourceKind::Checkpoint => "path of a folder with safetensors shards",
            SourceKind::File => "path of one file",
            SourceKind::Folder => "path of a folder",
            SourceKind::Rows => "path of a file of JSON lines",
        };
        properties.insert(kind.key().to_owned(), json!({"type": "string", "description": what}));
    }
    properties.insert("exclude".to_owned(), with(ty(KeyType::StrList), "what of a folder is left out"));
    properties.insert("at".to_owned(), with(ty(KeyType::Str), "where process steps see it"));
    properties.insert("about".to_owned(), with(ty(KeyType::Str), "for people"));
    let one: Vec<Value> = SourceKind::ALL.iter().map(|k| json!({"required": [k.key()]})).collect();
    json!({"type": "object", "additionalProperties": false, "properties": properties, "oneOf": one})
}

fn window() -> Value {
    let properties: Map<String, Value> =
        window::KEYS.iter().map(|(name, key, about)| ((*name).to_owned(), with(ty(*key), about))).collect();
    json!({"type": "object", "additionalProperties": false, "required": ["stop"], "properties": properties})
}

fn engine() -> Value {
    let mut properties: Map<String, Value> =
        engine::KEYS.iter().map(|(name, key, about)| ((*name).to_owned(), with(ty(*key), about))).collect();
    properties["gpu"]["enum"] = json!(engine::GPU_WAYS);
    json!({"type": "object", "description": "the container engine", "additionalProperties": false, "properties": properties})
}

fn node(kinds: &[&'static dyn Kind]) -> Value {
    let names: Vec<&str> = kinds.iter().map(|k| k.name()).collect();
    let each: Vec<Value> = kinds
        .iter()
        .map(
            |k| json!({"if": {"properties": {"kind": {"const": k.name()}}, "required": ["kind"]}, "then": of_kind(*k)}),
        )
        .collect();
    json!({
        "type": "object",
        "required": ["kind"],
        "properties": {"kind": {"enum": names, "description": "what the step does"}},
        "allOf": each,
    })
}

fn of_kind(kind: &dyn Kind) -> Value {
    let mut properties = Map::new();
    for key in COMMON_KEYS {
        properties.insert(key.to_owned(), common(key));
    }
    for key in kind.keys() {
        properties.insert(key.name.to_owned(), own(key));
    }
    let required: Vec<&str> = kind.keys().iter().filter(|k| k.required).map(|k| k.name).collect();
    json!({
        "description": kind.about(),
        "additionalProperties": false,
        "properties": properties,
        "required": required,
    })
}

fn own(key: &KeySpec) -> Value {
    let hashed = if key.hashed { "" } else { " (not hashed)" };
    with(ty(key.ty), &format!("{}: {}{hashed}", wanted(key.ty), key.about))
}

fn common(key: &str) -> Value {
    match key {
        "inputs" => json!({
            "type": "object",
            "description": "ALIAS = what it is taken from",
            "additionalProperties": {
                "anyOf": [
                    {"type": "string"},
                    {
                        "type": "object",
                        "additionalProperties": false,
                        "required": ["node"],
                        "properties": {
                            "node": with(ty(KeyType::Str), "a source or a node"),
                            "uses": with(ty(KeyType::StrList), "what of it the step sees"),
                            "at": with(ty(KeyType::Str), "where a process step sees it"),
                        },
                    },
                ],
            },
        }),
        "gate" => with(ty(KeyType::StrList), "checks that must have passed before the node runs"),
        "platform" => with(ty(KeyType::Str), "the hardware, where it changes the result"),
        "about" => with(ty(KeyType::Str), "for people"),
        _ => json!({}),
    }
}

fn with(mut schema: Value, description: &str) -> Value {
    if let Some(o) = schema.as_object_mut() {
        o.insert("description".to_owned(), description.into());
    }
    schema
}

fn ty(ty: KeyType) -> Value {
    match ty {
        KeyType::Str => json!({"type": "string"}),
        KeyType::Int => json!({"type": "integer"}),
        KeyType::Bool => json!({"type": "boolean"}),
        KeyType::StrOrList => {
            json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})
        }
        KeyType::StrList => json!({"type": "array", "items": {"type": "string"}}),
        KeyType::StrMap => json!({"type": "object", "additionalProperties": {"type": "string"}}),
        KeyType::Map => json!({"type": "object"}),
        KeyType::Any => json!({}),
    }
}
