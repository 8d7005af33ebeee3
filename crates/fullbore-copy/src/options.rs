//! What a copy shall do; the same at both ends.

use std::time::Duration;

use fullbore_engine::durability::Durability;
use serde::{Deserialize, Serialize};

use crate::filter::Filters;
pub use crate::sender::compress::Compress;

/// What is lost of small files when a copy is cut, in milliseconds. A flush of a file system costs more than
/// most files do, so not less.
pub const GROUP_TIME_MS: u64 = 10_000;
/// Files get their names when so many bytes were written since the last group ...
pub(crate) const GROUP_BYTES: u64 = 1 << 30;
/// ... or so many, and so long after that: the kernel by itself lets gigabytes gather before it gives a disk anything.
pub(crate) const GROUP_WORTH_BYTES: u64 = 16 << 20;
/// See [`GROUP_WORTH_BYTES`].
pub(crate) const GROUP_WORTH_TIME: Duration = Duration::from_secs(1);

/// What the user asks of a copy, as far as it concerns both ends or the far one.
///
/// The default keeps everything that a file has, deletes nothing and syncs once at the end.
///
/// ```
/// use fullbore_copy::Options;
///
/// let options = Options { delete: true, limit_bytes_per_s: 10_000_000, ..Options::default() };
/// assert!(options.hard_links && !options.dry_run);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// Compare and report, but write nothing.
    pub dry_run: bool,
    /// Delete what the source does not have, after a copy without errors.
    pub delete: bool,
    /// Keep numbers of owners and groups instead of looking for their names.
    pub numeric_ids: bool,
    /// Whether to keep owners (`--owner`).
    pub owner: bool,
    /// Whether to keep groups (`--group`).
    pub group: bool,
    /// Whether to keep permission bits (`--perms`).
    pub permissions: bool,
    /// Whether to keep modification times (`--times`).
    pub times: bool,
    /// Keep extended attributes other than ACLs.
    pub xattrs: bool,
    /// Whether to keep access control lists (`--acls`).
    pub acls: bool,
    /// Whether to keep hard links among copied files.
    pub hard_links: bool,
    /// Make devices, named pipes and sockets.
    pub specials: bool,
    /// Stay on the file system of each source.
    pub one_file_system: bool,
    /// Whether to descend into directories (`--recursive`).
    pub recursive: bool,
    /// Tell the sender which files are visible and on the disk, so that it removes them.
    pub remove_source_files: bool,
    /// Compare files of the same length by their content, whatever their times.
    pub checksum: bool,
    /// Take from an old file at the destination what is the same in the new one; worth it between machines.
    pub delta: bool,
    /// When to compress content between machines.
    pub compress: Compress,
    /// Read back from the device what was written.
    pub verify: bool,
    /// Tell the names of files whose content is wanted.
    pub tell_names: bool,
    /// Rules that decide which names are copied.
    pub filters: Filters,
    /// When data has to be on the disk.
    pub durability: Durability,
    /// Longest time, in milliseconds, until finished files get their names and unfinished ones a checkpoint.
    pub group_time_ms: u64,
    /// Threads that read, or write, at most; 0 for as many as fit.
    pub threads: usize,
    /// Bytes per second, of content; 0 for no limit.
    pub limit_bytes_per_s: u64,
    /// Congestion control of connections, by its name; none for the system's, and another one where loss asks
    /// for it.
    pub congestion: Option<String>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            dry_run: false,
            delete: false,
            numeric_ids: false,
            owner: true,
            group: true,
            permissions: true,
            times: true,
            xattrs: true,
            acls: true,
            hard_links: true,
            specials: true,
            one_file_system: false,
            recursive: true,
            remove_source_files: false,
            checksum: false,
            delta: false,
            compress: Compress::Auto,
            verify: false,
            tell_names: false,
            filters: Filters::default(),
            durability: Durability::AtEnd,
            group_time_ms: GROUP_TIME_MS,
            threads: 0,
            limit_bytes_per_s: 0,
            congestion: None,
        }
    }
}
