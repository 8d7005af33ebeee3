//! The directory of a new root: empty, locked, marked as unfinished until it is complete.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use fullbore_engine::durability::sync_file;
use fullbore_engine::machine;
use fullbore_engine::output;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::temporary;
use rustix::fs::{Access, AtFlags, Mode, OFlags};

use crate::settings::{BootstrapSettings, Format, OciContainer, OciSettings};

/// Name of the marker in an incomplete root.
pub(super) const MARKER: &str = ".fullbore-unfinished";
const MARKER_TEXT: &str = "This root is being made by `fullbore bootstrap`, or was not finished. Run it again.\n";

/// Prefix of the names of temporary roots.
const NAME: &str = "fullbore-root.";

/// Directory that a file system may have in its root.
const LOST_FOUND: &str = "lost+found";

/// A locked directory for a new root.
#[derive(Debug)]
pub(super) struct TargetDirectory {
    root: PathBuf,
    lock: File,
    /// Whether the user's content is there, and stays. Then there is no marker, by which a later run would clear it.
    has_content: bool,
}

impl TargetDirectory {
    /// Creates and locks the directory; removes an unfinished root in it.
    ///
    /// # Errors
    ///
    /// `Usage` if the target is not a directory, is not empty, is on a file system without programs, or cannot take the
    /// result. `Locked` if another run makes this root. `Disk` if a directory cannot be created or changed.
    pub(super) fn open(settings: &BootstrapSettings) -> Result<TargetDirectory, CommandError> {
        let root = match (&settings.format, &settings.stream) {
            (Format::Dir, _) => settings.target.clone(),
            (_, Some(stream)) => fresh(&stream.root_below, OsStr::new(NAME))
                .map_err(|error| error.hint("set TMPDIR to another directory"))?,
            (Format::Oci(OciSettings { container: OciContainer::Directory, .. }), None) => {
                let place = layout_place(&settings.target)?;
                is_writable_in(&place, &[&place])?;
                fresh_beside(&place)?
            }
            (Format::Tar | Format::Squashfs | Format::Ext(_) | Format::Null | Format::Oci(_), None) => {
                takes_a_file(&settings.target)?;
                fresh_beside(&settings.target)?
            }
        };
        TargetDirectory::take(&root, settings.skips.has("check/empty") && settings.format == Format::Dir)
    }

    /// Creates and locks the directory. With `may_have_content`, content other than an unfinished root stays.
    fn take(root: &Path, may_have_content: bool) -> Result<TargetDirectory, CommandError> {
        runs_programs(root)?;
        if root.is_symlink()
            && !temporary::may_follow(root).map_err(|error| CommandError::cannot("read", root, &error))?
        {
            return Err(link_of_another(root));
        }
        if root.symlink_metadata().is_ok() && !root.is_dir() {
            return Err(CommandError::usage(format_args!("{}: exists and is not a directory", root.display()))
                .hint("name an empty or new directory, or pass --format tar or squashfs"));
        }
        let disk = |error: std::io::Error| CommandError::cannot("create", root, &error);
        fs::create_dir_all(root).map_err(disk)?;
        let root = root.canonicalize().map_err(disk)?;
        let lock = File::open(&root).map_err(disk)?;
        if lock.try_lock().is_err() {
            return Err(being_made(&root));
        }
        let mut place = TargetDirectory { root, lock, has_content: false };
        let entries = place.entries()?;
        if may_have_content && !entries.is_empty() && !entries.contains(&place.root.join(MARKER)) {
            place.has_content = true;
            return Ok(place);
        }
        place.begin_anew()?;
        place.become_roots()?;
        // Until now another user may have owned it.
        place.begin_anew()?;
        let marker = place.root.join(MARKER);
        let disk = |error: std::io::Error| CommandError::cannot("write", &marker, &error);
        // It is left from an unfinished root, or is a link, which must not be followed.
        let _ = fs::remove_file(&marker);
        let mut file = File::create_new(&marker).map_err(disk)?;
        file.write_all(MARKER_TEXT.as_bytes()).map_err(disk)?;
        sync_file(&file, MARKER).map_err(|error| CommandError::new(ErrorKind::Disk, error))?;
        sync_file(&place.lock, ".").map_err(|error| CommandError::new(ErrorKind::Disk, error))?;
        Ok(place)
    }

    /// Gives the directory to root with the mode 0755, which `/` has in base-files. Another user, or mktemp, may have
    /// created it.
    fn become_roots(&self) -> Result<(), CommandError> {
        let disk = |error: std::io::Error| CommandError::cannot("change the owner of", &self.root, &error);
        std::os::unix::fs::fchown(&self.lock, Some(0), Some(0)).map_err(disk)?;
        self.lock.set_permissions(fs::Permissions::from_mode(0o755)).map_err(disk)
    }

    /// Whether the directory can be cleared for another attempt.
    pub(super) fn can_begin_anew(&self) -> bool {
        !self.has_content
    }

    /// Canonical path of the root directory.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    fn entries(&self) -> Result<Vec<PathBuf>, CommandError> {
        let disk = |error: std::io::Error| CommandError::cannot("read", &self.root, &error);
        let entries = fs::read_dir(&self.root).map_err(disk)?;
        let mut paths = Vec::new();
        for entry in entries {
            let path = entry.map_err(disk)?.path();
            // A file system that has just been made has it, without any file.
            let is_empty = || fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_none());
            if path.file_name().is_none_or(|name| name != LOST_FOUND) || !is_empty() {
                paths.push(path);
            }
        }
        Ok(paths)
    }

    /// Removes an unfinished root; refuses other content.
    ///
    /// # Errors
    ///
    /// `Usage` if the directory has content that is not an unfinished root, or something is mounted in it. `Disk` if a
    /// file cannot be read or removed.
    pub(super) fn begin_anew(&self) -> Result<(), CommandError> {
        let entries = self.entries()?;
        let marker = self.root.join(MARKER);
        if entries.is_empty() {
            return Ok(());
        }
        if !entries.contains(&marker) {
            return Err(CommandError::usage(format_args!("{}: is not empty", self.root.display()))
                .hint("name an empty or new directory, or pass --skip check/empty to keep what is there"));
        }
        self.has_no_mounts()?;
        // The marker is removed last: a kill in between leaves an unfinished root.
        for path in entries.iter().filter(|path| **path != marker) {
            remove(path)?;
        }
        Ok(())
    }

    /// Checks that nothing is mounted in the root, because removing it would go through the mounts.
    fn has_no_mounts(&self) -> Result<(), CommandError> {
        let mounts = machine::mounts(&fs::read("/proc/self/mountinfo").unwrap_or_default());
        match mounts.iter().find(|mount| mount.path.starts_with(&self.root) && mount.path != self.root) {
            None => Ok(()),
            Some(mount) => {
                Err(CommandError::usage(format_args!("{}: a file system is mounted here", mount.path.display()))
                    .context("fullbore does not clear the unfinished root around it")
                    .hint("unmount it and run again"))
            }
        }
    }

    /// Removes the root with all its content.
    ///
    /// # Errors
    /// `Usage` if something is mounted in the root, `Disk` if it cannot be removed.
    pub(super) fn discard(self) -> Result<(), CommandError> {
        self.has_no_mounts()?;
        remove(&self.root)
    }

    /// Removes the marker: the root is complete.
    ///
    /// # Errors
    ///
    /// `Disk` if the marker cannot be removed.
    pub(super) fn complete(&self) -> Result<(), CommandError> {
        if self.has_content {
            return Ok(());
        }
        let marker = self.root.join(MARKER);
        fs::remove_file(&marker).map_err(|error| CommandError::cannot("remove", &marker, &error))
    }
}

/// Checks that the target file can be written at the end: in its own directory, where the root is made, and in the
/// directory that a link leads to.
fn takes_a_file(target: &Path) -> Result<(), CommandError> {
    let led_to = output::place(target).map_err(|error| CommandError::cannot("write", target, &error))?;
    is_writable_in(target, &[target, &led_to])
}

/// Checks that the directories of these paths exist, and that names in them can be created.
fn is_writable_in(target: &Path, paths: &[&Path]) -> Result<(), CommandError> {
    for directory in paths.iter().map(|path| path.parent().unwrap_or(Path::new("/"))) {
        if !directory.is_dir() {
            return Err(CommandError::usage(format_args!("{}: is not a directory", directory.display()))
                .context(format_args!("{} would be created in it", target.display()))
                .hint("create it first"));
        }
        rustix::fs::access(directory, Access::WRITE_OK | Access::EXEC_OK)
            .map_err(|error| CommandError::cannot("write into", directory, &error.into()))?;
    }
    Ok(())
}

/// Checks that the file system allows programs. For a missing root its existing parent directory counts.
fn runs_programs(root: &Path) -> Result<(), CommandError> {
    let root = std::path::absolute(root).map_err(|error| CommandError::cannot("find", root, &error))?;
    let Some(there) = root.ancestors().find(|path| path.exists()) else { return Ok(()) };
    let status = rustix::fs::statvfs(there).map_err(|error| CommandError::cannot("read", there, &error.into()))?;
    if !status.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC) {
        return Ok(());
    }
    Err(CommandError::usage(format_args!("{}: mounted noexec", there.display()))
        .context("maintainer scripts must run in the new root")
        .hint("make the root elsewhere (set TMPDIR for an archive on stdout), or mount this without noexec"))
}

/// Path to which a finished layout is renamed: the target, or the place that a link there leads to.
///
/// # Errors
/// `Usage` if a file or a non-empty directory is there, or if it is the root of a file system. A layout is never added
/// to an existing one.
pub(super) fn layout_place(target: &Path) -> Result<PathBuf, CommandError> {
    let disk = |error: std::io::Error| CommandError::cannot("read", target, &error);
    let Ok(status) = target.symlink_metadata() else { return Ok(target.to_owned()) };
    if status.is_symlink() && !temporary::may_follow(target).map_err(disk)? {
        return Err(link_of_another(target));
    }
    let place = target.canonicalize().map_err(disk)?;
    if !place.is_dir() {
        return Err(CommandError::usage(format_args!("{}: exists and is not a directory", target.display()))
            .hint("name an empty or new directory, or a file that ends in .tar"));
    }
    if fs::read_dir(&place).map_err(disk)?.next().is_some() {
        return Err(CommandError::usage(format_args!("{}: is not empty", target.display()))
            .hint("name an empty or new directory; fullbore does not add to an existing layout"));
    }
    let device = |path: &Path| path.metadata().map(|status| status.dev());
    if device(&place).map_err(disk)? != device(place.parent().unwrap_or(Path::new("/"))).map_err(disk)? {
        return Err(CommandError::usage(format_args!("{}: is a mount point", target.display()))
            .context("the layout is moved to its name when it is complete, which a mount point does not allow")
            .hint("name a new directory in it"));
    }
    Ok(place)
}

fn link_of_another(path: &Path) -> CommandError {
    CommandError::usage(format_args!("{}: link of another user", path.display())).hint("name the directory itself")
}

/// Creates a hidden directory beside the target, after those of killed runs are removed.
fn fresh_beside(target: &Path) -> Result<PathBuf, CommandError> {
    let below = target.parent().unwrap_or(Path::new("/"));
    let begin = beside(target);
    clear_abandoned(below, &begin)?;
    fresh(below, &begin)
}

/// Creates a directory with a random name: in a world-writable directory an existing one may belong to another user.
fn fresh(below: &Path, begin: &OsStr) -> Result<PathBuf, CommandError> {
    runs_programs(below)?;
    temporary::directory(below, begin).map_err(|error| CommandError::cannot("create a directory in", below, &error))
}

/// Removes the unfinished roots that killed runs for the same archive left.
///
/// # Errors
/// Another run makes the archive, or a root cannot be removed.
fn clear_abandoned(below: &Path, begin: &OsStr) -> Result<(), CommandError> {
    let disk = |error: std::io::Error| CommandError::cannot("read", below, &error);
    for entry in fs::read_dir(below).map_err(disk)? {
        let entry = entry.map_err(disk)?;
        let path = entry.path();
        if !entry.file_name().as_bytes().starts_with(begin.as_bytes()) {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(directory) = rustix::fs::open(&path, flags, Mode::empty()).map(File::from) else { continue };
        let is_ours = directory.metadata().is_ok_and(|about| about.uid() == rustix::process::geteuid().as_raw());
        let is_marked = rustix::fs::statat(&directory, MARKER, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        if !is_ours || !is_marked {
            continue;
        }
        if directory.try_lock().is_err() {
            return Err(being_made(&path));
        }
        TargetDirectory { root: path, lock: directory, has_content: false }.discard()?;
    }
    Ok(())
}

fn being_made(root: &Path) -> CommandError {
    CommandError::new(ErrorKind::Locked, format_args!("{}: another run makes this root", root.display()))
        .hint("wait for the other `fullbore bootstrap` to end")
}

/// Prefix of the hidden temporary root of an archive.
fn beside(target: &Path) -> OsString {
    let mut begin = OsString::from(".");
    begin.push(target.file_name().unwrap_or_default());
    begin.push(".");
    begin.push(NAME);
    begin
}

fn remove(path: &Path) -> Result<(), CommandError> {
    let is_directory = path.symlink_metadata().is_ok_and(|status| status.is_dir());
    let removed = if is_directory { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.map_err(|error| CommandError::cannot("remove", path, &error))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn names_beside_are_hidden() {
        assert_eq!(beside(Path::new("/x/root.tar")), ".root.tar.fullbore-root.");
    }

    /// What another user may have put where everybody may write, and what a killed run of ours has left.
    #[test]
    fn a_root_for_an_archive_is_not_made_where_others_planned_it() {
        assert!(rustix::process::geteuid().is_root(), "gives directories away: run as root (script/test does)");
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        let begin = OsStr::new(".root.tar.fullbore-root.");
        let at = |end: &str| dir.path().join(format!(".root.tar.fullbore-root{end}"));
        fs::write(outside.path().join(MARKER), "").unwrap();
        std::os::unix::fs::symlink(outside.path(), at(".link")).unwrap();
        for (end, owner) in [("", 65534), (".planted", 65534), (".killed", 0)] {
            fs::create_dir(at(end)).unwrap();
            fs::write(at(end).join(MARKER), "").unwrap();
            std::os::unix::fs::chown(at(end), Some(owner), None).unwrap();
        }
        fs::create_dir(at(".unmarked")).unwrap();
        clear_abandoned(dir.path(), begin).unwrap();
        assert!(!at(".killed").exists(), "ours, and unfinished");
        assert!(["", ".planted", ".unmarked"].iter().all(|end| at(end).is_dir()) && at(".link").is_symlink());
        assert!(outside.path().join(MARKER).exists());
        let root = fresh(dir.path(), begin).unwrap();
        let status = fs::symlink_metadata(&root).unwrap();
        assert_eq!((status.uid(), status.mode() & 0o7777), (0, 0o700));
        let place = TargetDirectory::take(&root, false).unwrap();
        let locked = clear_abandoned(dir.path(), begin).unwrap_err();
        assert_eq!(locked.kind, ErrorKind::Locked);
        drop(place);
        clear_abandoned(dir.path(), begin).unwrap();
        assert!(!root.exists());
    }

    #[test]
    fn a_directory_that_is_there_becomes_roots_and_open_to_all() {
        assert!(rustix::process::geteuid().is_root(), "gives directories away: run as root (script/test does)");
        let dir = tempfile::tempdir().unwrap();
        let state = |path: &Path| {
            let status = fs::metadata(path).unwrap();
            (status.uid(), status.gid(), status.mode() & 0o7777)
        };
        for (name, content) in [("empty", None), ("unfinished", Some(MARKER)), ("full", Some("file"))] {
            let path = dir.path().join(name);
            fs::create_dir(&path).unwrap();
            if let Some(name) = content {
                fs::write(path.join(name), "").unwrap();
            }
            std::os::unix::fs::chown(&path, Some(1000), Some(1000)).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o2700)).unwrap();
            let is_taken = TargetDirectory::take(&path, false).is_ok();
            assert_eq!(is_taken, name != "full");
            assert_eq!(state(&path), if is_taken { (0, 0, 0o755) } else { (1000, 1000, 0o2700) }, "{name}");
        }
    }
}
