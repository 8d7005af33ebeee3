//! Free space, checked before the first body is fetched.

use fullbore_engine::files::{FileError, Root};
use fullbore_engine::units::{bytes, several};

/// Space that a run needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Need {
    /// Bytes to fetch, without those already in unfinished files.
    pub bytes: u64,
    /// Number of files to fetch.
    pub files: u64,
    /// Number of directories and further names; an upper estimate.
    pub directories: u64,
}

/// Bytes that an average file wastes in its last block: half of the usual 4096.
const SLACK_BYTES_PER_FILE: u64 = 2048;

/// Reserve for the state and the log: far more than 200 bytes per file for mirrors of usual size.
const OWN_BYTES: u64 = 16 << 20;

/// Why a run does not fit on the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FreeSpaceError {
    /// Not enough bytes.
    #[error("the run needs {}, the file system has {} left: {} missing", bytes(*needed), bytes(*free), bytes(.needed - .free))]
    Bytes {
        /// Needed bytes.
        needed: u64,
        /// Free bytes.
        free: u64,
    },
    /// Not enough inodes.
    #[error("the run creates {needed} files and directories, the file system has {} left", several(*free, "inode", "inodes"))]
    Inodes {
        /// Needed inodes.
        needed: u64,
        /// Free inodes.
        free: u64,
    },
}

/// Needed and free space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FreeSpace {
    /// Bytes that the run will write.
    pub needed_bytes: u64,
    /// Free bytes for this user.
    pub free_bytes: u64,
    /// Inodes that the run will use.
    pub needed_inodes: u64,
    /// Free inodes; `None` if the file system has no limit.
    pub free_inodes: Option<u64>,
}

/// Measures the free space; compare with [`FreeSpace::check`].
///
/// # Errors
/// [`FileError`] if the file system cannot be measured.
pub(super) fn measure(root: &Root, need: Need) -> Result<FreeSpace, FileError> {
    let space = root.space()?;
    let mut needed_bytes = need.bytes.saturating_add(need.files.saturating_mul(SLACK_BYTES_PER_FILE));
    if need.files > 0 {
        needed_bytes = needed_bytes.saturating_add(OWN_BYTES);
    }
    Ok(FreeSpace {
        needed_bytes,
        free_bytes: space.bytes,
        needed_inodes: need.files.saturating_add(need.directories),
        free_inodes: space.inodes,
    })
}

impl FreeSpace {
    /// Checks that the run fits on the file system.
    ///
    /// # Errors
    /// [`FreeSpaceError`] with both figures if the file system has too little space or too few inodes.
    pub(crate) fn check(&self) -> Result<(), FreeSpaceError> {
        if self.needed_bytes > self.free_bytes {
            return Err(FreeSpaceError::Bytes { needed: self.needed_bytes, free: self.free_bytes });
        }
        match self.free_inodes {
            Some(free) if self.needed_inodes > free => Err(FreeSpaceError::Inodes { needed: self.needed_inodes, free }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_figures_are_told() {
        let space = FreeSpace { needed_bytes: 10, free_bytes: 4, needed_inodes: 3, free_inodes: Some(2) };
        assert_eq!(
            space.check().unwrap_err().to_string(),
            "the run needs 10 B, the file system has 4 B left: 6 B missing"
        );
        let space = FreeSpace { free_bytes: 10, ..space };
        assert_eq!(
            space.check().unwrap_err().to_string(),
            "the run creates 3 files and directories, the file system has 2 inodes left"
        );
        assert_eq!(FreeSpace { free_inodes: None, ..space }.check(), Ok(()));
    }

    #[test]
    fn this_machine_has_room_for_little_and_not_for_everything() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        assert_eq!(measure(&root, Need::default()).unwrap().check(), Ok(()));
        let all = Need { bytes: u64::MAX, ..Need::default() };
        assert!(matches!(measure(&root, all).unwrap().check(), Err(FreeSpaceError::Bytes { .. })));
    }
}
