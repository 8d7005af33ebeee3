//! The one call of the trial that has no safe form.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd as _;

/// Has a part of a file, in bytes, written to the disk, and waits for it (sync_file_range(2)). That it says
/// nothing of the file's metadata is no matter: this is to measure, the flush comes later. Where it fails there
/// is no such cache.
pub(super) fn write_back(file: &File, offset: u64, length: u64) {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the call takes numbers only; the descriptor is open for the borrow's life.
    unsafe { libc::sync_file_range(file.as_raw_fd(), offset as i64, length as i64, flags) };
}
