//! Why a node runs: what differs from its last realisation.

use crate::digest::TreeId;
use crate::model::recipe::{Change, Class, explain};
use crate::model::run::{self, RunRecord};
use crate::model::tree::{Entry, Tree};
use crate::plan::machine::{Machine, Outcome};
use crate::plan::prepare::Prepared;
use crate::plan::reason::Reason;
use crate::store::{Store, StoreError};

impl Machine<'_> {
    pub(super) fn reasons(
        &self,
        id: usize,
        p: &Prepared,
        missing: Vec<String>,
        pin: Option<TreeId>,
        found: Option<&RunRecord>,
    ) -> Outcome<Vec<Reason>> {
        let store = &self.setting.store;
        let mut reasons = Vec::new();
        let runs = store.runs(p.recipe.id)?;
        if !missing.is_empty() {
            let collected = found.and_then(RunRecord::tree).and_then(|tree| store.collected(tree, &runs));
            reasons.push(match collected {
                Some(when) => Reason::Collected { when },
                None => Reason::OutputMissing { paths: missing },
            });
            return Ok(reasons);
        }
        if let (Some(pin), None) = (pin, found)
            && runs.iter().any(|r| r.tree().is_some())
        {
            reasons.push(Reason::PinMissing { tree: pin.to_string() });
            return Ok(reasons);
        }
        if let Some(weaker) = runs.iter().find(|r| r.tree().is_some()) {
            reasons.push(Reason::WeakerIsolation { had: weaker.isolation.to_string() });
            return Ok(reasons);
        }
        let before = self.setting.roots.newest(self.nodes[id].spec.name.as_str());
        if let Some(root) = before
            && root.recipe != p.recipe.id
            && let Some(old) = store.recipe(root.recipe)?
        {
            let changes = explain(&old, &p.ingredients).map_err(|e| StoreError::Damaged {
                path: store.dir().join("recipes"),
                what: format!("has {} in no readable form: {e}", root.recipe),
            })?;
            for change in changes {
                reasons.push(changed(store, change)?);
            }
        }
        if let Some(last) = runs.last()
            && let run::Outcome::Failure { error } = &last.outcome
        {
            reasons.push(Reason::LastFailed { error: error.clone() });
        }
        if reasons.is_empty() {
            reasons.push(Reason::NeverBuilt);
        }
        Ok(reasons)
    }
}

/// A changed field as a reason, with the files that differ where it is an input. Errors: a damaged listing.
pub(crate) fn changed(store: &Store, change: Change) -> Outcome<Reason> {
    let load = |text: &Option<String>| -> Outcome<Option<Tree>> {
        let id = text.as_deref().and_then(|t| t.strip_prefix("tree ")).and_then(|t| t.parse::<TreeId>().ok());
        id.map_or(Ok(None), |id| store.tree(id))
    };
    let files = if change.field.class == Class::Input
        && let (Some(old), Some(new)) = (load(&change.old)?, load(&change.new)?)
    {
        // A file source's one entry has a name of ours that says nothing to anybody.
        let mut files = tree_changes(&old, &new);
        files.retain(|f| f.strip_prefix('~') != Some(crate::store::source::FILE_NAME));
        files
    } else {
        Vec::new()
    };
    Ok(Reason::Changed { change, files })
}

/// The paths in which two trees differ: `+` added, `-` removed, `~` changed.
fn tree_changes(old: &Tree, new: &Tree) -> Vec<String> {
    let mut list = Vec::new();
    for (path, entry) in new.iter() {
        match old.get(path) {
            None => list.push(format!("+{path}")),
            Some(before) if before != entry => {
                let mode_only =
                    matches!((before, entry), (Entry::File { blob: a, .. }, Entry::File { blob: b, .. }) if a == b);
                list.push(if mode_only { format!("~{path} (executable bit)") } else { format!("~{path}") });
            }
            Some(_) => {}
        }
    }
    list.extend(old.iter().filter(|(p, _)| new.get(p).is_none()).map(|(p, _)| format!("-{p}")));
    list
}
