//! APT on this machine: its configuration, sources, keyrings, credentials and proxies.

pub mod configuration;
pub mod files;
pub(crate) mod parts;
pub mod proxies;
pub mod sources;
