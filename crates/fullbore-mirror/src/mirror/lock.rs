//! Lock of a mirror's directory: one run at a time.
//!
//! The lock is the kernel's (`flock` on `.fullbore/lock`). It ends with the process that holds it, so the file of a
//! killed run locks nothing (M16). The file contains the pid, for error messages only.

use std::fs::File;
use std::os::unix::fs::FileExt;

use fullbore_engine::files::{FileError, Root};
use fullbore_engine::run::error::{CommandError, ErrorKind};

use super::session::disk;
use super::state::OWN_DIRECTORY;

/// Path of the lock file.
const LOCK_PATH: &str = ".fullbore/lock";
/// Maximum bytes read of the lock file: a pid and a newline.
const PID_BYTES_MAX: u64 = 32;

/// Why a directory cannot be locked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LockError {
    /// Another run holds it.
    #[error("{directory} is in use by another run{}", .pid.map_or(String::new(), |pid| format!(", process {pid}")))]
    Held {
        /// The mirror's directory.
        directory: String,
        /// Process id of the holder, if the file contains it.
        pid: Option<u32>,
    },
    /// The lock file cannot be opened or locked.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Lock of a directory, held until dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock of this directory.
    ///
    /// # Errors
    /// [`LockError::Held`] with the holder's pid if another run holds the lock, [`LockError::File`] if the lock file
    /// cannot be opened.
    pub(crate) fn take(root: &Root) -> Result<Lock, LockError> {
        root.create_directory(OWN_DIRECTORY, 0o700)?;
        let Some(file) = root.lock(LOCK_PATH)? else {
            let pid = root.read(LOCK_PATH, PID_BYTES_MAX)?.and_then(|text| String::from_utf8(text).ok());
            let pid = pid.and_then(|text| text.trim().parse().ok());
            return Err(LockError::Held { directory: root.path().display().to_string(), pid });
        };
        // Best effort: a full disk must not prevent a run that deletes files.
        let _ = note_pid(&file);
        Ok(Lock { _file: file })
    }
}

/// Like [`Lock::take`], with the error of a command.
///
/// # Errors
/// [`ErrorKind::Locked`] if another run holds the lock, [`ErrorKind::Disk`] if the lock file cannot be opened.
pub(crate) fn take_lock(root: &Root) -> Result<Lock, CommandError> {
    Lock::take(root).map_err(|error| match error {
        LockError::Held { .. } => {
            CommandError::new(ErrorKind::Locked, &error).hint("wait for it to end, or mirror into another directory")
        }
        other => disk(&other),
    })
}

/// Writes the pid at a fixed length: truncating the file would make some file systems wait for their journal.
fn note_pid(file: &File) -> std::io::Result<()> {
    let line = format!("{:>10}\n", std::process::id());
    file.write_all_at(line.as_bytes(), 0)?;
    if file.metadata()?.len() > line.len() as u64 {
        file.set_len(line.len() as u64)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_two_runs_wins_and_a_stale_lock_locks_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        let first = Lock::take(&root).unwrap();
        let error = Lock::take(&root).unwrap_err().to_string();
        let expected =
            format!("{} is in use by another run, process {}", directory.path().display(), std::process::id());
        assert_eq!(error, expected);
        drop(first);
        // As a killed run leaves it: the file is there with a pid, nobody holds it.
        std::fs::write(directory.path().join(LOCK_PATH), "4194304, and what somebody else wrote\n").unwrap();
        let second = Lock::take(&root).unwrap();
        drop(second);
        let pid = std::fs::read_to_string(directory.path().join(LOCK_PATH)).unwrap();
        assert_eq!(pid.trim(), std::process::id().to_string());
    }
}
