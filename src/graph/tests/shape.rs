//! What a right graph becomes, and what does not change it.

use super::{graph, parse};
use crate::canon::Value;
use crate::digest::{BlobId, Digest};
use crate::graph::filter::{Excludes, Filter};
use crate::graph::{Name, Ref, SourceKind, select};
use crate::model::path::RelPath;
use crate::model::tree::{Entry, Tree};

const LINEAGE: &str = r#"
store = "../store"
[source]
base     = { checkpoint = "demo/base" }
finetune = { checkpoint = "demo/finetune", exclude = ["*.log"], about = "ours" }
calib    = { rows = "demo/calib.jsonl" }
pylib    = { folder = "/usr/lib/python3.11", at = "/usr/lib/python3.11" }

[node.graft-a]
kind = "graft"
inputs.into = { node = "finetune", uses = ["@weights", "config.json"] }
inputs.from = { node = "base", uses = ["@weights"] }
tensors = ["mtp.*"]
expect = { count = 15, dtype = "BF16" }

[node.quant-a]
kind = "quant"
inputs.model = "graft-a"
method = "nvfp4a16"
platform = "sm_120"

[node.check-a]
kind = "check"
inputs = { model = "quant-a", was = "graft-a", calib = "calib" }

[node.seat-a]
kind = "run"
inputs = { model = "quant-a", lib = "pylib", lib2 = { node = "pylib", at = "/opt/lib" } }
gate = ["check-a"]
any = [1, 1.0, "1", true, 1979-05-27 07:32:00Z, { b = -0.0, a = inf }]
"#;

#[test]
fn a_graph_is_read_with_its_types_and_in_an_order_that_works() {
    let g = graph(LINEAGE);
    assert_eq!(g.store.as_deref(), Some("../store"));
    let finetune = g.source("finetune").unwrap();
    assert_eq!((finetune.kind, finetune.path.as_str()), (SourceKind::Checkpoint, "demo/finetune"));
    let graft = g.node("graft-a").unwrap();
    assert_eq!(graft.inputs["into"].from, Ref::Source(Name::new("finetune").unwrap()));
    assert_eq!(graft.inputs["into"].uses.as_deref().unwrap(), ["@weights", "config.json"]);
    assert_eq!(graft.params["expect"].to_canon(), r#"{"count" = 15, "dtype" = "BF16"}"#);
    let seat = g.node("seat-a").unwrap();
    insta::assert_snapshot!(seat.params["any"].to_canon(), @r#"[1, 1.0, "1", true, date "1979-05-27T07:32:00Z", {"a" = inf, "b" = -0.0}]"#);
    assert_eq!(seat.inputs["lib"].at.as_deref(), Some("/usr/lib/python3.11"), "a source's own place holds");
    assert_eq!(seat.inputs["lib2"].at.as_deref(), Some("/opt/lib"), "an input's place goes before it");
    assert_eq!(seat.gates.iter().map(Name::as_str).collect::<Vec<_>>(), ["check-a"]);
    let order: Vec<&str> = g.order.iter().map(Name::as_str).collect();
    assert_eq!(order, ["graft-a", "quant-a", "check-a", "seat-a"]);
    assert_eq!(g.node("quant-a").unwrap().platform.as_deref(), Some("sm_120"));
    assert_eq!(g.locate(graft.span.start), (9, 7));
    assert_eq!(g.locate(graft.span_of("tensors[0]").start), (13, 11));
}

/// Everything of a graph but its places.
fn content(text: &str) -> String {
    let g = graph(text);
    let mut s = format!("{:?} {:?}\n", g.order, g.store);
    for source in g.sources.values() {
        let (name, kind, path) = (&source.name, source.kind, &source.path);
        s.push_str(&format!("{name} {kind} {path} {:?} {:?}\n", source.exclude, source.at));
    }
    for node in g.nodes.values() {
        let params = Value::Map(node.params.clone()).to_canon();
        s.push_str(&format!("{} {} {params} {:?} {:?}\n", node.name, node.kind.name(), node.gates, node.platform));
        for (alias, i) in &node.inputs {
            s.push_str(&format!("  {alias} {:?} {:?} {:?}\n", i.from, i.uses, i.at));
        }
    }
    s
}

#[test]
fn comments_order_and_formatting_change_nothing() {
    let before = content(LINEAGE);
    let (head, rest) = LINEAGE.split_once("[source]").unwrap();
    let mut tables: Vec<&str> = rest.split("\n[").collect();
    tables.reverse();
    let turned = format!("{head}[{}\n[source]{}", tables[..tables.len() - 1].join("\n["), tables[tables.len() - 1]);
    assert_eq!(content(&turned), before);
    let spread = LINEAGE.replace('\n', " # a comment\r\n\r\n").replace("\n kind", "\nkind");
    assert_eq!(content(&spread), before);
    let other = LINEAGE
        .replace("kind = \"quant\"", "'kind' = '''quant'''")
        .replace("expect = { count = 15, dtype = \"BF16\" }", "expect.dtype = 'BF16'\nexpect.count = 0x0F");
    assert_eq!(content(&other), before);
    assert_eq!(content(&format!("\u{feff}{LINEAGE}")), before);
}

#[test]
fn a_renamed_node_keeps_its_parameters_and_aliases() {
    let (before, after) = (graph(LINEAGE), graph(&LINEAGE.replace("graft-a", "graft-z")));
    let (a, z) = (before.node("graft-a").unwrap(), after.node("graft-z").unwrap());
    assert_eq!(a.params, z.params);
    assert!(a.inputs.keys().eq(z.inputs.keys()));
    let quant = after.node("quant-a").unwrap();
    assert_eq!(quant.inputs["model"].from.name().as_str(), "graft-z");
    assert_eq!(quant.params, before.node("quant-a").unwrap().params);
}

#[test]
fn each_node_stands_behind_what_it_needs_and_independent_ones_by_name() {
    let node = |name: &str, inputs: &str| format!("[node.{name}]\nkind = \"run\"\ninputs = {{ {inputs} }}\n");
    let text =
        [node("z1", ""), node("c", ""), node("b", "x = \"z1\""), node("a", ""), node("z2", "x = \"b\"")].concat();
    let order: Vec<String> = graph(&text).order.iter().map(Name::to_string).collect();
    assert_eq!(order, ["a", "z1", "b", "c", "z2"]);
}

#[test]
fn an_empty_text_is_a_graph_of_nothing() {
    assert!(graph("").nodes.is_empty());
    assert!(graph("\u{feff}# nothing yet\r\n").sources.is_empty());
}

fn names(set: &std::collections::BTreeSet<Name>) -> Vec<&str> {
    set.iter().map(Name::as_str).collect()
}

#[test]
fn goals_are_told_from_what_only_leads_to_them() {
    let g = graph(LINEAGE);
    let all = select(&g, &[]).unwrap();
    assert_eq!(names(&all.goals), ["check-a", "graft-a", "quant-a", "seat-a"]);
    assert!(all.needed.is_empty());
    let seat = select(&g, &["seat-a".to_owned()]).unwrap();
    assert_eq!(names(&seat.goals), ["seat-a"]);
    assert_eq!(names(&seat.needed), ["check-a", "graft-a", "quant-a"], "the gate is needed too");
    assert_eq!(names(&seat.sources), ["base", "calib", "finetune", "pylib"]);
    let quant = select(&g, &["quant-a".to_owned(), "graft-a".to_owned(), "quant-a".to_owned()]).unwrap();
    assert_eq!(names(&quant.goals), ["graft-a", "quant-a"]);
    assert_eq!(names(&quant.sources), ["base", "finetune"]);
    let order: Vec<&str> = seat.in_order(&g).map(|n| n.name.as_str()).collect();
    assert_eq!(order, ["graft-a", "quant-a", "check-a", "seat-a"]);
}

#[test]
fn a_goal_that_is_no_node_has_near_names() {
    let g = graph(LINEAGE);
    let errors = select(&g, &["qaunt-a".to_owned(), "base".to_owned(), "zzzzz".to_owned()]).unwrap_err();
    let lines: Vec<String> = errors.iter().map(|e| format!("{e}\n  hint: {}", e.hint())).collect();
    insta::assert_snapshot!(lines.join("\n"), @r#"
    there is no node "qaunt-a"
      hint: did you mean `quant-a`?
    `base` is a source: there is nothing to build
      hint: `graft-a` takes it: name a node
    there is no node "zzzzz"
      hint: `graftwerk status` lists the nodes
    "#);
}

#[test]
fn a_chain_of_a_hundred_thousand_nodes_is_read_and_selected() {
    let mut text = String::from("[source]\nbase = { file = \"b\" }\n[node.n0]\nkind = \"run\"\ninputs.x = \"base\"\n");
    for i in 1..100_000 {
        text.push_str(&format!("[node.n{i}]\nkind = \"run\"\ninputs.x = \"n{}\"\n", i - 1));
    }
    let g = graph(&text);
    assert_eq!(g.order.len(), 100_000);
    assert!(g.order.iter().enumerate().all(|(i, n)| n.as_str() == format!("n{i}")));
    let s = select(&g, &["n99999".to_owned()]).unwrap();
    assert_eq!((s.goals.len(), s.needed.len()), (1, 99_999));
}

#[test]
fn forty_stacked_diamonds_are_visited_once_each() {
    let mut text = String::from("[node.top0]\nkind = \"run\"\n");
    for i in 0..40 {
        for side in ["l", "r"] {
            text.push_str(&format!("[node.{side}{i}]\nkind = \"run\"\ninputs.x = \"top{i}\"\n"));
        }
        text.push_str(&format!("[node.top{}]\nkind = \"run\"\ninputs = {{ l = \"l{i}\", r = \"r{i}\" }}\n", i + 1));
    }
    let g = graph(&text);
    assert_eq!(select(&g, &["top40".to_owned()]).unwrap().needed.len(), 120);
    assert!(parse(&text.replace("[node.top0]\n", "[node.top0]\ninputs.x = \"top40\"\n")).is_err());
}

#[test]
fn no_kind_takes_a_key_that_every_node_has_nor_one_twice() {
    for kind in crate::kinds::all() {
        let mut seen = std::collections::BTreeSet::new();
        for key in kind.keys() {
            assert!(!crate::graph::node::COMMON_KEYS.contains(&key.name), "{}.{}", kind.name(), key.name);
            assert!(seen.insert(key.name), "{}.{} twice", kind.name(), key.name);
        }
    }
}

fn tree(paths: &[&str]) -> Tree {
    let mut t = Tree::new();
    for p in paths {
        let (p, entry) = match p.split_once(" -> ") {
            Some((p, target)) => (p, Entry::Link { target: target.as_bytes().to_vec() }),
            None => (*p, Entry::File { blob: BlobId(Digest::of(p.as_bytes())), size: 1, executable: false }),
        };
        t.insert(RelPath::try_from(p).unwrap(), entry).unwrap();
    }
    t
}

fn uses(patterns: &[&str], t: &Tree) -> String {
    let patterns: Vec<String> = patterns.iter().map(|p| (*p).to_owned()).collect();
    match Filter::compile(&patterns).unwrap().apply(t) {
        Ok(t) => t.iter().map(|(p, _)| p.to_string()).collect::<Vec<_>>().join(" "),
        Err(e) => format!("{e}; {}", e.hint()),
    }
}

#[test]
fn a_projection_keeps_what_its_patterns_match() {
    let t = tree(&[
        "model-1.safetensors",
        "model.safetensors.index.json",
        "config.json",
        "a.jinja",
        "sub/a.jinja",
        "sub/x/b.jinja",
        "sub/w.safetensors",
    ]);
    assert_eq!(uses(&["@weights"], &t), "model-1.safetensors model.safetensors.index.json");
    assert_eq!(uses(&["*.jinja"], &t), "a.jinja");
    assert_eq!(uses(&["**/*.jinja"], &t), "a.jinja sub/a.jinja sub/x/b.jinja");
    assert_eq!(uses(&["sub/*"], &t), "sub/a.jinja sub/w.safetensors");
    assert_eq!(uses(&["sub/"], &t), "sub/a.jinja sub/w.safetensors sub/x/b.jinja");
    assert_eq!(uses(&["config.json", "{a,b}.jinja"], &t), "a.jinja config.json");
    let bare = tree(&["model.safetensors", "config.json"]);
    assert_eq!(uses(&["@weights"], &bare), "model.safetensors", "an index need not be there");
}

#[test]
fn a_pattern_that_matches_nothing_is_an_error_with_near_paths() {
    let t = tree(&["model.safetensors.index.json", "config.json", "sub/a.jinja", "l -> sub/a.jinja"]);
    let said = [
        uses(&["config.jsn"], &t),
        uses(&["config.json", "*.jinj"], &t),
        uses(&["sub"], &t),
        uses(&["@weights"], &t),
        uses(&["zzzzz"], &t),
        uses(&["Config.json"], &t),
        uses(&["l"], &t),
    ];
    insta::assert_snapshot!(said.join("\n"), @r#"
    "config.jsn" matches nothing; there is `config.json`
    "*.jinj" matches nothing; there is `sub/a.jinja`
    "sub" matches nothing; there is `sub/`
    "@weights" matches nothing; there is `model.safetensors.index.json`
    "zzzzz" matches nothing; `*` stays within a folder, `**` crosses `/`; a folder is `NAME/`
    "Config.json" matches nothing; there is `config.json`
    the link l is kept, but not sub/a.jinja, to which it points; add "sub/a.jinja" to `uses`
    "#);
    assert_eq!(uses(&["l", "sub/"], &t), "l sub/a.jinja");
}

#[test]
fn excludes_hide_caches_at_any_depth_and_can_be_taken_back() {
    let hidden = |patterns: &[&str], path: &str, folder: bool| {
        let patterns: Vec<String> = patterns.iter().map(|p| (*p).to_owned()).collect();
        Excludes::compile(&patterns).unwrap().hides(&RelPath::try_from(path).unwrap(), folder)
    };
    for (path, folder) in
        [("__pycache__", true), ("a/b/__pycache__", true), (".cache", true), (".git", true), ("a/x.pyc", false)]
    {
        assert!(hidden(&[], path, folder), "{path}");
    }
    assert!(!hidden(&[], ".cache", false), "a file of that name is no cache folder");
    assert!(!hidden(&["!.cache/"], ".cache", true), "taken back");
    assert!(hidden(&["*.log"], "a/b.log", false));
    assert!(!hidden(&["a/*.log"], "x/a/b.log", false), "with a slash it counts from the top");
    assert!(hidden(&["*.log", "!keep.log", "keep.log"], "keep.log", false), "the last one decides");
}
