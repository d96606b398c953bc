//! GPUs without a GPU: a library that plays NVIDIA's for the inventory, and real processes for the leases.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use graftwerk::gpu::{self, Inventory, Leased, Leasing, Request};

/// Says of two GPUs what NVML says; the second has 3 GiB left, and this process holds memory there.
const LIBRARY: &str = r#"
#include <string.h>
#include <stdlib.h>
typedef struct { unsigned v; unsigned long long total, reserved, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long bytes; unsigned gi, ci; } Process;
static int devices[2] = {0, 1};
int nvmlInit_v2(void) { return getenv("FAKE_NVML_BROKEN") ? 9 : 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int e) { return "an error"; }
int nvmlSystemGetDriverVersion(char *s, unsigned n) { strncpy(s, "570.124.06", n); return 0; }
int nvmlSystemGetProcessName(unsigned pid, char *s, unsigned n) { return 6; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, int **d) { if (i > 1) return 2; *d = &devices[i]; return 0; }
int nvmlDeviceGetUUID(int *d, char *s, unsigned n) { strncpy(s, *d ? "GPU-bbbb" : "GPU-aaaa", n); return 0; }
int nvmlDeviceGetMinorNumber(int *d, unsigned *n) { *n = 4 + *d; return 0; }
int nvmlDeviceGetName(int *d, char *s, unsigned n) { strncpy(s, "NVIDIA H200", n); return 0; }
int nvmlDeviceGetCudaComputeCapability(int *d, int *major, int *minor) { *major = 9; *minor = 0; return 0; }
int nvmlDeviceGetMemoryInfo_v2(int *d, Memory *m) {
  m->total = 140ULL << 30; m->reserved = 0; m->free = (*d ? 3ULL : 140ULL) << 30; m->used = m->total - m->free; return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(int *d, unsigned *n, Process *p) {
  unsigned have = *d ? 1 : 0;
  if (*n < have) { *n = have; return 7; }
  *n = have;
  if (have) { p->pid = atoi(getenv("FAKE_NVML_PID")); p->bytes = 137ULL << 30; p->gi = p->ci = 0xFFFFFFFF; }
  return 0;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(int *d, unsigned *n, Process *p) { *n = 0; return 0; }
"#;

fn library(dir: &Path) -> PathBuf {
    let (source, library) = (dir.join("nvml.c"), dir.join("libnvidia-ml.so.1"));
    std::fs::write(&source, LIBRARY).unwrap();
    let made = Command::new("gcc").args(["-shared", "-fPIC", "-w", "-o"]).arg(&library).arg(&source).status();
    assert!(made.expect("gcc is needed").success());
    library
}

/// What a child process of this test does, by name: the environment is read by what is under test.
fn child(what: &str, dir: &Path) -> Command {
    let mut c = Command::new(std::env::current_exe().unwrap());
    c.args(["--exact", "what_a_child_does", "--ignored", "--nocapture"])
        .env("GRAFTWERK_TEST_CHILD", what)
        .env("GRAFTWERK_HOST_DIR", dir.join("host"))
        .env("GRAFTWERK_NVML", dir.join("libnvidia-ml.so.1"))
        .env("FAKE_NVML_PID", std::process::id().to_string());
    c
}

fn request(text: &str) -> Request {
    let table: toml::Table = text.parse().unwrap();
    let value = |v: &toml::Value| match v {
        toml::Value::Integer(i) => graftwerk::canon::Value::Int(*i),
        other => graftwerk::canon::Value::Str(other.as_str().unwrap().to_owned()),
    };
    let map = table.iter().map(|(k, v)| (k.clone(), value(v))).collect();
    Request::parse(&graftwerk::canon::Value::Map(map)).unwrap().unwrap()
}

#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn what_a_child_does() {
    let Ok(what) = std::env::var("GRAFTWERK_TEST_CHILD") else { return };
    let (what, text) = what.split_once(' ').unwrap();
    if what == "inventory" {
        println!("{}", serde_json::to_string(&gpu::inventory()).unwrap());
        return;
    }
    let request = request(text);
    let leasing = Leasing { request: &request, what, inventory: &gpu::inventory, yields: &|_| false };
    let mut busy =
        |who: Option<&graftwerk::fsx::lock::Holder>| println!("waits for {}", who.map_or("?", |w| w.what.as_str()));
    match gpu::lease(&leasing, &mut busy, &|| false) {
        Ok(lease) => {
            let lease = lease.unwrap();
            let uuids: Vec<&str> = lease.gpus.iter().map(|g| g.uuid.as_str()).collect();
            println!("has {}", uuids.join(" "));
            // Until whoever started us closes it.
            let _ = std::io::stdin().read(&mut [0]);
        }
        Err(e) => println!("error: {e}"),
    }
}

struct Running {
    child: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Running {
    fn start(what: &str, dir: &Path) -> Self {
        let mut child = child(what, dir).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, said }
    }

    /// The next line that it says about its lease.
    fn says(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.said.read_line(&mut line).unwrap() > 0, "it ended without a word");
            // The harness writes the test's name in front of the first line.
            for word in ["error: ", "waits for ", "has "] {
                if let Some(at) = line.find(word) {
                    return line[at..].trim().to_owned();
                }
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn inventory(dir: &Path, broken: bool) -> String {
    let mut c = child("inventory -", dir);
    if broken {
        c.env("FAKE_NVML_BROKEN", "1");
    }
    let out = String::from_utf8(c.output().unwrap().stdout).unwrap();
    out.lines().find_map(|l| Some(l[l.find('{')?..].to_owned())).unwrap()
}

#[test]
fn the_inventory_says_what_nvml_says_and_who_holds_memory() {
    let t = tempfile::tempdir().unwrap();
    library(t.path());
    let found: serde_json::Value = serde_json::from_str(&inventory(t.path(), false)).unwrap();
    assert_eq!(found["driver"], "570.124.06");
    let gpu = &found["gpus"][1];
    assert_eq!((gpu["uuid"].as_str(), gpu["minor"].as_u64()), (Some("GPU-bbbb"), Some(5)));
    assert_eq!(gpu["capability"], serde_json::json!({"major": 9, "minor": 0}));
    assert_eq!((gpu["total_bytes"].as_u64(), gpu["free_bytes"].as_u64()), (Some(140 << 30), Some(3 << 30)));
    let holder = &gpu["processes"][0];
    assert_eq!((holder["pid"].as_u64(), holder["bytes"].as_u64()), (Some(std::process::id().into()), Some(137 << 30)));
    let own = std::fs::read_to_string("/proc/self/comm").unwrap();
    assert_eq!(holder["name"], own.trim());
    assert_eq!(found["absent"], serde_json::Value::Null);
}

#[test]
fn a_machine_without_nvml_or_with_a_broken_one_has_no_gpus_and_says_why() {
    let t = tempfile::tempdir().unwrap();
    let found: serde_json::Value = serde_json::from_str(&inventory(t.path(), false)).unwrap();
    assert_eq!(found["gpus"], serde_json::json!([]));
    assert!(found["absent"].as_str().unwrap().contains("libnvidia-ml.so.1"), "{found}");
    library(t.path());
    let found: serde_json::Value = serde_json::from_str(&inventory(t.path(), true)).unwrap();
    assert!(found["absent"].as_str().unwrap().starts_with("NVML does not start"), "{found}");
    assert_eq!(found["gpus"], serde_json::json!([]));
}

#[test]
fn a_second_process_waits_for_the_first_by_name_and_has_the_gpu_once_that_is_killed() {
    let t = tempfile::tempdir().unwrap();
    library(t.path());
    let ask = "memory = '55GiB'";
    let mut first = Running::start(&format!("quant-a {ask}"), t.path());
    assert_eq!(first.says(), "has GPU-aaaa", "the other one has too little memory");
    let mut second = Running::start(&format!("quant-b {ask}"), t.path());
    assert_eq!(second.says(), "waits for quant-a");
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    assert_eq!(second.says(), "has GPU-aaaa");
}

#[test]
fn two_that_ask_for_both_gpus_do_not_each_hold_one_and_wait() {
    let t = tempfile::tempdir().unwrap();
    library(t.path());
    for _ in 0..5 {
        let mut both: Vec<Running> = (0..2).map(|i| Running::start(&format!("node-{i} count = 2"), t.path())).collect();
        let mut said: Vec<String> = both.iter_mut().map(Running::says).collect();
        for (i, line) in said.iter_mut().enumerate() {
            if line.starts_with("waits") {
                // The other one has them, or is just about to.
                both[1 - i].child.kill().unwrap();
                *line = both[i].says();
            }
        }
        assert!(said.contains(&"has GPU-aaaa GPU-bbbb".to_owned()), "{said:?}");
    }
}

#[test]
fn short_memory_is_an_error_at_once_that_names_its_holder() {
    let t = tempfile::tempdir().unwrap();
    library(t.path());
    let mut asking = Running::start("quant-a device = 1\nmemory = '55GiB'", t.path());
    let said = asking.says();
    let pid = std::process::id();
    assert!(said.contains("GPU 1 (NVIDIA H200, GPU-bbbb) has 3.0 GiB of 140.0 GiB free, held by process"), "{said}");
    assert!(said.contains(&format!("process {pid} (")) && said.ends_with("with 137.0 GiB"), "{said}");
}

#[test]
fn whoever_only_tries_is_told_who_has_it() {
    let t = tempfile::tempdir().unwrap();
    library(t.path());
    let mut first = Running::start("quant-a memory = '55GiB'", t.path());
    assert_eq!(first.says(), "has GPU-aaaa");
    // The variable is this process's own: nothing else in this file reads it here.
    let lock = t.path().join("host/locks/gpu-GPU-aaaa");
    let who = graftwerk::fsx::lock::holder(&lock).unwrap().unwrap().unwrap();
    assert_eq!((who.what.as_str(), who.pid), ("quant-a", first.child.id()));
    use std::os::unix::fs::MetadataExt as _;
    let mode = |p: &Path| std::fs::symlink_metadata(p).unwrap().mode() & 0o7777;
    assert_eq!((mode(&lock), mode(lock.parent().unwrap())), (0o666, 0o1777), "every user of the host can lock it");
}

#[test]
fn a_link_in_place_of_the_locks_folder_or_of_a_lock_is_refused() {
    let t = tempfile::tempdir().unwrap();
    library(t.path());
    let target = t.path().join("target");
    std::fs::create_dir_all(&target).unwrap();
    std::fs::create_dir(t.path().join("host")).unwrap();
    std::os::unix::fs::symlink(&target, t.path().join("host/locks")).unwrap();
    let said = Running::start("quant-a memory = '55GiB'", t.path()).says();
    assert!(said.starts_with("error: cannot keep locks in"), "{said}");
    std::fs::remove_file(t.path().join("host/locks")).unwrap();
    std::fs::create_dir(t.path().join("host/locks")).unwrap();
    std::fs::write(target.join("precious"), "text").unwrap();
    std::os::unix::fs::symlink(target.join("precious"), t.path().join("host/locks/gpu-GPU-aaaa")).unwrap();
    let said = Running::start("quant-a memory = '55GiB'", t.path()).says();
    assert!(said.starts_with("error: cannot open the lock"), "{said}");
    assert_eq!(std::fs::read(target.join("precious")).unwrap(), b"text");
}

#[test]
fn no_gpu_is_an_error_only_for_whoever_asks_for_one() {
    let absent = || Inventory { absent: Some("no driver".into()), ..Inventory::default() };
    let request = request("count = 1");
    let leasing = Leasing { request: &request, what: "x", inventory: &absent, yields: &|_| false };
    let e = match gpu::try_lease(&leasing) {
        Ok(Leased::Held(_) | Leased::Busy(_)) => panic!("there is none"),
        Err(e) => e,
    };
    assert_eq!(e.to_string(), "1 GPU is asked for, and no GPU can be seen here: no driver");
    assert!(e.hint().unwrap().contains("doctor"));
}
