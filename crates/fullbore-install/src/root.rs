//! A package root: a directory that is treated as `/`.
//!
//! Every path is resolved from the root's descriptor with `openat2` and `RESOLVE_IN_ROOT` (Linux 5.6): absolute links
//! stay within the root, and no path leads out of it. (dpkg with `--root` follows absolute links out of the root.) On
//! older kernels, and in containers whose filter does not know the call, the module `steps` resolves paths part by
//! part.

mod edit;
mod steps;

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use fullbore_engine::run::error::{CommandError, ErrorKind};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

pub(crate) use edit::set_mode;

const RESOLVE: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);

/// Maximum size of a file to read, in bytes. The status file of a machine with 5,000 packages has 6 MB.
pub const FILE_BYTES_MAX: u64 = 256 << 20;

/// A failed operation in a root.
#[derive(Debug, thiserror::Error)]
#[error("{}: cannot {operation}: {source}", path.display())]
pub struct RootError {
    /// Path of the file within the root.
    pub path: PathBuf,
    /// The failed operation, as a verb for the message.
    pub operation: &'static str,
    /// The error that the system returned.
    #[source]
    pub source: io::Error,
}

impl RootError {
    pub(crate) fn new(path: &[u8], operation: &'static str, error: impl Into<io::Error>) -> RootError {
        RootError { path: as_path(path).to_owned(), operation, source: error.into() }
    }
}

impl From<RootError> for CommandError {
    fn from(error: RootError) -> CommandError {
        CommandError::new(ErrorKind::Disk, error)
    }
}

/// A package root: a directory whose paths are resolved as if it were `/`.
///
/// ```
/// use fullbore_install::root::Root;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let directory = tempfile::tempdir()?;
/// let root = Root::open(directory.path())?;
/// root.create_directories("usr/lib/os", 0o755)?;
/// root.symlink("/usr/lib", "lib")?;
/// root.write("lib/os/name", 0o644, b"Debian")?;
/// // The absolute link leads to the directory in the root.
/// assert_eq!(std::fs::read(directory.path().join("usr/lib/os/name"))?, b"Debian");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Root {
    path: PathBuf,
    handle: OwnedFd,
    /// Whether the kernel has openat2(2).
    has_openat2: bool,
    /// One descriptor per file system, opened before the first write, so that no write-back error is missed.
    file_systems: Mutex<Vec<(u64, OwnedFd)>>,
}

impl Root {
    /// Opens the directory `path` as a root.
    ///
    /// # Errors
    /// [`RootError`] if the path is not a directory, or cannot be opened.
    pub fn open(path: &Path) -> Result<Root, RootError> {
        let error =
            |errno| RootError { path: path.to_owned(), operation: "open the root", source: io::Error::from(errno) };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::open(path, flags, Mode::empty()).map_err(error)?;
        let tried = retry(|| rustix::fs::openat2(&handle, c".", flags, Mode::empty(), RESOLVE));
        // The filter of a container may return either.
        let has_openat2 = !matches!(tried, Err(Errno::NOSYS | Errno::PERM));
        let root = Root { path: path.to_owned(), handle, has_openat2, file_systems: Mutex::default() };
        let again = root.directory(b"").map_err(error)?;
        root.note_file_system(again.as_fd(), rustix::fs::fstat(&again).map_err(error)?.st_dev).map_err(error)?;
        Ok(root)
    }

    /// Path of the root, as given to [`Root::open`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Descriptor of the root directory, opened by [`Root::open`].
    pub fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    /// Opens a directory for resolving names in it; all links are followed.
    pub(crate) fn directory(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let path = if path.is_empty() { b"." } else { path };
        self.resolve(path, OFlags::PATH | OFlags::DIRECTORY)
    }

    /// Opens a path; all links are followed.
    fn resolve(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::CLOEXEC;
        if self.has_openat2 {
            retry(|| rustix::fs::openat2(&self.handle, path, flags, Mode::empty(), RESOLVE))
        } else {
            steps::open(self.handle.as_fd(), path, flags)
        }
    }

    /// Remembers the file system of a directory for [`Root::sync`].
    pub(crate) fn note_file_system(&self, directory: BorrowedFd<'_>, device: u64) -> Result<(), Errno> {
        let mut known = self.file_systems.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.iter().any(|(other, _)| *other == device) {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            known.push((device, rustix::fs::openat(directory, ".", flags, Mode::empty())?));
        }
        Ok(())
    }

    /// Reads a file; `None` if it does not exist.
    ///
    /// # Errors
    /// [`RootError`] if the file cannot be read, or exceeds [`FILE_BYTES_MAX`].
    pub fn read(&self, path: &str) -> Result<Option<Vec<u8>>, RootError> {
        let error = |error: io::Error| RootError::new(path.as_bytes(), "read", error);
        let file = match self.resolve(path.as_bytes(), OFlags::RDONLY | OFlags::NONBLOCK) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(errno) => return Err(error(errno.into())),
        };
        let mut content = Vec::new();
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut content).map_err(error)?;
        if content.len() as u64 > FILE_BYTES_MAX {
            return Err(error(io::ErrorKind::FileTooLarge.into()));
        }
        Ok(Some(content))
    }

    /// Names in a directory, without `.` and `..`; empty if it does not exist.
    ///
    /// # Errors
    /// [`RootError`] if the path exists and is not a readable directory.
    pub fn names(&self, path: &str) -> Result<Vec<Vec<u8>>, RootError> {
        let error = |errno: Errno| RootError::new(path.as_bytes(), "list", errno);
        let directory = match self.resolve(path.as_bytes(), OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Ok(Vec::new()),
            Err(errno) => return Err(error(errno)),
        };
        edit::names_in(directory).map_err(error)
    }

    /// Syncs the file systems of the root.
    ///
    /// # Errors
    /// [`RootError`] for a write-back error since the root was opened; the kernel does not name the file.
    pub(crate) fn sync(&self) -> Result<(), RootError> {
        let known = self.file_systems.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, descriptor) in known.iter() {
            rustix::fs::syncfs(descriptor).map_err(|errno| RootError::new(b"/", "sync", errno))?;
        }
        Ok(())
    }
}

/// Writes a file in a directory and replaces any file or link of this name.
pub(crate) fn write_file(directory: BorrowedFd<'_>, name: &str, mode: u32, content: &[u8]) -> io::Result<OwnedFd> {
    // The name may be a link of another user, which must not be followed.
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let create = || rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(0o600));
    let file = match create() {
        Err(Errno::EXIST) => {
            rustix::fs::unlinkat(directory, name, AtFlags::empty())?;
            create()?
        }
        file => file?,
    };
    let mut file = File::from(file);
    file.write_all(content)?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
    Ok(file.into())
}

/// Retries interrupted calls, and those that return EAGAIN because names changed while the kernel resolved `..`.
pub(crate) fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::AGAIN | Errno::INTR) => {}
            result => return result,
        }
    }
}

/// Path of a file of the root as seen from outside, with all links resolved within the root. The file need not exist.
/// For programs and libraries that take paths: a process that changes the root at the same time can redirect them.
///
/// # Errors
/// `ELOOP` if the path leads through more than 40 symbolic links.
pub fn within(root: &Path, path: &Path) -> io::Result<PathBuf> {
    /// Maximum number of links, as in the kernel (path_resolution(7)).
    const LINKS_MAX: usize = 40;
    let steps = |path: &Path| path.components().rev().map(|step| step.as_os_str().to_owned()).collect::<Vec<_>>();
    let (mut ahead, mut at, mut links) = (steps(path), PathBuf::new(), 0);
    while let Some(step) = ahead.pop() {
        match Path::new(&step).components().next() {
            Some(Component::RootDir) => at.clear(),
            Some(Component::ParentDir) => {
                at.pop();
            }
            Some(Component::Normal(name)) => match fs::read_link(root.join(&at).join(name)) {
                Ok(target) if links < LINKS_MAX => {
                    links += 1;
                    ahead.extend(steps(&target));
                }
                Ok(_) => return Err(Errno::LOOP.into()),
                Err(_) => at.push(name),
            },
            _ => {}
        }
    }
    Ok(root.join(at))
}

/// Whether a path leads to the same file for programs in the root and for those outside, which follow absolute links
/// out of it. For a missing file its existing parent directories count.
///
/// # Errors
/// `ELOOP` for too many symbolic links, or the system's error if a directory of the path cannot be searched.
pub fn is_same_outside(root: &Path, path: &Path) -> io::Result<bool> {
    let inside = within(root, path)?;
    let outside = root.join(path.strip_prefix("/").unwrap_or(path));
    // A dangling link exists as well: writing to it creates its target.
    let there = outside.ancestors().find(|path| path.symlink_metadata().is_ok()).unwrap_or(root);
    let missing = outside.strip_prefix(there).unwrap_or(Path::new(""));
    match there.canonicalize() {
        Ok(led_to) => Ok(led_to.join(missing) == inside),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

pub(crate) fn as_path(path: &[u8]) -> &Path {
    use std::os::unix::ffi::OsStrExt as _;
    Path::new(std::ffi::OsStr::from_bytes(path))
}
