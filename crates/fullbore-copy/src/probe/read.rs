//! Reading trials on the real files.
//!
//! The trials leave the page cache as it is, so that the copy finds what the probe found. Cached files are read around
//! the cache (O_DIRECT). Others are read through it and dropped again, each by itself (posix_fadvise(2)). Disk and
//! memory rates are separate figures.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Advice, OFlags, fadvise};
use serde::{Deserialize, Serialize};

use super::disks::{DiskFacts, Disks};
use super::kernel::resident;
use super::tree::Sample;
use crate::wire::{BLOCK_BYTES, PACK_FILES, Packed};

/// Bytes of a big file that are read in one go before another file has its turn.
const RUN_BYTES: u64 = 32 << 20;
/// Alignment that O_DIRECT needs of memory, offsets and lengths: the largest of all disks.
const ALIGN_BYTES: usize = 4096;
/// Share of the time for the disk's rate, which matters more than memory's.
const COLD_SHARE: f64 = 0.7;
/// Shortest trial that gives a usable result, in seconds.
const SHORTEST_S: f64 = 0.1;

/// An amount of work and its duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Bytes of content.
    pub bytes: u64,
    /// Number of files, or of blocks of big files.
    pub items: u64,
    /// Duration in seconds, including flushes.
    pub seconds: f64,
}

impl Rate {
    /// Bytes of content per second.
    pub fn bytes_per_s(&self) -> f64 {
        self.bytes as f64 / self.seconds.max(1e-9)
    }

    /// Files or blocks per second.
    pub(crate) fn items_per_s(&self) -> f64 {
        self.items as f64 / self.seconds.max(1e-9)
    }
}

/// Results of the reading trials.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReadFigures {
    /// Number of reader threads.
    pub threads: usize,
    /// Whether the disk is rotational.
    pub rotational: bool,
    /// Whether no trial read from a disk: the file system is in memory, or does not support O_DIRECT.
    pub memory: bool,
    /// Share of the big files' bytes in the page cache, from 0 to 1.
    pub big_cached: f64,
    /// Share of the small files' bytes in the page cache, from 0 to 1.
    pub small_cached: f64,
    /// Rate of big files from the disk.
    pub big_cold: Option<Rate>,
    /// Rate of big files from memory.
    pub big_warm: Option<Rate>,
    /// Rate of small files from the disk.
    pub small_cold: Option<Rate>,
    /// Rate of small files from memory.
    pub small_warm: Option<Rate>,
    /// Activity of the disks during the trials.
    pub disks: DiskFacts,
}

/// A kind of files by size: a copy packs small ones into records and cuts big ones into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Class {
    /// Below 256 KiB: packed with others into one record.
    Small,
    /// 256 KiB and above: cut into blocks.
    Big,
}

#[derive(Debug)]
struct Piece {
    path: PathBuf,
    size: u64,
    /// Whether most of it was in memory before the probe.
    cached: bool,
    /// Offset at which the next reader of a big file begins. A trial does not repeat what an earlier one has read until
    /// all was read, as a disk may have a cache of its own.
    next: AtomicU64,
}

/// The sample's files, and which of them are cached.
#[derive(Debug, Default)]
pub(super) struct Files {
    small: Vec<Piece>,
    big: Vec<Piece>,
    /// Counter that gives each reader its next small file.
    next_small: AtomicUsize,
    next_big: AtomicUsize,
    small_cached: f64,
    big_cached: f64,
}

impl Files {
    /// Finds which files are in memory. Stops at `until`, and leaves out the remaining files: opening one may take a
    /// disk as long as reading it.
    pub(super) fn examine(sample: &Sample, until: Instant) -> Files {
        let time = until.saturating_duration_since(Instant::now());
        let (big, big_cached) = examine(&sample.big, until - time / 2);
        let (small, small_cached) = examine(&sample.small, until);
        Files { small, big, small_cached, big_cached, ..Files::default() }
    }

    fn of(&self, class: Class) -> &[Piece] {
        match class {
            Class::Small => &self.small,
            Class::Big => &self.big,
        }
    }

    /// Whether there are files of this kind.
    pub(super) fn has(&self, class: Class) -> bool {
        self.of(class).iter().any(|piece| piece.size > 0)
    }
}

/// Examines files until the time is up, but at least one.
fn examine(files: &[(PathBuf, u64)], until: Instant) -> (Vec<Piece>, f64) {
    let (mut here, mut all) = (0, 0);
    let mut pieces = Vec::with_capacity(files.len());
    for (path, size) in files {
        if !pieces.is_empty() && Instant::now() >= until {
            break;
        }
        let Ok(file) = open(path, false) else { continue };
        let (mut in_memory, mut asked) = resident(&file, 0, *size).unwrap_or((0, 0));
        if *size > 2 * RUN_BYTES {
            // The first pages alone say little about a long file.
            let (more, of) = resident(&file, size / 2, *size).unwrap_or((0, 0));
            (in_memory, asked) = (in_memory + more, asked + of);
        }
        let share = if asked > 0 { in_memory as f64 / asked as f64 } else { 0.0 };
        here += (share * *size as f64) as u64;
        all += size;
        let next = AtomicU64::new(0);
        pieces.push(Piece { path: path.clone(), size: *size, cached: share > 0.5, next });
    }
    (pieces, if all > 0 { here as f64 / all as f64 } else { 0.0 })
}

fn open(path: &PathBuf, direct: bool) -> std::io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let flags = if direct { flags | OFlags::DIRECT } else { flags };
    File::options().read(true).custom_flags(flags.bits() as i32).open(path)
}

/// Which files a trial reads, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// All files, through the page cache, as a copy does.
    AsFound,
    /// Only uncached files.
    Cold,
    /// Only cached files, around the cache (O_DIRECT).
    Around,
    /// Only cached files, from the cache.
    Warm,
}

/// Reads files one after the other, and starts over at the end.
pub(super) struct Feeder<'a> {
    pieces: Vec<&'a Piece>,
    next: &'a AtomicUsize,
    direct: bool,
    /// A small file that did not fit into the last record.
    kept: Option<&'a Piece>,
    open: Option<(File, u64, u64, &'a Piece)>,
}

impl<'a> Feeder<'a> {
    /// Makes one of several feeders that share the files.
    pub(super) fn new(files: &'a Files, class: Class, which: Which) -> Feeder<'a> {
        let wanted = |piece: &&Piece| {
            piece.size > 0
                && match which {
                    Which::AsFound => true,
                    Which::Cold => !piece.cached,
                    Which::Around | Which::Warm => piece.cached,
                }
        };
        let pieces = files.of(class).iter().filter(wanted).collect();
        let next = if class == Class::Small { &files.next_small } else { &files.next_big };
        Feeder { pieces, next, direct: which == Which::Around, kept: None, open: None }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    fn next_piece(&mut self) -> Option<&'a Piece> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.pieces.len().max(1);
        self.kept.take().or_else(|| self.pieces.get(turn).copied())
    }

    /// Reads the next block of a big file; `None` if no file can be read.
    pub(super) fn block(&mut self, buffer: &mut [u8]) -> Option<usize> {
        // Files may have become unreadable. If all of them have, the trial ends.
        for _ in 0..self.pieces.len() + 2 {
            let Some((file, offset, end, piece)) = &mut self.open else {
                let piece = self.next_piece()?;
                let runs = piece.size.div_ceil(RUN_BYTES);
                let offset = piece.next.fetch_add(1, Ordering::Relaxed) % runs * RUN_BYTES;
                if let Ok(file) = open(&piece.path, self.direct) {
                    self.open = Some((file, offset, piece.size.min(offset + RUN_BYTES), piece));
                }
                continue;
            };
            let length = buffer.len().min(end.saturating_sub(*offset) as usize);
            // O_DIRECT needs whole sectors; at the end of a file the read returns less.
            let asked = if self.direct { length.next_multiple_of(ALIGN_BYTES).min(buffer.len()) } else { length };
            match if asked == 0 { Ok(0) } else { file.read_at(&mut buffer[..asked], *offset) } {
                Ok(count) if count > 0 => {
                    if !piece.cached {
                        let _ = fadvise(&*file, *offset, std::num::NonZeroU64::new(count as u64), Advice::DontNeed);
                    }
                    *offset += count as u64;
                    return Some(count);
                }
                _ => self.open = None,
            }
        }
        None
    }

    /// Fills the buffer with small files; empty if none can be read.
    pub(super) fn pack(&mut self, buffer: &mut Vec<u8>, limit: usize) -> Vec<Packed> {
        let mut packed = Vec::new();
        let mut end = 0;
        for _ in 0..PACK_FILES {
            let Some(piece) = self.next_piece() else { break };
            let size = piece.size as usize;
            if end > 0 && end + size > limit {
                self.kept = Some(piece);
                break;
            }
            buffer.resize(end + size, 0);
            if let Some(length) = self.small(piece, &mut buffer[end..]) {
                packed.push(Packed { id: packed.len() as u64, length: length as u32 });
                end += length;
            }
        }
        buffer.truncate(end);
        packed
    }

    fn small(&self, piece: &Piece, space: &mut [u8]) -> Option<usize> {
        let file = open(&piece.path, self.direct).ok()?;
        let length = file.read_at(space, 0).ok()?;
        // A copy checks that the file has not changed; the probe pays the same cost.
        file.metadata().ok()?;
        if !piece.cached {
            let _ = fadvise(file.as_fd(), 0, None, Advice::DontNeed);
        }
        Some(length)
    }
}

/// Runs all reading trials that these files allow.
pub(super) fn measure(files: &Files, disks: &Disks, rotational: bool, time: Duration) -> ReadFigures {
    let threads = readers(rotational);
    let before = disks.read();
    let mut figures = ReadFigures {
        threads,
        rotational,
        memory: disks.is_memory(),
        big_cached: files.big_cached,
        small_cached: files.small_cached,
        ..ReadFigures::default()
    };
    let classes: Vec<Class> = [Class::Big, Class::Small].into_iter().filter(|class| files.has(*class)).collect();
    for class in &classes {
        let share = time.as_secs_f64() / classes.len() as f64;
        let trial =
            |which, share: f64| trial(files, *class, which, threads, Duration::from_secs_f64(share.max(SHORTEST_S)));
        let cold = if disks.is_memory() {
            None
        } else {
            let cold = trial(Which::Cold, share * COLD_SHARE);
            cold.or_else(|| trial(Which::Around, share * COLD_SHARE))
        };
        let warm = trial(Which::Warm, share * if cold.is_some() { 1.0 - COLD_SHARE } else { 1.0 });
        match class {
            Class::Big => (figures.big_cold, figures.big_warm) = (cold, warm),
            Class::Small => (figures.small_cold, figures.small_warm) = (cold, warm),
        }
    }
    figures.memory |= figures.big_cold.is_none() && figures.small_cold.is_none();
    figures.disks = disks.since(&before);
    figures
}

/// Number of reader threads that a copy would have.
pub(super) fn readers(rotational: bool) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if rotational { 1 } else { cores.clamp(2, 8) }
}

fn trial(files: &Files, class: Class, which: Which, threads: usize, time: Duration) -> Option<Rate> {
    if Feeder::new(files, class, which).is_empty() {
        return None;
    }
    let (bytes, items) = (AtomicU64::new(0), AtomicU64::new(0));
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (bytes, items) = (&bytes, &items);
            scope.spawn(move || {
                let mut feeder = Feeder::new(files, class, which);
                let mut memory = vec![0_u8; BLOCK_BYTES as usize + ALIGN_BYTES];
                let from = memory.as_ptr().align_offset(ALIGN_BYTES).min(ALIGN_BYTES);
                while began.elapsed() < time {
                    let read = match class {
                        Class::Big => feeder.block(&mut memory[from..from + BLOCK_BYTES as usize]),
                        Class::Small => feeder
                            .next_piece()
                            .and_then(|piece| feeder.small(piece, &mut memory[from..from + BLOCK_BYTES as usize])),
                    };
                    let Some(count) = read else { break };
                    bytes.fetch_add(count as u64, Ordering::Relaxed);
                    items.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let rate = Rate { bytes: bytes.into_inner(), items: items.into_inner(), seconds: began.elapsed().as_secs_f64() };
    (rate.items > 0).then_some(rate)
}

#[cfg(test)]
mod tests {
    use super::super::tree::Draw;
    use super::*;

    #[test]
    fn cached_files_are_read_in_both_ways_and_stay_in_memory() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (small, big) = (directory.path().join("small"), directory.path().join("big"));
        std::fs::write(&small, Draw(1).bytes(5000)).unwrap();
        std::fs::write(&big, Draw(2).bytes(3_000_000)).unwrap();
        let sample = Sample { small: vec![(small.clone(), 5000)], big: vec![(big.clone(), 3_000_000)] };
        let late = Instant::now() + Duration::from_secs(60);
        let files = Files::examine(&sample, late);
        assert_eq!((files.small_cached, files.big_cached), (1.0, 1.0));
        let stays = || {
            std::fs::read(&big).unwrap();
            let figures = measure(&files, &Disks::under(directory.path()), false, Duration::from_millis(400));
            assert!(figures.big_warm.unwrap().bytes >= 3_000_000, "{figures:?}");
            assert!(figures.small_warm.unwrap().items > 0, "{figures:?}");
            Files::examine(&sample, late).big_cached == 1.0
        };
        // The kernel takes memory back by itself at times; we would each time.
        assert!((0..3).any(|_| stays()));
        let mut feeder = Feeder::new(&files, Class::Small, Which::AsFound);
        let mut buffer = Vec::new();
        let packed = feeder.pack(&mut buffer, 12_000);
        assert_eq!((packed.len(), buffer.len()), (2, 10_000));
        assert_eq!(buffer[..5000], Draw(1).bytes(5000)[..]);
    }

    #[test]
    fn when_the_time_is_up_no_file_more_is_opened() {
        let directory = tempfile::tempdir().unwrap();
        let file = |number: u32| (directory.path().join(number.to_string()), 1000);
        let sample = Sample { small: (0..100).map(file).collect(), big: (100..110).map(file).collect() };
        for (path, size) in sample.small.iter().chain(&sample.big) {
            std::fs::write(path, vec![1; *size as usize]).unwrap();
        }
        let files = Files::examine(&sample, Instant::now());
        assert_eq!((files.small.len(), files.big.len()), (1, 1));
        let files = Files::examine(&sample, Instant::now() + Duration::from_secs(60));
        assert_eq!((files.small.len(), files.big.len()), (100, 10));
    }

    #[test]
    fn files_that_vanish_end_the_trial_and_nothing_else() {
        let sample = Sample { small: Vec::new(), big: vec![(PathBuf::from("/nothing/here"), 5 << 20)] };
        let files = Files::examine(&sample, Instant::now());
        assert!(!files.has(Class::Big));
        assert!(trial(&files, Class::Big, Which::AsFound, 2, Duration::from_millis(50)).is_none());
    }
}
