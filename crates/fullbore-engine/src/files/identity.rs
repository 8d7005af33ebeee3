//! What tells one state of a file from its other states, without its content: length, inode and times.
//!
//! The kernel sets the time of a file's last change (ctime) whenever content, mode, owner or names change, and no program
//! can set it. `touch -d` restores the time of modification only. So a file with the identity that it had when it was read
//! has the content that was read, with two exceptions:
//!
//! - A change within one tick of the file system's clock leaves the times as they are. [`Identity::shows_changes_after`]
//!   finds out whether the clock had gone on since the file's last change.
//! - The kernel sets the times of a page that a program writes through a shared mapping when the page becomes dirty, and
//!   next after its write-back, about 35 s later at most. No system call tells of the writes between.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A file as it was at one time. Without the number of the device: for btrfs, LVM and NFS that is another one after the
/// next boot. Two file systems have the same inode with the same times to the nanosecond if one is a clone of the other,
/// and then the file has not changed since; or if a tool made both with fixed times, as reproducible images have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    size: u64,
    inode: u64,
    /// Seconds and nanoseconds since 1970.
    modified: (i64, i64),
    changed: (i64, i64),
}

/// How exactly a file system of this machine knows the time: by the kernel's tick, 10 ms at most, doubled. Since 6.13, the
/// kernel knows better where somebody has looked at the times.
const LOCAL_TICK: Duration = Duration::from_millis(20);

/// The same for a file system that keeps whole seconds (ext3, ext4 with inodes of 128 bytes) or takes its time from another
/// machine: how much two clocks that NTP sets differ is a guess.
const COARSE_TICK: Duration = Duration::from_secs(2);

/// File systems of this machine whose times of change are the kernel's own (statfs(2), `linux/magic.h`): ext2 to ext4, XFS,
/// Btrfs, ZFS, F2FS, bcachefs. Not tmpfs, which never writes back: there, writes through a mapping are never seen. Nor
/// overlayfs, which may lie on it.
const LOCAL: [u32; 6] = [0xef53, 0x5846_5342, 0x9123_683e, 0x2fc1_2fc1, 0xf2f5_2010, 0xca45_1a4e];

/// File systems whose servers keep times of change: NFS, Ceph. Others, such as SMB, FAT and most that run over FUSE, may set
/// the time of change from the time of modification.
const REMOTE: [u32; 2] = [0x6969, 0x00c3_6400];

impl Identity {
    /// Bytes of [`Identity::to_bytes`].
    pub const BYTES: usize = 48;

    /// Reads what the file system says of a file.
    pub fn of(about: &Metadata) -> Identity {
        Identity {
            size: about.size(),
            inode: about.ino(),
            modified: (about.mtime(), about.mtime_nsec()),
            changed: (about.ctime(), about.ctime_nsec()),
        }
    }

    /// All of it, at fixed places.
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

    /// Whether each change of the file after `since`, when it had this identity, gives it another one.
    pub fn shows_changes_after(&self, since: SystemTime, file: &File) -> bool {
        let Ok(about) = rustix::fs::fstatfs(file) else { return false };
        // The type has more bits than the number on some machines, and is signed on others.
        let Some(tick) = tick(about.f_type as u32) else { return false };
        self.is_older_than(tick, since)
    }

    /// Whether the last change was more than a tick before `since`.
    fn is_older_than(&self, tick: Duration, since: SystemTime) -> bool {
        let tick = if self.changed.1 == 0 { tick.max(COARSE_TICK) } else { tick };
        let (Ok(seconds), Ok(nanoseconds)) = (u64::try_from(self.changed.0), u32::try_from(self.changed.1)) else {
            return false;
        };
        let changed = UNIX_EPOCH.checked_add(Duration::new(seconds, nanoseconds));
        // A clock that was set back, or that of a server, can be behind the file's times.
        changed.and_then(|changed| since.duration_since(changed).ok()).is_some_and(|age| age > tick)
    }
}

/// How exactly a file system of this type knows when a file was changed; `None`: nobody can rely on it.
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
