//! Runs a step: starts the helper, takes its log, ends it when it must end.

use std::fmt;
use std::fs::File;
use std::io::{self, PipeReader, Read as _, Seek as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, OFlags};
use rustix::process::{Pid, Signal, kill_process};

use crate::exec::spec::{MountSource, ProcessSpec, TreeEntry, link_inputs};
use crate::exec::tail::Tail;
use crate::exec::wire::{Bytes, Orders, Said, WireEntry, WireMount, WireSource};
use crate::exec::{ExecError, HELPER_ARGUMENT};
use crate::fsx::{self, Call, change};
use crate::model::run::Isolation;

// How often we look whether the build is being stopped.
const LOOK: Duration = Duration::from_millis(50);
// How long a helper that was told to kill everything may take before it is killed itself.
const LAST_RESORT: Duration = Duration::from_secs(10);

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It exited with this code.
    Code(i32),
    /// A signal killed it.
    Signal(i32),
    /// It was ended because its time was over.
    TimedOut(Duration),
    /// It was ended because the build is being stopped.
    Cancelled,
    /// The kernel ended it for want of memory: more than this limit in bytes, or than the host had.
    OutOfMemory(Option<u64>),
    /// Its container engine went away, and the container ended with it.
    EngineLeft(i64),
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(c) => write!(f, "exited with code {c}"),
            Self::Signal(s) => match signal_name(*s) {
                Some(name) => write!(f, "was killed by signal {s} ({name})"),
                None => write!(f, "was killed by signal {s}"),
            },
            Self::TimedOut(t) => write!(f, "was ended after its time limit of {} s", t.as_secs_f64()),
            Self::Cancelled => write!(f, "was ended because the build is being stopped"),
            Self::OutOfMemory(Some(limit)) => write!(
                f,
                "was killed by the kernel for want of memory: it wanted more than its limit of {}",
                crate::size::shown(*limit)
            ),
            Self::OutOfMemory(None) => write!(f, "was killed by the kernel for want of memory on the engine's host"),
            Self::EngineLeft(code) => {
                write!(f, "was ended with code {code} when its container engine stopped or restarted")
            }
        }
    }
}

fn signal_name(s: i32) -> Option<&'static str> {
    let known = [
        (libc::SIGHUP, "SIGHUP"),
        (libc::SIGINT, "SIGINT"),
        (libc::SIGQUIT, "SIGQUIT"),
        (libc::SIGILL, "SIGILL"),
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGKILL, "SIGKILL, perhaps for want of memory"),
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGPIPE, "SIGPIPE"),
        (libc::SIGTERM, "SIGTERM"),
        (libc::SIGXFSZ, "SIGXFSZ"),
    ];
    known.iter().find(|k| k.0 == s).map(|k| k.1)
}

/// A step that has run.
#[derive(Debug, Clone, PartialEq)]
pub struct Exit {
    /// How it ended.
    pub ending: Ending,
    /// How long it ran, in seconds.
    pub seconds: f64,
    /// How well it was kept from what it did not declare.
    pub isolation: Isolation,
    /// The last lines of its log.
    pub last_lines: Vec<String>,
}

impl Exit {
    /// Whether it exited with 0.
    pub fn success(&self) -> bool {
        self.ending == Ending::Code(0)
    }
}

/// Runs a step to its end and returns when everything that it started is dead. `cancelled` is asked several times a
/// second; `on_line` gets each line of the log. Errors: [`ExecError`]; a step that ran and failed is an [`Exit`].
///
/// The calling thread must live as long as the call (the kernel ends the step with the thread that started it).
pub fn run(spec: &ProcessSpec, cancelled: &dyn Fn() -> bool, on_line: &dyn Fn(&str)) -> Result<Exit, ExecError> {
    prepare(spec)?;
    let orders = orders(spec, Some(Bytes::from(spec.program.as_str())))?;
    let log = change(Call::Create(&spec.places.log), || File::create(&spec.places.log))
        .map_err(ExecError::io(format!("cannot write the log {}", spec.places.log.display())))?;
    Watch::start(spec, &orders)?.until_end(spec, Some(log), cancelled, on_line)
}

/// Sets everything up as for a step, and takes it down again.
pub(super) fn rehearse(spec: &ProcessSpec) -> Result<(), ExecError> {
    prepare(spec)?;
    Watch::start(spec, &orders(spec, None)?)?.until_end(spec, None, &|| false, &|_| {}).map(|_| ())
}

fn prepare(spec: &ProcessSpec) -> Result<(), ExecError> {
    let scratch = &spec.places.scratch;
    for dir in ["root", "tmp"] {
        let dir = scratch.join(dir);
        let made = fsx::create_dir(&dir).map_err(|e| e.source);
        made.map_err(ExecError::io(format!("cannot make the folder {}", dir.display())))?;
    }
    let file = scratch.join("in.json");
    let written = fsx::write_new(&file, spec.manifest.as_bytes(), 0o644).map_err(|e| e.source);
    written.map_err(ExecError::io(format!("cannot write {}", file.display())))?;
    if spec.isolation == Isolation::None {
        return link_inputs(&spec.mounts);
    }
    let count: usize = spec
        .mounts
        .values()
        .map(|m| match m {
            MountSource::Tree(t) => t.iter().filter(|e| matches!(e.1, TreeEntry::File { .. })).count(),
            _ => 1,
        })
        .sum();
    // Room for the host's own mounts, which a new namespace starts with.
    let limit = mount_max().saturating_sub(1000);
    if count > limit { Err(ExecError::TooManyMounts { count, limit }) } else { Ok(()) }
}

fn mount_max() -> usize {
    let text = std::fs::read_to_string("/proc/sys/fs/mount-max").unwrap_or_default();
    text.trim().parse().unwrap_or(100_000)
}

fn orders(spec: &ProcessSpec, program: Option<Bytes>) -> Result<Orders, ExecError> {
    let absolute = |p: &Path| {
        std::path::absolute(p)
            .map(|p| Bytes::from(p.as_path()))
            .map_err(ExecError::io(format!("cannot find {}", p.display())))
    };
    let isolated = spec.isolation != Isolation::None;
    let mut mounts = Vec::new();
    if isolated {
        let manifest = spec.places.scratch.join("in.json");
        let file = WireSource::File(absolute(&manifest)?, false);
        mounts.push(WireMount { inside: Bytes::from("/in.json"), source: file });
        for (inside, source) in &spec.mounts {
            let source = match source {
                MountSource::File { host, executable } => WireSource::File(absolute(host)?, *executable),
                MountSource::Dir(host) => WireSource::Dir(absolute(host)?),
                MountSource::Tree(entries) => WireSource::Tree(
                    entries
                        .iter()
                        .map(|(path, e)| {
                            let e = match e {
                                TreeEntry::File { host, executable } => WireEntry::File(absolute(host)?, *executable),
                                TreeEntry::Link(target) => WireEntry::Link(Bytes(target.clone())),
                                TreeEntry::EmptyDir => WireEntry::EmptyDir,
                            };
                            Ok((Bytes(path.as_bytes().to_vec()), e))
                        })
                        .collect::<Result<_, ExecError>>()?,
                ),
            };
            mounts.push(WireMount { inside: Bytes::from(inside.as_str()), source });
        }
    }
    let workdir = Path::new(&spec.workdir);
    Ok(Orders {
        parent: rustix::process::getpid().as_raw_nonzero().get(),
        namespaces: isolated,
        program,
        argv: spec.argv.iter().map(|a| Bytes::from(a.as_str())).collect(),
        env: spec.env.iter().map(|(k, v)| Bytes(format!("{k}={v}").into_bytes())).collect(),
        workdir: Bytes(workdir.as_os_str().as_bytes().to_vec()),
        network: spec.network,
        root: absolute(&spec.places.scratch.join("root"))?,
        tmp: absolute(&spec.places.scratch.join("tmp"))?,
        out: absolute(&spec.places.out)?,
        links: spec.links.iter().map(|(a, t)| (Bytes::from(a.as_str()), Bytes::from(t.as_str()))).collect(),
        mounts,
    })
}

/// A helper at work.
struct Watch {
    child: Child,
    log: PipeReader,
    status: PipeReader,
    status_text: Vec<u8>,
    tail: Tail,
}

impl Watch {
    fn start(spec: &ProcessSpec, orders: &Orders) -> Result<Self, ExecError> {
        let failed = || format!("cannot start the sandbox helper {}", spec.helper.display());
        // In memory, so that writing it can't wait for a reader.
        let fd = rustix::fs::memfd_create("orders", MemfdFlags::CLOEXEC)
            .map_err(|e| ExecError::io("cannot make a file in memory")(e.into()))?;
        let mut file = File::from(fd);
        let text = serde_json::to_vec(orders).map_err(|e| ExecError::io(failed())(e.into()))?;
        file.write_all(&text).and_then(|()| file.rewind()).map_err(ExecError::io(failed()))?;
        let (log, log_end) = io::pipe().map_err(ExecError::io(failed()))?;
        let (status, status_end) = io::pipe().map_err(ExecError::io(failed()))?;
        for reader in [&log, &status] {
            let flags = rustix::fs::fcntl_getfl(reader).map_err(|e| ExecError::io(failed())(e.into()))?;
            rustix::fs::fcntl_setfl(reader, flags | OFlags::NONBLOCK).map_err(|e| ExecError::io(failed())(e.into()))?;
        }
        let child = Command::new(&spec.helper)
            .arg(HELPER_ARGUMENT)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(file))
            .stdout(status_end)
            .stderr(log_end)
            .spawn()
            .map_err(ExecError::io(failed()))?;
        Ok(Self { child, log, status, status_text: Vec::new(), tail: Tail::default() })
    }

    fn until_end(
        mut self,
        spec: &ProcessSpec,
        mut log: Option<File>,
        cancelled: &dyn Fn() -> bool,
        on_line: &dyn Fn(&str),
    ) -> Result<Exit, ExecError> {
        let started = Instant::now();
        let mut stop: Option<Stop> = None;
        let mut log_error = None;
        let mut open = true;
        while open {
            let wait = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
            let mut fds = [PollFd::new(&self.log, PollFlags::IN), PollFd::new(&self.status, PollFlags::IN)];
            match poll(&mut fds, Some(&wait)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(ExecError::io("cannot wait for the step")(e.into())),
            }
            if let Err(e) = self.take_log(&mut log, on_line) {
                log_error.get_or_insert(e);
                log = None;
            }
            open = self.take_status();
            if let Some(stop) = &mut stop {
                stop.go_on(&mut self.child);
                continue;
            }
            let why = if log_error.is_some() || cancelled() {
                Some(Ending::Cancelled)
            } else {
                spec.timeout.filter(|t| started.elapsed() >= *t).map(Ending::TimedOut)
            };
            stop = why.map(|w| Stop::begin(w, spec.grace, &self.child));
        }
        let how = self.child.wait().map_err(ExecError::io("cannot wait for the sandbox helper"))?;
        // Whatever was written is in the pipe by now; somebody may still hold the other end (a step without
        // isolation can pass it on), so nobody waits for its end.
        if let Err(e) = self.take_log(&mut log, on_line) {
            log_error.get_or_insert(e);
        }
        let seconds = started.elapsed().as_secs_f64();
        if let Some(source) = log_error {
            return Err(ExecError::Io { what: format!("cannot write the log {}", spec.places.log.display()), source });
        }
        let ended = self.verdict()?;
        let last_lines = std::mem::take(&mut self.tail).finish(on_line);
        let ending = match (stop, ended) {
            (Some(stop), _) => stop.why,
            (None, Some(status)) if libc::WIFSIGNALED(status) => Ending::Signal(libc::WTERMSIG(status)),
            (None, Some(status)) => Ending::Code(libc::WEXITSTATUS(status)),
            (None, None) => {
                let (helper, how) = (spec.helper.clone(), how.to_string());
                return Err(ExecError::Helper { helper, how, said: last_lines });
            }
        };
        Ok(Exit { ending, seconds, isolation: spec.isolation, last_lines })
    }

    fn take_log(&mut self, log: &mut Option<File>, on_line: &dyn Fn(&str)) -> io::Result<()> {
        let mut buffer = [0; 65536];
        // Not for ever: a step that never stops writing must still be looked after.
        for _ in 0..64 {
            match self.log.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(n) => {
                    self.tail.push(&buffer[..n], on_line);
                    if let Some(file) = log {
                        fsx::write_all(file, &buffer[..n])?;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Whether the helper may still say something.
    fn take_status(&mut self) -> bool {
        let mut buffer = [0; 4096];
        loop {
            match self.status.read(&mut buffer) {
                Ok(0) => return false,
                Ok(n) => self.status_text.extend_from_slice(&buffer[..n]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }

    /// What the helper said of the end: the raw wait status, an error, or nothing.
    fn verdict(&self) -> Result<Option<i32>, ExecError> {
        let mut ended = None;
        for line in self.status_text.split(|b| *b == b'\n') {
            // What is no line of ours is from a program that is no helper: it says nothing of an end.
            let Ok(said) = serde_json::from_slice::<Said>(line) else { continue };
            match said {
                Said::Hello | Said::Started => {}
                Said::Refused { call, errno } => {
                    return Err(ExecError::Refused { call, source: io::Error::from_raw_os_error(errno) });
                }
                Said::Failed { what, errno, hint } => {
                    return Err(ExecError::Setup { what, source: io::Error::from_raw_os_error(errno), hint });
                }
                Said::NotStarted { what, errno } => {
                    return Err(ExecError::NotStarted { what, source: io::Error::from_raw_os_error(errno) });
                }
                Said::Ended { status } => ended = Some(status),
            }
        }
        Ok(ended)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Only where we gave up early: the helper takes everything with it.
        if matches!(self.child.try_wait(), Ok(None)) {
            signal(&self.child, Signal::USR1);
            let _ = self.child.wait();
        }
    }
}

/// A step that is being ended: asked first, then killed.
struct Stop {
    why: Ending,
    kill_at: Instant,
    killed: Option<Instant>,
}

impl Stop {
    fn begin(why: Ending, grace: Duration, child: &Child) -> Self {
        signal(child, Signal::TERM);
        Self { why, kill_at: Instant::now() + grace, killed: None }
    }

    fn go_on(&mut self, child: &mut Child) {
        let now = Instant::now();
        match self.killed {
            None if now >= self.kill_at => {
                signal(child, Signal::USR1);
                self.killed = Some(now);
            }
            Some(at) if now >= at + LAST_RESORT => _ = child.kill(),
            _ => {}
        }
    }
}

fn signal(child: &Child, signal: Signal) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // Not reaped yet, so the number is still its own.
        let _ = kill_process(pid, signal);
    }
}
