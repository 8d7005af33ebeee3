//! Settings, resolved: what the commands are handed.
//!
//! Flags win over the environment (clap has merged these two), the environment
//! wins over the `[mirror.NAME]` section of the file, that over its `[defaults]`.
//! What comes out are plain structures without options that someone would still
//! have to decide. The environment is read here and nowhere else in the program.

pub mod apt;
pub mod apt_configuration;
pub mod apt_network;
pub mod apt_proxy;
pub mod archive;
pub mod bootstrap;
pub mod copy;
pub mod environment;
pub mod file;
pub mod filters;
pub mod install;
mod keys;
mod layers;
pub mod resolve;
mod suites;
pub mod update;
pub mod values;

use std::path::PathBuf;
use std::time::Duration;

use fullbore_debian::keys::{Fingerprint, KeySource};
use fullbore_engine::durability::Durability;
use fullbore_wire::run::NetworkSettings;

pub use bootstrap::{BootstrapSettings, bootstrap};
pub use copy::{copy, copy_output, probe, probe_output};
pub use environment::Environment;
pub use filters::Filters;
pub use install::{InstallSettings, install};
pub use resolve::{check, mirrors};
pub use update::{UpdateSettings, update};
pub use values::{IndexFormat, Kind};

/// Where the settings file is looked for when none is named.
pub const DEFAULT_CONFIG: &str = "/etc/fullbore/mirror.toml";

/// One mirror to be made: one archive in one directory.
#[derive(Debug, Clone, PartialEq)]
pub struct MirrorSettings {
    /// The section in the settings file, or the part of `--sources`; shown and in metrics.
    pub name: Option<String>,
    /// The directory that will hold `dists/`; absolute.
    pub dir: PathBuf,
    /// Addresses of the archive (`http://` or `https://`, without a slash at the end). The first
    /// is the origin. Never empty.
    pub origins: Vec<String>,
    /// Whether only the origin may be asked.
    pub origin_only: bool,
    /// What to take from the archive. Never empty.
    pub sources: Vec<SourceSpec>,
    /// Which packages.
    pub filters: Filters,
    /// Which forms of each index; empty: every form that the Release names.
    pub index_formats: Vec<IndexFormat>,
    /// Kinds of files left out.
    pub without: Vec<Kind>,
    /// Languages of translated descriptions; empty: all.
    pub languages: Vec<String>,
    /// Accept a Release whose Valid-Until has passed; every use is to be logged.
    pub ignore_valid_until: bool,
    /// What is kept and deleted.
    pub keep: Keep,
    /// When to wait for the disk.
    pub durability: Durability,
    /// How to reach the mirrors.
    pub network: NetworkSettings,
    /// Name of the snapshot to make of this run.
    pub snapshot: Option<String>,
    /// Only show the plan.
    pub dry_run: bool,
    /// Name of this mirror in its trace files; `None`: the machine's host name.
    pub trace_host: Option<String>,
    /// Further lines of its trace file, such as `Maintainer: …`.
    pub trace_info: Vec<String>,
    /// Of the sources, what was read and means nothing here; one line each, for the user.
    pub notes: Vec<String>,
}

impl MirrorSettings {
    /// Whether this kind of files is wanted.
    pub fn wants(&self, kind: Kind) -> bool {
        !self.without.contains(&kind)
    }
}

/// Part of an archive: suites and what to take from each of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceSpec {
    /// Suites or codenames as written; one with a slash at its end is a flat repository.
    pub suites: Vec<String>,
    /// Components; empty: all in the Release.
    pub components: Vec<String>,
    /// Binary architectures, `all` among them where asked for; empty: all in the Release.
    pub architectures: Vec<String>,
    /// Whether binary packages are wanted.
    pub binaries: bool,
    /// Whether source packages are wanted.
    pub sources: bool,
    /// Languages of translated descriptions, perhaps none, if the source says so itself: `Languages`.
    pub languages: Option<Vec<String>>,
    /// Who must have signed.
    pub signed_by: SignedBy,
    /// Whether an expired Release is refused: `Check-Valid-Until`.
    pub check_valid_until: bool,
    /// Whether this machine's clock is believed: `Check-Date`.
    pub check_date: bool,
    /// How far ahead of it a Release may be dated, seconds: `Date-Max-Future`.
    pub max_future_s: i64,
    /// Seconds after its Date at which a Release expires at the latest: `Valid-Until-Max`.
    pub valid_until_max_s: Option<u64>,
    /// Seconds after its Date until which a Release does not expire: `Valid-Until-Min`.
    pub valid_until_min_s: Option<u64>,
}

impl SourceSpec {
    /// Whether a Release that one of the two accepts is accepted by the other.
    pub fn trusts_like(&self, other: &SourceSpec) -> bool {
        let until = |spec: &SourceSpec| (spec.check_valid_until, spec.valid_until_max_s, spec.valid_until_min_s);
        let clock = |spec: &SourceSpec| (spec.check_date, spec.max_future_s);
        self.signed_by == other.signed_by && until(self) == until(other) && clock(self) == clock(other)
    }
}

/// Which signatures are accepted for a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignedBy {
    /// A key among these, which are never none.
    Keys {
        /// Keyrings and inline keys.
        keys: Vec<KeySource>,
        /// Only these keys of them; empty: all.
        fingerprints: Vec<Fingerprint>,
    },
    /// No signature needed: `Trusted: yes`.
    Trusted,
}

/// What a mirror run keeps and deletes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Keep {
    /// What may be deleted.
    pub clean: Clean,
    /// Share of the mirrored files, 0 to 1, above which nothing is deleted.
    pub max_delete: f64,
    /// Delete even above that.
    pub force_delete: bool,
    /// Earlier states whose files are kept.
    pub generations: u32,
    /// Hours for which files of earlier states are kept at least.
    pub hours: u32,
}

/// What may be deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clean {
    /// Nothing.
    Nothing,
    /// Files that fullbore placed and nothing names any more.
    Own,
    /// Everything nothing names.
    Foreign,
}

/// An archive to be read again.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckSettings {
    /// The directory that holds `dists/`; absolute.
    pub dir: PathBuf,
    /// Share of the files whose content is read, 0 to 1.
    pub read_share: f64,
    /// Fetch what is wrong.
    pub repair: bool,
    /// Where to fetch from; empty: what the mirror's own state says.
    pub origins: Vec<String>,
    /// Who must have signed.
    pub signed_by: SignedBy,
    /// How to reach the mirrors.
    pub network: NetworkSettings,
}

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
    /// Name each file on stdout (`copy`).
    pub names: bool,
    /// All lines of stderr go to this file as well (`copy`).
    pub log_file: Option<PathBuf>,
    /// Time between lines of progress where there is no terminal; none for the usual one.
    pub line_time: Option<Duration>,
}
