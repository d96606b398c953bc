//! A build graph for model artifacts.
//!
//!
//! The `graftwerk` program is a thin shell around this library, and everything that it answers can be asked here, too.
//! A [`front::Project`] is a graph, its lock and its store; a question gives data, and what happens meanwhile comes by a
//! channel:
//!
//! ```
//! use std::sync::{Arc, atomic::AtomicBool, mpsc};
//! use graftwerk::front::{Location, Looking, Project};
//!
//! # let dir = tempfile::tempdir()?;
//! std::fs::create_dir(dir.path().join("model"))?;
//! std::fs::write(dir.path().join("model/config.json"), "{\"n\": 1}")?;
//! std::fs::write(
//!     dir.path().join("graph.toml"),
//!     "[source]\nmodel = { folder = \"model\" }\n\
//!      [node.edited]\nkind = \"edit\"\ninputs.model = \"model\"\nset.\"config.json\" = { \"/n\" = 2 }\n",
//! )?;
//!
//! let project = Project::open(&Location { dir: dir.path().to_owned(), ..Location::default() })?;
//! let (events, _heard) = mpsc::channel();
//! let cancel = Arc::new(AtomicBool::new(false));
//! let plan = project.plan(&[], Looking::default(), &events, &cancel)?;
//! assert_eq!((plan.steps[0].node.as_str(), plan.steps[0].action), ("edited", "run"));
//! assert_eq!(plan.steps[0].reasons[0].to_string(), "never built");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A tour
//!
//! - [`graph`] reads graph.toml: names, spans, near names, cycles. [`graph::Graph::parse`] is text in, data or
//!   diagnostics out.
//! - [`model`] has the data that everything is about: a [`model::tree::Tree`] lists a folder,
//!   [`model::recipe::Ingredients`] is all that may change an output, [`model::run::RunRecord`] is one attempt.
//! - [`kinds`] says what a node does; each kind is a file behind [`kinds::Kind`], and knows neither store nor graph.
//! - [`tensors`] is the one strict reader of safetensors files and their index.
//! - [`store`] keeps it all, [`audit`] looks after what is kept, and [`attest`] signs what is said of it.
//! - [`plan`] finds out what must run and why, [`sched`] runs it, [`exec`] isolates what is a process.
//! - [`diff`] compares two checkpoints, files and values.
//! - [`fsx`] is under all of that: every call that changes the disk passes a place where a test can stop the program.
//!
//! Floors, each importing only lower ones (`tests/floors.rs` holds this):
//!
//! | floor | modules |
//! | --- | --- |
//! | 0 | [`digest`], [`canon`], [`near`], [`fsx`] |
//! | 1 | [`model`], [`jsonedit`], [`size`], [`host`] |
//! | 2 | [`tensors`], [`gpu`] |
//! | 3 | [`kinds`] |
//! | 4 | [`store`] |
//! | 5 | [`graph`] |
//! | 6 | [`plan`], [`audit`], [`attest`], [`diff`], [`engine`] |
//! | 7 | [`exec`], [`window`] |
//! | 8 | [`sched`] |
//! | 9 | [`front`] |
//! | 10 | [`cli`] |

pub mod attest;
pub mod audit;
pub mod canon;
pub mod cli;
pub mod diff;
pub mod digest;
pub mod engine;
pub mod exec;
pub mod front;
pub mod fsx;
pub mod gpu;
pub mod graph;
pub mod host;
pub mod jsonedit;
pub mod kinds;
pub mod model;
pub mod near;
pub mod plan;
pub mod sched;
pub mod size;
pub mod store;
pub mod tensors;
pub mod window;
