//! `graftwerk path`.

use std::os::unix::ffi::OsStrExt as _;

use serde_json::json;

use crate::cli::args::One;
use crate::cli::exit::Exit;
use crate::cli::shell::{Ended, Shell};
use crate::front::Looking;

pub(crate) fn run(shell: &Shell, args: &One) -> Ended {
    let (path, _) = shell.ask(|p, events, cancel| p.path(&args.node, Looking::default(), events, cancel))?;
    if shell.terminal.json {
        shell.answer_json(&json!({"node": args.node, "path": path.to_string_lossy()}));
    } else {
        // As bytes: a path need not be UTF-8, and a script must be able to open it.
        shell.terminal.print_bytes(&[path.as_os_str().as_bytes(), b"\n"].concat());
    }
    Ok(Exit::Done)
}
