//! The report of a run: one structure from which screen, JSON, HTML page and metrics are made.
//!
//! [`Summary`] has totals, hosts, suites and the verdict. [`Timeline`] has the course of the run, in a bounded number
//! of points.

mod copy;
mod fleet;
mod of_verdict;
mod patches;
mod probe;
mod store;
mod timeline;

use std::fmt;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::error::ErrorKind;
use super::events::{Pinned, Plan};
use crate::units;
pub use copy::{CopyReport, PartRow};
pub use fleet::{FleetReport, WorkerReport};
pub use patches::{IndexPatches, PatchesChange};
pub use probe::ProbeReport;
pub use store::{GivenUp, GridCheck, StageTimes, StoreKind, StoreReport, StoreServer, UsedShare};
pub use timeline::{HostLane, Sample, StageLane, StageSample, Timeline};

/// The complete report of a finished run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Totals, hosts, suites and verdict of the run.
    pub summary: Summary,
    /// Rates, hosts and stages over time.
    pub timeline: Timeline,
}

/// Result of a run, without its course over time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Summary {
    /// Name of the command, such as `mirror` or `check`.
    pub command: String,
    /// Version of fullbore that made the report.
    pub version: String,
    /// The name of the section in the settings, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Directory that the command worked on.
    pub dir: String,
    /// Start of the run, Unix time in seconds.
    pub started_unix_s: i64,
    /// Wall time of the run, in milliseconds.
    pub duration_ms: u64,
    /// CPU time of the whole process, user and system, in milliseconds.
    pub cpu_ms: u64,
    /// Largest resident memory of the process, in bytes.
    pub peak_rss_bytes: u64,
    /// Exit code of the process, as documented.
    pub exit_code: u8,
    /// Whether the run made anything new visible.
    pub changed: bool,
    /// Whether the run only made a plan.
    pub dry_run: bool,
    /// What the run planned to fetch and delete.
    pub plan: Plan,
    /// The plan that the run left for workers (`mirror --pin`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned: Option<Pinned>,
    /// Files of the mirror (`mirror`, `check`), as far as they are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mirrored: Option<Mirrored>,
    /// What the run fetched, wrote and deleted.
    pub totals: Totals,
    /// What the run did with indexes (`update`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub indexes: Option<IndexTotals>,
    /// Packages that the run handled (`bootstrap`, `install`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packages: Option<PackageTotals>,
    /// Files stored in a grid or a bucket, or fetched from one (`put`, `get`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreReport>,
    /// Result of a copy, with the rates of its parts (`copy`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copy: Option<CopyReport>,
    /// Prediction of a probe (`probe`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<ProbeReport>,
    /// One entry per suite, in the order of the command line.
    pub suites: Vec<SuiteReport>,
    /// One entry per host, the origin first.
    pub hosts: Vec<HostReport>,
    /// The workers of a queue, in order of their names (`mirror --queue`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fleet: Option<FleetReport>,
    /// What limited the run, with evidence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<VerdictReport>,
    /// Known waits in which no part worked, such as `suspended for 75 s`; one clause each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<String>,
    /// Warnings, one line each; bounded by [`Summary::warn`].
    pub warnings: Vec<String>,
    /// Files that are missing or wrong, one line each.
    pub problems: Vec<String>,
}

/// Files named by the signed texts and indexes of the published suites.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Mirrored {
    /// Number of files.
    pub files: u64,
    /// Sum of their sizes, in bytes.
    pub bytes: u64,
}

/// Maximum number of warnings, and of problems, in a report; further ones are only in the log. A guess.
const LINES_KEPT: usize = 200;

/// Unix time in seconds of the start of a run that ends now and took `wall`.
pub fn began(wall: Duration) -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.saturating_sub(wall).as_secs()).unwrap_or(i64::MAX)
}

impl Summary {
    /// Adds a warning. At the limit, one last line says that there were more.
    pub fn warn(&mut self, line: impl Into<String>) {
        push_bounded(&mut self.warnings, line.into());
    }

    /// Whether any suite is current, whether published by this run or before.
    pub fn has_current_suite(&self) -> bool {
        self.suites.iter().any(|suite| suite.state != SuiteState::NotPublished)
    }

    /// Formats `12 files deleted, 3.40 GB`.
    fn deleted(&self) -> String {
        let files = units::several(self.totals.deleted_files, "file", "files");
        format!("{files} deleted, {}", units::bytes(self.totals.deleted_bytes))
    }

    /// Writes ` Suspended for 75 s.` for each wait.
    fn write_waits(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for wait in &self.waits {
            let mut letters = wait.chars();
            let first = letters.next().into_iter().flat_map(char::to_uppercase);
            write!(f, " {}{}.", first.collect::<String>(), letters.as_str())?;
        }
        Ok(())
    }

    /// Adds a missing or wrong file. At the limit, one last line says that there were more.
    pub fn problem(&mut self, line: impl Into<String>) {
        push_bounded(&mut self.problems, line.into());
    }
}

fn push_bounded(lines: &mut Vec<String>, line: String) {
    match lines.len() {
        n if n < LINES_KEPT => lines.push(line),
        LINES_KEPT => lines.push("and more, see the log".to_owned()),
        _ => {}
    }
}

/// What an update did with the indexes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct IndexTotals {
    /// Number of indexes that were already current.
    pub current: u64,
    /// Number of indexes that were rebuilt from patches.
    pub patched: u64,
    /// Number of patches used for the patched indexes.
    pub patches: u64,
    /// Number of indexes that were fetched whole.
    pub whole: u64,
    /// Number of indexes that could not be fetched.
    pub failed: u64,
}

impl fmt::Display for IndexTotals {
    /// Formats `5 indexes by 7 patches, 1 whole, 3 current`; zeros are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if self.patched > 0 {
            let patches = units::several(self.patches, "patch", "patches");
            parts.push(format!("{} by {patches}", units::several(self.patched, "index", "indexes")));
        }
        for (count, what) in [(self.whole, "whole"), (self.current, "current"), (self.failed, "failed")] {
            if count > 0 {
                parts.push(format!("{count} {what}"));
            }
        }
        write!(f, "{}", if parts.is_empty() { "no indexes".to_owned() } else { parts.join(", ") })
    }
}

/// What a bootstrap or an installation did with packages.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct PackageTotals {
    /// Number of packages that were unpacked in parallel.
    pub unpacked: u64,
    /// Packages that dpkg unpacked, with the reason, one line each.
    pub by_dpkg: Vec<String>,
    /// Number of packages that apt had removed.
    pub removed: u64,
    /// Number of regular files in the packages unpacked in parallel, without those that `path-exclude` left out.
    pub files: u64,
    /// Sum of these files' sizes, in bytes.
    pub file_bytes: u64,
    /// Measured cost of one flush, in microseconds; 0 if it could not be measured.
    pub flush_us: u64,
    /// Estimated minimum cost of dpkg's own flushes, in milliseconds: one flush per regular file, and 20 per package.
    /// It does not count flushes of scripts, nor the packages that dpkg unpacked.
    pub saved_ms: u64,
    /// Wall time per part, in milliseconds, in the order of the run.
    pub parts: Vec<(String, u64)>,
    /// The slowest maintainer scripts, with their times in milliseconds.
    pub slowest: Vec<(String, u64)>,
}

/// Numbers of files and bytes that a run moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Totals {
    /// Number of files verified and written.
    pub files: u64,
    /// Bytes that had to be fetched: the sum of these files' sizes, less the bytes that an earlier run had fetched.
    pub needed_bytes: u64,
    /// Body bytes received, including wasted ones.
    pub received_bytes: u64,
    /// Body bytes discarded: received twice by hedging, wrong, or broken off.
    pub wasted_bytes: u64,
    /// Number of bytes verified and written.
    pub written_bytes: u64,
    /// Bytes reused from earlier interrupted runs.
    pub resumed_bytes: u64,
    /// Number of requests sent to all hosts.
    pub requests: u64,
    /// Number of connections opened to all hosts.
    pub connections: u64,
    /// Number of requests sent to a second host.
    pub hedged_requests: u64,
    /// Number of files that had to be requested again.
    pub retried_files: u64,
    /// Number of files that were present and right, and not fetched.
    pub kept_files: u64,
    /// Size of the kept files, in bytes.
    pub kept_bytes: u64,
    /// Number of files that the run deleted.
    pub deleted_files: u64,
    /// Size of the deleted files, in bytes.
    pub deleted_bytes: u64,
    /// Number of files that are still missing or wrong.
    pub missing_files: u64,
    /// Number of files read again and hashed (`check`).
    pub checked_files: u64,
    /// Number of bytes read again and hashed (`check`).
    pub checked_bytes: u64,
}

impl Totals {
    /// Bytes received per byte needed; 1 if nothing was needed.
    pub fn received_ratio(&self) -> f64 {
        if self.needed_bytes == 0 { 1.0 } else { self.received_bytes as f64 / self.needed_bytes as f64 }
    }
}

/// Result of a run for one suite.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SuiteReport {
    /// Name of the suite, as the user gave it.
    pub suite: String,
    /// Field `Codename` of the suite's Release.
    pub codename: String,
    /// Field `Version` of the Release file, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Field `Date` of the Release file, Unix time in seconds.
    pub date_unix_s: i64,
    /// Field `Valid-Until` of the Release, as Unix time in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid_until_unix_s: Option<i64>,
    /// Whether a new state of the suite was published.
    pub state: SuiteState,
}

/// Result of a run for a suite.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SuiteState {
    /// The run published a new state.
    Published,
    /// The mirror has the origin's state already.
    Unchanged,
    /// The run could not update the suite; the old state is still served.
    #[default]
    NotPublished,
}

/// Bytes, requests and faults of one host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct HostReport {
    /// Name of the host, with its port unless it is the default one.
    pub host: String,
    /// Whether this host is the origin, which decides the state of the archive.
    pub origin: bool,
    /// `HTTP/1.1` or `HTTP/2`; empty if the host never answered.
    pub protocol: String,
    /// Number of body bytes received from the host.
    pub received_bytes: u64,
    /// Number of received bytes that were thrown away.
    pub wasted_bytes: u64,
    /// Number of files whose bytes all came from the host.
    pub files: u64,
    /// Number of requests sent to the host.
    pub requests: u64,
    /// Number of connections opened to the host.
    pub connections: u64,
    /// Smallest measured round trip, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_ms: Option<f64>,
    /// Highest rate that the host sustained for at least a tenth of a second, in bytes per second.
    pub best_rate_bytes_per_s: u64,
    /// Faults in order of time; their number is bounded.
    pub faults: Vec<FaultReport>,
    /// Total number of faults, including those not in `faults`.
    pub strikes: u32,
    /// Final state of the host: `good`, `dropped: WHY`, `not reached: WHY`; `not asked` if it had nothing to offer,
    /// `not needed` if other hosts were faster.
    pub state: String,
}

/// One fault of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct FaultReport {
    /// Milliseconds after the start; 0 if unknown.
    pub at_ms: u64,
    /// The requested file, below the mirror's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Description of what the host did.
    pub fault: String,
}

impl FaultReport {
    /// Formats time and fault in one line.
    pub fn line(&self) -> String {
        let path = self.path.iter().map(|path| format!("{path}: "));
        path.chain([self.fault.clone()]).collect()
    }
}

/// The verdict on a run: which part limited it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct VerdictReport {
    /// Name of the limit, such as `access link`, `mirror ftp.example.org`, `disk sda`, `mixed`.
    pub limit: String,
    /// The strongest evidence, short: `busy 91 %; network blocked 74 %`.
    pub reason: String,
    /// False if no single part could be named.
    pub confident: bool,
    /// Share of the wall time for which both signals named the limit, 0 to 1.
    pub share: f64,
    /// Every part that was named at some time, with its share; the largest first.
    pub shares: Vec<(String, f64)>,
    /// The part that would be the limit after this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// What would make the run faster.
    pub advice: String,
    /// Figures behind the verdict, one line each.
    pub evidence: Vec<String>,
}

impl fmt::Display for VerdictReport {
    /// Formats `Limited by: disk writes (busy 91 %; network blocked 74 %).`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Limited by: {}", self.limit)?;
        if !self.reason.is_empty() {
            write!(f, " ({})", self.reason)?;
        }
        f.write_str(".")
    }
}

impl Summary {
    /// Writes the closing line of a worker.
    fn work_line(&self, f: &mut fmt::Formatter<'_>, time: &str) -> fmt::Result {
        let totals = &self.totals;
        match (totals.files, totals.missing_files, self.exit_code) {
            (0, 0, 0) => write!(f, "nothing to store in {time}")?,
            (0, ..) => write!(f, "nothing stored in {time}")?,
            (files, ..) => {
                let rate = units::bytes(units::per_second(totals.written_bytes, self.duration_ms));
                let stored = units::several(files, "file", "files");
                write!(f, "{stored}, {} stored in {time}, {rate}/s", units::bytes(totals.written_bytes))?;
            }
        }
        match totals.kept_files {
            0 => write!(f, ".")?,
            kept => write!(f, "; {kept} {} there already.", units::noun(kept, "was", "were"))?,
        }
        if totals.missing_files > 0 {
            let missing = totals.missing_files;
            write!(f, " {missing} {} missing.", units::noun(missing, "file is", "files are"))?;
        }
        if totals.files > 0
            && let Some(verdict) = &self.verdict
        {
            write!(f, " {verdict}")?;
        }
        self.write_waits(f)
    }
}

impl fmt::Display for Summary {
    /// Writes the closing line of a run:
    ///
    /// ```text
    /// 43.1 GB in 11 m 32 s, 62 MB/s. Limited by: disk writes (busy 91 %; network blocked 74 %).
    /// ```
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(copy) = &self.copy {
            return copy.sentence(self, f);
        }
        if let Some(probe) = &self.probe {
            return probe.sentence(self, f);
        }
        let time = units::duration(self.duration_ms);
        if let Some(store) = &self.store {
            return store.closing_line(self, f);
        }
        if self.command == "check" {
            write!(
                f,
                "{} in {} read in {time}",
                units::bytes(self.totals.checked_bytes),
                units::several(self.totals.checked_files, "file", "files")
            )?;
            if self.totals.files > 0 {
                let fetched = units::bytes(self.totals.received_bytes);
                write!(f, "; {} repaired, {fetched} received", self.totals.files)?;
            }
            return match (self.totals.missing_files, self.exit_code) {
                (0, 0) if self.totals.files > 0 => write!(f, "; all as signed now."),
                (0, 0) => write!(f, ", all as signed."),
                (0, _) => write!(f, "; not all of it could be verified."),
                (n, _) => write!(f, ", {n} missing or wrong."),
            };
        }
        if let Some(pinned) = &self.pinned {
            let files = units::several(pinned.files, "file", "files");
            return write!(f, "{files}, {} pinned for workers in {time}.", units::bytes(pinned.bytes));
        }
        if self.command == "work" {
            return self.work_line(f, &time);
        }
        if self.dry_run {
            return write!(
                f,
                "would fetch {}, {}; would delete {}, {}.",
                units::several(self.plan.fetch_files, "file", "files"),
                units::bytes(self.plan.fetch_bytes),
                units::several(self.plan.delete_files, "file", "files"),
                units::bytes(self.plan.delete_bytes),
            );
        }
        if !self.changed && self.totals.files == 0 && self.totals.missing_files == 0 && self.exit_code == 0 {
            return match self.totals.deleted_files {
                0 => {
                    let requests = units::several(self.totals.requests, "request", "requests");
                    write!(f, "nothing has changed; {requests} in {time}.")
                }
                _ => write!(f, "nothing new; {} in {time}.", self.deleted()),
            };
        }
        if self.command == "mirror" && self.exit_code == ErrorKind::Interrupted.exit_code() {
            // A directory keeps unfinished files; a store does not.
            if self.dir.starts_with("s3://") {
                let files = units::several(self.totals.files, "file", "files");
                return write!(f, "interrupted after {time}; {files} stored, which the next run finds.");
            }
            let received = units::bytes(self.totals.received_bytes);
            return write!(f, "interrupted after {time}; {received} received, which the next run goes on from.");
        }
        if let Some(packages) = &self.packages {
            let count = packages.unpacked + packages.by_dpkg.len() as u64;
            let count = units::several(count, "package", "packages");
            let fetched = units::bytes(self.totals.written_bytes);
            if self.exit_code != 0 {
                let is_interrupted = self.exit_code == ErrorKind::Interrupted.exit_code();
                let how = if is_interrupted { "interrupted" } else { "failed" };
                return write!(f, "{how} after {time}; {count} unpacked, {fetched} fetched.");
            }
            match packages.removed {
                0 => write!(f, "{count}")?,
                removed if packages.unpacked == 0 && packages.by_dpkg.is_empty() => {
                    write!(f, "{} removed", units::several(removed, "package", "packages"))?;
                }
                removed => write!(f, "{count}, {removed} removed,")?,
            }
            write!(f, " in {time}; {fetched} fetched.")?;
            if packages.saved_ms > 0 {
                write!(f, " About {} of flushes saved.", units::duration(packages.saved_ms))?;
            }
        } else if let Some(indexes) = &self.indexes {
            write!(f, "{indexes} in {time}; {} fetched.", units::bytes(self.totals.written_bytes))?;
        } else {
            let rate = units::per_second(self.totals.written_bytes, self.duration_ms);
            write!(f, "{} in {time}, {}/s.", units::bytes(self.totals.written_bytes), units::bytes(rate))?;
        }
        if self.totals.deleted_files > 0 {
            write!(f, " {}.", self.deleted())?;
        }
        if self.totals.missing_files > 0 {
            let missing = self.totals.missing_files;
            write!(f, " {missing} {} missing.", units::noun(missing, "file is", "files are"))?;
        }
        if let Some(verdict) = &self.verdict {
            write!(f, " {verdict}")?;
        }
        self.write_waits(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_with_one_line_naming_its_limit() {
        let summary = Summary {
            command: "mirror".into(),
            duration_ms: 692_000,
            changed: true,
            totals: Totals { files: 9, written_bytes: 43_100_000_000, ..Totals::default() },
            verdict: Some(VerdictReport {
                limit: "disk writes".into(),
                reason: "busy 91 %; network blocked 74 %".into(),
                ..VerdictReport::default()
            }),
            ..Summary::default()
        };
        let line = "43.1 GB in 11 m 32 s, 62.3 MB/s. Limited by: disk writes (busy 91 %; network blocked 74 %).";
        assert_eq!(summary.to_string(), line);
    }

    #[test]
    fn the_closing_lines_of_plan_and_workers_say_what_is_stored() {
        let pinned = Pinned { run: "9c1f".into(), files: 594, bytes: 60_000_000 };
        let plan = Summary { command: "mirror".into(), duration_ms: 2000, pinned: Some(pinned), ..Summary::default() };
        assert_eq!(plan.to_string(), "594 files, 60.0 MB pinned for workers in 2.0 s.");
        let worker = |files, written_bytes, kept_files, missing_files| {
            let totals = Totals { files, written_bytes, kept_files, missing_files, ..Totals::default() };
            Summary { command: "work".into(), duration_ms: 2000, totals, ..Summary::default() }.to_string()
        };
        assert_eq!(
            worker(297, 30_000_000, 1, 0),
            "297 files, 30.0 MB stored in 2.0 s, 15.0 MB/s; 1 was there already."
        );
        assert_eq!(worker(0, 0, 594, 0), "nothing to store in 2.0 s; 594 were there already.");
        assert_eq!(worker(0, 0, 0, 2), "nothing stored in 2.0 s. 2 files are missing.");
    }

    #[test]
    fn the_closing_line_names_deletions_and_interrupted_transfers() {
        let summary = |exit_code, totals| {
            let command = "mirror".to_owned();
            Summary { command, duration_ms: 2000, exit_code, totals, ..Summary::default() }.to_string()
        };
        let deleted = Totals { deleted_files: 136, deleted_bytes: 5_000_000, ..Totals::default() };
        assert_eq!(summary(0, deleted), "nothing new; 136 files deleted, 5.00 MB in 2.0 s.");
        let update = Totals { files: 1, written_bytes: 2_000_000, deleted_files: 1, deleted_bytes: 1000, ..deleted };
        assert_eq!(summary(0, update), "2.00 MB in 2.0 s, 1.00 MB/s. 1 file deleted, 1.00 kB.");
        let received = Totals { received_bytes: 7_000_000, written_bytes: 1_000_000, ..Totals::default() };
        assert_eq!(
            summary(130, received),
            "interrupted after 2.0 s; 7.00 MB received, which the next run goes on from."
        );
        let (command, dir) = ("mirror".to_owned(), "s3://bucket/debian".to_owned());
        let totals = Totals { files: 3, ..received };
        let summary = Summary { command, dir, duration_ms: 2000, exit_code: 130, totals, ..Summary::default() };
        assert_eq!(summary.to_string(), "interrupted after 2.0 s; 3 files stored, which the next run finds.");
    }

    #[test]
    fn packages_are_counted_and_a_failure_is_called_one() {
        let summary = |unpacked, exit_code| {
            let packages = Some(PackageTotals { unpacked, ..PackageTotals::default() });
            Summary { changed: true, duration_ms: 2000, exit_code, packages, ..Summary::default() }.to_string()
        };
        assert_eq!(summary(1, 0), "1 package in 2.0 s; 0 B fetched.");
        assert_eq!(summary(2, 0), "2 packages in 2.0 s; 0 B fetched.");
        let removing = |unpacked| {
            let packages = Some(PackageTotals { unpacked, removed: 1, ..PackageTotals::default() });
            Summary { changed: true, duration_ms: 2000, packages, ..Summary::default() }.to_string()
        };
        assert_eq!(removing(0), "1 package removed in 2.0 s; 0 B fetched.");
        assert_eq!(removing(2), "2 packages, 1 removed, in 2.0 s; 0 B fetched.");
        assert_eq!(summary(2, 2), "failed after 2.0 s; 2 packages unpacked, 0 B fetched.");
        assert_eq!(summary(1, 130), "interrupted after 2.0 s; 1 package unpacked, 0 B fetched.");
    }

    #[test]
    fn a_check_says_all_as_signed_only_when_it_is() {
        let check = |exit_code, missing_files, files| {
            let totals = Totals { missing_files, files, checked_files: 9, checked_bytes: 10, ..Totals::default() };
            Summary { command: "check".into(), exit_code, totals, ..Summary::default() }.to_string()
        };
        assert!(check(0, 0, 0).ends_with("read in 0 s, all as signed."), "{}", check(0, 0, 0));
        assert!(check(4, 2, 0).ends_with(", 2 missing or wrong."));
        assert!(check(4, 0, 0).ends_with("; not all of it could be verified."));
        assert!(check(0, 0, 3).ends_with("; 3 repaired, 0 B received; all as signed now."));
    }

    #[test]
    fn one_is_not_told_as_several() {
        let totals =
            |files| Totals { checked_files: files, missing_files: files, requests: files, ..Totals::default() };
        let mirror = |files| Summary { command: "mirror".into(), totals: totals(files), ..Summary::default() };
        let check = Summary { command: "check".into(), ..mirror(1) };
        assert!(check.to_string().starts_with("0 B in 1 file read in "), "{check}");
        assert!(mirror(1).to_string().ends_with(" 1 file is missing."), "{}", mirror(1));
        assert!(mirror(2).to_string().ends_with(" 2 files are missing."), "{}", mirror(2));
        let same = Summary { totals: Totals { missing_files: 0, ..totals(1) }, ..mirror(1) };
        assert_eq!(same.to_string(), "nothing has changed; 1 request in 0 s.");
        let plan = Plan { fetch_files: 1, delete_files: 2, ..Plan::default() };
        let planned = Summary { dry_run: true, plan, ..mirror(0) };
        assert_eq!(planned.to_string(), "would fetch 1 file, 0 B; would delete 2 files, 0 B.");
    }

    #[test]
    fn problems_are_bounded() {
        let mut summary = Summary::default();
        for i in 0..1000 {
            summary.problem(i.to_string());
        }
        assert_eq!(summary.problems.len(), LINES_KEPT + 1);
    }
}
