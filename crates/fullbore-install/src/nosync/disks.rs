//! File systems of the final sync, with one descriptor each.
//!
//! They are opened before the command starts: a descriptor reports write errors since it was opened, and misses errors
//! that another sync has reported before that.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use fullbore_engine::machine::{self, Mount};
use rustix::fs::{Access, Mode, OFlags};
use rustix::io::Errno;

use super::kernel;
use super::mounted::MountedDevice;

/// File systems without a disk.
const WITHOUT_DISK: &[&str] = &[
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nsfs",
    "proc",
    "pstore",
    "ramfs",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "sysfs",
    "tmpfs",
    "tracefs",
];

/// Network file systems, except those of NFS and FUSE, which have several names.
const SERVED: &[&str] = &["9p", "afs", "ceph", "cifs", "smb3"];

/// Time limit for opening a network file system. A guess, far above the time of a working server.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval between notices about the file systems that the final sync waits for.
pub(super) const NOTICE_INTERVAL: Duration = Duration::from_secs(30);

/// Number of parallel syncs. A guess: more than the disks of most machines, fewer than the mounts of some.
const CONCURRENT_SYNCS: usize = 16;

/// Directories of a root without files of dpkg: they belong to users and the administrator, or are emptied at boot
/// (hier(7)).
const NOT_DPKGS: [&str; 7] = ["home", "media", "mnt", "root", "run", "srv", "tmp"];

/// Whether a file system that cannot be opened holds no files of dpkg in the root at `below`. Either packages have no
/// files there, or even root may not read it, as with another user's FUSE mount or an NFS server that squashes root.
pub(crate) fn is_beyond_dpkg(below: &Path, path: &Path, error: &io::Error) -> bool {
    let inside = path.strip_prefix(below).ok().and_then(|inside| inside.iter().next());
    error.kind() == io::ErrorKind::PermissionDenied
        || inside.is_some_and(|top| NOT_DPKGS.iter().any(|name| top == *name))
}

/// An open file system.
#[derive(Debug)]
pub(super) struct Disk {
    /// One of its mount points.
    pub path: PathBuf,
    pub device: String,
    directory: File,
}

/// File systems for the final sync.
#[derive(Debug)]
pub(crate) struct Disks {
    pub(super) held: Vec<Disk>,
    /// Writable file systems that cannot be opened: device, mount point, error.
    missed: Vec<(String, PathBuf, io::Error)>,
    /// Whether the mount table is unknown, because there is no `/proc`: then sync(2) writes out all file systems of
    /// the machine.
    is_blind: bool,
}

/// Result of the final sync of all file systems.
#[derive(Debug, Default)]
pub struct SyncReport {
    /// Number of file systems that were synced.
    pub count: usize,
    /// File systems and block devices whose sync failed, or reported a write error since the start.
    pub failed: Vec<(PathBuf, io::Error)>,
    /// File systems mounted since the start. They were synced, but earlier write errors may be lost.
    pub opened_late: Vec<PathBuf>,
    /// File systems not synced, because they cannot be opened.
    pub missed: Vec<(PathBuf, io::Error)>,
    /// File systems that were dead at the start already, and still are.
    pub dead_before: Vec<(PathBuf, io::Error)>,
    /// File systems that cannot be opened and hold no files of dpkg.
    pub beyond: Vec<(PathBuf, io::Error)>,
    /// Whether sync(2) wrote out all file systems of the machine, because there is no `/proc`. It reports errors only
    /// for the root and the working directory.
    pub unseen: bool,
}

impl SyncReport {
    /// Adds the results of another mount namespace; returns the file systems that could not be reached.
    pub(super) fn add(&mut self, results: Vec<(PathBuf, Option<io::Result<()>>)>) -> Vec<PathBuf> {
        let mut out_of_reach = Vec::new();
        for (path, result) in results {
            match result {
                Some(Ok(())) => {
                    self.count += 1;
                    self.opened_late.push(path);
                }
                Some(Err(error)) => self.failed.push((path, error)),
                None => out_of_reach.push(path),
            }
        }
        out_of_reach
    }
}

impl Disks {
    /// Opens each writable file system of this mount namespace; without `/proc` those of the root and of the
    /// working directory.
    pub(super) fn open() -> io::Result<Disks> {
        Disks::open_some(|_| {}, &[Path::new("/"), Path::new(".")])
    }

    /// Opens the file system that holds `below`, a canonical path, and those mounted beneath it; without `/proc`
    /// the first only.
    pub(crate) fn open_below(below: &Path) -> io::Result<Disks> {
        let choose = |mounts: &mut Vec<Mount>| {
            let devices = devices_of(mounts, below);
            mounts.retain(|mount| devices.contains(&mount.device));
        };
        Disks::open_some(choose, &[below])
    }

    fn open_some(choose: impl FnOnce(&mut Vec<Mount>), hidden: &[&Path]) -> io::Result<Disks> {
        let mut disks = Disks { held: Vec::new(), missed: Vec::new(), is_blind: false };
        match mounts("/proc/self/mountinfo") {
            Ok(mut mounts) => {
                choose(&mut mounts);
                disks.open_others(&mounts);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => disks.is_blind = true,
            Err(error) => return Err(error),
        }
        disks.open_hidden(hidden);
        Ok(disks)
    }

    /// Opens file systems that a chroot hides: a root that is not a mount point is missing in the mount table.
    fn open_hidden(&mut self, paths: &[&Path]) {
        for path in paths {
            let Ok(original) = rustix::fs::open(*path, OPEN, Mode::empty()) else { continue };
            let Ok(about) = rustix::fs::fstat(&original) else { continue };
            let device = device(about.st_dev);
            if self.held.iter().any(|disk| disk.device == device) || !has_writable_disk(&original) {
                continue;
            }
            let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
            if let Ok(directory) = hold(&path, original) {
                self.held.push(Disk { path, device, directory });
            }
        }
    }

    /// Opens the file systems of these mounts that are not open yet.
    fn open_others(&mut self, mounts: &[Mount]) {
        for mount in mounts.iter().filter(|mount| is_worth_syncing(mount)) {
            if self.held.iter().any(|disk| disk.device == mount.device) {
                continue;
            }
            match open_in_time(mount) {
                Ok(Some(directory)) => {
                    self.missed.retain(|(device, ..)| *device != mount.device);
                    let (path, device) = (mount.path.clone(), mount.device.clone());
                    self.held.push(Disk { path, device, directory });
                }
                // Another file system is mounted over it; it may have another mount point.
                Ok(None) => {}
                // No path leads to it: another file system is mounted over a directory above it, or that is removed.
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied && is_closed(&mount.path) => {}
                // Such as a socket of this machine in a container: no file can be written through it.
                Err(error) if is_special_file(&mount.path, &error) => {}
                Err(error) => self.missed.push((mount.device.clone(), mount.path.clone(), error)),
            }
        }
    }

    /// Syncs the open file systems. Calls `told` at every interval with each one that it waits for.
    pub(crate) fn sync_held(&mut self, told: &mut dyn FnMut(&Path)) -> SyncReport {
        let missed = self.missed.drain(..).map(|(_, path, error)| (path, error)).collect();
        let mut synced = SyncReport { missed, unseen: self.is_blind, ..SyncReport::default() };
        let syncing = |disk: &Disk| rustix::fs::syncfs(&disk.directory).map_err(io::Error::from);
        let results = side_by_side(&self.held, syncing, NOTICE_INTERVAL, &mut |disk| told(&disk.path));
        for (disk, result) in self.held.iter().zip(results) {
            match result {
                Ok(()) => synced.count += 1,
                Err(error) => synced.failed.push((disk.path.clone(), error)),
            }
        }
        if self.is_blind {
            rustix::fs::sync();
        }
        synced
    }

    /// Syncs all file systems, including those mounted since the start.
    pub(super) fn sync(&mut self, told: &mut dyn FnMut(&Path)) -> SyncReport {
        let before = self.held.len();
        let mut dead_before = Vec::new();
        if let Ok(mounts) = mounts("/proc/self/mountinfo") {
            let missed = std::mem::take(&mut self.missed);
            self.open_others(&mounts);
            let was_dead = |path: &Path| missed.iter().any(|(_, other, error)| *other == path && is_dead(error));
            let (dead, missed) = std::mem::take(&mut self.missed)
                .into_iter()
                .partition(|(_, path, error): &(String, PathBuf, io::Error)| is_dead(error) && was_dead(path));
            self.missed = missed;
            dead_before = dead.into_iter().map(|(_, path, error)| (path, error)).collect();
        }
        let opened_late = self.held.iter().skip(before).map(|disk| disk.path.clone()).collect();
        SyncReport { opened_late, dead_before, ..self.sync_held(told) }
    }

    /// File systems in the mount namespace of process `pid` that are not open.
    pub(super) fn unseen_by(&self, pid: i32) -> Vec<MountedDevice> {
        let mounts = mounts(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
        let is_held = |mount: &Mount| self.held.iter().any(|disk| disk.device == mount.device);
        let unseen = mounts.into_iter().filter(|mount| is_worth_syncing(mount) && !is_held(mount));
        unseen.map(|mount| (mount.device, mount.path)).collect()
    }
}

/// Whether a program or another machine serves it and may not answer.
fn may_hang(mount: &Mount) -> bool {
    SERVED.contains(&mount.kind.as_str()) || mount.kind.starts_with("nfs") || mount.kind.starts_with("fuse")
}

pub(super) fn is_worth_syncing(mount: &Mount) -> bool {
    mount.has_option("rw") && !WITHOUT_DISK.contains(&mount.kind.as_str())
}

/// Non-blocking: the root of a mount may be a pipe.
const OPEN: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Like [`open`], with a time limit for network file systems. After a timeout a thread keeps waiting.
fn open_in_time(mount: &Mount) -> io::Result<Option<File>> {
    if !may_hang(mount) {
        return open(mount);
    }
    let (sender, receiver) = mpsc::channel();
    let mount = mount.clone();
    std::thread::Builder::new().name("mount".to_owned()).spawn(move || sender.send(open(&mount)))?;
    receiver.recv_timeout(OPEN_TIMEOUT).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Runs `work`, which may never end, for each item on threads of its own, up to [`CONCURRENT_SYNCS`] in parallel.
/// Calls `told` with each unfinished item after every interval `every`. Returns the results in order.
pub(super) fn side_by_side<T: Sync>(
    items: &[T],
    work: impl Fn(&T) -> io::Result<()> + Sync,
    every: Duration,
    told: &mut dyn FnMut(&T),
) -> Vec<io::Result<()>> {
    let next = AtomicUsize::new(0);
    let (sender, receiver) = mpsc::channel();
    let worker = |sender: Sender<(usize, io::Result<()>)>| {
        while let Some((number, item)) = items.iter().enumerate().nth(next.fetch_add(1, Ordering::Relaxed)) {
            let _ = sender.send((number, work(item)));
        }
    };
    let mut results: Vec<Option<io::Result<()>>> = items.iter().map(|_| None).collect();
    std::thread::scope(|scope| {
        let start = |_: &usize| {
            let (sender, thread) = (sender.clone(), std::thread::Builder::new().name("sync".to_owned()));
            thread.spawn_scoped(scope, || worker(sender)).is_ok()
        };
        if (0..items.len().min(CONCURRENT_SYNCS)).filter(start).count() == 0 {
            worker(sender.clone());
        }
        drop(sender);
        loop {
            match receiver.recv_timeout(every) {
                Ok((number, result)) => results[number] = Some(result),
                Err(RecvTimeoutError::Timeout) => {
                    items.iter().zip(&results).filter(|(_, result)| result.is_none()).for_each(|(item, _)| told(item));
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    });
    results.into_iter().map(|result| result.unwrap_or_else(|| Err(io::ErrorKind::Other.into()))).collect()
}

/// Opens the root of a mount; `None` if the path leads to another mount.
fn open(mount: &Mount) -> io::Result<Option<File>> {
    let original = rustix::fs::open(&mount.path, OPEN, Mode::empty())?;
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", original.as_raw_fd()))?;
    let id = about.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    if id.is_none_or(|id| id.trim() != mount.id.to_string()) {
        return Ok(None);
    }
    hold(&mount.path, original).map(Some)
}

/// Whether an unprivileged user may not enter the directory. Then no program that he starts can write there, because
/// there are no setuid programs under the filter. Programs of root may become a user who can.
fn is_closed(path: &Path) -> bool {
    !rustix::process::geteuid().is_root() && rustix::fs::access(path, Access::EXEC_OK) == Err(Errno::ACCESS)
}

/// Whether a mount has lost its server: FUSE without its process, or a handle that the server does not know. Nothing
/// can be written there.
fn is_dead(error: &io::Error) -> bool {
    [Errno::NOTCONN, Errno::STALE].iter().any(|dead| error.raw_os_error() == Some(dead.raw_os_error()))
}

/// Whether a mount does not open because its root is a socket or a device, as of a bind mount of one.
fn is_special_file(path: &Path, error: &io::Error) -> bool {
    // Checked only after this error: on a server that hangs, looking at the file would hang too.
    error.raw_os_error() == Some(Errno::NXIO.raw_os_error())
        && path.symlink_metadata().is_ok_and(|status| !status.is_dir() && !status.is_file())
}

/// Opens a copy of the mount if permitted, so that the command can unmount the original and the data is still synced.
/// An unprivileged user cannot unmount it anyway.
fn hold(path: &Path, original: OwnedFd) -> io::Result<File> {
    let Ok(copy) = kernel::copy_of_mount(path) else { return Ok(File::from(original)) };
    match rustix::fs::open(format!("/proc/self/fd/{}", copy.as_raw_fd()), OPEN, Mode::empty()) {
        Ok(copy) => Ok(File::from(copy)),
        // Without /proc the copy cannot be opened.
        Err(Errno::NOENT) => Ok(File::from(original)),
        Err(error) => Err(error.into()),
    }
}

fn has_writable_disk(directory: &OwnedFd) -> bool {
    /// `TMPFS_MAGIC` and `RAMFS_MAGIC`.
    const WITHOUT: [u64; 2] = [0x0102_1994, 0x8584_58f6];
    let kind = rustix::fs::fstatfs(directory).map(|about| about.f_type as u64);
    let flags = rustix::fs::fstatvfs(directory).map(|about| about.f_flag);
    kind.is_ok_and(|kind| !WITHOUT.contains(&kind))
        && flags.is_ok_and(|flags| !flags.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}

pub(super) fn mounts(path: impl AsRef<Path>) -> io::Result<Vec<Mount>> {
    Ok(machine::mounts(&fs::read(path)?))
}

/// Device number in the format of mountinfo.
pub(super) fn device(number: u64) -> String {
    format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number))
}

/// Devices of the file system that holds the canonical path `below`, and of those mounted beneath it.
fn devices_of(mounts: &[Mount], below: &Path) -> Vec<String> {
    // Of two mounts at one mount point the later one is on top.
    let around = mounts.iter().filter(|mount| below.starts_with(&mount.path));
    let holder = around.max_by_key(|mount| mount.path.components().count());
    let beneath = mounts.iter().filter(|mount| mount.path.starts_with(below));
    holder.into_iter().chain(beneath).map(|mount| mount.device.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_disk_is_not_synced_and_what_is_served_may_hang() {
        let mount = |line: &str| machine::mounts(line.as_bytes()).remove(0);
        let disk = mount("36 35 98:0 / /x ro,noatime master:1 x:2 - ext4 /dev/root rw,errors=continue");
        assert!(is_worth_syncing(&disk) && !may_hang(&disk));
        for kind in ["nfs4", "fuse", "fuse.sshfs", "fuseblk", "9p"] {
            assert!(may_hang(&mount(&format!("36 35 0:5 / /x rw - {kind} x rw"))), "{kind}");
        }
        assert!(!is_worth_syncing(&mount("36 35 0:5 / /proc rw - proc proc rw")));
        assert!(!is_worth_syncing(&mount("36 35 7:0 / /x ro - squashfs /dev/loop0 ro")));
    }

    #[test]
    fn the_devices_of_a_directory_are_where_it_is_and_what_is_beneath() {
        let mount = |path: &str, device: &str| Mount {
            id: 1,
            device: device.to_owned(),
            root: "/".to_owned(),
            path: PathBuf::from(path),
            kind: "ext4".to_owned(),
            source: device.to_owned(),
            options: "rw".to_owned(),
        };
        let mounts = [
            mount("/", "8:1"),
            mount("/srv", "8:2"),
            mount("/srv", "8:3"),
            mount("/srv/a/boot", "8:4"),
            mount("/x", "8:5"),
        ];
        assert_eq!(devices_of(&mounts, Path::new("/srv/a")), ["8:3", "8:4"]);
        assert_eq!(devices_of(&mounts, Path::new("/srvx")), ["8:1"]);
    }

    #[test]
    fn only_what_dpkg_can_reach_is_missed_by_it() {
        let is_beyond = |path: &str, kind| is_beyond_dpkg(Path::new("/r"), Path::new(path), &io::Error::from(kind));
        let gone = io::ErrorKind::TimedOut;
        assert!(is_beyond("/r/home/user/far", gone) && is_beyond("/r/srv", gone));
        assert!(!is_beyond("/r/var/lib/home", gone) && !is_beyond("/r", gone) && !is_beyond("/home", gone));
        assert!(is_beyond("/r/opt/far", io::ErrorKind::PermissionDenied));
    }

    #[test]
    fn what_lasts_is_told_of_and_keeps_nobody_waiting() {
        // The first is done when all others are, and was told of.
        let (count, told) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = |number: &usize| {
            while *number == 0
                && (count.load(Ordering::Relaxed) < CONCURRENT_SYNCS + 1 || told.load(Ordering::Relaxed) < 3)
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            count.fetch_add(1, Ordering::Relaxed);
            if number.is_multiple_of(2) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
        };
        let items: Vec<usize> = (0..CONCURRENT_SYNCS + 2).collect();
        let results = side_by_side(&items, work, Duration::from_millis(1), &mut |number| {
            told.fetch_add(usize::from(*number == 0), Ordering::Relaxed);
        });
        let is_right = |(number, result): (usize, &io::Result<()>)| result.is_ok() == number.is_multiple_of(2);
        assert!(results.len() == items.len() && results.iter().enumerate().all(is_right), "{results:?}");
        assert!(side_by_side(&[], |_: &usize| Ok(()), NOTICE_INTERVAL, &mut |_| ()).is_empty());
    }

    #[test]
    fn each_file_system_is_held_once() {
        let disks = Disks::open().unwrap();
        let mut devices: Vec<_> = disks.held.iter().map(|disk| &disk.device).collect();
        devices.sort();
        let count = devices.len();
        devices.dedup();
        assert_eq!(devices.len(), count);
    }
}
