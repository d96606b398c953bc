//! What can keep a command from its answer, and the exit code that says so.

use std::path::PathBuf;

use crate::attest::AttestError;
use crate::audit::archive::ArchiveError;
use crate::audit::hold::HoldError;
use crate::graph::lock::{Drift, LockError};
use crate::graph::{Diagnostics, SelectError};
use crate::store::StoreError;
use crate::store::survey::Damage;

/// An error of a command.
#[derive(Debug, thiserror::Error)]
pub enum FrontError {
    /// There is no graph to read.
    #[error("cannot read {}: {source}", path.display())]
    NoGraph {
        /// Where it should be.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The graph is wrong.
    #[error(transparent)]
    Graph(#[from] Diagnostics),
    /// A name on the command line is wrong.
    #[error("{}", errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Select {
        /// One error a name.
        errors: Vec<SelectError>,
    },
    /// The lock is damaged.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// `--locked`, and a source is not what the lock says.
    #[error("graph.lock does not hold: {}", list(drifts))]
    Drift {
        /// The sources.
        drifts: Vec<Drift>,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Several sources can't be taken.
    #[error("{}", errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Sources {
        /// One error a source.
        errors: Vec<StoreError>,
    },
    /// Nothing was built yet, and a question makes no store.
    #[error("there is no store yet at {}", path.display())]
    NoStore {
        /// Where it would be.
        path: PathBuf,
    },
    /// There is no archive to read.
    #[error("cannot read {}: {source}", path.display())]
    NoArchive {
        /// Where it should be.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// An archive can't be taken in or made.
    #[error(transparent)]
    Archive(ArchiveError),
    /// A key, a signature or a list of digests can't be used, or a signature does not hold.
    #[error(transparent)]
    Attest(AttestError),
    /// A node has no tree that could be shown.
    #[error("{node} is not built: {why}")]
    NotBuilt {
        /// The node.
        node: String,
        /// Why not.
        why: String,
    },
    /// A node has no tree that may be used: what it waits for failed or does not hold.
    #[error("{node} is blocked by {}", by.join(", "))]
    Blocked {
        /// The node.
        node: String,
        /// By which nodes.
        by: Vec<String>,
    },
    /// An argument means nothing here.
    #[error("{what}")]
    Argument {
        /// What is wrong with it.
        what: String,
        /// What to do.
        hint: Option<String>,
    },
    /// What is damaged must be known to say what nobody needs: nothing was deleted.
    #[error("nothing was deleted, because the store is damaged: {}", damages(damage))]
    Unsafe {
        /// The damage.
        damage: Vec<Damage>,
    },
    /// The user stopped it.
    #[error("stopped")]
    Interrupted,
    /// The runtime could not be set up.
    #[error("cannot start: {0}")]
    Runtime(std::io::Error),
}

/// A result of the front.
pub type Result<T> = std::result::Result<T, FrontError>;

fn list(drifts: &[Drift]) -> String {
    let one = |d: &Drift| {
        let id = |s: &Option<crate::graph::lock::LockedSource>| {
            s.as_ref().map_or_else(|| "nothing".to_owned(), |s| s.tree.short())
        };
        format!("{} is {}, the lock has {}", d.source, id(&d.new), id(&d.old))
    };
    drifts.iter().map(one).collect::<Vec<_>>().join("; ")
}

impl FrontError {
    /// The error of sources that can't be taken: all of them are named.
    pub(super) fn of_sources(mut errors: Vec<StoreError>) -> Self {
        match errors.pop() {
            Some(one) if errors.is_empty() => FrontError::Store(one),
            Some(last) => {
                errors.push(last);
                FrontError::Sources { errors }
            }
            None => FrontError::Interrupted,
        }
    }

    /// The exit code: 1 a step failed or is not built, 2 usage or graph, 3 a damaged store, 130 interrupted.
    pub fn exit_code(&self) -> u8 {
        match self {
            FrontError::NoGraph { .. }
            | FrontError::NoArchive { .. }
            | FrontError::Graph(_)
            | FrontError::Select { .. }
            | FrontError::Lock(_)
            | FrontError::Drift { .. }
            | FrontError::Argument { .. }
            | FrontError::Archive(ArchiveError::Bad { .. } | ArchiveError::Exists { .. })
            | FrontError::Attest(AttestError::Bad { .. }) => 2,
            FrontError::Store(StoreError::Cancelled) | FrontError::Interrupted => 130,
            FrontError::Store(e) if e.is_damage() => 3,
            FrontError::Unsafe { .. } => 3,
            FrontError::Store(_)
            | FrontError::NoStore { .. }
            | FrontError::Sources { .. }
            | FrontError::Archive(_)
            | FrontError::Attest(_)
            | FrontError::NotBuilt { .. }
            | FrontError::Blocked { .. }
            | FrontError::Runtime(_) => 1,
        }
    }

    /// What to do next, where it can be said in a line. A graph's diagnostics carry their own.
    pub fn hint(&self) -> Option<String> {
        match self {
            FrontError::NoGraph { .. } => Some(
                "run it where graph.toml is, or pass -C DIR or --graph FILE; `graftwerk init` begins one. For an import, \
                 and for IDs, --store DIR is enough"
                    .to_owned(),
            ),
            FrontError::Select { errors } => errors.first().map(SelectError::hint),
            FrontError::NoStore { .. } => Some(
                "the first `graftwerk build` makes it; one that lies elsewhere is named by --store DIR, or by `store` in \
                 graph.toml"
                    .to_owned(),
            ),
            FrontError::NoArchive { source, .. } if source.kind() == std::io::ErrorKind::NotFound => Some(
                "name a file that `graftwerk export NODE --archive FILE` wrote, from where -C says; `-` is standard input"
                    .to_owned(),
            ),
            FrontError::Drift { .. } => Some(
                "`graftwerk update` takes the sources as they are; without --locked, `build` does so itself".to_owned(),
            ),
            FrontError::Store(e) => e.hint(),
            FrontError::Sources { errors } => errors.iter().find_map(StoreError::hint),
            FrontError::Archive(e) => e.hint(),
            FrontError::Attest(e) => e.hint(),
            FrontError::NotBuilt { node, .. } => {
                Some(format!("`graftwerk build {node}` builds it, `graftwerk why {node}` says why it must"))
            }
            FrontError::Blocked { by, .. } => {
                let first = by.first().map_or("it", String::as_str);
                Some(format!("`graftwerk build {first}` says what is wrong there"))
            }
            FrontError::Argument { hint, .. } => hint.clone(),
            FrontError::Unsafe { .. } => Some("`graftwerk repair` mends what can be mended".to_owned()),
            FrontError::Graph(_)
            | FrontError::Lock(_)
            | FrontError::NoArchive { .. }
            | FrontError::Interrupted
            | FrontError::Runtime(_) => None,
        }
    }
}

// A few of them: the first shows where to look, and `verify` lists all.
fn damages(damage: &[Damage]) -> String {
    let some: Vec<String> = damage.iter().take(5).map(|d| format!("{} {}", d.path.display(), d.what)).collect();
    let more = damage.len().saturating_sub(some.len());
    some.join("; ") + &if more > 0 { format!("; and {more} more") } else { String::new() }
}

impl From<HoldError> for FrontError {
    fn from(e: HoldError) -> Self {
        match e {
            HoldError::Store(e) => FrontError::Store(e),
            HoldError::Damaged(damage) => FrontError::Unsafe { damage },
            HoldError::Graph(e) => FrontError::Graph(e),
            HoldError::Lock(e) => FrontError::Lock(e),
        }
    }
}

impl From<Vec<SelectError>> for FrontError {
    fn from(errors: Vec<SelectError>) -> Self {
        FrontError::Select { errors }
    }
}

impl From<ArchiveError> for FrontError {
    fn from(e: ArchiveError) -> Self {
        match e {
            ArchiveError::Store(e) => FrontError::Store(e),
            other => FrontError::Archive(other),
        }
    }
}

impl From<AttestError> for FrontError {
    fn from(e: AttestError) -> Self {
        match e {
            AttestError::Cancelled => FrontError::Interrupted,
            other => FrontError::Attest(other),
        }
    }
}

impl From<SelectError> for FrontError {
    fn from(e: SelectError) -> Self {
        FrontError::Select { errors: vec![e] }
    }
}
