//! Fail points: places where a harness can make the program die or the disk say no.
//!
//! Driven by the environment variable `GRAFTWERK_FAILPOINT`, read once:
//!
//! | value | effect |
//! | --- | --- |
//! | `kill@N` | SIGKILL to this process just before the N-th call that changes the disk |
//! | `eio@N`, `enospc@N` | the N-th such call fails with that error |
//! | `trace=FILE` | every call is appended to FILE, one a line |
//!
//! Without it a fail point costs one load.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

enum Mode {
    Off,
    Kill(u64),
    Fail(u64, i32),
    Trace(Mutex<File>),
}

static MODE: OnceLock<Mode> = OnceLock::new();
static HITS: AtomicU64 = AtomicU64::new(0);

fn mode() -> &'static Mode {
    MODE.get_or_init(|| std::env::var("GRAFTWERK_FAILPOINT").map_or(Mode::Off, |v| parse(&v)))
}

fn parse(text: &str) -> Mode {
    if let Some(path) = text.strip_prefix("trace=") {
        return match File::options().append(true).create(true).open(path) {
            Ok(f) => Mode::Trace(Mutex::new(f)),
            Err(_) => Mode::Off,
        };
    }
    match text.split_once('@').map(|(what, n)| (what, n.parse::<u64>())) {
        Some(("kill", Ok(n))) => Mode::Kill(n),
        Some(("eio", Ok(n))) => Mode::Fail(n, libc::EIO),
        Some(("enospc", Ok(n))) => Mode::Fail(n, libc::ENOSPC),
        _ => Mode::Off,
    }
}

/// Stands before each call that changes the disk. Errors: only what the harness asked for.
#[inline]
pub fn hit(op: &'static str, path: &Path) -> io::Result<()> {
    match mode() {
        Mode::Off => Ok(()),
        armed => armed_hit(armed, op, path),
    }
}

#[cold]
fn armed_hit(mode: &Mode, op: &'static str, path: &Path) -> io::Result<()> {
    let n = HITS.fetch_add(1, Ordering::SeqCst) + 1;
    match mode {
        Mode::Kill(at) if n == *at => {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            // SIGKILL arrives before the next user instruction of this thread, or at the latest while it waits here.
            loop {
                std::thread::park();
            }
        }
        Mode::Fail(at, errno) if n == *at => Err(io::Error::from_raw_os_error(*errno)),
        Mode::Trace(file) => {
            if let Ok(mut f) = file.lock() {
                let _ = writeln!(f, "{op} {}", path.display());
            }
            Ok(())
        }
        _ => Ok(()),
    }
}
