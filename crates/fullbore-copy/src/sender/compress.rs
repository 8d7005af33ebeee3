//! Compresses records, if a trial on this link shows that it pays.
//!
//! Whether compression pays is tried, not computed. While the path is the limit (records wait for it), a moment without
//! compression is followed by one with it. The faster one is kept for a while. The trial fails on a link that is faster
//! than zstd, on incompressible content, and if the other end's disk is the limit. The pause between trials then grows.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The zstd level. Level 1 is as fast here as the negative ones, and compresses better; level 3 is a fifth slower.
const LEVEL: i32 = 1;
/// Bytes of a record that are compressed as a sample: a few percent of the record's cost.
const SAMPLE_BYTES: usize = 16 << 10;
/// Largest ratio of a sample's compressed size at which the record is compressed.
pub(crate) const WORTH: f64 = 0.85;
/// Least duration of each half of a trial, and least bytes to be acknowledged in it.
const TRIAL: Duration = Duration::from_millis(600);
const TRIAL_BYTES: u64 = 4 << 20;
/// Longest duration of half a trial. If too little is acknowledged by then, the trial has no result.
const LONGEST_TRIAL: Duration = Duration::from_secs(5);
/// Least speed-up at which compression is used. Less may be chance.
pub(crate) const GAIN: f64 = 1.1;
/// Rate per core above which there is nothing to gain: zstd 1 takes 0.5 GB/s on a core that does nothing else
/// (measured).
const FAST_BYTES_PER_S: f64 = 150e6;
/// Time from the first record to the first trial. A shorter copy gains nothing by a trial, and a longer one loses
/// nothing by a late one.
const FIRST_AFTER: Duration = Duration::from_secs(2);
/// Least share of records that wait for the path; below it the path is not the limit.
pub(crate) const WAITING: f64 = 0.8;
/// Pauses after a failed trial, doubled each time up to the longest, and after a successful one.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(120);
const KEPT_FOR: Duration = Duration::from_secs(30);

/// When the sender compresses content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compress {
    /// If a trial shows that it pays.
    #[default]
    Auto,
    /// Whenever content gets smaller.
    Always,
    /// Not at all.
    Never,
}

/// Decides whether records are compressed now. Shared by all readers.
#[derive(Debug)]
pub(crate) struct Pays {
    mode: Compress,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// Start of the phase, and bytes acknowledged by then.
    since: Option<(Instant, u64)>,
    pause: Duration,
    /// Records of this phase, and how many of them waited for the path.
    records: (u32, u32),
    /// Rate above which compression is not tried, in bytes per second.
    fast_bytes_per_s: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// No compression. The next trial comes at this time; `None` before the first record.
    Off { until: Option<Instant> },
    /// No compression; the plain rate is being measured.
    Plain,
    /// Compression on trial, against this plain rate in bytes per second.
    Trial { plain: f64 },
    /// Compression paid; the next trial comes at this time.
    On { until: Instant },
}

impl Pays {
    pub(crate) fn new(mode: Compress) -> Pays {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let state = State {
            phase: Phase::Off { until: None },
            since: None,
            pause: FIRST_PAUSE,
            records: (0, 0),
            fast_bytes_per_s: FAST_BYTES_PER_S * cores as f64,
        };
        Pays { mode, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether to compress the next record. `waiting`: records wait for the path; `acknowledged_bytes`: total content
    /// acknowledged so far.
    pub(crate) fn try_now(&self, waiting: bool, acknowledged_bytes: u64, now: Instant) -> bool {
        match self.mode {
            Compress::Auto => self.lock().step(waiting, acknowledged_bytes, now),
            mode => mode == Compress::Always,
        }
    }
}

impl State {
    fn step(&mut self, waiting: bool, bytes: u64, now: Instant) -> bool {
        self.records.0 += 1;
        self.records.1 += u32::from(waiting);
        match self.phase {
            Phase::Off { until } => {
                let until = until.unwrap_or(now + FIRST_AFTER);
                self.phase = Phase::Off { until: Some(until) };
                if waiting && now >= until {
                    self.enter(Phase::Plain, bytes, now);
                }
                false
            }
            Phase::Plain => {
                if let Some(plain) = self.rate(bytes, now) {
                    let limits = f64::from(self.records.1) >= WAITING * f64::from(self.records.0);
                    if limits && plain < self.fast_bytes_per_s {
                        self.enter(Phase::Trial { plain }, bytes, now);
                    } else {
                        self.lose(now);
                    }
                }
                false
            }
            Phase::Trial { plain } => {
                if let Some(rate) = self.rate(bytes, now) {
                    if rate >= GAIN * plain {
                        self.pause = FIRST_PAUSE;
                        self.phase = Phase::On { until: now + KEPT_FOR };
                    } else {
                        self.lose(now);
                    }
                }
                true
            }
            Phase::On { until } => {
                if now >= until {
                    self.enter(Phase::Plain, bytes, now);
                }
                true
            }
        }
    }

    fn enter(&mut self, phase: Phase, bytes: u64, now: Instant) {
        (self.phase, self.since, self.records) = (phase, Some((now, bytes)), (0, 0));
    }

    fn lose(&mut self, now: Instant) {
        self.phase = Phase::Off { until: Some(now + self.pause) };
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    /// Rate of this phase in bytes per second, once it is known.
    fn rate(&self, bytes: u64, now: Instant) -> Option<f64> {
        let (since, before) = self.since?;
        let (time, moved) = (now.saturating_duration_since(since), bytes.saturating_sub(before));
        let enough = time >= TRIAL && moved >= TRIAL_BYTES || time >= LONGEST_TRIAL;
        enough.then(|| moved as f64 / time.as_secs_f64())
    }
}

/// Compresses records; each reader has its own.
#[derive(Default)]
pub(super) struct Compressor {
    zstd: Option<zstd::bulk::Compressor<'static>>,
    sample: Vec<u8>,
}

impl Compressor {
    /// Compresses content into this memory. Returns the memory as an error if the content does not get smaller.
    pub(super) fn compress(&mut self, content: &[u8], mut into: Vec<u8>) -> Result<Vec<u8>, Vec<u8>> {
        if self.zstd.is_none() {
            self.zstd = zstd::bulk::Compressor::new(LEVEL).ok();
        }
        let Some(zstd) = &mut self.zstd else { return Err(into) };
        let mut fits = |content: &[u8], into: &mut Vec<u8>| {
            into.clear();
            into.reserve(zstd::zstd_safe::compress_bound(content.len()));
            zstd.compress_to_buffer(content, into).is_ok_and(|length| (length as f64) < WORTH * content.len() as f64)
        };
        let middle = content.len().saturating_sub(SAMPLE_BYTES) / 2;
        let sample = &content[middle..content.len().min(middle + SAMPLE_BYTES)];
        if content.len() > 4 * SAMPLE_BYTES && !fits(sample, &mut self.sample) {
            return Err(into);
        }
        if fits(content, &mut into) { Ok(into) } else { Err(into) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets content come through at these rates without and with compression, in bytes per second, for so
    /// many seconds; gives the share of the time in which it was compressed.
    fn run(plain: f64, compressed: f64, seconds: u64) -> f64 {
        let pays = Pays::new(Compress::Auto);
        let began = Instant::now();
        let (mut bytes, mut on) = (0.0, 0_u32);
        let steps = seconds * 100;
        for step in 0..steps {
            let now = began + Duration::from_millis(10 * step);
            let compresses = pays.try_now(true, bytes as u64, now);
            bytes += if compresses { compressed } else { plain } / 100.0;
            on += u32::from(compresses);
        }
        f64::from(on) / steps as f64
    }

    #[test]
    fn what_a_trial_shows_to_be_faster_is_kept() {
        assert!(run(20e6, 80e6, 120) > 0.9);
        assert!(run(20e6, 80e6, 2) == 0.0, "a short copy is not tried");
        assert!(run(500e6, 300e6, 120) < 0.1);
        assert!(run(100e6, 104e6, 120) < 0.1, "no gain is no reason");
        assert!(run(0.5e6, 2e6, 300) > 0.8, "slow links are tried for longer");
    }

    #[test]
    fn a_way_that_keeps_up_is_never_tried() {
        let pays = Pays::new(Compress::Auto);
        let began = Instant::now();
        assert!(!(0..1000).any(|step| pays.try_now(false, step << 20, began + Duration::from_millis(10 * step))));
        assert!(Pays::new(Compress::Always).try_now(false, 0, began));
        assert!(!Pays::new(Compress::Never).try_now(true, 0, began));
    }

    #[test]
    fn only_what_gets_smaller_is_compressed() {
        let mut compressor = Compressor::default();
        let text = b"all work and no play ".repeat(20_000);
        let smaller = compressor.compress(&text, Vec::new()).unwrap();
        assert!(smaller.len() < text.len() / 10);
        assert_eq!(zstd::bulk::decompress(&smaller, text.len()).unwrap(), text);
        let mut noise = vec![0; 300_000];
        blake3::Hasher::new().finalize_xof().fill(&mut noise);
        assert!(compressor.compress(&noise, Vec::new()).is_err());
        assert!(compressor.compress(b"short", Vec::new()).is_err());
    }
}
