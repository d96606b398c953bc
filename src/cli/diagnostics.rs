//! Errors drawn for people: those in a text with the text and carets, others in a line, both with what to do.

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};
use serde_json::{Value, json};

use crate::cli::terminal::{Stream, Tone, width};
use crate::graph::{Diagnostic, Diagnostics};

/// All errors in a text.
pub(crate) fn render(d: &Diagnostics, stream: Stream) -> String {
    let columns = width().filter(|_| stream.terminal);
    let renderer = if stream.colour { Renderer::styled().hyperlink(false) } else { Renderer::plain() };
    let renderer = renderer.term_width(columns.unwrap_or(140));
    let mut s = String::new();
    for one in &d.list {
        s.push_str(&render_one(one, d.text(), &renderer));
        s.push_str("\n\n");
    }
    if d.more > 0 {
        s.push_str(&format!("and {} further errors\n\n", d.more));
    }
    s.truncate(s.trim_end().len());
    s.push('\n');
    s
}

fn render_one(d: &Diagnostic, text: &str, renderer: &Renderer) -> String {
    // Only the lines between the first and the last label: a big graph is not gone through for each error.
    let first = d.labels.iter().map(|l| l.span.start).min().unwrap_or(0).min(text.len());
    let last = d.labels.iter().map(|l| l.span.end).max().unwrap_or(first).clamp(first, text.len());
    let (first, last) = (text.floor_char_boundary(first), text.ceil_char_boundary(last));
    let mut from = text[..first].rfind('\n').map_or(0, |i| i + 1);
    // A byte order mark is no character of the line.
    if from == 0 && text.starts_with('\u{feff}') {
        from = '\u{feff}'.len_utf8();
    }
    let to = text[last..].find('\n').map_or(text.len(), |i| last + i);
    let window = text.get(from..to).unwrap_or_default().trim_end_matches('\r');
    let line = text[..from].bytes().filter(|b| *b == b'\n').count() + 1;
    let at = |offset: usize| window.floor_char_boundary(offset.saturating_sub(from).min(window.len()));
    let annotations = d.labels.iter().enumerate().map(|(i, l)| {
        let kind = if i == 0 { AnnotationKind::Primary } else { AnnotationKind::Context };
        let (start, end) = (at(l.span.start), at(l.span.end));
        let annotation = kind.span(start..end.max(start));
        if l.text.is_empty() { annotation } else { annotation.label(l.text.as_str()) }
    });
    let snippet = Snippet::source(window).line_start(line).path(d.file.as_str()).annotations(annotations);
    let group = Level::ERROR.primary_title(d.message.as_str()).element(snippet);
    let group = match &d.hint {
        Some(h) => group.element(Level::HELP.with_name("hint").message(h.as_str())),
        None => group,
    };
    renderer.render(&[group])
}

/// An error that is in no text.
pub(crate) fn line(message: &str, hint: Option<&str>, stream: Stream) -> String {
    let mut s = format!("{} {message}\n", stream.paint(Tone::Bad, "error:"));
    if let Some(h) = hint {
        s.push_str(&format!(" {} {h}\n", stream.paint(Tone::Strong, "hint:")));
    }
    s
}

/// The errors of a text for machines.
pub(crate) fn to_json(d: &Diagnostics) -> Vec<Value> {
    d.list
        .iter()
        .map(|d| json!({"file": d.file, "line": d.line, "column": d.column, "message": d.message, "hint": d.hint}))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Graph;

    const PIPE: Stream = Stream { terminal: false, colour: false };

    fn errors(text: &str) -> Diagnostics {
        Graph::parse("graph.toml", text).unwrap_err()
    }

    #[test]
    fn an_error_shows_its_line_with_a_caret_and_a_hint() {
        let text = "# a graph\r\n[source]\r\nbase = { chekpoint = \"b\" }\r\n\r\n[node.q]\r\nkind = 4\r\n";
        insta::assert_snapshot!(render(&errors(text), PIPE), @r#"
        error: unknown key `chekpoint` of a source
         --> graph.toml:3:10
          |
        3 | base = { chekpoint = "b" }
          |          ^^^^^^^^^ unknown
          |
          = hint: did you mean `checkpoint`?

        error: `kind` must be a string, found an integer
         --> graph.toml:6:8
          |
        6 | kind = 4
          |        ^ expected a string
        "#);
    }

    #[test]
    fn two_places_of_one_error_are_both_shown() {
        let text = "[source]\nx = { file = \"é\" }\n# 1\n# 2\n# 3\n# 4\n# 5\n[source.X]\nfile = \"y\"\n";
        insta::assert_snapshot!(render(&errors(text), PIPE), @r#"
        error: `x` and `X` differ only in case
         --> graph.toml:8:9
          |
        2 | x = { file = "é" }
          | - this
        ...
        8 | [source.X]
          |         ^ and this
          |
          = hint: out/NAME would be one file where the file system ignores case: rename one of the two
        "#);
    }

    #[test]
    fn a_byte_order_mark_does_not_move_the_caret() {
        insta::assert_snapshot!(render(&errors("\u{feff}nods = 1"), PIPE), @r"
        error: unknown key `nods`
         --> graph.toml:1:1
          |
        1 | nods = 1
          | ^^^^ unknown
          |
          = hint: did you mean `node`?
        ");
    }

    #[test]
    fn an_empty_stretch_at_the_end_of_the_text_has_a_caret() {
        insta::assert_snapshot!(render(&errors("[node.a"), PIPE), @r"
        error: unclosed table, expected `]`
         --> graph.toml:1:8
          |
        1 | [node.a
          |        ^
        ");
        insta::assert_snapshot!(render(&Graph::parse_bytes("graph.toml", b"a\n\xff").unwrap_err(), PIPE), @r"
        error: the byte 0xff is no UTF-8
         --> graph.toml:2:1
          |
        2 |
          | ^ not text from here on
          |
          = hint: save the file as UTF-8
        ");
    }

    #[test]
    fn a_control_character_of_the_graph_does_not_reach_the_terminal() {
        let drawn = render(&errors("[node.\"a\\u001b[31m\"]\nabout = \"\u{202e}x\u{1b}[0m\"\n"), PIPE);
        assert!(!drawn.contains(['\u{1b}', '\u{202e}']), "{drawn:?}");
    }

    #[test]
    fn machines_get_place_message_and_hint() {
        let json = Value::from(to_json(&errors("nods = 1")));
        assert_eq!(json[0]["line"], 1);
        assert_eq!(json[0]["hint"], "did you mean `node`?");
    }
}
