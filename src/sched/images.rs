//! Images of a project: a name is resolved once, and the lock holds.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::digest::Digest;
use crate::engine::gpu::Access;
use crate::engine::image::Found;
use crate::engine::{Address, BadAddress, Engine, EngineError, address};
use crate::graph::lock::LockedImage;
use crate::kinds::StepError;

/// What image names stand for.
#[derive(Default)]
pub struct Images {
    stated: Option<Result<Address, BadAddress>>,
    access: Access,
    locked: BTreeMap<String, LockedImage>,
    // Names that the lock does not know, and what an engine said of them.
    new: Mutex<BTreeMap<String, Result<LockedImage, Trouble>>>,
}

/// What is wrong, and what to do.
type Trouble = (String, Option<String>);

impl Images {
    /// With what graph.lock says. `stated` is the engine that graph.toml names, `access` how it gives a GPU.
    pub fn new(
        stated: Option<Result<Address, BadAddress>>,
        access: Access,
        locked: BTreeMap<String, LockedImage>,
    ) -> Self {
        Self { stated, access, locked, new: Mutex::default() }
    }

    /// How the engine gives a container a GPU.
    pub fn gpu_access(&self) -> Access {
        self.access
    }

    /// The engine: what `DOCKER_HOST` says, else graph.toml, else the usual one. Errors: what is wrong, and what to do.
    pub fn engine(&self) -> Result<Engine, Trouble> {
        let told = |e: EngineError| (e.to_string(), e.hint());
        let at_hand = address::at_hand().map_err(|e| told(e.into()))?;
        let address = match (at_hand, &self.stated) {
            (Some((address, address::Said::Environment)), _) => address,
            (_, Some(stated)) => stated.clone().map_err(|e| told(e.into()))?,
            (Some((address, address::Said::Usual)), None) => address,
            (None, None) => {
                let hint = "start Docker (systemctl start docker) or Podman's service (systemctl start podman.socket), \
                            or let DOCKER_HOST say where an engine is";
                return Err(("there is no container engine at hand".to_owned(), Some(hint.to_owned())));
            }
        };
        Engine::connect(&address).map_err(told)
    }

    /// What a step can see of the image of this name. No engine is asked for one that the lock holds. Errors:
    /// [`StepError::Invalid`].
    pub fn identity(&self, reference: &str) -> Result<Digest, StepError> {
        if let Some(locked) = self.locked.get(reference) {
            return Ok(locked.identity);
        }
        let mut new = self.new.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let resolved = new.entry(reference.to_owned()).or_insert_with(|| self.resolve(reference));
        match resolved {
            Ok(image) => Ok(image.identity),
            Err((what, hint)) => Err(StepError::Invalid {
                what: format!("the image {reference} is not in graph.lock yet, and {what}"),
                hint: hint.clone(),
            }),
        }
    }

    fn resolve(&self, reference: &str) -> Result<LockedImage, Trouble> {
        let engine = self.engine()?;
        let found = engine.image(reference).map_err(|e| (e.to_string(), e.hint()))?;
        let found = found.ok_or_else(|| {
            let hint = format!("`graftwerk update {reference}` fetches it and notes it in graph.lock");
            (format!("the engine at {} does not have it", engine.address()), Some(hint))
        })?;
        Ok(LockedImage { identity: found.identity.digest(), id: found.id })
    }

    /// The names that were resolved now, for graph.lock.
    pub fn resolved(&self) -> BTreeMap<String, LockedImage> {
        let new = self.new.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        new.iter().filter_map(|(name, r)| Some((name.clone(), r.as_ref().ok()?.clone()))).collect()
    }

    /// The image with this identity as the engine has it now: by the id that was noted, by its name, or under whatever
    /// name. `None` where the engine lacks it. Errors: as [`Engine::connect`].
    pub fn find(&self, engine: &Engine, reference: &str, identity: Digest) -> Result<Option<Found>, EngineError> {
        let noted = self.locked.get(reference).cloned().or_else(|| self.resolved().get(reference).cloned());
        for name in noted.iter().map(|l| l.id.as_str()).chain([reference]) {
            if let Some(found) = engine.image(name)?.filter(|f| f.identity.digest() == identity) {
                return Ok(Some(found));
            }
        }
        engine.image_of(identity)
    }

    /// The names of the lock that now mean another image in the engine: name, what it means now. An engine that is not
    /// there says nothing.
    pub fn moved<'n>(&self, names: impl Iterator<Item = &'n str>) -> Vec<(String, LockedImage)> {
        let held: Vec<&str> = names.filter(|n| self.locked.contains_key(*n)).collect();
        if held.is_empty() {
            return Vec::new();
        }
        let Ok(engine) = self.engine() else { return Vec::new() };
        let mut moved = Vec::new();
        for name in held {
            let Ok(Some(now)) = engine.image(name) else { continue };
            let now = LockedImage { identity: now.identity.digest(), id: now.id };
            if self.locked.get(name).is_some_and(|l| l.identity != now.identity) {
                moved.push((name.to_owned(), now));
            }
        }
        moved
    }
}
