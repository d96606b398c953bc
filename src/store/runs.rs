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
    pub(crate) fn append(&self, run: RunRecord, temp: &std::path::Path) -> Result<RunRecord> {
        let seq = self.all(run.recipe)?.last().map_or(0, |r| r.seq) + 1;
        self.append_from(run, seq, temp)
    }

    // Under the first free number from `seq` on.
    fn append_from(&self, mut run: RunRecord, mut seq: u64, temp: &std::path::Path) -> Result<RunRecord> {
        let dir = self.folder(run.recipe);
        fsx::create_dir_all(&dir)?;
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

    /// The text of a record as it is kept; `None` where there is none of that number.
    pub(crate) fn text(&self, recipe: RecipeId, seq: u64) -> Result<Option<Vec<u8>>> {
        read_plain(&self.path(recipe, seq))
    }

    fn path(&self, recipe: RecipeId, seq: u64) -> PathBuf {
        self.folder(recipe).join(format!("{seq:06}.json"))
    }

    /// Reads a record's text. Errors: what is wrong with it.
    pub(crate) fn read(bytes: &[u8]) -> std::result::Result<RunRecord, String> {
        unseal(bytes)
    }

    /// Keeps a record that was made elsewhere, under its own number or, so that no attempt becomes earlier than those
    /// that are here, the next one behind them.
    pub(crate) fn take_in(&self, run: &RunRecord, temp: &std::path::Path) -> Result<(RunRecord, Placed)> {
        let mut there = self.all(run.recipe)?;
        if let Some(i) = there.iter().position(|r| *r == RunRecord { seq: r.seq, ..run.clone() }) {
            return Ok((there.swap_remove(i), Placed::Existed));
        }
        let seq = there.last().map_or(run.seq, |r| run.seq.max(r.seq + 1));
        Ok((self.append_from(run.clone(), seq, temp)?, Placed::Placed))
    }
}
