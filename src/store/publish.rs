//! From a step's scratch folder to a tree in the store.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use crate::digest::{BlobId, TreeId};
use crate::fsx::{self, at};
use crate::kinds::output::{Output, OutputEntry};
use crate::model::path::RelPath;
use crate::model::tree::{Entry, Tree, link_target};
use crate::store::Store;
use crate::store::error::{Result, StoreError};
use crate::tensors::hash::{Hashed, hash_file};

/// A tree that is in the store, durably; no run names it yet.
#[derive(Debug, Clone)]
pub struct Published {
    /// Its listing.
    pub tree: Tree,
    /// Its id.
    pub id: TreeId,
    /// Bytes that were written by the step.
    pub written_bytes: u64,
}

impl Store {
    /// Hashes what a step wrote, in one pass that yields blob and tensor digests; holds copied tensors against their
    /// sources; moves all in, never replacing; makes it durable. With `closed`, what is only referenced is imported.
    /// `progress` hears how many more bytes were hashed.
    pub fn publish(
        &self,
        out: &Output,
        closed: bool,
        progress: &mut dyn FnMut(u64),
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Published> {
        let mut commit = self.commit();
        let mut blobs: HashMap<RelPath, (BlobId, u64)> = HashMap::new();
        let mut placed: HashSet<(BlobId, bool)> = HashSet::new();
        let mut written_bytes = 0;
        for (path, entry) in out.entries() {
            let OutputEntry::Written { executable } = entry else { continue };
            if cancelled() {
                return Err(StoreError::Cancelled);
            }
            let file = out.scratch().join(path.as_path());
            let hashed = self.hash_output(path, &file, progress, cancelled)?;
            self.hold_against_sources(out, path, &hashed)?;
            if let Some(table) = &hashed.table {
                self.objects.put_table(hashed.blob, table, &mut commit)?;
            }
            written_bytes += hashed.size;
            self.place_blob(hashed.blob, *executable, &file, &mut commit)?;
            placed.insert((hashed.blob, *executable));
            blobs.insert(path.clone(), (hashed.blob, hashed.size));
        }
        let tree = out.tree(|p| blobs.get(p).copied()).map_err(|e| match e {
            crate::model::tree::TreeError::Escape { ref path, .. }
            | crate::model::tree::TreeError::Conflict { ref path } => {
                StoreError::Output { path: path.clone(), what: e.to_string() }
            }
            crate::model::tree::TreeError::Syntax { .. } => StoreError::Cancelled,
        })?;
        check_links(&tree)?;
        // Before any of them is named or found: one that is there already may be on a collector's list.
        self.hold_blobs(tree.files().map(|(_, blob, ..)| blob))?;
        for (_, blob, _, executable) in tree.files() {
            if placed.contains(&(blob, executable)) {
                continue;
            }
            if closed {
                self.import(blob, executable, &mut commit)?;
                placed.insert((blob, executable));
            } else if self.presence(blob, executable)?.path().is_none() {
                return Err(self.gone(blob));
            }
        }
        let id = self.objects.put_tree(&tree, &mut commit)?;
        self.flush(&mut commit)?;
        self.hold_trees([id])?;
        Ok(Published { tree, id, written_bytes })
    }

    fn hash_output(
        &self,
        path: &RelPath,
        at_path: &Path,
        progress: &mut dyn FnMut(u64),
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Hashed> {
        let file = fs::File::open(at_path).map_err(at("open", at_path))?;
        let size = file.metadata().map_err(at("look at", at_path))?.len();
        let tensors = path.file_name().ends_with(b".safetensors");
        let mut last = 0;
        let mut more = |at: u64| {
            progress(at - last);
            last = at;
        };
        hash_file(&file, size, tensors, &mut more, cancelled).map_err(|e| {
            if cancelled() {
                StoreError::Cancelled
            } else {
                StoreError::Output { path: path.clone(), what: e.to_string() }
            }
        })
    }

    fn hold_against_sources(&self, out: &Output, path: &RelPath, hashed: &Hashed) -> Result<()> {
        let Some(expected) = out.expected().get(path) else { return Ok(()) };
        for (tensor, digest) in expected {
            let found = hashed.table.as_ref().and_then(|t| t.get(tensor)).map(|t| t.digest);
            if found != Some(*digest) {
                return Err(StoreError::TensorDiffers {
                    path: path.clone(),
                    tensor: tensor.clone(),
                    expected: *digest,
                    found: found.map_or_else(|| "nothing: it is not there".to_owned(), |d| d.to_string()),
                });
            }
        }
        Ok(())
    }
}

// A link whose target is not in the tree would dangle for everybody who opens it.
fn check_links(tree: &Tree) -> Result<()> {
    for (path, entry) in tree.iter() {
        let Entry::Link { target } = entry else { continue };
        if link_target(path, target).is_some_and(|end| !tree.holds(&end)) {
            let what = format!("is a dangling link to {}", crate::canon::quote(target));
            return Err(StoreError::Output { path: path.clone(), what });
        }
    }
    Ok(())
}

/// Takes stock of what a process left in its output folder: files, links, empty folders. A file that has more names
/// than lie inside (a step's `cp -al` of an input) is copied, so that nothing outside shares it. Errors: Output for
/// anything that is neither file, folder nor link, and for setuid or setgid bits.
pub fn collect(scratch: &Path) -> Result<Output> {
    let mut out = Output::new(scratch.to_owned());
    let mut names: HashMap<(u64, u64), u64> = HashMap::new();
    let mut shared: Vec<(std::path::PathBuf, u64, (u64, u64))> = Vec::new();
    let mut todo: Vec<Vec<u8>> = vec![Vec::new()];
    while let Some(dir) = todo.pop() {
        let dir_path = if dir.is_empty() { scratch.to_owned() } else { scratch.join(rel(&dir)?.as_path()) };
        let children = fsx::names(&dir_path)?;
        if children.is_empty() && !dir.is_empty() {
            out.keep(rel(&dir)?, &Entry::EmptyDir);
        }
        for name in children {
            let mut path = dir.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend(name.into_vec());
            let path = rel(&path)?;
            let full = scratch.join(path.as_path());
            let meta = fs::symlink_metadata(&full).map_err(at("look at", &full))?;
            let kind = meta.file_type();
            let refuse = |what: &str| Err(StoreError::Output { path: path.clone(), what: what.to_owned() });
            if kind.is_dir() {
                todo.push(path.as_bytes().to_vec());
            } else if kind.is_symlink() {
                let target = fs::read_link(&full).map_err(at("read the link", &full))?.into_os_string().into_vec();
                out.keep(path, &Entry::Link { target });
            } else if kind.is_file() {
                if meta.mode() & 0o6000 != 0 {
                    return refuse("has a setuid or setgid bit");
                }
                let key = (meta.dev(), meta.ino());
                *names.entry(key).or_default() += 1;
                if meta.nlink() > 1 {
                    shared.push((full, meta.nlink(), key));
                }
                out.enter(path, meta.mode() & 0o100 != 0);
            } else if kind.is_fifo() || kind.is_socket() {
                return refuse("is a pipe or a socket");
            } else {
                return refuse("is a device");
            }
        }
    }
    for (path, links, key) in shared {
        if links > names.get(&key).copied().unwrap_or(0) {
            let mut temp = path.clone().into_os_string();
            temp.push(".graftwerk-copy");
            let temp = std::path::PathBuf::from(temp);
            let mode = fs::symlink_metadata(&path).map_err(at("look at", &path))?.mode();
            fsx::copy_file(&path, &temp)?;
            fsx::set_mode(&temp, mode & 0o777)?;
            fsx::rename_over(&temp, &path)?;
        }
    }
    Ok(out)
}

fn rel(bytes: &[u8]) -> Result<RelPath> {
    RelPath::new(bytes.to_vec()).map_err(|e| StoreError::Source {
        path: String::from_utf8_lossy(bytes).into_owned().into(),
        what: e.to_string(),
        hint: None,
        away: false,
    })
}
