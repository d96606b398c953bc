//! The process executor: runs a command in a sandbox that holds its inputs, its programs, and nothing else.
//!
//! | file | subject |
//! | --- | --- |
//! | [`tools`], `closure`, `inside`, `elf` | the host's programs that a command needs, each with interpreter and libraries, by digest |
//! | [`spec`] | a command and everything it sees, ready to run |
//! | [`process`], [`tail`] | the parent's side: start, log, time limit, stop |
//! | `helper`, `namespaces`, `rootfs`, `bare`, `sys`, `wire` | the other side, in this program started again |
//! | [`container`], [`within`] | the same command in a container of an engine; this program inside it |
//! | [`secret`] | values that are to be found nowhere afterwards |
//! | [`outcheck`] | what an output folder may not hold |
//! | [`probe`] | whether this system lets us isolate at all |
//!
//! ```text
//! resolve(step, inputs) → Tools ─┐
//! ProcessSpec::new(step, inputs, tools, places, isolation) → process::run(spec) → Exit → check_output(out)
//! ```

mod bare;
mod closure;
pub mod container;
mod elf;
mod helper;
mod inside;
pub mod missing;
mod namespaces;
pub mod outcheck;
pub mod probe;
pub mod process;
mod rootfs;
pub mod secret;
pub mod spec;
mod sys;
pub mod tail;
pub mod tools;
mod wire;
pub mod within;

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::engine::EngineError;
use crate::engine::gpu::hint_for_refusal;

pub use outcheck::{OutputFault, check_output};
pub use process::{Ending, Exit, run};
pub use spec::{MountSource, Places, ProcessSpec};
pub use tools::{Tools, resolve};

/// The hidden first argument with which this program becomes the helper of a sandbox.
pub const HELPER_ARGUMENT: &str = "__sandbox";
/// The hidden first argument with which it becomes a step inside a container.
pub const WITHIN_ARGUMENT: &str = "__within";
/// The hidden first argument with which it gives what a step wrote to the caller, inside a container.
pub const RECLAIM_ARGUMENT: &str = "__reclaim";
/// The hidden first argument with which it says whether this system lets steps be isolated.
pub const PROBE_ARGUMENT: &str = "__sandbox-probe";

/// Runs one of the hidden commands, if `first` is one. The binary asks this before anything else.
pub fn hidden_command(first: Option<&OsStr>) -> Option<ExitCode> {
    match first?.to_str()? {
        HELPER_ARGUMENT => Some(helper::main()),
        PROBE_ARGUMENT => Some(probe::main()),
        WITHIN_ARGUMENT => Some(within::main()),
        RECLAIM_ARGUMENT => Some(within::reclaim()),
        _ => None,
    }
}

/// Why a process step could not be run to an end of its own.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The system does not let us have namespaces.
    #[error("this system does not let a step be isolated: {call}: {source}")]
    Refused {
        /// The system call that was refused.
        call: String,
        /// What the system says.
        source: io::Error,
    },
    /// Something that the step was to see could not be put in place.
    #[error("cannot set up the sandbox: {what}: {source}")]
    Setup {
        /// What was being done, with the path.
        what: String,
        /// What the system says.
        source: io::Error,
        /// What to do, where it is known.
        hint: Option<String>,
    },
    /// The program could not be executed.
    #[error("{what}: {source}")]
    NotStarted {
        /// What was being executed or entered.
        what: String,
        /// What the system says.
        source: io::Error,
    },
    /// There are more files to mount than a mount namespace takes.
    #[error("the step's inputs have {count} files to mount one by one, and the system allows {limit}")]
    TooManyMounts {
        /// How many would be needed.
        count: usize,
        /// `fs.mount-max`, less some room for the host's own.
        limit: usize,
    },
    /// Two things want one place inside, or a place is not free for use.
    #[error("{what}")]
    Place {
        /// Which, and where.
        what: String,
        /// What to do.
        hint: String,
    },
    /// The host's disk said no.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, with the path.
        what: String,
        /// What the system says.
        source: io::Error,
    },
    /// The container engine did not do what was asked of it.
    #[error("{source}{}", if *begun { ": nothing of the step's output was kept" } else { "" })]
    Engine {
        /// What it says.
        source: EngineError,
        /// Whether the step had begun.
        begun: bool,
    },
    /// The engine does not see this host's files.
    #[error("the container engine at {address} does not see the files of this machine: {said}")]
    Elsewhere {
        /// Where it is.
        address: String,
        /// What it says, or what was seen.
        said: String,
    },
    /// The helper ended without a word about the step.
    #[error("the sandbox helper {} ended early ({how}){}", helper.display(), said.iter().map(|l| format!("\n  {l}")).collect::<String>())]
    Helper {
        /// Its program.
        helper: PathBuf,
        /// How it ended.
        how: String,
        /// Its last lines.
        said: Vec<String>,
    },
}

impl ExecError {
    /// What to do next.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Refused { .. } => Some(
                "run where user namespaces are allowed (on Ubuntu: sysctl \
                 kernel.apparmor_restrict_unprivileged_userns=0; in Docker: --security-opt seccomp=unconfined \
                 --security-opt systempaths=unconfined --security-opt apparmor=unconfined), or pass --unsandboxed to \
                 run steps without isolation"
                    .to_owned(),
            ),
            Self::Setup { hint, .. } => hint.clone(),
            Self::TooManyMounts { .. } => Some(
                "filter the input with `uses`, pack it into one file, or raise fs.mount-max with sysctl".to_owned(),
            ),
            Self::Place { hint, .. } => Some(hint.clone()),
            Self::NotStarted { source, .. } => match source.raw_os_error() {
                Some(libc::ENOEXEC) => Some("a script needs a first line such as #!/usr/bin/env python3".to_owned()),
                Some(libc::E2BIG) => Some("let the program read {manifest} instead of so many arguments".to_owned()),
                Some(libc::ENOENT) => Some("only what is declared exists inside".to_owned()),
                _ => None,
            },
            Self::Engine { source, .. } => {
                let about_gpus = match source {
                    EngineError::Refused { said, .. } => hint_for_refusal(said).map(str::to_owned),
                    _ => None,
                };
                about_gpus.or_else(|| source.hint())
            }
            Self::Elsewhere { .. } => Some(
                "run graftwerk on the engine's own machine, or use an engine of this one: the step's inputs can't be \
                 mounted there"
                    .to_owned(),
            ),
            Self::Io { .. } | Self::Helper { .. } => None,
        }
    }

    fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
