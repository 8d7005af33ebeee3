//! Estimates the size of a tree that was too large to list in the time.

use std::path::{Path, PathBuf};

use fullbore_engine::machine::mounts;
use serde::{Deserialize, Serialize};

use super::tree::Tree;

/// Least listed directories before the remaining ones are assumed to be similar. Guess.
const ENOUGH_DIRECTORIES: u64 = 16;
/// Disk space of a small file beyond its content, in bytes: half a page.
const SLACK_BYTES: u64 = 2048;

/// The basis of an estimate of a tree's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// The tree is a whole file system, and statvfs(3) reports its total use.
    FileSystem,
    /// The unlisted directories are assumed to be like the listed ones. They have subdirectories that were not seen, so
    /// this underestimates.
    Directories,
}

/// Use of a whole file system, as it reports it (statvfs(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Whole {
    used_bytes: u64,
    /// `None` for file systems that do not count inodes.
    used_inodes: Option<u64>,
}

/// Estimates the totals of a tree from `seen`, with `listed` directories listed and `left` directories left over.
/// `one_device`: all of it is on one file system.
pub(super) fn estimate(seen: &Tree, paths: &[PathBuf], one_device: bool, listed: u64, left: u64) -> Tree {
    let whole = match paths {
        [path] if one_device => whole(path),
        _ => None,
    };
    match whole {
        Some(whole) => by_file_system(seen, whole),
        None if listed >= ENOUGH_DIRECTORIES => by_directories(seen, listed, left),
        None => *seen,
    }
}

/// The use of the file system that is mounted at this path, if its root is.
fn whole(path: &Path) -> Option<Whole> {
    let mounted = std::fs::read("/proc/self/mountinfo").ok()?;
    let point = path.canonicalize().ok()?;
    if !is_whole(&mounted, &point) {
        return None;
    }
    let facts = rustix::fs::statvfs(&point).ok()?;
    Some(Whole {
        used_bytes: facts.f_blocks.saturating_sub(facts.f_bfree).saturating_mul(facts.f_frsize),
        used_inodes: (facts.f_files > 0).then(|| facts.f_files.saturating_sub(facts.f_ffree)),
    })
}

/// Whether the topmost mount at a path shows a whole file system, and not a subdirectory of one.
fn is_whole(mounted: &[u8], point: &Path) -> bool {
    mounts(mounted).iter().rfind(|mount| mount.path == point).is_some_and(|mount| mount.root == "/")
}

fn times(number: u64, factor: f64) -> u64 {
    (number as f64 * factor.max(1.0)) as u64
}

fn by_file_system(seen: &Tree, whole: Whole) -> Tree {
    let entries = (seen.files() + seen.others).max(1);
    let factor = match whole.used_inodes {
        Some(inodes) => inodes as f64 / entries as f64,
        None => whole.used_bytes as f64 / seen.bytes().max(1) as f64,
    };
    let (small_files, small_bytes) = (times(seen.small_files, factor), times(seen.small_bytes, factor));
    // All bytes beyond the small files' belong to big files. A few of them hold most of the bytes, and the scan may
    // have missed them.
    let rest = whole.used_bytes.saturating_sub(small_bytes).saturating_sub(small_files.saturating_mul(SLACK_BYTES));
    Tree {
        small_files,
        small_bytes,
        big_files: times(seen.big_files, factor),
        big_bytes: if seen.big_files > 0 { rest.max(seen.big_bytes) } else { 0 },
        others: times(seen.others, factor),
        estimated_from: Some(Basis::FileSystem),
        ..*seen
    }
}

fn by_directories(seen: &Tree, listed: u64, left: u64) -> Tree {
    let factor = (listed + left) as f64 / listed.max(1) as f64;
    Tree {
        small_files: times(seen.small_files, factor),
        small_bytes: times(seen.small_bytes, factor),
        big_files: times(seen.big_files, factor),
        big_bytes: times(seen.big_bytes, factor),
        others: times(seen.others, factor),
        estimated_from: Some(Basis::Directories),
        ..*seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEN: Tree = Tree {
        small_files: 900,
        small_bytes: 9_000_000,
        big_files: 50,
        big_bytes: 500_000_000,
        others: 50,
        unreadable: 0,
        complete: false,
        estimated_from: None,
        seconds: 3.0,
    };

    #[test]
    fn a_file_system_tells_what_its_tree_holds() {
        let whole = Whole { used_bytes: 100_000_000_000, used_inodes: Some(100_000) };
        let tree = by_file_system(&SEEN, whole);
        assert_eq!((tree.small_files, tree.small_bytes, tree.big_files), (90_000, 900_000_000, 5000));
        assert_eq!(tree.big_bytes, 100_000_000_000 - 900_000_000 - 90_000 * SLACK_BYTES);
        assert_eq!(tree.estimated_from, Some(Basis::FileSystem));
        let tree = by_file_system(&SEEN, Whole { used_bytes: 5_090_000_000, used_inodes: None });
        assert_eq!(tree.small_files, 9000);
        let tree = by_file_system(&SEEN, Whole { used_bytes: 0, used_inodes: Some(0) });
        assert_eq!((tree.files(), tree.bytes()), (SEEN.files(), SEEN.bytes()), "never less than was seen");
    }

    #[test]
    fn directories_that_are_left_are_like_those_that_were_listed() {
        let tree = estimate(&SEEN, &[], false, 100, 300);
        assert_eq!((tree.small_files, tree.big_bytes), (3600, 2_000_000_000));
        assert_eq!((tree.complete, tree.estimated_from), (false, Some(Basis::Directories)));
        assert_eq!(estimate(&SEEN, &[], false, 1, 300), SEEN, "one directory tells nothing of the others");
    }

    #[test]
    fn a_part_of_a_file_system_is_not_taken_for_all_of_it() {
        let mounted = b"27 1 254:0 / / rw - ext4 /dev/vda rw\n\
                       44 27 0:39 /@home /home rw - btrfs /dev/sdb1 rw\n\
                       45 27 8:17 / /srv rw - xfs /dev/sdc1 rw\n";
        let is_whole = |point: &str| is_whole(mounted, Path::new(point));
        assert_eq!(["/", "/home", "/srv", "/srv/data"].map(is_whole), [true, false, true, false]);
        let root = whole(Path::new("/")).map_or(0, |whole| whole.used_bytes);
        assert!(root > 0, "a file system that is in use");
    }
}
