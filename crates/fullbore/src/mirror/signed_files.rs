//! The names of a suite's signed files, which only the publishing of that suite gives and takes away.
//!
//! `Release` parses none of its own as an index. But a suite may lie within the directory of another, whose Release
//! lists everything below it; and a state may have been written when such entries still passed for indexes.

use fullbore_engine::files::{FileError, Root};

use super::layout::below;
use super::links;
use super::state::SuiteRecord;

/// The signed files of a suite, in the order in which they are published.
pub const SIGNED_FILES: [&str; 3] = ["Release.gpg", "Release", "InRelease"];

/// Whether a path is a signed file of one of these suites, as far as they are published.
pub fn is_recorded(suites: &[SuiteRecord], path: &str) -> bool {
    suites.iter().any(|suite| !suite.retired && is_within(&suite.directory, path))
}

/// Whether an index of this path would be a signed file of a suite: of a recorded one, or of one that somebody else
/// put there with a signature. The `Release` of a component's directory has none beside it.
///
/// # Errors
/// When the tree cannot be looked at.
pub fn is_of_suite(root: &Root, suites: &[SuiteRecord], path: &str) -> Result<bool, FileError> {
    let (directory, name) = split(path);
    if name != "Release" {
        return Ok(is_recorded(suites, path));
    }
    let is_there = |name: &str| Ok::<_, FileError>(links::stat(root, &below(directory, name))?.is_some());
    Ok(is_recorded(suites, path) || is_there("InRelease")? || is_there("Release.gpg")?)
}

/// Whether a path is a signed file of the suite of this directory.
pub fn is_within(directory: &str, path: &str) -> bool {
    let (above, name) = split(path);
    SIGNED_FILES.contains(&name) && above == directory
}

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

#[cfg(test)]
mod tests {
    use super::super::state::tests::suite;
    use super::*;

    #[test]
    fn a_release_beside_a_signature_is_of_a_suite() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        for path in ["dists/x/theirs/InRelease", "dists/x/old/Release.gpg", "dists/x/main/binary-amd64/Release"] {
            root.write_part(path, b"x").unwrap().finish().unwrap();
        }
        let ours = SuiteRecord { directory: "dists/x/ours".into(), ..suite() };
        let gone = SuiteRecord { directory: "dists/x/gone".into(), retired: true, ..suite() };
        let flat = SuiteRecord { directory: String::new(), ..suite() };
        let suites = [ours, gone, flat];
        for (path, expected) in [
            ("dists/x/theirs/Release", true),
            ("dists/x/old/Release", true),
            ("dists/x/ours/Release", true),
            ("dists/x/ours/InRelease", true),
            ("Release", true),
            ("Release.gpg", true),
            ("dists/x/gone/Release", false),
            ("dists/x/main/binary-amd64/Release", false),
            ("dists/x/ours/Packages", false),
        ] {
            assert_eq!(is_of_suite(&root, &suites, path).unwrap(), expected, "{path}");
        }
        assert!(!is_recorded(&suites, "dists/x/theirs/Release"));
    }
}
