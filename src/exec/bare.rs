//! A step without namespaces: a process in a session of its own, with a clean environment. It can reach whatever the
//! caller can; what it started is ended all the same.

use std::collections::HashMap;
use std::time::Duration;

use rustix::process::Signal;

use crate::exec::helper::{Trouble, Voice, die_with, execute};
use crate::exec::sys::{self, Forked, Signals};
use crate::exec::wire::{Orders, Said};

pub(super) fn run(orders: &Orders, voice: &Voice) -> Result<(), Trouble> {
    let signals = Signals::block(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR1, libc::SIGCHLD])
        .map_err(Trouble::failed("sigprocmask"))?;
    // Not KILL: there is no namespace that would end the rest with us, so we do it when told.
    die_with(orders.parent, Signal::USR1)?;
    // Orphans come to us instead of to the host's first process.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(Trouble::failed("prctl(PR_SET_CHILD_SUBREAPER)"))?;
    let Some(program) = &orders.program else {
        voice.say(&Said::Ended { status: 0 });
        return Ok(());
    };
    let main = match sys::fork().map_err(Trouble::failed("fork"))? {
        Forked::Child => {
            let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            execute(program, orders, voice)
        }
        Forked::Parent(pid) => pid,
    };
    loop {
        match signals.wait(None).map_err(Trouble::failed("sigtimedwait"))? {
            Some(libc::SIGCHLD) => {
                while let Ok(Some((pid, status))) = sys::reap() {
                    if pid == main {
                        end_everything();
                        voice.say(&Said::Ended { status });
                        return Ok(());
                    }
                }
            }
            Some(libc::SIGUSR1) => {
                end_everything();
                return Ok(());
            }
            _ => signal_all(libc::SIGTERM),
        }
    }
}

// Until no child is left: whoever loses its parent becomes ours.
fn end_everything() {
    loop {
        signal_all(libc::SIGKILL);
        match sys::reap() {
            Err(_) => return,
            Ok(Some(_)) => {}
            Ok(None) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn signal_all(signal: i32) {
    for pid in descendants() {
        let _ = sys::kill(pid, signal);
    }
}

fn descendants() -> Vec<i32> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|s| s.parse::<i32>().ok()) else { continue };
        let Ok(stat) = std::fs::read(entry.path().join("stat")) else { continue };
        // The name in parentheses may hold anything; the parent stands behind the last one.
        let Some(end) = stat.iter().rposition(|b| *b == b')') else { continue };
        let rest = String::from_utf8_lossy(&stat[end + 1..]);
        if let Some(parent) = rest.split_whitespace().nth(1).and_then(|s| s.parse().ok()) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut queue = vec![i32::try_from(std::process::id()).unwrap_or(0)];
    while let Some(p) = queue.pop() {
        let below = children.remove(&p).unwrap_or_default();
        queue.extend(&below);
        found.extend(below);
    }
    found
}
