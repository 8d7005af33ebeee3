//! The files of journals in which a run notes for later ones what it has under way at a store.
//!
//! Each run has one of its own and holds its lock: a file whose lock can be taken is one of a run that is gone.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::random::random;

/// A new file of this directory, whose lock is held; for its owner alone.
///
/// # Errors
/// The directory cannot be made, or takes no file.
pub fn create(directory: &Path, suffix: &str) -> io::Result<(PathBuf, File)> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    loop {
        let number = u64::from_le_bytes(random());
        let path = directory.join(format!("{number:016x}{suffix}"));
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path)?;
        file.lock()?;
        // Before it had its lock another run may have taken it for one that is left over, and removed it.
        if file.metadata()?.nlink() > 0 {
            return Ok((path, file));
        }
    }
}
