//! Files without names. They hold data from a pipe until it is sent, and vanish with the process, however it ends.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::random::random;

/// Space that is left free for other programs on the disk, in bytes.
pub const ROOM_LEFT_BYTES: u64 = 64 << 20;

/// Creates a file without a name in `directory`, with mode 0600. Where the file system has no `O_TMPFILE`, the name is
/// removed at once.
///
/// # Errors
/// The system's error if no file can be created in `directory`.
pub fn unnamed(directory: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    let flags = rustix::fs::OFlags::TMPFILE.bits() as i32;
    if let Ok(file) = options.clone().custom_flags(flags).open(directory) {
        return Ok(file);
    }
    with_a_name_at_first(options, directory)
}

/// For file systems without `O_TMPFILE`.
fn with_a_name_at_first(mut options: OpenOptions, directory: &Path) -> io::Result<File> {
    let number = u64::from_le_bytes(random());
    let path = directory.join(format!(".fullbore-{number:016x}.spool"));
    let file = options.create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// Free bytes on the file system of `file`.
///
/// # Errors
/// The error of `fstatvfs`, unchanged.
pub fn free_bytes(file: &File) -> io::Result<u64> {
    let room = rustix::fs::fstatvfs(file)?;
    Ok(room.f_bavail.saturating_mul(room.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::{FileExt, MetadataExt};

    #[test]
    fn files_are_private_and_have_no_name_on_any_file_system() {
        let directory = tempfile::tempdir().unwrap();
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600);
        let begun_with_a_name = || with_a_name_at_first(options.clone(), directory.path());
        for made in [unnamed(directory.path()), begun_with_a_name(), begun_with_a_name()] {
            let mut file = made.unwrap();
            file.write_all(b"abc").unwrap();
            let mut read = [0; 3];
            file.read_exact_at(&mut read, 0).unwrap();
            let metadata = file.metadata().unwrap();
            assert_eq!((&read, metadata.nlink(), metadata.mode() & 0o777), (b"abc", 0, 0o600));
            assert!(free_bytes(&file).unwrap() > 0);
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        assert!(unnamed(Path::new("/nonexistent")).is_err());
    }
}
