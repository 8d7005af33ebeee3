//! Large parts of pipes, kept in files without names until they are sent.
//!
//! A window of its own bounds their disk space, beside that of memory: if space is short, a part waits until one in
//! flight is sent. If `directory` is in memory (tmpfs), so are the parts.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use fullbore_engine::digest::{Sha256, Sha256Hasher};
use fullbore_engine::files::unnamed::{ROOM_LEFT_BYTES, free_bytes, unnamed};
use fullbore_engine::units;
use fullbore_wire::exchange::ReadAt;

use super::work::Work;

/// Minimum number of parts at once, whatever their size: one is sent while the next one is read.
const PARTS_AT_ONCE: usize = 2;

/// Maximum total size of further parts: eight of the smallest kind (32 MiB), as many as there are parts in memory.
const BYTES_AT_ONCE: u64 = 256 << 20;

/// Number of bytes read at once.
const READ_BYTES: usize = 512 << 10;

/// Directory for the parts, with their limits. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Spool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    directory: PathBuf,
    /// Free bytes on the disk of a file.
    free: fn(&File) -> io::Result<u64>,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    parts: usize,
    bytes: u64,
    /// Bytes of parts that are still to be written; their space is reserved.
    unwritten: u64,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Disk space of a part.
#[derive(Debug)]
struct Slot {
    shared: Arc<Shared>,
    bytes: u64,
    unwritten: u64,
}

impl Slot {
    fn wrote(&mut self, bytes: u64) {
        self.unwritten -= bytes;
        self.shared.state().unwritten -= bytes;
    }

    /// Releases the space that will not be written.
    fn ended(&mut self) {
        let mut state = self.shared.state();
        state.unwritten -= self.unwritten;
        state.bytes -= self.unwritten;
        self.bytes -= self.unwritten;
        self.unwritten = 0;
        drop(state);
        self.shared.freed.notify_all();
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.parts -= 1;
        state.bytes -= self.bytes;
        state.unwritten -= self.unwritten;
        drop(state);
        self.shared.freed.notify_all();
    }
}

/// Part of a pipe in a file without a name.
#[derive(Debug)]
pub(crate) struct SpooledPart {
    // Closed before its slot is released, so that its space is free by then.
    file: File,
    _slot: Slot,
}

impl ReadAt for SpooledPart {
    fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(&self.file, into, offset)
    }
}

impl Spool {
    /// Keeps parts in this directory.
    pub(crate) fn new(directory: &Path) -> Spool {
        Spool::on(directory, free_bytes)
    }

    fn on(directory: &Path, free: fn(&File) -> io::Result<u64>) -> Spool {
        let (state, freed) = (Mutex::default(), Condvar::new());
        Spool(Arc::new(Shared { directory: directory.to_owned(), free, state, freed }))
    }

    fn named(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: {error}", self.0.directory.display()))
    }

    /// Reads up to `bytes` bytes into a file without a name. Returns the file, its length and its hash. If space is
    /// short, it waits while other parts are in flight that will release some.
    ///
    /// # Errors
    /// The error of the source, or of creating or writing the file, unchanged.
    pub(crate) fn keep(
        &self,
        from: &mut dyn Read,
        bytes: u64,
        work: &Work,
    ) -> io::Result<(Arc<SpooledPart>, u64, Sha256)> {
        let mut file = unnamed(&self.0.directory).map_err(|error| self.named(&error))?;
        let mut slot = work.wait(|| self.reserve(&file, bytes)).map_err(|error| self.named(&error))?;
        let (mut hasher, mut length) = (Sha256Hasher::new(), 0);
        let mut buffer = vec![0; READ_BYTES];
        while length < bytes {
            let most = usize::try_from(bytes - length).unwrap_or(usize::MAX).min(READ_BYTES);
            match work.read(|| from.read(&mut buffer[..most])) {
                Ok(0) => break,
                Ok(count) => {
                    work.hash(|| hasher.update(&buffer[..count]));
                    work.read(|| file.write_all(&buffer[..count])).map_err(|error| self.named(&error))?;
                    slot.wrote(count as u64);
                    length += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        slot.ended();
        Ok((Arc::new(SpooledPart { file, _slot: slot }), length, hasher.finish()))
    }

    fn reserve(&self, file: &File, bytes: u64) -> io::Result<Slot> {
        let mut state = self.0.state();
        loop {
            if state.parts < PARTS_AT_ONCE || state.bytes.saturating_add(bytes) <= BYTES_AT_ONCE {
                let wanted = bytes.saturating_add(state.unwritten).saturating_add(ROOM_LEFT_BYTES);
                if (self.0.free)(file)? >= wanted {
                    break;
                }
                if state.parts == 0 {
                    let text = format!(
                        "no space for a part of {} of a pipe; TMPDIR chooses another place",
                        units::bytes(bytes)
                    );
                    return Err(io::Error::new(io::ErrorKind::StorageFull, text));
                }
            }
            state = self.0.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.parts += 1;
        state.bytes += bytes;
        state.unwritten += bytes;
        drop(state);
        Ok(Slot { shared: Arc::clone(&self.0), bytes, unwritten: bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// A part of this size, of nothing: what was promised and did not come.
    fn promised(spool: &Spool, bytes: u64) -> io::Result<Slot> {
        spool.reserve(&unnamed(&spool.0.directory).unwrap(), bytes)
    }

    /// Parts, their bytes, and those still to be written.
    fn held(spool: &Spool) -> (usize, u64, u64) {
        let state = spool.0.state();
        (state.parts, state.bytes, state.unwritten)
    }

    #[test]
    fn a_part_is_cut_off_and_has_no_name() {
        let directory = tempfile::tempdir().unwrap();
        let spool = Spool::new(directory.path());
        let mut from = &b"abcdef"[..];
        let (kept, length, hash) = spool.keep(&mut from, 4, &Work::default()).unwrap();
        let mut read = [0; 4];
        kept.read_exact_at(&mut read, 0).unwrap();
        assert_eq!((length, &read, from), (4, b"abcd", &b"ef"[..]));
        assert_eq!(hash, Sha256::of(b"abcd"));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        assert_eq!(held(&spool), (1, 4, 0));
        drop(kept);
        let (short, length, _) = spool.keep(&mut from, 4, &Work::default()).unwrap();
        assert_eq!((length, held(&spool)), (2, (1, 2, 0)));
        drop(short);
        assert_eq!(held(&spool), (0, 0, 0));
        let none = Spool::new(Path::new("/nonexistent"));
        assert!(none.keep(&mut from, 1, &Work::default()).unwrap_err().to_string().contains("nonexistent"));
    }

    #[test]
    fn two_parts_are_spooled_however_large_and_more_small_ones() {
        let directory = tempfile::tempdir().unwrap();
        let spool = Spool::on(directory.path(), |_| Ok(u64::MAX));
        let small: Vec<Slot> = (0..8).map(|_| promised(&spool, 32 << 20).unwrap()).collect();
        let (begun, begins) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let huge = promised(&spool, 4 << 30).unwrap();
                begun.send(()).unwrap();
                drop(huge);
            });
            assert!(begins.try_recv().is_err());
            let mut small = small;
            small.truncate(2);
            assert!(begins.try_recv().is_err(), "there are two");
            drop(small.pop());
            begins.recv().unwrap();
        });
    }

    #[test]
    fn without_room_a_part_waits_for_those_on_their_way() {
        let directory = tempfile::tempdir().unwrap();
        let spool = Spool::on(directory.path(), |_| Ok(ROOM_LEFT_BYTES + 100));
        let full = promised(&spool, 101).unwrap_err();
        assert!(full.kind() == io::ErrorKind::StorageFull && full.to_string().contains("TMPDIR"), "{full}");
        // The first one's bytes are not written yet, and its room is not free all the same.
        let first = promised(&spool, 60).unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| promised(&spool, 60).map(drop));
            drop(first);
            second.join().unwrap().unwrap();
        });
    }
}
