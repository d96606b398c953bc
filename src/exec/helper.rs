//! The other side of a step: this program, started again as `graftwerk __sandbox`.
//!
//! ```text
//! graftwerk ── helper ── first process of the PID namespace ── the program
//! ```
//!
//! A process of its own, because namespaces are entered by single-threaded processes only, and because a program with
//! threads may not do much between fork and exec. Orders come on stdin; what the helper says goes to stdout, a JSON
//! line each; stderr becomes stdout and stderr of the program.
//!
//! Nobody outlives graftwerk: the kernel kills the helper when its parent dies, the first process when the helper
//! dies, and with the first process of a PID namespace everything in it.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::ExitCode;

use rustix::process::{Signal, set_parent_process_death_signal};

use crate::exec::sys::{self, Forked, Signals};
use crate::exec::wire::{Bytes, Orders, Said};
use crate::exec::{bare, namespaces, rootfs};

/// Where the helper says what happened. Every line is short enough to be written in one piece.
pub(super) struct Voice(File);

impl Voice {
    pub(super) fn say(&self, what: &Said) {
        let Ok(mut line) = serde_json::to_vec(what) else { return };
        line.push(b'\n');
        // Nobody is left to tell if this fails: the parent is gone, and so are we soon.
        let _ = (&self.0).write_all(&line);
    }
}

/// Why the helper gives up; said to the parent.
#[derive(Debug)]
pub(super) enum Trouble {
    /// A system call without which there is no isolation.
    Refused(&'static str, io::Error),
    /// Something that was asked for: what, the error, and what to do.
    Failed(String, io::Error, Option<String>),
}

impl Trouble {
    pub(super) fn refused<E: Into<io::Error>>(call: &'static str) -> impl FnOnce(E) -> Self {
        move |e| Self::Refused(call, e.into())
    }

    pub(super) fn failed<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        move |e| Self::Failed(what, e.into(), None)
    }

    pub(super) fn said(self) -> Said {
        match self {
            Self::Refused(call, e) => Said::Refused { call: call.to_owned(), errno: e.raw_os_error().unwrap_or(0) },
            Self::Failed(what, e, hint) => {
                // An error that is not the system's keeps its text.
                let what = if e.raw_os_error().is_some() { what } else { format!("{what}: {e}") };
                Said::Failed { what, errno: e.raw_os_error().unwrap_or(0), hint }
            }
        }
    }
}

/// The whole life of a helper.
pub(super) fn main() -> ExitCode {
    let mut text = Vec::new();
    let orders: Orders = match io::stdin().lock().read_to_end(&mut text).map(|_| serde_json::from_slice(&text)) {
        Ok(Ok(orders)) => orders,
        _ => {
            let _ = writeln!(io::stderr(), "graftwerk __sandbox is started by graftwerk itself, with orders on stdin");
            return ExitCode::from(2);
        }
    };
    let voice = match take_over() {
        Ok(v) => v,
        Err(e) => {
            let _ = writeln!(io::stderr(), "graftwerk __sandbox: {e}");
            return ExitCode::from(2);
        }
    };
    voice.say(&Said::Hello);
    let result = if orders.namespaces { isolated(&orders, &voice) } else { bare::run(&orders, &voice) };
    if let Err(trouble) = result {
        voice.say(&trouble.said());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

// Descriptors as the program will have them (nothing on stdin, the log on stdout and stderr), and nothing leaked.
fn take_over() -> io::Result<Voice> {
    sys::close_others()?;
    let voice = sys::dup_cloexec(io::stdout().as_fd())?;
    let null: OwnedFd = File::open("/dev/null")?.into();
    sys::dup_onto(null.as_fd(), 0)?;
    sys::dup_onto(io::stderr().as_fd(), 1)?;
    // A session of its own: Ctrl-C in the terminal goes to graftwerk alone, which ends its steps in its own way.
    let _ = rustix::process::setsid();
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(rustix::process::Resource::Core, none)?;
    Ok(Voice(voice.into()))
}

/// Lets the kernel send `signal` to this process when its parent dies, and ends it here if that has happened already.
/// A change of credentials forgets this, so it is asked for again after each.
pub(super) fn die_with(parent: i32, signal: Signal) -> Result<(), Trouble> {
    set_parent_process_death_signal(Some(signal)).map_err(Trouble::failed("prctl(PR_SET_PDEATHSIG)"))?;
    let now = rustix::process::getppid().map_or(0, |p| p.as_raw_nonzero().get());
    if now != parent {
        sys::exit_now(1);
    }
    Ok(())
}

fn isolated(orders: &Orders, voice: &Voice) -> Result<(), Trouble> {
    die_with(orders.parent, Signal::KILL)?;
    let signals = Signals::block(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR1, libc::SIGCHLD])
        .map_err(Trouble::failed("sigprocmask"))?;
    namespaces::enter(orders.network)?;
    die_with(orders.parent, Signal::KILL)?;
    // Tells the first process whether we still live when it asks for its own death signal.
    let (life, hold) = io::pipe().map_err(Trouble::failed("pipe"))?;
    let first = match sys::fork().map_err(Trouble::refused("fork into a PID namespace"))? {
        Forked::Child => {
            drop(hold);
            if let Err(trouble) = first_process(orders, voice, life) {
                voice.say(&trouble.said());
                sys::exit_now(1);
            }
            sys::exit_now(0)
        }
        Forked::Parent(pid) => pid,
    };
    drop(life);
    loop {
        match signals.wait(None).map_err(Trouble::failed("sigtimedwait"))? {
            Some(libc::SIGUSR1) => _ = sys::kill(first, libc::SIGKILL),
            // The first process is reaped only when everything in its namespace is dead.
            Some(libc::SIGCHLD) => loop {
                match sys::reap() {
                    Ok(Some((pid, _))) if pid == first => return Ok(()),
                    Err(_) => return Ok(()),
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                }
            },
            // Graceful: the first process passes it on.
            _ => _ = sys::kill(first, libc::SIGTERM),
        }
    }
}

fn first_process(orders: &Orders, voice: &Voice, life: io::PipeReader) -> Result<(), Trouble> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(Trouble::failed("prctl(PR_SET_PDEATHSIG)"))?;
    if helper_is_gone(&life) {
        sys::exit_now(1);
    }
    let _ = rustix::process::setsid();
    namespaces::settle(orders.network)?;
    rootfs::build(orders)?;
    // Its memory, descriptors and program file are none of the step's business: /proc/1 stays closed.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
        .map_err(Trouble::failed("prctl(PR_SET_DUMPABLE)"))?;
    namespaces::drop_privileges()?;
    let signals = Signals::block(&[libc::SIGTERM, libc::SIGCHLD]).map_err(Trouble::failed("sigprocmask"))?;
    let Some(program) = &orders.program else {
        voice.say(&Said::Ended { status: 0 });
        return Ok(());
    };
    let main = match sys::fork().map_err(Trouble::failed("fork"))? {
        Forked::Child => execute(program, orders, voice),
        Forked::Parent(pid) => pid,
    };
    loop {
        if signals.wait(None).map_err(Trouble::failed("sigtimedwait"))? == Some(libc::SIGTERM) {
            // Everything but ourselves.
            let _ = sys::kill(-1, libc::SIGTERM);
            continue;
        }
        while let Ok(Some((pid, status))) = sys::reap() {
            if pid == main {
                voice.say(&Said::Ended { status });
                // With us ends whatever the program has left behind.
                return Ok(());
            }
        }
    }
}

fn helper_is_gone(life: &io::PipeReader) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(life, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok_and(|n| n > 0)
}

/// In a forked child: becomes the program, or says why not.
pub(super) fn execute(program: &Bytes, orders: &Orders, voice: &Voice) -> ! {
    let failed = |what: String, e: io::Error| -> ! {
        voice.say(&Said::NotStarted { what, errno: e.raw_os_error().unwrap_or(0) });
        sys::exit_now(127)
    };
    let _ = rustix::process::setsid();
    rustix::process::umask(rustix::fs::Mode::from_bits_truncate(0o022));
    if let Err(e) = std::env::set_current_dir(orders.workdir.path()) {
        failed(format!("cannot enter the working directory {}", shown(&orders.workdir)), e);
    }
    let strings = |list: &[Bytes]| list.iter().map(Bytes::c_string).collect::<Option<Vec<_>>>();
    let (Some(path), Some(argv), Some(env)) = (program.c_string(), strings(&orders.argv), strings(&orders.env)) else {
        failed("a NUL character in the command".to_owned(), io::Error::from_raw_os_error(libc::EINVAL));
    };
    voice.say(&Said::Started);
    sys::reset_signals();
    let e = sys::exec(&path, &argv, &env);
    failed(format!("cannot execute {}", shown(program)), e)
}

pub(super) fn shown(b: &Bytes) -> String {
    let quoted = crate::canon::quote(&b.0);
    let inner = &quoted[1..quoted.len() - 1];
    if inner.as_bytes() == b.0.as_slice() { inner.to_owned() } else { quoted }
}
