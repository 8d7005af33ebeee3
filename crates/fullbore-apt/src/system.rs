//! APT on this machine: its configuration, sources, keyrings, credentials and proxies.

pub mod configuration;
pub mod files;
pub mod proxies;
pub mod sources;
