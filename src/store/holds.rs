//! What a running process relies on, said so that a collector leaves it.
//!
//! ```text
//! a build                                  a collector
//!                                          1  survey the store, without a lock
//! 1  take locks/gc, shared                 2  take locks/gc alone
//! 2  append ids to tmp/<session>/holds     3  read the holds of living sessions
//! 3  let go                                4  then roots, links, seats and pins again
//! 4  only now look whether bytes are there 5  move what nobody holds out of the way
//!                                          6  let go, then remove it
//! ```
//!
//! Why nothing that a build relies on vanishes. The two critical sections exclude each other:
//!
//! - The build's came first: the collector's step 3 reads its holds, and leaves them alone.
//! - The collector's came first: the build's step 4 comes after the sweep. It sees what is gone as gone, and makes it
//!   again; a blob that it publishes finds its place free.
//!
//! So a process never acts on a look that is older than its hold: whatever remembers looks within a process
//! ([`Store::lacking`]) is asked only for trees that it holds. A tree counts as held with all blobs that its listing names,
//! so the listing is placed before the tree is held; blobs are held one by one until there is one ([`Store::publish`]).
//!
//! A session's holds go when its process does. What it made is in `roots/` by then, and step 4 comes behind step 3: a
//! session that is gone in 3 has written its roots before. A process that is killed relies on nothing any more.
//!
//! Nobody holds `locks/gc` shared for longer than one write takes, so a long build never keeps a collector waiting.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::digest::{BlobId, Digest, TreeId};
use crate::fsx;
use crate::fsx::lock::{FileLock, Holder, Tried, try_lock, try_lock_shared};
use crate::store::Store;
use crate::store::error::{Result, StoreError};

/// The lock, below the store.
pub(crate) const LOCK: &str = "locks/gc";

/// The name of the file in a session's folder.
pub(crate) const FILE: &str = "holds";

/// What this process holds.
pub(crate) struct Holds {
    lock: PathBuf,
    file: PathBuf,
    // Nobody can be told; and whoever only asks needs nothing to stay.
    read_only: bool,
    held: Mutex<Held>,
    listener: Mutex<Option<Listener>>,
}

#[derive(Default)]
struct Held {
    trees: HashSet<TreeId>,
    blobs: HashSet<BlobId>,
}

type Busy = Box<dyn Fn(Option<&Holder>) + Send>;

struct Listener {
    busy: Busy,
    cancelled: Box<dyn Fn() -> bool + Send>,
}

/// What a living process holds.
#[derive(Debug, Clone, Default)]
pub struct SessionHolds {
    /// Who it is, if it has said so.
    pub holder: Option<Holder>,
    /// The trees that it relies on.
    pub trees: Vec<TreeId>,
    /// The blobs that it relies on.
    pub blobs: Vec<BlobId>,
}

/// Somebody hears of waits as long as this lives.
pub struct Listening<'s> {
    store: &'s Store,
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        *unpoisoned(&self.store.holds.listener) = None;
    }
}

fn unpoisoned<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Holds {
    pub(crate) fn new(lock: PathBuf, file: PathBuf, read_only: bool) -> Self {
        Self { lock, file, read_only, held: Mutex::default(), listener: Mutex::default() }
    }

    // One lock and one write, however many there are. `held` stays locked until it is written: another thread must not
    // take for held what is not.
    fn add(&self, trees: impl Iterator<Item = TreeId>, blobs: impl Iterator<Item = BlobId>) -> Result<()> {
        let mut held = unpoisoned(&self.held);
        let trees: HashSet<TreeId> = trees.filter(|t| !held.trees.contains(t)).collect();
        let blobs: HashSet<BlobId> = blobs.filter(|b| !held.blobs.contains(b)).collect();
        if self.read_only || trees.is_empty() && blobs.is_empty() {
            return Ok(());
        }
        let mut text = String::with_capacity(70 * (trees.len() + blobs.len()));
        let mut line = |class: &str, d: &Digest| {
            text.push_str(class);
            text.push_str(&d.hex());
            text.push('\n');
        };
        trees.iter().for_each(|t| line("tree ", &t.0));
        blobs.iter().for_each(|b| line("blob ", &b.0));
        let _shared = self.shared()?;
        fsx::append(&self.file, text.as_bytes())?;
        held.trees.extend(trees);
        held.blobs.extend(blobs);
        Ok(())
    }

    fn shared(&self) -> Result<FileLock> {
        let mut pause = Duration::from_millis(1);
        let mut told = None;
        loop {
            let holder = match try_lock_shared(&self.lock)? {
                Tried::Held(lock) => return Ok(lock),
                Tried::Busy(holder) => holder,
            };
            // Most sweeps are over before anybody could read that they are waited for.
            if let Some(l) = unpoisoned(&self.listener).as_ref() {
                if pause >= Duration::from_millis(50) && told.as_ref() != Some(&holder) {
                    (l.busy)(holder.as_ref());
                    told = Some(holder);
                }
                if (l.cancelled)() {
                    return Err(StoreError::Cancelled);
                }
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }
}

impl Store {
    /// Holds trees, with every blob that their listings name: as long as this process lives, no collector takes their
    /// bytes. To be called before anybody looks whether they are there, and with listings that are placed. Waits for a
    /// sweep that is going on. Errors: Cancelled.
    pub fn hold_trees(&self, trees: impl IntoIterator<Item = TreeId>) -> Result<()> {
        self.holds.add(trees.into_iter(), std::iter::empty())
    }

    /// Holds blobs, as [`Store::hold_trees`] does trees: for what no listing names yet.
    pub fn hold_blobs(&self, blobs: impl IntoIterator<Item = BlobId>) -> Result<()> {
        self.holds.add(std::iter::empty(), blobs.into_iter())
    }

    /// Has `busy` hear for whom this process waits before it can hold something, and `cancelled` end such a wait.
    pub fn listen(
        &self,
        busy: impl Fn(Option<&Holder>) + Send + 'static,
        cancelled: impl Fn() -> bool + Send + 'static,
    ) -> Listening<'_> {
        let listener = Listener { busy: Box::new(busy), cancelled: Box::new(cancelled) };
        *unpoisoned(&self.holds.listener) = Some(listener);
        Listening { store: self }
    }

    /// Keeps everybody from holding anything new: for a sweep. Waits for those who are saying what they hold, which takes
    /// them no time. `None` when cancelled.
    pub fn alone(&self, what: &str, cancelled: &dyn Fn() -> bool) -> Result<Option<FileLock>> {
        loop {
            // Who is in its text, if somebody is, was killed: those who share it leave no name.
            if let Tried::Held(lock) = try_lock(&self.holds.lock, what, false)? {
                return Ok(Some(lock));
            }
            if cancelled() {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// What every other living process holds. Exact only while one is [alone](Self::alone). Errors: Damaged for a file
    /// that is not what this program writes.
    pub fn sessions(&self) -> Result<Vec<SessionHolds>> {
        let tmp = self.dir.join("tmp");
        super::session::sweep(&tmp);
        let mut all = Vec::new();
        for name in fsx::names(&tmp)? {
            let text = name.to_string_lossy();
            let Some(stem) = text.strip_suffix(".lock") else { continue };
            let folder = tmp.join(stem);
            if folder == self.session.dir() {
                continue;
            }
            // Locked by whoever lives; it may end at any moment.
            let holder = fsx::read_optional(&tmp.join(&name))?.and_then(|b| serde_json::from_slice(&b).ok());
            let mut session = SessionHolds { holder, ..SessionHolds::default() };
            let path = folder.join(FILE);
            for line in fsx::read_optional(&path)?.unwrap_or_default().split_inclusive(|b| *b == b'\n') {
                // The end of a line that is being written; whoever writes it does not rely on it yet.
                let Some(line) = line.strip_suffix(b"\n") else { continue };
                let line = String::from_utf8_lossy(line);
                match line.split_once(' ').map(|(class, hex)| (class, Digest::from_hex(hex))) {
                    Some(("tree", Ok(d))) => session.trees.push(TreeId(d)),
                    Some(("blob", Ok(d))) => session.blobs.push(BlobId(d)),
                    _ => {
                        let what = format!("has a line that says nothing: {}", crate::canon::quote(line.as_bytes()));
                        return Err(StoreError::Damaged { path, what });
                    }
                }
            }
            all.push(session);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn tree(n: u8) -> TreeId {
        TreeId(Digest::of(&[n]))
    }

    #[test]
    fn others_see_what_a_living_process_holds_and_nothing_of_the_dead() {
        let t = tempfile::tempdir().unwrap();
        let (a, b) = (Store::open(t.path()).unwrap(), Store::open(t.path()).unwrap());
        a.hold_trees([tree(1), tree(2)]).unwrap();
        a.hold_trees([tree(2)]).unwrap();
        a.hold_blobs([BlobId(Digest::of(b"x"))]).unwrap();
        let seen = b.sessions().unwrap();
        assert_eq!(seen.len(), 1, "a session does not see itself");
        assert_eq!((seen[0].trees.len(), seen[0].blobs.len()), (2, 1));
        assert_eq!(seen[0].holder.as_ref().unwrap().pid, std::process::id());
        drop(a);
        assert!(b.sessions().unwrap().is_empty());
    }

    #[test]
    fn a_hold_waits_for_a_sweep_and_says_for_whom() {
        let t = tempfile::tempdir().unwrap();
        let (a, b) = (Store::open(t.path()).unwrap(), Store::open(t.path()).unwrap());
        let alone = b.alone("gc", &|| false).unwrap().unwrap();
        let (told, hears) = std::sync::mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&stop);
        std::thread::scope(|s| {
            let _listening = a.listen(move |h| told.send(h.cloned()).unwrap(), move || ends.load(Ordering::Relaxed));
            let holds = s.spawn(|| a.hold_trees([tree(1)]));
            assert_eq!(hears.recv().unwrap().unwrap().what, "gc");
            drop(alone);
            holds.join().unwrap().unwrap();
            let alone = b.alone("gc", &|| false).unwrap().unwrap();
            a.hold_trees([tree(1)]).unwrap();
            stop.store(true, Ordering::Relaxed);
            assert!(matches!(a.hold_trees([tree(2)]), Err(StoreError::Cancelled)));
            drop(alone);
        });
        assert_eq!(b.sessions().unwrap()[0].trees, [tree(1)]);
        assert!(std::fs::read(t.path().join(LOCK)).unwrap().is_empty(), "whoever lets go takes its name away");
    }
}
