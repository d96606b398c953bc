//! Near names: what somebody may have meant who wrote a name that is not there.

/// The candidates nearest to `wanted`, best first, at most `max`. Near means few slips of the keyboard (a letter
/// added, left out, exchanged or swapped with its neighbour; upper and lower case count as one), or that one text
/// contains the other. Wildcards in `wanted` are left out of the comparison, so a pattern finds near names too.
pub fn near<'a>(wanted: &str, candidates: impl IntoIterator<Item = &'a str>, max: usize) -> Vec<&'a str> {
    let wanted: Vec<char> = fold(wanted).into_iter().filter(|c| !matches!(c, '*' | '?')).collect();
    if wanted.is_empty() {
        return Vec::new();
    }
    let limit = (wanted.len() / 3).clamp(1, 8);
    let mut scored: Vec<(usize, &str)> = candidates
        .into_iter()
        .filter_map(|c| {
            let folded = fold(c);
            // Where every letter is another one, nothing was mistyped.
            let slips = slips(&wanted, &folded, limit).filter(|n| is_near(*n, &wanted, &folded));
            slips.or_else(|| contains(&wanted, &folded, limit)).map(|score| (score, c))
        })
        .collect();
    scored.sort_unstable();
    scored.dedup();
    scored.into_iter().take(max).map(|(_, c)| c).collect()
}

/// ``did you mean `a`, `b` or `c`?`` with up to three near names; `None` where nothing is near.
pub fn did_you_mean<'a>(wanted: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let found = near(wanted, candidates, 3);
    let (last, before) = found.split_last()?;
    let before: Vec<String> = before.iter().map(|n| format!("`{n}`")).collect();
    Some(if before.is_empty() {
        format!("did you mean `{last}`?")
    } else {
        format!("did you mean {} or `{last}`?", before.join(", "))
    })
}

// What both have at their beginning and end says nothing: of the rest, more than half must be right, or few slips made.
fn is_near(slips: usize, a: &[char], b: &[char]) -> bool {
    let head = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    let (a, b) = (&a[head..], &b[head..]);
    let tail = a.iter().rev().zip(b.iter().rev()).take_while(|(x, y)| x == y).count();
    let differing = a.len().max(b.len()) - tail;
    let all = head + tail == 0 && slips == differing;
    !all && (slips <= FEW || slips * 2 <= differing)
}

const FEW: usize = 2;

fn fold(s: &str) -> Vec<char> {
    s.chars().flat_map(char::to_lowercase).collect()
}

// Behind every name that is near by slips: shorter texts around the wanted one come first.
fn contains(wanted: &[char], candidate: &[char], limit: usize) -> Option<usize> {
    let (short, long) = if wanted.len() <= candidate.len() { (wanted, candidate) } else { (candidate, wanted) };
    // A short name at the end of a long one is another name: config.json is no slip for generation_config.json.
    let scrap = short.len() == candidate.len() && short.len() * 3 <= long.len() * 2;
    if short.len() < 3 || scrap || !long.windows(short.len()).any(|w| w == short) {
        return None;
    }
    Some(limit + 1 + long.len() - short.len())
}

/// The number of slips between `a` and `b` (optimal string alignment), if it is at most `limit`.
fn slips(a: &[char], b: &[char], limit: usize) -> Option<usize> {
    if a.len().abs_diff(b.len()) > limit {
        return None;
    }
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.iter().enumerate() {
        let mut row = Vec::with_capacity(b.len() + 1);
        row.push(i + 1);
        for (j, cb) in b.iter().enumerate() {
            let mut best = (last[j] + usize::from(ca != cb)).min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *ca == b[j - 1] && a[i - 1] == *cb {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        // Many candidates are far: give up on them early.
        if row.iter().min().is_some_and(|m| *m > limit) {
            return None;
        }
        before = std::mem::replace(&mut last, row);
    }
    last.last().copied().filter(|d| *d <= limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swapped_letter_finds_the_kind_that_was_meant() {
        assert_eq!(near("qaunt", ["graft", "quant", "run", "splice"], 3), ["quant"]);
        assert_eq!(near("quantt", ["graft", "quant", "run"], 3), ["quant"]);
        assert_eq!(near("Quant", ["graft", "quant", "run"], 3), ["quant"]);
    }

    #[test]
    fn nothing_is_suggested_where_nothing_is_near() {
        assert_eq!(near("fetch", ["graft", "quant", "run"], 3), Vec::<&str>::new());
        assert_eq!(near("***", ["graft"], 3), Vec::<&str>::new());
        assert_eq!(near("", ["graft"], 3), Vec::<&str>::new());
        assert_eq!(did_you_mean("x", ["graft"]), None);
        assert_eq!(did_you_mean("x", ["a", "b"]), None, "one letter is no slip for another");
    }

    #[test]
    fn slips_come_before_longer_names_that_contain_the_wanted_one() {
        assert_eq!(
            near("quant-a", ["my-quant-a-2", "quant-b", "quant-a1"], 3),
            ["quant-a1", "quant-b", "my-quant-a-2"]
        );
    }

    #[test]
    fn a_pattern_finds_names_by_what_is_not_a_wildcard() {
        assert_eq!(near("mtpp.*", ["mtp.fc.weight", "mtp."], 3), ["mtp."]);
        assert_eq!(near("*.safetensor", ["model.safetensors", "config.json"], 3), ["model.safetensors"]);
    }

    #[test]
    fn a_scrap_of_the_wanted_name_is_not_what_was_meant() {
        assert_eq!(near("processor_config.json", ["config.json", "x.json"], 3), Vec::<&str>::new());
        assert_eq!(near("my-quant-a", ["quant-a"], 3), ["quant-a"]);
        assert_eq!(near("processor_config.json", ["tokenizer_config.json"], 3), Vec::<&str>::new());
    }

    #[test]
    fn up_to_three_names_are_listed() {
        let names = ["node-a", "node-b", "node-c", "node-d"];
        assert_eq!(did_you_mean("node-x", names).unwrap(), "did you mean `node-a`, `node-b` or `node-c`?");
        assert_eq!(did_you_mean("node-x", ["node-a"]).unwrap(), "did you mean `node-a`?");
    }
}
