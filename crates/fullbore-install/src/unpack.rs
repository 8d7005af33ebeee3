//! Unpacks packages into a root with the result of `dpkg --unpack`, on all cores.
//!
//! ```text
//! Archive::open    reads the control files of each package into memory
//! examine          finds the packages that can be unpacked exactly; leaves the others to dpkg, with the reason
//! unpack           makes dpkg's checks of packages with a preinst · has the caller run the preinst scripts ·
//!                  writes all files to NAME.dpkg-new, in parallel, and verifies them while it decodes ·
//!                  renames them · writes dpkg's database, the status file last
//! ```
//!
//! Only packages that are not installed are unpacked: upgrades, removals and packages with remaining configuration
//! files are left to dpkg. Conffiles stay `.dpkg-new`, as dpkg leaves them for `--configure`.
//!
//! After a kill at any time, the root has the old status file or the new one. With the old one there may be files
//! without an owner; a second run of fullbore or dpkg overwrites them.

mod archive;
mod claims;
mod clocks;
mod directories;
mod examine;
mod extract;
mod files;
mod filters;
mod kernel;
mod paths;
mod put_files;
mod read_ahead;
mod round;
mod run;

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64};

use fullbore_debian::tar::TarError;
use fullbore_engine::durability::Durability;
use fullbore_engine::stage::Ledger;

pub use archive::{Archive, ArchiveError, verify};
pub(crate) use examine::examine_each;
pub use examine::{Examined, Refused, examine};
pub use filters::Filters;
pub use put_files::put_files;
pub use read_ahead::{Pause, ReadAhead, Slot};
pub use run::unpack;

use crate::database::{DatabaseError, Directive, Record, Stanza};
pub use crate::root::{Root, RootError};

/// A maintainer script that unpacking runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Script {
    /// `preinst install`, before any file of the batch is written. Only a package that is verified and that no check
    /// refuses gets this far. If the script fails, the package is refused.
    Preinst,
    /// `postrm abort-install`, after the preinst has run and all files of the package are removed again.
    AbortInstall,
}

/// Callback that runs a script of a package, if the package has it. The error is a message.
pub type RunScript<'a> = &'a mut dyn FnMut(&Archive, Script) -> Result<(), String>;

/// Who runs the maintainer scripts of unpacked packages.
#[derive(Default)]
pub enum Scripts<'a> {
    /// Packages with a preinst are refused.
    #[default]
    None,
    /// The caller runs them after unpacking, because before it the root has no shell.
    Later,
    /// This callback runs them.
    Run(RunScript<'a>),
}

/// Options of [`unpack`]: threads, filters, durability and scripts.
#[derive(Default)]
pub struct Options<'a> {
    /// Number of packages to unpack in parallel; 0 for the number of cores. Fewer if the process may not open enough
    /// files.
    pub threads: usize,
    /// Receives the clocks of the stages `verify`, `decompress`, `write` and `bookkeeping`.
    pub ledger: Option<&'a Ledger>,
    /// Paths to leave out, as by dpkg's `--path-exclude` and `--path-include`.
    pub filters: Filters,
    /// Whether all files are durable before the status file names their packages. With [`Durability::None`] the caller
    /// syncs at the end. Single files are never synced.
    pub durability: Durability,
    /// Who runs the maintainer scripts of the packages.
    pub scripts: Scripts<'a>,
    /// The caller sets it to stop the run; all changes are then undone.
    pub stop: Option<&'a AtomicBool>,
    /// Grows by the size of each package file that is done, in bytes.
    pub done_bytes: Option<&'a AtomicU64>,
}

impl fmt::Debug for Options<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("Options");
        shown.field("threads", &self.threads).field("filters", &self.filters).field("durability", &self.durability);
        shown.finish_non_exhaustive()
    }
}

/// A package that [`examine`] accepted.
#[derive(Debug)]
struct PlannedPackage {
    archive: Archive,
    stanza: Stanza,
    conffiles: HashSet<Vec<u8>>,
    directives: Vec<Directive>,
}

impl PlannedPackage {
    fn is_conffile(&self, path: &[u8]) -> bool {
        self.conffiles.contains(path)
    }

    /// Version in the form that dpkg compares.
    fn version(&self) -> &str {
        self.stanza.get("Version").unwrap_or_default()
    }

    fn replaces(&self, other: &Record) -> bool {
        replaces(&self.stanza, other.name(), other.version())
    }
}

fn replaces(stanza: &Stanza, name: &str, version: &str) -> bool {
    stanza.relations("Replaces").iter().flatten().any(|relation| relation.names(name, version))
}

/// Packages that can be unpacked here, in the requested order.
#[derive(Debug, Default)]
pub struct Batch {
    packages: Vec<PlannedPackage>,
}

impl Batch {
    /// All packages of the batch, in the order of unpacking.
    pub fn archives(&self) -> impl Iterator<Item = &Archive> {
        self.packages.iter().map(|planned| &planned.archive)
    }

    /// Whether the batch has no packages.
    pub fn is_empty(&self) -> bool {
        self.packages.is_empty()
    }
}

/// Totals of one [`unpack`].
#[derive(Debug, Default)]
pub struct Unpacked {
    /// Packages that the status file now has as `install ok unpacked`.
    pub packages: Vec<UnpackedPackage>,
    /// Packages that only dpkg can unpack exactly. None of their files are left in the root.
    pub refused: Vec<Refusal>,
    /// Number of paths in the lists of all packages together.
    pub paths: u64,
    /// Number of regular files that were written.
    pub files: u64,
    /// Size of all `data.tar` together, uncompressed, in bytes.
    pub plain_bytes: u64,
}

/// A package that was unpacked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnpackedPackage {
    /// Name of the package.
    pub name: String,
    /// Architecture of the package; `all` if it fits any.
    pub architecture: String,
    /// Version of the package, as dpkg writes it.
    pub version: String,
}

/// A package that is left to dpkg.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Name of the package.
    pub package: String,
    /// Reason, as a clause that follows the package's name.
    pub reason: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.package, self.reason)
    }
}

/// Why nothing was unpacked. Written files are removed again, except after [`UnpackError::Root`] and
/// [`UnpackError::Database`], which mean that the disk fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnpackError {
    /// A package cannot be read, or does not match the index.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The file archive of a package is malformed.
    #[error("{package}: data.tar: {source}")]
    Tar {
        /// Name of the package.
        package: String,
        /// The underlying error.
        #[source]
        source: TarError,
    },
    /// The file archive of a package cannot be read or decompressed.
    #[error("{package}: data.tar: {source}")]
    Data {
        /// Name of the package.
        package: String,
        /// The underlying error.
        #[source]
        source: io::Error,
    },
    /// A package contains a path that no package may contain.
    #[error("{package}: {path}: unsafe path; nothing was unpacked")]
    Hostile {
        /// Name of the package.
        package: String,
        /// The unsafe path.
        path: String,
    },
    /// A file of a package cannot be created.
    #[error("{package}: {source}")]
    File {
        /// Name of the package.
        package: String,
        /// The underlying error.
        #[source]
        source: RootError,
    },
    /// A file of the root cannot be changed.
    #[error(transparent)]
    Root(#[from] RootError),
    /// dpkg's database cannot be read or written.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The caller stopped the run.
    #[error("stopped; nothing was unpacked")]
    Stopped,
}
