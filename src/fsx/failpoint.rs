//! Fail points: places where a harness can make the program die, the disk say no, or every call be written down.
//!
//! Driven by the environment variable `GRAFTWERK_FAILPOINT`, read once: rules, with commas between them.
//!
//! | rule | effect |
//! | --- | --- |
//! | `kill@N` | SIGKILL to this process just before the N-th call that changes the disk |
//! | `eio@N`, `enospc@N` | the N-th such call fails with that error |
//! | `eio@N+`, `enospc@N+` | so do all calls from the N-th on that need room (`eio`: all calls) |
//! | `deny=OP` | each call of this name fails with EPERM: `link`, `clone`, `symlink` … |
//! | `fold` | folders count as such that don't tell upper from lower case |
//! | `free=BYTES` | the store's file system counts as having so many bytes left |
//! | `trace=FILE` | every call is appended to FILE, one a line |
//! | `record=DIR` | every call that was done is written into DIR, with the bytes of files (`fsx::record`) |
//!
//! Without it a fail point costs one load.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::fsx::record::Recorder;

#[derive(Default)]
struct Rules {
    kill: Option<u64>,
    fail: Option<Fail>,
    deny: Vec<String>,
    fold: bool,
    free: Option<u64>,
    trace: Option<Mutex<File>>,
    record: Option<Mutex<Recorder>>,
}

struct Fail {
    at: u64,
    onwards: bool,
    errno: i32,
}

static RULES: OnceLock<Option<Rules>> = OnceLock::new();
static HITS: AtomicU64 = AtomicU64::new(0);

fn rules() -> Option<&'static Rules> {
    RULES.get_or_init(|| std::env::var("GRAFTWERK_FAILPOINT").ok().map(|v| parse(&v))).as_ref()
}

fn parse(text: &str) -> Rules {
    let mut rules = Rules::default();
    for rule in text.split(',') {
        if let Some(path) = rule.strip_prefix("trace=") {
            rules.trace = File::options().append(true).create(true).open(path).ok().map(Mutex::new);
        } else if let Some(dir) = rule.strip_prefix("record=") {
            rules.record = Recorder::open(Path::new(dir)).ok().map(Mutex::new);
        } else if let Some(op) = rule.strip_prefix("deny=") {
            rules.deny.push(op.to_owned());
        } else if let Some(bytes) = rule.strip_prefix("free=") {
            rules.free = bytes.parse().ok();
        } else if rule == "fold" {
            rules.fold = true;
        } else if let Some((what, n)) = rule.split_once('@') {
            let (n, onwards) = n.strip_suffix('+').map_or((n, false), |n| (n, true));
            let Ok(at) = n.parse() else { continue };
            match what {
                "kill" => rules.kill = Some(at),
                "eio" => rules.fail = Some(Fail { at, onwards, errno: libc::EIO }),
                "enospc" => rules.fail = Some(Fail { at, onwards, errno: libc::ENOSPC }),
                _ => {}
            }
        }
    }
    rules
}

/// Stands before each call that changes the disk. Errors: only what the harness asked for.
#[inline]
pub fn hit(op: &'static str, path: &Path) -> io::Result<()> {
    match rules() {
        None => Ok(()),
        Some(rules) => armed_hit(rules, op, path),
    }
}

/// The same for a call on an open file.
#[inline]
pub fn hit_file(op: &'static str, file: &File) -> io::Result<()> {
    match rules() {
        None => Ok(()),
        Some(rules) => armed_hit(rules, op, &path_of(file)),
    }
}

#[cold]
fn path_of(file: &File) -> PathBuf {
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_else(|_| PathBuf::from("(file)"))
}

/// Whether the harness wants folders to count as such that don't tell upper from lower case.
pub(super) fn folds() -> bool {
    rules().is_some_and(|r| r.fold)
}

/// How many bytes the harness wants to be left, if it says so.
pub(super) fn free() -> Option<u64> {
    rules()?.free
}

/// A call that changes the disk.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Call<'a> {
    /// A new folder.
    Mkdir(&'a Path),
    /// A new, empty file.
    Create(&'a Path),
    /// Bytes for a file.
    Write(&'a Path),
    /// A new name, the old one gone.
    Rename(&'a Path, &'a Path),
    /// One more name.
    Link(&'a Path, &'a Path),
    /// A symbolic link to the first, at the second.
    Symlink(&'a Path, &'a Path),
    /// A name that goes.
    Unlink(&'a Path),
    /// A folder that goes, with all in it.
    Rmtree(&'a Path),
    /// Permission bits.
    Chmod(&'a Path, u32),
    /// Second 1 as the time of change.
    Utime(&'a Path),
    /// A file's bytes, or a folder's names, made durable.
    Fsync(&'a Path),
    /// Everything made durable.
    Syncfs(&'a Path),
}

impl<'a> Call<'a> {
    /// Its name, and the path that it is about.
    pub(super) fn parts(self) -> (&'static str, &'a Path) {
        match self {
            Call::Mkdir(p) => ("mkdir", p),
            Call::Create(p) => ("create", p),
            Call::Write(p) => ("write", p),
            Call::Rename(_, to) => ("rename", to),
            Call::Link(_, to) => ("link", to),
            Call::Symlink(_, at) => ("symlink", at),
            Call::Unlink(p) => ("unlink", p),
            Call::Rmtree(p) => ("rmtree", p),
            Call::Chmod(p, _) => ("chmod", p),
            Call::Utime(p) => ("utime", p),
            Call::Fsync(p) => ("fsync", p),
            Call::Syncfs(p) => ("syncfs", p),
        }
    }
}

/// Does a call that changes the disk, past its fail point. Errors: what the harness asked for, or the call's own.
#[inline]
pub(crate) fn change<T>(call: Call<'_>, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let (op, path) = call.parts();
    hit(op, path)?;
    match rules().and_then(|r| r.record.as_ref()) {
        None => act(),
        Some(recorder) => {
            // Held meanwhile: what is written down is in the order in which it was done.
            let mut recorder = recorder.lock().unwrap_or_else(PoisonError::into_inner);
            let done = act()?;
            recorder.note(call)?;
            Ok(done)
        }
    }
}

#[cold]
fn armed_hit(rules: &Rules, op: &'static str, path: &Path) -> io::Result<()> {
    let n = HITS.fetch_add(1, Ordering::SeqCst) + 1;
    if rules.kill == Some(n) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        // SIGKILL arrives before the next user instruction of this thread, or at the latest while it waits here.
        loop {
            std::thread::park();
        }
    }
    if let Some(file) = &rules.trace
        && let Ok(mut f) = file.lock()
    {
        let _ = writeln!(f, "{op} {}", path.display());
    }
    if rules.deny.iter().any(|d| d == op) {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    match &rules.fail {
        Some(f) if n == f.at || f.onwards && n > f.at && (f.errno != libc::ENOSPC || needs_room(op)) => {
            Err(io::Error::from_raw_os_error(f.errno))
        }
        _ => Ok(()),
    }
}

fn needs_room(op: &str) -> bool {
    matches!(op, "mkdir" | "create" | "write" | "copy" | "link" | "symlink")
}
