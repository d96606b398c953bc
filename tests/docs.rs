//! The documentation is held to the program: the reference's tables are those of the kinds, links lead somewhere, and
//! the tutorial's files and commands run, with the output that it shows.
//!
//! `UPDATE_DOCS=1 cargo test --test docs` writes the generated parts anew.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use graftwerk::graph::Graph;
use graftwerk::kinds::{self, KeyType, Kind};

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

/// What the program says of a kind: a line and a table of its keys.
fn keys_of(kind: &dyn Kind) -> String {
    let about = kind.about();
    let (first, rest) = about.split_at(about.chars().next().map_or(0, char::len_utf8));
    let mut s = format!("{}{rest}.\n\n", first.to_uppercase());
    let _ = write!(s, "| key | takes | needed | hashed | meaning |\n| --- | --- | --- | --- | --- |\n");
    for key in kind.keys() {
        let yes = |b: bool| if b { "yes" } else { "no" };
        let about = key.about.replace('|', "\\|");
        let (ty, needed, hashed) = (type_name(key.ty), yes(key.required), yes(key.hashed));
        let _ = writeln!(s, "| `{}` | {ty} | {needed} | {hashed} | {about} |", key.name);
    }
    s
}

const REFERENCE: &str = "docs/graph-reference.md";
const END: &str = "<!-- end of keys -->";

#[test]
fn the_reference_has_every_key_of_every_kind() {
    let path = root().join(REFERENCE);
    let text = fs::read_to_string(&path).unwrap();
    let mut wanted = text.clone();
    for kind in kinds::all() {
        let start = format!("<!-- keys of {} -->\n", kind.name());
        let keys = format!("\n{}\n", keys_of(*kind));
        match wanted.find(&start) {
            Some(at) => {
                let from = at + start.len();
                let to = from + wanted[from..].find(END).unwrap_or_else(|| panic!("{start} has no end"));
                wanted.replace_range(from..to, &keys);
            }
            None => wanted += &format!("\n### `{}`\n\n{start}{keys}{END}\n", kind.name()),
        }
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(path, wanted).unwrap();
    } else if text != wanted {
        panic!("{REFERENCE} is not what the program says; write it anew: UPDATE_DOCS=1 cargo test --test docs");
    }
}

#[test]
fn the_page_of_commands_is_what_the_program_says_of_itself() {
    let help = |args: &[&str]| {
        let done = Command::new(common::GRAFTWERK).args(args).env_remove("COLUMNS").output().unwrap();
        assert!(done.status.success());
        let text = String::from_utf8(done.stdout).unwrap();
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        lines.join("\n")
    };
    let all = help(&["--help"]);
    let names = all.lines().skip_while(|l| *l != "Commands:").skip(1).take_while(|l| !l.is_empty());
    let names: Vec<&str> = names.filter_map(|l| l.split_whitespace().next()).filter(|n| *n != "help").collect();
    assert!(names.contains(&"build") && names.len() > 5, "{names:?}");
    let mut chapters = format!("```text\n{all}\n```\n");
    for name in names {
        let text = help(&[name, "--help"]);
        // What every command takes stands above, once.
        let mut own = text.split("\n\nEverywhere:").next().unwrap().to_owned();
        if let Some((_, examples)) = text.split_once("\n\nExamples:\n") {
            own += &format!("\n\nExamples:\n{}", examples.trim_end());
        }
        let _ = write!(chapters, "\n## `{name}`\n\n```text\n{own}\n```\n");
    }
    let path = root().join("docs/commands.md");
    let page = fs::read_to_string(&path).unwrap();
    let intro = &page[..page.find("```text").unwrap_or(page.len())];
    let wanted = format!("{}\n\n{chapters}", intro.trim_end());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(path, wanted).unwrap();
    } else if page != wanted {
        panic!("docs/commands.md is not what the program says; write it anew: UPDATE_DOCS=1 cargo test --test docs");
    }
}

const SCHEMA: &str = "docs/graph.schema.json";

#[test]
fn the_schema_for_editors_is_what_the_program_prints() {
    let done = Command::new(common::GRAFTWERK).arg("schema").output().unwrap();
    let text = String::from_utf8(done.stdout).unwrap();
    let path = root().join(SCHEMA);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(path, text).unwrap();
    } else {
        assert_eq!(fs::read_to_string(path).unwrap(), text, "UPDATE_DOCS=1 cargo test --test docs writes it anew");
    }
}

#[test]
fn the_picture_of_the_demo_is_what_the_program_draws() {
    let project = common::Project::demo();
    project.build();
    // A check that no longer holds, and what it blocks; a quant that would run again.
    project.edit("graph.toml", "draft_head = true ", "draft_head = false");
    project.run(&["build", "check-a"]);
    project.edit(
        "graph.toml",
        "[node.quant-b]\nkind = \"quant\"",
        "[node.quant-b]\nplatform = \"sm_120\"\nkind = \"quant\"",
    );
    let drawn = project.run(&["graph", "--format", "svg"]).stdout;
    let path = root().join("docs/demo.svg");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(path, drawn).unwrap();
    } else {
        assert_eq!(fs::read_to_string(path).unwrap(), drawn, "UPDATE_DOCS=1 cargo test --test docs draws it anew");
    }
}

/// Whether the validator of the Python environment takes this graph.
fn valid_by_schema(graph: &str) -> bool {
    const CODE: &str = "import json, sys, tomllib, jsonschema\n\
        schema = json.load(open(sys.argv[1]))\n\
        jsonschema.Draft7Validator.check_schema(schema)\n\
        errors = list(jsonschema.Draft7Validator(schema).iter_errors(tomllib.load(sys.stdin.buffer)))\n\
        [print(e.json_path, e.message, file=sys.stderr) for e in errors]\n\
        sys.exit(2 if errors else 0)";
    let python = root().join("target/venv/bin/python");
    let mut child = Command::new(&python)
        .args(["-c", CODE])
        .arg(root().join(SCHEMA))
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{}: {e}: scripts/test makes it", python.display()));
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), graph.as_bytes()).unwrap();
    match child.wait().unwrap().code() {
        Some(0) => true,
        Some(2) => false,
        other => panic!("the validator ended with {other:?}"),
    }
}

#[test]
fn the_schema_takes_the_demo_and_refuses_wrong_keys() {
    let demo = fs::read_to_string(root().join("graph.toml")).unwrap();
    assert!(valid_by_schema(&demo));
    for (from, to) in [
        ("kind = \"graft\"", "kind = \"grafft\""),
        ("kind = \"graft\"", "kind = \"graft\"\ntensor = [\"x\"]"),
        ("[node.graft-a]", "[node.-a]"),
        ("checkpoint = ", "checkpont = "),
    ] {
        assert!(demo.contains(from), "{from}");
        assert!(!valid_by_schema(&demo.replacen(from, to, 1)), "{to} passes");
    }
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

// ---- The tutorial ----

/// A fenced block of a page: the words behind the fence, and its lines.
struct Block {
    info: String,
    line: usize,
    text: String,
}

fn blocks(text: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut open: Option<Block> = None;
    for (i, line) in text.lines().enumerate() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(info)) => open = Some(Block { info: info.to_owned(), line: i + 1, text: String::new() }),
            (Some(_), Some(_)) => found.extend(open.take()),
            (Some(b), None) => {
                b.text.push_str(line);
                b.text.push('\n');
            }
            (None, None) => {}
        }
    }
    found
}

/// A command of a console block, the output that it must give (standard error before standard output, as both go to
/// one pipe), and its exit code.
struct Example<'a> {
    command: &'a str,
    output: Vec<&'a str>,
    code: i32,
}

fn examples(block: &str) -> Vec<Example<'_>> {
    let mut found: Vec<Example<'_>> = Vec::new();
    for line in block.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            found.push(Example { command, output: Vec::new(), code: 0 });
        } else if let Some(code) = line.strip_prefix("? ") {
            found.last_mut().unwrap().code = code.parse().unwrap();
        } else {
            found.last_mut().expect("a block starts with a command").output.push(line);
        }
    }
    found
}

/// `[..]` stands for any text of a line.
fn line_matches(wanted: &str, found: &str) -> bool {
    let Some((before, after)) = wanted.split_once("[..]") else { return wanted == found };
    let Some(rest) = found.strip_prefix(before) else { return false };
    (0..=rest.len()).filter(|i| rest.is_char_boundary(*i)).any(|i| line_matches(after, &rest[i..]))
}

/// `...` stands for any lines.
fn lines_match(wanted: &[&str], found: &[&str]) -> bool {
    match wanted {
        [] => found.is_empty(),
        ["...", rest @ ..] => (0..=found.len()).any(|i| lines_match(rest, &found[i..])),
        [first, rest @ ..] => {
            found.split_first().is_some_and(|(f, left)| line_matches(first, f) && lines_match(rest, left))
        }
    }
}

// Runs every command of a page, and writes its files, in a folder with the demo's models.
fn run_page(name: &str) -> usize {
    let project = common::Project::new("");
    fs::remove_file(project.path("graph.toml")).unwrap();
    common::copy_tree(&root().join("demo"), &project.path("demo"));
    let bin = Path::new(common::GRAFTWERK).parent().unwrap();
    // Last, so that nothing of it stands before the machine's own programs.
    let tools = root().join("target/venv/bin");
    let path = format!("{}:{}:{}", bin.display(), std::env::var("PATH").unwrap(), tools.display());
    let page = fs::read_to_string(root().join("docs").join(name)).unwrap();
    let page_name = name;
    let mut ran = 0;
    for block in blocks(&page) {
        let (language, name) = block.info.split_once(' ').unwrap_or((&block.info, ""));
        if language != "console" {
            assert!(!name.is_empty(), "docs/{page_name}:{}: a block that is no file and no command", block.line);
            let before = name.strip_prefix('+').map(|n| (n, project.read(n)));
            let (name, text) = before.map_or((name, block.text.clone()), |(n, old)| (n, old + &block.text));
            project.write(name, text);
            continue;
        }
        for example in examples(&block.text) {
            ran += 1;
            let done = Command::new("sh")
                .args(["-c", &format!("exec 2>&1\n{}", example.command)])
                .current_dir(&project.dir)
                .env("PATH", &path)
                .output()
                .unwrap();
            let text = String::from_utf8(done.stdout).unwrap();
            // Which sources are hashed again depends on how long ago they were written.
            let told = |line: &&str| !line.starts_with("  hashed ");
            let found: Vec<&str> = text.lines().filter(told).collect();
            let wanted: Vec<&str> = example.output.iter().copied().filter(told).collect();
            let place = format!("docs/{page_name}:{}: $ {}", block.line, example.command);
            assert_eq!(done.status.code(), Some(example.code), "{place}\n{text}");
            assert!(lines_match(&wanted, &found), "{place}\nfound:\n{text}\nwanted:\n{}", wanted.join("\n"));
        }
    }
    ran
}

#[test]
fn the_tutorial_s_files_and_commands_run_with_the_output_that_it_shows() {
    let ran = run_page("tutorial.md");
    assert!(ran > 15, "only {ran} commands were found");
}

#[test]
fn the_commands_of_every_other_page_run_with_the_output_that_it_shows() {
    let mut all = Vec::new();
    pages(&root().join("docs"), &mut all);
    let mut ran = 0;
    for page in all {
        let name = page.strip_prefix(root().join("docs")).unwrap().to_str().unwrap().to_owned();
        if name != "tutorial.md" && fs::read_to_string(&page).unwrap().contains("\n```console") {
            ran += run_page(&name);
        }
    }
    assert!(ran > 10, "only {ran} commands were found");
}

/// The block with a stub for every source and check that it names and does not declare.
fn completed(block: &str) -> String {
    let table: toml::Table = block.parse().unwrap();
    let declared = |name: &str| ["source", "node"].iter().any(|t| table.get(*t).and_then(|t| t.get(name)).is_some());
    let (mut sources, mut checks) = (BTreeSet::new(), BTreeSet::new());
    for node in table.get("node").and_then(|n| n.as_table()).into_iter().flat_map(|t| t.values()) {
        let inputs = node.get("inputs").and_then(|i| i.as_table()).into_iter().flat_map(|t| t.values());
        sources.extend(inputs.filter_map(|i| i.as_str().or_else(|| i.get("node")?.as_str()).map(str::to_owned)));
        let gates = node.get("gate").and_then(|g| g.as_array()).into_iter().flatten();
        checks.extend(gates.filter_map(|g| g.as_str().map(str::to_owned)));
    }
    let mut text = block.to_owned();
    for name in sources.iter().filter(|n| !declared(n)) {
        let _ = write!(text, "[source.{name}]\nfolder = \"{name}\"\n");
    }
    for name in checks.iter().filter(|n| !declared(n)) {
        let first = sources.first().unwrap();
        let _ = write!(text, "[node.{name}]\nkind = \"check\"\ninputs.model = {first:?}\nfiles = \"*\"\n");
    }
    text
}

#[test]
fn every_example_of_the_reference_is_a_graph() {
    let page = fs::read_to_string(root().join(REFERENCE)).unwrap();
    let blocks = blocks(&page);
    assert!(blocks.len() > 5);
    for block in blocks {
        assert_eq!(block.info, "toml");
        if let Err(e) = Graph::parse("graph.toml", &completed(&block.text)) {
            panic!("{REFERENCE}:{}: {e}\n{}", block.line, completed(&block.text));
        }
    }
}

#[test]
fn the_graph_at_the_root_is_one() {
    let text = fs::read_to_string(root().join("graph.toml")).unwrap();
    if let Err(e) = Graph::parse("graph.toml", &text) {
        panic!("{e}");
    }
}

#[test]
fn wildcards_match_what_they_stand_for_and_no_more() {
    assert!(line_matches("built in [..] s", "built in 0.1 s") && !line_matches("built in [..] s", "built in 0.1 ms!"));
    assert!(lines_match(&["...", "b"], &["a", "a", "b"]) && !lines_match(&["...", "b"], &["a", "b", "c"]));
    assert!(!lines_match(&[], &["a"]) && lines_match(&["...", "a", "..."], &["a"]));
}

fn keys(value: &serde_json::Value) -> BTreeSet<String> {
    value.as_object().unwrap_or_else(|| panic!("no object: {value}")).keys().cloned().collect()
}

#[test]
fn the_page_of_json_shows_the_keys_that_the_program_prints() {
    let page = fs::read_to_string(root().join("docs/exit-codes-and-json.md")).unwrap();
    // The first block of JSON in a command's chapter.
    let shown = |command: &str| -> serde_json::Value {
        let chapter = page.split(&format!("### `{command}`")).nth(1).unwrap_or_else(|| panic!("no chapter {command}"));
        serde_json::from_str(&blocks(chapter).iter().find(|b| b.info == "json").unwrap().text).unwrap()
    };
    let (build, plan, status, graph) = (shown("build"), shown("plan"), shown("status"), shown("graph"));
    let doctor = shown("doctor");
    let node = "[source]\nm = { checkpoint = \"demo/finetune\" }\n[node.a]\nkind = \"edit\"\ninputs.model = \"m\"\n";
    let project = common::Project::new(&format!("{node}drop = \"*.jinja\"\n"));
    common::copy_tree(&root().join("demo"), &project.path("demo"));

    let built = project.build().json();
    assert_eq!(keys(&build), keys(&built));
    assert_eq!(keys(&build["steps"][0]), keys(&built["steps"][0]));
    assert_eq!(keys(&build["steps"][0]["reasons"][0]), keys(&built["steps"][0]["reasons"][0]));
    project.write("graph.toml", format!("{node}drop = \"tokenizer*\"\n"));
    let planned = project.run(&["plan", "--json"]).json();
    assert_eq!(keys(&plan), keys(&planned));
    assert_eq!(keys(&plan["steps"][0]), keys(&planned["steps"][0]));
    assert_eq!(keys(&plan["steps"][0]["reasons"][0]), keys(&planned["steps"][0]["reasons"][0]));
    let stands = project.run(&["status", "--json"]).json();
    assert_eq!(keys(&status), keys(&stands));
    assert_eq!(keys(&status["nodes"][0]), keys(&stands["nodes"][0]));
    let drawn = project.run(&["graph", "--json"]).json();
    assert_eq!(keys(&graph), keys(&drawn));
    let looked = project.run(&["doctor", "--json"]).json();
    assert_eq!(keys(&doctor), keys(&looked));
    let lacks = looked["findings"].as_array().unwrap().iter().find(|f| f["health"] != "works");
    assert!(lacks.is_none_or(|f| keys(f) == keys(&doctor["findings"][0])));
    assert_eq!(keys(&graph["nodes"][0]), keys(&drawn["nodes"][0]));
    assert_eq!(keys(&graph["edges"][0]), keys(&drawn["edges"][0]));
    project.build();
    let row = |command: &str| page.lines().find(|l| l.starts_with(&format!("| `{command}"))).unwrap().to_owned();
    for args in [
        vec!["why", "a"],
        vec!["show", "a"],
        vec!["log", "a"],
        vec!["path", "a"],
        vec!["update"],
        vec!["pin", "a"],
        vec!["verify"],
        vec!["repair"],
    ] {
        let answer = project.run(&[args.as_slice(), &["--json"]].concat()).json();
        for key in keys(&answer) {
            assert!(row(args[0]).contains(&format!("`{key}`")), "the row of {} lacks `{key}`", args[0]);
        }
    }
    let rows = |command: &str| page.lines().filter(|l| l.starts_with(&format!("| `{command}"))).collect::<String>();
    for args in [vec!["export", "a", "copy"], vec!["export", "a", "--archive", "file"], vec!["import", "file"]] {
        let ran = project.run(&[args.as_slice(), &["--json"]].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        for key in keys(&ran.json()) {
            assert!(rows(args[0]).contains(&format!("`{key}`")), "no row of {} has `{key}`", args[0]);
        }
    }
}

#[test]
fn the_page_of_the_store_names_every_folder_and_shows_every_format() {
    let page = fs::read_to_string(root().join("docs/store-format.md")).unwrap();
    let project = common::Project::demo();
    project.build();
    for entry in fs::read_dir(project.path("store")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(page.contains(&format!("\n      {name}")), "docs/store-format.md does not name store/{name}");
    }
    let first_file = |folder: &str| {
        let mut at = project.path("store").join(folder);
        while at.is_dir() {
            let mut below: Vec<PathBuf> = fs::read_dir(&at).unwrap().map(|e| e.unwrap().path()).collect();
            below.sort();
            at = below.remove(0);
        }
        fs::read_to_string(at).unwrap()
    };
    for folder in ["VERSION", "trees", "tensors", "recipes"] {
        let head = first_file(folder).lines().next().unwrap().to_owned();
        assert!(page.contains(&head), "docs/store-format.md does not show {head:?}");
    }
    let shown = blocks(&page).into_iter().find(|b| b.info == "json").unwrap();
    let record: serde_json::Value = serde_json::from_str(&first_file("runs")).unwrap();
    assert_eq!(keys(&serde_json::from_str(&shown.text).unwrap()), keys(&record));
}

#[test]
fn every_message_of_the_troubleshooting_tables_is_one_that_the_program_says() {
    fn read(dir: &Path, out: &mut String) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                read(&path, out);
            } else {
                out.push_str(&fs::read_to_string(&path).unwrap());
            }
        }
    }
    let mut source = String::new();
    read(&root().join("src"), &mut source);
    let page = fs::read_to_string(root().join("docs/troubleshooting.md")).unwrap();
    let messages: Vec<&str> =
        page.lines().filter_map(|l| l.strip_prefix("| `")?.split_once('`')).map(|p| p.0).collect();
    assert!(messages.len() > 10, "{messages:?}");
    for message in messages {
        for part in message.split('…').map(|p| p.trim_matches([' ', '(', ')'])).filter(|p| p.len() > 4) {
            assert!(source.contains(part), "{message:?}: the program never says {part:?}");
        }
    }
}

#[test]
fn the_lock_at_the_root_is_that_of_the_demo() {
    let project = common::Project::demo();
    let lock = fs::read_to_string(root().join("graph.lock")).unwrap();
    project.write("graph.lock", &lock);
    let ran = project.run(&["plan", "--locked"]);
    assert_eq!(ran.code, Some(0), "write it anew with `graftwerk update`: {}", ran.stderr);
    project.build();
    assert_eq!(project.read("graph.lock"), lock, "a build that changes no source leaves the lock alone");
}
