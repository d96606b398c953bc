//! What is said of graphs, right and wrong ones.

mod errors;
mod mutated;
mod shape;

use crate::graph::{Diagnostics, Graph};
use crate::kinds::{KeySpec, KeyType, Kind, Output, ParamError, Params, Report, Step, StepError};

/// A kind that takes every type of key.
struct Toy(&'static str);

const KEYS: &[KeySpec] = &[
    KeySpec::optional("tensors", KeyType::StrList, "tensor patterns"),
    KeySpec::optional("method", KeyType::Str, "a method"),
    KeySpec::optional("bits", KeyType::Int, "a number"),
    KeySpec::optional("strict", KeyType::Bool, "a choice"),
    KeySpec::optional("argv", KeyType::StrOrList, "words"),
    KeySpec::optional("env", KeyType::StrMap, "an environment"),
    KeySpec::asserted("expect", KeyType::Map, "what is asserted"),
    KeySpec::optional("any", KeyType::Any, "anything"),
];

const QUANT_KEYS: &[KeySpec] = &[
    KeySpec::required("method", KeyType::Str, "how to quantise"),
    KeySpec::optional("ignore", KeyType::StrList, "modules left alone"),
];

impl Kind for Toy {
    fn name(&self) -> &'static str {
        self.0
    }
    fn revision(&self) -> u32 {
        1
    }
    fn about(&self) -> &'static str {
        "a kind for tests"
    }
    fn keys(&self) -> &'static [KeySpec] {
        if self.0 == "quant" { QUANT_KEYS } else { KEYS }
    }
    fn check(&self, params: &Params, aliases: &[&str]) -> Result<(), ParamError> {
        if self.0 == "graft" {
            for alias in ["into", "from"] {
                if !aliases.contains(&alias) {
                    let key = format!("inputs.{alias}");
                    return Err(ParamError::new(key, format!("a graft needs the input `{alias}`")).hint("add it"));
                }
            }
            let count = params.get("expect").and_then(|e| e.as_map()).and_then(|e| e.get("count"));
            if count.is_some_and(|c| c.as_int().is_none()) {
                return Err(ParamError::new("expect.count", "`expect.count` must be an integer"));
            }
            if params.get("tensors").and_then(|t| t.as_str_list()).is_some_and(|t| t.get(1) == Some(&"")) {
                return Err(ParamError::new("tensors[1]", "a pattern is empty"));
            }
        }
        Ok(())
    }
    fn run(&self, _: &Step<'_>, _: &mut Output) -> Result<Report, StepError> {
        Ok(Report::default())
    }
}

pub(super) static KINDS: &[&dyn Kind] = &[&Toy("graft"), &Toy("quant"), &Toy("run"), &Toy("check")];

pub(super) fn parse(text: &str) -> Result<Graph, Diagnostics> {
    Graph::parse_with("graph.toml", text, KINDS)
}

pub(super) fn graph(text: &str) -> Graph {
    parse(text).unwrap_or_else(|e| panic!("{}", plain(&e)))
}

/// Each error with what its labels cover and say, and its hint.
pub(super) fn plain(d: &Diagnostics) -> String {
    let mut s = String::new();
    for e in &d.list {
        s.push_str(&format!("{e}\n"));
        for l in &e.labels {
            let covered = d.text().get(l.span.start..l.span.end).unwrap_or("OUT OF THE TEXT");
            s.push_str(&format!("    {covered:?} {}\n", l.text));
        }
        if let Some(h) = &e.hint {
            s.push_str(&format!("  hint: {h}\n"));
        }
    }
    if d.more > 0 {
        s.push_str(&format!("and {} more\n", d.more));
    }
    s
}

/// The errors of a text that must have some.
pub(super) fn errors(text: &str) -> String {
    match parse(text) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(d) => plain(&d),
    }
}
