//! `graftwerk doctor`.

use crate::cli::exit::Exit;
use crate::cli::shell::{Ended, Shell};
use crate::cli::terminal::Tone;
use crate::cli::words;
use crate::front::{Diagnosis, Health};

pub(crate) fn run(shell: &Shell) -> Ended {
    let diagnosis = crate::front::doctor(shell.location());
    if shell.terminal.json {
        shell.answer_json(&diagnosis);
    } else {
        shell.terminal.print(&text(&diagnosis, |tone, t| shell.terminal.out.paint(tone, t)));
    }
    Ok(if diagnosis.ok { Exit::Done } else { Exit::Failed })
}

fn text(d: &Diagnosis, paint: impl Fn(Tone, &str) -> String) -> String {
    let mut s = String::new();
    for f in &d.findings {
        let (word, tone) = match f.health {
            Health::Works => ("works", Tone::Good),
            Health::Lacks => ("lacks", Tone::Busy),
            Health::Fails => ("fails", Tone::Bad),
        };
        s.push_str(&format!("{}  {:<11}  {}\n", paint(tone, word), f.what, words::plain(&f.found)));
        if let Some(hint) = &f.hint {
            s.push_str(&format!("{:>20}hint: {hint}\n", ""));
        }
    }
    s
}
