//! The images of a graph: which there are, what `update` makes of them, and whether one has moved.

use std::collections::{BTreeMap, BTreeSet};

use crate::canon::Value;
use crate::front::Project;
use crate::front::error::{FrontError, Result};
use crate::front::report::UpdatedImage;
use crate::graph::NodeSpec;
use crate::graph::lock::LockedImage;
use crate::sched::{Event, Events, Images};

/// The image that a node runs in.
pub(super) fn image_of(node: &NodeSpec) -> Option<&str> {
    // Where a kind has such a key and is no process, it names an image for people.
    let runs = node.params.contains_key("argv");
    node.params.get("image").and_then(Value::as_str).filter(|_| runs)
}

impl Project {
    /// The images that the graph's nodes run in.
    pub(super) fn images(&self) -> BTreeSet<&str> {
        self.graph.nodes.values().filter_map(image_of).collect()
    }

    pub(super) fn engine_images(&self) -> Images {
        let stated = self.graph.engine.host.as_deref().map(str::parse);
        let access = self.graph.engine.gpu.as_deref().and_then(|g| g.parse().ok()).unwrap_or_default();
        Images::new(stated, access, self.lock.images.clone())
    }

    /// Resolves these images anew; one that the engine lacks is fetched. Errors: [`FrontError::Argument`].
    pub(super) fn update_images(
        &self,
        names: &[&str],
        events: &Events,
    ) -> Result<(Vec<UpdatedImage>, BTreeMap<String, LockedImage>)> {
        let mut report = Vec::new();
        let mut new = BTreeMap::new();
        if names.is_empty() {
            return Ok((report, new));
        }
        let argument = |(what, hint)| FrontError::Argument { what, hint };
        let engine = self.engine_images().engine().map_err(argument)?;
        for name in names {
            let told = |e: crate::engine::EngineError| FrontError::Argument { hint: e.hint(), what: e.to_string() };
            let mut found = engine.image(name).map_err(told)?;
            if found.is_none() {
                let say = |line: &str| {
                    let _ = events.send(Event::Notice(format!("image {name}: {line}")));
                };
                engine.pull(name, &say).map_err(told)?;
                found = engine.image(name).map_err(told)?;
            }
            let Some(found) = found else {
                let what = format!("the engine at {} fetched {name}, and does not have it", engine.address());
                return Err(FrontError::Argument { what, hint: None });
            };
            let now = LockedImage { identity: found.identity.digest(), id: found.id };
            report.push(UpdatedImage {
                image: (*name).to_owned(),
                old: self.lock.images.get(*name).map(|l| l.identity.to_string()),
                new: now.identity.to_string(),
            });
            new.insert((*name).to_owned(), now);
        }
        Ok((report, new))
    }

    /// Says which images of these nodes now mean something else in the engine; the lock holds.
    pub(super) fn tell_moved<'n>(&self, images: &Images, nodes: impl Iterator<Item = &'n NodeSpec>, events: &Events) {
        let names: BTreeSet<&str> = nodes.filter_map(image_of).collect();
        for (name, now) in images.moved(names.into_iter()) {
            let was = self.lock.images.get(&name).map(|l| l.identity.short()).unwrap_or_default();
            let _ = events.send(Event::Notice(format!(
                "the image {name} is {} in the engine now, and graph.lock holds {was}: `graftwerk update {name}` takes the \
                 new one",
                now.identity.short()
            )));
        }
    }

    /// Refuses where a step that has to run asks for a secret that the caller does not have. Errors:
    /// [`FrontError::Argument`], with the first.
    pub(super) fn secrets_are_there<'n>(&self, nodes: impl Iterator<Item = &'n NodeSpec>) -> Result<()> {
        for node in nodes {
            let names = node.params.get("secrets").and_then(Value::as_str_list).unwrap_or_default();
            let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
            if let Err(e) = crate::exec::secret::Secrets::from_environment(&names) {
                let what = format!("{} can't run: {e}", node.name);
                return Err(FrontError::Argument { what, hint: Some(e.hint()) });
            }
        }
        Ok(())
    }
}
