//! Reads the kernel's counters of a connection: which requests have arrived at the server, and whether there is
//! progress.

use std::time::{Duration, Instant};

use super::super::{Activity, Measurement, Service, Shared, Tolerance};
use super::in_flight::InFlight;
use super::{CloseReason, Connection};
use crate::tcp_info::TcpInfo;

/// Bytes of a connection without progress for this time do not count in the budget any more: others need the room.
const STUCK: Duration = Duration::from_secs(2);

impl<S: Service> Connection<'_, S> {
    /// Reads the kernel's counters, and records which requests have arrived at the server.
    pub(super) fn refresh_tcp_info(&mut self) {
        let info = match self.connected.tcp.read() {
            Some(info) => info,
            None => TcpInfo::uncounted(self.written(), self.received_bytes),
        };
        self.shared.service.record(Measurement::Counters(&self.info, &info));
        self.info = info;
        let now = Instant::now();
        self.confirm(info.in_kernel_bytes(), now);
        if !info.path_rtt().is_zero() {
            self.shared.options.sockets.budget.round_trip(info.path_rtt());
        }
        let (written, flushed) = (self.written(), self.writer.flushed);
        let left = |in_flight: &&mut InFlight<S>| in_flight.written.is_some() && (flushed || in_flight.end < written);
        for in_flight in self.in_flight.iter_mut().take_while(left) {
            in_flight.arrival.update(&info, now);
        }
    }

    /// Removes delivered bytes from the budget. At most `under_way` bytes are still in flight.
    pub(super) fn confirm(&mut self, under_way: u64, now: Instant) {
        let arrived = self.unconfirmed.saturating_sub(under_way);
        if arrived > 0 {
            self.unconfirmed -= arrived;
            self.shared.options.sockets.budget.delivered(arrived, now);
        }
    }

    /// Checks for progress. `Some` ends the connection.
    pub(super) fn check(&mut self) -> Option<CloseReason> {
        let now = Instant::now();
        let Shared { options, service, .. } = &**self.shared;
        self.checked = now;
        let Some(front) = self.in_flight.front() else {
            service.record(Measurement::Activity(Activity::Idle));
            let idle = now.saturating_duration_since(self.last_answer) >= options.idle_timeout;
            return (idle || !self.is_usable()).then_some(CloseReason::Clean);
        };
        // Large requests whose senders have gone are not worth their bytes.
        let is_abandoned = front.request.reply.is_closed()
            && self.in_flight.iter().all(|one| one.request.reply.is_closed() && !one.request.is_small());
        if is_abandoned && matches!(options.tolerance, Tolerance::Time { .. }) {
            return Some(CloseReason::Broken("not wanted any more".into()));
        }
        self.refresh_tcp_info();
        let front = self.in_flight.front()?;
        // A long answer that has begun is on the path, not at the server.
        let is_at_server = front.arrival.at().is_some() && front.answering.is_none();
        service.record(Measurement::Activity(if is_at_server { Activity::Server } else { Activity::Network }));
        let received = if front.request.expected.is_progress { self.info.bytes_received } else { 0 };
        let moved = self.info.bytes_acknowledged + received;
        // A request that waits for its turn to be written is not a stall.
        let holds_nothing = self.info.in_kernel_bytes() == 0 && self.writer.waiting(&mut self.http) > 0;
        if moved != self.progress.0 || self.allowance.held_until(now).is_some() || holds_nothing {
            self.progress = (moved, now);
        }
        let still = now.saturating_duration_since(self.progress.1);
        if still >= STUCK {
            options.sockets.budget.give_back(std::mem::take(&mut self.unconfirmed));
        }
        let reason = || format!("stalled: nothing moved for {} s", options.stall_timeout.as_secs());
        (still >= options.stall_timeout).then(|| CloseReason::Stalled(reason()))
    }
}
