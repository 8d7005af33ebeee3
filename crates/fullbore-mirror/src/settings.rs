//! Settings of mirror and check. Flags, environment and configuration files are read elsewhere.

mod choices;
mod filters;

use std::path::PathBuf;

use fullbore_debian::keys::{Fingerprint, KeySource};
use fullbore_debian::release_date::MAX_FUTURE_S;
use fullbore_debian::signature::Verifier;
use fullbore_engine::durability::Durability;
use fullbore_engine::run::CommandError;
use fullbore_fleet::names::RunId;
use fullbore_s3::bucket::BucketSettings;
use fullbore_wire::run::{NetworkSettings, is_bucket};
use fullbore_wire::url::without_credentials;

pub use crate::mirror::fleet::FleetSettings;
pub use crate::mirror::retention::{DeleteGuard, Retention};
pub use choices::{Filter, IndexFormat, Kind, PatternError};
pub use filters::Filters;

/// Settings of one mirror: one archive in one directory.
#[derive(Debug, Clone, PartialEq)]
pub struct MirrorSettings {
    /// Name of the mirror in reports and metrics: the section of the settings file, or the part of `--sources`.
    pub name: Option<String>,
    /// Absolute path of the directory that will contain `dists/`.
    pub dir: PathBuf,
    /// Bucket for the mirror, in place of a directory; then `dir` is its address.
    pub store: Option<MirrorStore>,
    /// Addresses of the archive (`http://` or `https://`, without a slash at the end). The first
    /// is the origin. Never empty.
    pub origins: Vec<String>,
    /// Whether fullbore fetches only from the first of `origins`; default: from all.
    pub origin_only: bool,
    /// The suites to mirror, and which parts of them. Never empty.
    pub sources: Vec<SourceSpec>,
    /// Filters that select packages; by default every package passes.
    pub filters: Filters,
    /// Compression formats of each index; empty: all that the Release lists.
    pub index_formats: Vec<IndexFormat>,
    /// Kinds of files that are not mirrored, such as debug packages; empty by default.
    pub without: Vec<Kind>,
    /// Languages of translated descriptions; empty: all.
    pub languages: Vec<String>,
    /// Whether a Release is accepted after its `Valid-Until`; each such Release causes a warning.
    pub ignore_valid_until: bool,
    /// Whether to publish without files that no mirror has; they are named at the end.
    pub ignore_missing: bool,
    /// Which files stay and which may be deleted.
    pub keep: Keep,
    /// When files are synced to disk.
    pub durability: Durability,
    /// Proxies, certificates, rate limit and connections for all requests of the run.
    pub network: NetworkSettings,
    /// Name of the snapshot to make when the run is complete.
    pub snapshot: Option<String>,
    /// In a bucket, whether the snapshot has copies of all files, and not of the indexes alone.
    pub snapshot_full: bool,
    /// Whether only to report the plan, and to write nothing.
    pub dry_run: bool,
    /// Whether only to store the plan, for workers; needs `store`.
    pub pin: bool,
    /// Run to finish, by the name of its plan: the next publication removes the plan. Needs `store`.
    pub finish: Option<RunId>,
    /// Queue through which other machines store files of this run; needs `store`.
    pub fleet: Option<FleetSettings>,
    /// Name of this mirror in its trace files; `None`: the machine's host name.
    pub trace_host: Option<String>,
    /// Further lines of the trace file, such as `Maintainer: …`.
    pub trace_info: Vec<String>,
    /// Warnings about options of the sources that have no effect here; one line each.
    pub notes: Vec<String>,
}

impl MirrorSettings {
    /// Settings for mirroring `source` from `origin` into the absolute directory `dir`, with the defaults of `fullbore
    /// mirror`.
    pub fn new(dir: impl Into<PathBuf>, origin: impl Into<String>, source: SourceSpec) -> MirrorSettings {
        MirrorSettings {
            name: None,
            dir: dir.into(),
            store: None,
            origins: vec![origin.into()],
            origin_only: false,
            sources: vec![source],
            filters: Filters::default(),
            index_formats: Vec::new(),
            without: Vec::new(),
            languages: Vec::new(),
            ignore_valid_until: false,
            ignore_missing: false,
            keep: Keep::default(),
            durability: Durability::default(),
            network: NetworkSettings::default(),
            snapshot: None,
            snapshot_full: false,
            dry_run: false,
            pin: false,
            finish: None,
            fleet: None,
            trace_host: None,
            trace_info: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// The addresses that a run fetches from.
    pub(crate) fn used_origins(&self) -> impl Iterator<Item = &String> {
        let used = if self.origin_only { 1 } else { self.origins.len() };
        self.origins.iter().take(used)
    }

    /// Addresses, without credentials, of the mirrors that workers may fetch from. Buckets are left out, because a
    /// worker signs requests only to addresses from its own user.
    ///
    /// # Errors
    /// `Usage` if all mirrors are buckets.
    pub(crate) fn mirrors_for_workers(&self) -> Result<Vec<String>, CommandError> {
        let shared: Vec<String> =
            self.used_origins().filter(|origin| !is_bucket(origin)).map(|origin| without_credentials(origin)).collect();
        if shared.is_empty() && !self.origins.is_empty() {
            return Err(CommandError::usage("workers fetch from http and https mirrors, and all --from are buckets")
                .hint("name another mirror, or run `fullbore mirror` without --pin and --queue"));
        }
        Ok(shared)
    }

    /// Whether the run changes the published files.
    pub(crate) fn publishes(&self) -> bool {
        !self.dry_run && !self.pin
    }
}

/// A bucket that contains a mirror.
#[derive(Debug, Clone, PartialEq)]
pub struct MirrorStore {
    /// Bucket and prefix, and how to reach them.
    pub bucket: BucketSettings,
    /// Place of fullbore's own files, below `.fullbore/`; by default the same bucket.
    pub state: Option<StateStore>,
    /// Directory for temporary files: fullbore's own files, and large files until they are stored.
    pub scratch: PathBuf,
    /// Directory that keeps indexes for later runs.
    pub cache: Option<PathBuf>,
    /// Whether suites get copies under their other names, such as `stable`.
    pub aliases: bool,
    /// `Cache-Control` of names that change (RFC 9111); by default caches keep them for a minute.
    pub cache_control: Option<String>,
    /// Whether a lock in the bucket separates runs. Without it no write is conditional, for stores without conditional
    /// requests. Then the caller must make sure that only one run is active.
    pub locks: bool,
    /// Whether only checksums count that the store computed; objects without one are read. Otherwise the hash in the
    /// metadata counts, too, although the program that wrote the object also wrote it.
    pub verifies_objects: bool,
}

/// Place of fullbore's own files for a mirror in a bucket.
#[derive(Debug, Clone, PartialEq)]
pub enum StateStore {
    /// Another bucket or prefix.
    Bucket(Box<BucketSettings>),
    /// A directory. Its lock separates only runs that use this directory.
    Directory(PathBuf),
}

/// Suites of an archive, and the parts of them to mirror.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceSpec {
    /// Suites or codenames as written; a slash at the end means a flat repository.
    pub suites: Vec<String>,
    /// Components; empty: all of the Release.
    pub components: Vec<String>,
    /// Binary architectures, including `all` if requested; empty: all of the Release.
    pub architectures: Vec<String>,
    /// Whether binary packages (`Packages` indexes) are mirrored; true by default.
    pub binaries: bool,
    /// Whether source packages (`Sources` indexes) are mirrored; true by default.
    pub sources: bool,
    /// Whether a component or architecture that an archive lacks is expected, as in sources for several archives.
    pub skips_absent: bool,
    /// Languages of translated descriptions, where the source has the option `Languages`.
    pub languages: Option<Vec<String>>,
    /// The keys that may have signed the Release.
    pub signed_by: SignedBy,
    /// Whether an expired Release is refused: `Check-Valid-Until`.
    pub check_valid_until: bool,
    /// Whether a Release dated in the future is refused: `Check-Date`.
    pub check_date: bool,
    /// Seconds by which a Release may be dated ahead of the clock: `Date-Max-Future`.
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
            skips_absent: false,
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
    /// One of these keys; never empty.
    Keys {
        /// Keyrings and inline keys.
        keys: Vec<KeySource>,
        /// Only keys with these fingerprints; empty: all.
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

/// Rules for the files that a mirror run keeps and deletes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Keep {
    /// Which obsolete files a run may delete; by default those that fullbore wrote.
    pub clean: Clean,
    /// How much one run may delete.
    pub guard: DeleteGuard,
    /// How long files of earlier Releases stay.
    pub retention: Retention,
}

/// Which files a mirror run may delete at its end.
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

/// Settings of one check of a mirror on disk.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckSettings {
    /// The directory that holds `dists/`; absolute. For a bucket its address.
    pub dir: PathBuf,
    /// The bucket that holds the mirror, in place of the directory.
    pub store: Option<MirrorStore>,
    /// Whether to compare the checksums that the store has of files that are not read.
    pub checksums: bool,
    /// Share of the files whose content is read and hashed, 0 to 1.
    pub read_share: f64,
    /// Whether to fetch missing and wrong files again.
    pub repair: bool,
    /// Addresses to fetch from; empty: those in the mirror's state.
    pub origins: Vec<String>,
    /// The keys that may have signed the Release.
    pub signed_by: SignedBy,
    /// Proxies, certificates, rate limit and connections for the repair.
    pub network: NetworkSettings,
}
