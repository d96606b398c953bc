//! What a build will do and why.
//!
//! [`Machine`] walks the selected nodes. A node whose inputs are known gets its recipe; the recipe finds a realisation
//! or needs a run; what needs a run wants its inputs present. `plan` looks at where that comes to rest, `build` runs
//! what is ready, tells the machine how it ended, and goes on.
//!
//! ```text
//!            inputs known                  realisation found, bytes there
//!  Waiting ───────────────> (recipe) ────────────────────────────────────> Present
//!     ^                        │  └─ realisation found, nobody wants bytes ─> Known
//!     │ input re-made          │ none, or bytes gone
//!     │ differently            v   inputs present, gates passed
//!     └────────────────────  Needed ──────────────────────────> Ready ──> Running ──> Present | Failed
//!  above failed: Skipped      gate failed: Blocked
//! ```

mod difference;
pub(crate) mod explain;
pub mod machine;
mod prepare;
pub mod reason;
mod space;

pub use machine::{HostTools, Job, Machine, Setting, State};
pub use reason::Reason;
