//! Patterns over module names, as quantisers take them: a glob, or `re:` and a regular expression.

use globset::{GlobBuilder, GlobMatcher};
use regex::Regex;

/// One pattern of `ignore` or `drop`.
///
/// A glob must match the whole name; `*` crosses dots, so `model.visual.*` is everything below. Behind `re:` stands a
/// regular expression that must match from the start of the name, not to its end, as Python's `re.match` (and with it
/// compressed-tensors) has it.
#[derive(Debug, Clone)]
pub struct Pattern {
    text: String,
    form: Form,
}

#[derive(Debug, Clone)]
enum Form {
    Glob(GlobMatcher),
    Regex(Regex),
}

/// A pattern that can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no pattern: {what}")]
pub struct BadPattern {
    /// The pattern.
    pub text: String,
    /// What is wrong with it.
    pub what: String,
}

impl Pattern {
    /// Reads a pattern. Errors: [`BadPattern`]; look-around and back-references of Python are not understood.
    pub fn parse(text: &str) -> Result<Self, BadPattern> {
        let bad = |what: String| BadPattern { text: text.to_owned(), what };
        let form = match text.strip_prefix("re:") {
            Some(re) => Form::Regex(Regex::new(&format!("^(?:{re})")).map_err(|e| bad(e.to_string()))?),
            None if text.is_empty() => return Err(bad("it is empty".to_owned())),
            None => {
                let glob = GlobBuilder::new(text).literal_separator(false).backslash_escape(true).build();
                Form::Glob(glob.map_err(|e| bad(e.kind().to_string()))?.compile_matcher())
            }
        };
        Ok(Self { text: text.to_owned(), form })
    }

    /// Whether it matches `name`.
    pub fn matches(&self, name: &str) -> bool {
        match &self.form {
            Form::Glob(g) => g.is_match(name),
            Form::Regex(r) => r.is_match(name),
        }
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The name, where the pattern has no wildcard and is a name itself.
    pub fn exact(&self) -> Option<&str> {
        let plain = matches!(self.form, Form::Glob(_)) && !self.text.contains(['*', '?', '[', '{', '\\']);
        plain.then_some(self.text.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glob_matches_whole_names_and_a_regular_expression_from_the_start() {
        let is = |p: &str, n: &str| Pattern::parse(p).unwrap().matches(n);
        assert!(is("lm_head", "lm_head") && !is("lm_head", "model.lm_head") && !is("lm_head", "lm_head2"));
        assert!(is("model.visual.*", "model.visual.blocks.0.attn.qkv") && !is("model.visual.*", "model.visual"));
        assert!(is("*.linear_attn.*", "model.layers.0.linear_attn.in_proj_a"));
        assert!(is("re:.*visual", "model.visual.x") && is("re:model", "model.a") && !is("re:visual", "model.visual"));
        assert!(is("re:a|b", "b.c") && !is("re:a|b", "c.b"));
        assert!(is("re:.*in_proj_a$", "x.in_proj_a") && !is("re:.*in_proj_a$", "x.in_proj_ab"));
    }

    #[test]
    fn a_pattern_that_cannot_be_read_says_why() {
        assert!(Pattern::parse("re:(?=x)").unwrap_err().what.contains("look-around"));
        assert_eq!(Pattern::parse("").unwrap_err().what, "it is empty");
        assert!(Pattern::parse("a[").is_err());
        assert_eq!(Pattern::parse("lm_head").unwrap().exact(), Some("lm_head"));
        assert_eq!(Pattern::parse("re:lm_head").unwrap().exact(), None);
    }
}
