//! Names for what is made in a directory where others may write as well: they cannot be foreseen, so that nobody else has
//! put a directory or a link there before.

use std::collections::hash_map::RandomState;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::hash::BuildHasher as _;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// Names tried. Of 2^64 names, two in a row that are there are no accident.
const TRIES: usize = 16;

/// The sticky bit: names in such a directory belong to the owners of what they name.
const STICKY: u32 = 0o1000;

/// Whoever else may write to a directory.
const WRITTEN_BY_OTHERS: u32 = 0o022;

/// 16 characters that nobody can foresee.
pub fn unforeseen() -> String {
    // Its keys are random ones of the system.
    format!("{:016x}", RandomState::new().hash_one(()))
}

/// Whether this may have come from [`unforeseen`].
pub fn is_unforeseen(name: &[u8]) -> bool {
    name.len() == 16 && name.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Calls `make` with names, `before` and `after` a part that cannot be foreseen, until one was not there.
///
/// # Errors
/// What `make` says.
pub fn with_name<T>(before: &OsStr, after: &str, make: impl Fn(&OsStr) -> io::Result<T>) -> io::Result<T> {
    let mut made = Err(io::ErrorKind::AlreadyExists.into());
    for _ in 0..TRIES {
        let mut name = OsString::from(before);
        name.push(unforeseen());
        name.push(after);
        made = make(&name);
        if !matches!(&made, Err(error) if error.kind() == io::ErrorKind::AlreadyExists) {
            break;
        }
    }
    made
}

/// Makes a directory of mode 0700 whose name begins so.
///
/// # Errors
/// It cannot be made.
pub fn directory(below: &Path, begin: &OsStr) -> io::Result<PathBuf> {
    with_name(begin, "", |name| {
        let path = below.join(name);
        DirBuilder::new().mode(0o700).create(&path).map(|()| path)
    })
}

/// Whether the symbolic link `path` may be followed by a program that reads it itself: in a sticky directory where others
/// may write, only one of our own or of the directory's owner, as the kernel has it (proc_sys_fs(5),
/// `protected_symlinks`).
///
/// # Errors
/// The link or its directory cannot be looked at.
pub fn may_follow(path: &Path) -> io::Result<bool> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (link, directory) = (fs::symlink_metadata(path)?, fs::metadata(parent)?);
    let is_shared = directory.mode() & STICKY != 0 && directory.mode() & WRITTEN_BY_OTHERS != 0;
    Ok(!is_shared || [directory.uid(), rustix::process::geteuid().as_raw()].contains(&link.uid()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_directory_has_an_unforeseen_name_and_is_ours_alone() {
        let dir = tempfile::tempdir().unwrap();
        let made: Vec<PathBuf> = (0..100).map(|_| directory(dir.path(), OsStr::new("x.")).unwrap()).collect();
        assert!(made.iter().all(|path| fs::metadata(path).unwrap().mode() & 0o7777 == 0o700));
        let mut names: Vec<_> = made.iter().map(|path| path.file_name().unwrap().to_owned()).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 100);
        assert!(names.iter().all(|name| is_unforeseen(&name.as_encoded_bytes()[2..])));
        assert!(directory(&dir.path().join("none"), OsStr::new("x.")).is_err());
    }

    #[test]
    fn a_strangers_link_in_a_sticky_directory_is_not_followed() {
        assert!(rustix::process::geteuid().is_root(), "gives links away: run as root (script/test does)");
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("target", &link).unwrap();
        for (mode, owner, expected) in [
            (0o1777, 0, true),
            (0o1777, 65534, false),
            (0o1775, 65534, false),
            (0o1755, 65534, true),
            (0o777, 65534, true),
        ] {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
            std::os::unix::fs::lchown(&link, Some(owner), Some(owner)).unwrap();
            assert_eq!(may_follow(&link).unwrap(), expected, "{mode:o} {owner}");
        }
    }
}
