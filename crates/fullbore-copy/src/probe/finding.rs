//! Which part holds a copy up, and what would help.
//!
//! As everywhere, two signals have to agree. The one is the engine's verdict on the trial of everything,
//! at each end: clocks of the stages and counters of the kernel, which agreed there already. The other is
//! an intervention: without the part (the trials of pairs leave one out) it goes faster, and without the
//! others it does not. Where an end is confident and the intervention does not contradict it, that part is
//! named; where the verdict is undecided, the intervention and the part's own ceiling have to agree.

use fullbore_engine::verdict::Limit;
use serde::{Deserialize, Serialize};

use super::conduct::{Figures, Joint, Trial};
use super::prediction::{Part, Prediction, alone};
use super::read::Class;
use crate::judgement::Judgement;

/// Leaving a part out has to speed things up so much, as relieving it does in the matrix of verdicts.
const GAIN: f64 = 0.10;

/// What holds it up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The part; none if no two signals agree.
    pub part: Option<Part>,
    /// What the engine's verdict says, at the end that knows.
    pub judged: Option<Part>,
    /// As that end words it.
    pub words: String,
    /// What leaving parts out says.
    pub intervened: Option<Part>,
    /// The part whose relief would help, by arithmetic.
    pub modelled: Option<Part>,
    /// The kind of files that takes most of the time.
    pub class: Option<Class>,
    /// How much of each part the trial of everything used, the fullest first.
    pub used: Vec<(Part, f64)>,
    /// The part behind it, and how many times as much it could do.
    pub next: Option<(Part, f64)>,
}

/// Looks for it.
pub fn find(figures: &Figures, prediction: &Prediction) -> Finding {
    let time_of = |class: Class| {
        figures.trial(Joint::Whole, class).map_or(0.0, |trial| match class {
            Class::Big => figures.tree.big_bytes as f64 / trial.bytes_per_s().max(1.0),
            Class::Small => figures.tree.small_files as f64 / trial.files_per_s().max(1e-6),
        })
    };
    let class = if time_of(Class::Small) > time_of(Class::Big) { Class::Small } else { Class::Big };
    let Some(whole) = figures.trial(Joint::Whole, class) else { return Finding::default() };
    let rate = per_s(whole, class);
    let mut used: Vec<(Part, f64)> =
        Part::ALL.map(|part| (part, (rate * alone(figures, part, class)).min(1.0))).to_vec();
    used.sort_by(|one, other| other.1.total_cmp(&one.1));
    let modelled = prediction.limit();
    let (judged, words) = judged(&whole.flow.judgement, &whole.landed.judgement);
    let intervened = intervened(figures, class, rate, modelled.or(judged));
    let part = match judged {
        Some(part) if part.is_cpu() => Some(part),
        _ => agreed(&[judged, intervened, modelled]),
    };
    let next = part.and_then(|part| {
        let mut others: Vec<(Part, f64)> =
            prediction.parts.iter().copied().filter(|(other, seconds)| *other != part && *seconds > 0.0).collect();
        others.sort_by(|one, other| other.1.total_cmp(&one.1));
        let (next, seconds) = others.first()?;
        Some((*next, ((prediction.seconds - prediction.fixed_s) / seconds).max(1.0)))
    });
    Finding { part, judged, words, intervened, modelled, class: Some(class), used, next }
}

/// What at least two of them say, if none says anything else.
fn agreed(signals: &[Option<Part>]) -> Option<Part> {
    let mut named = signals.iter().flatten();
    let first = *named.next()?;
    let others: Vec<&Part> = named.collect();
    (!others.is_empty() && others.iter().all(|part| **part == first)).then_some(first)
}

fn per_s(trial: &Trial, class: Class) -> f64 {
    match class {
        Class::Big => trial.bytes_per_s(),
        Class::Small => trial.files_per_s(),
    }
}

/// The engine's verdict of both ends as a part, and in its words: an end knows its own machine, the sender
/// knows the path. Where one process has both ends, the sender's has everything.
pub fn judged(sender: &Judgement, receiver: &Judgement) -> (Option<Part>, String) {
    let own = |end: &Judgement, disk: Part, cpu: Part| {
        if !end.confident {
            return None;
        }
        match end.limit {
            Limit::Cpu { .. } | Limit::OneCore { .. } => Some((cpu, end.words())),
            Limit::Disk => Some((disk, end.words())),
            _ => None,
        }
    };
    // In one process the sender's clocks have the writers' too, and tell which disk it was.
    let disk = if sender.stages.iter().any(|stage| stage.name == "disk write" && stage.device_ns > 0) {
        let device = |name: &str| {
            let stage = sender.stages.iter().find(|stage| stage.name == name);
            stage.map_or(0, |stage| stage.device_ns)
        };
        if device("read") > device("disk write") + device("sync") { Part::Read } else { Part::Write }
    } else {
        Part::Read
    };
    let found = (own(sender, disk, Part::SourceCpu), own(receiver, Part::Write, Part::TargetCpu));
    match found {
        (Some(found), None) | (None, Some(found)) => (Some(found.0), found.1),
        (Some((Part::SourceCpu, words)), Some((Part::TargetCpu, _))) => (Some(Part::SourceCpu), words),
        (Some(_), Some(_)) => (None, String::new()),
        (None, None) => match sender.blames_path(receiver).filter(|_| sender.confident) {
            Some(words) => (Some(Part::Network), words),
            None => (None, sender.words()),
        },
    }
}

/// What leaving the source, or the destination, out of the trial says; `slow` is known to be so by something else.
fn intervened(figures: &Figures, class: Class, rate: f64, slow: Option<Part>) -> Option<Part> {
    let pair = |joint| figures.trial(joint, class).map(|trial| per_s(trial, class) / rate - 1.0);
    let (without_write, without_read) = (pair(Joint::ReadSend)?, pair(Joint::SendWrite)?);
    match (without_read >= GAIN, without_write >= GAIN) {
        (true, false) => Some(Part::Read),
        (false, true) => Some(Part::Write),
        // Neither of the ends: what lies between them, if it is known to be slow.
        (false, false) if !figures.local && slow == Some(Part::Network) => Some(Part::Network),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::prediction::predict;
    use super::super::prediction::tests::{figures, rate, trial};
    use super::*;

    fn found(figures: &Figures) -> Finding {
        find(figures, &predict(figures))
    }

    #[test]
    fn a_link_at_its_ceiling_is_named_if_neither_end_helps() {
        let finding = found(&figures());
        assert_eq!(
            (finding.part, finding.intervened, finding.judged),
            (Some(Part::Network), Some(Part::Network), None)
        );
        let (next, times) = finding.next.unwrap();
        assert_eq!(next, Part::Write);
        assert!((1.7..2.1).contains(&times), "{times}");
    }

    #[test]
    fn a_path_that_was_slower_than_in_its_own_trial_is_named_if_an_end_is_sure_of_it() {
        let mut figures = figures();
        figures.trials = vec![
            trial(Joint::Whole, Class::Big, 60_000_000, 60, 60e6, 0.0),
            trial(Joint::ReadSend, Class::Big, 62_000_000, 62, 62e6, 0.0),
            trial(Joint::SendWrite, Class::Big, 58_000_000, 58, 58e6, 0.0),
        ];
        let unsure = found(&figures);
        assert_eq!((unsure.part, unsure.modelled), (None, Some(Part::SourceCpu)));
        figures.trials[0].flow.judgement =
            Judgement { limit: Limit::RemoteOrPath, confident: true, ..Judgement::default() };
        let sure = found(&figures);
        assert_eq!((sure.part, sure.modelled, sure.intervened), (Some(Part::Network), None, Some(Part::Network)));
        // Not if leaving the source out helps.
        figures.trials[2].flow.steady = 80e6;
        assert_eq!(found(&figures).part, None);
    }

    #[test]
    fn a_slow_end_is_named_if_it_goes_faster_without_it() {
        let mut figures = figures();
        figures.write.big = rate(40_000_000, 40);
        figures.trials = vec![
            trial(Joint::Whole, Class::Big, 40_000_000, 40, 39e6, 0.0),
            trial(Joint::ReadSend, Class::Big, 100_000_000, 100, 98e6, 0.0),
            trial(Joint::SendWrite, Class::Big, 40_000_000, 40, 40e6, 0.0),
        ];
        assert_eq!(found(&figures).part, Some(Part::Write));
        // The same figures, and an end that is sure of something else: nothing is named.
        figures.trials[0].flow.judgement =
            Judgement { limit: Limit::RemoteOrPath, confident: true, ..Judgement::default() };
        assert_eq!(found(&figures).part, None);
        figures.trials[0].landed.judgement = Judgement { limit: Limit::Disk, confident: true, ..Judgement::default() };
        assert_eq!(found(&figures).part, Some(Part::Write));
    }

    #[test]
    fn two_ends_that_are_alike_are_mixed_and_a_full_processor_is_named() {
        let mut figures = figures();
        figures.read.big_cold = rate(42_000_000, 42);
        figures.write.big = rate(40_000_000, 40);
        figures.trials = vec![
            trial(Joint::Whole, Class::Big, 30_000_000, 30, 30e6, 0.0),
            trial(Joint::ReadSend, Class::Big, 42_000_000, 42, 42e6, 0.0),
            trial(Joint::SendWrite, Class::Big, 40_000_000, 40, 40e6, 0.0),
        ];
        let finding = found(&figures);
        assert_eq!(finding.part, None);
        assert_eq!((finding.used[0].0, finding.used[1].0), (Part::Write, Part::Read));
        let cpu = Limit::Cpu { consumer: "read".to_owned() };
        figures.trials[0].flow.judgement = Judgement { limit: cpu, confident: true, ..Judgement::default() };
        assert_eq!(found(&figures).part, Some(Part::SourceCpu));
    }
}
