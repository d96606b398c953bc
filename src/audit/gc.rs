//! What a collector frees: a plan, from a survey and from who holds what. The unit is a tree with its bytes.
//!
//! Freed are blobs, views and kept scratch folders. Listings, recipes, records, tables and logs stay, so that what was
//! collected can still be audited and made again; quarantine and sources are not ours to remove.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rayon::prelude::*;

use crate::audit::hold::Holders;
use crate::digest::{BlobId, TreeId};
use crate::fsx;
use crate::model::run::RunRecord;
use crate::store::survey::{Damage, Part, Survey};
use crate::store::sweep::Sweep;
use crate::store::{Store, StoreError};

/// A second of a GPU weighs as much as so many of a CPU step.
const GPU_WEIGHT: f64 = 10.0;

/// What is to be freed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// How many generations of each node hold their trees; all that were kept, if not given.
    pub keep: Option<usize>,
    /// Only what was made longer ago than this, in seconds.
    pub older_than: Option<f64>,
    /// Only until blobs and views have at most so many bytes.
    pub max_bytes: Option<u64>,
}

/// A tree that loses its bytes.
#[derive(Debug, Clone)]
pub struct Freed {
    /// The tree.
    pub tree: TreeId,
    /// The newest run that made it; `None` for what is only part of another or was once imported.
    pub run: Option<RunRecord>,
    /// How long ago that was, in seconds.
    pub age_seconds: Option<f64>,
    /// What it takes to make it again, in seconds of a CPU step.
    pub remake_seconds: f64,
    /// Bytes on the disk that go with it, without those that a live tree or one above in the list has.
    pub bytes: u64,
    /// Files that go with it.
    pub blobs: usize,
    /// Whether it has a view, which goes too.
    pub view: bool,
}

/// What a collector does.
#[derive(Debug, Default)]
pub struct Plan {
    /// The trees that lose their bytes, cheapest to make again per byte first.
    pub trees: Vec<Freed>,
    /// Files that no listing names: count and bytes.
    pub orphans: (usize, u64),
    /// Kept scratch folders of failed steps, with their bytes.
    pub failed: Vec<(PathBuf, u64)>,
    /// Bytes that are freed in all.
    pub freed_bytes: u64,
    /// Bytes of blobs and views that stay.
    pub left_bytes: u64,
    /// Whether more stays than was asked for.
    pub over: bool,
    /// What to sweep.
    pub sweep: Sweep,
    /// Trees that nobody holds and that lack files once that is done: roots are to name them no more.
    pub gone: HashSet<TreeId>,
    /// The files in `roots/` that do.
    pub naming: Vec<String>,
}

/// What was measured before anybody is kept waiting.
#[derive(Debug)]
pub struct Measured {
    /// The store.
    pub survey: Survey,
    views: HashMap<TreeId, u64>,
    failed: Vec<(PathBuf, u64, f64)>,
}

impl Measured {
    /// Reads the whole store. Errors: the disk's.
    pub fn read(store: &Store) -> Result<Self, StoreError> {
        let survey = store.survey()?;
        let views = survey.views.par_iter().map(|t| (*t, own_bytes(&store.view_path(*t)))).collect();
        let top = store.dir().join("failed");
        let failed = fsx::names(&top)?
            .into_iter()
            .map(|name| {
                let path = top.join(name);
                let bytes = own_bytes(&path);
                let age = fs::symlink_metadata(&path).ok().and_then(|m| m.modified().ok()?.elapsed().ok());
                (path, bytes, age.map_or(0.0, |a| a.as_secs_f64()))
            })
            .collect();
        Ok(Self { survey, views, failed })
    }

    /// The damage because of which nothing may be removed: whatever is needed to say what a tree is made of and who
    /// wants it.
    pub fn obstacles(&self) -> Vec<Damage> {
        let needed =
            |d: &&Damage| matches!(d.part, Part::Tree | Part::Recipe | Part::Run | Part::Roots | Part::Version);
        self.survey.damage.iter().filter(needed).cloned().collect()
    }
}

// Bytes on the disk that go with a folder: its files that have no other name, and the folders themselves.
fn own_bytes(top: &Path) -> u64 {
    let mut sum = 0;
    let mut todo = vec![top.to_owned()];
    while let Some(path) = todo.pop() {
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        if meta.is_dir() {
            todo.extend(fsx::names(&path).unwrap_or_default().iter().map(|n| path.join(n)));
        }
        if meta.is_dir() || meta.nlink() == 1 {
            sum += meta.blocks() * 512;
        }
    }
    sum
}

struct Candidate<'s> {
    tree: TreeId,
    run: Option<&'s RunRecord>,
    age: Option<f64>,
    cost: f64,
    // Its files in the store that nobody holds.
    blobs: Vec<(BlobId, bool)>,
    per_byte: f64,
}

/// Makes the plan. `listed_since` are trees whose listing is newer than the survey: they are left for the next time,
/// with all that they name.
pub fn plan(
    m: &Measured,
    holders: &Holders,
    listed_since: &[crate::model::tree::Tree],
    limits: &Limits,
    now: Timestamp,
) -> Result<Plan, Vec<Damage>> {
    let survey = &m.survey;
    let mut live: HashSet<BlobId> = holders.blobs.keys().copied().collect();
    live.extend(listed_since.iter().flat_map(|t| t.files().map(|(_, blob, ..)| blob)));
    let since: HashSet<TreeId> = listed_since.iter().map(crate::model::tree::Tree::id).collect();
    let mut missing = Vec::new();
    for (tree, holds) in &holders.trees {
        match survey.trees.get(tree) {
            Some(t) => live.extend(t.files.iter().map(|(blob, ..)| *blob)),
            None if since.contains(tree) => {}
            None => {
                let hex = tree.hex();
                let path = PathBuf::from("trees").join(&hex[..2]).join(&hex[2..]);
                let by = holds.first().map_or_else(String::new, |h| h.text(&holders.projects));
                let what = format!("is not there, but held by {by}");
                missing.push(Damage { path, part: Part::Tree, what });
            }
        }
    }
    if !missing.is_empty() {
        missing.sort();
        return Err(missing);
    }
    let newest = newest_runs(survey);
    let mut candidates = Vec::new();
    for (tree, t) in survey.trees.iter().filter(|(id, _)| !holders.trees.contains_key(id)) {
        let run = newest.get(tree).copied();
        let age = run.map(|r| age_seconds(r, now));
        if let (Some(age), Some(least)) = (age, limits.older_than)
            && age < least
        {
            live.extend(t.files.iter().map(|(blob, ..)| *blob));
            continue;
        }
        candidates.push((*tree, run, age));
    }
    let size = |b: &(BlobId, bool)| survey.blobs.get(b).map_or(0, |s| s.allocated);
    let mut candidates: Vec<Candidate<'_>> = candidates
        .into_iter()
        .filter_map(|(tree, run, age)| {
            let mut blobs: Vec<(BlobId, bool)> = Vec::new();
            for (blob, ..) in &survey.trees.get(&tree)?.files {
                if !live.contains(blob) {
                    // Either mode will do for whoever needs the bytes, so both go.
                    blobs.extend([false, true].map(|x| (*blob, x)).iter().filter(|b| survey.blobs.contains_key(b)));
                }
            }
            blobs.sort_unstable();
            blobs.dedup();
            if blobs.is_empty() && !survey.views.contains(&tree) {
                return None;
            }
            let bytes = blobs.iter().map(size).sum::<u64>() + m.views.get(&tree).copied().unwrap_or(0);
            let cost = run.map_or(0.0, cost_seconds);
            #[allow(clippy::cast_precision_loss, reason = "an order needs no more")]
            let per_byte = cost / bytes.max(1) as f64;
            Some(Candidate { tree, run, age, cost, blobs, per_byte })
        })
        .collect();
    // What nobody made as such (a part of an input) costs nothing: it comes back with the tree that it is a part of.
    candidates.sort_by(|a, b| {
        (a.run.is_some().cmp(&b.run.is_some()))
            .then(a.per_byte.partial_cmp(&b.per_byte).unwrap_or(Ordering::Equal))
            .then(b.age.partial_cmp(&a.age).unwrap_or(Ordering::Equal))
            .then(a.tree.cmp(&b.tree))
    });
    let stored: u64 = survey.blobs.values().map(|b| b.allocated).sum();
    let before = stored + m.views.values().sum::<u64>();
    let doomed = choose(&candidates, m, limits, before, &live);
    let mut kept = live;
    for (c, doomed) in candidates.iter().zip(&doomed) {
        if !doomed && c.run.is_some() {
            kept.extend(c.blobs.iter().map(|(blob, _)| *blob));
        }
    }
    let mut plan = Plan::default();
    let mut freed: HashSet<(BlobId, bool)> = survey.blobs.keys().filter(|b| !kept.contains(&b.0)).copied().collect();
    plan.sweep.blobs = freed.iter().copied().collect();
    plan.sweep.blobs.sort_unstable();
    let mut claimed: HashSet<(BlobId, bool)> = HashSet::new();
    // Trees that were made come first in what people read; parts of them have nothing left to claim, and are left out.
    let (parts, made): (Vec<_>, Vec<_>) =
        candidates.iter().zip(&doomed).filter(|(_, d)| **d).map(|(c, _)| c).partition(|c| c.run.is_none());
    for c in made.into_iter().chain(parts) {
        let mine: Vec<_> = c.blobs.iter().filter(|b| freed.contains(b)).copied().collect();
        let new: Vec<_> = mine.iter().filter(|b| claimed.insert(**b)).collect();
        let view = survey.views.contains(&c.tree);
        let bytes = new.iter().map(|b| size(b)).sum::<u64>() + m.views.get(&c.tree).copied().unwrap_or(0);
        plan.freed_bytes += bytes;
        if !mine.is_empty() {
            plan.sweep.trees.push(c.tree);
        }
        if view {
            plan.sweep.views.push(c.tree);
        }
        if new.is_empty() && !view {
            continue;
        }
        plan.trees.push(Freed {
            tree: c.tree,
            run: c.run.cloned(),
            age_seconds: c.age,
            remake_seconds: c.cost,
            bytes,
            blobs: new.len(),
            view,
        });
    }
    // Views of trees whose listing is lost: nobody holds them, and they can't be mended.
    for tree in survey.views.iter().filter(|t| !survey.trees.contains_key(t) && !since.contains(t)) {
        plan.sweep.views.push(*tree);
        plan.freed_bytes += m.views.get(tree).copied().unwrap_or(0);
    }
    freed.retain(|b| !claimed.contains(b));
    plan.orphans = (freed.len(), freed.iter().map(size).sum());
    plan.freed_bytes += plan.orphans.1;
    plan.left_bytes = before.saturating_sub(plan.freed_bytes);
    for (path, bytes, age) in &m.failed {
        if limits.older_than.is_none_or(|least| *age >= least) {
            plan.failed.push((path.clone(), *bytes));
            plan.sweep.failed.push(path.clone());
            plan.freed_bytes += bytes;
        }
    }
    let swept: HashSet<(BlobId, bool)> = plan.sweep.blobs.iter().copied().collect();
    let there = |b: &BlobId| {
        let stored = |x| survey.blobs.contains_key(&(*b, x)) && !swept.contains(&(*b, x));
        stored(false) || stored(true) || survey.refs.contains(b)
    };
    let keep = limits.keep.unwrap_or(usize::MAX);
    for (file, project) in &holders.projects {
        let older = project.roots.from(keep).filter(|t| !holders.trees.contains_key(t) && !since.contains(t));
        let lacks = |t: &TreeId| survey.trees.get(t).is_none_or(|t| !t.files.iter().all(|(b, ..)| there(b)));
        let gone: Vec<TreeId> = older.filter(lacks).collect();
        if !gone.is_empty() {
            plan.naming.push(file.clone());
            plan.gone.extend(gone);
        }
    }
    plan.over = limits.max_bytes.is_some_and(|most| plan.left_bytes > most);
    Ok(plan)
}

// Which candidates go: all of them, or as many as it takes, in their order.
fn choose(
    candidates: &[Candidate<'_>],
    m: &Measured,
    limits: &Limits,
    before: u64,
    live: &HashSet<BlobId>,
) -> Vec<bool> {
    let Some(most) = limits.max_bytes else { return vec![true; candidates.len()] };
    let size = |b: &(BlobId, bool)| m.survey.blobs.get(b).map_or(0, |s| s.allocated);
    let view = |c: &Candidate<'_>| m.views.get(&c.tree).copied().unwrap_or(0);
    // How many trees that were made have a blob. Those that only parts name, or nobody, go in any case.
    let mut users: HashMap<(BlobId, bool), usize> = HashMap::new();
    for c in candidates.iter().filter(|c| c.run.is_some()) {
        c.blobs.iter().for_each(|b| *users.entry(*b).or_default() += 1);
    }
    let unused = m.survey.blobs.keys().filter(|b| !live.contains(&b.0) && !users.contains_key(b));
    let mut left = before - unused.map(size).sum::<u64>();
    let mut doomed = vec![false; candidates.len()];
    for (c, doomed) in candidates.iter().zip(&mut doomed) {
        if c.run.is_some() && left <= most {
            break;
        }
        *doomed = true;
        left -= view(c);
        if c.run.is_some() {
            for b in &c.blobs {
                let n = users.entry(*b).or_default();
                *n -= 1;
                if *n == 0 {
                    left -= size(b);
                }
            }
        }
    }
    // What was taken on the way and turns out to be affordable stays, the dearest first.
    for (c, doomed) in candidates.iter().zip(&mut doomed).rev() {
        if !*doomed || c.run.is_none() {
            continue;
        }
        let back = view(c) + c.blobs.iter().filter(|b| users.get(b) == Some(&0)).map(size).sum::<u64>();
        if left + back <= most {
            *doomed = false;
            left += back;
            c.blobs.iter().for_each(|b| *users.entry(*b).or_default() += 1);
        }
    }
    doomed
}

/// For each tree the newest run that made it.
pub fn newest_runs(survey: &Survey) -> HashMap<TreeId, &RunRecord> {
    let mut newest: HashMap<TreeId, (Timestamp, &RunRecord)> = HashMap::new();
    for run in survey.runs.values().flatten() {
        let Some(tree) = run.tree() else { continue };
        let started = started(run);
        match newest.get(&tree) {
            Some((at, _)) if *at > started => {}
            _ => drop(newest.insert(tree, (started, run))),
        }
    }
    newest.into_iter().map(|(tree, (_, run))| (tree, run)).collect()
}

fn started(run: &RunRecord) -> Timestamp {
    // A time that does not read counts as long ago.
    run.started.parse().unwrap_or(Timestamp::UNIX_EPOCH)
}

/// How long ago a run started, in seconds; a time in the future counts as now.
pub fn age_seconds(run: &RunRecord, now: Timestamp) -> f64 {
    now.duration_since(started(run)).as_secs_f64().max(0.0)
}

// A record may say anything; what is no number costs nothing.
fn cost_seconds(run: &RunRecord) -> f64 {
    let gpu = run.facts.get("gpu_seconds").and_then(serde_json::Value::as_f64).unwrap_or(0.0);
    let cost = run.seconds.max(0.0) + GPU_WEIGHT * gpu.max(0.0);
    if cost.is_finite() { cost } else { 0.0 }
}
