//! `graftwerk completions`.

use clap::CommandFactory as _;

use crate::cli::args::{Cli, Completions};
use crate::cli::exit::Exit;
use crate::cli::shell::{Ended, Shell};

pub(crate) fn run(shell: &Shell, args: &Completions) -> Ended {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "graftwerk", &mut script);
    shell.terminal.print_bytes(&script);
    Ok(Exit::Done)
}
