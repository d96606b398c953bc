//! Roots that stand in for roots that are lost: they hold everything that no other roots hold, so that no collector takes
//! what the lost ones kept.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::digest::TreeId;
use crate::model::run::RunRecord;
use crate::store::roots::{Root, Roots};
use crate::store::survey::Survey;

/// Everything that is whole and that no roots of the survey hold; and what can be read in the texts of the damaged ones.
/// `None` where that is nothing.
pub fn recovered(survey: &Survey, damaged: &[Vec<u8>]) -> Option<Roots> {
    let held: HashSet<TreeId> =
        survey.roots.values().flat_map(|r| r.nodes.values().flatten().map(|root| root.tree)).collect();
    let named: BTreeSet<TreeId> = damaged.iter().flat_map(|text| ids_in(text)).collect();
    let there = |tree: &TreeId| {
        survey.trees.get(tree).is_some_and(|t| {
            t.files.iter().all(|(b, _, _)| {
                survey.blobs.contains_key(&(*b, false))
                    || survey.blobs.contains_key(&(*b, true))
                    || survey.refs.contains(b)
            })
        })
    };
    let mut nodes: BTreeMap<String, Vec<(&RunRecord, Root)>> = BTreeMap::new();
    for run in survey.runs.values().flatten() {
        let Some(tree) = run.tree() else { continue };
        let wanted = there(&tree) || named.contains(&tree) && survey.trees.contains_key(&tree);
        if wanted && !held.contains(&tree) {
            let root = Root { recipe: run.recipe, tree, seq: run.seq };
            nodes.entry(run.node.clone()).or_default().push((run, root));
        }
    }
    let held_sources: HashSet<TreeId> =
        survey.roots.values().flat_map(|r| r.sources.values().flatten().copied()).collect();
    let outputs: HashSet<TreeId> = survey.runs.values().flatten().filter_map(|r| r.tree()).collect();
    let sources: Vec<TreeId> = named
        .into_iter()
        .filter(|t| survey.trees.contains_key(t) && !outputs.contains(t) && !held_sources.contains(t))
        .collect();
    if nodes.is_empty() && sources.is_empty() {
        return None;
    }
    let newest_first = |mut list: Vec<(&RunRecord, Root)>| -> Vec<Root> {
        list.sort_by(|(a, _), (b, _)| b.started.cmp(&a.started).then(b.seq.cmp(&a.seq)));
        list.into_iter().map(|(_, root)| root).collect()
    };
    // Each generation under a name of its own, since a collector may be told to keep only the newest of a name.
    let mut named_apart = BTreeMap::new();
    for (node, list) in nodes {
        for (i, root) in newest_first(list).into_iter().enumerate() {
            let name = if i == 0 { node.clone() } else { format!("{node} ({})", i + 1) };
            named_apart.insert(name, vec![root]);
        }
    }
    Some(Roots {
        nodes: named_apart,
        sources: sources.into_iter().enumerate().map(|(i, t)| (format!("recovered-{}", i + 1), vec![t])).collect(),
        ..Roots::default()
    })
}

// Every tree that a damaged text still names.
fn ids_in(text: &[u8]) -> Vec<TreeId> {
    let text = String::from_utf8_lossy(text);
    let id = |at: usize| text.get(at..at + 67)?.parse().ok();
    text.match_indices("b3:").filter_map(|(at, _)| id(at)).collect()
}
