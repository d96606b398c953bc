//! Objects that are text and named by their digest: trees, recipes; and tensor tables, named by their blob.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::digest::{BlobId, Digest, RecipeId, TreeId};
use crate::fsx;
use crate::model::recipe::Recipe;
use crate::model::tree::Tree;
use crate::store::commit::Commit;
use crate::store::error::{Result, StoreError};
use crate::tensors::table::TensorTable;

/// `dir/ab/cdef…`
pub(crate) fn sharded(dir: &Path, digest: &Digest) -> PathBuf {
    let hex = digest.hex();
    dir.join(&hex[..2]).join(&hex[2..])
}

/// The folders of text objects below a store.
pub(crate) struct Objects {
    store: PathBuf,
    // What would be written to a store that can only be read.
    overlay: Option<Mutex<HashMap<PathBuf, String>>>,
}

/// Lines about what was found damaged or set aside.
pub(crate) type Notes = Arc<Mutex<Vec<String>>>;

impl Objects {
    pub(crate) fn new(store: PathBuf, read_only: bool) -> Self {
        Self { store, overlay: read_only.then(Mutex::default) }
    }

    fn put(&self, folder: &str, name: &Digest, text: &str, commit: &mut Commit) -> Result<()> {
        let path = sharded(&self.store.join(folder), name);
        if matches!(read_plain(&path), Ok(Some(there)) if there == text.as_bytes()) {
            commit.rely_on(&path);
            return Ok(());
        }
        if let Some(overlay) = &self.overlay {
            overlay.lock().unwrap_or_else(PoisonError::into_inner).insert(path, text.to_owned());
            return Ok(());
        }
        commit.place_text(&path, format!("{folder}-{}", name.hex()), text.as_bytes())
    }

    fn get(&self, folder: &str, name: &Digest) -> Result<Option<(PathBuf, String)>> {
        let path = sharded(&self.store.join(folder), name);
        if let Some(text) = self.overlaid(&path) {
            return Ok(Some((path, text)));
        }
        let Some(bytes) = read_plain(&path)? else { return Ok(None) };
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Some((path, text))),
            Err(_) => Err(StoreError::Damaged { path, what: "is no UTF-8 text".to_owned() }),
        }
    }

    fn overlaid(&self, path: &Path) -> Option<String> {
        self.overlay.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner).get(path).cloned()
    }

    fn get_named(&self, folder: &str, name: &Digest) -> Result<Option<(PathBuf, String)>> {
        let Some((path, text)) = self.get(folder, name)? else { return Ok(None) };
        let found = Digest::of(text.as_bytes());
        if found != *name {
            return Err(StoreError::Damaged { path, what: format!("hashes to {found}, not to its name") });
        }
        Ok(Some((path, text)))
    }

    /// Keeps a tree's listing; returns its id.
    pub(crate) fn put_tree(&self, tree: &Tree, commit: &mut Commit) -> Result<TreeId> {
        let text = tree.to_text();
        let id = Digest::of(text.as_bytes());
        self.put("trees", &id, &text, commit)?;
        Ok(TreeId(id))
    }

    /// A kept tree; `None` where it is not known. Errors: Damaged where the listing is not what its name says.
    pub(crate) fn tree(&self, id: TreeId) -> Result<Option<Tree>> {
        let Some((path, text)) = self.get_named("trees", &id.0)? else { return Ok(None) };
        Tree::parse(&text).map(Some).map_err(|e| StoreError::Damaged { path, what: e.to_string() })
    }

    /// Keeps a recipe's text.
    pub(crate) fn put_recipe(&self, recipe: &Recipe, commit: &mut Commit) -> Result<()> {
        self.put("recipes", &recipe.id.0, &recipe.text, commit)
    }

    /// A kept recipe's text.
    pub(crate) fn recipe(&self, id: RecipeId) -> Result<Option<String>> {
        Ok(self.get_named("recipes", &id.0)?.map(|(_, text)| text))
    }

    /// Keeps the tensor table of a blob.
    pub(crate) fn put_table(&self, blob: BlobId, table: &TensorTable, commit: &mut Commit) -> Result<()> {
        if self.table(blob)?.as_ref() == Some(table) {
            commit.rely_on(&sharded(&self.store.join("tensors"), &blob.0));
            return Ok(());
        }
        self.put("tensors", &blob.0, &table_with_sum(table), commit)
    }

    /// The tensor table of a blob. A damaged one reads as absent, since it is made again from its blob.
    pub(crate) fn table(&self, blob: BlobId) -> Result<Option<TensorTable>> {
        let path = sharded(&self.store.join("tensors"), &blob.0);
        if let Some(text) = self.overlaid(&path) {
            return Ok(summed_table(&text));
        }
        match read_plain(&path) {
            Ok(bytes) => Ok(bytes.and_then(|b| String::from_utf8(b).ok()).as_deref().and_then(summed_table)),
            Err(StoreError::Damaged { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

// Its name is not its digest, so the text carries that itself, as its last line.
const SUM: &str = "sum ";

/// The text of a table as the store keeps it.
pub(crate) fn table_with_sum(table: &TensorTable) -> String {
    let text = table.to_text();
    let sum = Digest::of(text.as_bytes());
    format!("{text}{SUM}{sum}\n")
}

/// Reads what [`table_with_sum`] wrote; `None` where it is anything else.
pub(crate) fn summed_table(text: &str) -> Option<TensorTable> {
    let (text, sum) = text.strip_suffix('\n')?.rsplit_once(SUM)?;
    if Digest::of(text.as_bytes()).to_string() != sum {
        return None;
    }
    TensorTable::parse(text).ok()
}

/// Reads a plain file of the store; `None` where there is none. Errors: Damaged where something else than a file is in
/// its place. A pipe would keep us waiting for ever, and what a link leads to is not ours.
pub(crate) fn read_plain(path: &Path) -> Result<Option<Vec<u8>>> {
    match std::fs::symlink_metadata(path) {
        Ok(m) if m.is_file() => Ok(fsx::read_optional(path)?),
        Ok(_) => Err(StoreError::Damaged { path: path.to_owned(), what: "is no regular file".to_owned() }),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(fsx::at("look at", path)(e).into()),
    }
}
