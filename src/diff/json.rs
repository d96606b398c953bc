//! Two JSON texts, key by key.

use serde::Serialize;
use serde_json::Value;

/// A place where they differ.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KeyChange {
    /// `text_config.rope.theta`, `architectures[0]`; empty for the whole.
    pub key: String,
    /// The value of the first; `None` where it is not there.
    pub a: Option<Value>,
    /// The value of the second.
    pub b: Option<Value>,
}

/// Where two values differ, in the order of the first, what is new behind. Numbers differ by their text: 1 is not 1.0.
pub fn differences(a: &Value, b: &Value) -> Vec<KeyChange> {
    let mut found = Vec::new();
    compare(String::new(), a, b, &mut found);
    found
}

fn compare(key: String, a: &Value, b: &Value, found: &mut Vec<KeyChange>) {
    let one = |key: String, a: Option<&Value>, b: Option<&Value>| KeyChange { key, a: a.cloned(), b: b.cloned() };
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => {
            for (k, v) in x {
                match y.get(k) {
                    Some(w) => compare(below(&key, k), v, w, found),
                    None => found.push(one(below(&key, k), Some(v), None)),
                }
            }
            found
                .extend(y.iter().filter(|(k, _)| !x.contains_key(*k)).map(|(k, w)| one(below(&key, k), None, Some(w))));
        }
        (Value::Array(x), Value::Array(y)) if x.len() == y.len() => {
            for (i, (v, w)) in x.iter().zip(y).enumerate() {
                compare(format!("{key}[{i}]"), v, w, found);
            }
        }
        (Value::Array(x), Value::Array(y)) if x.iter().chain(y).all(|v| !v.is_object() && !v.is_array()) => {
            // Lists of names: what the one has and the other has not.
            let only = |x: &[Value], y: &[Value]| {
                let left: Vec<Value> = x.iter().filter(|v| !y.contains(v)).cloned().collect();
                left
            };
            let (gone, new) = (only(x, y), only(y, x));
            if gone.is_empty() && new.is_empty() {
                found.push(one(key, Some(a), Some(b)));
                return;
            }
            found.extend(gone.into_iter().map(|v| one(format!("{key}[]"), Some(&v), None)));
            found.extend(new.into_iter().map(|v| one(format!("{key}[]"), None, Some(&v))));
        }
        (a, b) if a != b => found.push(one(key, Some(a), Some(b))),
        _ => {}
    }
}

fn below(key: &str, name: &str) -> String {
    let bare = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-');
    let name = if bare { name.to_owned() } else { crate::canon::quote(name.as_bytes()) };
    if key.is_empty() { name } else { format!("{key}.{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn texts(a: Value, b: Value) -> Vec<String> {
        let text = |v: Option<Value>| v.map_or_else(|| "-".to_owned(), |v| v.to_string());
        differences(&a, &b).into_iter().map(|c| format!("{} {} {}", c.key, text(c.a), text(c.b))).collect()
    }

    #[test]
    fn each_difference_is_named_by_its_key_path_with_both_values() {
        let a = json!({"n": 1, "t": {"theta": 10000, "gone": null}, "arch": ["A"], "same": [1, {"x": 2}]});
        let b = json!({"t": {"theta": 5e6, "b.c": true}, "n": 1, "arch": ["B"], "same": [1, {"x": 2}]});
        assert_eq!(
            texts(a, b),
            ["t.theta 10000 5000000.0", "t.gone null -", "t.\"b.c\" - true", "arch[0] \"A\" \"B\"",]
        );
    }

    #[test]
    fn of_a_list_of_names_what_was_added_and_removed() {
        assert_eq!(
            texts(json!({"ignore": ["a", "b"]}), json!({"ignore": ["b", "c", "d"]})),
            ["ignore[] \"a\" -", "ignore[] - \"c\"", "ignore[] - \"d\"",]
        );
        assert_eq!(texts(json!([1, 1]), json!([1])), [" [1,1] [1]"]);
    }

    #[test]
    fn one_and_one_point_zero_differ_and_order_of_keys_does_not() {
        assert_eq!(texts(json!({"a": 1, "b": 2}), json!({"b": 2, "a": 1})), [""; 0]);
        assert_eq!(texts(json!(1), json!(1.0)), [" 1 1.0"]);
    }
}
