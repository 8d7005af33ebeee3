//! APT's lists directory: its indexes, their names, and its lock.
//!
//! [`targets`] says which indexes a source has, by APT's configuration and the source's own options. [`file_name`] gives
//! the name of a file by its address. A program that changes the directory holds its [`Lock`].

pub(crate) mod built_in;
mod languages;
mod lock;
mod names;
mod targets;

pub use languages::{Locale, languages};
pub use lock::{Lock, LockError};
pub use names::file_name;
pub(crate) use targets::base_uri;
pub use targets::{Defaults, IndexTarget, SourceType, targets};
