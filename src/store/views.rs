//! `artifacts/<tree>/`: a tree as a directory that programs can open. Disposable; made again from the rest.
//!
//! A blob of the store is there by hard link, else clone, else copy. What is only referenced is a symbolic link to
//! the source, relative where both lie in one project, so that the project can be moved.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use crate::digest::{BlobId, TreeId};
use crate::fsx::{self, FileStat, Placed, at};
use crate::model::path::RelPath;
use crate::model::tree::{Entry, Tree};
use crate::store::blobs::Presence;
use crate::store::error::{Result, StoreError};
use crate::store::{Store, commit};

impl Store {
    /// Where the view of a tree is, or would be.
    pub fn view_path(&self, id: TreeId) -> PathBuf {
        self.dir.join("artifacts").join(id.hex())
    }

    /// The view of a tree, made or mended where it is not right; the tree is [held](Self::hold_trees) from now on. Errors:
    /// Gone where bytes are nowhere.
    pub fn view(&self, id: TreeId, tree: &Tree) -> Result<PathBuf> {
        self.hold_trees([id])?;
        let path = self.view_path(id);
        loop {
            if let Ok(meta) = fs::symlink_metadata(&path) {
                if meta.is_dir() && self.view_is_right(&path, tree)? {
                    return Ok(path);
                }
                self.must_write()?;
                self.drop_view(id)?;
            }
            self.must_write()?;
            let temp = self.commit().temp_path();
            self.make_view(&temp, &path, tree)?;
            // All of artifacts/ may be deleted at any time, also now.
            let all = self.dir.join("artifacts");
            if !all.is_dir() {
                fsx::create_dir_all(&all)?;
            }
            match fsx::rename_noreplace(&temp, &path)? {
                Placed::Placed => return Ok(path),
                // Another process made it meanwhile.
                Placed::Existed => fsx::remove_tree(&temp)?,
            }
        }
    }

    /// Removes the view of a tree, if there is one: it is made again from the rest.
    pub fn drop_view(&self, id: TreeId) -> Result<()> {
        let path = self.view_path(id);
        let aside = self.commit().temp_path();
        match fsx::rename_over(&path, &aside) {
            // Another process was first, or nobody needed it.
            Err(e) if e.source.kind() == std::io::ErrorKind::NotFound => Ok(()),
            moved => {
                moved?;
                Ok(fsx::remove_tree(&aside)?)
            }
        }
    }

    fn make_view(&self, temp: &Path, final_path: &Path, tree: &Tree) -> Result<()> {
        fsx::create_dir(temp)?;
        if let Some((one, two)) = names_of_one_spelling(tree)
            && fsx::folds_case(temp)?
        {
            let what = format!(
                "differs from {one} only by upper and lower case, which the folder {} does not tell apart",
                self.dir.display()
            );
            return Err(StoreError::Output { path: two, what });
        }
        let mut made: HashSet<PathBuf> = HashSet::new();
        for (rel, entry) in tree.iter() {
            let to = temp.join(rel.as_path());
            if let Some(dir) = to.parent()
                && dir != temp
                && made.insert(dir.to_owned())
            {
                fsx::create_dir_all(dir)?;
            }
            match entry {
                Entry::EmptyDir => {
                    fsx::create_dir_all(&to)?;
                    made.insert(to);
                }
                Entry::Link { target } => {
                    use std::os::unix::ffi::OsStrExt as _;
                    fsx::symlink(Path::new(std::ffi::OsStr::from_bytes(target)), &to)?;
                }
                Entry::File { blob, executable, .. } => {
                    self.view_file(*blob, *executable, &to, &final_path.join(rel.as_path()))?
                }
            }
        }
        // Its name comes last, so that a power loss leaves no half of it. Folders on the way to one that was made count.
        let mut folders: HashSet<&Path> = HashSet::from([temp]);
        folders.extend(made.iter().flat_map(|d| d.ancestors().take_while(|d| d.starts_with(temp))));
        commit::flush_all(&folders.into_iter().collect::<Vec<_>>(), temp)
    }

    fn view_file(&self, blob: BlobId, executable: bool, to: &Path, final_path: &Path) -> Result<()> {
        match self.presence(blob, executable)? {
            Presence::Absent => Err(self.gone(blob)),
            Presence::Referenced(source) => {
                let target = self.link_target(&source, final_path);
                Ok(fsx::symlink(&target, to)?)
            }
            Presence::Stored(p) if p == self.blob_path(blob, executable) => match fsx::hard_link(&p, to) {
                Ok(()) => Ok(()),
                // No hard links here, or too many names: any other way of having the bytes will do.
                Err(_) => self.view_copy(&p, executable, to),
            },
            Presence::Stored(p) => self.view_copy(&p, executable, to),
        }
    }

    fn view_copy(&self, from: &Path, executable: bool, to: &Path) -> Result<()> {
        fsx::copy_file(from, to)?;
        fsx::set_mode(to, if executable { 0o555 } else { 0o444 })?;
        fsx::set_mtime_one(to)?;
        // By size and time it counts as right from now on, also after a power loss.
        Ok(fsx::fsync(to)?)
    }

    // Relative where the source lies in the folder that holds the store, absolute elsewhere.
    fn link_target(&self, source: &Path, from: &Path) -> PathBuf {
        let project = self.dir.parent().unwrap_or(&self.dir);
        match (source.strip_prefix(project), from.strip_prefix(project)) {
            (Ok(down), Ok(here)) => {
                let ups = here.components().filter(|c| matches!(c, Component::Normal(_))).count().saturating_sub(1);
                let mut p: PathBuf = std::iter::repeat_n("..", ups).collect();
                p.push(down);
                p
            }
            _ => source.to_owned(),
        }
    }

    fn view_is_right(&self, view: &Path, tree: &Tree) -> Result<bool> {
        // Another process may drop it while we look: then it is as if it had not been there.
        let dropped = |e: &std::io::Error| e.kind() == std::io::ErrorKind::NotFound;
        let mut seen = 0usize;
        let mut todo = vec![PathBuf::new()];
        while let Some(rel_dir) = todo.pop() {
            let dir = view.join(&rel_dir);
            let children = match fsx::names(&dir) {
                Err(e) if dropped(&e.source) => return Ok(false),
                names => names?,
            };
            if children.is_empty() && !rel_dir.as_os_str().is_empty() {
                let Ok(rel) = rel_path(&rel_dir) else { return Ok(false) };
                if tree.get(&rel) != Some(&Entry::EmptyDir) {
                    return Ok(false);
                }
                seen += 1;
            }
            for name in children {
                let rel = rel_dir.join(&name);
                let full = view.join(&rel);
                let meta = match fs::symlink_metadata(&full) {
                    Err(e) if dropped(&e) => return Ok(false),
                    meta => meta.map_err(at("look at", &full))?,
                };
                if meta.is_dir() {
                    todo.push(rel);
                    continue;
                }
                let Ok(rel) = rel_path(&rel) else { return Ok(false) };
                let Some(entry) = tree.get(&rel) else { return Ok(false) };
                if !self.view_entry_is_right(&full, &meta, entry)? {
                    return Ok(false);
                }
                seen += 1;
            }
        }
        Ok(seen == tree.len())
    }

    fn view_entry_is_right(&self, full: &Path, meta: &fs::Metadata, entry: &Entry) -> Result<bool> {
        match entry {
            Entry::EmptyDir => Ok(false),
            Entry::Link { target } => {
                use std::os::unix::ffi::OsStrExt as _;
                Ok(fs::read_link(full).is_ok_and(|t| t.as_os_str().as_bytes() == target))
            }
            Entry::File { blob, size, executable } => {
                let presence = self.presence(*blob, *executable)?;
                let Some(bytes_at) = presence.path() else { return Err(self.gone(*blob)) };
                let there = FileStat::at(bytes_at).map_err(at("look at", bytes_at))?;
                let Ok(here) = FileStat::at(full) else { return Ok(false) };
                if (here.dev, here.ino) == (there.dev, there.ino) {
                    return Ok(true);
                }
                // A copy, where links could not be made.
                Ok(meta.is_file() && meta.nlink() == 1 && here.size == *size && here.mtime_ns == 1_000_000_000)
            }
        }
    }
}

// Two files or folders whose names are one where upper and lower case count as the same.
fn names_of_one_spelling(tree: &Tree) -> Option<(RelPath, RelPath)> {
    let mut seen: HashMap<Vec<u8>, RelPath> = HashMap::new();
    for (path, _) in tree.iter() {
        let mut at = Some(path.clone());
        while let Some(p) = at {
            let folded = match p.as_str() {
                Some(text) => text.to_lowercase().into_bytes(),
                None => p.as_bytes().to_ascii_lowercase(),
            };
            match seen.get(&folded) {
                // All above it has been looked at with it.
                Some(other) if *other == p => break,
                Some(other) => return Some((other.clone(), p)),
                None => {}
            }
            at = p.parent();
            seen.insert(folded, p);
        }
    }
    None
}

fn rel_path(p: &Path) -> std::result::Result<RelPath, crate::model::path::BadPath> {
    use std::os::unix::ffi::OsStrExt as _;
    RelPath::new(p.as_os_str().as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_that_another_process_drops_meanwhile_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, theirs) = (Store::open(dir.path()).unwrap(), Store::open(dir.path()).unwrap());
        let mut tree = Tree::new();
        for n in 0..200 {
            tree.insert(rel_path(Path::new(&format!("d{n}/e"))).unwrap(), Entry::EmptyDir).unwrap();
        }
        let id = ours.put_tree(&tree).unwrap();
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    theirs.drop_view(id).unwrap();
                }
            });
            for _ in 0..100 {
                let made = ours.view(id, &tree);
                over.store(made.is_err(), std::sync::atomic::Ordering::Relaxed);
                made.unwrap();
            }
            over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
}
