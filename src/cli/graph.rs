//! `graftwerk graph`.

use crate::cli::args::{Draw, Format};
use crate::cli::exit::Exit;
use crate::cli::shell::{Ended, Shell};

pub(crate) fn run(shell: &Shell, args: &Draw) -> Ended {
    let (drawing, _) = shell.ask(|p, events, cancel| p.draw(&args.nodes, events, cancel))?;
    shell.source_errors(drawing.errors.iter().map(|e| (e.error.as_str(), e.hint.as_deref())));
    match args.format {
        _ if shell.terminal.json => shell.answer_json(&drawing),
        Format::Json => shell.answer_json(&drawing),
        Format::Dot => shell.terminal.print(&drawing.to_dot()),
        Format::Mermaid => shell.terminal.print(&drawing.to_mermaid()),
        Format::Svg => shell.terminal.print(&drawing.to_svg()),
    }
    Ok(if drawing.errors.is_empty() { Exit::Done } else { Exit::Failed })
}
