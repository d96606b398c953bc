//! What a builtin step makes: files written into its scratch folder, and files of its inputs kept as they are.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::digest::{BlobId, Digest};
use crate::fsx;
use crate::kinds::input::Input;
use crate::model::path::RelPath;
use crate::model::tree::{Entry, Tree, TreeError};

/// One entry of a step's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputEntry {
    /// A file, link or empty directory of an input, by its content: nothing is copied.
    Kept(Entry),
    /// A file in the scratch folder, at the same relative path; executable or not.
    Written {
        /// Whether it is executable.
        executable: bool,
    },
}

/// The output of a builtin step while it is made.
pub struct Output {
    scratch: PathBuf,
    entries: BTreeMap<RelPath, OutputEntry>,
    expected: BTreeMap<RelPath, Vec<(String, Digest)>>,
}

impl Output {
    /// An empty output over an empty scratch folder.
    pub fn new(scratch: PathBuf) -> Self {
        Self { scratch, entries: BTreeMap::new(), expected: BTreeMap::new() }
    }

    /// Keeps an entry of an input at the same path. A later entry at the same path replaces an earlier one.
    pub fn keep(&mut self, path: RelPath, entry: &Entry) {
        self.entries.insert(path, OutputEntry::Kept(entry.clone()));
    }

    /// Keeps every entry of an input.
    pub fn keep_all(&mut self, input: &Input) {
        for (p, e) in input.tree.iter() {
            self.keep(p.clone(), e);
        }
    }

    /// Leaves out what stands at `path`; says whether there was something.
    pub fn drop(&mut self, path: &RelPath) -> bool {
        self.entries.remove(path).is_some()
    }

    /// What stands at `path`.
    pub fn get(&self, path: &RelPath) -> Option<&OutputEntry> {
        self.entries.get(path)
    }

    /// Creates a file in the scratch folder, readable and writable, and enters it. Errors: what the disk says; the
    /// scratch folder never holds a file of that name before (create-new).
    pub fn create(&mut self, path: RelPath, executable: bool) -> io::Result<File> {
        let at = self.scratch.join(path.as_path());
        if let Some(dir) = at.parent() {
            fsx::create_dir_all(dir).map_err(|e| e.source)?;
        }
        let file = fsx::create_new(&at, 0o666)?;
        self.entries.insert(path, OutputEntry::Written { executable });
        Ok(file)
    }

    /// Enters a file that lies in the scratch folder already.
    pub fn enter(&mut self, path: RelPath, executable: bool) {
        self.entries.insert(path, OutputEntry::Written { executable });
    }

    /// Writes a small file whole.
    pub fn write(&mut self, path: RelPath, bytes: &[u8]) -> io::Result<()> {
        self.write_as(path, false, bytes)
    }

    /// The same, executable or not.
    pub fn write_as(&mut self, path: RelPath, executable: bool, bytes: &[u8]) -> io::Result<()> {
        fsx::write_all(&self.create(path, executable)?, bytes)
    }

    /// Says what the bytes of a tensor in a written shard must hash to, where they were copied from an input. The
    /// engine hashes every written file once and compares.
    pub fn expect_tensor(&mut self, path: &RelPath, tensor: &str, digest: Digest) {
        self.expected.entry(path.clone()).or_default().push((tensor.to_owned(), digest));
    }

    /// The scratch folder.
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// All entries by path.
    pub fn entries(&self) -> &BTreeMap<RelPath, OutputEntry> {
        &self.entries
    }

    /// The digests that copied tensors must have, by file.
    pub fn expected(&self) -> &BTreeMap<RelPath, Vec<(String, Digest)>> {
        &self.expected
    }

    /// The tree, once every written file has its blob. `blob_of` gives blob and size of a written file.
    pub fn tree(&self, mut blob_of: impl FnMut(&RelPath) -> Option<(BlobId, u64)>) -> Result<Tree, TreeError> {
        let mut tree = Tree::new();
        for (path, entry) in &self.entries {
            let entry = match entry {
                OutputEntry::Kept(e) => e.clone(),
                OutputEntry::Written { executable } => match blob_of(path) {
                    Some((blob, size)) => Entry::File { blob, size, executable: *executable },
                    None => continue,
                },
            };
            tree.insert(path.clone(), entry)?;
        }
        Ok(tree)
    }
}
