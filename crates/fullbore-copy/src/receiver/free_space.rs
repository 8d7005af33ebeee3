//! Checks that everything fits: before the first byte, and as further entries are listed.
//!
//! Needed and free space are compared for each file system of the destination. A file that replaces another needs space
//! while the old one exists. At most one group of files is in that state at a time (see `commit`). So the extra space
//! is bounded by the group and the largest old file.
//!
//! A file's share counts as used once the file is opened, as its file system reserves the space then. So open files
//! count once. Files whose space cannot be reserved count slightly less than they need.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use fullbore_engine::temporary;
use rustix::fs::{AtFlags, Mode, StatVfs, StatxFlags};

use super::partial;
use super::tree::Folder;
use crate::names;
use crate::options::GROUP_BYTES;

/// Assumed allocation unit in bytes, if a file system does not tell.
const BLOCK_BYTES: u64 = 4096;

/// A file system of the destination.
#[derive(Debug)]
pub(super) struct FileSystem {
    /// Its device number.
    pub(super) device: u64,
    /// A directory on it, opened before anything was written.
    pub(super) directory: OwnedFd,
    /// Its mount number (see `journal::Header::mount`).
    pub(super) mount: u64,
    /// Announced bytes that have been used since.
    taken_bytes: AtomicU64,
    taken_replaced_bytes: AtomicU64,
    taken_inodes: AtomicU64,
    /// Cached result of [`FileSystem::user_of_new_files`].
    user_of_new_files: OnceLock<Option<u32>>,
}

impl FileSystem {
    pub(super) fn new(device: u64, directory: OwnedFd) -> FileSystem {
        let (taken_bytes, taken_replaced_bytes, taken_inodes) = Default::default();
        let mount = mount(&directory).unwrap_or(0);
        FileSystem {
            device,
            directory,
            mount,
            taken_bytes,
            taken_replaced_bytes,
            taken_inodes,
            user_of_new_files: OnceLock::new(),
        }
    }

    /// Counts an announced file as used when it is about to be made.
    pub(super) fn take(&self, share: Share) {
        self.taken_bytes.fetch_add(share.bytes, Ordering::AcqRel);
        self.taken_replaced_bytes.fetch_add(share.replaced_bytes, Ordering::AcqRel);
        self.taken_inodes.fetch_add(share.inodes, Ordering::AcqRel);
    }

    /// The owner of files that we create. It is not always this user: FAT and CIFS give all files to one user, and NFS
    /// may map root to nobody. `None` if no file can be created in this directory.
    pub(super) fn user_of_new_files(&self, folder: &Folder) -> Option<u32> {
        *self.user_of_new_files.get_or_init(|| {
            let name = names::part(temporary::unforeseen().as_bytes());
            let trial = partial::create(folder, &name, Mode::RUSR | Mode::WUSR).ok()?;
            let _ = folder.unlink(&name);
            rustix::fs::fstat(&trial).ok().map(|status| status.st_uid)
        })
    }

    fn status(&self) -> Option<StatVfs> {
        rustix::fs::fstatvfs(&self.directory).ok()
    }
}

/// The mount number of a directory, which is unique while the kernel runs. Linux before 6.8 has none: a disk that is
/// attached again may get its old number.
fn mount(directory: &OwnedFd) -> Option<u64> {
    /// `STATX_MNT_ID_UNIQUE` (statx(2)).
    const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
    let status = rustix::fs::statx(directory, "", AtFlags::EMPTY_PATH, UNIQUE).ok()?;
    (status.stx_mask & UNIQUE.bits() != 0).then_some(status.stx_mnt_id)
}

/// What a new file adds to the use of its file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    bytes: u64,
    replaced_bytes: u64,
    inodes: u64,
}

/// Existing data for a wanted file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExistingFile {
    /// Bytes allocated to the file that it replaces.
    pub(super) old_bytes: Option<u64>,
    /// Bytes that an earlier run left of it.
    pub(super) left_bytes: Option<u64>,
}

/// The space needed on all file systems of the destination.
#[derive(Debug, Default)]
pub(super) struct FreeSpace {
    /// Longest name that the destination's file system supports, in bytes.
    pub(super) longest_name: Option<u64>,
    needs: HashMap<u64, Needs>,
}

/// The space needed on one file system.
#[derive(Debug)]
struct Needs {
    file_system: Arc<FileSystem>,
    block_bytes: u64,
    growth_bytes: u64,
    replaced_bytes: u64,
    largest_replaced_bytes: u64,
    inodes: u64,
}

/// The resource that is short.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Shortage {
    Bytes { needed: u64, free: u64 },
    Inodes { needed: u64, free: u64 },
}

impl FreeSpace {
    pub(super) fn of(root: &Folder) -> FreeSpace {
        let longest_name = root.file_system.status().map(|status| status.f_namemax).filter(|longest| *longest > 0);
        FreeSpace { longest_name, needs: HashMap::new() }
    }

    /// Adds a wanted file in this directory.
    pub(super) fn add_file(&mut self, folder: &Folder, bytes: u64, there: ExistingFile) -> Share {
        let file_system = &folder.file_system;
        let needs = self.needs.entry(file_system.device).or_insert_with(|| Needs {
            file_system: file_system.clone(),
            block_bytes: file_system.status().map_or(BLOCK_BYTES, |status| status.f_frsize.max(1)),
            growth_bytes: 0,
            replaced_bytes: 0,
            largest_replaced_bytes: 0,
            inodes: 0,
        });
        let (old, left) = (there.old_bytes.unwrap_or(0), there.left_bytes.unwrap_or(0));
        let new = bytes.div_ceil(needs.block_bytes).saturating_mul(needs.block_bytes);
        let is_new = there.old_bytes.is_none() && there.left_bytes.is_none();
        let bytes = new.saturating_sub(old).saturating_sub(left);
        let share = Share { bytes, replaced_bytes: old, inodes: u64::from(is_new) };
        needs.growth_bytes = needs.growth_bytes.saturating_add(share.bytes);
        needs.replaced_bytes = needs.replaced_bytes.saturating_add(old);
        needs.largest_replaced_bytes = needs.largest_replaced_bytes.max(old);
        needs.inodes += share.inodes;
        share
    }

    /// The first shortage among the listed entries, if any.
    pub(super) fn shortage(&self) -> Option<Shortage> {
        self.needs.values().find_map(Needs::shortage)
    }
}

impl Needs {
    fn shortage(&self) -> Option<Shortage> {
        // Free space is read first. Space that is used after that makes the check stricter at worst.
        let status = self.file_system.status()?;
        if status.f_blocks == 0 {
            // A file system that reports no sizes, such as ramfs.
            return None;
        }
        let taken = |taken: &AtomicU64| taken.load(Ordering::Acquire);
        let free = status.f_bavail.saturating_mul(status.f_frsize);
        let replaced = self.replaced_bytes.saturating_sub(taken(&self.file_system.taken_replaced_bytes));
        // At most one group of old files waits to be replaced at any time.
        let both = replaced.min(GROUP_BYTES.saturating_add(self.largest_replaced_bytes));
        let needed = self.growth_bytes.saturating_sub(taken(&self.file_system.taken_bytes)).saturating_add(both);
        if needed > free {
            return Some(Shortage::Bytes { needed, free });
        }
        // File systems that create inodes on demand report none.
        let needed = self.inodes.saturating_sub(taken(&self.file_system.taken_inodes));
        let short = status.f_files > 0 && needed > status.f_favail;
        short.then_some(Shortage::Inodes { needed, free: status.f_favail })
    }
}
