//! Network settings of a root's apt, so that fullbore fetches through the same proxies with the same credentials.

use std::path::{Path, PathBuf};

use fullbore_apt::acquire::Configuration;
use fullbore_apt::system::files::parts;
use fullbore_apt::system::proxies;
use fullbore_wire::run::NetworkSettings;

use crate::root::within;

/// Path that stands for one that leads through a loop of links: no file of this name exists.
const NOWHERE: &str = "links that lead to each other";

/// Adds the proxies, credentials (apt_auth.conf(5)) and certificates of an apt configuration to network settings.
/// Paths of the configuration are resolved within `root`. Credentials and certificates that `settings` names take
/// precedence.
pub(crate) fn apt_network(settings: &NetworkSettings, configuration: &Configuration, root: &Path) -> NetworkSettings {
    // A missing file is reported where it is opened.
    let seen = |path: PathBuf| within(root, &path).unwrap_or_else(|_| root.join(NOWHERE));
    let mut auth_files = settings.auth_files.clone();
    auth_files.extend(configuration.path("Dir::Etc::netrc").map(seen).filter(|file| file.is_file()));
    let directory = configuration.path("Dir::Etc::netrcparts").map(seen).filter(|directory| directory.is_dir());
    let files = directory.into_iter().flat_map(|directory| parts(&directory, &["conf"]));
    auth_files.extend(files.map(|file| file.strip_prefix(root).map(Path::to_owned).map_or(file.clone(), seen)));
    let certificates = configuration.get("Acquire::https::CaInfo").map(|file| seen(PathBuf::from(file)));
    NetworkSettings {
        auth_files,
        ca_file: settings.ca_file.clone().or(certificates),
        proxy: proxies::over(configuration, &settings.proxy),
        ..settings.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_wire::run::ProxyAddresses;

    #[test]
    fn credentials_proxies_and_certificates_are_the_roots() {
        let dir = tempfile::tempdir().unwrap();
        let parts = dir.path().join("etc/apt/auth.conf.d");
        std::fs::create_dir_all(&parts).unwrap();
        for file in ["a.conf", "b.off"] {
            std::fs::write(parts.join(file), "").unwrap();
        }
        let dump = "Dir=/\nDir::Etc=etc/apt\nDir::Etc::netrc=auth.conf\nDir::Etc::netrcparts=auth.conf.d\n\
                    Acquire::http::Proxy=http://p:1\nAcquire::https::CaInfo=/etc/own.pem\n";
        let host = ProxyAddresses { http: Some("http://host:1".into()), ..ProxyAddresses::default() };
        let settings = NetworkSettings {
            connections_per_host: 4,
            limit_rate_bytes_per_s: None,
            ca_file: None,
            apt_ca_file: None,
            http1_only: false,
            hedge: true,
            auth_files: vec!["named".into()],
            proxy: host,
            record: None,
            buckets: None,
        };
        let network = apt_network(&settings, &Configuration::from_dump(dump).unwrap(), dir.path());
        assert_eq!(network.auth_files, [PathBuf::from("named"), parts.join("a.conf")]);
        assert_eq!(network.ca_file, Some(dir.path().join("etc/own.pem")));
        assert_eq!(network.proxy.http.as_deref(), Some("http://p:1"));
    }
}
