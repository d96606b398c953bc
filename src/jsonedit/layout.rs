//! Where new text goes, and what it looks like there.

use std::ops::Range;

use crate::jsonedit::document::{Document, array_index, split};
use crate::jsonedit::style::{Style, line_indent, string};
use crate::jsonedit::walk::{self, Child};
use crate::jsonedit::{JsonError, Pointer};

/// What the edits need to know of a container.
pub(super) struct Layout {
    span: Range<usize>,
    is_object: bool,
    len: usize,
    first: Option<Child>,
    before_last: Option<Child>,
    last: Option<Child>,
}

impl Document {
    pub(super) fn layout(&self, span: Range<usize>) -> Layout {
        let is_object = self.text.as_bytes().get(span.start) == Some(&b'{');
        let mut l = Layout { span: span.clone(), is_object, len: 0, first: None, before_last: None, last: None };
        walk::each_child(&self.text, &span, |c| {
            l.len += 1;
            if l.first.is_none() {
                l.first = Some(c.clone());
            }
            l.before_last = l.last.replace(c);
            true
        });
        l
    }

    /// White space between the opening bracket and the first child, or all that an empty container holds.
    fn lead(&self, l: &Layout) -> &str {
        let end = l.first.as_ref().map_or(l.span.end.saturating_sub(1), Child::start);
        self.text.get(l.span.start + 1..end).unwrap_or("")
    }

    /// The indentation of a container's children; `None` where they stand on the container's own line.
    fn child_indent(&self, l: &Layout, style: &Style) -> Option<String> {
        let lead = self.lead(l);
        if l.first.is_some() {
            return lead.rsplit_once('\n').map(|(_, indent)| indent.to_owned());
        }
        // An empty container opens up where it begins a line, or is spread over lines already.
        let unit = style.indent.as_ref()?;
        let outer = line_indent(&self.text, l.span.start);
        (lead.contains('\n') || self.opens_its_line(l.span.start)).then(|| format!("{outer}{unit}"))
    }

    /// Whether nothing but white space and its own key stands before the value at `at` on its line.
    fn opens_its_line(&self, at: usize) -> bool {
        let start = self.text.get(..at).and_then(|t| t.rfind('\n')).map_or(0, |i| i + 1);
        let first = walk::skip_space(&self.text, start);
        if self.text.as_bytes().get(first) != Some(&b'"') {
            return first == at;
        }
        let colon = walk::skip_space(&self.text, walk::skip_string(&self.text, first));
        self.text.as_bytes().get(colon) == Some(&b':') && walk::skip_space(&self.text, colon + 1) == at
    }

    /// How a value at `pointer` is to be laid out, and the indentation of the line that it stands on.
    pub(super) fn surroundings(&self, pointer: &Pointer) -> Result<(Style, String), JsonError> {
        let style = self.style();
        if let Some(span) = self.find(pointer) {
            let old = self.layout(span.clone());
            let base = line_indent(&self.text, span.start).to_owned();
            let spread = match (old.first.is_some(), split(pointer)) {
                (true, _) => self.lead(&old).contains('\n'),
                (false, None) => true,
                (false, Some((_, parent))) => self.child_indent(&self.layout(self.locate(&parent)?), &style).is_some(),
            };
            return Ok((if spread { style } else { style.inline() }, base));
        }
        let Some((_, parent)) = split(pointer) else { return Ok((style, String::new())) };
        let outer = self.layout(self.locate(&parent)?);
        Ok(match self.child_indent(&outer, &style) {
            Some(indent) => (style, indent),
            None => (style.inline(), line_indent(&self.text, outer.span.start).to_owned()),
        })
    }

    /// Puts a new last child into the parent of `pointer`.
    pub(super) fn insert(&mut self, pointer: &Pointer, raw: &str) -> Result<(), JsonError> {
        let Some((token, parent)) = split(pointer) else { return Ok(()) };
        let l = self.layout(self.locate(&parent)?);
        let style = self.style();
        let key = if l.is_object {
            let colon = match &l.last {
                Some(Child { key: Some(k), value }) => self.text.get(k.end..value.start).unwrap_or(style.colon),
                _ => style.colon,
            };
            format!("{}{colon}", string(token))
        } else {
            let index = array_index(token);
            // Also the right error where the parent is no container at all.
            if token != "-" && index != Some(l.len) || self.text.as_bytes().get(l.span.start) != Some(&b'[') {
                return Err(self.missing(&l.span, pointer, parent.tokens().len(), token));
            }
            String::new()
        };
        let (at, new) = match (&l.before_last, &l.last) {
            (Some(b), Some(last)) => {
                let separator = self.text.get(b.value.end..last.start()).unwrap_or(style.comma);
                (last.value.end, format!("{separator}{key}{raw}"))
            }
            (None, Some(last)) => {
                let lead = self.lead(&l);
                let separator = if lead.contains('\n') { format!(",{lead}") } else { style.comma.to_owned() };
                (last.value.end, format!("{separator}{key}{raw}"))
            }
            _ => {
                let open = l.span.start + 1;
                let close = l.span.end.saturating_sub(1);
                let new = match self.child_indent(&l, &style) {
                    Some(indent) => {
                        let outer = line_indent(&self.text, l.span.start);
                        format!("{nl}{indent}{key}{raw}{nl}{outer}", nl = style.newline)
                    }
                    None => format!("{key}{raw}"),
                };
                self.text.replace_range(open..close, "");
                (open, new)
            }
        };
        self.text.insert_str(at, &new);
        Ok(())
    }
}
