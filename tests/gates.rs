//! A verdict that is false: recorded, told each time, and in the way of what names the check as its gate. An
//! expectation that does not hold: told each time, of a new result and of one that is there.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs;

use common::{Project, copy_tree, repository};

fn project(graph: &str) -> Project {
    let p = Project::new(graph);
    copy_tree(&repository().join("demo/finetune"), &p.path("finetune"));
    p
}

const GATED: &str = r#"
[source.m]
checkpoint = "finetune"

[node.sound]
kind = "check"
inputs.model = "m"
tensors = { count = 89 }

[node.slim]
kind = "edit"
inputs.model = "m"
drop = "*.jinja"
gate = ["sound"]
"#;

#[test]
fn a_failed_check_is_told_each_time_and_blocks_what_it_gates_also_where_that_was_built_before() {
    let p = project(GATED);
    assert_eq!(p.built(), ["slim", "sound"]);
    let passed = fs::read_link(p.path("out/slim")).unwrap();

    p.edit("graph.toml", "count = 89", "count = 90");
    let plan = p.run(&["plan", "--json"]);
    assert_eq!(plan.step("sound")["reasons"][0]["text"], "param tensors: {\"count\" = 89} → {\"count\" = 90}");
    assert_eq!((&plan.step("slim")["action"], &plan.step("slim")["on"][0]), (&"await".into(), &"sound".into()));
    let mut reports = Vec::new();
    for _ in 0..2 {
        let build = p.run(&["build", "--json"]);
        assert_eq!(build.code, Some(1), "{}", build.stderr);
        assert_eq!(build.json()["ok"], false);
        let (sound, slim) = (build.step("sound"), build.step("slim"));
        assert_eq!((&sound["action"], &sound["verdict"]), (&"failed".into(), &false.into()));
        assert_eq!((&slim["action"], &slim["error"]), (&"blocked".into(), &"the gate sound did not pass".into()));
        assert!(build.stderr.contains("failed sound"), "{}", build.stderr);
        reports.push(sound["tree"].clone());
    }
    assert!(reports[0].is_string() && reports[0] == reports[1], "{reports:?}");
    let recipes = fs::read_dir(p.path("store/runs")).unwrap();
    assert_eq!(recipes.map(|r| fs::read_dir(r.unwrap().path()).unwrap().count()).sum::<usize>(), 3);
    assert_eq!(fs::read_link(p.path("out/slim")).unwrap(), passed);

    let plan = p.run(&["plan", "--json"]);
    assert_eq!((&plan.step("sound")["action"], &plan.step("sound")["verdict"]), (&"fresh".into(), &false.into()));
    assert_eq!((&plan.step("slim")["action"], &plan.step("slim")["on"][0]), (&"blocked".into(), &"sound".into()));
    let path = p.run(&["path", "slim"]);
    assert_eq!((path.code, path.stdout.as_str()), (Some(1), ""));
    assert!(path.stderr.contains("slim is blocked by sound"), "{}", path.stderr);
    assert!(p.run(&["log", "sound"]).stdout.contains("89"), "the log says what was found");
    assert!(p.run(&["why", "sound"]).stdout.starts_with("sound does not hold"));

    p.edit("graph.toml", "count = 90", "count = 89");
    assert!(p.built().is_empty());
}

#[test]
fn an_expectation_is_asserted_of_a_result_that_is_there_already() {
    let graph = r#"
[source]
base = { checkpoint = "base" }
finetune = { checkpoint = "finetune" }

[node.graft]
kind = "graft"
inputs = { into = "finetune", from = "base" }
tensors = ["mtp.*"]
expect = { count = 15, dtype = "BF16" }
"#;
    let p = project(graph);
    copy_tree(&repository().join("demo/base"), &p.path("base"));
    assert_eq!(p.built(), ["graft"]);
    for (from, to, error) in [
        ("count = 15", "count = 14", "expect.count is 14, but `tensors` takes 15"),
        ("\"BF16\"", "\"F32\"", "expect.dtype is F32, but"),
    ] {
        p.edit("graph.toml", from, to);
        let build = p.run(&["build", "--json"]);
        assert_eq!(build.code, Some(1));
        let step = build.step("graft");
        assert_eq!(step["action"], "failed");
        assert!(step["error"].as_str().unwrap().starts_with(error), "{step:#}");
        p.edit("graph.toml", to, from);
    }
    assert!(p.built().is_empty());
}

#[test]
fn a_plan_names_the_gate_that_has_to_run_again() {
    let p = Project::demo();
    p.build();
    let report = p.node_path("check-a").join("report.json");
    let digest = graftwerk::digest::Digest::of(&std::fs::read(report).unwrap()).hex();
    std::fs::remove_file(p.path(&format!("store/blobs/{}/{}", &digest[..2], &digest[2..]))).unwrap();
    let plan = p.run(&["plan", "--json"]);
    assert_eq!(plan.step("check-a")["action"], "run");
    let seat = plan.step("seat-a");
    assert_eq!((seat["action"].as_str(), seat["on"].clone()), (Some("await"), serde_json::json!(["check-a"])));
}
