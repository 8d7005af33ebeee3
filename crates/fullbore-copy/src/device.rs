//! The type of disk under a directory.

use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::path::Path;

use fullbore_engine::verdict::Device;

/// Whether a directory is on a rotational disk. False if the kernel does not tell.
pub(crate) fn is_rotational(directory: BorrowedFd<'_>) -> bool {
    Device::under(Path::new(&format!("/proc/self/fd/{}", directory.as_raw_fd()))).is_rotational()
}
