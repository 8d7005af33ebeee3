//! What is taken away from a root in the end: what apt needed meanwhile, and what differs from run to run.

use std::fs;
use std::path::Path;

use fullbore_install::skeleton::APT_WHILE_MADE;

use crate::error::CommandError;

/// Logs, caches and identities, as mmdebstrap removes them.
const REMOVED: [&str; 10] = [
    APT_WHILE_MADE,
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

/// Empty in an image: it is made at the first boot (machine-id(5)).
const MACHINE_ID: &str = "etc/machine-id";

/// Directories that are emptied, but for these names.
const EMPTIED: [(&str, &[&str]); 4] = [
    ("var/lib/apt/lists", &["lock", "partial"]),
    ("var/cache/apt/archives", &["lock", "partial"]),
    // /var/lock leads there (Debian policy 9.1.4).
    ("run", &["lock"]),
    ("tmp", &[]),
];

/// Cleans a root.
pub fn clean(root: &Path) -> Result<(), CommandError> {
    for name in REMOVED {
        remove(&root.join(name))?;
    }
    for (directory, kept) in EMPTIED {
        empty(&root.join(directory), kept)?;
    }
    let machine_id = root.join(MACHINE_ID);
    if machine_id.symlink_metadata().is_ok() {
        remove(&machine_id)?;
        fs::write(&machine_id, "").map_err(|error| CommandError::disk(&machine_id, &error))?;
    }
    Ok(())
}

fn empty(directory: &Path, kept: &[&str]) -> Result<(), CommandError> {
    // A link would lead out of the root.
    if !directory.symlink_metadata().is_ok_and(|status| status.is_dir()) {
        return Ok(());
    }
    let disk = |error: std::io::Error| CommandError::disk(directory, &error);
    for entry in fs::read_dir(directory).map_err(disk)? {
        let entry = entry.map_err(disk)?;
        if !kept.iter().any(|name| entry.file_name() == *name) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

fn remove(path: &Path) -> Result<(), CommandError> {
    let Ok(status) = path.symlink_metadata() else { return Ok(()) };
    let removed = if status.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.map_err(|error| CommandError::disk(path, &error))
}
