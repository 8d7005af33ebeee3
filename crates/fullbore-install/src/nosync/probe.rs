//! Measures the cost of a flush, with a few small synced writes to a nameless file.
//!
//! The file keeps its size: syncing a growing file writes the journal as well and waits for two flushes, and would
//! overestimate dpkg's calls 1.8 times where a flush takes 5 ms. One flush per call gives nine tenths of the saved time
//! there, and a quarter where a flush takes 0.2 ms, because other work takes most of a call. The estimate is so a lower
//! bound (measured, single runs).

use std::fs::File;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

/// Cost of a sync call on a file system, for a file with data to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlushCost {
    /// Mount point of the measured file system.
    pub path: PathBuf,
    /// Device number, as in stat(2).
    pub device: u64,
    /// Median time of `fdatasync` for a file with changed content.
    pub flush: Duration,
}

/// Number of calls. The first is slower on some file systems; the median is not.
const CALLS: usize = 5;

/// Size of each write in bytes: a page.
const BLOCK_BYTES: usize = 4096;

/// Time limit for all calls, for slow disks.
const LONGEST: Duration = Duration::from_secs(1);

/// Whether a filter around this process answers its sync calls: then one succeeds even for a pipe.
pub(super) fn is_answered() -> bool {
    let pipe = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
    pipe.is_ok_and(|(_, writer)| rustix::fs::fsync(&writer).is_ok())
}

/// Measures the file system mounted at `path`, with a file in the first of `directories` that is on it and writable.
/// `None` if there is none, or if [`is_answered`].
pub(super) fn flush_cost(path: &Path, directories: &[&Path]) -> Option<FlushCost> {
    if is_answered() {
        return None;
    }
    let device = std::fs::metadata(path).ok()?.dev();
    let file = [path].iter().chain(directories).find_map(|directory| {
        let is_there = std::fs::metadata(directory).is_ok_and(|directory| directory.dev() == device);
        is_there.then(|| nameless(directory)).flatten()
    })?;
    // From here on the blocks are allocated.
    file.write_all_at(&[1; BLOCK_BYTES * CALLS], 0).and_then(|()| Ok(rustix::fs::fsync(&file)?)).ok()?;
    let flush = median(&mut |call| {
        file.write_all_at(&[2; BLOCK_BYTES], call * BLOCK_BYTES as u64)?;
        Ok(rustix::fs::fdatasync(&file)?)
    })?;
    Some(FlushCost { path: path.to_owned(), device, flush })
}

fn nameless(directory: &Path) -> Option<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR).ok().map(File::from)
}

fn median(flush: &mut dyn FnMut(u64) -> std::io::Result<()>) -> Option<Duration> {
    let begin = Instant::now();
    let mut times = Vec::with_capacity(CALLS);
    for call in 0..CALLS as u64 {
        let start = Instant::now();
        flush(call).ok()?;
        times.push(start.elapsed());
        if begin.elapsed() > LONGEST {
            break;
        }
    }
    times.sort();
    times.get(times.len() / 2).copied()
}
