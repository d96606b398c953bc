//! Exit codes.

use std::process::ExitCode;

/// How the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Everything that was asked for is done.
    Done,
    /// A step or a check failed, or what was asked for is not there.
    Failed,
    /// Somebody stopped it.
    Interrupted,
    /// What keeps the front from an answer has its own code.
    Error(u8),
}

impl From<Exit> for ExitCode {
    fn from(e: Exit) -> Self {
        ExitCode::from(match e {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Interrupted => 130,
            Exit::Error(code) => code,
        })
    }
}
