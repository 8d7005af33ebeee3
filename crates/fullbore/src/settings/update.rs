//! What `fullbore update` is to do.

use fullbore_apt::acquire::Configuration;
use fullbore_apt::frames::Level;
use fullbore_apt::system::files::{authorities, configured_auth_files, trusted_keyrings};
use fullbore_apt::system::{configuration, proxies, sources};
use fullbore_apt::update::UpdateSettings;
use fullbore_debian::sources_list::ArchiveSource;
use fullbore_engine::durability::Durability;
use fullbore_engine::run::error::CommandError;
use fullbore_engine::run::named_files::absolute;

use super::keys::named;
use super::resolve::{network, output};
use super::{Environment, OutputSettings};
use crate::cli::{IndexLevel, UpdateArgs};

/// Resolves flags, environment and apt's configuration.
pub fn update(
    arguments: &UpdateArgs,
    environment: &Environment,
) -> Result<(UpdateSettings, OutputSettings), CommandError> {
    let configuration = configuration::read()?;
    let system = absolute(&configuration.path("Dir::State::lists").unwrap_or_else(|| "/var/lib/apt/lists".into()))?;
    let lists = arguments.lists.as_deref().map_or_else(|| Ok(system.clone()), absolute)?;
    let proxy = proxies::over(&configuration, &environment.proxy);
    let environment = Environment { proxy, ..environment.clone() };
    let is_system = same(&lists, &system);
    let mut network = network(&arguments.network, arguments.trust.cacert.as_deref(), &environment)?;
    network.apt_ca_file = authorities(&configuration);
    if arguments.network.auth.is_none() {
        network.auth_files = configured_auth_files(&configuration);
    }
    let settings = UpdateSettings {
        sources: sources_of(arguments, &configuration)?,
        is_system,
        locale: environment.locale.clone(),
        keyrings: named(&arguments.trust.keyring)?,
        trusted: trusted_keyrings(&configuration),
        ignore_valid_until: arguments.ignore_valid_until,
        pdiffs: !arguments.no_pdiffs,
        clean: !arguments.no_clean && configuration.bool("APT::Get::List-Cleanup", true),
        hooks: is_system && !arguments.no_hooks,
        level: match arguments.level {
            IndexLevel::Fast => Level::Fast,
            IndexLevel::Best => Level::Best,
        },
        durability: arguments.durability.unwrap_or(Durability::AtEnd),
        mirrors: Vec::new(),
        network,
        lists,
        configuration,
    };
    Ok((settings, output(&arguments.output, arguments.changed_exit)))
}

fn same(a: &std::path::Path, b: &std::path::Path) -> bool {
    a == b || std::fs::canonicalize(a).is_ok_and(|a| std::fs::canonicalize(b).is_ok_and(|b| a == b))
}

/// Those named, or all that apt uses.
fn sources_of(arguments: &UpdateArgs, configuration: &Configuration) -> Result<Vec<ArchiveSource>, CommandError> {
    match &arguments.sources {
        Some(path) => sources::read(path),
        None => sources::configured(configuration),
    }
}
