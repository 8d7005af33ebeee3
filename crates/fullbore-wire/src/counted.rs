//! A counter of operations in progress that stays right however they end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts as one until it is dropped.
pub(crate) struct Counted(Arc<AtomicUsize>);

impl Counted {
    pub(crate) fn one_more(count: &Arc<AtomicUsize>) -> Counted {
        count.fetch_add(1, Ordering::Relaxed);
        Counted(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
