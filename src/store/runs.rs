//! `runs/<recipe>/<seq>.json`: append-only records of attempts.

use std::path::PathBuf;

use crate::digest::RecipeId;
use crate::fsx::{self, Placed};
use crate::model::run::{Isolation, RunRecord};
use crate::store::error::{Result, StoreError};
use crate::store::objects::read_plain;
use crate::store::sealed::{seal, unseal};

/// The folder `runs/`.
pub(crate) struct Runs {
    dir: PathBuf,
}

impl Runs {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    fn folder(&self, recipe: RecipeId) -> PathBuf {
        self.dir.join(recipe.hex())
    }

    /// Every attempt at a recipe, by sequence number. Errors: Damaged for a record that does not read.
    pub(crate) fn all(&self, recipe: RecipeId) -> Result<Vec<RunRecord>> {
        let dir = self.folder(recipe);
        let mut runs = Vec::new();
        for name in fsx::names(&dir)? {
            if name.to_string_lossy().starts_with('.') {
                continue;
            }
            let path = dir.join(&name);
            let Some(bytes) = read_plain(&path)? else { continue };
            let run: RunRecord = unseal(&bytes).map_err(|what| StoreError::Damaged { path: path.clone(), what })?;
            if run.recipe != recipe {
                let what = format!("is a run of {}, not of {recipe}", run.recipe);
                return Err(StoreError::Damaged { path, what });
            }
            runs.push(run);
        }
        runs.sort_by_key(|r| r.seq);
        Ok(runs)
    }

    /// Successful attempts that were isolated at least so well, earliest first.
    pub(crate) fn realisations(&self, recipe: RecipeId, at_least: Isolation) -> Result<Vec<RunRecord>> {
        let mut runs = self.all(recipe)?;
        runs.retain(|r| r.tree().is_some() && r.isolation >= at_least);
        Ok(runs)
    }

    /// Adds a record under the next free number, which is written into it. Its content must be durable before.
    pub(crate) fn append(&self, mut run: RunRecord, temp: &std::path::Path) -> Result<RunRecord> {
        let dir = self.folder(run.recipe);
        fsx::create_dir_all(&dir)?;
        let mut seq = self.all(run.recipe)?.last().map_or(0, |r| r.seq) + 1;
        loop {
            run.seq = seq;
            let text = seal(&run).map_err(fsx::at("write", temp))?;
            fsx::remove_file(temp)?;
            fsx::write_new(temp, &text, 0o444)?;
            fsx::fsync(temp)?;
            let target = dir.join(format!("{seq:06}.json"));
            if fsx::rename_noreplace(temp, &target)? == Placed::Placed {
                fsx::fsync(&dir)?;
                fsx::fsync(&self.dir)?;
                return Ok(run);
            }
            seq += 1;
        }
    }
}
