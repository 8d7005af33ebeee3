//! A quick look at the tree: how many files and bytes, and which files to try.
//!
//! Names are listed and their attributes read, as a copy does; no content. What is kept of a tree of
//! any size is bounded: the largest files, and some drawn evenly from all.

use std::collections::{HashSet, VecDeque};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::error::CopyError;
use crate::wire::SMALL_BYTES;

/// Files kept of each kind. A second's worth of small files on a fast disk.
const KEPT_SMALL: usize = 8192;
const KEPT_BIG: usize = 256;
/// Of the big ones, so many are the largest: most of the bytes are there.
const KEPT_LARGEST: usize = 64;
/// Files with several names that are told apart; more count once for each name.
const LINKED: usize = 1 << 20;
/// Names looked at between two looks at the clock.
const CLOCK_NAMES: u64 = 256;

/// What a tree holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tree {
    /// Files with content below 256 KiB, which a copy packs.
    pub small_files: u64,
    /// Their bytes.
    pub small_bytes: u64,
    /// Larger files.
    pub big_files: u64,
    /// Their bytes, holes left out.
    pub big_bytes: u64,
    /// Directories, links, devices.
    pub others: u64,
    /// Directories and files that could not be looked at.
    pub unreadable: u64,
    /// Whether all of it was seen; else there is more than this.
    pub complete: bool,
    /// How long it took, seconds.
    pub seconds: f64,
}

impl Tree {
    /// Files with content.
    pub fn files(&self) -> u64 {
        self.small_files + self.big_files
    }

    /// Bytes of content.
    pub fn bytes(&self) -> u64 {
        self.small_bytes + self.big_bytes
    }

    /// Mean length of the small files.
    pub fn small_mean(&self) -> u64 {
        self.small_bytes.checked_div(self.small_files).unwrap_or(0)
    }
}

/// Files to try.
#[derive(Debug, Default)]
pub(super) struct Sample {
    pub(super) small: Vec<(PathBuf, u64)>,
    pub(super) big: Vec<(PathBuf, u64)>,
}

/// Counts the trees under these paths until the time is up.
pub(super) fn scan(paths: &[PathBuf], time: Duration, one_file_system: bool) -> Result<(Tree, Sample), CopyError> {
    let began = Instant::now();
    let mut scan = Scan { draw: Draw(0x9e37_79b9_7f4a_7c15), ..Scan::default() };
    for path in paths {
        let wrong = |error: std::io::Error| CopyError::Usage(format!("{}: {error}", path.display()));
        let slash = path.as_os_str().as_encoded_bytes().ends_with(b"/");
        let status = if slash { path.metadata() } else { path.symlink_metadata() }.map_err(wrong)?;
        if status.is_dir() {
            std::fs::read_dir(path).map_err(wrong)?;
            scan.open.push_back((path.clone(), status.dev()));
        } else {
            scan.entry(path.clone(), &status);
        }
    }
    scan.tree.complete = true;
    let mut seen = 0;
    // From the front: where the time is too short, the upper levels of all branches were seen.
    'directories: while let Some((directory, device)) = scan.open.pop_front() {
        if [Path::new("/proc"), Path::new("/sys")].contains(&directory.as_path()) {
            continue;
        }
        let Ok(names) = std::fs::read_dir(&directory) else {
            scan.tree.unreadable += 1;
            continue;
        };
        for name in names {
            let Ok((name, status)) = name.and_then(|name| name.metadata().map(|status| (name, status))) else {
                scan.tree.unreadable += 1;
                continue;
            };
            if status.is_dir() {
                scan.tree.others += 1;
                if !one_file_system || status.dev() == device {
                    scan.open.push_back((name.path(), device));
                }
            } else {
                scan.entry(name.path(), &status);
            }
            seen += 1;
            if u64::is_multiple_of(seen, CLOCK_NAMES) && began.elapsed() >= time {
                scan.tree.complete = false;
                break 'directories;
            }
        }
    }
    scan.tree.seconds = began.elapsed().as_secs_f64();
    let mut big = scan.largest;
    big.append(&mut scan.big);
    big.sort();
    big.dedup();
    Ok((scan.tree, Sample { small: scan.small, big }))
}

#[derive(Default)]
struct Scan {
    tree: Tree,
    open: VecDeque<(PathBuf, u64)>,
    linked: HashSet<(u64, u64)>,
    small: Vec<(PathBuf, u64)>,
    big: Vec<(PathBuf, u64)>,
    largest: Vec<(PathBuf, u64)>,
    draw: Draw,
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
            // 512 bytes is stat's unit, whatever the file system's blocks are (stat(2)).
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

/// Numbers that look drawn: xorshift64, for choosing and for bytes that do not compress.
#[derive(Clone, Debug, Default)]
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

    /// Bytes that do not compress.
    pub(super) fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(length);
        bytes
    }

    /// Keeps `most` of all items that come by, each as likely as any other.
    fn keep<T>(&mut self, kept: &mut Vec<T>, most: usize, seen: u64, item: impl FnOnce() -> T) {
        if kept.len() < most {
            kept.push(item());
        } else {
            let place = self.below(seen);
            if place < most as u64 {
                kept[place as usize] = item();
            }
        }
    }
}

#[cfg(test)]
mod tests {
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
        let (tree, sample) = scan(&[path("a")], Duration::from_secs(60), false).unwrap();
        assert_eq!((tree.small_files, tree.small_bytes, tree.big_files), (5, 5000, 1));
        assert_eq!((tree.others, tree.unreadable, tree.complete, tree.small_mean()), (3, 0, true, 1000));
        assert_eq!((sample.small.len(), sample.big.len()), (5, 1));
        let (tree, _) = scan(&[path("a/big")], Duration::from_secs(60), false).unwrap();
        assert_eq!((tree.files(), tree.complete), (1, true));
        assert!(scan(&[path("nothing")], Duration::ZERO, false).is_err());
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
