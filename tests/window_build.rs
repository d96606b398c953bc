//! Builds whose steps need neighbours stopped, and a GPU, by a real engine.
//!
//! Docker must be there. On a machine without it, `GRAFTWERK_SKIP_DOCKER=1` leaves these tests out, though never in CI.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
mod image;

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use common::Project;
use graftwerk::fsx::lock::{Tried, try_lock_common};
use image::{Image, containers, docker, skipped, until};

/// A container that is gone when this is.
struct Neighbour(String);

/// Counts its starts.
const WELL: &str = "trap 'exit 0' TERM; echo >> /starts; while :; do sleep 0.1; done";
/// Runs only the first time.
const DIES: &str = "trap 'exit 0' TERM; if test -e /starts; then echo no memory left on the card; exit 3; fi; \
                    echo >> /starts; while :; do sleep 0.1; done";

impl Neighbour {
    fn new(image: &Image, name: &str, script: &str) -> Self {
        let name = format!("{}-{name}", image.name.replace(':', "-"));
        docker(&["run", "-d", "--network", "none", "--name", &name, &image.name, "sh", "-c", script]);
        Self(name)
    }

    fn runs(&self) -> bool {
        docker(&["inspect", "-f", "{{.State.Running}}", &self.0]).trim() == "true"
    }

    fn starts(&self) -> usize {
        docker(&["exec", &self.0, "cat", "/starts"]).lines().count()
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = Command::new("docker").args(["rm", "-f", &self.0]).output();
    }
}

fn node(image: &Image, name: &str, script: &str, more: &str) -> String {
    format!(
        "[node.{name}]\nkind = \"run\"\nimage = \"{}\"\nargv = [\"sh\", \"-c\", \"{script} > {{out}}/x\"]\n{more}\n",
        image.name
    )
}

fn window(neighbours: &[&Neighbour]) -> String {
    let names: Vec<String> = neighbours.iter().map(|n| format!("{:?}", n.0)).collect();
    format!("[window.seats]\nstop = [{}]\ngrace = 2\nhealthy = 10\n", names.join(", "))
}

/// With the host's own things in the project's folder.
fn graftwerk(p: &Project, args: &[&str]) -> Command {
    let mut c = p.command(args);
    c.env("GRAFTWERK_HOST_DIR", p.path("host"));
    c
}

fn ran(p: &Project, args: &[&str]) -> (Option<i32>, String, String) {
    let o = graftwerk(p, args).output().unwrap();
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    (o.status.code(), text(&o.stdout), text(&o.stderr))
}

#[test]
fn steps_that_follow_each_other_stop_their_neighbours_once_and_they_come_back() {
    if skipped() {
        return;
    }
    let image = Image::new();
    let (a, b) = (Neighbour::new(&image, "a", WELL), Neighbour::new(&image, "b", WELL));
    let last = node(&image, "last", "echo last", "inputs.it = \"first\"\nwindow = \"seats\"");
    let first = node(&image, "first", "echo first", "window = \"seats\"");
    let p = Project::new(&format!("{}{first}{last}", window(&[&a, &b])));
    let (code, _, told) = ran(&p, &["build"]);
    assert_eq!(code, Some(0), "{told}");
    assert!(a.runs() && b.runs(), "{told}");
    for line in [format!("notice stopping {} for the window seats", a.0), format!("notice bringing {} back", a.0)] {
        assert!(told.contains(&line), "{told}");
    }
    assert_eq!((a.starts(), b.starts()), (2, 2), "once stopped, once started: {told}");
    assert_eq!(containers(&p.dir), "");
    let (_, shown, _) = ran(&p, &["show", "last", "--json"]);
    assert!(shown.contains("seats"), "{shown}");
    // What is built needs no window.
    assert_eq!(ran(&p, &["build"]).0, Some(0));
    assert_eq!((a.starts(), b.starts()), (2, 2));
}

#[test]
fn a_build_that_is_killed_in_its_step_leaves_nobody_stopped_behind_the_next_command() {
    if skipped() {
        return;
    }
    let image = Image::new();
    let a = Neighbour::new(&image, "a", WELL);
    let p = Project::new(&format!("{}{}", window(&[&a]), node(&image, "long", "sleep 600", "window = \"seats\"")));
    let mut build = graftwerk(&p, &["build"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until(|| !containers(&p.dir).is_empty() && !a.runs());
    build.kill().unwrap();
    build.wait().unwrap();
    let (code, _, told) = ran(&p, &["status"]);
    assert_eq!(code, Some(0), "{told}");
    assert!(a.runs(), "{told}");
    assert_eq!(containers(&p.dir), "", "the step that was left is ended");
}

#[test]
fn a_failed_step_and_one_that_is_stopped_give_the_card_back() {
    if skipped() {
        return;
    }
    let image = Image::new();
    let a = Neighbour::new(&image, "a", WELL);
    let p = Project::new(&format!("{}{}", window(&[&a]), node(&image, "step", "exit 7", "window = \"seats\"")));
    let (code, _, told) = ran(&p, &["build"]);
    assert!(code == Some(1) && a.runs() && a.starts() == 2, "{told}");
    p.write("graph.toml", format!("{}{}", window(&[&a]), node(&image, "step", "sleep 600", "window = \"seats\"")));
    let mut build = graftwerk(&p, &["build"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until(|| !containers(&p.dir).is_empty());
    let pid = rustix::process::Pid::from_raw(i32::try_from(build.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(build.wait().unwrap().code(), Some(130));
    assert!(a.runs() && a.starts() == 3);
    assert_eq!(containers(&p.dir), "");
}

#[test]
fn a_neighbour_that_does_not_come_back_fails_the_build_though_its_step_is_built() {
    if skipped() {
        return;
    }
    let image = Image::new();
    let (dies, well) = (Neighbour::new(&image, "dies", DIES), Neighbour::new(&image, "well", WELL));
    let p =
        Project::new(&format!("{}{}", window(&[&dies, &well]), node(&image, "step", "echo x", "window = \"seats\"")));
    let (code, said, told) = ran(&p, &["build", "--json"]);
    assert_eq!(code, Some(1), "{told}");
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((said["ok"].as_bool(), said["steps"][0]["action"].as_str()), (Some(false), Some("built")));
    let error = said["errors"][0]["error"].as_str().unwrap();
    assert!(error.contains("it ended with code 3") && error.contains("no memory left on the card"), "{error}");
    assert!(told.contains("no memory left on the card"), "{told}");
    assert!(well.runs());
}

#[test]
fn a_window_that_is_not_there_is_told_with_its_place() {
    let graph =
        "[window.seats]\nstop = [\"a\"]\n[node.x]\nkind = \"run\"\nimage = \"i\"\nargv = [\"x\"]\nwindow = \"seat\"\n";
    let p = Project::new(graph);
    let (code, _, told) = ran(&p, &["plan"]);
    assert_eq!(code, Some(2));
    assert!(told.contains("graph.toml:7:10") && told.contains("there is no window `seat`"), "{told}");
    assert!(told.contains("did you mean `seats`?"), "{told}");
}

/// Says of one GPU that it is free, or that the process FAKE_NVML_PID has nearly all of it.
const LIBRARY: &str = r#"
#include <string.h>
#include <stdlib.h>
typedef struct { unsigned pid; unsigned long long bytes; unsigned gi, ci; } Process;
typedef struct { unsigned v; unsigned long long total, reserved, free, used; } Memory;
static int device;
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int e) { return "an error"; }
int nvmlSystemGetDriverVersion(char *s, unsigned n) { strncpy(s, "570.124.06", n); return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, int **d) { *d = &device; return 0; }
int nvmlDeviceGetUUID(int *d, char *s, unsigned n) { strncpy(s, "GPU-aaaa", n); return 0; }
int nvmlDeviceGetMinorNumber(int *d, unsigned *n) { *n = 240; return 0; }
int nvmlDeviceGetName(int *d, char *s, unsigned n) { strncpy(s, "NVIDIA H200", n); return 0; }
int nvmlDeviceGetMemoryInfo_v2(int *d, Memory *m) {
  m->total = 140ULL << 30; m->free = getenv("FAKE_NVML_PID") ? 3ULL << 30 : m->total; return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(int *d, unsigned *n, Process *p) {
  char *pid = getenv("FAKE_NVML_PID");
  unsigned have = pid != 0;
  if (*n < have) { *n = have; return 7; }
  *n = have;
  if (have) { p->pid = atoi(pid); p->bytes = 137ULL << 30; }
  return 0;
}
"#;

fn library(p: &Project) -> std::path::PathBuf {
    let library = p.path("libnvidia-ml.so.1");
    p.write("nvml.c", LIBRARY);
    let made = Command::new("gcc").args(["-shared", "-fPIC", "-w", "-o"]).arg(&library).arg(p.path("nvml.c")).status();
    assert!(made.expect("gcc is needed").success());
    library
}

#[test]
fn whoever_holds_the_memory_is_named_by_its_container_and_nobody_is_stopped_for_nothing() {
    if skipped() {
        return;
    }
    let image = Image::new();
    let (hog, other) = (Neighbour::new(&image, "hog", WELL), Neighbour::new(&image, "other", WELL));
    let asks = node(&image, "asks", "echo x", "gpu = { memory = \"55GiB\" }\nwindow = \"seats\"");
    let p = Project::new(&format!("{}{asks}", window(&[&other])));
    let o = graftwerk(&p, &["build"])
        .env("GRAFTWERK_NVML", library(&p))
        .env("FAKE_NVML_PID", docker(&["inspect", "-f", "{{.State.Pid}}", &hog.0]).trim())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&o.stderr).into_owned();
    assert_eq!(o.status.code(), Some(1), "{told}");
    assert!(told.contains(&format!("container {}) with 137.0 GiB", hog.0)), "{told}");
    assert_eq!(other.starts(), 1, "memory is looked at before anybody is stopped: {told}");
}

#[test]
fn a_step_that_waits_for_a_gpu_takes_no_slot_from_the_others() {
    if skipped() {
        return;
    }
    let image = Image::new();
    let asks = node(&image, "asks", "echo x", "gpu = { count = 1 }");
    let others: String = ["b", "c"].iter().map(|n| node(&image, n, &format!("echo {n}"), "")).collect();
    let p = Project::new(&format!("{asks}{others}"));
    let library = library(&p);
    std::fs::create_dir_all(p.path("host/locks")).unwrap();
    let Tried::Held(lock) = try_lock_common(&p.path("host/locks/gpu-GPU-aaaa"), "another build", false).unwrap() else {
        panic!("nobody else has it")
    };
    let mut build = graftwerk(&p, &["build", "-j1", "-k"])
        .env("GRAFTWERK_NVML", &library)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(build.stderr.take().unwrap()).lines().map(Result::unwrap);
    // Both of the others are built while it waits, though there is one slot.
    let (mut waits, mut built, mut said) = (false, 0, String::new());
    while !(waits && built == 2) {
        let line = lines.next().unwrap_or_else(|| panic!("it ended meanwhile: {said}"));
        waits |= line.contains("another build");
        built += usize::from(line.trim_start().starts_with("built"));
        said.push_str(&line);
        said.push('\n');
    }
    drop(lock);
    said.extend(lines.map(|l| l + "\n"));
    // This machine has no such card: it is the lease that was waited for.
    assert_eq!(build.wait().unwrap().code(), Some(1), "{said}");
    assert!(said.contains("cannot give the container its GPU by device nodes"), "{said}");
}
