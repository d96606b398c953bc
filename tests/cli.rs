//! The command line from outside: what goes to which stream, what it exits with, and how mistakes are shown.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::io::Read as _;
use std::process::Stdio;

use common::Project;

const GRAPH: &str = r#"
[source]
notes = { folder = "notes" }

[node.slim]
kind = "edit"
inputs.model = "notes"
drop = ["b.txt"]

[node.slimmer]
kind = "edit"
inputs.model = "slim"
drop = ["c.txt"]
"#;

fn project() -> Project {
    let p = Project::new(GRAPH);
    for name in ["a", "b", "c"] {
        p.write(&format!("notes/{name}.txt"), name);
    }
    p
}

#[test]
fn json_is_one_object_on_stdout_and_all_else_is_on_stderr() {
    let p = project();
    let commands: [&[&str]; 14] = [
        &["plan"],
        &["build"],
        &["status"],
        &["why", "slim"],
        &["show", "slim"],
        &["log", "slim"],
        &["path", "slim"],
        &["update"],
        &["pin", "slim"],
        &["graph"],
        &["doctor"],
        &["gc"],
        &["gc", "--explain", "slim"],
        &["roots"],
    ];
    for args in commands {
        let ran = p.run(&[args, &["--json"]].concat());
        assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
        assert!(ran.json().is_object(), "{args:?}");
        assert_eq!(ran.stdout.lines().count(), 1, "{args:?}");
    }
    let status = p.run(&["status", "--json"]).json();
    for key in ["node", "kind", "state", "recipe", "tree", "path"] {
        assert!(status["nodes"][0].get(key).is_some(), "{key} in {status:#}");
    }
    let step = p.run(&["build", "--json"]).step("slim");
    for key in ["node", "kind", "action", "recipe", "tree", "reasons", "seconds"] {
        assert!(step.get(key).is_some(), "{key} in {step:#}");
    }
}

#[test]
fn a_wrong_graph_is_shown_with_a_caret_and_exits_2() {
    let p = project();
    p.edit("graph.toml", "inputs.model = \"slim\"", "inputs.model = \"slm\"");
    let ran = p.run(&["build"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    insta::assert_snapshot!(ran.stderr, @r#"
    error: there is no node or source `slm`
      --> graph.toml:12:16
       |
    12 | inputs.model = "slm"
       |                ^^^^^ unknown
       |
       = hint: did you mean `slim`?
    "#);
    let ran = p.run(&["build", "--json"]);
    assert_eq!(ran.code, Some(2));
    let json = ran.json();
    assert_eq!(json["ok"], false);
    assert_eq!(json["diagnostics"][0]["line"], 12);
    assert_eq!(json["diagnostics"][0]["column"], 16);
}

#[test]
fn a_name_that_is_no_node_exits_2_with_near_names() {
    let p = project();
    let ran = p.run(&["build", "slmi", "notes"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    insta::assert_snapshot!(ran.stderr, @r#"
    error: there is no node "slmi"
     hint: did you mean `slim`?
    error: `notes` is a source: there is nothing to build
     hint: `slim` takes it: name a node
    "#);
    assert!(!p.path("store/roots").is_dir() || std::fs::read_dir(p.path("store/roots")).unwrap().count() == 0);
}

#[test]
fn usage_errors_exit_2_and_a_missing_graph_says_where_it_was_looked_for() {
    let p = project();
    for args in [
        &["buidl"][..],
        &["build", "-j", "0"],
        &["path"],
        &[],
        &["-q", "-v", "status"],
        &["--graph", "no.toml", "plan"],
    ] {
        let ran = p.run(args);
        assert_eq!(ran.code, Some(2), "{args:?}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{args:?}");
        assert!(!ran.stderr.is_empty(), "{args:?}");
    }
    assert!(p.run(&["--graph", "no.toml", "plan"]).stderr.contains("no.toml"));
    let help = p.run(&["--help"]);
    assert_eq!(help.code, Some(0));
    assert!(help.stdout.contains("130  interrupted"), "{}", help.stdout);
}

#[test]
fn what_is_not_built_exits_1_and_says_what_to_do() {
    let p = project();
    p.run(&["plan"]);
    let ran = p.run(&["path", "slim"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
    assert!(ran.stderr.contains("hint: `graftwerk build slim`"), "{}", ran.stderr);
    std::fs::remove_dir_all(p.path("notes")).unwrap();
    let ran = p.run(&["build", "--json"]);
    assert_eq!(ran.code, Some(1), "a missing source");
    assert_eq!(ran.json()["ok"], false);
}

#[test]
fn a_build_tells_what_it_does_and_a_second_one_that_there_is_nothing_to_do() {
    let p = project();
    let first = p.run(&["build"]);
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    assert!(first.stderr.contains("building slim: never built\n"), "{}", first.stderr);
    assert!(first.stdout.starts_with("2 steps: 2 built, in "), "{}", first.stdout);
    assert_eq!(p.run(&["build"]).stdout, "nothing to do: 2 steps are fresh\n");
    let quiet = p.run(&["-q", "build"]);
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
    p.edit("graph.toml", "drop = [\"b.txt\"]", "drop = [\"c.txt\"]");
    let plan = p.run(&["plan"]);
    insta::assert_snapshot!(plan.stdout, @r#"
    run    slim     edit  param drop: ["b.txt"] → ["c.txt"]
    await  slimmer  edit  waits for slim
    "#);
    assert_eq!(plan.code, Some(0));
}

#[test]
fn a_path_can_be_opened_from_anywhere() {
    let p = project();
    p.build();
    let from = |args: &[&str]| {
        let mut c = p.command(args);
        let out = c.current_dir("/").output().unwrap();
        assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    let dir = p.dir.to_str().unwrap();
    let path = from(&["-C", dir, "path", "slim"]);
    assert_eq!(path, from(&["path", "slim", "--graph", &format!("{dir}/graph.toml")]));
    assert_eq!(std::fs::read_to_string(format!("{}/c.txt", path.trim_end())).unwrap(), "c");
}

#[test]
fn there_are_no_colours_and_no_bars_in_a_pipe() {
    let p = project();
    for args in [&["build"][..], &["plan"], &["status"], &["show", "slim"], &["buidl"], &["build", "nod"]] {
        let ran = p.run(args);
        assert!(!(ran.stdout + &ran.stderr).contains(['\u{1b}', '\r']), "{args:?}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let p = project();
    p.build();
    let mut child = p.command(&["show", "slim"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
}

#[test]
fn a_damaged_lock_is_told_with_its_place_and_never_overwritten() {
    let p = project();
    p.build();
    let damaged = p.read("graph.lock").replace("version = 1", "version = ");
    p.write("graph.lock", &damaged);
    let ran = p.run(&["build"]);
    assert!(matches!(ran.code, Some(2 | 3)), "{:?}", ran.code);
    assert!(ran.stderr.contains("graph.lock:2:"), "{}", ran.stderr);
    assert_eq!(p.read("graph.lock"), damaged);
}

#[test]
fn locked_refuses_a_source_that_drifted_and_update_takes_it() {
    let p = project();
    p.build();
    let lock = p.read("graph.lock");
    assert_eq!(p.run(&["build", "--locked"]).code, Some(0));
    p.write("notes/a.txt", "other");
    let ran = p.run(&["build", "--locked"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("notes") && ran.stderr.contains("hint: "), "{}", ran.stderr);
    assert_eq!(p.read("graph.lock"), lock);
    assert_eq!(p.run(&["update", "nots"]).code, Some(2));
    let ran = p.run(&["update", "notes"]);
    assert!(ran.stdout.contains("→") && ran.stdout.ends_with("graph.lock was rewritten\n"), "{}", ran.stdout);
    assert!(p.run(&["update"]).stdout.ends_with("graph.lock stays as it is\n"));
    assert_eq!(p.run(&["build", "--locked"]).code, Some(0));
}

#[test]
fn a_graph_is_drawn_with_the_state_of_each_node_in_four_languages() {
    let p = project();
    p.run(&["build", "slim"]);
    let json = p.run(&["graph", "--format", "json"]).json();
    let state = |name: &str| {
        let nodes = json["nodes"].as_array().unwrap();
        nodes.iter().find(|n| n["name"] == name).unwrap()["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(["notes", "slim", "slimmer"].map(state), ["source", "fresh", "absent"]);
    assert_eq!(json["edges"][1], serde_json::json!({"from": "slim", "to": "slimmer", "what": "input"}));
    for (format, says) in [("dot", "slim\\nedit, fresh"), ("mermaid", "edit, absent"), ("svg", "edit, fresh")] {
        let ran = p.run(&["graph", "--format", format]);
        assert!(ran.code == Some(0) && ran.stdout.contains(says), "{format}: {}", ran.stdout);
    }
    let part = p.run(&["graph", "slim", "--format", "json"]).json();
    assert_eq!(part["nodes"].as_array().unwrap().len(), 2);
}

#[test]
fn patterns_select_nodes_and_status_shows_only_those() {
    let p = project();
    let nodes = |args: &[&str]| -> Vec<String> {
        let json = p.run(&[args, &["--json"]].concat()).json();
        let list = json["nodes"].as_array().or(json["steps"].as_array()).unwrap().clone();
        list.iter().map(|n| n["node"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(nodes(&["status", "slimm*"]), ["slimmer"]);
    assert_eq!(nodes(&["status", "slim+"]), ["slim", "slimmer"]);
    assert_eq!(nodes(&["plan", "sl?m"]), ["slim"]);
    let ran = p.run(&["build", "slimer*"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("did you mean `slimmer` or `slim`?"), "{}", ran.stderr);
}

#[test]
fn every_shell_gets_a_completion_script_that_knows_the_commands() {
    let p = project();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = p.run(&["completions", shell]);
        assert!(ran.code == Some(0) && ran.stdout.contains("status"), "{shell}: {}", ran.stderr);
    }
}

#[test]
fn a_doctor_looks_at_a_machine_without_a_graph_and_makes_nothing() {
    let p = project();
    std::fs::remove_file(p.path("graph.toml")).unwrap();
    let before = common::files(&p.dir);
    let ran = p.run(&["doctor"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for line in ["lacks  graph", "graftwerk init", "works  links", "works  clock", "works  space", "  compose "] {
        assert!(ran.stdout.contains(line), "{line} in\n{}", ran.stdout);
    }
    assert_eq!(common::files(&p.dir), before);
    p.write("graph.toml", GRAPH);
    std::fs::rename(p.path("notes"), p.path("away")).unwrap();
    let ran = p.run(&["doctor"]);
    assert!(ran.stdout.contains("lacks  sources      not there: notes at "), "{}", ran.stdout);
    p.write("graph.toml", "[node.x]\n");
    let ran = p.run(&["doctor", "--json"]);
    assert_eq!((ran.code, ran.json()["ok"].as_bool()), (Some(1), Some(false)));
}

#[test]
fn a_plan_says_how_long_a_step_took_last_time() {
    let p = project();
    let never = p.run(&["plan", "--json"]).step("slim");
    assert!(never.get("last_seconds").is_none(), "{never}");
    p.build();
    let took = p.run(&["why", "slim", "--json"]).json()["last"]["seconds"].clone();
    p.edit("graph.toml", "b.txt", "a.txt");
    let plan = p.run(&["plan", "--json"]);
    assert_eq!(plan.step("slim")["last_seconds"], took);
    assert!(plan.step("slimmer")["last_seconds"].is_number());
}

#[test]
fn help_fits_eighty_columns_where_the_terminal_has_so_many_and_a_hundred_in_a_pipe() {
    let p = project();
    let all = p.run(&["--help"]).stdout;
    let names: Vec<&str> =
        all.lines().skip_while(|l| *l != "Commands:").skip(1).take_while(|l| !l.is_empty()).collect();
    for name in names.iter().filter_map(|l| l.split_whitespace().next()).filter(|n| *n != "help").chain(["-h"]) {
        for (columns, most) in [(Some("80"), 80), (None, 100)] {
            let args: &[&str] = if name == "-h" { &["-h"] } else { &[name, "--help"] };
            let mut command = p.command(args);
            match columns {
                Some(c) => command.env("COLUMNS", c),
                None => command.env_remove("COLUMNS"),
            };
            let out = command.output().unwrap();
            let text = String::from_utf8(out.stdout).unwrap();
            for line in text.lines() {
                assert!(line.chars().count() <= most, "{name} at {columns:?}: {line}");
            }
        }
    }
}
