//! Neighbours of a card always come back: a window is opened against a real engine, its process killed at every kind of
//! moment, and the next command brings them back. Two that share a neighbour never start it under each other.
//!
//! Docker must be there. On a machine without it, `GRAFTWERK_SKIP_DOCKER=1` leaves this test out, though never in CI.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod image;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use graftwerk::engine::{Address, Engine};
use graftwerk::graph::{Name, Span, WindowSpec};
use graftwerk::window::{self, Purpose, WindowKeeper};
use image::{Image, docker, skipped};

/// A folder for the host's own things, a project, and containers that are gone when this is.
struct Host {
    dir: tempfile::TempDir,
    containers: Vec<String>,
    image: Image,
}

/// Ends by itself when it is told to.
const WELL: &str = "trap 'exit 0' TERM; touch /dev/shm/ok; while :; do sleep 0.1; done";
/// Is healthy only the first time.
const SICK: &str = "trap 'exit 0' TERM; if test -e /first; then echo CUDA out of memory; else touch /first /dev/shm/ok; fi; \
                    while :; do sleep 0.1; done";
/// Runs only the first time.
const DIES: &str =
    "trap 'exit 0' TERM; if test -e /first; then echo no card; exit 3; fi; touch /first; while :; do sleep 0.1; done";

impl Host {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("project")).unwrap();
        fs::write(dir.path().join("project/graph.toml"), "").unwrap();
        Self { dir, containers: Vec::new(), image: Image::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn named(&mut self, what: &str) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("gw-test-{}-{n}-{what}", std::process::id());
        self.containers.push(name.clone());
        name
    }

    fn run(&mut self, what: &str, options: &[&str], script: &str) -> String {
        let name = self.named(what);
        let mut args = vec!["run", "-d", "--network", "none", "--name", &name];
        args.extend(options);
        args.extend([self.image.name.as_str(), "sh", "-c", script]);
        docker(&args);
        name
    }

    /// A neighbour whose check says how it is.
    fn checked(&mut self, what: &str, script: &str) -> String {
        let check = ["--health-cmd", "test -e /dev/shm/ok", "--health-interval", "500ms", "--health-retries", "2"];
        let name = self.run(what, &check, script);
        while docker(&["inspect", "-f", "{{.State.Health.Status}}", &name]).trim() != "healthy" {
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        name
    }

    fn command(&self, program: &Path) -> Command {
        let mut c = Command::new(program);
        c.env("GRAFTWERK_HOST_DIR", self.path("host"));
        c
    }

    fn child(&self, what: &str, names: &[&str]) -> Command {
        let mut c = self.command(&std::env::current_exe().unwrap());
        c.args(["--exact", "what_a_child_does", "--ignored", "--nocapture"])
            .env("GRAFTWERK_TEST_CHILD", format!("{what} {}", names.join(",")))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        c
    }

    fn start(&self, what: &str, names: &[&str]) -> Running {
        Running::of(&mut self.child(what, names))
    }

    fn graftwerk(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let out = self
            .command(Path::new(env!("CARGO_BIN_EXE_graftwerk")))
            .args(args)
            .arg("-C")
            .arg(self.path("project"))
            .output()
            .unwrap();
        texts(&out)
    }

    fn intents(&self) -> usize {
        fs::read_dir(self.path("host/state/windows"))
            .map_or(0, |d| d.filter(|e| e.as_ref().unwrap().path().extension().is_some_and(|x| x == "json")).count())
    }
}

fn texts(out: &Output) -> (Option<i32>, String, String) {
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    (out.status.code(), text(&out.stdout), text(&out.stderr))
}

impl Drop for Host {
    fn drop(&mut self) {
        for name in &self.containers {
            let _ = Command::new("docker").args(["rm", "-f", name]).output();
        }
    }
}

fn runs(name: &str) -> bool {
    docker(&["inspect", "-f", "{{.State.Running}}", name]).trim() == "true"
}

fn healthy(name: &str) -> bool {
    docker(&["inspect", "-f", "{{.State.Health.Status}}", name]).trim() == "healthy"
}

/// A child of this test, to which one word at a time is said.
struct Running {
    child: Child,
    tells: Option<ChildStdin>,
    said: BufReader<ChildStdout>,
}

impl Running {
    fn of(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let tells = child.stdin.take();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, tells, said }
    }

    /// What it answers next, behind `> `.
    fn says(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.said.read_line(&mut line).unwrap() > 0, "it ended without a word");
            if let Some(at) = line.find("> ") {
                return line[at + 2..].trim().to_owned();
            }
        }
    }

    fn go_on(&mut self) {
        self.tells.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spec(name: &str, stop: &str) -> WindowSpec {
    WindowSpec {
        name: Name::new(name).unwrap(),
        stop: stop.split(',').map(str::to_owned).collect(),
        grace_seconds: 2,
        healthy_seconds: 8,
        about: None,
        span: Span::default(),
    }
}

#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn what_a_child_does() {
    let Ok(what) = std::env::var("GRAFTWERK_TEST_CHILD") else { return };
    let (what, names) = what.split_once(' ').unwrap();
    let socket = std::env::var("GRAFTWERK_TEST_SOCKET").unwrap_or_else(|_| "/var/run/docker.sock".to_owned());
    let engine = Arc::new(Engine::connect(&Address::Unix(socket.into())).unwrap());
    let purpose = Purpose { node: "quant-a".into(), store: "/store".into() };
    let tell = |line: &str| println!("  {line}");
    let go_on = || std::io::stdin().read_line(&mut String::new()).unwrap();
    let spec = spec("seats", names);
    match what {
        "open" | "cycle" => match window::open(&spec, &engine, &purpose, &tell, &|| false) {
            Ok(open) => {
                let open = open.unwrap();
                println!("> open {}", open.id());
                if what == "open" {
                    go_on();
                }
                match open.close(&tell, &|| false) {
                    Ok(()) => println!("> closed"),
                    Err(e) => println!("> error: {}", e.to_string().replace('\n', "|")),
                }
            }
            Err(e) => println!("> error: {e}"),
        },
        "keeper" => {
            let keeper = WindowKeeper::new();
            let enter = || keeper.enter(&spec, &engine, &purpose, &tell, &|| false).unwrap().unwrap();
            let (first, second) = (enter(), enter());
            assert_eq!(first, second, "one window for both");
            keeper.leave("seats");
            assert!(keeper.close_unless(&|_| false, &tell, &|| false).is_empty());
            println!("> one step is still in it");
            go_on();
            keeper.leave("seats");
            assert!(keeper.close_unless(&|name| name == "seats", &tell, &|| false).is_empty());
            println!("> the next step is about to enter");
            go_on();
            assert!(keeper.finish(&tell, &|| false).is_empty());
            println!("> finished");
            go_on();
        }
        "cancel" => {
            assert!(window::open(&spec, &engine, &purpose, &tell, &|| true).unwrap().is_none());
            println!("> cancelled");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn those_that_ran_are_stopped_and_come_back_healthy_and_the_others_stay_as_they_are() {
    if skipped() {
        return;
    }
    let mut host = Host::new();
    let (a, b) = (host.checked("a", WELL), host.run("b", &[], WELL));
    let off = host.run("off", &[], WELL);
    docker(&["stop", "-t", "1", &off]);
    let mut child = host.start("open", &[&a, &off, &b]);
    assert!(child.says().starts_with("open "));
    assert!(!runs(&a) && !runs(&b));
    let (code, shown, _) = host.graftwerk(&["window", "status"]);
    assert_eq!(code, Some(0));
    assert!(shown.contains("seats: open") && shown.contains(&format!("{a}, {b}")) && !shown.contains(&off), "{shown}");
    child.go_on();
    assert_eq!(child.says(), "closed");
    assert!(healthy(&a) && runs(&b) && !runs(&off));
    assert_eq!(host.intents(), 0);
    let (code, shown, _) = host.graftwerk(&["window", "status", "--json"]);
    assert_eq!((code, shown.trim()), (Some(0), "{\"windows\":[],\"ok\":true}"));
}

#[test]
fn killed_at_any_point_while_neighbours_are_stopped_they_run_again_after_the_next_command() {
    if skipped() {
        return;
    }
    let mut host = Host::new();
    let (a, b, c) = (host.checked("a", WELL), host.run("b", &[], WELL), host.checked("c", WELL));
    let names = [a.as_str(), b.as_str(), c.as_str()];
    // Once before, so that every lock's file is there: then one cycle is like the other.
    assert!(host.child("cycle", &names).output().unwrap().status.success());
    let trace = host.path("trace");
    let mut whole = host.child("cycle", &names);
    whole.env("GRAFTWERK_FAILPOINT", format!("trace={}", trace.display()));
    assert!(whole.output().unwrap().status.success());
    let trace = fs::read_to_string(trace).unwrap();
    let number = |wanted: &str| trace.lines().position(|l| l.contains(wanted)).unwrap() + 1;
    // From the moment when the first is stopped to the one before the last is started; and just before and behind.
    let (first, last) = (number(&format!("stop {a}")) + 1, number(&format!("start {a}")));
    let wanted = std::env::var("GRAFTWERK_TEST_POINTS").map_or(10, |n| n.parse().unwrap());
    assert!(last - first >= 9, "{trace}");
    let within = (0..wanted).map(|i| first + i * (last - first) / (wanted - 1));
    let points: Vec<usize> = within.chain([first - 1, last + 1, last + 2]).collect();
    for (i, n) in points.iter().enumerate() {
        let mut broken = host.child("cycle", &names);
        let out = broken.env("GRAFTWERK_FAILPOINT", format!("kill@{n}")).output().unwrap();
        assert_eq!(out.status.signal(), Some(9), "no kill before call {n}: {:?}", texts(&out));
        let before: Vec<bool> = names.iter().map(|n| runs(n)).collect();
        assert!(i >= wanted || before.contains(&false), "killed before call {n}, {before:?} run");
        assert_eq!(host.intents(), 1, "killed before call {n}");
        // Every second time it is another command.
        let command: &[&str] = if i % 2 == 0 { &["status"] } else { &["window", "restore"] };
        let (code, said, told) = host.graftwerk(command);
        assert_eq!(code, Some(0), "killed before call {n} ({before:?}): {said}{told}");
        assert!(names.iter().all(|n| runs(n)), "killed before call {n} ({before:?}): {told}");
        assert!(healthy(&a) && healthy(&c), "killed before call {n} ({before:?}): {told}");
        assert_eq!(host.intents(), 0, "killed before call {n}");
    }
    println!(
        "{wanted} kills between calls {first} and {last} with neighbours stopped, and {} beside",
        points.len() - wanted
    );
}

#[test]
fn two_windows_that_share_a_neighbour_never_start_it_under_each_other() {
    if skipped() {
        return;
    }
    let mut host = Host::new();
    let (a, shared, c) = (host.run("a", &[], WELL), host.run("shared", &[], WELL), host.run("c", &[], WELL));
    let mut first = host.start("open", &[&a, &shared]);
    assert!(first.says().starts_with("open "));
    let mut second = host.start("open", &[&shared, &c]);
    assert!(second.says().starts_with("open "));
    first.go_on();
    assert_eq!(first.says(), "closed");
    assert!(runs(&a) && !runs(&shared) && !runs(&c), "the second still needs it");
    second.go_on();
    assert_eq!(second.says(), "closed");
    assert!(runs(&shared) && runs(&c));

    // The same where the first, which stopped it, is killed.
    let mut first = host.start("open", &[&a, &shared]);
    assert!(first.says().starts_with("open "));
    let mut second = host.start("open", &[&shared, &c]);
    assert!(second.says().starts_with("open "));
    first.kill();
    let (code, _, told) = host.graftwerk(&["status"]);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains(&format!("{shared} stays stopped: another window needs it so")), "{told}");
    assert!(runs(&a) && !runs(&shared));
    second.go_on();
    assert_eq!(second.says(), "closed");
    assert!(runs(&a) && runs(&shared) && runs(&c));

    // And where the second is, which found it stopped.
    let mut first = host.start("open", &[&a, &shared]);
    assert!(first.says().starts_with("open "));
    let mut second = host.start("open", &[&shared, &c]);
    assert!(second.says().starts_with("open "));
    first.go_on();
    assert_eq!(first.says(), "closed");
    second.kill();
    assert!(!runs(&shared));
    assert_eq!(host.graftwerk(&["status"]).0, Some(0));
    assert!(runs(&a) && runs(&shared) && runs(&c));
    assert_eq!(host.intents(), 0);
}

#[test]
fn what_a_crash_left_stopped_is_owed_by_whoever_opens_next() {
    if skipped() {
        return;
    }
    let mut host = Host::new();
    let a = host.run("a", &[], WELL);
    let mut first = host.start("open", &[&a]);
    assert!(first.says().starts_with("open "));
    first.kill();
    let mut second = host.start("open", &[&a]);
    assert!(second.says().starts_with("open "));
    second.go_on();
    assert_eq!(second.says(), "closed");
    assert!(runs(&a));
    assert_eq!(host.graftwerk(&["window", "status"]).0, Some(1), "the first one's intent is still there");
    assert_eq!(host.graftwerk(&["window", "restore"]).0, Some(0));
    assert_eq!(host.intents(), 0);
}

#[test]
fn a_step_whose_client_was_killed_is_ended_before_its_neighbours_start_and_no_other() {
    if skipped() {
        return;
    }
    let mut host = Host::new();
    let a = host.run("a", &[], WELL);
    let mut child = host.start("open", &[&a]);
    let id = child.says().strip_prefix("open ").unwrap().to_owned();
    let step = host.run("step", &["--label", &format!("graftwerk.window={id}")], "sleep 600");
    let foreign = host.run("step2", &["--label", "graftwerk.window=another"], WELL);
    child.kill();
    assert!(runs(&step) && !runs(&a));
    let (code, said, told) = host.graftwerk(&["window", "restore", "--json"]);
    assert_eq!(code, Some(0), "{told}");
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["restored"][0]["back"], serde_json::json!([a]));
    assert!(runs(&a) && runs(&foreign));
    let gone = Command::new("docker").args(["inspect", &step]).output().unwrap();
    assert!(!gone.status.success(), "the step is gone");
    assert!(told.find("ending the step").unwrap() < told.find(&format!("bringing {a} back")).unwrap(), "{told}");
}

#[test]
fn a_neighbour_that_does_not_get_well_is_a_loud_failure_with_its_last_lines_and_the_others_come_back() {
    if skipped() {
        return;
    }
    let mut host = Host::new();
    let (sick, dies, well) = (host.checked("sick", SICK), host.run("dies", &[], DIES), host.checked("well", WELL));
    let mut child = host.start("open", &[&well, &sick, &dies]);
    assert!(child.says().starts_with("open "));
    child.go_on();
    let said = child.says();
    assert!(
        said.contains(&format!("{sick} was stopped for the window `seats` and did not come back: it is")),
        "{said}"
    );
    assert!(said.contains("CUDA out of memory") && said.contains("after 8 s"), "{said}");
    assert!(
        said.contains(&format!("{dies} was stopped"))
            && said.contains("it ended with code 3")
            && said.contains("no card"),
        "{said}"
    );
    assert!(healthy(&well) && runs(&sick));
    assert_eq!(host.intents(), 0, "what can be done is done");

    // After a crash it is the next command that says so, whatever it was asked.
    docker(&["rm", "-f", &dies]);
    let also = host.run("also", &[], DIES);
    let mut child = host.start("open", &[&well, &also]);
    assert!(child.says().starts_with("open "));
    child.kill();
    let (code, _, told) = host.graftwerk(&["status"]);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("it ended with code 3") && told.contains("no card"), "{told}");
    assert!(healthy(&well));
    assert_eq!(host.graftwerk(&["status"]).0, Some(0), "it was told once");
}

#[test]
fn without_its_engine_the_intent_stays_and_the_next_command_that_reaches_it_does_it() {
    if skipped() {
        return;
    }
    let mut host = Host::new();
    let a = host.run("a", &[], WELL);
    let socket = host.path("engine.sock");
    std::os::unix::fs::symlink("/var/run/docker.sock", &socket).unwrap();
    let mut child = host.child("open", &[&a]);
    let mut child = Running::of(child.env("GRAFTWERK_TEST_SOCKET", &socket));
    assert!(child.says().starts_with("open "));
    child.kill();
    fs::remove_file(&socket).unwrap();
    let (code, _, told) = host.graftwerk(&["window", "restore"]);
    assert_eq!(code, Some(1));
    assert!(told.contains("does not answer") && told.contains("engine.sock"), "{told}");
    assert_eq!(host.intents(), 1);
    std::os::unix::fs::symlink("/var/run/docker.sock", &socket).unwrap();
    let (code, _, told) = host.graftwerk(&["status"]);
    assert_eq!(code, Some(0), "{told}");
    assert!(runs(&a));
    assert_eq!(host.intents(), 0);
}

#[test]
fn nothing_is_stopped_where_a_neighbour_is_not_there_or_it_is_cancelled_and_a_damaged_intent_is_told() {
    if skipped() {
        return;
    }
    let mut host = Host::new();
    let a = host.run("a", &[], WELL);
    let said = host.start("open", &[&a, "gw-no-such"]).says();
    assert!(said.contains("is to stop the container gw-no-such") && said.contains("has none of that name"), "{said}");
    assert!(runs(&a));
    assert_eq!(host.start("cancel", &[&a]).says(), "cancelled");
    assert!(runs(&a));
    assert_eq!(host.intents(), 0);
    fs::create_dir_all(host.path("host/state/windows")).unwrap();
    fs::write(host.path("host/state/windows/x.json"), "{\n  \"id\": \"x\"\n}\n").unwrap();
    let (code, _, told) = host.graftwerk(&["window", "restore"]);
    assert_eq!(code, Some(1));
    assert!(told.contains("x.json does not end with its sum"), "{told}");
    assert_eq!(host.intents(), 1, "nobody removes what can't be read");
}

#[test]
fn steps_that_follow_each_other_share_one_window() {
    if skipped() {
        return;
    }
    let mut host = Host::new();
    let a = host.run("a", &[], WELL);
    let mut child = host.start("keeper", &[&a]);
    for state in ["one step is still in it", "the next step is about to enter"] {
        assert_eq!(child.says(), state);
        assert!(!runs(&a));
        child.go_on();
    }
    assert_eq!(child.says(), "finished");
    assert!(runs(&a));
    child.go_on();
}

#[test]
fn whoever_brings_back_may_be_killed_too() {
    if skipped() {
        return;
    }
    let mut host = Host::new();
    let (a, b) = (host.run("a", &[], WELL), host.run("b", &[], WELL));
    let program = PathBuf::from(env!("CARGO_BIN_EXE_graftwerk"));
    let restore = |host: &Host, failpoint: String| {
        let mut c = host.command(&program);
        c.args(["window", "restore", "-C"]).arg(host.path("project")).env("GRAFTWERK_FAILPOINT", failpoint);
        c.output().unwrap()
    };
    let left = |host: &Host| {
        let mut child = host.start("open", &[&a, &b]);
        assert!(child.says().starts_with("open "));
        child.kill();
    };
    left(&host);
    let trace = host.path("trace");
    assert!(restore(&host, format!("trace={}", trace.display())).status.success());
    let calls = fs::read_to_string(trace).unwrap().lines().count();
    assert!(calls > 6);
    for i in 0..6 {
        left(&host);
        let n = 1 + i * (calls - 1) / 5;
        assert_eq!(restore(&host, format!("kill@{n}")).status.signal(), Some(9), "no kill before call {n} of {calls}");
        assert_eq!(host.graftwerk(&["status"]).0, Some(0), "killed before call {n}");
        assert!(runs(&a) && runs(&b), "killed before call {n}");
        assert_eq!(host.intents(), 0, "killed before call {n}");
    }
}

/// Says of one GPU that the process FAKE_NVML_PID holds its memory as long as the file FAKE_NVML_HELD is there.
const LIBRARY: &str = r#"
#include <string.h>
#include <stdlib.h>
#include <unistd.h>
typedef struct { unsigned v; unsigned long long total, reserved, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long bytes; unsigned gi, ci; } Process;
static int device;
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int e) { return "an error"; }
int nvmlSystemGetDriverVersion(char *s, unsigned n) { strncpy(s, "570.124.06", n); return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, int **d) { *d = &device; return 0; }
int nvmlDeviceGetUUID(int *d, char *s, unsigned n) { strncpy(s, "GPU-aaaa", n); return 0; }
int nvmlDeviceGetName(int *d, char *s, unsigned n) { strncpy(s, "NVIDIA H200", n); return 0; }
int nvmlDeviceGetMemoryInfo_v2(int *d, Memory *m) { m->total = m->free = 140ULL << 30; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(int *d, unsigned *n, Process *p) {
  unsigned have = access(getenv("FAKE_NVML_HELD"), F_OK) == 0;
  if (*n < have) { *n = have; return 7; }
  *n = have;
  if (have) { p->pid = atoi(getenv("FAKE_NVML_PID")); p->bytes = 137ULL << 30; }
  return 0;
}
"#;

#[test]
fn neighbours_start_only_when_the_memory_of_a_step_that_was_left_is_free() {
    if skipped() {
        return;
    }
    let mut host = Host::new();
    let a = host.run("a", &[], WELL);
    let (source, library, held) = (host.path("nvml.c"), host.path("libnvidia-ml.so.1"), host.path("held"));
    fs::write(&source, LIBRARY).unwrap();
    let made = Command::new("gcc").args(["-shared", "-fPIC", "-w", "-o"]).arg(&library).arg(&source).status();
    assert!(made.expect("gcc is needed").success());
    let mut child = host.start("open", &[&a]);
    let id = child.says().strip_prefix("open ").unwrap().to_owned();
    let step = host.run("step", &["--label", &format!("graftwerk.window={id}")], "sleep 600");
    fs::write(&held, "").unwrap();
    child.kill();
    let mut restore = host
        .command(Path::new(env!("CARGO_BIN_EXE_graftwerk")))
        .args(["window", "restore"])
        .env("GRAFTWERK_NVML", &library)
        .env("FAKE_NVML_HELD", &held)
        .env("FAKE_NVML_PID", docker(&["inspect", "-f", "{{.State.Pid}}", &step]).trim())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while Command::new("docker").args(["inspect", &step]).output().unwrap().status.success() {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    std::thread::sleep(std::time::Duration::from_millis(700));
    assert!(!runs(&a), "the driver has not given the memory back yet");
    fs::remove_file(&held).unwrap();
    assert!(restore.wait().unwrap().success());
    assert!(runs(&a));
}
