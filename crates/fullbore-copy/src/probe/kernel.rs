//! Finds which part of a file is in the page cache. This needs a memory map of the file, and so unsafe code.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;

/// Bytes mapped at once: a vector of 16,384 pages.
const MAP_BYTES: u64 = 64 << 20;

/// Bytes of a part of a file that are in the page cache (mincore(2)), and bytes examined. `None` if the kernel does not
/// tell: since 5.2 it tells only owners and those who may write.
pub(super) fn resident(file: &File, offset: u64, length: u64) -> Option<(u64, u64)> {
    let page = rustix::param::page_size() as u64;
    let metadata = file.metadata().ok()?;
    let user = rustix::process::geteuid();
    if !user.is_root() && metadata.uid() != user.as_raw() {
        return None;
    }
    let offset = offset / page * page;
    let length = metadata.len().checked_sub(offset)?.min(length).min(MAP_BYTES);
    if length == 0 {
        return Some((0, 0));
    }
    let bytes = usize::try_from(length).ok()?;
    let mut pages = vec![0_u8; bytes.div_ceil(page as usize)];
    // SAFETY: a new mapping at an address of the kernel's choice, of an open file; it is never read, so
    // that a file which becomes shorter meanwhile raises no signal.
    let map = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            libc::off_t::try_from(offset).ok()?,
        )
    };
    if map == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping is `bytes` long, and `pages` has a byte for each of its pages.
    let told = unsafe { libc::mincore(map, bytes, pages.as_mut_ptr()) };
    // SAFETY: the mapping made above, unmapped once.
    unsafe { libc::munmap(map, bytes) };
    let here = pages.iter().filter(|page| **page & 1 == 1).count() as u64 * page;
    (told == 0).then_some((here.min(length), length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_just_written_is_in_memory() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, vec![1; 100_000]).unwrap();
        let file = File::open(&path).unwrap();
        assert_eq!(resident(&file, 0, u64::MAX), Some((100_000, 100_000)));
        assert_eq!(resident(&file, 4096, 8192), Some((8192, 8192)));
        assert_eq!(resident(&file, 1 << 30, 1), None);
    }
}
