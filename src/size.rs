//! Sizes in bytes as people write them: `55GiB`, `80 GB`, `1048576`.

use crate::canon::Value;

const UNITS: [(&str, u64); 13] = [
    ("b", 1),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
];

/// A size in bytes: a number and a unit. K, M, G, T and their `iB` count by 1024, `kB` … `TB` by 1000. Errors: what is wrong with it.
pub fn parse(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is no size: write a number and a unit, such as \"16GiB\" or \"500 MB\"");
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..digits], text[digits..].trim().to_ascii_lowercase());
    let factor = if unit.is_empty() { Some(1) } else { UNITS.iter().find(|u| u.0 == unit).map(|u| u.1) };
    let factor = factor.ok_or_else(bad)?;
    match number.split_once('.') {
        None => number.parse::<u64>().ok().and_then(|n| n.checked_mul(factor)).ok_or_else(bad),
        Some(_) => {
            let n: f64 = number.parse().map_err(|_| bad())?;
            let bytes = n * factor as f64;
            if bytes < 9e18 { Ok(bytes as u64) } else { Err(bad()) }
        }
    }
}

/// A size as graph.toml has it: text with a unit, or a number of bytes. Errors: what is wrong with it.
pub fn of_value(value: &Value) -> Result<u64, String> {
    match value {
        Value::Str(s) => parse(s),
        Value::Int(n) => u64::try_from(*n).map_err(|_| format!("{n} is no size: it is negative")),
        other => Err(format!("{} is no size: write \"16GiB\", or a number of bytes", other.type_name())),
    }
}

/// The size for people, in binary units with one decimal.
pub fn shown(bytes: u64) -> String {
    let mut unit = "B";
    let mut n = bytes as f64;
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if n < 1024.0 {
            break;
        }
        (n, unit) = (n / 1024.0, next);
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{n:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_binary_and_decimal_units_and_nonsense_is_refused() {
        for (text, bytes) in [
            ("55GiB", 55 << 30),
            ("80 GB", 80_000_000_000),
            ("1.5 kib", 1536),
            ("7", 7),
            ("0b", 0),
            ("2TiB", 2 << 40),
            ("200G", 200 << 30),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "GiB", "5 GiBs", "-1GB", "1e9", "99999999999TiB", "1.2.3GB"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(of_value(&Value::Int(-1)).is_err() && of_value(&Value::Bool(true)).is_err());
        assert_eq!((shown(512), shown(1 << 30), shown(1536)), ("512 B".into(), "1.0 GiB".into(), "1.5 KiB".into()));
    }
}
