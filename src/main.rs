//! The graftwerk binary: a thin shell around the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    // The helper of a sandbox is this program too, and must do nothing else before.
    if let Some(code) = graftwerk::exec::hidden_command(std::env::args_os().nth(1).as_deref()) {
        return code;
    }
    graftwerk::cli::main()
}
