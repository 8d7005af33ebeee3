//! Finds the part that limits a copy, and what would help.
//!
//! As everywhere in fullbore, two signals have to agree. The first is the engine's verdict on the trial of everything,
//! at each end: stage clocks and kernel counters, which already agreed there. The second is an intervention: the trials
//! of pairs leave out one part. A part is the limit if the copy is faster without it, and no faster without the others.
//! If an end is confident and the intervention does not contradict it, that part is named. If the verdict is undecided,
//! the intervention and the part's own ceiling have to agree.

use fullbore_engine::verdict::remote::{Signal, agreed};
use fullbore_engine::verdict::thresholds::{GAIN, MANY_TIMES, UNUSED};
use serde::{Deserialize, Serialize};

use super::conduct::{Figures, Joint, Trial};
use super::prediction::{Part, Prediction, alone};
use super::read::Class;
use crate::judgement::Attribution;

/// The limiting part of a copy, with all signals.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Finding {
    /// The limit; `None` if no two signals agree.
    pub part: Option<Part>,
    /// The engine's verdict, from the end that knows.
    pub judged: Option<Part>,
    /// The verdict in the words of that end.
    pub words: String,
    /// The part that the intervention points to.
    pub intervened: Option<Part>,
    /// The part that would help most if it were faster, by arithmetic.
    pub modelled: Option<Part>,
    /// The kind of files that takes most of the time.
    pub class: Option<Class>,
    /// Share of each part's capacity that the trial of everything used, highest first.
    pub used: Vec<(Part, f64)>,
    /// The next limit after `part`, and how many times the current rate it could carry.
    pub next: Option<(Part, f64)>,
}

/// Combines the signals into a finding.
pub(crate) fn find(figures: &Figures, prediction: &Prediction) -> Finding {
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
    let (judged, words) = judged(whole);
    let intervened = intervened(figures, class, rate, modelled.or(judged));
    let part = match judged {
        Some(part) if part.is_cpu() => Some(part),
        _ => agreed(&[(Signal::Trial, judged), (Signal::Intervention, intervened), (Signal::Arithmetic, modelled)]),
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

fn per_s(trial: &Trial, class: Class) -> f64 {
    match class {
        Class::Big => trial.bytes_per_s(),
        Class::Small => trial.files_per_s(),
    }
}

/// The part that the trial of everything blames, and why, from the verdicts of both ends. A trial that flushed for
/// longer than it sent waited for the destination's disk, whatever delayed it before.
fn judged(whole: &Trial) -> (Option<Part>, String) {
    let stream_s = whole.flow.bytes as f64 / whole.flow.steady.max(1.0);
    let flush_s = whole.landed.flush_s;
    if flush_s > stream_s {
        return (Some(Part::Write), format!("a trial of {stream_s:.1} s, and {flush_s:.1} s to flush it"));
    }
    let (sender, receiver) = (&whole.flow.judgement, &whole.landed.judgement);
    let blame = Attribution::of(sender, receiver);
    let part = blame.parts().first().copied();
    match blame {
        Attribution::Receiver(_) => (part, receiver.words()),
        Attribution::Path("") => (part, "the network".to_owned()),
        Attribution::Path(why) => (part, format!("the network ({why})")),
        _ => (part, sender.words()),
    }
}

/// The part that stands out when the trials leave out source or destination. `slow` is the part that another signal
/// points to.
fn intervened(figures: &Figures, class: Class, rate: f64, slow: Option<Part>) -> Option<Part> {
    let without = |part: Part, joint: Joint| {
        let gain = figures.trial(joint, class).map(|trial| per_s(trial, class) / rate - 1.0);
        // If there was no time for that trial: leaving out a part with hardly any work gains nothing.
        gain.or_else(|| (rate * alone(figures, part, class) < UNUSED).then_some(0.0))
    };
    let (read, write) = (without(Part::Read, Joint::SendWrite)?, without(Part::Write, Joint::ReadSend)?);
    let stands_out = |one: f64, other: f64| one >= GAIN && (other < GAIN || other * MANY_TIMES < one);
    if stands_out(read, write) {
        Some(Part::Read)
    } else if stands_out(write, read) {
        Some(Part::Write)
    } else {
        // Neither end stands out: the network between them does, if another signal says that it is slow.
        let neither = read < GAIN && write < GAIN;
        slow.filter(|part| *part == Part::Network && neither && !figures.local)
    }
}

#[cfg(test)]
mod tests {
    use fullbore_engine::verdict::Limit;

    use super::super::prediction::predict;
    use super::super::prediction::tests::{figures, rate, trial};
    use super::*;
    use crate::judgement::Judgement;

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
    fn a_path_slower_than_its_trial_is_named_if_one_end_is_sure() {
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
    fn a_skipped_trial_of_an_idle_part_is_not_needed() {
        let mut figures = figures();
        figures.write.big = rate(40_000_000, 40);
        let read_send = |steady| trial(Joint::ReadSend, Class::Big, 100_000_000, 100, steady, 0.0);
        figures.trials = vec![trial(Joint::Whole, Class::Big, 40_000_000, 40, 39e6, 0.0), read_send(98e6)];
        assert_eq!((found(&figures).intervened, found(&figures).part), (Some(Part::Write), Some(Part::Write)));
        figures.read.big_cold = rate(45_000_000, 45);
        assert_eq!((found(&figures).intervened, found(&figures).part), (None, None));
    }

    #[test]
    fn what_flushes_for_longer_than_it_sends_waits_for_the_destination() {
        let mut figures = figures();
        figures.write.big = rate(40_000_000, 40);
        figures.trials = vec![
            trial(Joint::Whole, Class::Big, 80_000_000, 80, 98e6, 1.4),
            trial(Joint::ReadSend, Class::Big, 100_000_000, 100, 98e6, 0.0),
            // A little faster without the source, too.
            trial(Joint::SendWrite, Class::Big, 80_000_000, 80, 98e6, 1.1),
        ];
        // Who sent waited for a core meanwhile.
        let cpu = Limit::Cpu { consumer: "other processes".to_owned() };
        figures.trials[0].flow.judgement = Judgement { limit: cpu, confident: true, ..Judgement::default() };
        let finding = found(&figures);
        assert_eq!((finding.judged, finding.intervened), (Some(Part::Write), Some(Part::Write)));
        assert_eq!(finding.part, Some(Part::Write));
        assert_eq!(finding.words, "a trial of 0.8 s, and 1.4 s to flush it");
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
