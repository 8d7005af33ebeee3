//! One verdict for work of several machines: stores and grids, both ends of a copy, trials of a probe.
//!
//! The caller supplies the work: our own stages, the peers, and their clocks ([`Work`]). A copy and a probe have a
//! verdict of each end already; they supply the part that each signal names. The rule is the same everywhere, as for
//! the engine's samples. Signals of two kinds must name a part ([`agreed`]), none may name another, and no other part
//! may be as full ([`alone`]). Otherwise the verdict is `mixed`. No I/O, no clock.

use std::time::Duration;

use super::thresholds::{ALIKE, FULL, NAMED, NO_OTHER, USED_UP};
use super::{Limit, Share, Verdict, shares_text};
use crate::run::report::VerdictReport;
use crate::units;

/// Name of the limit when no single part dominates.
pub const MIXED: &str = "mixed";
/// Name of the limit of a run that did nothing.
pub const NOTHING: &str = "nothing in particular";
/// Advice when no part is named.
pub const MIXED_ADVICE: &str = "No single part would help much by itself.";

/// Kinds of signals that a verdict combines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Clocks of our own stages: their working time, and whether they waited for others.
    Stages,
    /// Clocks of requests, divided by TCP's acknowledgements: on the path, at the server, or idle.
    Requests,
    /// CPU time, from the kernel.
    Processor,
    /// A statement of the peer itself.
    Answers,
    /// The engine's verdict on a trial.
    Trial,
    /// A trial that leaves a part out.
    Intervention,
    /// A calculation from the costs of each part.
    Arithmetic,
}

/// The part that signals of two kinds name, if none names another. A signal may name no part.
pub fn agreed<P: Copy + PartialEq>(claims: &[(Signal, Option<P>)]) -> Option<P> {
    let mut named = claims.iter().filter_map(|(signal, part)| Some((signal, (*part)?)));
    let (first, part) = named.next()?;
    let others: Vec<_> = named.collect();
    let is_agreed = others.iter().all(|(_, other)| *other == part) && others.iter().any(|(signal, _)| *signal != first);
    is_agreed.then_some(part)
}

/// Another part that may have been as full as the named one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OtherShare<P> {
    /// The part that was compared with the named one.
    pub part: P,
    /// Share of the run's time, from 0 to 1.
    pub share: f64,
    /// Share from which on the part counts as full as the named one.
    pub as_full: f64,
}

/// Checks that no other part is as full as the named one.
///
/// # Errors
/// The first of `others` whose share reaches its `as_full`.
pub fn alone<P: Clone>(others: &[OtherShare<P>]) -> Result<(), OtherShare<P>> {
    let as_full = others.iter().find(|other| other.share >= other.as_full);
    as_full.map_or(Ok(()), |other| Err(other.clone()))
}

/// The part with enough of the time to be the limit, if no other part has a large share. `shares` has the largest
/// first.
pub fn largest<P>(shares: &[(P, f64)]) -> Option<&P> {
    let (part, _) = shares.first().filter(|(_, share)| *share >= NAMED)?;
    shares.get(1).is_none_or(|(_, share)| *share <= NO_OTHER).then_some(part)
}

/// A stage of this process, for the verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stage {
    /// Name of the stage in reports, such as `source`.
    pub name: &'static str,
    /// Working time of all its threads.
    pub busy: Duration,
    /// Number of threads that the stage may use.
    pub threads: usize,
}

/// A peer that works for us, over all connections to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Peer {
    /// Name of the server, as the user knows it.
    pub name: String,
    /// Time in which bytes were on the path, or waited to be sent.
    pub path: Duration,
    /// Time in which the peer had a whole request and had not answered.
    pub server: Duration,
    /// Time during which connections to the server were open.
    pub open: Duration,
    /// Number of times that the peer asked for a lower rate.
    pub slowed: u64,
}

/// The user's rate limit, with its effect.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RateLimit {
    /// Allowed rate, in bytes per second.
    pub bytes_per_s: u64,
    /// Number of bytes sent under the limit.
    pub bytes: u64,
    /// Time in which the limit held bytes back, over all connections.
    pub held: Duration,
}

/// Work and waits of a run: input of the verdict.
#[derive(Clone, Debug, Default)]
pub struct Work<'a> {
    /// Wall time of the run.
    pub wall: Duration,
    /// CPU time of all threads of the process.
    pub processor: Duration,
    /// Number of cores that the process may use.
    pub cores: usize,
    /// Stages of this process, in the order of the data path.
    pub stages: Vec<Stage>,
    /// Servers that the run talked to.
    pub peers: Vec<Peer>,
    /// The limit that the user set, if any.
    pub rate_limit: Option<RateLimit>,
    /// Number of useful bytes that were moved.
    pub moved_bytes: u64,
    /// The verdict of the engine's sampler on this machine; it needs two signals as well.
    pub near: Option<&'a Verdict>,
}

/// What can hold a run up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Processor,
    Stage,
    Path,
    Server,
    SlowDown,
}

/// Shares of the time: the fullest stage, and the peers.
#[derive(Clone, Debug, Default)]
struct Use {
    stage: Stage,
    stage_share: f64,
    processor: f64,
    /// The busiest peer; the sum of all peers if they are alike.
    peer: Option<Peer>,
    is_alike: bool,
    path: f64,
    server: f64,
}

/// Shares are compared to twelve decimal places. Guess: an `f64` holds fifteen digits, and sums of times lose a few.
const SHARE_STEPS: f64 = 1e12;

/// Rounds a share, so that the same share of a longer time is the same number, also at a threshold.
fn rounded(share: f64) -> f64 {
    (share * SHARE_STEPS).round() / SHARE_STEPS
}

fn ratio(part: Duration, whole: Duration) -> f64 {
    if whole.is_zero() { 0.0 } else { (part.as_secs_f64() / whole.as_secs_f64()).min(1.0) }
}

/// A share as people read it, in per cent.
pub fn percent(share: f64) -> f64 {
    (share * 100.0).round().clamp(0.0, 100.0)
}

impl Peer {
    fn busy(&self) -> Duration {
        self.path + self.server
    }
}

impl Stage {
    fn share(&self, wall: Duration) -> f64 {
        rounded(ratio(self.busy, wall.saturating_mul(self.threads.max(1) as u32)))
    }
}

impl RateLimit {
    /// Our own limit, and so certain: the rate was reached, or bytes were held back most of the time.
    fn is_reached(&self, wall: Duration, busy: Duration) -> bool {
        let allowed = self.bytes_per_s as f64 * wall.as_secs_f64();
        let held = !busy.is_zero() && rounded(ratio(self.held, busy)) >= NAMED;
        self.bytes > 0 && (rounded(self.bytes as f64 / allowed) >= USED_UP || held)
    }
}

impl Work<'_> {
    fn used(&self) -> Use {
        let of_stage = |stage: &Stage| stage.share(self.wall);
        let stage = self.stages.iter().copied().max_by(|one, two| of_stage(one).total_cmp(&of_stage(two)));
        let stage = stage.unwrap_or_default();
        let cores = self.wall.saturating_mul(self.cores.max(1) as u32);
        let mut used = Use {
            stage,
            stage_share: of_stage(&stage),
            processor: rounded(ratio(self.processor, cores)),
            ..Use::default()
        };
        let Some(busiest) = self.peers.iter().max_by_key(|peer| peer.busy()) else { return used };
        let mut all: Vec<Duration> = self.peers.iter().map(Peer::busy).collect();
        all.sort_unstable();
        used.is_alike = all.len() > 1 && rounded(ratio(all[all.len() / 2], busiest.busy())) >= ALIKE;
        // The busy time of many peers is divided in the proportion of their sums.
        let sum = |part: fn(&Peer) -> Duration| self.peers.iter().map(part).sum::<Duration>();
        let (path, both) = match used.is_alike {
            true => (sum(|peer| peer.path), sum(Peer::busy)),
            false => (busiest.path, busiest.busy()),
        };
        let busy = ratio(busiest.busy(), busiest.open.max(self.wall));
        let path = busy * ratio(path, both);
        (used.path, used.server) = (rounded(path), rounded(busy - path));
        used.peer = Some(busiest.clone());
        used
    }

    /// The part that two signals name, and its share.
    fn limit(&self, used: &Use) -> Option<(Part, f64)> {
        let far = rounded(used.path + used.server);
        let (is_here, is_there) = (used.stage_share >= NAMED, far >= NAMED);
        let is_path = used.path >= used.server;
        let far_part = Some(if is_path { Part::Path } else { Part::Server });
        let part = if used.processor >= FULL {
            // A full processor looks like any other limit: data that waits to be sent waits for it, too.
            let stands = if is_here || used.path >= NAMED { Some(Part::Processor) } else { far_part };
            agreed(&[(Signal::Processor, Some(Part::Processor)), (Signal::Stages, stands)])
        } else if is_here || is_there {
            // Requests wait for a stage that never waited itself: it does not take the data in flight.
            let is_behind = is_here && used.stage_share >= FULL;
            let stages = if is_here { Some(Part::Stage) } else { far_part };
            let requests = if is_there && !is_behind { far_part } else { Some(Part::Stage) };
            agreed(&[(Signal::Stages, stages), (Signal::Requests, requests)])
        } else {
            // No part worked; a peer may have said why.
            let slowed = used.peer.as_ref().is_some_and(|peer| peer.slowed > 0).then_some(Part::SlowDown);
            agreed(&[(Signal::Requests, slowed), (Signal::Answers, slowed)])
        }?;
        let (share, other) = match part {
            Part::Processor => (used.processor, 0.0),
            Part::Stage => (used.stage_share, 0.0),
            Part::Path => (used.path, used.server),
            Part::Server => (used.server, used.path),
            Part::SlowDown => (1.0 - far, 0.0),
        };
        (share >= NAMED && other <= NO_OTHER).then_some((part, share))
    }

    fn words(&self, used: &Use, part: Part) -> (String, String) {
        let name = used.peer.as_ref().map_or("", |peer| &peer.name);
        let (stage, far) = (used.stage.name, used.path + used.server);
        let of = |share: f64, what: &str| {
            format!("busy {} % of the time, {} % of that {what}", percent(far), percent(share / far.max(f64::EPSILON)))
        };
        match part {
            Part::Processor => {
                let stage = if used.stage_share >= NO_OTHER { stage } else { "send" };
                let cores = units::several(self.cores as u64, "core", "cores");
                (format!("our processor ({stage})"), format!("{cores} {} % busy with it", percent(used.processor)))
            }
            Part::Stage => {
                let reason = format!("our threads were at it {} % of the time", percent(used.stage_share));
                (format!("our side ({stage})"), reason)
            }
            Part::SlowDown => {
                let slowed = used.peer.as_ref().map_or(0, |peer| peer.slowed);
                (format!("server {name} (SlowDown)"), format!("it asked {slowed} times for fewer requests"))
            }
            Part::Path if used.is_alike => ("the paths to the servers, or our link".to_owned(), of(used.path, "path")),
            Part::Path if self.peers.len() == 1 => (format!("the path to {name}, or our link"), of(used.path, "path")),
            Part::Path => (format!("server {name} (path)"), of(used.path, "path")),
            Part::Server if used.is_alike => {
                ("the servers (server latency)".to_owned(), of(used.server, "server latency"))
            }
            Part::Server => (format!("server {name} (server latency)"), of(used.server, "server latency")),
        }
    }

    /// Divides the wall time: the fullest part gets its used share, and each further part its share of the rest.
    fn shares(&self, used: &Use) -> Vec<Share> {
        let stages = self.stages.iter().map(|stage| (stage.name.to_owned(), stage.share(self.wall)));
        let far = [(Part::Path, used.path), (Part::Server, used.server)]
            .map(|(part, share)| (self.words(used, part).0, share));
        let mut shares: Vec<Share> =
            stages.chain(far).map(|(part, share)| Share { part, share }).filter(|one| one.share > 0.0).collect();
        shares.sort_by(|one, other| other.share.total_cmp(&one.share));
        let mut left = 1.0;
        for one in &mut shares {
            one.share = one.share.min(left);
            left -= one.share;
        }
        shares.retain(|one| one.share > 0.0);
        shares
    }
}

/// Judges a run. The caller adds the measurements and the advice in words.
pub fn judge(work: &Work<'_>) -> VerdictReport {
    let used = work.used();
    let shares = work.shares(&used);
    let report = |limit: String, reason: String, share: f64| VerdictReport {
        confident: limit != MIXED && limit != NOTHING,
        limit,
        reason,
        share,
        shares: shares.iter().map(|one| (one.part.clone(), one.share)).collect(),
        ..VerdictReport::default()
    };
    let busy = work.peers.iter().map(Peer::busy).sum();
    if work.rate_limit.is_some_and(|limit| limit.is_reached(work.wall, busy)) {
        return report("the rate limit".to_owned(), "the rate is the one that was allowed".to_owned(), 1.0);
    }
    if let Some(near) = work.near
        && near.confident
        && matches!(near.limit, Limit::Cpu { .. } | Limit::OneCore { .. } | Limit::Disk)
    {
        return report(near.part.clone(), near.reason.clone(), near.share);
    }
    match work.limit(&used) {
        Some((part, share)) => {
            let (limit, reason) = work.words(&used, part);
            report(limit, reason, share)
        }
        None if work.moved_bytes == 0 => report(NOTHING.to_owned(), "nothing was moved".to_owned(), 0.0),
        None => {
            let share = shares.first().map_or(0.0, |one| one.share);
            report(MIXED.to_owned(), shares_text(shares.get(..3).unwrap_or(&shares)), share)
        }
    }
}

#[cfg(test)]
mod tests;
