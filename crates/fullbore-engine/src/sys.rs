//! The system calls that no safe library offers us: today one.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// Asks the kernel to start writing back the dirty pages of a range, and does not
/// wait for them (`sync_file_range(2)` with `SYNC_FILE_RANGE_WRITE`). No promise of
/// durability comes with it. `len_bytes` 0 means to the end of the file.
///
/// # Errors
/// As the system call; `EIO` and `ENOSPC` are real, `EINVAL`, `ENOSYS` and `ESPIPE`
/// only say that this kind of file has nothing to start.
pub fn start_write_back(file: BorrowedFd<'_>, offset: u64, len_bytes: u64) -> io::Result<()> {
    let too_far = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let offset = libc::off64_t::try_from(offset).map_err(too_far)?;
    let len = libc::off64_t::try_from(len_bytes).map_err(too_far)?;
    // SAFETY: no memory is passed; the descriptor is borrowed, hence open during the call.
    let result = unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
