//! Packages into a root without needless syncs.
//!
//! Nothing here prints or reads the environment. System calls for which there is no safe
//! wrapper are in `nosync::kernel` alone.

#![deny(unsafe_code)]

pub mod database;
pub mod divert;
pub mod nosync;
pub mod root;
pub mod unpack;
