//! Copies a tree, on one machine or to another.
//!
//! A [`sender`] lists the source and reads what is wanted; a [`receiver`] compares, writes, verifies
//! and gives names. They know each other only by the messages of [`wire`], which a [`session::Link`]
//! carries: between threads of one process for a local copy, over encrypted connections for another
//! machine. So a local copy is the same program as a remote one, without a network.
//!
//! [`run::run`] is the near end of a copy from settings to a report; [`server`] is the far end, which ssh starts.
//! [`probe::run`] measures what a copy would be limited by.
//!
//! The crate never prints, never reads the environment, never exits.

/// The version of the program, which the two ends tell each other.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

mod device;
pub mod entry;
pub mod error;
pub mod judgement;
pub mod local;
mod names;
mod open_files;
pub mod options;
pub mod overlap;
pub mod owners;
pub mod paths;
mod place;
pub mod probe;
pub mod queue;
pub mod reach;
pub mod receiver;
pub mod run;
mod send_program;
pub mod sender;
pub mod server;
pub mod session;
mod ssh_messages;
pub mod transport;
pub mod wire;
mod xattrs;

pub use fullbore_engine::filter;
