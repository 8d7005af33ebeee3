//! The course of a run, in a bounded number of points.
//!
//! Samples contain counters that only grow; the timeline keeps rates per interval. When it is full, neighbours are
//! merged and the interval doubles. So a run of seconds and a run of days take the same space, and draw alike.

use serde::{Deserialize, Serialize};

use crate::run::events::Phase;

/// Maximum number of points. Even, so that neighbours pair up. 600 is about one per two pixels of the picture.
const POINTS_MAX: usize = 600;
/// Maximum number of hosts and of stages in the picture; further ones are left out.
const LANES_MAX: usize = 64;
/// Maximum number of recorded phases; a run has eight.
const PHASES_MAX: usize = 64;
/// Maximum number of recorded changes of the limit; the engine's timeline has at most as many points.
const LIMITS_MAX: usize = POINTS_MAX;

/// The course of a run, as points at equal intervals.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Timeline {
    /// Time between two points, in milliseconds.
    pub interval_ms: u64,
    /// Received body bytes per second, one value per point.
    pub received_bytes_per_s: Vec<f32>,
    /// Verified and written bytes per second, one value per point.
    pub written_bytes_per_s: Vec<f32>,
    /// One lane per host, in the order of [`Summary::hosts`](super::Summary::hosts).
    pub hosts: Vec<HostLane>,
    /// One lane per stage, in the order of the data path.
    pub stages: Vec<StageLane>,
    /// Start of each phase, in milliseconds after the start of the run.
    pub phases: Vec<(u64, Phase)>,
    /// Changes of the limit: milliseconds after the start, and the limit; empty where no limit could be named.
    pub limits: Vec<(u64, String)>,
    #[serde(skip)]
    state: Recorder,
}

/// Rates and connections of one host over time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostLane {
    /// Name of the host, as in the report.
    pub host: String,
    /// Received body bytes per second, one value per point.
    pub bytes_per_s: Vec<f32>,
    /// Open connections, one value per point.
    pub connections: Vec<u16>,
}

/// One stage over time: shares of the interval, 0 to 1, one value per point.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StageLane {
    /// Name of the stage, such as `hash`.
    pub stage: String,
    /// Share of time at work on a processor, or ready and waiting for one.
    pub busy: Vec<f32>,
    /// Share of time waiting for a device, per point.
    pub device: Vec<f32>,
    /// Share of time waiting for input, per point.
    pub starved: Vec<f32>,
    /// Share of time waiting for the next stage, per point.
    pub blocked: Vec<f32>,
}

/// Counters of a run at one moment.
#[derive(Debug, Clone, Default)]
pub struct Sample<'a> {
    /// Time of the point, in milliseconds after the start.
    pub at_ms: u64,
    /// Body bytes received since the start.
    pub received_bytes: u64,
    /// Bytes verified and written since the start.
    pub written_bytes: u64,
    /// Name of each host, bytes received since the start, and open connections.
    pub hosts: &'a [(&'a str, u64, u16)],
    /// Each stage's shares since the last sample.
    pub stages: &'a [StageSample<'a>],
}

/// The shares of one stage since the last sample, 0 to 1.
#[derive(Debug, Clone, Copy, Default)]
pub struct StageSample<'a> {
    /// Name of the stage, as the ledger has it.
    pub stage: &'a str,
    /// Share of time on a processor or waiting for one, 0 to 1.
    pub busy: f32,
    /// Share of time waiting for its device, 0 to 1.
    pub device: f32,
    /// Share of the time in which it waited for input, 0 to 1.
    pub starved: f32,
    /// Share of time waiting for room in the next stage, 0 to 1.
    pub blocked: f32,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Recorder {
    last_ms: u64,
    received: u64,
    written: u64,
    hosts: Vec<u64>,
}

impl Default for Timeline {
    fn default() -> Self {
        Timeline::new(100)
    }
}

impl Timeline {
    /// Creates an empty timeline with this initial interval between points.
    pub fn new(interval_ms: u64) -> Self {
        Timeline {
            interval_ms: interval_ms.max(1),
            received_bytes_per_s: Vec::new(),
            written_bytes_per_s: Vec::new(),
            hosts: Vec::new(),
            stages: Vec::new(),
            phases: Vec::new(),
            limits: Vec::new(),
            state: Recorder::default(),
        }
    }

    /// Number of points of the timeline so far.
    pub fn len(&self) -> usize {
        self.received_bytes_per_s.len()
    }

    /// Whether no point has been recorded yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Time that the points cover, in milliseconds.
    pub fn duration_ms(&self) -> u64 {
        self.interval_ms.saturating_mul(self.len() as u64)
    }

    /// Records that a phase began at `at_ms`.
    pub fn phase(&mut self, at_ms: u64, phase: Phase) {
        if self.phases.len() < PHASES_MAX {
            self.phases.push((at_ms, phase));
        }
    }

    /// Records the limit of the run from `at_ms` on.
    pub fn limit(&mut self, at_ms: u64, limit: &str) {
        let same = self.limits.last().is_some_and(|(_, last)| last == limit);
        if !same && self.limits.len() < LIMITS_MAX {
            self.limits.push((at_ms, limit.to_owned()));
        }
    }

    /// Adds a sample. The bytes since the last sample are spread evenly over the points between. A sample within or
    /// behind an existing point is added to that point.
    pub fn record(&mut self, sample: &Sample<'_>) {
        let (from_ms, to_ms) = (self.state.last_ms, sample.at_ms);
        if to_ms <= from_ms {
            return;
        }
        self.state.last_ms = to_ms;
        while to_ms.div_ceil(self.interval_ms) > POINTS_MAX as u64 {
            self.halve();
        }
        let first = from_ms / self.interval_ms;
        let last = (to_ms - 1) / self.interval_ms;
        self.grow(last as usize + 1);
        self.lanes(sample);

        let received = growth(&mut self.state.received, sample.received_bytes);
        let written = growth(&mut self.state.written, sample.written_bytes);
        let hosts: Vec<f64> =
            self.state.hosts.iter_mut().zip(sample.hosts).map(|(before, (_, now, _))| growth(before, *now)).collect();
        for point in first..=last {
            let begin = point.saturating_mul(self.interval_ms).max(from_ms);
            let end = (point + 1).saturating_mul(self.interval_ms).min(to_ms);
            let share_of_sample = (end - begin) as f64 / (to_ms - from_ms) as f64;
            let share_of_point = (end - begin) as f32 / self.interval_ms as f32;
            let per_second = share_of_sample * 1000.0 / self.interval_ms as f64;
            let at = point as usize;
            self.received_bytes_per_s[at] += (received * per_second) as f32;
            self.written_bytes_per_s[at] += (written * per_second) as f32;
            for ((lane, bytes), (_, _, connections)) in self.hosts.iter_mut().zip(&hosts).zip(sample.hosts) {
                lane.bytes_per_s[at] += (bytes * per_second) as f32;
                lane.connections[at] = lane.connections[at].max(*connections);
            }
            for (lane, stage) in self.stages.iter_mut().zip(sample.stages) {
                for (values, share) in [
                    (&mut lane.busy, stage.busy),
                    (&mut lane.device, stage.device),
                    (&mut lane.starved, stage.starved),
                    (&mut lane.blocked, stage.blocked),
                ] {
                    values[at] += share.clamp(0.0, 1.0) * share_of_point;
                }
            }
        }
    }

    /// Ensures that every host and stage of the sample has a lane.
    fn lanes(&mut self, sample: &Sample<'_>) {
        let points = self.len();
        for (host, _, _) in sample.hosts.iter().take(LANES_MAX).skip(self.hosts.len()) {
            self.hosts.push(HostLane {
                host: (*host).to_owned(),
                bytes_per_s: vec![0.0; points],
                connections: vec![0; points],
            });
            self.state.hosts.push(0);
        }
        for stage in sample.stages.iter().take(LANES_MAX).skip(self.stages.len()) {
            let zeros = || vec![0.0; points];
            self.stages.push(StageLane {
                stage: stage.stage.to_owned(),
                busy: zeros(),
                device: zeros(),
                starved: zeros(),
                blocked: zeros(),
            });
        }
    }

    fn grow(&mut self, points: usize) {
        let points = points.max(self.len());
        self.for_each_series(|values| values.resize(points, 0.0));
        for lane in &mut self.hosts {
            lane.connections.resize(points, 0);
        }
    }

    /// Merges neighbours: half the points, twice the interval.
    fn halve(&mut self) {
        self.interval_ms = self.interval_ms.saturating_mul(2);
        self.for_each_series(|values| {
            *values = values.chunks(2).map(|pair| pair.iter().sum::<f32>() / 2.0).collect();
        });
        for lane in &mut self.hosts {
            lane.connections = lane.connections.chunks(2).map(|pair| pair.iter().copied().max().unwrap_or(0)).collect();
        }
    }

    fn for_each_series(&mut self, mut action: impl FnMut(&mut Vec<f32>)) {
        action(&mut self.received_bytes_per_s);
        action(&mut self.written_bytes_per_s);
        for lane in &mut self.hosts {
            action(&mut lane.bytes_per_s);
        }
        for lane in &mut self.stages {
            for values in [&mut lane.busy, &mut lane.device, &mut lane.starved, &mut lane.blocked] {
                action(values);
            }
        }
    }
}

/// Growth of a counter since the last call; a counter that fell counts as unchanged.
fn growth(before: &mut u64, now: u64) -> f64 {
    let grown = now.saturating_sub(*before);
    *before = now.max(*before);
    grown as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn total(timeline: &Timeline) -> f64 {
        timeline.received_bytes_per_s.iter().map(|rate| f64::from(*rate)).sum::<f64>() * timeline.interval_ms as f64
            / 1000.0
    }

    #[test]
    fn a_long_run_takes_as_much_room_as_a_short_one() {
        let mut timeline = Timeline::new(100);
        for i in 1..=200_000_u64 {
            timeline.record(&Sample {
                at_ms: i * 100,
                received_bytes: i * 1000,
                hosts: &[("a", i * 1000, 4)],
                ..Sample::default()
            });
        }
        assert!(timeline.len() <= POINTS_MAX && timeline.len() > POINTS_MAX / 2);
        assert!((total(&timeline) / 2e8 - 1.0).abs() < 1e-3, "{}", total(&timeline));
        assert_eq!(timeline.hosts[0].connections[3], 4);
        assert!((timeline.received_bytes_per_s[0] - 10_000.0).abs() < 1.0);
    }

    #[test]
    fn a_host_that_appears_late_has_zeros_before() {
        let mut timeline = Timeline::new(100);
        timeline.record(&Sample { at_ms: 1000, ..Sample::default() });
        timeline.record(&Sample { at_ms: 1100, hosts: &[("a", 50, 1)], ..Sample::default() });
        assert_eq!(timeline.hosts[0].bytes_per_s.len(), timeline.len());
        assert_eq!(timeline.hosts[0].bytes_per_s[10], 500.0);
        assert_eq!(timeline.hosts[0].bytes_per_s[9], 0.0);
    }

    proptest! {
        #[test]
        fn bytes_are_neither_lost_nor_made(steps in proptest::collection::vec((0_u64..5000, 0_u64..1_000_000), 1..200)) {
            let mut timeline = Timeline::new(100);
            let (mut at_ms, mut bytes) = (0, 0);
            for (step, more) in steps {
                at_ms += step;
                bytes += more;
                timeline.record(&Sample { at_ms: at_ms + 1, received_bytes: bytes, ..Sample::default() });
            }
            at_ms += 10;
            timeline.record(&Sample { at_ms, received_bytes: bytes, ..Sample::default() });
            let total = total(&timeline);
            prop_assert!((total - bytes as f64).abs() <= 1.0 + bytes as f64 * 1e-3, "{total} {bytes}");
            prop_assert!(timeline.len() <= POINTS_MAX);
        }

        #[test]
        fn any_times_are_survived(times in proptest::collection::vec(any::<u64>(), 1..20)) {
            let mut timeline = Timeline::new(100);
            for at_ms in times {
                timeline.record(&Sample { at_ms, ..Sample::default() });
            }
            prop_assert!(timeline.len() <= POINTS_MAX);
        }
    }
}
