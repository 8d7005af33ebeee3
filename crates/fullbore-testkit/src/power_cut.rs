//! What is left on a disk when the power fails: the writes of a run, replayed up to any point.
//!
//! A disk keeps what was flushed; of what was written after the last flush any part may be
//! there, in any order. A [`BlockLog`] of a [`SlowDisk`](crate::slowdisk::SlowDisk) makes an image of the disk
//! for each such outcome.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::slowdisk::{SlowDiskError, run};

enum Event {
    Write(u64, Vec<u8>),
    Flush,
}

/// Writes and flushes in their order.
pub struct BlockLog {
    base: PathBuf,
    events: Vec<Event>,
}

impl std::fmt::Debug for BlockLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} events on {}", self.events.len(), self.base.display())
    }
}

impl BlockLog {
    pub(crate) fn new(base: &Path) -> BlockLog {
        BlockLog { base: base.to_owned(), events: Vec::new() }
    }

    pub(crate) fn written(&mut self, offset: u64, data: &[u8]) {
        self.events.push(Event::Write(offset, data.to_vec()));
    }

    pub(crate) fn flushed(&mut self) {
        self.events.push(Event::Flush);
    }

    /// How many events there are: points at which the power may fail are 0 up to this.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The points just after a flush.
    pub fn flushes(&self) -> Vec<usize> {
        let flush = |(place, event): (usize, &Event)| matches!(event, Event::Flush).then_some(place + 1);
        self.events.iter().enumerate().filter_map(flush).collect()
    }

    /// Makes the disk as it is when the power fails at this point. Of the writes that no flush has made sure,
    /// those are there for which `survives` says so.
    ///
    /// # Errors
    /// When the image cannot be written.
    pub fn image(&self, point: usize, survives: &mut dyn FnMut() -> bool, to: &Path) -> Result<(), SlowDiskError> {
        // Another file each time: a loop device that is not gone yet may have blocks of the one before in memory.
        let options = ["--remove-destination", "--sparse=always"].map(OsStr::new);
        run("cp", &[options[0], options[1], self.base.as_os_str(), to.as_os_str()])?;
        let failed = |source: io::Error| SlowDiskError::Io { what: "image of the disk", source };
        let image = File::options().write(true).open(to).map_err(failed)?;
        let events = &self.events[..point.min(self.events.len())];
        let sure = events.iter().rposition(|event| matches!(event, Event::Flush)).unwrap_or(0);
        for (place, event) in events.iter().enumerate() {
            if let Event::Write(offset, data) = event
                && (place < sure || survives())
            {
                image.write_all_at(data, *offset).map_err(failed)?;
            }
        }
        Ok(())
    }
}

/// A disk after a power cut, mounted: ext4 has replayed its journal. Unmounted when dropped.
#[derive(Debug)]
pub struct AfterCut {
    mount: PathBuf,
}

impl AfterCut {
    /// Mounts an image.
    ///
    /// # Errors
    /// When the file system cannot be mounted any more.
    pub fn mount(image: &Path, mount: &Path) -> Result<AfterCut, SlowDiskError> {
        std::fs::create_dir_all(mount).map_err(|source| SlowDiskError::Io { what: "mount point", source })?;
        let options = ["-o", "loop,noatime", "-t", "ext4"].map(OsStr::new);
        run("mount", &[options[0], options[1], options[2], options[3], image.as_os_str(), mount.as_os_str()])?;
        Ok(AfterCut { mount: mount.to_owned() })
    }
}

impl Drop for AfterCut {
    fn drop(&mut self) {
        // A process that is just ending may still hold it.
        let _ = run("umount", &["--lazy".as_ref(), self.mount.as_os_str()]);
    }
}
