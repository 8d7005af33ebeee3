//! Copies a tree, on one machine or to another, and says what limits the copy.
//!
//! [`run::run`] copies: settings in, a report out. [`probe::run`] measures what would limit a copy. [`server`] is the
//! far end of either; ssh starts it on the other machine.
//!
//! ```
//! use fullbore_copy::CopySettings;
//! use fullbore_engine::run::events::Event;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let (source, target) = (directory.path().join("photos"), directory.path().join("backup"));
//! # std::fs::create_dir(&source)?;
//! # std::fs::write(source.join("one.jpeg"), "light")?;
//! let settings = CopySettings::new(&source, &target);
//! fullbore_copy::run::run(&settings, &mut |_: Event| {})?;
//! assert_eq!(std::fs::read(target.join("photos/one.jpeg"))?, b"light");
//! # Ok(())
//! # }
//! ```
//!
//! A [`sender`] lists the source and reads the files that the receiver requests. A [`receiver`] compares, writes,
//! verifies and renames. They communicate only through the messages of [`wire`], which a [`session::Link`] carries. A
//! local copy connects them by queues between threads, a remote copy by encrypted connections. So a local copy is the
//! same program as a remote one, without a network.
//!
//! The crate never prints, reads no configuration and never exits. It has its own protocol only, so the other machine
//! needs fullbore, too.

#![warn(unreachable_pub)]

/// The version of this program. The two ends exchange it at the start.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

pub mod chmod;
mod device;
pub mod entry;
pub mod error;
pub mod id_map;
mod item;
mod judgement;
pub mod local;
mod location;
mod names;
mod open_files;
pub mod options;
mod overlap;
mod owners;
pub mod paths;
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
pub use local::LocalCopy;
pub use options::{Compress, Options};
pub use probe::ProbeSettings;
pub use reach::Reach;
pub use run::CopySettings;
