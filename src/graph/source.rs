//! `[source.NAME]`: something the user owns, which is only ever read.

use std::collections::BTreeMap;
use std::fmt;

use toml::de::DeValue;

use crate::graph::diagnostic::{Problem, Problems, Span};
use crate::graph::document::{Entry, Table, check_type, entries, shown, wrong_type};
use crate::graph::filter::Excludes;
use crate::graph::name::Name;
use crate::graph::node::check_at;
use crate::kinds::KeyType;
use crate::near::did_you_mean;

/// What a source is; the key in graph.toml that holds its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceKind {
    /// A folder with safetensors shards, with or without an index. Index and shards must agree.
    Checkpoint,
    /// One file.
    File,
    /// A folder; links in it are followed.
    Folder,
    /// A file of JSON lines: calibration data.
    Rows,
}

impl SourceKind {
    /// All of them, in the order of the reference.
    pub const ALL: [SourceKind; 4] = [SourceKind::Checkpoint, SourceKind::File, SourceKind::Folder, SourceKind::Rows];

    /// The key in graph.toml.
    pub const fn key(self) -> &'static str {
        match self {
            SourceKind::Checkpoint => "checkpoint",
            SourceKind::File => "file",
            SourceKind::Folder => "folder",
            SourceKind::Rows => "rows",
        }
    }

    /// Whether its path is a folder.
    pub const fn is_folder(self) -> bool {
        matches!(self, SourceKind::Checkpoint | SourceKind::Folder)
    }
}

impl fmt::Display for SourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.key())
    }
}

/// A source as graph.toml declares it.
#[derive(Debug, Clone)]
pub struct SourceSpec {
    /// Its name.
    pub name: Name,
    /// What it is.
    pub kind: SourceKind,
    /// Where it lies: absolute, or relative to graph.toml's folder.
    pub path: String,
    /// What is left out of a folder, on top of the stated defaults.
    pub exclude: Vec<String>,
    /// Where process steps see it instead of `/in/ALIAS`, unless an input says otherwise.
    pub at: Option<String>,
    /// For people.
    pub about: Option<String>,
    /// Where its name stands.
    pub span: Span,
    /// Where its path stands.
    pub path_span: Span,
}

impl SourceSpec {
    /// What is left out of it: the stated defaults and its own list.
    pub fn excludes(&self) -> Excludes {
        // The patterns were compiled once while they were read.
        Excludes::compile(&self.exclude).unwrap_or_default()
    }
}

const KEYS: [&str; 7] = ["checkpoint", "file", "folder", "rows", "exclude", "at", "about"];

/// Reads the declarations of sources. Names are looked at elsewhere; a source of a bad name is left out.
pub(crate) fn read_all(declared: &[Entry<'_, '_>], problems: &mut Problems) -> BTreeMap<Name, SourceSpec> {
    let mut sources = BTreeMap::new();
    for e in declared {
        let spec = match e.item.get_ref() {
            DeValue::Table(t) => read(e, t, problems),
            DeValue::String(s) => {
                problems.push(|| {
                    wrong_type(&format!("source.{}", e.name), "a table", e.item.get_ref(), e.value_span())
                        .hint(format!("say what it is, as in {{ checkpoint = {s:?} }}"))
                });
                None
            }
            other => {
                problems.push(|| wrong_type(&format!("source.{}", e.name), "a table", other, e.value_span()));
                None
            }
        };
        if let Some(spec) = spec {
            sources.insert(spec.name.clone(), spec);
        }
    }
    sources
}

fn read(declared: &Entry<'_, '_>, table: &Table<'_>, problems: &mut Problems) -> Option<SourceSpec> {
    let mut place: Option<(SourceKind, String, Span, Span)> = None;
    let (mut exclude, mut exclude_span, mut at, mut about) = (Vec::new(), None, None, None);
    let before = problems.len();
    for e in entries(table) {
        if let Some(kind) = SourceKind::ALL.into_iter().find(|k| k.key() == e.name) {
            if let Some((first, _, first_span, _)) = &place {
                problems.push(|| {
                    let what = format!("the source {} is both a {first} and a {kind}", shown(declared.name));
                    Problem::new(e.span, what, "or this").label(*first_span, "either this").hint("keep one of the two")
                });
            }
            match e.item.get_ref() {
                DeValue::String(s) if !s.is_empty() && !s.contains('\0') => {
                    place = Some((kind, s.clone().into_owned(), e.span, e.value_span()));
                }
                other => problems.push(|| wrong_type(e.name, "a path", other, e.value_span())),
            }
            continue;
        }
        match e.name {
            "exclude" => {
                exclude = patterns(&e, problems);
                exclude_span = Some(e.span);
            }
            "at" => at = read_at(&e, problems),
            "about" => about = string(&e, problems),
            _ => problems.push(|| {
                let all = || format!("a source takes {}", KEYS.map(|k| format!("`{k}`")).join(", "));
                Problem::new(e.span, format!("unknown key {} of a source", shown(e.name)), "unknown")
                    .hint(did_you_mean(e.name, KEYS).unwrap_or_else(all))
            }),
        }
    }
    let Some((kind, path, _, path_span)) = place else {
        if problems.len() == before {
            problems.push(|| {
                let what = format!("the source {} does not say where it lies", shown(declared.name));
                Problem::new(declared.span, what, "needs one of `checkpoint`, `file`, `folder`, `rows`")
                    .hint("add the path under the key that says what it is, as in checkpoint = \"models/base\"")
            });
        }
        return None;
    };
    if let Some(span) = exclude_span.filter(|_| !kind.is_folder()) {
        problems.push(|| {
            Problem::new(span, format!("a {kind} is one file: there is nothing to exclude"), "not here")
                .label(path_span, "a file")
                .hint("take `exclude` out")
        });
    }
    let name = Name::new(declared.name).ok()?;
    Some(SourceSpec { name, kind, path, exclude, at, about, span: declared.span, path_span })
}

fn patterns(e: &Entry<'_, '_>, problems: &mut Problems) -> Vec<String> {
    if let Err(p) = check_type(e.name, KeyType::StrList, e.item) {
        problems.push(|| p);
        return Vec::new();
    }
    let mut list = Vec::new();
    for item in e.item.get_ref().as_array().into_iter().flat_map(|a| a.iter()) {
        let Some(text) = item.get_ref().as_str() else { continue };
        match Excludes::compile(&[text.to_owned()]) {
            Ok(_) => list.push(text.to_owned()),
            Err(bad) => problems.push(|| Problem::new(item.span().into(), bad.to_string(), "not a pattern")),
        }
    }
    list
}

pub(crate) fn string(e: &Entry<'_, '_>, problems: &mut Problems) -> Option<String> {
    if let Err(p) = check_type(e.name, KeyType::Str, e.item) {
        problems.push(|| p);
    }
    e.item.get_ref().as_str().map(str::to_owned)
}

pub(crate) fn read_at(e: &Entry<'_, '_>, problems: &mut Problems) -> Option<String> {
    let at = string(e, problems)?;
    if let Err(what) = check_at(&at) {
        problems.push(|| {
            Problem::new(e.value_span(), format!("`at` is no place to mount an input: {what}"), "not here")
                .hint("give an absolute path of the step's own, as in at = \"/opt/tools\"")
        });
        return None;
    }
    Some(at)
}
