//! The documentation is held to the program: the reference's tables are those of the kinds, links lead somewhere, and
//! the tutorial's files and commands run, with the output that it shows.
//!
//! `UPDATE_DOCS=1 cargo test --test docs` writes the generated parts anew.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use graftwerk::kinds::{self, KeyType};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn type_name(ty: KeyType) -> &'static str {
    match ty {
        KeyType::Str => "a string",
        KeyType::Int => "an integer",
        KeyType::Bool => "a boolean",
        KeyType::StrOrList => "a string or a list of strings",
        KeyType::StrList => "a list of strings",
        KeyType::StrMap => "a table of strings",
        KeyType::Map => "a table",
        KeyType::Any => "any value",
    }
}

fn kinds_chapter() -> String {
    let mut s = String::new();
    for kind in kinds::all() {
        let _ = write!(s, "### `{}`\n\n", kind.name());
        let about = kind.about();
        let (first, rest) = about.split_at(about.chars().next().map_or(0, char::len_utf8));
        let _ = write!(s, "{}{rest}.\n\n", first.to_uppercase());
        let _ = write!(s, "| key | takes | needed | hashed | meaning |\n| --- | --- | --- | --- | --- |\n");
        for key in kind.keys() {
            let yes = |b: bool| if b { "yes" } else { "no" };
            let about = key.about.replace('|', "\\|");
            let (ty, needed, hashed) = (type_name(key.ty), yes(key.required), yes(key.hashed));
            let _ = writeln!(s, "| `{}` | {ty} | {needed} | {hashed} | {about} |", key.name);
        }
        s.push('\n');
    }
    s
}

/// Holds the part of a page between two marks against what it should be, or writes it.
fn hold(page: &str, from: &str, to: &str, wanted: &str) {
    let path = root().join(page);
    let text = fs::read_to_string(&path).unwrap();
    let start = text.find(from).unwrap_or_else(|| panic!("{page} has no {from}")) + from.len();
    let end = text.find(to).unwrap_or_else(|| panic!("{page} has no {to}"));
    let wanted = format!("\n\n{}\n\n", wanted.trim());
    if text[start..end] == wanted {
        return;
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(path, format!("{}{wanted}{}", &text[..start], &text[end..])).unwrap();
        return;
    }
    panic!("{page} is not what the program says; write it anew: UPDATE_DOCS=1 cargo test --test docs");
}

#[test]
fn the_reference_has_every_key_of_every_kind() {
    hold("docs/graph-reference.md", "<!-- kinds -->", "<!-- end of kinds -->", &kinds_chapter());
}

fn pages(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            pages(&path, out);
        } else if path.extension().is_some_and(|e| e == "md") {
            out.push(path);
        }
    }
}

/// The targets of links in a page's text, outside of fences.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced || line.starts_with("    ") {
            continue;
        }
        let mut rest = line;
        while let Some(at) = rest.find("](") {
            rest = &rest[at + 2..];
            if let Some(end) = rest.find(')') {
                found.push(rest[..end].to_owned());
            }
        }
    }
    found
}

#[test]
fn every_link_between_pages_leads_somewhere() {
    let mut all = vec![root().join("README.md"), root().join("CHANGELOG.md"), root().join("store/README.md")];
    all.push(root().join("demo/README.md"));
    pages(&root().join("docs"), &mut all);
    let (mut dead, mut seen) = (Vec::new(), 0);
    for page in &all {
        for link in links(&fs::read_to_string(page).unwrap()) {
            if link.contains("://") {
                continue;
            }
            seen += 1;
            let target = link.split('#').next().unwrap();
            if !target.is_empty() && !page.parent().unwrap().join(target).exists() {
                dead.push(format!("{}: {link}", page.strip_prefix(root()).unwrap().display()));
            }
        }
    }
    assert!(seen > 10, "only {seen} links were found: the walk is broken");
    assert!(dead.is_empty(), "dead links:\n{}", dead.join("\n"));
}

#[test]
fn every_page_is_in_the_index() {
    let index = fs::read_to_string(root().join("docs/index.md")).unwrap();
    let mut all = Vec::new();
    pages(&root().join("docs"), &mut all);
    for page in all {
        let below = page.strip_prefix(root().join("docs")).unwrap().to_str().unwrap().to_owned();
        assert!(below == "index.md" || index.contains(&format!("({below})")), "docs/index.md does not name {below}");
    }
}
