//! The limit on open files of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Most files that a copy or a probe has open, if the system allows it. Guess.
const OPEN_FILES: u64 = 65_536;

/// Raises the limit on open files. A copy holds directories open, and small files until they are flushed. The low
/// default is for programs that use select(2).
pub(crate) fn allow() {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(OPEN_FILES).min(OPEN_FILES);
    if limit.current.is_some_and(|current| current < most) {
        // If the system refuses, the limit stays: the copy then keeps fewer files open and opens them more often.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..limit });
    }
}
