//! Settings of mirror and check. Flags, environment and configuration files are read elsewhere.

mod choices;
mod filters;

use std::path::PathBuf;

use fullbore_debian::keys::{Fingerprint, KeySource};
use fullbore_debian::release_date::MAX_FUTURE_S;
use fullbore_debian::signature::Verifier;
use fullbore_engine::durability::Durability;
use fullbore_wire::run::NetworkSettings;

pub use crate::mirror::retention::{DeleteGuard, Retention};
pub use choices::{Filter, IndexFormat, Kind, PatternError};
pub use filters::Filters;

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
    /// A mirror of `source` from `origin` in the absolute directory `dir`, with the defaults of `fullbore mirror`.
    pub fn new(dir: impl Into<PathBuf>, origin: impl Into<String>, source: SourceSpec) -> MirrorSettings {
        MirrorSettings {
            name: None,
            dir: dir.into(),
            origins: vec![origin.into()],
            origin_only: false,
            sources: vec![source],
            filters: Filters::default(),
            index_formats: Vec::new(),
            without: Vec::new(),
            languages: Vec::new(),
            ignore_valid_until: false,
            keep: Keep::default(),
            durability: Durability::default(),
            network: NetworkSettings::default(),
            snapshot: None,
            dry_run: false,
            trace_host: None,
            trace_info: Vec::new(),
            notes: Vec::new(),
        }
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
    /// All of `suite`: every component and architecture, binary and source packages. Dates are checked.
    pub fn new(suite: impl Into<String>, signed_by: SignedBy) -> SourceSpec {
        SourceSpec {
            suites: vec![suite.into()],
            components: Vec::new(),
            architectures: Vec::new(),
            binaries: true,
            sources: true,
            languages: None,
            signed_by,
            check_valid_until: true,
            check_date: true,
            max_future_s: MAX_FUTURE_S,
            valid_until_max_s: None,
            valid_until_min_s: None,
        }
    }

    /// Whether each of the two sources accepts every Release that the other accepts.
    pub fn trusts_like(&self, other: &SourceSpec) -> bool {
        let until = |spec: &SourceSpec| (spec.check_valid_until, spec.valid_until_max_s, spec.valid_until_min_s);
        let clock = |spec: &SourceSpec| (spec.check_date, spec.max_future_s);
        self.signed_by == other.signed_by && until(self) == until(other) && clock(self) == clock(other)
    }
}

/// Which signatures are accepted for a source.
///
/// ```
/// use fullbore_mirror::SignedBy;
///
/// let signed_by = SignedBy::keyring("/usr/share/keyrings/debian-archive-keyring.gpg");
/// assert!(matches!(signed_by, SignedBy::Keys { keys, fingerprints } if keys.len() == 1 && fingerprints.is_empty()));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignedBy {
    /// A key among these, which are never none.
    Keys {
        /// Keyrings and inline keys.
        keys: Vec<KeySource>,
        /// Only these keys of them; empty: all.
        fingerprints: Vec<Fingerprint>,
    },
    /// No signature is needed: `Trusted: yes`.
    Trusted,
}

impl SignedBy {
    /// Any key of this keyring file.
    pub fn keyring(path: impl Into<PathBuf>) -> SignedBy {
        SignedBy::Keys { keys: vec![KeySource::File(path.into())], fingerprints: Vec::new() }
    }

    /// The verifier for these keys, with its scratch files below `scratch`; none for a trusted source.
    pub(crate) fn verifier(&self, scratch: impl Into<PathBuf>) -> Option<Verifier> {
        match self {
            SignedBy::Trusted => None,
            SignedBy::Keys { keys, fingerprints } => {
                Some(Verifier::new(scratch, keys.clone()).with_fingerprints(fingerprints.clone()))
            }
        }
    }
}

/// What a mirror run keeps and deletes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Keep {
    /// Which files may be deleted.
    pub clean: Clean,
    /// How much one run may delete.
    pub guard: DeleteGuard,
    /// How long files of earlier Releases stay.
    pub retention: Retention,
}

/// Which files may be deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Clean {
    /// None.
    Nothing,
    /// Files that fullbore wrote and no index names any more.
    #[default]
    Own,
    /// Every file below `dists/` and `pool/` that no index names.
    Untracked,
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
