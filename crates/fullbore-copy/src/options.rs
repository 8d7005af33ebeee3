//! What a copy shall do; the same at both ends.

use std::time::Duration;

use fullbore_engine::durability::Durability;
use serde::{Deserialize, Serialize};

use crate::chmod::ModeChanges;
use crate::filter::Filters;
use crate::id_map::IdMap;
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

/// Entries of the source that are passed over: what the destination has of them, or has not, stays so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkipRules {
    /// Files that are newer at the destination (`--update`).
    pub newer: bool,
    /// What the destination does not have (`--existing`).
    pub absent: bool,
    /// What the destination has, directories apart (`--ignore-existing`).
    pub present: bool,
    /// Files of more bytes than this (`--max-size`).
    pub above_bytes: Option<u64>,
    /// Files of fewer bytes than this (`--min-size`).
    pub below_bytes: Option<u64>,
}

/// Where what is replaced or deleted goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupSettings {
    /// The directory, if not beside what takes its place. A relative one is so to the destination.
    pub directory: Option<Vec<u8>>,
    /// What is added to names; empty only with a directory.
    pub suffix: Vec<u8>,
}

/// What is told of changed entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Itemize {
    /// Tell changed entries at 1, others as well at 2.
    pub level: u8,
    /// Content goes from this machine to another one.
    pub pushes: bool,
}

impl Itemize {
    /// Whether anything is told.
    pub(crate) fn is_on(self) -> bool {
        self.level > 0
    }
}

/// A hash of whole files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HashKind {
    /// As `sha256sum` has it.
    Sha256,
    /// As `b3sum` has it.
    Blake3,
}

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
    /// Delete before content comes, to make room; then nothing is sent before everything has been listed.
    pub delete_before: bool,
    /// Delete excluded names as well.
    pub delete_excluded: bool,
    /// Delete also if something could not be read, in directories that could.
    pub ignore_errors: bool,
    /// Delete so many names at most; none for no limit.
    pub max_delete: Option<u64>,
    /// Keep what is replaced or deleted.
    pub backup: Option<BackupSettings>,
    /// Directories in which equal files may be that are linked to, instead of being copied. Relative ones are so to the
    /// destination.
    pub link_dest: Vec<Vec<u8>>,
    /// What is passed over.
    pub skip: SkipRules,
    /// Files of the same size are the same, whatever their times.
    pub size_only: bool,
    /// No file is the same because of its size and time.
    pub ignore_times: bool,
    /// What symbolic links lead to is copied in their place.
    pub copy_links: bool,
    /// The paths of sources are kept at the destination.
    pub relative: bool,
    /// Changes of permissions.
    pub chmod: ModeChanges,
    /// Owners and groups that become others.
    pub owners: IdMap,
    /// Tell what changes of each entry, as `rsync -i` does.
    pub itemize: Itemize,
    /// Tell the hashes of all files when the copy is done.
    pub hashes: Option<HashKind>,
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
    /// Whether to keep them of directories, too.
    pub directory_times: bool,
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
