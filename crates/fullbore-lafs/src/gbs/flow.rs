//! How much may be in flight to one server, and where its time goes.
//!
//! The window counts bytes. It begins small, and grows to twice what the connection carries in the time of an
//! acknowledgement: round trip plus server latency. Time is divided in three: idle, bytes on the path, and the server's
//! turn, when it has everything and has not answered.

use std::ops::RangeInclusive;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fullbore_wire::exchange::Activity;
use fullbore_wire::rate::Rate;
use fullbore_wire::tcp_info::TcpInfo;
use tokio::sync::Notify;

/// Smallest window in bytes, whatever is measured: less than the first second of a slow uplink.
pub(crate) const WINDOW_BYTES_MIN: u64 = 256 << 10;
/// Largest window in bytes: 16 MiB carry 1 Gbit/s over 130 ms.
pub const WINDOW_BYTES_MAX: u64 = 16 << 20;
/// First window in bytes, before anything is measured: TCP's slow start takes some round trips to need more.
const WINDOW_BYTES_FIRST: u64 = 1 << 20;

/// Bounds of one write in bytes. The server answers when it has all of it: small writes show progress early, large ones
/// cost the server less, by a millisecond and more each. Measured: 10 MB to ten servers in writes of 64 KiB took twice
/// the servers' processor time of writes of 1 MB. Ten shares' largest writes are a third of the memory for blocks, so
/// that encoding goes on while they are sent.
const WRITE_BYTES: RangeInclusive<u64> = 64 << 10..=2 << 20;
/// Bytes of a write before anything is measured.
const WRITE_BYTES_FIRST: u64 = 256 << 10;
/// A write has the bytes that the connection carries in this time.
const WRITE_TIME: Duration = Duration::from_millis(500);

/// Requests are started ahead of the kernel by what the connection carries in this time. A request that was started has
/// to be sent completely before another can follow, such as one that gives it up.
const AHEAD_TIME: Duration = Duration::from_millis(100);
const AHEAD_BYTES: RangeInclusive<u64> = 16 << 10..=256 << 10;

/// Bytes of an unfinished answer that count as progress. If fewer counted, a server could stall a client with a byte
/// now and then.
const HEARD_BYTES: usize = 1 << 10;

/// How a server's time divides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// Nothing was requested.
    pub idle: Duration,
    /// Bytes waited to be sent, or had not been acknowledged by TCP.
    pub path: Duration,
    /// The server had everything; its answer was awaited.
    pub server: Duration,
}

impl Times {
    /// Time on the path and at the server.
    pub fn busy(&self) -> Duration {
        self.path + self.server
    }
}

/// Measurements of one server.
#[derive(Debug, Clone, Default)]
pub struct FlowReading {
    /// How its time divides.
    pub times: Times,
    /// Bytes in answered requests, in the larger of both directions.
    pub bytes: u64,
    /// Requests answered.
    pub answers: u64,
    /// Sum of the server latencies of all requests.
    pub server_latency: Duration,
    /// Smallest round trip seen by TCP; zero if unknown.
    pub round_trip: Duration,
    /// Times that a request waited for the window.
    pub window_waits: u64,
    /// Connections opened.
    pub connections: u64,
    /// The kernel's counters, over all connections.
    pub sending: Sending,
}

impl FlowReading {
    /// Adds the measurements of another connection to the same server. The times are those of the connection that was
    /// busy for longer.
    pub fn merge(mut self, other: FlowReading) -> FlowReading {
        if other.times.busy() > self.times.busy() {
            self.times = other.times;
        }
        self.bytes += other.bytes;
        self.answers += other.answers;
        self.server_latency += other.server_latency;
        self.round_trip = match (self.round_trip, other.round_trip) {
            (Duration::ZERO, time) | (time, Duration::ZERO) => time,
            (one, two) => one.min(two),
        };
        self.window_waits += other.window_waits;
        self.connections += other.connections;
        self.sending.busy += other.sending.busy;
        self.sending.receive_window += other.sending.receive_window;
        self.sending.send_buffer += other.sending.send_buffer;
        self.sending.retransmitted += other.sending.retransmitted;
        self.sending.window_max = self.sending.window_max.max(other.sending.window_max);
        self
    }
}

/// The kernel's counters of sending, over all connections to a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sending {
    /// Time with data to send or unacknowledged.
    pub busy: Duration,
    /// Part of it limited by the server's receive window.
    pub receive_window: Duration,
    /// Part of it limited by the send buffer, which was empty.
    pub send_buffer: Duration,
    /// Segments retransmitted.
    pub retransmitted: u64,
    /// Largest congestion window in bytes.
    pub window_max: u64,
}

impl Sending {
    /// Adds the increase of a connection's counters since the last reading.
    fn add(&mut self, before: &TcpInfo, now: &TcpInfo) {
        self.busy += now.busy.saturating_sub(before.busy);
        self.receive_window += now.receive_window_limited.saturating_sub(before.receive_window_limited);
        self.send_buffer += now.send_buffer_limited.saturating_sub(before.send_buffer_limited);
        self.retransmitted += u64::from(now.retransmitted_segments.saturating_sub(before.retransmitted_segments));
        self.window_max = self.window_max.max(now.congestion_window_bytes());
    }
}

/// The flow to one server.
#[derive(Debug)]
pub struct Flow {
    state: Mutex<State>,
    home: Notify,
    /// Whether a rate limit holds for all servers together: the path could then carry more than it is given.
    is_limited: bool,
}

#[derive(Debug)]
struct State {
    in_flight: u64,
    window: u64,
    rate: Rate,
    mean_server_latency: Duration,
    /// Congestion window per round trip, in bytes per second: known before the first answer. Never set under a limit.
    path_rate: Option<f64>,
    doing: Activity,
    since: Instant,
    heard: Instant,
    /// Bytes received since.
    unheard: usize,
    reading: FlowReading,
    closed: bool,
}

impl State {
    fn heard_at(&mut self, now: Instant) {
        self.heard = now;
        self.unheard = 0;
    }
}

impl Flow {
    /// A flow with nothing in flight.
    pub fn new(is_limited: bool, now: Instant) -> Flow {
        Flow {
            is_limited,
            state: Mutex::new(State {
                in_flight: 0,
                window: WINDOW_BYTES_FIRST,
                rate: Rate::new(now),
                mean_server_latency: Duration::ZERO,
                path_rate: None,
                doing: Activity::Idle,
                since: now,
                heard: now,
                unheard: 0,
                reading: FlowReading::default(),
                closed: false,
            }),
            home: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `bytes` more may be in flight. A request larger than the window goes alone.
    pub async fn admit(&self, bytes: u64) {
        loop {
            let home = self.home.notified();
            tokio::pin!(home);
            home.as_mut().enable();
            if self.try_admit(bytes) {
                return;
            }
            home.await;
        }
    }

    /// As [`Flow::admit`], without waiting: returns whether the bytes were admitted.
    pub(crate) fn try_admit(&self, bytes: u64) -> bool {
        let mut state = self.state();
        let fits = state.closed || state.in_flight == 0 || state.in_flight + bytes <= state.window;
        if fits {
            state.in_flight += bytes;
        } else {
            state.reading.window_waits += 1;
        }
        fits
    }

    /// Bytes in flight.
    pub fn in_flight(&self) -> u64 {
        self.state().in_flight
    }

    /// Frees bytes that were acknowledged or given up.
    pub fn release(&self, bytes: u64) {
        let mut state = self.state();
        state.in_flight = state.in_flight.saturating_sub(bytes);
        drop(state);
        self.home.notify_waiters();
    }

    /// Records an answered request of `bytes` bytes. The latency counts from when the request was sent and the answer
    /// before it received.
    pub fn answered(&self, bytes: u64, server_latency: Duration, round_trip: Option<Duration>, now: Instant) {
        let mut state = self.state();
        let state = &mut *state;
        state.reading.bytes += bytes;
        state.reading.answers += 1;
        state.reading.server_latency += server_latency;
        state.heard_at(now);
        state.mean_server_latency = (state.mean_server_latency * 7 + server_latency) / 8;
        if let Some(round_trip) = round_trip.filter(|time| !time.is_zero()) {
            let before = state.reading.round_trip;
            state.reading.round_trip = if before.is_zero() { round_trip } else { before.min(round_trip) };
        }
        state.rate.add(bytes, now);
        if let Some(rate) = state.rate.latest() {
            let time = state.reading.round_trip + state.mean_server_latency;
            // Acknowledgements come by whole writes: two more than the path holds.
            let write = write_bytes(rate.max(state.path_rate.unwrap_or_default()));
            let wanted = 2.0 * rate * time.as_secs_f64() + 2.0 * write as f64;
            state.window =
                (wanted as u64).clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX).max(state.window.min(WINDOW_BYTES_FIRST));
        }
    }

    /// Records the kernel's counters. The congestion window tells before any answer what the path can take; slow start
    /// must not wait for answers.
    pub(crate) fn record_tcp_info(&self, before: &TcpInfo, now: &TcpInfo) {
        let mut state = self.state();
        state.reading.sending.add(before, now);
        if !self.is_limited && !now.rtt.is_zero() && now.unacknowledged_segments > 0 {
            state.path_rate = Some(now.congestion_window_bytes() as f64 / now.rtt.as_secs_f64());
        }
        let write = state.path_rate.map_or(WRITE_BYTES_FIRST, write_bytes);
        let wanted = 2 * now.congestion_window_bytes() + 2 * write;
        state.window = state.window.max(wanted.min(WINDOW_BYTES_MAX));
    }

    /// Size of the next write to this server in bytes.
    pub(crate) fn write_bytes(&self) -> u64 {
        match self.carries() {
            Some(rate) => write_bytes(rate),
            None if self.is_limited => *WRITE_BYTES.start(),
            None => WRITE_BYTES_FIRST,
        }
    }

    /// Bytes of started requests that may wait in the connection.
    pub fn ahead_bytes(&self) -> u64 {
        match self.carries() {
            Some(rate) => bytes_in(rate, AHEAD_TIME, AHEAD_BYTES),
            None if self.is_limited => *AHEAD_BYTES.start(),
            None => *AHEAD_BYTES.end(),
        }
    }

    /// Known rate in bytes per second: of answers, or what TCP could send, whichever is higher.
    fn carries(&self) -> Option<f64> {
        let state = self.state();
        state.rate.latest().into_iter().chain(state.path_rate).reduce(f64::max)
    }

    /// Records a change of activity.
    pub fn doing(&self, doing: Activity, now: Instant) {
        let mut state = self.state();
        let passed = now.saturating_duration_since(state.since);
        state.since = now;
        let before = std::mem::replace(&mut state.doing, doing);
        let times = &mut state.reading.times;
        match before {
            Activity::Idle => times.idle += passed,
            Activity::Network => times.path += passed,
            Activity::Server => times.server += passed,
        }
        if before == Activity::Idle && doing != Activity::Idle {
            state.rate.restart(now);
        }
    }

    /// Records a new connection.
    pub fn connected(&self, now: Instant) {
        let mut state = self.state();
        state.reading.connections += 1;
        state.heard_at(now);
    }

    /// Records bytes received.
    pub fn received(&self, bytes: usize, now: Instant) {
        let mut state = self.state();
        state.unheard += bytes;
        if state.unheard >= HEARD_BYTES {
            state.heard_at(now);
        }
    }

    /// Time since the last progress: the end of an answer, or a kilobyte of one.
    pub fn silence(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.state().heard)
    }

    /// Closes the window: the server is given up, and nothing waits any more.
    pub fn close(&self) {
        self.state().closed = true;
        self.home.notify_waiters();
    }

    /// The measurements so far.
    pub fn reading(&self) -> FlowReading {
        self.state().reading.clone()
    }
}

fn write_bytes(rate: f64) -> u64 {
    bytes_in(rate, WRITE_TIME, WRITE_BYTES)
}

fn bytes_in(rate: f64, time: Duration, bounds: RangeInclusive<u64>) -> u64 {
    ((rate * time.as_secs_f64()) as u64).clamp(*bounds.start(), *bounds.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_follows_rate_and_round_trip() {
        let start = Instant::now();
        let grown = |bytes_per_s: u64, round_trip_ms: u64| {
            let flow = Flow::new(false, start);
            for step in 1..=100_u64 {
                let now = start + Duration::from_millis(step * 20);
                flow.answered(bytes_per_s / 50, Duration::ZERO, Some(Duration::from_millis(round_trip_ms)), now);
            }
            flow.state().window
        };
        let (slow, fast, far) = (grown(50_000, 100), grown(20_000_000, 20), grown(20_000_000, 500));
        assert_eq!(slow, WINDOW_BYTES_FIRST);
        assert!(fast > 4 << 20 && fast < 12 << 20, "{fast}");
        assert_eq!(far, WINDOW_BYTES_MAX);
    }

    #[test]
    fn under_a_limit_what_the_path_could_carry_says_nothing() {
        let start = Instant::now();
        let sizes = |is_limited| {
            let flow = Flow::new(is_limited, start);
            let info = TcpInfo { rtt: Duration::from_millis(1), ..TcpInfo::default() };
            let fast = TcpInfo { congestion_window_segments: 100, segment_bytes: 1448, ..info };
            flow.record_tcp_info(&info, &TcpInfo { unacknowledged_segments: 1, ..fast });
            let before = (flow.write_bytes(), flow.ahead_bytes(), flow.state().window);
            (1..=20_u64).for_each(|step| {
                flow.answered(100_000, Duration::ZERO, None, start + Duration::from_millis(step * 500));
            });
            (before, (flow.write_bytes(), flow.ahead_bytes()))
        };
        let wide = 2 * 100 * 1448 + (4 << 20);
        assert_eq!(sizes(false), ((2 << 20, 256 << 10, wide), (2 << 20, 256 << 10)));
        assert_eq!(sizes(true), ((64 << 10, 16 << 10, WINDOW_BYTES_FIRST), (100_000, 20_000)));
    }

    #[tokio::test]
    async fn bytes_wait_for_the_window() {
        let flow = Flow::new(false, Instant::now());
        flow.admit(WINDOW_BYTES_FIRST).await;
        let waiting = flow.admit(1);
        tokio::pin!(waiting);
        assert!(tokio::time::timeout(Duration::from_millis(20), waiting.as_mut()).await.is_err());
        flow.release(10);
        waiting.await;
        assert!(flow.reading().window_waits >= 1);
        flow.close();
        flow.admit(u64::MAX / 2).await;
    }

    #[test]
    fn time_is_divided() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let flow = Flow::new(false, start);
        flow.doing(Activity::Network, at(10));
        flow.doing(Activity::Server, at(30));
        flow.doing(Activity::Idle, at(60));
        let ms = Duration::from_millis;
        assert_eq!(flow.reading().times, Times { idle: ms(10), path: ms(20), server: ms(30) });
        assert_eq!(flow.reading().times.busy(), ms(50));
    }
}
