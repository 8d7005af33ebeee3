//! Copies a tree, on one machine or to another.
//!
//! A [`sender`] lists the source and reads what is wanted; a [`receiver`] compares, writes, verifies
//! and gives names. They know each other only by the messages of [`wire`], which a [`session::Link`]
//! carries: between threads of one process for a local copy, over encrypted connections for another
//! machine. So a local copy is the same program as a remote one, without a network.
//!
//! The crate never prints, never reads the environment, never exits.

mod device;
pub mod entry;
pub mod error;
pub mod judgement;
pub mod local;
mod names;
pub mod options;
pub mod overlap;
pub mod owners;
mod pool;
pub mod probe;
pub mod queue;
pub mod receiver;
pub mod sender;
pub mod session;
pub mod transport;
pub mod wire;
mod xattrs;

pub use fullbore_engine::filter;
