//! A umask of one thread's own, which takes one unsafe call.

#![allow(unsafe_code)]

use rustix::fs::Mode;
use rustix::thread::UnshareFlags;

/// Gives the calling thread a umask of its own, 0, so that files get their mode when they are created. If that fails,
/// the thread keeps the umask of the process and sets modes afterwards.
pub(super) fn clear_own_mask() {
    // SAFETY: the thread stops sharing working directory, root and umask. fullbore started it, it ends with the work,
    // and it only uses paths relative to descriptors.
    let unshared = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) };
    if unshared.is_ok() {
        rustix::process::umask(Mode::empty());
    }
}
