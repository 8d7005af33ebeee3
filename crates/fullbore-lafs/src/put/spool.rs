//! Spools stdin to a file without a name until its end: a key derived from the content needs all of it first.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use fullbore_engine::files::unnamed::{ROOM_LEFT_BYTES, free_bytes, unnamed};
use fullbore_engine::run::error::CommandError;

use crate::upload::produce::Meter;

/// Bytes between two checks of the free space.
const LOOK_EVERY_BYTES: u64 = 16 << 20;

/// Copies `from` to an unlinked file in `directory`; returns the file and its length. `meter` counts the time that the
/// writer of the pipe makes us wait.
pub(super) fn spool(mut from: impl Read, directory: &Path, meter: &Meter) -> Result<(File, u64), CommandError> {
    let failed = |error: &io::Error| {
        CommandError::cannot("write into", directory, error).context("while writing stdin to a temporary file")
    };
    let mut file = unnamed(directory).map_err(|error| failed(&error))?;
    let mut buffer = vec![0; 256 << 10];
    let (mut size, mut checked) = (0_u64, None);
    loop {
        let count = match meter.read(|| from.read(&mut buffer)) {
            Ok(0) => return Ok((file, size)),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(CommandError::disk(Path::new("stdin"), &error)),
        };
        if checked.is_none_or(|checked| size >= checked + LOOK_EVERY_BYTES) {
            checked = Some(size);
            let free = free_bytes(&file).map_err(|error| failed(&error))?;
            if free < ROOM_LEFT_BYTES + LOOK_EVERY_BYTES {
                return Err(failed(&io::ErrorKind::StorageFull.into())
                    .hint("set TMPDIR to another directory, or pass --random-key --size BYTES, which needs no space"));
            }
        }
        file.write_all(&buffer[..count]).map_err(|error| failed(&error))?;
        size += count as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use std::time::Duration;

    /// A pipe with a slow writer.
    struct Slow<R>(R, Duration);

    impl<R: Read> Read for Slow<R> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            std::thread::sleep(self.1);
            self.0.read(into)
        }
    }

    #[test]
    fn what_is_spooled_can_be_read_and_has_no_name() {
        let directory = tempfile::tempdir().unwrap();
        let (meter, slow) = (Meter::default(), Duration::from_millis(5));
        let (file, size) = spool(Slow(&b"abc"[..], slow), directory.path(), &meter).unwrap();
        let mut read = [0; 3];
        file.read_exact_at(&mut read, 0).unwrap();
        assert_eq!((size, &read), (3, b"abc"));
        assert!(meter.reading().source >= slow, "{:?}", meter.reading());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
