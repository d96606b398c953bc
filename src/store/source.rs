//! Sources: what the user owns and we only read. Referenced in place, never written, moved, locked or hard-linked.

use std::collections::HashMap;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::digest::{BlobId, Digest, TreeId};
use crate::fsx::stat::now_ns;
use crate::fsx::{FileStat, at};
use crate::kinds::InputFiles;
use crate::model::path::RelPath;
use crate::model::tree::{Entry, Tree};
use crate::store::Store;
use crate::store::commit::Commit;
use crate::store::error::{Result, StoreError};
use crate::tensors::checkpoint::{Checkpoint, WeightFile, is_weight_file};
use crate::tensors::hash::hash_file;

/// What a source is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceForm {
    /// One file of any kind.
    File,
    /// One file of JSON lines.
    Rows,
    /// A folder, links followed.
    Folder,
    /// A folder with a safetensors checkpoint, with or without an index; its parts must agree.
    Checkpoint,
}

impl SourceForm {
    /// Whether it is a single file.
    pub fn is_file(self) -> bool {
        matches!(self, SourceForm::File | SourceForm::Rows)
    }
}

/// The name inside of the one file of a file source: its own name is not hashed.
pub const FILE_NAME: &str = "file";

/// How to look at a source.
pub struct ScanOptions<'a> {
    /// Read every byte again, whatever the stat cache says.
    pub check_content: bool,
    /// What of a folder is invisible, by path and whether it is a folder itself.
    pub hides: &'a (dyn Fn(&RelPath, bool) -> bool + Sync),
    /// Hears of bytes hashed and to hash.
    pub progress: &'a (dyn Fn(u64, u64) + Sync),
    /// Whether to stop.
    pub cancelled: &'a (dyn Fn() -> bool + Sync),
}

/// A source as it was found.
#[derive(Debug, Clone)]
pub struct Scanned {
    /// Its tree.
    pub tree: Tree,
    /// The tree's id.
    pub id: TreeId,
    /// Bytes that had to be read.
    pub hashed_bytes: u64,
    /// Whether a file was written so shortly before that its time proves nothing: it is read again next time.
    pub unsettled: bool,
    /// What is odd, but no error.
    pub notes: Vec<String>,
}

/// A file of a folder, links followed.
pub(crate) struct Found {
    /// Its path in the folder.
    pub(crate) rel: RelPath,
    /// Where the bytes really are: links resolved, so that a moved link changes nothing.
    pub(crate) path: PathBuf,
    /// How it looked.
    pub(crate) stat: FileStat,
    /// Whether its owner may execute it.
    pub(crate) executable: bool,
}

impl Store {
    /// Looks at a source and hashes what the stat cache does not know, by all cores. Errors: Source with the place
    /// and what to do; SourceChanged where a file changed while it was read, and then nothing of it is recorded. Its
    /// listing is durable only after [`flush_scanned`](Self::flush_scanned).
    pub fn scan(&self, path: &Path, form: SourceForm, options: &ScanOptions<'_>) -> Result<Scanned> {
        let (found, empty_dirs) =
            if form.is_file() { (vec![look_at_file(path)?], Vec::new()) } else { walk(path, options.hides)? };
        let looked = now_ns();
        let blobs = self.hash_all(&found, options)?;
        let mut tree = Tree::new();
        let bad = |e: crate::model::tree::TreeError| source_error(path, e.to_string(), None);
        for (f, (blob, _)) in found.iter().zip(&blobs) {
            let entry = Entry::File { blob: *blob, size: f.stat.size, executable: f.executable };
            tree.insert(f.rel.clone(), entry).map_err(bad)?;
        }
        for d in empty_dirs {
            tree.insert(d, Entry::EmptyDir).map_err(bad)?;
        }
        let mut notes = Vec::new();
        if form == SourceForm::Checkpoint {
            notes = self.check_checkpoint(path, &tree)?;
        }
        // Flushed with those of the other sources: thousands of them are one group.
        let id = self.objects.put_tree(&tree, &mut self.scanned.lock().unwrap_or_else(PoisonError::into_inner))?;
        let hashed_bytes = found.iter().zip(&blobs).filter(|(_, (_, fresh))| *fresh).map(|(f, _)| f.stat.size).sum();
        let unsettled = found.iter().zip(&blobs).any(|(f, (_, fresh))| *fresh && !f.stat.at_rest(looked));
        Ok(Scanned { tree, id, hashed_bytes, unsettled, notes })
    }

    /// BLAKE3 of a file of the host that is no source (an executable, a library), by the same stat cache.
    pub fn host_file_digest(&self, path: &Path) -> std::io::Result<Digest> {
        let stat = FileStat::at(path)?;
        if let Some(known) = self.index.source(&stat) {
            return Ok(known.0);
        }
        let looked = now_ns();
        let file = fs::File::open(path)?;
        let hashed = hash_file(&file, stat.size, false, &mut |_| {}, &|| false).map_err(std::io::Error::other)?;
        if stat.at_rest(looked) && FileStat::at(path)? == stat {
            self.index.put_source(&stat, hashed.blob);
        }
        Ok(hashed.blob.0)
    }

    // For each file its blob, and whether it was read now.
    fn hash_all(&self, found: &[Found], options: &ScanOptions<'_>) -> Result<Vec<(BlobId, bool)>> {
        let known: Vec<Option<BlobId>> =
            found.iter().map(|f| if options.check_content { None } else { self.index.source(&f.stat) }).collect();
        // Hard links and repeated links name one inode: it is read once.
        let mut first: HashMap<(u64, u64), usize> = HashMap::new();
        for (i, f) in found.iter().enumerate() {
            if known[i].is_none() {
                first.entry((f.stat.dev, f.stat.ino)).or_insert(i);
            }
        }
        let mut todo: Vec<usize> = first.values().copied().collect();
        todo.sort_unstable();
        let total: u64 = todo.iter().map(|i| found[*i].stat.size).sum();
        let done = AtomicU64::new(0);
        let hashed = few_at_once(todo.len(), |n| {
            let i = todo[n];
            Ok((i, self.hash_source(&found[i], &done, total, options)?))
        })?;
        let hashed: HashMap<usize, BlobId> = hashed.into_iter().collect();
        found
            .iter()
            .enumerate()
            .map(|(i, f)| match known[i] {
                Some(blob) => {
                    // It was at rest when it was hashed, so it is now.
                    self.refer(blob, f, now_ns())?;
                    Ok((blob, false))
                }
                None => {
                    let i = first.get(&(f.stat.dev, f.stat.ino)).copied().unwrap_or(i);
                    let blob =
                        hashed.get(&i).copied().ok_or_else(|| StoreError::SourceChanged { path: f.path.clone() })?;
                    Ok((blob, true))
                }
            })
            .collect()
    }

    fn hash_source(&self, f: &Found, done: &AtomicU64, total: u64, options: &ScanOptions<'_>) -> Result<BlobId> {
        let changed = || StoreError::SourceChanged { path: f.path.clone() };
        let looked = now_ns();
        let file = fs::File::open(&f.path).map_err(at("open", &f.path))?;
        if FileStat::of(&file.metadata().map_err(at("look at", &f.path))?) != f.stat {
            return Err(changed());
        }
        let tensors = f.rel.file_name().ends_with(b".safetensors");
        let mut last = 0;
        let mut progress = |at: u64| {
            let more = at - last;
            last = at;
            (options.progress)(done.fetch_add(more, Ordering::Relaxed) + more, total);
        };
        let hashed = hash_file(&file, f.stat.size, tensors, &mut progress, options.cancelled);
        let after = FileStat::of(&file.metadata().map_err(at("look at", &f.path))?);
        if after != f.stat || FileStat::at(&f.path).ok() != Some(after) {
            return Err(changed());
        }
        let hashed = hashed.map_err(|e| {
            if (options.cancelled)() {
                return StoreError::Cancelled;
            }
            source_error(&f.path, e.to_string(), e.hint().map(str::to_owned))
        })?;
        if let Some(table) = &hashed.table {
            let mut commit = Commit::new(self.session.dir().to_owned());
            self.objects.put_table(hashed.blob, table, &mut commit)?;
            // At once: the checkpoint's parts are held together by it.
            self.flush(&mut commit)?;
        }
        if f.stat.at_rest(looked) {
            self.index.put_source(&f.stat, hashed.blob);
        }
        self.refer(hashed.blob, f, looked)?;
        Ok(hashed.blob)
    }

    fn refer(&self, blob: BlobId, f: &Found, looked: i128) -> Result<()> {
        if let Some(written) = self.refs.add(blob, &f.path, &f.stat, looked)? {
            self.scanned.lock().unwrap_or_else(PoisonError::into_inner).rely_on(&written);
        }
        Ok(())
    }

    fn check_checkpoint(&self, top: &Path, tree: &Tree) -> Result<Vec<String>> {
        let mut files = Vec::new();
        for (path, blob, size, _) in tree.files() {
            let Some(name) = path.as_str() else { continue };
            if name.ends_with(".incomplete") {
                let hint = Some("let the download finish, or remove what it left".to_owned());
                return Err(source_error(&top.join(path.as_path()), "is an unfinished download", hint));
            }
            if is_weight_file(name) {
                files.push(WeightFile { name: name.to_owned(), blob, size });
            }
        }
        let read = |f: &WeightFile| fs::read(top.join(&f.name));
        let table = |f: &WeightFile| InputFiles::table(self, f.blob);
        let opened = Checkpoint::open(files, read, table);
        Ok(opened.map_err(|e| source_error(top, e.to_string(), Some(e.hint().to_owned())))?.notes)
    }
}

// Files that are hashed side by side. All cores work on each of them; more of them would only hold more buffers (8 MiB
// each), and tasks of a thread pool that wait for each other could hold one for every file.
const FILES_AT_ONCE: usize = 4;

// Does `work` for 0, 1, … n - 1, a few at once, until one of them fails.
pub(crate) fn few_at_once<T: Send>(n: usize, work: impl Fn(usize) -> Result<T> + Sync) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let worker = || -> Result<Vec<T>> {
        let mut done = Vec::new();
        while !failed.load(Ordering::Relaxed) {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= n {
                break;
            }
            done.push(work(i).inspect_err(|_| failed.store(true, Ordering::Relaxed))?);
        }
        Ok(done)
    };
    if n < 2 {
        return worker();
    }
    let results: Vec<Result<Vec<T>>> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..n.min(FILES_AT_ONCE)).map(|_| s.spawn(worker)).collect();
        threads.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    let mut all = Vec::with_capacity(n);
    for r in results {
        all.extend(r?);
    }
    Ok(all)
}

fn source_error(path: &Path, what: impl Into<String>, hint: Option<String>) -> StoreError {
    StoreError::Source { path: path.to_owned(), what: what.into(), hint, away: false }
}

fn away(path: &Path, what: impl Into<String>, hint: &str) -> StoreError {
    StoreError::Source { path: path.to_owned(), what: what.into(), hint: Some(hint.to_owned()), away: true }
}

fn missing(path: &Path, e: std::io::Error) -> StoreError {
    if e.kind() != std::io::ErrorKind::NotFound {
        return at("look at", path)(e).into();
    }
    match fs::read_link(path) {
        Ok(target) => {
            let what = format!("is a dangling link to {}", target.display());
            away(path, what, "bring its target back, or finish the download")
        }
        Err(_) => away(path, "is not there", "check the path in graph.toml; it is relative to that file"),
    }
}

/// The one file at `path`. Errors: Source where it is none.
pub(crate) fn look_at_file(path: &Path) -> Result<Found> {
    let meta = fs::metadata(path).map_err(|e| missing(path, e))?;
    if !meta.is_file() {
        let hint = meta.is_dir().then(|| "for a folder, write `folder = …` or `checkpoint = …`".to_owned());
        return Err(source_error(path, "is not a file", hint));
    }
    let rel = RelPath::try_from(FILE_NAME).map_err(|e| source_error(path, e.to_string(), None))?;
    let real = path.canonicalize().map_err(at("find", path))?;
    Ok(Found { rel, path: real, stat: FileStat::of(&meta), executable: meta.mode() & 0o100 != 0 })
}

/// The files below `top` by path, and its empty folders. Errors: Source for what can't be read.
pub(crate) fn walk(top: &Path, hides: &dyn Fn(&RelPath, bool) -> bool) -> Result<(Vec<Found>, Vec<RelPath>)> {
    let meta = fs::metadata(top).map_err(|e| missing(top, e))?;
    if !meta.is_dir() {
        return Err(source_error(
            top,
            "is not a folder",
            Some("for a file, write `file = …` or `rows = …`".to_owned()),
        ));
    }
    let mut files = Vec::new();
    let mut empty = Vec::new();
    let mut bad: Vec<String> = Vec::new();
    // Each folder comes with the inodes of those above it: one that is its own ancestor is a loop of links.
    let mut todo = vec![(top.to_owned(), Vec::<u8>::new(), vec![(meta.dev(), meta.ino())])];
    while let Some((dir, rel_dir, above)) = todo.pop() {
        let mut held = 0;
        for name in crate::fsx::names(&dir)? {
            let path = dir.join(&name);
            let mut rel = rel_dir.clone();
            if !rel.is_empty() {
                rel.push(b'/');
            }
            rel.extend(name.into_vec());
            let rel = RelPath::new(rel).map_err(|e| source_error(&path, e.to_string(), None))?;
            let meta = fs::metadata(&path);
            if hides(&rel, meta.as_ref().is_ok_and(fs::Metadata::is_dir)) {
                continue;
            }
            held += 1;
            let meta = match meta {
                Ok(m) => m,
                Err(e) if e.raw_os_error() == Some(libc::ELOOP) => {
                    return Err(source_error(&path, "is a link that leads to itself", Some("exclude it".to_owned())));
                }
                Err(e) => {
                    match missing(&path, e) {
                        StoreError::Source { what, .. } => bad.push(format!("{rel} {what}")),
                        other => return Err(other),
                    }
                    continue;
                }
            };
            if meta.is_dir() {
                let id = (meta.dev(), meta.ino());
                if above.contains(&id) {
                    let what = "is a link to a folder above it: following it would never end";
                    return Err(source_error(&path, what, Some(format!("add exclude = [\"{rel}\"] to the source"))));
                }
                let mut chain = above.clone();
                chain.push(id);
                todo.push((path, rel.as_bytes().to_vec(), chain));
            } else if meta.is_file() {
                let real = if fs::symlink_metadata(&path).is_ok_and(|m| m.file_type().is_symlink())
                    || above_is_link(&path, top)
                {
                    path.canonicalize().map_err(at("find", &path))?
                } else {
                    absolute(&path)?
                };
                files.push(Found { rel, path: real, stat: FileStat::of(&meta), executable: meta.mode() & 0o100 != 0 });
            } else {
                let hint = format!("add exclude = [\"{rel}\"] to the source");
                return Err(source_error(&path, "is neither a file nor a folder", Some(hint)));
            }
        }
        if held == 0
            && !rel_dir.is_empty()
            && let Ok(rel) = RelPath::new(rel_dir)
        {
            empty.push(rel);
        }
    }
    if !bad.is_empty() {
        bad.sort();
        let what = format!("{} of its files can't be read: {}", bad.len(), bad.join("; "));
        return Err(away(top, what, "bring the targets back, or finish the download"));
    }
    files.sort_by(|a, b| a.rel.cmp(&b.rel));
    Ok((files, empty))
}

// A folder reached through a link: its files' real place is elsewhere.
fn above_is_link(path: &Path, top: &Path) -> bool {
    path.ancestors()
        .skip(1)
        .take_while(|p| p.starts_with(top))
        .any(|p| fs::symlink_metadata(p).is_ok_and(|m| m.file_type().is_symlink()))
}

fn absolute(path: &Path) -> Result<PathBuf> {
    Ok(std::path::absolute(path).map_err(at("find", path))?)
}
