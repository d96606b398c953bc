//! From TOML text to tables with spans, and from TOML values to [`Value`]s.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::canon::{Value, quote};
use crate::graph::diagnostic::{Problem, Problems, Span, Text};
use crate::kinds::KeyType;
use crate::near::did_you_mean;

pub(crate) type Table<'t> = DeTable<'t>;
pub(crate) type Item<'t> = Spanned<DeValue<'t>>;

/// A key of a table, with its place and its value.
pub(crate) struct Entry<'d, 't> {
    pub(crate) name: &'d str,
    pub(crate) span: Span,
    pub(crate) item: &'d Item<'t>,
}

impl Entry<'_, '_> {
    pub(crate) fn value_span(&self) -> Span {
        self.item.span().into()
    }
}

/// The entries of a table, in the order of the text.
pub(crate) fn entries<'d, 't>(table: &'d Table<'t>) -> impl Iterator<Item = Entry<'d, 't>> {
    table.iter().map(|(k, item)| Entry { name: k.get_ref(), span: k.span().into(), item })
}

/// Reads the document. `None` where it is no TOML, with a problem for each fault.
pub(crate) fn read<'t>(text: &'t Text, problems: &mut Problems) -> Option<Table<'t>> {
    let (root, errors) = DeTable::parse_recoverable(&text.text);
    let mut twice: Option<usize> = None;
    for e in &errors {
        let span = Span::from(e.span().unwrap_or(text.text.len()..text.text.len()));
        if e.message() == DUPLICATE {
            // The keys of a repeated table repeat too: its header says it all.
            if twice.is_some_and(|header| same_table(&text.text, header, span.start)) {
                continue;
            }
            twice = on_header(&text.text, span.start).then_some(span.start);
        }
        problems.push(|| syntax_problem(&text.text, e.message(), span));
    }
    errors.is_empty().then(|| root.into_inner())
}

/// The parser's words for a repeated key or table.
const DUPLICATE: &str = "duplicate key";

fn on_header(text: &str, at: usize) -> bool {
    let before = text.get(..at).unwrap_or_default();
    before.get(before.rfind('\n').map_or(0, |i| i + 1)..).is_some_and(|line| line.trim_start().starts_with('['))
}

fn same_table(text: &str, header: usize, at: usize) -> bool {
    let between = text.get(header..at).unwrap_or_default();
    !between.lines().skip(1).any(|line| line.trim_start().starts_with('['))
}

// The parser's own words, but for the ones that a reader can't act on.
fn syntax_problem(text: &str, message: &str, span: Span) -> Problem {
    let found = text.get(span.start..span.end).unwrap_or_default();
    if message == DUPLICATE {
        let problem = Problem::new(span, format!("`{found}` is defined twice"), "again here");
        return match first_definition(text, span) {
            Some(first) => problem.label(first, "first here"),
            None => problem,
        }
        .hint("keep one of the two; a table can't be re-opened, and dotted keys can't add to a finished one");
    }
    if message.starts_with("cannot recurse further") || message == "recursion limit" {
        return Problem::new(span, "this is nested too deeply", "too deep").hint("at most 80 levels are read");
    }
    let hint = if message.starts_with("cannot extend value of type") {
        Some(format!("`{found}` has its value already: put the key into that table, or write all of them dotted"))
    } else if message.starts_with("invalid unquoted key") {
        Some("put the key in quotes".to_owned())
    } else {
        None
    };
    Problem::new(span, message, "").maybe_hint(hint)
}

/// Where the key of a repeated definition stood first, as far as a look at earlier lines tells.
fn first_definition(text: &str, again: Span) -> Option<Span> {
    let line_start = text.get(..again.start)?.rfind('\n').map_or(0, |i| i + 1);
    let line_end = text.get(again.start..)?.find('\n').map_or(text.len(), |i| again.start + i);
    let line = text.get(line_start..line_end)?.trim_start();
    let key = text.get(again.start..again.end)?;
    let mut end = line_start;
    let lines = text.get(..line_start)?.split_inclusive('\n').rev();
    let header = |l: &str| l.split_once(']').map(|(h, _)| h.trim_end().to_owned());
    for earlier in lines {
        end -= earlier.len();
        let indent = earlier.len() - earlier.trim_start().len();
        let body = earlier.trim_start();
        let hit = if line.starts_with('[') {
            header(body).is_some() && header(body) == header(line)
        } else if body.starts_with('[') {
            return None;
        } else {
            body.strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with(['=', '.']))
        };
        if hit {
            let at = body.rfind(key).filter(|_| line.starts_with('[')).unwrap_or(0);
            let start = end + indent + at;
            return Some(Span::new(start, start + key.len()));
        }
    }
    None
}

/// The document's parts, before anything is looked at in them.
pub(crate) struct Parts<'d, 't> {
    pub(crate) sources: Vec<Entry<'d, 't>>,
    pub(crate) nodes: Vec<Entry<'d, 't>>,
    pub(crate) windows: Vec<Entry<'d, 't>>,
    pub(crate) engine: Option<Entry<'d, 't>>,
    pub(crate) store: Option<String>,
}

const TOP: [&str; 5] = ["source", "node", "window", "engine", "store"];

/// Takes the document apart. Unknown keys are problems.
pub(crate) fn parts<'d, 't>(root: &'d Table<'t>, problems: &mut Problems) -> Parts<'d, 't> {
    let mut parts = Parts { sources: Vec::new(), nodes: Vec::new(), windows: Vec::new(), engine: None, store: None };
    for e in entries(root) {
        match e.name {
            "source" | "node" | "window" => {
                let list = match e.name {
                    "source" => &mut parts.sources,
                    "node" => &mut parts.nodes,
                    _ => &mut parts.windows,
                };
                match e.item.get_ref() {
                    DeValue::Table(t) => list.extend(entries(t)),
                    other => problems.push(|| {
                        let found = type_name(other);
                        Problem::new(e.span, format!("`{0}` must be a table, found {found}", e.name), "not a table")
                            .hint(format!("write [{}.NAME]", e.name))
                    }),
                }
            }
            "engine" => parts.engine = Some(e),
            "store" => match e.item.get_ref() {
                DeValue::String(s) if !s.is_empty() && !s.contains('\0') => parts.store = Some(s.clone().into_owned()),
                other => problems.push(|| wrong_type("store", "a path", other, e.value_span())),
            },
            _ => problems.push(|| {
                let hint = did_you_mean(e.name, TOP);
                let hint = hint
                    .unwrap_or_else(|| "at the top stand `source`, `node`, `window`, `engine` and `store`".to_owned());
                Problem::new(e.span, format!("unknown key {}", shown(e.name)), "unknown").hint(hint)
            }),
        }
    }
    parts
}

/// A key as messages show it: in backticks, escaped where it holds something unprintable.
pub(crate) fn shown(key: &str) -> String {
    let quoted = quote(key.as_bytes());
    if quoted.len() == key.len() + 2 && !key.is_empty() { format!("`{key}`") } else { quoted }
}

/// The name of a TOML value's type, with its article.
pub(crate) fn type_name(v: &DeValue<'_>) -> &'static str {
    match v {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// A problem that names both types.
pub(crate) fn wrong_type(key: &str, wanted: &str, found: &DeValue<'_>, span: Span) -> Problem {
    let found = match found {
        DeValue::String(s) if s.is_empty() => "an empty string",
        DeValue::String(s) if s.contains('\0') => "a string with a NUL",
        other => type_name(other),
    };
    Problem::new(span, format!("{} must be {wanted}, found {found}", shown(key)), format!("expected {wanted}"))
}

/// Converts a value. `None` where a number does not fit, with a problem for each.
pub(crate) fn value(item: &Item<'_>, problems: &mut Problems) -> Option<Value> {
    let span: Span = item.span().into();
    Some(match item.get_ref() {
        DeValue::String(s) => Value::Str(s.clone().into_owned()),
        DeValue::Integer(i) => match i64::from_str_radix(i.as_str(), i.radix()) {
            Ok(n) => Value::Int(n),
            Err(_) => {
                problems.push(|| {
                    let what = format!("the integer {i} does not fit in 64 bits");
                    Problem::new(span, what, format!("must lie in {} ..= {}", i64::MIN, i64::MAX))
                });
                return None;
            }
        },
        DeValue::Float(f) => match f.as_str().parse::<f64>() {
            Ok(n) if n.is_finite() || f.as_str().contains(['n', 'N']) => Value::Float(n),
            _ => {
                let what = format!("the float {f} does not fit in 64 bits");
                problems.push(|| Problem::new(span, what, format!("must lie within ±{:e}", f64::MAX)));
                return None;
            }
        },
        DeValue::Boolean(b) => Value::Bool(*b),
        DeValue::Datetime(d) => Value::Date(d.to_string()),
        // Every element is converted before the first failure counts, so that all problems are found.
        DeValue::Array(a) => {
            let items: Vec<Option<Value>> = a.iter().map(|i| value(i, problems)).collect();
            Value::List(items.into_iter().collect::<Option<_>>()?)
        }
        DeValue::Table(t) => {
            let items: Vec<Option<(String, Value)>> =
                entries(t).map(|e| value(e.item, problems).map(|v| (e.name.to_owned(), v))).collect();
            Value::Map(items.into_iter().collect::<Option<_>>()?)
        }
    })
}

/// What a key of this type takes, for messages and the reference.
pub(crate) fn wanted(ty: KeyType) -> &'static str {
    match ty {
        KeyType::Str => "a string",
        KeyType::Int => "an integer",
        KeyType::Bool => "a boolean",
        KeyType::StrOrList => "a string or a list of strings",
        KeyType::StrList => "a list of strings",
        KeyType::StrMap => "a table of strings",
        KeyType::Map => "a table",
        KeyType::Any => "a value",
    }
}

/// Checks a value against the type that its key takes; the problem points at the wrong element.
pub(crate) fn check_type(key: &str, ty: KeyType, item: &Item<'_>) -> Result<(), Problem> {
    let v = item.get_ref();
    let ok = match ty {
        KeyType::Str => v.is_str(),
        KeyType::Int => v.is_integer(),
        KeyType::Bool => v.is_bool(),
        KeyType::StrOrList => v.is_str() || v.is_array(),
        KeyType::StrList => v.is_array(),
        KeyType::StrMap | KeyType::Map => v.is_table(),
        KeyType::Any => true,
    };
    if !ok {
        let problem = wrong_type(key, wanted(ty), v, item.span().into());
        return Err(match (ty, v) {
            (KeyType::StrList, DeValue::String(s)) => problem.hint(format!("write [{}]", quote(s.as_bytes()))),
            (KeyType::Str, DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_)) => {
                problem.hint("put it in quotes")
            }
            _ => problem,
        });
    }
    let strings = matches!(ty, KeyType::StrOrList | KeyType::StrList | KeyType::StrMap);
    match v {
        DeValue::Array(a) if strings => {
            if let Some((i, element)) = a.iter().enumerate().find(|(_, e)| !e.get_ref().is_str()) {
                return Err(wrong_type(&format!("{key}[{i}]"), "a string", element.get_ref(), element.span().into()));
            }
        }
        DeValue::Table(t) if strings => {
            if let Some(e) = entries(t).find(|e| !e.item.get_ref().is_str()) {
                return Err(wrong_type(&format!("{key}.{}", e.name), "a string", e.item.get_ref(), e.value_span()));
            }
        }
        _ => {}
    }
    Ok(())
}

/// The place of a dotted key (`expect.count`, `tensors[1]`) below a table: of the longest part of it that is there.
/// Keys may hold dots themselves, so the longest one that fits is followed.
pub(crate) fn span_of(table: &Table<'_>, dotted: &str) -> Option<Span> {
    let fits = |key: &str| dotted.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
    let entry = entries(table).filter(|e| fits(e.name)).max_by_key(|e| e.name.len())?;
    let rest = &dotted[entry.name.len()..];
    Some(span_within(entry.item, rest).unwrap_or_else(|| if rest.is_empty() { entry.value_span() } else { entry.span }))
}

fn span_within(item: &Item<'_>, rest: &str) -> Option<Span> {
    match item.get_ref() {
        DeValue::Table(t) => span_of(t, rest.strip_prefix('.')?),
        DeValue::Array(a) => {
            let (index, rest) = match rest.strip_prefix('[') {
                Some(r) => r.split_once(']')?,
                None => {
                    let r = rest.strip_prefix('.')?;
                    r.split_at(r.find(['.', '[']).unwrap_or(r.len()))
                }
            };
            let element = a.get(index.parse::<usize>().ok()?)?;
            Some(span_within(element, rest).unwrap_or_else(|| element.span().into()))
        }
        _ => None,
    }
}
