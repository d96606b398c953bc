//! `graftwerk diff`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use crate::cli::args::Diff;
use crate::cli::exit::Exit;
use crate::cli::heat::strips;
use crate::cli::html;
use crate::cli::shell::{Ended, Shell};
use crate::cli::terminal::{Stream, Tone};
use crate::cli::words;
use crate::diff::files::Details;
use crate::diff::tensors::Form;
use crate::diff::{FileChange, FilesDiff, TensorsDiff, WeightChange};
use crate::front::{self, DiffReport, SideReport};

/// What cannot be compared exits so: 1 says that something differs.
const TROUBLE: u8 = 2;

pub(crate) fn run(shell: &Shell, args: &Diff) -> Ended {
    let all = !args.files && !args.tensors;
    let what =
        front::Diff { a: args.a.clone(), b: args.b.clone(), files: all || args.files, tensors: all || args.tensors };
    let answer = shell.look(|location, events, cancel| front::diff(location, &what, events, cancel));
    let (report, _) = match answer {
        Ok(answer) => answer,
        Err(e) => {
            return Ok(match shell.fail(&e) {
                Exit::Error(1) => Exit::Error(TROUBLE),
                other => other,
            });
        }
    };
    if let Some(to) = &args.html
        && let Err(e) = html::write(&report, &shell.below(to))
    {
        return Ok(shell.fail(&e));
    }
    if shell.terminal.json {
        shell.answer_json(&report);
    } else if !shell.terminal.quiet {
        shell.terminal.print(&text(&report, shell.terminal.verbose, shell.terminal.out));
    }
    Ok(if report.same { Exit::Done } else { Exit::Failed })
}

/// Lines of one list that are shown without `-v`.
const MOST: usize = 12;

fn text(report: &DiffReport, verbose: bool, out: Stream) -> String {
    let most = if verbose { usize::MAX } else { MOST };
    let mut s = String::new();
    for (letter, side) in [("a", &report.a), ("b", &report.b)] {
        let _ = writeln!(s, "{letter}  {}", side_line(side));
        s.extend(side.notes.iter().map(|n| format!("   note: {}\n", words::plain(n))));
    }
    if let Some(tensors) = &report.tensors {
        s.push_str(&tensors_text(tensors, most, out));
    }
    if let Some(files) = &report.files {
        s.push_str(&files_text(files, most, out));
    }
    if report.same {
        s.push_str("the same\n");
    }
    s
}

fn side_line(side: &SideReport) -> String {
    let mut of = vec![side.what.to_owned()];
    of.extend(side.run.map(|n| format!("run #{n}")));
    of.extend(side.tree.map(|t| t.short()));
    format!("{} ({})", words::plain(&side.name), of.join(", "))
}

fn tensors_text(t: &TensorsDiff, most: usize, out: Stream) -> String {
    let mut counts = vec![format!("{} identical ({})", t.identical, words::bytes(t.identical_bytes))];
    for (n, word) in [
        (t.changed.len(), "changed"),
        (t.renamed.len(), "renamed"),
        (t.added.len(), "added"),
        (t.removed.len(), "removed"),
    ] {
        if n > 0 {
            counts.push(format!("{n} {word}"));
        }
    }
    let mut s = format!("\n{}\n", out.paint(Tone::Strong, &format!("tensors: {}", counts.join(", "))));
    for p in &t.prefixes {
        let name = |n: &str| if n.is_empty() { "(nothing)".to_owned() } else { words::plain(n) };
        let _ = writeln!(s, "  {} became {} in {} names", name(&p.from), name(&p.to), p.weights);
    }
    s.push_str(&listed(
        t.renamed.iter().map(|(a, b)| format!("  {} became {}\n", words::plain(a), words::plain(b))),
        most,
    ));
    s.push_str(&strips(t, out));
    let rows: Vec<&WeightChange> = t.changed.iter().collect();
    if !rows.is_empty() {
        s.push_str(&changed_table(&rows[..rows.len().min(most)]));
        s.push_str(&more(rows.len(), most));
    }
    for (sign, list) in [("+", &t.added), ("-", &t.removed)] {
        s.push_str(&grouped(sign, list, most));
    }
    s
}

fn changed_table(rows: &[&WeightChange]) -> String {
    let mut table =
        vec![["", "relative L2", "max |Δ|", "mean |Δ|", "cosine", "SNR", "changed", ""].map(str::to_owned).to_vec()];
    for c in rows {
        let name = match &c.was {
            Some(was) => format!("~ {} (was {})", words::plain(&c.name), words::plain(was)),
            None => format!("~ {}", words::plain(&c.name)),
        };
        let mut row = vec![format!("  {name}")];
        match &c.statistics {
            Some(s) => row.extend([
                figure(s.relative_l2),
                figure(s.max_abs),
                figure(s.mean_abs),
                format!("{:.5}", s.cosine),
                if s.snr_db.is_finite() { format!("{:.1} dB", s.snr_db) } else { "-".to_owned() },
                format!("{:.1} %", s.changed * 100.0),
            ]),
            None => row.extend(["-"; 6].map(str::to_owned)),
        }
        row.push(forms(c));
        table.push(row);
    }
    words::columns(&table)
}

// What of its form differs, and what is odd.
fn forms(c: &WeightChange) -> String {
    let mut parts = Vec::new();
    if let (Some(a), Some(b)) = (&c.a, &c.b) {
        if a.encoding != b.encoding {
            parts.push(format!("{} → {}", a.encoding, b.encoding));
        }
        if a.shape != b.shape {
            parts.push(format!("{} → {}", shape(a), shape(b)));
        }
    }
    parts.extend(c.statistics.filter(|s| s.non_finite > 0).map(|s| format!("{} infinite or no number", s.non_finite)));
    parts.extend(c.note.clone());
    parts.join("; ")
}

fn shape(form: &Form) -> String {
    format!("[{}]", form.shape.iter().map(u64::to_string).collect::<Vec<_>>().join(", "))
}

// Three digits, small ones with an exponent.
fn figure(x: f64) -> String {
    if x == 0.0 {
        "0".to_owned()
    } else if (0.001..10_000.0).contains(&x) {
        format!("{x:.4}")
    } else if x.is_finite() {
        format!("{x:.2e}")
    } else {
        "∞".to_owned()
    }
}

// Whole groups of names in a line each: by their first two components.
fn grouped(sign: &str, list: &[WeightChange], most: usize) -> String {
    let mut groups: BTreeMap<String, (usize, u64, &str)> = BTreeMap::new();
    for c in list {
        let key: Vec<&str> = c.name.split('.').take(2).collect();
        let bytes = c.a.as_ref().or(c.b.as_ref()).map_or(0, |f| f.bytes);
        let group = groups.entry(key.join(".")).or_insert((0, 0, &c.name));
        group.0 += 1;
        group.1 += bytes;
    }
    if list.len() <= most {
        return list
            .iter()
            .map(|c| {
                let form = c.a.as_ref().or(c.b.as_ref());
                let form = form
                    .map_or_else(String::new, |f| format!("  {} {}, {}", f.encoding, shape(f), words::bytes(f.bytes)));
                format!("  {sign} {}{form}\n", words::plain(&c.name))
            })
            .collect();
    }
    let line = |(key, (n, bytes, one)): (&String, &(usize, u64, &str))| match n {
        1 => format!("  {sign} {}  {}\n", words::plain(one), words::bytes(*bytes)),
        n => format!("  {sign} {}.…  {n} tensors, {}\n", words::plain(key), words::bytes(*bytes)),
    };
    listed(groups.iter().map(line), most)
}

fn files_text(f: &FilesDiff, most: usize, out: Stream) -> String {
    let mut counts = vec![format!("{} identical", f.identical)];
    for (n, word) in [(f.changed.len(), "changed"), (f.added.len(), "added"), (f.removed.len(), "removed")] {
        if n > 0 {
            counts.push(format!("{n} {word}"));
        }
    }
    let mut s = format!("\n{}\n", out.paint(Tone::Strong, &format!("files: {}", counts.join(", "))));
    s.push_str(&listed(f.changed.iter().map(|c| file_text(c, most)), most));
    for (sign, list) in [("+", &f.added), ("-", &f.removed)] {
        let line = |c: &FileChange| {
            let size = c.a.or(c.b).map_or_else(String::new, |n| format!("  {}", words::bytes(n)));
            format!("  {sign} {}{size}\n", named(c))
        };
        s.push_str(&listed(list.iter().map(line), most));
    }
    s
}

fn named(c: &FileChange) -> String {
    let role = c.role.map_or_else(String::new, |r| format!(" ({})", r.word()));
    format!("{}{role}", words::plain(&c.path))
}

fn file_text(c: &FileChange, most: usize) -> String {
    let mut s = format!("  ~ {}", named(c));
    match &c.details {
        Details::Json { keys, more: beyond } => {
            s.push('\n');
            let key = |k: &crate::diff::json::KeyChange| {
                format!(
                    "      {}: {}\n",
                    if k.key.is_empty() { "(all)" } else { &k.key },
                    values(k.a.as_ref(), k.b.as_ref())
                )
            };
            s.push_str(&keys.iter().take(most).map(key).collect::<String>());
            let left = keys.len().saturating_sub(most) + beyond;
            if left > 0 {
                let _ = writeln!(s, "      and {left} more keys");
            }
            return s;
        }
        Details::JsonFormat => s.push_str("  the same JSON, written otherwise"),
        Details::Text { diff } => {
            s.push('\n');
            let lines: Vec<&str> = diff.lines().collect();
            let shown = if most == usize::MAX { lines.len() } else { lines.len().min(3 * most) };
            s.push_str(&lines[..shown].iter().map(|l| format!("      {}\n", words::plain(l))).collect::<String>());
            if shown < lines.len() {
                let _ = writeln!(s, "      and {} more lines: -v shows them", lines.len() - shown);
            }
            return s;
        }
        Details::Shard { metadata, order, data_start, gone, new } => {
            let mut parts: Vec<String> = metadata
                .iter()
                .map(|k| format!("__metadata__.{} {}", k.key, values(k.a.as_ref(), k.b.as_ref())))
                .collect();
            if *gone + *new > 0 {
                parts.push(format!("{new} tensors more, {gone} fewer"));
            }
            if *order {
                parts.push("the tensors stand in another order".to_owned());
            }
            parts.extend(data_start.map(|(a, b)| format!("the data start at byte {a} → {b}")));
            if parts.is_empty() {
                parts.push("see the tensors".to_owned());
            }
            let _ = write!(s, "  {}", parts.join("; "));
        }
        Details::Bytes { first } => {
            let sizes = format!("  {} → {}", words::bytes(c.a.unwrap_or(0)), words::bytes(c.b.unwrap_or(0)));
            s.push_str(&sizes);
            if let Some(at) = first {
                let _ = write!(s, ", the first byte that differs is {at}");
            }
        }
        Details::Mode { a, b } => {
            let word = |x: bool| if x { "executable" } else { "not executable" };
            let _ = write!(s, "  {} → {}", word(*a), word(*b));
        }
        Details::Type { a, b } => {
            let _ = write!(s, "  {a} → {b}");
        }
        Details::OneSide => {}
    }
    s + "\n"
}

fn values(a: Option<&Value>, b: Option<&Value>) -> String {
    let short = |v: &Value| words::elided(&words::plain(&v.to_string()), 60);
    match (a, b) {
        (Some(a), Some(b)) => format!("{} → {}", short(a), short(b)),
        (Some(a), None) => format!("removed, was {}", short(a)),
        (None, Some(b)) => format!("added, {}", short(b)),
        (None, None) => String::new(),
    }
}

fn listed(lines: impl ExactSizeIterator<Item = String>, most: usize) -> String {
    let n = lines.len();
    let shown: String = lines.take(most).collect();
    shown + &more(n, most)
}

fn more(n: usize, most: usize) -> String {
    if n > most { format!("  and {} more: -v shows them\n", n - most) } else { String::new() }
}
