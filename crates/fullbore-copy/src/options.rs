//! Options of a copy, the same at both ends.

use std::time::Duration;

use fullbore_engine::durability::Durability;
use serde::{Deserialize, Serialize};

use crate::chmod::ModeChanges;
use crate::filter::Filters;
use crate::id_map::IdMap;
pub use crate::sender::compress::Compress;

/// Longest time between two groups of finished files, in milliseconds: what a crash loses of small files. Not shorter,
/// as one flush of a file system costs more than most files.
pub const GROUP_TIME_MS: u64 = 10_000;
/// Bytes written since the last group after which the next group of files gets its names.
pub(crate) const GROUP_BYTES: u64 = 1 << 30;
/// Smallest group of files, in bytes, once [`GROUP_WORTH_TIME`] has passed since the last one. On its own, the kernel
/// gathers gigabytes before it gives a disk anything.
pub(crate) const GROUP_WORTH_BYTES: u64 = 16 << 20;
/// Time after which a group of [`GROUP_WORTH_BYTES`] gets its names.
pub(crate) const GROUP_WORTH_TIME: Duration = Duration::from_secs(1);

/// Rules for entries of the source that the copy skips. The destination keeps its state for them, present or absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkipRules {
    /// Skip files that are newer at the destination (`--update`).
    pub newer: bool,
    /// Skip entries that the destination does not have (`--existing`).
    pub absent: bool,
    /// Skip entries that the destination has, except directories (`--ignore-existing`).
    pub present: bool,
    /// Skip files larger than this, in bytes (`--max-size`).
    pub above_bytes: Option<u64>,
    /// Skip files smaller than this, in bytes (`--min-size`).
    pub below_bytes: Option<u64>,
}

/// Where replaced and deleted files go (`--backup`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupSettings {
    /// The backup directory (`--backup-dir`); `None` keeps each backup beside its replacement. A relative path is
    /// relative to the destination.
    pub directory: Option<Vec<u8>>,
    /// Suffix that backups get (`--suffix`). Empty only with a directory.
    pub suffix: Vec<u8>,
}

/// Which entries the copy reports, as `rsync -i` does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Itemize {
    /// 0 reports nothing, 1 changed entries, 2 unchanged entries as well.
    pub level: u8,
    /// Whether content goes from this machine to another one; selects `<` or `>` in the report.
    pub pushes: bool,
}

impl Itemize {
    /// Whether entries are reported at all.
    pub(crate) fn is_on(self) -> bool {
        self.level > 0
    }
}

/// The algorithm of the hash list that a copy can write (`--hash-list`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HashKind {
    /// SHA-256, as `sha256sum` prints it.
    Sha256,
    /// BLAKE3, as `b3sum` prints it.
    Blake3,
}

/// The user's options for a copy, as far as the far end needs them.
///
/// By default a copy keeps all attributes of a file, deletes nothing and syncs once at the end.
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
    /// Delete entries that the source does not have, after a copy without errors.
    pub delete: bool,
    /// Delete before content arrives, to free space. The sender then waits until everything has been listed.
    pub delete_before: bool,
    /// Delete entries that a filter excludes as well (`--delete-excluded`).
    pub delete_excluded: bool,
    /// Delete even if some of the source could not be read (`--ignore-errors`). Directories that could not be read stay
    /// untouched.
    pub ignore_errors: bool,
    /// Most names to delete; `None` for no limit.
    pub max_delete: Option<u64>,
    /// Keep replaced and deleted files.
    pub backup: Option<BackupSettings>,
    /// Directories that may have equal files (`--link-dest`). The copy links to those instead of copying. Relative
    /// paths are relative to the destination.
    pub link_dest: Vec<Vec<u8>>,
    /// Rules for entries that the copy skips.
    pub skip: SkipRules,
    /// Treat files of the same size as equal, whatever their times (`--size-only`).
    pub size_only: bool,
    /// Treat no file as equal because of its size and time (`--ignore-times`).
    pub ignore_times: bool,
    /// Copy the targets of symbolic links instead of the links.
    pub copy_links: bool,
    /// Keep the paths of sources below the destination (`--relative`).
    pub relative: bool,
    /// Changes of permissions (`--chmod`).
    pub chmod: ModeChanges,
    /// Changed owners and groups (`--usermap`, `--groupmap`, `--chown`).
    pub owners: IdMap,
    /// Report the changes of each entry, as `rsync -i` does.
    pub itemize: Itemize,
    /// Write the hashes of all files when the copy is done.
    pub hashes: Option<HashKind>,
    /// Keep numeric owners and groups instead of mapping them by name.
    pub numeric_ids: bool,
    /// Whether to keep owners (`--owner`).
    pub owner: bool,
    /// Whether to keep groups (`--group`).
    pub group: bool,
    /// Whether to keep permission bits (`--perms`).
    pub permissions: bool,
    /// Whether to keep modification times (`--times`).
    pub times: bool,
    /// Whether to keep modification times of directories, too.
    pub directory_times: bool,
    /// Keep extended attributes other than ACLs.
    pub xattrs: bool,
    /// Whether to keep access control lists (`--acls`).
    pub acls: bool,
    /// Whether to keep hard links among copied files.
    pub hard_links: bool,
    /// Create devices, named pipes and sockets.
    pub specials: bool,
    /// Stay on the file system of each source.
    pub one_file_system: bool,
    /// Whether to descend into directories (`--recursive`).
    pub recursive: bool,
    /// Report files to the sender once they are visible and on the disk, so that it removes them.
    pub remove_source_files: bool,
    /// Compare files of the same length by their content, whatever their times.
    pub checksum: bool,
    /// Send only the parts of a file that differ from the old file at the destination. Pays between machines.
    pub delta: bool,
    /// When to compress content between machines.
    pub compress: Compress,
    /// Read back written data from the device and compare it.
    pub verify: bool,
    /// Report the names of files whose content is transferred.
    pub tell_names: bool,
    /// Rules that decide which names are copied.
    pub filters: Filters,
    /// When data has to be on the disk.
    pub durability: Durability,
    /// Longest time, in milliseconds, until finished files get their names and unfinished ones a checkpoint.
    pub group_time_ms: u64,
    /// Most threads that read or write; 0 chooses by disk and cores.
    pub threads: usize,
    /// Limit of the content rate in bytes per second; 0 for no limit.
    pub limit_bytes_per_s: u64,
    /// Name of the congestion control for connections. `None` keeps the system's default, and tries another one if loss
    /// suggests it.
    pub congestion: Option<String>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            dry_run: false,
            delete: false,
            delete_before: false,
            delete_excluded: false,
            ignore_errors: false,
            max_delete: None,
            backup: None,
            link_dest: Vec::new(),
            skip: SkipRules::default(),
            size_only: false,
            ignore_times: false,
            copy_links: false,
            relative: false,
            chmod: ModeChanges::default(),
            owners: IdMap::default(),
            itemize: Itemize::default(),
            hashes: None,
            numeric_ids: false,
            owner: true,
            group: true,
            permissions: true,
            times: true,
            directory_times: true,
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
