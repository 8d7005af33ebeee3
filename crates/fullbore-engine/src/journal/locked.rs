//! Journal files in which a run records its uncommitted work at a store, for later runs.
//!
//! Each run has its own file and holds its lock. A file whose lock can be taken belongs to a run that is gone.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::random::random;

/// Creates a file with mode 0600 in `directory`, which is created if missing, and locks it.
///
/// # Errors
/// The system's error if the directory or the file cannot be created, locked or examined.
pub fn create(directory: &Path, suffix: &str) -> io::Result<(PathBuf, File)> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    loop {
        let number = u64::from_le_bytes(random());
        let path = directory.join(format!("{number:016x}{suffix}"));
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path)?;
        file.lock()?;
        // Before the file was locked, another run may have taken it for abandoned and removed it.
        if file.metadata()?.nlink() > 0 {
            return Ok((path, file));
        }
    }
}
