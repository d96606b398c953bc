//! Who a process is: a number is given again, a number with its start in one boot is not.

use serde::{Deserialize, Serialize};

/// A process of some host, so that it can be told later whether it is still there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its host's name.
    pub host: String,
    /// The boot that it runs in.
    pub boot: String,
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since boot (`/proc/PID/stat`).
    pub start: u64,
}

impl Process {
    /// This process.
    pub fn own() -> Self {
        let pid = std::process::id();
        Self { host: name(), boot: boot_id(), pid, start: running_since(pid).unwrap_or_default() }
    }

    /// Whether it still runs. One of another host counts as running, since nobody here can tell.
    pub fn alive(&self) -> bool {
        self.host != name() || (self.boot == boot_id() && running_since(self.pid) == Some(self.start))
    }
}

impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {} on {}", self.pid, self.host)
    }
}

/// This host's name.
pub fn name() -> String {
    crate::fsx::lock::host_name()
}

/// What tells this boot from every other; empty where the system does not say.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|s| s.trim().to_owned()).unwrap_or_default()
}

// When a process started, in clock ticks since boot. One that has ended and only waits to be counted does not run.
fn running_since(pid: u32) -> Option<u64> {
    started(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn started(stat: &str) -> Option<u64> {
    // The name may hold spaces and brackets.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X" | "x") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_lives_until_it_has_ended_even_where_nobody_has_waited_for_it() {
        let own = Process::own();
        assert!(own.alive() && own.start > 0 && !own.boot.is_empty());
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let start = running_since(child.id()).unwrap();
        let that = Process { pid: child.id(), start, ..own.clone() };
        assert!(that.alive());
        child.kill().unwrap();
        // Nobody has waited for it yet: until then the number is taken.
        while that.alive() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!that.alive());
        assert!(!Process { start: own.start + 1, ..own.clone() }.alive(), "the number was given again");
        assert!(!Process { boot: "an earlier one".into(), ..own.clone() }.alive(), "the host was started again");
        assert!(Process { host: "elsewhere".into(), start: 0, ..own }.alive(), "nobody here can tell");
    }

    #[test]
    fn names_with_brackets_do_not_shift_the_fields() {
        let stat = "12 (a) b) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        assert_eq!(started(stat), Some(4711));
        assert_eq!(started(&stat.replace(") R", ") Z")), None);
        assert_eq!(started(""), None);
    }
}
