//! A whole store, or what one artifact needs of it, held against its digests. Nothing is changed.

mod bytes;
mod depends;
mod folder;
mod named;
mod report;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use rayon::prelude::*;

pub use bytes::{Looking, is_right};
pub use folder::{Held, hold_file, hold_folder};
pub use report::{Finding, NodeUse, Subject, Verified, escaped};

use bytes::{Claim, Outcome, hold};
use depends::Dependents;

use crate::digest::{BlobId, RecipeId, TreeId};
use crate::fsx::{self, FileStat};
use crate::model::run::RunRecord;
use crate::store::plain::{BlobStats, IndexState, Plain, Ref, Version};
use crate::store::survey::{Part, StoredBlob, Survey};
use crate::store::{Result, StoreError};

/// What of a store is looked at, where that is not all of it.
#[derive(Debug, Clone, Default)]
pub struct Needs {
    /// Artifacts, with the bytes, tables and records behind them.
    pub trees: HashSet<TreeId>,
    /// Recipes, with their runs.
    pub recipes: HashSet<RecipeId>,
    /// Single blobs.
    pub blobs: HashSet<BlobId>,
}

/// Looks at the store, or at what is needed of it. Errors: only where the disk says no, or it was stopped.
pub fn verify(plain: &Plain, needs: Option<&Needs>, looking: &Looking<'_>) -> Result<Verified> {
    let begun = Instant::now();
    let mut found = Verified { store: plain.dir().to_owned(), quick: looking.quick, ..Verified::default() };
    let survey = plain.survey()?;
    let temp = tempfile::tempdir().map_err(fsx::at("make a folder in", &std::env::temp_dir()))?;
    let index = plain.index(temp.path());
    let mut look = Look { plain, survey: &survey, needs: needs.map(|n| n.closed(&survey)), found: &mut found, looking };
    look.format(&index)?;
    look.texts();
    look.tables_and_refs()?;
    let stats = if let IndexState::Blobs(stats) = &index { Some(stats) } else { None };
    let wrong = look.blobs(stats)?;
    look.named()?;
    look.bytes_of_trees(&wrong)?;
    look.sources(&wrong)?;
    look.views()?;
    if needs.is_none() {
        look.strangers();
    }
    // Whoever wrote to the store meanwhile may have placed what was missing, and taken away what was there.
    found.missing.retain(|f| fs::symlink_metadata(&f.path).is_err() || f.part == Part::View);
    let dependents = (!found.changed.is_empty() || !found.missing.is_empty()).then(|| Dependents::of(&survey));
    for f in found.changed.iter_mut().chain(&mut found.missing) {
        if let Some(d) = &dependents {
            d.enter(f);
        }
        f.hint = Some(hint(f).to_owned());
    }
    found.seconds = begun.elapsed();
    found.close();
    Ok(found)
}

fn hint(f: &Finding) -> &'static str {
    match f.part {
        Part::Source => "bring the file back, or take it as it is now: `graftwerk build --check-content`",
        Part::Version => "`graftwerk repair` writes it again where the store's objects prove its format",
        _ => "`graftwerk repair` puts it right, or says what must be built again",
    }
}

impl Needs {
    // With the recipes that made the trees, and the trees of the recipes.
    fn closed(&self, survey: &Survey) -> Needs {
        let mut all = self.clone();
        for (recipe, runs) in &survey.runs {
            if self.recipes.contains(recipe) {
                all.trees.extend(runs.iter().filter_map(|r| r.tree()));
            } else if runs.iter().filter_map(|r| r.tree()).any(|t| self.trees.contains(&t)) {
                all.recipes.insert(*recipe);
            }
        }
        for root in survey.roots.values().flat_map(|r| r.nodes.values().flatten()) {
            if self.recipes.contains(&root.recipe) {
                all.trees.insert(root.tree);
            } else if self.trees.contains(&root.tree) {
                all.recipes.insert(root.recipe);
            }
        }
        for tree in &all.trees {
            if let Some(t) = survey.trees.get(tree) {
                all.blobs.extend(t.files.iter().map(|f| f.0));
            }
        }
        all
    }

    fn want(&self, subject: &Subject) -> bool {
        match subject {
            Subject::Blob(b, _) | Subject::Table(b) | Subject::Ref(b) => self.blobs.contains(b),
            Subject::Tree(t) | Subject::View(t) => self.trees.contains(t),
            Subject::Recipe(r) | Subject::Run(r, _) => self.recipes.contains(r),
            Subject::Other => true,
        }
    }
}

struct Look<'a> {
    plain: &'a Plain,
    survey: &'a Survey,
    needs: Option<Needs>,
    found: &'a mut Verified,
    looking: &'a Looking<'a>,
}

impl Look<'_> {
    fn wants(&self, subject: &Subject) -> bool {
        self.needs.as_ref().is_none_or(|n| n.want(subject))
    }

    fn changed(&mut self, path: PathBuf, part: Part, what: impl Into<String>, subject: Subject) {
        if self.wants(&subject) {
            self.found.changed.push(Finding::new(path, part, what, subject));
        }
    }

    // What was found damaged is not missing; nor is what a repair has given up.
    fn missing(&mut self, path: PathBuf, part: Part, what: impl Into<String>, subject: Subject) {
        if self.given_up(&subject) {
            self.collected(path, part, "was lost and is not coming back: see quarantine/", subject);
        } else if self.wants(&subject) && !self.survey.damage.iter().any(|d| d.path == path) {
            self.found.missing.push(Finding::new(path, part, what, subject));
        }
    }

    fn given_up(&self, subject: &Subject) -> bool {
        let Some(name) = subject.quarantine_name() else { return false };
        // A record is never made again under its number.
        let aside = self.plain.dir().join("quarantine").join(format!("{name}-1"));
        match self.plain.given_up(&name) {
            Some(when) => !self.made_since(subject, &when),
            None => matches!(subject, Subject::Run(..)) && aside.exists(),
        }
    }

    // Whether a run made it after that time: what came back and was lost again is damage again.
    fn made_since(&self, subject: &Subject, when: &jiff::Timestamp) -> bool {
        let later = |r: &&RunRecord| r.started.parse::<jiff::Timestamp>().is_ok_and(|s| s > *when);
        let mut later = self.survey.runs.values().flatten().filter(later);
        match subject {
            Subject::Blob(blob, _) | Subject::Table(blob) => later.any(|r| {
                let tree = r.tree().and_then(|t| self.survey.trees.get(&t));
                tree.is_some_and(|t| t.files.iter().any(|f| f.0 == *blob))
            }),
            Subject::Tree(tree) => later.any(|r| r.tree() == Some(*tree)),
            Subject::Recipe(recipe) => later.any(|r| r.recipe == *recipe),
            Subject::Ref(_) | Subject::View(_) | Subject::Run(..) | Subject::Other => false,
        }
    }

    fn collected(&mut self, path: PathBuf, part: Part, what: impl Into<String>, subject: Subject) {
        if self.wants(&subject) {
            self.found.collected.push(Finding::new(path, part, what, subject));
        }
    }

    fn format(&mut self, index: &IndexState) -> Result<()> {
        let path = self.plain.dir().join("VERSION");
        self.found.files += 1;
        match self.plain.version()? {
            Version::Right => {}
            Version::Older => {
                return Err(StoreError::NotAStore {
                    path: self.plain.dir().to_owned(),
                    what: "it is of an older version, and `graftwerk status` upgrades it".to_owned(),
                });
            }
            Version::Missing => self.missing(path, Part::Version, "is not there", Subject::Other),
            Version::Wrong(what) => self.changed(path, Part::Version, what, Subject::Other),
        }
        if let IndexState::Damaged(what) = index
            && self.needs.is_none()
        {
            self.changed(self.plain.dir().join("index/sled"), Part::Index, what.clone(), Subject::Other);
        }
        Ok(())
    }

    // Listings, recipes, records and roots were read by the survey.
    fn texts(&mut self) {
        let runs: usize = self.survey.runs.values().map(Vec::len).sum();
        let texts = self.survey.trees.len() + self.survey.recipes.len() + runs + self.survey.roots.len();
        self.found.files += (texts + self.survey.damage.len()) as u64;
        for d in &self.survey.damage {
            let subject = self.subject_of(d.part, &d.path);
            self.changed(d.path.clone(), d.part, d.what.clone(), subject);
        }
    }

    // What a damaged file is about, by its name.
    fn subject_of(&self, part: Part, path: &std::path::Path) -> Subject {
        let text = |p: Option<&std::ffi::OsStr>| p.map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let (name, above) = (text(path.file_name()), text(path.parent().and_then(|p| p.file_name())));
        let digest = |hex: &str| crate::digest::Digest::from_hex(hex).ok();
        let named = digest(&format!("{above}{}", name.trim_end_matches(".x")));
        match part {
            Part::Blob => named.map(|d| Subject::Blob(BlobId(d), name.ends_with(".x"))),
            Part::Tree => named.map(|d| Subject::Tree(TreeId(d))),
            Part::Recipe => named.map(|d| Subject::Recipe(RecipeId(d))),
            Part::Run => {
                let seq = name.trim_end_matches(".json").parse().ok();
                digest(&above).or_else(|| digest(&name)).map(|d| Subject::Run(RecipeId(d), seq))
            }
            _ => None,
        }
        .unwrap_or(Subject::Other)
    }

    fn tables_and_refs(&mut self) -> Result<()> {
        let plain = self.plain;
        let tables: Vec<BlobId> =
            self.survey.tables.iter().copied().filter(|b| self.wants(&Subject::Table(*b))).collect();
        self.found.files += tables.len() as u64;
        let bad: Vec<Result<Option<(BlobId, String)>>> = tables
            .into_par_iter()
            .map(|b| Ok(plain.table(b)?.and_then(|read| read.err()).map(|what| (b, what))))
            .collect();
        for one in bad {
            if let Some((blob, what)) = one? {
                self.changed(plain.object_path("tensors", &blob.0), Part::Table, what, Subject::Table(blob));
            }
        }
        let refs: Vec<BlobId> = self.survey.refs.iter().copied().filter(|b| self.wants(&Subject::Ref(*b))).collect();
        self.found.files += refs.len() as u64;
        let bad: Vec<Result<(BlobId, Ref)>> = refs.into_par_iter().map(|b| Ok((b, plain.places(b)?))).collect();
        for one in bad {
            if let (blob, Ref::Damaged(what)) = one? {
                self.changed(plain.object_path("refs", &blob.0), Part::Ref, what, Subject::Ref(blob));
            }
        }
        Ok(())
    }

    // Comes back: the blobs that are wrong or went.
    fn blobs(&mut self, stats: Option<&BlobStats>) -> Result<HashSet<(BlobId, bool)>> {
        let mut sizes: HashMap<BlobId, u64> = HashMap::new();
        for tree in self.survey.trees.values() {
            sizes.extend(tree.files.iter().map(|f| (f.0, f.2)));
        }
        let wanted = |(blob, x): &(BlobId, bool)| self.wants(&Subject::Blob(*blob, *x));
        let mut blobs: Vec<((BlobId, bool), StoredBlob)> =
            self.survey.blobs.iter().filter(|(key, _)| wanted(key)).map(|(k, s)| (*k, *s)).collect();
        // The biggest first, so that none of them is left alone at the end.
        blobs.sort_by_key(|((blob, x), s)| (std::cmp::Reverse(s.size), *blob, *x));
        self.found.files += blobs.len() as u64;
        let mut wrong = HashSet::new();
        if self.looking.quick {
            let doubted: Vec<_> =
                blobs.into_par_iter().filter(|((b, x), _)| !self.looks_right(*b, *x, sizes.get(b), stats)).collect();
            blobs = doubted;
        }
        let claim = |((blob, x), s): &((BlobId, bool), StoredBlob)| Claim {
            path: self.plain.blob_path(*blob, *x),
            blob: *blob,
            size: s.size,
            expected: sizes.get(blob).copied(),
        };
        let claims: Vec<Claim> = blobs.iter().map(claim).collect();
        let (outcomes, bytes) = hold(self.plain, &claims, self.looking)?;
        self.found.hashed_bytes += bytes;
        for ((key, _), (claim, outcome)) in blobs.iter().zip(claims.into_iter().zip(outcomes)) {
            match outcome {
                Outcome::Right => continue,
                // Collected meanwhile, or lost: those that need it tell.
                Outcome::Gone => {}
                Outcome::Wrong { what, tensors } => {
                    let f = Finding::new(claim.path, Part::Blob, what, Subject::Blob(key.0, key.1));
                    self.found.changed.push(Finding { tensors, ..f });
                }
            }
            wrong.insert(*key);
        }
        Ok(wrong)
    }

    // By stat: as it was when it was last known to be right; where the index knows nothing, with a blob's size and time.
    fn looks_right(&self, blob: BlobId, x: bool, size: Option<&u64>, stats: Option<&BlobStats>) -> bool {
        let Ok(meta) = fs::symlink_metadata(self.plain.blob_path(blob, x)) else { return false };
        let stat = FileStat::of(&meta);
        let known = stats.and_then(|s| s.agrees(blob, x, &stat));
        known.unwrap_or(stat.mtime_ns == 1_000_000_000) && size.is_none_or(|s| *s == stat.size)
    }

    fn views(&mut self) -> Result<()> {
        let views: Vec<TreeId> = self.survey.views.iter().copied().filter(|t| self.wants(&Subject::View(*t))).collect();
        for id in views {
            if (self.looking.cancelled)() {
                return Err(StoreError::Cancelled);
            }
            let top = self.plain.view_path(id);
            // A listing that does not read is told as that.
            let Ok(Some(tree)) = self.plain.tree(id) else {
                let named =
                    self.found.missing.iter().chain(&self.found.changed).any(|f| f.subject == Subject::Tree(id));
                if !named {
                    let what = "is a view of a tree that the store does not know";
                    self.found.extra.push(Finding::new(top, Part::View, what, Subject::View(id)));
                }
                continue;
            };
            let held = Held { plain: self.plain, top: &top, tree: &tree, id, part: Part::View, blobs_are_known: true };
            // The bar is of the blobs.
            let silent = Looking { quick: self.looking.quick, progress: &|_, _| (), cancelled: self.looking.cancelled };
            let mut view = hold_folder(&held, &silent)?;
            if !(view.changed.is_empty() && view.missing.is_empty() && view.extra.is_empty()) {
                // It may have been made anew at this moment.
                view = hold_folder(&held, &silent)?;
            }
            self.found.add(view);
        }
        Ok(())
    }

    fn strangers(&mut self) {
        for path in &self.survey.strangers {
            let what = "is nothing of a store";
            self.found.extra.push(Finding::new(path.clone(), Part::Path, what, Subject::Other));
        }
    }
}
