//! A natural experiment while data flows: does the total fall when one host pauses?
//!
//! Rates alone cannot tell a full access link from hosts that give no more: the sockets are empty in
//! both cases. So once in a while one host (or, where one brings nearly everything, one of its
//! connections) is asked for nothing until it is quiet, and the others' total is looked at. If they
//! take up what it had brought, the link was full; if the total falls by it, the link had room. The
//! loss is what the paused host brings in about a second, and is bounded as a share of the run.
//!
//! No I/O and no clock here: [`Trials::tick`] is told what has been received and says what to hold.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use fullbore_engine::stage::Trial;

use crate::hosts::HostId;

/// How often [`Trials::tick`] is called.
pub const TICK: Duration = Duration::from_millis(100);

/// Before this, connections speed up and nothing is steady.
const FIRST_AFTER: Duration = Duration::from_secs(2);

/// From one trial to the next.
const EVERY: Duration = Duration::from_secs(20);

/// Ticks over which a rate is measured: half a second.
const WINDOW: usize = 5;

/// Two windows in succession that differ by no more than this share are steady.
const STEADY: f64 = 0.10;

/// A host with less of the total than this would drown in noise.
const LEAST_SHARE: f64 = 0.15;

/// Ticks for the others to take up what is free, before they are measured; connections with long
/// round trips get as many as fit in ten of these.
const SETTLE: usize = 3;

/// Time after which a host that does not become quiet is let go, and nothing is learned.
const QUIET_LIMIT: Duration = Duration::from_secs(2);

/// Length of a pause as foreseen: quiet, settle, measure, speed up again.
const PAUSE_S: f64 = 1.2;

/// Share of a run's throughput that trials may cost.
const COST_SHARE: f64 = 0.03;

/// What is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The whole host.
    Host(HostId),
    /// One connection to it.
    OneConnection(HostId),
}

impl Subject {
    fn host(self) -> HostId {
        match self {
            Subject::Host(host) | Subject::OneConnection(host) => host,
        }
    }
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing.
    Go,
    /// Ask this for nothing more.
    Hold(Subject),
    /// Ask it again; with a result if there is one.
    Release(Option<Trial>),
}

/// What is known at a tick.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Bytes received so far, per host.
    pub received: &'a [u64],
    /// Largest round trip of the hosts in use.
    pub rtt: Duration,
    /// Bytes nobody is asked for yet.
    pub unasked_bytes: u64,
    /// Whether what is held has nothing left to bring.
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
pub struct Trials {
    names: Vec<String>,
    started: Instant,
    phase: Phase,
    /// Newest last: when, and bytes received per host.
    past: VecDeque<(Instant, Vec<u64>)>,
    /// What trials have cost so far, in bytes.
    spent_bytes: f64,
}

impl Trials {
    /// A run over these hosts begins.
    pub fn new(names: Vec<String>, now: Instant) -> Self {
        Trials {
            names,
            started: now,
            phase: Phase::Watching { not_before: now + FIRST_AFTER },
            past: VecDeque::new(),
            spent_bytes: 0.0,
        }
    }

    /// What to do now.
    pub fn tick(&mut self, now: Instant, seen: &Seen) -> Step {
        self.past.push_back((now, seen.received.to_vec()));
        while self.past.len() > 2 * WINDOW + 1 {
            self.past.pop_front();
        }
        let phase = std::mem::replace(&mut self.phase, Phase::Watching { not_before: now + EVERY });
        let (phase, step) = match phase {
            Phase::Watching { not_before } => self.watch(not_before, now, seen),
            Phase::Holding { subject, since, with } => {
                if seen.held_is_quiet {
                    let settle = SETTLE.max((10 * seen.rtt.as_millis() / TICK.as_millis()) as usize);
                    let wanted = settle.min(3 * SETTLE) + WINDOW;
                    (Phase::Measuring { subject, ticks: 0, wanted, with }, Step::Go)
                } else if now.saturating_duration_since(since) > QUIET_LIMIT {
                    (Phase::Watching { not_before: now + EVERY }, Step::Release(None))
                } else {
                    (Phase::Holding { subject, since, with }, Step::Go)
                }
            }
            Phase::Measuring { subject, ticks, wanted, with } => {
                let enough_left = seen.unasked_bytes as f64 > with.iter().sum::<f64>();
                if !enough_left {
                    // The end of the run comes first.
                    (Phase::Watching { not_before: now + EVERY }, Step::Release(None))
                } else if ticks + 1 < wanted {
                    (Phase::Measuring { subject, ticks: ticks + 1, wanted, with }, Step::Go)
                } else {
                    let trial = self.result(subject, &with);
                    (Phase::Watching { not_before: now + EVERY }, Step::Release(Some(trial)))
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
        let (Some(before), Some(with)) = (self.rates(2 * WINDOW, WINDOW), self.rates(WINDOW, 0)) else { return stay };
        let (earlier, total): (f64, f64) = (before.iter().sum(), with.iter().sum());
        if total <= 0.0 || (total - earlier).abs() > STEADY * total {
            return stay;
        }
        let subject = self.subject(&with, total);
        let rest_s = seen.unasked_bytes as f64 / total;
        let run_s = now.saturating_duration_since(self.started).as_secs_f64() + rest_s;
        let held = with[subject.host() as usize] * if matches!(subject, Subject::Host(_)) { 1.0 } else { 0.3 };
        let cost_bytes = held * PAUSE_S;
        if rest_s < 2.0 * PAUSE_S || self.spent_bytes + cost_bytes > COST_SHARE * run_s * total {
            return stay;
        }
        self.spent_bytes += cost_bytes;
        (Phase::Holding { subject, since: now, with }, Step::Hold(subject))
    }

    /// The host that is large enough to be seen, and no larger than needed; one connection where one
    /// host brings nearly all.
    fn subject(&self, with: &[f64], total: f64) -> Subject {
        let main = with.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        let (main, _) = main.unwrap_or((0, &0.0));
        with.iter()
            .enumerate()
            .filter(|(host, rate)| *host != main && **rate >= LEAST_SHARE * total)
            .min_by(|a, b| a.1.total_cmp(b.1))
            .map_or(Subject::OneConnection(main as HostId), |(host, _)| Subject::Host(host as HostId))
    }

    fn result(&self, subject: Subject, with: &[f64]) -> Trial {
        let without: f64 = self.rates(WINDOW, 0).unwrap_or_default().iter().sum();
        let new_host = matches!(subject, Subject::Host(_));
        Trial {
            host: self.names[subject.host() as usize].clone(),
            new_host,
            before_bytes_per_s: without,
            after_bytes_per_s: with.iter().sum(),
            brought_bytes_per_s: if new_host { with[subject.host() as usize] } else { 0.0 },
        }
    }

    /// Rates per host between two ticks of the past, counted from the newest.
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
        assert!(trials[0].new_host && !trials[0].raised(), "{trials:?}");
        assert!(stretch < 1.01, "{stretch}");
    }

    #[test]
    fn hosts_that_give_no_more_show_and_cost_little() {
        let (trials, stretch) = run(&[30e6, 10e6, 20e6], 1e9, 60);
        assert!((1..=3).contains(&trials.len()), "{trials:?}");
        assert!(trials.iter().all(|trial| trial.new_host && trial.raised() && trial.host == "h1"));
        assert!(stretch < 1.0 + COST_SHARE, "{stretch}");
    }

    #[test]
    fn of_a_single_host_only_a_connection_is_held() {
        let (trials, stretch) = run(&[50e6], 1e9, 30);
        assert!(!trials.is_empty() && trials.iter().all(|trial| !trial.new_host && !trial.raised()));
        assert!(stretch < 1.0 + COST_SHARE, "{stretch}");
    }

    #[test]
    fn a_short_run_is_left_alone() {
        assert!(run(&[50e6, 50e6], 60e6, 3).0.is_empty());
    }
}
