//! Names that look like the one that was meant.

/// At most three of `names` that are likely what `wanted` was meant to be, the likeliest first: few letters away, or
/// one containing the other.
pub fn near<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let short = |s: &str| s.chars().take(200).collect::<Vec<char>>();
    let w = short(&wanted.to_lowercase());
    let mut found: Vec<(usize, &str)> = Vec::new();
    for name in names {
        let n = short(&name.to_lowercase());
        let distance = distance(&w, &n);
        let limit = w.len().max(n.len()).div_ceil(3);
        let holds = w.len() >= 3 && n.len() >= 3 && (contains(&n, &w) || contains(&w, &n));
        if distance <= limit || holds {
            found.push((distance, name));
        }
    }
    found.sort();
    found.dedup();
    found.into_iter().take(3).map(|(_, n)| n.to_owned()).collect()
}

fn contains(long: &[char], short: &[char]) -> bool {
    short.len() <= long.len() && long.windows(short.len()).any(|w| w == short)
}

/// Levenshtein's distance.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (y, cell) in b.iter().zip(row.iter_mut().skip(1)) {
            let cost = diagonal + usize::from(x != y);
            diagonal = *cell;
            left = cost.min(left + 1).min(diagonal + 1);
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_and_a_part_of_a_name_are_near_and_another_word_is_not() {
        assert_eq!(near("hiden_size", ["hidden_size", "vocab_size", "dtype"]), ["hidden_size"]);
        assert_eq!(near("template", ["chat_template", "x"]), ["chat_template"]);
        assert!(near("rope_theta", ["dtype", "eos"]).is_empty());
        assert_eq!(distance(&['a', 'b', 'c'], &['a', 'x', 'c', 'd']), 2);
        assert_eq!(distance(&[], &['a']), 1);
    }
}
