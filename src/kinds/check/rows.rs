//! Calibration rows: a JSONL file read once, line by line.
//!
//! A line is a row, blank or not, and rows are counted from 1 as editors count lines. What fails: a byte-order mark, a
//! blank line, a line that is no JSON object, bytes that are no UTF-8, a lone surrogate, messages without roles, and tool
//! calls whose arguments are not what is asked for. What is only reported: CRLF, and no newline at the end.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use serde_json::Value as Json;

use super::findings::Findings;
use super::spec::{Arguments, RowSpec};
use super::tensors::counted;
use crate::digest::BlobId;
use crate::jsonedit::{Document, Pointer};
use crate::kinds::{Input, Step, StepError};
use crate::model::tree::Entry;

/// A longer row is refused: memory stays bounded.
const MAX_ROW_BYTES: usize = 16 << 20;

const PIECE: usize = 1 << 20;

const ROLES: [&str; 6] = ["system", "user", "assistant", "tool", "developer", "function"];

/// Faults beyond these are only counted: a file of millions of broken rows must not fill the memory.
const MAX_FAULTS: usize = 1000;

/// Faults, and how many more there were.
#[derive(Default)]
struct Faults {
    list: Vec<String>,
    more: u64,
}

impl Faults {
    fn push(&mut self, fault: String) {
        if self.list.len() < MAX_FAULTS {
            self.list.push(fault);
        } else {
            self.more += 1;
        }
    }

    fn count(&self) -> u64 {
        self.more + self.list.len() as u64
    }

    fn into_lines(mut self) -> Vec<String> {
        if self.more > 0 {
            self.list.push(format!("and {} more", self.more));
        }
        self.list
    }
}

#[derive(Default)]
struct Seen {
    lines: u64,
    rows: u64,
    bom: bool,
    crlf: u64,
    open_end: bool,
    rows_with_faults: u64,
    faults: Faults,
    argument_faults: Faults,
    calls: u64,
}

/// Asserts on the rows of the input `alias`. Errors: no such file.
pub(super) fn assert(alias: &str, spec: &RowSpec, step: &Step<'_>, found: &mut Findings) -> Result<(), StepError> {
    let input = step.input(alias)?;
    let (name, blob, size) = rows_file(alias, spec, input)?;
    let place = format!("{name} of the input `{alias}`");
    let file = input.files.open(blob).map_err(StepError::io(format!("opening {place}")))?;
    let seen = read(&file, size, spec, step, &place)?;

    if let Some(count) = spec.count {
        let other = (seen.rows != count).then(|| seen.rows.to_string());
        found.instead(format!("{} in `{alias}`", counted(count, "row")), other);
    }
    found.add(format!("only well-formed rows in `{alias}`"), seen.faults.into_lines());
    if let Some(arguments) = spec.tool_arguments {
        let wanted = match arguments {
            Arguments::Object => "an object",
            Arguments::String => "a string that holds an object",
        };
        found.add(
            format!("the arguments of every tool call in `{alias}` to be {wanted}"),
            seen.argument_faults.into_lines(),
        );
    }
    let facts = serde_json::json!({
        "rows": seen.rows, "rows_with_faults": seen.rows_with_faults, "tool_calls": seen.calls, "byte_order_mark": seen.bom,
        "crlf_lines": seen.crlf, "newline_at_the_end": !seen.open_end,
    });
    found.fact(format!("calibration.{alias}"), facts);
    Ok(())
}

fn rows_file(alias: &str, spec: &RowSpec, input: &Input) -> Result<(String, BlobId, u64), StepError> {
    let missing = |what: String| StepError::invalid(what, format!("say calibration.{alias}.file = \"PATH\""));
    if let Some(path) = &spec.file {
        return match input.tree.get(path) {
            Some(Entry::File { blob, size, .. }) => Ok((path.to_string(), *blob, *size)),
            _ => Err(missing(format!("there is no {path} in the input `{alias}`"))),
        };
    }
    if let Some((path, blob, size)) = input.only_file() {
        return Ok((path.to_string(), blob, size));
    }
    let mut all = input.tree.files().filter(|f| f.0.as_bytes().ends_with(b".jsonl"));
    match (all.next(), all.next()) {
        (Some((path, blob, size, _)), None) => Ok((path.to_string(), blob, size)),
        (None, _) => Err(missing(format!("there is no .jsonl file in the input `{alias}`"))),
        (Some((a, ..)), Some((b, ..))) => Err(missing(format!("the input `{alias}` holds {a} and {b}"))),
    }
}

fn read(file: &File, size: u64, spec: &RowSpec, step: &Step<'_>, place: &str) -> Result<Seen, StepError> {
    let mut seen = Seen::default();
    let mut piece = vec![0u8; PIECE];
    let mut line: Vec<u8> = Vec::new();
    let mut too_long = false;
    let mut at = 0u64;
    loop {
        step.go_on()?;
        let n = file.read_at(&mut piece, at).map_err(StepError::io(format!("reading {place}")))?;
        if n == 0 {
            break;
        }
        at += n as u64;
        step.progress.bytes(at, size);
        let mut rest = piece.get(..n).unwrap_or_default();
        while let Some(end) = rest.iter().position(|b| *b == b'\n') {
            let (head, tail) = rest.split_at(end);
            take(&mut line, head, &mut too_long);
            seen.line(&line, too_long, spec);
            line.clear();
            too_long = false;
            rest = tail.get(1..).unwrap_or_default();
        }
        take(&mut line, rest, &mut too_long);
    }
    if !line.is_empty() || too_long {
        seen.open_end = true;
        seen.line(&line, too_long, spec);
    }
    Ok(seen)
}

fn take(line: &mut Vec<u8>, part: &[u8], too_long: &mut bool) {
    if line.len() + part.len() > MAX_ROW_BYTES {
        *too_long = true;
    } else if !*too_long {
        line.extend_from_slice(part);
    }
}

impl Seen {
    fn line(&mut self, bytes: &[u8], too_long: bool, spec: &RowSpec) {
        self.lines += 1;
        let row = self.lines;
        let before = (self.faults.count(), self.argument_faults.count());
        let mut bytes = bytes;
        if row == 1
            && let Some(rest) = bytes.strip_prefix(b"\xef\xbb\xbf")
        {
            self.bom = true;
            self.faults
                .push("row 1 starts with a byte-order mark, which most readers take for a part of it".to_owned());
            bytes = rest;
        }
        if let Some(rest) = bytes.strip_suffix(b"\r") {
            self.crlf += 1;
            bytes = rest;
        }
        if too_long {
            self.rows += 1;
            self.faults.push(format!("row {row} is longer than {MAX_ROW_BYTES} bytes"));
        } else if bytes.iter().all(u8::is_ascii_whitespace) {
            self.faults.push(format!("row {row} is blank"));
        } else {
            self.rows += 1;
            self.row(row, bytes, spec);
        }
        if before != (self.faults.count(), self.argument_faults.count()) {
            self.rows_with_faults += 1;
        }
    }

    fn row(&mut self, row: u64, bytes: &[u8], spec: &RowSpec) {
        // The scanner would pass over a second mark as if it began a document.
        let doc = match Document::parse(bytes) {
            Ok(doc) if !doc.has_bom() => doc,
            Ok(_) => return self.faults.push(format!("row {row} starts with a byte-order mark")),
            Err(e) => {
                let what = e.to_string();
                let what = what.strip_prefix("line 1, ").unwrap_or(&what);
                return self.faults.push(format!("row {row}, {what}"));
            }
        };
        let Some(Json::Object(value)) = doc.value(&Pointer::root()) else {
            return self.faults.push(format!("row {row} is no object"));
        };
        let id = match value.get("id") {
            Some(Json::String(s)) => format!(" (id {s})"),
            Some(Json::Number(n)) => format!(" (id {n})"),
            _ => String::new(),
        };
        if let Some((_, column)) = doc.lone_surrogate() {
            self.faults.push(format!("row {row}{id}, column {column}: a lone surrogate, which is no text"));
        }
        match (value.get("messages"), value.get("text")) {
            (Some(Json::Array(messages)), _) => {
                if messages.is_empty() {
                    self.faults.push(format!("row {row}{id} has no messages"));
                }
                for (i, message) in messages.iter().enumerate() {
                    self.message(&format!("row {row}{id}: messages[{i}]"), message, spec);
                }
            }
            (Some(_), _) => self.faults.push(format!("row {row}{id}: messages is no list")),
            (None, Some(Json::String(_))) => {}
            (None, _) => self.faults.push(format!("row {row}{id} has neither messages nor text")),
        }
    }

    fn message(&mut self, place: &str, message: &Json, spec: &RowSpec) {
        let Some(message) = message.as_object() else { return self.faults.push(format!("{place} is no object")) };
        match message.get("role") {
            Some(Json::String(role)) if ROLES.contains(&role.as_str()) => {}
            Some(Json::String(role)) => self.faults.push(format!("{place} has the role {role:?}")),
            _ => self.faults.push(format!("{place} has no role")),
        }
        let calls = message.get("tool_calls").filter(|v| !v.is_null());
        match message.get("content") {
            Some(Json::String(_) | Json::Array(_)) => {}
            None | Some(Json::Null) if calls.is_some() => {}
            None | Some(Json::Null) => self.faults.push(format!("{place} has no content")),
            Some(other) => self.faults.push(format!("{place}.content is {}", type_name(other))),
        }
        match calls {
            None => {}
            Some(Json::Array(calls)) => {
                for (i, call) in calls.iter().enumerate() {
                    self.call(&format!("{place}.tool_calls[{i}]"), call, spec);
                }
            }
            Some(_) => self.faults.push(format!("{place}.tool_calls is no list")),
        }
    }

    fn call(&mut self, place: &str, call: &Json, spec: &RowSpec) {
        self.calls += 1;
        // Rows in chat templates' own form have the function itself as the call.
        let (function, place) = match call.get("function") {
            Some(f) => (f, format!("{place}.function")),
            None => (call, place.to_owned()),
        };
        if !function.get("name").is_some_and(Json::is_string) {
            self.faults.push(format!("{place} has no name"));
        }
        let Some(wanted) = spec.tool_arguments else { return };
        let arguments = function.get("arguments").unwrap_or(&Json::Null);
        let fault = match (wanted, arguments) {
            (Arguments::Object, Json::Object(_)) => return,
            (Arguments::String, Json::String(text)) => {
                let inner = Document::parse(text.as_bytes()).ok().and_then(|d| d.value(&Pointer::root()));
                match inner {
                    Some(Json::Object(_)) => return,
                    _ => "a string that holds no object",
                }
            }
            (_, other) if function.get("arguments").is_some() => type_name(other),
            _ => "missing",
        };
        self.argument_faults.push(format!("{place}.arguments is {fault}"));
    }
}

fn type_name(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    }
}
