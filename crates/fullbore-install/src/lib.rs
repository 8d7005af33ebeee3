//! Packages into a root without needless syncs, and unpacked in parallel.
//!
//! Nothing here prints or reads the environment. System calls for which there is no safe
//! wrapper are in `nosync::kernel`, `unpack::kernel` and `frontend::kernel` alone.

#![deny(unsafe_code)]

pub mod bootstrap;
pub mod database;
pub mod divert;
pub mod frontend;
pub mod hooks;
pub mod inside;
pub mod install;
pub mod installing;
pub mod nosync;
pub mod order;
pub mod reach;
pub mod reach_as_apt;
pub mod relay;
pub mod resolve;
pub mod root;
pub mod scripts;
pub mod settings;
pub mod skeleton;
pub mod unpack;
