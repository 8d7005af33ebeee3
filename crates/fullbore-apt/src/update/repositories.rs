//! Which repositories the sources name, and where their files are fetched.
//!
//! One address and suite is one repository, whatever number of entries name it. Repositories at one address
//! share its connections: they are one site.

use fullbore_debian::sources_list::{ArchiveSource, SignedBy};
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_wire::run::address;
use fullbore_wire::url::without_credentials;

use super::settings::{UpdateSettings, keys_of};
use crate::lists::file_name;
use crate::lists::{Defaults, IndexTarget, SourceType, base_uri, targets};
use crate::signed_release::remote_directory;
use crate::system::sources;

/// One suite at one address.
#[derive(Debug)]
pub struct Repository {
    /// As it is written in the sources.
    pub uri: String,
    /// As it is written in the sources; with `/` at its end it is a directory.
    pub suite: String,
    /// The directory of its Release below the site's address, with `/` at its end or empty.
    pub directory: String,
    /// What names in the lists directory begin with: that of the Release's directory.
    pub prefix: String,
    /// The site that has it.
    pub site: usize,
    /// Who must have signed; `None`: nobody.
    pub keys: Option<SignedBy>,
    /// Whether an expired Release is refused.
    pub check_valid_until: bool,
    /// Whether this machine's clock is believed, where the source says so itself.
    pub check_date: Option<bool>,
    /// How far ahead of it a Release may be dated, where the source says so.
    pub date_max_future_s: Option<u64>,
    /// `Valid-Until-Min` and `Valid-Until-Max`, in seconds.
    pub valid_until_s: (Option<u64>, Option<u64>),
    /// What is to be kept of it.
    pub targets: Vec<IndexTarget>,
}

impl Repository {
    /// For people: the address, without credentials, and the suite.
    pub fn shown(&self) -> String {
        format!("{} {}", without_credentials(self.uri.trim_end_matches('/')), self.suite)
    }
}

/// All that the sources name.
#[derive(Debug, Default)]
pub struct Repositories {
    /// In the order of the sources.
    pub all: Vec<Repository>,
    /// The addresses of each site's mirrors, the origin first.
    pub sites: Vec<Vec<String>>,
    /// What names in the lists directory begin with that are of sources left to apt.
    pub left_to_apt: Vec<String>,
    /// Which sources these are, for people.
    pub warnings: Vec<String>,
    /// Why others cannot be updated; what names of theirs begin with is among those left to apt.
    pub failures: Vec<CommandError>,
}

impl Repositories {
    /// Notes why an address is not updated, once.
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

/// Reads the sources' entries.
///
/// # Errors
/// Two entries that contradict each other on whom to trust; no source that can be updated here.
pub fn repositories(settings: &UpdateSettings, defaults: &Defaults) -> Result<Repositories, CommandError> {
    let mut found = Repositories::default();
    let mut addresses: Vec<String> = Vec::new();
    for source in &settings.sources {
        for uri in &source.uris {
            let mirrors = match mirrors(uri, &settings.mirrors) {
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
                add(settings, defaults, &mut found.all, source, uri, suite, site)?;
            }
        }
    }
    if found.all.is_empty() && !found.failures.is_empty() {
        return Err(found.failures.swap_remove(0));
    }
    if found.all.is_empty() && !found.left_to_apt.is_empty() {
        return Err(CommandError::new(ErrorKind::Partial, found.warnings.join("; "))
            .hint("http:, https: and mirror+file: sources are updated here; use apt-get update for these"));
    }
    Ok(found)
}

/// Options of sources.list(5) that change what an update of apt's takes or accepts, and nothing here; a switch with
/// the value that does.
const WITHOUT_EFFECT: [(&str, Option<bool>); 7] = [
    ("InRelease-Path", None),
    ("Snapshot", None),
    ("Include", None),
    ("Exclude", None),
    ("Allow-Insecure", Some(true)),
    ("Allow-Weak", Some(true)),
    ("Allow-Downgrade-To-Insecure", Some(true)),
];

/// Names what a source asks for and does not get here.
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

fn add(
    settings: &UpdateSettings,
    defaults: &Defaults,
    all: &mut Vec<Repository>,
    source: &ArchiveSource,
    uri: &str,
    suite: &str,
    site: usize,
) -> Result<(), CommandError> {
    let keys = keys_of(settings, source);
    let prefix = file_name(&base_uri(uri, suite));
    let place = all.iter().position(|own| own.prefix == prefix);
    let repository = match place {
        Some(place) => &mut all[place],
        None => {
            all.push(Repository {
                uri: uri.to_owned(),
                suite: suite.to_owned(),
                directory: remote_directory(suite),
                prefix,
                site,
                keys: keys.clone(),
                check_valid_until: source.check_valid_until,
                check_date: source.check_date,
                date_max_future_s: source.date_max_future_s,
                valid_until_s: (source.valid_until_min_s, source.valid_until_max_s),
                targets: Vec::new(),
            });
            let last = all.len() - 1;
            &mut all[last]
        }
    };
    if repository.keys != keys {
        return Err(CommandError::usage(format_args!(
            "{}: two entries have different Signed-By or Trusted",
            repository.shown()
        ))
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

/// The addresses that a source's address stands for, itself first if it is one of these mirrors; none if it is left to
/// apt.
fn mirrors(uri: &str, known: &[String]) -> Result<Option<Vec<String>>, CommandError> {
    let scheme = uri.split(':').next().unwrap_or_default();
    if !matches!(scheme, "http" | "https" | "mirror+file") {
        return Ok(None);
    }
    let mut all = sources::expand(uri)?;
    let own = uri.trim_end_matches('/');
    if known.iter().any(|mirror| mirror == own) {
        all.extend(known.iter().filter(|mirror| *mirror != own).cloned());
    }
    all.iter().map(|mirror| address(mirror)).collect::<Result<_, _>>().map(Some)
}
