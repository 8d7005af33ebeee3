//! Keyrings and credentials of apt on this machine.

use std::path::{Path, PathBuf};

use fullbore_debian::keys::KeySource;
use fullbore_engine::run::named_files::readable;

use crate::acquire::Configuration;
use crate::system::parts::files_of;

/// The files of one of apt's directories, which may be missing.
pub fn parts(directory: &Path, endings: &[&str]) -> Vec<PathBuf> {
    files_of(directory, endings).unwrap_or_else(|error| {
        if error.kind() != std::io::ErrorKind::NotFound {
            tracing::warn!("cannot read {}: {error}", directory.display());
        }
        Vec::new()
    })
}

/// apt's files with credentials that this user can read; often only root can.
pub fn auth_files() -> Vec<PathBuf> {
    let mut files = vec![PathBuf::from("/etc/apt/auth.conf")];
    files.extend(parts(Path::new("/etc/apt/auth.conf.d"), &["conf"]));
    files.retain(|file| std::fs::File::open(file).is_ok());
    files
}

/// `trusted.gpg` and the keyrings of `trusted.gpg.d`, for sources without `Signed-By`.
pub fn trusted_keyrings(configuration: &Configuration) -> Vec<KeySource> {
    let mut files: Vec<PathBuf> = configuration.path("Dir::Etc::trusted").into_iter().collect();
    if let Some(directory) = configuration.path("Dir::Etc::trustedparts") {
        files.extend(parts(&directory, &["gpg", "asc"]));
    }
    files.retain(|file| readable(file).is_ok());
    files.into_iter().map(KeySource::File).collect()
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
