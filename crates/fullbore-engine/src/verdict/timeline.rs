//! The timeline of a run: a bounded number of points, each a stretch of time.

use serde::{Deserialize, Serialize};

use super::facts::Facts;
use super::sample::Sample;
use crate::stage::Mark;

/// Maximum number of points; a picture has about that many columns. When full, neighbours are merged, so a long run has
/// longer points.
const POINTS: usize = 600;

/// Utilisation of one role within a point, as shares of its threads' or tasks' time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StagePoint {
    /// Share of time computing, or waiting for a core.
    pub busy: f32,
    /// Share of time in calls that wait for a device, 0 to 1.
    pub device: f32,
    /// Share of time waiting for input: starved, or the socket empty.
    pub starved: f32,
    /// Share of time waiting for the next stage, 0 to 1.
    pub blocked: f32,
}

/// Rates and shares of one stretch of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimelinePoint {
    /// Start of the stretch, in seconds since the start of the run.
    pub at_s: f64,
    /// Length of the stretch, in seconds.
    pub length_s: f64,
    /// Bytes safely written or acknowledged per second.
    pub delivered_bytes_per_s: f64,
    /// Bytes received per second in the stretch.
    pub received_bytes_per_s: f64,
    /// Share of the allowed cores that was busy.
    pub cpu_busy: f32,
    /// Share of time in which the disk was busy; none without a disk.
    pub device_busy: Option<f32>,
    /// Per role, in the order of [`Timeline::stages`]; missing at the end = zero.
    pub stages: Vec<StagePoint>,
    /// Bytes per second per host, in the order of [`Timeline::hosts`].
    pub hosts: Vec<f64>,
    /// Limit of the run in the stretch; empty if none could be named.
    pub limit: String,
}

/// The course of a whole run, as consecutive points.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// Names of the roles, in the order of each point's values.
    pub stages: Vec<String>,
    /// Names of the hosts, in the order of each point's values.
    pub hosts: Vec<String>,
    /// Moments that were named during the run.
    pub marks: Vec<Mark>,
    /// The stretches of the run, without gaps, in order.
    pub points: Vec<TimelinePoint>,
    /// Number of samples per point now.
    step: u32,
    /// Number of samples in the last point.
    filled: u32,
}

impl Timeline {
    pub(super) fn push(&mut self, sample: &Sample, limit: &str) {
        let point = self.point(sample, limit);
        self.step = self.step.max(1);
        if self.filled > 0 && self.filled < self.step {
            let last = self.points.last_mut().expect("filled counts samples of the last point");
            last.add(&point);
            self.filled += 1;
            return;
        }
        if self.points.len() >= POINTS {
            self.halve();
        }
        self.points.push(point);
        self.filled = 1;
    }

    fn halve(&mut self) {
        let mut halved = Vec::with_capacity(POINTS);
        for pair in self.points.chunks(2) {
            let mut point = pair[0].clone();
            pair[1..].iter().for_each(|second| point.add(second));
            halved.push(point);
        }
        self.points = halved;
        self.step *= 2;
    }

    fn point(&mut self, sample: &Sample, limit: &str) -> TimelinePoint {
        let length_s = sample.length.as_secs_f64().max(1e-9);
        let facts = Facts::of(sample);
        let mut point = TimelinePoint {
            at_s: (sample.at.as_secs_f64() - length_s).max(0.0),
            length_s,
            delivered_bytes_per_s: sample.delivered_bytes as f64 / length_s,
            received_bytes_per_s: facts.received_bytes as f64 / length_s,
            cpu_busy: facts.cores_busy as f32,
            device_busy: facts.device_busy.map(|busy| busy as f32),
            limit: limit.to_owned(),
            ..TimelinePoint::default()
        };
        for (name, shares) in facts.stage_points(sample) {
            let index = index_of(&mut self.stages, &name);
            point.stages.resize(point.stages.len().max(index + 1), StagePoint::default());
            point.stages[index] = shares;
        }
        for host in &sample.hosts {
            let index = index_of(&mut self.hosts, &host.name);
            point.hosts.resize(point.hosts.len().max(index + 1), 0.0);
            point.hosts[index] = host.bytes as f64 / length_s;
        }
        point
    }
}

fn index_of(names: &mut Vec<String>, name: &str) -> usize {
    names.iter().position(|known| known == name).unwrap_or_else(|| {
        names.push(name.to_owned());
        names.len() - 1
    })
}

impl TimelinePoint {
    fn add(&mut self, later: &TimelinePoint) {
        let total_s = self.length_s + later.length_s;
        let (mine, theirs) = (self.length_s / total_s, later.length_s / total_s);
        let mean = |one: f64, two: f64| one * mine + two * theirs;
        let mean_share = |one: f32, two: f32| mean(f64::from(one), f64::from(two)) as f32;
        self.delivered_bytes_per_s = mean(self.delivered_bytes_per_s, later.delivered_bytes_per_s);
        self.received_bytes_per_s = mean(self.received_bytes_per_s, later.received_bytes_per_s);
        self.cpu_busy = mean_share(self.cpu_busy, later.cpu_busy);
        self.device_busy = match (self.device_busy, later.device_busy) {
            (Some(one), Some(two)) => Some(mean_share(one, two)),
            (one, two) => one.or(two),
        };
        self.stages.resize(self.stages.len().max(later.stages.len()), StagePoint::default());
        for (index, stage) in self.stages.iter_mut().enumerate() {
            let other = later.stages.get(index).copied().unwrap_or_default();
            stage.busy = mean_share(stage.busy, other.busy);
            stage.device = mean_share(stage.device, other.device);
            stage.starved = mean_share(stage.starved, other.starved);
            stage.blocked = mean_share(stage.blocked, other.blocked);
        }
        self.hosts.resize(self.hosts.len().max(later.hosts.len()), 0.0);
        for (index, host) in self.hosts.iter_mut().enumerate() {
            *host = mean(*host, later.hosts.get(index).copied().unwrap_or_default());
        }
        if later.length_s > self.length_s || self.limit.is_empty() {
            self.limit.clone_from(&later.limit);
        }
        self.length_s = total_s;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_day_long_run_keeps_its_bytes_in_a_bounded_number_of_points() {
        let mut timeline = Timeline::default();
        let length = Duration::from_millis(100);
        let samples = 20_000_u32;
        for number in 1..=samples {
            let at = length * number;
            let sample = Sample { at, length, delivered_bytes: 1000, ..Sample::default() };
            timeline.push(&sample, "x");
        }
        assert!(timeline.points.len() <= POINTS && timeline.points.len() > POINTS / 4);
        let bytes: f64 = timeline.points.iter().map(|point| point.delivered_bytes_per_s * point.length_s).sum();
        assert!((bytes - 1000.0 * f64::from(samples)).abs() < 1.0, "{bytes}");
        let end = timeline.points.last().map(|point| point.at_s + point.length_s);
        assert!((end.unwrap_or_default() - 2000.0).abs() < 0.01, "{end:?}");
    }
}
