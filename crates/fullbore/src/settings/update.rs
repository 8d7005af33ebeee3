//! What `fullbore update` is to do.

use std::path::PathBuf;

use fullbore_apt::acquire::Configuration;
use fullbore_apt::kept::Level;
use fullbore_apt::lists::languages::Locale;
use fullbore_debian::keys::KeySource;
use fullbore_debian::sources_list::{ArchiveSource, SignedBy};

use super::keys::{absolute, readable};
use super::resolve::{network, output};
use fullbore_engine::durability::Durability;
use fullbore_wire::run::NetworkSettings;

use super::{Environment, OutputSettings, apt, apt_configuration, apt_proxy};
use crate::cli::{KeptLevel, UpdateArgs};
use fullbore_engine::run::error::CommandError;

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

/// Resolves flags, environment and apt's configuration.
pub fn update(
    arguments: &UpdateArgs,
    environment: &Environment,
) -> Result<(UpdateSettings, OutputSettings), CommandError> {
    let configuration = apt_configuration::read()?;
    let system = absolute(&configuration.path("Dir::State::lists").unwrap_or_else(|| "/var/lib/apt/lists".into()))?;
    let lists = arguments.lists.as_deref().map_or_else(|| Ok(system.clone()), absolute)?;
    let proxy = apt_proxy::over(&configuration, &environment.proxy);
    let environment = Environment { proxy, ..environment.clone() };
    let is_system = same(&lists, &system);
    let settings = UpdateSettings {
        sources: sources(arguments, &configuration)?,
        is_system,
        locale: environment.locale.clone(),
        keyrings: named_keyrings(&arguments.trust.keyring)?,
        trusted: trusted_keyrings(&configuration),
        ignore_valid_until: arguments.ignore_valid_until,
        pdiffs: !arguments.no_pdiffs,
        clean: !arguments.no_clean && configuration.bool("APT::Get::List-Cleanup", true),
        hooks: is_system && !arguments.no_hooks,
        level: match arguments.level {
            KeptLevel::Own => Level::Own,
            KeptLevel::Apt => Level::Apt,
        },
        durability: arguments.durability.unwrap_or(Durability::AtEnd),
        mirrors: Vec::new(),
        network: network(&arguments.network, arguments.trust.cacert.as_deref(), &environment)?,
        lists,
        configuration,
    };
    Ok((settings, output(&arguments.output, arguments.changed_exit)))
}

fn same(a: &std::path::Path, b: &std::path::Path) -> bool {
    a == b || std::fs::canonicalize(a).is_ok_and(|a| std::fs::canonicalize(b).is_ok_and(|b| a == b))
}

/// Those named, or all that apt uses.
fn sources(arguments: &UpdateArgs, configuration: &Configuration) -> Result<Vec<ArchiveSource>, CommandError> {
    match &arguments.sources {
        Some(path) => apt::read(path),
        None => configured_sources(configuration),
    }
}

/// All sources that apt uses with this configuration; never none.
pub fn configured_sources(configuration: &Configuration) -> Result<Vec<ArchiveSource>, CommandError> {
    let mut sources = Vec::new();
    let mut looked = Vec::new();
    for key in ["Dir::Etc::sourcelist", "Dir::Etc::sourceparts"] {
        let Some(path) = configuration.path(key).filter(|path| path.exists()) else { continue };
        match apt::read(&path) {
            Ok(more) => sources.extend(more),
            // An empty sources.list beside a directory of sources is usual.
            Err(error) if error.message.ends_with("no enabled source") => looked.push(path.display().to_string()),
            Err(error) => return Err(error),
        }
    }
    if sources.is_empty() {
        return Err(CommandError::usage(format_args!("no sources: looked at {}", looked.join(" and ")))
            .hint("name apt's sources with --sources FILE|DIR"));
    }
    Ok(sources)
}

fn named_keyrings(files: &[PathBuf]) -> Result<Vec<KeySource>, CommandError> {
    files.iter().map(|file| readable(file).and_then(|()| absolute(file)).map(KeySource::File)).collect()
}

/// `trusted.gpg` and the keyrings of `trusted.gpg.d`, which apt takes where a source names none.
pub fn trusted_keyrings(configuration: &Configuration) -> Vec<KeySource> {
    let mut files: Vec<PathBuf> = configuration.path("Dir::Etc::trusted").into_iter().collect();
    if let Some(parts) = configuration.path("Dir::Etc::trustedparts") {
        files.extend(apt::parts(&parts, &["gpg", "asc"]));
    }
    files.retain(|file| readable(file).is_ok());
    files.into_iter().map(KeySource::File).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keyrings_that_apt_passes_over_are_not_trusted() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["b.gpg", "a.asc", ".old.gpg", "a b.asc", "c.gpg~", "d.gpg.dpkg-old"] {
            std::fs::write(directory.path().join(name), "key").unwrap();
        }
        let mut configuration = Configuration::new();
        configuration.set("Dir::Etc::trustedparts", &directory.path().display().to_string());
        let trusted = trusted_keyrings(&configuration);
        let expected = ["a.asc", "b.gpg"].map(|name| KeySource::File(directory.path().join(name)));
        let others =
            trusted.iter().filter(|key| matches!(key, KeySource::File(file) if file.starts_with(directory.path())));
        assert_eq!(others.collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>());
    }
}
