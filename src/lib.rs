//! A build graph for model artifacts.
//!
//! Floors, each importing only lower ones (`tests/floors.rs` holds this):
//!
//! | floor | modules |
//! | --- | --- |
//! | 0 | [`digest`], [`canon`], [`near`], [`fsx`] |
//! | 1 | [`model`], [`jsonedit`] |
//! | 2 | [`tensors`] |
//! | 3 | [`kinds`] |
//! | 4 | [`store`] |
//! | 5 | [`graph`] |
//! | 6 | [`plan`], [`audit`] |
//! | 7 | [`exec`] |
//! | 8 | [`sched`] |
//! | 9 | [`front`] |
//! | 10 | [`cli`] |

pub mod audit;
pub mod canon;
pub mod cli;
pub mod digest;
pub mod exec;
pub mod front;
pub mod fsx;
pub mod graph;
pub mod jsonedit;
pub mod kinds;
pub mod model;
pub mod near;
pub mod plan;
pub mod sched;
pub mod store;
pub mod tensors;
