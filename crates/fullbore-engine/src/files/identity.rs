//! The identity of a file's state without its content: length, inode and times.
//!
//! The kernel sets the time of a file's last change (ctime) whenever content, mode, owner or names change, and no
//! program can set it. `touch -d` restores only the time of modification. So a file whose identity is unchanged since
//! it was read still has the content that was read, with two exceptions:
//!
//! - A change within one tick of the file system's clock leaves the times as they are.
//!   [`Identity::shows_changes_after`] finds out whether the clock had advanced since the file's last change.
//! - A program may write through a shared mapping. The kernel then sets the times when the page becomes dirty, and next
//!   after its write-back, at most about 35 s later. No system call reveals the writes in between.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// State of a file at one moment. It omits the device number, which for btrfs, LVM and NFS differs after the next boot.
/// Two file systems can have the same inode with the same times to the nanosecond in two cases. One is a clone of the
/// other, and then the file has not changed since. Or a tool made both with fixed times, as in reproducible images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    size: u64,
    inode: u64,
    /// Seconds and nanoseconds since 1970.
    modified: (i64, i64),
    changed: (i64, i64),
}

/// Resolution of times on a file system of this machine: the kernel's tick, 10 ms at most, doubled. Since Linux 6.13
/// the kernel uses finer times for a file whose times were read.
const LOCAL_TICK: Duration = Duration::from_millis(20);

/// Resolution where a file system keeps whole seconds (ext3, ext4 with inodes of 128 bytes) or takes its time from
/// another machine. A guess at how far two clocks set by NTP differ.
const COARSE_TICK: Duration = Duration::from_secs(2);

/// Local file systems whose change times come from this kernel (statfs(2), `linux/magic.h`): ext2 to ext4, XFS, Btrfs,
/// ZFS, F2FS, bcachefs. Not tmpfs: it never writes back, so writes through a mapping never change the times. Nor
/// overlayfs, which may lie on tmpfs.
const LOCAL: [u32; 6] = [0xef53, 0x5846_5342, 0x9123_683e, 0x2fc1_2fc1, 0xf2f5_2010, 0xca45_1a4e];

/// Remote file systems whose servers keep change times: NFS, Ceph. Others, such as SMB, FAT and most FUSE file systems,
/// may copy the change time from the modification time.
const REMOTE: [u32; 2] = [0x6969, 0x00c3_6400];

impl Identity {
    /// Length of [`Identity::to_bytes`], in bytes.
    pub const BYTES: usize = 48;

    /// Takes the identity from a file's metadata.
    pub fn of(about: &Metadata) -> Identity {
        Identity {
            size: about.size(),
            inode: about.ino(),
            modified: (about.mtime(), about.mtime_nsec()),
            changed: (about.ctime(), about.ctime_nsec()),
        }
    }

    /// Encodes the identity in a fixed layout, little-endian.
    pub fn to_bytes(&self) -> [u8; Identity::BYTES] {
        let Identity { size, inode, modified, changed } = *self;
        let words = [
            size.to_le_bytes(),
            inode.to_le_bytes(),
            modified.0.to_le_bytes(),
            modified.1.to_le_bytes(),
            changed.0.to_le_bytes(),
            changed.1.to_le_bytes(),
        ];
        let mut bytes = [0; Identity::BYTES];
        bytes.chunks_exact_mut(8).zip(words).for_each(|(place, word)| place.copy_from_slice(&word));
        bytes
    }

    /// Whether every change of the file after `since` gives it another identity, if it had this identity at `since`.
    pub fn shows_changes_after(&self, since: SystemTime, file: &File) -> bool {
        let Ok(about) = rustix::fs::fstatfs(file) else { return false };
        // The type has more bits than the number on some machines, and is signed on others.
        let Some(tick) = tick(about.f_type as u32) else { return false };
        self.is_older_than(tick, since)
    }

    /// Whether the last change was more than `tick` before `since`.
    fn is_older_than(&self, tick: Duration, since: SystemTime) -> bool {
        let tick = if self.changed.1 == 0 { tick.max(COARSE_TICK) } else { tick };
        let (Ok(seconds), Ok(nanoseconds)) = (u64::try_from(self.changed.0), u32::try_from(self.changed.1)) else {
            return false;
        };
        let changed = UNIX_EPOCH.checked_add(Duration::new(seconds, nanoseconds));
        // The time `since` can be before the file's times if a clock was set back, or is that of a server.
        changed.and_then(|changed| since.duration_since(changed).ok()).is_some_and(|age| age > tick)
    }
}

/// Resolution of the change times of a file system of this type; `None` if they are not reliable.
fn tick(kind: u32) -> Option<Duration> {
    match kind {
        _ if LOCAL.contains(&kind) => Some(LOCAL_TICK),
        _ if REMOTE.contains(&kind) => Some(COARSE_TICK),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed_at(seconds: i64, nanoseconds: i64) -> Identity {
        Identity { size: 1, inode: 2, modified: (3, 4), changed: (seconds, nanoseconds) }
    }

    #[test]
    fn each_part_of_an_identity_counts() {
        let one = changed_at(5, 6);
        let others = [
            Identity { size: 9, ..one },
            Identity { inode: 9, ..one },
            Identity { modified: (9, 4), ..one },
            Identity { modified: (3, 9), ..one },
            Identity { changed: (9, 6), ..one },
            Identity { changed: (5, 9), ..one },
        ];
        for other in others {
            assert!(other != one && other.to_bytes() != one.to_bytes(), "{other:?}");
        }
    }

    #[test]
    fn a_change_within_the_same_tick_would_not_show() {
        let at = |millis: u64| UNIX_EPOCH + Duration::from_millis(millis);
        let exact = changed_at(100, 1);
        let shows = |identity: &Identity, tick, millis| identity.is_older_than(tick, at(millis));
        assert!(!shows(&exact, LOCAL_TICK, 100_000));
        assert!(!shows(&exact, LOCAL_TICK, 100_020));
        assert!(shows(&exact, LOCAL_TICK, 100_021));
        assert!(!shows(&exact, LOCAL_TICK, 99_000), "changed in the future");
        assert!(!shows(&exact, COARSE_TICK, 101_999));
        assert!(shows(&exact, COARSE_TICK, 102_001));
        let whole_seconds = changed_at(100, 0);
        assert!(!shows(&whole_seconds, LOCAL_TICK, 101_999));
        assert!(shows(&whole_seconds, LOCAL_TICK, 102_001));
        assert!(!shows(&changed_at(-5, 1), LOCAL_TICK, 100_000), "before 1970 is no time of a change");
        assert!(!shows(&changed_at(i64::MAX, 1), LOCAL_TICK, 100_000));
    }

    #[test]
    fn only_times_that_the_kernel_keeps_are_relied_on() {
        let (tmpfs, fuse, fat) = (0x0102_1994, 0x6573_5546, 0x4d44);
        for kind in [tmpfs, fuse, fat, 0] {
            assert_eq!(tick(kind), None, "{kind:x}");
        }
        let (ext4, nfs) = (0xef53, 0x6969);
        assert_eq!((tick(ext4), tick(nfs)), (Some(LOCAL_TICK), Some(COARSE_TICK)));
        // A file of proc has times, too.
        let file = File::open("/proc/self/stat").unwrap();
        let identity = Identity::of(&file.metadata().unwrap());
        assert!(!identity.shows_changes_after(SystemTime::now() + Duration::from_secs(60), &file));
    }
}
