//! Steps that run a script, through the real binary: what reruns them, how they fail, how they are stopped.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use common::{Project, copy_tree, repository, store_check};

/// A script on the project's own `scripts` folder, run by the host's sh.
fn script(node: &str, inputs: &str, extra: &str) -> String {
    format!(
        "[node.{node}]\nkind = \"run\"\ninputs = {{ scripts = \"scripts\"{inputs} }}\n\
         argv = [\"sh\", \"{{in.scripts}}/{node}.sh\"]\n{extra}\n"
    )
}

const SCRIPTS: &str = "[source]\nscripts = { folder = \"scripts\" }\n";

/// Starts a build and waits until it says that this node runs.
fn start(p: &Project, args: &[&str], node: &str) -> Child {
    let mut child = p.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let said = child.stderr.take().unwrap();
    let (send, heard) = std::sync::mpsc::channel();
    let wanted = format!("building {node}");
    std::thread::spawn(move || {
        // Read to its end, so that the build never waits for us.
        for line in BufReader::new(said).lines().map_while(Result::ok) {
            if line.contains(&wanted) {
                let _ = send.send(());
            }
        }
    });
    heard.recv_timeout(Duration::from_secs(60)).expect("the step starts");
    child
}

#[test]
fn changing_a_calibration_row_rebuilds_a_script_quant_but_not_its_graft() {
    let p = Project::demo();
    p.write("scripts/quant.sh", "set -e\ncp /in/model/* /out/\ncp /in/calib /out/rows.jsonl\n");
    let graph = r#"
[source]
base = { checkpoint = "demo/base" }
finetune = { checkpoint = "demo/finetune" }
calib = { rows = "demo/calib.jsonl" }
scripts = { folder = "scripts" }

[node.graft]
kind = "graft"
inputs.into = { node = "finetune", uses = ["@weights", "config.json"] }
inputs.from = { node = "base", uses = ["@weights"] }
tensors = ["mtp.*"]

[node.quant]
kind = "quant"
inputs = { model = "graft", calib = "calib", scripts = "scripts" }
argv = ["sh", "{in.scripts}/quant.sh"]
tools = ["cp"]
"#;
    p.write("graph.toml", graph);
    assert_eq!(p.built(), ["graft", "quant"]);
    assert_eq!(p.built(), [""; 0]);
    p.edit("demo/calib.jsonl", "You are brief.", "You are terse.");
    let r = p.build();
    assert_eq!(r.nodes("built"), ["quant"]);
    let why = r.step("quant")["reasons"][0].clone();
    assert_eq!(why["field"], "input calib");
    assert_ne!(why["old"], why["new"]);
}

#[test]
fn a_script_that_drops_the_draft_head_and_exits_0_fails_and_the_fifteen_names_are_listed() {
    let p = Project::demo();
    // Copies only what is left without the head: the finetune never had it, so the graft's shard is what goes missing.
    let index = "demo/finetune/model.safetensors.index.json";
    p.write("scripts/model.safetensors.index.json", p.read(index));
    p.write(
        "scripts/quant.sh",
        "set -e\ncp /in/model/config.json /in/model/model-0000* /out/\ncp /in/scripts/model.safetensors.index.json /out/\n",
    );
    p.write(
        "graph.toml",
        r#"
[source]
base = { checkpoint = "demo/base" }
finetune = { checkpoint = "demo/finetune" }
scripts = { folder = "scripts" }
[node.graft]
kind = "graft"
inputs = { into = "finetune", from = "base" }
tensors = ["mtp.*"]
[node.quant]
kind = "quant"
inputs = { model = "graft", scripts = "scripts" }
argv = ["sh", "{in.scripts}/quant.sh"]
tools = ["cp"]
"#,
    );
    let r = p.run(&["build", "--json"]);
    assert_eq!(r.code, Some(1));
    assert_eq!(r.step("quant")["action"], "failed");
    let said = format!("{}{}", r.stderr, r.stdout);
    for name in ["mtp.fc.weight", "mtp.norm.weight", "mtp.layers.0.mlp.down_proj.weight"] {
        assert!(said.contains(name), "{name} is not named:\n{said}");
    }
    assert!(said.contains("15"), "{said}");
}

#[test]
fn a_parameter_that_goes_from_1_to_1_0_rebuilds() {
    let graph = |v: &str| {
        format!(
            "{SCRIPTS}{}",
            script("s", "", &format!("params = {{ strength = {v} }}"))
                .replace("s.sh\"]", "s.sh\", \"{param.strength}\"]")
        )
    };
    let p = Project::new(&graph("1"));
    p.write("scripts/s.sh", "echo same > /out/x\n");
    assert_eq!(p.built(), ["s"]);
    p.write("graph.toml", graph("1.0"));
    let r = p.build();
    assert_eq!(r.nodes("built"), ["s"]);
    let why = &r.step("s")["reasons"][0];
    assert!(why["old"].as_str().unwrap().contains("= 1}") && why["new"].as_str().unwrap().contains("= 1.0}"), "{why}");
    p.write("graph.toml", graph("1"));
    assert_eq!(p.built(), [""; 0], "the earlier realisation is still there");
}

#[test]
fn a_comment_in_a_script_above_a_thousand_nodes_whose_output_stays_the_same_runs_one_step() {
    let mut graph = format!("{SCRIPTS}{}", script("first", "", ""));
    for i in 0..1000 {
        graph +=
            &format!("[node.e{i}]\nkind = \"edit\"\ninputs.model = \"first\"\nset.\"c.json\" = {{ \"/n\" = {i} }}\n");
    }
    let p = Project::new(&graph);
    p.write("scripts/first.sh", "echo '{\"n\": -1}' > /out/c.json\n");
    assert_eq!(p.built().len(), 1001);
    p.write("scripts/first.sh", "# a comment\necho '{\"n\": -1}' > /out/c.json\n");
    assert_eq!(p.built(), ["first"]);
    assert_eq!(p.built(), [""; 0]);
}

#[test]
fn a_step_that_fails_publishes_nothing_shows_its_last_lines_and_blocks_what_is_below_it() {
    let graph = format!(
        "{SCRIPTS}{}{}{}",
        script("bad", "", ""),
        script("below", ", x = \"bad\"", ""),
        script("beside", "", "")
    );
    let p = Project::new(&graph);
    p.write("scripts/bad.sh", "echo half > /out/half\necho the reason is this >&2\nexit 7\n");
    p.write("scripts/below.sh", "echo x > /out/x\n");
    p.write("scripts/beside.sh", "echo x > /out/x\n");
    let r = p.run(&["build", "--json", "--keep-going", "--keep-failed", "-j1"]);
    assert_eq!(r.code, Some(1));
    assert_eq!(r.json()["ok"], false);
    let actions = r.actions();
    assert_eq!(
        (actions["bad"].as_str(), actions["below"].as_str(), actions["beside"].as_str()),
        ("failed", "skipped", "built")
    );
    assert!(r.step("bad")["error"].as_str().unwrap().contains("code 7"), "{}", r.stdout);
    assert!(r.stderr.contains("the reason is this"), "{}", r.stderr);
    assert!(p.run(&["log", "bad"]).stdout.contains("the reason is this"));
    assert_eq!(p.run(&["path", "bad"]).code, Some(1));
    let kept = fs::read_dir(p.path("store/failed")).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read_to_string(kept.join("out/half")).unwrap(), "half\n");
    store_check::check(&p.path("store"));
    p.write("scripts/bad.sh", "echo whole > /out/whole\n");
    assert_eq!(p.build().nodes("built"), ["bad", "below", "beside"], "the folder of scripts is an input of all three");
}

#[test]
fn what_was_found_of_a_script_s_output_stands_behind_its_own_lines_in_the_log() {
    let quant = script("q", ", model = \"m\"", "tools = [\"cp\"]").replacen("\"run\"", "\"quant\"", 1);
    let p = Project::new(&format!("{SCRIPTS}m = {{ checkpoint = \"m\" }}\n{quant}"));
    copy_tree(&repository().join("demo/finetune"), &p.path("m"));
    p.write("scripts/q.sh", "cp /in/model/*.safetensors* /in/model/config.json /out/\nprintf 'no line end'\n");
    p.build();
    let log = p.run(&["log", "q"]).stdout;
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines[0], "no line end");
    assert!(lines[1].starts_with("nothing is lost"), "{log}");
    assert!(lines[2].starts_with("of `model` the script left behind chat_template.jinja, generation_config"), "{log}");
}

#[test]
fn death_by_a_signal_is_told_from_an_exit_and_an_empty_output_is_a_failure() {
    let p = Project::new(&format!("{SCRIPTS}{}{}", script("killed", "", ""), script("empty", "", "")));
    p.write("scripts/killed.sh", "kill -SEGV $$\n");
    p.write("scripts/empty.sh", "echo there is no such folder\n");
    let r = p.run(&["build", "--json", "--keep-going"]);
    assert_eq!(r.code, Some(1));
    let error = |n: &str| r.step(n)["error"].as_str().unwrap().to_owned();
    assert!(error("killed").contains("signal") || error("killed").contains("SIGSEGV"), "{}", error("killed"));
    assert_eq!(error("empty"), "the step exited with 0 and wrote nothing to its output folder");
    assert!(r.stderr.contains("| there is no such folder"), "what it said last is shown: {}", r.stderr);
}

#[test]
fn ctrl_c_stops_cleanly_and_the_next_build_goes_on() {
    let p = Project::new(&format!(
        "{SCRIPTS}{}{}",
        script("quick", "", ""),
        script("slow", ", q = \"quick\"", "tools = [\"sleep\"]")
    ));
    p.write("scripts/quick.sh", "echo q > /out/q\n");
    p.write("scripts/slow.sh", "echo half > /out/half\nsleep 600\n");
    let mut build = start(&p, &["build"], "slow");
    let begun = Instant::now();
    let pid = rustix::process::Pid::from_child(&build);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let status = build.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    assert!(begun.elapsed() < Duration::from_secs(60), "the step was not ended");
    store_check::check(&p.path("store"));
    assert_eq!(fs::read_dir(p.path("store/tmp")).unwrap().count(), 0);
    p.write("scripts/slow.sh", "echo whole > /out/whole\n");
    assert_eq!(p.run(&["build", "--json"]).code, Some(0));
}

#[test]
fn of_a_source_that_changes_while_a_step_runs_nothing_is_recorded() {
    let p = Project::new(&format!(
        "[source]\ndata = {{ file = \"data\" }}\nscripts = {{ folder = \"scripts\" }}\n{}",
        script("s", ", data = \"data\"", "tools = [\"cat\", \"sleep\"]")
    ));
    p.write("data", "before");
    p.write("scripts/s.sh", "sleep 3\ncat /in/data > /out/copy\n");
    let mut build = start(&p, &["build"], "s");
    p.write("data", "after!");
    assert_eq!(build.wait().unwrap().code(), Some(1));
    assert_eq!(p.run(&["path", "s"]).code, Some(1));
    p.write("scripts/s.sh", "cat /in/data > /out/copy\n");
    p.build();
    assert_eq!(fs::read_to_string(p.node_path("s").join("copy")).unwrap(), "after!");
}

#[test]
fn a_step_without_isolation_is_not_reused_where_isolation_is_asked_for() {
    let p = Project::new(&format!("{SCRIPTS}{}", script("s", "", "")));
    p.write("scripts/s.sh", "echo x > \"$1\"/x\n");
    p.edit("graph.toml", "s.sh\"]", "s.sh\", \"{out}\"]");
    let bare = p.run(&["build", "--json", "--unsandboxed"]);
    assert_eq!(bare.code, Some(0), "{}", bare.stderr);
    assert_eq!(bare.nodes("built"), ["s"]);
    assert_eq!(p.run(&["build", "--json", "--unsandboxed"]).nodes("fresh"), ["s"]);
    let boxed = p.build();
    assert_eq!(boxed.nodes("built"), ["s"]);
    assert_eq!(boxed.step("s")["reasons"][0]["reason"], "weaker_isolation");
}

#[test]
fn an_undeclared_file_and_variable_are_not_there_and_the_declared_ones_are() {
    let p = Project::new(&format!("{SCRIPTS}{}", script("s", "", "env = { CALIB_N = \"4\" }\ntools = [\"cat\"]")));
    p.write("secret", "not declared");
    let secret = p.path("secret");
    p.write(
        "scripts/s.sh",
        format!(
            "test ! -e '{}' && test ! -e /root && echo \"$CALIB_N ${{FOO-none}} $LANG $TZ $HOSTNAME\" > /out/x\n",
            secret.display()
        ),
    );
    let o =
        p.command(&["build"]).env("FOO", "bar").env("LANG", "de_DE.UTF-8").env("TZ", "Asia/Tokyo").output().unwrap();
    assert!(o.status.success(), "{}", String::from_utf8_lossy(&o.stderr));
    assert_eq!(fs::read_to_string(p.node_path("s").join("x")).unwrap(), "4 none C.UTF-8 UTC graftwerk\n");
    assert_eq!(p.built(), [""; 0], "the caller's environment is free");
    p.edit("graph.toml", "\"4\"", "\"5\"");
    assert_eq!(p.built(), ["s"]);
}

#[test]
fn a_step_without_isolation_that_writes_into_its_input_is_caught_and_the_input_is_made_again() {
    let graph = format!(
        "{SCRIPTS}{}{}",
        script("first", "", "").replace("first.sh\"]", "first.sh\", \"{out}\"]"),
        script("vandal", ", x = \"first\"", "").replace("vandal.sh\"]", "vandal.sh\", \"{in.x}/f\", \"{out}\"]")
    );
    let p = Project::new(&graph);
    p.write("scripts/first.sh", "echo good > \"$1\"/f\n");
    p.write("scripts/vandal.sh", "chmod u+w \"$1\"\necho evil > \"$1\"\necho x > \"$2\"/x\n");
    let r = p.run(&["build", "--json", "--unsandboxed"]);
    assert_eq!(r.code, Some(1), "{}", r.stdout);
    assert!(r.step("vandal")["error"].as_str().unwrap().contains("changed while"), "{}", r.stdout);
    assert!(r.stderr.contains("it counts as missing"), "{}", r.stderr);
    let again = p.run(&["build", "first", "--json", "--unsandboxed"]);
    assert_eq!(again.nodes("built"), ["first"]);
    store_check::check(&p.path("store"));
}

#[test]
fn a_program_of_the_host_that_changes_during_the_build_does_not_run_under_the_old_recipe() {
    let p = Project::new("");
    // Not below /tmp: the step has one of its own.
    let host = tempfile::tempdir_in("/var/tmp").unwrap();
    let tool = host.path().join("tool");
    fs::write(&tool, "#!/bin/sh\necho one > /out/x\n").unwrap();
    fs::set_permissions(&tool, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    p.write(
        "graph.toml",
        format!(
            "{SCRIPTS}{}[node.z]\nkind = \"run\"\nargv = [\"{}\"]\n",
            script("a", "", "tools = [\"sleep\"]"),
            tool.display()
        ),
    );
    p.write("scripts/a.sh", "sleep 2\necho a > /out/a\n");
    let mut build = start(&p, &["build", "-j1", "--keep-going"], "a");
    fs::write(&tool, "#!/bin/sh\necho two > /out/x\n").unwrap();
    assert_eq!(build.wait().unwrap().code(), Some(1));
    assert_eq!(p.run(&["path", "z"]).code, Some(1));
    assert_eq!(p.built(), ["z"]);
    assert_eq!(fs::read_to_string(p.node_path("z").join("x")).unwrap(), "two\n");
}

#[test]
fn a_python_step_reruns_when_a_module_changes_that_its_script_imports() {
    let python = |code: &str| {
        let o = std::process::Command::new("/usr/bin/python3").args(["-c", code]).output().unwrap();
        String::from_utf8(o.stdout).unwrap().trim().to_owned()
    };
    let stdlib = python("import sysconfig; print(sysconfig.get_path('stdlib'))");
    let p = Project::new(&format!(
        "{SCRIPTS}pylib = {{ folder = \"{stdlib}\", at = \"{stdlib}\" }}\n[node.q]\nkind = \"run\"\n\
         inputs = {{ scripts = \"scripts\", pylib = \"pylib\" }}\n\
         argv = [\"/usr/bin/python3\", \"{{in.scripts}}/q.py\", \"{{out}}/n\"]\n"
    ));
    p.write("scripts/q.py", "import sys\nfrom pack.helper import N\nopen(sys.argv[1], 'w').write(str(N))\n");
    p.write("scripts/pack/__init__.py", "");
    p.write("scripts/pack/helper.py", "N = 1\n");
    assert_eq!(p.built(), ["q"]);
    assert_eq!(p.built(), [""; 0]);
    p.write("scripts/pack/helper.py", "N = 2\n");
    let r = p.build();
    assert_eq!(r.nodes("built"), ["q"]);
    assert_eq!(r.step("q")["reasons"][0]["files"], serde_json::json!(["~pack/helper.py"]));
    assert_eq!(fs::read_to_string(p.node_path("q").join("n")).unwrap(), "2");
}

#[test]
fn a_step_that_lacks_a_program_or_pythons_library_is_told_how_to_declare_it() {
    let p = Project::new(
        "[node.a]\nkind = \"run\"\nargv = [\"sh\", \"-c\", \"ls /\"]\n[node.b]\nkind = \"run\"\nargv = [\"/usr/bin/python3\", \"-c\", \"1\"]\n",
    );
    let r = p.run(&["build", "a"]);
    assert_eq!(r.code, Some(1));
    assert!(r.stderr.contains("    hint: `ls` is not inside: add it to `tools` of the node\n"), "{}", r.stderr);
    let r = p.run(&["build", "b"]);
    assert_eq!(r.code, Some(1));
    assert!(r.stderr.contains("    hint: Python's own library folder is not inside: "), "{}", r.stderr);
}

#[test]
fn a_script_that_leaves_weights_beside_its_shards_fails_and_one_that_makes_fewer_leaves_none_behind() {
    let p = Project::new(&format!(
        "[source]\nmodel = {{ checkpoint = \"finetune\" }}\nscripts = {{ folder = \"scripts\" }}\n{}",
        "[node.q]\nkind = \"quant\"\ninputs = { model = \"model\", scripts = \"scripts\" }\nargv = [\"sh\", \"{in.scripts}/q.sh\"]\ntools = [\"cp\", \"rm\"]\n"
    ));
    copy_tree(&repository().join("demo/finetune"), &p.path("finetune"));
    let shard = "model-00001-of-00002.safetensors";
    p.write(
        "scripts/q.sh",
        format!("set -e\ncp /in/model/* /out/\ncp /in/model/{shard} /out/consolidated.safetensors\n"),
    );
    let r = p.run(&["build"]);
    assert_eq!(r.code, Some(1), "{}", r.stderr);
    let said =
        "the step's output: \"consolidated.safetensors\" beside model.safetensors.index.json, which does not name it";
    assert!(r.stderr.contains(said), "{}", r.stderr);
    p.write("scripts/q.sh", "set -e\ncp /in/model/* /out/\necho 1 > /out/old.txt\n");
    p.build();
    let old = p.node_path("q");
    let before = common::files(&old);
    p.write("scripts/q.sh", "set -e\ncp /in/model/* /out/\n");
    p.build();
    assert!(!p.node_path("q").join("old.txt").exists(), "a step begins with an empty folder");
    assert_eq!(common::files(&old), before, "what was there stays as it was");
}

#[test]
fn whatever_of_a_declared_folder_changes_reruns_its_step() {
    let p = Project::new(&format!("{SCRIPTS}{}", script("q", "", "tools = [\"cp\"]")));
    p.write("scripts/q.sh", "cp /in/scripts/lib/data.json /out/\n");
    p.write("scripts/lib/sub/helper.py", "N = 1\n");
    p.write("scripts/lib/data.json", "{}");
    p.write("elsewhere/linked.py", "N = 1\n");
    std::os::unix::fs::symlink("../../elsewhere/linked.py", p.path("scripts/lib/linked.py")).unwrap();
    assert_eq!(p.built(), ["q"]);
    for (file, text) in
        [("scripts/lib/sub/helper.py", "N = 2\n"), ("scripts/lib/data.json", "{ }"), ("elsewhere/linked.py", "N = 2\n")]
    {
        assert_eq!(p.built(), [""; 0]);
        p.write(file, text);
        assert_eq!(p.built(), ["q"], "{file}");
    }
}
