//! What of a tree a step sees (`uses`), and what of a folder is never looked at (`exclude`).

use globset::{Candidate, GlobBuilder, GlobMatcher};

use crate::canon::quote;
use crate::model::path::RelPath;
use crate::model::tree::{Entry, Tree, link_target};
use crate::near::{did_you_mean, near};

/// The word in `uses` for shards and their index: `*.safetensors` and `*.safetensors.index.json` at the top.
pub const WEIGHTS: &str = "@weights";

/// A text that is no pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} is no pattern: {what}", quote(pattern.as_bytes()))]
pub struct BadPattern {
    /// The text.
    pub pattern: String,
    /// What is wrong with it.
    pub what: String,
}

impl BadPattern {
    /// What to do.
    pub fn hint(&self) -> Option<String> {
        let word = self.pattern.starts_with('@');
        word.then(|| did_you_mean(&self.pattern, [WEIGHTS]).unwrap_or_else(|| format!("the only word is `{WEIGHTS}`")))
    }
}

fn bad(pattern: &str, what: impl Into<String>) -> BadPattern {
    BadPattern { pattern: pattern.to_owned(), what: what.into() }
}

/// The longest pattern, in bytes.
const LONGEST: usize = 4096;

/// Compiles a path glob: `*`, `?` and `[…]` stay within a path's component, `**` crosses `/`, `{a,b}` is either.
fn glob(pattern: &str) -> Result<GlobMatcher, BadPattern> {
    if pattern.is_empty() {
        return Err(bad(pattern, "it is empty"));
    }
    if pattern.len() > LONGEST {
        let shown: String = pattern.chars().take(40).collect();
        return Err(bad(&shown, format!("it has {} bytes, more than {LONGEST}", pattern.len())));
    }
    if pattern.starts_with('/') {
        return Err(bad(pattern, "it starts with `/`, but paths are relative to the top"));
    }
    if pattern.split('/').any(|c| matches!(c, "." | ".." | "")) {
        return Err(bad(pattern, "it has an empty, `.` or `..` component"));
    }
    let glob = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build();
    glob.map(|g| g.compile_matcher()).map_err(|e| bad(pattern, e.kind().to_string()))
}

/// A pattern that ends in `/` stands for all below that folder.
fn below(pattern: &str) -> String {
    if pattern.len() > 1 && pattern.ends_with('/') { format!("{pattern}**") } else { pattern.to_owned() }
}

/// The projection of an input: patterns, each of which must match something.
#[derive(Debug, Clone)]
pub struct Filter {
    patterns: Vec<(String, Vec<GlobMatcher>)>,
}

/// A projection that can't be made of a tree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// Patterns that match nothing.
    #[error("{} {} nothing", quoted(misses), if misses.len() == 1 { "matches" } else { "match" })]
    NoMatch {
        /// Each pattern, and paths that may have been meant.
        misses: Vec<(String, Vec<String>)>,
    },
    /// A link is kept, but what it points to is not.
    #[error("the link {path} is kept, but not {target}, to which it points")]
    CutLink {
        /// The link.
        path: RelPath,
        /// What it points to, from the top.
        target: RelPath,
    },
}

fn quoted(misses: &[(String, Vec<String>)]) -> String {
    misses.iter().map(|(pattern, _)| quote(pattern.as_bytes())).collect::<Vec<_>>().join(", ")
}

impl FilterError {
    /// What to do.
    pub fn hint(&self) -> String {
        match self {
            FilterError::NoMatch { misses } => {
                let mut near: Vec<String> = misses.iter().flat_map(|m| &m.1).map(|n| format!("`{n}`")).collect();
                near.dedup();
                if near.is_empty() {
                    "`*` stays within a folder, `**` crosses `/`; a folder is `NAME/`".to_owned()
                } else {
                    format!("there is {}", near.join(", "))
                }
            }
            FilterError::CutLink { target, .. } => format!("add \"{target}\" to `uses`"),
        }
    }
}

impl Filter {
    /// Compiles the patterns of `uses`. Errors: [`BadPattern`] for one that is empty, absolute, climbs, or is no glob.
    pub fn compile(uses: &[String]) -> Result<Filter, BadPattern> {
        let patterns = uses.iter().map(|p| Ok((p.clone(), Self::globs(p)?))).collect::<Result<_, _>>()?;
        Ok(Filter { patterns })
    }

    fn globs(pattern: &str) -> Result<Vec<GlobMatcher>, BadPattern> {
        match pattern {
            // The shards come first: they must be there, an index need not.
            WEIGHTS => Ok(vec![glob("*.safetensors")?, glob("*.safetensors.index.json")?]),
            word if word.starts_with('@') => Err(bad(word, "there is no such word")),
            _ => Ok(vec![glob(&below(pattern))?]),
        }
    }

    /// The part of `tree` that matches. Errors: [`FilterError`].
    pub fn apply(&self, tree: &Tree) -> Result<Tree, FilterError> {
        let mut matched = vec![false; self.patterns.len()];
        let kept = tree.filtered(|path, _| {
            let candidate = Candidate::from_bytes(path.as_bytes());
            let mut keep = false;
            for ((_, globs), matched) in self.patterns.iter().zip(&mut matched) {
                if let Some(which) = globs.iter().position(|g| g.is_match_candidate(&candidate)) {
                    keep = true;
                    *matched |= which == 0;
                }
            }
            keep
        });
        let missed = self.patterns.iter().zip(&matched).filter(|(_, matched)| !**matched);
        let misses: Vec<_> = missed.map(|((p, _), _)| (p.clone(), near_paths(p, tree))).collect();
        if !misses.is_empty() {
            return Err(FilterError::NoMatch { misses });
        }
        match cut_link(tree, &kept) {
            Some((path, target)) => Err(FilterError::CutLink { path, target }),
            None => Ok(kept),
        }
    }
}

fn near_paths(pattern: &str, tree: &Tree) -> Vec<String> {
    let mut names: Vec<String> = tree.iter().map(|(p, _)| p.to_string()).collect();
    let folders: std::collections::BTreeSet<String> =
        tree.iter().filter_map(|(p, _)| p.parent()).map(|p| format!("{p}/")).collect();
    // The folder of that very name was surely meant.
    if let Some(folder) = folders.iter().find(|f| f.strip_suffix('/') == Some(pattern)) {
        return vec![folder.clone()];
    }
    names.extend(folders);
    let wanted = if pattern == WEIGHTS { ".safetensors" } else { pattern };
    near(wanted, names.iter().map(String::as_str), 3).into_iter().map(str::to_owned).collect()
}

/// A kept link whose target was there and is no more.
fn cut_link(tree: &Tree, kept: &Tree) -> Option<(RelPath, RelPath)> {
    for (path, entry) in kept.iter() {
        let Entry::Link { target } = entry else { continue };
        let Some(target) = link_target(path, target) else { continue };
        if tree.holds(&target) && !kept.holds(&target) {
            return Some((path.clone(), target));
        }
    }
    None
}

/// What is left out of every folder source, unless its `exclude` takes it back with `!`.
pub const DEFAULT_EXCLUDES: [&str; 5] = ["__pycache__/", ".cache/", ".git/", ".DS_Store", "*.pyc"];

/// What of a folder source is invisible: the defaults, then its own patterns; the last one that matches decides, and
/// one that starts with `!` takes back. A pattern without `/` (but at its end) matches a name at any depth, one with
/// `/` a path from the top; one that ends in `/` matches folders only.
#[derive(Debug, Clone)]
pub struct Excludes {
    rules: Vec<Rule>,
}

#[derive(Debug, Clone)]
struct Rule {
    glob: GlobMatcher,
    folders_only: bool,
    hides: bool,
}

impl Default for Excludes {
    /// The stated defaults alone.
    fn default() -> Self {
        Excludes { rules: DEFAULT_EXCLUDES.iter().filter_map(|p| rule(p).ok()).collect() }
    }
}

fn rule(text: &str) -> Result<Rule, BadPattern> {
    let (hides, pattern) = match text.strip_prefix('!') {
        Some(rest) => (false, rest),
        None => (true, text),
    };
    let (pattern, folders_only) = match pattern.strip_suffix('/') {
        Some(rest) => (rest, true),
        None => (pattern, false),
    };
    let anywhere =
        if pattern.contains('/') || pattern.is_empty() { pattern.to_owned() } else { format!("**/{pattern}") };
    let glob = glob(&anywhere).map_err(|e| BadPattern { pattern: text.to_owned(), what: e.what })?;
    Ok(Rule { glob, folders_only, hides })
}

impl Excludes {
    /// The defaults and `patterns` behind them. Errors: [`BadPattern`].
    pub fn compile(patterns: &[String]) -> Result<Excludes, BadPattern> {
        let mut excludes = Excludes::default();
        for p in patterns {
            excludes.rules.push(rule(p)?);
        }
        Ok(excludes)
    }

    /// Whether what stands at `path` is invisible. A walk does not enter an invisible folder.
    pub fn hides(&self, path: &RelPath, is_folder: bool) -> bool {
        let candidate = Candidate::from_bytes(path.as_bytes());
        let last =
            self.rules.iter().rev().find(|r| (is_folder || !r.folders_only) && r.glob.is_match_candidate(&candidate));
        last.is_some_and(|r| r.hides)
    }
}
