//! Which keys may sign the Release of a source: those that the source names, or else the default keyrings.

use fullbore_debian::keys::{Fingerprint, KeySource};
use fullbore_debian::release::Release;
use fullbore_debian::sources_list::{ArchiveSource, SignedBy};

use crate::acquire::Configuration;
use crate::dates::{DateOptions, DateRules};

/// Whether the default keyrings have the keys of a source.
pub(crate) fn uses_default_keyrings(source: &ArchiveSource) -> bool {
    source.trusted != Some(true) && source.signed_by.as_ref().is_none_or(|named| named.keys.is_empty())
}

/// The accepted keys of a source; `None` if it needs no signature. `trusted` are the usable default keyrings.
pub(crate) fn keys_of(trusted: &[KeySource], source: &ArchiveSource) -> Option<SignedBy> {
    if source.trusted == Some(true) {
        return None;
    }
    let mut named = source.signed_by.clone().unwrap_or_default();
    if named.keys.is_empty() {
        named.keys = trusted.to_vec();
    }
    Some(named)
}

/// The keys that a Release names for its successor (`Signed-By`), as apt reads them: only until it expires, and none if one
/// word is not a fingerprint. The options of the source do not count here.
pub(crate) fn successor_keys(release: &Release, configuration: &Configuration, now: i64) -> Vec<Fingerprint> {
    let rules = DateRules { configuration, options: &DateOptions::default(), now };
    if rules.valid_until(release).is_none_or(|until| until < now) {
        return Vec::new();
    }
    let fingerprints: Result<_, _> = release.signed_by.iter().map(|word| word.parse()).collect();
    fingerprints.unwrap_or_default()
}
