//! Requests that wait for a connection, and the decision who takes which.
//!
//! Connections take from one queue, so that a slow one holds back what it has and nothing else. One that has a request
//! under way takes another only when all have one, both are small, and the store is known to answer with what it
//! was given (see [`Queue::pipeline`]): an answer must be known by its content. None is begun, and no connection
//! opened for it, while those that are begun fill the path ([`Budget`]).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};

use super::budget::Budget;
use super::pace::Pace;
use super::{Answer, Call, Identity, Unreachable};

/// Requests on one connection before the first is answered. Four small objects fill a packet or two; more would
/// only wait behind one another at the server, which works on one at a time.
pub(super) const PIPELINE_DEPTH: usize = 4;

/// Bodies up to this size go behind one another.
const SMALL_BYTES: u64 = 64 << 10;

/// A connection that cannot be made is tried for so long before anything was ever answered.
const FIRST_CONTACT: Duration = Duration::from_secs(4);

/// And for so long later: servers are restarted.
const LATER_CONTACT: Duration = Duration::from_secs(60);

/// Connections before anything was answered: on a slow uplink the rest would wait for one another.
const FIRST_CONNECTIONS: usize = 16;

/// Time until the budget is asked again: as often as sockets are looked at.
const ROOM_WAIT: Duration = Duration::from_millis(10);

/// Wait between attempts to connect; each is twice as long, up to the second.
const CONNECT_WAIT: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(4));

/// A request on its way.
#[derive(Debug)]
pub(super) struct Order {
    pub call: Arc<Call>,
    pub identity: Option<Arc<Identity>>,
    pub reply: oneshot::Sender<Result<Answer, String>>,
    /// Times that it was written to a connection, or begun to be.
    pub times_sent: u32,
}

impl Order {
    pub fn is_small(&self) -> bool {
        self.call.body.len().max(self.call.answer_bytes_max as u64) <= SMALL_BYTES
    }
}

/// What a connection is to do.
pub(super) enum Take {
    Order(Box<Order>),
    /// Nothing for it now.
    Nothing,
    /// Nothing before this time.
    Until(Instant),
}

/// All requests of a run.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    pub arrived: Notify,
    pipeline: AtomicBool,
    connections_max: usize,
    /// What the sockets may hold.
    pub budget: Budget,
}

#[derive(Debug)]
struct State {
    waiting: VecDeque<Order>,
    in_flight: usize,
    /// Tasks that serve a connection, or try to have one.
    connections: usize,
    /// Of them, those that have a connection.
    connected: usize,
    /// Those that have nothing to do, or will have nothing when they are connected.
    idle: usize,
    pace: Pace,
    answered: bool,
    last_well: Option<Instant>,
    failing_since: Option<(Instant, u32)>,
    given_up: Option<Unreachable>,
    slowed: u64,
}

impl Queue {
    pub fn new(connections_max: usize) -> Queue {
        Queue {
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                in_flight: 0,
                connections: 0,
                connected: 0,
                idle: 0,
                pace: Pace::new(connections_max * PIPELINE_DEPTH),
                answered: false,
                last_well: None,
                failing_since: None,
                given_up: None,
                slowed: 0,
            }),
            arrived: Notify::new(),
            pipeline: AtomicBool::new(false),
            connections_max: connections_max.max(1),
            budget: Budget::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets small requests follow one another on a connection, or ends that.
    pub fn pipeline(&self, allowed: bool) {
        self.pipeline.store(allowed, Ordering::Relaxed);
    }

    /// Puts a request in; the result is how many connections are to be opened, which are counted already. The reason
    /// comes back when the store was given up.
    pub fn push(&self, order: Order) -> Result<usize, Unreachable> {
        let mut state = self.state();
        if let Some(reason) = &state.given_up {
            return Err(reason.clone());
        }
        state.waiting.push_back(order);
        let open = self.open_others(&mut state);
        drop(state);
        self.arrived.notify_one();
        Ok(open)
    }

    /// What was never answered, by no fault of its own: to the front.
    pub fn push_back(&self, orders: impl DoubleEndedIterator<Item = Order>) {
        let mut state = self.state();
        for order in orders.rev() {
            state.in_flight -= 1;
            state.waiting.push_front(order);
        }
        drop(state);
        self.arrived.notify_one();
    }

    fn open_others(&self, state: &mut State) -> usize {
        let most = match (self.budget.is_measured(), self.budget.has_room()) {
            (true, true) => self.connections_max,
            (true, false) => state.connections,
            (false, _) => self.connections_max.min(FIRST_CONNECTIONS),
        };
        // One at least, or nothing would ever be delivered.
        let most = most.max(1);
        let open = state.waiting.len().saturating_sub(state.idle).min(most.saturating_sub(state.connections));
        state.connections += open;
        state.idle += open;
        open
    }

    fn pipelines(&self, state: &State) -> bool {
        self.pipeline.load(Ordering::Relaxed) && state.idle == 0 && state.connections == self.connections_max
    }

    /// Whether a connection that has a request under way may take another: those without one come first.
    pub fn may_pipeline(&self) -> bool {
        self.pipelines(&self.state())
    }

    /// For a connection with so many requests under way, all of them small or not. Beside it: how many connections are
    /// to be opened, which are counted already.
    pub fn take(&self, under_way: usize, all_small: bool, now: Instant) -> (Take, usize) {
        let mut state = self.state();
        let state = &mut *state;
        while state.waiting.front().is_some_and(|order| order.reply.is_closed()) {
            state.waiting.pop_front();
        }
        let Some(first) = state.waiting.front() else { return (Take::Nothing, 0) };
        if under_way > 0 {
            let allowed = under_way < PIPELINE_DEPTH && self.pipelines(state);
            if !allowed || !all_small || !first.is_small() {
                if state.idle > 0 {
                    // The call may have been for one that has nothing to do.
                    self.arrived.notify_one();
                }
                return (Take::Nothing, 0);
            }
        }
        if !self.budget.has_room() {
            return (Take::Until(now + ROOM_WAIT), 0);
        }
        match state.pace.may(state.in_flight, now) {
            Ok(()) => {}
            Err(Some(until)) => return (Take::Until(until), 0),
            Err(None) => return (Take::Nothing, 0),
        }
        state.in_flight += 1;
        if under_way == 0 {
            state.idle = state.idle.saturating_sub(1);
        }
        let order = state.waiting.pop_front();
        let open = self.open_others(state);
        if !state.waiting.is_empty() && state.idle > 0 {
            // One call may have stood for several requests.
            self.arrived.notify_one();
        }
        (order.map_or(Take::Nothing, |order| Take::Order(Box::new(order))), open)
    }

    /// A connection has nothing under way any more.
    pub fn idle(&self) {
        self.state().idle += 1;
    }

    /// A request was answered, or will not be.
    pub fn ended(&self, answered: bool) {
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

    /// An answer that is no plea for less.
    pub fn well(&self) {
        let mut state = self.state();
        state.pace.answered();
        state.last_well = Some(Instant::now());
    }

    /// When the last of them came.
    pub fn last_well(&self) -> Option<Instant> {
        self.state().last_well
    }

    /// The store wants less.
    pub fn slow_down(&self, asked: Option<Duration>, chance: f64, now: Instant) {
        let mut state = self.state();
        state.slowed += 1;
        let in_flight = state.in_flight + 1;
        state.pace.slow_down(in_flight, asked, chance, now);
    }

    /// How often it wanted less.
    pub fn slowed(&self) -> u64 {
        self.state().slowed
    }

    /// A connection is there.
    pub fn connected(&self) {
        let mut state = self.state();
        state.connected += 1;
        state.failing_since = None;
    }

    /// None could be made: how long to wait before the next attempt; `None` when this task is to end, because
    /// others serve, nothing waits, or all is given up.
    pub fn not_connected(&self, reason: Unreachable, now: Instant) -> Option<Duration> {
        let mut state = self.state();
        let (since, attempts) = state.failing_since.unwrap_or((now, 0));
        state.failing_since = Some((since, attempts + 1));
        let limit = if state.answered { LATER_CONTACT } else { FIRST_CONTACT };
        // A store that refuses further connections serves over those that there are.
        let is_over = state.connected == 0 && now.saturating_duration_since(since) >= limit;
        if reason.cause.is_final() || is_over {
            state.given_up = Some(reason);
            // Dropping the replies tells everybody.
            state.waiting.clear();
        }
        let others = state.connections - 1 > 0;
        if state.given_up.is_some() || state.waiting.is_empty() || others {
            state.connections -= 1;
            state.idle = state.idle.saturating_sub(1);
            return None;
        }
        Some((CONNECT_WAIT.0 * 2_u32.pow(attempts.min(8))).min(CONNECT_WAIT.1))
    }

    /// A connection ended; `was_idle` when it had nothing under way. The result is how many are to be opened in its place.
    pub fn closed(&self, was_idle: bool) -> usize {
        let mut state = self.state();
        state.connections -= 1;
        state.connected -= 1;
        if was_idle {
            state.idle = state.idle.saturating_sub(1);
        }
        self.open_others(&mut state)
    }

    /// Why the store was given up, if it was.
    pub fn given_up(&self) -> Option<Unreachable> {
        self.state().given_up.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::call::Barrier;
    use fullbore_wire::http1::Method;

    fn push(queue: &Queue) -> usize {
        let (reply, receiver) = oneshot::channel();
        // Somebody waits for the answer, for ever.
        std::mem::forget(receiver);
        queue
            .push(Order { call: Arc::new(Call::new(Method::Get, None)), identity: None, reply, times_sent: 0 })
            .expect("the store is not given up")
    }

    #[test]
    fn a_store_that_refuses_further_connections_is_not_given_up() {
        let queue = Queue::new(2);
        let now = Instant::now();
        let refused = Unreachable { reason: "refused".into(), cause: Barrier::Silence };
        assert_eq!(push(&queue), 1);
        queue.connected();
        assert!(matches!(queue.take(0, true, now), (Take::Order(_), 0)));
        for minute in 0..5 {
            // One connection is busy, and a second one is wanted.
            assert_eq!(push(&queue), 1, "minute {minute}");
            assert_eq!(queue.not_connected(refused.clone(), now + Duration::from_secs(60 * minute)), None);
            assert_eq!(queue.given_up(), None, "minute {minute}");
        }
    }

    #[test]
    fn a_few_connections_until_something_was_delivered_and_then_as_many_as_wanted() {
        let (queue, now) = (Queue::new(64), Instant::now());
        let opened: usize = (0..40).map(|_| push(&queue)).sum();
        assert_eq!(opened, FIRST_CONNECTIONS);
        queue.connected();
        let granted = queue.budget.reserve(30_000, now);
        assert!(matches!(queue.take(0, true, now), (Take::Until(_), 0)), "the path is full");
        queue.budget.delivered(granted, now + Duration::from_millis(20));
        assert!(matches!(queue.take(0, true, now), (Take::Order(_), 24)), "as many as there are requests");
    }

    #[tokio::test]
    async fn a_call_that_a_busy_connection_heard_is_passed_on() {
        let queue = Queue::new(2);
        let now = Instant::now();
        assert_eq!(push(&queue), 1);
        queue.connected();
        assert!(matches!(queue.take(0, true, now), (Take::Order(_), _)));
        queue.arrived.notified().await;
        // The second connection waits, and the first hears of the second request.
        assert_eq!(push(&queue), 1);
        queue.connected();
        queue.arrived.notified().await;
        assert!(matches!(queue.take(1, true, now), (Take::Nothing, _)));
        tokio::time::timeout(Duration::from_secs(60), queue.arrived.notified()).await.expect("it is called again");
    }
}
