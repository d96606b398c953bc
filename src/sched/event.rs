//! What happens during a build, as data. Events go up by a channel; only `cli/` prints.

use crate::fsx::lock::Holder;
use crate::plan::Reason;

/// Something that happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// A source is being looked at.
    Scanning {
        /// Its name.
        source: String,
        /// Bytes hashed.
        done: u64,
        /// Bytes to hash.
        total: u64,
    },
    /// A source is known.
    Scanned {
        /// Its name.
        source: String,
        /// Bytes that had to be read.
        hashed_bytes: u64,
        /// Whether some of them will be read again next time: of a file that was written a moment ago, the time says
        /// nothing yet.
        unsettled: bool,
    },
    /// What the build will do, before anything runs.
    Planned {
        /// Steps that run.
        run: usize,
        /// Steps that wait for those.
        waiting: usize,
        /// Steps whose tree is there.
        fresh: usize,
        /// Steps that can't run.
        blocked: usize,
    },
    /// A step starts.
    Started {
        /// The node.
        node: String,
        /// Its kind.
        kind: &'static str,
        /// Why.
        reasons: Vec<Reason>,
    },
    /// A step says how far it is.
    Progress {
        /// The node.
        node: String,
        /// Bytes done.
        done: u64,
        /// Bytes in total.
        total: u64,
    },
    /// A step says something.
    Line {
        /// The node.
        node: String,
        /// One line.
        line: String,
    },
    /// A step waits for another process that builds the same.
    Waiting {
        /// The node.
        node: String,
        /// For whom.
        holder: Option<Holder>,
    },
    /// A step ended.
    Finished {
        /// The node.
        node: String,
        /// Its kind.
        kind: &'static str,
        /// How.
        end: End,
        /// How long it took.
        seconds: f64,
    },
    /// Something that a person should know.
    Notice(String),
}

/// How a step ended.
#[derive(Debug, Clone)]
pub enum End {
    /// It made its tree.
    Built {
        /// Bytes written.
        written_bytes: u64,
        /// A check's verdict.
        verdict: Option<bool>,
        /// What it reports.
        notes: Vec<String>,
    },
    /// Somebody had made it meanwhile.
    Reused,
    /// It made nothing.
    Failed {
        /// Why.
        error: String,
        /// What to do.
        hint: Option<String>,
        /// The last lines of its log.
        tail: Vec<String>,
        /// Where the whole log is.
        log: Option<std::path::PathBuf>,
    },
    /// It was stopped.
    Cancelled,
}

/// Where events go.
pub type Events = std::sync::mpsc::Sender<Event>;
