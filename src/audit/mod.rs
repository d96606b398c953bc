//! Looking after a store: who holds what, what can go, what is damaged, and moving it elsewhere.

pub mod archive;
pub mod gc;
pub mod hold;
pub mod repair;
pub mod verify;
