//! Whether two values are the same.

use serde_json::{Number, Value};

/// How numbers are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbers {
    /// `1` and `1.0` differ, and so do `0.0` and `-0.0`; `1e-6` and `0.000001` are one float.
    Typed,
    /// By their value, as JSON knows only one type of number: `1`, `1.0` and `1e0` are one.
    ByValue,
}

/// Whether two values are the same. The order of keys does not matter; integers are compared exactly, whatever their size.
pub fn same_value(a: &Value, b: &Value, numbers: Numbers) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => same_number(x, y, numbers),
        (Value::Array(x), Value::Array(y)) => {
            x.len() == y.len() && x.iter().zip(y).all(|(i, j)| same_value(i, j, numbers))
        }
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len() && x.iter().all(|(k, i)| y.get(k).is_some_and(|j| same_value(i, j, numbers)))
        }
        _ => a == b,
    }
}

fn same_number(a: &Number, b: &Number, numbers: Numbers) -> bool {
    // With arbitrary precision a number prints as the text that it was read from.
    let (x, y) = (a.to_string(), b.to_string());
    let is_float = |t: &str| t.contains(['.', 'e', 'E']);
    let both_floats = is_float(&x) && is_float(&y);
    if numbers == Numbers::Typed && (is_float(&x) != is_float(&y) || x.starts_with('-') != y.starts_with('-')) {
        return false;
    }
    decimal(&x) == decimal(&y) || (both_floats && a.as_f64().is_some() && a.as_f64() == b.as_f64())
}

/// Sign, digits without outer zeros, and the exponent of the last digit. Zero has neither sign nor exponent.
fn decimal(text: &str) -> Option<(bool, String, i64)> {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((m, e)) => (m, e.parse::<i64>().ok()?),
        None => (text, 0),
    };
    let (negative, mantissa) = match mantissa.strip_prefix('-') {
        Some(m) => (true, m),
        None => (false, mantissa),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    let cut = digits.trim_end_matches('0');
    let exponent = exponent
        .checked_sub(i64::try_from(fraction.len()).ok()?)?
        .checked_add(i64::try_from(digits.len() - cut.len()).ok()?)?;
    let cut = cut.trim_start_matches('0');
    if cut.is_empty() { Some((false, String::new(), 0)) } else { Some((negative, cut.to_owned(), exponent)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(a: &str, b: &str, numbers: Numbers) -> bool {
        same_value(&serde_json::from_str(a).unwrap(), &serde_json::from_str(b).unwrap(), numbers)
    }

    #[test]
    fn one_and_one_point_zero_differ_typed_and_agree_by_value() {
        assert!(!same("1", "1.0", Numbers::Typed));
        assert!(same("1", "1.0", Numbers::ByValue));
        assert!(same("100", "1e2", Numbers::ByValue));
        assert!(same("1e-06", "0.000001", Numbers::Typed));
        assert!(!same("0.0", "-0.0", Numbers::Typed));
        assert!(same("0.0", "-0", Numbers::ByValue));
    }

    #[test]
    fn big_integers_are_compared_exactly() {
        assert!(!same("9007199254740993", "9007199254740992", Numbers::ByValue));
        assert!(same("123456789012345678901234567890", "123456789012345678901234567890", Numbers::Typed));
        assert!(!same("9007199254740993", "9007199254740992.0", Numbers::ByValue));
    }

    #[test]
    fn text_true_and_one_are_never_the_same() {
        for (a, b) in [("1", "\"1\""), ("1", "true"), ("null", "0"), ("[]", "{}"), ("[1]", "[1, 1]")] {
            assert!(!same(a, b, Numbers::ByValue), "{a} {b}");
        }
        assert!(same(r#"{"a": 1, "b": [2]}"#, r#"{"b": [2.0], "a": 1}"#, Numbers::ByValue));
    }
}
