//! Requests that wait for a connection, and the decision who takes which.
//!
//! Connections take from one queue, so that a slow one holds back what it has and nothing else. One that has a request
//! under way takes another only when all have one, both are small, and the store is known to answer with what it
//! was given (see [`Queue::pipeline`]): an answer must be known by its content.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};

use super::pace::Pace;
use super::{Answer, Call, Identity};

/// Requests on one connection before the first is answered. Four small objects fill a packet or two; more would
/// only wait behind one another at the server, which works on one at a time.
pub(super) const PIPELINE_DEPTH: usize = 4;

/// Bodies up to this size go behind one another.
const SMALL_BYTES: u64 = 64 << 10;

/// A connection that cannot be made is tried for so long before anything was ever answered.
const FIRST_CONTACT: Duration = Duration::from_secs(4);

/// And for so long later: servers are restarted.
const LATER_CONTACT: Duration = Duration::from_secs(60);

/// Wait between attempts to connect; each is twice as long, up to the second.
const CONNECT_WAIT: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(4));

/// A request on its way.
#[derive(Debug)]
pub(super) struct Order {
    pub call: Arc<Call>,
    pub identity: Option<Arc<Identity>>,
    pub reply: oneshot::Sender<Result<Answer, String>>,
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
    given_up: Option<String>,
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
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets small requests follow one another on a connection, or ends that.
    pub fn pipeline(&self, allowed: bool) {
        self.pipeline.store(allowed, Ordering::Relaxed);
    }

    /// Puts a request in; true: one more connection is to be opened, and is counted already. The reason comes back
    /// when the store was given up.
    pub fn push(&self, order: Order) -> Result<bool, String> {
        let mut state = self.state();
        if let Some(reason) = &state.given_up {
            return Err(reason.clone());
        }
        state.waiting.push_back(order);
        let open = self.open_another(&mut state);
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

    fn open_another(&self, state: &mut State) -> bool {
        let open = state.waiting.len() > state.idle && state.connections < self.connections_max;
        if open {
            state.connections += 1;
            state.idle += 1;
        }
        open
    }

    fn pipelines(&self, state: &State) -> bool {
        self.pipeline.load(Ordering::Relaxed) && state.idle == 0 && state.connections == self.connections_max
    }

    /// Whether a connection that has a request under way may take another: those without one come first.
    pub fn may_pipeline(&self) -> bool {
        self.pipelines(&self.state())
    }

    /// For a connection with so many requests under way, all of them small or not. True beside it: another
    /// connection is to be opened, and is counted already.
    pub fn take(&self, under_way: usize, all_small: bool, now: Instant) -> (Take, bool) {
        let mut state = self.state();
        let state = &mut *state;
        while state.waiting.front().is_some_and(|order| order.reply.is_closed()) {
            state.waiting.pop_front();
        }
        let Some(first) = state.waiting.front() else { return (Take::Nothing, false) };
        if under_way > 0 {
            let allowed = under_way < PIPELINE_DEPTH && self.pipelines(state);
            if !allowed || !all_small || !first.is_small() {
                if state.idle > 0 {
                    // The call may have been for one that has nothing to do.
                    self.arrived.notify_one();
                }
                return (Take::Nothing, false);
            }
        }
        match state.pace.may(state.in_flight, now) {
            Ok(()) => {}
            Err(Some(until)) => return (Take::Until(until), false),
            Err(None) => return (Take::Nothing, false),
        }
        state.in_flight += 1;
        if under_way == 0 {
            state.idle = state.idle.saturating_sub(1);
        }
        let order = state.waiting.pop_front();
        let open = self.open_another(state);
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
    pub fn not_connected(&self, reason: &str, is_final: bool, now: Instant) -> Option<Duration> {
        let mut state = self.state();
        let (since, attempts) = state.failing_since.unwrap_or((now, 0));
        state.failing_since = Some((since, attempts + 1));
        let limit = if state.answered { LATER_CONTACT } else { FIRST_CONTACT };
        // A store that refuses further connections serves over those that there are.
        let is_over = state.connected == 0 && now.saturating_duration_since(since) >= limit;
        if is_final || is_over {
            state.given_up = Some(reason.to_owned());
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

    /// A connection ended; `was_idle` when it had nothing under way. True: another is to be opened in its place.
    pub fn closed(&self, was_idle: bool) -> bool {
        let mut state = self.state();
        state.connections -= 1;
        state.connected -= 1;
        if was_idle {
            state.idle = state.idle.saturating_sub(1);
        }
        self.open_another(&mut state)
    }

    /// Why the store was given up, if it was.
    pub fn given_up(&self) -> Option<String> {
        self.state().given_up.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_wire::http1::Method;

    fn push(queue: &Queue) -> bool {
        let (reply, receiver) = oneshot::channel();
        // Somebody waits for the answer, for ever.
        std::mem::forget(receiver);
        queue
            .push(Order { call: Arc::new(Call::new(Method::Get, None)), identity: None, reply })
            .expect("the store is not given up")
    }

    #[test]
    fn a_store_that_refuses_further_connections_is_not_given_up() {
        let queue = Queue::new(2);
        let now = Instant::now();
        assert!(push(&queue));
        queue.connected();
        assert!(matches!(queue.take(0, true, now), (Take::Order(_), false)));
        for minute in 0..5 {
            // One connection is busy, and a second one is wanted.
            assert!(push(&queue), "minute {minute}");
            assert_eq!(queue.not_connected("refused", false, now + Duration::from_secs(60 * minute)), None);
            assert_eq!(queue.given_up(), None, "minute {minute}");
        }
    }

    #[tokio::test]
    async fn a_call_that_a_busy_connection_heard_is_passed_on() {
        let queue = Queue::new(2);
        let now = Instant::now();
        assert!(push(&queue));
        queue.connected();
        assert!(matches!(queue.take(0, true, now), (Take::Order(_), _)));
        queue.arrived.notified().await;
        // The second connection waits, and the first hears of the second request.
        assert!(push(&queue));
        queue.connected();
        queue.arrived.notified().await;
        assert!(matches!(queue.take(1, true, now), (Take::Nothing, _)));
        tokio::time::timeout(Duration::from_secs(60), queue.arrived.notified()).await.expect("it is called again");
    }
}
