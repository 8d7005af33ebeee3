//! The files of a fetch: indexes of patches, patches, whole indexes.

use std::sync::Arc;

use fullbore_debian::release::IndexEntry;
use fullbore_wire::run::{FileList, RemoteFile};

use super::repositories::Repository;
use super::session::{Batch, PARTIAL};

/// A file that a Release names. `name` is its name in the lists directory.
pub(super) fn of_release(repository: &Repository, entry: &IndexEntry, by_hash: bool, name: &str) -> RemoteFile {
    let plain = format!("{}{}", repository.directory, entry.path);
    let hashed = entry.path.by_hash("SHA256", entry.sha256.to_hex().as_str()).ok().filter(|_| by_hash);
    let hashed = hashed.map(|path| format!("{}{path}", repository.directory));
    RemoteFile {
        other_path: hashed.is_some().then(|| plain.clone()),
        path: hashed.unwrap_or(plain),
        target: partial(name),
        size: entry.size,
        sha256: entry.sha256,
    }
}

/// The path of a file with this name until it is published.
pub(super) fn partial(name: &str) -> String {
    format!("{PARTIAL}/{name}")
}

/// A file to fetch, and where it is used.
pub(super) struct Download {
    /// Number of the site that has the file.
    pub site: usize,
    /// Number of the index that needs the file.
    pub index: usize,
    /// Path, size and hash of the file.
    pub file: RemoteFile,
}

/// Groups files by site; beside each batch are the numbers of its files' indexes.
pub(super) fn batches(files: Vec<Download>, sites: usize) -> (Vec<Batch>, Vec<Vec<usize>>) {
    let mut of_sites: Vec<(Vec<RemoteFile>, Vec<usize>)> = (0..sites).map(|_| Default::default()).collect();
    for download in files {
        of_sites[download.site].0.push(download.file);
        of_sites[download.site].1.push(download.index);
    }
    let filled = of_sites.into_iter().enumerate().filter(|(_, (files, _))| !files.is_empty());
    filled.map(|(site, (files, indexes))| (Batch { site, files: Arc::new(FileList(files)) }, indexes)).unzip()
}
