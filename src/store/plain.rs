//! A store as its plain files say, without opening it: nothing is written, no folder is made, no blob is set aside. For
//! those who look at a store that may be damaged, or that they may not write to.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::digest::{BlobId, Digest, RecipeId, TreeId};
use crate::fsx::{self, FileStat, at};
use crate::model::run::RunRecord;
use crate::model::tree::Tree;
use crate::store::error::{Result, StoreError};
use crate::store::index::{self, BlobStat};
use crate::store::objects::{Objects, read_plain, sharded, summed_table};
use crate::store::refs::{self, Refs};
use crate::store::runs::Runs;
use crate::store::sealed::unseal;
use crate::store::version;
use crate::tensors::table::TensorTable;

/// A store's folder.
#[derive(Debug, Clone)]
pub struct Plain {
    pub(super) dir: PathBuf,
}

/// What `VERSION` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Version {
    /// That the store is of the format that this program reads.
    Right,
    /// That it is of an older one, which any command that opens it upgrades.
    Older,
    /// Nothing: it is not there.
    Missing,
    /// Something else; to be read behind its path.
    Wrong(String),
}

/// What `refs/` has for a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ref {
    /// Nothing.
    None,
    /// Something that does not read; what is wrong with it.
    Damaged(String),
    /// Places of sources, with what they looked like, and whether they were at rest then.
    Places(Vec<(PathBuf, FileStat, bool)>),
}

/// What the index says.
pub enum IndexState {
    /// There is none, or another process has it open.
    Unknown,
    /// It does not read; what is wrong with it.
    Damaged(String),
    /// How right blobs looked.
    Blobs(BlobStats),
}

/// How blobs looked when they were last known to be right.
pub struct BlobStats(HashMap<(BlobId, bool), BlobStat>);

impl BlobStats {
    pub(super) fn new(known: HashMap<(BlobId, bool), BlobStat>) -> Self {
        Self(known)
    }

    /// Whether the file that looks like `stat` is the one that was right. `None` where the index does not know it.
    pub fn agrees(&self, blob: BlobId, executable: bool, stat: &FileStat) -> Option<bool> {
        self.0.get(&(blob, executable)).map(|known| *known == BlobStat::of(stat))
    }
}

impl Plain {
    /// The store in `dir`. Errors: NotAStore where there is nothing that could be one.
    pub fn at(dir: &Path) -> Result<Self> {
        let not = |what: &str| StoreError::NotAStore { path: dir.to_owned(), what: what.to_owned() };
        if !dir.is_dir() {
            return Err(not("there is no such folder"));
        }
        let dir = dir.canonicalize().map_err(at("find", dir))?;
        let plain = Self::of(dir);
        if plain.version()? == Version::Missing
            && !["blobs", "trees", "runs"].iter().any(|d| plain.dir.join(d).is_dir())
        {
            return Err(not("it has no VERSION, and none of a store's folders"));
        }
        Ok(plain)
    }

    pub(super) fn of(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// The store's folder, absolute.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What `VERSION` says.
    pub fn version(&self) -> Result<Version> {
        version::look(&self.dir)
    }

    /// Where a blob lies, or would.
    pub fn blob_path(&self, blob: BlobId, executable: bool) -> PathBuf {
        let p = sharded(&self.dir.join("blobs"), &blob.0);
        if executable { p.with_extension("x") } else { p }
    }

    /// Where an object named by a digest lies, or would: in `trees`, `recipes`, `tensors` or `refs`.
    pub fn object_path(&self, folder: &str, name: &Digest) -> PathBuf {
        sharded(&self.dir.join(folder), name)
    }

    /// Where the view of a tree is, or would be.
    pub fn view_path(&self, id: TreeId) -> PathBuf {
        self.dir.join("artifacts").join(id.hex())
    }

    /// Where the record of an attempt is, or would be.
    pub fn run_path(&self, recipe: RecipeId, seq: u64) -> PathBuf {
        self.dir.join("runs").join(recipe.hex()).join(format!("{seq:06}.json"))
    }

    /// A kept tree; `None` where it is not known. Errors: Damaged where the listing is not what its name says.
    pub fn tree(&self, id: TreeId) -> Result<Option<Tree>> {
        Objects::new(self.dir.clone(), true).tree(id)
    }

    /// Whether a recipe's text is there and right.
    pub fn recipe_reads(&self, id: RecipeId) -> Result<bool> {
        match Objects::new(self.dir.clone(), true).recipe(id) {
            Ok(text) => Ok(text.is_some()),
            Err(StoreError::Damaged { .. }) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Whether the record of an attempt is there and right.
    pub fn run_reads(&self, recipe: RecipeId, seq: u64) -> Result<bool> {
        let bytes = match read_plain(&self.run_path(recipe, seq)) {
            Ok(bytes) => bytes.unwrap_or_default(),
            Err(StoreError::Damaged { .. }) => return Ok(false),
            Err(e) => return Err(e),
        };
        Ok(unseal::<RunRecord>(&bytes).is_ok_and(|r| r.recipe == recipe && r.seq == seq))
    }

    /// Whether a record says that a recipe has made a tree.
    pub fn has_realisation(&self, recipe: RecipeId) -> Result<bool> {
        match Runs::new(self.dir.join("runs")).all(recipe) {
            Ok(runs) => Ok(runs.iter().any(|r| r.tree().is_some())),
            Err(StoreError::Damaged { .. }) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// The tensor table of a blob, `None` where there is none; inside, what is wrong with one that does not read.
    pub fn table(&self, blob: BlobId) -> Result<Option<std::result::Result<TensorTable, String>>> {
        let bytes = match read_plain(&self.object_path("tensors", &blob.0)) {
            Ok(None) => return Ok(None),
            Ok(Some(bytes)) => bytes,
            Err(StoreError::Damaged { what, .. }) => return Ok(Some(Err(what))),
            Err(e) => return Err(e),
        };
        let table = String::from_utf8(bytes).ok().as_deref().and_then(summed_table);
        Ok(Some(table.ok_or_else(|| "does not hash to what its last line says".to_owned())))
    }

    /// Where sources had a blob.
    pub fn places(&self, blob: BlobId) -> Result<Ref> {
        let bytes = match read_plain(&self.object_path("refs", &blob.0)) {
            Ok(None) => return Ok(Ref::None),
            Ok(Some(bytes)) => bytes,
            Err(StoreError::Damaged { what, .. }) => return Ok(Ref::Damaged(what)),
            Err(e) => return Err(e),
        };
        let project = self.dir.parent().map_or_else(|| self.dir.clone(), Path::to_owned);
        let refs = Refs::new(self.dir.join("refs"), project, PathBuf::new(), true);
        Ok(match refs::read(&bytes) {
            Ok(places) => Ref::Places(refs.located(&places)),
            Err(what) => Ref::Damaged(what),
        })
    }

    /// A place of a source that still looks as it did when it had these bytes, and whether it was at rest then: one that
    /// was not may have changed since without showing it.
    pub fn source_of(&self, blob: BlobId) -> Result<Option<(PathBuf, bool)>> {
        let Ref::Places(places) = self.places(blob)? else { return Ok(None) };
        let mut found: Vec<(PathBuf, bool)> = places
            .into_iter()
            .filter(|(path, stat, _)| FileStat::at(path).is_ok_and(|now| now == *stat))
            .map(|(path, _, at_rest)| (path, at_rest))
            .collect();
        found.sort_by_key(|(_, at_rest)| !at_rest);
        Ok(found.into_iter().next())
    }

    /// What the index says, read from a copy of it below `temp`, a folder outside of the store: looking at sled changes
    /// it.
    pub fn index(&self, temp: &Path) -> IndexState {
        index::look(&self.dir.join("index"), &self.dir.join("locks/index"), temp)
    }

    /// Every recipe, tree and blob whose hex digits begin so: its class and digest.
    pub fn find_ids(&self, prefix: &str) -> Result<Vec<(&'static str, Digest)>> {
        let mut hits = Vec::new();
        if prefix.len() < 4 || !prefix.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Ok(hits);
        }
        // A table outlives its blob.
        let folders =
            [("recipe", "recipes"), ("tree", "trees"), ("blob", "blobs"), ("blob", "refs"), ("blob", "tensors")];
        for (what, folder) in folders {
            let dir = self.dir.join(folder).join(&prefix[..2]);
            for name in fsx::names(&dir)? {
                let hex = format!("{}{}", &prefix[..2], name.to_string_lossy().trim_end_matches(".x"));
                if hex.starts_with(prefix)
                    && let Ok(d) = Digest::from_hex(&hex)
                    && !hits.contains(&(what, d))
                {
                    hits.push((what, d));
                }
            }
        }
        Ok(hits)
    }
}
