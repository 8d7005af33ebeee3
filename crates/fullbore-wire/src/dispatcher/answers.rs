//! Results of requests and connections: bytes, answers, faults, silence.

use std::time::{Duration, Instant};

use super::flight::InFlight;
use super::hedge::SILENCE_UNTIL_HEDGED;
use super::{ConnectionId, Dispatcher, Ended, Keep, SEGMENT_MIN_BYTES};
use crate::hosts::{Fault, HostId, HostState};
use crate::queue::ItemId;

/// The limit of silence while another host delivers: long enough for a disk to spin up.
const SILENCE_LIMIT_AMONG_OTHERS: Duration = Duration::from_millis(3000);

/// A connection is cut as a drip if its rate is below this share of another host's fastest connection, and it would
/// need longer than [`DRIP_PATIENCE_S`] for its requests. Otherwise it is only a slow mirror.
const DRIP_SHARE: f64 = 0.02;
const DRIP_PATIENCE_S: f64 = 10.0;

/// Age from which on a connection may count as a drip.
const DRIP_GRACE: Duration = Duration::from_millis(1500);

/// The slowest rate that counts as alive when there is no other host: a 33.6 kbit/s modem.
pub(crate) const RATE_FLOOR_BYTES_PER_S: f64 = 4200.0;

/// Time for which a connection may be below that rate.
const RATE_FLOOR_PATIENCE: Duration = Duration::from_secs(30);

/// Number of unwanted bytes before wanted ones from which on a new connection is cheaper.
const UNWANTED_CLOSE_BYTES: u64 = 512 << 10;

/// Number of times that a host may break off a file, or have trouble with it, before another host is asked.
const TROUBLES_PER_HOST: u32 = 3;

/// The same limit for answers that ask for patience (429, 503), between which the host is left alone.
const TROUBLES_PER_BUSY_HOST: u32 = 12;

/// A broken answer that delivered this much was progress; the next request continues there.
const PROGRESS_BYTES: u64 = SEGMENT_MIN_BYTES;

impl Dispatcher {
    /// Records body bytes that arrived for a request.
    pub fn received(&mut self, id: ConnectionId, tag: u64, bytes: u64, now: Instant) -> Keep {
        let Some(connection) = self.connections.get_mut(&id) else { return Keep::Close };
        if bytes > 0 {
            // An empty DATA frame of HTTP/2 is no sign of life.
            connection.last_byte = now;
        }
        connection.rate.add(bytes, now);
        let totals = &mut self.hosts[connection.host as usize].totals;
        totals.received_bytes += bytes;
        let Some(asked) = connection.asked.iter_mut().find(|asked| asked.tag == tag) else {
            totals.wasted_bytes += bytes;
            return Keep::First { wanted: 0 };
        };
        let wanted = asked.wanted().min(bytes);
        asked.received += bytes;
        if wanted > 0
            && let (Some(moved), Some(item)) = (&mut self.moved, asked.item_now())
        {
            moved.insert(item);
        }
        totals.wasted_bytes += bytes - wanted;
        self.came_in_vain += bytes - wanted;
        if wanted == 0 {
            let connection = &self.connections[&id];
            let ahead: u64 = connection.asked.iter().take_while(|a| a.wanted() == 0).map(InFlight::unwanted).sum();
            let drain_bytes = self.drain_bytes(connection, connection.rate.at_least());
            if connection.owed() == 0 && ahead > drain_bytes || ahead > UNWANTED_CLOSE_BYTES {
                return Keep::Close;
            }
        }
        Keep::First { wanted }
    }

    /// Records a complete answer that was as requested.
    pub fn answered(&mut self, id: ConnectionId, tag: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.asked.retain(|asked| asked.tag != tag);
        connection.answered += 1;
        connection.completed += 1;
        if !connection.owes() {
            let rtt = self.hosts[connection.host as usize].measured_rtt().unwrap_or_default();
            connection.rate.end(rtt, connection.last_byte);
        }
        self.hosts[connection.host as usize].delivered();
    }

    /// Records that the delay is ours, not the server's: our side had no time to take data, or nothing to request.
    pub(crate) fn waits_for_us(&mut self, id: ConnectionId, now: Instant) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.last_byte = now;
        }
    }

    /// Records a request that the server refused without processing it (HTTP/2: REFUSED_STREAM). It was one too many,
    /// or the host accepts none.
    pub(crate) fn refused_unseen(&mut self, id: ConnectionId, tag: u64, now: Instant) {
        let Some(connection) = self.connections.get(&id) else { return };
        let host = connection.host;
        if let Some(asked) = connection.asked.iter().find(|asked| asked.tag == tag) {
            let (item, size) = (asked.segment.item, asked.segment.size);
            self.trouble(item, size, host, TROUBLES_PER_BUSY_HOST);
        }
        self.unanswered(id, tag, now);
        self.turned_away.remove(host);
        self.fault(host, None, &Fault::Busy { status: 503, retry_after: None }, now);
    }

    /// Takes back a request that was not processed (HTTP/2: GOAWAY) or could not be sent. It is nobody's fault.
    pub fn unanswered(&mut self, id: ConnectionId, tag: u64, now: Instant) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Some(place) = connection.asked.iter().position(|asked| asked.tag == tag) else { return };
        let asked = connection.asked.remove(place).expect("position was just found");
        self.give_back(&asked, now);
    }

    /// Returns the missing bytes of a part to the queue. If they were taken over from a connection that still serves
    /// the rest, it gets them back, so that nothing is fetched twice.
    pub(super) fn give_back(&mut self, asked: &InFlight, now: Instant) {
        let Some(rest) = asked.rest() else { return };
        let excluded = self.queue.excluded(rest.item);
        let giver = self
            .connections
            .values_mut()
            .filter(|connection| !excluded.contains(connection.host))
            .filter(|connection| connection.silent_for(now) < SILENCE_UNTIL_HEDGED)
            .flat_map(|connection| connection.asked.iter_mut())
            .find(|other| {
                !other.is_of_before
                    && other.segment.item == rest.item
                    && other.until == rest.start
                    && other.at() <= rest.start
                    && other.segment.end >= rest.end
                    && !rest.is_empty()
            });
        match giver {
            Some(giver) => giver.until = rest.end,
            None => self.queue.give_back(&rest),
        }
    }

    /// Counts a broken answer or trouble of a host with a file. At the limit, the host is not asked for this file
    /// again; returns true then.
    fn trouble(&mut self, item: ItemId, size: u64, host: HostId, limit: u32) -> bool {
        let history = self.histories.entry(item).or_default();
        let troubles = history.troubles.entry(host).or_default();
        *troubles += 1;
        let was_last = *troubles >= limit;
        if was_last {
            history.failed.insert(host);
            self.queue.exclude(item, size, host);
        }
        was_last
    }

    /// Whether the host is not paused already. A server that goes down takes all its connections with it, and they may
    /// all have served one file.
    fn is_new_incident(&mut self, host: HostId, now: Instant) -> bool {
        matches!(self.hosts[host as usize].state(now), HostState::Up)
    }

    /// Records an answer that was a fault; the connection continues.
    pub fn refused(&mut self, id: ConnectionId, tag: u64, fault: Fault, now: Instant) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.answered += 1;
        connection.last_byte = now;
        let (host, is_detour) = (connection.host, connection.is_detour);
        let Some(place) = connection.asked.iter().position(|asked| asked.tag == tag) else { return };
        let asked = connection.asked.remove(place).expect("position was just found");
        // A store answers 403 both for a missing file and for an expired address. The host gives a new address.
        if is_detour && fault == Fault::Missing(403) && !self.is_last_trouble(host, &asked) {
            self.give_back(&asked, now);
            return;
        }
        self.settle(host, &asked, &fault, now);
    }

    fn is_last_trouble(&mut self, host: HostId, asked: &InFlight) -> bool {
        asked.rest().is_none_or(|rest| self.trouble(rest.item, rest.size, host, TROUBLES_PER_HOST))
    }

    /// Applies a fault of a host with one request to the file and the host.
    pub(super) fn settle(&mut self, host: HostId, asked: &InFlight, fault: &Fault, now: Instant) {
        let item = asked.item_now();
        // Several parts of a wrong file are one fault of the host.
        let is_known =
            matches!(fault, Fault::WrongAnswer(_) | Fault::Refused(_) | Fault::WrongSize(_) | Fault::Elsewhere(_))
                && item.and_then(|item| self.histories.get(&item)).is_some_and(|history| history.failed.contains(host));
        // The host refuses parts taken over from it as well.
        let of_file = asked.rest().map(|rest| rest.item).or(item.filter(|item| self.queue.is_begun(*item)));
        if let Some(item) = of_file {
            self.refuses(item, asked.segment.size, host, fault);
        }
        if let Some(rest) = asked.rest() {
            self.histories.entry(rest.item).or_default().note(host, fault);
            match fault {
                Fault::Busy { .. } if self.limits.caller_retries => {}
                // Told to wait, it is a matter of the host; otherwise it may be one of the file.
                Fault::Busy { status: 429 | 503, .. } => {
                    self.trouble(rest.item, rest.size, host, TROUBLES_PER_BUSY_HOST);
                }
                Fault::Busy { .. } => drop(self.trouble(rest.item, rest.size, host, TROUBLES_PER_HOST)),
                Fault::Broken(_) if asked.received < PROGRESS_BYTES && self.is_new_incident(host, now) => {
                    self.trouble(rest.item, rest.size, host, TROUBLES_PER_HOST);
                }
                _ => {}
            }
            tracing::info!("{}: asked for again, from byte {} on", self.name(rest.item), rest.start);
            self.give_back(asked, now);
        }
        if matches!(fault, Fault::Busy { .. }) && self.limits.caller_retries {
            self.turned_away(host, item, fault, now);
        } else if !is_known && (self.limits.redirects_are_faults || !matches!(fault, Fault::Elsewhere(_))) {
            self.fault(host, item, fault, now);
        }
    }

    /// Records an answer after which the host is not asked for this file again.
    fn refuses(&mut self, item: ItemId, size: u64, host: HostId, fault: &Fault) {
        match fault {
            Fault::Missing(_) => self.histories.entry(item).or_default().misses.insert(host),
            Fault::WrongAnswer(_) | Fault::Refused(_) | Fault::WrongSize(_) | Fault::Elsewhere(_) => {
                self.histories.entry(item).or_default().failed.insert(host);
            }
            Fault::Busy { .. } if self.limits.caller_retries => {
                self.histories.entry(item).or_default().failed.insert(host);
            }
            _ => return,
        };
        self.histories.entry(item).or_default().note(host, fault);
        self.queue.exclude(item, size, host);
    }

    /// Removes a connection; its unfinished requests go back to the queue. False if it never had a request.
    pub fn ended(&mut self, id: ConnectionId, how: &Ended, now: Instant) -> bool {
        let Some(connection) = self.connections.remove(&id) else { return false };
        if let (Ended::Fault(fault), Some(front)) = (how, connection.asked.front())
            && front.received < PROGRESS_BYTES
            && front.rest().is_some()
            && self.is_new_incident(connection.host, now)
        {
            let history = self.histories.entry(front.segment.item).or_default();
            history.note(connection.host, fault);
            self.trouble(front.segment.item, front.segment.size, connection.host, TROUBLES_PER_HOST);
        }
        let owed = connection.asked.iter().filter_map(InFlight::rest).next();
        if let (Ended::Fault(_), Some(rest)) = (how, owed) {
            let (name, others) = (self.name(rest.item), connection.asked.len() - 1);
            tracing::info!("{name}: asked for again, from byte {} on, and {others} requests behind it", rest.start);
        }
        connection.asked.iter().for_each(|asked| self.give_back(asked, now));
        let host = &mut self.hosts[connection.host as usize];
        // Its requests may have been taken over before the first sample was full.
        let brings = connection.owes() && !connection.rate.waits();
        let so_far = || brings.then(|| connection.rate.so_far(host.rtt(), now)).flatten();
        let rate = connection.rate.average().or_else(so_far);
        host.saw_connection_rate(rate, connection.rate.at_least());
        match how {
            // The number of requests that another address allows says nothing about the host's own.
            Ended::Clean if connection.is_detour => {}
            Ended::Clean => {
                host.closed_after(connection.answered);
                if connection.next_tag > 0 {
                    host.completed_before_close(connection.completed, now);
                }
            }
            Ended::Ours => {}
            Ended::Fault(fault) => {
                // A fault before the answer began says nothing about its file.
                let is_of_front = |front: &&InFlight| {
                    front.received > 0 || matches!(fault, Fault::WrongAnswer(_) | Fault::WrongSize(_))
                };
                let item = connection.asked.front().filter(is_of_front).and_then(InFlight::item_now);
                self.fault(connection.host, item, fault, now);
            }
        }
        connection.next_tag > 0
    }

    /// Records that a connection could not be opened.
    pub(crate) fn not_opened(&mut self, host: HostId, fault: &Fault, now: Instant) {
        self.opening[host as usize] = self.opening[host as usize].saturating_sub(1);
        self.fault(host, None, fault, now);
        self.not_reached(host, fault, now);
    }

    /// Whether the connection must be given up because of silence or drips. Call it about every 250 ms.
    pub(crate) fn overdue(&mut self, id: ConnectionId, now: Instant) -> Option<Fault> {
        let connection = self.connections.get_mut(&id)?;
        if !connection.owes() {
            return None;
        }
        connection.rate.settle(now);
        let connection = &self.connections[&id];
        let fastest = self.fastest_elsewhere(connection.host);
        let silence = if fastest.is_some() { SILENCE_LIMIT_AMONG_OTHERS } else { self.limits.silence };
        if connection.silent_for(now) > silence {
            return Some(Fault::Slow);
        }
        let age = now.saturating_duration_since(connection.opened);
        let rate = connection.rate.average().unwrap_or(0.0);
        let patience_s = connection.until_last_wanted() as f64 / rate.max(1.0);
        let drips = fastest.is_some_and(|fastest| rate < DRIP_SHARE * fastest)
            && age > DRIP_GRACE
            && patience_s > DRIP_PATIENCE_S;
        let dead_slow = rate < RATE_FLOOR_BYTES_PER_S && age > RATE_FLOOR_PATIENCE && patience_s > DRIP_PATIENCE_S;
        (drips || dead_slow).then_some(Fault::Slow)
    }
}
