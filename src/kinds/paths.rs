//! Globs over the paths of a tree.

use globset::{GlobBuilder, GlobMatcher};

use crate::model::path::RelPath;
use crate::near::did_you_mean;

/// A glob over paths: `*` does not cross `/`, `**` does, and one that ends in `/` is all below that folder.
#[derive(Debug, Clone)]
pub struct PathGlob {
    text: String,
    matcher: GlobMatcher,
}

/// A text that is no glob.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no glob: {what}")]
pub struct BadGlob {
    /// The text.
    pub text: String,
    /// What is wrong.
    pub what: String,
}

/// Globs that match nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} {} nothing", globs.iter().map(|g| format!("{g:?}")).collect::<Vec<_>>().join(", "), if globs.len() == 1 { "matches" } else { "match" })]
pub struct NoMatch {
    /// The globs.
    pub globs: Vec<String>,
    /// What to do next.
    pub hint: String,
}

/// The paths that at least one glob matches. Errors: [`NoMatch`] with every glob that matches none.
pub fn select_all<'a>(
    globs: &[PathGlob],
    paths: impl IntoIterator<Item = &'a RelPath> + Clone,
) -> Result<std::collections::BTreeSet<RelPath>, NoMatch> {
    let mut chosen = std::collections::BTreeSet::new();
    let mut misses: Vec<NoMatch> = Vec::new();
    for glob in globs {
        match glob.select(paths.clone()) {
            Ok(found) => chosen.extend(found),
            Err(e) => misses.push(e),
        }
    }
    if misses.is_empty() {
        return Ok(chosen);
    }
    let there = there(paths);
    if let [one] = misses.as_slice() {
        let hint = if one.hint == NOTHING_NEAR { there } else { one.hint.clone() };
        return Err(NoMatch { globs: one.globs.clone(), hint });
    }
    let near = misses.iter().filter(|m| m.hint != NOTHING_NEAR);
    let hints: Vec<String> = near.map(|m| format!("for {:?} {}", m.globs.concat(), m.hint)).collect();
    let hint = if hints.is_empty() { there } else { hints.join(" ") };
    Err(NoMatch { globs: misses.into_iter().flat_map(|m| m.globs).collect(), hint })
}

// How many names a hint has.
const MOST: usize = 8;

// What there is at the top, shards aside: nobody mistakes their names.
fn there<'a>(paths: impl IntoIterator<Item = &'a RelPath>) -> String {
    let top = |p: &str| p.split_once('/').map_or_else(|| p.to_owned(), |(d, _)| format!("{d}/"));
    let shard = |n: &String| n.ends_with(".safetensors") || n.ends_with(".safetensors.index.json");
    let names = paths.into_iter().filter_map(RelPath::as_str).map(top).filter(|n| !shard(n));
    let all: std::collections::BTreeSet<String> = names.collect();
    if all.is_empty() {
        return NOTHING_NEAR.to_owned();
    }
    let shown = all.iter().take(MOST).cloned().collect::<Vec<_>>().join(", ");
    let more = all.len().saturating_sub(MOST);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("there is {shown}{more}: leave out what is not")
}

const NOTHING_NEAR: &str = "look at the paths with `show`, or leave it out";

impl PathGlob {
    /// Reads a glob. Errors: [`BadGlob`].
    pub fn parse(text: &str) -> Result<Self, BadGlob> {
        let bad = |what: String| BadGlob { text: text.to_owned(), what };
        if text.is_empty() || text.starts_with('/') || text.starts_with("./") {
            return Err(bad("paths are relative, without `./`".to_owned()));
        }
        let below = if text.ends_with('/') { "**" } else { "" };
        let glob = GlobBuilder::new(&format!("{text}{below}"))
            .literal_separator(true)
            .backslash_escape(true)
            .build()
            .map_err(|e| bad(e.kind().to_string()))?;
        Ok(Self { text: text.to_owned(), matcher: glob.compile_matcher() })
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it matches the whole path.
    pub fn matches(&self, path: &RelPath) -> bool {
        self.matcher.is_match(path.as_path())
    }

    /// Those of `paths` that it matches. Errors: [`NoMatch`] where that is none.
    pub fn select<'a>(&self, paths: impl IntoIterator<Item = &'a RelPath> + Clone) -> Result<Vec<RelPath>, NoMatch> {
        let found: Vec<RelPath> = paths.clone().into_iter().filter(|p| self.matches(p)).cloned().collect();
        if !found.is_empty() {
            return Ok(found);
        }
        let names: Vec<&str> = paths.into_iter().filter_map(RelPath::as_str).collect();
        let hint = did_you_mean(&self.text, names);
        let hint = hint.unwrap_or_else(|| NOTHING_NEAR.to_owned());
        Err(NoMatch { globs: vec![self.text.clone()], hint })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::try_from(text).unwrap()
    }

    #[test]
    fn one_star_stays_in_its_folder_and_two_do_not() {
        let matches = |glob: &str, p: &str| PathGlob::parse(glob).unwrap().matches(&path(p));
        assert!(matches("*.json", "config.json"));
        assert!(!matches("*.json", "sub/config.json"));
        assert!(matches("**/*.json", "sub/config.json"));
        assert!(matches("**/*.json", "config.json"));
        assert!(matches("sub/**", "sub/a/b"));
        assert!(matches("sub/", "sub/a/b") && !matches("sub/", "sub"));
        assert!(matches("{a,b}.txt", "b.txt"));
        assert!(!matches("[!a].txt", "a.txt"));
        assert!(PathGlob::parse("[a").is_err());
        assert!(PathGlob::parse("/etc/*").is_err());
    }

    #[test]
    fn a_glob_that_matches_nothing_is_an_error_with_near_names() {
        let paths = [path("preprocessor_config.json"), path("x.bin")];
        let e = PathGlob::parse("processor_config*.json").unwrap().select(&paths).unwrap_err();
        assert_eq!(e.hint, "did you mean `preprocessor_config.json`?");
        let none = select_all(&[PathGlob::parse("*.jinja").unwrap()], &paths).unwrap_err();
        assert_eq!(none.hint, "there is preprocessor_config.json, x.bin: leave out what is not");
        let globs = ["x.bin", "generation_config.json", "processor_config*.json"].map(|g| PathGlob::parse(g).unwrap());
        let e = select_all(&globs, &paths).unwrap_err();
        assert_eq!(e.to_string(), "\"generation_config.json\", \"processor_config*.json\" match nothing");
        assert_eq!(e.hint, "for \"processor_config*.json\" did you mean `preprocessor_config.json`?");
    }
}
