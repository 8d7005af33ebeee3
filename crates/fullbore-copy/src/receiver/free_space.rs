//! Whether everything fits, before the first byte and while more is being listed.
//!
//! What is wanted is compared with what is free, on each file system of the destination by itself. A file that
//! replaces another needs its room while the old one is still there; at most one group of files is in that state at a
//! time (see `commit`), so the room for old and new at once is bounded by the group and the largest old file.
//!
//! A file's share counts as taken from when it is opened, as its file system sets the room aside then. So what is
//! open is counted once, and of files whose room cannot be set aside a little less than they will need.

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

/// The unit of room where a file system does not tell, in bytes.
const BLOCK_BYTES: u64 = 4096;

/// A file system of the destination.
#[derive(Debug)]
pub(super) struct FileSystem {
    /// Its number.
    pub(super) device: u64,
    /// A directory in it, opened before anything was written to it.
    pub(super) directory: OwnedFd,
    /// The number of its mount (see `journal::Header::mount`).
    pub(super) mount: u64,
    /// What has been taken of what was announced.
    taken_bytes: AtomicU64,
    taken_replaced_bytes: AtomicU64,
    taken_inodes: AtomicU64,
    /// See [`FileSystem::user_of_new_files`].
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

    /// A file that was announced is about to be made.
    pub(super) fn take(&self, share: Share) {
        self.taken_bytes.fetch_add(share.bytes, Ordering::AcqRel);
        self.taken_replaced_bytes.fetch_add(share.replaced_bytes, Ordering::AcqRel);
        self.taken_inodes.fetch_add(share.inodes, Ordering::AcqRel);
    }

    /// Who owns what we make there. That need not be ourselves: FAT and CIFS give all files to one user, and NFS takes
    /// root for nobody. None if nothing can be made in this directory of it.
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

/// The number of a directory's mount that no other one gets while the kernel runs. Before Linux 6.8 there is none:
/// a disk that comes back may get the number that it had.
fn mount(directory: &OwnedFd) -> Option<u64> {
    /// `STATX_MNT_ID_UNIQUE` (statx(2)).
    const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
    let status = rustix::fs::statx(directory, "", AtFlags::EMPTY_PATH, UNIQUE).ok()?;
    (status.stx_mask & UNIQUE.bits() != 0).then_some(status.stx_mnt_id)
}

/// What a file adds to what its file system holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    bytes: u64,
    replaced_bytes: u64,
    inodes: u64,
}

/// What is there already of a file that is wanted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExistingFile {
    /// What the file that it replaces takes, in bytes.
    pub(super) old_bytes: Option<u64>,
    /// What an earlier run has left of it, in bytes.
    pub(super) left_bytes: Option<u64>,
}

/// What is needed of the destination's file systems.
#[derive(Debug, Default)]
pub(super) struct FreeSpace {
    /// Longest name that the destination itself takes, in bytes.
    pub(super) longest_name: Option<u64>,
    needs: HashMap<u64, Needs>,
}

/// What is needed of one of them.
#[derive(Debug)]
struct Needs {
    file_system: Arc<FileSystem>,
    block_bytes: u64,
    growth_bytes: u64,
    replaced_bytes: u64,
    largest_replaced_bytes: u64,
    inodes: u64,
}

/// What does not fit.
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

    /// A file is wanted in this directory.
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

    /// Whether what has been listed so far fits.
    pub(super) fn shortage(&self) -> Option<Shortage> {
        self.needs.values().find_map(Needs::shortage)
    }
}

impl Needs {
    fn shortage(&self) -> Option<Shortage> {
        // What is free is looked at first: what is taken after that is at worst missed.
        let status = self.file_system.status()?;
        if status.f_blocks == 0 {
            // One that tells no sizes, as ramfs.
            return None;
        }
        let taken = |taken: &AtomicU64| taken.load(Ordering::Acquire);
        let free = status.f_bavail.saturating_mul(status.f_frsize);
        let replaced = self.replaced_bytes.saturating_sub(taken(&self.file_system.taken_replaced_bytes));
        // No more old files than those of a group wait to be replaced at any time.
        let both = replaced.min(GROUP_BYTES.saturating_add(self.largest_replaced_bytes));
        let needed = self.growth_bytes.saturating_sub(taken(&self.file_system.taken_bytes)).saturating_add(both);
        if needed > free {
            return Some(Shortage::Bytes { needed, free });
        }
        // File systems that make inodes as they go have none to count.
        let needed = self.inodes.saturating_sub(taken(&self.file_system.taken_inodes));
        let short = status.f_files > 0 && needed > status.f_favail;
        short.then_some(Shortage::Inodes { needed, free: status.f_favail })
    }
}
