//! What the planner knows of each worker, by its reports.

use std::collections::BTreeMap;
use std::time::Duration;

use fullbore_engine::run::report::WorkerReport;
use fullbore_fleet::message::{Fault, Report, Stat};
use fullbore_fleet::names::WorkerId;
use fullbore_fleet::queue::WORKERS_MAX;

use super::judgement::Clocks;

/// Silence after which a worker is named, and after which it counts as gone: its tasks go to others then.
const SILENT_AFTER: Duration = Duration::from_secs(10);
const GONE_AFTER: Duration = Duration::from_secs(30);

/// Points of a worker's lane: one for each second of the first minutes, then for each two, and so on.
const POINTS_MAX: usize = 240;

struct Lane {
    /// What it had done when this planner first heard of it: not of this planner's run.
    before: (u64, u64),
    stat: Stat,
    heard: Duration,
    joined: Duration,
    faults: u64,
    is_known_gone: bool,
    /// Bytes stored, by the end of each interval of `interval`.
    points: Vec<u64>,
}

/// A change that is told while the run goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// A worker was heard of for the first time, or again after it had gone.
    Joined(WorkerId),
    /// It has been silent for half a minute.
    Left(WorkerId),
}

/// All workers of a run.
#[derive(Default)]
pub(super) struct Lanes {
    lanes: BTreeMap<WorkerId, Lane>,
    /// Whether workers may have worked for an earlier planner of the run.
    is_taken_over: bool,
    interval: Duration,
}

impl Lanes {
    /// No worker yet.
    pub(super) fn new(is_taken_over: bool) -> Lanes {
        Lanes { is_taken_over, interval: Duration::from_secs(1), ..Lanes::default() }
    }

    /// Notes a report. `now` is the time since the planner began.
    pub(super) fn heard(&mut self, now: Duration, report: Report) -> (Option<Change>, Option<Fault>) {
        match report {
            Report::Fault(fault) => {
                if let Some(lane) = self.lanes.get_mut(&fault.worker) {
                    lane.faults += 1;
                }
                (None, Some(fault))
            }
            Report::Stat(stat) => (self.heard_stat(now, stat), None),
        }
    }

    fn heard_stat(&mut self, now: Duration, stat: Stat) -> Option<Change> {
        let worker = stat.worker.clone();
        if let Some(lane) = self.lanes.get_mut(&worker) {
            (lane.stat, lane.heard) = (stat, now);
            return std::mem::take(&mut lane.is_known_gone).then_some(Change::Joined(worker));
        }
        if self.lanes.len() >= WORKERS_MAX {
            return None;
        }
        let before = if self.is_taken_over { stat.done } else { (0, 0) };
        let lane = Lane { before, stat, heard: now, joined: now, faults: 0, is_known_gone: false, points: Vec::new() };
        self.lanes.insert(worker.clone(), lane);
        Some(Change::Joined(worker))
    }

    /// Which workers have gone since the last call.
    pub(super) fn gone(&mut self, now: Duration) -> Vec<Change> {
        let mut gone = Vec::new();
        for (worker, lane) in &mut self.lanes {
            if !lane.is_known_gone && now.saturating_sub(lane.heard) >= GONE_AFTER {
                lane.is_known_gone = true;
                gone.push(Change::Left(worker.clone()));
            }
        }
        gone
    }

    /// Notes what each worker has stored by now, for its lane. Call it several times a second.
    pub(super) fn sample(&mut self, now: Duration) {
        let at = (now.as_millis() / self.interval.as_millis().max(1)) as usize;
        if at >= POINTS_MAX {
            self.interval *= 2;
            for lane in self.lanes.values_mut() {
                lane.points = lane.points.chunks(2).filter_map(|pair| pair.last().copied()).collect();
            }
            return;
        }
        for lane in self.lanes.values_mut() {
            let bytes = lane.stat.done.1.saturating_sub(lane.before.1);
            let last = lane.points.last().copied().unwrap_or_default();
            lane.points.resize(at, last);
            lane.points.push(bytes);
        }
    }

    /// Files and bytes that all workers together have stored.
    pub(super) fn done(&self) -> (u64, u64) {
        let of = |lane: &Lane| {
            let (files, bytes) = lane.stat.done;
            (files.saturating_sub(lane.before.0), bytes.saturating_sub(lane.before.1))
        };
        self.lanes
            .values()
            .map(of)
            .fold((0, 0), |sum: (u64, u64), one| (sum.0.saturating_add(one.0), sum.1.saturating_add(one.1)))
    }

    /// Bytes that all workers together have fetched, sent and stored: it grows as long as anything moves.
    pub(super) fn moved_bytes(&self) -> u64 {
        let of = |lane: &Lane| {
            let fetched = lane.stat.hosts.iter().fold(0_u64, |sum, host| sum.saturating_add(host.1));
            fetched.saturating_add(lane.stat.sent_bytes).saturating_add(lane.stat.done.1)
        };
        self.lanes.values().map(of).fold(0, u64::saturating_add)
    }

    /// Bytes and faults by mirror, of all workers together.
    pub(super) fn hosts(&self) -> BTreeMap<String, (u64, u64)> {
        let mut hosts: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for host in self.lanes.values().flat_map(|lane| &lane.stat.hosts) {
            let sum = hosts.entry(host.0.clone()).or_default();
            (sum.0, sum.1) = (sum.0.saturating_add(host.1), sum.1.saturating_add(host.2));
        }
        hosts
    }

    /// The clocks of all workers together.
    pub(super) fn clocks(&self) -> Clocks {
        self.lanes.values().map(|lane| Clocks::of_ms(&lane.stat.clocks)).fold(Clocks::default(), |a, b| a.and(&b))
    }

    /// Workers that are not gone.
    pub(super) fn live(&self, now: Duration) -> usize {
        self.lanes.values().filter(|lane| now.saturating_sub(lane.heard) < GONE_AFTER).count()
    }

    /// Workers that have been silent for a while, and for how long.
    pub(super) fn silent(&self, now: Duration) -> Vec<(WorkerId, u64)> {
        let silence = |lane: &Lane| now.saturating_sub(lane.heard);
        let silent = self.lanes.iter().filter(|(_, lane)| (SILENT_AFTER..GONE_AFTER).contains(&silence(lane)));
        silent.map(|(worker, lane)| (worker.clone(), silence(lane).as_secs())).collect()
    }

    /// The totals of each worker.
    pub(super) fn reports(&self) -> Vec<WorkerReport> {
        let of = |(worker, lane): (&WorkerId, &Lane)| {
            let (files, bytes) = lane.stat.done;
            let clocks = Clocks::of_ms(&lane.stat.clocks);
            let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            WorkerReport {
                worker: worker.to_string(),
                files: files.saturating_sub(lane.before.0),
                bytes: bytes.saturating_sub(lane.before.1),
                received_bytes: lane.stat.hosts.iter().fold(0, |sum, host| sum.saturating_add(host.1)),
                faults: lane.faults,
                joined_ms: ms(lane.joined),
                waited_for_slots_ms: ms(clocks.slots),
                waited_for_store_ms: ms(clocks.store),
                idle_ms: ms(clocks.idle),
                is_gone: lane.is_known_gone,
                interval_ms: ms(self.interval),
                stored_bytes: lane.points.clone(),
            }
        };
        self.lanes.iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn stat(worker: &str, files: u64, bytes: u64) -> Report {
        let mut stat = Stat::new(WorkerId::parse(worker).unwrap());
        stat.done = (files, bytes);
        Report::Stat(stat)
    }

    #[test]
    fn a_worker_joins_falls_silent_goes_and_comes_back() {
        let mut lanes = Lanes::new(false);
        let id = WorkerId::parse("a").unwrap();
        assert_eq!(lanes.heard(SECOND, stat("a", 1, 10)).0, Some(Change::Joined(id.clone())));
        assert_eq!(lanes.heard(2 * SECOND, stat("a", 2, 20)).0, None);
        assert_eq!(lanes.silent(11 * SECOND), []);
        assert_eq!(lanes.silent(13 * SECOND), [(id.clone(), 11)]);
        assert_eq!(lanes.gone(31 * SECOND), []);
        assert_eq!(lanes.gone(32 * SECOND), [Change::Left(id.clone())]);
        assert_eq!(lanes.gone(33 * SECOND), []);
        assert_eq!((lanes.live(33 * SECOND), lanes.done()), (0, (2, 20)));
        assert_eq!(lanes.heard(40 * SECOND, stat("a", 3, 30)).0, Some(Change::Joined(id)));
    }

    #[test]
    fn what_was_done_for_an_earlier_planner_does_not_count() {
        let mut lanes = Lanes::new(true);
        lanes.heard(SECOND, stat("a", 5, 50));
        lanes.heard(SECOND, stat("a", 7, 90));
        assert_eq!(lanes.done(), (2, 40));
    }

    #[test]
    fn a_lane_has_a_bounded_number_of_points_however_long_the_run_is() {
        let mut lanes = Lanes::new(false);
        for second in 1..=3600 {
            lanes.heard(second * SECOND, stat("a", 1, u64::from(second)));
            lanes.sample(second * SECOND);
        }
        let report = lanes.reports().remove(0);
        assert!(report.stored_bytes.len() <= POINTS_MAX && report.stored_bytes.len() > POINTS_MAX / 3);
        assert!(report.stored_bytes.is_sorted());
        assert!(report.stored_bytes.last().is_some_and(|bytes| *bytes > 3500), "{report:?}");
    }
}
