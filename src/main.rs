//! The graftwerk binary: a thin shell around the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    graftwerk::cli::main()
}
