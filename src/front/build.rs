//! `build` and `plan`.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::digest::TreeId;
use crate::front::error::{FrontError, Result};
use crate::front::report::{BuildReport, ErrorReport, PlanReport, PlanStep, StepReport};
use crate::front::waits::Waits;
use crate::front::{IfAway, Looking, Project, Sources};
use crate::fsx;
use crate::graph::Lock;
use crate::plan::{Machine, State};
use crate::sched::{self, Event, Events};
use crate::store::StoreError;
use crate::store::roots::Root;

/// How a build is run.
#[derive(Debug, Clone)]
pub struct BuildOptions {
    /// How sources and realisations are looked at.
    pub looking: Looking,
    /// How steps are run.
    pub run: sched::Options,
}

impl Project {
    /// Builds the goals, or every node where none is named. What fails is in the report; an error means that nothing
    /// could be built at all, or that the store is damaged.
    pub fn build(
        &self,
        goals: &[String],
        options: &BuildOptions,
        events: &Events,
        cancel: &Arc<AtomicBool>,
    ) -> Result<BuildReport> {
        let selection = self.select(goals)?;
        let _listening = self.listen(events, cancel);
        let sources =
            self.scan(selection.sources.iter(), (options.looking.check_content, IfAway::Refuse), events, cancel)?;
        if options.looking.locked {
            self.hold_lock(&sources)?;
        }
        let before = self.roots()?;
        self.store.build_begins(&self.graph_path);
        let pins = self.pins();
        let processes = Arc::new(self.processes(options.looking));
        let states = sources.states.clone();
        let mut machine =
            self.machine(&selection, states, (&before, &pins), &processes, (options.looking.unsandboxed, true))?;
        self.tell_notes(events);
        let settled = |s: &State| matches!(s, State::Present { .. } | State::Known(_));
        self.secrets_are_there(machine.report().filter(|n| !settled(n.state)).map(|n| n.spec))?;
        let _ = events.send(planned(&machine));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(options.run.jobs.max(1) + 2 * sched::MOST_ON_GPUS + 1)
            .enable_all()
            .build()
            .map_err(FrontError::Runtime)?;
        let executor: Arc<dyn sched::Processes> = Arc::<sched::HostProcesses>::clone(&processes);
        let ended = runtime.block_on(sched::run(&mut machine, &self.store, executor, &options.run, events, cancel));
        // Whatever was built counts, however the build ended.
        let waits = Waits::whatever_happens(events, cancel);
        let mut unkept = self.keep(&machine, &sources, events, &waits)?;
        let ended = ended?;
        unkept.extend(ended.troubles.iter().map(|t| ErrorReport { error: t.error.clone(), hint: t.hint.clone() }));
        if !options.looking.locked {
            match self.write_lock(&sources, &processes.images().resolved(), &waits) {
                Err(FrontError::Store(e)) if !e.is_damage() => {
                    unkept.push(ErrorReport { error: e.to_string(), hint: e.hint() });
                }
                done => drop(done?),
            }
        }
        self.tell_notes(events);
        self.store.flush_index();
        let steps: Vec<StepReport> = machine
            .report()
            .enumerate()
            .map(|(i, n)| {
                let mut step = StepReport::of(&n, ended.seconds.get(&i).copied().unwrap_or(0.0));
                if ended.stopped.contains(&i) {
                    step.error = Some("stopped; nothing of it was kept".to_owned());
                }
                step
            })
            .collect();
        let fine = |s: &StepReport| matches!(s.action, "fresh" | "built");
        let mut errors = error_reports(&sources.errors);
        errors.extend(unkept);
        let ok = !ended.interrupted && errors.is_empty() && steps.iter().all(fine);
        Ok(BuildReport { steps, ok, errors, interrupted: ended.interrupted })
    }

    pub(super) fn tell_notes(&self, events: &Events) {
        for line in self.store.take_notes() {
            let _ = events.send(Event::Notice(line));
        }
    }

    // Roots and links, for whatever is there now. Comes back: what could not be written.
    fn keep(
        &self,
        machine: &Machine<'_>,
        sources: &Sources,
        events: &Events,
        waits: &Waits<'_>,
    ) -> Result<Vec<ErrorReport>> {
        // Read again: another build of this project may have ended since.
        let writing = self.writing(waits)?;
        let mut roots = self.roots()?;
        roots.project.clone_from(&self.root);
        roots.graph.clone_from(&self.graph_path);
        let unended =
            if self.store.read_only() { Vec::new() } else { self.store.take_unended(&self.graph_path, &mut roots)? };
        roots.pins = Lock::read(&self.lock_path)?.pins.iter().map(|(recipe, pin)| (*recipe, pin.tree)).collect();
        for (name, state) in &sources.states {
            if let Ok((tree, _)) = state {
                roots.enter_source(name.as_str(), *tree);
            }
        }
        let mut links = Vec::new();
        for n in machine.report() {
            let (State::Known(run) | State::Present { run, .. }) = n.state else { continue };
            let Some(tree) = run.tree() else { continue };
            let name = n.spec.name.as_str();
            // Roots say what must be there; what nobody needed may have been collected.
            let named = roots.nodes.get(name).is_some_and(|list| list.iter().any(|r| r.tree == tree));
            if named || matches!(n.state, State::Present { .. }) || self.is_whole(tree)? {
                roots.enter(name, Root { recipe: run.recipe, tree, seq: run.seq });
            }
            if matches!(n.state, State::Present { .. }) && run.verdict() != Some(false) {
                links.push((n.spec.name.to_string(), tree));
            }
        }
        let mut unkept = Vec::new();
        // Of a full disk the steps' own errors say more than this one: it is told beside them.
        match self.store.put_roots(&self.graph_path, &roots) {
            Err(e) if !e.is_damage() => unkept.push(ErrorReport { error: e.to_string(), hint: e.hint() }),
            done => {
                done?;
                match self.store.builds_ended(&unended) {
                    Err(e) if !e.is_damage() => unkept.push(ErrorReport { error: e.to_string(), hint: e.hint() }),
                    done => done?,
                }
            }
        }
        drop(writing);
        for (name, tree) in links {
            match self.link_out(&name, tree) {
                Ok(()) => {}
                // The user's own, and the user's to move.
                Err(e @ FrontError::Argument { .. }) => {
                    let hint = e.hint().map_or_else(String::new, |h| format!(" ({h})"));
                    let _ =
                        events.send(Event::Notice(format!("out/{name} could not be brought up to date: {e}{hint}")));
                }
                Err(e) => {
                    let error = format!("out/{name} could not be brought up to date: {e}");
                    unkept.push(ErrorReport { error, hint: e.hint() });
                }
            }
        }
        Ok(unkept)
    }

    // Whether all its bytes are there, and stay as long as this process lives.
    fn is_whole(&self, tree: TreeId) -> Result<bool> {
        self.store.hold_trees([tree])?;
        Ok(match self.store.tree(tree)? {
            Some(listing) => self.store.absent(&listing)?.is_empty(),
            None => false,
        })
    }

    // `out/NODE`, a link for people. Replaced in one step; anything there that is no link of ours is left alone.
    fn link_out(&self, name: &str, id: TreeId) -> Result<()> {
        let Some(tree) = self.store.tree(id)? else { return Ok(()) };
        let view = self.store.view(id, &tree)?;
        let out = self.root.join("out");
        fsx::create_dir_all(&out).map_err(StoreError::from)?;
        // Where it really is: a relative link counts from there.
        let out = out.canonicalize().map_err(fsx::at("find", &out)).map_err(StoreError::from)?;
        let link = out.join(name);
        let target = relative(&out, &view);
        match std::fs::symlink_metadata(&link) {
            Ok(m) if !m.file_type().is_symlink() => {
                return Err(FrontError::Argument {
                    what: format!("{} is there and is no link", link.display()),
                    hint: Some("move it away: graftwerk never replaces what it did not make".to_owned()),
                });
            }
            Ok(_) if std::fs::read_link(&link).is_ok_and(|t| t == target) => return Ok(()),
            _ => {}
        }
        Ok(fsx::replace_link(&link, &target, &self.store.temp_path()).map_err(StoreError::from)?)
    }

    /// What `build` would do, and why. Runs nothing and writes nothing but what it learns of the sources.
    pub fn plan(
        &self,
        goals: &[String],
        looking: Looking,
        events: &Events,
        cancel: &Arc<AtomicBool>,
    ) -> Result<PlanReport> {
        let read = |m: &Machine<'_>| {
            let mut steps: Vec<PlanStep> = m.report().map(|n| PlanStep::of(&n)).collect();
            for (step, space) in steps.iter_mut().zip(m.spaces()) {
                step.space = space;
            }
            share_recipes(steps)
        };
        let (mut steps, sources): (Vec<PlanStep>, _) =
            self.at_rest(goals, (looking, IfAway::Refuse), events, cancel, read)?;
        let selection = self.select(goals)?;
        self.tell_moved(&self.engine_images(), selection.in_order(&self.graph), events);
        self.predict(&mut steps)?;
        let copies = steps.iter().any(|s| s.space.is_some_and(|s| s.copies > 0)) && !self.store.read_only();
        let clones = copies.then(|| fsx::probe::shares_extents(self.store.temp_dir()));
        Ok(PlanReport { steps, errors: error_reports(&sources.errors), clones })
    }

    // How long each step that runs took last time. One that waits for another with the same recipe takes none.
    fn predict(&self, steps: &mut [PlanStep]) -> Result<()> {
        let roots = self.roots()?;
        for step in steps.iter_mut().filter(|s| s.action == "run" || s.action == "await" && s.recipe.is_none()) {
            let Some(root) = roots.newest(&step.node) else { continue };
            let runs = self.store.runs(root.recipe)?;
            step.last_seconds = runs.iter().find(|r| r.seq == root.seq).map(|r| r.seconds);
        }
        Ok(())
    }

    /// Lets the machine come to rest without running anything, and reads something off it.
    pub(crate) fn at_rest<T>(
        &self,
        goals: &[String],
        (looking, if_away): (Looking, IfAway),
        events: &Events,
        cancel: &Arc<AtomicBool>,
        read: impl FnOnce(&Machine<'_>) -> T,
    ) -> Result<(T, Sources)> {
        let selection = self.select(goals)?;
        let sources = self.scan(selection.sources.iter(), (looking.check_content, if_away), events, cancel)?;
        if cancel.load(Ordering::Relaxed) {
            return Err(FrontError::Interrupted);
        }
        if looking.locked {
            self.hold_lock(&sources)?;
        }
        let roots = self.roots()?;
        let pins = self.pins();
        let processes = self.processes(looking);
        let machine = self.machine(
            &selection,
            sources.states.clone(),
            (&roots, &pins),
            &processes,
            (looking.unsandboxed, false),
        )?;
        let answer = read(&machine);
        self.tell_notes(events);
        self.store.flush_index();
        Ok((answer, sources))
    }
}

fn planned(machine: &Machine<'_>) -> Event {
    let steps = share_recipes(machine.report().map(|n| PlanStep::of(&n)).collect());
    let count = |action: &str| steps.iter().filter(|s| s.action == action).count();
    Event::Planned { run: count("run"), waiting: count("await"), fresh: count("fresh"), blocked: count("blocked") }
}

// Of several steps with one recipe only the first runs; the others wait for it and reuse its tree.
fn share_recipes(mut steps: Vec<PlanStep>) -> Vec<PlanStep> {
    let mut first: HashMap<String, String> = HashMap::new();
    for s in steps.iter_mut().filter(|s| s.action == "run") {
        let Some(recipe) = s.recipe.clone() else { continue };
        if let Some(node) = first.get(&recipe) {
            s.action = "await";
            s.on = vec![node.clone()];
            s.reasons.clear();
            s.space = None;
        } else {
            first.insert(recipe, s.node.clone());
        }
    }
    steps
}

pub(super) fn error_reports(errors: &[StoreError]) -> Vec<ErrorReport> {
    errors.iter().map(|e| ErrorReport { error: e.to_string(), hint: e.hint() }).collect()
}

// From one folder to a path, by `..` where they share a beginning: a project that is moved keeps its links.
fn relative(from: &Path, to: &Path) -> std::path::PathBuf {
    let mut a = from.components().peekable();
    let mut b = to.components().peekable();
    let mut shared = 0;
    while let (Some(x), Some(y)) = (a.peek(), b.peek())
        && x == y
    {
        shared += 1;
        a.next();
        b.next();
    }
    if shared <= 1 {
        return to.to_owned();
    }
    let mut p: std::path::PathBuf = a.map(|_| "..").collect();
    p.extend(b);
    p
}
