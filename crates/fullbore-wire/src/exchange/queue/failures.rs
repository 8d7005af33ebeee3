//! Reactions to connections that cannot be opened, break or end.

use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use super::super::connection::CloseReason;
use super::super::{Cause, Service, Tolerance, Unreachable};
use super::{Queue, State};

/// Longest wait between attempts to connect.
const CONNECT_BACKOFF_MAX: Duration = Duration::from_secs(4);

/// What a task does after the end of a connection, or of an attempt to connect.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) enum Reconnect {
    /// Open this number of connections instead; they are counted already.
    Open(usize),
    /// Try again after this time.
    Wait(Duration),
    /// Nothing: the server has just been given up.
    GivenUp(Unreachable),
}

impl<S: Service> Queue<S> {
    /// Records a new connection.
    pub(crate) fn connected(&self) {
        let mut state = self.state();
        state.connected += 1;
        if matches!(self.tolerance, Tolerance::Time { .. }) {
            state.failing_since = None;
        }
    }

    /// Records a failed attempt to connect; `timed_out` if it exceeded its limit.
    pub(crate) fn not_connected(&self, reason: Unreachable, timed_out: bool, now: Instant) -> Reconnect {
        let mut state = self.state();
        let attempts = self.failed(&mut state, now);
        let is_over = match self.tolerance {
            // A server that refuses further connections still serves the existing ones.
            Tolerance::Time { first, later } => {
                let since = state.failing_since.map_or(now, |(since, _)| since);
                let limit = if state.answered { later } else { first };
                state.connected == 0 && now.saturating_duration_since(since) >= limit
            }
            Tolerance::Attempts(most) => attempts >= most || timed_out,
        };
        let is_over = is_over || reason.cause.is_final();
        if is_over || state.waiting.is_empty() || state.connections > 1 {
            state.connections -= 1;
            state.idle = state.idle.saturating_sub(1);
            return self.ends(state, is_over.then_some(reason));
        }
        Reconnect::Wait(self.wait(attempts))
    }

    /// Records the end of a connection; `was_idle` if nothing was in flight on it.
    pub(crate) fn closed(&self, ended: CloseReason, was_idle: bool, now: Instant) -> Reconnect {
        let mut state = self.state();
        state.connections -= 1;
        state.connected -= 1;
        if was_idle {
            state.idle = state.idle.saturating_sub(1);
        }
        if state.is_closed {
            // One wake-up may have stood for several connections.
            self.arrived.notify_one();
        }
        let (attempts, reason) = match (self.tolerance, ended) {
            (Tolerance::Time { .. }, _) | (_, CloseReason::Clean) => {
                return Reconnect::Open(self.open_others(&mut state));
            }
            (Tolerance::Attempts(_), CloseReason::Stalled(reason)) => (u32::MAX, reason),
            (Tolerance::Attempts(_), CloseReason::Broken(reason)) => (self.failed(&mut state, now), reason),
        };
        if matches!(self.tolerance, Tolerance::Attempts(most) if attempts >= most) {
            return self.ends(state, Some(Unreachable { reason, cause: Cause::Silence }));
        }
        if state.waiting.is_empty() {
            return Reconnect::Open(0);
        }
        state.connections += 1;
        state.idle += 1;
        Reconnect::Wait(self.wait(attempts))
    }

    /// Counts a further consecutive failure, and returns their number.
    fn failed(&self, state: &mut State<S>, now: Instant) -> u32 {
        let (since, attempts) = state.failing_since.unwrap_or((now, 0));
        state.failing_since = Some((since, attempts + 1));
        attempts + 1
    }

    fn wait(&self, attempts: u32) -> Duration {
        (self.connect_backoff * 2_u32.pow(attempts.clamp(1, 9) - 1)).min(CONNECT_BACKOFF_MAX)
    }

    /// Ends a task; with a reason, gives the server up.
    fn ends(&self, state: MutexGuard<'_, State<S>>, reason: Option<Unreachable>) -> Reconnect {
        drop(state);
        let Some(reason) = reason else { return Reconnect::Open(0) };
        self.give_up(reason.clone());
        Reconnect::GivenUp(reason)
    }

    /// Gives the server up. Dropping the reply channels informs all senders.
    pub(crate) fn give_up(&self, reason: Unreachable) {
        let mut state = self.state();
        self.given_up.send_replace(Some(reason));
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        drop(waiting);
    }

    pub(crate) fn given_up(&self) -> Option<Unreachable> {
        self.given_up.borrow().clone()
    }

    pub(crate) async fn until_given_up(&self) {
        // The sender belongs to `self`, so it outlives this wait.
        let _ = self.given_up.subscribe().wait_for(Option::is_some).await;
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Options;
    use super::super::super::tests::{Plain, small};
    use super::super::Assignment;
    use super::super::tests::{push, queue};
    use super::*;

    fn refused() -> Unreachable {
        Unreachable { reason: "refused".into(), cause: Cause::Silence }
    }

    #[test]
    fn a_server_that_refuses_further_connections_is_not_given_up() {
        let queue = queue(2);
        let now = Instant::now();
        assert_eq!(push(&queue), 1);
        queue.connected();
        assert!(matches!(queue.take(0, 0, now), (Assignment::Request(_), 0)));
        for minute in 0..5 {
            // One connection is busy, and a second one is wanted.
            assert_eq!(push(&queue), 1, "minute {minute}");
            let next = queue.not_connected(refused(), false, now + Duration::from_secs(60 * minute));
            assert_eq!(next, Reconnect::Open(0), "minute {minute}");
            assert_eq!(queue.given_up(), None, "minute {minute}");
        }
    }

    #[test]
    fn a_server_that_is_not_there_is_given_up_after_a_time_or_some_attempts() {
        let (queue, now) = (queue(2), Instant::now());
        assert_eq!(push(&queue), 1);
        assert_eq!(queue.not_connected(refused(), true, now), Reconnect::Wait(Duration::from_millis(250)));
        assert_eq!(queue.not_connected(refused(), true, now), Reconnect::Wait(Duration::from_millis(500)));
        let late = now + Duration::from_secs(4);
        assert_eq!(queue.not_connected(refused(), true, late), Reconnect::GivenUp(refused()));
        assert_eq!(queue.given_up(), Some(refused()));

        let attempts = |timed_out| {
            let queue = Queue::<Plain>::new(&Options { tolerance: Tolerance::Attempts(3), ..small(1) });
            push(&queue);
            (0..3)
                .map(|_| queue.not_connected(refused(), timed_out, now))
                .take_while(|next| *next != Reconnect::GivenUp(refused()))
                .count()
        };
        assert_eq!((attempts(false), attempts(true)), (2, 0), "a limit that passed is all the time there is");
    }
}
