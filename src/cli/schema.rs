//! `graftwerk schema`.

use crate::cli::exit::Exit;
use crate::cli::shell::{Ended, Shell};

pub(crate) fn run(shell: &Shell) -> Ended {
    let schema = crate::graph::schema(crate::kinds::all());
    shell.terminal.print(&format!("{schema:#}\n"));
    Ok(Exit::Done)
}
