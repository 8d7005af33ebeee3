//! The events of a run, with progress over all phases.
//!
//! Progress of a download is extended to progress of the whole run. While no download reports progress, a thread
//! observes unpacking, dpkg and packing.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Instant;

use fullbore_engine::run::error::CommandError;
use fullbore_engine::run::events::{Event, Events, Phase, Progress};

use super::estimate::{Expected, RunEstimate, TELL_EVERY};

/// Bytes of dpkg's log that are read at once. A guess: more than dpkg writes in a second.
const LOG_BYTES_AT_ONCE: usize = 256 << 10;

/// The progress of a run; each step updates it.
#[derive(Debug)]
pub struct RunProgress {
    state: Mutex<State>,
    /// Unpacked bytes of package files.
    pub unpacked_bytes: Arc<AtomicU64>,
    /// Packed bytes of the root.
    pub packed_bytes: AtomicU64,
}

#[derive(Debug)]
struct State {
    estimate: RunEstimate,
    last_emitted: Instant,
    log: Option<DpkgLog>,
    /// Bytes of a root to pack; 0 before packing.
    root_bytes: u64,
}

impl RunProgress {
    fn new() -> RunProgress {
        let now = Instant::now();
        let state = State { estimate: RunEstimate::new(now), last_emitted: now, log: None, root_bytes: 0 };
        RunProgress { state: Mutex::new(state), unpacked_bytes: Arc::default(), packed_bytes: AtomicU64::new(0) }
    }

    /// Sets the total amounts, once they are known.
    pub fn expect(&self, expected: Expected) {
        self.state().estimate.expect(expected);
    }

    /// Counts configured packages by new lines in this log of dpkg.
    pub fn count_in(&self, dpkgs_log: Option<PathBuf>) {
        let mut state = self.state();
        if state.log.is_none() {
            state.log = dpkgs_log.map(DpkgLog::from_end);
        }
    }

    /// Sets the size of the root to pack.
    pub fn root_has(&self, bytes: u64) {
        self.state().root_bytes = bytes;
    }

    /// Resets everything, because the run starts over.
    pub fn begin_anew(&self) {
        let mut state = self.state();
        (state.estimate, state.log) = (RunEstimate::new(Instant::now()), None);
        self.unpacked_bytes.store(0, Ordering::Relaxed);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates from the counters.
    fn refresh(&self, state: &mut State) -> Progress {
        let now = Instant::now();
        if let Some(log) = &mut state.log {
            state.estimate.configured(log.configured());
        }
        state.estimate.unpacked(self.unpacked_bytes.load(Ordering::Relaxed));
        if state.root_bytes > 0 {
            state.estimate.packed(self.packed_bytes.load(Ordering::Relaxed), state.root_bytes);
        }
        state.last_emitted = now;
        state.estimate.progress(now)
    }

    /// Converts progress of a download to progress of the whole run.
    fn completed(&self, of_download: Progress) -> Progress {
        let mut state = self.state();
        if state.estimate.phase() == Phase::Indexes {
            // The total amounts are not known yet.
            let percent = self.refresh(&mut state).percent;
            return Progress { percent, eta_s: None, ..of_download };
        }
        state.estimate.fetched(of_download);
        self.refresh(&mut state)
    }

    /// Progress of the run; `None` if a download reported it recently, or only the phase is known.
    fn beside_downloads(&self) -> Option<Progress> {
        let mut state = self.state();
        // A little more than the interval of a download's progress.
        if state.last_emitted.elapsed() < TELL_EVERY + TELL_EVERY / 4 {
            return None;
        }
        state.estimate.fetch_rests();
        Some(self.refresh(&mut state)).filter(|progress| progress.eta_s.is_some())
    }
}

/// Events of the run, from any thread.
pub struct RunEvents<'a> {
    events: Mutex<&'a mut dyn Events>,
    run_progress: Arc<RunProgress>,
}

impl<'a> RunEvents<'a> {
    /// Events of a run that begins now.
    pub fn new(events: &'a mut dyn Events) -> RunEvents<'a> {
        RunEvents { events: Mutex::new(events), run_progress: Arc::new(RunProgress::new()) }
    }

    /// The progress of the run.
    pub fn run_progress(&self) -> Arc<RunProgress> {
        self.run_progress.clone()
    }

    /// Calls `run`, and reports progress meanwhile.
    pub fn tell_during<R>(&self, run: impl FnOnce() -> R) -> R {
        std::thread::scope(|scope| {
            let (running, ended) = mpsc::channel::<()>();
            scope.spawn(move || {
                while ended.recv_timeout(TELL_EVERY) == Err(mpsc::RecvTimeoutError::Timeout) {
                    if let Some(progress) = self.run_progress.beside_downloads() {
                        self.events().emit(Event::Progress(progress));
                    }
                }
            });
            let result = run();
            drop(running);
            result
        })
    }

    fn events(&self) -> MutexGuard<'_, &'a mut dyn Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Events for &RunEvents<'_> {
    fn emit(&mut self, event: Event) {
        let event = match event {
            Event::Progress(progress) => Event::Progress(self.run_progress.completed(progress)),
            event => event,
        };
        if let Event::Phase { phase } = event {
            self.run_progress.state().estimate.turn(phase, Instant::now());
        }
        self.events().emit(event);
    }

    fn tell(&mut self, event: Event) -> Result<(), CommandError> {
        self.events().tell(event)
    }

    fn lend_terminal(&mut self, is_lent: bool) {
        self.events().lend_terminal(is_lent);
    }
}

/// dpkg's log, which has a line for each configured package (dpkg(1), `--log`).
#[derive(Debug)]
struct DpkgLog {
    path: PathBuf,
    at: u64,
    /// The beginning of a line whose end is not written yet.
    begun: Vec<u8>,
    /// Packages whose line was seen: processing triggers adds another line for a package.
    configured: HashSet<Vec<u8>>,
}

impl DpkgLog {
    fn from_end(path: PathBuf) -> DpkgLog {
        let at = path.metadata().map_or(0, |status| status.len());
        DpkgLog { path, at, begun: Vec::new(), configured: HashSet::new() }
    }

    /// Number of packages configured by now. If the log cannot be read, the number stays.
    fn configured(&mut self) -> u64 {
        let mut bytes = vec![0; LOG_BYTES_AT_ONCE];
        let count = File::open(&self.path).and_then(|file| file.read_at(&mut bytes, self.at)).unwrap_or(0);
        self.at += count as u64;
        self.begun.extend_from_slice(&bytes[..count]);
        let whole = self.begun.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        for line in self.begun[..whole].split(|byte| *byte == b'\n') {
            let mut words = line.split(|byte| *byte == b' ').skip(2);
            if (words.next(), words.next()) == (Some(b"status"), Some(b"installed"))
                && let Some(package) = words.next()
            {
                self.configured.insert(package.to_vec());
            }
        }
        self.begun.drain(..whole);
        // dpkg writes no line of this length.
        if self.begun.len() > LOG_BYTES_AT_ONCE {
            self.begun.clear();
        }
        self.configured.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn packages_are_counted_once_and_only_those_of_this_run() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dpkg.log");
        std::fs::write(&path, "2026-01-01 00:00:00 status installed old:amd64 1\n").unwrap();
        let mut log = DpkgLog::from_end(path.clone());
        assert_eq!(log.configured(), 0);
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(b"2026-01-01 00:00:01 status unpacked a:amd64 1\n2026-01-01 00:00:01 status instal").unwrap();
        assert_eq!(log.configured(), 0);
        file.write_all(b"led a:amd64 1\n2026-01-01 00:00:02 status installed b:all 1\n").unwrap();
        file.write_all(b"2026-01-01 00:00:03 status installed a:amd64 1\nnonsense\n\n").unwrap();
        assert_eq!(log.configured(), 2);
        assert_eq!(DpkgLog::from_end(directory.path().join("none")).configured(), 0);
    }

    #[test]
    fn a_download_that_is_over_is_not_the_whole_run() {
        let mut told = Vec::new();
        let mut events = |event: Event| told.push(event);
        let run_events = RunEvents::new(&mut events);
        let mut to = &run_events;
        let progress = || Progress { bytes: 10, total_bytes: 10, eta_s: Some(0), ..Progress::default() };
        to.emit(Event::Phase { phase: Phase::Indexes });
        to.emit(Event::Progress(progress()));
        run_events.run_progress().expect(Expected { bytes: 10_000_000, packages: 100, ..Expected::default() });
        to.emit(Event::Phase { phase: Phase::Fetch });
        to.emit(Event::Progress(progress()));
        to.emit(Event::Phase { phase: Phase::Configure });
        // Ticks of its own, as nobody else tells of progress.
        run_events.tell_during(|| std::thread::sleep(TELL_EVERY * 4));
        drop(run_events);
        let progress: Vec<&Progress> = told
            .iter()
            .filter_map(|event| match event {
                Event::Progress(progress) => Some(progress),
                _ => None,
            })
            .collect();
        assert!(progress.len() >= 3, "{told:?}");
        assert_eq!((progress[0].percent, progress[0].eta_s), (Some(0), None));
        for progress in &progress[1..] {
            assert!(progress.eta_s >= Some(2) && progress.percent < Some(60), "{progress:?}");
        }
    }
}
