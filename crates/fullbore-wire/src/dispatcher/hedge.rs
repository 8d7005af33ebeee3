//! Hedging: takes over parts that a measurably slower connection still owes.

use std::time::{Duration, Instant};

use super::flight::{Connection, InFlight};
use super::{ConnectionId, DRAIN_BYTES, Dispatcher, Hold, SEGMENT_MIN_BYTES};
use crate::hosts::HostId;
use crate::queue::{ItemId, Segment};

/// Silence after which a connection's parts may be requested elsewhere. It doubles each time before a host is asked
/// again that was silent over the same file. Otherwise a host that needs seconds to begin, such as a proxy that fetches
/// the file itself, would never deliver it. And nobody would notice if all hosts stayed silent.
pub(super) const SILENCE_UNTIL_HEDGED: Duration = Duration::from_millis(700);

/// Patience for the first byte of a connection's requests, beyond a round trip. It may well arrive in a moment. A
/// guess: what a server and a busy machine need. Four times as long for each time that the taker delivered nothing of
/// the file.
const FIRST_BYTE_PATIENCE: Duration = Duration::from_millis(10);

/// Patience for the first byte if the host's rate is known.
const FIRST_BYTE_PATIENCE_KNOWN: Duration = Duration::from_millis(30);

/// Maximum number of doublings; beyond it the limits of silence are long over.
const SILENCES_MAX: u32 = 8;

/// Work is taken from a connection only if it is slower than this share of the taker's rate …
const HEDGE_RATE_SHARE: f64 = 0.67;

/// … and if that saves at least this time. A guess: below it a busy machine's own delays decide.
const HEDGE_GAIN_S: f64 = 0.015;

/// A busy connection takes work over when its own requests last no longer than a round trip plus this time. So its pipe
/// stays full, and other connections of its host get their share.
const HEDGE_READY_S: f64 = 0.01;

/// Minimum number of bytes cut off from a part; less is taken only if it is the whole rest.
const HEDGE_MIN_BYTES: u64 = SEGMENT_MIN_BYTES / 4;

/// Assumed rate of a host that was never measured; it is tried with one piece. 8 Mbit/s, or as fast as needed if the
/// other host is faster.
const RATE_UNKNOWN_BYTES_PER_S: f64 = 1e6;

/// Minimum size of such a piece when several hosts wait to be tried and share the rest. A guess: three packets reveal a
/// slow line.
const TRY_MIN_BYTES: u64 = 4 << 10;

/// Share of all planned bytes that may be wasted on connections from which work was taken, and a minimum for short
/// runs. It is below the 5 % (or 1 MB) that a run may receive in excess, because bytes in flight when it is used up
/// arrive as well.
const HEDGE_BUDGET_SHARE: f64 = 0.02;
const HEDGE_BUDGET_MIN_BYTES: u64 = 512 << 10;

/// Round trips that a new connection needs to its first byte, with TLS.
const RECONNECT_ROUND_TRIPS: f64 = 3.0;

/// Time in which a server still sends unwanted bytes before it notices the close. A guess.
const UNTIL_CUT_S: f64 = 0.02;

/// Minimum number of unwanted bytes that are read to their end: bytes in flight arrive anyway.
const DRAIN_MIN_BYTES: u64 = 4 << 10;

/// Interval at which a connection looks again for work to take over. The search visits everything in flight.
pub(crate) const HEDGE_LOOK_EVERY: Duration = Duration::from_millis(5);

/// A part to take over.
pub(super) struct TakeOver {
    /// The connection that loses the part.
    victim: ConnectionId,
    /// The request on that connection.
    tag: u64,
    /// Offset of the first byte to take over.
    from: u64,
    /// The victim has been silent for too long.
    silent: bool,
    /// The victim has delivered nothing of its requests within the allowed time.
    waited: bool,
    /// Bytes that will be wasted because of it.
    in_vain: u64,
}

/// The connection that would take over, or a new one.
struct Taker {
    /// Number of the connection; `None` for one that would be opened.
    id: Option<ConnectionId>,
    host: HostId,
    now: Instant,
    /// Measured rate in bytes per second.
    measured: Option<f64>,
    /// Lower bound of the rate in bytes per second; short answers show no more.
    at_least: Option<f64>,
    /// Number of bytes that it owes itself.
    owed: f64,
    is_busy: bool,
    is_open: bool,
    /// Measured round trip to its host, in seconds.
    round_trip_s: Option<f64>,
}

/// A connection that may lose work to a taker.
struct Victim<'a> {
    id: ConnectionId,
    connection: &'a Connection,
    /// Rate in bytes per second; 0 if it is silent.
    rate: f64,
    round_trip_s: f64,
    /// It has been silent for too long.
    silent: bool,
    /// It was known before to be slower than the taker.
    is_slow: bool,
    /// Time without any byte of its requests, as a multiple of the allowed time.
    times_waited: Option<f64>,
    /// The taker's rate in bytes per second, or a guess.
    my_rate: f64,
    is_guess: bool,
}

impl Dispatcher {
    /// Average rate of the fastest connection to another host, in bytes per second.
    pub(super) fn fastest_elsewhere(&self, host: HostId) -> Option<f64> {
        self.connections
            .values()
            .filter(|other| other.host != host)
            .filter_map(|other| other.rate.average())
            .max_by(f64::total_cmp)
    }

    /// Highest known rate of a connection to this host, or the rate of the last one.
    pub(super) fn host_rate(&self, host: HostId) -> Option<f64> {
        self.connections
            .values()
            .filter(|other| other.host == host)
            .filter_map(|other| other.rate.at_least())
            .max_by(f64::total_cmp)
            .or_else(|| self.hosts[host as usize].least_rate())
    }

    /// Number of times that a file was taken over from this host because it delivered nothing.
    fn silences(&self, asked: &InFlight, host: HostId) -> u32 {
        let history = asked.item_now().and_then(|item| self.histories.get(&item));
        history.and_then(|history| history.silences.get(&host)).copied().unwrap_or(0)
    }

    /// Best estimate of this connection's rate now, in bytes per second.
    fn rate_now(&self, connection: &Connection, now: Instant) -> Option<f64> {
        let rtt = self.hosts[connection.host as usize].rtt();
        connection.rate.so_far(rtt, now).or_else(|| self.rate_before(connection))
    }

    /// Estimate of the connection's rate before its present requests: its own, that of the last connection to its host,
    /// or of others.
    fn rate_before(&self, connection: &Connection) -> Option<f64> {
        let before = self.hosts[connection.host as usize].connection_rate();
        connection.rate.average().or(before).or_else(|| self.host_rate(connection.host))
    }

    /// Describes a taker: a connection, or a new one to `host`. `None` if it has enough to do, or is silent itself.
    fn taker(&self, host: HostId, id: Option<ConnectionId>, now: Instant) -> Option<Taker> {
        let mine = id.and_then(|id| self.connections.get(&id));
        let own = mine.filter(|own| own.owes());
        let round_trip_s = self.hosts[host as usize].measured_rtt().map(|rtt| rtt.as_secs_f64());
        let average = mine.and_then(|c| c.rate.average());
        let shown = mine.and_then(|c| c.rate.at_least()).or_else(|| self.host_rate(host));
        let before = self.hosts[host as usize].connection_rate();
        // Short answers may have shown a higher rate than the last connection did.
        let measured = average.or(before.filter(|before| shown.is_none_or(|shown| *before >= shown)));
        let at_least = measured.or(shown);
        let owed = own.map_or(0, Connection::owed) as f64;
        let is_silent = own.is_some_and(|own| own.silent_for(now) > SILENCE_UNTIL_HEDGED);
        let ready_s = HEDGE_READY_S + round_trip_s.unwrap_or_default();
        if is_silent || at_least.is_some_and(|rate| owed > ready_s * rate) {
            return None;
        }
        let (is_busy, is_open) = (own.is_some(), mine.is_some());
        Some(Taker { id, host, now, measured, at_least, owed, is_busy, is_open, round_trip_s })
    }

    /// The part with the greatest gain, if `taker` (or a new connection to `host`) would deliver it markedly sooner.
    pub(super) fn hedge_candidate(&self, host: HostId, taker: Option<ConnectionId>, now: Instant) -> Option<TakeOver> {
        if !self.limits.hedge {
            return None;
        }
        let taker = self.taker(host, taker, now)?;
        let victims: Vec<Victim<'_>> = self.victims(&taker).collect();
        let open = self.connections_begun_to(host) + usize::from(!taker.is_open);
        let in_reach = victims.iter().map(|victim| victim.connection.owed()).sum::<u64>();
        let share = (in_reach / open.max(1) as u64).max(HEDGE_MIN_BYTES);
        let best = victims.iter().filter_map(|victim| self.rear_part(&taker, victim, share));
        best.max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, take_over)| take_over)
    }

    /// The connections that are markedly slower than the taker, or silent.
    fn victims<'a>(&'a self, taker: &Taker) -> impl Iterator<Item = Victim<'a>> {
        let (host, id, now, is_busy) = (taker.host, taker.id, taker.now, taker.is_busy);
        let (measured, at_least) = (taker.measured, taker.at_least);
        self.connections.iter().filter(move |(other, victim)| Some(**other) != id && victim.owes()).filter_map(
            move |(other, victim)| {
                let rtt = self.hosts[victim.host as usize].rtt();
                let silence = victim.silent_for(now);
                let silence_allowed = SILENCE_UNTIL_HEDGED.max(4 * rtt);
                let silent = silence > silence_allowed;
                if (victim.host == host || self.expects_more) && !silent {
                    return None;
                }
                let rate = if silent { 0.0 } else { self.rate_now(victim, now)? };
                let enough = rate / HEDGE_RATE_SHARE;
                let known = measured.or(at_least.filter(|least| *least >= enough));
                // A busy connection of unknown rate is measurably faster only than a silent one.
                let may_guess = silent || !is_busy;
                let my_rate = known.or(may_guess.then_some(RATE_UNKNOWN_BYTES_PER_S.max(enough)))?;
                let before = self.rate_before(victim);
                let is_slow = before.is_some_and(|before| before <= HEDGE_RATE_SHARE * my_rate);
                let for_first_byte = if before.is_some() { FIRST_BYTE_PATIENCE_KNOWN } else { FIRST_BYTE_PATIENCE };
                let brings_nothing = victim.asked.front().is_some_and(|front| front.received == 0);
                let waited = |limit| Some(silence.div_duration_f64(limit));
                let times_waited = match silent {
                    true => waited(silence_allowed),
                    false if brings_nothing => waited(rtt + for_first_byte),
                    false => None,
                };
                (enough <= my_rate).then_some(Victim {
                    id: *other,
                    connection: victim,
                    rate,
                    round_trip_s: rtt.as_secs_f64(),
                    silent,
                    is_slow,
                    times_waited,
                    my_rate,
                    is_guess: known.is_none(),
                })
            },
        )
    }

    /// Whether the host is being asked for the file already and has not delivered any file yet, for a caller that wants
    /// to see a refusal. A second request would only be refused as well.
    fn would_repeat(&self, item: ItemId, host: HostId) -> bool {
        let asks =
            |other: &Connection| other.host == host && other.asked.iter().any(|asked| asked.segment.item == item);
        self.limits.caller_retries && !self.serving.contains(host) && self.connections.values().any(asks)
    }

    /// The rearmost part of a connection that the taker may serve, with the seconds gained. If the taker serves ranges,
    /// it is a piece of about `share` bytes.
    fn rear_part(&self, taker: &Taker, victim: &Victim<'_>, share: u64) -> Option<(f64, TakeOver)> {
        let Victim { connection, rate, my_rate, .. } = victim;
        let ranges = self.hosts[taker.host as usize].answers_ranges();
        let untried = if victim.is_guess { self.untried_hosts(taker.now) } else { 0 };
        let share = if victim.is_guess { HEDGE_MIN_BYTES } else { share };
        let least = if untried > 1 { TRY_MIN_BYTES } else { HEDGE_MIN_BYTES };
        // A connection that must be opened costs a further round trip. The path to its host may be as long as the
        // victim's.
        let round_trip_s = taker.round_trip_s.unwrap_or(victim.round_trip_s);
        let round_trips = if taker.is_open { 1.0 } else { 2.0 };
        let before_s = round_trips * round_trip_s + taker.owed / my_rate;
        // Answers come in the order of the requests, unwanted bytes included.
        let mut through = connection.outstanding();
        for asked in connection.asked.iter().rev() {
            let wanted = asked.wanted();
            through -= asked.unwanted();
            let theirs_s = through as f64 / rate.max(1.0);
            through -= wanted;
            if asked.rest().is_none() || self.queue.excluded(asked.segment.item).contains(taker.host) {
                continue;
            }
            if self.would_repeat(asked.segment.item, taker.host) {
                continue;
            }
            if !ranges && !asked.rest().is_some_and(|rest| rest.is_whole()) {
                continue;
            }
            let doublings = self.silences(asked, taker.host) * if victim.silent { 1 } else { 2 };
            let times_patience = f64::from(2u32.pow(doublings.min(SILENCES_MAX)));
            // A connection known to be slow gets no time to prove it.
            let is_shown = victim.is_slow && !victim.silent && doublings == 0;
            if !is_shown && victim.times_waited.is_some_and(|times| times <= times_patience) {
                continue;
            }
            let from = if ranges {
                // Choose the size so that both end at the same time.
                let bytes = ((theirs_s - before_s).max(0.0) / (1.0 / my_rate + 1.0 / rate.max(1.0))) as u64;
                // A file over which the taker's host was silent itself is not split further.
                let bytes = if doublings == 0 { bytes.min(share) } else { wanted };
                // Each untried host gets a part, and the victim keeps one.
                let bytes = if untried > 1 { bytes.min((wanted / (untried + 1)).max(least)) } else { bytes };
                let is_all = bytes + least > wanted;
                if is_all { asked.at() } else { asked.until - bytes.max(1) }
            } else {
                asked.at()
            };
            let in_vain = self.more_waste(connection, *rate, asked.until - from, taker.host);
            if !victim.silent && self.hedged_bytes.max(self.came_in_vain) + in_vain > self.hedge_budget() {
                return None;
            }
            let bytes = (asked.until - from) as f64;
            let mine_s = before_s + bytes / my_rate;
            if self.is_sooner_elsewhere(taker, victim, asked.segment.item, bytes, mine_s) {
                return None;
            }
            let gain_s = theirs_s - mine_s;
            let take_over = TakeOver {
                victim: victim.id,
                tag: asked.tag,
                from,
                silent: victim.silent,
                waited: victim.times_waited.is_some(),
                in_vain,
            };
            return (gain_s > HEDGE_GAIN_S).then_some((gain_s, take_over));
        }
        None
    }

    /// Number of hosts that may be asked, were never measured, and have no requests in flight.
    fn untried_hosts(&self, now: Instant) -> u64 {
        let is_untried = |host: HostId| {
            let seen = &self.hosts[host as usize];
            let mut own = self.connections.values().filter(|connection| connection.host == host);
            let may_be_asked = seen.is_up(now) && !seen.is_failing() && seen.connection_rate().is_none();
            may_be_asked && own.all(|connection| !connection.owes() && connection.rate.average().is_none())
        };
        (0..self.hosts.len() as HostId).filter(|host| is_untried(*host)).count() as u64
    }

    /// Whether a connection to a third host would finish its requests and deliver these bytes before the taker.
    fn is_sooner_elsewhere(&self, taker: &Taker, victim: &Victim<'_>, item: ItemId, bytes: f64, mine_s: f64) -> bool {
        let excluded = self.queue.excluded(item);
        let is_silent = |other: &Connection| other.owes() && other.silent_for(taker.now) > SILENCE_UNTIL_HEDGED;
        let is_eligible = |other: &&Connection| {
            ![taker.host, victim.connection.host].contains(&other.host)
                && !other.is_detour
                && !excluded.contains(other.host)
                && self.hosts[other.host as usize].is_up(taker.now)
                && self.held != Some(Hold::Host(other.host))
                && !self.hosts[other.host as usize].is_failing()
                && !is_silent(other)
        };
        self.connections.values().filter(is_eligible).any(|other| {
            let host = &self.hosts[other.host as usize];
            let rate = other.rate.average().or(host.connection_rate()).or(other.rate.at_least());
            rate.is_some_and(|rate| host.rtt().as_secs_f64() + (other.owed() as f64 + bytes) / rate < mine_s)
        })
    }

    fn hedge_budget(&self) -> u64 {
        ((self.planned_bytes as f64 * HEDGE_BUDGET_SHARE) as u64).max(HEDGE_BUDGET_MIN_BYTES)
    }

    /// Additional bytes wasted if `bytes` are taken from a connection: those that are read to their end anyway. A
    /// connection that owes more continues, and its server sends more until it is cut; all the more if the taker lacks
    /// some of the files, whose bytes then come last.
    fn more_waste(&self, connection: &Connection, rate_bytes_per_s: f64, bytes: u64, taker: HostId) -> u64 {
        let totals = &self.hosts[taker as usize].totals;
        let misses = totals.missing as f64 / totals.requests.max(1) as f64;
        let goes_on_s = if connection.owed() > bytes || misses > 0.0 { UNTIL_CUT_S + misses } else { 0.0 };
        let most = self.drain_bytes(connection, Some(rate_bytes_per_s)) + (rate_bytes_per_s * goes_on_s) as u64;
        let unwanted = connection.unwanted();
        (unwanted + bytes).min(most) - unwanted.min(most)
    }

    /// Maximum number of unwanted bytes to read in order to keep a connection that owes nothing else: those that arrive
    /// while a new connection would be opened, at most [`DRAIN_BYTES`].
    pub(super) fn drain_bytes(&self, connection: &Connection, rate_bytes_per_s: Option<f64>) -> u64 {
        let rtt_s = self.hosts[connection.host as usize].rtt().as_secs_f64();
        let by_rate = rate_bytes_per_s.map_or(DRAIN_BYTES, |rate| (rate * RECONNECT_ROUND_TRIPS * rtt_s) as u64);
        by_rate.clamp(DRAIN_MIN_BYTES, DRAIN_BYTES)
    }

    /// Counts the time in which an idle connection has no work while one slower host owes everything that is left.
    fn note_wait(&mut self, id: ConnectionId, now: Instant) {
        let since = self.last_wait.replace(now).map(|before| now.saturating_duration_since(before));
        let Some(waited) = since.filter(|since| *since <= 4 * HEDGE_LOOK_EVERY) else { return };
        let Some(idle) = self.connections.get(&id).filter(|idle| !idle.owes()) else { return };
        let own_rate = idle.rate.at_least().or(self.hosts[idle.host as usize].connection_rate());
        let mut owing = self.connections.values().filter(|other| other.owed() > 0);
        let Some(slow) = owing.next().map(|other| other.host) else { return };
        let is_slower = own_rate.is_some() && self.host_rate(slow) < own_rate;
        if is_slower && slow != idle.host && owing.all(|other| other.host == slow) {
            self.hosts[slow as usize].totals.waited_alone += waited;
        }
    }

    /// Takes a part over from a slower connection.
    pub(super) fn hedge(&mut self, id: ConnectionId, now: Instant) -> Option<Segment> {
        let taker = self.connections.get_mut(&id)?;
        let host = taker.host;
        if now < taker.hedge_again {
            return None;
        }
        taker.hedge_again = now + HEDGE_LOOK_EVERY;
        let Some(take_over) = self.hedge_candidate(host, Some(id), now) else {
            self.note_wait(id, now);
            return None;
        };
        let TakeOver { victim, tag, from, silent, waited, in_vain } = take_over;
        self.connections.get_mut(&id)?.hedge_again = now;
        let victim = self.connections.get_mut(&victim)?;
        let place = victim.asked.iter().position(|asked| asked.tag == tag)?;
        let asked = &victim.asked[place];
        let item = asked.item_now();
        let segment = Segment { start: from, end: asked.until, ..asked.segment.clone() };
        victim.asked[place].until = from;
        if segment.size == 0 {
            // An empty file has no part to cut off: it leaves the slow connection altogether.
            victim.asked.remove(place);
        }
        // The victim should notice that nothing is wanted of it any more.
        self.has_news |= victim.owed() == 0;
        let victim_host = victim.host;
        self.hosts[victim_host as usize].totals.hedged += 1;
        if !silent {
            self.hedged_bytes += in_vain;
        }
        if let Some(item) = item {
            let names = [victim_host, host].map(|host| self.hosts[host as usize].name.as_str());
            let name = self.name(item);
            if silent || waited {
                tracing::info!(
                    "{name}: taken over from {} by {}, from byte {from} on: nothing comes",
                    names[0],
                    names[1]
                );
            } else {
                tracing::debug!("{name}: taken over from {} by {}, from byte {from} on", names[0], names[1]);
            }
        }
        if waited && let Some(item) = item {
            *self.histories.entry(item).or_default().silences.entry(victim_host).or_default() += 1;
        }
        Some(segment)
    }
}
