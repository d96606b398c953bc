//! `graftwerk gc`.

use crate::cli::args::Gc;
use crate::cli::exit::Exit;
use crate::cli::shell::{Ended, Shell};
use crate::cli::status::short;
use crate::cli::words;
use crate::front::{Explained, FreedTree, GcOptions, GcReport};

pub(crate) fn run(shell: &Shell, args: &Gc) -> Ended {
    if let Some(what) = &args.explain {
        let (explained, _) = shell.ask(|p, _, _| p.explain_hold(what))?;
        if shell.terminal.json {
            shell.answer_json(&explained);
        } else {
            shell.terminal.print(&explanation(&explained));
        }
        return Ok(Exit::Done);
    }
    let options = GcOptions {
        dry_run: args.dry_run,
        keep: args.keep.map(std::num::NonZeroUsize::get),
        older_than: args.older_than,
        max_bytes: args.max_size,
    };
    let (report, _) = shell.ask(|p, events, cancel| p.gc(&options, events, cancel))?;
    if shell.terminal.json {
        shell.answer_json(&report);
    } else if !shell.terminal.quiet {
        shell.terminal.print(&text(&report, shell.terminal.verbose));
    }
    if !report.ok {
        let stay = words::bytes(report.left_bytes);
        let most = report.max_bytes.map_or_else(String::new, words::bytes);
        shell.error(
            &format!("{stay} are held, more than the {most} that may stay"),
            Some("`graftwerk roots` lists who holds what; --keep lets older generations go"),
        );
    }
    Ok(if report.ok { Exit::Done } else { Exit::Failed })
}

fn text(r: &GcReport, verbose: bool) -> String {
    let row = |t: &FreedTree| {
        let id = if verbose { t.tree.as_str() } else { short(&t.tree) };
        let made = t.age_seconds.map_or_else(|| "never made as such".to_owned(), |s| format!("{} old", words::age(s)));
        let cost = if t.node.is_some() { words::seconds(t.remake_seconds) + " to make again" } else { String::new() };
        vec![id.to_owned(), t.node.clone().unwrap_or_else(|| "-".to_owned()), words::bytes(t.bytes), made, cost]
    };
    let mut s = words::columns(&r.trees.iter().map(row).collect::<Vec<_>>());
    for path in &r.failed {
        s.push_str(&format!("{}  kept scratch folder of a failed step\n", path.display()));
    }
    let mut parts = vec![words::count(r.trees.len(), "tree")];
    if r.orphans > 0 {
        let files = words::count(r.orphans, "file");
        parts.push(format!("{files} that no tree names ({})", words::bytes(r.orphan_bytes)));
    }
    if !r.failed.is_empty() {
        parts.push(words::count(r.failed.len(), "scratch folder"));
    }
    let verb = if r.dry_run { "would free" } else { "freed" };
    let (freed, left) = (words::bytes(r.freed_bytes), words::bytes(r.left_bytes));
    s + &format!("{verb} {freed}: {}; {left} stay\n", parts.join(", "))
}

fn explanation(e: &Explained) -> String {
    let mut s = String::new();
    for t in &e.trees {
        let node = t.node.as_ref().map_or_else(String::new, |n| format!(", made for {n}"));
        s.push_str(&format!("tree {}{node}\n", short(&t.tree)));
        if !t.paths.is_empty() {
            s.push_str(&format!("  has it as {}\n", t.paths.join(", ")));
        }
        if let Some(when) = &t.collected {
            s.push_str(&format!("  its bytes were collected at {when}\n"));
        }
        for hold in &t.holds {
            s.push_str(&format!("  held by {}\n", hold.text));
        }
        if t.holds.is_empty() {
            s.push_str("  nobody holds it\n");
        }
    }
    for hold in &e.holds {
        s.push_str(&format!("held by {}\n", hold.text));
    }
    if e.trees.is_empty() && e.holds.is_empty() {
        s.push_str(&match e.what {
            "blob" => format!("{} is in no tree, and nobody holds it\n", e.name),
            _ => format!("{} has no tree that could be held\n", e.name),
        });
    }
    s
}

/// `30d`, `12h`, `90m`, `45s`, `2w`: seconds.
pub(crate) fn duration(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let factor = match unit.trim() {
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        "w" => 604_800.0,
        "" => return Err("a unit is missing: 30d, 12h, 90m, 45s or 2w".to_owned()),
        other => return Err(format!("`{other}` is no unit of time: expected s, m, h, d or w")),
    };
    amount(number, factor)
}

fn amount(number: &str, factor: f64) -> Result<f64, String> {
    number.parse::<f64>().map(|n| n * factor).map_err(|_| format!("`{number}` is no number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        let times = ["30d", "12h", "1.5m", "0s", "2w"].map(|t| duration(t).unwrap());
        assert_eq!(times, [2_592_000.0, 43_200.0, 90.0, 0.0, 1_209_600.0]);
        for wrong in ["", "30", "d", "1y", "-1d"] {
            assert!(duration(wrong).is_err(), "{wrong:?}");
        }
    }
}
