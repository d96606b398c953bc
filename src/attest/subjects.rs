//! What is signed of a tree: every path that opens as a file, with the digests of its bytes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest as _, Sha256};

use crate::canon::quote;
use crate::digest::{BlobId, Digest};
use crate::model::path::RelPath;
use crate::model::tree::{Entry, Tree};
use crate::store::source::few_at_once;
use crate::store::{Result, StoreError};

/// Who hears of progress, and who stops it.
pub struct Watch<'a> {
    /// Hears of bytes read and to read.
    pub progress: &'a (dyn Fn(u64, u64) + Sync),
    /// Whether to stop.
    pub cancelled: &'a (dyn Fn() -> bool + Sync),
}

/// The digests of some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digests {
    /// SHA-256.
    pub sha256: [u8; 32],
    /// BLAKE3.
    pub blake3: Digest,
    /// The number of bytes.
    pub size: u64,
}

impl Digests {
    /// Of bytes in memory.
    pub fn of(bytes: &[u8]) -> Self {
        Self { sha256: Sha256::digest(bytes).into(), blake3: Digest::of(bytes), size: bytes.len() as u64 }
    }
}

// Enough for BLAKE3 to use all cores; SHA-256 uses one, so a few files are read side by side.
const PIECE: usize = 1 << 20;

/// Both digests of the bytes `from..to` of a file, in one pass, in 1 MiB of memory. A file that ends before `to` gives
/// those of what is there. `done` hears how many more bytes were read. Errors: the disk's; `Interrupted` where it was
/// stopped.
pub(super) fn digest_range(
    path: &Path,
    (from, to): (u64, u64),
    done: &dyn Fn(u64),
    cancelled: &dyn Fn() -> bool,
) -> std::io::Result<Digests> {
    let mut file = File::open(path)?;
    if from > 0 {
        std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(from))?;
    }
    let mut rest = file.take(to - from);
    let (mut sha256, mut blake3) = (Sha256::new(), blake3::Hasher::new());
    let mut buffer = vec![0; PIECE];
    let mut size = 0;
    loop {
        if cancelled() {
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        let n = match rest.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        sha256.update(&buffer[..n]);
        blake3.update_rayon(&buffer[..n]);
        size += n as u64;
        done(n as u64);
    }
    Ok(Digests { sha256: sha256.finalize().into(), blake3: Digest::from(blake3.finalize()), size })
}

/// The files of a tree and their digests.
#[derive(Debug, Clone, Default)]
pub struct Subjects {
    /// By path, in the order of code points.
    pub files: BTreeMap<String, Digests>,
    /// Paths among them that are links, in the tree or to a source.
    pub links: Vec<String>,
    /// Links that lead to a folder or to nothing: they open as no file.
    pub other_links: Vec<String>,
}

/// Reads every file of the tree from where `place` says that its bytes are. Errors: Damaged where bytes are not those of
/// the tree; Output where a path is no UTF-8, and so can't be named in a statement; Cancelled.
pub fn of_tree(
    tree: &Tree,
    place: &(dyn Fn(BlobId, bool) -> Result<(PathBuf, bool)> + Sync),
    watch: &Watch<'_>,
) -> Result<Subjects> {
    let mut subjects = Subjects::default();
    let mut files: Vec<(String, PathBuf, BlobId, u64)> = Vec::new();
    let mut names: BTreeMap<&RelPath, String> = BTreeMap::new();
    for (path, entry) in tree.iter() {
        let name = path.as_str().ok_or_else(|| StoreError::Output {
            path: path.clone(),
            what: "is a name that is no UTF-8, and a signed statement is JSON".to_owned(),
        })?;
        names.insert(path, name.to_owned());
        if let Entry::File { blob, size, executable } = entry {
            let (at, link) = place(*blob, *executable)?;
            if link {
                subjects.links.push(name.to_owned());
            }
            files.push((name.to_owned(), at, *blob, *size));
        }
    }
    let total = files.iter().map(|f| f.3).sum();
    let done = AtomicU64::new(0);
    let tell = |n: u64| (watch.progress)(done.fetch_add(n, Ordering::Relaxed) + n, total);
    let digests = few_at_once(files.len(), |i| {
        let (name, at, blob, size) = &files[i];
        let found = digest_range(at, (0, u64::MAX), &tell, watch.cancelled).map_err(|e| match e.kind() {
            std::io::ErrorKind::Interrupted => StoreError::Cancelled,
            _ => StoreError::from(crate::fsx::at("read", at)(e)),
        })?;
        if found.blake3 != blob.0 || found.size != *size {
            let what = format!("hashes to {}, not to {blob}: it was changed", found.blake3);
            return Err(StoreError::Damaged { path: at.clone(), what });
        }
        Ok((name.clone(), found))
    })?;
    subjects.files.extend(digests);
    for (path, entry) in tree.iter() {
        let Entry::Link { .. } = entry else { continue };
        let name = names.get(path).cloned().unwrap_or_else(|| quote(path.as_bytes()));
        let target = leads_to(tree, path).and_then(|p| subjects.files.get(p.as_str()?).copied());
        match target {
            Some(digests) => {
                subjects.files.insert(name.clone(), digests);
                subjects.links.push(name);
            }
            None => subjects.other_links.push(name),
        }
    }
    subjects.links.sort();
    Ok(subjects)
}

// The entry that a link of the tree leads to, through other links; `None` for a folder, for nothing, and for a loop.
fn leads_to(tree: &Tree, link: &RelPath) -> Option<RelPath> {
    const MOST: usize = 40;
    let mut at = link.clone();
    for _ in 0..MOST {
        match tree.get(&at)? {
            Entry::File { .. } => return Some(at),
            Entry::EmptyDir => return None,
            Entry::Link { target } => {
                let parent = at.parent();
                let mut parts: Vec<&[u8]> =
                    parent.as_ref().map(|p| p.as_bytes().split(|b| *b == b'/').collect()).unwrap_or_default();
                for part in target.split(|b| *b == b'/') {
                    match part {
                        b"" | b"." => {}
                        b".." => drop(parts.pop()?),
                        name => parts.push(name),
                    }
                }
                at = RelPath::new(parts.join(&b'/')).ok()?;
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::try_from(text).unwrap()
    }

    #[test]
    fn a_link_is_signed_as_the_file_that_it_opens() {
        let t = tempfile::tempdir().unwrap();
        std::fs::write(t.path().join("bytes"), "abc").unwrap();
        let mut tree = Tree::new();
        let blob = BlobId(Digest::of(b"abc"));
        tree.insert(path("a/file"), Entry::File { blob, size: 3, executable: false }).unwrap();
        for (name, target) in
            [("b/one", "../a/./file"), ("two", "b/one"), ("loop", "loop"), ("folder", "a"), ("gone", "x")]
        {
            tree.insert(path(name), Entry::Link { target: target.into() }).unwrap();
        }
        let place = |_: BlobId, _: bool| Ok((t.path().join("bytes"), false));
        let watch = Watch { progress: &|_, _| (), cancelled: &|| false };
        let found = of_tree(&tree, &place, &watch).unwrap();
        assert_eq!(found.files.keys().collect::<Vec<_>>(), ["a/file", "b/one", "two"]);
        assert_eq!(found.links, ["b/one", "two"]);
        assert_eq!(found.other_links, ["folder", "gone", "loop"]);
        let sha256 = crate::attest::hex(&found.files["two"].sha256);
        assert_eq!(sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn bytes_that_are_not_the_tree_s_are_never_signed() {
        let t = tempfile::tempdir().unwrap();
        std::fs::write(t.path().join("bytes"), "abd").unwrap();
        let mut tree = Tree::new();
        tree.insert(path("f"), Entry::File { blob: BlobId(Digest::of(b"abc")), size: 3, executable: false }).unwrap();
        let place = |_: BlobId, _: bool| Ok((t.path().join("bytes"), false));
        let watch = Watch { progress: &|_, _| (), cancelled: &|| false };
        assert!(matches!(of_tree(&tree, &place, &watch), Err(StoreError::Damaged { .. })));
    }
}
