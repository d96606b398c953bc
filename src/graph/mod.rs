//! What graph.toml says: sources, nodes, and how they hang together. Text in, data out: nothing here opens a file but
//! the reader and writer of graph.lock.
//!
//! ```text
//! text ─ toml ─> tables with spans ─ source, node ─> specs ─ links ─> Graph ─ select ─> Selection
//! ```
//!
//! Every error is a [`Diagnostic`]: file, line and column, labelled stretches of the text, and what to do. As many as
//! sensible are found in one go. Names are resolved once, in [`select()`]; below it nobody sees a name that may be wrong.

pub mod diagnostic;
mod document;
pub mod engine;
pub mod filter;
mod links;
pub mod lock;
pub mod name;
pub mod node;
mod schema;
pub mod select;
pub mod source;
pub mod window;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::kinds::{self, Kind};

pub use diagnostic::{Diagnostic, Diagnostics, Label, Problem, Span};
pub use engine::EngineSpec;
pub use filter::{Excludes, Filter};
pub use lock::Lock;
pub use name::Name;
pub use node::{InputSpec, NodeSpec, Ref};
pub use schema::schema;
pub use select::{SelectError, Selection, select};
pub use source::{SourceKind, SourceSpec};
pub use window::WindowSpec;

use diagnostic::{Problems, Text};

/// A graph.toml whose names all resolve and whose nodes form no cycle.
#[derive(Debug, Clone)]
pub struct Graph {
    /// The sources by name.
    pub sources: BTreeMap<Name, SourceSpec>,
    /// The windows by name.
    pub windows: BTreeMap<Name, WindowSpec>,
    /// The nodes by name.
    pub nodes: BTreeMap<Name, NodeSpec>,
    /// The nodes, each behind all that it takes as input or is gated by. It follows from the names alone, not from
    /// the order in the file.
    pub order: Vec<Name>,
    /// The container engine.
    pub engine: EngineSpec,
    /// Where the store lies, relative to graph.toml's folder, if it says so.
    pub store: Option<String>,
    text: Arc<Text>,
}

impl Graph {
    /// Reads the text of a graph. `file` is what messages call it. Errors: everything that is wrong with it, in the
    /// order of the text.
    pub fn parse(file: &str, text: &str) -> Result<Graph, Diagnostics> {
        Self::parse_with(file, text, kinds::all())
    }

    /// As [`Graph::parse`], from bytes; those that are no UTF-8 are an error with their place.
    pub fn parse_bytes(file: &str, bytes: &[u8]) -> Result<Graph, Diagnostics> {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::parse(file, text),
            Err(e) => {
                // What stands before the wrong byte is kept, so that the place can be shown.
                let text = Text::new(file, &String::from_utf8_lossy(&bytes[..e.valid_up_to()]));
                let at = Span::new(e.valid_up_to(), e.valid_up_to());
                let byte = bytes.get(e.valid_up_to()).copied().unwrap_or_default();
                let mut problems = Problems::default();
                problems.push(|| {
                    Problem::new(at, format!("the byte 0x{byte:02x} is no UTF-8"), "not text from here on")
                        .hint("save the file as UTF-8")
                });
                Err(problems.finish(&Arc::new(text)))
            }
        }
    }

    /// As [`Graph::parse`], with other kinds than those of this program.
    pub fn parse_with(file: &str, text: &str, kinds: &[&'static dyn Kind]) -> Result<Graph, Diagnostics> {
        let text = Arc::new(Text::new(file, text));
        let mut problems = Problems::default();
        let Some(root) = document::read(&text, &mut problems) else {
            return Err(problems.finish(&text));
        };
        let parts = document::parts(&root, &mut problems);
        let sources = source::read_all(&parts.sources, &mut problems);
        let engine = engine::read(parts.engine.as_ref(), &mut problems);
        let windows = window::read_all(&parts.windows, &mut problems);
        let drafts = node::read_all(&parts.nodes, kinds, &mut problems);
        let declared = links::declare(&parts, kinds, &mut problems);
        let (nodes, order) = links::resolve(drafts, &sources, &declared, &mut problems);
        window::check(&nodes, &windows, &mut problems);
        if problems.is_empty() {
            Ok(Graph { sources, windows, nodes, order, engine, store: parts.store, text })
        } else {
            Err(problems.finish(&text))
        }
    }

    /// The node of this name.
    pub fn node(&self, name: &str) -> Option<&NodeSpec> {
        self.nodes.get(name)
    }

    /// The source of this name.
    pub fn source(&self, name: &str) -> Option<&SourceSpec> {
        self.sources.get(name)
    }

    /// Line and column of a byte offset in graph.toml, both from 1, the column in characters.
    pub fn locate(&self, offset: usize) -> (usize, usize) {
        self.text.locate(offset)
    }
}
