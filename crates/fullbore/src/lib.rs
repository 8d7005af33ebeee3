//! The fullbore program, as a library.
//!
//! `program` runs a command from the command line to the exit code. `cli` has the
//! flags, `settings` merges them with the environment and the settings file, and
//! `progress`, `report` and `stdio` show what happens. The work is in the other
//! crates; errors and events are in `fullbore_engine::run`.

#![forbid(unsafe_code)]

/// The version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

pub mod apt;
pub mod cli;
pub mod confirm;
pub mod convert;
pub mod copy;
pub mod divert;
pub mod hook;
pub mod manual;
pub mod method;
pub mod namespace;
pub mod nosync;
pub mod pdiff;
pub mod program;
pub mod progress;
pub mod report;
pub mod settings;
pub mod stdio;
