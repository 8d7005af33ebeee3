//! A quick scan of the source: number of files and bytes, and a sample of files for the trials.
//!
//! The scan lists names and reads attributes, as a copy does, but no content. Memory is bounded for a tree of any size:
//! the scan keeps the largest files, and a uniform random sample of all.

use std::collections::{HashSet, VecDeque};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::extent::{self, Basis};
use crate::error::CopyError;
use crate::wire::SMALL_BYTES;

/// Most files of each kind in the sample: small files that a fast disk reads in one second.
const KEPT_SMALL: usize = 8192;
const KEPT_BIG: usize = 256;
/// Number of the largest big files in the sample: they have most of the bytes.
const KEPT_LARGEST: usize = 64;
/// Most hard-linked files that are recognised; further ones count once per name.
const LINKED: usize = 1 << 20;
/// Names of one directory that are counted at once, which bounds memory for huge directories.
const BATCH_NAMES: usize = 256;

/// Totals of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tree {
    /// Number of files with content below 256 KiB, which a copy packs.
    pub small_files: u64,
    /// Bytes in small files.
    pub small_bytes: u64,
    /// Number of files of 256 KiB and above.
    pub big_files: u64,
    /// Bytes in big files, without holes.
    pub big_bytes: u64,
    /// Number of directories, links and devices.
    pub others: u64,
    /// Number of directories and files that could not be read.
    pub unreadable: u64,
    /// Whether the scan saw the whole tree.
    pub complete: bool,
    /// The basis of the estimate, if the scan did not see the whole tree. The totals are then estimates for the whole;
    /// with `None`, the tree has more than they say.
    #[serde(default)]
    pub estimated_from: Option<Basis>,
    /// Duration of the scan in seconds.
    pub seconds: f64,
}

impl Tree {
    /// Number of files with content.
    pub fn files(&self) -> u64 {
        self.small_files + self.big_files
    }

    /// Bytes of content.
    pub fn bytes(&self) -> u64 {
        self.small_bytes + self.big_bytes
    }

    /// Mean length of the small files in bytes.
    pub(crate) fn small_mean(&self) -> u64 {
        self.small_bytes.checked_div(self.small_files).unwrap_or(0)
    }
}

/// Files for the trials.
#[derive(Debug, Default)]
pub(super) struct Sample {
    pub(super) small: Vec<(PathBuf, u64)>,
    pub(super) big: Vec<(PathBuf, u64)>,
}

/// Scans the trees below these paths with this number of threads until the time is up.
pub(super) fn scan(
    paths: &[PathBuf],
    until: Instant,
    one_file_system: bool,
    threads: usize,
) -> Result<(Tree, Sample), CopyError> {
    let began = Instant::now();
    let mut work = Work::default();
    for path in paths {
        let wrong = |error: std::io::Error| CopyError::Usage(format!("{}: {error}", path.display()));
        let slash = path.as_os_str().as_encoded_bytes().ends_with(b"/");
        let status = if slash { path.metadata() } else { path.symlink_metadata() }.map_err(wrong)?;
        if status.is_dir() {
            std::fs::read_dir(path).map_err(wrong)?;
            work.open.push_back(Directory { path: path.clone(), device: status.dev() });
        } else {
            work.scan.entry(path.clone(), &status);
        }
    }
    let crew = Crew { work: Mutex::new(work), changed: Condvar::new(), until, one_file_system };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| crew.run());
        }
    });
    let Work { mut scan, open, late, listed, unfinished, crossed, .. } =
        crew.work.into_inner().unwrap_or_else(PoisonError::into_inner);
    scan.tree.complete = !late;
    let tree = match late {
        true => extent::estimate(&scan.tree, paths, !crossed, listed, open.len() as u64 + unfinished),
        false => scan.tree,
    };
    let mut big = scan.largest;
    big.append(&mut scan.big);
    big.sort();
    big.dedup();
    Ok((Tree { seconds: began.elapsed().as_secs_f64(), ..tree }, Sample { small: scan.small, big }))
}

/// A directory to list, and the device of the source that it belongs to.
#[derive(Debug)]
struct Directory {
    path: PathBuf,
    device: u64,
}

/// The threads that list directories, and their shared state.
struct Crew {
    work: Mutex<Work>,
    changed: Condvar,
    until: Instant,
    one_file_system: bool,
}

#[derive(Default)]
struct Work {
    scan: Scan,
    /// Directories to list, taken from the front: with too little time, the scan has seen the upper levels of all
    /// branches.
    open: VecDeque<Directory>,
    /// Number of threads that list a directory now.
    busy: usize,
    /// Whether the time is up.
    late: bool,
    /// Number of directories listed completely, and of those that were begun.
    listed: u64,
    unfinished: u64,
    /// Whether the tree crosses into another file system.
    crossed: bool,
}

impl Crew {
    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        while let Some(directory) = self.take() {
            let is_whole = self.list(&directory);
            let mut work = self.lock();
            work.busy -= 1;
            if is_whole {
                work.listed += 1;
            } else {
                (work.late, work.unfinished) = (true, work.unfinished + 1);
            }
            drop(work);
            self.changed.notify_all();
        }
    }

    /// The next directory; `None` when no thread can find more.
    fn take(&self) -> Option<Directory> {
        let mut work = self.lock();
        loop {
            if work.late || work.open.is_empty() && work.busy == 0 {
                return None;
            }
            if let Some(directory) = work.open.pop_front() {
                work.busy += 1;
                return Some(directory);
            }
            work = self.changed.wait(work).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lists one directory; false if the time was up first.
    fn list(&self, directory: &Directory) -> bool {
        if [Path::new("/proc"), Path::new("/sys")].contains(&directory.path.as_path()) {
            return true;
        }
        let Ok(names) = std::fs::read_dir(&directory.path) else {
            self.lock().scan.tree.unreadable += 1;
            return true;
        };
        let mut batch = Vec::with_capacity(BATCH_NAMES);
        for name in names {
            // A single name may take long: a rotational disk has to seek for each.
            if Instant::now() >= self.until {
                self.count(&mut batch, directory.device);
                return false;
            }
            batch.push(name.and_then(|name| Ok((name.path(), name.metadata()?))));
            if batch.len() == BATCH_NAMES {
                self.count(&mut batch, directory.device);
            }
        }
        self.count(&mut batch, directory.device);
        true
    }

    fn count(&self, batch: &mut Vec<std::io::Result<(PathBuf, Metadata)>>, device: u64) {
        let mut work = self.lock();
        for entry in batch.drain(..) {
            let Ok((path, status)) = entry else {
                work.scan.tree.unreadable += 1;
                continue;
            };
            if status.is_dir() {
                work.scan.tree.others += 1;
                let is_other = status.dev() != device;
                work.crossed |= is_other;
                if !self.one_file_system || !is_other {
                    work.open.push_back(Directory { path, device });
                }
            } else {
                work.scan.entry(path, &status);
            }
        }
        drop(work);
        self.changed.notify_all();
    }
}

struct Scan {
    tree: Tree,
    linked: HashSet<(u64, u64)>,
    small: Vec<(PathBuf, u64)>,
    big: Vec<(PathBuf, u64)>,
    largest: Vec<(PathBuf, u64)>,
    draw: Draw,
}

impl Default for Scan {
    fn default() -> Scan {
        Scan {
            tree: Tree::default(),
            linked: HashSet::new(),
            small: Vec::new(),
            big: Vec::new(),
            largest: Vec::new(),
            draw: Draw(0x9e37_79b9_7f4a_7c15),
        }
    }
}

impl Scan {
    fn entry(&mut self, path: PathBuf, status: &Metadata) {
        let size = status.len();
        let again = status.nlink() > 1
            && status.is_file()
            && (self.linked.len() >= LINKED || !self.linked.insert((status.dev(), status.ino())));
        if !status.is_file() || again {
            self.tree.others += 1;
        } else if size < SMALL_BYTES {
            self.tree.small_files += 1;
            self.tree.small_bytes += size;
            self.draw.keep(&mut self.small, KEPT_SMALL, self.tree.small_files, || (path, size));
        } else {
            self.tree.big_files += 1;
            // `st_blocks` counts units of 512 bytes, whatever the file system's block size (stat(2)).
            self.tree.big_bytes += size.min(status.blocks().saturating_mul(512));
            if self.largest.len() < KEPT_LARGEST {
                self.largest.push((path, size));
                return;
            }
            let smallest = self.largest.iter_mut().min_by_key(|(_, size)| *size);
            let one = match smallest {
                Some(smallest) if smallest.1 < size => std::mem::replace(smallest, (path, size)),
                _ => (path, size),
            };
            self.draw.keep(&mut self.big, KEPT_BIG, self.tree.big_files, || one);
        }
    }
}

/// Pseudo-random numbers (xorshift64), for sampling and for incompressible bytes.
#[derive(Clone, Debug)]
pub(super) struct Draw(pub(super) u64);

impl Draw {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    /// Returns bytes that do not compress.
    pub(super) fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(length);
        bytes
    }

    /// Reservoir sampling: keeps `most` of all items, each with the same probability.
    fn keep<T>(&mut self, kept: &mut Vec<T>, most: usize, seen: u64, item: impl FnOnce() -> T) {
        if kept.len() < most {
            kept.push(item());
        } else {
            let position = self.below(seen);
            if position < most as u64 {
                kept[position as usize] = item();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_tree_is_counted_and_files_with_two_names_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::create_dir_all(path("a/b")).unwrap();
        for number in 0..5 {
            std::fs::write(path(&format!("a/b/{number}")), vec![1; 1000]).unwrap();
        }
        std::fs::hard_link(path("a/b/0"), path("a/linked")).unwrap();
        std::os::unix::fs::symlink("b", path("a/soft")).unwrap();
        std::fs::write(path("a/big"), vec![1; 300_000]).unwrap();
        let late = Instant::now() + Duration::from_secs(60);
        for threads in [1, 4] {
            let (tree, sample) = scan(&[path("a")], late, false, threads).unwrap();
            assert_eq!((tree.small_files, tree.small_bytes, tree.big_files), (5, 5000, 1));
            assert_eq!((tree.others, tree.unreadable, tree.complete, tree.small_mean()), (3, 0, true, 1000));
            assert_eq!((sample.small.len(), sample.big.len()), (5, 1));
        }
        let (tree, _) = scan(&[path("a/big")], late, false, 4).unwrap();
        assert_eq!((tree.files(), tree.complete), (1, true));
        assert!(scan(&[path("nothing")], late, false, 4).is_err());
    }

    #[test]
    fn several_threads_see_what_one_sees() {
        let directory = tempfile::tempdir().unwrap();
        for number in 0..300 {
            let path = directory.path().join(format!("{}/{}", number % 17, number % 5));
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join(number.to_string()), vec![1; number]).unwrap();
        }
        let late = Instant::now() + Duration::from_secs(60);
        let trees = [1, 8].map(|threads| scan(&[directory.path().into()], late, false, threads).unwrap().0);
        let [one, many] = trees.map(|tree| Tree { seconds: 0.0, ..tree });
        assert_eq!(one, many);
        assert_eq!((one.small_files, one.others), (300, 17 + 85));
    }

    #[test]
    fn when_the_time_is_up_no_name_more_is_looked_at() {
        let directory = tempfile::tempdir().unwrap();
        for number in 0..10 {
            std::fs::write(directory.path().join(number.to_string()), "x").unwrap();
        }
        let (tree, sample) = scan(&[directory.path().into()], Instant::now(), false, 2).unwrap();
        assert_eq!((tree.files(), tree.complete, tree.estimated_from, sample.small.len()), (0, false, None, 0));
    }

    #[test]
    fn what_is_kept_is_bounded_and_drawn_from_all() {
        let (mut draw, mut kept) = (Draw(7), Vec::new());
        for number in 0..10_000_u64 {
            draw.keep(&mut kept, 100, number + 1, || number);
        }
        assert_eq!(kept.len(), 100);
        let late = kept.iter().filter(|number| **number >= 5_000).count();
        assert!((25..=75).contains(&late), "{late}");
    }
}
