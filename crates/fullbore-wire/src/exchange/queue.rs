//! Requests that wait for a connection, and the decision which connection takes which request.
//!
//! Connections take from one queue, so that a slow one delays only the requests that it has. With
//! [`Pipelining::Small`], a connection with a request in flight takes another one only under three conditions. All
//! connections are busy, both requests are small, and every answer shows by its content which request it belongs to.
//! While started requests fill the path ([`Sockets`]), no request is started, and no connection is opened for one.

mod failures;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};

use super::pace::Pace;
use super::request::Request;
use super::{Options, Pipelining, Service, Sockets, Tolerance, Unreachable};
pub(super) use failures::Reconnect;

/// Maximum number of connections before the first delivery: on a slow uplink, more would wait for one another.
const FIRST_CONNECTIONS: usize = 16;

/// Time until the budget is checked again: as often as sockets are observed.
const ROOM_WAIT: Duration = Duration::from_millis(10);

/// Work for a connection.
pub(super) enum Assignment<S: Service> {
    Request(Box<Request<S>>),
    /// No work now.
    Nothing,
    /// No work before this time.
    Until(Instant),
}

/// All requests to a server.
pub(super) struct Queue<S: Service> {
    state: Mutex<State<S>>,
    pub arrived: Notify,
    pipeline: AtomicBool,
    pipelining: Pipelining,
    depth: usize,
    connections_max: usize,
    connect_backoff: Duration,
    tolerance: Tolerance,
    sockets: Arc<Sockets>,
    given_up: watch::Sender<Option<Unreachable>>,
}

struct State<S: Service> {
    waiting: VecDeque<Request<S>>,
    in_flight: usize,
    /// Number of tasks that serve a connection or try to open one.
    connections: usize,
    /// Number of these tasks that have a connection.
    connected: usize,
    /// Number of these tasks without work, now or once they are connected.
    idle: usize,
    pace: Pace,
    answered: bool,
    last_success: Option<Instant>,
    failing_since: Option<(Instant, u32)>,
    slowed: u64,
    /// No more requests will come.
    is_closed: bool,
}

impl<S: Service> Queue<S> {
    pub(super) fn new(options: &Options) -> Queue<S> {
        Queue {
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                in_flight: 0,
                connections: 0,
                connected: 0,
                idle: 0,
                pace: Pace::new(options.connections * options.depth),
                answered: false,
                last_success: None,
                failing_since: None,
                slowed: 0,
                is_closed: false,
            }),
            arrived: Notify::new(),
            pipeline: AtomicBool::new(options.pipelining == Pipelining::Always),
            pipelining: options.pipelining,
            depth: options.depth,
            connections_max: options.connections.max(1),
            connect_backoff: options.connect_backoff,
            tolerance: options.tolerance,
            sockets: Arc::clone(&options.sockets),
            given_up: watch::Sender::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn pipeline(&self, allowed: bool) {
        self.pipeline.store(allowed, Ordering::Relaxed);
    }

    /// Counts a connection that is opened before any request needs it.
    pub(crate) fn open_first(&self) {
        let mut state = self.state();
        state.connections += 1;
        state.idle += 1;
    }

    /// Adds a request. Returns the number of connections that the caller must open; they are counted already.
    pub(super) fn push(&self, request: Request<S>) -> Result<usize, Unreachable> {
        let mut state = self.state();
        if let Some(reason) = self.given_up() {
            return Err(reason);
        }
        state.waiting.push_back(request);
        let open = self.open_others(&mut state);
        drop(state);
        self.arrived.notify_one();
        Ok(open)
    }

    /// Returns requests, unanswered through no fault of theirs, to the front of the queue.
    pub(super) fn push_back(&self, requests: impl DoubleEndedIterator<Item = Request<S>>) {
        let mut state = self.state();
        for request in requests.rev() {
            state.in_flight -= 1;
            state.waiting.push_front(request);
        }
        drop(state);
        self.arrived.notify_one();
    }

    pub(crate) fn is_waiting(&self) -> bool {
        !self.state().waiting.is_empty()
    }

    /// Announces that no more requests will come.
    pub(super) fn close(&self) {
        self.state().is_closed = true;
        // Wakes all waiting tasks, and one that is about to wait; that one passes the wake-up on (`closed`).
        self.arrived.notify_waiters();
        self.arrived.notify_one();
    }

    /// Whether the queue is closed and empty.
    pub(super) fn is_over(&self) -> bool {
        let state = self.state();
        state.is_closed && state.waiting.is_empty()
    }

    fn has_room(&self) -> bool {
        self.pipelining == Pipelining::Always || self.sockets.budget.has_room()
    }

    fn open_others(&self, state: &mut State<S>) -> usize {
        let most = match (self.sockets.budget.is_measured(), self.has_room()) {
            (true, true) => self.connections_max,
            (true, false) => state.connections,
            (false, _) => self.connections_max.min(FIRST_CONNECTIONS),
        };
        // At least one, or nothing would ever be delivered.
        let most = most.max(1);
        let open = state.waiting.len().saturating_sub(state.idle).min(most.saturating_sub(state.connections));
        state.connections += open;
        state.idle += open;
        open
    }

    fn pipelines(&self, state: &State<S>) -> bool {
        self.pipelining == Pipelining::Always
            || (self.pipeline.load(Ordering::Relaxed) && state.idle == 0 && state.connections == self.connections_max)
    }

    /// Whether a connection with `large` large requests in flight may take another one. Connections without a request
    /// come first.
    pub(crate) fn may_pipeline(&self, large: usize) -> bool {
        self.pipelining == Pipelining::Always || (large == 0 && self.pipelines(&self.state()))
    }

    /// Takes work for a connection with `in_flight` requests, `large` of them not small. Also returns the number of
    /// connections that the caller must open; they are counted already.
    pub(super) fn take(&self, in_flight: usize, large: usize, now: Instant) -> (Assignment<S>, usize) {
        let mut state = self.state();
        let state = &mut *state;
        while state.waiting.front().is_some_and(|request| request.reply.is_closed()) {
            state.waiting.pop_front();
        }
        let Some(first) = state.waiting.front() else { return (Assignment::Nothing, 0) };
        if in_flight > 0 {
            let suits = self.pipelining == Pipelining::Always || (large == 0 && first.is_small());
            if in_flight >= self.depth || !suits || !self.pipelines(state) {
                if state.idle > 0 {
                    // The wake-up may have been for an idle connection.
                    self.arrived.notify_one();
                }
                // When the request was added, there may have been no room for a further connection.
                return (Assignment::Nothing, self.open_others(state));
            }
        }
        if !self.has_room() {
            return (Assignment::Until(now + ROOM_WAIT), 0);
        }
        match state.pace.may(state.in_flight, now) {
            Ok(()) => {}
            Err(Some(until)) => return (Assignment::Until(until), 0),
            Err(None) => return (Assignment::Nothing, 0),
        }
        state.in_flight += 1;
        if in_flight == 0 {
            state.idle = state.idle.saturating_sub(1);
        }
        let request = state.waiting.pop_front();
        let open = self.open_others(state);
        if !state.waiting.is_empty() && state.idle > 0 {
            // One wake-up may have stood for several requests.
            self.arrived.notify_one();
        }
        (request.map_or(Assignment::Nothing, |request| Assignment::Request(Box::new(request))), open)
    }

    /// Records that a connection has nothing in flight any more.
    pub(super) fn idle(&self) {
        self.state().idle += 1;
    }

    /// Records that a request was answered, or will not be.
    pub(super) fn ended(&self, answered: bool) {
        let mut state = self.state();
        state.in_flight -= 1;
        if answered {
            state.answered = true;
            state.failing_since = None;
        }
        let held = !state.waiting.is_empty() && state.idle > 0;
        drop(state);
        if held {
            self.arrived.notify_one();
        }
    }

    pub(super) fn record_success(&self) {
        let mut state = self.state();
        state.pace.answered();
        state.last_success = Some(Instant::now());
    }

    pub(super) fn last_success(&self) -> Option<Instant> {
        self.state().last_success
    }

    pub(super) fn slow_down(&self, asked: Option<Duration>, chance: f64, now: Instant) {
        let mut state = self.state();
        state.slowed += 1;
        let in_flight = state.in_flight + 1;
        state.pace.slow_down(in_flight, asked, chance, now);
    }

    pub(super) fn slowed(&self) -> u64 {
        self.state().slowed
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::tests::{Plain, small};
    use super::super::{Body, Expected};
    use super::*;
    use tokio::sync::oneshot;

    pub(crate) fn queue(connections: usize) -> Queue<Plain> {
        Queue::new(&small(connections))
    }

    pub(crate) fn push(queue: &Queue<Plain>) -> usize {
        let (reply, receiver) = oneshot::channel();
        // Somebody waits for the answer, for ever.
        std::mem::forget(receiver);
        let (job, body) = ("/".to_owned(), Body::Memory(Vec::new()));
        let request = Request { job, body, length: 0, expected: Expected::default(), reply, times_sent: 0 };
        queue.push(request).expect("the server is not given up")
    }

    #[test]
    fn few_connections_open_until_the_first_delivery() {
        let (queue, now) = (queue(64), Instant::now());
        let opened: usize = (0..40).map(|_| push(&queue)).sum();
        assert_eq!(opened, FIRST_CONNECTIONS);
        queue.connected();
        let granted = queue.sockets.budget.reserve(30_000, 0, now);
        assert!(matches!(queue.take(0, 0, now), (Assignment::Until(_), 0)), "the path is full");
        queue.sockets.budget.delivered(granted, now + Duration::from_millis(20));
        assert!(matches!(queue.take(0, 0, now), (Assignment::Request(_), 24)), "as many as there are requests");
    }

    #[tokio::test]
    async fn a_call_that_a_busy_connection_heard_is_passed_on() {
        let queue = queue(2);
        let now = Instant::now();
        assert_eq!(push(&queue), 1);
        queue.connected();
        assert!(matches!(queue.take(0, 0, now), (Assignment::Request(_), _)));
        queue.arrived.notified().await;
        // The second connection waits, and the first hears of the second request.
        assert_eq!(push(&queue), 1);
        queue.connected();
        queue.arrived.notified().await;
        assert!(matches!(queue.take(1, 0, now), (Assignment::Nothing, _)));
        tokio::time::timeout(Duration::from_secs(60), queue.arrived.notified()).await.expect("it is called again");
    }
}
