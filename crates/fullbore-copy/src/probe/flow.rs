//! Trials that send content through the queues, connections, hashes and acknowledgements of a copy.
//!
//! The allowance of bytes in flight grows with acknowledgements, up to the content of part of a second. So a trial on a
//! slow path ends in time, and one on a fast path fills it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use fullbore_engine::stage::{Kind, LedgerReading, SendReading, StageReading};
use fullbore_engine::verdict::{Sampler, SamplerConfig};
use fullbore_engine::window::{Operation, Permit, Position, Window};
use serde::{Deserialize, Serialize};

use super::disks::DiskFacts;
use super::end::Means;
use super::read::{Class, Feeder, Files, Which, readers};
use super::tree::Draw;
use super::words::{SinkMode, SourceMode, Word};
use super::write::{Held, Pen, Target, flush_time, writers};
use crate::error::CopyError;
use crate::judgement::Judgement;
use crate::queue::Taken;
use crate::sender::{LOCAL_WINDOW_BYTES, REMOTE_WINDOW_BYTES, WINDOW_RECORDS};
use crate::transport::Path;
use crate::wire::{Block, Message, PACK_BYTES, PACK_FILES, Pack, Packed, Payload, SMALL_BYTES};

/// Size of the permits that are held back until acknowledgements arrive.
const HELD_BACK_BYTES: u64 = 256 << 10;
/// Overhead of a record in the window beyond its content, as in a copy.
const HEAD_BYTES: u64 = 4096;
/// Least records that share the allowance, so that none is a large part of it. Then the same for each connection, so
/// that all stay busy.
const PARTS: u64 = 8;
const PARTS_OF_STREAM: u64 = 2;
/// Smallest record on a path whose rate is not known yet.
const SMALLEST_RECORD: u64 = 16 << 10;
/// Most data in flight, as seconds of the acknowledged rate, or as the given number of round trips if that is more. It
/// takes as long to arrive after the trial.
pub(super) const UNDER_WAY_S: f64 = 0.4;
const UNDER_WAY_TRIPS: f64 = 4.0;
/// Interval for looking at clocks while no message arrives.
const LOOK: Duration = Duration::from_millis(20);
/// Time limit for data in flight to arrive after a trial.
const DRAIN_TIME: Duration = Duration::from_secs(30);
/// Share of a trial that is ignored while the path comes up to speed.
const RAMP_SHARE: f64 = 0.35;

/// Kernel figures of the connections of a trial.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PathFacts {
    /// Number of connections with content; 0 with ssh's pipe or on one machine.
    pub streams: usize,
    /// Smallest round-trip time, in microseconds.
    pub round_trip_us: u64,
    /// Retransmitted segments as a share of all sent.
    pub loss: f64,
    /// Share of the busy time that the receiver's window limited.
    pub receiver_limited: f64,
    /// Share of the busy time that this machine's send buffer limited.
    pub buffer_limited: f64,
    /// Congestion control that the probe set on the connections; `None` for the system's.
    pub control: Option<String>,
}

/// Measurements of a trial at the sender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    /// Acknowledged bytes of content.
    pub bytes: u64,
    /// Acknowledged files, or blocks of big files.
    pub items: u64,
    /// Seconds until everything was acknowledged.
    pub seconds: f64,
    /// Bytes per second after the path came up to speed.
    pub steady: f64,
    /// Figures of the connections.
    pub path: PathFacts,
    /// The sender's verdict.
    pub judgement: Judgement,
    /// Activity of the source's disks.
    pub disks: DiskFacts,
}

/// Measurements of a trial at the receiver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Landed {
    /// Bytes of content that were written.
    pub bytes: u64,
    /// Duration of the flush after the trial, in seconds.
    pub flush_s: f64,
    /// Whether the flush ended within a probe's time limit.
    pub flushed: bool,
    /// The receiver's verdict.
    pub judgement: Judgement,
    /// Activity of the destination's disks.
    pub disks: DiskFacts,
}

/// Clocks and verdict of one trial.
struct Watch<'a> {
    means: &'a Means,
    /// `None` if the other end runs in the same process and samples for both.
    sampler: Option<Sampler>,
    before: LedgerReading,
}

impl<'a> Watch<'a> {
    fn start(means: &'a Means, stage: &str, window: Option<&Window>) -> Result<Watch<'a>, CopyError> {
        if let Some(window) = window {
            means.ledger.watch_window(window);
        }
        let config = SamplerConfig {
            destination: means.watched.clone(),
            delivery_stage: stage.to_owned(),
            ..SamplerConfig::default()
        };
        let sampler = means.watched.is_some().then(|| Sampler::start(&means.ledger, config)).transpose();
        let sampler = sampler.map_err(|error| CopyError::System { what: "a thread", error })?;
        Ok(Watch { means, sampler, before: means.ledger.reading() })
    }

    fn finish(self) -> Judgement {
        let mut judgement = self.sampler.map(|sampler| Judgement::of(&sampler.finish())).unwrap_or_default();
        let now = self.means.ledger.reading();
        judgement.stages = since(&now.stages, &self.before.stages);
        judgement.sending = now.sending.since(&self.before.sending);
        judgement
    }
}

fn since(now: &[StageReading], before: &[StageReading]) -> Vec<StageReading> {
    let earlier = |stage: &StageReading| before.iter().find(|earlier| earlier.name == stage.name);
    now.iter().map(|stage| earlier(stage).map_or_else(|| stage.clone(), |earlier| stage.since(earlier))).collect()
}

/// The bytes that may be in flight, and the records that are.
struct Allowance {
    window: Window,
    held_back: Mutex<Vec<Permit>>,
    /// Records in flight by sequence number, with the length of their content.
    under_way: Mutex<HashMap<u64, (Permit, u64)>>,
    allowed: AtomicU64,
    parts: u64,
    under_way_s: f64,
    over: AtomicBool,
    sequence: AtomicU64,
    sent_bytes: AtomicU64,
    items: AtomicU64,
}

impl Allowance {
    /// Starts with `first` bytes allowed. `path` is `None` within one machine, where the whole window is allowed.
    fn new(path: Option<&Path>, first: u64) -> Allowance {
        let remote = path.is_some();
        let trip_s = path.and_then(|path| path.round_trip).map_or(0.0, |trip| trip.as_secs_f64());
        let most = if remote { REMOTE_WINDOW_BYTES } else { LOCAL_WINDOW_BYTES };
        let window = Window::new(most, WINDOW_RECORDS);
        let first = if remote { first.clamp(HELD_BACK_BYTES, most) } else { most };
        let held_back = (0..(most - first) / HELD_BACK_BYTES).map_while(|_| window.try_acquire(HELD_BACK_BYTES));
        let held_back = Mutex::new(held_back.collect());
        Allowance {
            window,
            held_back,
            under_way: Mutex::default(),
            allowed: AtomicU64::new(first),
            parts: PARTS.max(PARTS_OF_STREAM * path.map_or(0, |path| path.streams as u64)),
            under_way_s: UNDER_WAY_S.max(UNDER_WAY_TRIPS * trip_s),
            over: AtomicBool::new(false),
            sequence: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            items: AtomicU64::new(0),
        }
    }

    fn under_way(&self) -> std::sync::MutexGuard<'_, HashMap<u64, (Permit, u64)>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record_bytes(&self) -> usize {
        (self.allowed.load(Ordering::Relaxed) / self.parts).clamp(SMALLEST_RECORD, PACK_BYTES as u64) as usize
    }

    /// Raises the allowance by the acknowledged bytes, up to the limit for this rate.
    fn grow(&self, acknowledged: u64, rate: f64) {
        let most = (rate * self.under_way_s) as u64;
        let mut held_back = self.held_back.lock().unwrap_or_else(PoisonError::into_inner);
        let mut allowed = self.allowed.load(Ordering::Relaxed);
        let until = allowed + acknowledged;
        while allowed < until && allowed < most && held_back.pop().is_some() {
            allowed += HELD_BACK_BYTES;
        }
        self.allowed.store(allowed, Ordering::Relaxed);
    }

    /// Releases every thread that waits for a permit.
    fn end(&self) {
        self.over.store(true, Ordering::Release);
        self.under_way().clear();
        self.held_back.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// The source of a trial's records.
struct Source<'a> {
    files: &'a Files,
    source_mode: SourceMode,
    block: &'a [u8],
    hash: [u8; 32],
}

/// Sends until the time is up or `most_bytes` are sent, then waits until all of it is acknowledged.
pub(super) fn send(
    means: &Means,
    files: &Files,
    source_mode: SourceMode,
    time: Duration,
    most_bytes: u64,
    first: u64,
) -> Result<Flow, CopyError> {
    let path_before = means.transport.as_ref().map(|transport| transport.path());
    let allowance = Allowance::new(path_before.as_ref(), first);
    let block = match source_mode {
        SourceMode::SmallMemory(length) => Draw(17).bytes((length as usize).clamp(1, SMALL_BYTES as usize)),
        _ => Draw(17).bytes(PACK_BYTES),
    };
    let source = Source { files, source_mode, hash: *blake3::hash(&block).as_bytes(), block: &block };
    let disks = means.disks.read();
    let watch = Watch::start(means, "read", Some(&allowance.window))?;
    let began = Instant::now();
    let threads = match source_mode {
        SourceMode::Big | SourceMode::Small => readers(means.rotational),
        SourceMode::Memory | SourceMode::SmallMemory(_) => 1,
    };
    let mut curve = vec![(0.0, 0_u64)];
    let result = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..threads)
            .map(|_| scope.spawn(|| supply_records(means, &allowance, &source, began + time, most_bytes)))
            .collect();
        let result = listen(means, &allowance, began, time, &mut curve, || readers.iter().all(|one| one.is_finished()));
        if result.is_err() {
            // The session is over. No thread may keep waiting for room in its queue.
            means.link.data.break_off();
        }
        allowance.end();
        result
    });
    result?;
    let seconds = began.elapsed().as_secs_f64();
    let bytes = curve.last().map_or(0, |(_, bytes)| *bytes);
    means.say(&Word::End)?;
    let judgement = watch.finish();
    let path = path_facts(means, path_before.as_ref(), &judgement.sending);
    Ok(Flow {
        bytes,
        items: allowance.items.load(Ordering::Relaxed),
        seconds,
        steady: steady(&curve, time.as_secs_f64()),
        path,
        judgement,
        disks: means.disks.since(&disks),
    })
}

fn path_facts(means: &Means, before: Option<&Path>, sending: &SendReading) -> PathFacts {
    let Some(path) = means.transport.as_ref().map(|transport| transport.path()) else { return PathFacts::default() };
    let busy = sending.busy_us.max(1) as f64;
    PathFacts {
        streams: path.streams,
        round_trip_us: path.round_trip.map_or(0, |trip| trip.as_micros() as u64),
        // Loss is for the whole session, as one trial has too few segments to show small rates.
        loss: path.loss.max(before.map_or(0.0, |before| before.loss)),
        receiver_limited: sending.receiver_limited_us as f64 / busy,
        buffer_limited: sending.buffer_limited_us as f64 / busy,
        control: path.control,
    }
}

/// Bytes per second after the ramp-up of a trial. `curve` has pairs of time and total bytes.
fn steady(curve: &[(f64, u64)], seconds: f64) -> f64 {
    let last = curve.iter().rev().find(|(at, _)| *at <= seconds).copied().unwrap_or_default();
    let end = if last.0 > seconds * 0.7 { last } else { curve.last().copied().unwrap_or_default() };
    let from = curve.iter().find(|(at, _)| *at >= end.0 * RAMP_SHARE).copied().unwrap_or_default();
    if end.0 - from.0 > 0.05 && end.1 > from.1 {
        (end.1 - from.1) as f64 / (end.0 - from.0)
    } else {
        end.1 as f64 / end.0.max(1e-6)
    }
}

/// A thread that makes records and queues them for sending.
fn supply_records(means: &Means, allowance: &Allowance, source: &Source<'_>, until: Instant, most_bytes: u64) {
    let clock = means.ledger.stage("read", Kind::Thread);
    clock.adopt_thread();
    let class = if source.source_mode == SourceMode::Small { Class::Small } else { Class::Big };
    let mut feeder = Feeder::new(source.files, class, Which::AsFound);
    while Instant::now() < until
        && !allowance.over.load(Ordering::Acquire)
        && allowance.sent_bytes.load(Ordering::Relaxed) < most_bytes
    {
        let length = allowance.record_bytes();
        let size = length as u64 + HEAD_BYTES;
        let permit = allowance.window.try_acquire(size);
        let mut permit = permit.unwrap_or_else(|| clock.blocked_in(|| allowance.window.acquire_blocking(size)));
        if allowance.over.load(Ordering::Acquire) {
            return;
        }
        permit.at(Position::In(Operation::Read));
        let mut buffer = means.link.pool.take(length);
        let packed = match source.source_mode {
            SourceMode::Memory => {
                buffer.copy_from_slice(&source.block[..length]);
                None
            }
            SourceMode::SmallMemory(_) => {
                let count = (length / source.block.len()).clamp(1, PACK_FILES);
                buffer.clear();
                (0..count).for_each(|_| buffer.extend_from_slice(source.block));
                let one = |id| Packed { id, length: source.block.len() as u32 };
                Some((0..count as u64).map(one).collect::<Vec<_>>())
            }
            SourceMode::Big => {
                let Some(read) = clock.device(|| feeder.block(&mut buffer)) else { return };
                buffer.truncate(read);
                None
            }
            SourceMode::Small => {
                buffer.clear();
                Some(clock.device(|| feeder.pack(&mut buffer, length)))
            }
        };
        if packed.as_ref().is_some_and(Vec::is_empty) {
            return;
        }
        let hash = match source.source_mode {
            SourceMode::Memory if length == source.block.len() => source.hash,
            _ => *blake3::hash(&buffer).as_bytes(),
        };
        let (bytes, items) = (buffer.len() as u64, packed.as_ref().map_or(1, |files| files.len() as u64));
        clock.add_items(items, bytes);
        permit.at(Position::Before(Operation::Send));
        let sequence = allowance.sequence.fetch_add(1, Ordering::Relaxed);
        allowance.under_way().insert(sequence, (permit, bytes));
        allowance.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
        allowance.items.fetch_add(items, Ordering::Relaxed);
        let payload = Payload::new(buffer);
        let message = match packed {
            Some(files) => Message::Pack(Pack { sequence, hash, files, compressed: false, payload }),
            None => Message::Block(Block {
                sequence,
                id: 0,
                index: sequence,
                hash,
                length: bytes as u32,
                segments: Vec::new(),
                compressed: false,
                payload,
            }),
        };
        // A closed queue means that the session ends; the cancel token has the reason.
        if means.link.data.push(message, &clock).is_err() {
            return;
        }
    }
}

/// Processes acknowledgements until everything is acknowledged.
fn listen(
    means: &Means,
    allowance: &Allowance,
    began: Instant,
    time: Duration,
    curve: &mut Vec<(f64, u64)>,
    all_sent: impl Fn() -> bool,
) -> Result<(), CopyError> {
    let clock = means.ledger.stage("control", Kind::Thread);
    let mut acknowledged = 0;
    loop {
        match means.link.control_in.pop_within(LOOK, &clock) {
            Taken::Item(Message::Acknowledge { sequence }) => {
                let Some((permit, bytes)) = allowance.under_way().remove(&sequence) else {
                    return Err(CopyError::Meaning("an acknowledgement of nothing"));
                };
                drop(permit);
                acknowledged += bytes;
                let at = began.elapsed().as_secs_f64();
                allowance.grow(bytes, acknowledged as f64 / at.max(1e-3));
                curve.push((at, acknowledged));
            }
            Taken::Item(message) => return Err(means.unexpected(message)),
            Taken::End => return Err(means.gone()),
            Taken::TimedOut => {}
        }
        if all_sent() && allowance.under_way().is_empty() {
            return Ok(());
        }
        if began.elapsed() > time + DRAIN_TIME {
            return Err(CopyError::Network("what was sent is not acknowledged".to_owned()));
        }
    }
}

/// Receives until the sender ends the trial.
pub(super) fn receive(means: &Means, sink: SinkMode, target: Option<&Target>) -> Result<Landed, CopyError> {
    let target = match (sink, target) {
        (SinkMode::Write, None) => return Err(CopyError::Meaning("nothing can be written here")),
        (SinkMode::Write, target) => target,
        _ => None,
    };
    let disks = means.disks.read();
    let watch = Watch::start(means, "disk write", None)?;
    let began = Instant::now();
    let held = target.map(|target| Held::new(target, false));
    let (over, bytes) = (AtomicBool::new(false), AtomicU64::new(0));
    let failure: Mutex<Option<CopyError>> = Mutex::new(None);
    let result = std::thread::scope(|scope| {
        for _ in 0..writers() {
            scope.spawn(|| {
                if let Err(error) = take_records(means, sink, held.as_ref(), &over, &bytes) {
                    *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                }
            });
        }
        let result = wait_for_end(means, &failure);
        over.store(true, Ordering::Release);
        result
    });
    result?;
    let flush = Instant::now();
    let mut flushed = true;
    if let Some(target) = target {
        let clock = means.ledger.stage("sync", Kind::Thread);
        let within = flush_time(began.elapsed());
        flushed = clock
            .device(|| target.flush(within))
            .map_err(|error| CopyError::Disk(format!("{}: {error}", means.path.display())))?;
    }
    let flush_s = flush.elapsed().as_secs_f64();
    let disks = means.disks.since(&disks);
    let judgement = watch.finish();
    Ok(Landed { bytes: bytes.into_inner(), flush_s, flushed, judgement, disks })
}

fn wait_for_end(means: &Means, failure: &Mutex<Option<CopyError>>) -> Result<(), CopyError> {
    let clock = means.ledger.stage("control", Kind::Thread);
    loop {
        match means.link.control_in.pop_within(LOOK, &clock) {
            Taken::Item(Message::Counters(json)) => match Word::parse(&json) {
                Some(Word::End) => return Ok(()),
                _ => return Err(means.unexpected(Message::Counters(json))),
            },
            Taken::Item(message) => return Err(means.unexpected(message)),
            Taken::End => return Err(means.gone()),
            Taken::TimedOut => {}
        }
        if let Some(error) = failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(error);
        }
    }
}

/// A thread that takes records, verifies and writes them.
fn take_records(
    means: &Means,
    sink: SinkMode,
    held: Option<&Held<'_>>,
    over: &AtomicBool,
    bytes: &AtomicU64,
) -> Result<(), CopyError> {
    let clock = means.ledger.stage("disk write", Kind::Thread);
    clock.adopt_thread();
    let mut pen = held.map(Pen::new);
    let disk = |error: std::io::Error| CopyError::Disk(format!("{}: {error}", means.path.display()));
    while !over.load(Ordering::Acquire) {
        let message = match means.link.data.pop_within(LOOK, &clock) {
            Taken::Item(message) => message,
            Taken::End => return Ok(()),
            Taken::TimedOut => continue,
        };
        let (sequence, hash, files, payload) = match message {
            Message::Pack(pack) => (pack.sequence, pack.hash, Some(pack.files), pack.payload),
            Message::Block(block) => (block.sequence, block.hash, None, block.payload),
            _ => return Err(CopyError::Meaning("a control message among the data")),
        };
        let content = payload.bytes();
        if sink != SinkMode::Drop && *blake3::hash(content).as_bytes() != hash {
            return Err(CopyError::Verification { path: "a record of the probe".to_owned() });
        }
        if let (Some(held), Some(pen)) = (held, &mut pen) {
            match &files {
                Some(files) => {
                    let mut rest = content;
                    for file in files {
                        let (content, behind) = rest.split_at((file.length as usize).min(rest.len()));
                        clock.device(|| held.small(content)).map_err(disk)?;
                        rest = behind;
                    }
                }
                None => clock.device(|| pen.write(content)).map_err(disk)?,
            }
        }
        let length = content.len() as u64;
        clock.add_items(files.map_or(1, |files| files.len() as u64), length);
        bytes.fetch_add(length, Ordering::Relaxed);
        means.link.pool.give(payload.into_buffer());
        let _ = means.link.control_out.push(Message::Acknowledge { sequence }, &clock);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steady_rate_leaves_slow_start_and_draining_out() {
        // A second of slow start, four at 100 a second, one of draining.
        let mut curve: Vec<(f64, u64)> =
            (0..=10).map(|step| (f64::from(step) / 10.0, u64::from(step as u32))).collect();
        curve.extend((1..=40).map(|step| (1.0 + f64::from(step) / 10.0, 10 + 10 * step as u64)));
        curve.push((6.0, 411));
        assert!((steady(&curve, 5.0) - 100.0).abs() < 1.0);
        assert!((steady(&[(0.0, 0), (0.01, 50)], 2.0) - 5000.0).abs() < 1.0);
        assert_eq!(steady(&[(0.0, 0)], 2.0), 0.0);
    }

    #[test]
    fn what_is_under_way_grows_with_acknowledgements_and_not_without_end() {
        let path = |streams| Path { streams, round_trip: Some(Duration::from_millis(175)), ..Path::default() };
        let allowance = Allowance::new(Some(&path(4)), 0);
        assert_eq!(allowance.record_bytes(), 32 << 10);
        for _ in 0..200 {
            allowance.grow(1 << 20, 8e6);
        }
        let allowed = allowance.allowed.load(Ordering::Relaxed);
        assert!((5_600_000..6_000_000).contains(&allowed), "{allowed}");
        assert!(allowance.window.try_acquire(5_600_000).is_some());
        assert!(allowance.window.try_acquire(6_500_000).is_none());
        // Many connections have a part each, and another one that waits.
        assert_eq!(Allowance::new(Some(&path(16)), 4 << 20).record_bytes(), 128 << 10);
        assert_eq!(Allowance::new(None, 0).record_bytes(), PACK_BYTES);
    }
}
