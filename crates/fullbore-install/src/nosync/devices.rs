//! Block devices that the command wrote to directly, for example with `dd`.
//!
//! The kernel's counters tell which devices were written. When the last descriptor of a device is closed, the kernel
//! writes it out and reports no errors. These devices are synced through descriptors opened at the end: an earlier one
//! would keep the device busy, so that the command could not detach a loop device or reread a partition table. A
//! descriptor opened later still receives errors that no other sync has reported (errseq_t in the kernel's
//! documentation), and no sync under the filter reports any.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::disks;

/// Directory of all block devices and partitions.
const ALL: &str = "/sys/class/block";

/// Non-blocking: a drive may be without a medium.
const OPEN: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Written sectors by device name.
#[derive(Debug)]
pub(super) struct Devices(HashMap<OsString, u64>);

impl Devices {
    pub(super) fn read() -> Devices {
        let all = fs::read_dir(ALL).into_iter().flatten().flatten();
        Devices(all.filter_map(|entry| Some((entry.file_name(), written(&entry.file_name())?))).collect())
    }

    /// Syncs devices written since, except those with a mounted file system, which is synced as such, and parts of
    /// other devices. Returns the failures. A device that this user may not open could not be written by the command
    /// either.
    pub(super) fn sync(&self, told: &mut dyn FnMut(&Path)) -> Vec<(PathBuf, io::Error)> {
        let devices: Vec<(PathBuf, File)> =
            Devices::read().written_since(self).filter_map(|name| open_free(&name)).collect();
        let syncing = |(_, device): &(PathBuf, File)| rustix::fs::fsync(device).map_err(io::Error::from);
        let results = disks::side_by_side(&devices, syncing, disks::NOTICE_INTERVAL, &mut |(path, _)| told(path));
        let named = devices.into_iter().zip(results);
        named.filter_map(|((path, _), result)| Some((path, result.err()?))).collect()
    }

    /// Devices written after `before`. A smaller number means another device of the same name.
    fn written_since(self, before: &Devices) -> impl Iterator<Item = OsString> {
        let is_other = |(name, sectors): &(OsString, u64)| *sectors != before.0.get(name).copied().unwrap_or(0);
        self.0.into_iter().filter(|(_, sectors)| *sectors > 0).filter(is_other).map(|(name, _)| name)
    }
}

/// Written sectors: the seventh field of `stat` (Documentation/block/stat.rst).
fn written(name: &OsStr) -> Option<u64> {
    let stat = fs::read_to_string(Path::new(ALL).join(name).join("stat")).ok()?;
    stat.split_whitespace().nth(6)?.parse().ok()
}

/// Opens a device if it exists and is not in use.
fn open_free(name: &OsStr) -> Option<(PathBuf, File)> {
    let number = fs::read_to_string(Path::new(ALL).join(name).join("dev")).ok()?;
    // /sys replaces slashes in names.
    let path = Path::new("/dev").join(name.to_str()?.replace('!', "/"));
    let device = File::from(rustix::fs::open(&path, OPEN, Mode::empty()).ok()?);
    let about = device.metadata().ok()?;
    let is_it = about.file_type().is_block_device() && disks::device(about.rdev()) == number.trim();
    // The kernel refuses this while the device is mounted, used for swap, or part of another device (open(2)).
    let is_free = is_it && rustix::fs::open(&path, OPEN | OFlags::EXCL, Mode::empty()).is_ok();
    is_free.then_some((path, device))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_written_is_left_alone() {
        let devices =
            |counts: &[(&str, u64)]| Devices(counts.iter().map(|(name, count)| ((*name).into(), *count)).collect());
        let now = devices(&[("same", 8), ("more", 9), ("new", 1), ("unused", 0), ("other", 3)]);
        let before = devices(&[("same", 8), ("more", 8), ("gone", 5), ("other", 4)]);
        let mut written: Vec<OsString> = now.written_since(&before).collect();
        written.sort();
        assert_eq!(written, ["more", "new", "other"]);
    }

    #[test]
    fn devices_of_this_machine_are_counted() {
        let devices = Devices::read();
        assert!(devices.0.keys().all(|name| Path::new(ALL).join(name).exists()));
        assert!(devices.0.values().any(|sectors| *sectors > 0), "needs a machine with a disk");
    }
}
