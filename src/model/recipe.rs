//! A recipe: everything that can change a node's output, in canonical text.
//!
//! | covered: a change rebuilds | never covered: a change is free |
//! | --- | --- |
//! | kind, its revision | the node's name, comments, order and formatting of graph.toml |
//! | parameters, typed | absolute paths, host, user, umask |
//! | every (filtered) input tree, its alias and where it is mounted | times, inode numbers |
//! | executables of a process step with their interpreter and libraries | core count, gates, expectations |
//! | an image's layers and runtime configuration | the image's name and its id in an engine |
//! | declared environment, network yes/no, platform | the caller's environment, locale, time zone |
//!
//! ```text
//! graftwerk recipe 1
//! kind = "graft"
//! revision = 1
//! param "tensors" = ["mtp.*"]
//! input "from" = tree b3:…
//! input "into" = tree b3:…
//! ```
//!
//! A step is written to a [`Sink`] by one function; the hasher and the explainer are two sinks, so an explanation
//! can't drift from the key.

use std::collections::BTreeMap;

use crate::canon::{Value, quote, unquote_prefix};
use crate::digest::{Digest, RecipeId, TreeId};

const HEADER: &str = "graftwerk recipe 1";

/// What a field belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// `kind`, `revision`, `platform`, `image`: the step itself.
    Step,
    /// A parameter.
    Param,
    /// An input's tree.
    Input,
    /// Where an input is mounted, where it says so.
    At,
    /// An executable, interpreter or library of the host.
    Tool,
}

/// The name of a recipe's field.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FieldName {
    /// What it belongs to.
    pub class: Class,
    /// Its name there.
    pub name: String,
}

impl std::fmt::Display for FieldName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.class {
            Class::Step => f.write_str(&self.name),
            Class::Param => write!(f, "param {}", self.name),
            Class::Input => write!(f, "input {}", self.name),
            Class::At => write!(f, "mount of {}", self.name),
            Class::Tool => write!(f, "tool {}", self.name),
        }
    }
}

/// Takes the fields of a step, one after another, in canonical order.
pub trait Sink {
    /// One field: its class, its name, and its value as canonical text on one line.
    fn field(&mut self, class: Class, name: &str, value: &str);
}

/// What a step is made of; [`Ingredients::write`] is the only place that says what a recipe covers.
#[derive(Debug, Clone, Default)]
pub struct Ingredients {
    /// The kind's name.
    pub kind: String,
    /// The revision of its implementation.
    pub revision: u32,
    /// The platform, where the user says that hardware changes the result.
    pub platform: Option<String>,
    /// The image of a step in a container: the digest of what a step can see of it.
    pub image: Option<Digest>,
    /// Parameters that are hashed.
    pub params: BTreeMap<String, Value>,
    /// Alias → the (filtered) tree.
    pub inputs: BTreeMap<String, TreeId>,
    /// Alias → mount point, only where one is declared.
    pub at: BTreeMap<String, String>,
    /// Path inside → digest of an executable, interpreter or shared library of the host.
    pub tools: BTreeMap<String, Digest>,
}

impl Ingredients {
    /// Writes every field to `sink`, in canonical order.
    pub fn write(&self, sink: &mut dyn Sink) {
        sink.field(Class::Step, "kind", &quote(self.kind.as_bytes()));
        sink.field(Class::Step, "revision", &self.revision.to_string());
        if let Some(p) = &self.platform {
            sink.field(Class::Step, "platform", &quote(p.as_bytes()));
        }
        if let Some(image) = &self.image {
            sink.field(Class::Step, "image", &image.to_string());
        }
        for (k, v) in &self.params {
            sink.field(Class::Param, k, &v.to_canon());
        }
        for (alias, tree) in &self.inputs {
            sink.field(Class::Input, alias, &format!("tree {tree}"));
        }
        for (alias, at) in &self.at {
            sink.field(Class::At, alias, &quote(at.as_bytes()));
        }
        for (path, digest) in &self.tools {
            sink.field(Class::Tool, path, &digest.to_string());
        }
    }

    /// The recipe: text and id.
    pub fn recipe(&self) -> Recipe {
        let mut sink = TextSink { text: format!("{HEADER}\n") };
        self.write(&mut sink);
        Recipe { id: RecipeId(Digest::of(sink.text.as_bytes())), text: sink.text }
    }
}

struct TextSink {
    text: String,
}

impl Sink for TextSink {
    fn field(&mut self, class: Class, name: &str, value: &str) {
        use std::fmt::Write as _;
        let _ = match class {
            Class::Step => writeln!(self.text, "{name} = {value}"),
            Class::Param => writeln!(self.text, "param {} = {value}", quote(name.as_bytes())),
            Class::Input => writeln!(self.text, "input {} = {value}", quote(name.as_bytes())),
            Class::At => writeln!(self.text, "at {} = {value}", quote(name.as_bytes())),
            Class::Tool => writeln!(self.text, "tool {} = {value}", quote(name.as_bytes())),
        };
    }
}

/// Fields by name, each with its value as canonical text.
pub type Fields = BTreeMap<FieldName, String>;

struct FieldSink(Fields);

impl Sink for FieldSink {
    fn field(&mut self, class: Class, name: &str, value: &str) {
        self.0.insert(FieldName { class, name: name.to_owned() }, value.to_owned());
    }
}

/// A recipe's text and the digest that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// BLAKE3 of the text.
    pub id: RecipeId,
    /// The canonical text.
    pub text: String,
}

/// A text that is no recipe.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the recipe: {what}")]
pub struct BadRecipe {
    /// Line number, from 1.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

/// One field that two recipes do not share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The field.
    pub field: FieldName,
    /// Its canonical text before; `None` where it was not there.
    pub old: Option<String>,
    /// Its canonical text now; `None` where it is gone.
    pub new: Option<String>,
}

/// Reads the fields of a recipe's text. Errors: [`BadRecipe`].
pub fn parse_fields(text: &str) -> Result<Fields, BadRecipe> {
    let mut fields = Fields::new();
    for (i, line) in text.split_terminator('\n').enumerate() {
        let bad = |what: &str| BadRecipe { line: i + 1, what: what.to_owned() };
        if i == 0 {
            if line != HEADER {
                return Err(bad("expected \"graftwerk recipe 1\""));
            }
            continue;
        }
        let (class, rest) = match line.split_once(' ') {
            Some(("param", r)) if r.starts_with('"') => (Class::Param, r),
            Some(("input", r)) if r.starts_with('"') => (Class::Input, r),
            Some(("at", r)) if r.starts_with('"') => (Class::At, r),
            Some(("tool", r)) if r.starts_with('"') => (Class::Tool, r),
            _ => (Class::Step, line),
        };
        let (name, value) = if class == Class::Step {
            let (n, v) = rest.split_once(" = ").ok_or_else(|| bad("expected `name = value`"))?;
            (n.to_owned(), v)
        } else {
            let (n, v) = unquote_prefix(rest).map_err(|e| bad(&e.to_string()))?;
            let n = String::from_utf8(n).map_err(|_| bad("a field name that is no UTF-8"))?;
            (n, v.strip_prefix(" = ").ok_or_else(|| bad("expected ` = `"))?)
        };
        if fields.insert(FieldName { class, name }, value.to_owned()).is_some() {
            return Err(bad("a field stands twice"));
        }
    }
    if fields.is_empty() { Err(BadRecipe { line: 1, what: "no fields".to_owned() }) } else { Ok(fields) }
}

/// The fields in which the kept text of an earlier recipe and a step's ingredients differ, in canonical order.
/// Errors: [`BadRecipe`] where the kept text is damaged.
pub fn explain(old_text: &str, new: &Ingredients) -> Result<Vec<Change>, BadRecipe> {
    let mut sink = FieldSink(Fields::new());
    new.write(&mut sink);
    Ok(differences(&parse_fields(old_text)?, &sink.0))
}

fn differences(old: &Fields, new: &Fields) -> Vec<Change> {
    let names: std::collections::BTreeSet<&FieldName> = old.keys().chain(new.keys()).collect();
    names
        .into_iter()
        .filter(|n| old.get(n) != new.get(n))
        .map(|n| Change { field: n.clone(), old: old.get(n).cloned(), new: new.get(n).cloned() })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Ingredients {
        Ingredients {
            kind: "graft".into(),
            revision: 1,
            platform: None,
            image: None,
            params: [("tensors".to_owned(), Value::List(vec![Value::Str("mtp.*".into())]))].into(),
            inputs: [("into".to_owned(), TreeId(Digest::of(b"a"))), ("from".to_owned(), TreeId(Digest::of(b"b")))]
                .into(),
            at: BTreeMap::new(),
            tools: BTreeMap::new(),
        }
    }

    #[test]
    fn the_text_and_the_id_of_a_recipe_are_fixed() {
        let r = sample().recipe();
        insta::assert_snapshot!(r.text, @r#"
        graftwerk recipe 1
        kind = "graft"
        revision = 1
        param "tensors" = ["mtp.*"]
        input "from" = tree b3:10e5cf3d3c8a4f9f3468c8cc58eea84892a22fdadbc1acb22410190044c1d553
        input "into" = tree b3:17762fddd969a453925d65717ac3eea21320b66b54342fde15128d6caf21215f
        "#);
        assert_eq!(r.id, RecipeId(Digest::of(r.text.as_bytes())));
    }

    #[test]
    fn an_integer_that_becomes_a_float_is_one_change_with_both_values() {
        let mut a = sample();
        a.params.insert("strength".into(), Value::Int(1));
        let old = a.recipe();
        a.params.insert("strength".into(), Value::Float(1.0));
        assert_ne!(a.recipe().id, old.id);
        let changes = explain(&old.text, &a).unwrap();
        assert_eq!(changes.len(), 1);
        assert_eq!(changes[0].field.to_string(), "param strength");
        assert_eq!((changes[0].old.as_deref(), changes[0].new.as_deref()), (Some("1"), Some("1.0")));
    }

    #[test]
    fn an_unchanged_step_has_nothing_to_explain() {
        assert_eq!(explain(&sample().recipe().text, &sample()).unwrap(), []);
    }

    #[test]
    fn names_with_newlines_and_quotes_cannot_forge_fields() {
        let mut a = sample();
        a.params.insert("x\" = 1\nparam \"y".into(), Value::Int(2));
        let text = a.recipe().text;
        assert_eq!(parse_fields(&text).unwrap().len(), 6);
    }
}
