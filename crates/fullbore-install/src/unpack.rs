//! Unpacks packages into a root with the result of `dpkg --unpack`, on all cores.
//!
//! ```text
//! Archive::open    control files of each package, in memory
//! examine          packages that can be unpacked exactly; the others are left to dpkg, with the reason
//! unpack           dpkg's checks of packages with a preinst · preinst scripts (run by the caller) ·
//!                  all files to NAME.dpkg-new, in parallel, verified while they are decoded · renames ·
//!                  dpkg's database, its status file last
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

/// A maintainer script that unpacking calls for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Script {
    /// `preinst install`: before any file of the batch is written, with what is expected of the package verified, and
    /// of packages only against which nothing speaks. If it fails, the package is refused.
    Preinst,
    /// `postrm abort-install`: the preinst has run, and nothing of the package is left.
    AbortInstall,
}

/// Runs a script, if the package has it.
pub type RunScript<'a> = &'a mut dyn FnMut(&Archive, Script) -> Result<(), String>;

/// Who runs the maintainer scripts of unpacked packages.
#[derive(Default)]
pub enum Scripts<'a> {
    /// Packages with a preinst are refused.
    #[default]
    None,
    /// The caller runs them when all is unpacked: before, there is nothing that could.
    Later,
    /// They run by this.
    Run(RunScript<'a>),
}

/// Options of [`unpack`]: threads, filters, durability and scripts.
#[derive(Default)]
pub struct Options<'a> {
    /// Packages at a time; 0 for as many as there are cores. Fewer if the process may not open enough files.
    pub threads: usize,
    /// Takes the clocks of the stages `verify`, `decompress`, `write` and `bookkeeping`.
    pub ledger: Option<&'a Ledger>,
    /// Paths to leave out, as by dpkg's `--path-exclude` and `--path-include`.
    pub filters: Filters,
    /// Whether all is durable before the status file says so. [`Durability::None`] leaves that to
    /// a barrier of the caller's; there is no syncing of single files.
    pub durability: Durability,
    /// Who runs the maintainer scripts of the packages.
    pub scripts: Scripts<'a>,
    /// Set by the caller to end the run, with everything taken back.
    pub stop: Option<&'a AtomicBool>,
    /// Grows by the bytes of each package file that is done.
    pub done_bytes: Option<&'a AtomicU64>,
}

impl fmt::Debug for Options<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("Options");
        shown.field("threads", &self.threads).field("filters", &self.filters).field("durability", &self.durability);
        shown.finish_non_exhaustive()
    }
}

/// A package that [`examine`] has taken.
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

    /// As dpkg compares it.
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

/// Packages that can be unpacked here, in the order asked for.
#[derive(Debug, Default)]
pub struct Batch {
    packages: Vec<PlannedPackage>,
}

impl Batch {
    /// All packages of the batch, in the order of unpacking.
    pub fn archives(&self) -> impl Iterator<Item = &Archive> {
        self.packages.iter().map(|planned| &planned.archive)
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.packages.is_empty()
    }
}

/// Totals of one [`unpack`].
#[derive(Debug, Default)]
pub struct Unpacked {
    /// Packages that the status file now has as `install ok unpacked`.
    pub packages: Vec<UnpackedPackage>,
    /// Packages of which nothing was left in the root, because only dpkg can do them exactly.
    pub refused: Vec<Refusal>,
    /// Number of paths in the lists of all packages together.
    pub paths: u64,
    /// Number of regular files that were written.
    pub files: u64,
    /// Plain bytes of all `data.tar` together.
    pub plain_bytes: u64,
}

/// One package that was unpacked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnpackedPackage {
    /// Its name.
    pub name: String,
    /// Architecture of the package; `all` if it fits any.
    pub architecture: String,
    /// Its version, as dpkg writes it.
    pub version: String,
}

/// A package that is left to dpkg.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Its name.
    pub package: String,
    /// Why, in words that follow the package's name.
    pub reason: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.package, self.reason)
    }
}

/// Why nothing was unpacked. Files that were written are taken back, except after
/// [`UnpackError::Root`] and [`UnpackError::Database`], which mean a disk in trouble.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnpackError {
    /// A package cannot be read, or is not the one that the index names.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// Its files are damaged.
    #[error("{package}: data.tar: {source}")]
    Tar {
        /// Name of the package.
        package: String,
        /// The underlying error.
        #[source]
        source: TarError,
    },
    /// Its files cannot be read or decompressed.
    #[error("{package}: data.tar: {source}")]
    Data {
        /// Name of the package.
        package: String,
        /// The underlying error.
        #[source]
        source: io::Error,
    },
    /// A name in it is none, as that of no package.
    #[error("{package}: {path}: unsafe path; nothing was unpacked")]
    Hostile {
        /// Name of the package.
        package: String,
        /// The name.
        path: String,
    },
    /// A file cannot be made.
    #[error("{package}: {source}")]
    File {
        /// Name of the package.
        package: String,
        /// The underlying error.
        #[source]
        source: RootError,
    },
    /// The root.
    #[error(transparent)]
    Root(#[from] RootError),
    /// dpkg's database.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The caller wanted it to end.
    #[error("stopped; nothing was unpacked")]
    Stopped,
}
