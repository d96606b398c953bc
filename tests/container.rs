//! Steps in containers, by a real engine: what a step sees, what it can't, and how it ends.
//!
//! Docker must be there. On a machine without it, `GRAFTWERK_SKIP_DOCKER=1` leaves these tests out, though never in CI.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
mod image;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::Project;
use image::{Image, containers, docker, skipped};

/// A project with one step that runs this shell script in the image.
fn project(image: &Image, script: &str, more: &str) -> Project {
    let p = Project::new(&graph(image, more));
    p.write("scripts/step.sh", script);
    p.write("data/f", "of the data\n");
    std::os::unix::fs::symlink("f", p.path("data/link")).unwrap();
    p
}

fn graph(image: &Image, more: &str) -> String {
    format!(
        "[source]\nscripts = {{ folder = \"scripts\" }}\ndata = {{ folder = \"data\" }}\n[node.step]\nkind = \"run\"\n\
         image = \"{}\"\ninputs = {{ scripts = \"scripts\", data = \"data\" }}\n\
         argv = [\"sh\", \"{{in.scripts}}/step.sh\", \"{{out}}\"]\n{more}\n",
        image.name
    )
}

fn log(p: &Project) -> String {
    p.run(&["log", "step"]).stdout
}

#[test]
fn a_step_sees_its_inputs_and_nothing_that_it_did_not_declare() {
    if skipped() {
        return;
    }
    let image = Image::new();
    let script = r#"
        set -e
        cat /in/data/f /in/data/link > $1/seen
        for try in "touch /x" "touch /in/data/new" "sh -c 'echo x > /in/data/f'" "chmod 777 /in/data/f" "rm /in/data/f"; do
            if eval "$try" 2>/dev/null; then echo "$try: worked" >> $1/worked; fi
        done
        ls / | sort | tr '\n' ' ' > $1/top
        env | grep -v -e ^PWD= -e ^SHLVL= -e ^OLDPWD= | sort > $1/env
        grep -e ^Cap -e ^NoNewPrivs /proc/self/status > $1/caps
        ls /sys/class/net > $1/network
        cat /proc/1/comm > $1/init
        echo fresh > /tmp/t; touch /dev/shm/s; id -u > $1/uid
    "#;
    let p = project(&image, script, "env = { DECLARED = \"{in.data}/f\" }");
    let r = p.command(&["build"]).env("UNDECLARED", "1").env("LANG", "de_DE.UTF-8").output().unwrap();
    assert!(r.status.success(), "{}", String::from_utf8_lossy(&r.stderr));
    let out = |name: &str| fs::read_to_string(p.node_path("step").join(name)).unwrap();
    assert_eq!(out("seen"), "of the data\nof the data\n");
    assert!(!p.node_path("step").join("worked").exists(), "{}", out("worked"));
    assert_eq!(
        out("env"),
        "DECLARED=/in/data/f\nHOME=/tmp\nHOSTNAME=graftwerk\nLANG=C.UTF-8\nLC_ALL=C.UTF-8\nLOGNAME=graftwerk\n\
         NVIDIA_VISIBLE_DEVICES=void\nOF_IMAGE=yes\nPATH=/bin\nTMPDIR=/tmp\nTZ=UTC\nUSER=graftwerk\n"
    );
    assert!(out("caps").lines().all(|l| l.ends_with("0000000000000000") || l == "NoNewPrivs:\t1"), "{}", out("caps"));
    assert_eq!((out("network").as_str(), out("init").trim()), ("lo\n", "docker-init"));
    let top = "bin dev etc in in.json out proc sys tmp ";
    assert_eq!(out("top").replace("run ", "").replace("sbin ", ""), top);
    assert_eq!(out("uid").trim(), rustix::process::geteuid().as_raw().to_string());
    assert_eq!(fs::read_to_string(p.path("data/f")).unwrap(), "of the data\n");
    let shown = p.run(&["show", "step", "--json"]).stdout;
    assert!(shown.contains("\"isolation\": \"container\"") || shown.contains("\"isolation\":\"container\""), "{shown}");
    assert_eq!(containers(&p.dir), "");
}

#[test]
fn two_imports_of_one_tarball_are_one_image_and_a_moved_tag_is_a_notice_until_update() {
    if skipped() {
        return;
    }
    let image = Image::new();
    let p = project(&image, "echo $OF_IMAGE > $1/x", "");
    assert_eq!(p.built(), ["step"]);
    let lock = p.read("graph.lock");
    assert!(lock.contains(&format!("[image.\"{}\"]", image.name)), "{lock}");
    // Another id, the same layers and configuration.
    let first = image.id();
    image.import("yes");
    assert_ne!(image.id(), first);
    assert_eq!(p.built(), [""; 0]);
    assert_eq!(p.read("graph.lock"), lock);
    // Another image under the same name: what was built is still right, and says so.
    image.import("no");
    let plan = p.run(&["plan"]);
    assert!(plan.stderr.contains("graph.lock holds") && plan.stderr.contains("graftwerk update"), "{}", plan.stderr);
    assert_eq!(p.built(), [""; 0]);
    let r = p.run(&["update", &image.name]);
    assert_eq!(r.code, Some(0), "{}", r.stderr);
    assert!(r.stdout.contains('→'), "{}", r.stdout);
    assert_eq!(p.built(), ["step"]);
    assert_eq!(fs::read_to_string(p.node_path("step").join("x")).unwrap(), "no\n");
    let why = p.run(&["why", "step"]).stdout;
    assert!(why.contains("image"), "{why}");
}

#[test]
fn the_image_of_the_lock_runs_even_after_its_name_moved_and_one_that_is_gone_is_an_error() {
    if skipped() {
        return;
    }
    let image = Image::new();
    // No other image is the same.
    let mine = format!("yes{}", std::process::id());
    image.import(&mine);
    let p = project(&image, "echo $OF_IMAGE > $1/x", "");
    p.build();
    let kept = Image::named(&image.id());
    image.import("no");
    p.write("scripts/step.sh", "echo again $OF_IMAGE > $1/x");
    assert_eq!(p.built(), ["step"]);
    assert_eq!(fs::read_to_string(p.node_path("step").join("x")).unwrap(), format!("again {mine}\n"));
    drop(kept);
    docker(&[
        "rmi",
        "-f",
        &p.read("graph.lock").lines().find_map(|l| l.strip_prefix("id = \"")).unwrap().replace('"', ""),
    ]);
    p.write("scripts/step.sh", "echo third > $1/x");
    let r = p.run(&["build"]);
    assert_eq!(r.code, Some(1));
    assert!(r.stderr.contains("no longer has the image") && r.stderr.contains("graftwerk update"), "{}", r.stderr);
}

#[test]
fn without_an_engine_a_plan_still_works_and_a_build_says_what_to_start() {
    if skipped() {
        return;
    }
    let image = Image::new();
    let p = project(&image, "echo x > $1/x", "");
    p.build();
    p.write("scripts/step.sh", "echo y > $1/x");
    let without = |args: &[&str]| {
        let o = p.command(args).env("DOCKER_HOST", "unix:///nowhere/docker.sock").output().unwrap();
        (
            o.status.code(),
            String::from_utf8_lossy(&o.stdout).into_owned(),
            String::from_utf8_lossy(&o.stderr).into_owned(),
        )
    };
    let (code, stdout, _) = without(&["plan"]);
    assert_eq!(code, Some(0));
    assert!(stdout.contains("step") && stdout.contains("scripts"), "{stdout}");
    let (code, _, stderr) = without(&["build"]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("/nowhere/docker.sock") && stderr.contains("systemctl start docker"), "{stderr}");
    // The graph may name one, too; the environment wins.
    p.write("graph.toml", format!("{}[engine]\nhost = \"unix:///elsewhere/docker.sock\"\n", p.read("graph.toml")));
    let r = p.run(&["build"]);
    assert!(r.code == Some(1) && r.stderr.contains("/elsewhere/docker.sock"), "{}", r.stderr);
    let (_, _, stderr) = without(&["build"]);
    assert!(stderr.contains("/nowhere/docker.sock"), "{stderr}");
    // A name that was never resolved can't be guessed.
    fs::remove_file(p.path("graph.lock")).unwrap();
    let (code, _, stderr) = without(&["build"]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("is not in graph.lock yet"), "{stderr}");
}

#[test]
fn exit_code_signal_want_of_memory_and_time_limit_are_told_apart_and_nothing_is_published() {
    if skipped() {
        return;
    }
    let image = Image::new();
    let cases = [
        ("echo bad; exit 3", "", "exited with code 3"),
        ("kill -SEGV $$", "", "signal 11 (SIGSEGV)"),
        ("sleep 60", "timeout = 1", "time limit of 1 s"),
        ("tail /dev/zero", "memory = \"32MiB\"", "more than its limit of 32.0 MiB"),
        ("exec nowhere", "", "exited with code 127"),
        ("true", "", "wrote nothing"),
    ];
    for (script, more, said) in cases {
        let p = project(&image, &format!("echo begun > $1/x; {script}"), more);
        if said == "wrote nothing" {
            p.write("scripts/step.sh", script);
        }
        let r = p.run(&["build"]);
        assert_eq!(r.code, Some(1), "{script}");
        assert!(r.stderr.contains(said), "{script}: {}", r.stderr);
        assert_eq!(p.run(&["path", "step"]).code, Some(1), "{script}");
        assert_eq!(containers(&p.dir), "", "{script}");
    }
}

#[test]
fn both_streams_are_kept_whole_however_long_a_line_is_and_whatever_bytes_it_has() {
    if skipped() {
        return;
    }
    let image = Image::new();
    let script = r#"
        echo first; echo to stderr >&2
        head -c 10000000 /dev/zero | tr '\0' x
        printf '\n\377\376 no text\n'
        (sleep 30; echo late) &
        echo last; echo x > $1/x
    "#;
    let p = project(&image, script, "");
    let begun = Instant::now();
    p.build();
    // The child that keeps the stream open ends with the container.
    assert!(begun.elapsed() < Duration::from_secs(25));
    let shown = p.run(&["log", "step"]).stdout;
    let long = shown.lines().map(str::len).max().unwrap();
    assert_eq!(long, 10_000_000);
    for part in ["first\n", "to stderr\n", "\u{fffd}\u{fffd} no text\n", "last\n"] {
        assert!(shown.contains(part), "{part}");
    }
    assert!(!shown.contains("late"));
    let kept: Vec<_> = fs::read_dir(p.path("store/logs")).unwrap().map(|e| e.unwrap()).collect();
    assert_eq!(kept.len(), 1);
    assert!(kept[0].file_name().to_string_lossy().ends_with(".log.zst") && kept[0].metadata().unwrap().len() < 100_000);
}

#[test]
fn what_a_root_image_writes_belongs_to_the_caller_who_can_collect_it() {
    if skipped() {
        return;
    }
    let image = Image::new();
    let script =
        "id -u > $1/who; mkdir $1/sub; echo x > $1/sub/f; chmod 000 $1/sub/f; chmod 700 $1/sub; echo t > /tmp/left";
    for user in ["", "user = \"0:0\"", "user = \"4321:4321\""] {
        let p = project(&image, script, user);
        // An unprivileged caller, who may use the engine.
        let open = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        open(p.holder(), 0o755);
        for path in [p.dir.clone(), p.path("scripts"), p.path("data")] {
            std::os::unix::fs::chown(&path, Some(1000), Some(1000)).unwrap();
        }
        let socket = image::open_socket();
        let run = |args: &[&str]| {
            let mut c = p.command(args);
            std::os::unix::process::CommandExt::uid(&mut c, 1000);
            std::os::unix::process::CommandExt::gid(&mut c, 1000);
            c.env("DOCKER_HOST", format!("unix://{}", socket.path().display())).env("HOME", "/nonexistent");
            let o = c.output().unwrap();
            assert!(o.status.success(), "{user} {args:?}: {}", String::from_utf8_lossy(&o.stderr));
        };
        run(&["build"]);
        let made = p.path("out/step").canonicalize().unwrap();
        let who = fs::read_to_string(made.join("who")).unwrap();
        assert_eq!(
            who.trim(),
            ["1000", "0", "4321"][usize::from(!user.is_empty()) + usize::from(user.contains("4321"))]
        );
        assert_eq!(fs::read_to_string(made.join("sub/f")).unwrap(), "x\n");
        for (path, _) in common::files(&p.path("store")) {
            assert_eq!(fs::symlink_metadata(p.path("store").join(&path)).unwrap().uid(), 1000, "{path:?}");
        }
        run(&["roots", "--forget", "graph.toml"]);
        fs::remove_dir_all(p.path("out")).unwrap();
        run(&["gc"]);
        assert!(!made.exists());
        run(&["build"]);
    }
}

#[test]
fn a_secret_is_found_nowhere_and_its_value_is_no_part_of_the_recipe() {
    if skipped() {
        return;
    }
    let image = Image::new();
    let value = format!("hf_TESTSECRET{}", std::process::id());
    let script = r#"
        test "$TOKEN" = "Bearer $(cat /run/secrets/HF_TOKEN)"
        echo the token is $TOKEN; echo $TOKEN > /tmp/t
        test -e $1/../in/data/leak && echo $TOKEN > $1/leak
        echo done > $1/x; sleep 1
    "#;
    let more = "secrets = [\"HF_TOKEN\"]\nenv = { TOKEN = \"Bearer {secret.HF_TOKEN}\" }";
    let p = project(&image, script, more);
    let missing = p.command(&["build"]).env_remove("HF_TOKEN").output().unwrap();
    assert_eq!(missing.status.code(), Some(2));
    let said = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(said.contains("HF_TOKEN is not set"), "{said}");

    let everywhere = |when: &str| {
        for place in [p.holder(), Path::new("/var/lib/docker/containers"), Path::new("/var/lib/docker/image")] {
            let found = Command::new("grep").args(["-rlF", &value]).arg(place).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&found.stdout), "", "{when}");
        }
    };
    let mut build = p.command(&["build"]).env("HF_TOKEN", &value).stderr(Stdio::null()).spawn().unwrap();
    image::until(|| !containers(&p.dir).is_empty());
    everywhere("while it runs");
    assert!(build.wait().unwrap().success());
    everywhere("at the end");
    assert!(log(&p).contains("the token is Bearer ***"), "{}", log(&p));
    // Another value: the same recipe.
    let again = p.command(&["build", "--json"]).env("HF_TOKEN", "another-one").output().unwrap();
    assert!(String::from_utf8_lossy(&again.stdout).contains("\"fresh\""));
    // In a result it is refused.
    p.write("data/leak", "1");
    let leaked = p.command(&["build"]).env("HF_TOKEN", &value).output().unwrap();
    assert_eq!(leaked.status.code(), Some(1));
    let said = String::from_utf8_lossy(&leaked.stderr).into_owned();
    assert!(said.contains("leak of the output holds the secret HF_TOKEN"), "{said}");
    everywhere("after a leak");
    // Nor after kill -9.
    p.edit("scripts/step.sh", "sleep 1", "sleep 60");
    fs::remove_file(p.path("data/leak")).unwrap();
    let mut build = p.command(&["build"]).env("HF_TOKEN", &value).stderr(Stdio::null()).spawn().unwrap();
    image::until(|| !containers(&p.dir).is_empty());
    build.kill().unwrap();
    build.wait().unwrap();
    everywhere("after kill -9");
    p.edit("scripts/step.sh", "sleep 60", "sleep 0");
    let last = p.command(&["build"]).env("HF_TOKEN", &value).output().unwrap();
    assert!(last.status.success());
    everywhere("after the next run");
    assert_eq!(containers(&p.dir), "");
    let left = fs::read_dir("/dev/shm").unwrap().filter_map(Result::ok);
    let left: Vec<_> = left.filter(|e| e.file_name().to_string_lossy().contains("graftwerk-secrets")).collect();
    assert!(left.iter().all(|e| !e.file_name().to_string_lossy().contains(&format!("-{}-", build.id()))), "{left:?}");
}

#[test]
fn ctrl_c_ends_the_container_and_after_kill_9_the_next_run_removes_its_own_and_no_other() {
    if skipped() {
        return;
    }
    let image = Image::new();
    let p = project(&image, "trap 'echo asked; exit 9' TERM; echo x > $1/x; sleep 600 & wait", "");
    let mut build = p.command(&["build"]).stderr(Stdio::null()).spawn().unwrap();
    image::until(|| !containers(&p.dir).is_empty());
    let pid = rustix::process::Pid::from_raw(i32::try_from(build.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let begun = Instant::now();
    assert_eq!(build.wait().unwrap().code(), Some(130));
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert_eq!(containers(&p.dir), "");

    // Somebody else's, with a name and a label that look like ours.
    let other = docker(&[
        "run",
        "-d",
        "--name",
        &format!("graftwerk-step-{}", std::process::id()),
        "--network",
        "none",
        "--label",
        "graftwerk.run=1",
        &image.name,
        "sleep",
        "600",
    ]);
    let mut build = p.command(&["build"]).stderr(Stdio::null()).spawn().unwrap();
    image::until(|| !containers(&p.dir).is_empty());
    build.kill().unwrap();
    build.wait().unwrap();
    let orphan = containers(&p.dir);
    assert_ne!(orphan, "", "it outlives its client");
    p.write("scripts/step.sh", "echo y > $1/x");
    p.build();
    assert_eq!(containers(&p.dir), "");
    assert_eq!(fs::read_to_string(p.node_path("step").join("x")).unwrap(), "y\n");
    assert_eq!(docker(&["inspect", "-f", "{{.State.Running}}", other.trim()]).trim(), "true");
    docker(&["rm", "-f", other.trim()]);
}

#[test]
fn a_program_that_lies_where_a_step_has_a_folder_of_its_own_runs_steps_all_the_same() {
    if skipped() {
        return;
    }
    let image = Image::new();
    let p = project(&image, "test $S = secret && echo x > $1/x", "secrets = [\"S_S\"]\nenv = { S = \"{secret.S_S}\" }");
    let here = tempfile::tempdir_in("/tmp").unwrap();
    let program = here.path().join("graftwerk");
    common::copy_program(&program);
    let built = Command::new(program).arg("build").current_dir(&p.dir).env("S_S", "secret").output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

#[test]
fn twenty_steps_leave_no_container_and_no_volume_behind() {
    if skipped() {
        return;
    }
    let image = Image::new();
    let mut graph = graph(&image, "");
    for n in 0..20 {
        graph += &format!(
            "[node.n{n}]\nkind = \"run\"\nimage = \"{}\"\nparams = {{ n = {n} }}\n\
             argv = [\"sh\", \"-c\", \"echo {{param.n}} > {{out}}/x\"]\n",
            image.name
        );
    }
    let p = project(&image, "echo x > $1/x", "");
    p.write("graph.toml", graph);
    let volumes = docker(&["volume", "ls", "-q"]);
    assert_eq!(p.built().len(), 21);
    assert_eq!(containers(&p.dir), "");
    assert_eq!(docker(&["volume", "ls", "-q"]), volumes);
}

#[test]
fn an_engine_that_does_not_see_our_files_is_refused_with_the_reason() {
    if skipped() {
        return;
    }
    // An engine in another mount namespace, as on another machine: it is spoken to by tcp.
    let image = Image::new();
    let far = image::FarEngine::start();
    far.load(&image);
    let p = project(&image, "echo x > $1/x", "");
    let o = p.command(&["build"]).env("DOCKER_HOST", far.address()).output().unwrap();
    assert_eq!(o.status.code(), Some(1));
    let said = String::from_utf8_lossy(&o.stderr).into_owned();
    assert!(said.contains("does not see the files of this machine"), "{said}");
    assert!(said.contains("tcp://127.0.0.1"), "{said}");
}
