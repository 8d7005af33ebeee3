//! Decompresses packages before their turn, while other files arrive or one core configures.
//!
//! Packages are decompressed into memory, within a limit, so that the root changes only in dpkg's order. The unpacker
//! waits for a package that is being decompressed. It decompresses a package itself that is still queued.

use std::collections::HashMap;
use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use fullbore_debian::deb::data;
use fullbore_engine::digest::Sha256;

use super::archive::{Archive, ArchiveError};

/// Size of reads and of memory growth, in bytes.
const PIECE_BYTES: usize = 1 << 20;

/// Decompresses packages ahead on threads of its own, until it is dropped.
#[derive(Debug)]
pub struct ReadAhead {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    stop: AtomicBool,
    used_bytes: AtomicU64,
    bytes_max: u64,
}

#[derive(Debug, Default)]
struct Queue {
    /// Number of pauses.
    pauses: usize,
    waiting: Vec<QueuedPackage>,
    /// Slots of started packages, by package file.
    begun: HashMap<PathBuf, Arc<Slot>>,
}

#[derive(Debug)]
struct QueuedPackage {
    path: PathBuf,
    bytes: u64,
    sha256: Sha256,
}

/// Slot for the plain `data.tar` of one package.
#[derive(Debug)]
pub struct Slot {
    state: Mutex<State>,
    done: Condvar,
}

#[derive(Debug)]
enum State {
    Begun,
    /// `None` if it was too large or unreadable; the unpacker then reports the error.
    Done(Option<PlainData>),
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ReadAhead {
    /// Starts the threads. They hold at most `bytes_max` plain bytes.
    pub fn start(threads: usize, bytes_max: u64) -> ReadAhead {
        ReadAhead::start_by(plain, threads, bytes_max)
    }

    fn start_by(how: Decompress, threads: usize, bytes_max: u64) -> ReadAhead {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
            used_bytes: AtomicU64::new(0),
            bytes_max,
        });
        let work = |_| {
            let shared = shared.clone();
            // Without threads the unpacker decompresses all packages.
            std::thread::Builder::new().name("ahead".to_owned()).spawn(move || work(&shared, how)).ok()
        };
        ReadAhead { threads: (0..threads).filter_map(work).collect(), shared }
    }

    /// Adds a complete package file, with size and SHA-256 of a signed index.
    pub fn add(&self, path: &Path, bytes: u64, sha256: Sha256) {
        locked(&self.shared.queue).waiting.push(QueuedPackage { path: path.to_owned(), bytes, sha256 });
        self.shared.changed.notify_one();
    }

    /// Starts no package until the result is dropped, while all cores have other work.
    #[must_use]
    pub fn pause(&self) -> Pause<'_> {
        locked(&self.shared.queue).pauses += 1;
        Pause(self)
    }

    /// Takes the slot of a started package, without waiting; removes one that is not started. Each slot is returned
    /// once.
    pub fn take(&self, path: &Path) -> Option<Arc<Slot>> {
        let mut queue = locked(&self.shared.queue);
        queue.waiting.retain(|waiting| waiting.path != path);
        queue.begun.remove(path)
    }
}

/// See [`ReadAhead::pause`].
#[derive(Debug)]
pub struct Pause<'a>(&'a ReadAhead);

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        locked(&self.0.shared.queue).pauses -= 1;
        self.0.shared.changed.notify_all();
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        {
            let _line = locked(&self.shared.queue);
            self.shared.changed.notify_all();
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Slot {
    /// Waits for the verified plain bytes; `None` if the caller must decompress the package. They are returned once,
    /// so that their memory is free after reading.
    pub(super) fn wait(&self) -> Option<PlainReader> {
        let mut state = locked(&self.state);
        loop {
            match &mut *state {
                State::Done(plain) => return plain.take().map(|plain| PlainReader { plain, at: 0 }),
                State::Begun => state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// A whole `data.tar`. Its memory counts until drop.
#[derive(Debug)]
struct PlainData {
    bytes: Vec<u8>,
    counted: u64,
    shared: Arc<Shared>,
}

impl PlainData {
    /// Reserves one more piece; returns whether the limit allows it.
    fn grows(&mut self) -> bool {
        let more = PIECE_BYTES as u64;
        self.counted += more;
        self.shared.used_bytes.fetch_add(more, Ordering::Relaxed) + more <= self.shared.bytes_max
    }
}

impl Drop for PlainData {
    fn drop(&mut self) {
        self.shared.used_bytes.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

/// Reader of [`PlainData`].
#[derive(Debug)]
pub(super) struct PlainReader {
    plain: PlainData,
    at: usize,
}

impl Read for PlainReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = &self.plain.bytes[self.at..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.at += count;
        Ok(count)
    }
}

/// Type of [`plain`], which tests replace.
type Decompress = fn(&Arc<Shared>, &QueuedPackage) -> Result<Option<PlainData>, ArchiveError>;

fn work(shared: &Arc<Shared>, plain: Decompress) {
    let mut queue = locked(&shared.queue);
    while !shared.stop.load(Ordering::Relaxed) {
        // The largest first, as in the unpacker.
        let largest = (0..queue.waiting.len()).max_by_key(|place| queue.waiting[*place].bytes);
        let Some(largest) = largest.filter(|_| queue.pauses == 0) else {
            queue = shared.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        let waiting = queue.waiting.swap_remove(largest);
        let slot = Arc::new(Slot { state: Mutex::new(State::Begun), done: Condvar::new() });
        queue.begun.insert(waiting.path.clone(), slot.clone());
        drop(queue);
        // A panic in a decompressor must not block the unpacker.
        let plain = catch_unwind(AssertUnwindSafe(|| plain(shared, &waiting)));
        let plain = plain.ok().and_then(Result::ok).flatten();
        *locked(&slot.state) = State::Done(plain);
        slot.done.notify_all();
        queue = locked(&shared.queue);
    }
}

/// Decompresses a whole `data.tar`; `None` if the memory limit is reached.
fn plain(shared: &Arc<Shared>, waiting: &QueuedPackage) -> Result<Option<PlainData>, ArchiveError> {
    let archive = Archive::open(&waiting.path)?.expecting(waiting.bytes, waiting.sha256);
    let error = |source: io::Error| ArchiveError::Read { path: waiting.path.clone(), source };
    let mut reader = data(archive.data_reader()?, archive.data(), 1, archive.proof()).map_err(error)?;
    let mut plain = PlainData { bytes: Vec::new(), counted: 0, shared: shared.clone() };
    loop {
        if shared.stop.load(Ordering::Relaxed) || !plain.grows() {
            return Ok(None);
        }
        plain.bytes.reserve_exact(PIECE_BYTES);
        if (&mut reader).take(PIECE_BYTES as u64).read_to_end(&mut plain.bytes).map_err(error)? == 0 {
            break;
        }
    }
    let mut source = reader.finish().map_err(error)?;
    io::copy(&mut source, &mut io::sink()).map_err(error)?;
    archive.check(source.hasher)?;
    Ok(Some(plain))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_engine::digest::Sha256Hasher;
    use std::process::Command;

    /// A package with one file, and what an index would say of it.
    fn package(dir: &Path, name: &str, content: &[u8]) -> (PathBuf, u64, Sha256) {
        let root = dir.join(name);
        std::fs::create_dir_all(root.join("DEBIAN")).unwrap();
        let control = format!("Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: a\nDescription: b\n");
        std::fs::write(root.join("DEBIAN/control"), control).unwrap();
        std::fs::write(root.join("file"), content).unwrap();
        let path = dir.join(format!("{name}.deb"));
        let mut build = Command::new("dpkg-deb");
        assert!(build.args(["--root-owner-group", "--build"]).arg(&root).arg(&path).output().unwrap().status.success());
        let bytes = std::fs::read(&path).unwrap();
        let mut hasher = Sha256Hasher::new();
        hasher.update(&bytes);
        (path, bytes.len() as u64, hasher.finish())
    }

    /// Its turn, once it was begun.
    fn taken(ahead: &ReadAhead, path: &Path) -> Option<Vec<u8>> {
        let asked = std::time::Instant::now();
        while !locked(&ahead.shared.queue).begun.contains_key(path) {
            assert!(asked.elapsed().as_secs() < 60, "it is not begun");
            std::thread::yield_now();
        }
        let mut plain = Vec::new();
        ahead.take(path).unwrap().wait()?.read_to_end(&mut plain).unwrap();
        Some(plain)
    }

    #[test]
    fn a_package_is_plain_when_its_turn_comes_and_its_room_is_free_again() {
        let dir = tempfile::tempdir().unwrap();
        let (path, bytes, sha256) = package(dir.path(), "a", b"what is in it");
        let ahead = ReadAhead::start(1, 8 << 20);
        ahead.add(&path, bytes, sha256);
        let plain = taken(&ahead, &path).unwrap();
        assert!(plain.windows(13).any(|piece| piece == b"what is in it"));
        assert_eq!(ahead.shared.used_bytes.load(Ordering::Relaxed), 0);
        assert!(ahead.take(&path).is_none(), "it is given once");
    }

    #[test]
    fn nobody_waits_for_a_decompressor_that_has_panicked() {
        let dir = tempfile::tempdir().unwrap();
        let (path, bytes, sha256) = package(dir.path(), "a", b"");
        let ahead = ReadAhead::start_by(|_, _| panic!("a bug"), 1, 8 << 20);
        // The second by the same thread.
        for _ in 0..2 {
            ahead.add(&path, bytes, sha256);
            assert!(taken(&ahead, &path).is_none());
        }
    }

    #[test]
    fn a_pause_holds_reading_ahead_until_it_ends() {
        let dir = tempfile::tempdir().unwrap();
        let (path, bytes, sha256) = package(dir.path(), "a", b"");
        let ahead = ReadAhead::start(1, 8 << 20);
        let pause = ahead.pause();
        ahead.add(&path, bytes, sha256);
        assert!(locked(&ahead.shared.queue).begun.is_empty());
        drop(pause);
        assert!(taken(&ahead, &path).is_some());
    }

    #[test]
    fn what_is_wrong_too_large_or_still_in_line_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let (path, bytes, sha256) = package(dir.path(), "a", &[7; 3 << 20]);
        let small = ReadAhead::start(1, 2 << 20);
        small.add(&path, bytes, sha256);
        assert!(taken(&small, &path).is_none());
        let other = ReadAhead::start(1, 8 << 20);
        other.add(&path, bytes + 1, sha256);
        assert!(taken(&other, &path).is_none());
        let nobody = ReadAhead::start(0, 8 << 20);
        nobody.add(&path, bytes, sha256);
        assert!(nobody.take(&path).is_none());
        assert!(locked(&nobody.shared.queue).waiting.is_empty());
        assert_eq!(small.shared.used_bytes.load(Ordering::Relaxed), 0);
    }
}
