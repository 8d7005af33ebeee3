//! Snapshots of a mirror in a bucket: `dists/snapshots/NAME/SUITE/`.
//!
//! A snapshot has copies of the suites' names, made within the store, and no package: apt reads `snapshots/NAME/SUITE` as
//! a suite whose files are in the common pool. The files stay there as long as the snapshot does, because no file is
//! deleted that a signed suite below `dists/` names.

use fullbore_engine::files::FileError;
use fullbore_s3::target::Layout as _;

use super::super::other_suites::SNAPSHOTS;
use super::super::snapshot::{SnapshotError, check_snapshot_name};
use super::super::state::State;
use super::super::tree::Tree as _;
use super::tree::{StoreTree, failed};

/// The object of a snapshot that is written last: with it, the snapshot is complete.
const MARKER: &str = ".fullbore-snapshot";

/// Bytes of a marker that are read.
const MARKER_BYTES_MAX: u64 = 256;

/// Whether this path is the object by which a snapshot is complete. No index names it, and nobody but the person who
/// removes the snapshot may delete it.
pub(in super::super) fn is_marker(path: &str) -> bool {
    let below = path.strip_prefix(SNAPSHOTS).and_then(|below| below.strip_prefix('/'));
    below.and_then(|below| below.split_once('/')).is_some_and(|(_, rest)| rest == MARKER)
}

impl StoreTree {
    /// Checks that a snapshot can be made. What a killed run left of it is none.
    ///
    /// # Errors
    /// A bad name, a complete snapshot of that name; a store that cannot be read.
    pub fn check_snapshot_name(&self, name: &str) -> Result<(), SnapshotError> {
        check_snapshot_name(name)?;
        match self.read(&format!("{SNAPSHOTS}/{name}/{MARKER}"), MARKER_BYTES_MAX)? {
            Some(_) => Err(SnapshotError::Exists { name: name.to_owned() }),
            None => Ok(()),
        }
    }

    /// Makes a snapshot of the published suites. Flat repositories have no place below `dists/`; their directories are
    /// returned.
    ///
    /// # Errors
    /// See [`SnapshotError`].
    pub fn make_snapshot(&self, state: &State, name: &str) -> Result<Vec<String>, SnapshotError> {
        self.check_snapshot_name(name)?;
        let mut flat = Vec::new();
        for suite in state.header.suites.iter().filter(|suite| !suite.retired) {
            match suite.directory.strip_prefix("dists/") {
                Some(below) => self.make_copies(&suite.directory, &format!("{SNAPSHOTS}/{name}/{below}"))?,
                None => flat.push(suite.directory.clone()),
            }
        }
        let marker = format!("{SNAPSHOTS}/{name}/{MARKER}");
        self.may_publish().map_err(|error| -> FileError { failed("publish", &marker, error) })?;
        self.write_object(&marker, name.as_bytes())?;
        Ok(flat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_marker_is_directly_below_the_name_of_a_snapshot() {
        assert!(is_marker("dists/snapshots/s/.fullbore-snapshot"));
        for path in ["dists/snapshots/.fullbore-snapshot", "dists/snapshots/s/trixie/.fullbore-snapshot", "pool/s"] {
            assert!(!is_marker(path), "{path}");
        }
    }
}
