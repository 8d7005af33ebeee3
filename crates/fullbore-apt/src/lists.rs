//! APT's lists directory: what is to be in it, under which names, and who may change it.
//!
//! Which indexes a source has follows APT's configuration and the source's own options
//! ([`targets`]); their names are their addresses ([`names`]); whoever changes the directory
//! holds its lock ([`lock`]).

pub mod built_in;
pub mod languages;
pub mod lock;
pub mod names;
pub mod targets;
