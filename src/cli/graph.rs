//! `graftwerk graph`.

use crate::cli::args::{Draw, Format};
use crate::cli::exit::Exit;
use crate::cli::shell::{Ended, Shell};
use crate::front::{self, FrontError};

pub(crate) fn run(shell: &Shell, args: &Draw) -> Ended {
    let drawing = match shell.ask(|p, events, cancel| p.draw(&args.nodes, events, cancel)) {
        Err(FrontError::NoStore { path }) => {
            shell.no_store(&path);
            front::draw_unbuilt(shell.location(), &args.nodes)?
        }
        asked => asked?.0,
    };
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
