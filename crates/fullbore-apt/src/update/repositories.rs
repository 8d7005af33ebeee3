//! The repositories of the sources, and the sites that serve them.
//!
//! A repository is one suite at one address, however many entries name it. Repositories at one address share its
//! connections: they are one site.

use fullbore_debian::keys::KeySource;
use fullbore_debian::sources_list::{ArchiveSource, SignedBy};
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_wire::run::{NetworkSettings, mirror_address};
use fullbore_wire::url::without_credentials;

use super::settings::{UpdateSettings, keys_of};
use crate::accepted_keys::uses_default_keyrings;
use crate::dates::DateOptions;
use crate::lists::file_name;
use crate::lists::{Defaults, IndexTarget, SourceType, base_uri, targets};
use crate::signed_release::remote_directory;
use crate::system::files::usable_keyrings;
use crate::system::sources;

/// One suite at one address, with all entries of the sources that name it.
#[derive(Debug)]
pub(super) struct Repository {
    /// Its address as in the sources.
    pub uri: String,
    /// Its suite as in the sources; with `/` at its end a directory.
    pub suite: String,
    /// The directory of its Release below the site's address, with `/` at its end or empty.
    pub directory: String,
    /// Prefix of its names in the lists directory.
    pub prefix: String,
    /// Number of the site that serves it.
    pub site: usize,
    /// Accepted keys; `None`: no signature needed.
    pub keys: Option<SignedBy>,
    /// Whether the local Release may name the accepted keys: nobody else does.
    pub obeys_release: bool,
    /// Date options of the source.
    pub dates: DateOptions,
    /// Further options that are the same in all entries of the suite.
    common: CommonOptions,
    /// Index targets of all its entries.
    pub targets: Vec<IndexTarget>,
}

impl Repository {
    /// The address without credentials, and the suite; for messages.
    pub(super) fn shown(&self) -> String {
        format!("{} {}", without_credentials(self.uri.trim_end_matches('/')), self.suite)
    }
}

/// Options for which apt refuses entries of one suite that differ: `Trusted`, `InRelease-Path`, and the three of
/// [`ALLOWED`] or their defaults. They have no other effect here.
type CommonOptions = (Option<bool>, bool, [bool; 3]);

/// Options of a source that allow less than a valid signature, and their defaults in apt's configuration.
const ALLOWED: [(&str, &str); 3] = [
    ("allow-insecure", "Acquire::AllowInsecureRepositories"),
    ("allow-weak", "Acquire::AllowWeakRepositories"),
    ("allow-downgrade-to-insecure", "Acquire::AllowDowngradeToInsecureRepositories"),
];

fn common_options(settings: &UpdateSettings, source: &ArchiveSource) -> CommonOptions {
    let allowed = ALLOWED.map(|(name, key)| {
        let own = source.switches.iter().rev().find(|(own, _)| own.eq_ignore_ascii_case(name));
        own.map_or_else(|| settings.configuration.bool(key, false), |(_, on)| *on)
    });
    let has_path = source.ignored.iter().any(|own| own.eq_ignore_ascii_case("inrelease-path"));
    (source.trusted, has_path, allowed)
}

/// All repositories of the sources, and their sites.
#[derive(Debug, Default)]
pub(super) struct Repositories {
    /// In the order of the sources.
    pub all: Vec<Repository>,
    /// The addresses of each site's mirrors, the origin first.
    pub sites: Vec<Vec<String>>,
    /// Prefixes in the lists directory of sources that only apt can update.
    pub left_to_apt: Vec<String>,
    /// Warnings about sources that only apt can update.
    pub warnings: Vec<String>,
    /// Errors of other sources; their prefixes are in `left_to_apt`.
    pub failures: Vec<CommandError>,
}

impl Repositories {
    /// Records once why an address is not updated.
    fn pass_over(&mut self, uri: &str, failure: Option<CommandError>) {
        let uri = without_credentials(uri);
        let Some(failure) = failure else {
            let scheme = uri.split(':').next().unwrap_or_default();
            let warning = format!("{uri}: {scheme}: sources are left to apt; its indexes stay as they are");
            if !self.warnings.contains(&warning) {
                self.warnings.push(warning);
            }
            return;
        };
        if self.failures.iter().any(|own| own.message == failure.message) {
            return;
        }
        self.failures.push(failure.context(format_args!("of the source {uri}; its indexes stay as they were")));
    }
}

/// Reads the entries of the sources.
///
/// # Errors
/// `Usage` if entries of one suite have contradicting options. If no source can be updated, the error of the first one,
/// or `Partial`.
pub(super) fn repositories(settings: &UpdateSettings, defaults: &Defaults) -> Result<Repositories, CommandError> {
    let mut found = Repositories::default();
    let mut addresses: Vec<String> = Vec::new();
    let needs_trusted = settings.keyrings.is_empty() && settings.sources.iter().any(uses_default_keyrings);
    let (trusted, unusable) = if needs_trusted { usable_keyrings(&settings.trusted) } else { Default::default() };
    for source in &settings.sources {
        for uri in &source.uris {
            let mirrors = match mirrors(uri, &settings.mirrors, &settings.network) {
                Ok(Some(mirrors)) => mirrors,
                other => {
                    found.pass_over(uri, other.err());
                    let prefixes = source.suite_names.iter().map(|suite| file_name(&base_uri(uri, suite)));
                    found.left_to_apt.extend(prefixes);
                    continue;
                }
            };
            let site = addresses.iter().position(|own| own == uri).unwrap_or_else(|| {
                addresses.push(uri.clone());
                found.sites.push(mirrors);
                addresses.len() - 1
            });
            found.warnings.extend(without_effect(source, uri));
            for suite in &source.suite_names {
                add(settings, defaults, &trusted, &mut found.all, source, uri, suite, site)?;
            }
        }
    }
    if found.all.is_empty() && !found.failures.is_empty() {
        return Err(found.failures.swap_remove(0));
    }
    if found.all.is_empty() && !found.left_to_apt.is_empty() {
        return Err(CommandError::new(ErrorKind::Partial, found.warnings.join("; "))
            .hint("http:, https:, s3: and mirror+file: sources are updated here; use apt-get update for these"));
    }
    found.warnings.extend(unusable);
    Ok(found)
}

/// Options of sources.list(5) that apt obeys and fullbore ignores; a switch with the value that has an effect in apt.
const WITHOUT_EFFECT: [(&str, Option<bool>); 7] = [
    ("InRelease-Path", None),
    ("Snapshot", None),
    ("Include", None),
    ("Exclude", None),
    ("Allow-Insecure", Some(true)),
    ("Allow-Weak", Some(true)),
    ("Allow-Downgrade-To-Insecure", Some(true)),
];

/// A warning about ignored options of a source.
fn without_effect(source: &ArchiveSource, uri: &str) -> Option<String> {
    let asked = |(name, value): &&(&str, Option<bool>)| {
        let is_it = |own: &String| own.eq_ignore_ascii_case(name);
        let switched = |(own, on): &(String, bool)| is_it(own) && value.is_none_or(|value| value == *on);
        source.ignored.iter().any(is_it) || source.switches.iter().any(switched)
    };
    let names: Vec<&str> = WITHOUT_EFFECT.iter().filter(asked).map(|(name, _)| *name).collect();
    let source = without_credentials(uri);
    (!names.is_empty())
        .then(|| format!("{source}: without effect here, unlike with apt-get update: {}", names.join(", ")))
}

#[allow(clippy::too_many_arguments)]
fn add(
    settings: &UpdateSettings,
    defaults: &Defaults,
    trusted: &[KeySource],
    all: &mut Vec<Repository>,
    source: &ArchiveSource,
    uri: &str,
    suite: &str,
    site: usize,
) -> Result<(), CommandError> {
    let keys = keys_of(settings, trusted, source);
    let dates = DateOptions::of(source);
    let common = common_options(settings, source);
    let prefix = file_name(&base_uri(uri, suite));
    let position = all.iter().position(|own| own.prefix == prefix);
    let repository = match position {
        Some(position) => &mut all[position],
        None => {
            all.push(Repository {
                uri: uri.to_owned(),
                suite: suite.to_owned(),
                directory: remote_directory(suite),
                prefix,
                site,
                keys: keys.clone(),
                obeys_release: source.signed_by.is_none() && settings.keyrings.is_empty(),
                dates: dates.clone(),
                common,
                targets: Vec::new(),
            });
            let last = all.len() - 1;
            &mut all[last]
        }
    };
    let conflict = match repository.dates.join(&dates) {
        Err(option) => Some(option),
        Ok(()) if repository.keys != keys => Some("Signed-By or Trusted"),
        Ok(()) if repository.common != common => {
            Some("Trusted, InRelease-Path, Allow-Insecure, Allow-Weak or Allow-Downgrade-To-Insecure")
        }
        Ok(()) => None,
    };
    if let Some(option) = conflict {
        let shown = repository.shown();
        return Err(CommandError::usage(format_args!("{shown}: two entries have different {option}"))
            .hint("give both the same value, as apt demands it"));
    }
    for (kind, wanted) in [(SourceType::Deb, source.binary), (SourceType::DebSrc, source.source)] {
        if !wanted {
            continue;
        }
        for target in targets(&settings.configuration, defaults, source, kind, uri, suite) {
            if repository.targets.iter().all(|own| own.meta_key != target.meta_key) {
                repository.targets.push(target);
            }
        }
    }
    Ok(())
}

/// The addresses for a source's address: itself, then the other known mirrors. `None` if only apt can update it.
fn mirrors(uri: &str, known: &[String], network: &NetworkSettings) -> Result<Option<Vec<String>>, CommandError> {
    let scheme = uri.split(':').next().unwrap_or_default();
    if !matches!(scheme, "http" | "https" | "mirror+file" | "s3") {
        return Ok(None);
    }
    let mut all = sources::expand(uri)?;
    let own = uri.trim_end_matches('/');
    if known.iter().any(|mirror| mirror == own) {
        all.extend(known.iter().filter(|mirror| *mirror != own).cloned());
    }
    all.iter().map(|mirror| mirror_address(mirror, network)).collect::<Result<_, _>>().map(Some)
}
