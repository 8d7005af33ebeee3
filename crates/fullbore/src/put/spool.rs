//! Stdin on its way to a grid: kept in a file without a name until its end is seen, because a key that comes
//! from the content needs all of it first.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::error::CommandError;

/// Room that is left to others on the disk.
const ROOM_LEFT_BYTES: u64 = 64 << 20;

/// Bytes between two looks at the room.
const LOOK_EVERY_BYTES: u64 = 16 << 20;

/// Reads everything into an unlinked file of `directory`; the result is it and its length.
pub fn spool(mut from: impl Read, directory: &Path) -> Result<(File, u64), CommandError> {
    let failed = |error: &io::Error| CommandError::disk(directory, error).context("while keeping what came from stdin");
    let mut file = unnamed(directory).map_err(|error| failed(&error))?;
    let mut buffer = vec![0; 256 << 10];
    let (mut size, mut looked) = (0_u64, None);
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => return Ok((file, size)),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(CommandError::disk(Path::new("stdin"), &error)),
        };
        if looked.is_none_or(|looked| size >= looked + LOOK_EVERY_BYTES) {
            looked = Some(size);
            let room = rustix::fs::fstatvfs(&file).map_err(|error| failed(&error.into()))?;
            let room = room.f_bavail.saturating_mul(room.f_frsize);
            if room < ROOM_LEFT_BYTES + LOOK_EVERY_BYTES {
                return Err(failed(&io::ErrorKind::StorageFull.into())
                    .hint("TMPDIR chooses another place; --random-key --size BYTES needs none"));
            }
        }
        file.write_all(&buffer[..count]).map_err(|error| failed(&error))?;
        size += count as u64;
    }
}

/// A file that has no name, or has lost it at once.
fn unnamed(directory: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    let flags = rustix::fs::OFlags::TMPFILE.bits() as i32;
    if let Ok(file) = options.clone().custom_flags(flags).open(directory) {
        return Ok(file);
    }
    // File systems without files that never had a name.
    let path = directory.join(format!(".fullbore-{}.spool", std::process::id()));
    let file = options.create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn what_is_spooled_can_be_read_and_has_no_name() {
        let directory = tempfile::tempdir().unwrap();
        let (file, size) = spool(&b"abc"[..], directory.path()).unwrap();
        let mut read = [0; 3];
        file.read_exact_at(&mut read, 0).unwrap();
        assert_eq!((size, &read), (3, b"abc"));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
