//! The thread that reads clocks and kernel counters ten times a second.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::cgroup::Cgroup;
use super::cpu::{self, Cores, Processes, TICK_NS};
use super::device::{Device, DiskStat};
use super::judge::Judge;
use super::opinion;
use super::record::{self, End, RecordSamples};
use super::sample::{CpuSample, DeviceSample, HostSample, Sample, StageSample, WindowSample};
use super::thresholds::FULL;
use super::{Limit, Verdict};
use crate::stage::{Ledger, LedgerReading, SendReading, StageReading, ThreadReading};

/// Time between samples, from the design.
const INTERVAL: Duration = Duration::from_millis(100);
/// Time between looks at the block device under the destination, which may be created only after the start of the run.
const DEVICE_LOOK: Duration = Duration::from_secs(1);
/// Time between scans of all processes, and the time for which others must fill the cores before the first scan. A scan
/// takes a few milliseconds.
const PROCESS_SCAN: Duration = Duration::from_secs(2);

/// What the sampler observes, and where it records samples.
#[derive(Debug)]
pub struct SamplerConfig {
    /// The destination, whose disk is watched. It need not exist yet.
    pub destination: Option<PathBuf>,
    /// Name of the role whose bytes count as delivered.
    pub delivery_stage: String,
    /// Where each sample is written as a line of JSON, for tuning the judge later.
    pub record: Record,
}

type Record = Option<Box<dyn RecordSamples>>;

impl Default for SamplerConfig {
    fn default() -> SamplerConfig {
        SamplerConfig { destination: None, delivery_stage: "disk write".to_owned(), record: None }
    }
}

/// Samples a run until it is finished.
#[derive(Debug)]
pub struct Sampler {
    ledger: Ledger,
    began: Instant,
    stop: mpsc::Sender<()>,
    thread: JoinHandle<(Judge, u64, Record)>,
    now: Arc<Mutex<String>>,
}

impl Sampler {
    /// Starts the sampler's thread.
    ///
    /// # Errors
    /// The system's error if the thread cannot be started.
    pub fn start(ledger: &Ledger, config: SamplerConfig) -> io::Result<Sampler> {
        let (stop, stopped) = mpsc::channel();
        let began = Instant::now();
        let mut eyes = Eyes::new(ledger.clone(), config, began);
        let now = Arc::new(Mutex::new(String::new()));
        let told = now.clone();
        let thread = std::thread::Builder::new().name("sampler".to_owned()).spawn(move || {
            let mut judge = Judge::default();
            while matches!(stopped.recv_timeout(INTERVAL), Err(RecvTimeoutError::Timeout)) {
                judge.push(eyes.sample());
                if let Ok(mut now) = told.lock() {
                    judge.present().clone_into(&mut now);
                }
            }
            judge.push(eyes.sample());
            (judge, eyes.delivered_bytes, eyes.config.record)
        })?;
        Ok(Sampler { ledger: ledger.clone(), began, stop, thread, now })
    }

    /// Present limit of the run, for progress; `None` while none can be named.
    pub fn present(&self) -> Option<String> {
        let now = self.now.lock().ok()?;
        (!now.is_empty()).then(|| now.clone())
    }

    /// Takes the last sample and judges. If the sampler's thread has died (a
    /// fault of this program), the verdict is `mixed` and says so.
    pub fn finish(self) -> Verdict {
        let wall = self.began.elapsed();
        drop(self.stop);
        let counters = self.ledger.reading();
        match self.thread.join() {
            Ok((judge, bytes, record)) => {
                if let Some(mut record) = record {
                    // A record without its end is still useful.
                    let _ = record::write(&mut *record, &End { counters: counters.clone(), bytes, wall });
                }
                let mut findings = judge.finish();
                findings.timeline.marks = self.ledger.marks();
                opinion::verdict(findings, counters, bytes, wall)
            }
            Err(_) => {
                let mut verdict = opinion::verdict(Judge::default().finish(), counters, 0, wall);
                verdict.limit = Limit::Mixed;
                verdict.reason = "the sampler failed".to_owned();
                verdict
            }
        }
    }
}

/// Reads all counters and remembers the last readings.
struct Eyes {
    ledger: Ledger,
    config: SamplerConfig,
    began: Instant,
    at: Duration,
    threads: HashMap<u64, ThreadReading>,
    tasks: HashMap<String, StageReading>,
    hosts: HashMap<String, u64>,
    exhausted_ns: u64,
    sending: SendReading,
    cores: Cores,
    cgroup: Cgroup,
    throttled_ns: u64,
    used_ns: u64,
    device: Device,
    device_looked: Option<Duration>,
    disks: HashMap<String, DiskStat>,
    /// Time for which the cores have been full of other processes' work.
    crowded: Duration,
    processes: Option<(Processes, Duration)>,
    delivered_bytes: u64,
}

impl Eyes {
    fn new(ledger: Ledger, config: SamplerConfig, began: Instant) -> Eyes {
        let cgroup = Cgroup::of_this_process();
        let mut eyes = Eyes {
            throttled_ns: cgroup.reading().throttled_ns,
            cgroup,
            used_ns: cpu::used_ns(),
            ledger,
            config,
            began,
            at: Duration::ZERO,
            threads: HashMap::new(),
            tasks: HashMap::new(),
            hosts: HashMap::new(),
            exhausted_ns: 0,
            sending: SendReading::default(),
            cores: cpu::cores(),
            device: Device::default(),
            device_looked: None,
            disks: HashMap::new(),
            crowded: Duration::ZERO,
            processes: None,
            delivered_bytes: 0,
        };
        // Counts of the ledger before the run do not belong to it.
        eyes.sample();
        eyes.at = Duration::ZERO;
        eyes.delivered_bytes = 0;
        eyes
    }

    fn sample(&mut self) -> Sample {
        let at = self.began.elapsed();
        let length = at.saturating_sub(self.at);
        self.at = at;
        let stages = self.stages();
        let reading = self.ledger.reading_without_stages();
        let delivered_bytes = stages
            .iter()
            .find(|stage| stage.name() == self.config.delivery_stage)
            .map_or(0, |stage| stage.tasks.bytes + stage.threads.iter().map(|thread| thread.bytes).sum::<u64>());
        self.delivered_bytes += delivered_bytes;
        let sending = reading.sending.since(&self.sending);
        self.sending = reading.sending;
        let sample = Sample {
            at,
            length,
            window: self.window(&reading, length),
            cpu: self.cpu(&stages, length),
            device: self.device(at, length),
            hosts: self.hosts(&reading),
            stages,
            sending,
            delivered_bytes,
            rate_limit_bytes_per_s: self.ledger.rate_limit(),
        };
        self.record(&sample);
        sample
    }

    /// Stops recording if a sample cannot be written; the run continues.
    fn record(&mut self, sample: &Sample) {
        let Some(record) = &mut self.config.record else {
            return;
        };
        if record::write(&mut **record, sample).is_err() {
            self.config.record = None;
        }
    }

    fn stages(&mut self) -> Vec<StageSample> {
        let mut samples = Vec::new();
        for clock in self.ledger.stages() {
            let now = clock.task_reading();
            let highest = self
                .tasks
                .entry(clock.name().to_owned())
                .or_insert_with(|| StageReading::new(clock.name(), clock.kind()));
            let tasks = now.since(highest);
            highest.highest(&now);
            let mut threads = Vec::new();
            for now in clock.thread_readings() {
                let highest = self.threads.entry(now.slot).or_default();
                let since = now.since(highest);
                highest.highest(&now);
                if now.ended {
                    self.threads.remove(&now.slot);
                }
                threads.push(since);
            }
            samples.push(StageSample { tasks, threads });
        }
        samples
    }

    fn window(&mut self, reading: &LedgerReading, length: Duration) -> WindowSample {
        let mut sample = WindowSample::default();
        let mut exhausted_ns = 0;
        for window in &reading.windows {
            sample.bytes += window.bytes;
            sample.items += u64::from(window.items);
            sample.positions += window.positions;
            exhausted_ns += window.exhausted_ns;
        }
        sample.held_byte_seconds = sample.positions.total() as f64 * length.as_secs_f64();
        sample.exhausted_ns = exhausted_ns.saturating_sub(self.exhausted_ns);
        self.exhausted_ns = self.exhausted_ns.max(exhausted_ns);
        sample
    }

    fn hosts(&mut self, reading: &LedgerReading) -> Vec<HostSample> {
        let mut samples = Vec::new();
        for host in &reading.hosts {
            let before = self.hosts.insert(host.name.clone(), host.bytes).unwrap_or(0);
            samples.push(HostSample {
                name: host.name.clone(),
                bytes: host.bytes.saturating_sub(before),
                connections: host.connections,
                round_trip_us: host.round_trip_us,
                capped: host.capped,
            });
        }
        samples
    }

    fn cpu(&mut self, stages: &[StageSample], length: Duration) -> CpuSample {
        let cores = cpu::cores();
        let cgroup = self.cgroup.reading();
        let ticks_ns = |now: u64, before: u64| now.saturating_sub(before).saturating_mul(TICK_NS);
        let busy_ns = ticks_ns(cores.busy_ticks, self.cores.busy_ticks);
        let steal_ns = ticks_ns(cores.steal_ticks, self.cores.steal_ticks);
        let throttled_ns = cgroup.throttled_ns.saturating_sub(self.throttled_ns);
        self.cores = cores;
        self.throttled_ns = cgroup.throttled_ns;
        let quota_ns = (cgroup.quota_cores.unwrap_or(0.0) * length.as_nanos() as f64) as u64;
        let now_ns = cpu::used_ns();
        let used_ns = now_ns.saturating_sub(self.used_ns);
        self.used_ns = now_ns;
        let count = f64::from(cores.count.max(1));
        let ours_ns: u64 = stages.iter().flat_map(|stage| &stage.threads).map(|thread| thread.compute_ns).sum();
        // Full cores that others use most of are worth a scan.
        let full = busy_ns as f64 >= FULL * count * length.as_nanos() as f64;
        let others = busy_ns.saturating_sub(ours_ns) > ours_ns;
        self.crowded = if full && others { self.crowded + length } else { Duration::ZERO };
        let hog = if self.crowded >= PROCESS_SCAN { self.largest_process() } else { None };
        // The quota is not part of the cores, because `/proc/stat` counts what others use beyond it. Being held back
        // shows as throttled time.
        CpuSample { allowed_cores: count, busy_ns, steal_ns, throttled_ns, quota_ns, used_ns, hog }
    }

    fn largest_process(&mut self) -> Option<(String, f64)> {
        let Some((processes, scanned)) = &mut self.processes else {
            let mut processes = Processes::default();
            processes.scan();
            self.processes = Some((processes, self.at));
            return None;
        };
        let passed = self.at.saturating_sub(*scanned);
        if passed < PROCESS_SCAN {
            return None;
        }
        *scanned = self.at;
        let (name, ticks) = processes.scan()?;
        Some((name, (ticks * TICK_NS) as f64 / passed.as_nanos() as f64))
    }

    fn device(&mut self, at: Duration, length: Duration) -> Option<DeviceSample> {
        let destination = self.config.destination.as_deref()?;
        let due = self.device_looked.is_none_or(|looked| at.saturating_sub(looked) >= DEVICE_LOOK);
        if due && !self.device.is_known() {
            self.device = Device::under(nearest_existing(destination));
            self.device_looked = Some(at);
        }
        let mut busiest: Option<DeviceSample> = None;
        for (name, stat) in self.device.reading() {
            let Some(before) = self.disks.insert(name.clone(), stat) else {
                continue;
            };
            let busy_ms = stat.busy_ms.saturating_sub(before.busy_ms);
            // The kernel counts whole ticks, so the busy time may slightly exceed the elapsed time.
            let busy_ns = busy_ms.saturating_mul(1_000_000).min(length.as_nanos() as u64);
            let written_bytes = stat.written_bytes.saturating_sub(before.written_bytes);
            if busiest.as_ref().is_none_or(|known| busy_ns > known.busy_ns) {
                busiest = Some(DeviceSample { name, busy_ns, written_bytes });
            }
        }
        busiest
    }
}

fn nearest_existing(path: &Path) -> &Path {
    path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::stage::Kind;
    use crate::verdict::judge_record;

    #[test]
    fn a_real_run_is_sampled_from_start_to_end_and_recorded() {
        #[derive(Clone, Debug, Default)]
        struct Lines(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);
        impl Write for Lines {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().expect("no panic holds it").extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let ledger = Ledger::new();
        let clock = ledger.stage("disk write", Kind::Thread);
        clock.add_items(1, 1_000_000); // before the run: not its own
        let lines = Lines::default();
        let config = SamplerConfig {
            destination: Some(PathBuf::from("/no/such/directory/yet")),
            record: Some(Box::new(lines.clone())),
            ..SamplerConfig::default()
        };
        let sampled = || lines.0.lock().expect("no panic holds it").iter().filter(|byte| **byte == b'\n').count();
        let sampler = Sampler::start(&ledger, config).expect("a thread");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                clock.adopt_thread();
                clock.device(|| {
                    let begun = Instant::now();
                    // A sampler that does not get a core in time has not seen enough of it yet.
                    let seen = || begun.elapsed() >= Duration::from_millis(700) && sampled() > 5;
                    while !seen() && begun.elapsed() < Duration::from_secs(60) {
                        std::thread::sleep(INTERVAL);
                    }
                });
                clock.add_items(1, 5000);
            });
        });
        let verdict = sampler.finish();
        assert_eq!(verdict.bytes, 5000);
        assert!(verdict.wall >= Duration::from_millis(700));
        let covered: f64 = verdict.timeline.points.iter().map(|point| point.length_s).sum();
        assert!((covered - verdict.wall.as_secs_f64()).abs() < 0.5, "{covered} of {:?}", verdict.wall);
        // A machine crowded by other work may hide it; it is never taken for something else.
        assert!(matches!(verdict.limit, Limit::Disk | Limit::Mixed | Limit::Cpu { .. }), "{verdict}");
        assert!(sampled() > 5);
        let text = lines.0.lock().expect("no panic holds it").clone();
        let again = judge_record(&text[..]).expect("a record");
        // The record has rounded times, so that the words may differ in their last digit.
        assert_eq!((again.limit, again.bytes), (verdict.limit, 5000));
    }

    #[test]
    fn a_tiny_run_has_a_verdict() {
        let ledger = Ledger::new();
        let verdict = Sampler::start(&ledger, SamplerConfig::default()).expect("a thread").finish();
        assert!(verdict.wall < Duration::from_secs(5), "{verdict}");
        assert_eq!(verdict.limit, Limit::Mixed, "nobody was asked");
    }

    #[test]
    fn a_look_is_cheap() {
        let ledger = Ledger::new();
        ledger.stage("hash", Kind::Thread).adopt_thread();
        let config = SamplerConfig { destination: Some(PathBuf::from("/")), ..SamplerConfig::default() };
        let mut eyes = Eyes::new(ledger, config, Instant::now());
        let before = cpu::own_schedstat().compute_ns;
        for _ in 0..20 {
            eyes.sample();
        }
        let each_us = (cpu::own_schedstat().compute_ns - before) / 20_000;
        // Ten a second; a debug build on a crowded machine is allowed ten times the usual.
        assert!(each_us < 10_000, "{each_us} microseconds");
        println!("{each_us} microseconds a look");
    }
}
