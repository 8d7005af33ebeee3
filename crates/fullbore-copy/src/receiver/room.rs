//! Whether everything fits, before the first byte and while more is being listed.
//!
//! What is wanted is compared with what is free. A file that replaces another needs its room while the
//! old one is still there; at most one group of files is in that state at a time (see `commit`), so the
//! room for old and new at once is bounded by the group and the largest old file.

use super::tree::Tree;

/// See `commit::GROUP_BYTES`: old files that wait to be replaced at any time.
const GROUP_BYTES: u64 = 1 << 30;

/// What is needed of the destination's file system.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Longest name that it takes.
    pub(super) longest_name: Option<u64>,
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

impl Room {
    pub(super) fn of(tree: &Tree) -> Room {
        let file_system = rustix::fs::fstatvfs(tree.root()).ok();
        let longest_name = file_system.as_ref().map(|file_system| file_system.f_namemax).filter(|longest| *longest > 0);
        let block_bytes = file_system.map_or(4096, |file_system| file_system.f_frsize.max(1));
        Room { longest_name, block_bytes, ..Room::default() }
    }

    /// A file is wanted; `old_bytes` are what the one that it replaces takes.
    pub(super) fn add_file(&mut self, bytes: u64, old_bytes: Option<u64>) {
        let new_bytes = bytes.div_ceil(self.block_bytes).saturating_mul(self.block_bytes);
        let old = old_bytes.unwrap_or(0);
        self.growth_bytes = self.growth_bytes.saturating_add(new_bytes.saturating_sub(old));
        self.replaced_bytes = self.replaced_bytes.saturating_add(old);
        self.largest_replaced_bytes = self.largest_replaced_bytes.max(old);
        self.inodes += u64::from(old_bytes.is_none());
    }

    /// A directory, link or device is made.
    pub(super) fn add_entry(&mut self, is_new: bool) {
        self.inodes += u64::from(is_new);
    }

    /// So much of what is wanted is there already, in unfinished files.
    pub(super) fn have(&mut self, bytes: u64) {
        self.growth_bytes = self.growth_bytes.saturating_sub(bytes);
    }

    /// Whether what has been listed so far fits; `written_bytes` of it are there.
    pub(super) fn shortage(&self, tree: &Tree, written_bytes: u64) -> Option<Shortage> {
        let file_system = rustix::fs::fstatvfs(tree.root()).ok()?;
        if file_system.f_blocks == 0 {
            // One that tells no sizes, as ramfs.
            return None;
        }
        let free = file_system.f_bavail.saturating_mul(file_system.f_frsize);
        let both = self.replaced_bytes.min(GROUP_BYTES.saturating_add(self.largest_replaced_bytes));
        let needed = self.growth_bytes.saturating_add(both).saturating_sub(written_bytes);
        if needed > free {
            return Some(Shortage::Bytes { needed, free });
        }
        // File systems that make inodes as they go have none to count.
        let inodes = file_system.f_favail;
        let counted = file_system.f_files > 0 && written_bytes == 0;
        (counted && self.inodes > inodes).then_some(Shortage::Inodes { needed: self.inodes, free: inodes })
    }
}
