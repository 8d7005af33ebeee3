//! The system calls that no safe library offers; there are two.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Asks the kernel to start writing back the dirty pages of a range, and does not wait for them (`sync_file_range(2)`
/// with `SYNC_FILE_RANGE_WRITE`). No promise of durability comes with it. `len_bytes` 0 means to the end of the file.
///
/// # Errors
/// The error of the call. `EIO` and `ENOSPC` are real; `EINVAL`, `ENOSYS` and `ESPIPE` only mean that this kind of file
/// has nothing to start.
pub(crate) fn start_write_back(file: BorrowedFd<'_>, offset: u64, len_bytes: u64) -> io::Result<()> {
    let too_far = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let offset = libc::off64_t::try_from(offset).map_err(too_far)?;
    let len = libc::off64_t::try_from(len_bytes).map_err(too_far)?;
    // SAFETY: no memory is passed; the descriptor is borrowed, hence open during the call.
    let result = unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

static STDOUT_WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether descriptor 1 was closed when the process began, as with `>&-` of a shell.
///
/// Before `main`, Rust's runtime opens `/dev/null` in its place, and output to it is lost without an error. Later the
/// two cases cannot be distinguished: Python's `DEVNULL` is also `/dev/null`, opened for reading and writing.
pub fn stdout_was_closed() -> bool {
    STDOUT_WAS_CLOSED.load(Ordering::Relaxed)
}

extern "C" fn look_at_stdout() {
    // SAFETY: no memory is passed; an error for a closed descriptor is the answer sought.
    if unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) } < 0 {
        STDOUT_WAS_CLOSED.store(true, Ordering::Relaxed);
    }
}

// The C library calls the functions of this section before `main`, and so before Rust's runtime begins. SAFETY: the
// section takes pointers to C functions. The arguments that glibc passes are ignored, which the C calling convention
// allows. The function makes one system call and one atomic store, and needs nothing of the runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK_AT_STDOUT: extern "C" fn() = look_at_stdout;
