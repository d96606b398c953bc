//! A document and its edits.

use std::ops::Range;

use serde_json::Value;

use crate::jsonedit::compare::{Numbers, same_value};
use crate::jsonedit::scan;
use crate::jsonedit::style::{Style, line_indent, shift};
use crate::jsonedit::walk::{self, Child};
use crate::jsonedit::{JsonError, Pointer};
use crate::near::near;

/// What becomes of parents that are not there when a value is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parents {
    /// They are made, as objects.
    Create,
    /// They must be there.
    Require,
}

/// A JSON text and edits of it. Every edit keeps it valid.
#[derive(Debug, Clone)]
pub struct Document {
    bom: bool,
    pub(super) text: String,
}

impl Document {
    /// Reads a document. Errors: [`JsonError`] for bytes that are no UTF-8 or no JSON, a key that stands twice in one object
    /// and nesting deeper than [`crate::jsonedit::MAX_DEPTH`].
    pub fn parse(bytes: &[u8]) -> Result<Self, JsonError> {
        let (bom, bytes) = match bytes.strip_prefix(b"\xef\xbb\xbf") {
            Some(rest) => (true, rest),
            None => (false, bytes),
        };
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(e) => {
                let good = String::from_utf8_lossy(bytes.get(..e.valid_up_to()).unwrap_or_default());
                let (line, column) = scan::place(&good, good.len());
                return Err(JsonError::NotUtf8 { line, column });
            }
        };
        scan::validate(text, 0)?;
        Ok(Self { bom, text: text.to_owned() })
    }

    /// The bytes, a byte-order mark included.
    pub fn finish(self) -> Vec<u8> {
        if self.bom { [b"\xef\xbb\xbf", self.text.as_bytes()].concat() } else { self.text.into_bytes() }
    }

    /// The text without a byte-order mark.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether there is a byte-order mark in front.
    pub fn has_bom(&self) -> bool {
        self.bom
    }

    /// How the document is laid out.
    pub fn style(&self) -> Style {
        Style::of(&self.text)
    }

    /// Line and column of the first string with a lone surrogate (`"\ud800"`), which is no text that UTF-8 can hold.
    pub fn lone_surrogate(&self) -> Option<(usize, usize)> {
        walk::lone_surrogate(&self.text).map(|at| scan::place(&self.text, at))
    }

    /// The raw text of the value at `pointer`; `None` where there is none.
    pub fn get(&self, pointer: &Pointer) -> Option<&str> {
        self.text.get(self.find(pointer)?)
    }

    /// The value at `pointer`; `None` where there is none. Numbers keep their text. `NaN` and infinities, which no
    /// serde_json value can hold, read as null, and a lone surrogate as U+FFFD: [`Document::get`] shows what is there.
    pub fn value(&self, pointer: &Pointer) -> Option<Value> {
        Some(walk::build(&self.text, &self.find(pointer)?))
    }

    /// Line and column of the value at `pointer`.
    pub fn place(&self, pointer: &Pointer) -> Option<(usize, usize)> {
        Some(scan::place(&self.text, self.find(pointer)?.start))
    }

    /// The raw text of the value at `pointer` moved to the left margin: the text of a file of its own. Errors:
    /// [`JsonError::Missing`] and the like.
    pub fn extract(&self, pointer: &Pointer) -> Result<String, JsonError> {
        let span = self.locate(pointer)?;
        let raw = self.text.get(span.clone()).unwrap_or("");
        Ok(shift(raw, line_indent(&self.text, span.start), ""))
    }

    /// Puts the JSON text `raw` at `pointer`: in place of what is there, as a new last member of an object, or, at `-` or
    /// the index behind the last, as a new last item of an array. Says whether anything changed. Errors:
    /// [`JsonError::BadValue`] for `raw`; [`JsonError::Missing`] where the parent is not there.
    pub fn set(&mut self, pointer: &Pointer, raw: &str) -> Result<bool, JsonError> {
        let raw = checked(raw, pointer.tokens().len())?;
        match self.find(pointer) {
            Some(span) => Ok(self.replace(span, raw)),
            None => self.insert(pointer, raw).map(|()| true),
        }
    }

    /// Puts `value` at `pointer`, laid out like its surroundings. A value that is there already keeps its text (`1e-06`
    /// stays, though it would be written `1e-6`). Says whether anything changed. Errors as [`Document::set`].
    pub fn set_value(&mut self, pointer: &Pointer, value: &Value, parents: Parents) -> Result<bool, JsonError> {
        if let Some(span) = self.find(pointer) {
            // Null may stand for NaN, so the raw text decides there.
            let old = walk::build(&self.text, &span);
            let raw_null = value.is_null() && self.text.get(span) != Some("null");
            if same_value(&old, value, Numbers::Typed) && !raw_null {
                return Ok(false);
            }
        }
        self.with_parents(pointer, parents, |doc| {
            let (style, base) = doc.surroundings(pointer)?;
            doc.set(pointer, &style.render(value, &base))
        })
    }

    /// Copies the raw text of `from` in `other` to `pointer`: every token stays as it is, its lines are indented for the new
    /// place. Says whether anything changed. Errors as [`Document::set`], and those of `from`.
    pub fn set_from(
        &mut self,
        pointer: &Pointer,
        other: &Document,
        from: &Pointer,
        parents: Parents,
    ) -> Result<bool, JsonError> {
        let raw = other.extract(from)?;
        self.with_parents(pointer, parents, |doc| {
            let (_, base) = doc.surroundings(pointer)?;
            doc.set(pointer, &shift(&raw, "", &base))
        })
    }

    /// Puts `raw` behind the last item of the array at `pointer`. Errors: [`JsonError::NotAContainer`] where it is no array.
    pub fn append(&mut self, pointer: &Pointer, raw: &str) -> Result<(), JsonError> {
        self.array(pointer)?;
        self.set(&pointer.child("-"), raw).map(|_| ())
    }

    /// Puts `value` behind the last item of the array at `pointer`, laid out like the others. Errors as
    /// [`Document::append`].
    pub fn append_value(&mut self, pointer: &Pointer, value: &Value) -> Result<(), JsonError> {
        self.array(pointer)?;
        self.set_value(&pointer.child("-"), value, Parents::Require).map(|_| ())
    }

    /// Removes the value at `pointer` with its key, one comma and the white space that belongs to it. Errors:
    /// [`JsonError::Missing`] where there is none, [`JsonError::RemoveRoot`].
    pub fn remove(&mut self, pointer: &Pointer) -> Result<(), JsonError> {
        let Some((_, parent)) = split(pointer) else { return Err(JsonError::RemoveRoot) };
        let span = self.locate(pointer)?;
        let outer = self.locate(&parent)?;
        let mut before: Option<Child> = None;
        let mut found = None;
        let mut after = None;
        walk::each_child(&self.text, &outer, |c| {
            if found.is_some() {
                after = Some(c);
                return false;
            }
            if c.value == span {
                found = Some(c);
            } else {
                before = Some(c);
            }
            true
        });
        let cut = match (before, found, after) {
            (Some(b), Some(f), _) => b.value.end..f.value.end,
            (None, Some(f), Some(a)) => f.start()..a.start(),
            // The only one: the container becomes `{}` or `[]`.
            _ => outer.start + 1..outer.end - 1,
        };
        self.text.replace_range(cut, "");
        Ok(())
    }

    fn replace(&mut self, span: Range<usize>, raw: &str) -> bool {
        let same = self.text.get(span.clone()) == Some(raw);
        if !same {
            self.text.replace_range(span, raw);
        }
        !same
    }

    fn root(&self) -> Range<usize> {
        let start = walk::skip_space(&self.text, 0);
        start..walk::skip_value(&self.text, start)
    }

    /// The span of the value at `pointer`; `None` where there is none.
    pub(super) fn find(&self, pointer: &Pointer) -> Option<Range<usize>> {
        pointer.tokens().iter().try_fold(self.root(), |span, token| self.child(&span, token))
    }

    /// As [`Document::find`], with what is wrong where there is none.
    pub(super) fn locate(&self, pointer: &Pointer) -> Result<Range<usize>, JsonError> {
        let mut span = self.root();
        for (depth, token) in pointer.tokens().iter().enumerate() {
            span = self.child(&span, token).ok_or_else(|| self.missing(&span, pointer, depth, token))?;
        }
        Ok(span)
    }

    /// The value at a key or an index of the container at `span`.
    fn child(&self, span: &Range<usize>, token: &str) -> Option<Range<usize>> {
        let index = array_index(token);
        let mut at = 0;
        let mut found = None;
        walk::each_child(&self.text, span, |c| {
            let fits = match &c.key {
                Some(k) => walk::decode(self.text.get(k.clone()).unwrap_or("")).as_ref() == token.as_bytes(),
                None => index == Some(at),
            };
            at += 1;
            if fits {
                found = Some(c.value);
            }
            !fits
        });
        found
    }

    /// Why there is no `token` in the value at `span`, to which the first `depth` steps of `pointer` lead.
    pub(super) fn missing(&self, span: &Range<usize>, pointer: &Pointer, depth: usize, token: &str) -> JsonError {
        let parent = pointer.prefix(depth).to_string();
        let found = match self.text.as_bytes().get(span.start) {
            Some(b'{') => {
                let keys = self.keys_of(span);
                let near = near(token, keys.iter().map(String::as_str), 3).into_iter().map(str::to_owned).collect();
                return JsonError::Missing { pointer: pointer.to_string(), parent, missing: token.to_owned(), near };
            }
            Some(b'[') => {
                let mut len = 0;
                walk::each_child(&self.text, span, |_| {
                    len += 1;
                    true
                });
                return JsonError::BadIndex { parent, index: token.to_owned(), len };
            }
            Some(b'"') => "a string",
            Some(b't' | b'f') => "a boolean",
            Some(b'n') => "null",
            _ => "a number",
        };
        let (line, column) = scan::place(&self.text, span.start);
        JsonError::NotAContainer { pointer: pointer.to_string(), parent, found, line, column }
    }

    fn keys_of(&self, span: &Range<usize>) -> Vec<String> {
        let mut keys = Vec::new();
        walk::each_child(&self.text, span, |c| {
            let key = c.key.and_then(|k| self.text.get(k)).unwrap_or("");
            keys.push(String::from_utf8_lossy(&walk::decode(key)).into_owned());
            true
        });
        keys
    }

    fn array(&self, pointer: &Pointer) -> Result<Range<usize>, JsonError> {
        let span = self.locate(pointer)?;
        if self.text.as_bytes().get(span.start) == Some(&b'[') {
            return Ok(span);
        }
        let (line, column) = scan::place(&self.text, span.start);
        let found = if self.text.as_bytes().get(span.start) == Some(&b'{') { "an object" } else { "no array" };
        let parent = pointer.to_string();
        Err(JsonError::NotAContainer { pointer: pointer.child("-").to_string(), parent, found, line, column })
    }

    /// Makes the parents of `pointer` where that is asked for, then edits. Nothing is changed where the edit fails.
    fn with_parents(
        &mut self,
        pointer: &Pointer,
        parents: Parents,
        edit: impl FnOnce(&mut Self) -> Result<bool, JsonError>,
    ) -> Result<bool, JsonError> {
        if parents == Parents::Require {
            return edit(self);
        }
        let mut draft = self.clone();
        for depth in 1..pointer.tokens().len() {
            let parent = pointer.prefix(depth);
            if draft.find(&parent).is_none() {
                draft.set(&parent, "{}")?;
            }
        }
        let changed = edit(&mut draft)?;
        *self = draft;
        Ok(changed)
    }
}

/// The last step of a pointer and where it starts from; `None` for the whole document.
pub(super) fn split(pointer: &Pointer) -> Option<(&str, Pointer)> {
    let (last, rest) = pointer.tokens().split_last()?;
    Some((last, pointer.prefix(rest.len())))
}

/// An index as RFC 6901 writes it: digits without a leading zero.
pub(super) fn array_index(token: &str) -> Option<usize> {
    let plain = token == "0" || (!token.starts_with('0') && token.bytes().all(|b| b.is_ascii_digit()));
    if plain { token.parse().ok() } else { None }
}

/// `raw` without white space around it, held against the grammar at the depth where it will stand.
fn checked(raw: &str, depth: usize) -> Result<&str, JsonError> {
    let bad = |e: JsonError| JsonError::BadValue { text: raw.chars().take(60).collect(), what: e.to_string() };
    let span = scan::validate(raw, depth).map_err(bad)?;
    Ok(raw.get(span).unwrap_or(raw))
}
