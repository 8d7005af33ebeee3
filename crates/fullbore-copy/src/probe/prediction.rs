//! Predicts how long the copy will take, by arithmetic on the measurements.
//!
//! Each kind of files has a cost for each part: seconds per byte of a big file, seconds per small file. A part's time
//! is its costs times the tree's totals. All parts together take the time of the trial of everything. Two kinds of
//! files that different parts limit overlap; else they run one after the other. Each group is flushed while the next
//! one arrives, as the copy's committer does.

use std::time::Duration;

use fullbore_engine::verdict::thresholds::{FLUSHES, GAIN, NO_GAIN, QUARTER_FASTER, SHARED};
use serde::{Deserialize, Serialize};

use super::conduct::{Figures, Joint};
use super::read::{Class, Rate};
use crate::judgement::Attribution;
use crate::options::{GROUP_BYTES, GROUP_TIME_MS, GROUP_WORTH_BYTES, GROUP_WORTH_TIME};
use crate::receiver::LISTING_TIME;
use crate::sender::compress;
use crate::transport::grow;

/// Longest ramp-up time of a path that is taken as real. Guess.
const RAMP: Duration = Duration::from_secs(3);

/// A part of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Part {
    /// The source's disk.
    Read,
    /// The source's processor: hash and cipher.
    SourceCpu,
    /// The network: all connections together.
    Network,
    /// The destination's processor.
    TargetCpu,
    /// The destination's disk, including the flush.
    Write,
}

impl Part {
    /// All parts in the order of the data.
    pub(crate) const ALL: [Part; 5] = [Part::Read, Part::SourceCpu, Part::Network, Part::TargetCpu, Part::Write];

    /// Whether it is one of the processors.
    pub(crate) fn is_cpu(self) -> bool {
        matches!(self, Part::SourceCpu | Part::TargetCpu)
    }

    /// The name of the part in reports.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Part::Read => "reading the source",
            Part::SourceCpu => "the source's processor",
            Part::Network => "the network",
            Part::TargetCpu => "the destination's processor",
            Part::Write => "writing the destination",
        }
    }
}

/// Factor by which compression speeds up a unit of this kind; 1 where a copy would not compress. A copy compresses if
/// the network takes most of the time and the gain is large enough.
fn compression(figures: &Figures, class: Class, stream_s: f64) -> f64 {
    let network_s = alone(figures, Part::Network, class);
    let Some(found) = figures.source.compress.filter(|found| found.left <= compress::WORTH) else { return 1.0 };
    if network_s < compress::WAITING * stream_s || stream_s <= 0.0 {
        return 1.0;
    }
    let mean = if class == Class::Small { figures.tree.small_mean() as f64 } else { 1.0 };
    let zstd_s = mean / (found.bytes_per_s * figures.source.cores.max(1) as f64).max(1.0);
    let others = Part::ALL.into_iter().filter(|part| *part != Part::Network);
    let slowest = others.map(|part| alone(figures, part, class)).fold(zstd_s, f64::max);
    let gain = stream_s / (stream_s * found.left).max(slowest);
    if gain >= compress::GAIN { gain } else { 1.0 }
}

/// Predicted times of a copy, in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Prediction {
    /// Time of the whole copy.
    pub seconds: f64,
    /// Share of `seconds` for ssh, connections, listing and ramp-up.
    pub fixed_s: f64,
    /// Share of `seconds` for the last flush.
    pub final_sync_s: f64,
    /// Time that each part needs alone, for the whole tree.
    pub parts: Vec<(Part, f64)>,
    /// Time of the copy if this part took no time.
    pub without: Vec<(Part, f64)>,
    /// Speed-up of the copy if this part were faster by a quarter: 0.1 for 10 %.
    pub quarter: Vec<(Part, f64)>,
    /// The scan did not see all of the tree, and there is no estimate: the copy takes longer than this.
    pub at_least: bool,
    /// The scan did not see all of the tree; the totals are an estimate.
    pub estimate: bool,
}

impl Prediction {
    /// Seconds that a part needs alone.
    #[cfg(test)]
    pub(crate) fn part(&self, part: Part) -> f64 {
        self.parts.iter().find(|(known, _)| *known == part).map_or(0.0, |(_, seconds)| *seconds)
    }

    /// The limit, as the matrix of verdicts defines it: a quarter more of this part speeds the copy up by a tenth, and
    /// of no other part by much.
    pub(crate) fn limit(&self) -> Option<Part> {
        let helps = |least: f64| self.quarter.iter().filter(move |(_, gain)| *gain >= least).map(|(part, _)| *part);
        let mut limits = helps(GAIN);
        let limit = limits.next()?;
        let alone = helps(NO_GAIN).all(|part| part == limit || part.is_cpu() && limit.is_cpu());
        alone.then_some(limit)
    }

    /// Seconds that the copy would save without this part.
    pub(crate) fn saves(&self, part: Part) -> f64 {
        let without =
            self.without.iter().find(|(known, _)| *known == part).map_or(self.seconds, |(_, seconds)| *seconds);
        (self.seconds - without).max(0.0)
    }
}

/// Cost of one unit: one byte of a big file, or one small file.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Cost {
    stream_s: f64,
    flush_s: f64,
}

/// Seconds per unit of a part that works alone.
pub(super) fn alone(figures: &Figures, part: Part, class: Class) -> f64 {
    let mean = match class {
        Class::Big => 1.0,
        Class::Small => figures.tree.small_mean() as f64,
    };
    let per_byte = |rate: f64| if rate > 0.0 { mean / rate } else { 0.0 };
    let unit = |rate: Option<Rate>| match (rate, class) {
        (Some(rate), Class::Big) => per_byte(rate.bytes_per_s()),
        (Some(rate), Class::Small) if rate.items > 0 => 1.0 / rate.items_per_s(),
        _ => 0.0,
    };
    match part {
        Part::Read => {
            let read = &figures.read;
            let (cold, warm, cached) = match class {
                Class::Big => (read.big_cold, read.big_warm, read.big_cached),
                Class::Small => (read.small_cold, read.small_warm, read.small_cached),
            };
            match (cold.map(|rate| unit(Some(rate))), warm.map(|rate| unit(Some(rate)))) {
                (Some(cold), Some(warm)) => cached * warm + (1.0 - cached) * cold,
                (one, other) => one.or(other).unwrap_or(0.0),
            }
        }
        // A local copy has no cipher; it hashes once at each side.
        Part::SourceCpu | Part::TargetCpu => {
            let compute = if part == Part::SourceCpu { &figures.source } else { &figures.target };
            let cipher = if figures.local { 0.0 } else { per_byte(compute.aes.max(compute.chacha)) };
            (per_byte(compute.hash) + cipher) / compute.cores.max(1) as f64
        }
        Part::Network => {
            figures.streams.as_ref().or(figures.one_stream.as_ref()).map_or(0.0, |flow| per_byte(flow.steady))
        }
        Part::Write => unit(match class {
            Class::Big => figures.write.big,
            Class::Small => figures.write.small,
        }),
    }
}

fn together(figures: &Figures, joint: Joint, class: Class) -> Option<Cost> {
    let trial = figures.trial(joint, class)?;
    let (bytes, units) = match class {
        Class::Big => (trial.flow.bytes as f64, trial.flow.bytes as f64),
        Class::Small => (trial.flow.bytes as f64, trial.flow.items as f64),
    };
    if units == 0.0 || trial.flow.steady <= 0.0 {
        return None;
    }
    // A copy also renames its files, which a probe cannot do: the rename changes the cost of creating a file.
    let naming_s = match (class, joint) {
        (Class::Small, Joint::Whole | Joint::SendWrite) => figures.write.create_s / figures.write.threads.max(1) as f64,
        _ => 0.0,
    };
    Some(Cost { stream_s: bytes / trial.flow.steady / units + naming_s, flush_s: trial.landed.flush_s / units })
}

fn units(figures: &Figures, class: Class) -> f64 {
    match class {
        Class::Big => figures.tree.big_bytes as f64,
        Class::Small => figures.tree.small_files as f64,
    }
}

const CLASSES: [Class; 2] = [Class::Big, Class::Small];

/// Predicts the copy of this tree.
pub(crate) fn predict(figures: &Figures) -> Prediction {
    let tree = &figures.tree;
    let ramp_s = figures.streams.as_ref().map_or(0.0, |flow| {
        let steady_s = if flow.steady > 0.0 { flow.bytes as f64 / flow.steady } else { flow.seconds };
        (flow.seconds - steady_s).clamp(0.0, RAMP.as_secs_f64())
    });
    let begun_s = figures.setup_s + tree.seconds.min(LISTING_TIME.as_secs_f64()) + ramp_s;
    // A kind without trials of its own gets the costs of the slowest part alone.
    let costs = |without: Option<Part>| -> [Cost; 2] {
        CLASSES.map(|class| {
            let slowest = Part::ALL
                .into_iter()
                .filter(|part| Some(*part) != without)
                .map(|part| alone(figures, part, class))
                .fold(0.0, f64::max);
            let measured = match without {
                None => together(figures, Joint::Whole, class),
                Some(Part::Read) => together(figures, Joint::SendWrite, class),
                Some(Part::Write) => {
                    together(figures, Joint::ReadSend, class).map(|cost| Cost { flush_s: 0.0, ..cost })
                }
                Some(_) => None,
            };
            let cost = measured.unwrap_or(Cost { stream_s: slowest, flush_s: 0.0 });
            let gain = if without == Some(Part::Network) { 1.0 } else { compression(figures, class, cost.stream_s) };
            Cost { stream_s: cost.stream_s / gain, ..cost }
        })
    };
    let everything = costs(None);
    let (whole, whole_sync_s) = job(figures, &everything, None, None);
    let parts = Part::ALL
        .map(|part| (part, CLASSES.into_iter().map(|class| units(figures, class) * alone(figures, part, class)).sum()));
    let network_s = parts.iter().find(|(part, _)| *part == Part::Network).map_or(0.0, |(_, seconds)| *seconds);
    let fixed_s = begun_s + growing_s(figures, whole, network_s);
    let without = Part::ALL.map(|part| {
        let (rest, _) = job(figures, &costs(Some(part)), Some(part), None);
        let fixed_s = if part == Part::Network { tree.seconds.min(LISTING_TIME.as_secs_f64()) } else { fixed_s };
        (part, (rest + fixed_s).min(whole + fixed_s))
    });
    let quarter = Part::ALL.map(|part| {
        let costs = [0, 1].map(|at| relieved(figures, CLASSES[at], everything[at], part));
        let (faster, _) = job(figures, &costs, None, Some(part));
        (part, if faster > 0.0 { whole / faster - 1.0 } else { 0.0 })
    });
    Prediction {
        seconds: whole + fixed_s,
        fixed_s,
        final_sync_s: whole_sync_s,
        parts: parts.to_vec(),
        without: without.to_vec(),
        quarter: quarter.to_vec(),
        at_least: !tree.complete && tree.estimated_from.is_none(),
        estimate: !tree.complete && tree.estimated_from.is_some(),
    }
}

/// Time lost while a copy still has fewer connections than help. `whole_s` is its time with all of them, `network_s`
/// the time in which the network is busy.
fn growing_s(figures: &Figures, whole_s: f64, network_s: f64) -> f64 {
    let grown = figures.streams.as_ref().map_or(0.0, |flow| flow.steady);
    let needed = grown * if whole_s > 0.0 { (network_s / whole_s).min(1.0) } else { 0.0 };
    let (mut left_s, mut taken_s) = (whole_s, 0.0);
    for rate in figures.growth.iter().filter(|rate| **rate > 0.0) {
        let speed = (rate / needed).min(1.0);
        let step_s = (left_s / speed).min(grow::STEP.as_secs_f64());
        left_s -= step_s * speed;
        taken_s += step_s;
    }
    taken_s + left_s - whole_s
}

fn waited_for_path(figures: &Figures, class: Class) -> bool {
    let whole = figures.trial(Joint::Whole, class);
    whole.is_some_and(|whole| {
        matches!(Attribution::of(&whole.flow.judgement, &whole.landed.judgement), Attribution::Path(_))
    })
}

/// The cost of a unit if one part were faster by a quarter.
fn relieved(figures: &Figures, class: Class, cost: Cost, part: Part) -> Cost {
    let flushes = cost.flush_s > FLUSHES * (cost.stream_s + cost.flush_s);
    let slowest = |relief: Option<Part>| {
        let parts = Part::ALL.into_iter().filter(|part| !(flushes && *part == Part::Write));
        let time = |one: Part| alone(figures, one, class) * if Some(one) == relief { QUARTER_FASTER } else { 1.0 };
        parts.map(time).fold(0.0, f64::max)
    };
    let before = slowest(None);
    let faster = if before <= 0.0 || cost.stream_s > SHARED * before {
        // No part alone is as slow as this. The parts share the processor, unless an end is sure that it waited for the
        // path.
        if part.is_cpu() && !waited_for_path(figures, class) { QUARTER_FASTER } else { 1.0 }
    } else {
        slowest(Some(part)) / before
    };
    let flush = if part == Part::Write { QUARTER_FASTER } else { 1.0 };
    Cost { stream_s: cost.stream_s * faster, flush_s: cost.flush_s * flush }
}

/// Time of the whole job at these costs, and of its last flush.
fn job(figures: &Figures, costs: &[Cost; 2], without: Option<Part>, relief: Option<Part>) -> (f64, f64) {
    let alone =
        |figures, part, class| alone(figures, part, class) * if Some(part) == relief { QUARTER_FASTER } else { 1.0 };
    let each = |what: &dyn Fn(usize, Class) -> f64| -> f64 {
        CLASSES.into_iter().enumerate().map(|(at, class)| units(figures, class) * what(at, class)).sum()
    };
    let one_after_the_other = each(&|at, _| costs[at].stream_s);
    let slowest = |class| {
        let parts = Part::ALL.into_iter().filter(|part| Some(*part) != without);
        parts.map(|part| alone(figures, part, class)).fold(0.0, f64::max)
    };
    let share = |at: usize, class| {
        let slowest: f64 = slowest(class);
        if slowest > 0.0 { costs[at].stream_s / slowest } else { 1.0 }
    };
    let shared =
        CLASSES.into_iter().enumerate().any(|(at, class)| units(figures, class) > 0.0 && share(at, class) > SHARED);
    let stream_s = if shared {
        one_after_the_other
    } else {
        let of_part = |part| each(&|at, class| alone(figures, part, class) * share(at, class));
        let parts = Part::ALL.into_iter().filter(|part| Some(*part) != without);
        let longest_kind = CLASSES
            .into_iter()
            .enumerate()
            .map(|(at, class)| units(figures, class) * costs[at].stream_s)
            .fold(0.0, f64::max);
        parts.map(of_part).fold(longest_kind, f64::max).min(one_after_the_other)
    };
    let flush_s = each(&|at, _| costs[at].flush_s);
    let bytes = figures.tree.bytes().max(1) as f64;
    let of_stream = |seconds: f64| seconds / stream_s.max(1e-9);
    let worth = (GROUP_WORTH_BYTES as f64 / bytes).max(of_stream(GROUP_WORTH_TIME.as_secs_f64()));
    let group = worth.min(GROUP_BYTES as f64 / bytes).min(of_stream(GROUP_TIME_MS as f64 / 1e3)).min(1.0);
    // Writeback during the copy takes disk time just as the flush does.
    let disk_s = if without == Some(Part::Write) { 0.0 } else { each(&|_, class| alone(figures, Part::Write, class)) };
    let whole_s = (stream_s + group * flush_s).max(group * stream_s + flush_s).max(disk_s);
    (whole_s, whole_s - stream_s)
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::compute::Compute;
    use super::super::conduct::Trial;
    use super::super::disks::DiskFacts;
    use super::super::extent::Basis;
    use super::super::flow::{Flow, Landed, PathFacts};
    use super::super::tree::Tree;
    use super::*;
    use crate::judgement::Judgement;

    pub(crate) fn flow(bytes: u64, items: u64, steady: f64) -> Flow {
        Flow {
            bytes,
            items,
            seconds: bytes as f64 / steady,
            steady,
            path: PathFacts::default(),
            judgement: Judgement::default(),
            disks: DiskFacts::default(),
        }
    }

    pub(crate) fn trial(joint: Joint, class: Class, bytes: u64, items: u64, steady: f64, flush_s: f64) -> Trial {
        let landed =
            Landed { bytes, flush_s, flushed: true, judgement: Judgement::default(), disks: DiskFacts::default() };
        Trial { joint, class, flow: flow(bytes, items, steady), landed }
    }

    pub(crate) fn rate(bytes: u64, items: u64) -> Option<Rate> {
        Some(Rate { bytes, items, seconds: 1.0 })
    }

    /// 20 GB in big files and 100,000 files of 10 kB; a link of 100 MB/s, then a disk of 200 MB/s.
    pub(crate) fn figures() -> Figures {
        let compute = Compute { cores: 4, hash: 4e9, aes: 4e9, chacha: 1e9, compress: None };
        Figures {
            tree: Tree {
                small_files: 100_000,
                small_bytes: 1_000_000_000,
                big_files: 20,
                big_bytes: 20_000_000_000,
                complete: true,
                seconds: 1.0,
                ..Tree::default()
            },
            source: compute,
            target: compute,
            read: super::super::read::ReadFigures {
                big_cold: rate(500_000_000, 500),
                small_cold: rate(50_000_000, 5000),
                ..Default::default()
            },
            one_stream: Some(flow(50_000_000, 50, 50e6)),
            streams: Some(flow(100_000_000, 100, 100e6)),
            write: super::super::write::WriteFigures {
                big: rate(200_000_000, 200),
                small: rate(80_000_000, 8000),
                ..Default::default()
            },
            trials: vec![
                trial(Joint::Whole, Class::Big, 100_000_000, 100, 98e6, 0.0),
                trial(Joint::Whole, Class::Small, 45_000_000, 4500, 45e6, 0.0),
                trial(Joint::ReadSend, Class::Big, 100_000_000, 100, 98e6, 0.0),
                trial(Joint::SendWrite, Class::Big, 100_000_000, 100, 99e6, 0.0),
                trial(Joint::SendWrite, Class::Small, 80_000_000, 8000, 79e6, 0.0),
            ],
            setup_s: 0.5,
            ..Figures::default()
        }
    }

    #[test]
    fn kinds_that_are_held_up_by_different_parts_run_beside_each_other() {
        // Big: 20 GB at 98 MB/s = 204 s of network; small ones: 100,000 at 4500/s = 22 s of reading.
        let prediction = predict(&figures());
        let network = 20e9 / 98e6 + 1e9 / 100e6 * (5000.0 / 4500.0);
        assert!((prediction.seconds - network - 1.5).abs() < 1.0, "{prediction:?}");
        assert!((prediction.part(Part::Network) - 210.0).abs() < 0.1);
        assert!((prediction.part(Part::Read) - 60.0).abs() < 0.1);
        // Without the network the disk is the limit: 100 s + 12.5 s.
        assert!((prediction.saves(Part::Network) - (network + 0.5 - 112.5)).abs() < 2.0, "{prediction:?}");
        assert!(prediction.saves(Part::Read) < 4.0, "{prediction:?}");
        assert!(!prediction.at_least);
    }

    #[test]
    fn a_flush_is_added_to_a_short_job_and_goes_on_beside_a_long_one() {
        let mut figures = figures();
        figures.tree = Tree { big_files: 1, big_bytes: 200_000_000, complete: true, ..Tree::default() };
        figures.trials = vec![trial(Joint::Whole, Class::Big, 100_000_000, 100, 100e6, 1.0)];
        (figures.setup_s, figures.write.big) = (0.0, rate(100_000_000, 100));
        // The first second's data is flushed while the second's arrives.
        let short = predict(&figures);
        assert!((short.seconds - 3.0).abs() < 0.1 && (short.final_sync_s - 1.0).abs() < 0.1, "{short:?}");
        figures.tree.big_bytes = 50_000_000;
        let at_once = predict(&figures);
        assert!((at_once.seconds - 1.0).abs() < 0.1 && (at_once.final_sync_s - 0.5).abs() < 0.1, "{at_once:?}");
        figures.tree.big_bytes = 20_000_000_000;
        let long = predict(&figures);
        assert!((200.0..203.0).contains(&long.seconds), "{long:?}");
        // A disk that is half as fast as the arriving data works from the first second on.
        figures.trials = vec![trial(Joint::Whole, Class::Big, 100_000_000, 100, 100e6, 2.0)];
        figures.tree.big_bytes = 1_000_000_000;
        let behind = predict(&figures);
        assert!((behind.seconds - 21.0).abs() < 0.1 && (behind.final_sync_s - 11.0).abs() < 0.1, "{behind:?}");
        assert_eq!(behind.limit(), Some(Part::Write), "{behind:?}");
        // Data that went to the disk while content arrived took disk time, like the flush.
        figures.trials[0].landed.flush_s = 1.0;
        figures.write.big = rate(50_000_000, 50);
        let cached = predict(&figures);
        assert!((cached.seconds - 20.0).abs() < 0.1 && (cached.final_sync_s - 10.0).abs() < 0.1, "{cached:?}");
    }

    #[test]
    fn parts_that_share_a_processor_are_added_up() {
        let mut figures = figures();
        // All of it takes twice as long as any part alone.
        figures.trials = vec![
            trial(Joint::Whole, Class::Big, 100_000_000, 100, 50e6, 0.0),
            trial(Joint::Whole, Class::Small, 25_000_000, 2500, 25e6, 0.0),
        ];
        let prediction = predict(&figures);
        assert!((prediction.seconds - (400.0 + 40.0 + 1.5)).abs() < 1.0, "{prediction:?}");
        assert!(prediction.saves(Part::SourceCpu) > 150.0, "{prediction:?}");
    }

    #[test]
    fn what_is_in_memory_is_read_from_there() {
        let mut figures = figures();
        figures.read.big_warm = rate(4_000_000_000, 4000);
        figures.read.big_cached = 0.75;
        let mixed = alone(&figures, Part::Read, Class::Big);
        assert!((mixed - (0.75 / 4e9 + 0.25 / 500e6)).abs() < 1e-12);
        figures.read.big_cold = None;
        assert!((alone(&figures, Part::Read, Class::Big) - 1.0 / 4e9).abs() < 1e-15);
    }

    #[test]
    fn what_a_copy_does_before_it_has_enough_connections_takes_longer() {
        let mut figures = figures();
        (figures.tree.small_files, figures.tree.small_bytes) = (0, 0);
        let grown = predict(&figures);
        // Three seconds at half the rate, three at three quarters of it.
        figures.growth = vec![50e6, 75e6];
        let lost_s = |figures: &Figures, grown: &Prediction| predict(figures).seconds - grown.seconds;
        assert!((lost_s(&figures, &grown) - 2.25).abs() < 0.1, "{}", lost_s(&figures, &grown));
        // If the disk is slower than that, nothing is lost.
        figures.write.big = rate(40_000_000, 40);
        figures.trials = vec![trial(Joint::Whole, Class::Big, 40_000_000, 40, 39e6, 0.0)];
        let slow = predict(&Figures { growth: Vec::new(), ..figures.clone() });
        assert!(lost_s(&figures, &slow).abs() < 0.1, "{}", lost_s(&figures, &slow));
        // A job that ends before the first increase runs at half the rate throughout.
        figures.tree = Tree { big_files: 1, big_bytes: 98_000_000, complete: true, ..Tree::default() };
        figures.trials = vec![trial(Joint::Whole, Class::Big, 100_000_000, 100, 98e6, 0.0)];
        figures.write.big = rate(200_000_000, 200);
        let short = predict(&Figures { growth: Vec::new(), ..figures.clone() });
        assert!((lost_s(&figures, &short) - 1.0).abs() < 0.1, "{}", lost_s(&figures, &short));
    }

    #[test]
    fn a_link_that_is_slower_than_zstd_carries_less() {
        let mut figures = figures();
        figures.tree = Tree { big_files: 1, big_bytes: 9_800_000_000, complete: true, ..Tree::default() };
        figures.setup_s = 0.0;
        let compress = |left| Some(super::super::compute::Compress { left, bytes_per_s: 400e6 });
        figures.source.compress = compress(0.95);
        assert!((predict(&figures).seconds - 100.0).abs() < 1.0);
        figures.source.compress = compress(0.5);
        assert!((predict(&figures).seconds - 50.0).abs() < 1.0, "{:?}", predict(&figures));
        // Then the disk is the limit.
        figures.source.compress = compress(0.1);
        assert!((predict(&figures).seconds - 49.0).abs() < 1.0, "{:?}", predict(&figures));
    }

    #[test]
    fn nothing_measured_predicts_nothing_odd() {
        let prediction = predict(&Figures::default());
        assert!(prediction.seconds.abs() < 1e-9 && prediction.at_least && !prediction.estimate);
        let tree = Tree { estimated_from: Some(Basis::FileSystem), ..Tree::default() };
        let prediction = predict(&Figures { tree, ..Figures::default() });
        assert!(prediction.estimate && !prediction.at_least);
    }
}
