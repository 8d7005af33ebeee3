//! Settings of an update.

use std::path::PathBuf;

use fullbore_debian::keys::KeySource;
use fullbore_debian::sources_list::{ArchiveSource, SignedBy};
use fullbore_engine::durability::Durability;
use fullbore_wire::run::NetworkSettings;

use crate::accepted_keys;
use crate::acquire::Configuration;
use crate::frames::Level;
use crate::lists::Locale;

/// Settings of an update of a lists directory.
#[derive(Debug, Clone)]
pub struct UpdateSettings {
    /// Entries of apt's sources; never empty.
    pub sources: Vec<ArchiveSource>,
    /// The lists directory, an absolute path.
    pub lists: PathBuf,
    /// Whether apt on this machine uses it.
    pub is_system: bool,
    /// apt's configuration, which decides the targets and their form.
    pub configuration: Configuration,
    /// The user's locale, for `Acquire::Languages "environment"`.
    pub locale: Locale,
    /// Keyrings given on the command line; they replace `Signed-By`.
    pub keyrings: Vec<KeySource>,
    /// Keyrings for sources that have no `Signed-By`.
    pub trusted: Vec<KeySource>,
    /// Accept a Release whose `Valid-Until` has passed; each use is a warning.
    pub ignore_valid_until: bool,
    /// Use patches (pdiffs) where they are faster.
    pub pdiffs: bool,
    /// Whether to remove the lists of sources that no longer exist.
    pub clean: bool,
    /// Run the commands of `APT::Update::Pre-Invoke`, `Post-Invoke` and `Post-Invoke-Success`.
    pub hooks: bool,
    /// Compression level of indexes that stay compressed.
    pub level: Level,
    /// When files are synced to disk.
    pub durability: Durability,
    /// Addresses of mirrors of one archive among the sources, without a slash at the end.
    pub mirrors: Vec<String>,
    /// Proxies, certificates, rate limit and connections for all requests of the run.
    pub network: NetworkSettings,
}

/// apt's default of `Acquire::http::Timeout`, in seconds (apt.conf(5)).
const TIMEOUT_S: u64 = 30;

impl UpdateSettings {
    /// `Acquire::http::Timeout`: seconds that a host may be silent.
    pub(crate) fn timeout_s(&self) -> u64 {
        let told = self.configuration.number("Acquire::http::Timeout", 0);
        u64::try_from(told).ok().filter(|seconds| *seconds > 0).unwrap_or(TIMEOUT_S)
    }
}

/// The accepted keys of a source; `None` if it needs no signature. Keyrings of the command line replace those of the
/// source. `trusted` are the usable keyrings of [`UpdateSettings::trusted`].
pub(super) fn keys_of(settings: &UpdateSettings, trusted: &[KeySource], source: &ArchiveSource) -> Option<SignedBy> {
    if settings.keyrings.is_empty() {
        return accepted_keys::keys_of(trusted, source);
    }
    Some(SignedBy { keys: settings.keyrings.clone(), fingerprints: Vec::new() })
}
