//! How a right file ends: visible at once, or when the target reports the result of its commit.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::file::RightFile;
use super::{Cause, Outcome, Shared, locked};
use crate::target::TargetError;

/// Commits whose results the target has not reported yet.
#[derive(Default)]
pub(super) struct PendingCommits {
    count: Mutex<usize>,
    none: Condvar,
}

impl Shared {
    /// Reports a file that is visible.
    pub(super) fn committed(&self, right: RightFile) {
        let RightFile { entry, sources, culprits } = right;
        let spec = &entry.spec;
        self.note_journal(self.journal.finished(&spec.path, spec.size, spec.sha256));
        self.counters.files.fetch_add(1, Ordering::Relaxed);
        if self.close(spec.item).is_some() {
            self.tell(Outcome::Verified { item: spec.item, sources, culprits });
        }
    }

    pub(super) fn failed(&self, item: u32, cause: Cause) {
        if self.close(item).is_some() {
            self.tell(Outcome::Failed { item, cause });
        }
    }

    /// Waits until the target has reported every commit. It always does: by a result, or by dropping the promise.
    pub(super) fn wait_for_commits(&self) {
        let commits = &self.pending_commits;
        let none = commits.none.wait_while(locked(&commits.count), |count| *count > 0);
        drop(none.unwrap_or_else(PoisonError::into_inner));
        self.note_journal(self.journal.flush());
    }
}

/// A commit whose result the target will report.
pub(super) struct PendingCommit {
    shared: Arc<Shared>,
}

impl PendingCommit {
    pub(super) fn begin(shared: &Arc<Shared>) -> PendingCommit {
        *locked(&shared.pending_commits.count) += 1;
        PendingCommit { shared: shared.clone() }
    }

    pub(super) fn end(self, right: RightFile, result: Result<(), TargetError>) {
        match result {
            Ok(()) => self.shared.committed(right),
            Err(error) => self.shared.failed(right.entry.spec.item, error.into()),
        }
    }
}

impl Drop for PendingCommit {
    fn drop(&mut self) {
        let commits = &self.shared.pending_commits;
        let mut count = locked(&commits.count);
        *count -= 1;
        if *count == 0 {
            commits.none.notify_all();
        }
    }
}
