//! Edits by example, and two properties for any document: nothing outside an edit changes, and reading the result gives
//! what the edit does to the value that was read.

use std::ops::Range;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn p(text: &str) -> Pointer {
    Pointer::parse(text).unwrap()
}

fn edited(text: &str, edit: impl FnOnce(&mut Document)) -> String {
    let mut d = Document::parse(text.as_bytes()).unwrap();
    edit(&mut d);
    let bytes = d.finish();
    Document::parse(&bytes).expect("an edit keeps the document valid");
    String::from_utf8(bytes).unwrap()
}

fn fault(text: &str) -> String {
    Document::parse(text.as_bytes()).unwrap_err().to_string()
}

const CONFIG: &str = "{\n  \"eps\": 1e-06,\n  \"sections\": [\n    3,\n    2\n  ],\n  \"empty\": [],\n  \"flat\": [1, 2],\n  \"big\": 123456789012345678901234567890,\n  \"inf\": -Infinity\n}";

#[test]
fn a_value_is_replaced_and_all_else_keeps_its_characters() {
    let out = edited(CONFIG, |d| assert!(d.set(&p("/sections/1"), "2.50").unwrap()));
    assert_eq!(out, CONFIG.replace("    2\n", "    2.50\n"));
    let out = edited(CONFIG, |d| assert!(!d.set(&p("/eps"), " 1e-06 ").unwrap()));
    assert_eq!(out, CONFIG);
}

#[test]
fn a_value_that_is_there_already_keeps_its_text() {
    for (at, value) in [("/eps", json!(1e-6)), ("/flat", json!([1, 2])), ("/sections", json!([3, 2]))] {
        let out = edited(CONFIG, |d| assert!(!d.set_value(&p(at), &value, Parents::Require).unwrap(), "{at}"));
        assert_eq!(out, CONFIG);
    }
    let out = edited("{\"a\": 1}", |d| assert!(d.set_value(&p("/a"), &json!(1.0), Parents::Require).unwrap()));
    assert_eq!(out, "{\"a\": 1.0}");
    let out = edited("{\"a\": NaN}", |d| assert!(d.set_value(&p("/a"), &Value::Null, Parents::Require).unwrap()));
    assert_eq!(out, "{\"a\": null}");
}

#[test]
fn new_members_and_items_look_like_their_neighbours() {
    let out = edited(CONFIG, |d| {
        d.set(&p("/new"), "true").unwrap();
        d.append(&p("/sections"), "1").unwrap();
        d.append(&p("/flat"), "3").unwrap();
        d.append_value(&p("/empty"), &json!("lm_head")).unwrap();
        d.append_value(&p("/empty"), &json!({"a": [1], "b": {}})).unwrap();
        d.set(&p("/flat/3"), "4").unwrap();
    });
    assert_eq!(
        out,
        "{\n  \"eps\": 1e-06,\n  \"sections\": [\n    3,\n    2,\n    1\n  ],\n  \"empty\": [\n    \"lm_head\",\n    {\n      \"a\": [\n        1\n      ],\n      \"b\": {}\n    }\n  ],\n  \"flat\": [1, 2, 3, 4],\n  \"big\": 123456789012345678901234567890,\n  \"inf\": -Infinity,\n  \"new\": true\n}"
    );
    assert_eq!(edited("{\"a\":{\"b\":1}}", |d| assert!(d.set(&p("/a/c"), "2").unwrap())), "{\"a\":{\"b\":1,\"c\":2}}");
    assert_eq!(edited("{\"a\": [1]}", |d| d.append_value(&p("/a"), &json!([2, 3])).unwrap()), "{\"a\": [1, [2, 3]]}");
    assert_eq!(edited("{}\n", |d| assert!(d.set(&p("/a"), "1").unwrap())), "{\"a\": 1}\n");
    assert_eq!(
        edited("{\r\n\t\"a\": {}\r\n}", |d| assert!(d.set(&p("/a/b"), "1").unwrap())),
        "{\r\n\t\"a\": {\r\n\t\t\"b\": 1\r\n\t}\r\n}"
    );
}

#[test]
fn removing_takes_the_comma_and_the_white_space_along() {
    let text = "{\n  \"a\": 1,\n  \"b\": [1, 2, 3],\n  \"c\": {\n    \"d\": 1\n  }\n}\n";
    let remove = |at: &str| edited(text, |d| d.remove(&p(at)).unwrap());
    assert_eq!(remove("/a"), text.replace("\"a\": 1,\n  ", ""));
    assert_eq!(remove("/c"), "{\n  \"a\": 1,\n  \"b\": [1, 2, 3]\n}\n");
    assert_eq!(remove("/b/0"), text.replace("1, 2, 3", "2, 3"));
    assert_eq!(remove("/b/1"), text.replace("1, 2, 3", "1, 3"));
    assert_eq!(remove("/c/d"), text.replace("{\n    \"d\": 1\n  }", "{}"));
    let mut d = Document::parse(b"1").unwrap();
    assert_eq!(d.remove(&Pointer::root()), Err(JsonError::RemoveRoot));
}

#[test]
fn a_copied_value_keeps_its_tokens_and_is_indented_for_its_new_place() {
    let from = Document::parse(
        b"{\n  \"image_processor\": {\n    \"std\": [0.50, 5e-1],\n    \"size\": {\n      \"x\": 1.0\n    }\n  }\n}",
    )
    .unwrap();
    assert_eq!(
        from.extract(&p("/image_processor")).unwrap(),
        "{\n  \"std\": [0.50, 5e-1],\n  \"size\": {\n    \"x\": 1.0\n  }\n}"
    );
    let out = edited("{\n  \"a\": 1\n}\n", |d| {
        d.set_from(&p("/b/c"), &from, &p("/image_processor/size"), Parents::Create).unwrap();
    });
    assert_eq!(out, "{\n  \"a\": 1,\n  \"b\": {\n    \"c\": {\n      \"x\": 1.0\n    }\n  }\n}\n");
}

#[test]
fn missing_parents_are_made_only_when_asked_and_a_failed_edit_changes_nothing() {
    let mut d = Document::parse(CONFIG.as_bytes()).unwrap();
    let e = d.set_value(&p("/tex/a"), &json!(1), Parents::Require).unwrap_err();
    assert!(matches!(e, JsonError::Missing { ref missing, .. } if missing == "tex"), "{e}");
    let e = d.set_value(&p("/eps/a/b"), &json!(1), Parents::Create).unwrap_err();
    assert_eq!(e.to_string(), "\"/eps/a\" leads through \"/eps\" (line 2, column 10), which is a number");
    let e = d.set(&p("/flat/7"), "1").unwrap_err();
    assert_eq!(e.to_string(), "\"7\" is no place in the array at \"/flat\", which has 2 items");
    assert!(d.set(&p("/flat/01"), "1").is_err());
    assert!(d.set(&p("/eps"), "1 2").is_err());
    assert!(d.append(&p("/eps"), "1").is_err());
    assert!(d.append(&Pointer::root(), "1").is_err(), "\"-\" would be a key of an object");
    assert_eq!(d.finish(), CONFIG.as_bytes());
}

#[test]
fn a_wrong_key_is_an_error_with_near_names() {
    let mut d = Document::parse(br#"{"text_config": {"mtp_num_hidden_layers": 1}}"#).unwrap();
    let e = d.remove(&p("/text_config/mtp_num_hiden_layers")).unwrap_err();
    assert_eq!(e.hint().unwrap(), "did you mean `mtp_num_hidden_layers`?");
    assert!(e.to_string().contains("\"/text_config\" has no \"mtp_num_hiden_layers\""), "{e}");
}

#[test]
fn a_byte_order_mark_and_the_final_newline_stay() {
    let mut d = Document::parse(b"\xef\xbb\xbf{\"a\": 1}\r\n").unwrap();
    assert!(d.has_bom());
    d.set(&p("/a"), "2").unwrap();
    assert_eq!(d.finish(), b"\xef\xbb\xbf{\"a\": 2}\r\n");
}

#[test]
fn pythons_words_are_tolerated_and_nothing_else_is() {
    for ok in ["NaN", "[Infinity, -Infinity]", "-0", "1E+5", "\"\\ud800\"", " [ ] "] {
        assert!(Document::parse(ok.as_bytes()).is_ok(), "{ok}");
    }
    for bad in [
        "",
        "nan",
        "-NaN",
        "+1",
        "01",
        "1.",
        ".5",
        "1e",
        "-",
        "tru",
        "truex",
        "[1,]",
        "{\"a\":1,}",
        "{a:1}",
        "{\"a\" 1}",
        "[1 2]",
        "\"\t\"",
        "\"\\x\"",
        "\"\\u12\"",
        "\"a",
        "[",
        "{",
        "1 1",
        "// c\n1",
        "'a'",
        "\u{feff}\u{feff}1",
        "\u{a0}1",
    ] {
        assert!(Document::parse(bad.as_bytes()).is_err(), "{bad:?}");
    }
}

#[test]
fn faults_name_line_and_column() {
    assert_eq!(fault("{\n  \"é\": tru\n}"), "line 2, column 8: expected a value, found 't'");
    assert_eq!(
        fault("{\"a\": 1,\n \"b\": 2,\n \"\\u0061\": 3}"),
        "line 3, column 2: the key \"a\" stands twice in one object, first in line 1"
    );
    assert_eq!(fault("[1, 2"), "line 1, column 6: expected `,` or `]`, found the end");
    assert_eq!(Document::parse(b"[\"\xff\"]").unwrap_err().to_string(), "line 1, column 3: the bytes are no UTF-8");
    let deep = "[".repeat(MAX_DEPTH + 1);
    assert!(matches!(Document::parse(deep.as_bytes()), Err(JsonError::TooDeep { line: 1, column: 129 })));
    assert!(Document::parse(format!("{}{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH)).as_bytes()).is_ok());
}

#[test]
fn an_edit_cannot_nest_deeper_than_a_document_may() {
    let mut d = Document::parse(format!("{}1{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH)).as_bytes()).unwrap();
    let deepest = Pointer::new(vec!["0"; MAX_DEPTH]);
    assert!(d.set(&deepest, "[]").is_err());
    assert!(d.set(&deepest, "2").unwrap());
    assert!(Document::parse(&d.finish()).is_ok());
}

#[test]
fn the_same_key_in_two_objects_and_two_lone_surrogates_are_no_duplicates() {
    assert!(Document::parse(br#"[{"a": 1}, {"a": 1}, {"\ud800": 1, "\ud801": 2}]"#).is_ok());
    let d = Document::parse(b"[\"ok \\ud83d\\ude00\",\n \"\\ud83d\"]").unwrap();
    assert_eq!(d.lone_surrogate(), Some((2, 2)));
    assert_eq!(d.value(&p("/0")), Some(json!("ok 😀")));
}

#[test]
fn pointers_escape_as_rfc_6901_says() {
    let d = Document::parse(br#"{"a/b": 1, "m~n": 2, "": 3, " ": [4]}"#).unwrap();
    for (at, raw) in [("/a~1b", "1"), ("/m~0n", "2"), ("/", "3"), ("/ /0", "4")] {
        assert_eq!(d.get(&p(at)), Some(raw), "{at}");
        assert_eq!(p(at).to_string(), at);
    }
    for bad in ["a", "/~", "/~2", "a/b"] {
        assert!(Pointer::parse(bad).is_err(), "{bad}");
    }
    assert_eq!(d.get(&p("/ /-")), None);
}

// --- properties ---

#[derive(Debug, Clone)]
enum Shape {
    Leaf(String),
    List(Vec<Shape>),
    Table(Vec<(String, Shape)>),
}

fn shape() -> impl Strategy<Value = Shape> {
    let leaf = prop_oneof![
        prop::sample::select(vec![
            "0",
            "-0",
            "1",
            "1.0",
            "1e-06",
            "0.1000000000000000055",
            "12345678901234567890123",
            "true",
            "false",
            "null",
            "\"\"",
            "\"a,]}\"",
            "\"\\u00e9\\n\"",
            "\"é \\\" {\"",
            "NaN",
            "-Infinity",
        ])
        .prop_map(|s| Shape::Leaf(s.to_owned())),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Shape::List),
            prop::collection::vec(("[a-c/~ \"é]{0,3}", inner), 0..5).prop_map(|members| {
                let mut seen = std::collections::HashSet::new();
                Shape::Table(members.into_iter().filter(|(k, _)| seen.insert(k.clone())).collect())
            }),
        ]
    })
}

/// A JSON text with the span of every value, made without the code under test.
#[derive(Debug, Clone)]
struct Made {
    text: String,
    places: Vec<(Pointer, Range<usize>)>,
    spaces: Vec<&'static str>,
}

impl Made {
    fn space(&mut self) {
        let space = self.spaces.pop().unwrap_or("");
        self.spaces.insert(0, space);
        self.text.push_str(space);
    }

    fn lay_out(&mut self, shape: &Shape, at: &Pointer) {
        let start = self.text.len();
        match shape {
            Shape::Leaf(raw) => self.text.push_str(raw),
            Shape::List(items) => {
                self.text.push('[');
                self.space();
                for (i, item) in items.iter().enumerate() {
                    self.comma(i);
                    self.lay_out(item, &at.child(i.to_string()));
                    self.space();
                }
                self.text.push(']');
            }
            Shape::Table(members) => {
                self.text.push('{');
                self.space();
                for (i, (key, item)) in members.iter().enumerate() {
                    self.comma(i);
                    self.text.push_str(&Value::String(key.clone()).to_string());
                    self.space();
                    self.text.push(':');
                    self.space();
                    self.lay_out(item, &at.child(key.clone()));
                    self.space();
                }
                self.text.push('}');
            }
        }
        self.places.push((at.clone(), start..self.text.len()));
    }

    fn comma(&mut self, i: usize) {
        if i > 0 {
            self.text.push(',');
            self.space();
        }
    }

    fn pick(&self, which: prop::sample::Index) -> (Pointer, Range<usize>) {
        self.places[which.index(self.places.len())].clone()
    }
}

fn made() -> impl Strategy<Value = Made> {
    let space = prop::sample::select(vec!["", "", " ", "\n", "\n  ", "\r\n\t", "  \n    "]);
    (shape(), prop::collection::vec(space, 1..30)).prop_map(|(shape, spaces)| {
        let mut made = Made { text: String::new(), places: Vec::new(), spaces };
        made.space();
        made.lay_out(&shape, &Pointer::root());
        made.space();
        made
    })
}

fn value_of(text: &str) -> Value {
    Document::parse(text.as_bytes()).unwrap().value(&Pointer::root()).unwrap()
}

fn raw_value() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["7", "1.50", "\"x\"", "[]", "{\n \"k\": [1,2]}", "NaN", "null"])
}

/// What the edit does to a value that was read.
fn applied(mut root: Value, at: &Pointer, new: Option<Value>) -> Value {
    let Some((last, above)) = at.tokens().split_last() else { return new.unwrap() };
    let mut v = &mut root;
    for token in above {
        v = match v {
            Value::Object(m) => m.get_mut(token).unwrap(),
            Value::Array(a) => &mut a[token.parse::<usize>().unwrap()],
            _ => unreachable!(),
        };
    }
    match (v, new) {
        (Value::Object(m), Some(n)) => drop(m.insert(last.clone(), n)),
        (Value::Object(m), None) => drop(m.shift_remove(last).unwrap()),
        (Value::Array(a), Some(n)) if last == "-" => a.push(n),
        (Value::Array(a), Some(n)) => a[last.parse::<usize>().unwrap()] = n,
        (Value::Array(a), None) => drop(a.remove(last.parse::<usize>().unwrap())),
        _ => unreachable!(),
    }
    root
}

fn tokens(text: &str) -> String {
    let mut out = String::new();
    let mut pos = 0;
    while let Some(c) = text[pos..].chars().next() {
        if c == '"' {
            let end = walk::skip_string(text, pos);
            out.push_str(&text[pos..end]);
            pos = end;
        } else {
            if !c.is_ascii_whitespace() {
                out.push(c);
            }
            pos += c.len_utf8();
        }
    }
    out
}

proptest! {
    #[test]
    fn every_value_is_found_where_it_stands(m in made()) {
        let d = Document::parse(m.text.as_bytes()).unwrap();
        for (at, span) in &m.places {
            prop_assert_eq!(d.get(at), Some(&m.text[span.clone()]));
            prop_assert_eq!(&p(&at.to_string()), at);
        }
        prop_assert_eq!(d.finish(), m.text.as_bytes());
    }

    #[test]
    fn a_replaced_value_changes_its_own_characters_only(m in made(), which: prop::sample::Index, raw in raw_value()) {
        let (at, span) = m.pick(which);
        let out = edited(&m.text, |d| {
            d.set(&at, raw).unwrap();
        });
        prop_assert_eq!(&out, &format!("{}{raw}{}", &m.text[..span.start], &m.text[span.end..]));
        prop_assert_eq!(value_of(&out), applied(value_of(&m.text), &at, Some(value_of(raw))));
    }

    #[test]
    fn an_inserted_value_leaves_all_that_was_there(m in made(), which: prop::sample::Index, raw in raw_value()) {
        let (at, span) = m.pick(which);
        let old = &m.text[span.clone()];
        let at = match old.as_bytes()[0] {
            b'{' => at.child("new/~key"),
            b'[' => at.child("-"),
            _ => return Ok(()),
        };
        let out = edited(&m.text, |d| {
            d.set(&at, raw).unwrap();
        });
        prop_assert_eq!(value_of(&out), applied(value_of(&m.text), &at, Some(value_of(raw))));
        // The white space of an empty container belongs to the edit; of any other, only what is new does.
        let empty = tokens(old).len() == 2;
        let kept = if empty { span.start + 1 } else { span.start + old[..old.len() - 1].trim_end().len() };
        prop_assert_eq!(&out[..kept], &m.text[..kept]);
        let tail = &m.text[if empty { span.end - 1 } else { kept }..];
        prop_assert!(out.ends_with(tail), "{:?} does not end with {:?}", out, tail);
    }

    #[test]
    fn a_removed_value_takes_only_one_comma_and_white_space(m in made(), which: prop::sample::Index) {
        let (at, span) = m.pick(which);
        if at.is_root() {
            return Ok(());
        }
        let out = edited(&m.text, |d| d.remove(&at).unwrap());
        prop_assert_eq!(value_of(&out), applied(value_of(&m.text), &at, None));
        let same_before = m.text.bytes().zip(out.bytes()).take_while(|(a, b)| a == b).count();
        let cut = m.text.len() - out.len();
        // What was cut is one stretch, and holds the value, at most its key, one comma, and white space.
        let from = (0..=same_before).find(|i| m.text.as_bytes()[i + cut..] == out.as_bytes()[*i..]);
        prop_assert!(from.is_some(), "{:?} -> {:?}", m.text, out);
        let key = at.tokens().last().map(|k| Value::String(k.clone()).to_string()).unwrap_or_default();
        let most = tokens(&m.text[span]).len() + key.len() + 2;
        prop_assert!(tokens(&m.text).len() - tokens(&out).len() <= most);
    }

    #[test]
    fn a_rendered_value_reads_back(m in made(), which: prop::sample::Index, new in made()) {
        let (at, _) = m.pick(which);
        let value = value_of(&new.text);
        let out = edited(&m.text, |d| {
            d.set_value(&at, &value, Parents::Require).unwrap();
        });
        let want = applied(value_of(&m.text), &at, Some(value));
        prop_assert!(same_value(&value_of(&out), &want, Numbers::Typed), "{out}");
    }

    #[test]
    fn no_bytes_make_the_scanner_panic(bytes in prop::collection::vec(prop::sample::select(b"{}[]\",:\\u0e-.1tNI \n\xc3\xa9".to_vec()), 0..40)) {
        if let Ok(d) = Document::parse(&bytes) {
            prop_assert!(d.value(&Pointer::root()).is_some());
        }
    }

    #[test]
    fn what_serde_json_reads_the_scanner_reads_alike(m in made()) {
        if let Ok(v) = serde_json::from_str::<Value>(&m.text) {
            prop_assert_eq!(value_of(&m.text), v);
        }
    }
}
