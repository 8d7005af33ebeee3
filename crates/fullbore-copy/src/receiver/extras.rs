//! Directories that several sources list, or that are listed only in part. They keep names from being deleted.
//!
//! A name is deleted only under three conditions: one list has all names of its directory; no list of any source has
//! the name; and no source has entries there that it could not list. So names of incomplete lists are kept: another
//! source may have the rest, and leave out what was listed before.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::held::Held;
use super::listing::{lower_case, parts};

/// What the lists have said so far.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Names of directories that no list covers completely.
    some: HashMap<Vec<u8>, HashSet<Vec<u8>>>,
    /// Directories with names that could not be listed.
    lacking: HashSet<Vec<u8>>,
    /// Paths below which nothing is known.
    unknown: HashSet<Vec<u8>>,
}

impl Told {
    /// Keeps names of a directory. Their memory is already counted in `held`.
    pub(super) fn keep(&mut self, directory: &[u8], names: HashSet<Vec<u8>>, held: &Held) {
        if self.lacking.contains(directory) {
            // Nothing is deleted in this directory anyway.
            return names.iter().for_each(|name| held.let_go(name));
        }
        let Some(some) = self.some.get_mut(directory) else {
            held.keep_name(directory);
            self.some.insert(directory.to_vec(), names);
            return;
        };
        for name in names {
            if some.contains(&name) {
                held.let_go(&name);
            } else {
                some.insert(name);
            }
        }
    }

    /// Removes and returns the names kept for a directory.
    pub(super) fn take(&mut self, directory: &[u8]) -> HashSet<Vec<u8>> {
        self.some.remove(directory).unwrap_or_default()
    }

    /// Records a directory that is not completely listed or, with `beneath`, a path below which nothing is known.
    pub(super) fn unlisted(&mut self, path: &[u8], beneath: bool, held: &Held) {
        let paths = if beneath { &mut self.unknown } else { &mut self.lacking };
        if paths.insert(path.to_vec()) {
            held.keep_name(path);
        }
    }

    /// Removes from the names that no source has, by directory, those that a source may have after all.
    pub(super) fn spare(&self, extras: &mut HashMap<Vec<u8>, BTreeSet<Vec<u8>>>, case_insensitive: bool) {
        extras.retain(|directory, _| !self.lacking.contains(directory) && !self.is_unknown(directory));
        for path in self.unknown.iter().chain(&self.lacking) {
            // The path itself, and its parents.
            let mut rest = &path[..];
            while !rest.is_empty() {
                let (directory, name) = parts(rest);
                if let Some(extras) = extras.get_mut(directory) {
                    extras.remove(name);
                    if case_insensitive {
                        extras.retain(|extra| lower_case(extra) != lower_case(name));
                    }
                }
                rest = directory;
            }
        }
    }

    /// Whether nothing is known about a directory or one of its parents.
    fn is_unknown(&self, directory: &[u8]) -> bool {
        let slashes = directory.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        slashes.chain([0, directory.len()]).any(|end| self.unknown.contains(&directory[..end]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extras(all: &[(&str, &[&str])]) -> HashMap<Vec<u8>, BTreeSet<Vec<u8>>> {
        let names = |names: &[&str]| names.iter().map(|name| name.as_bytes().to_vec()).collect();
        all.iter().map(|(directory, all)| (directory.as_bytes().to_vec(), names(all))).collect()
    }

    #[test]
    fn nothing_goes_that_an_unreadable_source_may_have() {
        let all = || extras(&[("", &["a", "z"]), ("a", &["b"]), ("a/b", &["c"]), ("a/bc", &["d"])]);
        let held = Held::of_this_machine();
        for (path, beneath, left) in [
            ("a/b", true, extras(&[("", &["z"]), ("a", &[]), ("a/bc", &["d"])])),
            ("a", false, extras(&[("", &["z"]), ("a/b", &["c"]), ("a/bc", &["d"])])),
            ("a", true, extras(&[("", &["z"])])),
            ("", false, extras(&[("a", &["b"]), ("a/b", &["c"]), ("a/bc", &["d"])])),
            ("", true, extras(&[])),
        ] {
            let (mut told, mut extras) = (Told::default(), all());
            told.unlisted(path.as_bytes(), beneath, &held);
            told.spare(&mut extras, false);
            assert_eq!(extras, left, "{path} {beneath}");
        }
    }
}
