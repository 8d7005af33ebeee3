//! Whether APT would accept a Release that a mirror sent.
//!
//! Nobody needs to trust a mirror, and APT takes one Release for each suite. If a mirror could choose this one, it could keep
//! a suite from ever changing. So a mirror's Release counts only if it is signed by the keys of the source, of the requested
//! suite and archive, and valid. The origin's needs no check here: APT itself would have asked only there.

use fullbore_debian::keys::KeySource;
use fullbore_debian::release::Release;
use fullbore_debian::signature::{SignedText, Verifier};
use fullbore_debian::sources_list::ArchiveSource;
use fullbore_wire::url::Url;

use super::wanted::WantedFile;
use crate::accepted_keys::{keys_of, successor_keys, uses_default_keyrings};
use crate::acquire::{Configuration, MethodName};
use crate::dates::{DateOptions, DateRules};
use crate::lists::base_uri;
use crate::signed_release::check_suite;
use crate::system::files::{trusted_keyrings, usable_keyrings};
use crate::system::sources;

/// Directory for a verifier's files on systems without `/proc`. APT's own methods use it, too.
const SCRATCH: &str = "/tmp";

/// APT's sources, and the default keyrings.
#[derive(Debug, Default)]
pub(super) struct Sources {
    sources: Vec<ArchiveSource>,
    trusted: Vec<KeySource>,
}

impl Sources {
    /// Reads them. Without readable sources no mirror's Release counts.
    pub(super) fn read(configuration: &Configuration) -> Sources {
        let read = sources::configured(configuration);
        let sources = read.inspect_err(|error| tracing::warn!("{}", error.message)).unwrap_or_default();
        let needs_trusted = sources.iter().any(uses_default_keyrings);
        let trusted = if needs_trusted { usable_keyrings(&trusted_keyrings(configuration)).0 } else { Vec::new() };
        Sources { sources, trusted }
    }

    /// The check of a mirror's Release for this request. `None` if the source is unknown, or needs no signature, so that
    /// nothing could be checked.
    pub(super) fn check(
        &self,
        wanted: &WantedFile,
        method: &MethodName,
        configuration: &Configuration,
        local: Option<&[u8]>,
        now: i64,
    ) -> Option<ReleaseCheck> {
        let (source, suite) = self.find(wanted, method)?;
        let mut keys = keys_of(&self.trusted, source)?;
        let local = local.and_then(release_of);
        if source.signed_by.is_none()
            && let Some(local) = &local
        {
            keys.fingerprints = successor_keys(local, configuration, now);
        }
        Some(ReleaseCheck {
            verifier: Verifier::new(SCRATCH, keys.keys).with_fingerprints(keys.fingerprints),
            suite: suite.clone(),
            dates: DateOptions::of(source),
            configuration: configuration.clone(),
            local: local.as_ref().map(Archive::of),
            now,
        })
    }

    /// The source and the suite of a Release.
    fn find(&self, wanted: &WantedFile, method: &MethodName) -> Option<(&ArchiveSource, &String)> {
        let is_of = |uri: &String, suite: &String| {
            let base = base_uri(uri, suite);
            wanted.suite.as_ref() == Some(&base) || is_directory_of(method, &base, &wanted.url)
        };
        self.sources.iter().find_map(|source| {
            let suites = || source.suite_names.iter();
            let suite = source.uris.iter().find_map(|uri| suites().find(|suite| is_of(uri, suite)))?;
            Some((source, suite))
        })
    }
}

fn is_directory_of(method: &MethodName, base: &str, release: &Url) -> bool {
    let Some((base, _)) = method.plain(base).and_then(|base| Url::parse_with_userinfo(&base).ok()) else {
        return false;
    };
    let directory = release.path().rsplit_once('/').map_or("", |(directory, _)| directory);
    base.same_origin(release) && base.path().trim_end_matches('/') == directory
}

/// Parses a Release without a check of its signature.
fn release_of(content: &[u8]) -> Option<Release> {
    Release::parse(&SignedText::trusted(content).ok()?).ok()
}

/// Which archive a Release is of. One key may sign several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Archive {
    origin: Option<String>,
    label: Option<String>,
    codename: Option<String>,
}

impl Archive {
    fn of(release: &Release) -> Archive {
        let Release { origin, label, codename, .. } = release;
        Archive { origin: origin.clone(), label: label.clone(), codename: codename.clone() }
    }

    /// The archive of a Release that need not be verified; `None` if the content is not a Release.
    pub(super) fn named_in(content: &[u8]) -> Option<Archive> {
        release_of(content).as_ref().map(Archive::of)
    }
}

/// The rules for a Release that a mirror sent.
#[derive(Debug)]
pub(super) struct ReleaseCheck {
    verifier: Verifier,
    suite: String,
    dates: DateOptions,
    configuration: Configuration,
    /// The archive of APT's own copy.
    local: Option<Archive>,
    now: i64,
}

impl ReleaseCheck {
    /// Why APT would not accept an `InRelease`, or a `Release` with its signature; `None` if it would. Blocks while the
    /// verifier runs.
    pub(super) fn refusal(&self, content: &[u8], signature: Option<&[u8]>) -> Option<String> {
        let text = match signature {
            Some(signature) => self.verifier.verify_detached(content, signature),
            None => self.verifier.verify_inrelease(content),
        };
        let text = match text {
            Ok(text) => text,
            Err(error) => return Some(error.to_string()),
        };
        let release = match Release::parse(&text) {
            Ok(release) => release,
            Err(error) => return Some(error.to_string()),
        };
        if let Err(error) = check_suite(&self.suite, &release) {
            return Some(error.to_string());
        }
        // A change of these is for the user to confirm, so it is the origin's to bring.
        if self.local.as_ref().is_some_and(|local| *local != Archive::of(&release)) {
            return Some("the Release is of another archive than the local one".to_owned());
        }
        let rules = DateRules { configuration: &self.configuration, options: &self.dates, now: self.now };
        if let Some(future) = rules.check_of(Some(&release)).future(release.date) {
            return Some(future.to_string());
        }
        let is_expired = rules.valid_until(&release).is_some_and(|until| until < self.now);
        is_expired.then(|| "the Release has expired".to_owned())
    }
}
