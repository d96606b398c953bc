//! `gc`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use crate::audit::gc::{Freed, Limits, Measured, Plan, plan};
use crate::audit::hold::Holders;
use crate::front::Project;
use crate::front::error::{FrontError, Result};
use crate::front::waits::Waits;
use crate::fsx;
use crate::fsx::lock::FileLock;
use crate::sched::Events;
use crate::store::StoreError;
use crate::store::sweep::if_room;

/// What to collect.
#[derive(Debug, Clone, Copy, Default)]
pub struct GcOptions {
    /// Say what would be freed, and free nothing.
    pub dry_run: bool,
    /// How many generations of each node hold their trees; as many as were kept, if not given.
    pub keep: Option<usize>,
    /// Only what was made longer ago than this, in seconds.
    pub older_than: Option<f64>,
    /// Only until blobs and views have at most so many bytes.
    pub max_bytes: Option<u64>,
}

/// A tree whose bytes are freed.
#[derive(Debug, Clone, Serialize)]
pub struct FreedTree {
    /// The tree.
    pub tree: String,
    /// The node that it was made for last; null where nobody made it as such.
    pub node: Option<String>,
    /// Its recipe.
    pub recipe: Option<String>,
    /// When it was made last.
    pub started: Option<String>,
    /// How long ago that is, in seconds.
    pub age_seconds: Option<f64>,
    /// Bytes that go with it.
    pub bytes: u64,
    /// Files of the store that go with it.
    pub files: usize,
    /// Whether it has a view in `artifacts/`, which goes too.
    pub view: bool,
    /// What it takes to make it again, in seconds of a step that needs no GPU.
    pub remake_seconds: f64,
}

/// What `gc` answers.
#[derive(Debug, Clone, Serialize)]
pub struct GcReport {
    /// Whether it is only said.
    pub dry_run: bool,
    /// The trees whose bytes are freed, cheapest to make again per byte first.
    pub trees: Vec<FreedTree>,
    /// Files of the store that no tree names.
    pub orphans: usize,
    /// Their bytes.
    pub orphan_bytes: u64,
    /// Kept scratch folders of failed steps that are removed.
    #[serde(serialize_with = "path_texts")]
    pub failed: Vec<PathBuf>,
    /// Bytes that are freed in all.
    pub freed_bytes: u64,
    /// Bytes of blobs and views that stay.
    pub left_bytes: u64,
    /// What they were to be at most.
    pub max_bytes: Option<u64>,
    /// Whether everything that was asked for is done: false where more is held than may stay.
    pub ok: bool,
}

fn path_texts<S: serde::Serializer>(paths: &[PathBuf], to: S) -> std::result::Result<S::Ok, S::Error> {
    to.collect_seq(paths.iter().map(|p| p.to_string_lossy()))
}

impl Project {
    /// Frees what nobody holds, or says what it would free: the same plan. Builds go on meanwhile, and wait only for the
    /// sweep. Errors: Unsafe, Graph or Lock where it can't be said what is held; nothing is deleted then.
    pub fn gc(&self, options: &GcOptions, events: &Events, cancel: &Arc<AtomicBool>) -> Result<GcReport> {
        let cancelled = || cancel.load(Ordering::Relaxed);
        let store = &self.store;
        if !options.dry_run {
            store.must_free()?;
        }
        let _turn = if options.dry_run {
            None
        } else {
            let path = store.dir().join("locks/gc-run");
            Some(self.turn(&path, "gc", "one collector at a time", &Waits::new(events, cancel))?)
        };
        let measured = Measured::read(store)?;
        let obstacles = measured.obstacles();
        if !obstacles.is_empty() {
            return Err(FrontError::Unsafe { damage: obstacles });
        }
        let limits = Limits { keep: options.keep, older_than: options.older_than, max_bytes: options.max_bytes };
        let plan_of = |holders: &Holders| -> Result<Plan> {
            let since = store.listed_since(&measured.survey)?;
            plan(&measured, holders, &since, &limits, jiff::Timestamp::now())
                .map_err(|damage| FrontError::Unsafe { damage })
        };
        if options.dry_run {
            return Ok(GcReport::of(plan_of(&Holders::read(store, options.keep)?)?, options));
        }
        // Whose roots will let go of something is known once they are read; their locks come before the collector's, since
        // who has such a lock may have to wait for a sweep.
        let keep = options.keep.unwrap_or(usize::MAX);
        let turn = |file: &str| {
            let why = "its turn to write the project's roots";
            self.turn(&store.roots_lock(file), "gc", why, &Waits::new(events, cancel))
        };
        let mut turns: BTreeMap<String, FileLock> = BTreeMap::new();
        let mut room = true;
        let (alone, plan) = loop {
            let alone = store.alone("gc", &cancelled)?.ok_or(FrontError::Interrupted)?;
            // In this order: see `store::holds`.
            let plan = plan_of(&Holders::read(store, options.keep)?)?;
            let without: Vec<&String> = plan.naming.iter().filter(|f| !turns.contains_key(*f)).collect();
            if without.is_empty() || !room {
                break (alone, plan);
            }
            drop(alone);
            for file in without {
                match turn(file) {
                    Ok(lock) => drop(turns.insert(file.clone(), lock)),
                    Err(FrontError::Store(StoreError::Fs(e))) if fsx::is_full(&e) => room = false,
                    Err(e) => return Err(e),
                }
            }
        };
        // Whoever makes room is not kept from it by roots that can't be written: those follow then.
        let mut late = Vec::new();
        for file in &plan.naming {
            if !(turns.contains_key(file) && if_room(store.let_go(file, keep, &plan.gone))?) {
                late.push(file);
            }
        }
        let swept = store.sweep(&plan.sweep, &cancelled)?;
        drop(alone);
        drop(turns);
        store.remove_swept(&swept)?;
        for file in late {
            let _turn = turn(file)?;
            store.let_go(file, keep, &plan.gone)?;
        }
        if swept.cut_off {
            return Err(FrontError::Interrupted);
        }
        Ok(GcReport::of(plan, options))
    }
}

impl GcReport {
    fn of(plan: Plan, options: &GcOptions) -> Self {
        Self {
            dry_run: options.dry_run,
            trees: plan.trees.into_iter().map(FreedTree::of).collect(),
            orphans: plan.orphans.0,
            orphan_bytes: plan.orphans.1,
            failed: plan.failed.into_iter().map(|(path, _)| path).collect(),
            freed_bytes: plan.freed_bytes,
            left_bytes: plan.left_bytes,
            max_bytes: options.max_bytes,
            ok: !plan.over,
        }
    }
}

impl FreedTree {
    fn of(f: Freed) -> Self {
        let run = f.run.as_ref();
        Self {
            tree: f.tree.to_string(),
            node: run.map(|r| r.node.clone()),
            recipe: run.map(|r| r.recipe.to_string()),
            started: run.map(|r| r.started.clone()),
            age_seconds: f.age_seconds,
            bytes: f.bytes,
            files: f.blobs,
            view: f.view,
            remake_seconds: f.remake_seconds,
        }
    }
}
