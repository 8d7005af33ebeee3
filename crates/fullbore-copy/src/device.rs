//! What the disk under a directory is.

use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::path::Path;

use fullbore_engine::verdict::Device;

/// Whether a directory is on a disk whose arm has to be moved. No, if the kernel does not tell.
pub(crate) fn is_rotational(directory: BorrowedFd<'_>) -> bool {
    Device::under(Path::new(&format!("/proc/self/fd/{}", directory.as_raw_fd()))).is_rotational()
}
