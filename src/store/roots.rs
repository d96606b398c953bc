//! `roots/<project>.json`: what must be kept, and who says so. Written when a build ends: the last realisations of
//! every node of a project. They also say what a node's recipe was last time, so that a change can be explained.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::digest::{Digest, RecipeId, TreeId};
use crate::fsx;
use crate::store::Store;
use crate::store::error::{Result, StoreError};
use crate::store::objects::read_plain;
use crate::store::plain::Plain;
use crate::store::sealed::{seal, unseal};

/// How many realisations of a node are kept.
pub const KEEP: usize = 5;

/// One realisation of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Root {
    /// The recipe.
    pub recipe: RecipeId,
    /// The tree it gave.
    pub tree: TreeId,
    /// The run's number.
    pub seq: u64,
}

/// What a project wants kept.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Roots {
    /// The project's folder, for people and for gc.
    #[serde(serialize_with = "fsx::path_text")]
    pub project: PathBuf,
    /// The graph's file.
    #[serde(serialize_with = "fsx::path_text")]
    pub graph: PathBuf,
    /// Node → its realisations, the newest first.
    pub nodes: BTreeMap<String, Vec<Root>>,
    /// Source → the trees it was, the newest first.
    #[serde(default)]
    pub sources: BTreeMap<String, Vec<TreeId>>,
    /// What was pinned when the last build ended: graph.lock has the pins, but may lie where nobody can read it.
    #[serde(default)]
    pub pins: BTreeMap<RecipeId, TreeId>,
}

impl Roots {
    /// The newest realisation of a node.
    pub fn newest(&self, node: &str) -> Option<&Root> {
        self.nodes.get(node)?.first()
    }

    /// Enters a node's realisation as its newest. Each tree stands once, however often it was made, so that the last
    /// few are as many different ones.
    pub fn enter(&mut self, node: &str, root: Root) {
        let list = self.nodes.entry(node.to_owned()).or_default();
        list.retain(|r| r.tree != root.tree);
        list.insert(0, root);
        list.truncate(KEEP);
    }

    /// The same without the entries, from the `keep`th of each list on, of which `gone` says so. `None` where that is all of
    /// them still.
    pub fn without(&self, keep: usize, gone: impl Fn(TreeId) -> bool) -> Option<Self> {
        let mut left = self.clone();
        for list in left.nodes.values_mut() {
            let mut n = 0..;
            list.retain(|r| n.next().is_some_and(|n: usize| n < keep) || !gone(r.tree));
        }
        for list in left.sources.values_mut() {
            let mut n = 0..;
            list.retain(|t| n.next().is_some_and(|n: usize| n < keep) || !gone(*t));
        }
        (left != *self).then_some(left)
    }

    /// Every tree that stands at the `keep`th place of its list, counted from 0, or behind it.
    pub fn from(&self, keep: usize) -> impl Iterator<Item = TreeId> {
        let nodes = self.nodes.values().flat_map(move |list| list.iter().skip(keep).map(|r| r.tree));
        nodes.chain(self.sources.values().flat_map(move |list| list.iter().skip(keep).copied()))
    }

    /// Enters what a source is now.
    pub fn enter_source(&mut self, name: &str, tree: TreeId) {
        let list = self.sources.entry(name.to_owned()).or_default();
        list.retain(|t| *t != tree);
        list.insert(0, tree);
        list.truncate(KEEP);
    }
}

impl Plain {
    /// By what a graph file is known here.
    pub fn project_key(&self, graph: &Path) -> String {
        use std::os::unix::ffi::OsStrExt as _;
        // Relative to the store where both lie in one project, so that a moved project finds its roots again.
        let project = self.dir.parent().unwrap_or(&self.dir);
        let key = graph.strip_prefix(project).unwrap_or(graph);
        Digest::of(key.as_os_str().as_bytes()).hex()[..32].to_owned()
    }

    /// Where the roots of a graph file (absolute path) are, or would be.
    pub fn roots_path(&self, graph: &Path) -> PathBuf {
        self.dir.join("roots").join(format!("{}.json", self.project_key(graph)))
    }

    /// What was kept for this graph file (absolute path). Errors: Damaged; never read as empty.
    pub fn roots(&self, graph: &Path) -> Result<Roots> {
        let path = self.roots_path(graph);
        match read_plain(&path)? {
            None => Ok(Roots::default()),
            Some(bytes) => unseal(&bytes).map_err(|what| StoreError::Damaged { path, what }),
        }
    }
}

impl Store {
    /// The lock of a graph file's roots and of its graph.lock: held while one of them is changed.
    pub fn project_lock(&self, graph: &Path) -> PathBuf {
        self.dir.join("locks").join(format!("project-{}", self.plain().project_key(graph)))
    }

    /// What was kept for this graph file (absolute path). Errors: Damaged; never read as empty.
    pub fn roots(&self, graph: &Path) -> Result<Roots> {
        self.plain().roots(graph)
    }

    /// Takes a file out of `roots/`: what it holds is held no more. Says whether it was there.
    pub fn forget(&self, file: &str) -> Result<bool> {
        self.must_write()?;
        let path = self.dir.join("roots").join(file);
        let there = path.symlink_metadata().is_ok();
        fsx::remove_file(&path)?;
        fsx::fsync(&self.dir.join("roots"))?;
        Ok(there)
    }

    /// The lock of a file in `roots/`, whatever it is of.
    pub fn roots_lock(&self, file: &str) -> PathBuf {
        self.dir.join("locks").join(format!("project-{}", file.trim_end_matches(".json")))
    }

    /// Has a file in `roots/`, whose [lock](Self::roots_lock) the caller has, name no more what is `gone`, from the `keep`th
    /// of each list on. Errors: Damaged.
    pub fn let_go(&self, file: &str, keep: usize, gone: &HashSet<TreeId>) -> Result<()> {
        self.must_free()?;
        let path = self.dir.join("roots").join(file);
        let Some(bytes) = read_plain(&path)? else { return Ok(()) };
        let roots: Roots = unseal(&bytes).map_err(|what| StoreError::Damaged { path: path.clone(), what })?;
        if let Some(left) = roots.without(keep, |t| gone.contains(&t)) {
            let text = seal(&left).map_err(fsx::at("write", &path))?;
            fsx::replace_file(&path, &text, self.temp_dir_or_top())?;
        }
        Ok(())
    }

    /// Keeps the roots of a graph file, if they are not those that are there.
    pub fn put_roots(&self, graph: &Path, roots: &Roots) -> Result<()> {
        let path = self.plain().roots_path(graph);
        let text = seal(roots).map_err(fsx::at("write", &path))?;
        if read_plain(&path)?.as_deref() != Some(&text) {
            self.must_write()?;
            fsx::replace_file(&path, &text, self.temp_dir())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_few_generations_are_as_many_different_trees() {
        let id = |n: u8| Digest::of(&[n]);
        let root = |recipe: u8, tree: u8, seq| Root { recipe: RecipeId(id(recipe)), tree: TreeId(id(tree)), seq };
        let mut roots = Roots::default();
        roots.enter("quant", root(1, 1, 1));
        for seq in 1..20 {
            roots.enter("quant", root(2, 2, seq));
        }
        assert_eq!(roots.nodes["quant"], [root(2, 2, 19), root(1, 1, 1)]);
    }
}
