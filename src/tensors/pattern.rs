//! Patterns over the names of tensors and modules.
//!
//! | written | means |
//! | --- | --- |
//! | `*` | any run of characters, dots and slashes among them: names are not paths |
//! | `?` | any one character |
//! | `[abc]`, `[a-z]`, `[!abc]` | one character of, or not of, a set; a `[` that nothing closes is itself |
//! | `re:…` | for modules only: a regular expression that matches from the start, as Python's `re.match` |
//!
//! A glob matches the whole name, case and all; its meaning is that of Python's `fnmatch.fnmatchcase`, which is what
//! the servers use.

use regex::Regex;

use crate::near;

/// A pattern, ready to be held against names.
#[derive(Debug, Clone)]
pub struct Pattern {
    text: String,
    how: How,
}

#[derive(Debug, Clone)]
enum How {
    Glob(Vec<Token>),
    Regex(Regex),
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Char(char),
    One,
    Run,
    Set { not: bool, ranges: Vec<(char, char)> },
}

/// A regular expression that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the pattern {pattern:?} is no regular expression that is known here: {what}")]
pub struct BadPattern {
    /// The pattern.
    pub pattern: String,
    /// What is wrong.
    pub what: String,
}

/// Patterns that match no name: all of those that were given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} none of {count} names", these(misses))]
pub struct NoMatch {
    /// The patterns.
    pub misses: Vec<Miss>,
    /// How many names there are.
    pub count: usize,
    /// How they begin, up to their first dot: a few of these.
    pub beginnings: Vec<String>,
}

/// A pattern that matches no name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Miss {
    /// The pattern.
    pub pattern: String,
    /// Patterns that differ in their prefix or in one part and do match, with the number of names.
    pub others: Vec<(String, usize)>,
    /// Names, or beginnings of names, that are near.
    pub near: Vec<String>,
}

fn these(misses: &[Miss]) -> String {
    let list: Vec<String> = misses.iter().map(|m| format!("{:?}", m.pattern)).collect();
    match list.as_slice() {
        [one] => format!("the pattern {one} matches"),
        many => format!("the patterns {} match", many.join(", ")),
    }
}

impl Miss {
    fn meant(&self) -> Option<String> {
        let others = self.others.iter().map(|(p, n)| format!("{p:?} (matches {n})"));
        let said = |n: &&String| !self.others.iter().any(|(p, _)| p.starts_with(n.as_str()));
        let near = self.near.iter().filter(said).map(|n| format!("{n:?}"));
        let all: Vec<String> = others.chain(near).collect();
        (!all.is_empty()).then(|| all.join(" or "))
    }
}

impl NoMatch {
    /// What was probably meant; how names begin, where nothing is near; empty where there are no names.
    pub fn hint(&self) -> String {
        let begin = || match self.beginnings.as_slice() {
            [] => String::new(),
            some => format!("the names begin with {}", some.join(", ")),
        };
        if let [one] = self.misses.as_slice() {
            return one.meant().map_or_else(begin, |m| format!("did you mean {m}?"));
        }
        let meant =
            self.misses.iter().filter_map(|m| Some(format!("for {:?} did you mean {}?", m.pattern, m.meant()?)));
        let meant: Vec<String> = meant.collect();
        if meant.is_empty() { begin() } else { meant.join(" ") }
    }
}

impl Pattern {
    /// A glob.
    pub fn glob(text: &str) -> Self {
        Self { text: text.to_owned(), how: How::Glob(tokens(text)) }
    }

    /// A glob, or a regular expression behind `re:`. Errors: [`BadPattern`], also for what only Python knows
    /// (look-around, back references).
    pub fn module(text: &str) -> Result<Self, BadPattern> {
        let Some(re) = text.strip_prefix("re:") else { return Ok(Self::glob(text)) };
        let how = Regex::new(&format!("^(?:{re})"))
            .map_err(|e| BadPattern { pattern: text.to_owned(), what: e.to_string() })?;
        Ok(Self { text: text.to_owned(), how: How::Regex(how) })
    }

    /// The pattern as written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the name matches.
    pub fn matches(&self, name: &str) -> bool {
        match &self.how {
            How::Glob(tokens) => glob_matches(tokens, name),
            How::Regex(re) => re.is_match(name),
        }
    }
}

fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let mut out = Vec::new();
    let mut i = 0;
    while let Some(c) = chars.get(i) {
        i += 1;
        match c {
            // Several in a row are one.
            '*' if out.last() == Some(&Token::Run) => {}
            '*' => out.push(Token::Run),
            '?' => out.push(Token::One),
            '[' => match set(&chars, i) {
                Some((token, next)) => {
                    out.push(token);
                    i = next;
                }
                None => out.push(Token::Char('[')),
            },
            c => out.push(Token::Char(*c)),
        }
    }
    out
}

// The set that starts behind the bracket at `start`, and where it ends. A `]` that comes first is a member.
fn set(chars: &[char], start: usize) -> Option<(Token, usize)> {
    let not = chars.get(start) == Some(&'!');
    let first = start + usize::from(not);
    let close = (first + 1..chars.len()).find(|i| chars.get(*i) == Some(&']'))?;
    let members = chars.get(first..close)?;
    let mut ranges = Vec::new();
    let mut i = 0;
    while let Some(c) = members.get(i) {
        match (members.get(i + 1), members.get(i + 2)) {
            (Some('-'), Some(end)) => {
                ranges.push((*c, *end));
                i += 3;
            }
            _ => {
                ranges.push((*c, *c));
                i += 1;
            }
        }
    }
    Some((Token::Set { not, ranges }, close + 1))
}

// Linear in practice and never worse than tokens × characters: only the last run is ever tried again.
fn glob_matches(tokens: &[Token], name: &str) -> bool {
    let (mut t, mut rest) = (0, name.chars());
    let mut retry: Option<(usize, std::str::Chars<'_>)> = None;
    loop {
        let mut after = rest.clone();
        let step = match tokens.get(t) {
            Some(Token::Run) => {
                retry = Some((t + 1, rest.clone()));
                t += 1;
                continue;
            }
            None => rest.as_str().is_empty(),
            Some(token) => after.next().is_some_and(|c| token.takes(c)),
        };
        match (step, tokens.get(t)) {
            (true, None) => return true,
            (true, Some(_)) => {
                t += 1;
                rest = after;
            }
            (false, _) => match &mut retry {
                Some((back, from)) => {
                    if from.next().is_none() {
                        return false;
                    }
                    (t, rest) = (*back, from.clone());
                }
                None => return false,
            },
        }
    }
}

impl Token {
    fn takes(&self, c: char) -> bool {
        match self {
            Token::Char(want) => *want == c,
            Token::One => true,
            Token::Run => false,
            Token::Set { not, ranges } => ranges.iter().any(|(a, b)| *a <= c && c <= *b) != *not,
        }
    }
}

/// The names that at least one pattern matches, in their order, each once. Errors: [`NoMatch`] with every pattern that
/// matches none.
pub fn matching<'n>(names: &[&'n str], patterns: &[Pattern]) -> Result<Vec<&'n str>, NoMatch> {
    let mut used = vec![false; patterns.len()];
    let mut out = Vec::new();
    for name in names {
        let mut any = false;
        for (pattern, used) in patterns.iter().zip(&mut used) {
            if pattern.matches(name) {
                *used = true;
                any = true;
            }
        }
        if any {
            out.push(*name);
        }
    }
    let unused = patterns.iter().zip(used).filter(|(_, used)| !used);
    let misses: Vec<Miss> = unused.map(|(pattern, _)| miss(names, pattern)).collect();
    if misses.is_empty() {
        return Ok(out);
    }
    Err(NoMatch { misses, count: names.len(), beginnings: beginnings(names) })
}

const SHOWN_BEGINNINGS: usize = 6;

fn beginnings(names: &[&str]) -> Vec<String> {
    let cut = |n: &&'_ str| n.find('.').map_or_else(|| (*n).to_owned(), |i| format!("{}.", &n[..i]));
    let all: std::collections::BTreeSet<String> = names.iter().map(cut).collect();
    let more = all.len().saturating_sub(SHOWN_BEGINNINGS);
    let mut some: Vec<String> = all.into_iter().take(SHOWN_BEGINNINGS).collect();
    if more > 0 {
        some.push(format!("and {more} more"));
    }
    some
}

// What the same tensors are called in different tools' checkpoints.
const PREFIXES: [&str; 8] = [
    "model.language_model.",
    "language_model.model.",
    "model.",
    "language_model.",
    "base_model.model.model.",
    "base_model.model.",
    "transformer.",
    "",
];

fn miss(names: &[&str], pattern: &Pattern) -> Miss {
    let text = pattern.text();
    let mut others: Vec<(String, usize)> = Vec::new();
    if matches!(pattern.how, How::Glob(_)) {
        others = other_parts(names, text);
        for from in PREFIXES {
            let Some(rest) = text.strip_prefix(from).filter(|r| !r.is_empty()) else { continue };
            for to in PREFIXES {
                let other = format!("{to}{rest}");
                let count = names.iter().filter(|n| Pattern::glob(&other).matches(n)).count();
                if count > 0 && !others.iter().any(|(p, _)| *p == other) {
                    others.push((other, count));
                }
            }
        }
        others.truncate(3);
    }
    // What stands before the first wildcard is held against the names and what their dots leave of them.
    let head = text.split(['*', '?', '[']).next().unwrap_or(text);
    let mut candidates = std::collections::BTreeSet::new();
    for name in names {
        candidates.insert(*name);
        candidates.extend(name.match_indices('.').filter_map(|(i, _)| name.get(..=i)));
    }
    let near = near::near(head, candidates, 3).into_iter().map(str::to_owned).collect();
    Miss { pattern: text.to_owned(), others, near }
}

// A part between dots or wildcards that no name has, exchanged for one that is near and makes the pattern match. Only
// in patterns with wildcards: a whole name is held against whole names.
fn other_parts(names: &[&str], text: &str) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    if !text.contains(['*', '?', '[']) {
        return found;
    }
    let parts: std::collections::BTreeSet<&str> = names.iter().flat_map(|n| n.split('.')).collect();
    for part in text.split(['*', '?', '[', ']', '.']).filter(|p| !p.is_empty()) {
        if names.iter().any(|n| n.contains(part)) {
            continue;
        }
        for near in near::near(part, parts.iter().copied(), 3) {
            let other = text.replacen(part, near, 1);
            let pattern = Pattern::glob(&other);
            let count = names.iter().filter(|n| pattern.matches(n)).count();
            if count > 0 {
                found.push((other, count));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_mean_what_fnmatch_means() {
        for (pattern, name, expected) in [
            ("mtp.*", "mtp.fc.weight", true),
            ("mtp.*", "mtp", false),
            ("mtp.*", "model.mtp.fc.weight", false),
            ("mtp*", "mtp", true),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("*.linear_attn.*", "model.layers.0.linear_attn.norm.weight", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("a?c", "a\u{e9}c", true),
            ("a/*", "a/b/c", true),
            ("layers.[0-3].*", "layers.2.w", true),
            ("layers.[0-3].*", "layers.4.w", false),
            ("layers.[!0-3].*", "layers.4.w", true),
            ("[]a]", "]", true),
            ("[^a]", "b", false),
            ("[^a]", "^", true),
            ("[a", "[a", true),
            ("a[b-]", "a-", true),
            ("**a**b*", "xxaxxbxx", true),
            ("*a*b", "ab ab c", false),
            ("*.weight", "x.weight.weight", true),
            ("A", "a", false),
            ("a.b", "aXb", false),
        ] {
            assert_eq!(Pattern::glob(pattern).matches(name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn a_glob_of_many_runs_against_a_long_name_ends() {
        let name = "a".repeat(20_000);
        assert!(!Pattern::glob(&format!("{}b", "a*".repeat(40))).matches(&name));
    }

    #[test]
    fn module_expressions_match_from_the_start_and_not_to_the_end() {
        let m = |p: &str, n: &str| Pattern::module(p).unwrap().matches(n);
        assert!(m("re:^mtp.*", "mtp.fc"));
        assert!(m("re:mtp", "mtp.fc"));
        assert!(!m("re:fc", "mtp.fc"));
        assert!(m("re:.*in_proj_a$", "model.layers.0.linear_attn.in_proj_a"));
        assert!(m("re:a|mtp", "mtp.fc"));
        assert!(!m("re:a|fc", "mtp.fc"));
        assert!(m("lm_head", "lm_head") && !m("lm_head", "lm_head.x"));
        let e = Pattern::module("re:(?!mtp)x").unwrap_err().to_string();
        assert!(e.contains("(?!mtp)") && e.contains("look"), "{e}");
    }

    #[test]
    fn names_come_once_and_in_their_order() {
        let names = ["b.x", "a.x", "c"];
        let found = matching(&names, &[Pattern::glob("*.x"), Pattern::glob("b*")]).unwrap();
        assert_eq!(found, ["b.x", "a.x"]);
    }

    #[test]
    fn a_pattern_that_matches_nothing_is_an_error_with_near_names() {
        let names = ["mtp.fc.weight", "mtp.norm.weight", "model.layers.0.w"];
        let e = matching(&names, &[Pattern::glob("mtp.*"), Pattern::glob("mpt.*")]).unwrap_err();
        assert_eq!(e.to_string(), "the pattern \"mpt.*\" matches none of 3 names");
        assert_eq!(e.hint(), "did you mean \"mtp.*\" (matches 2)?");
        let e = matching(&names, &[Pattern::glob("mtp.fc.wieght")]).unwrap_err();
        assert_eq!(e.misses[0].near[0], "mtp.fc.weight");
        assert_eq!(matching(&[], &[Pattern::glob("*")]).unwrap_err().hint(), "");
    }

    #[test]
    fn every_pattern_that_matches_nothing_is_named_with_what_is_near_it() {
        let names = ["mtp.fc", "model.embeddings.word_embeddings", "model.layer.0.attention"];
        let globs = ["mpt.*", "mtp.*", "*embedings*", "model.visual.*"].map(Pattern::glob);
        let e = matching(&names, &globs).unwrap_err();
        assert_eq!(e.to_string(), "the patterns \"mpt.*\", \"*embedings*\", \"model.visual.*\" match none of 3 names");
        let hint = e.hint();
        assert!(hint.contains("for \"mpt.*\" did you mean \"mtp.*\" (matches 1)"), "{hint}");
        let e = matching(&["a.b", "a.c", "d"], &[Pattern::glob("mtp.*")]).unwrap_err();
        assert_eq!(e.hint(), "the names begin with a., d");
        assert!(hint.contains("for \"*embedings*\" did you mean \"*embeddings*\" (matches 1)?"), "{hint}");
    }

    #[test]
    fn a_pattern_with_the_prefix_of_another_tool_is_told_which_one_matches() {
        let base = ["model.language_model.layers.0.w", "model.visual.x"];
        let e = matching(&base, &[Pattern::glob("model.layers.*")]).unwrap_err();
        assert_eq!(e.misses[0].others, [("model.language_model.layers.*".to_owned(), 1)]);
        let e = matching(&["base_model.model.model.layers.0.q"], &[Pattern::glob("model.layers.*")]).unwrap_err();
        assert_eq!(e.misses[0].others, [("base_model.model.model.layers.*".to_owned(), 1)]);
        let e = matching(&["language_model.model.layers.0.q"], &[Pattern::glob("model.language_model.layers.*")]);
        assert!(e.unwrap_err().hint().starts_with("did you mean \"language_model.model.layers.*\" (matches 1)"));
    }
}
