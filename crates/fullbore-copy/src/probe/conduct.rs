//! The schedule of a probe: which trial runs when, and for how long.
//!
//! Each part runs alone first, then adjacent parts together, then all of them. The time is divided so that the whole
//! takes no longer than the user asked. Trials without time left are skipped and named in the report.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::compute::Compute;
use super::end::End;
use super::flow::{Flow, Landed, UNDER_WAY_S};
use super::read::{Class, ReadFigures};
use super::tree::Tree;
use super::words::{Answer, Request, SinkMode, SourceMode, Word};
use super::write::WriteFigures;
use crate::error::CopyError;
use crate::wire::SMALL_BYTES;

/// Shares of the probe's time, here for thirty seconds: scan 3 s, reading 3 s, one connection 1 s, all connections 2.4
/// s, each increase of connections 1.5 s, writing 3 s. The joint trials get the rest.
const SCAN: f64 = 0.10;
const READ: f64 = 0.10;
const ONE_STREAM: f64 = 0.035;
const STREAMS: f64 = 0.08;
const MORE_STREAMS: f64 = 0.05;
const WRITE: f64 = 0.10;
/// Share of each of the (up to six) joint trials.
const TOGETHER: f64 = 0.05;
/// Factor on [`TOGETHER`] if the tree has only one kind of files, as there are half as many joint trials.
const OF_ONE_KIND: f64 = 1.6;
/// Time in which data that is in flight at the end of a trial arrives, even with high loss.
const ARRIVAL_S: f64 = 1.0;
/// Shortest trial that gives a usable result, in seconds.
const SHORTEST_S: f64 = 0.15;
/// Smallest share of a kind of files that gets its own trials: of the bytes, and of the small files per block of big
/// ones.
const SMALL_PART: f64 = 0.02;
/// Bytes added to each small file when kinds are compared: the cost of opening and creating it, in bytes of a fast
/// disk. A guess of the right order of magnitude.
const FILE_COST_BYTES: u64 = 64 << 10;
/// Longest flush at the destination that a trial may cause, as a multiple of the trial's time.
const FLUSH_SHARE: f64 = 1.5;

/// Settings of the user for a probe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TrialSettings {
    /// Time limit of the whole probe, counted from `began`.
    pub time: Duration,
    /// Start of the probe, before connections are made.
    pub began: Instant,
    /// Stay on the source's file system (`--one-file-system`).
    pub one_file_system: bool,
}

/// Opens the connections that carry content, as a copy does.
pub(crate) trait Connections {
    /// Opens the connections that a copy begins with, beyond the first one.
    fn begin(&mut self);
    /// Opens more connections, if a copy at this rate would try more. Returns whether it did.
    fn grow(&mut self, bytes_per_s: f64) -> bool;
}

/// Parts that ran together in a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Joint {
    /// The source and the network.
    ReadSend,
    /// The network and the destination.
    SendWrite,
    /// Source, network and destination.
    Whole,
}

/// Result of a joint trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Trial {
    /// The parts that ran.
    pub joint: Joint,
    /// The kind of files that was sent.
    pub class: Class,
    /// Measurements at the sender.
    pub flow: Flow,
    /// Measurements at the receiver.
    pub landed: Landed,
}

impl Trial {
    /// Bytes per second including the flush, as for a copy that is smaller than one group of files.
    pub(crate) fn bytes_per_s(&self) -> f64 {
        let bytes = self.flow.bytes as f64;
        if bytes == 0.0 || self.flow.steady <= 0.0 {
            return 0.0;
        }
        bytes / (bytes / self.flow.steady + self.landed.flush_s)
    }

    /// Files per second, including the flush.
    pub(crate) fn files_per_s(&self) -> f64 {
        self.bytes_per_s() * self.flow.items as f64 / (self.flow.bytes as f64).max(1.0)
    }
}

/// All measurements of a probe.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// Totals of the source's tree.
    pub tree: Tree,
    /// Processor throughput at the source.
    pub source: Compute,
    /// Processor throughput at the destination; the same as `source` on one machine.
    pub target: Compute,
    /// Whether source and destination are on one machine, without a network.
    pub local: bool,
    /// Results of reading the source alone.
    pub read: ReadFigures,
    /// Result of sending over one connection; `None` if it was not tried.
    pub one_stream: Option<Flow>,
    /// Result of sending over the number of connections that a copy would use.
    pub streams: Option<Flow>,
    /// Rates in bytes per second for each smaller number of connections that a copy tries first, in the order of
    /// trying.
    pub growth: Vec<f64>,
    /// Results of writing to the destination alone.
    pub write: WriteFigures,
    /// Results of the joint trials.
    pub trials: Vec<Trial>,
    /// Seconds from the start to the first trial: ssh and connections.
    pub setup_s: f64,
    /// Trials that were skipped for lack of time.
    pub left_out: Vec<String>,
}

impl Figures {
    /// The joint trial of these parts and this kind of files.
    pub(crate) fn trial(&self, joint: Joint, class: Class) -> Option<&Trial> {
        self.trials.iter().find(|trial| trial.joint == joint && trial.class == class && trial.flow.bytes > 0)
    }
}

fn matters(tree: &Tree, class: Class) -> bool {
    let small = tree.small_bytes.saturating_add(tree.small_files.saturating_mul(FILE_COST_BYTES)) as f64;
    let (part, other) = match class {
        Class::Small => (small, tree.big_bytes as f64),
        Class::Big => (tree.big_bytes as f64, small),
    };
    part > 0.0 && part >= SMALL_PART * (part + other)
}

/// Runs a probe. `end` is the end of this process; the other one answers through its link.
///
/// `connections` opens connections to another machine beyond the existing first one. `tell` receives the name of each
/// trial.
///
/// # Errors
/// [`CopyError::Network`] if the connection breaks. [`CopyError::Usage`] or [`CopyError::Disk`] if the source or
/// destination cannot be used; [`CopyError::Remote`] if that happened at the other end.
pub(crate) fn conduct(
    end: &mut End,
    settings: TrialSettings,
    connections: Option<&mut dyn Connections>,
    tell: &dyn Fn(&str),
) -> Result<Figures, CopyError> {
    let local = connections.is_none();
    let mut course = Course { end, settings, tell };
    let mut figures = Figures { local, setup_s: settings.began.elapsed().as_secs_f64(), ..Figures::default() };
    let whole_s = settings.time.as_secs_f64();

    let scan = Request::Scan { seconds: whole_s * SCAN, one_file_system: settings.one_file_system };
    if let Answer::Scanned(tree) = course.at_source("listing", scan)? {
        figures.tree = tree;
    }
    if let Answer::Computed(compute) = course.at_source("hash, cipher, compression", Request::Compute)? {
        figures.source = compute;
    }
    figures.target = figures.source;
    if !local && let Answer::Computed(compute) = course.at_target("hash, cipher", Request::Compute)? {
        figures.target = compute;
    }
    if figures.tree.bytes() > 0
        && let Answer::Read(read) = course.at_source("reading", Request::Read { seconds: whole_s * READ })?
    {
        figures.read = *read;
    }
    let (small, big) = (matters(&figures.tree, Class::Small), matters(&figures.tree, Class::Big));
    let together_s = whole_s * TOGETHER * if small && big { 1.0 } else { OF_ONE_KIND };
    let kinds = f64::from(u8::from(small)) + f64::from(u8::from(big));
    // Time for the trials after the network's; data in flight at their ends has to arrive, too.
    let rest_s = whole_s * WRITE + 3.0 * kinds * (together_s + UNDER_WAY_S);
    let mut allowance = 0;
    if let Some(connections) = connections {
        let one =
            course.flow("one connection", SourceMode::Memory, SinkMode::Drop, whole_s * ONE_STREAM, u64::MAX, 0)?;
        figures.one_stream = one.map(|(flow, _)| flow);
        connections.begin();
        let mut first = figures.one_stream.as_ref().map_or(0.0, |flow| flow.steady / 4.0) as u64;
        let mut share = STREAMS;
        while let Some((flow, _)) =
            course.flow("all connections", SourceMode::Memory, SinkMode::Drop, whole_s * share, u64::MAX, first)?
        {
            let rate = flow.steady;
            figures.streams = Some(flow);
            first = (rate * UNDER_WAY_S) as u64;
            (allowance, share) = (first, MORE_STREAMS);
            if course.left_s() < whole_s * MORE_STREAMS + UNDER_WAY_S + rest_s || !connections.grow(rate) {
                break;
            }
            figures.growth.push(rate);
        }
    }
    let small_bytes = if small { figures.tree.small_mean().clamp(1, SMALL_BYTES) as u32 } else { 0 };
    let write = Request::Write { seconds: whole_s * WRITE, small_bytes, big };
    if let Answer::Written(write) = course.at_target("writing", write)? {
        figures.write = *write;
    }
    // The trials of everything run first, so that the prediction has its data even if time runs out.
    let classes = [(Class::Big, big), (Class::Small, small)];
    for (joint, what) in
        [(Joint::Whole, "everything"), (Joint::ReadSend, "read + send"), (Joint::SendWrite, "send + write")]
    {
        for (class, _) in classes.into_iter().filter(|(_, matters)| *matters) {
            let source_mode = match (joint, class) {
                (Joint::SendWrite, Class::Big) => SourceMode::Memory,
                (Joint::SendWrite, Class::Small) => SourceMode::SmallMemory(small_bytes),
                (_, Class::Big) => SourceMode::Big,
                (_, Class::Small) => SourceMode::Small,
            };
            let sink = if joint == Joint::ReadSend { SinkMode::Verify } else { SinkMode::Write };
            let kind = if class == Class::Small { "small files" } else { "big files" };
            let most_bytes =
                if sink == SinkMode::Write { most_bytes(&figures.write, class, together_s) } else { u64::MAX };
            let words = format!("{what}, {kind}");
            match course.flow(&words, source_mode, sink, together_s, most_bytes, allowance)? {
                Some((flow, landed)) => figures.trials.push(Trial { joint, class, flow, landed }),
                None => figures.left_out.push(words),
            }
        }
    }
    Ok(figures)
}

/// Most bytes to write in a trial, so that the flush after it stays short.
fn most_bytes(write: &WriteFigures, class: Class, seconds: f64) -> u64 {
    let rate = match class {
        Class::Big => write.big,
        Class::Small => write.small,
    };
    rate.map_or(u64::MAX, |rate| ((rate.bytes_per_s() * seconds * FLUSH_SHARE) as u64).max(4 << 20))
}

struct Course<'a> {
    end: &'a mut End,
    settings: TrialSettings,
    tell: &'a dyn Fn(&str),
}

impl Course<'_> {
    fn at_source(&mut self, what: &str, order: Request) -> Result<Answer, CopyError> {
        self.at(self.end.is_source(), what, order)
    }

    fn at_target(&mut self, what: &str, order: Request) -> Result<Answer, CopyError> {
        self.at(!self.end.is_source(), what, order)
    }

    fn at(&mut self, here: bool, what: &str, order: Request) -> Result<Answer, CopyError> {
        (self.tell)(what);
        let order = order.within(self.left_s().max(SHORTEST_S));
        if here {
            return self.end.perform(order);
        }
        self.end.means.say(&Word::Request(order))?;
        self.answer()
    }

    fn answer(&self) -> Result<Answer, CopyError> {
        match self.end.means.hear()? {
            Some(Word::Answer(Answer::Failed { exit_code, text })) => Err(CopyError::Remote { exit_code, text }),
            Some(Word::Answer(answer)) => Ok(answer),
            Some(_) => Err(CopyError::Meaning("a message out of turn")),
            None => Err(self.end.means.gone()),
        }
    }

    fn left_s(&self) -> f64 {
        self.settings.time.as_secs_f64() - self.settings.began.elapsed().as_secs_f64()
    }

    /// Sends content from the source to the destination; `None` if there is no time left.
    fn flow(
        &mut self,
        what: &str,
        source_mode: SourceMode,
        sink: SinkMode,
        seconds: f64,
        bytes: u64,
        allowance: u64,
    ) -> Result<Option<(Flow, Landed)>, CopyError> {
        let remote = self.end.means.transport.is_some();
        let seconds = seconds.min(self.left_s() - if remote { ARRIVAL_S } else { 0.0 });
        if seconds < SHORTEST_S {
            return Ok(None);
        }
        (self.tell)(what);
        let (send, receive) = (Request::Send { source_mode, seconds, bytes, allowance }, Request::Receive { sink });
        let (own, others) = if self.end.is_source() { (send, receive) } else { (receive, send) };
        self.end.means.say(&Word::Request(others))?;
        let answers = (self.end.perform(own)?, self.answer()?);
        match answers {
            (Answer::Sent(flow), Answer::Received(landed)) | (Answer::Received(landed), Answer::Sent(flow)) => {
                Ok(Some((*flow, *landed)))
            }
            _ => Err(CopyError::Meaning("an answer to another order")),
        }
    }
}

#[cfg(test)]
mod tests {
    use fullbore_engine::stage::Ledger;

    use super::super::end::Means;
    use super::*;
    use crate::session::{CancelToken, Link};

    /// A copy would try more connections twice, and then no more.
    #[derive(Default)]
    struct Growing {
        begun: u32,
        asked: Vec<f64>,
    }

    impl Connections for Growing {
        fn begin(&mut self) {
            self.begun += 1;
        }

        fn grow(&mut self, bytes_per_s: f64) -> bool {
            self.asked.push(bytes_per_s);
            self.asked.len() <= 2
        }
    }

    #[test]
    fn the_network_is_tried_with_as_many_connections_as_a_copy_makes() {
        let [source, target] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let (one, other) = Link::pair();
        let (cancel, ledger) = (CancelToken::new(&one), Ledger::new());
        let near = Means::new(one.clone(), cancel.clone(), ledger.clone(), None, source.path().to_owned());
        let far = End::target(Means::new(other, cancel, ledger, None, target.path().to_owned())).unwrap();
        let mut near = End::source(near, vec![source.path().to_owned()]).unwrap();
        let mut growing = Growing::default();
        let figures = std::thread::scope(|scope| {
            scope.spawn(|| far.serve());
            let settings =
                TrialSettings { time: Duration::from_secs(10), began: Instant::now(), one_file_system: false };
            let figures = conduct(&mut near, settings, Some(&mut growing), &|_| ());
            one.control_out.close();
            figures.unwrap()
        });
        assert_eq!(growing.begun, 1);
        // On a machine that is busy with other things there is no time left for all of them.
        assert_eq!(figures.growth, growing.asked[..growing.asked.len().min(2)]);
        assert!(figures.one_stream.is_some() && figures.streams.is_some_and(|flow| flow.bytes > 0));
    }
}
