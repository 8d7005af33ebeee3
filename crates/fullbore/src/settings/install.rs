//! What `fullbore install` is to do.

use std::path::Path;

use fullbore_engine::run::error::CommandError;
use fullbore_install::root::within;
use fullbore_install::settings::InstallSettings;

use super::resolve::{network, output};
use super::values::apt_option;
use super::{Environment, OutputSettings};
use crate::cli::InstallArgs;

/// Resolves flags and environment.
///
/// # Errors
/// Flags that mean nothing, or a root that is none.
pub fn install(
    arguments: &InstallArgs,
    environment: &Environment,
) -> Result<(InstallSettings, OutputSettings), CommandError> {
    let mut network = network(&arguments.network, arguments.cacert.as_deref(), environment)?;
    // Credentials of this machine are not the root's.
    network.auth_files = arguments.network.auth.iter().cloned().collect();
    let root = arguments.root.canonicalize().map_err(|error| CommandError::unreadable(&arguments.root, &error))?;
    if !root.join("var/lib/dpkg/status").is_file() {
        return Err(CommandError::usage(format_args!("{}: no root with dpkg in it", root.display()))
            .hint("make one with `fullbore bootstrap`"));
    }
    if !root.join("usr/bin/apt-get").exists() {
        return Err(CommandError::usage(format_args!("{}: no apt in it, which would install", root.display()))
            .hint("make a root with apt: `fullbore bootstrap --variant apt`"));
    }
    if let Some(wrong) = arguments.packages.iter().find(|name| name.starts_with('-')) {
        return Err(CommandError::usage(format_args!("{wrong}: not a package; options for apt go by --aptopt")));
    }
    // Its apt would call it an unsupported file.
    let is_outside = |name: &&String| name.contains('/') && name.ends_with(".deb") && !is_in(&root, name);
    if let Some(file) = arguments.packages.iter().find(is_outside) {
        return Err(CommandError::usage(format_args!("{file}: no such file in {}", root.display()))
            .hint("put it into the root, whose apt reads it, and name its path from there"));
    }
    let settings = InstallSettings {
        root,
        packages: arguments.packages.clone(),
        apt_options: arguments.aptopt.iter().map(|option| for_command(option)).collect(),
        yes: arguments.yes,
        force: arguments.force,
        apt_config: environment.apt_config.clone(),
        epoch: environment.source_date_epoch,
        network,
        quiet: arguments.output.quiet,
        json: arguments.output.json,
    };
    let dpkg_prints = !settings.quiet && !settings.json;
    Ok((settings, OutputSettings { dpkg_prints, ..output(&arguments.output, false) }))
}

/// As apt-get's `--option` has it.
fn for_command(option: &str) -> String {
    apt_option(option).map_or_else(|| option.to_owned(), |(name, value)| format!("{name}={value}"))
}

/// Whether a file is in the root, as programs there see it; in the root that this program runs in, from the user's own
/// directory.
fn is_in(root: &Path, file: &str) -> bool {
    if root == Path::new("/") {
        Path::new(file).is_file()
    } else {
        within(root, Path::new(file)).is_ok_and(|path| path.is_file())
    }
}
