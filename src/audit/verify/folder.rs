//! A folder or a file held against a tree: what is changed, missing and extra in it, each by name. Links are read and
//! never followed into, so a loop ends and what lies outside stays there.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use crate::audit::verify::bytes::{Claim, Looking, Outcome, hold};
use crate::audit::verify::report::{Finding, Subject, Verified, escaped};
use crate::canon::quote;
use crate::digest::TreeId;
use crate::fsx::{self, FileStat, at};
use crate::model::path::RelPath;
use crate::model::tree::{Entry, Tree, link_stays_inside};
use crate::store::Result;
use crate::store::plain::{Plain, Ref};
use crate::store::survey::Part;
use crate::tensors::header::Header;

/// What is held against what.
pub struct Held<'a> {
    /// The store that knows the tree.
    pub plain: &'a Plain,
    /// The folder, or the file of a tree with one entry.
    pub top: &'a Path,
    /// What should be there.
    pub tree: &'a Tree,
    /// The tree that it is a view of, for what depends on it.
    pub id: TreeId,
    /// `View` or `Path`.
    pub part: Part,
    /// Whether files that are one with a blob of the store were hashed there.
    pub blobs_are_known: bool,
}

struct Walk<'h, 'a> {
    held: &'h Held<'a>,
    looking: &'h Looking<'a>,
    seen: HashSet<RelPath>,
    claims: Vec<Claim>,
    found: Verified,
}

/// Holds it. Errors: only where the store's own files can't be read.
pub fn hold_folder(held: &Held<'_>, looking: &Looking<'_>) -> Result<Verified> {
    let mut walk = Walk { held, looking, seen: HashSet::new(), claims: Vec::new(), found: Verified::default() };
    match fs::symlink_metadata(held.top) {
        Ok(m) if m.is_dir() => walk.folders()?,
        Ok(_) => walk.changed(held.top, "is no folder"),
        Err(e) => walk.changed(held.top, format!("can't be read: {e}")),
    }
    walk.missing();
    walk.hash()?;
    Ok(walk.found)
}

/// Holds one file against one entry of a tree.
pub fn hold_file(held: &Held<'_>, entry: &Entry, looking: &Looking<'_>) -> Result<Verified> {
    let mut walk = Walk { held, looking, seen: HashSet::new(), claims: Vec::new(), found: Verified::default() };
    match fs::symlink_metadata(held.top) {
        Ok(m) => walk.entry(held.top, &m, entry)?,
        Err(e) => walk.changed(held.top, format!("can't be read: {e}")),
    }
    walk.hash()?;
    Ok(walk.found)
}

// How many tensors a line names.
const MOST: usize = 3;

fn few(list: &[String]) -> String {
    let shown = list.iter().take(MOST).cloned().collect::<Vec<_>>().join(", ");
    match list.len().saturating_sub(MOST) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

impl Walk<'_, '_> {
    fn finding(&self, path: &Path, what: impl Into<String>) -> Finding {
        Finding::new(path.to_owned(), self.held.part, what, Subject::View(self.held.id))
    }

    fn changed(&mut self, path: &Path, what: impl Into<String>) {
        let f = self.finding(path, what);
        self.found.changed.push(f);
    }

    fn extra(&mut self, path: &Path, what: impl Into<String>) {
        let f = self.finding(path, what);
        self.found.extra.push(f);
    }

    fn folders(&mut self) -> Result<()> {
        let mut todo: Vec<Vec<u8>> = vec![Vec::new()];
        while let Some(dir) = todo.pop() {
            let dir_path = self.held.top.join(OsStr::from_bytes(&dir));
            let names = match fsx::names(&dir_path) {
                Ok(names) => names,
                Err(e) => {
                    self.changed(&dir_path, format!("can't be read: {}", e.source));
                    continue;
                }
            };
            let rel_dir = RelPath::new(dir.clone()).ok();
            if let Some(rel) = &rel_dir {
                match self.held.tree.get(rel) {
                    Some(Entry::EmptyDir) => drop(self.seen.insert(rel.clone())),
                    Some(_) => {
                        self.changed(&dir_path, "is a folder");
                        self.seen.insert(rel.clone());
                    }
                    None if names.is_empty() => self.extra(&dir_path, "is an empty folder"),
                    None => {}
                }
            }
            for name in names {
                let mut rel = dir.clone();
                if !rel.is_empty() {
                    rel.push(b'/');
                }
                rel.extend(name.into_vec());
                let path = self.held.top.join(OsStr::from_bytes(&rel));
                let Ok(rel_path) = RelPath::new(rel.clone()) else { continue };
                let meta = match fs::symlink_metadata(&path) {
                    Ok(m) => m,
                    // It went meanwhile.
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                    Err(e) => {
                        self.seen.insert(rel_path);
                        self.changed(&path, format!("can't be read: {e}"));
                        continue;
                    }
                };
                if meta.is_dir() {
                    todo.push(rel);
                    continue;
                }
                self.found.files += 1;
                match self.held.tree.get(&rel_path).cloned() {
                    None => {
                        let what = self.describe(&path, &rel_path, &meta);
                        self.extra(&path, what);
                    }
                    Some(entry) => {
                        self.seen.insert(rel_path);
                        self.entry(&path, &meta, &entry)?;
                    }
                }
            }
        }
        Ok(())
    }

    // What something is that has no business here.
    fn describe(&self, path: &Path, rel: &RelPath, meta: &Metadata) -> String {
        let kind = meta.file_type();
        if !kind.is_symlink() {
            let what = what_is(meta);
            let twice = if meta.is_file() { self.twice(path, meta.len()) } else { Vec::new() };
            return if twice.is_empty() { what.to_owned() } else { format!("{what} that holds again {}", few(&twice)) };
        }
        let Ok(target) = fs::read_link(path) else { return "is a link".to_owned() };
        let text = quote(target.as_os_str().as_bytes());
        if link_stays_inside(rel, target.as_os_str().as_bytes()) {
            format!("is a link to {text}")
        } else {
            format!("is a link that leads outside, to {text}")
        }
    }

    // Which tensors of the tree's shards an additional one holds too: a server that reads all files takes either copy.
    // What no reader of ours understands says nothing.
    fn twice(&self, path: &Path, len: u64) -> Vec<String> {
        let is_shard = |p: &[u8]| p.ends_with(b".safetensors");
        if !is_shard(path.as_os_str().as_bytes()) {
            return Vec::new();
        }
        let Some(header) = fs::File::open(path).ok().and_then(|f| Header::read(&f, len).ok()) else {
            return Vec::new();
        };
        let mut again = Vec::new();
        for (shard, blob, ..) in self.held.tree.files().filter(|f| is_shard(f.0.as_bytes())) {
            let Ok(Some(Ok(table))) = self.held.plain.table(blob) else { continue };
            let both = header.tensors.iter().filter(|t| table.get(&t.name).is_some());
            again.extend(both.map(|t| format!("{} of {shard}", t.name)));
        }
        again
    }

    fn entry(&mut self, path: &Path, meta: &Metadata, entry: &Entry) -> Result<()> {
        match entry {
            Entry::EmptyDir => self.changed(path, format!("{}, and should be an empty folder", what_is(meta))),
            Entry::Link { target } => {
                let should = quote(target);
                match fs::read_link(path) {
                    Ok(t) if t.as_os_str().as_bytes() == target => {}
                    Ok(t) => {
                        let now = quote(t.as_os_str().as_bytes());
                        self.changed(path, format!("is a link to {now}, and should be one to {should}"));
                    }
                    Err(_) => self.changed(path, format!("{}, and should be a link to {should}", what_is(meta))),
                }
            }
            Entry::File { .. } if meta.is_symlink() => self.linked_file(path, entry)?,
            Entry::File { .. } if !meta.is_file() => {
                self.changed(path, format!("{}, and should be a file", what_is(meta)));
            }
            Entry::File { blob, size, executable } => {
                if (meta.mode() & 0o100 != 0) != *executable {
                    let what = if *executable { "is not executable, and should be" } else { "is executable" };
                    self.changed(path, what);
                }
                let stored = FileStat::at(&self.held.plain.blob_path(*blob, *executable));
                let one = stored.is_ok_and(|s| (s.dev, s.ino) == (meta.dev(), meta.ino()));
                if one && self.held.blobs_are_known {
                    return Ok(());
                }
                if meta.len() != *size && self.looking.quick {
                    self.changed(path, format!("has {} bytes, and should have {size}", meta.len()));
                } else if !self.looking.quick {
                    let (path, expected) = (path.to_owned(), Some(*size));
                    self.claims.push(Claim { path, blob: *blob, size: meta.len(), expected });
                }
            }
        }
        Ok(())
    }

    // A file that is there as a link: a view has those to what is only referenced.
    fn linked_file(&mut self, path: &Path, entry: &Entry) -> Result<()> {
        let Entry::File { blob, size, .. } = entry else { return Ok(()) };
        let target = path.canonicalize();
        let places = match self.held.plain.places(*blob)? {
            Ref::Places(places) => places,
            Ref::None | Ref::Damaged(_) => Vec::new(),
        };
        let to_source = target.as_ref().is_ok_and(|t| places.iter().any(|(p, _, _)| p == t));
        let raw = fs::read_link(path).map_err(at("read the link", path))?;
        // Where it leads is the source's affair: of a view that is looked at as a part of its store.
        let raw_abs = path.parent().unwrap_or(path).join(&raw);
        let known = to_source || places.iter().any(|(p, _, _)| same_text(p, &raw_abs));
        if self.held.part == Part::View && known {
            let fine = target.as_ref().is_ok_and(|t| {
                FileStat::at(t).is_ok_and(|now| places.iter().any(|(p, stat, _)| p == t && *stat == now))
            });
            // Unless the same bytes lie elsewhere: then the view should lead there.
            if !fine && let Some((right, true)) = self.held.plain.source_of(*blob)? {
                let (raw, right) = (escaped(&raw), escaped(&right));
                self.changed(
                    path,
                    format!("is a link to {raw}, which is not there or was changed; {right} has its bytes"),
                );
            }
            return Ok(());
        }
        let raw = escaped(&raw);
        match target.and_then(fs::metadata) {
            Err(e) => self.changed(path, format!("is a link to {raw}, which can't be read: {e}")),
            Ok(m) if !m.is_file() => self.changed(path, format!("is a link to {raw}, which is no file")),
            Ok(m) => {
                if !to_source && self.held.part == Part::Path {
                    self.found.notes.push(format!("{} is a link that leads outside, to {raw}", escaped(path)));
                }
                if m.len() != *size && self.looking.quick {
                    let what = format!("is a link to {raw}, which has {} bytes, and should have {size}", m.len());
                    self.changed(path, what);
                } else if !self.looking.quick {
                    let (path, expected) = (path.to_owned(), Some(*size));
                    self.claims.push(Claim { path, blob: *blob, size: m.len(), expected });
                }
            }
        }
        Ok(())
    }

    fn missing(&mut self) {
        let absent: Vec<(PathBuf, String)> = self
            .held
            .tree
            .iter()
            .filter(|(rel, _)| !self.seen.contains(*rel))
            .map(|(rel, entry)| {
                let what = match entry {
                    Entry::File { size, .. } => format!("is not there: a file of {size} bytes"),
                    Entry::Link { target } => format!("is not there: a link to {}", quote(target)),
                    Entry::EmptyDir => "is not there: an empty folder".to_owned(),
                };
                (self.held.top.join(rel.as_path()), what)
            })
            .collect();
        for (path, what) in absent {
            let f = self.finding(&path, what);
            self.found.missing.push(f);
        }
    }

    fn hash(&mut self) -> Result<()> {
        let claims = std::mem::take(&mut self.claims);
        let (outcomes, bytes) = hold(self.held.plain, &claims, self.looking)?;
        self.found.hashed_bytes += bytes;
        for (claim, outcome) in claims.iter().zip(outcomes) {
            match outcome {
                Outcome::Right => {}
                Outcome::Gone => {
                    let f = self.finding(&claim.path, "went while it was looked at");
                    self.found.missing.push(f);
                }
                Outcome::Wrong { what, tensors } => {
                    let f = Finding { tensors, ..self.finding(&claim.path, what) };
                    self.found.changed.push(f);
                }
            }
        }
        Ok(())
    }
}

fn what_is(meta: &Metadata) -> &'static str {
    let kind = meta.file_type();
    if kind.is_dir() {
        "is a folder"
    } else if kind.is_symlink() {
        "is a link"
    } else if kind.is_file() {
        "is a file"
    } else if kind.is_fifo() {
        "is a pipe"
    } else if kind.is_socket() {
        "is a socket"
    } else {
        "is a device"
    }
}

// Whether two paths are one when read as text, `..` taken as the folder above: their target may be gone.
fn same_text(a: &Path, b: &Path) -> bool {
    let flat = |p: &Path| {
        let mut out = PathBuf::new();
        for c in p.components() {
            match c {
                std::path::Component::ParentDir => drop(out.pop()),
                std::path::Component::CurDir => {}
                other => out.push(other),
            }
        }
        out
    };
    flat(a) == flat(b)
}
