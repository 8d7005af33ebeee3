//! A single file that a command writes, under a temporary name beside the final one until it is complete.
//!
//! The next run that begins a file at the same place removes what killed runs have left
//! ([`temporary::remove_abandoned`]), or resumes it ([`Output::resume_as_before`]).

use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::files::note;
use crate::files::tree::{Mtime, set_times};
use crate::temporary;

/// Mode 0666 of files that everybody may read, before the umask.
pub const FOR_ALL: u32 = 0o666;

/// Mode 0600 of files for their owner alone.
pub const PRIVATE: u32 = 0o600;

/// Suffix of temporary names.
const ENDING: &str = ".part";

/// Maximum number of bytes of the final name that its temporary name repeats.
const NAME_BYTES_MAX: usize = 200;

/// A file that has no final name yet. Unless [`Output::publish`] or [`Output::keep`] is called, dropping it removes it.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    part: PathBuf,
    file: File,
    /// Do not remove the temporary name: it was renamed, or is to stay.
    stays: bool,
}

impl Output {
    /// Begins a file that will be at `path`.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if `path` has no file name; the errors of [`place`]; the system's error if the
    /// temporary file cannot be created beside it.
    pub fn begin(path: &Path, mode: u32) -> io::Result<Output> {
        Output::begin_or_resume(path, mode, false)
    }

    fn begin_or_resume(path: &Path, mode: u32, resumes: bool) -> io::Result<Output> {
        let path = place(path)?;
        let Some(name) = path.file_name() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "is not the name of a file"));
        };
        let mut begin = std::ffi::OsString::from(".");
        // A name has at most 255 bytes, including a temporary one.
        begin.push(OsStr::from_bytes(&name.as_bytes()[..name.len().min(NAME_BYTES_MAX)]));
        begin.push(".");
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let taken = if resumes { temporary::take_abandoned(directory, &begin, ENDING) } else { None };
        temporary::remove_abandoned(directory, &begin, ENDING, Metadata::is_file);
        if let Some((part, file)) = taken {
            return Ok(Output { path, part, file, stays: false });
        }
        let (part, file) = temporary::with_name(&begin, ENDING, |name| {
            let part = path.with_file_name(name);
            let file = OpenOptions::new().read(true).write(true).create_new(true).mode(mode).open(&part)?;
            temporary::keep(&file, &part)?;
            Ok((part, file))
        })?;
        Ok(Output { path, part, file, stays: false })
    }

    /// As [`Output::begin`]. If a file is replaced, the new one gets its mode, and its owner where the system allows
    /// that; otherwise it gets [`FOR_ALL`].
    ///
    /// # Errors
    /// As [`Output::begin`], and the system's error if the mode cannot be set.
    pub fn begin_as_before(path: &Path) -> io::Result<Output> {
        Output::begin(path, FOR_ALL)?.with_old_mode()
    }

    /// As [`Output::begin_as_before`], with the content that a killed run or [`Output::keep`] has left, if there is
    /// any.
    ///
    /// # Errors
    /// As [`Output::begin_as_before`].
    pub fn resume_as_before(path: &Path) -> io::Result<Output> {
        Output::begin_or_resume(path, FOR_ALL, true)?.with_old_mode()
    }

    fn with_old_mode(self) -> io::Result<Output> {
        let output = self;
        if let Ok(before) = fs::symlink_metadata(&output.path)
            .and_then(|about| if about.is_file() { Ok(about) } else { Err(io::ErrorKind::NotFound.into()) })
        {
            // Only root may change the owner; otherwise the file is ours, like any new one.
            let _ = std::os::unix::fs::fchown(&output.file, Some(before.uid()), Some(before.gid()));
            // Set-user-id and set-group-id bits were meant for the old content.
            output.file.set_permissions(fs::Permissions::from_mode(before.mode() & 0o777))?;
        }
        Ok(output)
    }

    /// The temporary file, for writing the content.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Path of the temporary file, for programs that write to a name.
    pub fn part(&self) -> &Path {
        &self.part
    }

    /// The final path that `publish` gives the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets the modification time of the file.
    ///
    /// # Errors
    /// The error of `futimens`, unchanged.
    pub fn set_mtime(&self, mtime: Mtime) -> io::Result<()> {
        Ok(set_times(&self.file, mtime)?)
    }

    /// Waits until all content is on the disk.
    ///
    /// # Errors
    /// The error of `fsync`: the content may not be on the disk.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// Renames the temporary file to its final path.
    ///
    /// # Errors
    /// The error of `rename`; the temporary file is removed then.
    pub fn publish(mut self) -> io::Result<()> {
        note::clear(&self.file);
        fs::rename(&self.part, &self.path)?;
        self.stays = true;
        Ok(())
    }

    /// Leaves the unfinished file to a run that resumes it.
    pub fn keep(mut self) {
        self.stays = true;
    }

    /// Version of the content as noted by an earlier run, such as an ETag.
    pub fn version(&self) -> Option<String> {
        note::get(&self.file)
    }

    /// Discards all content.
    ///
    /// # Errors
    /// The error of `ftruncate`, unchanged.
    pub fn start_over(&self) -> io::Result<()> {
        note::clear(&self.file);
        self.file.set_len(0)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.stays {
            let _ = fs::remove_file(&self.part);
        }
    }
}

/// Writes a whole file: a reader finds the old or the new one.
///
/// # Errors
/// The system's error if the temporary file cannot be created ([`Output::begin`]), written or renamed. An old file at
/// `path` stays then.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let output = Output::begin(path, FOR_ALL)?;
    output.file().write_all(bytes)?;
    output.publish()
}

/// Maximum number of symbolic links followed, as in the kernel (path_resolution(7)).
const LINKS_MAX: usize = 40;

/// Resolves symbolic links at `path` to the place where a rename may put a file.
///
/// # Errors
/// - [`io::ErrorKind::Other`] if the place is not a regular file, or lies in `/dev` or `/proc`. A rename would replace
///   `/dev/null` or `/dev/stdout` by a plain file, for the whole machine.
/// - [`io::ErrorKind::PermissionDenied`] for another user's link in a directory like /tmp, which the kernel would not
///   follow either.
/// - [`io::ErrorKind::Other`] for a chain of more than 40 links; the system's error if a link cannot be read.
pub fn place(path: &Path) -> io::Result<PathBuf> {
    let mut place = path.to_owned();
    for _ in 0..LINKS_MAX {
        match fs::symlink_metadata(&place) {
            Ok(about) if about.is_symlink() => {
                if !temporary::may_follow(&place)? {
                    return Err(io::Error::new(
                        io::ErrorKind::PermissionDenied,
                        "a link of another user in a directory where all may write is not followed",
                    ));
                }
                let target = fs::read_link(&place)?;
                place = place.parent().unwrap_or(Path::new("")).join(target);
                if ["/proc", "/dev"].iter().any(|system| place.starts_with(system)) {
                    return Err(io::Error::other(format!(
                        "leads to {}, which is not replaced by a file",
                        place.display()
                    )));
                }
            }
            Ok(about) if !about.is_file() => return Err(io::Error::other("is not a file, and is not replaced by one")),
            _ => return Ok(place),
        }
    }
    Err(io::Error::other("too many links"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names in a directory, in order.
    fn names(directory: &Path) -> Vec<String> {
        let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn what_a_killed_run_left_of_a_file_stayed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let left = [".file.0123456789abcdef.part", ".file.fedcba9876543210.part"];
        left.iter().for_each(|name| fs::write(at(name), "left by a kill").unwrap());
        // Names that no run of ours gives, or gives to other files, and things that are no files.
        let others =
            [".file.part", ".file.0123456789abcde.part", ".file.0123456789ABCDEF.part", ".file2.0123456789abcdef.part"];
        others.iter().for_each(|name| fs::write(at(name), "of somebody else").unwrap());
        std::os::unix::fs::symlink(at(".file.part"), at(".file.1111111111111111.part")).unwrap();
        fs::create_dir(at(".file.2222222222222222.part")).unwrap();
        let mode = rustix::fs::Mode::RUSR;
        let pipe = at(".file.3333333333333333.part");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let before = names(dir.path());
        let one = Output::begin(&at("file"), PRIVATE).unwrap();
        let kept: Vec<_> = before.iter().filter(|name| !left.contains(&name.as_str())).cloned().collect();
        assert_eq!(names(dir.path()).len(), kept.len() + 1);
        // Of another run that is writing it.
        let two = Output::begin(&at("file"), PRIVATE).unwrap();
        assert!(one.part().exists() && two.part().exists());
        two.publish().unwrap();
        one.publish().unwrap();
        let mut after = kept;
        after.push("file".to_owned());
        after.sort();
        assert_eq!(names(dir.path()), after);
    }

    #[test]
    fn nothing_is_left_of_a_file_that_was_not_published() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "old").unwrap();
        let output = Output::begin(&path, PRIVATE).unwrap();
        output.file().write_all(b"new").unwrap();
        drop(output);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        write_atomically(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(Output::begin(dir.path(), PRIVATE).is_err(), "a directory is not replaced");
        let longest = dir.path().join("x".repeat(255));
        write_atomically(&longest, b"new").unwrap();
        assert_eq!(fs::read(&longest).unwrap(), b"new");
    }

    #[test]
    fn what_a_killed_run_left_is_taken_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let output = Output::begin_as_before(&path).unwrap();
        output.file().write_all(b"beginning").unwrap();
        note::settle(output.file(), 9, Some("version")).unwrap();
        output.keep();
        let output = Output::resume_as_before(&path).unwrap();
        assert_eq!(output.file().metadata().unwrap().len(), 9);
        // Not every file system keeps notes.
        assert!(output.version().is_none_or(|version| version == "version"));
        assert_eq!(Output::resume_as_before(&path).unwrap().file().metadata().unwrap().len(), 0, "it is kept");
        output.publish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"beginning");
        assert!(note::get(File::open(&path).unwrap()).is_none());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let output = Output::resume_as_before(&path).unwrap();
        output.file().write_all(b"x").unwrap();
        output.keep();
        Output::begin_as_before(&path).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "who does not take it up removes it");
    }

    #[test]
    fn the_mode_of_a_replaced_file_was_lost() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mode = || fs::metadata(&path).unwrap().mode() & 0o7777;
        Output::begin_as_before(&path).unwrap().publish().unwrap();
        let new = mode();
        assert_eq!(new & 0o111, 0, "a new file is no program");
        for (before, after) in [(0o600, 0o600), (0o640, 0o640), (0o4755, 0o755), (0o444, 0o444)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(before)).unwrap();
            Output::begin_as_before(&path).unwrap().publish().unwrap();
            assert_eq!(mode(), after, "{before:o}");
        }
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("file", &link).unwrap();
        Output::begin_as_before(&link).unwrap().publish().unwrap();
        assert!(link.is_symlink() && mode() == 0o444, "of what the link leads to");
    }

    #[test]
    fn links_are_written_through_but_those_to_devices_and_open_files_stay() {
        let dir = tempfile::tempdir().unwrap();
        let (link, far) = (dir.path().join("latest"), dir.path().join("far"));
        fs::create_dir(&far).unwrap();
        for there in [false, true] {
            let _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(if there { "far/page" } else { "far/new" }, &link).unwrap();
            fs::write(far.join("page"), "old").unwrap();
            write_atomically(&link, b"new").unwrap();
            assert!(link.is_symlink());
            assert_eq!(fs::read(&link).unwrap(), b"new");
        }
        let open = File::create(dir.path().join("log")).unwrap();
        let open = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open));
        for target in [open.as_str(), "/proc/self/fd/1", "/dev/null", "far"] {
            fs::remove_file(&link).unwrap();
            std::os::unix::fs::symlink(target, &link).unwrap();
            assert!(write_atomically(&link, b"new").is_err(), "{target}");
            assert!(link.is_symlink());
        }
        assert!(write_atomically(Path::new("/dev/null"), b"new").is_err());
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink("latest", &link).unwrap();
        assert!(place(&link).is_err(), "a loop");
    }
}
