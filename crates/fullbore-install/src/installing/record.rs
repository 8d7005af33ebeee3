//! The time report of a run of `bootstrap` or `install`, for events and the summary.

use std::path::{Path, PathBuf};
use std::time::Duration;

use fullbore_engine::run::events::{Event, Events, Phase};
use fullbore_engine::run::report::{PackageTotals, Report, Summary, began};

use super::download::Downloads;
use super::unpacker::UnpackOutcome;
use super::{Flush, Observer, Part, PartClock, UnpackTimes, totals, verdict};

/// Totals and time course of one run.
pub(crate) struct RunRecord {
    summary: Summary,
    phases: Vec<(u64, Phase)>,
    clock: PartClock,
    on_disk: PathBuf,
    flush: Flush,
    observer: Option<Observer>,
    packages: PackageTotals,
    unpacking: UnpackTimes,
}

impl RunRecord {
    /// Starts with this part and emits the event. `dir` is the directory that the user gave, and the cost of a flush is
    /// measured in `on_disk`.
    pub(crate) fn begin(command: &str, dir: &Path, on_disk: &Path, part: Part, events: &mut dyn Events) -> RunRecord {
        events.emit(Event::started(command, dir.display().to_string()));
        RunRecord {
            summary: Summary { started_unix_s: began(Duration::ZERO), changed: true, ..Summary::default() },
            phases: Vec::new(),
            clock: PartClock::start(part),
            on_disk: on_disk.to_owned(),
            flush: Flush::probe(on_disk),
            observer: Some(Observer::start()),
            packages: PackageTotals::default(),
            unpacking: UnpackTimes::default(),
        }
    }

    /// Starts the next phase, and measures this part from now on.
    pub(crate) fn turn(&mut self, events: &mut dyn Events, phase: Phase, part: Part) {
        // apt alternates between unpacking and configuring, often with the same phase several times in a row.
        if self.phases.last().is_none_or(|(_, last)| *last != phase) {
            self.phases.push((self.clock.begun().elapsed().as_millis() as u64, phase));
            events.emit(Event::Phase { phase });
        }
        self.part(part);
    }

    /// Measures this part from now on.
    pub(crate) fn part(&mut self, part: Part) {
        self.clock.turn(part);
        if let Some(observer) = &self.observer {
            observer.set_on(part == Part::Dpkg);
        }
    }

    /// Adds packages that were unpacked in parallel, and packages that were left to dpkg.
    pub(crate) fn unpacked(&mut self, done: &UnpackOutcome) {
        self.unpacking.add(&done.times);
        let packages = &mut self.packages;
        packages.unpacked += done.packages.len() as u64;
        packages.files += done.files;
        packages.file_bytes += done.bytes;
        for (file, reason) in &done.left {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            tracing::info!("{name}: left to dpkg: {reason}");
            packages.by_dpkg.push(format!("{name}: {reason}"));
        }
    }

    /// Adds removed packages.
    pub(crate) fn removed(&mut self, packages: u64) {
        self.packages.removed += packages;
    }

    /// Resets the counts, because the unpacked packages were removed again.
    pub(crate) fn forget(&mut self) {
        self.packages = PackageTotals::default();
    }

    /// Bytes of the regular files that were unpacked.
    pub(crate) fn unpacked_bytes(&self) -> u64 {
        self.packages.file_bytes
    }

    /// Measured cost of a flush in the root.
    pub(crate) fn flush(&self) -> Flush {
        self.flush
    }

    /// Emits the totals at the end.
    pub(crate) fn report(mut self, downloads: &mut Downloads) -> Report {
        self.clock.turn(Part::Around);
        let observed = self.observer.take().map(Observer::finish).unwrap_or_default();
        self.clock.deal(Part::Dpkg, &observed);
        self.clock.divide_unpacking(&self.unpacking);
        self.summary.duration_ms = self.clock.begun().elapsed().as_millis() as u64;
        let timeline = downloads.add_to(&mut self.summary, self.clock.begun(), &self.phases);
        // Measured again, because others may have written during the first measurement. A root that became an archive
        // is removed by now.
        let flush = self.flush.or_less(Flush::probe(&self.on_disk));
        let packages = totals(&self.clock, &flush, &observed, self.packages);
        self.summary.verdict = verdict(&self.clock.parts(), &packages.slowest);
        self.summary.packages = Some(packages);
        Report { summary: self.summary, timeline }
    }
}
