//! `graftwerk log`.

use crate::cli::args::One;
use crate::cli::exit::Exit;
use crate::cli::shell::{Ended, Shell};
use crate::cli::why::one_line;
use crate::front::Looking;

pub(crate) fn run(shell: &Shell, args: &One) -> Ended {
    let (log, _) = shell.ask(|p, events, cancel| p.log(&args.node, Looking::default(), events, cancel))?;
    let t = &shell.terminal;
    if t.json {
        shell.answer_json(&log);
        return Ok(Exit::Done);
    }
    if !t.quiet {
        t.say(&format!("{} {}\n", log.node, one_line(&log.run)));
    }
    match &log.log {
        Some(text) => t.print(text),
        None if t.quiet => {}
        None => t.say("it wrote no log\n"),
    }
    Ok(Exit::Done)
}
