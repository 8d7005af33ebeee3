//! Turns the judge's findings into a verdict in words.

use std::time::Duration;

use super::facts::{Facts, SYNC, ThreadFacts};
use super::judge::{Cause, Findings};
use super::remote::largest;
use super::thresholds::{
    ALIVE_LONG_ENOUGH, FEW_ROUND_TRIPS, LARGER_PART, NAMED, NO_OTHER, ONE_HOST, ONLY_HOST, ROUNDS_TO_NOTHING,
    SHORT_RUN, SLIGHT, WAITED_LEAST, WORTH_A_WORD,
};
use super::{Limit, NextLimit, Share, Verdict, shares_text};
use crate::stage::{Finding, Kind, LedgerReading, Trial};
use crate::units;

/// Name of the role that processes TLS.
const TLS: &str = "TLS";
/// Roles that read from a disk.
const READERS: [&str; 3] = ["local scan", "read", "scan"];

/// Name of the limit when readers wait for a disk.
const READS: &str = "disk reads";

/// Makes a verdict from the judge's findings and the ledger's counters.
pub(super) fn verdict(findings: Findings, counters: LedgerReading, bytes: u64, wall: Duration) -> Verdict {
    let opinion = Opinion::new(&findings, &counters, wall);
    let limit = opinion.limit();
    let (part, mut reason) = opinion.words(&limit);
    if let Some((host, waited)) = opinion.waited_alone() {
        let before = if reason.is_empty() { "" } else { "; " };
        reason += &format!("{before}{} waiting for {host} alone", units::time(waited));
    }
    let facts = &opinion.facts;
    Verdict {
        confident: opinion.is_confident(&limit),
        share: opinion.share(&limit),
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
        let named = largest(&agreed).copied();
        if self.is_short() && self.has_answers() && matches!(named, None | Some(Cause::Network | Cause::Answers)) {
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
            Some(Cause::Network) if self.is_disk_as_busy() => Limit::Mixed,
            Some(Cause::Network) => self.network(),
            Some(Cause::SendPath) => Limit::RemoteOrPath,
            Some(Cause::Receiver) => Limit::Receiver,
            Some(Cause::SendBuffer | Cause::Window) => Limit::Window,
            Some(Cause::RateLimit) => Limit::RateLimit,
            Some(Cause::Answers) if self.has_answers() => Limit::RoundTrips,
            Some(Cause::Answers) => Limit::Mixed,
            Some(Cause::Nobody) | None => Limit::Mixed,
        }
    }

    /// Whether the disk had no spare time while the network was the limit: a faster network would have met a full disk.
    fn is_disk_as_busy(&self) -> bool {
        let busy_s = self.findings.causes.get(&Cause::Network).map_or(0.0, |tally| tally.device_busy_s);
        busy_s > NO_OTHER * self.findings.wall_s
    }

    /// Whether any host was asked: a check of local files waits for no answers.
    fn has_answers(&self) -> bool {
        self.facts.network.active || self.counters.hosts.iter().any(|host| host.bytes > 0 || host.round_trip_us > 0)
    }

    /// The host that the others waited for longest at the end of a queue, if that cost time.
    fn waited_alone(&self) -> Option<(&str, Duration)> {
        let longest = self.counters.hosts.iter().max_by_key(|host| host.waited_alone_us)?;
        let waited = Duration::from_micros(longest.waited_alone_us);
        (waited >= WAITED_LEAST && waited >= self.wall.mul_f64(WORTH_A_WORD)).then_some((&longest.name, waited))
    }

    fn is_short(&self) -> bool {
        let trips = self.round_trip().map_or(f64::INFINITY, |trip| self.wall.as_secs_f64() / trip.as_secs_f64());
        self.wall <= SHORT_RUN || trips <= FEW_ROUND_TRIPS
    }

    /// Smallest measured round trip to any host.
    fn round_trip(&self) -> Option<Duration> {
        let known = self.counters.hosts.iter().map(|host| host.round_trip_us).filter(|time| *time > 0);
        known.min().map(Duration::from_micros)
    }

    fn consumer(&self) -> String {
        let most = self.findings.consumers.iter().max_by(|one, two| one.1.total_cmp(two.1));
        most.map_or_else(|| "other processes".to_owned(), |(name, _)| name.clone())
    }

    /// Threads of a runtime compute for the network, and for TLS within it.
    fn computing_role(&self, stage: &str) -> String {
        let of = |name: &str| self.counters.stage(name);
        let polls = of(stage).filter(|stage| stage.kind == Kind::Task).map_or(0, |stage| stage.poll_ns);
        let tls = of(TLS).map_or(0, |stage| stage.poll_ns);
        if polls > 0 && tls as f64 >= LARGER_PART * polls as f64 { TLS.to_owned() } else { stage.to_owned() }
    }

    /// Which part of the network was the limit. With one host, everything between its disk and us is one thing: we
    /// cannot look inside, and the user cannot choose another. With several, trials decide. If the others took up a
    /// paused host's share, the link was full; if not, it had spare capacity. One trial with a share taken up is
    /// enough. Hosts at limits of their own never take it up; behind a full link, those at their own limits do not
    /// either.
    fn network(&self) -> Limit {
        let main = self.main_host();
        let host = |name: &str| Limit::Host { name: name.to_owned() };
        if let Some((name, share)) = main
            && share >= ONLY_HOST
        {
            return host(name);
        }
        let findings = || self.counters.trials.iter().filter(|trial| trial.new_host).filter_map(Trial::finding);
        if findings().any(|finding| finding == Finding::Shared) {
            Limit::AccessLink
        } else if findings().next().is_none() {
            Limit::RemoteOrPath
        } else {
            main.filter(|(_, share)| *share >= ONE_HOST).map_or(Limit::Hosts, |(name, _)| host(name))
        }
    }

    /// The host that sent most bytes, and its share of them.
    fn main_host(&self) -> Option<(&str, f64)> {
        let hosts = &self.counters.hosts;
        let total: u64 = hosts.iter().map(|host| host.bytes).sum();
        let main = hosts.iter().filter(|host| host.bytes > 0).max_by_key(|host| host.bytes)?;
        Some((&main.name, main.bytes as f64 / total as f64))
    }

    /// Finding of the last trial with one connection of the only host.
    fn connections(&self) -> Option<Finding> {
        self.counters.trials.iter().rev().filter(|trial| !trial.new_host).find_map(Trial::finding)
    }

    /// Not confident with several hosts if no signal showed which part of the network was the limit.
    fn is_confident(&self, limit: &Limit) -> bool {
        match limit {
            Limit::Mixed => false,
            Limit::RemoteOrPath => self.counters.hosts.is_empty(),
            // A short run is limited by its length, even if few samples show the waiting.
            Limit::RoundTrips => self.share(limit) >= NAMED,
            _ => true,
        }
    }

    /// All causes with agreed and assigned time, in words.
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

    /// Share of the named part; of the largest part if none is named.
    fn share(&self, limit: &Limit) -> f64 {
        let shares = self.shares();
        let of = |part: &str| shares.iter().filter(|share| share.part == part).map(|share| share.share).sum::<f64>();
        let network = of(Cause::Network.label()) + of(Cause::SendPath.label());
        let share = match limit {
            Limit::Cpu { .. } => of(Cause::Cpu.label()),
            Limit::OneCore { stage } => of(stage),
            Limit::Disk => of(Cause::Disk.label()),
            Limit::AccessLink | Limit::Host { .. } | Limit::Hosts | Limit::RemoteOrPath => network,
            Limit::Receiver => of(Cause::Receiver.label()),
            Limit::Window => of(Cause::Window.label()),
            Limit::RateLimit => of(Cause::RateLimit.label()),
            Limit::RoundTrips => of(Cause::Answers.label()) + network,
            Limit::Mixed => shares.first().map_or(0.0, |share| share.share),
        };
        share.min(1.0)
    }

    /// The part and the reason for the closing line of a run.
    fn words(&self, limit: &Limit) -> (String, String) {
        let facts = &self.facts;
        let cores_busy = format!("cores busy {}", units::percent(facts.cores_busy));
        let empty = format!("sockets empty at {} of reads", units::percent(facts.network.reads_empty));
        match limit {
            Limit::Disk => {
                let part = self.disk_part();
                let reason = self.disk_reason(&part);
                (part, reason)
            }
            Limit::Cpu { .. } => {
                let mut reason = cores_busy;
                if facts.throttled >= ROUNDS_TO_NOTHING {
                    reason += &format!("; throttled {} of the time", units::percent(facts.throttled));
                }
                (limit.to_string(), reason)
            }
            Limit::OneCore { .. } => {
                let compute = facts.most_computing().map_or(0.0, |thread| thread.compute);
                (limit.to_string(), format!("computing {} of the time; {cores_busy}", units::percent(compute)))
            }
            Limit::AccessLink => (limit.to_string(), format!("without one host the others were faster; {empty}")),
            Limit::Host { name } => (format!("{name} or the path to it"), empty),
            Limit::Hosts => (limit.to_string(), format!("without one host the others were no faster; {empty}")),
            Limit::RemoteOrPath => (limit.to_string(), empty),
            Limit::Window => {
                let exhausted = units::percent(facts.window_exhausted);
                (limit.to_string(), format!("no permits free {exhausted} of the time"))
            }
            Limit::RateLimit => {
                let rate = self.findings.total.as_ref().map_or(0, |total| total.rate_limit_bytes_per_s);
                let reason = if rate > 0 { units::rate(rate as f64) } else { String::new() };
                (limit.to_string(), reason)
            }
            Limit::RoundTrips => {
                let trip = self.round_trip().map(|trip| match trip.as_millis() {
                    0 => "round trip < 1 ms".to_owned(),
                    ms => format!("round trip {ms} ms"),
                });
                (limit.to_string(), trip.unwrap_or_default())
            }
            Limit::Receiver => (limit.to_string(), "its window was full".to_owned()),
            Limit::Mixed => {
                let shares = self.shares();
                let mut reason = shares_text(shares.get(..3).unwrap_or(&shares));
                if self.is_disk_as_busy() {
                    reason += &format!("; disk busy {}", units::percent(facts.device_busy.unwrap_or_default()));
                }
                (limit.to_string(), reason)
            }
        }
    }

    fn disk_part(&self) -> String {
        let most = self.findings.device_stages.iter().max_by(|one, two| one.1.total_cmp(two.1));
        match most.map(|(stage, _)| stage.as_str()) {
            Some(stage) if READERS.contains(&stage) => READS.to_owned(),
            _ => "disk writes".to_owned(),
        }
    }

    fn disk_reason(&self, part: &str) -> String {
        let mut reasons = Vec::new();
        match self.facts.device_busy {
            Some(busy) => reasons.push(format!("busy {}", units::percent(busy))),
            None => {
                let asleep = self.facts.most_in_device().map_or(0.0, |thread| thread.device);
                reasons.push(format!("waited for {} of the time", units::percent(asleep)));
            }
        }
        // A run that only sends receives nothing: reading is not a sync.
        if part != READS && self.findings.final_disk_s >= WORTH_A_WORD * self.findings.wall_s {
            let time = units::time(Duration::from_secs_f64(self.findings.final_disk_s));
            reasons.push(format!("the last {time} only synced"));
        }
        if self.facts.network.blocked >= WORTH_A_WORD {
            reasons.push(format!("network blocked {}", units::percent(self.facts.network.blocked)));
        }
        reasons.join("; ")
    }

    /// The most used part besides the limit, with its used share.
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
        let outside = matches!(
            limit,
            Limit::AccessLink | Limit::Host { .. } | Limit::Hosts | Limit::RemoteOrPath | Limit::RoundTrips
        );
        // The largest cause of a mixed run is not a *next* limit.
        if !outside && *limit != Limit::Mixed {
            used.push(("network".to_owned(), facts.network.empty));
        }
        let most = used.into_iter().max_by(|one, two| one.1.total_cmp(&two.1));
        most.filter(|(_, used)| *used >= SLIGHT).map(|(part, used)| NextLimit { part, used })
    }

    fn advice(&self, limit: &Limit) -> String {
        let next = self.next(limit);
        let behind = next.as_ref().map_or_else(String::new, |next| {
            format!(" Next in line: {} ({} used).", next.part, units::percent(next.used))
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
            Limit::Host { name } => {
                let connections = match self.connections() {
                    Some(Finding::Apart) => "More connections would help, or one more host.",
                    _ => "One more host would help, unless our own link is the narrow part of that path.",
                };
                format!("{connections} A faster disk than {name} fills would not pay.")
            }
            Limit::Hosts => {
                "One more host, or a faster one, would help: our link has room. A faster disk would not pay.".to_owned()
            }
            Limit::RemoteOrPath => {
                "More hosts, or nearer ones, would help if the link has room. A faster disk would not pay.".to_owned()
            }
            plain => plain.advice().to_owned(),
        };
        let capped: Vec<&str> =
            self.counters.hosts.iter().filter(|host| host.capped).map(|host| host.name.as_str()).collect();
        let held = match (limit, capped.as_slice()) {
            (Limit::Host { .. } | Limit::Hosts | Limit::RemoteOrPath, [_, ..]) => {
                format!(" We held back {} ourselves.", capped.join(", "))
            }
            _ => String::new(),
        };
        let left_out = self
            .waited_alone()
            .map_or_else(String::new, |(host, _)| format!(" A faster host in the place of {host} would help."));
        format!("{advice}{held}{left_out}{behind}")
    }

    fn evidence(&self) -> Vec<String> {
        let facts = &self.facts;
        let mut lines = Vec::new();
        if facts.network.active {
            let network = facts.network;
            lines.push(format!(
                "network: sockets empty at {} of {} reads; connections waited {} for data, {} for later stages",
                units::percent(network.reads_empty),
                network.reads,
                units::percent(network.empty),
                units::percent(network.blocked),
            ));
        }
        for host in self.counters.hosts.iter().filter(|host| host.bytes > 0) {
            let rate = units::rate(host.bytes as f64 / self.wall.as_secs_f64().max(1e-9));
            let trip = match host.round_trip_us {
                0 => String::new(),
                time => format!(", round trip {:.1} ms", time as f64 / 1000.0),
            };
            lines.push(format!("host {}: {}, {rate}{trip}", host.name, units::bytes(host.bytes)));
        }
        for trial in &self.counters.trials {
            let with = units::rate(trial.after_bytes_per_s);
            let without = units::rate(trial.before_bytes_per_s);
            let finding = match trial.finding() {
                Some(Finding::Shared) => "they share a limit",
                Some(Finding::Apart) => "each has a limit of its own",
                None => "not clear",
            };
            lines.push(match trial.others_faster() {
                Some(_) => {
                    let others = units::rate(trial.after_bytes_per_s - trial.brought_bytes_per_s);
                    format!("trial without {}: the others {without}, beside it {others}: {finding}", trial.host)
                }
                None => format!("trial without one connection of {}: {without}, with it {with}: {finding}", trial.host),
            });
        }
        lines.extend(self.roles());
        let quota = facts.quota_used.map_or(String::new(), |used| format!(", quota used {}", units::percent(used)));
        lines.push(format!(
            "CPU: allowed cores busy {}, of it {:.2} cores ours; wait for a core {} of what we wanted; throttled {}{quota}",
            units::percent(facts.cores_busy),
            facts.compute_cores,
            units::percent(facts.run_delay_ratio()),
            units::percent(facts.throttled),
        ));
        if let Some(device) = self.findings.total.as_ref().and_then(|total| total.device.as_ref()) {
            let busy = units::percent(facts.device_busy.unwrap_or_default());
            lines.push(format!("disk {}: busy {busy}, {} written", device.name, units::bytes(device.written_bytes)));
        }
        if let Some(sync) = self.counters.stage(SYNC).filter(|sync| sync.device_ns > 0) {
            let time = units::time(Duration::from_nanos(sync.device_ns));
            let calls = if sync.device_calls == 1 { "call" } else { "calls" };
            lines.push(format!("sync: {time} in {} {calls}", sync.device_calls));
        }
        if facts.window_exhausted > 0.0 {
            lines.push(format!("window: no permits free {} of the time", units::percent(facts.window_exhausted)));
        }
        lines
    }

    /// Time of each role's threads while they existed. It omits threads that only help (the caller of the last sync)
    /// and idle runtime threads.
    fn roles(&self) -> Vec<String> {
        let threads = || self.facts.threads.iter().filter(|thread| thread.owned && thread.alive > 0.0);
        let mut roles: Vec<&str> = threads().map(|thread| thread.stage.as_str()).collect();
        roles.sort_unstable();
        roles.dedup();
        let line = |role: &str| {
            let of_role: Vec<&ThreadFacts> = threads()
                .filter(|thread| thread.stage == role && (thread.plain || thread.compute >= ROUNDS_TO_NOTHING))
                .collect();
            let alive = of_role.iter().map(|thread| thread.alive).sum::<f64>();
            let share = |part: fn(&ThreadFacts) -> f64, words: &str| {
                let share = of_role.iter().map(|thread| part(thread)).sum::<f64>() / alive;
                (share >= ROUNDS_TO_NOTHING).then(|| format!("{words} {}", units::percent(share)))
            };
            let parts = [
                share(|thread| thread.compute, "computing"),
                share(|thread| thread.run_delay, "waiting for a core"),
                share(|thread| thread.starved, "for input"),
                share(|thread| thread.blocked, "for the next stage"),
                share(|thread| thread.device, "for the disk"),
                share(|thread| thread.other, "unexplained"),
            ];
            let parts: Vec<String> = parts.into_iter().flatten().collect();
            if alive < ALIVE_LONG_ENOUGH {
                return None;
            }
            let threads = if of_role.len() == 1 { "thread" } else { "threads" };
            (!parts.is_empty()).then(|| format!("{role} ({} {threads}): {}", of_role.len(), parts.join(", ")))
        };
        roles.into_iter().filter_map(line).collect()
    }
}
