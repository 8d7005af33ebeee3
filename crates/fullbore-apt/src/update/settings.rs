//! What an update is to do.

use std::path::PathBuf;

use fullbore_debian::keys::KeySource;
use fullbore_debian::sources_list::{ArchiveSource, SignedBy};
use fullbore_engine::durability::Durability;
use fullbore_wire::run::NetworkSettings;

use crate::acquire::Configuration;
use crate::frames::Level;
use crate::lists::Locale;

/// A lists directory to be brought up to date.
#[derive(Debug, Clone)]
pub struct UpdateSettings {
    /// Entries of apt's sources; never none.
    pub sources: Vec<ArchiveSource>,
    /// The lists directory; absolute.
    pub lists: PathBuf,
    /// Whether it is the one that apt on this machine uses.
    pub is_system: bool,
    /// apt's configuration.
    pub configuration: Configuration,
    /// Whose translations are wanted where the configuration leaves it to the environment.
    pub locale: Locale,
    /// Keyrings given on the command line; they replace `Signed-By`.
    pub keyrings: Vec<KeySource>,
    /// Keyrings for sources without `Signed-By`.
    pub trusted: Vec<KeySource>,
    /// Accept a Release whose Valid-Until has passed; every use is to be logged.
    pub ignore_valid_until: bool,
    /// Use patches where they are faster.
    pub pdiffs: bool,
    /// Remove files of sources that are gone.
    pub clean: bool,
    /// Run `APT::Update::Pre-Invoke` and its like.
    pub hooks: bool,
    /// How hard to compress what stays compressed.
    pub level: Level,
    /// When to wait for the disk.
    pub durability: Durability,
    /// Addresses of sources that are mirrors of one archive, without a slash at their ends.
    pub mirrors: Vec<String>,
    /// How to reach the mirrors.
    pub network: NetworkSettings,
}

/// How long apt waits for an answer where its configuration does not say (apt.conf(5), `Acquire::http::Timeout`).
const TIMEOUT_S: u64 = 30;

impl UpdateSettings {
    /// How long a host may be silent, in seconds.
    pub fn timeout_s(&self) -> u64 {
        let told = self.configuration.number("Acquire::http::Timeout", 0);
        u64::try_from(told).ok().filter(|seconds| *seconds > 0).unwrap_or(TIMEOUT_S)
    }
}

/// The keys that may have signed for a source, as it says; `None` if it needs no signature.
pub fn keys_of(settings: &UpdateSettings, source: &ArchiveSource) -> Option<SignedBy> {
    if source.trusted == Some(true) && settings.keyrings.is_empty() {
        return None;
    }
    let named = source.signed_by.clone().unwrap_or_default();
    let keys = match (settings.keyrings.is_empty(), named.keys.is_empty()) {
        (false, _) => settings.keyrings.clone(),
        (true, false) => named.keys,
        (true, true) => settings.trusted.clone(),
    };
    let fingerprints = if settings.keyrings.is_empty() { named.fingerprints } else { Vec::new() };
    Some(SignedBy { keys, fingerprints })
}
