//! Converts the engine's verdict into the report's own form, so that page and JSON do not change with the engine.

use super::{Sample, StageSample, Timeline, VerdictReport};
use crate::run::events::Phase;
use crate::verdict::{self, Limit, Verdict};

impl VerdictReport {
    /// Converts a verdict of the engine.
    pub fn of(verdict: &Verdict) -> VerdictReport {
        let shares: Vec<(String, f64)> = verdict.shares.iter().map(|share| (share.part.clone(), share.share)).collect();
        VerdictReport {
            share: verdict.share,
            limit: verdict.part.clone(),
            reason: verdict.reason.clone(),
            confident: verdict.confident && verdict.limit != Limit::Mixed,
            shares,
            next: verdict.next.as_ref().map(|next| format!("{}, used to {:.0} %", next.part, next.used * 100.0)),
            advice: verdict.advice.clone(),
            evidence: verdict.evidence.clone(),
        }
    }
}

impl Timeline {
    /// Converts the engine's timeline, and adds the phases of the command.
    pub fn of(verdict: &Verdict, phases: &[(u64, Phase)]) -> Timeline {
        let mut timeline = Timeline::default();
        for (at_ms, phase) in phases {
            timeline.phase(*at_ms, *phase);
        }
        let picture = &verdict.timeline;
        let mut replay = Replay::default();
        for point in &picture.points {
            replay.point(&mut timeline, picture, point);
        }
        timeline
    }
}

/// Rebuilds counters from rates, because [`Timeline::record`] takes counters.
#[derive(Default)]
struct Replay {
    received_bytes: f64,
    delivered_bytes: f64,
    hosts: Vec<f64>,
}

impl Replay {
    fn point(&mut self, timeline: &mut Timeline, picture: &verdict::Timeline, point: &verdict::TimelinePoint) {
        self.received_bytes += point.received_bytes_per_s * point.length_s;
        self.delivered_bytes += point.delivered_bytes_per_s * point.length_s;
        self.hosts.resize(picture.hosts.len(), 0.0);
        for (sum, rate) in self.hosts.iter_mut().zip(&point.hosts) {
            *sum += rate * point.length_s;
        }
        let hosts: Vec<(&str, u64, u16)> =
            picture.hosts.iter().zip(&self.hosts).map(|(name, sum)| (name.as_str(), *sum as u64, 0)).collect();
        let stages: Vec<StageSample<'_>> = picture
            .stages
            .iter()
            .enumerate()
            .map(|(i, name)| {
                let shares = point.stages.get(i).copied().unwrap_or_default();
                StageSample {
                    stage: name,
                    busy: shares.busy,
                    device: shares.device,
                    starved: shares.starved,
                    blocked: shares.blocked,
                }
            })
            .collect();
        timeline.limit((point.at_s * 1000.0) as u64, &point.limit);
        timeline.record(&Sample {
            at_ms: ((point.at_s + point.length_s) * 1000.0).round() as u64,
            received_bytes: self.received_bytes as u64,
            written_bytes: self.delivered_bytes as u64,
            hosts: &hosts,
            stages: &stages,
        });
    }
}
