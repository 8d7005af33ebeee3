//! Storage servers, from announcements as a node stores them, and their order for a file.

use std::collections::BTreeMap;
use std::fmt;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use fullbore_engine::digest::Sha256;

use super::base32;
use super::cap::StorageIndex;
use super::nurl::{Nurl, NurlError};
use super::yaml::{Yaml, YamlError};

/// Most servers that are read. The largest public grid had some hundred.
const SERVERS_MAX: usize = 10_000;

/// A usable storage server.
#[derive(Clone)]
pub struct Server {
    /// Its id in announcements; `v0-…` is its public key.
    pub id: String,
    /// The operator's name for it; may be empty.
    pub nickname: String,
    /// Address of the server's storage protocol.
    pub nurl: Nurl,
    /// Determines its place in the order of each file.
    permutation_seed: Vec<u8>,
    /// Part of the secrets of its leases.
    pub lease_seed: Vec<u8>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({}, {})", self.name(), self.nurl.authority())
    }
}

impl Server {
    /// Name for people: nickname and address.
    pub fn name(&self) -> String {
        name(&self.nickname, &self.id, Some(&self.nurl))
    }

    /// Sort key in the order of this file; a hash, so that two are never equal.
    fn rank(&self, index: &StorageIndex) -> [u8; 20] {
        let text = [&index[..], &self.permutation_seed].concat();
        let mut rank = [0; 20];
        rank.copy_from_slice(digest(&SHA1_FOR_LEGACY_USE_ONLY, &text).as_ref());
        rank
    }
}

fn name(nickname: &str, id: &str, nurl: Option<&Nurl>) -> String {
    let short: String = id.strip_prefix("v0-").unwrap_or(id).chars().take(8).collect();
    let nickname: String = nickname.chars().filter(|c| !c.is_control()).take(40).collect();
    let own = if nickname.is_empty() || nickname == "(none)" { short } else { nickname };
    match nurl {
        Some(nurl) => format!("{own} ({})", nurl.authority()),
        None => own,
    }
}

/// An announced server that cannot be used, but counts in the grid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unusable {
    /// Name for people.
    pub name: String,
    /// Why it cannot be used.
    pub reason: String,
}

/// The servers of a grid, usable and unusable.
#[derive(Debug, Clone, Default)]
pub struct Servers {
    /// Servers that fullbore can use.
    pub usable: Vec<Server>,
    /// Announced servers that fullbore cannot use, with the reason.
    pub unusable: Vec<Unusable>,
}

/// A file of announcements cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServersError {
    /// Not YAML.
    #[error(transparent)]
    Yaml(#[from] YamlError),
    /// YAML, but not a file of announcements.
    #[error("no announcements: {wanted} is missing")]
    Form {
        /// What is missing.
        wanted: &'static str,
    },
    /// More than 10,000 servers.
    #[error("more than {SERVERS_MAX} servers")]
    TooMany,
}

/// Announcements by server id; a later one of the same id replaces the earlier.
#[derive(Debug, Clone, Default)]
pub struct Announcements(BTreeMap<String, Yaml>);

impl Announcements {
    /// Adds an introducer's cache: a list of `key_s` and `ann`.
    ///
    /// # Errors
    /// [`ServersError::Yaml`] if the text is not YAML; [`ServersError::Form`] if it is not a list;
    /// [`ServersError::TooMany`] for more than 10,000 servers.
    pub fn add_introducer_cache(&mut self, text: &str) -> Result<(), ServersError> {
        let yaml = Yaml::parse(text)?;
        if !matches!(yaml, Yaml::List(_)) {
            return Err(ServersError::Form { wanted: "a list of `key_s` and `ann`" });
        }
        for entry in yaml.list() {
            let (Some(id), Some(ann)) = (entry.get("key_s").and_then(Yaml::text), entry.get("ann")) else { continue };
            // Introducers also pass on announcements of other services.
            if ann.get("service-name").and_then(Yaml::text).is_none_or(|name| name == "storage") {
                self.insert(id, ann)?;
            }
        }
        Ok(())
    }

    /// Adds a `servers.yaml`: `storage: {ID: {ann: {…}}}`. Its servers replace earlier ones of the same id.
    ///
    /// # Errors
    /// [`ServersError::Yaml`] if the text is not YAML; [`ServersError::Form`] without a map `storage`, or an `ann` for
    /// each server; [`ServersError::TooMany`] for more than 10,000 servers.
    pub fn add_servers_yaml(&mut self, text: &str) -> Result<(), ServersError> {
        let yaml = Yaml::parse(text)?;
        let storage = match &yaml {
            Yaml::Text(text) if text.is_empty() => return Ok(()),
            yaml => yaml.get("storage").ok_or(ServersError::Form { wanted: "`storage: {ID: {ann: {...}}}`" })?,
        };
        for (id, entry) in storage.entries() {
            let (Some(id), Some(ann)) = (id.text(), entry.get("ann")) else {
                return Err(ServersError::Form { wanted: "`ann` below each server's ID" });
            };
            self.insert(id, ann)?;
        }
        Ok(())
    }

    fn insert(&mut self, id: &str, ann: &Yaml) -> Result<(), ServersError> {
        if self.0.len() >= SERVERS_MAX && !self.0.contains_key(id) {
            return Err(ServersError::TooMany);
        }
        self.0.insert(id.to_owned(), ann.clone());
        Ok(())
    }

    /// All announced servers, divided into usable and unusable ones.
    pub fn servers(&self) -> Servers {
        let mut servers = Servers::default();
        for (id, ann) in &self.0 {
            match server(id, ann) {
                Ok(server) => servers.usable.push(server),
                Err(reason) => {
                    let nickname = ann.get("nickname").and_then(Yaml::text).unwrap_or_default();
                    servers.unusable.push(Unusable { name: name(nickname, id, None), reason });
                }
            }
        }
        servers
    }
}

/// Parses an announcement, or says in words why the server cannot be used.
fn server(id: &str, ann: &Yaml) -> Result<Server, String> {
    let text = |key: &str| ann.get(key).and_then(Yaml::text);
    let nurls: Vec<&str> =
        ann.get("anonymous-storage-NURLs").map(Yaml::list).unwrap_or_default().iter().filter_map(Yaml::text).collect();
    if nurls.is_empty() {
        return Err("it announces no address for HTTP (NURL): it speaks only Foolscap, or is older than 1.19".into());
    }
    let mut nurl = Err(NurlError::Tor);
    for text in nurls {
        nurl = Nurl::parse(text);
        if nurl.is_ok() {
            break;
        }
    }
    let nurl = nurl.map_err(|error| format!("its NURL is {error}"))?;
    // The seed of leases is the id of the server's tub, over HTTP as well.
    let lease_seed = text("anonymous-storage-FURL")
        .and_then(|furl| furl.strip_prefix("pb://")?.split_once('@'))
        .and_then(|(tub, _)| base32::decode(&tub.to_lowercase()).ok())
        .ok_or("its anonymous-storage-FURL, needed for lease secrets, is missing or malformed")?;
    let permutation_seed = match text("permutation-seed-base32") {
        Some(seed) => base32::decode(&seed.to_lowercase()).map_err(|error| format!("its permutation seed: {error}"))?,
        None => match id.strip_prefix("v0-").and_then(|key| base32::decode_array::<32>(key).ok()) {
            Some(key) => key.to_vec(),
            None => Sha256::of(id.as_bytes()).0.to_vec(),
        },
    };
    let nickname = text("nickname").unwrap_or_default().to_owned();
    Ok(Server { id: id.to_owned(), nickname, nurl, permutation_seed, lease_seed })
}

/// Positions of the servers in the order of a file: preferred ones first, then by hash.
pub fn permuted(servers: &[Server], index: &StorageIndex, preferred: &[String]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..servers.len()).collect();
    order.sort_by_cached_key(|&number| {
        let server = &servers[number];
        let last = !preferred.iter().any(|id| is_called(server, id));
        (last, server.rank(index))
    });
    order
}

/// Whether an entry of `peers.preferred` names this server: by its id, with or without `v0-`, or by its tub.
fn is_called(server: &Server, id: &str) -> bool {
    server.id == id || server.id.strip_prefix("v0-") == Some(id) || base32::encode(&server.lease_seed) == id
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIN: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
    const TUB: &str = "sw2jrqy6qrzd5dkhrqjqlv4hxpwvzm7z";

    fn yaml(ids: &[&str]) -> String {
        let mut text = "storage:\n".to_owned();
        for id in ids {
            text += &format!(
                "  {id}:\n    ann:\n      nickname: n-{id}\n      anonymous-storage-FURL: pb://{TUB}@h:1/x\n      \
                 anonymous-storage-NURLs:\n      - pb://{PIN}@h:1/swiss#v=1\n"
            );
        }
        text
    }

    fn read(text: &str) -> Servers {
        let mut announcements = Announcements::default();
        announcements.add_servers_yaml(text).unwrap();
        announcements.servers()
    }

    #[test]
    fn a_servers_yaml_is_read() {
        let servers = read(&yaml(&["one", "two"]));
        assert_eq!(servers.usable.len(), 2);
        assert_eq!(servers.usable[0].name(), "n-one (h:1)");
        assert_eq!(servers.usable[0].lease_seed.len(), 20);
        assert_eq!(servers.usable[0].permutation_seed, Sha256::of(b"one").0);
    }

    #[test]
    fn who_speaks_only_foolscap_is_named() {
        let cache = format!(
            "- key_s: v0-{}\n  ann:\n    service-name: storage\n    nickname: old\n    anonymous-storage-FURL: pb://{TUB}@h:1/x\n\
             - key_s: v0-zz\n  ann: {{service-name: other}}\n",
            base32::encode(&[7; 32])
        );
        let mut announcements = Announcements::default();
        announcements.add_introducer_cache(&cache).unwrap();
        let servers = announcements.servers();
        assert!(servers.usable.is_empty());
        assert_eq!(servers.unusable.len(), 1);
        assert!(servers.unusable[0].reason.contains("Foolscap"), "{:?}", servers.unusable);
        // The same server, with an HTTP address written by hand.
        let own = yaml(&[&format!("v0-{}", base32::encode(&[7; 32]))]);
        announcements.add_servers_yaml(&own).unwrap();
        let servers = announcements.servers();
        assert!(servers.unusable.is_empty());
        assert_eq!(servers.usable[0].permutation_seed, [7; 32]);
    }

    #[test]
    fn preferred_servers_come_first_and_files_differ_in_order() {
        let servers = read(&yaml(&["a", "b", "c", "d", "e"])).usable;
        let order = permuted(&servers, &[1; 16], &[]);
        let last = servers[order[4]].id.clone();
        let preferred = permuted(&servers, &[1; 16], &[last]);
        assert_eq!(preferred[0], order[4]);
        assert_eq!(preferred[1..], order[..4]);
        assert!((0..20).any(|file| permuted(&servers, &[file; 16], &[]) != order));
    }

    #[test]
    fn what_is_no_list_of_servers_is_refused() {
        let mut announcements = Announcements::default();
        assert!(announcements.add_servers_yaml("a: 1").is_err());
        assert!(announcements.add_servers_yaml("storage: {x: {y: 1}}").is_err());
        assert!(announcements.add_introducer_cache("a: 1").is_err());
        assert!(announcements.add_servers_yaml("").is_ok());
    }
}
