//! A model of a disk that loses power.
//!
//! Calls are replayed from a record. What was flushed is kept; of what was not, the kernel may have written any part in
//! any order: a name without its bytes, bytes of the right length that are all zero, one rename and not the one before.
//! `fsync` of a file keeps its bytes and mode, not its name; of a folder, the names in it; `syncfs` everything. A rename
//! is done or not, never half.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Random;

type Ino = usize;

/// What a file has.
#[derive(Debug, Clone, PartialEq, Default)]
struct Content {
    /// The name of its bytes in the record; `None` for no bytes.
    bytes: Option<String>,
    mode: Option<u32>,
    stamped: bool,
}

#[derive(Debug, Clone)]
enum Inode {
    Folder { now: BTreeMap<String, Ino>, kept: BTreeMap<String, Ino> },
    File { now: Content, kept: Option<Content> },
    Link(PathBuf),
}

/// Names that change together.
type Change = Vec<(Ino, String, Option<Ino>)>;

/// The disk while the record is replayed.
#[derive(Debug, Clone)]
pub struct Disk {
    top: PathBuf,
    record: PathBuf,
    inodes: Vec<Inode>,
    pending: Vec<Change>,
}

/// What the kernel wrote of what was not flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Nothing.
    Everything,
    /// All names, and no bytes: files are as long as when they were last flushed, else empty.
    Bytes,
    /// All names, and zeros for bytes.
    Zeros,
    /// All but the change of names with this number.
    Name(usize),
    /// Nothing but the change of names with this number, and all bytes.
    AllNamesBut(usize),
    /// Whatever this number says.
    Some(u64),
}

/// The calls of a record.
pub fn calls(record: &Path) -> Vec<Value> {
    let text = fs::read_to_string(record.join("calls")).unwrap();
    text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

impl Disk {
    /// An empty folder `top`, and a record of what is done in it.
    pub fn new(top: &Path, record: &Path) -> Self {
        let root = Inode::Folder { now: BTreeMap::new(), kept: BTreeMap::new() };
        Self { top: top.to_owned(), record: record.to_owned(), inodes: vec![root], pending: Vec::new() }
    }

    /// How many changes of names are not flushed.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Does one call.
    pub fn replay(&mut self, call: &Value) {
        let path = PathBuf::from(call["path"].as_str().unwrap());
        if !path.starts_with(&self.top) {
            return;
        }
        let content = call["content"].as_str().map(str::to_owned);
        match call["op"].as_str().unwrap() {
            "mkdir" => {
                let folder = Inode::Folder { now: BTreeMap::new(), kept: BTreeMap::new() };
                self.enter_new(&path, folder);
            }
            "create" if self.find(&path).is_none() => {
                self.enter_new(&path, Inode::File { now: Content::default(), kept: None });
            }
            "write" => self.set(&path, |c| c.bytes = content),
            "rename" => {
                let from = PathBuf::from(call["from"].as_str().unwrap());
                let ino = self.known(&from, content.clone());
                let mut change = self.removal(&from);
                change.extend(self.entry(&path, Some(ino)));
                self.change(change);
                if content.is_some() {
                    self.set(&path, |c| c.bytes = content);
                }
            }
            "link" => {
                let ino = self.known(Path::new(call["from"].as_str().unwrap()), content);
                let change = self.entry(&path, Some(ino)).into_iter().collect();
                self.change(change);
            }
            "symlink" => self.enter_new(&path, Inode::Link(call["target"].as_str().unwrap().into())),
            "unlink" => {
                let change = self.removal(&path);
                self.change(change);
            }
            "rmtree" => self.remove_below(&path),
            "chmod" => self.set(&path, |c| c.mode = call["mode"].as_u64().map(|m| m as u32)),
            "utime" => self.set(&path, |c| c.stamped = true),
            "fsync" => {
                if content.is_some() {
                    self.set(&path, |c| c.bytes = content);
                }
                if let Some(ino) = self.find(&path) {
                    self.keep(ino);
                }
            }
            "syncfs" => {
                for change in std::mem::take(&mut self.pending) {
                    self.apply(&change);
                }
                for inode in &mut self.inodes {
                    if let Inode::File { now, kept } = inode {
                        *kept = Some(now.clone());
                    }
                }
            }
            "create" => {}
            other => panic!("the record has an unknown call {other}"),
        }
    }

    fn find(&self, path: &Path) -> Option<Ino> {
        let mut at = 0;
        for name in path.strip_prefix(&self.top).ok()? {
            let Inode::Folder { now, .. } = &self.inodes[at] else { return None };
            at = *now.get(name.to_str()?)?;
        }
        Some(at)
    }

    // What is renamed or linked may have been made by somebody else: a step, or the user.
    fn known(&mut self, path: &Path, content: Option<String>) -> Ino {
        self.find(path).unwrap_or_else(|| {
            self.inodes.push(match content {
                Some(bytes) => Inode::File { now: Content { bytes: Some(bytes), ..Content::default() }, kept: None },
                None => Inode::Folder { now: BTreeMap::new(), kept: BTreeMap::new() },
            });
            self.inodes.len() - 1
        })
    }

    fn entry(&self, path: &Path, ino: Option<Ino>) -> Option<(Ino, String, Option<Ino>)> {
        let folder = self.find(path.parent()?)?;
        Some((folder, path.file_name()?.to_str()?.to_owned(), ino))
    }

    fn removal(&self, path: &Path) -> Change {
        if self.find(path).is_none() {
            // Made by somebody else; the mode of a file that was never seen may have been changed.
            return Change::new();
        }
        self.entry(path, None).into_iter().collect()
    }

    fn enter_new(&mut self, path: &Path, inode: Inode) {
        self.inodes.push(inode);
        let change = self.entry(path, Some(self.inodes.len() - 1)).into_iter().collect();
        self.change(change);
    }

    fn change(&mut self, change: Change) {
        for (folder, name, ino) in &change {
            if let Inode::Folder { now, .. } = &mut self.inodes[*folder] {
                match ino {
                    Some(i) => drop(now.insert(name.clone(), *i)),
                    None => drop(now.remove(name)),
                }
            }
        }
        if !change.is_empty() {
            self.pending.push(change);
        }
    }

    fn remove_below(&mut self, path: &Path) {
        let Some(ino) = self.find(path) else { return };
        if let Inode::Folder { now, .. } = &self.inodes[ino] {
            for name in now.keys().cloned().collect::<Vec<_>>() {
                self.remove_below(&path.join(name));
            }
        }
        let change = self.removal(path);
        self.change(change);
    }

    fn set(&mut self, path: &Path, change: impl FnOnce(&mut Content)) {
        if let Some(ino) = self.find(path)
            && let Inode::File { now, .. } = &mut self.inodes[ino]
        {
            change(now);
        }
    }

    fn keep(&mut self, ino: Ino) {
        match &mut self.inodes[ino] {
            Inode::File { now, kept } => *kept = Some(now.clone()),
            Inode::Link(_) => {}
            Inode::Folder { .. } => {
                let (mine, others) = std::mem::take(&mut self.pending)
                    .into_iter()
                    .partition(|c: &Change| c.iter().any(|(folder, ..)| *folder == ino));
                self.pending = others;
                for change in mine {
                    self.apply(&change);
                }
            }
        }
    }

    fn apply(&mut self, change: &Change) {
        for (folder, name, ino) in change {
            if let Inode::Folder { kept, .. } = &mut self.inodes[*folder] {
                match ino {
                    Some(i) => drop(kept.insert(name.clone(), *i)),
                    None => drop(kept.remove(name)),
                }
            }
        }
    }

    /// Makes what is left after a power loss at this moment, in the folder `top`, where nothing of it may be.
    pub fn leave(&self, loss: Loss) {
        let mut disk = self.clone();
        let mut random = Random(if let Loss::Some(seed) = loss { seed | 1 } else { 1 });
        for (n, change) in std::mem::take(&mut disk.pending).iter().enumerate() {
            let done = match loss {
                Loss::Everything => false,
                Loss::Bytes | Loss::Zeros => true,
                Loss::Name(lost) => n != lost,
                Loss::AllNamesBut(one) => n == one,
                Loss::Some(_) => random.below(2) == 0,
            };
            if done {
                disk.apply(change);
            }
        }
        disk.write(0, &self.top, loss, &mut random, &mut BTreeMap::new());
    }

    fn write(&self, ino: Ino, at: &Path, loss: Loss, random: &mut Random, written: &mut BTreeMap<Ino, PathBuf>) {
        match &self.inodes[ino] {
            Inode::Folder { kept, .. } => {
                if ino > 0 {
                    fs::create_dir(at).unwrap();
                }
                for (name, ino) in kept {
                    self.write(*ino, &at.join(name), loss, random, written);
                }
            }
            Inode::Link(target) => std::os::unix::fs::symlink(target, at).unwrap(),
            Inode::File { .. } if written.contains_key(&ino) => fs::hard_link(&written[&ino], at).unwrap(),
            Inode::File { now, kept } => {
                let whole = |c: &Content| {
                    c.bytes.as_ref().map_or_else(Vec::new, |name| fs::read(self.record.join(name)).unwrap())
                };
                let (content, bytes) = if kept.as_ref() == Some(now) {
                    (now.clone(), whole(now))
                } else {
                    let old = kept.clone().unwrap_or_default();
                    match (loss, random.below(4)) {
                        (Loss::Name(_) | Loss::AllNamesBut(_), _) | (Loss::Some(_), 0) => (now.clone(), whole(now)),
                        (Loss::Zeros, _) | (Loss::Some(_), 1) => (now.clone(), vec![0; whole(now).len()]),
                        (Loss::Some(_), 2) => {
                            let half = whole(now).len() / 2;
                            (old, whole(now)[..half].to_vec())
                        }
                        _ => (old.clone(), whole(&old)),
                    }
                };
                fs::write(at, bytes).unwrap();
                if content.stamped {
                    let one = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1);
                    fs::File::options().write(true).open(at).unwrap().set_modified(one).unwrap();
                }
                if let Some(mode) = content.mode {
                    fs::set_permissions(at, fs::Permissions::from_mode(mode)).unwrap();
                }
                written.insert(ino, at.to_owned());
            }
        }
    }
}
