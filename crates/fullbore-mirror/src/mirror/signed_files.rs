//! Paths that belong to exactly one suite: its signed files, and the files in its directory.
//!
//! A suite may lie within the directory of another suite, whose Release lists everything below it, perhaps with
//! outdated content. A state of an earlier version may list such entries as indexes.

use std::collections::HashMap;

use fullbore_debian::release::Release;
use fullbore_engine::files::FileError;

use super::layout::below;
use super::links;
use super::state::SuiteRecord;
use super::tree::Tree;

/// The signed files of a suite in publishing order.
pub(crate) const SIGNED_FILES: [&str; 3] = ["Release.gpg", "Release", "InRelease"];

/// Whether a path is a signed file of one of these suites, if that is published.
pub(crate) fn is_recorded(suites: &[SuiteRecord], path: &str) -> bool {
    suites.iter().any(|suite| !suite.retired && is_within(&suite.directory, path))
}

/// Suites within the directory of another one, the outer suite.
pub(crate) struct NestedSuites<'a> {
    tree: &'a dyn Tree,
    outer: &'a str,
    /// Directories of suites, recorded ones and those of this run.
    suites: Vec<&'a str>,
    /// Directories below the outer suite's that were checked, and whether each is a suite.
    seen: HashMap<String, bool>,
}

impl<'a> NestedSuites<'a> {
    /// Finds suites in the directory `outer`. `of_run` has the directories of this run.
    pub(crate) fn new(
        tree: &'a dyn Tree,
        outer: &'a str,
        recorded: &'a [SuiteRecord],
        of_run: impl IntoIterator<Item = &'a str>,
    ) -> NestedSuites<'a> {
        let recorded = recorded.iter().filter(|suite| !suite.retired).map(|suite| suite.directory.as_str());
        NestedSuites { tree, outer, suites: recorded.chain(of_run).collect(), seen: HashMap::new() }
    }

    /// Removes entries in inner suites from the Release of the outer suite, because only the inner suite publishes
    /// them.
    ///
    /// # Errors
    /// [`FileError`] if a file or directory of the mirror cannot be read.
    pub(crate) fn leave_out(&mut self, release: &mut Release) -> Result<(), FileError> {
        let mut remaining = Vec::with_capacity(release.entries.len());
        for entry in release.entries.drain(..) {
            if !self.has(entry.path.as_str())? {
                remaining.push(entry);
            }
        }
        release.entries = remaining;
        Ok(())
    }

    /// Whether this path of the outer suite lies in the directory of an inner suite.
    fn has(&mut self, path: &str) -> Result<bool, FileError> {
        for (at, _) in path.match_indices('/') {
            let directory = below(self.outer, &path[..at]);
            let is_suite = match self.seen.get(&directory) {
                Some(&is_suite) => is_suite,
                None => {
                    let is_suite = self.is_suite(&directory)?;
                    self.seen.insert(directory, is_suite);
                    is_suite
                }
            };
            if is_suite {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether this is the directory of a recorded suite, or of a signed one of another tool. A component's `Release` has
    /// no signature.
    ///
    /// # Errors
    /// [`FileError`] if a file or directory of the mirror cannot be read.
    pub(crate) fn is_suite(&self, directory: &str) -> Result<bool, FileError> {
        let is_there = |name: &str| Ok::<_, FileError>(links::stat(self.tree, &below(directory, name))?.is_some());
        Ok(self.suites.contains(&directory) || is_there("InRelease")? || is_there("Release.gpg")?)
    }
}

/// Whether a path is a signed file of the suite in this directory.
pub(crate) fn is_within(directory: &str, path: &str) -> bool {
    let (above, name) = split(path);
    SIGNED_FILES.contains(&name) && above == directory
}

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

#[cfg(test)]
mod tests {
    use fullbore_engine::files::Root;

    use super::super::state::tests::suite;
    use super::*;

    #[test]
    fn what_lies_in_the_directory_of_an_inner_suite_is_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        for path in ["dists/x/theirs/InRelease", "dists/x/old/Release.gpg", "dists/x/main/binary-amd64/Release"] {
            root.write_part(path, b"x").unwrap().finish().unwrap();
        }
        let record = |directory: &str, retired| SuiteRecord { directory: directory.into(), retired, ..suite() };
        let suites = [record("dists/x/ours", false), record("dists/x/gone", true), record("dists/x", false)];
        let mut inner = NestedSuites::new(&root, "dists/x", &suites, ["dists/x/new/updates"]);
        for (path, expected) in [
            ("theirs/Release", true),
            ("theirs/main/binary-amd64/Packages.xz", true),
            ("old/by-hash/SHA256/00", true),
            ("ours/Release", true),
            ("ours/main/source/Sources", true),
            ("new/updates/Packages", true),
            ("new/Packages", false),
            ("ours", false),
            ("oursx/Packages", false),
            ("gone/Release", false),
            ("main/binary-amd64/Release", false),
            ("Packages", false),
        ] {
            assert_eq!(inner.has(path).unwrap(), expected, "{path}");
        }
        let mut flat = NestedSuites::new(&root, "", &suites, []);
        assert!(flat.has("dists/x/main/binary-amd64/Packages").unwrap() && !flat.has("pool/a.deb").unwrap());
        assert!(is_recorded(&suites, "dists/x/InRelease") && !is_recorded(&suites, "dists/x/theirs/Release"));
    }
}
