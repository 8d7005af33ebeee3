//! Settings, resolved: what the commands are handed.
//!
//! Flags win over the environment (clap has merged these two), the environment
//! wins over the `[mirror.NAME]` section of the file, that over its `[defaults]`.
//! What comes out are plain structures without options that someone would still
//! have to decide. The environment is read here and nowhere else in the program.

mod addresses;
mod apt_sources;
pub mod archive;
pub mod bootstrap;
mod bucket;
mod check;
pub mod copy;
mod directories;
pub mod environment;
pub mod file;
pub mod install;
mod keys;
mod layers;
mod origins;
mod queue;
pub mod resolve;
mod store;
mod suites;
pub mod update;
pub mod values;
mod work;

use std::path::PathBuf;
use std::time::Duration;

pub use bootstrap::bootstrap;
pub use copy::{copy, copy_output, probe, probe_output};
pub use environment::Environment;
pub use fullbore_mirror::{
    CheckSettings, Clean, Filters, IndexFormat, Keep, Kind, MirrorSettings, SignedBy, SourceSpec,
};
pub use install::install;
pub use resolve::mirrors;
pub use store::{Check, Get, Ls, Put, check, get, ls, put};
pub use update::update;
pub use work::{Work, work};

/// Where the settings file is looked for when none is named.
pub const DEFAULT_CONFIG: &str = "/etc/fullbore/mirror.toml";

/// What is shown and written about a run; for the program, not for the commands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutputSettings {
    /// Lines of JSON on stdout.
    pub json: bool,
    /// HTML page, or JSON if the name ends so.
    pub report: Option<PathBuf>,
    /// Prometheus text file.
    pub metrics: Option<PathBuf>,
    /// Trace of the stages, for Perfetto.
    pub trace: Option<PathBuf>,
    /// Only errors.
    pub quiet: bool,
    /// Number of `-v`.
    pub verbose: u8,
    /// Tell by the exit code that nothing had changed.
    pub changed_exit: bool,
    /// stdout is for what is made: what is told goes to stderr.
    pub stdout_is_taken: bool,
    /// stdout has data for programs, line by line, such as caps: the closing line goes to stderr, and nothing is said
    /// off a terminal of a run that soon ends.
    pub stdout_has_data: bool,
    /// apt and dpkg print to the terminal themselves while they unpack and configure.
    pub dpkg_prints: bool,
    /// Name each file on stdout (`copy`).
    pub names: bool,
    /// What changes of files is said as `rsync -i` does (`copy`).
    pub itemizes: bool,
    /// All lines of stderr go to this file as well (`copy`).
    pub log_file: Option<PathBuf>,
    /// Time between lines of progress where there is no terminal; none for the usual one.
    pub line_time: Option<Duration>,
}
