//! Facts about this machine from the kernel: the id of the boot, and the mounts.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The kernel's id of this boot (random(4)); empty where it is not available, as in some containers.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map_or_else(|_| String::new(), |id| id.trim().to_owned())
}

/// Time since the machine started, including time suspended. An `Instant` does not count suspended time on Linux.
pub fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// A mount as in `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Number of the mount, as in `/proc/self/fdinfo`.
    pub id: u64,
    /// `MAJOR:MINOR` of the device, as in `st_dev` of its files. It is the same for all mounts of one file system.
    pub device: String,
    /// Directory of the file system that is mounted.
    pub root: String,
    /// Path of the mount point, absolute.
    pub path: PathBuf,
    /// Type of the file system, such as `ext4`.
    pub kind: String,
    /// Mounted device or remote directory, as in mountinfo.
    pub source: String,
    /// Options of the file system, not of this mount.
    pub options: String,
}

impl Mount {
    /// Whether the file system is mounted with this option.
    pub fn has_option(&self, option: &str) -> bool {
        self.options.split(',').any(|own| own == option)
    }

    /// Parses `ID PARENT MAJOR:MINOR ROOT PATH OPTIONS [FIELD…] - KIND SOURCE SUPEROPTIONS`.
    fn parse(line: &[u8]) -> Option<Mount> {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let dash = fields.iter().position(|field| *field == b"-")?;
        let text = |place: usize| fields.get(place).map(|field| String::from_utf8_lossy(field).into_owned());
        Some(Mount {
            id: text(0)?.parse().ok()?,
            device: text(2)?,
            root: text(3)?,
            path: PathBuf::from(OsString::from_vec(unescape(fields.get(4)?))),
            kind: text(dash + 1)?,
            source: text(dash + 2)?,
            options: text(dash + 3).unwrap_or_default(),
        })
    }
}

/// Parses a table of mounts; malformed lines are skipped. Of two mounts on one path, the later one is on top.
pub fn mounts(table: &[u8]) -> Vec<Mount> {
    table.split(|byte| *byte == b'\n').filter_map(Mount::parse).collect()
}

/// Decodes a field: the kernel writes space, tab, newline and backslash as a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let (mut plain, mut at) = (Vec::with_capacity(field.len()), 0);
    while let Some(byte) = field.get(at) {
        let digits = field.get(at + 1..at + 4).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(escaped) if *byte == b'\\' => {
                plain.push(escaped);
                at += 4;
            }
            _ => {
                plain.push(*byte);
                at += 1;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn lines_of_mountinfo_are_read() {
        let table = br"36 35 98:0 /mnt1 /mnt\0402 ro,noatime master:1 x:2 - ext4 /dev/root rw,errors=continue
1 2 3

44 27 0:39 /@home /home rw - btrfs /dev/sdb1 ro";
        let [mount, home] = &mounts(table)[..] else { panic!("two mounts") };
        assert_eq!((mount.id, mount.device.as_str(), mount.root.as_str()), (36, "98:0", "/mnt1"));
        assert_eq!(
            (mount.path.as_path(), mount.kind.as_str(), mount.source.as_str()),
            (Path::new("/mnt 2"), "ext4", "/dev/root")
        );
        assert!(mount.has_option("rw") && !home.has_option("rw") && !mount.has_option("noatime"));
    }
}
