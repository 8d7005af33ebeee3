//! What fullbore's tests stand on: archives, mirrors that misbehave, and faults.
//!
//! [`archive`] makes small signed Debian archives in several states, the same bytes for
//! the same seed, and [`bulk`] large ones for benchmarks. [`server`] serves them over HTTP/1.1, TLS and HTTP/2 and breaks every
//! rule a real mirror was seen to break. [`forge`] makes signed indexes lie, [`faults`] kills
//! programs and fills disks. Nothing here shares code with the program under test: hashes,
//! HTTP and formats are written a second time on purpose, so that one mistake cannot hide
//! another.
#![forbid(unsafe_code)]

pub mod archive;
mod builder;
pub mod bulk;
pub mod compression;
pub mod deb;
pub mod digest;
mod extras;
pub mod faults;
mod files;
mod flat;
pub mod forge;
mod model;
pub mod pdiff;
pub mod power_cut;
pub mod process;
mod publish;
pub mod random;
pub mod server;
pub mod signer;
pub mod slowdisk;
mod stanza;
pub mod verify;
