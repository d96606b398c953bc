//! `graftwerk window`.

use crate::cli::args::{Window, WindowDo};
use crate::cli::exit::Exit;
use crate::cli::shell::{Ended, Shell};
use crate::cli::words;
use crate::front::{self, RestoreReport, WindowsReport};
use crate::window::{Brought, LeftWindow, State};

pub(crate) fn run(shell: &Shell, args: &Window) -> Ended {
    match args.what {
        WindowDo::Status => {
            let report = front::windows()?;
            if shell.terminal.json {
                shell.answer_json(&report);
            } else {
                shell.terminal.print(&status(&report));
            }
            Ok(if report.ok { Exit::Done } else { Exit::Failed })
        }
        WindowDo::Restore => {
            let (report, _) = shell.watch(|events, cancel| Ok(front::restore_windows(events, cancel)))?;
            if shell.terminal.json {
                shell.answer_json(&report);
            } else {
                shell.terminal.print(&restored(&report));
            }
            for e in &report.errors {
                shell.error(&e.error, e.hint.as_deref());
            }
            Ok(if report.ok { Exit::Done } else { Exit::Failed })
        }
    }
}

fn status(report: &WindowsReport) -> String {
    if report.windows.is_empty() {
        return "no window is open\n".to_owned();
    }
    report.windows.iter().map(one).collect()
}

fn one(w: &LeftWindow) -> String {
    let Some(i) = &w.intent else {
        return format!("{} {}\n", w.path.display(), w.damage.as_deref().unwrap_or("can't be read"));
    };
    let how = match w.state {
        State::Open => "open".to_owned(),
        State::Elsewhere => format!("open on {}, or left there", i.process.host),
        State::Left | State::Damaged => "left open by a crash; `graftwerk window restore` closes it".to_owned(),
    };
    let names: Vec<&str> = w.owed().map(|n| n.name.as_str()).collect();
    let names = if names.is_empty() { "nothing ran".to_owned() } else { names.join(", ") };
    let by = format!("{}, node {} of {}", i.process, i.node, i.store);
    format!(
        "{}: {how}\n  stopped  {}\n  by       {}\n  since    {}\n",
        i.window,
        words::plain(&names),
        words::plain(&by),
        i.opened
    )
}

fn restored(report: &RestoreReport) -> String {
    if report.restored.is_empty() && report.ok {
        return "no window was left open\n".to_owned();
    }
    let line = |b: &Brought| {
        let parts = [("back", &b.back), ("left to another window", &b.left_to_others), ("later", &b.waiting)];
        let some =
            parts.iter().filter(|p| !p.1.is_empty()).map(|(what, names)| format!("{what}: {}", names.join(", ")));
        some.collect::<Vec<_>>().join("; ")
    };
    report.restored.iter().map(|w| format!("{}: {}\n", w.window, words::plain(&line(&w.brought)))).collect()
}
