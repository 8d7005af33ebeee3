//! Archives, misbehaving servers and faults for fullbore's tests, benchmarks and demonstration.
//!
//! | module | what for |
//! |---|---|
//! | [`archive`] | small signed Debian archives in several states; the same seed gives the same bytes |
//! | [`bulk`] | large archives for benchmarks (`fullbore-archive`) |
//! | [`server`] | an HTTP/1.1, TLS and HTTP/2 server with the faults of real mirrors (`fullbore-testserver`) |
//! | [`forge`] | signed indexes with false content |
//! | [`odd_archives`] | small archives with the oddities of real ones |
//! | [`faults`], [`power_cut`], [`slowdisk`] | kills, full disks, lost writes, slow disks |
//! | [`ports`] | ports for other servers |
//!
//! The testkit shares no code with the programs under test. It implements hashes, HTTP and formats a second time, so
//! that one mistake cannot hide another. It is no library for production: helpers panic where a test should fail.
//!
//! # Example
//!
//! ```no_run
//! use fullbore_testkit::archive::ArchiveBuilder;
//! use fullbore_testkit::server::{Fault, FaultRule, PathMatch, Server};
//!
//! // Needs gpg, which signs the archive.
//! let archive = ArchiveBuilder::tiny("/tmp/archive").build()?;
//! let server = Server::start(&archive.state(0).root)?;
//! server.add_fault(FaultRule::always(PathMatch::Suffix(".deb".into()), Fault::Status(404)));
//! println!("apt would fail with {}", server.url());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod archive;
mod builder;
pub mod bulk;
pub mod compression;
pub mod deb;
pub mod demonstration;
pub mod digest;
mod extras;
pub mod faults;
mod files;
mod flat;
pub mod forge;
mod model;
pub mod odd_archives;
pub mod pdiff;
pub mod ports;
pub mod power_cut;
pub mod process;
mod publish;
pub mod random;
pub mod server;
pub mod signer;
pub mod slowdisk;
mod stanza;
pub mod verify;
