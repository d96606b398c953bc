//! `graftwerk show`.

use crate::cli::args::Show;
use crate::cli::exit::Exit;
use crate::cli::shell::{Ended, Shell};
use crate::cli::why::one_line;
use crate::front::{Looking, Shown};

pub(crate) fn run(shell: &Shell, args: &Show) -> Ended {
    let (shown, _) =
        shell.ask_about(&[&args.what], |p, events, cancel| p.show(&args.what, Looking::default(), events, cancel))?;
    if shell.terminal.json {
        shell.answer_json(&shown);
    } else {
        shell.terminal.print(&text(&shown));
    }
    Ok(Exit::Done)
}

fn text(shown: &Shown) -> String {
    let mut s = format!("{} {}\n", shown.what, shown.name);
    if let Some(path) = &shown.path {
        s.push_str(&format!("path {}\n", path.display()));
    }
    if let Some(when) = &shown.collected {
        s.push_str(&format!("its bytes were freed by gc at {when}\n"));
    }
    if let Some(recipe) = &shown.recipe {
        s.push_str(&format!("\nrecipe {recipe}\n"));
    }
    if let Some(text) = &shown.recipe_text {
        s.push_str(&indented(text));
    }
    if !shown.runs.is_empty() {
        s.push_str("\nruns\n");
        s.push_str(&indented(&shown.runs.iter().map(|r| one_line(r) + "\n").collect::<String>()));
    }
    if let Some(tree) = &shown.tree {
        s.push_str(&format!("\ntree {tree}\n"));
    }
    if let Some(listing) = &shown.listing {
        s.push_str(&indented(listing));
    }
    s
}

fn indented(text: &str) -> String {
    text.lines().map(|l| format!("  {l}\n")).collect()
}
