//! Opens files and directories beneath a directory. Nothing outside it is reached, and no symbolic link is followed.
//!
//! With `openat2` and `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS` (Linux 5.6), the kernel refuses every way out. Where the
//! call is missing or filtered (old kernels, some container sandboxes), the path is opened component by component with
//! `O_NOFOLLOW`. That refuses the same paths, at the cost of one call per component.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

pub(super) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Flags for an existing file. NONBLOCK: a pipe in its place must not block the open.
const FILE: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Opens a regular file for reading.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] if a symbolic link is on the way, or the entry is not a regular file. Other errors
/// of the system are returned unchanged, such as `ENOENT` and `EACCES`.
pub(crate) fn open_file(directory: impl AsFd, path: &Path) -> io::Result<File> {
    let directory = directory.as_fd();
    let opened = match by_kernel(directory, path, FILE) {
        Err(Errno::NOSYS | Errno::PERM) => by_steps(directory, path, FILE),
        result => result,
    };
    let replaced = |what| io::Error::new(io::ErrorKind::InvalidInput, what);
    let file = match opened {
        Ok(descriptor) => File::from(descriptor),
        Err(Errno::LOOP | Errno::XDEV) => return Err(replaced("a symbolic link is in its place now")),
        // A socket, and a pipe without a reader, cannot be opened.
        Err(Errno::NXIO) => return Err(replaced("it is not a regular file any more")),
        Err(errno) => return Err(errno.into()),
    };
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(replaced("it is not a regular file any more")),
    }
}

/// Opens a directory. The empty path is the directory itself.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] if a symbolic link is on the way. Other errors of the system are returned unchanged,
/// such as `ENOENT`, `ENOTDIR` and `EACCES`.
pub(crate) fn open_directory(directory: impl AsFd, path: &Path) -> io::Result<File> {
    let directory = directory.as_fd();
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let opened = match by_kernel(directory, path, DIRECTORY) {
        Err(Errno::NOSYS | Errno::PERM) => by_steps(directory, path, DIRECTORY),
        result => result,
    };
    match opened {
        Ok(descriptor) => Ok(File::from(descriptor)),
        Err(Errno::LOOP | Errno::XDEV) => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "a symbolic link is on the way"))
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Opens with `openat2`.
pub(super) fn by_kernel(directory: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(directory, path, flags, Mode::empty(), resolve)
}

/// Opens component by component; a `..` gives `EXDEV`.
pub(super) fn by_steps(directory: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut current = rustix::io::fcntl_dupfd_cloexec(directory, 0)?;
    let mut parts = path.as_os_str().as_bytes().split(|byte| *byte == b'/').map(OsStr::from_bytes).peekable();
    while let Some(part) = parts.next() {
        if part == ".." {
            return Err(Errno::XDEV);
        }
        let flags = if parts.peek().is_some() { DIRECTORY } else { flags };
        current = rustix::fs::openat(&current, part, flags, Mode::empty())?;
    }
    Ok(current)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_link_put_in_the_place_of_a_file_or_directory_was_followed() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("root");
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/b/file"), "inside").unwrap();
        fs::create_dir(place.path().join("out")).unwrap();
        fs::write(place.path().join("out/file"), "outside").unwrap();
        symlink("file", root.join("a/b/link")).unwrap();
        symlink("b/file", root.join("a/deep")).unwrap();
        symlink("../out", root.join("out")).unwrap();
        symlink("a", root.join("within")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, root.join("pipe"), rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
        let directory = File::open(&root).unwrap();
        for path in
            ["a/b/file", "a/b/link", "a/deep", "out/file", "within/b/file", "../out/file", "pipe", "socket", "a"]
        {
            let opened = open_file(&directory, Path::new(path));
            assert_eq!(opened.is_ok(), path == "a/b/file", "{path}: {opened:?}");
            let kernel = by_kernel(directory.as_fd(), Path::new(path), FILE);
            let steps = by_steps(directory.as_fd(), Path::new(path), FILE);
            assert_eq!(kernel.is_ok(), steps.is_ok(), "{path}: {kernel:?}, {steps:?}");
        }
        let missing = open_file(&directory, Path::new("a/none")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
