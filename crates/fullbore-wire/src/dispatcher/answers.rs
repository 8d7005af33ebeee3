//! What became of a request or a connection: bytes, answers, faults, silence.

use std::time::{Duration, Instant};

use super::flight::InFlight;
use super::hedge::SILENCE_UNTIL_HEDGED;
use super::{ConnectionId, Dispatcher, Ended, Keep, SEGMENT_MIN_BYTES};
use crate::hosts::{Fault, HostId, HostState};
use crate::queue::ItemId;

/// The same while another host delivers: long enough for a disk to spin up.
const SILENCE_LIMIT_AMONG_OTHERS: Duration = Duration::from_millis(3000);

/// A connection below this share of the fastest of another host, which would need over
/// [`DRIP_PATIENCE_S`] until what it owes is here, is cut: a drip, not a slow mirror.
const DRIP_SHARE: f64 = 0.02;
const DRIP_PATIENCE_S: f64 = 10.0;

/// Time a connection has before drips are judged.
const DRIP_GRACE: Duration = Duration::from_millis(1500);

/// The slowest rate that counts as alive when there is no other host: a 33.6 kbit/s modem.
const RATE_FLOOR_BYTES_PER_S: f64 = 4200.0;

/// For this long a connection may be below the floor.
const RATE_FLOOR_PATIENCE: Duration = Duration::from_secs(30);

/// Unwanted bytes ahead of wanted ones for which it pays to open another connection instead.
const UNWANTED_CLOSE_BYTES: u64 = 512 << 10;

/// Times that a host may break off a file, or have trouble with it, before another is asked.
const TROUBLES_PER_HOST: u32 = 3;

/// The same for answers that ask for patience (429, 503), between which the host is left alone.
const TROUBLES_PER_BUSY_HOST: u32 = 12;

/// A broken answer that brought this much was progress, and the next one goes on from there.
const PROGRESS_BYTES: u64 = SEGMENT_MIN_BYTES;

impl Dispatcher {
    /// Body bytes arrived for a request.
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

    /// An answer is complete and was what was asked for.
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

    /// Something has arrived that our own side had no time to take yet, or our side had nothing to ask until now: nobody
    /// is silent.
    pub(crate) fn waits_for_us(&mut self, id: ConnectionId, now: Instant) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.last_byte = now;
        }
    }

    /// A request was refused without a look at it (HTTP/2: REFUSED_STREAM): it is one too many, or the
    /// host takes none.
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

    /// A request was not looked at (HTTP/2: GOAWAY), or could not be sent: no fault of anybody.
    pub fn unanswered(&mut self, id: ConnectionId, tag: u64, now: Instant) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Some(place) = connection.asked.iter().position(|asked| asked.tag == tag) else { return };
        let asked = connection.asked.remove(place).expect("position was just found");
        self.give_back(&asked, now);
    }

    /// What of a part did not arrive goes back to the queue; or to the connection that it was taken
    /// from, if that one is still at it, so that nothing comes twice.
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

    /// A host broke off a file, or has trouble with it. After some times another one is asked: then it is true.
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

    /// False when the host is left alone already: a server that goes takes all its connections with it, and
    /// they may all have been at the same file.
    fn is_new_incident(&mut self, host: HostId, now: Instant) -> bool {
        matches!(self.hosts[host as usize].state(now), HostState::Up)
    }

    /// An answer was a fault; the connection goes on.
    pub fn refused(&mut self, id: ConnectionId, tag: u64, fault: Fault, now: Instant) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.answered += 1;
        connection.last_byte = now;
        let (host, is_detour) = (connection.host, connection.is_detour);
        let Some(place) = connection.asked.iter().position(|asked| asked.tag == tag) else { return };
        let asked = connection.asked.remove(place).expect("position was just found");
        // A store says the same of a file that it does not have and of an address that was good for a while: the
        // host gives another one.
        if is_detour && fault == Fault::Missing(403) && !self.is_last_trouble(host, &asked) {
            self.give_back(&asked, now);
            return;
        }
        self.settle(host, &asked, &fault, now);
    }

    fn is_last_trouble(&mut self, host: HostId, asked: &InFlight) -> bool {
        asked.rest().is_none_or(|rest| self.trouble(rest.item, rest.size, host, TROUBLES_PER_HOST))
    }

    /// What a fault of a host with one request means for the file and for the host.
    pub(super) fn settle(&mut self, host: HostId, asked: &InFlight, fault: &Fault, now: Instant) {
        let item = asked.item_now();
        // A file that a host has wrong is one fault of it, however many parts of it were asked for.
        let is_known =
            matches!(fault, Fault::WrongAnswer(_) | Fault::Refused(_) | Fault::WrongSize(_) | Fault::Elsewhere(_))
                && item.and_then(|item| self.histories.get(&item)).is_some_and(|history| history.failed.contains(host));
        // It refuses what was taken over from it, too.
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

    /// Notes an answer by which a host is not asked for a file again.
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

    /// The connection is gone; what it owed goes back to the queue. False when it was asked for nothing.
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
        // All that it was asked for may have been taken from it before the first sample was full.
        let brings = connection.owes() && !connection.rate.waits();
        let so_far = || brings.then(|| connection.rate.so_far(host.rtt(), now)).flatten();
        let rate = connection.rate.average().or_else(so_far);
        host.saw_connection_rate(rate, connection.rate.at_least());
        match how {
            // How many requests another address takes says nothing of the host's own.
            Ended::Clean if connection.is_detour => {}
            Ended::Clean => {
                host.closed_after(connection.answered);
                if connection.next_tag > 0 {
                    host.completed_before_close(connection.completed, now);
                }
            }
            Ended::Ours => {}
            Ended::Fault(fault) => {
                // Of what broke before its answer began, it says nothing.
                let is_of_front = |front: &&InFlight| {
                    front.received > 0 || matches!(fault, Fault::WrongAnswer(_) | Fault::WrongSize(_))
                };
                let item = connection.asked.front().filter(is_of_front).and_then(InFlight::item_now);
                self.fault(connection.host, item, fault, now);
            }
        }
        connection.next_tag > 0
    }

    /// A connection could not be opened.
    pub(crate) fn not_opened(&mut self, host: HostId, fault: &Fault, now: Instant) {
        self.opening[host as usize] = self.opening[host as usize].saturating_sub(1);
        self.fault(host, None, fault, now);
        self.not_reached(host, fault, now);
    }

    /// Whether the connection is to be given up for silence or drips. Ask every 250 ms or so.
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
