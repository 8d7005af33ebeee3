//! Writing trials, in files that have no name.
//!
//! `O_TMPFILE` makes a file that is gone when its last descriptor is (open(2)), whoever is killed. Where
//! a file system cannot do that, a file gets a name and loses it at once. Every figure has the flush in
//! it, or was written around the cache.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::disks::{DiskFacts, Disks};
use super::read::Rate;
use super::tree::Draw;
use crate::error::CopyError;
use crate::wire::BLOCK_BYTES;

/// Length of a file before the next one is begun.
const FILE_BYTES: u64 = 256 << 20;
/// The same where files are memory.
const MEMORY_FILE_BYTES: u64 = 64 << 20;
/// Most that a trial has written at any time, before it begins to overwrite, and the share of what is free: others
/// who write there meanwhile shall have room.
const ROOM_BYTES: u64 = 4 << 30;
const ROOM_SHARE: u64 = 8;
/// Written between two flushes where O_DIRECT cannot be had.
const FLUSH_BYTES: u64 = 32 << 20;
/// Small files that are held open until they are flushed: a deleted file is never written.
const HELD_FILES: usize = 16_384;
/// Alignment for O_DIRECT.
const ALIGN_BYTES: usize = 4096;
/// Of the time, what big files get if small ones are tried as well.
const BIG_SHARE: f64 = 0.6;
/// A rate has fallen if the last third of a trial was so much slower than the first.
const FALLEN: f64 = 0.7;
/// Longest flush that is waited for, and at least: of the trial's time.
const FLUSH_TIMES: f64 = 2.0;
const FLUSH_TIME: Duration = Duration::from_secs(1);
/// Steps in which a rate is looked at.
const STEP: Duration = Duration::from_millis(100);

/// What writing trials gave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WriteFigures {
    /// Writers.
    pub threads: usize,
    /// The file system is memory.
    pub memory: bool,
    /// Bytes of free space.
    pub free_bytes: u64,
    /// Files without names cannot be had: they had one for a moment.
    pub named: bool,
    /// Big files: around the cache, else flushed after every 32 MiB.
    pub big: Option<Rate>,
    /// Which of the two.
    pub direct: bool,
    /// Small files: created, written, with attributes, and flushed.
    pub small: Option<Rate>,
    /// Time that a file's creation took by itself, seconds.
    pub create_s: f64,
    /// A flush was given up: others have more to flush there than there was time for.
    pub unflushed: bool,
    /// Rate of the first and the last third, if it fell; bytes per second.
    pub fell: Option<(f64, f64)>,
    /// What the disks did meanwhile.
    pub disks: DiskFacts,
}

/// Where files are made.
#[derive(Debug)]
pub(super) struct Target {
    directory: OwnedFd,
    pub(super) disks: Disks,
    pub(super) free_bytes: u64,
    /// See [`room`].
    room_bytes: u64,
    file_bytes: u64,
    named: AtomicBool,
    number: AtomicU64,
    written: AtomicU64,
}

impl Target {
    /// The directory, or the nearest one above it that exists: nothing is made.
    pub(super) fn open(path: &Path) -> Result<Target, CopyError> {
        let wrong = |error: Errno| CopyError::Usage(format!("{}: {}", path.display(), io::Error::from(error)));
        let here: PathBuf = path
            .ancestors()
            .map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path })
            .find(|path| path.is_dir())
            .unwrap_or(Path::new("."))
            .to_owned();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(&here, flags, Mode::empty()).map_err(wrong)?;
        let space = rustix::fs::fstatvfs(&directory).map_err(wrong)?;
        let (disks, free_bytes) = (Disks::under(&here), space.f_bavail.saturating_mul(space.f_frsize));
        let (room_bytes, file_bytes) = room(free_bytes, disks.is_memory());
        let target = Target {
            disks,
            directory,
            free_bytes,
            room_bytes,
            file_bytes,
            named: AtomicBool::new(false),
            number: AtomicU64::new(0),
            written: AtomicU64::new(0),
        };
        // Who may not write there hears it before anything is measured.
        target.create(false).map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull => CopyError::Disk(format!("{}: {error}", here.display())),
            _ => CopyError::Usage(format!("{}: {error}", here.display())),
        })?;
        Ok(target)
    }

    /// A new file without a name.
    fn create(&self, direct: bool) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | if direct { OFlags::DIRECT } else { OFlags::empty() };
        if !self.named.load(Ordering::Relaxed) {
            match rustix::fs::openat(&self.directory, ".", flags | OFlags::TMPFILE, Mode::RUSR | Mode::WUSR) {
                Ok(file) => return Ok(file.into()),
                // Old kernels say that a directory cannot be written.
                Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) => self.named.store(true, Ordering::Relaxed),
                Err(error) => return Err(error.into()),
            }
        }
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let name = format!(".fullbore-probe-{}-{number}", std::process::id());
        let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(&self.directory, &name, flags, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::unlinkat(&self.directory, &name, AtFlags::empty())?;
        Ok(file.into())
    }

    /// Flushes the file system, as a copy does. False if that takes longer than this: others may have more
    /// to flush there than a probe can wait for.
    pub(super) fn flush(&self, within: Duration) -> io::Result<bool> {
        let directory = self.directory.try_clone()?;
        let (told, result) = mpsc::channel();
        // Nothing interrupts a flush, so it is left to itself when the time is up.
        std::thread::Builder::new().name("flush".to_owned()).spawn(move || {
            let _ = told.send(rustix::fs::syncfs(&directory));
        })?;
        match result.recv_timeout(within) {
            Ok(flushed) => Ok(flushed.map(|()| true)?),
            Err(RecvTimeoutError::Timeout) => Ok(false),
            Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("a thread failed")),
        }
    }
}

/// What a trial may have written at any time, and the length of each writer's file, in whole blocks.
fn room(free_bytes: u64, memory: bool) -> (u64, u64) {
    let writers = writers() as u64;
    let (most, longest) =
        if memory { (MEMORY_FILE_BYTES * writers, MEMORY_FILE_BYTES) } else { (ROOM_BYTES, FILE_BYTES) };
    let room_bytes = most.min(free_bytes / ROOM_SHARE);
    let share = longest.min(room_bytes / writers);
    (room_bytes, (share - share % BLOCK_BYTES).max(BLOCK_BYTES))
}

/// Threads that write, as a copy has them.
pub(super) fn writers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).clamp(2, 8)
}

/// Files with the bytes that are in them.
#[derive(Debug, Default)]
struct HeldFiles {
    files: Vec<(File, u64)>,
    bytes: u64,
}

/// Files that are being written, held open until they are flushed.
#[derive(Debug)]
pub(super) struct Held<'a> {
    pub(super) target: &'a Target,
    kept: Mutex<HeldFiles>,
    /// How many files may be open.
    most_files: usize,
    direct: bool,
    /// Time that making small files took, nanoseconds, and how many.
    creating_ns: AtomicU64,
    created: AtomicU64,
}

impl<'a> Held<'a> {
    pub(super) fn new(target: &'a Target, direct: bool) -> Held<'a> {
        Held {
            target,
            kept: Mutex::default(),
            most_files: held_files(),
            direct,
            creating_ns: AtomicU64::new(0),
            created: AtomicU64::new(0),
        }
    }

    /// Another file of this length from each writer, and some go unflushed.
    fn is_full(&self, length: u32) -> bool {
        let (kept, more) = (self.kept(), writers());
        let bytes = kept.bytes + u64::from(length) * more as u64;
        kept.files.len() + more >= self.most_files || bytes >= self.most_bytes()
    }

    fn most_bytes(&self) -> u64 {
        self.target.free_bytes / ROOM_SHARE
    }

    fn kept(&self) -> MutexGuard<'_, HeldFiles> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, file: File, bytes: u64) {
        let mut kept = self.kept();
        kept.files.push((file, bytes));
        kept.bytes += bytes;
        if kept.files.len() >= self.most_files || kept.bytes >= self.most_bytes() {
            // Some of them go unflushed; the trial is long for what may be open, or for what is free.
            let half = kept.files.len().div_ceil(2);
            let gone: Vec<(File, u64)> = kept.files.drain(..half).collect();
            kept.bytes -= gone.iter().map(|(_, bytes)| bytes).sum::<u64>();
            drop(kept);
        }
    }

    /// A small file, with the attributes that every file of a copy gets.
    pub(super) fn small(&self, content: &[u8]) -> io::Result<()> {
        let began = Instant::now();
        let mut file = self.target.create(false)?;
        self.creating_ns.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
        self.created.fetch_add(1, Ordering::Relaxed);
        file.write_all(content)?;
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        rustix::fs::fchown(&file, Some(Uid::from_raw(user.as_raw())), Some(Gid::from_raw(group.as_raw())))?;
        rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH)?;
        let time = Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
        rustix::fs::futimens(&file, &Timestamps { last_access: time, last_modification: time })?;
        self.target.written.fetch_add(content.len() as u64, Ordering::Relaxed);
        self.keep(file, content.len() as u64);
        Ok(())
    }
}

/// At most what this process may have open, less what else it needs.
fn held_files() -> usize {
    let open = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let open = open.map_or(HELD_FILES, |open| usize::try_from(open).unwrap_or(HELD_FILES));
    (open / 2).clamp(16, HELD_FILES)
}

/// Writes big files one after the other; one for each thread.
pub(super) struct Pen<'a> {
    held: &'a Held<'a>,
    file: Option<File>,
    at: u64,
}

impl<'a> Pen<'a> {
    pub(super) fn new(held: &'a Held<'a>) -> Pen<'a> {
        Pen { held, file: None, at: 0 }
    }

    pub(super) fn write(&mut self, content: &[u8]) -> io::Result<()> {
        let target = self.held.target;
        if self.at >= target.file_bytes {
            if target.written.load(Ordering::Relaxed) >= target.room_bytes {
                // As much as may be used is used: over it again.
                self.at = 0;
                if let Some(file) = &self.file {
                    file.set_len(0)?;
                }
            } else {
                self.keep();
            }
        }
        let file = match &self.file {
            Some(file) => file,
            None => {
                self.at = 0;
                self.file.insert(target.create(self.held.direct)?)
            }
        };
        file.write_all_at(content, self.at)?;
        self.at += content.len() as u64;
        target.written.fetch_add(content.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn keep(&mut self) {
        self.file.take().into_iter().for_each(|file| self.held.keep(file, self.at));
    }
}

impl Drop for Pen<'_> {
    fn drop(&mut self) {
        self.keep();
    }
}

/// Tries writing.
pub(super) fn measure(target: &Target, time: Duration, small_bytes: u32, big: bool) -> io::Result<WriteFigures> {
    let before = target.disks.read();
    let mut figures = WriteFigures {
        threads: writers(),
        memory: target.disks.is_memory(),
        free_bytes: target.free_bytes,
        ..WriteFigures::default()
    };
    let share = match (big, small_bytes > 0) {
        (true, true) => BIG_SHARE,
        (true, false) => 1.0,
        _ => 0.0,
    };
    if big {
        let time = time.mul_f64(share);
        let direct = if figures.memory { None } else { write_big(target, time, true).ok() };
        figures.direct = direct.is_some();
        let (rate, steps) = match direct {
            Some(done) => done,
            None => write_big(target, time, false)?,
        };
        figures.big = Some(rate);
        figures.fell = fallen(&steps);
    }
    if small_bytes > 0 {
        let (rate, flushed, create_s) = write_small(target, time.mul_f64(1.0 - share), small_bytes)?;
        figures.create_s = create_s;
        figures.small = Some(rate);
        figures.unflushed = !flushed;
    }
    figures.named = target.named.load(Ordering::Relaxed);
    figures.disks = target.disks.since(&before);
    Ok(figures)
}

/// Bytes of each step.
type Steps = Vec<u64>;

fn write_big(target: &Target, time: Duration, direct: bool) -> io::Result<(Rate, Steps)> {
    let mut memory = vec![0_u8; BLOCK_BYTES as usize + ALIGN_BYTES];
    let from = memory.as_ptr().align_offset(ALIGN_BYTES).min(ALIGN_BYTES);
    memory[from..from + BLOCK_BYTES as usize].copy_from_slice(&Draw(11).bytes(BLOCK_BYTES as usize));
    let block = &memory[from..from + BLOCK_BYTES as usize];
    let held = Held::new(target, direct);
    let flush_bytes = FLUSH_BYTES.min(target.file_bytes);
    let steps: Vec<AtomicU64> = (0..=time.as_millis() / STEP.as_millis()).map(|_| AtomicU64::new(0)).collect();
    let began = Instant::now();
    let threads = writers();
    let blocks = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|_| {
                let (held, steps) = (&held, &steps);
                scope.spawn(move || -> io::Result<u64> {
                    let mut pen = Pen::new(held);
                    let mut blocks = 0;
                    while began.elapsed() < time {
                        pen.write(block)?;
                        blocks += 1;
                        if !direct && (blocks * BLOCK_BYTES).is_multiple_of(flush_bytes) {
                            target.flush(flush_time(time))?;
                        }
                        let step = (began.elapsed().as_millis() / STEP.as_millis()) as usize;
                        if let Some(step) = steps.get(step) {
                            step.fetch_add(BLOCK_BYTES, Ordering::Relaxed);
                        }
                    }
                    Ok(blocks)
                })
            })
            .collect();
        let failed = |_| io::Error::other("a thread failed");
        threads.into_iter().map(|thread| thread.join().map_err(failed)?).sum::<io::Result<u64>>()
    })?;
    // What the disk keeps in a cache of its own counts when it is out of there.
    for (file, _) in &held.kept().files {
        rustix::fs::fdatasync(file.as_fd())?;
    }
    let rate = Rate { bytes: blocks * BLOCK_BYTES, items: blocks, seconds: began.elapsed().as_secs_f64() };
    let mut steps: Steps = steps.into_iter().map(AtomicU64::into_inner).collect();
    // The last one is cut off.
    steps.pop();
    Ok((rate, steps))
}

/// Rates of the first and the last third, if the last is much the slower.
fn fallen(steps: &[u64]) -> Option<(f64, f64)> {
    let third = steps.len() / 3;
    if third < 3 {
        return None;
    }
    let rate = |steps: &[u64]| steps.iter().sum::<u64>() as f64 / (steps.len() as f64 * STEP.as_secs_f64());
    let (first, last) = (rate(&steps[..third]), rate(&steps[steps.len() - third..]));
    (last < FALLEN * first).then_some((first, last))
}

/// How long a flush behind a trial of this length is waited for.
pub(super) fn flush_time(trial: Duration) -> Duration {
    trial.mul_f64(FLUSH_TIMES).max(FLUSH_TIME)
}

fn write_small(target: &Target, time: Duration, length: u32) -> io::Result<(Rate, bool, f64)> {
    let content = Draw(13).bytes(length as usize);
    let held = Held::new(target, false);
    let began = Instant::now();
    let threads = writers();
    let files = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|_| {
                let (held, content) = (&held, &content);
                scope.spawn(move || -> io::Result<u64> {
                    let mut files = 0;
                    while began.elapsed() < time && !held.is_full(length) {
                        held.small(content)?;
                        files += 1;
                    }
                    Ok(files)
                })
            })
            .collect();
        let failed = |_| io::Error::other("a thread failed");
        threads.into_iter().map(|thread| thread.join().map_err(failed)?).sum::<io::Result<u64>>()
    })?;
    let flushed = target.flush(flush_time(time))?;
    let rate = Rate { bytes: files * u64::from(length), items: files, seconds: began.elapsed().as_secs_f64() };
    let create_s =
        held.creating_ns.load(Ordering::Relaxed) as f64 / 1e9 / held.created.load(Ordering::Relaxed).max(1) as f64;
    Ok((rate, flushed, create_s))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_leaves_nothing_behind_and_needs_no_directory() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let target = Target::open(&directory.path().join("not/there")).unwrap();
        let figures = measure(&target, Duration::from_millis(300), 5000, true).unwrap();
        assert!(figures.big.unwrap().bytes >= 1 << 20 && figures.small.unwrap().items > 0, "{figures:?}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_system_without_nameless_files_sees_a_name_only_for_a_moment() {
        let directory = tempfile::tempdir().unwrap();
        let target = Target::open(directory.path()).unwrap();
        target.named.store(true, Ordering::Relaxed);
        Held::new(&target, false).small(b"x").unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn where_little_is_free_a_trial_takes_little_of_it() {
        assert!(rustix::process::geteuid().is_root(), "mounts a small disk: run as root (script/test does)");
        let directory = tempfile::tempdir().unwrap();
        let mount = |program: &str, options: &[&str]| {
            let status = std::process::Command::new(program).args(options).arg(directory.path()).status();
            assert!(status.unwrap().success(), "needs the package mount");
        };
        mount("mount", &["-t", "tmpfs", "-o", "size=64m", "none"]);
        let target = Target::open(directory.path()).unwrap();
        let free = || rustix::fs::statvfs(directory.path()).map(|space| space.f_bavail * space.f_frsize).unwrap();
        let (before, over) = (free(), AtomicBool::new(false));
        let (measured, least) = std::thread::scope(|scope| {
            let watching = scope.spawn(|| {
                let looks = std::iter::from_fn(|| (!over.load(Ordering::Acquire)).then(free));
                looks.inspect(|_| std::thread::sleep(Duration::from_millis(1))).min().unwrap_or(before)
            });
            let measured = measure(&target, Duration::from_millis(600), 100_000, true);
            over.store(true, Ordering::Release);
            (measured, watching.join().unwrap())
        });
        drop(target);
        mount("umount", &[]);
        let figures = measured.unwrap();
        assert!(figures.big.unwrap().bytes > 0 && figures.small.unwrap().items > 0, "{figures:?}");
        assert!(least > before / 2, "{least} of {before} were left");
        // No more than could be held until it was flushed: a deleted file is never written.
        let held_bytes = before / ROOM_SHARE + writers() as u64 * 100_000;
        assert!(figures.small.unwrap().bytes <= held_bytes, "{figures:?}");
    }

    #[test]
    fn a_rate_that_falls_is_told() {
        let steps: Vec<u64> = (0..30).map(|step| if step < 15 { 100 << 20 } else { 30 << 20 }).collect();
        let (first, last) = fallen(&steps).unwrap();
        assert!(first > 1e9 && last < 4e8);
        assert_eq!(fallen(&[100; 30]), None);
        assert_eq!(fallen(&[100, 1]), None);
    }

    #[test]
    fn where_nobody_may_write_it_is_told_before_anything_else() {
        assert!(Target::open(Path::new("/proc/self")).is_err());
    }
}
