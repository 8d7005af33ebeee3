//! Unpredictable names for files and directories made where others may write as well, so that nobody can put a
//! directory or a link there before.
//!
//! No later run meets such a name again, so files of a killed run would stay for ever. The creator therefore locks its
//! entry ([`keep`]) until it is gone or renamed; [`remove_abandoned`] removes entries that nobody locks.

use std::collections::hash_map::RandomState;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::hash::BuildHasher as _;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Maximum number of names tried. Two collisions in a row among 2^64 names are no accident.
const TRIES: usize = 16;

/// The sticky bit: only the owner of an entry may rename or remove it in such a directory.
const STICKY: u32 = 0o1000;

/// Write permission for group and others.
const WRITTEN_BY_OTHERS: u32 = 0o022;

/// Returns 16 unpredictable hexadecimal digits.
pub fn unforeseen() -> String {
    // RandomState has random keys from the system.
    format!("{:016x}", RandomState::new().hash_one(()))
}

/// Whether this may be a result of [`unforeseen`].
fn is_unforeseen(name: &[u8]) -> bool {
    name.len() == 16 && name.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Calls `make` with names of the form `before`, 16 unpredictable digits, `after`, until a name did not exist.
///
/// # Errors
/// The error of `make`; `AlreadyExists` only if 16 names in a row existed.
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

/// Creates a directory with mode 0700 in `below`, with a name that begins with `begin`.
///
/// # Errors
/// The system's error if no directory can be created in `below`.
pub fn directory(below: &Path, begin: &OsStr) -> io::Result<PathBuf> {
    with_name(begin, "", |name| {
        let path = below.join(name);
        DirBuilder::new().mode(0o700).create(&path).map(|()| path)
    })
}

/// As [`directory`], locked until the returned file, which is the open directory, is closed.
///
/// # Errors
/// The system's error if no directory can be created in `below`.
pub fn kept_directory(below: &Path, begin: &OsStr) -> io::Result<(PathBuf, File)> {
    with_name(begin, "", |name| {
        let path = below.join(name);
        DirBuilder::new().mode(0o700).create(&path)?;
        // As in `keep`: another process took it for abandoned before it was opened.
        let taken = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => io::ErrorKind::AlreadyExists.into(),
            _ => error,
        };
        let held = File::open(&path).map_err(taken)?;
        keep(&held, &path)?;
        Ok((path, held))
    })
}

/// Locks a newly created entry at `path`, until `file` and its duplicates are closed. Where the file system has no
/// locks, nothing is locked.
///
/// # Errors
/// `AlreadyExists` if another process removed it as abandoned before it was locked: try another name.
pub fn keep(file: &File, path: &Path) -> io::Result<()> {
    // Where there are no locks, nothing counts as abandoned either.
    let is_locked = file.lock().is_ok();
    if is_locked && !is_same(&file.metadata()?, path) {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    Ok(())
}

/// Entries named by [`with_name`] and owned by this user, opened; they may be locked by another process.
fn named(
    below: &Path,
    before: &OsStr,
    after: &str,
    how: &mut OpenOptions,
) -> impl Iterator<Item = (PathBuf, File, Metadata)> {
    // A pipe or a link that others put there must neither block us nor lead us elsewhere.
    how.read(true).custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    fs::read_dir(below).into_iter().flatten().flatten().filter_map(move |entry| {
        let name = entry.file_name();
        let middle = name.as_bytes().strip_prefix(before.as_bytes())?.strip_suffix(after.as_bytes())?;
        if !is_unforeseen(middle) {
            return None;
        }
        let path = entry.path();
        let file = how.open(&path).ok()?;
        let about = file.metadata().ok()?;
        let is_ours = about.uid() == rustix::process::geteuid().as_raw() && is_same(&about, &path);
        is_ours.then_some((path, file, about))
    })
}

/// Removes files or directories of this user that [`with_name`] named and nobody locks. Entries that cannot be removed
/// stay.
pub fn remove_abandoned(below: &Path, before: &OsStr, after: &str, is_kind: fn(&Metadata) -> bool) {
    for (path, file, about) in named(below, before, after, &mut OpenOptions::new()) {
        if is_kind(&about) && file.try_lock().is_ok() {
            let _ = if about.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        }
    }
}

/// Takes over the largest file that [`with_name`] named and nobody locks: locked, with its path.
pub fn take_abandoned(below: &Path, before: &OsStr, after: &str) -> Option<(PathBuf, File)> {
    let mut largest: Option<(u64, PathBuf, File)> = None;
    for (path, file, about) in named(below, before, after, OpenOptions::new().write(true)) {
        let is_file = about.is_file() && about.nlink() == 1;
        let is_larger = largest.as_ref().is_none_or(|(size, ..)| about.len() > *size);
        // Check again under the lock: another process may have given it its final name meanwhile.
        if is_file && is_larger && file.try_lock().is_ok() && is_same(&about, &path) {
            largest = Some((about.len(), path, file));
        }
    }
    largest.map(|(_, path, file)| (path, file))
}

/// Whether `path` still refers to this file.
fn is_same(file: &Metadata, path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|name| (name.dev(), name.ino()) == (file.dev(), file.ino()))
}

/// Whether a program may follow the symbolic link `path` that it reads itself. In a sticky directory where others may
/// write, only our own links and those of the directory's owner may be followed, as in the kernel (proc_sys_fs(5),
/// `protected_symlinks`).
///
/// # Errors
/// The error of lstat(2) or stat(2) if the link or its directory cannot be examined.
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
    fn directories_are_made_while_others_look_for_abandoned_ones() {
        let below = tempfile::tempdir().unwrap();
        let begin = OsStr::new("x-");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        remove_abandoned(below.path(), begin, "", Metadata::is_dir);
                        let (path, _held) = kept_directory(below.path(), begin).unwrap();
                        assert!(path.is_dir());
                        fs::remove_dir_all(path).unwrap();
                    }
                });
            }
        });
    }

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
    fn what_nobody_keeps_is_abandoned() {
        assert!(rustix::process::geteuid().is_root(), "gives files away: run as root (script/test does)");
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let name = |digit: char| format!("x.{}.part", digit.to_string().repeat(16));
        fs::create_dir(at(&name('0'))).unwrap();
        fs::write(at(&name('0')).join("content"), "").unwrap();
        fs::write(at(&name('1')), "").unwrap();
        let kept = File::create(at(&name('2'))).unwrap();
        keep(&kept, &at(&name('2'))).unwrap();
        fs::write(at(&name('3')), "").unwrap();
        std::os::unix::fs::chown(at(&name('3')), Some(65534), None).unwrap();
        fs::write(at("victim"), "").unwrap();
        std::os::unix::fs::symlink(at("victim"), at(&name('4'))).unwrap();
        for other in ["x.part", "x.0.part", "x.0123456789ABCDEF.part", "y.0123456789abcdef.part", "x.0123456789abcdef"]
        {
            fs::write(at(other), "").unwrap();
        }
        let before = fs::read_dir(dir.path()).unwrap().count();
        remove_abandoned(dir.path(), OsStr::new("x."), ".part", Metadata::is_file);
        assert!(at(&name('0')).exists());
        remove_abandoned(dir.path(), OsStr::new("x."), ".part", Metadata::is_dir);
        assert!(!at(&name('0')).exists() && !at(&name('1')).exists());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), before - 2, "nothing else");
        // Of several the largest is taken over, and kept from then on.
        for (digit, content) in [('5', "12"), ('6', "123"), ('7', "1")] {
            fs::write(at(&name(digit)), content).unwrap();
        }
        fs::hard_link(at(&name('6')), at("second")).unwrap();
        let (path, taken) = take_abandoned(dir.path(), OsStr::new("x."), ".part").unwrap();
        assert_eq!(path, at(&name('5')), "nobody else has a name of it");
        remove_abandoned(dir.path(), OsStr::new("x."), ".part", Metadata::is_file);
        assert!(path.exists() && !at(&name('7')).exists());
        assert!(take_abandoned(dir.path(), OsStr::new("x."), ".part").is_none());
        drop(taken);
        // A directory is kept as well; one that was taken away meanwhile is not.
        let made = directory(dir.path(), OsStr::new("z.")).unwrap();
        let held = File::open(&made).unwrap();
        keep(&held, &made).unwrap();
        remove_abandoned(dir.path(), OsStr::new("z."), "", Metadata::is_dir);
        assert!(made.exists());
        drop(held);
        let late = File::open(&made).unwrap();
        remove_abandoned(dir.path(), OsStr::new("z."), "", Metadata::is_dir);
        assert!(!made.exists());
        assert_eq!(keep(&late, &made).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
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
