//! Values of JSON files, and files that must be there.

use serde_json::Value as Json;

use super::findings::Findings;
use super::spec::FileValues;
use crate::jsonedit::{Document, JsonError, Numbers, Pointer, same_value};
use crate::kinds::paths::PathGlob;
use crate::kinds::{Input, StepError};
use crate::model::path::RelPath;
use crate::model::tree::Entry;

/// JSON files larger than this are no sidecars.
const MAX_JSON_BYTES: u64 = 64 << 20;

/// The JSON file at `path`; `None` where there is none. Errors: [`StepError`] with path, line and column.
pub(super) fn document(input: &Input, path: &RelPath) -> Result<Option<Document>, StepError> {
    if !matches!(input.tree.get(path), Some(Entry::File { .. })) {
        return Ok(None);
    }
    let place = format!("the input `{}`: {path}", input.alias);
    let bytes = input.read(path, MAX_JSON_BYTES).map_err(StepError::io(place.clone()))?;
    let doc = Document::parse(&bytes);
    doc.map(Some).map_err(|e: JsonError| StepError::invalid(format!("{place}: {e}"), e.hint().unwrap_or_default()))
}

/// Asserts values by file and pointer. Errors: a file that is no JSON.
pub(super) fn assert(config: &[FileValues], input: &Input, found: &mut Findings) -> Result<(), StepError> {
    for (file, values) in config {
        let doc = document(input, file)?;
        for (pointer, wanted) in values {
            let fault = match &doc {
                None => Some("no such file".to_owned()),
                Some(doc) => match doc.value(pointer) {
                    Some(v) if same_value(&v, wanted, Numbers::ByValue) && !is_masked(doc, pointer, wanted) => None,
                    Some(_) => Some(short(doc.get(pointer).unwrap_or(""))),
                    None => Some(nothing_at(doc, pointer)),
                },
            };
            found.instead(format!("{file}{pointer} to be {}", short(&wanted.to_string())), fault);
        }
    }
    Ok(())
}

// NaN and infinities read as null.
fn is_masked(doc: &Document, pointer: &Pointer, wanted: &Json) -> bool {
    wanted.is_null() && doc.get(pointer) != Some("null")
}

fn nothing_at(doc: &Document, pointer: &Pointer) -> String {
    match doc.extract(pointer) {
        Ok(_) => String::new(),
        Err(e) => match e.hint() {
            Some(hint) => format!("nothing: {e} ({hint})"),
            None => format!("nothing: {e}"),
        },
    }
}

fn short(text: &str) -> String {
    let one_line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if one_line.chars().count() <= 200 {
        return one_line;
    }
    format!("{}…", one_line.chars().take(200).collect::<String>())
}

/// Asserts that each glob matches a file.
pub(super) fn assert_files(files: &[PathGlob], input: &Input, found: &mut Findings) {
    for glob in files {
        let paths: Vec<&RelPath> =
            input.tree.iter().filter(|(_, e)| !matches!(e, Entry::EmptyDir)).map(|f| f.0).collect();
        let fault = glob.select(paths.iter().copied()).err();
        found.instead(format!("a file {:?}", glob.as_str()), fault.map(|e| format!("none ({})", e.hint)));
    }
}
