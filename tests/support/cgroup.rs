//! Runs a command in a memory cgroup of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs `command` in a memory cgroup of `bytes` without swap, page cache included. Returns its output and the largest
/// amount of memory that the group held. Panics, naming what is missing, where no cgroup can be made: needs root and a
/// memory controller (v1 or v2).
pub fn run_within(bytes: u64, command: &Command) -> (Output, u64) {
    let group = Group::new(bytes);
    let mut sh = Command::new("/bin/sh");
    sh.arg("-c").arg("echo $$ > \"$0\" && exec \"$@\"").arg(group.dir.join("cgroup.procs"));
    sh.arg(command.get_program()).args(command.get_args());
    for (key, value) in command.get_envs() {
        match value {
            Some(v) => sh.env(key, v),
            None => sh.env_remove(key),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        sh.current_dir(dir);
    }
    let output = sh.output().unwrap();
    (output, group.peak())
}

struct Group {
    dir: PathBuf,
    v2: bool,
}

impl Group {
    fn new(bytes: u64) -> Self {
        // Tests of one process run side by side.
        static GROUPS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let n = GROUPS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("graftwerk-test-{}-{n}", std::process::id());
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let v2 = !v1.join("memory.limit_in_bytes").exists();
        let root = if v2 { Path::new("/sys/fs/cgroup") } else { v1 };
        if v2 {
            // Fails where it is on already or can't be; creating the limit below tells.
            let _ = std::fs::write(root.join("cgroup.subtree_control"), "+memory");
        }
        let dir = root.join(name);
        std::fs::create_dir(&dir).unwrap_or_else(|e| panic!("no memory cgroup at {}: {e}", dir.display()));
        let group = Self { dir, v2 };
        group.set(if v2 { "memory.max" } else { "memory.limit_in_bytes" }, bytes);
        // Either may be missing where the kernel does not account swap: then there is none to use.
        let swap = if v2 { ("memory.swap.max", 0) } else { ("memory.memsw.limit_in_bytes", bytes) };
        if group.dir.join(swap.0).exists() {
            group.set(swap.0, swap.1);
        } else {
            let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
            assert!(swaps.lines().count() <= 1, "swap is on and can't be limited");
        }
        group
    }

    fn set(&self, file: &str, value: u64) {
        let at = self.dir.join(file);
        std::fs::write(&at, value.to_string()).unwrap_or_else(|e| panic!("{}: {e}", at.display()));
    }

    fn peak(&self) -> u64 {
        let file = if self.v2 { "memory.peak" } else { "memory.max_usage_in_bytes" };
        std::fs::read_to_string(self.dir.join(file)).ok().and_then(|s| s.trim().parse().ok()).unwrap_or(0)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel lets a group go only when its last process is gone, which may take a moment after wait().
        for _ in 0..200 {
            if std::fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
