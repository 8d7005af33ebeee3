//! Removes temporary files, and files that differ from run to run, from a new root.

use std::path::Path;

use super::apt::DIRECTORY;
use crate::root::{Root, RootError};
use crate::skeleton::APT_WHILE_MADE;

/// Logs, caches and identities, as mmdebstrap removes them.
const REMOVED: [&str; 11] = [
    APT_WHILE_MADE,
    DIRECTORY,
    "var/cache/apt/pkgcache.bin",
    "var/cache/apt/srcpkgcache.bin",
    "var/log/dpkg.log",
    "var/log/apt/history.log",
    "var/log/apt/term.log",
    "var/log/alternatives.log",
    "var/cache/ldconfig/aux-cache",
    "var/log/apt/eipp.log.xz",
    "var/lib/dbus/machine-id",
];

/// Emptied, so that the first boot creates it (machine-id(5)).
const MACHINE_ID: &str = "etc/machine-id";

/// Directories to empty, except these names.
const EMPTIED: [(&str, &[&str]); 4] = [
    ("var/lib/apt/lists", &["lock", "partial"]),
    ("var/cache/apt/archives", &["lock", "partial"]),
    // /var/lock is a link to it (Debian policy 9.1.4).
    ("run", &["lock"]),
    ("tmp", &[]),
];

/// Removes logs, caches and identities from a root.
pub fn clean(root: &Path) -> Result<(), RootError> {
    let root = Root::open(root)?;
    for name in REMOVED {
        root.remove(name)?;
    }
    for (directory, kept) in EMPTIED {
        root.empty(directory, kept)?;
    }
    if root.kind(MACHINE_ID).is_some() {
        root.write(MACHINE_ID, 0o644, b"")?;
    }
    Ok(())
}
