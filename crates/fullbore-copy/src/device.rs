//! What the disk under a directory is.

use std::os::fd::BorrowedFd;

/// Whether a directory is on a disk whose arm has to be moved. No, if the kernel does not tell.
pub fn is_rotational(directory: BorrowedFd<'_>) -> bool {
    let Ok(status) = rustix::fs::fstat(directory) else { return false };
    let (major, minor) = (rustix::fs::major(status.st_dev), rustix::fs::minor(status.st_dev));
    let device = format!("/sys/dev/block/{major}:{minor}");
    // Disks of virtual machines say so, whatever lies beneath.
    if std::fs::read_link(&device).is_ok_and(|path| path.to_string_lossy().contains("/virtio")) {
        return false;
    }
    // A partition's queue is its disk's.
    let queues = [format!("{device}/queue/rotational"), format!("{device}/../queue/rotational")];
    let text = queues.iter().find_map(|path| std::fs::read_to_string(path).ok());
    text.is_some_and(|text| text.trim() == "1")
}
