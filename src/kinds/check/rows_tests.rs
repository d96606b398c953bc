//! Calibration files as people met them.

use serde_json::{Value as Json, json};

use crate::kinds::check::Check;
use crate::kinds::testing::{at, file, made, run};

const ROW: &str = r#"{"id": 7, "messages": [{"role": "user", "content": "é"}, {"role": "assistant", "content": "b"}]}"#;

/// The facts, and what each assertion found that fails.
fn look(bytes: &[u8], spec: &str) -> (Json, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.jsonl");
    std::fs::write(&path, bytes).unwrap();
    let rows = file("calib", &path);
    let ran = run(&Check, &format!("calibration.calib = {{ {spec} }}"), &[&rows]).unwrap();
    assert_eq!(ran.report.verdict, Some(ran.report.notes.is_empty()));
    (ran.report.facts["calibration.calib"].clone(), ran.report.notes)
}

fn well_formed(bytes: &[u8]) -> Vec<String> {
    let notes = look(bytes, "").1;
    let start = "expected only well-formed rows in `calib`: ";
    notes.iter().flat_map(|n| n.strip_prefix(start).unwrap().split("; ").map(str::to_owned)).collect()
}

#[test]
fn each_variant_of_a_file_is_reported_by_row_number() {
    let four = |third: &str| format!("{ROW}\n{ROW}\n{third}\n{ROW}\n");
    let (facts, notes) = look(four(ROW).as_bytes(), "count = 4");
    assert!(notes.is_empty(), "{notes:?}");
    assert_eq!(facts["rows"], json!(4));
    assert_eq!(facts["newline_at_the_end"], json!(true));

    let (facts, notes) = look(four(ROW).replace('\n', "\r\n").trim_end().as_bytes(), "count = 4");
    assert!(notes.is_empty(), "{notes:?}");
    assert_eq!((&facts["crlf_lines"], &facts["newline_at_the_end"]), (&json!(3), &json!(false)));

    let with_bom = format!("\u{feff}{}", four(ROW));
    let (facts, notes) = look(with_bom.as_bytes(), "count = 4");
    assert_eq!((&facts["byte_order_mark"], &facts["rows"]), (&json!(true), &json!(4)));
    assert_eq!(
        notes,
        [
            "expected only well-formed rows in `calib`: row 1 starts with a byte-order mark, which most readers take for a part of it"
        ]
    );

    let (facts, notes) = look(four("").as_bytes(), "count = 4");
    assert_eq!(facts["rows"], json!(3));
    assert_eq!(
        notes,
        ["expected 4 rows in `calib`, found 3", "expected only well-formed rows in `calib`: row 3 is blank"]
    );

    assert_eq!(
        well_formed(four("{\"id\": 1,").as_bytes()),
        ["row 3, column 10: expected a key in double quotes, found the end"]
    );
    assert_eq!(well_formed(&ROW.as_bytes()[..50])[0].split(',').next().unwrap(), "row 1");
    let surrogate = ROW.replace('é', "\\ud800");
    assert_eq!(
        well_formed(four(&surrogate).as_bytes()),
        ["row 3 (id 7), column 52: a lone surrogate, which is no text"]
    );
    let mut bytes = four("X").into_bytes();
    let x = bytes.iter().position(|b| *b == b'X').unwrap();
    bytes[x] = 0xff;
    assert_eq!(well_formed(&bytes), ["row 3, column 1: the bytes are no UTF-8"]);
}

#[test]
fn rows_that_no_chat_template_can_render_are_named() {
    let of = |row: &str| well_formed(row.as_bytes());
    assert_eq!(of("[]"), ["row 1 is no object"]);
    assert_eq!(of("{\"id\": \"a\"}"), ["row 1 (id a) has neither messages nor text"]);
    assert!(of("{\"text\": \"plain\"}").is_empty());
    assert_eq!(of("{\"messages\": []}"), ["row 1 has no messages"]);
    assert_eq!(
        of(r#"{"messages": [{"content": "a"}, {"role": "bot", "content": 1}, {"role": "user"}, 3]}"#),
        [
            "row 1: messages[0] has no role",
            "row 1: messages[1] has the role \"bot\"",
            "row 1: messages[1].content is a number",
            "row 1: messages[2] has no content",
            "row 1: messages[3] is no object",
        ]
    );
    assert_eq!(of("{\"id\": 1, \"id\": 2}").len(), 1, "a key that stands twice");
}

#[test]
fn tool_arguments_that_are_a_string_or_null_are_named_by_row_and_id() {
    let rows = file("calib", &at("tests/data/calib-bad.jsonl"));
    let ran = run(&Check, "calibration.calib = { count = 24, tool_arguments = \"object\" }", &[&rows]).unwrap();
    assert_eq!(ran.report.facts["calibration.calib"]["rows_with_faults"], json!(8));
    let [note] = ran.report.notes.as_slice() else { panic!("{:?}", ran.report.notes) };
    assert!(note.contains("row 13 (id tool-00): messages[1].tool_calls[0].function.arguments is a string"), "{note}");
    assert!(note.contains("row 24 (id tool-11): messages[1].tool_calls[0].function.arguments is null"), "{note}");
    assert_eq!(note.matches("; ").count() + 1, 8);
    let ran = run(&Check, "calibration.calib = { count = 24 }", &[&rows]).unwrap();
    assert_eq!(ran.report.verdict, Some(true));

    let call = |arguments: &str| {
        let calls = format!(r#"[{{"function": {{"name": "f", "arguments": {arguments}}}}}]"#);
        format!(r#"{{"messages": [{{"role": "assistant", "content": null, "tool_calls": {calls}}}]}}"#)
    };
    let as_string = |arguments: &str| look(call(arguments).as_bytes(), "tool_arguments = \"string\"").1;
    assert!(as_string(r#""{\"a\": 1}""#).is_empty());
    assert!(as_string(r#""{'a': 1}""#)[0].ends_with("arguments is a string that holds no object"));
    assert!(as_string("{}")[0].ends_with("arguments is an object"));
}

#[test]
fn a_folder_with_one_jsonl_needs_no_file_name_and_one_with_two_does() {
    let (rows, _a) = made("calib", &[("a/x.jsonl", ROW.as_bytes()), ("README.md", b"")]);
    assert_eq!(run(&Check, "calibration.calib = { count = 1 }", &[&rows]).unwrap().report.verdict, Some(true));
    let (rows, _b) = made("calib", &[("x.jsonl", ROW.as_bytes()), ("y.jsonl", b"")]);
    assert!(run(&Check, "calibration.calib = { count = 1 }", &[&rows]).is_err());
    let toml = "calibration.calib = { count = 1, file = \"x.jsonl\" }";
    assert_eq!(run(&Check, toml, &[&rows]).unwrap().report.verdict, Some(true));
}

#[test]
fn rows_across_the_pieces_of_a_big_file_are_whole_and_faults_are_bounded() {
    let long = ROW.replace('é', &"x".repeat(700_000));
    let bytes = format!("{long}\n{long}\n{long}\n");
    assert_eq!(look(bytes.as_bytes(), "count = 3").1, Vec::<String>::new());
    let (facts, notes) = look("x\n".repeat(1500).as_bytes(), "");
    assert_eq!(facts["rows_with_faults"], json!(1500));
    assert!(notes[0].ends_with("; and 961 more"), "{notes:?}");
}
