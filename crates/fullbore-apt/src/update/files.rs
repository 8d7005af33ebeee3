//! The files of a fetch: patches' indexes, patches, whole indexes.

use std::sync::Arc;

use fullbore_debian::release::IndexEntry;
use fullbore_engine::digest::Sha256;
use fullbore_engine::landing::FileSpec;
use fullbore_wire::fetch::Catalogue;
use fullbore_wire::queue::ItemId;
use fullbore_wire::run::Batch;

use super::repositories::Repository;
use super::session::{Batched, PARTIAL};

/// One file on its way.
#[derive(Debug, Clone)]
pub struct File {
    /// Below the site's address; by hash where the archive has it so.
    pub path: String,
    /// Its plain name, where that is another one.
    pub other_path: Option<String>,
    /// Where it lands, in the lists directory.
    pub landing: String,
    /// In bytes.
    pub size: u64,
    /// From a signed index.
    pub sha256: Sha256,
    /// The caller's number for what it belongs to.
    pub of: usize,
}

impl File {
    /// A file that a Release names. `name` is its own in the lists directory.
    pub fn of_release(repository: &Repository, entry: &IndexEntry, by_hash: bool, name: &str, of: usize) -> File {
        let plain = format!("{}{}", repository.directory, entry.path);
        let hashed = entry.path.by_hash("SHA256", entry.sha256.to_hex().as_str()).ok().filter(|_| by_hash);
        let hashed = hashed.map(|path| format!("{}{path}", repository.directory));
        File {
            other_path: hashed.is_some().then(|| plain.clone()),
            path: hashed.unwrap_or(plain),
            landing: landing(name),
            size: entry.size,
            sha256: entry.sha256,
            of,
        }
    }
}

/// Where a file of this name lands.
pub fn landing(name: &str) -> String {
    format!("{PARTIAL}/{name}")
}

/// Files of one site.
struct Files(Vec<File>);

impl Catalogue for Files {
    fn path(&self, item: ItemId) -> String {
        self.0[item as usize].path.clone()
    }

    fn other_path(&self, item: ItemId) -> Option<String> {
        self.0[item as usize].other_path.clone()
    }

    fn sha256(&self, item: ItemId) -> Sha256 {
        self.0[item as usize].sha256
    }

    fn spec(&self, item: ItemId) -> FileSpec {
        let file = &self.0[item as usize];
        FileSpec { item, path: file.landing.clone(), size: file.size, sha256: file.sha256, mtime: None }
    }
}

impl Batch for Files {
    fn size(&self, item: ItemId) -> u64 {
        self.0[item as usize].size
    }
}

/// Files, each with its site, as batches; beside each batch the number of what its files belong to.
pub fn batches(files: Vec<(usize, File)>, sites: usize) -> (Vec<Batched>, Vec<Vec<usize>>) {
    let mut of_sites: Vec<Vec<File>> = (0..sites).map(|_| Vec::new()).collect();
    for (site, file) in files {
        of_sites[site].push(file);
    }
    let filled = of_sites.into_iter().enumerate().filter(|(_, files)| !files.is_empty());
    let batch = |(site, files): (usize, Vec<File>)| {
        let owners = files.iter().map(|file| file.of).collect();
        let count = files.len() as u32;
        (Batched { site, files: Arc::new(Files(files)), count }, owners)
    };
    filled.map(batch).unzip()
}
