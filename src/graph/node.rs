//! `[node.NAME]`: a step of some kind, with its inputs, its parameters and its gates.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use toml::de::DeValue;

use crate::canon::quote;
use crate::graph::diagnostic::{Problem, Problems, Span};
use crate::graph::document::{self, Entry, Item, Table, check_type, entries, shown, span_of, wrong_type};
use crate::graph::filter::Filter;
use crate::graph::name::{Name, folded};
use crate::graph::source::{read_at, string};
use crate::kinds::{KeyType, Kind, ParamError, Params};
use crate::near::did_you_mean;

/// The keys that every node takes, whatever its kind.
pub const COMMON_KEYS: [&str; 5] = ["kind", "inputs", "gate", "platform", "about"];

/// What an input is taken from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ref {
    /// A source.
    Source(Name),
    /// A node's tree.
    Node(Name),
}

impl Ref {
    /// The name, whatever it names.
    pub fn name(&self) -> &Name {
        match self {
            Ref::Source(n) | Ref::Node(n) => n,
        }
    }
}

/// An input of a node.
#[derive(Debug, Clone)]
pub struct InputSpec {
    /// Where it comes from.
    pub from: Ref,
    /// What of it the step sees, as written; `None` for all of it.
    pub uses: Option<Vec<String>>,
    /// Where a process step sees it instead of `/in/ALIAS`; a source's own `at` is already in here.
    pub at: Option<String>,
    /// Where it stands.
    pub span: Span,
    /// Where each pattern of `uses` stands.
    pub uses_spans: Vec<Span>,
}

impl InputSpec {
    /// What of the input the step sees; `None` for all of it.
    pub fn filter(&self) -> Option<Filter> {
        // The patterns were compiled once while they were read.
        self.uses.as_ref().and_then(|u| Filter::compile(u).ok())
    }
}

/// A node as graph.toml declares it.
#[derive(Clone)]
pub struct NodeSpec {
    /// Its name.
    pub name: Name,
    /// What it does.
    pub kind: &'static dyn Kind,
    /// Its inputs by alias.
    pub inputs: BTreeMap<String, InputSpec>,
    /// The checks that must have passed before it runs.
    pub gates: BTreeSet<Name>,
    /// Its kind's parameters, asserted ones included.
    pub params: Params,
    /// The platform, where the user says that hardware changes the result.
    pub platform: Option<String>,
    /// For people.
    pub about: Option<String>,
    /// Where its name stands.
    pub span: Span,
    /// Where the value of each of its keys stands.
    pub key_spans: BTreeMap<String, Span>,
}

impl NodeSpec {
    /// Where a dotted key stands, as near as is known without the text: its first part, else the node's name.
    pub fn span_of(&self, dotted: &str) -> Span {
        let first = dotted.split(['.', '[']).next().unwrap_or(dotted);
        self.key_spans.get(dotted).or_else(|| self.key_spans.get(first)).copied().unwrap_or(self.span)
    }
}

impl fmt::Debug for NodeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeSpec")
            .field("name", &self.name)
            .field("kind", &self.kind.name())
            .field("inputs", &self.inputs)
            .field("gates", &self.gates)
            .field("params", &self.params)
            .finish_non_exhaustive()
    }
}

/// A name somewhere in the text that is still to be resolved.
pub(crate) struct Mention {
    pub(crate) name: String,
    pub(crate) span: Span,
}

/// An input before its name is resolved.
pub(crate) struct DraftInput {
    pub(crate) from: Mention,
    pub(crate) uses: Option<Vec<String>>,
    pub(crate) uses_spans: Vec<Span>,
    pub(crate) at: Option<String>,
    pub(crate) span: Span,
}

/// A node before its names are resolved.
pub(crate) struct Draft {
    pub(crate) name: Name,
    pub(crate) kind: Option<&'static dyn Kind>,
    pub(crate) inputs: BTreeMap<String, DraftInput>,
    pub(crate) gates: Vec<Mention>,
    pub(crate) params: Params,
    pub(crate) platform: Option<String>,
    pub(crate) about: Option<String>,
    pub(crate) span: Span,
    pub(crate) key_spans: BTreeMap<String, Span>,
}

/// Reads the declarations of nodes. Names are looked at elsewhere; a node of a bad name is left out.
pub(crate) fn read_all(declared: &[Entry<'_, '_>], kinds: &[&'static dyn Kind], problems: &mut Problems) -> Vec<Draft> {
    let mut drafts = Vec::with_capacity(declared.len());
    for e in declared {
        match e.item.get_ref() {
            DeValue::Table(t) => drafts.extend(read(e, t, kinds, problems)),
            other => problems.push(|| {
                wrong_type(&format!("node.{}", e.name), "a table", other, e.value_span())
                    .hint("a node is a table of its own: [node.NAME], and below it its keys")
            }),
        }
    }
    drafts
}

fn read(
    declared: &Entry<'_, '_>,
    table: &Table<'_>,
    kinds: &[&'static dyn Kind],
    problems: &mut Problems,
) -> Option<Draft> {
    let before = problems.len();
    let kind = read_kind(declared, table, kinds, problems);
    let (mut inputs, mut gates) = (BTreeMap::new(), Vec::new());
    let (mut platform, mut about) = (None, None);
    let mut params = Params::new();
    let mut key_spans = BTreeMap::new();
    for e in entries(table) {
        key_spans.insert(e.name.to_owned(), e.value_span());
        match e.name {
            "kind" => {}
            "inputs" => inputs = read_inputs(&e, problems),
            "gate" => gates = read_gates(&e, problems),
            "platform" => platform = string(&e, problems),
            "about" => about = string(&e, problems),
            _ => read_param(&e, kind, &mut params, problems),
        }
    }
    if let Some(kind) = kind {
        for key in kind.keys().iter().filter(|k| k.required && !key_spans.contains_key(k.name)) {
            problems.push(|| {
                let what =
                    format!("the node {} lacks `{}`, {}", shown(declared.name), key.name, document::wanted(key.ty));
                Problem::new(declared.span, what, format!("a `{}` needs `{}`", kind.name(), key.name))
                    .hint(format!("`{}`: {}", key.name, key.about))
            });
        }
        // A kind may rely on the types that it declared, so it is asked only when they hold.
        if problems.len() == before {
            let aliases: Vec<&str> = inputs.keys().map(String::as_str).collect();
            if let Err(e) = kind.check(&params, &aliases) {
                problems.push(|| refused(declared, table, e));
            }
        }
    }
    let name = Name::new(declared.name).ok()?;
    Some(Draft { name, kind, inputs, gates, params, platform, about, span: declared.span, key_spans })
}

fn refused(declared: &Entry<'_, '_>, table: &Table<'_>, e: ParamError) -> Problem {
    let span = span_of(table, &e.key);
    let label = if span.is_some() { String::new() } else { format!("in this node, {}", shown(&e.key)) };
    Problem::new(span.unwrap_or(declared.span), e.what, label).maybe_hint(e.hint)
}

fn read_kind(
    declared: &Entry<'_, '_>,
    table: &Table<'_>,
    kinds: &[&'static dyn Kind],
    problems: &mut Problems,
) -> Option<&'static dyn Kind> {
    let all =
        || format!("kinds are {}", kinds.iter().map(|k| format!("`{}`", k.name())).collect::<Vec<_>>().join(", "));
    let Some(e) = entries(table).find(|e| e.name == "kind") else {
        problems.push(|| {
            let below = entries(table).find(|e| e.item.get_ref().get("kind").is_some());
            let hint = match below {
                Some(b) => {
                    let dotted = format!("{}.{}", declared.name, b.name);
                    format!("for a node that is called `{dotted}`, write [node.{}]", quote(dotted.as_bytes()))
                }
                None => all(),
            };
            let what = format!("the node {} does not say its kind", shown(declared.name));
            Problem::new(declared.span, what, "needs `kind`").hint(hint)
        });
        return None;
    };
    let Some(name) = e.item.get_ref().as_str() else {
        problems.push(|| wrong_type("kind", "a string", e.item.get_ref(), e.value_span()));
        return None;
    };
    let found = kinds.iter().copied().find(|k| k.name() == name);
    if found.is_none() {
        problems.push(|| {
            let hint = did_you_mean(name, kinds.iter().map(|k| k.name())).unwrap_or_else(all);
            Problem::new(e.value_span(), format!("unknown kind {}", shown(name)), "unknown").hint(hint)
        });
    }
    found
}

fn read_param(e: &Entry<'_, '_>, kind: Option<&'static dyn Kind>, params: &mut Params, problems: &mut Problems) {
    // Without a kind nobody can say which keys are right.
    let Some(kind) = kind else { return };
    let Some(spec) = kind.keys().iter().find(|k| k.name == e.name) else {
        problems.push(|| {
            let known = || kind.keys().iter().map(|k| k.name);
            let all = || format!("a `{}` takes {}", kind.name(), list(known().chain(COMMON_KEYS)));
            let hint = did_you_mean(e.name, known().chain(COMMON_KEYS)).unwrap_or_else(all);
            Problem::new(e.span, format!("unknown key {} of a `{}`", shown(e.name), kind.name()), "unknown").hint(hint)
        });
        return;
    };
    if let Err(p) = check_type(e.name, spec.ty, e.item) {
        problems.push(|| p);
        return;
    }
    if let Some(v) = document::value(e.item, problems) {
        params.insert(e.name.to_owned(), v);
    }
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ")
}

fn read_inputs(e: &Entry<'_, '_>, problems: &mut Problems) -> BTreeMap<String, DraftInput> {
    let mut inputs = BTreeMap::new();
    let mut seen: BTreeMap<String, (&str, Span)> = BTreeMap::new();
    let mut mounted: BTreeMap<String, Span> = BTreeMap::new();
    let DeValue::Table(table) = e.item.get_ref() else {
        problems.push(|| {
            wrong_type("inputs", "a table", e.item.get_ref(), e.value_span()).hint("write inputs.ALIAS = \"NAME\"")
        });
        return inputs;
    };
    for alias in entries(table) {
        if let Err(bad) = Name::new(alias.name) {
            problems.push(|| {
                Problem::new(alias.span, format!("the alias {bad}"), "not an alias")
                    .hint("a step sees the input as /in/ALIAS")
            });
        }
        if let Some((other, first)) = seen.insert(folded(alias.name), (alias.name, alias.span)) {
            problems.push(|| {
                let what = format!("the aliases {} and {} differ only in case", shown(other), shown(alias.name));
                Problem::new(alias.span, what, "and this").label(first, "this")
            });
        }
        let Some(input) = read_input(&alias, problems) else { continue };
        if let Some(at) = &input.at
            && let Some(first) = mounted.insert(at.clone(), alias.span)
        {
            problems.push(|| {
                Problem::new(alias.span, format!("two inputs are to be at {at}"), "and this").label(first, "this")
            });
        }
        inputs.insert(alias.name.to_owned(), input);
    }
    inputs
}

fn read_input(alias: &Entry<'_, '_>, problems: &mut Problems) -> Option<DraftInput> {
    let span = alias.value_span();
    let table = match alias.item.get_ref() {
        DeValue::String(s) => {
            let from = Mention { name: s.clone().into_owned(), span };
            return Some(DraftInput { from, uses: None, uses_spans: Vec::new(), at: None, span });
        }
        DeValue::Table(t) => t,
        other => {
            let key = format!("inputs.{}", alias.name);
            problems.push(|| wrong_type(&key, "a name or a table { node, uses, at }", other, span));
            return None;
        }
    };
    let (mut from, mut uses, mut uses_spans, mut at) = (None, None, Vec::new(), None);
    let mut named = false;
    for e in entries(table) {
        match e.name {
            "node" => {
                named = true;
                from = string(&e, problems).map(|name| Mention { name, span: e.value_span() });
            }
            "uses" => (uses, uses_spans) = read_uses(&e, problems),
            "at" => at = read_at(&e, problems),
            _ => problems.push(|| {
                let hint = did_you_mean(e.name, ["node", "uses", "at"]);
                Problem::new(e.span, format!("unknown key {} of an input", shown(e.name)), "unknown")
                    .hint(hint.unwrap_or_else(|| "an input takes `node`, `uses`, `at`".to_owned()))
            }),
        }
    }
    if !named {
        problems.push(|| {
            Problem::new(alias.span, format!("the input {} names no node", shown(alias.name)), "needs `node`")
                .hint("write { node = \"NAME\" }, with a node's or a source's name")
        });
    }
    Some(DraftInput { from: from?, uses, uses_spans, at, span })
}

fn read_uses(e: &Entry<'_, '_>, problems: &mut Problems) -> (Option<Vec<String>>, Vec<Span>) {
    let items: Vec<&Item<'_>> = match check_type("uses", KeyType::StrList, e.item) {
        Ok(()) => e.item.get_ref().as_array().into_iter().flat_map(|a| a.iter()).collect(),
        Err(p) => {
            problems.push(|| p);
            return (None, Vec::new());
        }
    };
    if items.is_empty() {
        problems.push(|| {
            Problem::new(e.value_span(), "`uses` is empty: the step would see nothing of this input", "empty")
                .hint("name what the step needs, or leave `uses` out to let it see everything")
        });
    }
    let (mut uses, mut spans) = (Vec::new(), Vec::new());
    for item in items {
        let Some(text) = item.get_ref().as_str() else { continue };
        let span: Span = item.span().into();
        match Filter::compile(&[text.to_owned()]) {
            Ok(_) => {
                uses.push(text.to_owned());
                spans.push(span);
            }
            Err(bad) => problems.push(|| {
                let hint = bad.hint();
                Problem::new(span, bad.to_string(), "not a pattern").maybe_hint(hint)
            }),
        }
    }
    (Some(uses), spans)
}

fn read_gates(e: &Entry<'_, '_>, problems: &mut Problems) -> Vec<Mention> {
    if let Err(p) = check_type("gate", KeyType::StrList, e.item) {
        problems.push(|| p);
        return Vec::new();
    }
    let items = e.item.get_ref().as_array().into_iter().flat_map(|a| a.iter());
    items.filter_map(|i| i.get_ref().as_str().map(|s| Mention { name: s.to_owned(), span: i.span().into() })).collect()
}

/// The places that a step has anyway; none of them may be hidden by an input.
const TAKEN: [&str; 8] = ["/in", "/in.json", "/out", "/proc", "/dev", "/sys", "/tmp", "/"];

/// Whether an input can be mounted there. Errors: what is wrong with the path.
pub(crate) fn check_at(at: &str) -> Result<(), String> {
    let Some(rest) = at.strip_prefix('/') else { return Err("it is not absolute".to_owned()) };
    if at.chars().any(char::is_control) {
        return Err("it holds a control character".to_owned());
    }
    if TAKEN.contains(&at) {
        return Err(format!("{at} is the step's own"));
    }
    if let Some(bad) = rest.split('/').find(|c| matches!(*c, "" | "." | "..")) {
        return Err(format!("it has the component {bad:?}"));
    }
    match TAKEN.iter().find(|t| **t != "/" && at.strip_prefix(**t).is_some_and(|r| r.starts_with('/'))) {
        Some(t) => Err(format!("{t} is the step's own")),
        None => Ok(()),
    }
}
