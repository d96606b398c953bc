//! Every mistake has its place, both values where two disagree, and what to do.

use super::{errors, plain};
use crate::graph::Graph;
use insta::assert_snapshot;

const BASE: &str = "[source]\nbase = { checkpoint = \"b\" }\n";

fn with_base(text: &str) -> String {
    errors(&format!("{BASE}{text}"))
}

#[test]
fn an_unknown_kind_points_at_the_word_and_names_the_near_one() {
    assert_snapshot!(with_base("[node.q]\nkind = \"qaunt\"\ninputs.model = \"base\"\n"), @r#"
    graph.toml:4:8: unknown kind `qaunt`
        "\"qaunt\"" unknown
      hint: did you mean `quant`?
    "#);
    assert_snapshot!(with_base("[node.q]\nkind = \"fly\"\n"), @r#"
    graph.toml:4:8: unknown kind `fly`
        "\"fly\"" unknown
      hint: kinds are `graft`, `quant`, `run`, `check`
    "#);
    assert_snapshot!(with_base("[node.q]\nkind = 3\n"), @r#"
    graph.toml:4:8: `kind` must be a string, found an integer
        "3" expected a string
    "#);
    assert_snapshot!(with_base("[node.q]\nkin = \"quant\"\n"), @r#"
    graph.toml:3:7: the node `q` does not say its kind
        "q" needs `kind`
      hint: kinds are `graft`, `quant`, `run`, `check`
    "#);
}

#[test]
fn unknown_keys_are_errors_with_a_near_name() {
    assert_snapshot!(with_base("[node.q]\nkind = \"quant\"\nmethod = \"m\"\nignor = []\nplatfrom = \"x\"\nxyzzy = 1\n"), @r#"
    graph.toml:6:1: unknown key `ignor` of a `quant`
        "ignor" unknown
      hint: did you mean `ignore`?
    graph.toml:7:1: unknown key `platfrom` of a `quant`
        "platfrom" unknown
      hint: did you mean `platform`?
    graph.toml:8:1: unknown key `xyzzy` of a `quant`
        "xyzzy" unknown
      hint: a `quant` takes `method`, `ignore`, `kind`, `inputs`, `gate`, `platform`, `about`
    "#);
    assert_snapshot!(errors("quantt = 1\nnods = 2\n"), @r#"
    graph.toml:1:1: unknown key `quantt`
        "quantt" unknown
      hint: at the top stand `source`, `node`, `window`, `engine` and `store`
    graph.toml:2:1: unknown key `nods`
        "nods" unknown
      hint: did you mean `node`?
    "#);
    assert_snapshot!(errors("[source]\nbase = { chekpoint = \"b\", exclud = [] }\n"), @r#"
    graph.toml:2:10: unknown key `chekpoint` of a source
        "chekpoint" unknown
      hint: did you mean `checkpoint`?
    graph.toml:2:27: unknown key `exclud` of a source
        "exclud" unknown
      hint: did you mean `exclude`?
    "#);
    assert_snapshot!(with_base("[node.r]\nkind = \"run\"\ninputs.x = { nod = \"base\", use = [] }\n"), @r#"
    graph.toml:5:8: the input `x` names no node
        "x" needs `node`
      hint: write { node = "NAME" }, with a node's or a source's name
    graph.toml:5:14: unknown key `nod` of an input
        "nod" unknown
      hint: did you mean `node`?
    graph.toml:5:28: unknown key `use` of an input
        "use" unknown
      hint: did you mean `uses`?
    "#);
}

#[test]
fn a_missing_key_is_named_with_what_it_is_for() {
    assert_snapshot!(with_base("[node.q]\nkind = \"quant\"\ninputs.model = \"base\"\n"), @r#"
    graph.toml:3:7: the node `q` lacks `method`, a string
        "q" a `quant` needs `method`
      hint: `method`: how to quantise
    "#);
}

#[test]
fn a_wrong_type_names_both_types() {
    assert_snapshot!(with_base(
        "[node.r]\nkind = \"run\"\ntensors = \"mtp.*\"\nmethod = 4\nbits = \"4\"\nstrict = 1\nargv = 1\n\
         env = { A = 1 }\nexpect = []\nplatform = true\nabout = 1\ngate = \"c\"\ninputs = \"base\"\n"
    ), @r#"
    graph.toml:5:11: `tensors` must be a list of strings, found a string
        "\"mtp.*\"" expected a list of strings
      hint: write ["mtp.*"]
    graph.toml:6:10: `method` must be a string, found an integer
        "4" expected a string
      hint: put it in quotes
    graph.toml:7:8: `bits` must be an integer, found a string
        "\"4\"" expected an integer
    graph.toml:8:10: `strict` must be a boolean, found an integer
        "1" expected a boolean
    graph.toml:9:8: `argv` must be a string or a list of strings, found an integer
        "1" expected a string or a list of strings
    graph.toml:10:13: `env.A` must be a string, found an integer
        "1" expected a string
    graph.toml:11:10: `expect` must be a table, found a list
        "[]" expected a table
    graph.toml:12:12: `platform` must be a string, found a boolean
        "true" expected a string
      hint: put it in quotes
    graph.toml:13:9: `about` must be a string, found an integer
        "1" expected a string
      hint: put it in quotes
    graph.toml:14:8: `gate` must be a list of strings, found a string
        "\"c\"" expected a list of strings
      hint: write ["c"]
    graph.toml:15:10: `inputs` must be a table, found a string
        "\"base\"" expected a table
      hint: write inputs.ALIAS = "NAME"
    "#);
    assert_snapshot!(with_base("[node.r]\nkind = \"run\"\ntensors = [\"a\", 1]\nargv = [[]]\n"), @r#"
    graph.toml:5:17: `tensors[1]` must be a string, found an integer
        "1" expected a string
    graph.toml:6:9: `argv[0]` must be a string, found a list
        "[]" expected a string
    "#);
    assert_snapshot!(errors("store = 1\nsource = 1\nnode = []\n"), @r#"
    graph.toml:1:9: `store` must be a path, found an integer
        "1" expected a path
    graph.toml:2:1: `source` must be a table, found an integer
        "source" not a table
      hint: write [source.NAME]
    graph.toml:3:1: `node` must be a table, found a list
        "node" not a table
      hint: write [node.NAME]
    "#);
    assert_snapshot!(errors("store = \"\"\n[[node]]\nkind = \"run\"\n"), @r#"
    graph.toml:1:9: `store` must be a path, found an empty string
        "\"\"" expected a path
    graph.toml:2:3: `node` must be a table, found a list
        "node" not a table
      hint: write [node.NAME]
    "#);
    assert_snapshot!(errors("[node]\nkind = \"run\"\n[source]\na = \"models/a\"\nb = 1\n"), @r#"
    graph.toml:2:8: `node.kind` must be a table, found a string
        "\"run\"" expected a table
      hint: a node is a table of its own: [node.NAME], and below it its keys
    graph.toml:4:5: `source.a` must be a table, found a string
        "\"models/a\"" expected a table
      hint: say what it is, as in { checkpoint = "models/a" }
    graph.toml:5:5: `source.b` must be a table, found an integer
        "1" expected a table
    "#);
    assert_snapshot!(with_base("[node.r]\nkind = \"run\"\ninputs = { a = 1, b = { node = 1 }, c = { node = \"base\", uses = \"x\" } }\n"), @r#"
    graph.toml:5:16: `inputs.a` must be a name or a table { node, uses, at }, found an integer
        "1" expected a name or a table { node, uses, at }
    graph.toml:5:32: `node` must be a string, found an integer
        "1" expected a string
      hint: put it in quotes
    graph.toml:5:65: `uses` must be a list of strings, found a string
        "\"x\"" expected a list of strings
      hint: write ["x"]
    "#);
}

#[test]
fn what_a_kind_refuses_has_a_caret_at_the_dotted_key() {
    let graft = |more: &str| with_base(&format!("[node.g]\nkind = \"graft\"\n{more}"));
    assert_snapshot!(graft("inputs = { into = \"base\", from = \"base\" }\nexpect = { dtype = \"BF16\", count = \"15\" }\n"), @r#"
    graph.toml:6:36: `expect.count` must be an integer
        "\"15\""
    "#);
    assert_snapshot!(graft("inputs = { into = \"base\", from = \"base\" }\ntensors = [\"a\", \"\"]\n"), @r#"
    graph.toml:6:17: a pattern is empty
        "\"\""
    "#);
    assert_snapshot!(graft("inputs.into = \"base\"\n"), @r#"
    graph.toml:5:1: a graft needs the input `from`
        "inputs" 
      hint: add it
    "#);
    assert_snapshot!(graft(""), @r#"
    graph.toml:3:7: a graft needs the input `into`
        "g" in this node, `inputs.into`
      hint: add it
    "#);
}

#[test]
fn a_source_is_exactly_one_thing() {
    assert_snapshot!(errors("[source.a]\n[source.b]\nfile = \"x\"\nfolder = \"x\"\n[source.c]\nabout = \"x\"\n"), @r#"
    graph.toml:1:9: the source `a` does not say where it lies
        "a" needs one of `checkpoint`, `file`, `folder`, `rows`
      hint: add the path under the key that says what it is, as in checkpoint = "models/base"
    graph.toml:4:1: the source `b` is both a file and a folder
        "folder" or this
        "file" either this
      hint: keep one of the two
    graph.toml:5:9: the source `c` does not say where it lies
        "c" needs one of `checkpoint`, `file`, `folder`, `rows`
      hint: add the path under the key that says what it is, as in checkpoint = "models/base"
    "#);
    assert_snapshot!(errors("[source]\na = { file = \"\" }\nb = { rows = 1 }\nc = { file = \"f\", exclude = [\"x\"] }\n"), @r#"
    graph.toml:2:14: `file` must be a path, found an empty string
        "\"\"" expected a path
    graph.toml:3:14: `rows` must be a path, found an integer
        "1" expected a path
    graph.toml:4:19: a file is one file: there is nothing to exclude
        "exclude" not here
        "\"f\"" a file
      hint: take `exclude` out
    "#);
    assert_snapshot!(errors("[source]\na = { folder = \"f\", exclude = [\"[\", \"../x\"] }\nb = { folder = \"f\", exclude = [1] }\n"), @r#"
    graph.toml:2:32: "[" is no pattern: unclosed character class; missing ']'
        "\"[\"" not a pattern
    graph.toml:2:37: "../x" is no pattern: it has an empty, `.` or `..` component
        "\"../x\"" not a pattern
    graph.toml:3:32: `exclude[0]` must be a string, found an integer
        "1" expected a string
    "#);
}

#[test]
fn places_that_a_step_has_anyway_are_no_mount_points() {
    assert_snapshot!(errors(
        "[source]\na = { folder = \"f\", at = \"usr/lib\" }\nb = { folder = \"f\", at = \"/in/x\" }\n\
         c = { folder = \"f\", at = \"/usr/../etc\" }\nd = { folder = \"f\", at = \"/\" }\ne = { folder = \"f\", at = \"/a/\" }\n"
    ), @r#"
    graph.toml:2:26: `at` is no place to mount an input: it is not absolute
        "\"usr/lib\"" not here
      hint: give an absolute path of the step's own, as in at = "/opt/tools"
    graph.toml:3:26: `at` is no place to mount an input: /in is the step's own
        "\"/in/x\"" not here
      hint: give an absolute path of the step's own, as in at = "/opt/tools"
    graph.toml:4:26: `at` is no place to mount an input: it has the component ".."
        "\"/usr/../etc\"" not here
      hint: give an absolute path of the step's own, as in at = "/opt/tools"
    graph.toml:5:26: `at` is no place to mount an input: / is the step's own
        "\"/\"" not here
      hint: give an absolute path of the step's own, as in at = "/opt/tools"
    graph.toml:6:26: `at` is no place to mount an input: it has the component ""
        "\"/a/\"" not here
      hint: give an absolute path of the step's own, as in at = "/opt/tools"
    "#);
    assert_snapshot!(with_base(
        "[node.r]\nkind = \"run\"\ninputs = { a = { node = \"base\", at = \"/x\" }, b = { node = \"base\", at = \"/x\" } }\n"
    ), @r#"
    graph.toml:5:46: two inputs are to be at /x
        "b" and this
        "a" this
    "#);
}

#[test]
fn dangling_names_point_at_the_word_and_name_near_ones() {
    assert_snapshot!(with_base(
        "[node.quant-a]\nkind = \"run\"\ninputs = { a = \"bas\", b = { node = \"qaunt-a\" }, c = \"nowhere\", d = \"\", e = \"a/b\" }\n"
    ), @r#"
    graph.toml:5:16: there is no node or source `bas`
        "\"bas\"" unknown
      hint: did you mean `base`?
    graph.toml:5:36: there is no node or source `qaunt-a`
        "\"qaunt-a\"" unknown
      hint: did you mean `quant-a`?
    graph.toml:5:53: there is no node or source `nowhere`
        "\"nowhere\"" unknown
      hint: declare [node.nowhere] or [source.nowhere]
    graph.toml:5:68: there is no node or source ""
        "\"\"" unknown
      hint: write the name of a node or a source
    graph.toml:5:76: there is no node or source `a/b`
        "\"a/b\"" unknown
      hint: write the name of a node or a source
    "#);
}

#[test]
fn a_gate_must_be_a_check() {
    assert_snapshot!(with_base(
        "[node.check-a]\nkind = \"check\"\ninputs.m = \"base\"\n[node.r]\nkind = \"run\"\n\
         gate = [\"chek-a\", \"base\", \"q\", \"check-a\", \"zzzzz\"]\n[node.q]\nkind = \"run\"\n"
    ), @r#"
    graph.toml:8:9: there is no check `chek-a`
        "\"chek-a\"" unknown
      hint: did you mean `check-a`?
    graph.toml:8:19: `base` is a source: only a `check` can be a gate
        "\"base\"" no check
      hint: name a node of the kind `check`
    graph.toml:8:27: `q` is a `run`: only a `check` can be a gate
        "\"q\"" no check
      hint: name a node of the kind `check`
    graph.toml:8:43: there is no check `zzzzz`
        "\"zzzzz\"" unknown
      hint: name a node of the kind `check`
    "#);
}

#[test]
fn a_cycle_is_printed_with_its_members_only() {
    assert_snapshot!(with_base(
        "[node.c]\nkind = \"run\"\ninputs.x = \"a\"\n[node.a]\nkind = \"run\"\ninputs = { x = \"b\", y = \"base\" }\n\
         [node.b]\nkind = \"run\"\ninputs.x = \"c\"\n[node.above]\nkind = \"run\"\ninputs.x = \"base\"\n\
         [node.below]\nkind = \"run\"\ninputs.x = \"a\"\n"
    ), @r#"
    graph.toml:8:16: these nodes form a cycle: a -> b -> c -> a
        "\"b\"" `a` takes `b`
        "\"c\"" `b` takes `c`
        "\"a\"" `c` takes `a`
      hint: take one of these inputs or gates out
    "#);
}

#[test]
fn two_cycles_are_two_errors_and_gates_close_cycles_too() {
    assert_snapshot!(errors(
        "[node.a]\nkind = \"check\"\ninputs.x = \"b\"\n[node.b]\nkind = \"run\"\ngate = [\"a\"]\n\
         [node.x]\nkind = \"run\"\ninputs.x = \"y\"\n[node.y]\nkind = \"run\"\ninputs.x = \"x\"\n"
    ), @r#"
    graph.toml:3:12: these nodes form a cycle: a -> b -> a
        "\"b\"" `a` takes `b`
        "\"a\"" `b` waits for the check `a`
      hint: take one of these inputs or gates out
    graph.toml:9:12: these nodes form a cycle: x -> y -> x
        "\"y\"" `x` takes `y`
        "\"x\"" `y` takes `x`
      hint: take one of these inputs or gates out
    "#);
}

#[test]
fn a_node_that_takes_itself_or_waits_for_itself_is_named() {
    assert_snapshot!(errors("[node.a]\nkind = \"run\"\ninputs.x = \"a\"\n[node.c]\nkind = \"check\"\ngate = [\"c\"]\n"), @r#"
    graph.toml:3:12: `a` takes itself as an input: a -> a
        "\"a\"" itself
        "a" this node
    graph.toml:6:9: `c` waits for itself: c -> c
        "\"c\"" itself
        "c" this node
    "#);
}

#[test]
fn a_cycle_of_ten_thousand_nodes_is_shown_by_its_ends() {
    let mut text = String::new();
    for i in 0..10_000 {
        text.push_str(&format!("[node.n{i:05}]\nkind = \"run\"\ninputs.x = \"n{:05}\"\n", (i + 1) % 10_000));
    }
    let d = super::parse(&text).unwrap_err();
    assert_eq!(d.list.len(), 1);
    assert_eq!(d.list[0].labels.len(), 12);
    assert_snapshot!(d, @"graph.toml:3:12: these nodes form a cycle: n00000 -> n00001 -> n00002 -> n00003 -> n00004 -> n00005 -> … -> n09995 -> n09996 -> n09997 -> n09998 -> n09999 -> n00000 (10000 nodes)");
}

#[test]
fn names_that_are_no_file_names_are_refused() {
    assert_snapshot!(errors(
        "[node.\"a/b\"]\nkind = \"run\"\n[node.\".a\"]\nkind = \"run\"\n[node.\"\"]\nkind = \"run\"\n\
         [node.\"a\\nb\"]\nkind = \"run\"\n[source]\n-x = { file = \"f\" }\n"
    ), @r#"
    graph.toml:1:7: the node "a/b" is no name: it holds "/"; letters, digits, `_`, `-`, `.` and `+` may stand in it
        "\"a/b\"" not a name
      hint: call it `a-b`
    graph.toml:3:7: the node ".a" is no name: it starts with `.`
        "\".a\"" not a name
      hint: call it `a`
    graph.toml:5:7: the node "" is no name: it is empty
        "\"\"" not a name
    graph.toml:7:7: the node "a\nb" is no name: it holds "\n"; letters, digits, `_`, `-`, `.` and `+` may stand in it
        "\"a\\nb\"" not a name
      hint: call it `a-b`
    graph.toml:10:1: the source "-x" is no name: it starts with `-`
        "-x" not a name
      hint: call it `x`
    "#);
    assert_snapshot!(with_base("[node.r]\nkind = \"run\"\ninputs.\"a/b\" = \"base\"\ninputs.X = \"base\"\ninputs.x = \"base\"\n"), @r#"
    graph.toml:5:8: the alias "a/b" is no name: it holds "/"; letters, digits, `_`, `-`, `.` and `+` may stand in it
        "\"a/b\"" not an alias
      hint: a step sees the input as /in/ALIAS
    graph.toml:7:8: the aliases `X` and `x` differ only in case
        "x" and this
        "X" this
    "#);
}

#[test]
fn one_name_is_one_thing_whatever_the_case() {
    assert_snapshot!(with_base("[node.base]\nkind = \"run\"\n[node.Quant]\nkind = \"run\"\n[node.quant]\nkind = \"run\"\n"), @r#"
    graph.toml:3:7: `base` is both a source and a node
        "base" a node
        "base" a source
      hint: sources and nodes share one set of names: rename one of the two
    graph.toml:7:7: `Quant` and `quant` differ only in case
        "quant" and this
        "Quant" this
      hint: out/NAME would be one file where the file system ignores case: rename one of the two
    "#);
}

#[test]
fn a_dotted_header_is_no_node_of_a_dotted_name() {
    assert_snapshot!(errors("[node.a.b]\nkind = \"run\"\n"), @r#"
    graph.toml:1:7: the node `a` does not say its kind
        "a" needs `kind`
      hint: for a node that is called `a.b`, write [node."a.b"]
    "#);
    assert_snapshot!(errors("[node.a]\nkind = \"run\"\n[node.a.b]\nkind = \"run\"\n"), @r#"
    graph.toml:3:9: unknown key `b` of a `run`
        "b" unknown
      hint: a `run` takes `tensors`, `method`, `bits`, `strict`, `argv`, `env`, `expect`, `any`, `kind`, `inputs`, `gate`, `platform`, `about`
    "#);
    let g = super::graph("[node.\"a.b\"]\nkind = \"run\"\n[node.a]\nkind = \"run\"\n");
    assert_eq!(g.nodes.len(), 2);
}

#[test]
fn duplicate_and_reopened_tables_point_at_both_places() {
    assert_snapshot!(errors("[node.a]\nkind = \"run\"\n\n[node.a]\nkind = \"check\"\n"), @r#"
    graph.toml:4:7: `a` is defined twice
        "a" again here
        "a" first here
      hint: keep one of the two; a table can't be re-opened, and dotted keys can't add to a finished one
    "#);
    assert_snapshot!(errors("[node.n.q]\n[node.n]\nkind = \"run\"\n[node.n]\n"), @r#"
    graph.toml:4:7: `n` is defined twice
        "n" again here
        "n" first here
      hint: keep one of the two; a table can't be re-opened, and dotted keys can't add to a finished one
    "#);
    assert_snapshot!(errors("[node.a]\nkind = \"run\"\nbits = 1\n  bits = 2\n"), @r#"
    graph.toml:4:3: `bits` is defined twice
        "bits" again here
        "bits" first here
      hint: keep one of the two; a table can't be re-opened, and dotted keys can't add to a finished one
    "#);
    assert_snapshot!(errors("[node.a]\nkind = \"run\"\nq = \"x\"\nq.min = 1\n"), @r#"
    graph.toml:4:1: cannot extend value of type string with a dotted key
        "q" 
      hint: `q` has its value already: put the key into that table, or write all of them dotted
    "#);
    assert_snapshot!(errors("[source]\na = { file = \"x\" }\n[source.a]\nfile = \"y\"\n"), @r#"
    graph.toml:3:9: `a` is defined twice
        "a" again here
      hint: keep one of the two; a table can't be re-opened, and dotted keys can't add to a finished one
    "#);
    assert_snapshot!(errors("[node.a]\nkind = \"run\"\ninputs = { x = \"a\" }\ninputs.y = \"b\"\n"), @r#"
    graph.toml:4:1: cannot extend value of type inline table with a dotted key
        "inputs" 
      hint: `inputs` has its value already: put the key into that table, or write all of them dotted
    "#);
}

#[test]
fn numbers_that_do_not_fit_are_refused_by_value() {
    assert_snapshot!(errors(
        "[node.a]\nkind = \"run\"\nbits = 9223372036854775808\nany = [1e400, -9_223_372_036_854_775_809, 0xFFFFFFFFFFFFFFFF]\n"
    ), @r#"
    graph.toml:3:8: the integer 9223372036854775808 does not fit in 64 bits
        "9223372036854775808" must lie in -9223372036854775808 ..= 9223372036854775807
    graph.toml:4:8: the float 1e400 does not fit in 64 bits
        "1e400" must lie within ±1.7976931348623157e308
    graph.toml:4:15: the integer -9223372036854775809 does not fit in 64 bits
        "-9_223_372_036_854_775_809" must lie in -9223372036854775808 ..= 9223372036854775807
    graph.toml:4:43: the integer 0xFFFFFFFFFFFFFFFF does not fit in 64 bits
        "0xFFFFFFFFFFFFFFFF" must lie in -9223372036854775808 ..= 9223372036854775807
    "#);
}

#[test]
fn patterns_in_uses_are_looked_at_early() {
    assert_snapshot!(with_base(
        "[node.r]\nkind = \"run\"\ninputs.a = { node = \"base\", uses = [] }\n\
         inputs.b = { node = \"base\", uses = [\"\", \"@weight\", \"@x\", \"/a\", \"a/../b\", \"a[\", \"{a\", \"ok/\"] }\n"
    ), @r#"
    graph.toml:5:36: `uses` is empty: the step would see nothing of this input
        "[]" empty
      hint: name what the step needs, or leave `uses` out to let it see everything
    graph.toml:6:37: "" is no pattern: it is empty
        "\"\"" not a pattern
    graph.toml:6:41: "@weight" is no pattern: there is no such word
        "\"@weight\"" not a pattern
      hint: did you mean `@weights`?
    graph.toml:6:52: "@x" is no pattern: there is no such word
        "\"@x\"" not a pattern
      hint: the only word is `@weights`
    graph.toml:6:58: "/a" is no pattern: it starts with `/`, but paths are relative to the top
        "\"/a\"" not a pattern
    graph.toml:6:64: "a/../b" is no pattern: it has an empty, `.` or `..` component
        "\"a/../b\"" not a pattern
    graph.toml:6:74: "a[" is no pattern: unclosed character class; missing ']'
        "\"a[\"" not a pattern
    graph.toml:6:80: "{a" is no pattern: unclosed alternate group; missing '}' (maybe escape '{' with '[{]'?)
        "\"{a\"" not a pattern
    "#);
}

#[test]
fn text_that_is_no_toml_has_its_place_too() {
    assert_snapshot!(errors("[node.a\nkind = \"run\"\n"), @r#"
    graph.toml:1:8: unclosed table, expected `]`
        ""
    "#);
    assert_snapshot!(errors("[node.a]\nkind = \"run\n"), @r#"
    graph.toml:2:12: invalid basic string, expected `"`
        ""
    "#);
    assert_snapshot!(errors("[node.a]\nkind = run\n"), @r#"
    graph.toml:2:8: string values must be quoted, expected literal string
        "run"
    "#);
    assert_snapshot!(errors("[node.é]\nabout = \"é\" x\n"), @r#"
    graph.toml:1:7: invalid unquoted key, expected letters, numbers, `-`, `_`
        "é" 
      hint: put the key in quotes
    graph.toml:2:13: unexpected key or value, expected newline, `#`
        ""
    "#);
    let deep = format!("[node.a]\nkind = \"run\"\nany = {}{}\n", "[".repeat(200), "]".repeat(200));
    assert_snapshot!(errors(&deep).lines().next().unwrap(), @"graph.toml:3:87: this is nested too deeply");
}

#[test]
fn a_byte_order_mark_and_crlf_change_no_place() {
    let text = "[node.a]\nkind = \"qaunt\"\n";
    let plain = errors(text);
    assert_eq!(errors(&text.replace('\n', "\r\n")), plain);
    assert_eq!(errors(&format!("\u{feff}{text}")), plain);
    assert_snapshot!(errors("\u{feff}nods = 1\n"), @r#"
    graph.toml:1:1: unknown key `nods`
        "nods" unknown
      hint: did you mean `node`?
    "#);
}

#[test]
fn bytes_that_are_no_utf8_have_their_place() {
    let d = Graph::parse_bytes("graph.toml", b"# a\n[node.\xff]\n").unwrap_err();
    assert_snapshot!(plain(&d), @r#"
    graph.toml:2:7: the byte 0xff is no UTF-8
        "" not text from here on
      hint: save the file as UTF-8
    "#);
}

#[test]
fn all_mistakes_are_told_in_one_go_in_the_order_of_the_text() {
    assert_snapshot!(errors(
        "[node.q]\nkind = \"qaunt\"\ninputs.model = \"bse\"\n[node.g]\nkind = \"graft\"\nbits = \"x\"\ninputs.into = \"q\"\n\
         [source]\nbase = { chekpoint = \"b\" }\n[nod]\n"
    ), @r#"
    graph.toml:2:8: unknown kind `qaunt`
        "\"qaunt\"" unknown
      hint: did you mean `quant`?
    graph.toml:3:16: there is no node or source `bse`
        "\"bse\"" unknown
      hint: did you mean `base`?
    graph.toml:6:8: `bits` must be an integer, found a string
        "\"x\"" expected an integer
    graph.toml:9:10: unknown key `chekpoint` of a source
        "chekpoint" unknown
      hint: did you mean `checkpoint`?
    graph.toml:10:2: unknown key `nod`
        "nod" unknown
      hint: did you mean `node`?
    "#);
}
