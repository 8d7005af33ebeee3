//! The store of files by hash, `.fullbore/index/HEX`, for indexes that are not published yet.
//!
//! Publishing gives stored files their real names as hard links, so a new set of indexes is complete before the first
//! name changes. Published indexes stay in the store, which takes no space, so that the next run need not fetch them.
//! Every file is hashed again before use.

use std::io::{self, Read};

use fullbore_engine::digest::{Sha256, Sha256Hasher};
use fullbore_engine::files::{FileError, Kind, Root};

use super::links;
use super::state::{INDEX_DIRECTORY, StateError, index_path};
use super::tree::Tree;

/// Hashes the rest of a file; also returns the number of bytes.
pub(super) fn hash(file: impl Read) -> io::Result<(Sha256, u64)> {
    let mut hasher = Sha256Hasher::new();
    hasher.read_to_end(file)?;
    let bytes = hasher.bytes();
    Ok((hasher.finish(), bytes))
}

/// Whether the store has this content, by hashing it (M4, M5). A file with wrong content is removed.
///
/// # Errors
/// [`StateError`] if the stored file exists and cannot be read or removed.
pub(crate) fn verify(own: &Root, sha256: Sha256, size: u64) -> Result<bool, StateError> {
    let right = has(own, sha256, size)?;
    if !right {
        own.unlink(&index_path(sha256))?;
    }
    Ok(right)
}

/// Like [`verify`], but a file with wrong content stays.
///
/// # Errors
/// [`StateError`] if the stored file exists and cannot be read.
pub(crate) fn has(own: &Root, sha256: Sha256, size: u64) -> Result<bool, StateError> {
    let path = index_path(sha256);
    let Some((file, status)) = own.open_file(&path)? else { return Ok(false) };
    let content = || hash(file).map_err(|source| StateError::List { path, source });
    Ok(status.size == size && content()? == (sha256, size))
}

/// Links a published file into the store if it has this content; returns whether it has.
///
/// # Errors
/// [`StateError`] if a file of the mirror cannot be read or linked.
pub(crate) fn adopt(tree: &dyn Tree, path: &str, sha256: Sha256, size: u64) -> Result<bool, StateError> {
    // A link must not be followed, and a device not opened.
    if !links::stat(tree, path)?.is_some_and(|status| status.kind == Kind::File && status.size == size) {
        return Ok(false);
    }
    let content = match tree.known_content(path)? {
        Some(known) => known,
        None => {
            let Some((file, _)) = tree.open(path)? else { return Ok(false) };
            hash(file).map_err(|source| StateError::List { path: path.to_owned(), source })?
        }
    };
    Ok(content == (sha256, size) && tree.store(path, sha256)?)
}

/// Writes small content from memory (`InRelease`, `Release`) into the store, with a modification time in Unix seconds.
/// Content already in the store stays, so that its names stay valid.
///
/// # Errors
/// [`StateError`] if the file cannot be read or written.
pub(crate) fn put(own: &Root, content: &[u8], modified: Option<i64>) -> Result<Sha256, StateError> {
    let sha256 = Sha256::of(content);
    if verify(own, sha256, content.len() as u64)? {
        return Ok(sha256);
    }
    own.create_directory(super::state::OWN_DIRECTORY, 0o700)?;
    let part = own.write_part(&index_path(sha256), content)?;
    if let Some(modified) = modified {
        part.set_mtime(modified)?;
    }
    part.finish()?;
    Ok(sha256)
}

/// Removes files without another name; returns their number. Call it after publishing and deleting.
///
/// # Errors
/// [`FileError`] if a directory cannot be read or a file cannot be removed.
pub(crate) fn sweep(own: &Root) -> Result<u64, FileError> {
    let mut removed = 0;
    for (name, _) in own.list(INDEX_DIRECTORY)? {
        let Some(name) = name.to_str() else { continue };
        let path = format!("{INDEX_DIRECTORY}/{name}");
        if own.stat(&path)?.is_some_and(|status| status.links <= 1) && own.unlink(&path)? {
            removed += 1;
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_that_was_changed_is_not_taken() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        let sha256 = put(&root, b"Package: x\n", None).unwrap();
        assert!(verify(&root, sha256, 11).unwrap());
        let path = directory.path().join(index_path(sha256));
        std::fs::write(&path, b"Package: y\n").unwrap();
        assert!(!verify(&root, sha256, 11).unwrap());
        assert!(!path.exists());
        assert!(!verify(&root, sha256, 11).unwrap());
    }

    #[test]
    fn only_published_indexes_stay() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        let (kept, gone) = (put(&root, b"kept", None).unwrap(), put(&root, b"gone", None).unwrap());
        root.hard_link(&index_path(kept), "dists/x/Packages").unwrap();
        assert_eq!(sweep(&root).unwrap(), 1);
        assert!(verify(&root, kept, 4).unwrap() && !verify(&root, gone, 4).unwrap());
    }
}
