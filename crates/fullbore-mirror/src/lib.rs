//! Debian archives as trees of files: mirrored from several servers at once, verified by their signatures, published in
//! one step, and checked later.
//!
//! [`mirror::run`] makes or updates a mirror, [`check::run`] reads a tree again and can repair it. Both take plain
//! settings and an [`Events`](fullbore_engine::run::events::Events) that receives their progress. They return a
//! [`Report`](fullbore_engine::run::report::Report).
//!
//! This crate reads no configuration file, prints nothing and never exits. It does not generate archives: what it
//! publishes is signed by the archive, byte for byte.
//!
//! ```no_run
//! use fullbore_engine::run::events::Event;
//! use fullbore_mirror::{MirrorSettings, SignedBy, SourceSpec, mirror};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let keys = SignedBy::keyring("/usr/share/keyrings/debian-archive-keyring.gpg");
//! let source = SourceSpec { architectures: vec!["amd64".to_owned()], ..SourceSpec::new("trixie", keys) };
//! let settings = MirrorSettings::new("/srv/mirror/debian", "https://deb.example.org/debian", source);
//! let mut log: Vec<Event> = Vec::new();
//! let report = mirror::run(&settings, &mut |event: Event| log.push(event))?;
//! assert_eq!(report.summary.totals.missing_files, 0);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod check;
pub mod mirror;
mod settings;

pub use mirror::snapshot::{SNAPSHOT_DIRECTORY, SnapshotError, check_snapshot_name};
pub use mirror::state::OWN_DIRECTORY;
pub use mirror::trace_files::{TraceError, check_host};
pub use settings::{
    CheckSettings, Clean, DeleteGuard, Filter, Filters, FleetSettings, IndexFormat, Keep, Kind, MirrorSettings,
    MirrorStore, PatternError, Retention, SignedBy, SourceSpec, StateStore,
};
