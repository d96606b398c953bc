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

/// A glob that matches nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{glob:?} matches nothing")]
pub struct NoMatch {
    /// The glob.
    pub glob: String,
    /// What to do next.
    pub hint: String,
}

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
        let hint = hint.unwrap_or_else(|| "look at the paths with `show`, or leave the glob out".to_owned());
        Err(NoMatch { glob: self.text.clone(), hint })
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
    }
}
