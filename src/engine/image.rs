//! Images: what of one a step can see, and bringing one into the engine.

use std::fmt::Write as _;
use std::path::Path;

use bollard::body_try_stream;
use bollard::models::{ImageConfig, ImageInspect};
use bollard::query_parameters::{CreateImageOptionsBuilder, ImportImageOptionsBuilder, ListImagesOptionsBuilder};
use futures_util::{StreamExt as _, TryStreamExt as _};
use tokio_util::io::ReaderStream;

use crate::canon::quote;
use crate::digest::Digest;
use crate::engine::{Engine, EngineError};
use crate::fsx;

/// What of an image a step can see: layers and runtime configuration, in canonical text. Two imports of one tarball have
/// two ids and one identity; labels, history and tags are no part of it.
///
/// ```text
/// graftwerk image 1
/// platform = "linux/amd64"
/// layer "sha256:…"
/// env "PATH=/usr/bin"
/// user = ""
/// workdir = "/"
/// entrypoint "…"
/// cmd "…"
/// volume "…"
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    text: String,
}

impl Identity {
    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// BLAKE3 of the text: what a recipe holds.
    pub fn digest(&self) -> Digest {
        Digest::of(self.text.as_bytes())
    }

    /// Takes a text that was kept. `None` where it is none of this version.
    pub fn from_text(text: &str) -> Option<Self> {
        text.starts_with("graftwerk image 1\n").then(|| Self { text: text.to_owned() })
    }

    fn of(image: &ImageInspect) -> Self {
        let mut text = String::from("graftwerk image 1\n");
        let q = |s: &str| quote(s.as_bytes());
        let or_empty = |o: &Option<String>| o.clone().unwrap_or_default();
        let mut platform = format!("{}/{}", or_empty(&image.os), or_empty(&image.architecture));
        if let Some(v) = image.variant.as_deref().filter(|v| !v.is_empty()) {
            let _ = write!(platform, "/{v}");
        }
        let none = ImageConfig::default();
        let config = image.config.as_ref().unwrap_or(&none);
        let _ = writeln!(text, "platform = {}", q(&platform));
        let layers = image.root_fs.as_ref().and_then(|r| r.layers.as_deref()).unwrap_or_default();
        let mut list = |what: &str, items: &[String]| {
            for item in items {
                let _ = writeln!(text, "{what} {}", q(item));
            }
        };
        list("layer", layers);
        list("env", config.env.as_deref().unwrap_or_default());
        list("entrypoint", config.entrypoint.as_deref().unwrap_or_default());
        list("cmd", config.cmd.as_deref().unwrap_or_default());
        let mut volumes = config.volumes.clone().unwrap_or_default();
        volumes.sort();
        list("volume", &volumes);
        let _ = writeln!(text, "user = {}", q(&or_empty(&config.user)));
        let _ = writeln!(text, "workdir = {}", q(&or_empty(&config.working_dir)));
        Self { text }
    }
}

/// An image that the engine has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The engine's id for it (`sha256:…`): what a container is made from.
    pub id: String,
    /// What a step can see of it.
    pub identity: Identity,
    /// The names that it has in the engine.
    pub tags: Vec<String>,
    /// Its variables, as `NAME=value`.
    pub env: Vec<String>,
}

impl Found {
    fn of(image: ImageInspect) -> Self {
        let identity = Identity::of(&image);
        let env = image.config.and_then(|c| c.env).unwrap_or_default();
        Self { id: image.id.unwrap_or_default(), identity, tags: image.repo_tags.unwrap_or_default(), env }
    }
}

impl Engine {
    /// The image of this name or id, if the engine has it. Errors: as [`Engine::connect`].
    pub fn image(&self, reference: &str) -> Result<Option<Found>, EngineError> {
        match self.ask(&format!("look at the image {reference}"), self.client().inspect_image(reference)) {
            Ok(image) => Ok(Some(Found::of(image))),
            Err(EngineError::Refused { status: 404, .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// An image of this identity, whatever it is called. Errors: as [`Engine::connect`].
    pub fn image_of(&self, identity: Digest) -> Result<Option<Found>, EngineError> {
        let options = ListImagesOptionsBuilder::default().all(false).build();
        let all = self.ask("list its images", self.client().list_images(Some(options)))?;
        for summary in all {
            // One that goes while we look is none.
            if let Some(found) = self.image(&summary.id)?
                && found.identity.digest() == identity
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Fetches an image from its registry. Errors: [`EngineError::Refused`] with the registry's words.
    pub fn pull(&self, reference: &str, on_line: &dyn Fn(&str)) -> Result<(), EngineError> {
        let what = format!("fetch the image {reference}");
        // Without a tag the engine would fetch every one that there is.
        let named = reference.contains('@') || reference.rsplit('/').next().is_some_and(|last| last.contains(':'));
        let whole = if named { reference.to_owned() } else { format!("{reference}:latest") };
        let options = CreateImageOptionsBuilder::default().from_image(&whole).build();
        let mut told = String::new();
        let stream = self.client().create_image(Some(options), None, None).try_for_each(|info| {
            let line = info.status.unwrap_or_default();
            if line != told {
                on_line(&line);
                told = line;
            }
            std::future::ready(Ok(()))
        });
        self.ask(&what, stream)
    }

    /// Makes an image from a tarball of a root file system. `changes` are lines as in a Dockerfile (`ENV A=b`). Returns
    /// its id. Errors: [`EngineError::Refused`].
    pub fn import_root(&self, tarball: &Path, changes: &[String]) -> Result<String, EngineError> {
        let what = format!("import {}", tarball.display());
        let options = CreateImageOptionsBuilder::default().from_src("-").changes(changes.to_vec()).build();
        let said = self.ask(&what, async {
            let file = tokio::fs::File::open(tarball).await?;
            let body = body_try_stream(ReaderStream::with_capacity(file, 1 << 18));
            let infos: Vec<_> = self.client().create_image(Some(options), Some(body), None).try_collect().await?;
            Ok(infos.into_iter().filter_map(|i| i.status).next_back())
        })?;
        said.filter(|s| s.starts_with("sha256:")).ok_or_else(|| EngineError::Refused {
            what,
            status: 0,
            said: "it named no image that it made".to_owned(),
        })
    }

    /// Takes in an archive as [`Engine::save_image`] writes it. Errors: [`EngineError::Refused`].
    pub fn load_image(&self, archive: &Path) -> Result<(), EngineError> {
        let options = ImportImageOptionsBuilder::default().quiet(true).build();
        self.ask(&format!("load the image in {}", archive.display()), async {
            let file = tokio::fs::File::open(archive).await?;
            let body = body_try_stream(ReaderStream::with_capacity(file, 1 << 18));
            let loaded = self.client().import_image(options, body, None);
            loaded.try_for_each(|_| std::future::ready(Ok(()))).await
        })
    }

    /// Writes an image into a new file, with all its layers. Errors: [`EngineError::Refused`]; the disk's.
    pub fn save_image(&self, reference: &str, to: &Path, on_bytes: &dyn Fn(u64)) -> Result<(), EngineError> {
        let what = format!("save the image {reference}");
        let file = fsx::change(fsx::Call::Create(to), || std::fs::File::create_new(to));
        let file = file.map_err(|e| self.refusal(&what, e.into()))?;
        self.ask(&what, async {
            let mut stream = std::pin::pin!(self.client().export_image(reference));
            let mut done = 0;
            while let Some(chunk) = stream.next().await {
                let chunk = chunk?;
                fsx::write_all(&file, &chunk)?;
                done += chunk.len() as u64;
                on_bytes(done);
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bollard::models::ImageInspectRootFs;

    fn inspected() -> ImageInspect {
        ImageInspect {
            id: Some("sha256:1".into()),
            os: Some("linux".into()),
            architecture: Some("amd64".into()),
            config: Some(ImageConfig { env: Some(vec!["A=\"b\"".into()]), ..Default::default() }),
            root_fs: Some(ImageInspectRootFs { typ: "layers".into(), layers: Some(vec!["sha256:aa".into()]) }),
            ..Default::default()
        }
    }

    #[test]
    fn an_identity_holds_layers_and_runtime_configuration_and_no_id_label_or_tag() {
        let a = Found::of(inspected());
        insta::assert_snapshot!(a.identity.text(), @r#"
        graftwerk image 1
        platform = "linux/amd64"
        layer "sha256:aa"
        env "A=\"b\""
        user = ""
        workdir = ""
        "#);
        let mut again = inspected();
        again.id = Some("sha256:2".into());
        again.repo_tags = Some(vec!["x:1".into()]);
        if let Some(c) = &mut again.config {
            c.labels = Some([("l".to_owned(), "1".to_owned())].into());
        }
        assert_eq!(Found::of(again.clone()).identity, a.identity);
        again.config = Some(ImageConfig { user: Some("1000".into()), ..Default::default() });
        assert_ne!(Found::of(again).identity.digest(), a.identity.digest());
        assert_eq!(Identity::from_text(a.identity.text()), Some(a.identity));
        assert_eq!(Identity::from_text("graftwerk image 2\n"), None);
    }
}
