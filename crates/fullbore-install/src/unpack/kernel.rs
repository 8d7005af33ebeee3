//! One system call: a file mode mask of one thread's own.

#![allow(unsafe_code)]

use rustix::fs::Mode;
use rustix::thread::UnshareFlags;

/// Gives the calling thread a umask of its own, 0, so that files get their mode when they are created. If that fails,
/// the thread keeps the umask of the process and sets modes afterwards.
pub(super) fn clear_own_mask() {
    // SAFETY: what is no longer shared is working directory, root and mask of a thread that we
    // started, that ends with our work, and that uses paths relative to descriptors only.
    let unshared = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) };
    if unshared.is_ok() {
        rustix::process::umask(Mode::empty());
    }
}
