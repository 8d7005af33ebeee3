//! The block device under the destination, and how busy it is.
//!
//! A partition counts as its disk; md, dm and LVM devices are resolved to their members. The busiest member counts,
//! because it holds up the others. File systems without a block device (tmpfs, NFS, FUSE) have none: there, the time in
//! wrapped calls is the signal.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::machine::{Mount, mounts};

/// Maximum number of members. A guard against loops in `/sys`, far above real arrays.
const MEMBERS: usize = 64;

/// Maximum number of times that an overlay or a device name may lead to another.
const HOPS: usize = 4;

/// The devices under a path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Type of the file system, from mountinfo.
    pub file_system: String,
    /// `/sys` directories of the disks, with their names.
    members: Vec<(String, PathBuf)>,
}

/// Counters of one disk (Documentation/block/stat.rst).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStat {
    /// Time with at least one request under way ("io_ticks").
    pub busy_ms: u64,
    /// Bytes written to the device since boot.
    pub written_bytes: u64,
    /// Bytes read from the device since boot.
    pub read_bytes: u64,
    /// Requests under way at this moment.
    pub in_flight: u64,
}

/// Bytes per sector in the kernel's counters, whatever the disk's own size.
const SECTOR_BYTES: u64 = 512;

impl DiskStat {
    /// Parses the text of `/sys/block/NAME/stat`; `None` if it has another form.
    pub fn parse(text: &str) -> Option<DiskStat> {
        let fields: Vec<u64> = text.split_ascii_whitespace().map_while(|field| field.parse().ok()).collect();
        Some(DiskStat {
            read_bytes: fields.get(2)?.saturating_mul(SECTOR_BYTES),
            written_bytes: fields.get(6)?.saturating_mul(SECTOR_BYTES),
            in_flight: *fields.get(8)?,
            busy_ms: *fields.get(9)?,
        })
    }
}

impl Device {
    /// The devices under an existing path.
    pub fn under(path: &Path) -> Device {
        let mounted = mounts(&fs::read("/proc/self/mountinfo").unwrap_or_default());
        let mut path = path.to_owned();
        let mut device = Device::default();
        for _ in 0..HOPS {
            let Ok(metadata) = fs::metadata(&path) else {
                break;
            };
            let number = if metadata.file_type().is_block_device() { metadata.rdev() } else { metadata.dev() };
            let number = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
            let directory = Path::new("/sys/dev/block").join(&number);
            let mount = mount_of(&mounted, mount_id(&path), &number);
            if device.file_system.is_empty()
                && let Some(mount) = mount
            {
                mount.kind.clone_into(&mut device.file_system);
            }
            if directory.exists() {
                device.members = members(&directory);
                break;
            }
            // btrfs and overlay have no device number of a disk; the mount shows the device below.
            let Some(mount) = mount else { break };
            let upper = mount.options.split(',').find_map(|option| option.strip_prefix("upperdir="));
            path = match upper {
                Some(upper) => PathBuf::from(upper),
                None if mount.source.starts_with("/dev/") => PathBuf::from(&mount.source),
                None => break,
            };
        }
        device
    }

    /// Whether there is a disk whose counters can be read.
    pub fn is_known(&self) -> bool {
        !self.members.is_empty()
    }

    /// Whether any disk is rotational, according to the kernel.
    pub fn is_rotational(&self) -> bool {
        self.members.iter().any(|(_, directory)| {
            let is_made_of_others =
                fs::read_dir(directory.join("slaves")).is_ok_and(|mut slaves| slaves.next().is_some());
            // Virtual disks claim to be rotational, whatever lies beneath.
            let is_virtual = directory.to_string_lossy().contains("/virtio");
            let text = || fs::read_to_string(directory.join("queue/rotational"));
            !is_made_of_others && !is_virtual && text().is_ok_and(|text| text.trim() == "1")
        })
    }

    /// Directories of the disks in `/sys`: first the device of the file system, then its members.
    pub fn directories(&self) -> impl Iterator<Item = &Path> {
        self.members.iter().map(|(_, directory)| directory.as_path())
    }

    /// Names and present counters of the disks.
    pub fn reading(&self) -> Vec<(String, DiskStat)> {
        self.members
            .iter()
            .filter_map(|(name, directory)| {
                let text = fs::read_to_string(directory.join("stat")).ok()?;
                Some((name.clone(), DiskStat::parse(&text)?))
            })
            .collect()
    }
}

/// Number of the mount that contains a path (`mnt_id` in proc_pid_fdinfo(5)).
fn mount_id(path: &Path) -> Option<u64> {
    use std::os::fd::AsRawFd as _;
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
    let descriptor = rustix::fs::open(path, flags, rustix::fs::Mode::empty()).ok()?;
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd())).ok()?;
    text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())
}

/// The mount of this device number; otherwise the mount with this id. Each subvolume of btrfs has a device number of
/// its own, which no mount has.
fn mount_of<'a>(mounted: &'a [Mount], id: Option<u64>, device: &str) -> Option<&'a Mount> {
    let by_device = mounted.iter().find(|mount| mount.device == device);
    by_device.or_else(|| mounted.iter().find(|mount| Some(mount.id) == id))
}

/// The disk of a `/sys` block directory, and all its members.
fn members(directory: &Path) -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        let Ok(mut directory) = directory.canonicalize() else {
            continue;
        };
        if directory.join("partition").exists() {
            directory.pop();
        }
        let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if found.len() >= MEMBERS || found.iter().any(|(_, known)| *known == directory) {
            continue;
        }
        if let Ok(slaves) = fs::read_dir(directory.join("slaves")) {
            open.extend(slaves.flatten().map(|slave| slave.path()));
        }
        found.push((name, directory));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;

    use super::*;

    const STAT: &str = "   88024    11124  5230610   109834    40835    32022  7338392    29494        3    30252   146714    12082        7  1961264     7225     5213      160\n";

    #[test]
    fn busy_time_and_written_bytes_are_where_the_kernel_documents_them() {
        let stat = DiskStat::parse(STAT).expect("a captured line");
        assert_eq!(stat.busy_ms, 30_252);
        assert_eq!(stat.written_bytes, 7_338_392 * 512);
        assert_eq!(stat.in_flight, 3);
        assert_eq!(DiskStat::parse("1 2 3"), None);
    }

    #[test]
    fn arrays_are_looked_through_and_partitions_belong_to_their_disk() {
        // dm-0 on md0, md0 on sda1 and sdb1, as with LVM on a mirror.
        let root = tempfile::tempdir().expect("a directory");
        let root = root.path().canonicalize().expect("it exists");
        let make = |path: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.join("slaves")).expect("made");
            path
        };
        let (dm, md) = (make("dm-0"), make("md0"));
        let (sda, sdb) = (make("sda"), make("sdb"));
        for (disk, partition) in [("sda", make("sda/sda1")), ("sdb", make("sdb/sdb1"))] {
            fs::write(partition.join("partition"), "1").expect("written");
            fs::write(root.join(disk).join("stat"), STAT).expect("written");
            symlink(&partition, md.join("slaves").join(partition.file_name().expect("named"))).expect("linked");
        }
        symlink(&md, dm.join("slaves/md0")).expect("linked");
        let mut found: Vec<PathBuf> = members(&dm).into_iter().map(|(_, path)| path).collect();
        found.sort();
        assert_eq!(found, [dm, md, sda, sdb]);
        let device = Device { file_system: "ext4".into(), members: members(&root.join("dm-0")) };
        assert_eq!(device.reading().len(), 2, "only those with counters are read");
    }

    #[test]
    fn an_array_has_an_arm_if_one_of_its_disks_has() {
        let root = tempfile::tempdir().expect("a directory");
        let root = root.path().canonicalize().expect("it exists");
        let disk = |path: &str, rotational: &str| {
            fs::create_dir_all(root.join(path).join("queue")).expect("made");
            fs::write(root.join(path).join("queue/rotational"), rotational).expect("written");
        };
        disk("sda", "1\n");
        disk("sdb", "0\n");
        disk("virtio1/vda", "1\n");
        // A cache says of itself what its fast part is.
        disk("dm-0", "0\n");
        fs::create_dir(root.join("dm-0/slaves")).expect("made");
        for slave in ["sda", "sdb"] {
            symlink(root.join(slave), root.join("dm-0/slaves").join(slave)).expect("linked");
        }
        for (name, rotational) in [("sda", true), ("sdb", false), ("virtio1/vda", false), ("dm-0", true)] {
            let device = Device { file_system: String::new(), members: members(&root.join(name)) };
            assert_eq!(device.is_rotational(), rotational, "{name}");
        }
        assert!(!Device::default().is_rotational());
    }

    #[test]
    fn a_subvolume_is_found_by_its_mount_though_its_device_number_is_made_up() {
        // As captured: stat(2) says 0:40 at the top of this btrfs, and 0:41 in a subvolume of it.
        let mounted = b"27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
                       44 27 0:39 / /srv rw,relatime - btrfs /dev/sdb1 rw,subvolid=5,subvol=/\n";
        let mounted = mounts(mounted);
        let source = |id, device| mount_of(&mounted, id, device).map(|mount| mount.source.as_str());
        assert_eq!(source(Some(44), "0:41"), Some("/dev/sdb1"));
        assert_eq!(source(Some(27), "254:0"), Some("/dev/vda"));
        assert_eq!(source(None, "254:0"), Some("/dev/vda"));
        assert_eq!(source(None, "0:41"), None);
        let id = mount_id(Path::new("/")).expect("the kernel tells");
        let own = fs::read("/proc/self/mountinfo").expect("there");
        assert!(mounts(&own).iter().any(|mount| mount.id == id && mount.path == Path::new("/")));
    }

    #[test]
    fn a_loop_in_the_tree_ends() {
        let root = tempfile::tempdir().expect("a directory");
        let root = root.path().canonicalize().expect("it exists");
        fs::create_dir_all(root.join("a/slaves")).expect("made");
        symlink(root.join("a"), root.join("a/slaves/a")).expect("linked");
        assert_eq!(members(&root.join("a")).len(), 1);
    }

    #[test]
    fn this_machine_answers_without_failing() {
        let device = Device::under(Path::new("/"));
        assert_eq!(device.is_known(), !device.members.is_empty());
        device.reading();
        assert!(!Device::under(Path::new("/proc")).is_known());
        assert_eq!(Device::under(Path::new("/no/such/path")), Device::default());
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "[0-9 a-z-]{0,200}") {
            DiskStat::parse(&text);
        }
    }
}
