//! Shared parts of `bootstrap` and `install`. This module has the time report of a run.

pub(crate) mod bytecode;
pub(crate) mod download;
pub(crate) mod dpkg_configuration;
pub(crate) mod dpkg_server;
pub(crate) mod estimate;
pub(crate) mod log;
pub(crate) mod record;
pub(crate) mod run_events;
pub(crate) mod unpacker;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fullbore_engine::run::report::{PackageTotals, VerdictReport};
use fullbore_engine::stage::Ledger;
use fullbore_engine::units;
use fullbore_engine::verdict::thresholds::NAMED;

use crate::nosync::{FlushCost, session};

/// Flushes of dpkg per package besides those of the package's files: status, lists and directories, several times each.
/// Measured: 7,789 for 386 packages.
const FLUSHES_PER_PACKAGE: u64 = 20;

/// All flushes for a package, files included, of the same measurement: 45,501 for 386 packages.
const FLUSHES_PER_PACKAGE_IN_ALL: u64 = 118;

/// Interval at which dpkg is observed. A script of a tenth of a second is seen five times.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Scripts named in the report.
const SLOWEST_NAMED: usize = 10;

/// The parts of a run's wall time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Part {
    /// Fetching and verifying indexes.
    Indexes,
    /// apt resolves the packages.
    Resolve,
    /// Waiting for package files.
    Download,
    /// Unpacking packages in parallel; divided into the next three parts at the end.
    Unpack,
    /// Reading and hashing their bytes.
    Verify,
    /// Decompressing them.
    Decompress,
    /// Creating files.
    Write,
    /// Maintainer scripts that install or configure.
    Scripts,
    /// Maintainer scripts that triggers run.
    Triggers,
    /// dpkg itself.
    Dpkg,
    /// apt itself.
    Apt,
    /// The user's hooks.
    Hooks,
    /// Before the first and after the last package.
    Around,
    /// Waiting for the disk.
    Sync,
    /// Packing the root into one file.
    Pack,
}

impl Part {
    /// Name of the part in the report and in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Part::Indexes => "indexes",
            Part::Resolve => "resolving",
            Part::Download => "download",
            Part::Unpack => "unpacking",
            Part::Verify => "verifying",
            Part::Decompress => "decompressing",
            Part::Write => "writing files",
            Part::Scripts => "maintainer scripts",
            Part::Triggers => "triggers",
            Part::Dpkg => "dpkg's bookkeeping",
            Part::Apt => "apt",
            Part::Hooks => "hooks",
            Part::Around => "setting up and cleaning",
            Part::Sync => "final sync",
            Part::Pack => "packing",
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Part::Indexes | Part::Download => "a nearer or faster mirror would help",
            Part::Unpack | Part::Decompress => "more cores would help, or packages compressed by zstd",
            Part::Verify => "more cores would help",
            Part::Write => "more cores would help, or a faster file system",
            Part::Scripts | Part::Triggers => "fewer packages, or a faster core; scripts run one after the other",
            Part::Sync => "a faster disk would help",
            Part::Pack => "a faster compression would help",
            Part::Resolve | Part::Dpkg | Part::Apt | Part::Hooks | Part::Around => "",
        }
    }
}

/// A clock that measures one part at a time.
#[derive(Debug)]
pub(crate) struct PartClock {
    begun: Instant,
    part: Part,
    since: Instant,
    spent: BTreeMap<Part, Duration>,
}

impl PartClock {
    /// Starts the clock with this part.
    pub(crate) fn start(part: Part) -> PartClock {
        let now = Instant::now();
        PartClock { begun: now, part, since: now, spent: BTreeMap::new() }
    }

    /// Time at which the clock was started.
    pub(crate) fn begun(&self) -> Instant {
        self.begun
    }

    /// Measures this part from now on.
    pub(crate) fn turn(&mut self, part: Part) {
        let now = Instant::now();
        *self.spent.entry(self.part).or_default() += now - self.since;
        (self.part, self.since) = (part, now);
    }

    /// Distributes the time of one part to others as observed. If the observed times are longer than that time, they
    /// are scaled.
    pub(crate) fn deal(&mut self, from: Part, observed: &Observed) {
        let whole = self.spent.remove(&from).unwrap_or_default();
        let seen = observed.scripts + observed.triggers + observed.dpkg + observed.apt + observed.other;
        if seen.is_zero() {
            *self.spent.entry(from).or_default() += whole;
            return;
        }
        for (part, duration) in [
            (Part::Scripts, observed.scripts),
            (Part::Triggers, observed.triggers),
            (Part::Dpkg, observed.dpkg),
            (Part::Apt, observed.apt + observed.other),
        ] {
            *self.spent.entry(part).or_default() += whole.mul_f64(duration.as_secs_f64() / seen.as_secs_f64());
        }
    }

    /// Divides the time of unpacking: sequential stages count with their own time, and the concurrent stages share the
    /// rest in proportion.
    pub(crate) fn divide_unpacking(&mut self, times: &UnpackTimes) {
        let mut rest = self.spent.remove(&Part::Unpack).unwrap_or_default();
        for (part, alone) in [(Part::Scripts, times.scripts), (Part::Dpkg, times.bookkeeping)] {
            let alone = alone.min(rest);
            rest -= alone;
            *self.spent.entry(part).or_default() += alone;
        }
        let beside = [(Part::Verify, times.verify), (Part::Decompress, times.decompress), (Part::Write, times.write)];
        let all: Duration = beside.iter().map(|(_, time)| *time).sum();
        if all.is_zero() {
            *self.spent.entry(Part::Unpack).or_default() += rest;
            return;
        }
        for (part, time) in beside {
            *self.spent.entry(part).or_default() += rest.mul_f64(time.as_secs_f64() / all.as_secs_f64());
        }
    }

    /// The measured times, in the order of the run.
    pub(crate) fn parts(&self) -> Vec<(Part, Duration)> {
        let spent = self.spent.iter().map(|(part, duration)| (*part, *duration));
        spent.filter(|(_, duration)| !duration.is_zero()).collect()
    }
}

/// Time of unpacking by stage, from its stage clocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct UnpackTimes {
    /// Preinst scripts; they run one after another.
    pub scripts: Duration,
    /// Reading and writing dpkg's database, on one thread.
    pub bookkeeping: Duration,
    /// Reading and hashing, summed over all threads.
    pub verify: Duration,
    /// Decompressing `data.tar`, summed over all threads.
    pub decompress: Duration,
    /// Creating files, summed over all threads, with waits for the file system.
    pub write: Duration,
}

impl UnpackTimes {
    /// The times of a batch, with the time of its preinst scripts.
    pub(crate) fn of(ledger: &Ledger, scripts: Duration) -> UnpackTimes {
        let mut times = UnpackTimes { scripts, ..UnpackTimes::default() };
        for stage in ledger.reading().stages {
            // Calls that wait for the file system take longer than their processor time.
            let time = Duration::from_nanos(stage.compute_ns.max(stage.device_ns));
            match stage.name.as_str() {
                "verify" => times.verify = time,
                "decompress" => times.decompress = time,
                "write" => times.write = time,
                "bookkeeping" => times.bookkeeping = time,
                _ => {}
            }
        }
        times
    }

    /// Adds the times of another batch.
    pub(crate) fn add(&mut self, other: &UnpackTimes) {
        self.scripts += other.scripts;
        self.bookkeeping += other.bookkeeping;
        self.verify += other.verify;
        self.decompress += other.decompress;
        self.write += other.write;
    }
}

/// Text that names the part with the most time.
pub(crate) fn verdict(parts: &[(Part, Duration)], slowest: &[(String, u64)]) -> Option<VerdictReport> {
    let whole: f64 = parts.iter().map(|(_, duration)| duration.as_secs_f64()).sum();
    let mut shares: Vec<(Part, f64)> =
        parts.iter().map(|(part, duration)| (*part, duration.as_secs_f64() / whole.max(1e-9))).collect();
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    let (first, share) = *shares.first()?;
    let shown = |(part, share): &(Part, f64)| format!("{} {:.0} %", part.name(), share * 100.0);
    let next = shares.get(1);
    let mut reason = format!("{:.0} %", share * 100.0);
    if let Some(next) = next {
        reason.push_str(&format!("; next: {}", shown(next)));
    }
    let mut evidence: Vec<String> = parts
        .iter()
        .map(|(part, duration)| format!("{}: {}", part.name(), units::duration(duration.as_millis() as u64)))
        .collect();
    evidence.extend(slowest.iter().take(3).map(|(script, ms)| format!("{script}: {}", units::duration(*ms))));
    Some(VerdictReport {
        limit: first.name().to_owned(),
        reason,
        confident: share >= NAMED,
        share,
        shares: shares.iter().map(|(part, share)| (part.name().to_owned(), *share)).collect(),
        next: next.map(shown),
        advice: first.advice().to_owned(),
        evidence,
    })
}

/// The cost of a flush on the target's file system.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Flush {
    cost: Duration,
}

impl Flush {
    /// Measures the cost with a few small writes in this directory.
    pub(crate) fn probe(directory: &Path) -> Flush {
        Flush { cost: session::flush_cost(directory).map_or(Duration::ZERO, |FlushCost { flush, .. }| flush) }
    }

    /// The estimate that is printed before packages are unpacked.
    pub(crate) fn expectation(&self, packages: u64) -> Option<String> {
        if self.cost.is_zero() || packages == 0 {
            return None;
        }
        let flushes = packages * FLUSHES_PER_PACKAGE_IN_ALL;
        let saved = self.cost.saturating_mul(u32::try_from(flushes).unwrap_or(u32::MAX));
        let cost = self.cost.as_secs_f64() * 1e3;
        let saved = units::duration(saved.as_millis() as u64);
        let what = if packages == 1 { "1 package saves".to_owned() } else { format!("{packages} packages save") };
        Some(format!("a flush costs {cost:.2} ms here: without syncs, {what} about {saved}"))
    }

    /// The lower of two measurements: other writers can make a flush slower, and nothing makes it faster.
    #[must_use]
    pub(crate) fn or_less(self, other: Flush) -> Flush {
        let known = [self.cost, other.cost].into_iter().filter(|cost| !cost.is_zero());
        Flush { cost: known.min().unwrap_or_default() }
    }

    /// Cost of a flush in microseconds.
    pub(crate) fn micros(&self) -> u64 {
        self.cost.as_micros() as u64
    }

    /// Estimated time of dpkg's flushes for this number of packages and regular files, with one flush per call.
    pub(crate) fn saved_ms(&self, packages: u64, files: u64) -> u64 {
        let flushes = packages * FLUSHES_PER_PACKAGE + files;
        self.cost.saturating_mul(u32::try_from(flushes).unwrap_or(u32::MAX)).as_millis() as u64
    }
}

/// Notice if the filter takes the privileges of setuid programs away.
pub const NO_NEW_PRIVILEGES: &str = "not privileged: setuid programs run with your own rights only";

/// Text of the notice during the final sync.
pub fn still_syncing(path: &Path) -> String {
    format!("{}: the final sync still waits for it", path.display())
}

/// Time of dpkg's activities, as observed from outside.
#[derive(Debug, Clone, Default)]
pub(crate) struct Observed {
    /// Scripts that install or configure packages.
    pub scripts: Duration,
    /// Postinst scripts that process triggers.
    pub triggers: Duration,
    /// dpkg and its helpers, without scripts.
    pub dpkg: Duration,
    /// apt while no dpkg was running.
    pub apt: Duration,
    /// Time in which neither apt nor dpkg was running.
    pub other: Duration,
    by_script: BTreeMap<String, Duration>,
}

impl Observed {
    /// The slowest scripts, the slowest first, in milliseconds.
    pub(crate) fn slowest(&self) -> Vec<(String, u64)> {
        let mut all: Vec<(String, u64)> =
            self.by_script.iter().map(|(name, time)| (name.clone(), time.as_millis() as u64)).collect();
        all.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        all.truncate(SLOWEST_NAMED);
        all
    }
}

/// Observes the descendants of this process while it is switched on.
#[derive(Debug)]
pub(crate) struct Observer {
    stop: Arc<AtomicBool>,
    is_on: Arc<AtomicBool>,
    thread: Option<JoinHandle<Observed>>,
}

impl Observer {
    /// Starts the observing thread; it is switched off at first.
    pub(crate) fn start() -> Observer {
        let (stop, is_on) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (stopped, is_on_now) = (stop.clone(), is_on.clone());
        let thread = std::thread::Builder::new().name("observer".to_owned()).spawn(move || {
            let mut observed = Observed::default();
            let mut last = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                std::thread::sleep(LOOK_EVERY);
                let now = Instant::now();
                if is_on_now.load(Ordering::Relaxed) {
                    note(&mut observed, now - last);
                }
                last = now;
            }
            observed
        });
        Observer { stop, is_on, thread: thread.ok() }
    }

    /// Switches the observer on or off.
    pub(crate) fn set_on(&self, on: bool) {
        self.is_on.store(on, Ordering::Relaxed);
    }

    /// Stops the observer and returns its result.
    pub(crate) fn finish(mut self) -> Observed {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

fn note(observed: &mut Observed, time: Duration) {
    match sample() {
        Seen::Script(name) => {
            observed.scripts += time;
            *observed.by_script.entry(name).or_default() += time;
        }
        Seen::Trigger(name) => {
            observed.triggers += time;
            *observed.by_script.entry(name).or_default() += time;
        }
        Seen::Dpkg => observed.dpkg += time,
        Seen::Apt => observed.apt += time,
        Seen::Nothing => observed.other += time,
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Script(String),
    Trigger(String),
    Dpkg,
    Apt,
    Nothing,
}

/// Descends from this process to the deepest dpkg, and classifies its child.
fn sample() -> Seen {
    let mut seen = Seen::Nothing;
    let mut parents = vec!["self".to_owned()];
    while let Some(parent) = parents.pop() {
        for child in children(&parent) {
            let words = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
            let words: Vec<String> =
                words.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
            if let Some(script) = script_of(&words) {
                return script;
            }
            match words.first().map(|word| word.rsplit('/').next().unwrap_or_default()) {
                Some("dpkg") => seen = Seen::Dpkg,
                Some("apt-get" | "apt") if seen == Seen::Nothing => seen = Seen::Apt,
                _ => {}
            }
            parents.push(child);
        }
    }
    seen
}

fn children(of: &str) -> Vec<String> {
    let mut all = Vec::new();
    for task in fs::read_dir(format!("/proc/{of}/task")).into_iter().flatten().flatten() {
        let text = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        all.extend(text.split_whitespace().map(str::to_owned));
    }
    all
}

/// The maintainer script in a command line of dpkg: `[INTERPRETER] …/NAME.postinst ACTION …` or `…/tmp.ci/preinst
/// ACTION`.
fn script_of(words: &[String]) -> Option<Seen> {
    const KINDS: [&str; 4] = ["preinst", "postinst", "prerm", "postrm"];
    for (place, word) in words.iter().enumerate().take(4) {
        let Some((directory, name)) = word.rsplit_once('/') else { continue };
        if !directory.ends_with("/dpkg/info") && !directory.ends_with("/dpkg/tmp.ci") {
            continue;
        }
        let kind = name.rsplit_once('.').map_or(name, |(_, kind)| kind);
        if KINDS.contains(&kind) {
            let is_trigger = words.get(place + 1).is_some_and(|action| action == "triggered");
            let name = if is_trigger { format!("{name} triggered") } else { name.to_owned() };
            return Some(if is_trigger { Seen::Trigger(name) } else { Seen::Script(name) });
        }
    }
    None
}

/// The totals of clock, probe and observer.
pub(crate) fn totals(clock: &PartClock, flush: &Flush, observed: &Observed, done: PackageTotals) -> PackageTotals {
    let packages = done.unpacked + done.by_dpkg.len() as u64;
    PackageTotals {
        flush_us: flush.micros(),
        saved_ms: flush.saved_ms(packages, done.files),
        parts: clock
            .parts()
            .iter()
            .map(|(part, duration)| (part.name().to_owned(), duration.as_millis() as u64))
            .collect(),
        slowest: observed.slowest(),
        ..done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn scripts_are_known_by_their_names() {
        let seen = |text: &str| script_of(&words(text));
        assert_eq!(
            seen("/bin/sh /var/lib/dpkg/info/libc6:amd64.postinst configure 2.36"),
            Some(Seen::Script("libc6:amd64.postinst".into()))
        );
        assert_eq!(
            seen("/bin/sh /var/lib/dpkg/info/man-db.postinst triggered /usr/share/man"),
            Some(Seen::Trigger("man-db.postinst triggered".into()))
        );
        assert_eq!(seen("/var/lib/dpkg/tmp.ci/preinst install"), Some(Seen::Script("preinst".into())));
        assert_eq!(seen("dpkg --configure -a"), None);
        assert_eq!(seen("sh /etc/x.postinst"), None);
    }

    #[test]
    fn the_largest_part_is_the_limit() {
        let parts = [(Part::Download, Duration::from_secs(1)), (Part::Scripts, Duration::from_secs(3))];
        let verdict = verdict(&parts, &[]).unwrap();
        assert_eq!((verdict.limit.as_str(), verdict.confident), ("maintainer scripts", true));
        assert_eq!(verdict.reason, "75 %; next: download 25 %");
    }

    #[test]
    fn time_is_dealt_as_observed() {
        let mut clock = PartClock::start(Part::Dpkg);
        clock.spent.insert(Part::Dpkg, Duration::from_secs(10));
        let observed = Observed {
            scripts: Duration::from_secs(2),
            dpkg: Duration::from_secs(1),
            triggers: Duration::from_secs(1),
            ..Observed::default()
        };
        clock.deal(Part::Dpkg, &observed);
        assert_eq!(clock.spent[&Part::Scripts], Duration::from_secs(5));
        assert_eq!(clock.spent[&Part::Dpkg], Duration::from_millis(2500));
    }

    #[test]
    fn unpacking_is_divided_by_what_its_threads_did() {
        let seconds = Duration::from_secs;
        let mut clock = PartClock::start(Part::Unpack);
        clock.spent.insert(Part::Unpack, seconds(10));
        clock.spent.insert(Part::Dpkg, seconds(1));
        // Two threads.
        let times = UnpackTimes {
            scripts: seconds(1),
            bookkeeping: seconds(1),
            verify: seconds(2),
            decompress: seconds(12),
            write: seconds(2),
        };
        clock.divide_unpacking(&times);
        let spent = |part: Part| clock.spent[&part];
        assert_eq!((spent(Part::Scripts), spent(Part::Dpkg)), (seconds(1), seconds(2)));
        assert_eq!(
            (spent(Part::Verify), spent(Part::Decompress), spent(Part::Write)),
            (seconds(1), seconds(6), seconds(1))
        );
        assert!(!clock.spent.contains_key(&Part::Unpack));
    }

    #[test]
    fn what_is_saved_goes_by_the_cost_of_a_flush() {
        let flush = Flush { cost: Duration::from_millis(5) };
        assert_eq!(flush.saved_ms(100, 8000), 50_000);
        assert!(flush.expectation(386).unwrap().contains("5.00 ms"));
        assert_eq!(Flush::default().expectation(386), None);
        assert!(flush.expectation(1).unwrap().contains("1 package saves about"));
        let busy = Flush { cost: Duration::from_millis(50) };
        assert_eq!(busy.or_less(flush).micros(), 5000);
        assert_eq!(flush.or_less(Flush::default()).micros(), 5000);
    }
}
