//! `[window.NAME]`: containers that are stopped while the nodes that name it run, and brought back afterwards.

use std::collections::BTreeMap;

use toml::de::DeValue;

use crate::canon::Value;
use crate::graph::diagnostic::{Problem, Problems, Span};
use crate::graph::document::{Entry, Item, Table, check_type, entries, shown, wrong_type};
use crate::graph::name::Name;
use crate::graph::node::NodeSpec;
use crate::kinds::KeyType;
use crate::near::did_you_mean;

/// A window as graph.toml declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowSpec {
    /// Its name.
    pub name: Name,
    /// The containers to stop, in this order; they are brought back in the reverse.
    pub stop: Vec<String>,
    /// Seconds that each has to end by itself when it is stopped.
    pub grace_seconds: u32,
    /// Seconds that each has to get healthy when it is brought back.
    pub healthy_seconds: u32,
    /// For people.
    pub about: Option<String>,
    /// Where its name stands.
    pub span: Span,
}

/// The keys of a window, with what each is.
pub(crate) const KEYS: [(&str, KeyType, &str); 4] = [
    ("stop", KeyType::StrList, "containers to stop, in this order; they come back in the reverse"),
    ("grace", KeyType::Int, "seconds that each has to end by itself; 30 without it"),
    ("healthy", KeyType::Int, "seconds that each has to get healthy when it is brought back; 300 without it"),
    ("about", KeyType::Str, "for people"),
];

const GRACE: u32 = 30;
const HEALTHY: u32 = 300;
const LONGEST: i64 = 24 * 3600;

/// Reads the declarations of windows. One that is wrong is left out.
pub(crate) fn read_all(declared: &[Entry<'_, '_>], problems: &mut Problems) -> BTreeMap<Name, WindowSpec> {
    let mut windows = BTreeMap::new();
    for e in declared {
        match e.item.get_ref() {
            DeValue::Table(t) => {
                if let Some(w) = read(e, t, problems) {
                    windows.insert(w.name.clone(), w);
                }
            }
            other => problems.push(|| {
                wrong_type(&format!("window.{}", e.name), "a table", other, e.value_span())
                    .hint("a window is a table of its own: [window.NAME], and below it `stop`")
            }),
        }
    }
    windows
}

fn read(declared: &Entry<'_, '_>, table: &Table<'_>, problems: &mut Problems) -> Option<WindowSpec> {
    let name = Name::new(declared.name);
    if let Err(bad) = &name {
        problems.push(|| Problem::new(declared.span, format!("the window {bad}"), "not a name"));
    }
    let (mut stop, mut about) = (None, None);
    let (mut grace_seconds, mut healthy_seconds) = (GRACE, HEALTHY);
    for e in entries(table) {
        let Some((key, ty, _)) = KEYS.iter().find(|k| k.0 == e.name) else {
            problems.push(|| {
                let all = || format!("a window takes {}", KEYS.map(|k| format!("`{}`", k.0)).join(", "));
                Problem::new(e.span, format!("unknown key {} of a window", shown(e.name)), "unknown")
                    .hint(did_you_mean(e.name, KEYS.map(|k| k.0)).unwrap_or_else(all))
            });
            continue;
        };
        if let Err(p) = check_type(key, *ty, e.item) {
            problems.push(|| p);
            // What is there is not missing, too.
            stop = stop.or_else(|| (*key == "stop").then(Vec::new));
            continue;
        }
        match *key {
            "stop" => stop = Some(containers(&e, problems)),
            "grace" => grace_seconds = seconds(&e, 0, problems).unwrap_or(GRACE),
            "healthy" => healthy_seconds = seconds(&e, 1, problems).unwrap_or(HEALTHY),
            _ => about = e.item.get_ref().as_str().map(str::to_owned),
        }
    }
    if stop.is_none() {
        problems.push(|| {
            let what = format!("the window {} does not say what to stop", shown(declared.name));
            Problem::new(declared.span, what, "needs `stop`").hint("write stop = [\"CONTAINER\", …]")
        });
    }
    Some(WindowSpec { name: name.ok()?, stop: stop?, grace_seconds, healthy_seconds, about, span: declared.span })
}

fn containers(e: &Entry<'_, '_>, problems: &mut Problems) -> Vec<String> {
    let items: Vec<&Item<'_>> = e.item.get_ref().as_array().into_iter().flat_map(|a| a.iter()).collect();
    if items.is_empty() {
        problems.push(|| {
            Problem::new(e.value_span(), "`stop` is empty: the window would stop nothing", "empty")
                .hint("name containers, or leave the window out")
        });
    }
    let mut seen: BTreeMap<&str, Span> = BTreeMap::new();
    for item in items {
        let Some(text) = item.get_ref().as_str() else { continue };
        let span = Span::from(item.span());
        if !is_container(text) {
            problems.push(|| {
                Problem::new(span, format!("{text:?} is no name of a container"), "not a name")
                    .hint("a name has letters, digits, `_`, `.` and `-`, and begins with a letter or digit")
            });
        } else if let Some(first) = seen.insert(text, span) {
            problems.push(|| {
                Problem::new(span, format!("{} is to be stopped twice", shown(text)), "and here").label(first, "here")
            });
        }
    }
    let texts = e.item.get_ref().as_array().into_iter().flat_map(|a| a.iter());
    texts.filter_map(|i| i.get_ref().as_str().map(str::to_owned)).collect()
}

fn is_container(text: &str) -> bool {
    let inside = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    text.len() <= 255 && text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(inside)
}

fn seconds(e: &Entry<'_, '_>, least: i64, problems: &mut Problems) -> Option<u32> {
    let found = e.item.get_ref().as_integer().and_then(|i| i64::from_str_radix(i.as_str(), i.radix()).ok());
    let fits = found.filter(|n| (least..=LONGEST).contains(n)).and_then(|n| u32::try_from(n).ok());
    if fits.is_none() {
        problems.push(|| {
            let what = format!("{} must be seconds in {least} ..= {LONGEST}", shown(e.name));
            Problem::new(e.value_span(), what, "not in that range")
        });
    }
    fits
}

/// Holds the windows that nodes name (`window = "NAME"`, where their kind has that key) against those that there are.
pub(crate) fn check(nodes: &BTreeMap<Name, NodeSpec>, windows: &BTreeMap<Name, WindowSpec>, problems: &mut Problems) {
    for node in nodes.values() {
        let Some(Value::Str(name)) = node.params.get("window") else { continue };
        if windows.contains_key(name.as_str()) {
            continue;
        }
        problems.push(|| {
            let hint = did_you_mean(name, windows.keys().map(Name::as_str));
            let declare = || match Name::new(name) {
                Ok(name) => format!("declare [window.{name}] with stop = [\"CONTAINER\", …]"),
                Err(_) => "write the name of a window".to_owned(),
            };
            Problem::new(node.span_of("window"), format!("there is no window {}", shown(name)), "unknown")
                .hint(hint.unwrap_or_else(declare))
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::graph::Graph;

    fn errors(text: &str) -> Vec<String> {
        let all = Graph::parse("graph.toml", text).unwrap_err();
        all.list.iter().map(|d| format!("{d}; {}", d.hint.as_deref().unwrap_or("-"))).collect()
    }

    #[test]
    fn a_window_is_read_with_what_it_does_not_say() {
        let g = Graph::parse("graph.toml", "[window.seats]\nstop = [\"vllm-a\", \"vllm-b\"]\ngrace = 60\n").unwrap();
        let w = &g.windows["seats"];
        assert_eq!((w.stop.join(" ").as_str(), w.grace_seconds, w.healthy_seconds), ("vllm-a vllm-b", 60, 300));
    }

    #[test]
    fn what_is_wrong_with_a_window_is_said_with_its_place() {
        let cases = [
            ("[window]\nx = 1\n", "graph.toml:2:5: `window.x` must be a table"),
            ("[window.x]\n", "graph.toml:1:9: the window `x` does not say what to stop"),
            ("[window.x]\nstop = []\n", "graph.toml:2:8: `stop` is empty"),
            ("[window.x]\nstop = \"a\"\n", "graph.toml:2:8: `stop` must be a list of strings, found a string"),
            ("[window.x]\nstop = [\"a\", \"a\"]\n", "graph.toml:2:14: `a` is to be stopped twice"),
            ("[window.x]\nstop = [\"-f\"]\n", "graph.toml:2:9: \"-f\" is no name of a container"),
            (
                "[window.x]\nstop = [\"a\"]\ngrase = 1\n",
                "graph.toml:3:1: unknown key `grase` of a window; did you mean `grace`?",
            ),
            ("[window.x]\nstop = [\"a\"]\nhealthy = 0\n", "graph.toml:3:11: `healthy` must be seconds in 1 ..= 86400"),
            ("[window.\"a b\"]\nstop = [\"a\"]\n", "graph.toml:1:9: the window"),
            ("[widnow.x]\nstop = [\"a\"]\n", "graph.toml:1:2: unknown key `widnow`; did you mean `window`?"),
        ];
        for (text, wanted) in cases {
            let found = errors(text);
            assert!(found.len() == 1 && found[0].starts_with(wanted), "{text}: {found:?}");
        }
    }
}
