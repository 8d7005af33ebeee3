//! A large part of a pipe, kept in a file without a name until it is sent.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use fullbore_engine::digest::{Sha256, Sha256Hasher};

use crate::lafs::secrets::random;

/// Room that is left to others on the disk.
const ROOM_LEFT_BYTES: u64 = 64 << 20;

/// Bytes read at once.
const READ_BYTES: usize = 512 << 10;

/// Reads at most so many bytes into a file of `directory` that has lost its name; the result is it, its length and hash.
pub fn keep(from: &mut dyn Read, bytes: u64, directory: &Path) -> io::Result<(Arc<File>, u64, Sha256)> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", directory.display()));
    let number = u64::from_le_bytes(random());
    let path = directory.join(format!(".fullbore-{number:016x}.spool"));
    let opened = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
    let mut file = opened.map_err(named)?;
    std::fs::remove_file(&path).map_err(named)?;
    let room = rustix::fs::fstatvfs(&file).map_err(|error| named(error.into()))?;
    if room.f_bavail.saturating_mul(room.f_frsize) < bytes.saturating_add(ROOM_LEFT_BYTES) {
        return Err(named(io::Error::new(
            io::ErrorKind::StorageFull,
            format!("no room for a part of {bytes} bytes of what comes from stdin; TMPDIR chooses another place"),
        )));
    }
    let (mut hasher, mut length) = (Sha256Hasher::new(), 0);
    let mut buffer = vec![0; READ_BYTES];
    while length < bytes {
        let most = usize::try_from(bytes - length).unwrap_or(usize::MAX).min(READ_BYTES);
        match from.read(&mut buffer[..most]) {
            Ok(0) => break,
            Ok(count) => {
                hasher.update(&buffer[..count]);
                file.write_all(&buffer[..count]).map_err(named)?;
                length += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok((Arc::new(file), length, hasher.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_part_is_cut_off_and_has_no_name() {
        let directory = tempfile::tempdir().unwrap();
        let mut from = &b"abcdef"[..];
        let (file, length, hash) = keep(&mut from, 4, directory.path()).unwrap();
        let mut read = [0; 4];
        file.read_exact_at(&mut read, 0).unwrap();
        assert_eq!((length, &read, from), (4, b"abcd", &b"ef"[..]));
        assert_eq!(hash, Sha256::of(b"abcd"));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        assert!(keep(&mut from, u64::MAX / 2, directory.path()).is_err());
        assert!(keep(&mut from, 1, Path::new("/nonexistent")).unwrap_err().to_string().contains("nonexistent"));
    }
}
