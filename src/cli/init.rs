//! `graftwerk init`.

use serde_json::json;

use crate::cli::args::{Init, Template};
use crate::cli::exit::Exit;
use crate::cli::shell::{Ended, Shell};
use crate::front::Starter;

pub(crate) fn run(shell: &Shell, args: &Init) -> Ended {
    let starter = match args.template {
        Template::Accelerate => Starter::Accelerate,
        Template::Quantise => Starter::Quantise,
        Template::Family => Starter::Family,
        Template::Replace => Starter::Replace,
    };
    let path = crate::front::init(shell.location(), starter)?;
    if shell.terminal.json {
        shell.answer_json(&json!({"ok": true, "graph": path.to_string_lossy()}));
    } else {
        let path = path.strip_prefix("./").unwrap_or(&path).display().to_string();
        shell
            .terminal
            .print(&format!("wrote {path}\nput your own folders in place of models/, then: graftwerk plan\n"));
    }
    Ok(Exit::Done)
}
