//! Taking over what a measurably slower connection still owes.

use std::time::{Duration, Instant};

use super::flight::Asked;
use super::flight::Connection;
use super::{ConnectionId, Dispatcher, SEGMENT_MIN_BYTES};
use crate::hosts::HostId;
use crate::queue::Segment;

/// Silence after which what a connection owes may be asked for elsewhere (hedging). Before a host is asked again that
/// was silent over the same file it is twice as long, each time: one that needs seconds to begin, as a proxy does that
/// fetches the file itself, would never bring it otherwise; and that all are silent for good would not be found.
pub(super) const SILENCE_UNTIL_HEDGED: Duration = Duration::from_millis(700);

/// Doublings counted: then the limits of silence are long over.
const SILENCES_MAX: u32 = 8;

/// Work is taken from a connection only if it is slower than this share of the taker's rate …
const HEDGE_RATE_SHARE: f64 = 0.67;

/// … and if that ends the wait sooner by at least this much.
const HEDGE_GAIN_S: f64 = 0.15;

/// A host that was never measured is tried out with one part of what a connection holds that will
/// need longer than this for all of it; as if it were a line of 8 Mbit/s.
const TRY_OUT_AFTER_S: f64 = 1.0;
const RATE_UNKNOWN_BYTES_PER_S: f64 = 1e6;

/// Share of all planned bytes that may be asked for twice, and a small sum for short runs. Below
/// the 3 % that a run may receive in excess.
const HEDGE_BUDGET_SHARE: f64 = 0.02;
const HEDGE_BUDGET_MIN_BYTES: u64 = 1 << 20;

/// What a connection still brings in vain of all that was taken from it: at its rate, for so long
/// at most. Then it is cut, or has come to what is wanted.
const HEDGE_WASTE_S: f64 = 1.0;

/// A connection that found nothing to take over looks again after this; the search passes over
/// everything in flight.
const HEDGE_LOOK_EVERY: Duration = Duration::from_millis(20);

/// A part to be taken over.
pub(super) struct TakeOver {
    /// From this connection,
    victim: ConnectionId,
    /// of this request,
    tag: u64,
    /// what comes from this byte on.
    from: u64,
    /// It has brought nothing for too long.
    silent: bool,
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

    /// Best known rate of one connection to this host, or of the last one.
    fn host_rate(&self, host: HostId) -> Option<f64> {
        self.connections
            .values()
            .filter(|other| other.host == host)
            .filter_map(|other| other.rate.at_least())
            .max_by(f64::total_cmp)
            .or_else(|| self.hosts[host as usize].least_rate())
    }

    /// How many times as long as the first time a file is waited for before this host is asked for it (again).
    fn times_patience(&self, asked: &Asked, host: HostId) -> u32 {
        let history = asked.item_now().and_then(|item| self.histories.get(&item));
        let silences = history.and_then(|history| history.silences.get(&host)).copied().unwrap_or(0);
        2u32.pow(silences.min(SILENCES_MAX))
    }

    /// The part whose arrival is furthest off, if `taker` (or a new connection to `host`) would
    /// have it markedly sooner.
    pub(super) fn hedge_candidate(&self, host: HostId, taker: Option<ConnectionId>, now: Instant) -> Option<TakeOver> {
        if !self.limits.hedge {
            return None;
        }
        let mine = taker.and_then(|id| self.connections.get(&id));
        if mine.is_some_and(|own| own.owes() && own.silent_for(now) > SILENCE_UNTIL_HEDGED) {
            return None;
        }
        let measured = mine.and_then(|c| c.rate.average()).or(self.hosts[host as usize].connection_rate());
        let by_bursts = mine.and_then(|c| c.rate.at_least()).or_else(|| self.host_rate(host));
        let may_try_out = mine.is_none_or(|connection| !connection.owes());
        let rtt_s = self.hosts[host as usize].rtt().as_secs_f64();
        let mut best: Option<(f64, TakeOver)> = None;
        for (victim_id, victim) in &self.connections {
            if Some(*victim_id) == taker || !victim.owes() {
                continue;
            }
            let patience = SILENCE_UNTIL_HEDGED.max(4 * self.hosts[victim.host as usize].rtt());
            let silent = victim.silent_for(now) > patience;
            if victim.host == host && !silent {
                continue;
            }
            let their_rate = if silent { 0.0 } else { victim.rate.average().unwrap_or(0.0) };
            if !silent && victim.rate.average().is_none() {
                continue;
            }
            // Without a rate of our own, only the silent are measurably slower than us.
            let lasts_s = victim.until_last_wanted() as f64 / their_rate.max(1.0);
            let tries_out = silent || may_try_out && lasts_s > TRY_OUT_AFTER_S;
            let trial_rate = tries_out.then_some(RATE_UNKNOWN_BYTES_PER_S);
            let guess = || by_bursts.into_iter().chain(trial_rate).max_by(f64::total_cmp);
            let Some(my_rate) = measured.or_else(guess) else { continue };
            let my_rate = my_rate.max(1.0);
            if their_rate > HEDGE_RATE_SHARE * my_rate {
                continue;
            }
            // Answers come in the order asked for: bytes that nobody wants any more, too.
            let mut through = victim.outstanding();
            for asked in victim.asked.iter().rev() {
                let wanted = asked.wanted();
                through -= asked.unwanted();
                let theirs_s = through as f64 / their_rate.max(1.0);
                through -= wanted;
                if asked.rest().is_none() || self.queue.excluded(asked.segment.item).contains(host) {
                    continue;
                }
                if silent && victim.silent_for(now) <= patience * self.times_patience(asked, host) {
                    continue;
                }
                let more = wanted.min(SEGMENT_MIN_BYTES);
                if !silent && self.hedged_bytes + more_waste(victim, more, their_rate) > self.hedge_budget() {
                    continue;
                }
                let from = self.split_point(asked, theirs_s, their_rate, my_rate, rtt_s, host);
                let mine_s = rtt_s + (mine.map_or(0, Connection::owed) + asked.until - from) as f64 / my_rate;
                let gain_s = theirs_s - mine_s;
                if gain_s > HEDGE_GAIN_S && best.as_ref().is_none_or(|(most, _)| gain_s > *most) {
                    best = Some((gain_s, TakeOver { victim: *victim_id, tag: asked.tag, from, silent }));
                }
                break;
            }
        }
        best.map(|(_, take_over)| take_over)
    }

    /// From where on a part is taken over, so that giver and taker end at the same time.
    fn split_point(
        &self,
        asked: &Asked,
        theirs_s: f64,
        their_rate: f64,
        my_rate: f64,
        rtt_s: f64,
        host: HostId,
    ) -> u64 {
        let wanted = asked.wanted();
        if !self.hosts[host as usize].answers_ranges() || their_rate < 1.0 {
            return asked.at();
        }
        let bytes = ((theirs_s - rtt_s).max(0.0) / (1.0 / my_rate + 1.0 / their_rate)) as u64;
        if bytes + SEGMENT_MIN_BYTES / 4 >= wanted {
            return asked.at();
        }
        asked.until - bytes.max(1)
    }

    fn hedge_budget(&self) -> u64 {
        ((self.planned_bytes as f64 * HEDGE_BUDGET_SHARE) as u64).max(HEDGE_BUDGET_MIN_BYTES)
    }

    /// Takes a part over from a slower connection.
    pub(super) fn hedge(&mut self, id: ConnectionId, now: Instant) -> Option<Segment> {
        let taker = self.connections.get_mut(&id)?;
        let host = taker.host;
        if now < taker.hedge_again {
            return None;
        }
        taker.hedge_again = now + HEDGE_LOOK_EVERY;
        let TakeOver { victim, tag, from, silent } = self.hedge_candidate(host, Some(id), now)?;
        self.connections.get_mut(&id)?.hedge_again = now;
        let ranges = self.hosts[host as usize].answers_ranges();
        let victim = self.connections.get_mut(&victim)?;
        let their_rate = victim.rate.average().unwrap_or(0.0);
        let place = victim.asked.iter().position(|asked| asked.tag == tag)?;
        let asked = &victim.asked[place];
        let item = asked.item_now();
        let segment = Segment { start: from, end: asked.until, ..asked.segment.clone() };
        if !ranges && !segment.is_whole() {
            return None;
        }
        let in_vain = more_waste(victim, segment.len(), their_rate);
        victim.asked[place].until = from;
        if segment.size == 0 {
            // An empty file has no part to cut off: it leaves the slow connection altogether.
            victim.asked.remove(place);
        }
        let victim_host = victim.host;
        self.hosts[victim_host as usize].totals.hedged += 1;
        if !silent {
            self.hedged_bytes += in_vain;
        } else if let Some(item) = item {
            *self.histories.entry(item).or_default().silences.entry(victim_host).or_default() += 1;
        }
        Some(segment)
    }
}

/// How many more bytes may come in vain on a connection of this rate when `bytes` more are taken from it.
fn more_waste(victim: &Connection, bytes: u64, rate_bytes_per_s: f64) -> u64 {
    let most = (rate_bytes_per_s * HEDGE_WASTE_S) as u64;
    let unwanted = victim.unwanted();
    (unwanted + bytes).min(most) - unwanted.min(most)
}
