//! A source that is not there: what it was last, and what may have been meant by its path.

use std::path::Path;
use std::sync::Arc;

use crate::digest::TreeId;
use crate::front::error::Result;
use crate::front::{IfAway, Project};
use crate::graph::{Name, SourceSpec};
use crate::model::tree::Tree;
use crate::store::StoreError;

impl Project {
    // What a source was last, where it is away and that may be taken for it. Not where graph.toml has it elsewhere now:
    // the path may be mistyped.
    pub(super) fn as_locked(
        &self,
        name: &Name,
        why: &StoreError,
        if_away: IfAway,
    ) -> Result<Option<(TreeId, Arc<Tree>)>> {
        let (Some(spec), Some(locked)) = (self.graph.source(name.as_str()), self.lock.sources.get(name)) else {
            return Ok(None);
        };
        let same_place = locked.kind == spec.kind.key() && locked.path == spec.path;
        if if_away == IfAway::Refuse || !same_place || !is_away(why, &self.root.join(&spec.path)) {
            return Ok(None);
        }
        Ok(self.store.tree(locked.tree)?.map(|tree| (locked.tree, Arc::new(tree))))
    }
}

/// The error of a source as it is told: by the source's name, and with a hint where its path is a hub's name.
pub(super) fn told(e: StoreError, name: &Name, spec: &SourceSpec, root: &Path) -> StoreError {
    in_source(name, hub_hint(e, spec, root))
}

// The error already names the path; a person knows the source by its name.
fn in_source(name: &Name, e: StoreError) -> StoreError {
    match e {
        StoreError::Source { path, what, hint, away } => {
            StoreError::Source { path, what: format!("{what} (source `{name}`)"), hint, away }
        }
        other => other,
    }
}

// How people call the folder that they keep models in: no hub's user is meant.
const OWN: [&str; 8] = ["models", "model", "weights", "checkpoints", "data", "out", "store", "demo"];

// What stands where a folder should and looks like a hub's name of it: nothing is fetched from there.
fn hub_hint(e: StoreError, spec: &SourceSpec, root: &Path) -> StoreError {
    let part = |p: &str| {
        !p.is_empty() && !p.starts_with('.') && p.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    };
    match (e, spec.path.split_once('/')) {
        (StoreError::Source { path, what, away: true, .. }, Some((org, name)))
            if spec.kind.is_folder() && part(org) && part(name) && !OWN.contains(&org) && !root.join(org).exists() =>
        {
            let id = &spec.path;
            let hint = format!(
                "if it is a hub's name: only local folders are sources; `hf download {id} --local-dir models/{name}` makes \
                 one. A path is relative to graph.toml"
            );
            StoreError::Source { path, what, hint: Some(hint), away: true }
        }
        (e, _) => e,
    }
}

// A path that leads nowhere, or into an empty folder: so a drive looks that is not mounted.
fn is_away(why: &StoreError, path: &Path) -> bool {
    let empty = || std::fs::read_dir(path).is_ok_and(|mut names| names.next().is_none());
    matches!(why, StoreError::Source { away: true, .. }) || std::fs::metadata(path).is_err() || empty()
}
