//! Debian package roots: made, extended, and unpacked in parallel.
//!
//! - [`bootstrap::run`] makes a root as mmdebstrap does: a directory, a tar archive, a squashfs image or an OCI image.
//! - [`install::run`] installs packages into an existing root, as its own apt would.
//! - [`unpack`] does the work of `dpkg --unpack` on all cores, for packages that the root does not know yet.
//! - [`nosync`] runs a command whose sync calls return at once, and syncs once when the command has ended.
//! - [`divert`] makes a root's own dpkg and apt-get run without syncs.
//!
//! apt still decides which packages are needed, and dpkg still configures them: this crate replaces neither. It resolves
//! no dependencies, runs no triggers, and upgrades or removes nothing by itself.
//!
//! A package is unpacked without dpkg:
//!
//! ```no_run
//! use std::path::Path;
//!
//! use fullbore_install::unpack::{Archive, Options, Root, examine, unpack};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let root = Root::open(Path::new("/srv/root"))?;
//! let archive = Archive::open(Path::new("hello_2.10-3_amd64.deb"))?;
//! let examined = examine(&root, vec![archive])?;
//! for refused in &examined.refused {
//!     eprintln!("left to dpkg: {}", refused.refusal);
//! }
//! let unpacked = unpack(&root, &examined.batch, Options::default())?;
//! println!("{} files", unpacked.files);
//! # Ok(())
//! # }
//! ```
//!
//! No module prints or reads the environment. System calls without a safe wrapper are in `nosync::kernel`,
//! `unpack::kernel` and `frontend::kernel` alone.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

mod apt_network;
pub mod bootstrap;
mod closure;
mod database;
pub mod divert;
mod dpkg_call;
mod frontend;
pub mod hooks;
mod inside;
pub mod install;
mod installing;
pub mod nosync;
mod relay;
mod resolve;
pub mod root;
mod scripts;
pub mod settings;
mod skeleton;
pub mod unpack;

pub use closure::{Seeds, dependency_closure};
pub use database::{DatabaseError, Lock, LockError, Stanza};
pub use inside::{IN_NAMESPACE, SEARCH_PATH};
pub use installing::{NO_NEW_PRIVILEGES, still_syncing};
pub use skeleton::SourcesFile;
