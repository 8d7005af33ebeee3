//! A natural experiment while data flows: does the total rate fall when one host pauses?
//!
//! Rates alone cannot distinguish a full access link from hosts that are slow: the sockets are empty in both cases. So
//! early in a run, and again until the answer is clear, one host gets no requests while the others are measured. If
//! they take up its share, the link was full; if not, the link had spare capacity. The price is half a second of the
//! paused host's data, if there was spare capacity. It is counted, and bounded as a share of the run.
//!
//! With only one host there is nothing to distinguish. In long runs one of its connections pauses, to find out whether
//! more of them would help.
//!
//! No I/O and no clock here: [`Trials::tick`] gets the received bytes and returns what to hold.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use fullbore_engine::stage::{Finding, Trial};

use crate::hosts::HostId;

/// How often [`Trials::tick`] is called.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// Time before the first trial: connections speed up, and nothing is steady.
const FIRST_AFTER: Duration = Duration::from_millis(1500);

/// The same with one host, where a trial only serves the advice. A paused connection resumes with a small congestion
/// window (RFC 2861), which a short run would notice.
const FIRST_AFTER_ALONE: Duration = Duration::from_secs(30);

/// Time to the next trial after a conclusive one: the network changes slowly.
const EVERY: Duration = Duration::from_secs(20);

/// Time to the next trial after an inconclusive one, and to the second opinion after the first that found spare
/// capacity. The paused host must become as fast as before.
const AGAIN: Duration = Duration::from_millis(1500);

/// Number of ticks over which a rate is measured: 0.4 s; and during a pause, where each costs: 0.3 s.
const WINDOW: usize = 4;
const MEASURED: usize = 3;

/// Two consecutive windows that differ by no more than this share are steady.
const STEADY: f64 = 0.10;

/// A host with a smaller share of the total would drown in noise.
const LEAST_SHARE: f64 = 0.10;

/// A host with this share of the total is the only one.
const ALONE: f64 = 0.97;

/// A held host counts as quiet when its rate is below this share of its usual rate.
const GONE: f64 = 0.35;

/// Minimum and maximum number of ticks for the others to take up the free capacity before they are measured. In between
/// it is two round trips.
const SETTLE: usize = 2;
const SETTLE_MAX: usize = 5;

/// Time after which a host that does not become quiet is released without a result.
const QUIET_LIMIT: Duration = Duration::from_millis(1500);

/// Cost of a trial in seconds of the held rate if nobody takes it up: settle, measure, speed up again.
const PAUSE_S: f64 = 0.7;

/// The part of the cost after the release.
const SPEED_UP_S: f64 = 0.2;

/// Assumed share of one connection in its host's rate: a guess, since four are usual.
const CONNECTION_SHARE: f64 = 0.25;

/// Share of a run's throughput that trials may cost.
const COST_SHARE: f64 = 0.03;

/// What a trial holds back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// A whole host.
    Host(HostId),
    /// One connection to this host.
    OneConnection(HostId),
}

impl Subject {
    fn host(self) -> HostId {
        match self {
            Subject::Host(host) | Subject::OneConnection(host) => host,
        }
    }
}

/// What to do at a tick.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Nothing.
    Go,
    /// Send no more requests to this subject.
    Hold(Subject),
    /// End the trial, with its result if there is one.
    Release(Option<Trial>),
}

/// Measurements at a tick.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a> {
    /// Bytes received so far, per host.
    pub received: &'a [u64],
    /// Largest round trip of the hosts in use.
    pub rtt: Duration,
    /// Number of bytes that are not requested yet.
    pub unasked_bytes: u64,
    /// Whether the held host or connection has no requests in flight any more.
    pub held_is_quiet: bool,
}

#[derive(Debug)]
enum Phase {
    Watching { not_before: Instant },
    Holding { subject: Subject, since: Instant, with: Vec<f64> },
    Measuring { subject: Subject, ticks: usize, wanted: usize, with: Vec<f64> },
}

/// The trials of a run.
#[derive(Debug)]
pub(crate) struct Trials {
    names: Vec<String>,
    started: Instant,
    phase: Phase,
    /// Newest last: time, and bytes received per host.
    past: VecDeque<(Instant, Vec<u64>)>,
    /// Number of conclusive trials per host.
    told: Vec<u32>,
    /// Whether a trial gave a result that further trials would only repeat.
    is_known: bool,
    /// Cost of all trials so far, in bytes.
    spent_bytes: f64,
}

impl Trials {
    /// Starts with these hosts at `now`.
    pub(crate) fn new(names: Vec<String>, now: Instant) -> Self {
        Trials {
            told: vec![0; names.len()],
            names,
            started: now,
            phase: Phase::Watching { not_before: now + FIRST_AFTER },
            past: VecDeque::new(),
            is_known: false,
            spent_bytes: 0.0,
        }
    }

    /// Decides what to do at this tick.
    pub(crate) fn tick(&mut self, now: Instant, seen: &Seen) -> Step {
        self.past.push_back((now, seen.received.to_vec()));
        while self.past.len() > 2 * WINDOW + 1 {
            self.past.pop_front();
        }
        let phase = std::mem::replace(&mut self.phase, Phase::Watching { not_before: now + EVERY });
        let (phase, step) = match phase {
            Phase::Watching { not_before } => self.watch(not_before, now, seen),
            Phase::Holding { subject, since, with } => {
                self.account(&with);
                if seen.held_is_quiet || self.is_gone(subject, &with) {
                    let settle = (2 * seen.rtt.as_millis()).div_ceil(TICK.as_millis()) as usize;
                    let wanted = settle.clamp(SETTLE, SETTLE_MAX) + MEASURED;
                    (Phase::Measuring { subject, ticks: 0, wanted, with }, Step::Go)
                } else if now.saturating_duration_since(since) > QUIET_LIMIT {
                    (Phase::Watching { not_before: now + AGAIN }, Step::Release(None))
                } else {
                    (Phase::Holding { subject, since, with }, Step::Go)
                }
            }
            Phase::Measuring { subject, ticks, wanted, with } => {
                self.account(&with);
                let enough_left = seen.unasked_bytes as f64 > with.iter().sum::<f64>();
                if !enough_left {
                    // The end of the run has precedence.
                    (Phase::Watching { not_before: now + EVERY }, Step::Release(None))
                } else if ticks + 1 < wanted {
                    (Phase::Measuring { subject, ticks: ticks + 1, wanted, with }, Step::Go)
                } else {
                    let trial = self.result(subject, &with);
                    let not_before = now + self.learn(subject, &trial);
                    (Phase::Watching { not_before }, Step::Release(Some(trial)))
                }
            }
        };
        self.phase = phase;
        step
    }

    fn watch(&mut self, not_before: Instant, now: Instant, seen: &Seen) -> (Phase, Step) {
        let stay = (Phase::Watching { not_before }, Step::Go);
        if now < not_before || self.past.len() < 2 * WINDOW + 1 {
            return stay;
        }
        let rates = (self.rates(2 * WINDOW, WINDOW), self.rates(WINDOW, 0), self.rates(2 * WINDOW, 0));
        let (Some(before), Some(latest), Some(with)) = rates else { return stay };
        let (earlier, total): (f64, f64) = (before.iter().sum(), latest.iter().sum());
        if total <= 0.0 || (total - earlier).abs() > STEADY * total {
            return stay;
        }
        let Some(subject) = self.subject(&with, now) else { return stay };
        let share = if matches!(subject, Subject::Host(_)) { 1.0 } else { CONNECTION_SHARE };
        let cost_bytes = with[subject.host() as usize] * share * PAUSE_S;
        let run_bytes = seen.received.iter().sum::<u64>() as f64 + seen.unasked_bytes as f64;
        let rest_s = seen.unasked_bytes as f64 / total;
        if rest_s < 3.0 * PAUSE_S || self.spent_bytes + cost_bytes > COST_SHARE * run_bytes {
            return stay;
        }
        (Phase::Holding { subject, since: now, with }, Step::Hold(subject))
    }

    /// Subject of the next trial: the host with the fewest trials; among several, the smallest that is large enough to
    /// measure. One connection if a single host delivers everything.
    fn subject(&self, with: &[f64], now: Instant) -> Option<Subject> {
        let total: f64 = with.iter().sum();
        let alone = with.iter().position(|rate| *rate >= ALONE * total);
        if let Some(host) = alone {
            let late = now.saturating_duration_since(self.started) >= FIRST_AFTER_ALONE;
            return late.then_some(Subject::OneConnection(host as HostId));
        }
        let seen = with.iter().enumerate().filter(|(_, rate)| **rate >= LEAST_SHARE * total);
        let best = seen.min_by(|a, b| self.told[a.0].cmp(&self.told[b.0]).then(a.1.total_cmp(b.1)));
        best.map(|(host, _)| Subject::Host(host as HostId))
    }

    fn is_gone(&self, subject: Subject, with: &[f64]) -> bool {
        let host = subject.host() as usize;
        matches!(subject, Subject::Host(_)) && self.rates(1, 0).is_some_and(|now| now[host] <= GONE * with[host])
    }

    /// Adds the loss of the last tick against the rate before the trial.
    fn account(&mut self, with: &[f64]) {
        let now: f64 = self.rates(1, 0).unwrap_or_default().iter().sum();
        let lost = with.iter().sum::<f64>() - now;
        self.spent_bytes += lost.max(0.0) * TICK.as_secs_f64();
    }

    /// Records the result of a trial; returns the time until the next one.
    fn learn(&mut self, subject: Subject, trial: &Trial) -> Duration {
        let finding = trial.finding();
        if finding == Some(Finding::Apart) {
            self.spent_bytes += trial.brought_bytes_per_s * SPEED_UP_S;
        }
        let second_opinion = finding == Some(Finding::Apart) && !self.is_known && trial.new_host;
        if finding.is_some() {
            self.told[subject.host() as usize] += 1;
            self.is_known = true;
        }
        if finding.is_none() || second_opinion { AGAIN } else { EVERY }
    }

    fn result(&self, subject: Subject, with: &[f64]) -> Trial {
        let without = self.rates(MEASURED, 0).unwrap_or_default();
        let host = subject.host() as usize;
        let new_host = matches!(subject, Subject::Host(_));
        let paused = if new_host { without.get(host).copied().unwrap_or_default() } else { 0.0 };
        Trial {
            host: self.names[host].clone(),
            new_host,
            before_bytes_per_s: without.iter().sum::<f64>() - paused,
            after_bytes_per_s: with.iter().sum(),
            brought_bytes_per_s: if new_host { with[host] } else { 0.0 },
        }
    }

    /// Rates per host between two earlier ticks, counted from the newest.
    fn rates(&self, from: usize, to: usize) -> Option<Vec<f64>> {
        let newest = self.past.len().checked_sub(1)?;
        let (began, first) = self.past.get(newest.checked_sub(from)?)?;
        let (ended, last) = self.past.get(newest.checked_sub(to)?)?;
        let seconds = ended.saturating_duration_since(*began).as_secs_f64().max(1e-3);
        Some(first.iter().zip(last).map(|(a, b)| b.saturating_sub(*a) as f64 / seconds).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hosts behind a link; who is held brings nothing, and the others what the link leaves them.
    fn run(hosts: &[f64], link: f64, seconds: u64) -> (Vec<Trial>, f64) {
        let start = Instant::now();
        let names = (0..hosts.len()).map(|n| format!("h{n}")).collect();
        let mut trials = Trials::new(names, start);
        let mut received = vec![0.0; hosts.len()];
        let mut held: Option<Subject> = None;
        let mut found = Vec::new();
        let ideal = hosts.iter().sum::<f64>().min(link);
        let planned = ideal * seconds as f64;
        let mut now = start;
        while received.iter().sum::<f64>() < planned {
            now += TICK;
            let give: Vec<f64> = hosts
                .iter()
                .enumerate()
                .map(|(id, rate)| match held {
                    Some(Subject::Host(host)) if host as usize == id => 0.0,
                    // Connections that share a host's limit take over from each other.
                    _ => *rate,
                })
                .collect();
            let scale = (link / give.iter().sum::<f64>()).min(1.0);
            for (sum, rate) in received.iter_mut().zip(&give) {
                *sum += rate * scale * TICK.as_secs_f64();
            }
            let bytes: Vec<u64> = received.iter().map(|sum| *sum as u64).collect();
            let left = (planned - received.iter().sum::<f64>()).max(0.0) as u64;
            let seen =
                Seen { received: &bytes, rtt: Duration::from_millis(20), unasked_bytes: left, held_is_quiet: true };
            match trials.tick(now, &seen) {
                Step::Go => {}
                Step::Hold(subject) => held = Some(subject),
                Step::Release(trial) => {
                    held = None;
                    found.extend(trial);
                }
            }
        }
        (found, (now - start).as_secs_f64() / seconds as f64)
    }

    #[test]
    fn a_full_link_shows_and_costs_nothing() {
        let (trials, stretch) = run(&[80e6, 80e6, 80e6], 100e6, 30);
        assert!(trials[0].new_host && trials[0].finding() == Some(Finding::Shared), "{trials:?}");
        assert!(stretch < 1.01, "{stretch}");
    }

    #[test]
    fn hosts_that_give_no_more_show_and_cost_little() {
        let (trials, stretch) = run(&[30e6, 10e6, 20e6], 1e9, 60);
        assert!((2..=5).contains(&trials.len()), "{trials:?}");
        assert!(trials.iter().all(|trial| trial.new_host && trial.finding() == Some(Finding::Apart)));
        assert_ne!(trials[0].host, trials[1].host, "the second opinion is another's");
        assert!(stretch < 1.0 + COST_SHARE, "{stretch}");
    }

    #[test]
    fn of_a_single_host_only_a_connection_is_held() {
        let (trials, stretch) = run(&[50e6], 1e9, 60);
        assert!(
            !trials.is_empty()
                && trials.iter().all(|trial| !trial.new_host && trial.finding() == Some(Finding::Shared))
        );
        assert!(stretch < 1.0 + COST_SHARE, "{stretch}");
    }

    #[test]
    fn a_short_run_is_left_alone() {
        assert!(run(&[50e6, 50e6], 60e6, 3).0.is_empty());
    }

    #[test]
    fn twelve_seconds_are_enough_to_learn_something_of_two_to_four_hosts() {
        for hosts in [&[60e6, 60e6][..], &[60e6, 30e6, 20e6], &[40e6, 40e6, 40e6, 40e6]] {
            for (link, finding) in [(100e6, Finding::Shared), (1e9, Finding::Apart)] {
                let (trials, stretch) = run(hosts, link, 12);
                assert!(!trials.is_empty(), "{hosts:?} behind {link}");
                assert!(trials.iter().all(|trial| trial.finding() == Some(finding)), "{trials:?}");
                assert!(stretch < 1.0 + COST_SHARE, "{hosts:?} behind {link}: {stretch}");
            }
        }
    }
}
