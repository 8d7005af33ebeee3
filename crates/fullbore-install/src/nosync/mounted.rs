//! File systems that are mounted while the command runs.
//!
//! They are not kept open: an image built in the run must be complete once the command has unmounted it, and a
//! descriptor would keep it mounted. The kernel writes out unmounted file systems and reports no errors, so they are
//! remembered and named at the end.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use fullbore_engine::machine::{self, Mount};

use super::descendants::Process;
use super::disks;
use super::kernel;

/// Maximum number of remembered mounts. A guess, far above the mounts of builders.
const MOUNTS_MAX: usize = 1000;

/// A file system that is not open: `MAJOR:MINOR` and a mount point.
pub(super) type MountedDevice = (String, PathBuf);

/// File systems mounted since the start.
#[derive(Debug)]
pub(super) struct Mounted {
    /// Mount table, which polls as `PRI` after a change; `None` without `/proc`.
    table: Option<File>,
    /// Devices mounted at the start.
    before: HashSet<String>,
    seen: Vec<MountedDevice>,
}

impl Mounted {
    pub(super) fn watch(before: impl IntoIterator<Item = String>) -> io::Result<Mounted> {
        let table = match File::open("/proc/self/mountinfo") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            opened => Some(opened?),
        };
        Ok(Mounted { table, before: before.into_iter().collect(), seen: Vec::new() })
    }

    /// Descriptor to poll for `PRI`.
    pub(super) fn table(&self) -> Option<BorrowedFd<'_>> {
        self.table.as_ref().map(AsFd::as_fd)
    }

    /// Remembers new mounts of this namespace.
    pub(super) fn refresh(&mut self) -> io::Result<()> {
        let Some(table) = &mut self.table else { return Ok(()) };
        let mut text = Vec::new();
        table.rewind()?;
        table.read_to_end(&mut text)?;
        self.remember(machine::mounts(&text));
        Ok(())
    }

    /// Remembers new mounts in the namespaces of these processes. Mounts that end between two checks are missed.
    pub(super) fn refresh_from(&mut self, processes: &[Process]) {
        for process in other_namespaces(processes) {
            self.remember(disks::mounts(format!("/proc/{}/mountinfo", process.pid)).unwrap_or_default());
        }
    }

    fn remember(&mut self, mounts: Vec<Mount>) {
        for mount in mounts.into_iter().filter(disks::is_worth_syncing) {
            let is_new =
                !self.before.contains(&mount.device) && !self.seen.iter().any(|(known, _)| *known == mount.device);
            if is_new && self.seen.len() < MOUNTS_MAX {
                self.seen.push((mount.device, mount.path));
            }
        }
    }

    /// Mount points of remembered devices other than these.
    pub(super) fn all_but(self, devices: &HashSet<String>) -> Vec<PathBuf> {
        self.seen.into_iter().filter(|(device, _)| !devices.contains(device)).map(|(_, path)| path).collect()
    }
}

/// One process for each other mount namespace.
pub(super) fn other_namespaces(processes: &[Process]) -> Vec<&Process> {
    // The inode is the namespace's number; see namespaces(7).
    let number = |pid: &str| fs::metadata(format!("/proc/{pid}/ns/mnt")).map(|about| about.ino()).ok();
    let mut known: HashSet<u64> = number("self").into_iter().collect();
    processes.iter().filter(|process| number(&process.pid.to_string()).is_some_and(|ino| known.insert(ino))).collect()
}

/// Syncs file systems in the mount namespace of a process; the result is `None` for those that cannot be reached.
pub(super) fn sync_within(pid: i32, places: &[MountedDevice]) -> Vec<(PathBuf, Option<io::Result<()>>)> {
    let sync = || {
        let entered = File::open(format!("/proc/{pid}/ns/mnt")).and_then(|file| kernel::enter_mounts(file.as_fd()));
        let sync_one = |(device, path): &MountedDevice| {
            let directory = entered.as_ref().ok().and_then(|()| File::open(path).ok())?;
            let is_it = directory.metadata().is_ok_and(|about| disks::device(about.dev()) == *device);
            is_it.then(|| rustix::fs::syncfs(&directory).map_err(io::Error::from))
        };
        places.iter().map(|place| (place.1.clone(), sync_one(place))).collect()
    };
    // On a thread of its own, because a thread cannot return to its previous namespace.
    std::thread::scope(|scope| scope.spawn(sync).join().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_before_is_not_new() {
        let before = ["8:1".to_owned()];
        let mut mounted = Mounted::watch(before).unwrap();
        let line = |device: &str, kind: &str, options: &str| {
            format!("36 35 {device} / /mnt/{device} rw,noatime - {kind} /dev/x {options}\n").into_bytes()
        };
        let table = [
            line("8:1", "ext4", "rw"),
            line("7:0", "ext4", "rw"),
            line("7:0", "ext4", "rw"),
            line("7:1", "squashfs", "ro"),
            line("0:50", "tmpfs", "rw"),
            line("7:2", "vfat", "rw"),
        ];
        mounted.remember(machine::mounts(&table.concat()));
        let still_there = HashSet::from(["7:2".to_owned()]);
        assert_eq!(mounted.all_but(&still_there), [PathBuf::from("/mnt/7:0")]);
    }

    #[test]
    fn own_namespace_is_no_other() {
        let own = Process { pid: std::process::id() as i32, name: String::new(), started: 0 };
        assert!(other_namespaces(&[own]).is_empty());
    }
}
