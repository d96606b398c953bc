//! What is said to whoever asks for something that is not there, or in the wrong place.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Project, files};

const GRAPH: &str = r#"
[source]
notes = { folder = "notes" }
other = { folder = "notes" }

[node.slim]
kind = "edit"
inputs.model = "notes"
drop = ["b.txt"]

[node.thin]
kind = "edit"
inputs.model = "notes"
set."c.json" = { "/nn" = 2 }
"#;

fn project() -> Project {
    let p = Project::new(GRAPH);
    p.write("notes/b.txt", "b");
    p.write("notes/c.json", "{\"n\": 1}");
    p
}

/// What a command says on stderr, held to its exit code.
fn told(p: &Project, args: &[&str], code: i32) -> String {
    let ran = p.run(args);
    assert_eq!(ran.code, Some(code), "{args:?}: {}{}", ran.stdout, ran.stderr);
    ran.stderr
}

#[test]
fn a_name_of_the_other_sort_is_told_what_it_is_and_what_takes_it() {
    let p = project();
    assert_eq!(
        told(&p, &["update", "slim"], 2),
        "error: `slim` is a node, and `update` resolves sources\n hint: `graftwerk build slim` builds it from the sources as they are now; of its sources, name `notes`\n"
    );
    assert!(told(&p, &["update", "nots"], 2).contains("did you mean `notes`?"));
    assert!(told(&p, &["build", "notes"], 2).contains("hint: `slim`, `thin` take it: name a node\n"));
    assert!(told(&p, &["build", "other"], 2).contains("hint: no node takes it\n"));
}

#[test]
fn a_question_makes_no_store_and_says_that_there_is_none() {
    let p = project();
    let before = files(&p.dir);
    let none = format!("there is no store yet at {}", p.path("store").display());
    for args in [
        &["path", "slim"][..],
        &["why", "slim"],
        &["show", "slim"],
        &["log", "slim"],
        &["export", "slim", "copy"],
        &["export", "slim", "--archive", "a.tar.zst"],
        &["pin", "slim"],
        &["gc"],
        &["roots"],
        &["verify"],
    ] {
        let said = told(&p, args, 1);
        assert!(
            said.contains(&none) && said.contains("hint: the first `graftwerk build` makes it"),
            "{args:?}: {said}"
        );
        assert_eq!(files(&p.dir), before, "{args:?}");
        assert!(!p.path("store").exists(), "{args:?}");
    }
    let status = p.run(&["status"]);
    assert_eq!((status.code, status.stdout.as_str()), (Some(0), "absent  slim  edit\nabsent  thin  edit\n"));
    assert!(status.stderr.contains(&format!("notice {none}: nothing is built\n")), "{}", status.stderr);
    let drawn = p.run(&["graph", "--format", "json"]).json();
    assert_eq!(drawn["nodes"][2]["state"], "absent", "{drawn:#}");
    assert_eq!(p.run(&["status", "slmi"]).code, Some(2));
    assert!(!p.path("store").exists());
    p.run(&["build", "slim"]);
    assert_eq!(p.run(&["path", "slim"]).code, Some(0));
    assert!(told(&p, &["path", "slim", "--store", "elsewhere"], 1).contains("elsewhere"));
    assert!(!p.path("elsewhere").exists());
}

#[test]
fn a_graph_without_a_node_is_told_where_to_begin() {
    let p = Project::new("");
    for args in [["build"], ["plan"], ["status"]] {
        let said = told(&p, &args, 0);
        assert!(
            said.contains("graph.toml names no node: there is nothing to build\n    hint: `graftwerk init`"),
            "{said}"
        );
    }
}

#[test]
fn what_is_no_archive_is_told_from_one_that_is_not_there_and_from_a_folder() {
    let p = project();
    assert!(told(&p, &["import", "nope"], 2).contains("hint: name a file that `graftwerk export NODE --archive FILE`"));
    let said = told(&p, &["import", "graph.toml"], 2);
    assert!(
        said.starts_with(
            "error: the start of the archive: this is no archive of graftwerk\n hint: an archive is a file that"
        ),
        "{said}"
    );
    assert!(told(&p, &["import", "notes"], 1).contains("hint: a folder is taken in by a source of graph.toml"));
}

#[test]
fn a_number_of_steps_and_a_place_of_the_store_that_cannot_be_say_so() {
    let p = project();
    assert!(told(&p, &["build", "-j", "0"], 2).contains("at least one step must run"));
    assert!(told(&p, &["build", "-j", "many"], 2).contains("\"many\" is no number of steps"));
    let said = told(&p, &["--store", "/proc/x", "build"], 1);
    assert!(said.contains("hint: nobody can make folders there: pass --store DIR"), "{said}");
}

#[test]
fn a_pointer_at_the_top_level_is_not_called_by_an_empty_name() {
    let p = project();
    p.edit("graph.toml", "\"/nn\" = 2", "\"/nn/x\" = 2");
    let said = told(&p, &["build", "thin"], 1);
    assert!(said.contains("the top level has no \"nn\""), "{said}");
}

#[test]
fn an_input_under_a_mistyped_alias_is_found() {
    for (kind, more) in [
        ("edit", "drop = [\"b.txt\"]"),
        ("check", "files = [\"b.txt\"]"),
        ("serve", "image = \"x\"\nname = \"m\"\nargs = []"),
        ("quant", "method = \"nvfp4a16\""),
    ] {
        let p = Project::new(&format!(
            "[source]\nnotes = {{ folder = \"notes\" }}\n[node.n]\nkind = \"{kind}\"\ninputs.modle = \"notes\"\n{more}\n"
        ));
        let said = told(&p, &["plan"], 2);
        assert!(said.contains("did you mean `inputs.model` by `inputs.modle`?"), "{kind}: {said}");
    }
}

#[test]
fn why_a_file_will_be_hashed_once_more_is_said() {
    let p = project();
    let said = told(&p, &["plan"], 0);
    assert!(said.contains("  hashed notes 9 B; written a moment ago, so it will be hashed once more\n"), "{said}");
}

#[test]
fn a_verify_that_finds_all_right_does_not_list_what_gc_freed() {
    let p = project();
    for drop in ["b.txt", "c.json"] {
        p.write("graph.toml", GRAPH.split("[node.thin]").next().unwrap().replace("b.txt", drop));
        p.write("notes/new.txt", drop);
        p.build();
    }
    p.run(&["gc", "--keep", "1"]);
    let text = p.run(&["verify"]);
    assert_eq!(text.code, Some(0), "{}", text.stdout);
    if p.run(&["verify", "--json"]).json()["collected"].as_array().is_some_and(|c| !c.is_empty()) {
        assert!(
            text.stdout.starts_with("1 tree whose bytes gc freed: -v names them\nall is right: "),
            "{}",
            text.stdout
        );
        assert!(p.run(&["verify", "-v"]).stdout.starts_with("collected\n  "), "{}", text.stdout);
    } else {
        panic!("gc freed nothing: {}", text.stdout);
    }
}
