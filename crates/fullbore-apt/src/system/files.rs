//! Keyrings and credentials of apt on this machine.

use std::path::{Path, PathBuf};

use fullbore_debian::keys::KeySource;
use fullbore_debian::signature::check_keyring;
use fullbore_engine::run::named_files::readable;

use crate::acquire::Configuration;
use crate::lists::built_in;
use crate::system::parts::files_of;
use crate::system::sources::native_architecture;

/// The files of one of apt's directories, which may be missing.
pub fn parts(directory: &Path, endings: &[&str]) -> Vec<PathBuf> {
    files_of(directory, endings).unwrap_or_else(|error| {
        if error.kind() != std::io::ErrorKind::NotFound {
            tracing::warn!("cannot read {}: {error}", directory.display());
        }
        Vec::new()
    })
}

/// apt's files with credentials that this user can read, at apt's default places; often only root can.
pub fn auth_files() -> Vec<PathBuf> {
    configured_auth_files(&built_in::configuration(native_architecture()))
}

/// The files with credentials that this configuration names, as far as this user can read them.
pub fn configured_auth_files(configuration: &Configuration) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = configuration.path("Dir::Etc::netrc").into_iter().collect();
    if let Some(directory) = configuration.path("Dir::Etc::netrcparts") {
        files.extend(parts(&directory, &["conf"]));
    }
    files.retain(|file| std::fs::File::open(file).is_ok());
    files
}

/// The file of certificate authorities that this configuration names for https (apt-transport-https(1), `CaInfo`).
pub fn authorities(configuration: &Configuration) -> Option<PathBuf> {
    configuration.get("Acquire::https::CaInfo").filter(|file| !file.is_empty()).map(PathBuf::from)
}

/// `trusted.gpg` and the keyrings of `trusted.gpg.d`, for sources without `Signed-By`. See [`usable_keyrings`].
pub fn trusted_keyrings(configuration: &Configuration) -> Vec<KeySource> {
    let mut files: Vec<PathBuf> = configuration.path("Dir::Etc::trusted").into_iter().collect();
    if let Some(directory) = configuration.path("Dir::Etc::trustedparts") {
        files.extend(parts(&directory, &["gpg", "asc"]));
    }
    files.retain(|file| readable(file).is_ok());
    files.into_iter().map(KeySource::File).collect()
}

/// The default keyrings that a verifier can read, and warnings about the others. As in apt, these are left out: nobody named
/// them for a source, and the verifier would refuse the keys of all because of one.
pub fn usable_keyrings(keyrings: &[KeySource]) -> (Vec<KeySource>, Vec<String>) {
    let (mut usable, mut warnings) = (Vec::new(), Vec::new());
    for keyring in keyrings {
        match keyring {
            // The usual way to say that there is no such file.
            KeySource::File(path) if path == Path::new("/dev/null") => {}
            KeySource::File(path) => match check_keyring(path) {
                Ok(()) => usable.push(keyring.clone()),
                Err(error) => warnings.push(format!("{error}; its keys are ignored")),
            },
            KeySource::Inline(_) => usable.push(keyring.clone()),
        }
    }
    (usable, warnings)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The packet of a key, as far as it is looked at.
    const A_KEY: [u8; 3] = [0x98, 1, 4];

    #[test]
    fn a_keyring_that_no_verifier_reads_is_left_out_of_the_default_ones() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for (name, content) in [
            ("empty.gpg", &b""[..]),
            ("garbage.gpg", b"key"),
            ("half.gpg", &A_KEY[..2]),
            ("page.asc", b"<p>-----BEGIN PGP "),
            ("open.asc", b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmAEE\n"),
            ("signature.asc", b"-----BEGIN PGP SIGNATURE-----\n\nmAEE\n-----END PGP SIGNATURE-----\n"),
            ("good.gpg", &A_KEY),
            ("good.asc", b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmAEE\n-----END PGP PUBLIC KEY BLOCK-----\n"),
        ] {
            std::fs::write(at(name), content).unwrap();
        }
        let mut configuration = Configuration::new();
        configuration.set("Dir::Etc::trusted", &at("empty.gpg").display().to_string());
        configuration.set("Dir::Etc::trustedparts", &directory.path().display().to_string());
        let expected = ["good.asc", "good.gpg"].map(|name| KeySource::File(at(name)));
        let (usable, warnings) = usable_keyrings(&trusted_keyrings(&configuration));
        assert_eq!(usable, expected);
        assert_eq!(warnings.len(), 7, "the empty one is named twice: {warnings:?}");
    }

    #[test]
    fn credentials_are_where_the_configuration_says() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("etc/apt/auth.conf.d")).unwrap();
        for name in ["auth.conf", "other.conf", "auth.conf.d/b.conf", "auth.conf.d/a.conf", "auth.conf.d/c.txt"] {
            std::fs::write(directory.path().join("etc/apt").join(name), "").unwrap();
        }
        let found = |settings: &[(&str, &str)]| {
            let mut configuration = built_in::configuration("amd64");
            settings.iter().for_each(|(name, value)| configuration.set(name, value));
            let files = configured_auth_files(&configuration);
            let below = |file: PathBuf| file.strip_prefix(directory.path()).unwrap().display().to_string();
            files.into_iter().map(below).collect::<Vec<_>>()
        };
        let root = directory.path().to_str().unwrap();
        let usual = ["etc/apt/auth.conf", "etc/apt/auth.conf.d/a.conf", "etc/apt/auth.conf.d/b.conf"];
        assert_eq!(found(&[("RootDir", root)]), usual);
        assert_eq!(found(&[("Dir", root)]), usual);
        let other = directory.path().join("etc/apt/other.conf");
        let settings = [("Dir::Etc::netrc", other.to_str().unwrap()), ("Dir::Etc::netrcparts", "/nonexistent")];
        assert_eq!(found(&settings), ["etc/apt/other.conf"]);
    }

    #[test]
    fn keyrings_that_apt_passes_over_are_not_trusted() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["b.gpg", "a.asc", ".old.gpg", "a b.asc", "c.gpg~", "d.gpg.dpkg-old"] {
            std::fs::write(directory.path().join(name), A_KEY).unwrap();
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
