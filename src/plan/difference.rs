//! What differs between two canonical values, and where in them: of a list of thirty arguments the one that changed.

use crate::canon::{unquote, unquote_prefix};

/// A canonical text, taken apart as far as its lists and tables.
#[derive(Debug, PartialEq, Eq)]
enum Node<'t> {
    Atom(&'t str),
    List(Vec<Node<'t>>),
    Table(Vec<(String, Node<'t>)>),
}

/// The places where two values differ, in the words of graph.toml: `args[9]: "2048" → "4096"`. `None` where they are no
/// two lists or no two tables, or one of them is no canonical text: then they are best shown whole.
pub(crate) fn differences(field: &str, old: &str, new: &str) -> Option<Vec<String>> {
    let (old, new) = (parse(old)?, parse(new)?);
    if matches!(old, Node::Atom(_)) || std::mem::discriminant(&old) != std::mem::discriminant(&new) {
        return None;
    }
    let mut found = Vec::new();
    compare(field, &old, &new, &mut found);
    Some(found)
}

fn compare(at: &str, old: &Node<'_>, new: &Node<'_>, found: &mut Vec<String>) {
    match (old, new) {
        (Node::Table(old), Node::Table(new)) => {
            let value = |table: &[(String, Node<'_>)], key: &str| table.iter().position(|(k, _)| k == key);
            for (key, was) in old {
                match value(new, key) {
                    Some(i) => compare(&below(at, key), was, &new[i].1, found),
                    None => found.push(format!("{} removed, was {}", below(at, key), was.text())),
                }
            }
            for (key, is) in new.iter().filter(|(k, _)| value(old, k).is_none()) {
                found.push(format!("{} added, {}", below(at, key), is.text()));
            }
        }
        (Node::List(old), Node::List(new)) if old.len() == new.len() => {
            for (i, (was, is)) in old.iter().zip(new).enumerate() {
                compare(&format!("{at}[{i}]"), was, is, found);
            }
        }
        (Node::List(old), Node::List(new)) => {
            // What the one has and the other has not, each as often as it stands there.
            let mut left: Vec<&Node<'_>> = new.iter().collect();
            let mut gone = Vec::new();
            for was in old {
                match left.iter().position(|is| *is == was) {
                    Some(i) => drop(left.remove(i)),
                    None => gone.push(format!("-{}", was.text())),
                }
            }
            gone.extend(left.iter().map(|is| format!("+{}", is.text())));
            found.push(format!("{at}: {}", gone.join(", ")));
        }
        (old, new) if old != new => found.push(format!("{at}: {} → {}", old.text(), new.text())),
        _ => {}
    }
}

fn below(at: &str, key: &str) -> String {
    let bare = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if bare { format!("{at}.{key}") } else { format!("{at}.{}", crate::canon::quote(key.as_bytes())) }
}

impl Node<'_> {
    fn text(&self) -> String {
        match self {
            Node::Atom(t) => (*t).to_owned(),
            Node::List(items) => format!("[{}]", items.iter().map(Node::text).collect::<Vec<_>>().join(", ")),
            Node::Table(entries) => {
                let one = |(k, v): &(String, Node<'_>)| format!("{} = {}", crate::canon::quote(k.as_bytes()), v.text());
                format!("{{{}}}", entries.iter().map(one).collect::<Vec<_>>().join(", "))
            }
        }
    }
}

// What a recipe holds is no deeper than graph.toml may be.
const DEEPEST: usize = 128;

fn parse(text: &str) -> Option<Node<'_>> {
    let (node, rest) = value(text, 0)?;
    rest.is_empty().then_some(node)
}

fn value(text: &str, depth: usize) -> Option<(Node<'_>, &str)> {
    if depth > DEEPEST {
        return None;
    }
    if let Some(mut rest) = text.strip_prefix('[') {
        let mut items = Vec::new();
        while !rest.starts_with(']') {
            let (item, after) = value(rest, depth + 1)?;
            items.push(item);
            rest = after.strip_prefix(", ").unwrap_or(after);
        }
        return Some((Node::List(items), &rest[1..]));
    }
    if let Some(mut rest) = text.strip_prefix('{') {
        let mut entries = Vec::new();
        while !rest.starts_with('}') {
            let (key, after) = unquote_prefix(rest).ok()?;
            let (item, after) = value(after.strip_prefix(" = ")?, depth + 1)?;
            entries.push((String::from_utf8(key).ok()?, item));
            rest = after.strip_prefix(", ").unwrap_or(after);
        }
        return Some((Node::Table(entries), &rest[1..]));
    }
    let quoted = text.strip_prefix("date ").unwrap_or(text);
    let end = if quoted.starts_with('"') {
        let (_, rest) = unquote_prefix(quoted).ok()?;
        text.len() - rest.len()
    } else {
        text.find([',', ']', '}']).unwrap_or(text.len())
    };
    let atom = &text[..end];
    let fine =
        end > 0 && (!quoted.starts_with('"') || unquote(quoted.get(..end - (text.len() - quoted.len()))?).is_ok());
    fine.then_some((Node::Atom(atom), &text[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canon::Value;

    fn said(old: &str, new: &str) -> Option<Vec<String>> {
        differences("param args", old, new)
    }

    #[test]
    fn of_two_lists_only_what_differs_is_shown_with_its_place() {
        let old = r#"["--model", "/m", "--max-model-len", "2048", "a, \"b\"]"]"#;
        let new = r#"["--model", "/m", "--max-model-len", "4096", "a, \"b\"]"]"#;
        assert_eq!(said(old, new).unwrap(), [r#"param args[3]: "2048" → "4096""#]);
        assert_eq!(said(r#"["a", "b"]"#, r#"["b", "c", "d"]"#).unwrap(), [r#"param args: -"a", +"c", +"d""#]);
        assert_eq!(said("[]", r#"["lm_head"]"#).unwrap(), [r#"param args: +"lm_head""#]);
    }

    #[test]
    fn of_two_tables_the_keys_are_named_as_graph_toml_writes_them() {
        let old = r#"{"c.json" = {"/t" = 0.6, "/u" = 1}, "gone" = true}"#;
        let new = r#"{"c.json" = {"/t" = 1.1, "/u" = 1}, "new" = [1, 2]}"#;
        let expected = [
            r#"param args."c.json"."/t": 0.6 → 1.1"#,
            "param args.gone removed, was true",
            "param args.new added, [1, 2]",
        ];
        assert_eq!(said(old, new).unwrap(), expected);
    }

    #[test]
    fn what_are_no_two_lists_or_tables_is_shown_whole() {
        assert_eq!(said("1", "1.0"), None);
        assert_eq!(said("[1]", "1"), None);
        assert_eq!(said("[1", "[1]"), None);
        assert_eq!(said(r#"["a"#, "[1]"), None);
    }

    #[test]
    fn every_canonical_value_reads_back_as_its_text() {
        let all = Value::List(vec![
            Value::Map([("k\"=".to_owned(), Value::Date("1979-05-27".into()))].into()),
            Value::Str("\n, ] }".into()),
            Value::Float(-0.0),
            Value::List(vec![]),
            Value::Map(Default::default()),
        ]);
        let text = all.to_canon();
        assert_eq!(parse(&text).unwrap().text(), text);
    }
}
