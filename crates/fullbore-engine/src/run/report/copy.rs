//! The report section of a copy: figures that only `copy` has, and the table of its parts.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::Summary;
use crate::units;

/// Result of a copy, beside [`super::Totals`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct CopyReport {
    /// The sources, as the user named them.
    pub source: String,
    /// The destination, as the user named it.
    pub destination: String,
    /// Whether the copy finished; otherwise an error gives the reason.
    pub finished: bool,
    /// Entries listed: files, directories, links, devices.
    pub entries: u64,
    /// Number of entries of which only attributes changed.
    pub retouched: u64,
    /// Number of links, directories and devices that were made.
    pub made: u64,
    /// Bytes of new files that were taken from old files at the destination.
    pub reused_bytes: u64,
    /// Bytes read back from the device for verification.
    pub verified_bytes: u64,
    /// Time spent reading back, in microseconds.
    pub verify_us: u64,
    /// Time of the final sync, in microseconds.
    pub sync_us: u64,
    /// Problems with single files, counted by kind.
    pub problems: BTreeMap<String, u64>,
    /// Description of the connections; empty on one machine.
    pub way: String,
    /// Parts of the copy, in the order of the data path.
    pub parts: Vec<PartRow>,
    /// Suggestions with the time that each would save, one line each.
    pub advice: Vec<String>,
    /// Verdict of the far end, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub far: Option<serde_json::Value>,
}

/// One part of a copy: its rate alone, and how much of it was used.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct PartRow {
    /// Name of the part, with its path if it has one.
    pub part: String,
    /// Rate of the part alone, in bytes per second.
    pub alone_bytes_per_s: Option<f64>,
    /// Rate of the part alone in files per second, where the number of files matters.
    pub alone_files_per_s: Option<f64>,
    /// Text shown instead of a rate: `off`, `11 s`.
    pub instead: Option<String>,
    /// Used share of the part's rate, from 0 to 1.
    pub used: Option<f64>,
    /// Share of the time in which other parts waited for this one.
    pub waited_for: Option<f64>,
    /// Whether the part limits the copy.
    pub limits: bool,
    /// Measured facts about the part, one per line.
    pub evidence: Vec<String>,
}

impl PartRow {
    /// Creates a row without figures.
    pub fn new(part: impl Into<String>) -> PartRow {
        PartRow { part: part.into(), ..PartRow::default() }
    }
}

impl CopyReport {
    /// Writes the closing line of a copy:
    ///
    /// ```text
    /// copied 43.1 GB, 12 files in 11 m 32 s, 62.3 MB/s. Limited by: disk writes (busy 91 %).
    /// ```
    pub(super) fn sentence(&self, summary: &Summary, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (totals, time) = (&summary.totals, units::duration(summary.duration_ms));
        let files = |count| units::several(count, "file", "files");
        if !self.finished {
            let written = units::bytes(totals.written_bytes);
            return write!(f, "stopped after {time}; {written} written.");
        }
        if summary.dry_run {
            let plan = &summary.plan;
            write!(f, "would copy {} in {}", units::bytes(plan.fetch_bytes), files(plan.fetch_files))?;
        } else if totals.files + self.made == 0 && totals.written_bytes == 0 {
            let entries = units::several(self.entries, "entry", "entries");
            write!(f, "nothing to copy, {entries} compared in {time}")?;
        } else {
            let rate = units::per_second(totals.written_bytes, summary.duration_ms);
            let (bytes, rate) = (units::bytes(totals.written_bytes), units::bytes(rate));
            write!(f, "copied {bytes}, {} in {time}, {rate}/s", files(totals.files))?;
        }
        if self.made > 0 {
            let made = units::noun(self.made, "link, directory or device", "links, directories and devices");
            write!(f, ", {} {made} made", self.made)?;
        }
        for (count, what) in [(self.retouched, "with new attributes"), (totals.deleted_files, "deleted")] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        if totals.resumed_bytes > 0 {
            write!(f, "; {} were there from an earlier run", units::bytes(totals.resumed_bytes))?;
        }
        if self.reused_bytes > 0 {
            write!(f, "; {} of it taken from the old files", units::bytes(self.reused_bytes))?;
        }
        f.write_str(".")?;
        if self.verify_us > 0 {
            let (bytes, time) = (units::bytes(self.verified_bytes), units::duration(self.verify_us / 1000));
            write!(f, " Read back from the device: {bytes} in {time}.")?;
        }
        if summary.dry_run || totals.written_bytes == 0 {
            return Ok(());
        }
        if let Some(verdict) = &summary.verdict {
            write!(f, " {verdict}")?;
        }
        summary.write_waits(f)?;
        if self.sync_us > 0 {
            write!(f, " Final sync: {}.", units::duration(self.sync_us / 1000))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Totals, VerdictReport};
    use super::*;
    use crate::run::events::Plan;

    fn copy(report: CopyReport, totals: Totals) -> Summary {
        let copy = Some(CopyReport { finished: true, ..report });
        Summary { command: "copy".into(), duration_ms: 2000, totals, copy, ..Summary::default() }
    }

    #[test]
    fn one_is_not_told_as_several() {
        let plan = |fetch_files| Plan { fetch_files, fetch_bytes: 2, ..Plan::default() };
        let would =
            |files| Summary { dry_run: true, plan: plan(files), ..copy(CopyReport::default(), Totals::default()) };
        assert_eq!(would(1).to_string(), "would copy 2 B in 1 file.");
        assert_eq!(would(2).to_string(), "would copy 2 B in 2 files.");
        let copied =
            |files| copy(CopyReport::default(), Totals { files, written_bytes: 2_000_000, ..Totals::default() });
        assert_eq!(copied(1).to_string(), "copied 2.00 MB, 1 file in 2.0 s, 1.00 MB/s.");
        let none = copy(CopyReport { entries: 1, ..CopyReport::default() }, Totals::default());
        assert_eq!(none.to_string(), "nothing to copy, 1 entry compared in 2.0 s.");
        let made = copy(CopyReport { made: 1, ..CopyReport::default() }, Totals::default());
        assert!(made.to_string().ends_with(", 1 link, directory or device made."), "{made}");
    }

    #[test]
    fn waits_stand_behind_the_limit() {
        let verdict = VerdictReport { limit: "the network".into(), ..VerdictReport::default() };
        let waits = vec!["suspended for 75 s".into()];
        let report = CopyReport { sync_us: 1_500_000, ..CopyReport::default() };
        let totals = Totals { files: 3, written_bytes: 2_000_000, ..Totals::default() };
        let summary = Summary { verdict: Some(verdict), waits, ..copy(report, totals) };
        let text = "copied 2.00 MB, 3 files in 2.0 s, 1.00 MB/s. Limited by: the network. Suspended for 75 s. Final sync: 1.5 s.";
        assert_eq!(summary.to_string(), text);
    }
}
