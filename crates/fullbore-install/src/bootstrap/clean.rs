//! Removes temporary files, and files that differ from run to run, from a new root.

use std::path::Path;

use super::apt::DIRECTORY;
use super::skips::Skips;
use crate::root::{Root, RootError};
use crate::skeleton::APT_WHILE_MADE;

/// Steps that `--skip` can leave out, and the files that each step removes.
const REMOVED: [(&str, &[&str]); 3] = [
    ("cleanup/mmdebstrap", &[APT_WHILE_MADE, DIRECTORY]),
    ("cleanup/apt/cache", &["var/cache/apt/pkgcache.bin", "var/cache/apt/srcpkgcache.bin"]),
    (
        "cleanup/reproducible",
        &[
            "var/log/dpkg.log",
            "var/log/apt/history.log",
            "var/log/apt/term.log",
            "var/log/alternatives.log",
            "var/cache/ldconfig/aux-cache",
            "var/log/apt/eipp.log.xz",
            "var/lib/dbus/machine-id",
        ],
    ),
];

/// File that the step `cleanup/reproducible` empties, so that the first boot fills it (machine-id(5)).
const MACHINE_ID: &str = "etc/machine-id";

/// Directories to empty, except these names.
const EMPTIED: [(&str, &str, &[&str]); 4] = [
    ("cleanup/apt/lists", "var/lib/apt/lists", &["lock", "partial"]),
    ("cleanup/apt/cache", "var/cache/apt/archives", &["lock", "partial"]),
    // /var/lock is a link to it (Debian policy 9.1.4).
    ("cleanup/run", "run", &["lock"]),
    ("cleanup/tmp", "tmp", &[]),
];

/// Removes logs, caches and identities from a root, as mmdebstrap does.
///
/// # Errors
///
/// [`RootError`] if a file cannot be removed or emptied.
pub(super) fn clean(root: &Path, skips: &Skips) -> Result<(), RootError> {
    let root = Root::open(root)?;
    for (_, names) in REMOVED.iter().filter(|(step, _)| !skips.has(step)) {
        names.iter().try_for_each(|name| root.remove(name).map(drop))?;
    }
    for (_, directory, kept) in EMPTIED.iter().filter(|(step, ..)| !skips.has(step)) {
        root.empty(directory, kept)?;
    }
    if root.kind(MACHINE_ID).is_some() && !skips.has("cleanup/reproducible") {
        root.write(MACHINE_ID, 0o644, b"")?;
    }
    Ok(())
}
