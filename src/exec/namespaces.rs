//! Entering namespaces, and giving up every privilege again.

use std::io::{self, Read as _, Write as _};

use rustix::process::{getegid, geteuid};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};

use crate::exec::helper::Trouble;
use crate::exec::sys::{self, Forked};

/// What a step sees as its user and group, whoever started graftwerk.
pub(super) const USER: u32 = 1000;
/// The host name that a step sees.
pub(super) const HOST_NAME: &str = "graftwerk";

/// Namespaces by name, for the probe. A user namespace comes first: with it the others need no privilege.
pub(super) const ALL: &[(&str, UnshareFlags)] = &[
    ("user", UnshareFlags::NEWUSER),
    ("mount", UnshareFlags::NEWNS),
    ("PID", UnshareFlags::NEWPID),
    ("network", UnshareFlags::NEWNET),
    ("UTS", UnshareFlags::NEWUTS),
    ("IPC", UnshareFlags::NEWIPC),
];

/// Leaves the caller's namespaces.
pub(super) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: the descriptor table is not among what is unshared.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(Into::into)
}

/// Enters user, mount, PID (from the next fork on), UTS and IPC namespaces of its own, and a network namespace unless
/// the step may use the host's. Root enters a user namespace too, so that a step sees one user everywhere; where only
/// the user namespace is refused, root does without.
pub(super) fn enter(network: bool) -> Result<(), Trouble> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    let mut flags = UnshareFlags::NEWNS | UnshareFlags::NEWPID | UnshareFlags::NEWUTS | UnshareFlags::NEWIPC;
    if !network {
        flags |= UnshareFlags::NEWNET;
    }
    if user == 0 {
        // Groups of the caller would open files to the step that it may not see as itself.
        let _ = rustix::thread::set_thread_groups(&[]);
    }
    let mapper = if user == 0 { Some(Mapper::start()?) } else { None };
    match unshare(flags | UnshareFlags::NEWUSER) {
        Ok(()) => {}
        Err(_) if user == 0 && unshare(flags).is_ok() => return Ok(()),
        Err(e) => return Err(Trouble::Refused("unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | …)", e)),
    }
    if mapper.is_some_and(Mapper::map) {
        return Ok(());
    }
    let write = |file: &str, text: String| std::fs::write(file, text);
    write("/proc/self/setgroups", "deny".to_owned()).map_err(Trouble::refused("write to /proc/self/setgroups"))?;
    write("/proc/self/uid_map", format!("{USER} {user} 1")).map_err(Trouble::refused("write to /proc/self/uid_map"))?;
    write("/proc/self/gid_map", format!("{USER} {group} 1")).map_err(Trouble::refused("write to /proc/self/gid_map"))
}

/// Root's map names every user: it has to reach files below other users' closed folders while it mounts them. Only a
/// process outside the new namespace may write such a map.
struct Mapper {
    go: io::PipeWriter,
    done: io::PipeReader,
    pid: i32,
}

impl Mapper {
    fn start() -> Result<Self, Trouble> {
        let (wait, go) = io::pipe().map_err(Trouble::failed("pipe"))?;
        let (done, mut tell) = io::pipe().map_err(Trouble::failed("pipe"))?;
        let target = std::process::id();
        match sys::fork().map_err(Trouble::failed("fork"))? {
            Forked::Child => {
                drop((go, done));
                let mut word = [0];
                let mut wait = wait;
                if matches!(wait.read(&mut word), Ok(1)) && write_full_map(target).is_ok() {
                    let _ = tell.write_all(b"y");
                }
                sys::exit_now(0)
            }
            Forked::Parent(pid) => Ok(Self { go, done, pid }),
        }
    }

    fn map(self) -> bool {
        let Self { mut go, mut done, pid } = self;
        let mut word = [0];
        let mapped = go.write_all(b"g").is_ok() && matches!(done.read(&mut word), Ok(1));
        let _ = sys::wait_for(pid);
        mapped
    }
}

fn write_full_map(target: u32) -> io::Result<()> {
    // Root inside is the caller's USER and the other way round; everybody else stays.
    let above = USER + 1;
    let map = format!("0 {USER} 1\n1 1 {}\n{USER} 0 1\n{above} {above} {}\n", USER - 1, u32::MAX - above);
    std::fs::write(format!("/proc/{target}/uid_map"), &map)?;
    std::fs::write(format!("/proc/{target}/gid_map"), &map)
}

/// In the first process of the namespaces: a fixed host name, and a loopback interface that works.
pub(super) fn settle(network: bool) -> Result<(), Trouble> {
    rustix::system::sethostname(HOST_NAME.as_bytes()).map_err(Trouble::failed("sethostname"))?;
    rustix::system::setdomainname(b"(none)").map_err(Trouble::failed("setdomainname"))?;
    if !network {
        sys::loopback_up().map_err(Trouble::failed("bring up the loopback interface"))?;
    }
    Ok(())
}

/// Gives up every capability for good, this process's and those of whatever it executes.
pub(super) fn drop_privileges() -> Result<(), Trouble> {
    let failed = || Trouble::failed::<rustix::io::Errno>("give up capabilities");
    rustix::thread::set_no_new_privs(true).map_err(failed())?;
    rustix::thread::clear_ambient_capability_set().map_err(failed())?;
    for bit in 0..64 {
        match rustix::thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << bit)) {
            Ok(()) => {}
            // Above the last one that this kernel knows.
            Err(rustix::io::Errno::INVAL) => break,
            Err(e) => return Err(failed()(e)),
        }
    }
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, sets).map_err(failed())
}
