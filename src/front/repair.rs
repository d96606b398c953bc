//! `repair`: what `verify` finds, put right.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::audit::repair::{Elsewhere, Outcome, Repair, Repaired, Way, plan, recovered};
use crate::audit::verify::{self as audit, Finding, Looking, Subject, Verified};
use crate::digest::{BlobId, TreeId};
use crate::front::error::{FrontError, Result};
use crate::front::verify::Place;
use crate::front::{BuildOptions, Location, Looking as BuildLooking, Project};
use crate::fsx;
use crate::sched::{Event, Events};
use crate::store::plain::{Plain, Version};
use crate::store::survey::{Part, Survey};
use crate::store::{Store, StoreError};

/// How a store is repaired.
#[derive(Debug, Clone)]
pub struct RepairOptions {
    /// Say what would be done, and do nothing.
    pub dry_run: bool,
    /// Build again what is nowhere else.
    pub rebuild: bool,
    /// Stores that may have right bytes.
    pub from: Vec<PathBuf>,
    /// How that is built.
    pub run: crate::sched::Options,
}

/// Looks at the whole store and puts right what it finds. Errors: NotAStore where its format can't be proven; what keeps
/// the store or the graph from being read.
pub fn repair(
    location: &Location,
    options: &RepairOptions,
    events: &Events,
    cancel: &Arc<AtomicBool>,
) -> Result<Repaired> {
    let place = Place::find(location)?;
    let plain = &place.plain;
    let others: Vec<Plain> =
        options.from.iter().map(|dir| Plain::at(&place.from(dir))).collect::<std::result::Result<_, _>>()?;
    let mut done = Repaired {
        ok: false,
        store: plain.dir().to_owned(),
        dry_run: options.dry_run,
        repairs: Vec::new(),
        notes: Vec::new(),
    };
    if options.dry_run {
        let found = look(&place, events, cancel)?;
        let survey = plain.survey()?;
        let elsewhere = Elsewhere { survey: &survey, stores: &others, graph: place.graph.is_some() };
        done.repairs = plan(plain, &damage(&found), &elsewhere)?;
        // Of a store of an older version the rest can be told only once it is one of this version.
        if done.repairs.iter().any(|r| matches!(r.way, Way::Proof(text) if text.ends_with("1\n"))) {
            done.repairs.retain(|r| r.part == Part::Version);
        }
        done.close();
        return Ok(done);
    }
    fsx::create_dir_all(&plain.dir().join("locks")).map_err(StoreError::from)?;
    let lock = plain.dir().join("locks/repair");
    let busy = &mut |holder: Option<&fsx::lock::Holder>| {
        let whom = holder.map_or_else(|| "another repair".to_owned(), ToString::to_string);
        let _ = events.send(Event::Notice(format!("waiting for {whom}")));
    };
    let held = fsx::lock::lock(&lock, "repairing the store", true, busy, &|| cancel.load(Ordering::Relaxed));
    let Some(_held) = held.map_err(StoreError::from)? else { return Err(FrontError::Interrupted) };
    // The format first: without it nothing else can be opened.
    done.repairs.extend(format(plain)?);
    if plain.version()? == Version::Older {
        drop(Store::open(plain.dir())?);
    }
    let found = look(&place, events, cancel)?;
    for f in found.damage().filter(|f| f.part == Part::Index) {
        done.repairs.push(index(plain, f)?);
    }
    let project = match Project::open(location) {
        Ok(project) => Some(project),
        Err(FrontError::Lock(e)) => {
            done.notes.push(format!("graph.lock does not read, so the graph was not asked: {e}"));
            None
        }
        Err(_) if place.graph.is_none() => None,
        Err(e) => return Err(e),
    };
    let store = match &project {
        Some(p) => Arc::clone(&p.store),
        None => Store::open(plain.dir())?,
    };
    store.must_write()?;
    let survey = plain.survey()?;
    let elsewhere = Elsewhere { survey: &survey, stores: &others, graph: project.is_some() };
    let mut repairs = plan(plain, &damage(&found), &elsewhere)?;
    repairs.retain(|r| !matches!(r.part, Part::Index | Part::Version));
    // What holds everything is written before what is damaged goes.
    let lost: Vec<&Repair> = repairs.iter().filter(|r| r.part == Part::Roots).collect();
    if !lost.is_empty() {
        let texts: Vec<Vec<u8>> = lost.iter().filter_map(|r| std::fs::read(&r.path).ok()).collect();
        if let Some(roots) = recovered(&survey, &texts) {
            let path = store.put_recovered_roots(&roots)?;
            done.notes.push(format!("{} holds what no other roots hold", path.display()));
        }
    }
    for r in &mut repairs {
        if cancel.load(Ordering::Relaxed) {
            return Err(FrontError::Interrupted);
        }
        r.put_aside(plain)?;
        r.act(&store)?;
        if let Subject::Blob(blob, _) = r.subject {
            views_without(&store, &survey, blob)?;
        }
    }
    if let Some(p) = &project {
        from_graph(p, &mut repairs, &mut done.notes, events, cancel)?;
        if options.rebuild {
            rebuild(p, &repairs, options, &mut done.notes, events, cancel)?;
        }
    }
    for r in &mut repairs {
        settle(r, plain, &mut done.notes)?;
    }
    store.flush_index();
    done.repairs.extend(repairs);
    done.close();
    Ok(done)
}

// A view has a blob by a second name of the same file, so what was set aside is still in it. It is made again, or goes
// where it can't be: an artifact that does not open is better than one that opens with wrong bytes.
fn views_without(store: &Store, survey: &Survey, blob: BlobId) -> Result<()> {
    let holds = |id: &&TreeId| survey.trees.get(id).is_some_and(|t| t.files.iter().any(|f| f.0 == blob));
    for id in survey.views.iter().filter(holds) {
        let Some(tree) = store.tree(*id)? else { continue };
        match store.view(*id, &tree) {
            Err(StoreError::Gone { .. }) => store.drop_view(*id)?,
            made => drop(made?),
        }
    }
    Ok(())
}

fn damage(found: &Verified) -> Vec<Finding> {
    found.damage().cloned().collect()
}

fn look(place: &Place, events: &Events, cancel: &AtomicBool) -> Result<Verified> {
    let to = Mutex::new(events.clone());
    let progress = |done: u64, total: u64| {
        if let Ok(to) = to.lock() {
            let _ = to.send(Event::Progress { node: "verify".to_owned(), done, total });
        }
    };
    let looking = Looking { quick: false, progress: &progress, cancelled: &|| cancel.load(Ordering::Relaxed) };
    let mut found = audit::verify(&place.plain, None, &looking)?;
    found.missing.extend(place.lost_roots());
    Ok(found)
}

// VERSION, where it is gone or garbage.
fn format(plain: &Plain) -> Result<Option<Repair>> {
    let path = plain.dir().join("VERSION");
    let what = match plain.version()? {
        Version::Right | Version::Older => return Ok(None),
        Version::Missing => "is not there".to_owned(),
        Version::Wrong(what) => what,
    };
    let Some(text) = plain.proven_version()? else {
        let what = format!("its VERSION {what}, and nothing in it proves its format");
        return Err(StoreError::NotAStore { path: plain.dir().to_owned(), what }.into());
    };
    let mut r = Repair::new(Finding::new(path, Part::Version, what, Subject::Other), Way::Proof(text));
    r.put_aside(plain)?;
    plain.write_version(text)?;
    Ok(Some(r))
}

// A cache: it is removed, and the next command makes it anew.
fn index(plain: &Plain, f: &Finding) -> Result<Repair> {
    let mut r = Repair::new(f.clone(), Way::Rest);
    let lock = plain.dir().join("locks/index");
    match fsx::lock::try_lock(&lock, "repairing the index", false).map_err(StoreError::from)? {
        fsx::lock::Tried::Held(_lock) => fsx::remove_tree(&f.path).map_err(StoreError::from)?,
        fsx::lock::Tried::Busy(_) => r.ended(Outcome::SetAside, "another process has it open, and works with it"),
    }
    Ok(r)
}

// What only the graph can say: sources' listings and refs by a look at them, recipes by a plan.
fn from_graph(
    project: &Project,
    repairs: &mut [Repair],
    notes: &mut Vec<String>,
    events: &Events,
    cancel: &Arc<AtomicBool>,
) -> Result<()> {
    let asks = |r: &&mut Repair| matches!(r.way, Way::Sources | Way::Plan);
    if repairs.iter_mut().filter(asks).count() == 0 {
        return Ok(());
    }
    // A ref that is gone is found only by hashing; so is a listing of a source that the index knows nothing of.
    let check_content = repairs.iter().any(|r| r.part == Part::Ref);
    let looking = BuildLooking { check_content, ..BuildLooking::default() };
    let recipes = |m: &crate::plan::Machine<'_>| m.report().filter_map(|n| n.recipe.cloned()).collect::<Vec<_>>();
    match project.at_rest(&[], (looking, crate::front::IfAway::AsLocked), events, cancel, recipes) {
        Ok((recipes, _)) => {
            for recipe in &recipes {
                if repairs.iter().any(|r| r.subject == Subject::Recipe(recipe.id)) {
                    project.store.put_recipe(recipe)?;
                }
            }
        }
        Err(e @ (FrontError::Interrupted | FrontError::Store(StoreError::Fs(_)))) => return Err(e),
        Err(e) => notes.push(format!("the graph could not be asked: {e}")),
    }
    Ok(())
}

fn rebuild(
    project: &Project,
    repairs: &[Repair],
    options: &RepairOptions,
    notes: &mut Vec<String>,
    events: &Events,
    cancel: &Arc<AtomicBool>,
) -> Result<()> {
    let mut goals: BTreeSet<String> = BTreeSet::new();
    for r in repairs {
        if r.outcome == Outcome::Rebuild || !r.is_right(&project.store.plain())? {
            goals.extend(r.nodes.iter().map(|n| n.node.clone()).filter(|n| project.graph.node(n).is_some()));
        }
    }
    if goals.is_empty() {
        return Ok(());
    }
    let goals: Vec<String> = goals.into_iter().collect();
    let build = BuildOptions { looking: BuildLooking::default(), run: options.run.clone() };
    let report = project.build(&goals, &build, events, cancel)?;
    if report.interrupted {
        return Err(FrontError::Interrupted);
    }
    for step in report.steps.iter().filter(|s| s.action == "failed" && s.error.is_some()) {
        notes.push(format!("{} could not be built: {}", step.node, step.error.as_deref().unwrap_or_default()));
    }
    Ok(())
}

// How it ended, by a look at what is there now.
fn settle(r: &mut Repair, plain: &Plain, notes: &mut Vec<String>) -> Result<()> {
    let right = r.is_right(plain)?;
    match (r.outcome, right) {
        (Outcome::Rebuild, true) if r.part == Part::Run => {
            r.ended(Outcome::SetAside, "another record says what its recipe has made");
        }
        (Outcome::Rebuild, true) => r.ended(Outcome::Restored, "built again"),
        (Outcome::Lost, true) if r.way == Way::Older => r.ended(Outcome::Restored, "built again"),
        (Outcome::Rebuild, false) if r.nodes.is_empty() => {
            r.ended(Outcome::SetAside, "what it recorded is lost; nothing needs it");
        }
        (Outcome::Restored, false) if r.part == Part::Recipe => {
            r.ended(Outcome::Lost, "the graph does not make it any more; what its runs were made of can't be told");
        }
        (Outcome::Restored, false) if r.part == Part::Ref => {
            r.ended(Outcome::SetAside, "no source of this graph has it any more");
        }
        (Outcome::Restored, false) if r.nodes.is_empty() => {
            r.ended(Outcome::Lost, "it could not be found, and no node is known that makes it");
        }
        (Outcome::Restored, false) => r.ended(Outcome::Rebuild, "it could not be found; its nodes run again"),
        _ => {}
    }
    // Told once: from now on it is known to be gone.
    if r.outcome == Outcome::Lost && r.part != Part::Source {
        r.give_up(plain)?;
        notes.push(format!("{} is given up; quarantine/ says so", audit::escaped(&r.path)));
    }
    Ok(())
}
