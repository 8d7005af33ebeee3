//! Directories of which several sources tell, or of which not all is known: what keeps a name from being deleted.
//!
//! A name goes only if one list has all names of its directory, no list of any source has this name, and no source has
//! anything there that it could not tell. So names of a list that is not of all of a directory are kept: another source
//! may have the rest, and leave out what was told before.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::held::Held;
use super::listing::{lower_case, parts};

/// What was told so far.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Names of directories of which nobody has told all.
    some: HashMap<Vec<u8>, HashSet<Vec<u8>>>,
    /// Directories that have names which could not be told.
    lacking: HashSet<Vec<u8>>,
    /// Paths of which nothing is known, nor of what is beneath them.
    unknown: HashSet<Vec<u8>>,
}

impl Told {
    /// Keeps names of a directory, which count as held already.
    pub(super) fn keep(&mut self, directory: &[u8], names: HashSet<Vec<u8>>, held: &Held) {
        if self.lacking.contains(directory) {
            // Nothing is deleted there anyway.
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

    /// Names kept of a directory, which need not be kept any more.
    pub(super) fn take(&mut self, directory: &[u8]) -> HashSet<Vec<u8>> {
        self.some.remove(directory).unwrap_or_default()
    }

    /// Not all names of a directory are known, or, with `beneath`, nothing of what is at this path.
    pub(super) fn unlisted(&mut self, path: &[u8], beneath: bool, held: &Held) {
        let paths = if beneath { &mut self.unknown } else { &mut self.lacking };
        if paths.insert(path.to_vec()) {
            held.keep_name(path);
        }
    }

    /// Takes what a source may have from the names that no source has, by directory.
    pub(super) fn spare(&self, extras: &mut HashMap<Vec<u8>, BTreeSet<Vec<u8>>>, case_insensitive: bool) {
        extras.retain(|directory, _| !self.lacking.contains(directory) && !self.is_unknown(directory));
        for path in self.unknown.iter().chain(&self.lacking) {
            // It, and what leads to it.
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

    /// Whether nothing is known of a directory, or of one above it.
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
