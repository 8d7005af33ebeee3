//! A Tahoe-LAFS node's directory: its grid, its secrets, and its encoding. It is read, never written.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use fullbore_engine::units;

use super::base32;
use super::geometry::{DEFAULT_ENCODING, Encoding, GeometryError};
use super::secrets::LeaseSecrets;
use super::servers::{Announcements, Servers, ServersError};

/// Longest file of a node that is read, in bytes. An introducer's cache has about 1.5 kB per server.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// The content of a node's directory.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    /// The numbers k, happy and n.
    pub encoding: Encoding,
    /// The servers of the grid.
    pub servers: Servers,
    /// The convergence secret.
    pub convergence: Secret,
    /// Secrets for leases.
    pub lease: LeaseSecrets,
    /// Ids of the servers that come first in every order (`peers.preferred`).
    pub preferred: Vec<String>,
}

/// Secret bytes: `Debug` does not show them.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(pub Vec<u8>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Why a node's directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum NodeError {
    /// A file cannot be read.
    #[error("{}: {error}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A file is malformed.
    #[error("{}: {reason}", path.display())]
    Form {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The node trusts only servers certified by a grid manager. Certificates are not checked here.
    #[error("{}: the node trusts only servers certified by a grid manager, which fullbore cannot check", path.display())]
    GridManager {
        /// Path of `tahoe.cfg`.
        path: PathBuf,
    },
    /// The node hides its address from servers (Tor or I2P), but this code connects directly.
    #[error(
        "{}: {setting}: the node hides its address from servers, but fullbore would connect to them directly",
        path.display()
    )]
    Hidden {
        /// Path of `tahoe.cfg`.
        path: PathBuf,
        /// The setting that says so.
        setting: String,
    },
}

impl NodeError {
    fn form(path: &Path, reason: impl ToString) -> NodeError {
        NodeError::Form { path: path.to_owned(), reason: reason.to_string() }
    }
}

/// Reads a file of bounded size; `None` if it does not exist.
fn read(path: &Path) -> Result<Option<String>, NodeError> {
    let failed = |error| NodeError::File { path: path.to_owned(), error };
    let file = match fs::File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(failed)?,
    };
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(NodeError::form(path, format_args!("larger than {}", units::bytes(FILE_BYTES_MAX))));
    }
    Ok(Some(text))
}

fn needed(path: &Path) -> Result<String, NodeError> {
    read(path)?.ok_or_else(|| NodeError::File { path: path.to_owned(), error: rustix::io::Errno::NOENT.into() })
}

impl Node {
    /// Reads a node's directory.
    ///
    /// # Errors
    /// [`NodeError::File`] if a file cannot be read; [`NodeError::Form`] if one is malformed;
    /// [`NodeError::GridManager`] or [`NodeError::Hidden`] for a node that fullbore cannot stand in for.
    pub(crate) fn read(directory: &Path) -> Result<Node, NodeError> {
        let settings_path = directory.join("tahoe.cfg");
        let settings = Settings::parse(&needed(&settings_path)?);
        if settings.has_section("grid_managers") {
            return Err(NodeError::GridManager { path: settings_path });
        }
        if let Some(setting) = settings.hides() {
            return Err(NodeError::Hidden { path: settings_path, setting });
        }
        let private = directory.join("private");
        let mut announcements = Announcements::default();
        for path in caches(&private)? {
            if let Some(text) = read(&path)? {
                announcements.add_introducer_cache(&text).map_err(|error| NodeError::form(&path, error))?;
            }
        }
        let own = private.join("servers.yaml");
        if let Some(text) = read(&own)? {
            announcements.add_servers_yaml(&text).map_err(|error| NodeError::form(&own, error))?;
        }
        let secret = private.join("secret");
        let lease = LeaseSecrets::parse(&needed(&secret)?).map_err(|error| NodeError::form(&secret, error))?;
        Ok(Node {
            encoding: settings.encoding().map_err(|reason| NodeError::form(&settings_path, reason))?,
            servers: announcements.servers(),
            convergence: read_convergence(&private.join("convergence"))?,
            lease,
            preferred: settings.preferred(),
        })
    }
}

/// Reads a convergence secret from a file with its base32, such as `private/convergence`.
///
/// # Errors
/// [`NodeError::File`] if the file cannot be read; [`NodeError::Form`] if it is not base32.
pub(crate) fn read_convergence(path: &Path) -> Result<Secret, NodeError> {
    base32::decode(needed(path)?.trim()).map(Secret).map_err(|error| NodeError::form(path, error))
}

/// Reads a `servers.yaml`.
///
/// # Errors
/// [`NodeError::File`] if the file cannot be read; [`NodeError::Form`] if it is malformed.
pub(crate) fn read_servers(path: &Path) -> Result<Servers, NodeError> {
    let mut announcements = Announcements::default();
    announcements.add_servers_yaml(&needed(path)?).map_err(|error: ServersError| NodeError::form(path, error))?;
    Ok(announcements.servers())
}

/// Paths of the caches of all introducers, in the order of their names.
fn caches(private: &Path) -> Result<Vec<PathBuf>, NodeError> {
    let failed = |error| NodeError::File { path: private.to_owned(), error };
    let mut paths = Vec::new();
    for entry in fs::read_dir(private).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("introducer_") && name.ends_with("_cache.yaml") {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

/// A `tahoe.cfg`: sections of `name = value`. Unknown settings are ignored.
#[derive(Debug, Default)]
struct Settings {
    sections: Vec<String>,
    /// Section, name and value of each setting.
    values: Vec<(String, String, String)>,
}

impl Settings {
    fn parse(text: &str) -> Settings {
        let mut settings = Settings::default();
        for line in text.lines() {
            let line = line.trim();
            // Text after the bracket is ignored, as by the stock client.
            if let Some((name, _)) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
                settings.sections.push(name.trim().to_owned());
            } else if let Some((name, value)) = line.split_once(['=', ':'])
                && !line.starts_with(['#', ';'])
                && let Some(section) = settings.sections.last()
            {
                settings.values.push((section.clone(), name.trim().to_lowercase(), value.trim().to_owned()));
            }
        }
        settings
    }

    fn has_section(&self, name: &str) -> bool {
        self.sections.iter().any(|section| section == name)
    }

    fn value(&self, section: &str, name: &str) -> Option<&str> {
        let value_in = |section: &str| self.values.iter().rev().find(|(of, key, _)| of == section && key == name);
        value_in(section).or_else(|| value_in("DEFAULT")).map(|(.., value)| value.as_str())
    }

    fn client(&self, name: &str) -> Option<&str> {
        self.value("client", name)
    }

    /// The setting that hides the node's address from servers, if there is one.
    fn hides(&self) -> Option<String> {
        if let Some(value) = self.value("node", "reveal-ip-address")
            && !["1", "yes", "true", "on"].contains(&value.to_lowercase().as_str())
        {
            return Some(format!("[node] reveal-IP-address = {value}"));
        }
        let value = self.value("connections", "tcp").filter(|value| !value.eq_ignore_ascii_case("tcp"))?;
        Some(format!("[connections] tcp = {value}"))
    }

    fn encoding(&self) -> Result<Encoding, String> {
        let number = |name: &str, default: u16| match self.client(name) {
            Some(text) => text.parse().map_err(|_| format!("{name} = {text} is not a number in range")),
            None => Ok(default),
        };
        let Encoding { needed, happy, total } = DEFAULT_ENCODING;
        let (needed, happy, total) =
            (number("shares.needed", needed)?, number("shares.happy", happy)?, number("shares.total", total)?);
        Encoding::new(needed, happy, total).map_err(|error: GeometryError| error.to_string())
    }

    fn preferred(&self) -> Vec<String> {
        let ids = self.client("peers.preferred").unwrap_or_default().split(',');
        ids.map(|id| id.trim().to_owned()).filter(|id| !id.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(settings: &str) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("private")).unwrap();
        let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
        write("tahoe.cfg", settings);
        write("private/secret", "mzxw6ytboi\n");
        write("private/convergence", "mzxw6\n");
        directory
    }

    #[test]
    fn a_node_is_read() {
        let directory = node(
            "[node]\nshares.needed = 9\nreveal-IP-address = True\n[connections]\ntcp = tcp\n[client]\n# shares.needed = 8\nshares.needed = 2\nshares.happy=4\n\
            shares.total: 5\npeers.preferred = a, b\n[storage]\nshares.needed = 7\n",
        );
        let node = Node::read(directory.path()).unwrap();
        assert_eq!(node.encoding, Encoding { needed: 2, happy: 4, total: 5 });
        assert_eq!(node.preferred, ["a", "b"]);
        assert_eq!(node.convergence, Secret(b"foo".to_vec()));
        assert!(!format!("{node:?}").contains("foo"));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_file() {
        let cases = [
            ("[client]\nshares.needed = x\n", "tahoe.cfg"),
            ("[client]\nshares.needed = 9\nshares.total = 8\n", "tahoe.cfg"),
            ("[grid_managers]\nm = pub-v0-x\n", "grid manager"),
            ("[client]\n[grid_managers] ; ours\nm = pub-v0-x\n", "grid manager"),
            ("[client]\n[connections]  # by Tor\ntcp = tor\n", "[connections] tcp = tor"),
            ("[DEFAULT]\ntcp = tor\n[connections]\n", "[connections] tcp = tor"),
            ("[node]\nreveal-IP-address = false\n", "[node] reveal-IP-address = false"),
            ("[node]\nreveal-IP-address: No\n[client]\n", "[node] reveal-IP-address = No"),
            ("[connections]\ntcp = tor\n", "[connections] tcp = tor"),
            ("[connections]\ntcp = disabled\n", "hides its address"),
        ];
        for (settings, expected) in cases {
            let directory = node(settings);
            let error = Node::read(directory.path()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let directory = node("");
        fs::write(directory.path().join("private/introducer_x_cache.yaml"), "a: 1").unwrap();
        assert!(Node::read(directory.path()).unwrap_err().to_string().contains("introducer_x_cache.yaml"));
        fs::remove_file(directory.path().join("private/introducer_x_cache.yaml")).unwrap();
        fs::remove_file(directory.path().join("private/secret")).unwrap();
        let missing = Node::read(directory.path()).unwrap_err().to_string();
        assert!(missing.contains("private/secret: No such file or directory"), "{missing}");
    }
}
