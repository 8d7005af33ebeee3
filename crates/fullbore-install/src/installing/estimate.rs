//! Progress of a run of `bootstrap` or `install` over all phases: the percentage of its time, and the time left.
//!
//! The time left for each part is the number of remaining units times the cost of a unit. At first that cost is a
//! constant of this module; later the cost that this run measures counts more and more. [`RunEstimate`] uses no clock
//! and no files; [`RunEvents`](super::run_events::RunEvents) updates it.

use std::time::{Duration, Instant};

use fullbore_engine::run::events::{Phase, Progress};

/// Seconds to fetch a byte, until a rate is measured. A guess: a line of 100 Mb/s.
const FETCH_S_PER_BYTE: f64 = 1.0 / 12e6;
/// Seconds to unpack a byte of a package file. Measured: 1.2 s for the 37 MB of `bench/install plain-minbase`.
const UNPACK_S_PER_BYTE: f64 = 1.0 / 30e6;
/// Seconds to configure a package, its scripts and apt's own time included. Measured: 3.4 s for 96 packages
/// (`bench/install plain-minbase`) and 17.5 s for 485 (`plain-large`).
const CONFIGURE_S_PER_PACKAGE: f64 = 0.036;
/// Seconds to pack a byte of a root. A guess: tar without compression on one core; the cost of a compressor is
/// measured soon.
const PACK_S_PER_BYTE: f64 = 1.0 / 150e6;
/// Bytes of a root for each byte of its package files, until they are counted. A guess.
const UNPACKED_PER_PACKED: f64 = 3.5;
/// Seconds to sync the files that came from a byte of a package file. Measured: 0.19 s for 37 MB (`bench/install
/// plain-minbase`).
const SYNC_S_PER_BYTE: f64 = 1.0 / 200e6;

/// Share of a part's units for which its initial cost counts as if it had been measured. A guess: a quarter, so that
/// one slow script at the beginning does not multiply the time left.
const TRUST: f64 = 0.25;

/// Highest percentage of a run that has not ended.
const PERCENT_MAX: u64 = 99;

/// The total amounts of a run, from apt's plan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Expected {
    /// Bytes of the package files.
    pub bytes: u64,
    /// Packages to configure.
    pub packages: u64,
    /// Number of these that are configured during the download of the others.
    pub first_packages: u64,
    /// Whether the root is packed into an archive at the end; otherwise it is synced.
    pub becomes_archive: bool,
}

/// The estimate of a part of the run.
#[derive(Debug, Clone, Copy, Default)]
struct Estimate {
    total: f64,
    done: f64,
    spent_s: f64,
    s_per_unit: f64,
}

impl Estimate {
    fn of(total: f64, s_per_unit: f64) -> Estimate {
        Estimate { total, s_per_unit, ..Estimate::default() }
    }

    fn left_s(&self) -> f64 {
        let trusted = self.total * TRUST;
        if self.done <= 0.0 {
            // No unit is done yet, so no cost is measured.
            return (self.total * self.s_per_unit - self.spent_s).max(0.0);
        }
        let to_go = (self.total - self.done).max(0.0);
        to_go * (self.spent_s + trusted * self.s_per_unit) / (self.done + trusted)
    }

    fn share(&self) -> f64 {
        if self.total > 0.0 { (self.done / self.total).min(1.0) } else { 0.0 }
    }
}

/// The estimate of the whole run.
#[derive(Debug, Clone)]
pub(crate) struct RunEstimate {
    began: Instant,
    updated: Instant,
    phase: Phase,
    expected: Option<Expected>,
    /// Progress of the download.
    fetch: Progress,
    unpack: Estimate,
    configure: Estimate,
    pack: Estimate,
    sync: Estimate,
    /// The last percentage, which never decreases.
    percent: u64,
}

impl RunEstimate {
    /// Estimate of a run that begins now.
    pub(crate) fn new(now: Instant) -> RunEstimate {
        let none = Estimate::default();
        RunEstimate {
            began: now,
            updated: now,
            phase: Phase::Resolve,
            expected: None,
            fetch: Progress::default(),
            unpack: none,
            configure: none,
            pack: none,
            sync: none,
            percent: 0,
        }
    }

    /// Starts the next phase.
    pub(crate) fn turn(&mut self, phase: Phase, now: Instant) {
        self.spend(now);
        self.phase = phase;
    }

    /// The current phase.
    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// Sets the total amounts, once they are known.
    pub(crate) fn expect(&mut self, expected: Expected) {
        let bytes = expected.bytes as f64;
        self.unpack =
            Estimate { spent_s: self.unpack.spent_s, done: self.unpack.done, ..Estimate::of(bytes, UNPACK_S_PER_BYTE) };
        let configure = Estimate::of(expected.packages as f64, CONFIGURE_S_PER_PACKAGE);
        self.configure = Estimate { spent_s: self.configure.spent_s, done: self.configure.done, ..configure };
        let (pack, sync) = if expected.becomes_archive { (bytes * UNPACKED_PER_PACKED, 0.0) } else { (0.0, bytes) };
        self.pack = Estimate::of(pack, PACK_S_PER_BYTE);
        self.sync = Estimate::of(sync, SYNC_S_PER_BYTE);
        self.expected = Some(expected);
    }

    /// Sets the progress of the download.
    pub(crate) fn fetched(&mut self, progress: Progress) {
        self.fetch = progress;
    }

    /// Notes that the run waits for no download at the moment.
    pub(crate) fn fetch_rests(&mut self) {
        (self.fetch.rate_bytes_per_s, self.fetch.limit, self.fetch.silent_s) = (0, None, None);
    }

    /// Adds `bytes` of unpacked package files.
    pub(crate) fn unpacked(&mut self, bytes: u64) {
        self.unpack.done = bytes as f64;
    }

    /// Sets the number of configured packages.
    pub(crate) fn configured(&mut self, packages: u64) {
        self.configure.done = packages as f64;
    }

    /// Sets the bytes of the root that are packed, and the total.
    pub(crate) fn packed(&mut self, bytes: u64, total_bytes: u64) {
        (self.pack.done, self.pack.total) = (bytes as f64, total_bytes as f64);
    }

    /// Percentage and remaining time at `now`.
    pub(crate) fn progress(&mut self, now: Instant) -> Progress {
        self.spend(now);
        let left_s = self.expected.map(|expected| self.left_s(expected));
        if let Some(left_s) = left_s {
            let spent_s = now.saturating_duration_since(self.began).as_secs_f64();
            let percent = 100.0 * spent_s / (spent_s + left_s).max(f64::MIN_POSITIVE);
            self.percent = self.percent.max((percent as u64).min(PERCENT_MAX));
        }
        let packages = self.expected.filter(|expected| expected.packages > 0);
        Progress {
            percent: Some(self.percent),
            eta_s: left_s.map(|left_s| left_s.ceil() as u64),
            packages: packages.map(|expected| (self.configure.done as u64).min(expected.packages)),
            total_packages: packages.map(|expected| expected.packages),
            ..self.fetch.clone()
        }
    }

    fn spend(&mut self, now: Instant) {
        let seconds = now.saturating_duration_since(self.updated).as_secs_f64();
        self.updated = now;
        let work = match self.phase {
            Phase::Unpack => &mut self.unpack,
            Phase::Configure => &mut self.configure,
            Phase::Pack => &mut self.pack,
            Phase::Sync => &mut self.sync,
            _ => return,
        };
        work.spent_s += seconds;
    }

    fn left_s(&self, expected: Expected) -> f64 {
        let last = self.pack.left_s() + self.sync.left_s();
        if matches!(self.phase, Phase::Clean | Phase::Pack | Phase::Sync) {
            return last;
        }
        // dpkg may unpack some packages, which fullbore does not count. But a configured package was unpacked.
        let unpack = Estimate { done: self.unpack.done.max(self.unpack.total * self.configure.share()), ..self.unpack };
        let left = unpack.left_s() + self.configure.left_s();
        // Only the time beyond the download counts. All packages count the same: their separate sizes are not known.
        let first = expected.first_packages as f64 / (expected.packages as f64).max(1.0);
        let whole = left + unpack.spent_s + self.configure.spent_s;
        let before_rest = (left - whole * (1.0 - first)).max(0.0);
        (self.fetch_left_s() - before_rest).max(0.0) + left + last
    }

    fn fetch_left_s(&self) -> f64 {
        let to_go = self.fetch.total_bytes.saturating_sub(self.fetch.bytes) as f64;
        match self.fetch.rate_bytes_per_s {
            0 => to_go * FETCH_S_PER_BYTE,
            rate => to_go / rate as f64,
        }
    }
}

/// Interval between progress events of all phases while no download reports progress.
pub(crate) const TELL_EVERY: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    fn fetching(bytes: u64, total_bytes: u64, rate_bytes_per_s: u64) -> Progress {
        Progress { bytes, total_bytes, rate_bytes_per_s, ..Progress::default() }
    }

    /// A run as `bench/install plain-minbase` has them: 96 packages of 37 MB, 6 seconds.
    fn minbase() -> (RunEstimate, Instant) {
        let began = Instant::now();
        (RunEstimate::new(began), began)
    }

    #[test]
    fn nothing_is_said_of_the_time_left_before_apt_has_decided() {
        let (mut estimate, began) = minbase();
        estimate.turn(Phase::Indexes, began);
        estimate.fetched(fetching(5, 10, 5));
        let progress = estimate.progress(began + Duration::from_secs(1));
        assert_eq!((progress.percent, progress.eta_s, progress.total_packages), (Some(0), None, None));
    }

    #[test]
    fn when_all_is_fetched_the_rest_of_the_run_is_still_to_come() {
        let (mut estimate, began) = minbase();
        let at = |ms| began + Duration::from_millis(ms);
        estimate.expect(Expected { bytes: 37 * MB, packages: 96, first_packages: 24, becomes_archive: false });
        estimate.turn(Phase::Fetch, at(1100));
        estimate.fetched(fetching(37 * MB, 37 * MB, 300 * MB));
        let progress = estimate.progress(at(1200));
        assert!((10..30).contains(&progress.percent.unwrap()), "{progress:?}");
        assert!((4..8).contains(&progress.eta_s.unwrap()), "{progress:?}");
        estimate.turn(Phase::Unpack, at(1200));
        estimate.unpacked(37 * MB);
        estimate.turn(Phase::Configure, at(2400));
        estimate.configured(48);
        let progress = estimate.progress(at(4100));
        assert_eq!((progress.packages, progress.total_packages), (Some(48), Some(96)));
        assert!(
            (60..80).contains(&progress.percent.unwrap()) && (1..4).contains(&progress.eta_s.unwrap()),
            "{progress:?}"
        );
        estimate.turn(Phase::Sync, at(5800));
        let progress = estimate.progress(at(5900));
        assert!(progress.percent.unwrap() > 95 && progress.eta_s.unwrap() <= 1, "{progress:?}");
    }

    #[test]
    fn what_this_run_takes_replaces_the_first_figure() {
        let (mut estimate, began) = minbase();
        estimate.expect(Expected { bytes: MB, packages: 100, first_packages: 0, becomes_archive: false });
        estimate.unpacked(MB);
        estimate.turn(Phase::Configure, began);
        // A second for each, not 36 ms.
        estimate.configured(50);
        let progress = estimate.progress(began + Duration::from_secs(50));
        assert!((30..=50).contains(&progress.eta_s.unwrap()), "{progress:?}");
    }

    #[test]
    fn the_percentage_does_not_go_back_and_ends_before_100() {
        let (mut estimate, began) = minbase();
        estimate.expect(Expected { bytes: MB, packages: 10, first_packages: 0, becomes_archive: true });
        estimate.turn(Phase::Configure, began);
        estimate.configured(9);
        let before = estimate.progress(began + Duration::from_secs(1)).percent.unwrap();
        let later = estimate.progress(began + Duration::from_secs(100));
        assert!(later.percent.unwrap() >= before && later.percent.unwrap() <= 99, "{later:?}");
        estimate.turn(Phase::Pack, began + Duration::from_secs(100));
        estimate.packed(10 * MB, 10 * MB);
        assert_eq!(estimate.progress(began + Duration::from_secs(100_000)).percent, Some(99));
    }

    #[test]
    fn a_slow_download_is_waited_for_and_one_beside_other_work_is_not() {
        let (mut estimate, began) = minbase();
        let expected = Expected { bytes: 40 * MB, packages: 100, first_packages: 50, becomes_archive: false };
        estimate.expect(expected);
        estimate.turn(Phase::Fetch, began);
        estimate.fetched(fetching(0, 40 * MB, MB));
        let slow = estimate.progress(began + Duration::from_secs(1)).eta_s.unwrap();
        assert!((40..46).contains(&slow), "{slow}");
        estimate.fetched(fetching(20 * MB, 40 * MB, 40 * MB));
        let fast = estimate.progress(began + Duration::from_secs(1)).eta_s.unwrap();
        estimate.expect(Expected { first_packages: 0, ..expected });
        let alone = estimate.progress(began + Duration::from_secs(1)).eta_s.unwrap();
        assert!(fast <= alone && alone <= fast + 1, "{fast} {alone}");
    }
}
