//! How the blocks of big files are written: by way of the page cache, or around it.
//!
//! The cache takes a block at memory's speed and writes it later, but the copy into it can cost a whole core,
//! and what it has not written waits for the flush. Around it (O_DIRECT, open(2)) the disk takes blocks from our
//! memory. Which is faster depends on file system, disk and processor, so it is tried on the real files: the
//! first blocks go by turns the one way and the other, and the faster way is taken for the rest. A turn by way
//! of the cache is over when the disk has what was written in it, or the cache would always seem the faster.
//! What is not whole, aligned blocks always goes by way of the cache, and so does everything where the system
//! refuses the other way.

mod kernel;

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::partial::errno;
use fullbore_engine::memory_pool::MemoryPool;

/// Files from this size on are written either way. Smaller ones fit a disk's own memory, and are gone before a
/// trial would tell.
pub(super) const BULK_BYTES: u64 = 64 << 20;
/// Alignment that O_DIRECT asks of memory, offsets and lengths: the largest that disks have.
const ALIGN_BYTES: usize = 4096;
/// Bytes of each turn, and how many turns there are of each way: more than a disk's own memory takes at once,
/// little of a copy that is worth it.
const TURN_BYTES: u64 = 32 << 20;
const TURNS: u32 = 4;
/// The way around the cache is taken if it is so much faster. Less may be chance, and what is in the cache
/// is there for whoever reads the copy next.
const GAIN: f64 = 1.15;
/// Types of file systems in memory (statfs(2)): tmpfs, ramfs.
const MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];

/// A way to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteMode {
    /// By way of the page cache.
    Cached,
    /// Around it.
    Direct,
}

/// What is known of each file system.
pub(super) struct Bulk {
    /// By the number of the device.
    trials: Mutex<HashMap<u64, Trial>>,
    /// A turn has ended.
    turned: Condvar,
    /// Where aligned memory comes from.
    pool: MemoryPool,
}

/// The trial on one file system.
#[derive(Debug, Default)]
struct Trial {
    /// How it ended.
    chosen: Option<WriteMode>,
    /// Turns that are over.
    turns: u32,
    /// Bytes given out in this turn, and threads that write them.
    given: u64,
    writing: u32,
    /// Since when somebody writes.
    since: Option<Instant>,
    /// Bytes and time of each way: cached, direct.
    bytes: [u64; 2],
    time: [Duration; 2],
    /// What is in the cache of this turn, perhaps not on the disk.
    cached: Vec<(Arc<File>, u64, u64)>,
}

impl Trial {
    /// On the file system of this file. One of memory has nothing but the cache.
    fn on(file: &File) -> Trial {
        let is_memory = rustix::fs::fstatfs(file).is_ok_and(|status| MEMORY.contains(&(status.f_type as u32)));
        Trial { chosen: is_memory.then_some(WriteMode::Cached), ..Trial::default() }
    }

    fn way(&self) -> WriteMode {
        self.chosen.unwrap_or(if self.turns.is_multiple_of(2) { WriteMode::Cached } else { WriteMode::Direct })
    }

    /// A block of this turn is to be written.
    fn begin(&mut self, bytes: u64, now: Instant) {
        self.given += bytes;
        self.writing += 1;
        self.since.get_or_insert(now);
    }

    /// It is written. True if the turn is over by it.
    fn end(&mut self, bytes: u64, now: Instant) -> bool {
        self.writing -= 1;
        self.bytes[self.way() as usize] += bytes;
        if self.writing == 0 {
            self.pause(now);
        }
        self.writing == 0 && self.given >= TURN_BYTES
    }

    /// Nobody writes: this is nobody's time.
    fn pause(&mut self, now: Instant) {
        let spent = self.since.take().map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        self.time[self.way() as usize] += spent;
    }

    /// The turn is over, and so may be the trial.
    fn turn(&mut self) {
        self.turns += 1;
        self.given = 0;
        if self.turns >= TURNS {
            self.chosen = Some(if self.gain() >= GAIN { WriteMode::Direct } else { WriteMode::Cached });
            tracing::debug!(gain = self.gain(), chosen = ?self.chosen, "how big files are written");
        }
    }

    /// How much faster the way around the cache is.
    fn gain(&self) -> f64 {
        let rate = |way: WriteMode| self.bytes[way as usize] as f64 / self.time[way as usize].as_secs_f64().max(1e-9);
        rate(WriteMode::Direct) / rate(WriteMode::Cached).max(1e-9)
    }
}

/// A big file, open for writing.
pub(super) struct Target<'a> {
    /// Number of its device.
    pub(super) device: u64,
    /// By way of the cache.
    pub(super) file: &'a Arc<File>,
    /// Opens the same file to write around the cache.
    pub(super) direct: &'a dyn Fn() -> Result<Arc<File>, Errno>,
}

impl Bulk {
    pub(super) fn new(pool: MemoryPool) -> Bulk {
        Bulk { trials: Mutex::default(), turned: Condvar::new(), pool }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Trial>> {
        self.trials.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether big files on one of the file systems are written around the cache, by a trial.
    pub(super) fn is_direct(&self) -> bool {
        self.lock().values().any(|trial| trial.chosen == Some(WriteMode::Direct))
    }

    /// Writes a block, whole.
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

    /// Writes around the cache, from memory that is aligned for it; none where the system refuses. Not every
    /// file system can, and some only say so when something is to be written.
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

    /// Which way a block goes, and whether it is part of a trial. Waits while a turn ends.
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
        // Whoever has a block for this file system waits for the end of the turn.
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
