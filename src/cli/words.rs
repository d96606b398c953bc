//! Numbers for people.

/// `640 B`, `12.0 MiB`, `3.5 GiB`: binary units, three digits at least where there is a point.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    #[allow(clippy::cast_precision_loss, reason = "three digits are shown")]
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    // 1023.96 would be shown as 1024.0.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// `0.03 s`, `4.2 s`, `3 min 05 s`, `2 h 07 min`.
pub(crate) fn seconds(s: f64) -> String {
    if !s.is_finite() || s < 0.0 {
        return "?".to_owned();
    }
    if s < 1.0 {
        return format!("{s:.2} s");
    }
    if s < 59.95 {
        return format!("{s:.1} s");
    }
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "finite and not negative; casts saturate"
    )]
    let whole = s.round() as u64;
    if whole < 3600 {
        format!("{} min {:02} s", whole / 60, whole % 60)
    } else {
        format!("{} h {:02} min", whole / 3600, whole % 3600 / 60)
    }
}

/// An age in its largest unit: `45 s`, `12 min`, `5 h`, `30 d`.
pub(crate) fn age(s: f64) -> String {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "casts saturate, and what is no number becomes 0"
    )]
    let s = s as u64;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min", s / 60),
        3600..172_800 => format!("{} h", s / 3600),
        _ => format!("{} d", s / 86_400),
    }
}

/// `1 step`, `2 steps`.
pub(crate) fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// A line without what would move the cursor or change colours: escape sequences are dropped, other control
/// characters become spaces.
pub(crate) fn plain(line: &str) -> String {
    let mut s = String::with_capacity(line.len());
    let mut chars = line.trim_end().chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' if chars.next_if_eq(&'[').is_some() => {
                // A control sequence ends with a letter or one of `@[\]^_`{|}~`.
                while chars.next().is_some_and(|c| !('@'..='~').contains(&c)) {}
            }
            '\u{1b}' => {}
            c if c.is_control() => s.push(' '),
            c => s.push(c),
        }
    }
    s.truncate(s.trim_end().len());
    s
}

/// The text, or its beginning and end where it is longer than `most` characters.
pub(crate) fn elided(text: &str, most: usize) -> String {
    let chars: Vec<char> = text.chars().collect();
    if chars.len() <= most {
        return text.to_owned();
    }
    let kept = most.saturating_sub(1);
    let (head, tail) = (kept / 2, kept - kept / 2);
    let (head, tail) = (&chars[..head], &chars[chars.len() - tail..]);
    head.iter().chain(['…'].iter()).chain(tail).collect()
}

/// Columns, each as wide as its widest cell, two spaces apart; nothing hangs over at the end of a line.
pub(crate) fn columns(rows: &[Vec<String>]) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.lines().fold(String::new(), |s, l| s + l.trim_end() + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_have_units() {
        let all = [0, 1023, 1024, 1_048_524, 1_048_576, 3_758_096_384, u64::MAX].map(bytes);
        assert_eq!(all, ["0 B", "1023 B", "1.0 KiB", "1023.9 KiB", "1.0 MiB", "3.5 GiB", "16384.0 PiB"]);
        let all = [0.0, 0.034, 4.21, 59.96, 185.0, 3599.6, 7621.0, f64::NAN].map(seconds);
        assert_eq!(all, ["0.00 s", "0.03 s", "4.2 s", "1 min 00 s", "3 min 05 s", "1 h 00 min", "2 h 07 min", "?"]);
        assert_eq!((count(1, "step"), count(2, "step")), ("1 step".to_owned(), "2 steps".to_owned()));
    }

    #[test]
    fn what_a_step_prints_does_not_move_the_cursor() {
        assert_eq!(plain("\u{1b}[1;31mred\u{1b}[0m\tx\u{7}\r\n"), "red x");
        assert_eq!(plain("\u{1b}"), "");
        assert_eq!(plain("\u{1b}[31"), "");
    }

    #[test]
    fn columns_line_up_and_nothing_hangs_over() {
        let rows = [["node", "state"], ["graft-a", "fresh"], ["é", ""]].map(|r| r.map(str::to_owned).to_vec());
        assert_eq!(columns(&rows), "node     state\ngraft-a  fresh\né\n");
    }
}
