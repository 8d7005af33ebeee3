//! From the judge's findings to a verdict in words.

use std::time::Duration;

use super::facts::Facts;
use super::format::{bytes_text, duration_text, percent_text, rate_text};
use super::judge::{Cause, Findings};
use super::{Limit, NextLimit, Share, Verdict, shares_text};
use crate::stage::{Kind, LedgerReading};

/// A part is named from this share of the wall time ...
const NAMED: f64 = 0.60;
/// ... if no other exceeds this one.
const NO_OTHER: f64 = 0.30;
/// Below this a run is round trips, whatever it waited for. Half a second is
/// a handful of round trips across an ocean.
const TINY: Duration = Duration::from_millis(500);
/// Likewise a run of fewer round trips than this to its hosts.
const FEW_ROUND_TRIPS: f64 = 12.0;
/// A host with this much of the bytes is "the" host.
const ONE_HOST: f64 = 0.80;
/// Shares below this are not worth a word.
const WORTH_A_WORD: f64 = 0.03;
/// TLS with this much of the network's polls is what its thread computes.
const MOSTLY_TLS: f64 = 0.50;
/// A part used less than this is no next limit.
const NEXT: f64 = 0.20;

/// Roles by the names that the program gives them.
const TLS: &str = "TLS";
const SYNC: &str = "sync";
const SCAN: &str = "local scan";

/// A verdict from what the judge found and the ledger counted.
pub(super) fn verdict(findings: Findings, counters: LedgerReading, bytes: u64, wall: Duration) -> Verdict {
    let opinion = Opinion::new(&findings, &counters, wall);
    let limit = opinion.limit();
    let (part, reason) = opinion.words(&limit);
    let facts = &opinion.facts;
    Verdict {
        confident: limit != Limit::Mixed,
        shares: opinion.shares(),
        next: opinion.next(&limit),
        advice: opinion.advice(&limit),
        evidence: opinion.evidence(),
        received_bytes: facts.received_bytes,
        trials: counters.trials.clone(),
        limit,
        part,
        reason,
        wall,
        bytes,
        counters,
        timeline: findings.timeline,
    }
}

struct Opinion<'a> {
    findings: &'a Findings,
    counters: &'a LedgerReading,
    facts: Facts,
    wall: Duration,
}

impl<'a> Opinion<'a> {
    fn new(findings: &'a Findings, counters: &'a LedgerReading, wall: Duration) -> Opinion<'a> {
        let facts = findings.total.as_ref().map(Facts::of).unwrap_or_default();
        Opinion { findings, counters, facts, wall }
    }

    /// Agreed shares of the wall time, the largest first.
    fn agreed(&self) -> Vec<(&Cause, f64)> {
        let wall_s = self.findings.wall_s.max(1e-9);
        let mut agreed: Vec<(&Cause, f64)> =
            self.findings.causes.iter().map(|(cause, tally)| (cause, tally.agreed_s / wall_s)).collect();
        agreed.sort_by(|one, two| two.1.total_cmp(&one.1));
        agreed
    }

    fn limit(&self) -> Limit {
        let agreed = self.agreed();
        let first = agreed.first().filter(|(_, share)| *share >= NAMED);
        let second = agreed.get(1).map_or(0.0, |(_, share)| *share);
        let named = first.filter(|_| second <= NO_OTHER).map(|(cause, _)| *cause);
        if self.is_short() && matches!(named, None | Some(Cause::Network | Cause::Answers)) {
            let local: f64 = agreed
                .iter()
                .filter(|(cause, _)| !matches!(cause, Cause::Network | Cause::Answers | Cause::Nobody))
                .map(|(_, share)| share)
                .sum();
            if local <= NO_OTHER {
                return Limit::RoundTrips;
            }
        }
        match named {
            Some(Cause::Cpu) => Limit::Cpu { consumer: self.consumer() },
            Some(Cause::OneCore(_) | Cause::Disk) if self.findings.is_unexplained() => Limit::Mixed,
            Some(Cause::OneCore(stage)) => Limit::OneCore { stage: self.computing_role(stage) },
            Some(Cause::Disk) => Limit::Disk,
            Some(Cause::Network) => self.network(),
            Some(Cause::SendPath) => Limit::RemoteOrPath,
            Some(Cause::Receiver) => Limit::Receiver,
            Some(Cause::SendBuffer | Cause::Window) => Limit::Window,
            Some(Cause::RateLimit) => Limit::RateLimit,
            Some(Cause::Answers) => Limit::RoundTrips,
            Some(Cause::Nobody) | None => Limit::Mixed,
        }
    }

    fn is_short(&self) -> bool {
        let trips = self.round_trip().map_or(f64::INFINITY, |trip| self.wall.as_secs_f64() / trip.as_secs_f64());
        self.wall <= TINY || trips <= FEW_ROUND_TRIPS
    }

    /// The smallest round trip to any host.
    fn round_trip(&self) -> Option<Duration> {
        let known = self.counters.hosts.iter().map(|host| host.round_trip_us).filter(|time| *time > 0);
        known.min().map(Duration::from_micros)
    }

    fn consumer(&self) -> String {
        let most = self.findings.consumers.iter().max_by(|one, two| one.1.total_cmp(two.1));
        most.map_or_else(|| "other processes".to_owned(), |(name, _)| name.clone())
    }

    /// A runtime's thread computes for the network and for TLS within it.
    fn computing_role(&self, stage: &str) -> String {
        let of = |name: &str| self.counters.stage(name);
        let polls = of(stage).filter(|stage| stage.kind == Kind::Task).map_or(0, |stage| stage.poll_ns);
        let tls = of(TLS).map_or(0, |stage| stage.poll_ns);
        if polls > 0 && tls as f64 >= MOSTLY_TLS * polls as f64 { TLS.to_owned() } else { stage.to_owned() }
    }

    /// Which part of the network it was. A trial tells: one more host that
    /// raised the total shows that the link had room; one that did not, that
    /// it had none. One more connection to the only host tells less: if it
    /// helped, the link had room; if not, it is the host's own limit or the
    /// link, and we do not guess.
    fn network(&self) -> Limit {
        let hosts = &self.counters.hosts;
        let total: u64 = hosts.iter().map(|host| host.bytes).sum();
        let main = hosts.iter().max_by_key(|host| host.bytes);
        let main = main.filter(|host| host.bytes as f64 >= ONE_HOST * total as f64 && total > 0);
        let last = |new_host| self.counters.trials.iter().rev().find(|trial| trial.new_host == new_host);
        let several = main.is_none() && hosts.len() > 1;
        match (last(true), last(false)) {
            (Some(trial), _) if !trial.raised() => Limit::AccessLink,
            (None, Some(trial)) if !trial.raised() && several => Limit::AccessLink,
            (None, Some(trial)) if !trial.raised() => Limit::RemoteOrPath,
            (None, None) => Limit::RemoteOrPath,
            _ => main.map_or(Limit::RemoteOrPath, |host| Limit::Host { name: host.name.clone() }),
        }
    }

    /// All causes with agreed and spread time, as words.
    fn shares(&self) -> Vec<Share> {
        let wall_s = self.findings.wall_s.max(1e-9);
        let mut shares: Vec<Share> = Vec::new();
        for (cause, tally) in &self.findings.causes {
            let share = (tally.agreed_s + tally.spread_s) / wall_s;
            let part = match cause {
                Cause::Nobody => "unexplained".to_owned(),
                Cause::OneCore(stage) => self.computing_role(stage),
                Cause::Network => "network".to_owned(),
                cause => cause.label().to_owned(),
            };
            match shares.iter_mut().find(|known| known.part == part) {
                Some(known) => known.share += share,
                None => shares.push(Share { part, share }),
            }
        }
        shares.retain(|share| share.share >= WORTH_A_WORD);
        shares.sort_by(|one, two| two.share.total_cmp(&one.share));
        shares
    }

    /// The part and the reason as the last line of a run says them.
    fn words(&self, limit: &Limit) -> (String, String) {
        let facts = &self.facts;
        let cores_busy = format!("cores busy {}", percent_text(facts.cores_busy));
        let empty = format!("sockets empty at {} of reads", percent_text(facts.network.reads_empty));
        match limit {
            Limit::Disk => (self.disk_part(), self.disk_reason()),
            Limit::Cpu { .. } => {
                let mut reason = cores_busy;
                if facts.throttled >= 0.01 {
                    reason += &format!("; throttled {} of the time", percent_text(facts.throttled));
                }
                (limit.to_string(), reason)
            }
            Limit::OneCore { .. } => {
                let compute = facts.most_computing().map_or(0.0, |thread| thread.compute);
                (limit.to_string(), format!("computing {} of the time; {cores_busy}", percent_text(compute)))
            }
            Limit::AccessLink => (limit.to_string(), format!("one host more did not raise the total; {empty}")),
            Limit::Host { .. } => (limit.to_string(), format!("the link had room for more; {empty}")),
            Limit::RemoteOrPath => match self.counters.hosts.as_slice() {
                [host] => (format!("{} or the path to it", host.name), empty),
                hosts if hosts.len() > 1 => ("the hosts or the paths to them".to_owned(), empty),
                _ => (limit.to_string(), empty),
            },
            Limit::Window => {
                let exhausted = percent_text(facts.window_exhausted);
                (limit.to_string(), format!("no permits free {exhausted} of the time"))
            }
            Limit::RateLimit => {
                let rate = self.findings.total.as_ref().map_or(0, |total| total.rate_limit_bytes_per_s);
                let reason = if rate > 0 { rate_text(rate as f64) } else { String::new() };
                (limit.to_string(), reason)
            }
            Limit::RoundTrips => {
                let trip = self.round_trip().map(|trip| format!("round trip {} ms", trip.as_millis().max(1)));
                (limit.to_string(), trip.unwrap_or_default())
            }
            Limit::Receiver => (limit.to_string(), "its window was full".to_owned()),
            Limit::Mixed => {
                let shares = self.shares();
                (limit.to_string(), shares_text(shares.get(..3).unwrap_or(&shares)))
            }
        }
    }

    fn disk_part(&self) -> String {
        let most = self.findings.device_stages.iter().max_by(|one, two| one.1.total_cmp(two.1));
        match most.map(|(stage, _)| stage.as_str()) {
            Some(SCAN) => "disk reads".to_owned(),
            _ => "disk writes".to_owned(),
        }
    }

    fn disk_reason(&self) -> String {
        let mut reasons = Vec::new();
        match self.facts.device_busy {
            Some(busy) => reasons.push(format!("busy {}", percent_text(busy))),
            None => {
                let asleep = self.facts.most_in_device().map_or(0.0, |thread| thread.device);
                reasons.push(format!("waited for {} of the time", percent_text(asleep)));
            }
        }
        if self.findings.final_disk_s >= WORTH_A_WORD * self.findings.wall_s {
            let time = duration_text(Duration::from_secs_f64(self.findings.final_disk_s));
            reasons.push(format!("the last {time} only synced"));
        }
        if self.facts.network.blocked >= WORTH_A_WORD {
            reasons.push(format!("network blocked {}", percent_text(self.facts.network.blocked)));
        }
        reasons.join("; ")
    }

    /// How much of each part this run used; the most used one besides the limit.
    fn next(&self, limit: &Limit) -> Option<NextLimit> {
        let facts = &self.facts;
        let mut used = Vec::new();
        if !matches!(limit, Limit::Cpu { .. }) {
            used.push(("CPU".to_owned(), facts.cores_busy));
        }
        let computing = facts.most_computing().filter(|_| !matches!(limit, Limit::Cpu { .. } | Limit::OneCore { .. }));
        if let Some(thread) = computing {
            used.push((format!("one core ({})", self.computing_role(&thread.stage)), thread.compute));
        }
        if *limit != Limit::Disk {
            let asleep = facts.most_in_device().map_or(0.0, |thread| thread.device);
            used.push(("disk".to_owned(), facts.device_busy.unwrap_or(asleep)));
        }
        let outside = matches!(limit, Limit::AccessLink | Limit::Host { .. } | Limit::RemoteOrPath | Limit::RoundTrips);
        if !outside {
            used.push(("network".to_owned(), facts.network.empty));
        }
        let most = used.into_iter().max_by(|one, two| one.1.total_cmp(&two.1));
        most.filter(|(_, used)| *used >= NEXT).map(|(part, used)| NextLimit { part, used })
    }

    fn advice(&self, limit: &Limit) -> String {
        let next = self.next(limit);
        let behind = next.as_ref().map_or_else(String::new, |next| {
            format!(" Next in line: {} ({} used).", next.part, percent_text(next.used))
        });
        let advice = match limit {
            Limit::Cpu { consumer } if consumer.starts_with("process ") || consumer.starts_with("other ") => {
                format!(
                    "{consumer} took the cores; more cores, or a quieter hour, would help. A faster link or disk would not pay."
                )
            }
            Limit::Cpu { consumer } if consumer.ends_with("quota") => {
                "A larger CPU quota for this control group would help. A faster link or disk would not pay.".to_owned()
            }
            Limit::Cpu { .. } => "More or faster cores would help. A faster link or disk would not pay.".to_owned(),
            Limit::OneCore { stage } => format!(
                "{stage} has reached what one core does; a faster core or more work side by side would help, more cores alone would not."
            ),
            Limit::Disk => "A faster disk would help. A faster link or more hosts would not pay.".to_owned(),
            Limit::AccessLink => "The link is full; more hosts or connections would not pay.".to_owned(),
            Limit::Host { name } => format!("One more host beside {name} would help. A faster disk would not pay."),
            Limit::RemoteOrPath if self.counters.hosts.len() == 1 => {
                "One more host would help, or show that it is the link. A faster disk would not pay.".to_owned()
            }
            Limit::RemoteOrPath => {
                "More hosts, or nearer ones, would help if the link has room. A faster disk would not pay.".to_owned()
            }
            Limit::Receiver => "A faster receiver would help. A faster link would not pay.".to_owned(),
            Limit::Window => "A larger in-flight window would help; nothing else was full.".to_owned(),
            Limit::RateLimit => "A higher rate limit would help.".to_owned(),
            Limit::RoundTrips => "A nearer host would help; bandwidth would not.".to_owned(),
            Limit::Mixed => "No single part would help much by itself.".to_owned(),
        };
        let capped: Vec<&str> =
            self.counters.hosts.iter().filter(|host| host.capped).map(|host| host.name.as_str()).collect();
        let held = match (limit, capped.as_slice()) {
            (Limit::Host { .. } | Limit::RemoteOrPath, [_, ..]) => {
                format!(" We held back {} ourselves.", capped.join(", "))
            }
            _ => String::new(),
        };
        format!("{advice}{held}{behind}")
    }

    fn evidence(&self) -> Vec<String> {
        let facts = &self.facts;
        let mut lines = Vec::new();
        if facts.network.active {
            let network = facts.network;
            lines.push(format!(
                "network: sockets empty at {} of {} reads; connections waited {} for data, {} for later stages",
                percent_text(network.reads_empty),
                network.reads,
                percent_text(network.empty),
                percent_text(network.blocked),
            ));
        }
        for host in self.counters.hosts.iter().filter(|host| host.bytes > 0) {
            let rate = rate_text(host.bytes as f64 / self.wall.as_secs_f64().max(1e-9));
            let trip = match host.round_trip_us {
                0 => String::new(),
                time => format!(", round trip {:.1} ms", time as f64 / 1000.0),
            };
            lines.push(format!("host {}: {}, {rate}{trip}", host.name, bytes_text(host.bytes)));
        }
        for trial in &self.counters.trials {
            let what = if trial.new_host { "one host more" } else { "one connection more to" };
            let before = rate_text(trial.before_bytes_per_s);
            let after = rate_text(trial.after_bytes_per_s);
            lines.push(format!("trial: {what} ({}): {before} before, {after} after", trial.host));
        }
        let mut roles: Vec<&str> = facts.threads.iter().map(|thread| thread.stage.as_str()).collect();
        roles.sort_unstable();
        roles.dedup();
        for role in roles {
            let of_role = || facts.threads.iter().filter(|thread| thread.stage == role);
            let sum = |part: fn(&super::facts::ThreadFacts) -> f64| {
                percent_text(of_role().map(part).sum::<f64>() / of_role().count() as f64)
            };
            lines.push(format!(
                "{role} ({} threads): computing {}, waiting for a core {}, for input {}, for the disk {}, other {}",
                of_role().count(),
                sum(|thread| thread.compute),
                sum(|thread| thread.run_delay),
                sum(|thread| thread.starved),
                sum(|thread| thread.device),
                sum(|thread| thread.other),
            ));
        }
        lines.push(format!(
            "CPU: allowed cores busy {}, of it {:.2} cores ours; wait for a core {} of what we wanted; throttled {}",
            percent_text(facts.cores_busy),
            facts.compute_cores,
            percent_text(facts.run_delay_ratio()),
            percent_text(facts.throttled),
        ));
        if let Some(device) = self.findings.total.as_ref().and_then(|total| total.device.as_ref()) {
            let busy = percent_text(facts.device_busy.unwrap_or_default());
            lines.push(format!("disk {}: busy {busy}, {} written", device.name, bytes_text(device.written_bytes)));
        }
        if let Some(sync) = self.counters.stage(SYNC).filter(|sync| sync.device_ns > 0) {
            let time = duration_text(Duration::from_nanos(sync.device_ns));
            lines.push(format!("sync: {time} in {} calls", sync.device_calls));
        }
        if facts.window_exhausted > 0.0 {
            lines.push(format!("window: no permits free {} of the time", percent_text(facts.window_exhausted)));
        }
        lines
    }
}
