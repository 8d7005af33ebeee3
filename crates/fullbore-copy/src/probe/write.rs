//! Writing trials, in files without names.
//!
//! `O_TMPFILE` makes a file that disappears with its last descriptor (open(2)), even if the process is killed. If a
//! file system does not support it, a file gets a name that is removed at once. All rates include the flush, or are of
//! writes around the cache.

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

/// Length of a file before the next one begins, in bytes.
const FILE_BYTES: u64 = 256 << 20;
/// The same on a file system in memory.
const MEMORY_FILE_BYTES: u64 = 64 << 20;
/// Most bytes that all trials occupy before they overwrite their files, and the most as a fraction of free space.
/// Others who write there need room, too.
const ROOM_BYTES: u64 = 4 << 30;
const ROOM_SHARE: u64 = 8;
/// Bytes written between two flushes if O_DIRECT is not supported.
const FLUSH_BYTES: u64 = 32 << 20;
/// Most small files that are held open until they are flushed. A deleted file would never be written out.
const HELD_FILES: usize = 16_384;
/// Alignment for O_DIRECT, in bytes.
const ALIGN_BYTES: usize = 4096;
/// Share of the time for big files if small ones are tried as well.
const BIG_SHARE: f64 = 0.6;
/// A rate has fallen if the last third of a trial is slower than this share of the first third.
const FALLEN: f64 = 0.7;
/// Time limit of a flush, as a multiple of the trial's time. Then its lower bound.
const FLUSH_TIMES: f64 = 2.0;
const FLUSH_TIME: Duration = Duration::from_secs(1);
/// Length of the steps in which a rate is recorded.
const STEP: Duration = Duration::from_millis(100);

/// Results of the writing trials.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WriteFigures {
    /// Number of writer threads.
    pub threads: usize,
    /// Whether the file system is in memory.
    pub memory: bool,
    /// Free space that the process may use, in bytes.
    pub free_bytes: u64,
    /// Whether `O_TMPFILE` is not supported, so that files had names for a moment.
    pub named: bool,
    /// Rate of big files, written around the cache, or else flushed after every 32 MiB.
    pub big: Option<Rate>,
    /// Whether big files were written around the cache (O_DIRECT).
    pub direct: bool,
    /// Rate of small files, which are created, written, given attributes, and flushed.
    pub small: Option<Rate>,
    /// Seconds for creating one small file, without writing it.
    pub create_s: f64,
    /// Whether a flush was given up because it took too long: others may have much data to flush there.
    pub unflushed: bool,
    /// Rates of the first and the last third of the trial in bytes per second, if the rate fell.
    pub fell: Option<(f64, f64)>,
    /// Activity of the disks during the trials.
    pub disks: DiskFacts,
}

/// The directory in which trials create their files.
#[derive(Debug)]
pub(super) struct Target {
    directory: OwnedFd,
    pub(super) disks: Disks,
    pub(super) free_bytes: u64,
    /// Most bytes that trials may occupy; see [`room`].
    room_bytes: u64,
    file_bytes: u64,
    named: AtomicBool,
    number: AtomicU64,
    written: AtomicU64,
}

impl Target {
    /// Opens the directory, or its nearest existing parent. Creates nothing.
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
        // A missing write permission is reported before anything is measured.
        target.create(false).map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull => CopyError::Disk(format!("{}: {error}", here.display())),
            _ => CopyError::Usage(format!("{}: {error}", here.display())),
        })?;
        Ok(target)
    }

    /// Creates a file without a name.
    fn create(&self, direct: bool) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | if direct { OFlags::DIRECT } else { OFlags::empty() };
        if !self.named.load(Ordering::Relaxed) {
            match rustix::fs::openat(&self.directory, ".", flags | OFlags::TMPFILE, Mode::RUSR | Mode::WUSR) {
                Ok(file) => return Ok(file.into()),
                // Kernels without `O_TMPFILE` report `EISDIR`: a directory cannot be opened for writing.
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

    /// Flushes the file system, as a copy does. Returns false if that takes longer than `within`: others may have more
    /// data to flush than a probe can wait for.
    pub(super) fn flush(&self, within: Duration) -> io::Result<bool> {
        let directory = self.directory.try_clone()?;
        let (told, result) = mpsc::channel();
        // A flush cannot be interrupted, so its thread is left running when the time is up.
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

/// Most bytes that trials may occupy, and the length of each writer's file in whole blocks.
fn room(free_bytes: u64, memory: bool) -> (u64, u64) {
    let writers = writers() as u64;
    let (most, longest) =
        if memory { (MEMORY_FILE_BYTES * writers, MEMORY_FILE_BYTES) } else { (ROOM_BYTES, FILE_BYTES) };
    let room_bytes = most.min(free_bytes / ROOM_SHARE);
    let share = longest.min(room_bytes / writers);
    (room_bytes, (share - share % BLOCK_BYTES).max(BLOCK_BYTES))
}

/// Number of writer threads that a copy would have.
pub(super) fn writers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).clamp(2, 8)
}

/// Files that are held open, and their total bytes.
#[derive(Debug, Default)]
struct HeldFiles {
    files: Vec<(File, u64)>,
    bytes: u64,
}

/// Written files that are held open until they are flushed.
#[derive(Debug)]
pub(super) struct Held<'a> {
    pub(super) target: &'a Target,
    kept: Mutex<HeldFiles>,
    /// Most files to hold open.
    most_files: usize,
    direct: bool,
    /// Total time of creating small files in nanoseconds, and their number.
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

    /// Whether one more file of this length from each writer would force some files out before the flush.
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
            // Drop half of them without a flush: the trial is too long for the limit on open files, or for the free
            // space.
            let half = kept.files.len().div_ceil(2);
            let gone: Vec<(File, u64)> = kept.files.drain(..half).collect();
            kept.bytes -= gone.iter().map(|(_, bytes)| bytes).sum::<u64>();
            drop(kept);
        }
    }

    /// Writes a small file, with the attributes that every file of a copy gets.
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

/// Number of files to hold: half of the limit on open files, within bounds.
fn held_files() -> usize {
    let open = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let open = open.map_or(HELD_FILES, |open| usize::try_from(open).unwrap_or(HELD_FILES));
    (open / 2).clamp(16, HELD_FILES)
}

/// Writes big files one after the other; each thread has its own.
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
                // The file has reached its length; overwrite it from the start.
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

/// Runs the writing trials.
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

/// Bytes written in each step of a trial.
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
    // Data in the disk's own cache counts only once it has left that cache.
    for (file, _) in &held.kept().files {
        rustix::fs::fdatasync(file.as_fd())?;
    }
    let rate = Rate { bytes: blocks * BLOCK_BYTES, items: blocks, seconds: began.elapsed().as_secs_f64() };
    let mut steps: Steps = steps.into_iter().map(AtomicU64::into_inner).collect();
    // The last step is incomplete.
    steps.pop();
    Ok((rate, steps))
}

/// Rates of the first and last third, if the last is much slower.
fn fallen(steps: &[u64]) -> Option<(f64, f64)> {
    let third = steps.len() / 3;
    if third < 3 {
        return None;
    }
    let rate = |steps: &[u64]| steps.iter().sum::<u64>() as f64 / (steps.len() as f64 * STEP.as_secs_f64());
    let (first, last) = (rate(&steps[..third]), rate(&steps[steps.len() - third..]));
    (last < FALLEN * first).then_some((first, last))
}

/// Time limit of the flush after a trial of this length.
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
