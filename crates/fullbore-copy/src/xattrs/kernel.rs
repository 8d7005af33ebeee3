//! `listxattrat` (Linux 6.13), which has no safe wrapper yet. Without it the names of a file's attributes need a path
//! through `/proc`. That costs three times as much, and is needed for every file.

#![allow(unsafe_code)]

use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

use crate::entry::NAME_BYTES;

/// Number of the system call, the same on all architectures that Rust supports (`include/uapi/asm-generic/unistd.h`).
const LISTXATTRAT: libc::c_long = 465;

/// Whether the kernel turned out not to have the call, or not to allow it.
static MISSING: AtomicBool = AtomicBool::new(false);

/// Lists the attributes of a name in an open directory, without following a symbolic link. `None` if the kernel has no
/// such call.
pub(super) fn list_at(directory: BorrowedFd<'_>, name: &[u8], names: &mut [u8]) -> Option<Result<usize, Errno>> {
    if MISSING.load(Ordering::Relaxed) || name.len() > NAME_BYTES || name.contains(&0) {
        return None;
    }
    let mut path = [0_u8; NAME_BYTES + 1];
    path[..name.len()].copy_from_slice(name);
    // SAFETY: `path` ends with a zero and `names` is as long as the kernel is told; both live until it returns.
    let count = unsafe {
        libc::syscall(
            LISTXATTRAT,
            directory.as_raw_fd(),
            path.as_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
            names.as_mut_ptr(),
            names.len(),
        )
    };
    if count >= 0 {
        return Some(Ok(count as usize));
    }
    let error = Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO);
    if matches!(error, Errno::NOSYS | Errno::PERM) {
        MISSING.store(true, Ordering::Relaxed);
        return None;
    }
    Some(Err(error))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn names_are_those_that_a_path_leads_to() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("file"), "x").unwrap();
        std::os::unix::fs::symlink("file", directory.path().join("link")).unwrap();
        let set = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(directory.path().join("file"), "user.one", b"1", set).unwrap();
        let open = std::fs::File::open(directory.path()).unwrap();
        let mut names = [0; 256];
        // A kernel without it is no fault of ours.
        let Some(listed) = list_at(open.as_fd(), b"file", &mut names) else { return };
        assert!(names[..listed.unwrap()].split(|byte| *byte == 0).any(|name| name == b"user.one"));
        let listed = list_at(open.as_fd(), b"link", &mut names).unwrap();
        assert!(!names[..listed.unwrap_or(0)].split(|byte| *byte == 0).any(|name| name == b"user.one"));
        assert_eq!(list_at(open.as_fd(), b"none", &mut names), Some(Err(Errno::NOENT)));
        assert_eq!(list_at(open.as_fd(), b"file", &mut [0; 2]), Some(Err(Errno::RANGE)));
    }
}
