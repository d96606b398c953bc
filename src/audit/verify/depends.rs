//! What depends on a damaged object: the artifacts that contain it, those made from them, and the nodes that need any.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::audit::verify::report::{Finding, NodeUse, Subject};
use crate::digest::{BlobId, RecipeId, TreeId};
use crate::store::survey::Survey;

/// The survey, read from a part to what needs it.
pub(super) struct Dependents<'s> {
    survey: &'s Survey,
    by_blob: HashMap<BlobId, Vec<TreeId>>,
    taken_by: HashMap<TreeId, Vec<RecipeId>>,
    nodes: HashMap<TreeId, BTreeSet<NodeUse>>,
    by_recipe: HashMap<RecipeId, BTreeSet<NodeUse>>,
    outputs: HashMap<RecipeId, Vec<TreeId>>,
}

impl<'s> Dependents<'s> {
    /// Reads the survey once.
    pub(super) fn of(survey: &'s Survey) -> Self {
        let mut by_blob: HashMap<BlobId, Vec<TreeId>> = HashMap::new();
        for (id, tree) in &survey.trees {
            let blobs: HashSet<BlobId> = tree.files.iter().map(|f| f.0).collect();
            for blob in blobs {
                by_blob.entry(blob).or_default().push(*id);
            }
        }
        let mut taken_by: HashMap<TreeId, Vec<RecipeId>> = HashMap::new();
        for (recipe, inputs) in &survey.recipes {
            for (_, tree) in inputs {
                taken_by.entry(*tree).or_default().push(*recipe);
            }
        }
        let mut nodes: HashMap<TreeId, BTreeSet<NodeUse>> = HashMap::new();
        let mut by_recipe: HashMap<RecipeId, BTreeSet<NodeUse>> = HashMap::new();
        let mut outputs: HashMap<RecipeId, Vec<TreeId>> = HashMap::new();
        let mut rooted: HashSet<(RecipeId, String)> = HashSet::new();
        // Recovered roots know no project, and name generations apart.
        for roots in survey.roots.values().filter(|r| !r.project.as_os_str().is_empty()) {
            let project = Some(roots.project.clone());
            for (node, list) in &roots.nodes {
                let who = NodeUse { project: project.clone(), node: node.clone() };
                for root in list {
                    nodes.entry(root.tree).or_default().insert(who.clone());
                    by_recipe.entry(root.recipe).or_default().insert(who.clone());
                    outputs.entry(root.recipe).or_default().push(root.tree);
                    rooted.insert((root.recipe, node.clone()));
                }
            }
        }
        for (recipe, runs) in &survey.runs {
            for run in runs {
                let who = NodeUse { project: None, node: run.node.clone() };
                let known = rooted.contains(&(*recipe, run.node.clone()));
                if let Some(tree) = run.tree() {
                    outputs.entry(*recipe).or_default().push(tree);
                    if !known {
                        nodes.entry(tree).or_default().insert(who.clone());
                    }
                }
                if !known {
                    by_recipe.entry(*recipe).or_default().insert(who);
                }
            }
        }
        Self { survey, by_blob, taken_by, nodes, by_recipe, outputs }
    }

    /// Enters into a finding what depends on it.
    pub(super) fn enter(&self, f: &mut Finding) {
        let (mut trees, mut nodes): (BTreeSet<TreeId>, BTreeSet<NodeUse>) = Default::default();
        match &f.subject {
            Subject::Blob(blob, _) | Subject::Table(blob) | Subject::Ref(blob) => {
                trees.extend(self.by_blob.get(blob).into_iter().flatten());
            }
            Subject::Tree(tree) | Subject::View(tree) => {
                trees.insert(*tree);
            }
            Subject::Recipe(recipe) | Subject::Run(recipe, _) => {
                trees.extend(self.outputs.get(recipe).into_iter().flatten());
                nodes.extend(self.by_recipe.get(recipe).into_iter().flatten().cloned());
            }
            Subject::Other => return,
        }
        let derived = self.derived(&trees);
        for tree in trees.iter().chain(&derived) {
            nodes.extend(self.nodes.get(tree).into_iter().flatten().cloned());
        }
        f.trees = trees.into_iter().collect();
        f.derived = derived.into_iter().collect();
        f.nodes = nodes.into_iter().collect();
    }

    // Every tree that was made, in however many steps, from one of these. A node may take a part of another's tree: that
    // part is a tree of its own, whose files are all among the other's.
    fn derived(&self, trees: &BTreeSet<TreeId>) -> BTreeSet<TreeId> {
        let mut found: BTreeSet<TreeId> = BTreeSet::new();
        let mut todo: Vec<TreeId> = trees.iter().copied().collect();
        let mut seen: HashSet<TreeId> = trees.iter().copied().collect();
        while let Some(tree) = todo.pop() {
            let mut taken: Vec<TreeId> = vec![tree];
            // Trees that hold the damaged file itself are all in `trees`.
            if found.contains(&tree) {
                taken.extend(self.parts_of(tree));
            }
            for recipe in taken.iter().filter_map(|t| self.taken_by.get(t)).flatten() {
                for output in self.outputs.get(recipe).into_iter().flatten() {
                    if seen.insert(*output) {
                        found.insert(*output);
                        todo.push(*output);
                    }
                }
            }
        }
        found
    }

    fn parts_of(&self, tree: TreeId) -> Vec<TreeId> {
        let Some(whole) = self.survey.trees.get(&tree) else { return Vec::new() };
        let blobs: HashSet<BlobId> = whole.files.iter().map(|f| f.0).collect();
        let mut candidates: HashSet<TreeId> = HashSet::new();
        for blob in &blobs {
            let holders = self.by_blob.get(blob).into_iter().flatten();
            candidates.extend(holders.filter(|t| **t != tree && self.taken_by.contains_key(t)));
        }
        candidates.retain(|t| self.survey.trees[t].files.iter().all(|f| blobs.contains(&f.0)));
        candidates.into_iter().collect()
    }
}
