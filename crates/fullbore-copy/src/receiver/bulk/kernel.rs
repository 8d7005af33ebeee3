//! sync_file_range(2), which has no safe wrapper.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd as _;

/// Writes a range of a file to the disk and waits for it (sync_file_range(2)). It does not flush metadata, but this is
/// only to measure; the real flush comes later. An error means that there is no such cache.
pub(super) fn write_back(file: &File, offset: u64, length: u64) {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the call takes numbers only; the descriptor is open for the borrow's life.
    unsafe { libc::sync_file_range(file.as_raw_fd(), offset as i64, length as i64, flags) };
}
