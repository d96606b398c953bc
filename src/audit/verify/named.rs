//! What a store must have because something in it names it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;

use crate::audit::verify::Look;
use crate::audit::verify::bytes::{Claim, Outcome, hold};
use crate::audit::verify::report::{Finding, Subject, escaped};
use crate::digest::{BlobId, RecipeId, TreeId};
use crate::store::Result;
use crate::store::survey::Part;

// A blob that artifacts need and that is nowhere.
struct Gone {
    size: u64,
    trees: BTreeSet<TreeId>,
    // Whether a source has it, and only closed artifacts need a copy.
    closed: bool,
}

impl Gone {
    fn what(&self) -> String {
        let closed = if self.closed { "closed " } else { "" };
        let (size, of) = (self.size, self.trees.len());
        match self.trees.first() {
            Some(one) if of == 1 => format!("is not there: {size} bytes of the {closed}artifact {}", one.short()),
            _ => format!("is not there: {size} bytes that {of} {closed}artifacts need"),
        }
    }
}

impl Look<'_> {
    // What records, roots and recipes name.
    pub(super) fn named(&mut self) -> Result<()> {
        let plain = self.plain;
        let mut recipes: HashMap<RecipeId, String> = HashMap::new();
        let mut trees: HashMap<TreeId, String> = HashMap::new();
        for (recipe, inputs) in &self.survey.recipes {
            for (_, tree) in inputs {
                trees.insert(*tree, format!("the recipe {}", recipe.short()));
            }
        }
        for (recipe, runs) in &self.survey.runs {
            for run in runs {
                let by = format!("run {} of {} ({})", run.seq, recipe.short(), run.node);
                if let Some(tree) = run.tree() {
                    trees.insert(tree, by.clone());
                }
                recipes.insert(*recipe, by);
            }
        }
        for (file, roots) in &self.survey.roots {
            for (node, list) in &roots.nodes {
                for root in list {
                    let by = format!("roots/{file} ({node})");
                    trees.insert(root.tree, by.clone());
                    recipes.insert(root.recipe, by.clone());
                    let known = self.survey.runs.get(&root.recipe).is_some_and(|r| r.iter().any(|r| r.seq == root.seq));
                    if known {
                        continue;
                    }
                    let path = plain.run_path(root.recipe, root.seq);
                    let subject = Subject::Run(root.recipe, Some(root.seq));
                    self.missing(path, Part::Run, format!("is not there, and {by} names it"), subject);
                }
            }
            for list in roots.sources.values() {
                trees.extend(list.iter().map(|t| (*t, format!("roots/{file}"))));
            }
        }
        for (recipe, by) in recipes {
            if !self.survey.recipes.contains_key(&recipe) {
                let path = plain.object_path("recipes", &recipe.0);
                self.missing(path, Part::Recipe, format!("is not there, and {by} names it"), Subject::Recipe(recipe));
            }
        }
        for (tree, by) in trees {
            if !self.survey.trees.contains_key(&tree) {
                let path = plain.object_path("trees", &tree.0);
                self.missing(path, Part::Tree, format!("is not there, and {by} names it"), Subject::Tree(tree));
            }
        }
        Ok(())
    }

    // Every generation of every node that is kept, whether it must be closed, and the newest of every source: a collector
    // takes out of the roots what it frees.
    fn kept(&self) -> (BTreeMap<TreeId, bool>, HashSet<TreeId>) {
        let (mut kept, mut sources) = (BTreeMap::new(), HashSet::new());
        // Recovered roots hold what may be incomplete.
        for roots in self.survey.roots.values().filter(|r| !r.project.as_os_str().is_empty()) {
            for root in roots.nodes.values().flatten() {
                *kept.entry(root.tree).or_insert(false) |= self.survey.closed.contains(&root.recipe);
            }
            sources.extend(roots.sources.values().filter_map(|list| list.first().copied()));
        }
        for made in self.survey.unended.values().flat_map(|b| &b.made) {
            *kept.entry(made.tree).or_insert(false) |= self.survey.closed.contains(&made.recipe);
        }
        (kept, sources)
    }

    // Blobs, tables and refs that must be there.
    pub(super) fn bytes_of_trees(&mut self, wrong: &HashSet<(BlobId, bool)>) -> Result<()> {
        let (kept, sources) = self.kept();
        let plain = self.plain;
        let survey = self.survey;
        let stored =
            |b: BlobId| [false, true].iter().any(|x| survey.blobs.contains_key(&(b, *x)) && !wrong.contains(&(b, *x)));
        // A damaged one is told as that.
        let there = |b: BlobId| [false, true].iter().any(|x| survey.blobs.contains_key(&(b, *x)));
        let outputs: HashSet<TreeId> = survey.runs.values().flatten().filter_map(|r| r.tree()).collect();
        let mut logs = None;
        let mut gone: BTreeMap<(BlobId, bool), Gone> = BTreeMap::new();
        for (id, tree) in &survey.trees {
            if !self.wants(&Subject::Tree(*id)) && self.needs.as_ref().is_none_or(|n| n.blobs.is_empty()) {
                continue;
            }
            for blob in &tree.shards {
                if !survey.tables.contains(blob) && (stored(*blob) || survey.refs.contains(blob)) {
                    let path = plain.object_path("tensors", &blob.0);
                    self.missing(path, Part::Table, "is not there, and its blob is", Subject::Table(*blob));
                }
            }
            if sources.contains(id) {
                for (blob, _, _) in &tree.files {
                    if !survey.refs.contains(blob) {
                        let path = plain.object_path("refs", &blob.0);
                        self.missing(path, Part::Ref, "is not there, and a source has its blob", Subject::Ref(*blob));
                    }
                }
            }
            let wanted = kept.get(id).copied();
            if wanted.is_none() && !outputs.contains(id) {
                continue;
            }
            let (mut absent, mut absent_bytes) = (0, 0);
            for (blob, x, size) in &tree.files {
                if there(*blob) {
                    continue;
                }
                let referenced = survey.refs.contains(blob);
                let closed = wanted == Some(true);
                if wanted.is_some() && (closed || !referenced) {
                    let gone =
                        gone.entry((*blob, *x)).or_insert(Gone { size: *size, trees: BTreeSet::new(), closed: true });
                    gone.trees.insert(*id);
                    gone.closed &= closed && referenced;
                } else if !referenced || plain.source_of(*blob)?.is_none() {
                    absent += 1;
                    absent_bytes += size;
                }
            }
            if absent > 0 {
                let logs = logs.get_or_insert_with(|| plain.collected());
                let why = match logs.get(id) {
                    _ if wanted.is_some() => "the source that had them has changed or is gone".to_owned(),
                    Some(when) => format!("collected {when}; nobody holds it"),
                    None => "collected with others, or in a source that has changed since; nobody holds it".to_owned(),
                };
                let what = format!("lacks {absent} of {} files ({absent_bytes} bytes): {why}", tree.files.len());
                self.collected(plain.object_path("trees", &id.0), Part::Tree, what, Subject::Tree(*id));
            }
        }
        // Each once, however many trees need it.
        for ((blob, x), gone) in gone {
            self.missing(plain.blob_path(blob, x), Part::Blob, gone.what(), Subject::Blob(blob, x));
        }
        Ok(())
    }

    // Files of sources that artifacts rely on: those that still look as they did must have the bytes.
    pub(super) fn sources(&mut self, wrong: &HashSet<(BlobId, bool)>) -> Result<()> {
        if self.looking.quick {
            return Ok(());
        }
        let (kept, sources) = self.kept();
        let wanted = |t: &TreeId| match &self.needs {
            Some(n) => n.trees.contains(t),
            None => kept.contains_key(t) || sources.contains(t),
        };
        let mut blobs: HashSet<BlobId> = HashSet::new();
        for (_, tree) in self.survey.trees.iter().filter(|(id, _)| wanted(id)) {
            blobs.extend(tree.files.iter().map(|f| f.0));
        }
        blobs.extend(self.needs.iter().flat_map(|n| &n.blobs));
        let stored = |b: &BlobId| {
            [false, true].iter().any(|x| self.survey.blobs.contains_key(&(*b, *x)) && !wrong.contains(&(*b, *x)))
        };
        let (mut claims, mut rested) = (Vec::new(), Vec::new());
        for blob in blobs.iter().filter(|b| self.survey.refs.contains(b) && !stored(b)) {
            if let Some((path, at_rest)) = self.plain.source_of(*blob)? {
                let size = fs::metadata(&path).map_or(0, |m| m.len());
                rested.push(at_rest);
                claims.push(Claim { path, blob: *blob, size, expected: Some(size) });
            }
        }
        self.found.files += claims.len() as u64;
        let (outcomes, bytes) = hold(self.plain, &claims, self.looking)?;
        self.found.hashed_bytes += bytes;
        for ((claim, at_rest), outcome) in claims.into_iter().zip(rested).zip(outcomes) {
            if let Outcome::Wrong { what, tensors } = outcome {
                if !at_rest {
                    // It was being written when it was hashed: a source that has changed since, and no damage.
                    let path = self.plain.object_path("refs", &claim.blob.0);
                    let what = format!("names {}, which has changed since", escaped(&claim.path));
                    self.collected(path, Part::Ref, what, Subject::Ref(claim.blob));
                    continue;
                }
                let what = format!("looks as it did, but {what}");
                let f = Finding::new(claim.path, Part::Source, what, Subject::Ref(claim.blob));
                self.found.changed.push(Finding { tensors, ..f });
            }
        }
        Ok(())
    }
}
