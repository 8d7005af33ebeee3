//! How many files this process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Most files that a copy or a probe has open, if the system lets it.
const OPEN_FILES: u64 = 65_536;

/// Directories are held open, and small files until they are flushed; the limit that a shell gives is for programs that
/// use select(2).
pub(crate) fn allow() {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(OPEN_FILES).min(OPEN_FILES);
    if limit.current.is_some_and(|current| current < most) {
        // Refused, it stays at what it is: then they are opened more often, and fewer are held.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..limit });
    }
}
