//! `init`: a graph to begin with.

use std::path::PathBuf;

use crate::front::error::{FrontError, Result};
use crate::front::{Location, graph_file};
use crate::fsx::{self, Placed};
use crate::store::StoreError;

/// A graph to begin with, with comments, for one kind of pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Starter {
    /// Graft, quant, splice, check and serve: a fast seat for a finetune.
    Accelerate,
    /// Two finetunes in four bits, weights only.
    Quantise,
    /// One base, several finetunes, several formats.
    Family,
    /// A seat that is replaced, and put back.
    Replace,
}

impl Starter {
    /// All of them.
    pub const ALL: [Starter; 4] = [Starter::Accelerate, Starter::Quantise, Starter::Family, Starter::Replace];

    /// Its text.
    pub const fn text(self) -> &'static str {
        match self {
            Starter::Accelerate => include_str!("starters/accelerate.toml"),
            Starter::Quantise => include_str!("starters/quantise.toml"),
            Starter::Family => include_str!("starters/family.toml"),
            Starter::Replace => include_str!("starters/replace.toml"),
        }
    }
}

/// Writes a starter where the graph at `location` would be, and gives its path. Touches nothing that is there. Errors:
/// Argument where there is a graph.
pub fn init(location: &Location, starter: Starter) -> Result<PathBuf> {
    let path = graph_file(location);
    if let Some(dir) = path.parent().filter(|d| !d.as_os_str().is_empty()) {
        fsx::create_dir_all(dir).map_err(StoreError::from)?;
    }
    let temp_dir =
        path.parent().filter(|d| !d.as_os_str().is_empty()).map_or_else(|| PathBuf::from("."), PathBuf::from);
    let temp = temp_dir.join(format!(".graftwerk-init-{}", std::process::id()));
    let placed = fsx::write_new(&temp, starter.text().as_bytes(), 0o644)
        .and_then(|()| fsx::fsync(&temp))
        .and_then(|()| fsx::rename_noreplace(&temp, &path));
    if !matches!(placed, Ok(Placed::Placed)) {
        let _ = fsx::remove_file(&temp);
    }
    match placed.map_err(StoreError::from)? {
        Placed::Placed => Ok(path),
        Placed::Existed => Err(FrontError::Argument {
            what: format!("{} is there already; it was not touched", path.display()),
            hint: Some("begin in an empty folder (-C DIR), or name another file (--graph FILE)".to_owned()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Graph;

    #[test]
    fn every_starter_is_a_graph_and_says_what_it_is_for() {
        for s in Starter::ALL {
            let graph = Graph::parse("graph.toml", s.text()).unwrap_or_else(|e| panic!("{s:?}: {e}"));
            assert!(graph.nodes.len() >= 3 && s.text().starts_with("# "), "{s:?}");
        }
    }
}
