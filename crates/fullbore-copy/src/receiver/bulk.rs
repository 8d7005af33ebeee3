//! Writes blocks of big files, through the page cache or around it.
//!
//! The page cache takes a block at memory speed and writes it later. But the copy into the cache can cost a whole core,
//! and unwritten data waits for the flush. With O_DIRECT (open(2)) the disk reads blocks from our memory. Which is
//! faster depends on file system, disk and processor, so a trial on the real files decides. The first blocks are
//! written in turns, cached and direct; the rest takes the faster way. A cached turn ends when its data is on the disk;
//! else the cache would always seem faster. Unaligned and partial blocks always go through the cache, as does
//! everything if the system refuses O_DIRECT.

mod kernel;

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::partial::errno;
use fullbore_engine::memory_pool::MemoryPool;

/// Size from which files take part in the trial, in bytes. Smaller ones fit a disk's own cache, and end before a trial
/// would tell.
pub(super) const BULK_BYTES: u64 = 64 << 20;
/// Alignment that O_DIRECT needs of memory, offsets and lengths: the largest of all disks.
const ALIGN_BYTES: usize = 4096;
/// Bytes per turn, and number of turns per way: more than a disk's own cache takes at once, and little of a copy for
/// which the choice matters.
const TURN_BYTES: u64 = 32 << 20;
const TURNS: u32 = 4;
/// Least speed-up at which direct writes are chosen. Less may be chance, and the cache helps whoever reads the copy
/// next.
const GAIN: f64 = 1.15;
/// Types of file systems in memory (statfs(2)): tmpfs, ramfs.
const MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];

/// A way to write blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteMode {
    /// Through the page cache.
    Cached,
    /// Around the page cache (O_DIRECT).
    Direct,
}

/// The trials on all file systems.
pub(super) struct Bulk {
    /// Trials by device number.
    trials: Mutex<HashMap<u64, Trial>>,
    /// Signals the end of a turn.
    turned: Condvar,
    /// Pool of aligned memory.
    pool: MemoryPool,
}

/// The trial on one file system.
#[derive(Debug, Default)]
struct Trial {
    /// The result; `None` while the trial goes on.
    chosen: Option<WriteMode>,
    /// Number of completed turns.
    turns: u32,
    /// Bytes assigned in this turn, and threads that write now.
    given: u64,
    writing: u32,
    /// Since when at least one thread writes.
    since: Option<Instant>,
    /// Bytes and time of each way: cached, direct.
    bytes: [u64; 2],
    time: [Duration; 2],
    /// Ranges that were written through the cache in this turn, and may not be on the disk.
    cached: Vec<(Arc<File>, u64, u64)>,
}

impl Trial {
    /// Begins the trial on a file's file system. A file system in memory has only the cache.
    fn on(file: &File) -> Trial {
        let is_memory = rustix::fs::fstatfs(file).is_ok_and(|status| MEMORY.contains(&(status.f_type as u32)));
        Trial { chosen: is_memory.then_some(WriteMode::Cached), ..Trial::default() }
    }

    fn way(&self) -> WriteMode {
        self.chosen.unwrap_or(if self.turns.is_multiple_of(2) { WriteMode::Cached } else { WriteMode::Direct })
    }

    /// A thread starts to write a block of this turn.
    fn begin(&mut self, bytes: u64, now: Instant) {
        self.given += bytes;
        self.writing += 1;
        self.since.get_or_insert(now);
    }

    /// A thread has written a block. Returns true if this ends the turn.
    fn end(&mut self, bytes: u64, now: Instant) -> bool {
        self.writing -= 1;
        self.bytes[self.way() as usize] += bytes;
        if self.writing == 0 {
            self.pause(now);
        }
        self.writing == 0 && self.given >= TURN_BYTES
    }

    /// No thread writes: stop the clock.
    fn pause(&mut self, now: Instant) {
        let spent = self.since.take().map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        self.time[self.way() as usize] += spent;
    }

    /// Ends the turn, and maybe the trial.
    fn turn(&mut self) {
        self.turns += 1;
        self.given = 0;
        if self.turns >= TURNS {
            self.chosen = Some(if self.gain() >= GAIN { WriteMode::Direct } else { WriteMode::Cached });
            tracing::debug!(gain = self.gain(), chosen = ?self.chosen, "how big files are written");
        }
    }

    /// Speed-up of direct over cached writes.
    fn gain(&self) -> f64 {
        let rate = |way: WriteMode| self.bytes[way as usize] as f64 / self.time[way as usize].as_secs_f64().max(1e-9);
        rate(WriteMode::Direct) / rate(WriteMode::Cached).max(1e-9)
    }
}

/// A big file that is open for writing.
pub(super) struct Target<'a> {
    /// Device number of its file system.
    pub(super) device: u64,
    /// The file, opened for cached writes.
    pub(super) file: &'a Arc<File>,
    /// Opens the same file for direct writes.
    pub(super) direct: &'a dyn Fn() -> Result<Arc<File>, Errno>,
}

impl Bulk {
    pub(super) fn new(pool: MemoryPool) -> Bulk {
        Bulk { trials: Mutex::default(), turned: Condvar::new(), pool }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Trial>> {
        self.trials.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a trial chose direct writes on any file system.
    pub(super) fn is_direct(&self) -> bool {
        self.lock().values().any(|trial| trial.chosen == Some(WriteMode::Direct))
    }

    /// Writes a whole block.
    pub(super) fn write(&self, target: &Target<'_>, content: &[u8], offset: u64) -> Result<(), Errno> {
        let cached = || target.file.write_all_at(content, offset).map_err(errno);
        let is_aligned = content.len().is_multiple_of(ALIGN_BYTES) && offset.is_multiple_of(ALIGN_BYTES as u64);
        if content.is_empty() || !is_aligned {
            return cached();
        }
        let length = content.len() as u64;
        let (way, is_trial) = self.begin(target, length);
        let written = match way {
            WriteMode::Cached => Some(cached()),
            WriteMode::Direct => self.direct(target, content, offset),
        };
        if written.is_none() {
            self.lock().entry(target.device).or_default().chosen = Some(WriteMode::Cached);
        }
        if is_trial {
            let in_cache = way == WriteMode::Cached && matches!(written, Some(Ok(())));
            self.end(target.device, length, in_cache.then(|| (target.file.clone(), offset, length)));
        }
        written.unwrap_or_else(cached)
    }

    /// Writes directly, from aligned memory. `None` if the system refuses: not every file system supports it, and some
    /// only say so at the first write.
    fn direct(&self, target: &Target<'_>, content: &[u8], offset: u64) -> Option<Result<(), Errno>> {
        let file = (target.direct)().ok()?;
        let mut memory = self.pool.take(content.len() + ALIGN_BYTES);
        let from = memory.as_ptr().align_offset(ALIGN_BYTES).min(ALIGN_BYTES);
        let aligned = &mut memory[from..from + content.len()];
        aligned.copy_from_slice(content);
        let written = file.write_all_at(aligned, offset).map_err(errno);
        self.pool.give(memory);
        (!matches!(written, Err(Errno::INVAL | Errno::OPNOTSUPP))).then_some(written)
    }

    /// The way to write a block, and whether it belongs to a trial. Waits while a turn ends.
    fn begin(&self, target: &Target<'_>, bytes: u64) -> (WriteMode, bool) {
        let ends = |trials: &mut HashMap<u64, Trial>| {
            trials.get(&target.device).is_some_and(|trial| trial.chosen.is_none() && trial.given >= TURN_BYTES)
        };
        let mut trials = self.turned.wait_while(self.lock(), ends).unwrap_or_else(PoisonError::into_inner);
        let trial = trials.entry(target.device).or_insert_with(|| Trial::on(target.file));
        let is_trial = trial.chosen.is_none();
        if is_trial {
            trial.begin(bytes, Instant::now());
        }
        (trial.way(), is_trial)
    }

    fn end(&self, device: u64, bytes: u64, cached: Option<(Arc<File>, u64, u64)>) {
        let mut trials = self.lock();
        let trial = trials.entry(device).or_default();
        trial.cached.extend(cached);
        if !trial.end(bytes, Instant::now()) || trial.chosen.is_some() {
            return self.turned.notify_all();
        }
        let cached = std::mem::take(&mut trial.cached);
        // Threads with a block for this file system wait until the turn has ended.
        drop(trials);
        let began = Instant::now();
        for (file, offset, length) in cached {
            kernel::write_back(&file, offset, length);
        }
        let mut trials = self.lock();
        let trial = trials.entry(device).or_default();
        if trial.chosen.is_none() {
            trial.time[trial.way() as usize] += began.elapsed();
            trial.turn();
        }
        drop(trials);
        self.turned.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The way chosen where turns take so long, each given the blocks of two threads.
    fn chosen(cached_ms: u64, direct_ms: u64) -> Option<WriteMode> {
        let mut trial = Trial::default();
        let mut now = Instant::now();
        for _ in 0..TURNS {
            let ms = if trial.way() == WriteMode::Cached { cached_ms } else { direct_ms };
            for half in 0..2 {
                trial.begin(TURN_BYTES / 4, now);
                trial.begin(TURN_BYTES / 4, now);
                now += Duration::from_millis(ms / 2);
                assert!(!trial.end(TURN_BYTES / 4, now));
                assert_eq!(trial.end(TURN_BYTES / 4, now), half == 1);
                // Nothing has come for a while: that is no part of it.
                now += Duration::from_secs(1);
            }
            trial.turn();
        }
        trial.chosen
    }

    #[test]
    fn the_faster_way_is_taken_and_the_cache_where_there_is_little_in_it() {
        assert_eq!(chosen(200, 100), Some(WriteMode::Direct));
        assert_eq!(chosen(100, 200), Some(WriteMode::Cached));
        assert_eq!(chosen(110, 100), Some(WriteMode::Cached));
    }

    fn written(refuse: Option<Errno>) -> (Vec<u8>, Bulk) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let file = Arc::new(File::create(&path).unwrap());
        let open = || match refuse {
            Some(error) => Err(error),
            None => File::options().write(true).open(&path).map(Arc::new).map_err(errno),
        };
        let bulk = Bulk::new(MemoryPool::default());
        let block: Vec<u8> = (0..1 << 20).map(|index: u32| (index % 251) as u8).collect();
        let count = u64::from(TURNS) * (TURN_BYTES >> 20);
        std::thread::scope(|scope| {
            for first in 0..4 {
                let (bulk, file, block, open) = (&bulk, &file, &block, &open);
                scope.spawn(move || {
                    let target = Target { device: 1, file, direct: open };
                    for index in (first..count).step_by(4) {
                        let mut block = block.clone();
                        block[0] = index as u8;
                        bulk.write(&target, &block, index << 20).unwrap();
                    }
                });
            }
        });
        bulk.write(&Target { device: 1, file: &file, direct: &open }, b"tail", count << 20).unwrap();
        let content = std::fs::read(path).unwrap();
        assert_eq!(content.len() as u64, (count << 20) + 4);
        for (index, found) in content.chunks_exact(1 << 20).enumerate() {
            assert!(found[0] == index as u8 && found[1..] == block[1..], "block {index}");
        }
        (content[content.len() - 4..].to_vec(), bulk)
    }

    #[test]
    fn every_block_is_written_once_whichever_way_and_the_trial_ends() {
        let (tail, bulk) = written(None);
        assert_eq!(tail, b"tail");
        assert!(bulk.lock()[&1].chosen.is_some());
    }

    #[test]
    fn where_the_system_refuses_everything_goes_by_way_of_the_cache() {
        let (_, bulk) = written(Some(Errno::INVAL));
        assert_eq!(bulk.lock()[&1].chosen, Some(WriteMode::Cached));
        assert!(!bulk.is_direct());
    }
}
