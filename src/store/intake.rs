//! Taking in what another store made: objects one by one, then the runs that name them.

use std::path::Path;

use crate::digest::{BlobId, Digest, RecipeId};
use crate::fsx::{self, Placed};
use crate::model::recipe::Recipe;
use crate::model::run::RunRecord;
use crate::model::tree::Tree;
use crate::store::Store;
use crate::store::commit::Commit;
use crate::store::error::Result;
use crate::store::objects::{summed_table, table_with_sum};
use crate::store::runs::Runs;
use crate::tensors::table::TensorTable;

/// Objects that are being taken in. Whoever does so has looked at each of them: here nothing is hashed. Content comes
/// before what names it, so that at every moment whatever is there is whole: blobs, tables, trees and recipes, then
/// [`Intake::flush`], which gives them their names in that order, then runs.
pub(crate) struct Intake<'s> {
    store: &'s Store,
    commit: Commit,
}

impl Store {
    /// Begins to take in objects.
    pub(crate) fn intake(&self) -> Intake<'_> {
        Intake { store: self, commit: self.commit() }
    }

    /// Whether the store itself has a blob in this mode, and rightly: a damaged one counts as absent.
    pub(crate) fn has_blob(&self, blob: BlobId, executable: bool) -> Result<bool> {
        self.stored_is_right(blob, executable, &self.blob_path(blob, executable))
    }

    /// The text of a run's record as it is kept.
    pub(crate) fn run_text(&self, recipe: RecipeId, seq: u64) -> Result<Option<Vec<u8>>> {
        self.runs.text(recipe, seq)
    }

    /// Every attempt at every recipe. Errors: Damaged for a record that does not read.
    pub(crate) fn all_runs(&self) -> Result<Vec<RunRecord>> {
        let mut all = Vec::new();
        for name in fsx::names(&self.dir.join("runs"))? {
            if let Ok(digest) = Digest::from_hex(&name.to_string_lossy()) {
                all.extend(self.runs(RecipeId(digest))?);
            }
        }
        Ok(all)
    }
}

/// The text of a tensor table as a store keeps it, with its own digest as last line.
pub(crate) fn table_text(table: &TensorTable) -> String {
    table_with_sum(table)
}

/// Reads such a text; `None` where it is anything else.
pub(crate) fn read_table(text: &str) -> Option<TensorTable> {
    summed_table(text)
}

/// Reads the text of a run's record. Errors: what is wrong with it.
pub(crate) fn read_run(bytes: &[u8]) -> std::result::Result<RunRecord, String> {
    Runs::read(bytes)
}

impl Intake<'_> {
    /// Takes a finished file in as a blob. The file is gone once it is flushed.
    pub(crate) fn blob(&mut self, blob: BlobId, executable: bool, from: &Path) -> Result<()> {
        self.store.place_blob(blob, executable, from, &mut self.commit)
    }

    /// Relies on a blob that is there already.
    pub(crate) fn blob_that_is_there(&mut self, blob: BlobId, executable: bool) {
        self.commit.rely_on(&self.store.blob_path(blob, executable));
    }

    /// Keeps the tensor table of a blob.
    pub(crate) fn table(&mut self, blob: BlobId, table: &TensorTable) -> Result<()> {
        self.store.objects.put_table(blob, table, &mut self.commit)
    }

    /// Keeps a listing.
    pub(crate) fn tree(&mut self, tree: &Tree) -> Result<()> {
        self.store.objects.put_tree(tree, &mut self.commit).map(drop)
    }

    /// Keeps a recipe's text.
    pub(crate) fn recipe(&mut self, recipe: &Recipe) -> Result<()> {
        self.store.objects.put_recipe(recipe, &mut self.commit)
    }

    /// Makes everything durable that was taken in so far.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.store.flush(&mut self.commit)
    }

    /// Keeps a run's record under its number, or the next free one where that is another attempt's. One that is there,
    /// under whatever number, is left alone. What it names must be durable.
    pub(crate) fn run(&mut self, run: &RunRecord) -> Result<(RunRecord, Placed)> {
        self.store.runs.take_in(run, &self.commit.temp_path())
    }
}
