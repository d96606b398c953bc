//! Windows: neighbours of a card, which are containers of others, are stopped while a step has the card to itself, and
//! always come back.
//!
//! ```text
//! open:    gate ─ look at all ─ locks ─ intent, durable ─ stop, in order ─ gate free
//! restore: end what is left of the step ─ wait for its memory ─ each in reverse: gate ─ start ─ gate free ─ healthy?
//!          ─ intent gone
//! ```
//!
//! | lock, in [`crate::host::locks`] | who has it |
//! | --- | --- |
//! | `window-gate` | whoever stops or starts neighbours just now, alone |
//! | `window-ID` | the process that opened the window, alone: an intent whose lock is free was left by a crash |
//! | `neighbour-…-users` | everybody who needs the neighbour stopped, together |
//! | `neighbour-…-owed` | everybody who must bring it back, together: it ran before |
//!
//! The last who needs a neighbour stopped brings it back; whoever closes earlier leaves that to the others, whose own
//! intents say so. An intent ([`Intent`]) outlives its process and the boot: [`restore_left`] does what it says, at the
//! begin of every command. Windows are the last kind of lock, behind recipes and GPU leases.

mod intent;
mod keeper;
mod left;
mod locks;
mod open;
mod restore;

use std::time::Duration;

use crate::engine::EngineError;
use crate::fsx::FsError;

pub use intent::{Intent, Neighbour, Record, records};
pub use keeper::WindowKeeper;
pub use left::{Left, LeftWindow, State, any_left, restore_left, status};
pub use open::{GivesWay, OpenWindow, Purpose, gives_way, open};
pub use restore::{Brought, Sick};

/// Hears, line by line, what is being done.
pub type Tell<'a> = &'a (dyn Fn(&str) + Sync);

/// Whether to stop.
pub type Cancelled<'a> = &'a (dyn Fn() -> bool + Sync);

/// Why a window did not open, or did not close as it should.
#[derive(Debug, thiserror::Error)]
pub enum WindowError {
    /// A neighbour is not there.
    #[error("the window `{window}` is to stop the container {name}, and {engine} has none of that name")]
    NoNeighbour {
        /// The window.
        window: String,
        /// The name.
        name: String,
        /// Where the engine is.
        engine: String,
    },
    /// The engine.
    #[error("the window `{window}`: {source}")]
    Engine {
        /// The window.
        window: String,
        /// What it says.
        source: EngineError,
    },
    /// Another engine answers where that of the neighbours was.
    #[error("the window `{window}`: at {address} another engine answers than the one whose containers were stopped")]
    OtherEngine {
        /// The window.
        window: String,
        /// Where.
        address: String,
    },
    /// Neighbours did not come back.
    #[error("{}", sick.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Sick {
        /// Which, and why.
        sick: Vec<Sick>,
    },
    /// The host's folders.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// An intent can't be read.
    #[error("{} {what}: which containers were stopped can't be told from it", path.display())]
    Damaged {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

impl WindowError {
    /// What to do.
    pub fn hint(&self) -> Option<String> {
        match self {
            WindowError::NoNeighbour { name, .. } => {
                Some(format!("`docker ps -a` lists containers; take {name:?} out of `stop`, or write its right name"))
            }
            WindowError::Engine { source, .. } => source.hint(),
            WindowError::OtherEngine { .. } => {
                Some("start that engine, then `graftwerk window restore` brings its containers back".to_owned())
            }
            WindowError::Sick { sick } => {
                let first = sick.first().map_or("NAME", |s| s.name.as_str());
                Some(format!("`docker logs {first}` says more; `graftwerk window status` shows what is still stopped"))
            }
            WindowError::Fs(_) => Some(format!("{} says another folder", crate::host::VARIABLE)),
            WindowError::Damaged { .. } => {
                Some("look with `docker ps -a` whether a container must be started, then remove the file".to_owned())
            }
        }
    }
}

fn engine_error(window: &str) -> impl FnOnce(EngineError) -> WindowError + '_ {
    |source| WindowError::Engine { window: window.to_owned(), source }
}

// How often the engine is asked how a neighbour does.
const LOOK: Duration = Duration::from_millis(200);
