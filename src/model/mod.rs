//! The central data types: [`path::RelPath`], [`tree::Tree`], [`recipe::Recipe`] and [`run::RunRecord`]. Data only: nothing here opens a file.

pub mod path;
pub mod recipe;
pub mod run;
pub mod tree;
