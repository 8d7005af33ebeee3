//! The course of a probe: which trial comes when, and for how long.
//!
//! Each part alone first, then what is next to each other together, then all of it. The time is parted
//! so that the whole takes no longer than asked for; what there is no time for is left out, and named.

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

/// Shares of the time, of thirty seconds: scan 3, reading 3, network 1 and 2.4 and 1.5 for each time that there are
/// more connections, writing 3, the rest together.
const SCAN: f64 = 0.10;
const READ: f64 = 0.10;
const ONE_STREAM: f64 = 0.035;
const STREAMS: f64 = 0.08;
const MORE_STREAMS: f64 = 0.05;
const WRITE: f64 = 0.10;
/// Each of the (up to six) trials of parts together.
const TOGETHER: f64 = 0.05;
/// Where there is one kind of files alone, and half as many of them.
const OF_ONE_KIND: f64 = 1.6;
/// What is under way at the end of a trial has arrived after this, even where much is lost.
const ARRIVAL_S: f64 = 1.0;
/// Shortest trial that is worth the trouble.
const SHORTEST_S: f64 = 0.15;
/// A kind of files that holds less of the job is not tried by itself: this share of the bytes, and fewer
/// small files for each block of big ones.
const SMALL_PART: f64 = 0.02;
/// Bytes that a small file counts beyond its content where kinds are compared: what opening and creating
/// it costs, in bytes of a fast disk. A guess, of the right order.
const FILE_COST_BYTES: u64 = 64 << 10;
/// Time of a destination's flush that a trial may lead to, of the trial's own time.
const FLUSH_SHARE: f64 = 1.5;

/// What the user wants of a probe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TrialSettings {
    /// For all of it, from `began`.
    pub time: Duration,
    /// When it began: set-up counts.
    pub began: Instant,
    /// Stay on the source's file system.
    pub one_file_system: bool,
}

/// Makes the connections that carry content, as a copy does.
pub(crate) trait Connections {
    /// Those that a copy begins with, beyond the first one.
    fn begin(&mut self);
    /// More of them, if a copy with this rate would try more; says whether it did.
    fn grow(&mut self, bytes_per_s: f64) -> bool;
}

/// Parts that were tried together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Joint {
    /// The source and the network.
    ReadSend,
    /// The network and the destination.
    SendWrite,
    /// Everything.
    Whole,
}

/// What a trial of parts together gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Trial {
    /// Which parts.
    pub joint: Joint,
    /// With which files.
    pub class: Class,
    /// What the sender saw.
    pub flow: Flow,
    /// What the receiver saw.
    pub landed: Landed,
}

impl Trial {
    /// Bytes per second with the flush counted, as a copy of less than a group of files has it.
    pub(crate) fn bytes_per_s(&self) -> f64 {
        let bytes = self.flow.bytes as f64;
        if bytes == 0.0 || self.flow.steady <= 0.0 {
            return 0.0;
        }
        bytes / (bytes / self.flow.steady + self.landed.flush_s)
    }

    /// Files per second, likewise.
    pub(crate) fn files_per_s(&self) -> f64 {
        self.bytes_per_s() * self.flow.items as f64 / (self.flow.bytes as f64).max(1.0)
    }
}

/// Everything that was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// The tree.
    pub tree: Tree,
    /// Processor-bound work at the source.
    pub source: Compute,
    /// At the destination; the same where both are one machine.
    pub target: Compute,
    /// Source and destination are on one machine, without a network.
    pub local: bool,
    /// Reading.
    pub read: ReadFigures,
    /// One connection.
    pub one_stream: Option<Flow>,
    /// As many as a copy would have.
    pub streams: Option<Flow>,
    /// Bytes per second of the numbers of connections that a copy tries before, the first one first.
    pub growth: Vec<f64>,
    /// Writing.
    pub write: WriteFigures,
    /// Parts together.
    pub trials: Vec<Trial>,
    /// From the start to the first trial, seconds: ssh and connections.
    pub setup_s: f64,
    /// What there was no time for.
    pub left_out: Vec<String>,
}

impl Figures {
    /// A trial of parts together.
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

/// Runs a probe: `end` is this process's, the other one listens at its link.
///
/// `connections` are those to another machine, the first of which is there; `tell` hears what is being tried.
///
/// # Errors
/// When the connection breaks, or the source or destination cannot be used.
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
    // What comes behind the network; and what takes part in it has to arrive.
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
    // The whole first: if the time runs out, what the prediction needs is there.
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

/// What may be written in a trial, so that the flush behind it does not take for ever.
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
            Some(_) => Err(CopyError::Meaning("a word out of turn")),
            None => Err(self.end.means.gone()),
        }
    }

    fn left_s(&self) -> f64 {
        self.settings.time.as_secs_f64() - self.settings.began.elapsed().as_secs_f64()
    }

    /// Content from the source to the destination; nothing if there is no time left.
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
