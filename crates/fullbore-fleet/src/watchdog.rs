//! Decides when a planner looks at the store, and what it does about missing files.
//!
//! An empty or silent queue proves nothing: a server may have lost its data, hide messages, or be gone. So the planner
//! lists the store in three cases: the queue has no tasks of the run, no worker has transferred a byte for a minute, or
//! the queue has not answered for a minute. Missing files then go out as a new round, or the planner fetches them
//! itself.

use std::time::Duration;

use crate::queue::Counts;

/// Time without a transferred byte after which the planner looks. Longer than a store may need to answer, and than
/// tasks of a dead worker wait (see [`ACK_WAIT`](crate::queue::ACK_WAIT)).
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Time without an answer of the queue after which the planner continues without it. A restart takes seconds.
const UNREACHABLE_MAX: Duration = Duration::from_secs(60);

/// Time after the last publication in which an empty queue proves nothing: a server counts a task slightly after it has
/// accepted it.
const COUNTED_AFTER: Duration = Duration::from_millis(500);

/// Most rounds through the queue; then the planner fetches the rest itself. The second round is for lost tasks, the
/// third for bad luck. Files that are still missing fail for a reason that a fourth would meet again.
const ROUNDS_MAX: u32 = 3;

/// What the planner has to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    /// Nothing: the queue works.
    Wait,
    /// List the store, and call [`Watchdog::looked`].
    Look,
}

/// What to do after listing the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Nothing is missing.
    Publish,
    /// Announce this round and publish its tasks.
    Round {
        /// Number of the round.
        round: u32,
        /// Whether tasks of the last round must be removed from the queue first.
        purges: bool,
    },
    /// Fetch the rest without the queue.
    Alone,
}

/// Watches the progress of a run.
#[derive(Debug, Clone)]
pub struct Watchdog {
    first_round: u32,
    round: u32,
    /// When a worker last moved a byte, or the round began.
    moved: Duration,
    moved_bytes: u64,
    /// When the queue last answered.
    answered: Duration,
    counts: Counts,
    has_counts: bool,
    all_published: bool,
    /// When that last became true.
    published: Duration,
    has_lost_data: bool,
}

impl Watchdog {
    /// Watches a run that begins with this round. Times count from the planner's start.
    pub fn new(now: Duration, round: u32) -> Watchdog {
        Watchdog {
            first_round: round,
            round,
            moved: now,
            moved_bytes: 0,
            answered: now,
            counts: Counts::default(),
            has_counts: false,
            all_published: false,
            published: now,
            has_lost_data: false,
        }
    }

    /// The current round.
    pub fn round(&self) -> u32 {
        self.round
    }

    /// Records that all tasks of the round are in the queue.
    pub fn all_published(&mut self, now: Duration) {
        self.all_published = true;
        self.published = now;
        self.has_counts = false;
        self.answered = now;
    }

    /// Records an answer of the queue with the run's tasks.
    pub fn counted(&mut self, now: Duration, counts: Counts) {
        self.answered = now;
        if self.all_published && counts == Counts::default() && now.saturating_sub(self.published) < COUNTED_AFTER {
            return;
        }
        self.counts = counts;
        self.has_counts = true;
    }

    /// Records an answer of the queue that it does not know the run.
    pub fn lost(&mut self, now: Duration) {
        self.answered = now;
        self.has_lost_data = true;
    }

    /// Total bytes that all workers have fetched, sent and stored, as far as the planner knows. The sum may shrink when
    /// a worker is replaced.
    pub fn moved(&mut self, now: Duration, bytes: u64) {
        if self.moved_bytes != bytes {
            self.moved_bytes = bytes;
            self.moved = now;
        }
    }

    /// Decides what to do now.
    pub fn watch(&self, now: Duration) -> Watch {
        let is_drained = self.all_published && self.has_counts && self.counts.waiting == 0 && self.counts.held == 0;
        if is_drained || self.has_lost_data || now.saturating_sub(self.moved) >= SILENCE_MAX || self.is_unreachable(now)
        {
            Watch::Look
        } else {
            Watch::Wait
        }
    }

    /// Decides what to do about this number of files that the store lacks.
    pub fn looked(&mut self, now: Duration, missing_files: usize) -> Next {
        if missing_files == 0 {
            return Next::Publish;
        }
        if self.round - self.first_round + 1 >= ROUNDS_MAX || self.is_unreachable(now) {
            return Next::Alone;
        }
        let purges = !self.has_lost_data && (self.counts != Counts::default() || !self.has_counts);
        self.round += 1;
        self.moved = now;
        (self.all_published, self.has_counts, self.has_lost_data) = (false, false, false);
        Next::Round { round: self.round, purges }
    }

    fn is_unreachable(&self, now: Duration) -> bool {
        now.saturating_sub(self.answered) >= UNREACHABLE_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_drained_queue_leads_to_a_look_at_the_store() {
        let mut watchdog = Watchdog::new(Duration::ZERO, 1);
        watchdog.counted(SECOND, Counts::default());
        assert_eq!(watchdog.watch(SECOND), Watch::Wait, "nothing is published yet");
        watchdog.all_published(2 * SECOND);
        assert_eq!(watchdog.watch(2 * SECOND), Watch::Wait, "the counts are older");
        watchdog.counted(3 * SECOND, Counts { waiting: 0, held: 1 });
        assert_eq!(watchdog.watch(3 * SECOND), Watch::Wait);
        watchdog.counted(4 * SECOND, Counts::default());
        assert_eq!(watchdog.watch(4 * SECOND), Watch::Look);
        assert_eq!(watchdog.looked(4 * SECOND, 0), Next::Publish);
    }

    #[test]
    fn a_queue_that_counts_late_is_not_taken_for_a_drained_one() {
        let mut watchdog = Watchdog::new(Duration::ZERO, 1);
        watchdog.all_published(SECOND);
        watchdog.counted(SECOND + COUNTED_AFTER / 2, Counts::default());
        assert_eq!(watchdog.watch(SECOND + COUNTED_AFTER / 2), Watch::Wait);
        watchdog.counted(SECOND + COUNTED_AFTER, Counts::default());
        assert_eq!(watchdog.watch(SECOND + COUNTED_AFTER), Watch::Look);
    }

    /// F8
    #[test]
    fn a_queue_that_hides_tasks_gets_a_new_round() {
        let mut watchdog = Watchdog::new(Duration::ZERO, 1);
        watchdog.all_published(SECOND);
        watchdog.counted(2 * SECOND, Counts::default());
        assert_eq!(watchdog.watch(2 * SECOND), Watch::Look);
        assert_eq!(watchdog.looked(3 * SECOND, 7), Next::Round { round: 2, purges: false });
        assert_eq!(watchdog.watch(3 * SECOND), Watch::Wait);
    }

    #[test]
    fn silence_leads_to_a_look_even_if_the_queue_answers() {
        let mut watchdog = Watchdog::new(Duration::ZERO, 1);
        watchdog.all_published(Duration::ZERO);
        for number in 1..60 {
            watchdog.counted(number * SECOND, Counts { waiting: 3, held: 2 });
            assert_eq!(watchdog.watch(number * SECOND), Watch::Wait, "{number}");
        }
        watchdog.counted(60 * SECOND, Counts { waiting: 3, held: 2 });
        assert_eq!(watchdog.watch(60 * SECOND), Watch::Look);
        assert_eq!(watchdog.looked(60 * SECOND, 7), Next::Round { round: 2, purges: true });
        watchdog.moved(70 * SECOND, 1);
        watchdog.counted(129 * SECOND, Counts { waiting: 3, held: 2 });
        assert_eq!(watchdog.watch(129 * SECOND), Watch::Wait);
    }

    /// F9
    #[test]
    fn a_queue_that_is_gone_leaves_the_planner_alone() {
        let mut watchdog = Watchdog::new(Duration::ZERO, 1);
        watchdog.moved(59 * SECOND, 5);
        assert_eq!(watchdog.watch(59 * SECOND), Watch::Wait);
        assert_eq!(watchdog.watch(60 * SECOND), Watch::Look);
        assert_eq!(watchdog.looked(60 * SECOND, 7), Next::Alone);
    }

    /// F5
    #[test]
    fn a_queue_that_was_wiped_gets_a_new_round() {
        let mut watchdog = Watchdog::new(Duration::ZERO, 1);
        watchdog.all_published(SECOND);
        watchdog.counted(2 * SECOND, Counts { waiting: 3, held: 2 });
        watchdog.lost(3 * SECOND);
        assert_eq!(watchdog.watch(3 * SECOND), Watch::Look);
        assert_eq!(watchdog.looked(3 * SECOND, 7), Next::Round { round: 2, purges: false });
        assert_eq!(watchdog.watch(4 * SECOND), Watch::Wait);
    }

    #[test]
    fn after_three_rounds_the_planner_fetches_the_rest() {
        let mut watchdog = Watchdog::new(Duration::ZERO, 1);
        assert_eq!(watchdog.looked(SECOND, 7), Next::Round { round: 2, purges: true });
        assert_eq!(watchdog.looked(SECOND, 7), Next::Round { round: 3, purges: true });
        assert_eq!(watchdog.looked(SECOND, 7), Next::Alone);
    }
}
