//! Steps in containers: the image, the secrets and the engine for one, and what earlier ones left behind.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;

use crate::digest::Digest;
use crate::engine::gpu::{GpuAccess, access};
use crate::engine::image::Found;
use crate::engine::labels::{self, Owner};
use crate::engine::{Engine, EngineError};
use crate::exec::container::{self as exec, Boxed};
use crate::exec::secret::Secrets;
use crate::exec::tools::FileDigests;
use crate::exec::within::Companion;
use crate::exec::{ExecError, Exit, ProcessSpec};
use crate::fsx::lock::Holder;
use crate::gpu::{self, Lease, LeaseError, Leasing, Request, inventory};
use crate::graph::{Name, WindowSpec};
use crate::kinds::container::ContainerStep;
use crate::sched::images::Images;
use crate::sched::process::{could_not_run, failed};
use crate::sched::{ProcessFailure, ProcessRequest, Trouble};
use crate::window::{Cancelled, GivesWay, Purpose, Tell, WindowError, WindowKeeper, gives_way};

/// Facts of a run, for its record.
pub(super) type Facts = BTreeMap<String, serde_json::Value>;

/// What steps in containers share.
#[derive(Default)]
pub(super) struct Containers {
    pub(super) images: Images,
    windows: BTreeMap<Name, WindowSpec>,
    keeper: WindowKeeper,
    // Of windows that were closed while a step waited.
    troubles: Mutex<Vec<Trouble>>,
    // Engines whose host was seen to be ours, and that were swept.
    looked_at: Mutex<BTreeSet<String>>,
}

impl Containers {
    pub(super) fn new(images: Images, windows: BTreeMap<Name, WindowSpec>) -> Self {
        Self { images, windows, ..Self::default() }
    }

    /// See [`crate::sched::Processes::close_windows`].
    pub(super) fn close_windows(&self, name: Option<&str>, tell: Tell<'_>, cancelled: Cancelled<'_>) -> Vec<Trouble> {
        let closed = self.keeper.close_unless(&|n| name.is_some_and(|only| only != n), tell, cancelled);
        let mut earlier = self.troubles.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut all = std::mem::take(&mut *earlier);
        all.extend(closed.iter().map(|e| Trouble { error: e.to_string(), hint: e.hint() }));
        all
    }

    /// Runs a step in its container.
    pub(super) fn run(
        &self,
        request: &ProcessRequest<'_>,
        step: &ContainerStep,
        spec: &ProcessSpec,
        digests: &dyn FileDigests,
    ) -> Result<(Exit, Facts), ProcessFailure> {
        let secrets = Secrets::from_environment(&step.secrets).map_err(|e| failed(e.to_string(), Some(e.hint())))?;
        let engine = Arc::new(self.images.engine().map_err(|(what, hint)| failed(what, hint))?);
        let window = self.window(step)?;
        // Whoever gives way is counted as gone before anybody is stopped.
        let gives_way = window.map(|w| gives_way(w, &engine)).transpose().map_err(window_failed)?.unwrap_or_default();
        // Recipe, then GPU, then window: locks are taken in this order by everybody.
        let lease = self.lease(request, step, &gives_way, &engine)?;
        let companion = Companion::find(digests).map_err(|e| failed(e.to_string(), e.hint()))?;
        let image = self.image(&engine, step, request.image)?;
        self.look_at(&engine, &image, &companion, &spec.places.scratch)?;
        let gpu = match &lease {
            None => None,
            Some(l) => Some((self.access(&engine, l)?, u32::try_from(l.gpus.len()).unwrap_or(u32::MAX))),
        };
        // Nothing that can be known before keeps the step from running now.
        let inside = window.map(|w| self.enter(request, step, w, &engine, lease.as_ref())).transpose()?;
        let owner = Owner {
            run: format!("{:016x}", crate::fsx::stat::now_ns().unsigned_abs()),
            node: request.node.to_owned(),
            recipe: request.recipe.to_string(),
            store: request.store.display().to_string(),
            scratch: request.scratch.display().to_string(),
            window: inside.as_ref().map(|w| w.id.clone()),
        };
        let boxed = Boxed {
            spec,
            step,
            image: &image,
            secrets: &secrets,
            gpu,
            name: format!("graftwerk-{}-{}-{}", plain(request.node), std::process::id(), owner.run),
            labels: owner.labels().into_iter().collect(),
            companion: &companion,
        };
        let exit = exec::run(&engine, &boxed, request.cancelled, request.on_line).map_err(could_not_run)?;
        if exit.success()
            && let Some((path, name)) = leaked(&secrets, request.out).map_err(ProcessFailure::Store)?
        {
            let what = format!("{path} of the output holds the secret {name}: nothing of it is published");
            let hint = "let the step write results without it".to_owned();
            return Err(ProcessFailure::Failed { error: what, hint: Some(hint), tail: exit.last_lines });
        }
        let facts = json!({
            "image": step.image, "id": image.id, "layers_and_config": image.identity.text(),
            "engine": engine.address().to_string(),
        });
        let mut facts: Facts = [("container".to_owned(), facts)].into();
        if let Some(w) = window {
            facts.insert("window".to_owned(), w.name.as_str().into());
        }
        if let (Some(lease), Some((access, _))) = (&lease, &boxed.gpu) {
            let gpus: Vec<_> = lease
                .gpus
                .iter()
                .map(|g| json!({ "uuid": g.uuid, "model": g.model, "capability": g.capability.map(|c| c.to_string()) }))
                .collect();
            facts.insert("gpu".to_owned(), json!({ "gpus": gpus, "driver": lease.driver, "access": access.way() }));
        }
        Ok((exit, facts))
    }

    // The GPUs that the step asks for. Whoever waits is told for whom.
    fn lease(
        &self,
        request: &ProcessRequest<'_>,
        step: &ContainerStep,
        gives_way: &GivesWay,
        engine: &Engine,
    ) -> Result<Option<Lease>, ProcessFailure> {
        let Some(asked) = &step.gpu else { return Ok(None) };
        let asked = Request::parse(asked).map_err(|e| failed(e.to_string(), e.hint))?;
        let Some(asked) = asked else { return Ok(None) };
        let what = format!("node {} of {}", request.node, request.store.display());
        let leasing = Leasing { request: &asked, what: &what, inventory: &inventory, yields: &|p| gives_way.is(p) };
        let mut busy = |holder: Option<&Holder>| {
            (request.waiting)(holder);
            // Whoever waits for a lease holds no window: an earlier step's is not kept for this one any longer.
            let closed = self.close_windows(None, request.notice, request.cancelled);
            self.troubles.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend(closed);
        };
        let lease = gpu::lease(&leasing, &mut busy, &|| (request.cancelled)());
        match lease.map_err(|e| with_names(e, engine)).map_err(|e| failed(e.to_string(), e.hint()))? {
            Some(lease) => Ok(Some(lease)),
            None => Err(ProcessFailure::Cancelled),
        }
    }

    fn window(&self, step: &ContainerStep) -> Result<Option<&WindowSpec>, ProcessFailure> {
        let Some(name) = &step.window else { return Ok(None) };
        let found = self.windows.get(name.as_str());
        found.map(Some).ok_or_else(|| failed(format!("there is no window {name}"), None))
    }

    // Opens the window for the step, unless an earlier one's is still open, and waits until the memory is there.
    fn enter<'c>(
        &'c self,
        request: &ProcessRequest<'_>,
        step: &ContainerStep,
        window: &'c WindowSpec,
        engine: &Arc<Engine>,
        lease: Option<&Lease>,
    ) -> Result<Inside<'c>, ProcessFailure> {
        let purpose = Purpose { node: request.node.to_owned(), store: request.store.display().to_string() };
        let entered = self.keeper.enter(window, engine, &purpose, request.notice, request.cancelled);
        let Some(id) = entered.map_err(window_failed)? else { return Err(ProcessFailure::Cancelled) };
        let inside = Inside { keeper: &self.keeper, name: window.name.as_str(), id };
        if let (Some(lease), Some(asked)) = (lease, step.gpu.as_ref().and_then(|g| Request::parse(g).ok().flatten())) {
            let uuids: Vec<String> = lease.gpus.iter().map(|g| g.uuid.clone()).collect();
            let freed = gpu::wait_for_memory(&uuids, asked.memory_bytes, MEMORY, &inventory, request.cancelled);
            if let Err(short) = freed {
                if (request.cancelled)() {
                    return Err(ProcessFailure::Cancelled);
                }
                let what = format!("with the window {} open, {short}", window.name);
                return Err(failed(what, Some("list what holds it in the window's `stop`, or end it".to_owned())));
            }
        }
        Ok(inside)
    }

    fn access(&self, engine: &Engine, lease: &Lease) -> Result<GpuAccess, ProcessFailure> {
        let portrait = engine.portrait().map_err(engine_failed)?;
        access(self.images.gpu_access(), &lease.gpus, &portrait).map_err(|e| failed(e.to_string(), Some(e.hint())))
    }

    // The image of the recipe and no other, whatever its name means by now.
    fn image(&self, engine: &Engine, step: &ContainerStep, wanted: Option<Digest>) -> Result<Found, ProcessFailure> {
        let name = &step.image;
        let Some(wanted) = wanted else { return Err(failed(format!("the image {name} is not known"), None)) };
        let found = self.images.find(engine, name, wanted).map_err(engine_failed)?;
        found.ok_or_else(|| {
            let what = format!(
                "the engine at {} no longer has the image {name} as graph.lock holds it ({})",
                engine.address(),
                wanted.short()
            );
            let hint = format!(
                "bring it back (docker load, docker pull), or take what {name} is now: `graftwerk update {name}`"
            );
            failed(what, Some(hint))
        })
    }

    // Once for each engine: whether it is on this host, and what steps left there whose graftwerk is gone.
    fn look_at(
        &self,
        engine: &Engine,
        image: &Found,
        companion: &Companion,
        scratch: &Path,
    ) -> Result<(), ProcessFailure> {
        let mut looked_at = self.looked_at.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let address = engine.address().to_string();
        if looked_at.contains(&address) {
            return Ok(());
        }
        exec::sees_our_files(engine, &image.id, scratch).map_err(could_not_run)?;
        remove_orphans(engine, companion).map_err(engine_failed)?;
        looked_at.insert(address);
        Ok(())
    }
}

// Who holds memory, by the names of their containers, as far as this engine knows them.
fn with_names(mut e: LeaseError, engine: &Engine) -> LeaseError {
    if let LeaseError::Memory { short, .. } = &mut e {
        for holder in short.iter_mut().flat_map(|s| &mut s.holders) {
            let seen = holder.container.as_ref().and_then(|id| engine.see(id).ok().flatten());
            if let Some(seen) = seen {
                holder.container = Some(seen.name);
            }
        }
    }
    e
}

// How long the driver may take to give back what stopped neighbours held.
const MEMORY: Duration = Duration::from_secs(60);

/// A step's stay in a window.
struct Inside<'c> {
    keeper: &'c WindowKeeper,
    name: &'c str,
    id: String,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.keeper.leave(self.name);
    }
}

fn window_failed(e: WindowError) -> ProcessFailure {
    failed(e.to_string(), e.hint())
}

/// Removes containers of steps whose graftwerk is gone, and what they left in their scratch folders. Another's are left
/// alone.
pub(super) fn remove_orphans(engine: &Engine, companion: &Companion) -> Result<(), EngineError> {
    for orphan in engine.containers_with(labels::RUN)? {
        if labels::owner_alive(&orphan.labels) {
            continue;
        }
        engine.remove(&orphan.id)?;
        let Some(scratch) = orphan.labels.get(labels::SCRATCH).map(PathBuf::from) else { continue };
        if scratch.is_absolute() && scratch.is_dir() {
            // What the caller can't remove itself; a sweep takes the rest.
            let _ = exec::reclaim(engine, &orphan.image, companion, std::slice::from_ref(&scratch));
            let _ = crate::fsx::remove_tree(&scratch);
        }
    }
    Ok(())
}

// The first file of an output that holds a secret, in its content or its name.
fn leaked(secrets: &Secrets, out: &Path) -> Result<Option<(String, String)>, crate::store::StoreError> {
    use std::os::unix::ffi::OsStrExt as _;
    if secrets.is_empty() {
        return Ok(None);
    }
    let mut left = vec![out.to_owned()];
    while let Some(path) = left.pop() {
        let at = || path.strip_prefix(out).unwrap_or(&path).display().to_string();
        let failed = crate::fsx::at("read", &path);
        let meta = match std::fs::symlink_metadata(&path) {
            Ok(m) => m,
            Err(e) => return Err(failed(e).into()),
        };
        let mut found = path.strip_prefix(out).ok().and_then(|p| secrets.in_bytes(p.as_os_str().as_bytes()));
        if meta.is_dir() {
            for entry in std::fs::read_dir(&path).map_err(crate::fsx::at("read", &path))? {
                left.push(entry.map_err(crate::fsx::at("read", &path))?.path());
            }
        } else if meta.is_symlink() {
            let target = std::fs::read_link(&path).map_err(failed)?;
            found = found.or(secrets.in_bytes(target.as_os_str().as_bytes()));
        } else if meta.is_file() {
            found = match found {
                None => secrets.in_file(&path).map_err(failed)?,
                found => found,
            };
        }
        if let Some(name) = found {
            return Ok(Some((at(), name.to_owned())));
        }
    }
    Ok(None)
}

// What an engine takes in a container's name.
fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' || c == '.' { c } else { '_' }).collect()
}

fn engine_failed(source: EngineError) -> ProcessFailure {
    could_not_run(ExecError::Engine { source, begun: false })
}
