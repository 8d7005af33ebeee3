//! The engine's verdict, in the words of the report.

use fullbore_engine::verdict::Verdict;

use super::timeline::{Sample, StageSample, Timeline};
use super::{VerdictReport, units};
use crate::events::Phase;

impl VerdictReport {
    /// Takes over what the engine found.
    pub fn of(verdict: &Verdict) -> VerdictReport {
        let named = |part: &str| verdict.shares.iter().find(|share| share.part == part).map_or(0.0, |share| share.share);
        VerdictReport {
            limit: verdict.part.clone(),
            share: named(&verdict.part),
            shares: verdict.shares.iter().map(|share| (share.part.clone(), share.share)).collect(),
            next: verdict.next.as_ref().map(|next| format!("{} ({})", next.part, units::percent(next.used))),
            advice: verdict.advice.clone(),
            evidence: std::iter::once(&verdict.reason)
                .chain(&verdict.evidence)
                .filter(|line| !line.is_empty())
                .cloned()
                .collect(),
        }
    }
}

impl Timeline {
    /// The engine's course of the run, with the phases of the walk.
    pub fn of(verdict: &Verdict, phases: &[(u64, Phase)]) -> Timeline {
        let mut timeline = Timeline::default();
        for (at_ms, phase) in phases {
            timeline.phase(*at_ms, *phase);
        }
        let course = &verdict.timeline;
        let (mut received, mut written) = (0.0, 0.0);
        let mut of_hosts = vec![0.0; course.hosts.len()];
        for point in &course.points {
            received += point.received_bytes_per_s * point.length_s;
            written += point.delivered_bytes_per_s * point.length_s;
            for (sum, rate) in of_hosts.iter_mut().zip(&point.hosts) {
                *sum += rate * point.length_s;
            }
            let hosts: Vec<(&str, u64, u16)> =
                course.hosts.iter().zip(&of_hosts).map(|(host, bytes)| (host.as_str(), *bytes as u64, 0)).collect();
            let stages: Vec<StageSample<'_>> = course
                .stages
                .iter()
                .zip(&point.stages)
                .map(|(stage, at)| StageSample {
                    stage,
                    busy: at.busy,
                    device: at.device,
                    starved: at.starved,
                    blocked: at.blocked,
                })
                .collect();
            timeline.record(&Sample {
                at_ms: ((point.at_s + point.length_s) * 1000.0) as u64,
                received_bytes: received as u64,
                written_bytes: written as u64,
                hosts: &hosts,
                stages: &stages,
            });
        }
        timeline
    }
}
