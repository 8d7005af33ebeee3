//! Local cache of indexes for a mirror in a bucket (`--cache DIR`): an unchanged index is not fetched again.
//!
//! Files are named by their hash and hashed before use, so that the directory needs no lock and several mirrors may
//! share it. Files that no run has used for a month are removed.

use std::io::Read;
use std::path::Path;
use std::time::{Duration, SystemTime};

use fullbore_engine::digest::{READ_BYTES, Sha256, Sha256Hasher};
use fullbore_engine::files::{FileError, Kind, Root};

use super::state::index_path;

/// Age in seconds at which an unused index is removed. A guess: archives that change less often are small.
const UNUSED_S: i64 = 30 * 24 * 3600;

/// A cache directory of indexes, named by their SHA-256.
#[derive(Debug)]
pub(crate) struct IndexCache {
    root: Root,
}

impl IndexCache {
    /// Opens the directory, and makes it if it is missing.
    ///
    /// # Errors
    /// [`FileError`] if the directory cannot be created or opened.
    pub(crate) fn open(directory: &Path) -> Result<IndexCache, FileError> {
        Ok(IndexCache { root: Root::create(directory)? })
    }

    /// Copies an index into the store of files by hash; returns whether the cache has it. A file with wrong content is
    /// removed.
    ///
    /// # Errors
    /// [`FileError`] if a file cannot be read, written or removed.
    pub(crate) fn take(&self, own: &Root, sha256: Sha256, size: u64) -> Result<bool, FileError> {
        let name = sha256.to_hex();
        let is_right = copy(&self.root, name.as_str(), own, &index_path(sha256), sha256, size)?;
        if is_right == Some(false) {
            self.root.unlink(name.as_str())?;
        }
        Ok(is_right == Some(true))
    }

    /// Keeps these indexes, which are in the store of files by hash, for later runs. Removes indexes that were not used
    /// for long. `now` is in Unix seconds.
    ///
    /// # Errors
    /// [`FileError`] if a file cannot be read, written or removed.
    pub(crate) fn keep(&self, own: &Root, indexes: &[(Sha256, u64)], now: i64) -> Result<(), FileError> {
        for (sha256, size) in indexes {
            let name = sha256.to_hex();
            if self.root.stat(name.as_str())?.is_none_or(|status| status.size != *size) {
                copy(own, &index_path(*sha256), &self.root, name.as_str(), *sha256, *size)?;
            }
            // The modification time of a file is the time of its last use.
            if let Some((file, _)) = self.root.open_file(name.as_str())? {
                let used = SystemTime::UNIX_EPOCH + Duration::from_secs(now.unsigned_abs());
                let set = file.set_modified(used);
                set.map_err(|source| FileError::Io {
                    operation: "set the time of",
                    path: name.as_str().to_owned(),
                    source,
                })?;
            }
        }
        for (name, kind) in self.root.list("")? {
            let Some(name) = name.to_str().filter(|name| kind == Kind::File && name.parse::<Sha256>().is_ok()) else {
                continue;
            };
            if self.root.stat(name)?.is_some_and(|status| now.saturating_sub(status.mtime) > UNUSED_S) {
                self.root.unlink(name)?;
            }
        }
        Ok(())
    }
}

/// Copies a file if it has this content. `None` if there is no file; `false` if it has other content, and then nothing
/// is copied.
fn copy(from: &Root, path: &str, to: &Root, name: &str, sha256: Sha256, size: u64) -> Result<Option<bool>, FileError> {
    let Some((mut file, status)) = from.open_file(path)? else { return Ok(None) };
    if status.size != size {
        return Ok(Some(false));
    }
    let failed = |source| FileError::Io { operation: "read", path: path.to_owned(), source };
    let part = to.create_part(name, 0)?;
    let mut hasher = Sha256Hasher::new();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let count = file.read(&mut buffer).map_err(failed)?;
        if count == 0 {
            break;
        }
        part.write_at(hasher.bytes(), &buffer[..count])?;
        hasher.update(&buffer[..count]);
    }
    if hasher.finish() != sha256 {
        part.remove()?;
        return Ok(Some(false));
    }
    part.finish()?;
    Ok(Some(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_hashed_before_use_and_goes_when_it_is_unused() {
        let (directory, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let own = Root::open(own.path()).unwrap();
        let cache = IndexCache::open(&directory.path().join("cache")).unwrap();
        let at = |sha256: Sha256| directory.path().join("cache").join(sha256.to_hex().as_str());
        let sha256 = Sha256::of(b"index");
        assert!(!cache.take(&own, sha256, 5).unwrap());
        own.write_part(&index_path(sha256), b"index").unwrap().finish().unwrap();
        let now = 1_800_000_000;
        cache.keep(&own, &[(sha256, 5), (Sha256::of(b"missing"), 7)], now).unwrap();
        own.unlink(&index_path(sha256)).unwrap();
        assert!(cache.take(&own, sha256, 5).unwrap());
        assert_eq!(own.read(&index_path(sha256), 9).unwrap().unwrap(), b"index");
        // Changed in place, with the same length.
        std::fs::write(at(sha256), b"xedni").unwrap();
        assert!(!cache.take(&own, sha256, 5).unwrap());
        assert!(!at(sha256).exists());
        assert!(own.read(&index_path(sha256), 9).unwrap().is_some(), "what was taken before stays");
        cache.keep(&own, &[(sha256, 5)], now).unwrap();
        cache.keep(&own, &[], now + UNUSED_S).unwrap();
        assert!(at(sha256).exists());
        cache.keep(&own, &[], now + UNUSED_S + 1).unwrap();
        assert!(!at(sha256).exists());
    }
}
