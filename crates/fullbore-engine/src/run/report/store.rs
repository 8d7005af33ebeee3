//! Report of `put`, `get` and `check` on a grid or a bucket, with its closing line.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Summary;
use crate::units;

/// Kind of store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum StoreKind {
    /// A bucket of an S3 store.
    #[default]
    Bucket,
    /// A Tahoe-LAFS grid.
    Grid,
}

/// Result of `put`, `get` or `check`. It contains neither caps nor names of files.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct StoreReport {
    /// Kind of the store: grid or S3.
    pub kind: StoreKind,
    /// Number of files stored or fetched.
    pub files: u64,
    /// Number of directories stored in a grid, or fetched from one.
    pub directories: u64,
    /// Number of objects, or files of a fetched directory, that existed already with the same content.
    pub present: u64,
    /// Number of files that the run would store (`--dry-run`).
    pub would_store: u64,
    /// Number of files that could not be stored or fetched.
    pub failed: u64,
    /// Number of objects deleted; with `--dry-run`, that would be.
    pub deleted: u64,
    /// Number of objects kept because their names are excluded.
    pub kept: u64,
    /// Number of objects for which the store reported no checksum.
    pub unconfirmed: u64,
    /// Sum of the sizes of the stored, fetched or listed files, in bytes.
    pub bytes: u64,
    /// Acknowledged bytes of objects or shares.
    pub sent_bytes: u64,
    /// Whether a checksum from the store confirmed the content (`get`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verified: Option<bool>,
    /// Shares that files were decoded from (`get`).
    pub shares: Vec<UsedShare>,
    /// Faults of other shares, one line each (`get`).
    pub troubles: Vec<String>,
    /// Result of checking files in a grid (`check`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check: Option<GridCheck>,
    /// Servers that the run gave up, with the reason.
    pub given_up: Vec<GivenUp>,
    /// Working time of the stages on this machine.
    pub stages: StageTimes,
    /// Figures of each server that the run talked to.
    pub servers: Vec<StoreServer>,
}

/// Result of checking files in a grid. Directories are files there, too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct GridCheck {
    /// Number of checked files, without directories.
    pub files: u64,
    /// Number of checked directories.
    pub directories: u64,
    /// Number of files with all their shares.
    pub healthy: u64,
    /// Number of readable files that lack shares, or have them on too few servers.
    pub unhealthy: u64,
    /// Number of files that cannot be read any more.
    pub unrecoverable: u64,
    /// Number of files for which too few servers answered.
    pub unknown: u64,
    /// Number of caps without a file, and of directories that cannot be listed.
    pub failed: u64,
    /// Number of files that were named or found a second time.
    pub repeated: u64,
    /// Number of shares with wrong hashes (`--verify`).
    pub damaged_shares: u64,
    /// Number of leases that servers renewed or created (`--renew`).
    pub renewed_leases: u64,
    /// Number of leases that servers refused.
    pub refused_leases: u64,
    /// Number of files made healthy again (`--repair`).
    pub repaired: u64,
    /// Number of shares rebuilt and uploaded (`--repair`).
    pub sent_shares: u64,
}

impl GridCheck {
    /// Whether no file and no directory was checked.
    pub fn is_empty(&self) -> bool {
        self.files + self.directories + self.failed == 0
    }
}

impl fmt::Display for GridCheck {
    /// Formats `3 files and 1 directory checked: 3 healthy, 1 not healthy; 30 leases renewed`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", units::several(self.files, "file", "files"))?;
        if self.directories > 0 {
            write!(f, " and {}", units::several(self.directories, "directory", "directories"))?;
        }
        write!(f, " checked: {} healthy", units::count(self.healthy))?;
        for (count, what) in [
            (self.unhealthy, "not healthy"),
            (self.unrecoverable, "cannot be read any more"),
            (self.unknown, "cannot be judged"),
        ] {
            if count > 0 {
                write!(f, ", {} {what}", units::count(count))?;
            }
        }
        if self.damaged_shares > 0 {
            write!(f, "; {}", units::several(self.damaged_shares, "share damaged", "shares damaged"))?;
        }
        if self.renewed_leases > 0 {
            write!(f, "; {}", units::several(self.renewed_leases, "lease renewed", "leases renewed"))?;
        }
        if self.repaired > 0 || self.sent_shares > 0 {
            let shares = units::several(self.sent_shares, "share made again", "shares made again");
            write!(f, "; {} repaired, {shares}", units::several(self.repaired, "file", "files"))?;
        }
        Ok(())
    }
}

/// A share that a file was decoded from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UsedShare {
    /// Number of the share, from 0.
    pub share: u16,
    /// Name of the server that sent the share.
    pub server: String,
}

/// A server that the run gave up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GivenUp {
    /// Name of the server that was given up.
    pub name: String,
    /// Why the run gave the server up.
    pub reason: String,
}

/// Working time of the stages, over all threads, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct StageTimes {
    /// Time for reading files; for `get`, waiting for the next cap.
    pub source_ms: f64,
    /// Time for hashing and encryption, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash_ms: Option<f64>,
    /// Time for making shares, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encode_ms: Option<f64>,
    /// Time waiting for memory, and so for servers, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_wait_ms: Option<f64>,
    /// Time for joining shares, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_ms: Option<f64>,
    /// Time for writing received content, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_ms: Option<f64>,
}

/// Measurements of one server. Times are in milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct StoreServer {
    /// Name of the server, as the user knows it.
    pub name: String,
    /// Number of bytes of shares that moved to or from the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Number of answers that the server sent.
    pub answers: u64,
    /// Number of connections opened to the server.
    pub connections: u64,
    /// Connections that were open at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections_at_once: Option<u64>,
    /// Number of requests that were sent again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeated: Option<u64>,
    /// Number of answers that asked for fewer requests, such as 503 Slow Down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_downs: Option<u64>,
    /// Time that connections were open, all together, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_ms: Option<f64>,
    /// Time without any request to the server, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_ms: Option<f64>,
    /// Time that bytes were on the network path, in milliseconds.
    pub path_ms: f64,
    /// Time in which the server had a whole request and had not answered, in milliseconds.
    pub server_latency_ms: f64,
    /// Mean latency of the server per request, in milliseconds.
    pub mean_server_latency_ms: f64,
    /// Smallest measured round trip, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_trip_ms: Option<f64>,
    /// Number of times that the window was full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_waits: Option<u64>,
    /// Time that TCP had bytes to send, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp_busy_ms: Option<f64>,
    /// Time that TCP waited for the receiver's window, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receive_window_limited_ms: Option<f64>,
    /// Time that TCP waited for its send buffer, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_buffer_limited_ms: Option<f64>,
    /// Number of TCP segments that were sent again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retransmitted_segments: Option<u64>,
    /// Largest measured congestion window, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub congestion_window_max_bytes: Option<u64>,
}

/// Milliseconds with one digit after the point.
pub(super) fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e4).round() / 10.0
}

impl StoreReport {
    /// A time in milliseconds with one digit after the point, as in reports.
    pub fn ms(time: Duration) -> f64 {
        ms(time)
    }

    /// Writes the closing line of a run:
    ///
    /// ```text
    /// 3 files, 1.20 MB in 0.4 s, 3.00 MB/s; 2 were there already. Limited by: server s3 (server latency) (…).
    /// ```
    pub(super) fn closing_line(&self, summary: &Summary, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |count| units::several(count, "file", "files");
        let amount = |bytes| {
            let rate = units::per_second(bytes, summary.duration_ms.max(1));
            format!("{} in {}, {}/s", units::bytes(bytes), units::duration(summary.duration_ms), units::bytes(rate))
        };
        if let Some(check) = &self.check {
            write!(f, "{check}, in {}.", units::duration(summary.duration_ms))?;
            return match &summary.verdict {
                Some(verdict) => write!(f, " Limited by: {} ({}).", verdict.limit, verdict.reason),
                None => Ok(()),
            };
        }
        match (summary.command.as_str(), self.kind) {
            ("get", StoreKind::Bucket) => write!(f, "{}", amount(self.bytes))?,
            ("get", StoreKind::Grid) if self.directories > 0 => {
                write!(f, "{}, {}", count(self.files), amount(self.bytes))?;
            }
            ("get", StoreKind::Grid) => {
                let shares = units::several(self.shares.len() as u64, "share", "shares");
                write!(f, "{}, from {shares}", amount(self.bytes))?;
            }
            _ if summary.dry_run => write!(f, "{} would be put", count(self.would_store))?,
            (_, StoreKind::Bucket) => write!(f, "{}, {}", count(self.files), amount(self.sent_bytes))?,
            (_, StoreKind::Grid) => {
                let shares = units::bytes(self.sent_bytes);
                write!(f, "{}, {}, {shares} of shares", count(self.files), amount(self.bytes))?;
            }
        }
        if self.present > 0 {
            write!(f, "; {} were there already", self.present)?;
        }
        if self.deleted > 0 {
            let how = if summary.dry_run { "would be deleted" } else { "deleted" };
            write!(f, "; {} {how}", units::count(self.deleted))?;
        }
        if self.kept > 0 {
            write!(f, "; {} kept beneath names that were left out", units::count(self.kept))?;
        }
        if self.unconfirmed > 0 {
            write!(f, "; the store does not say what checksums it has")?;
        }
        write!(f, ".")?;
        match &summary.verdict {
            Some(verdict) => write!(f, " Limited by: {} ({}).", verdict.limit, verdict.reason),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::VerdictReport;
    use super::*;

    #[test]
    fn the_line_says_what_was_done_and_what_limited_it() {
        let line = |command: &str, dry_run, store: StoreReport| {
            let verdict = VerdictReport { limit: "mixed".into(), reason: "a 1 %".into(), ..VerdictReport::default() };
            let (command, store, verdict) = (command.to_owned(), Some(store), Some(verdict));
            Summary { command, dry_run, duration_ms: 2000, store, verdict, ..Summary::default() }.to_string()
        };
        let bucket = StoreReport { files: 1, present: 2, sent_bytes: 4000, deleted: 1, ..StoreReport::default() };
        let limited = "Limited by: mixed (a 1 %).";
        let expected = format!("1 file, 4.00 kB in 2.0 s, 2.00 kB/s; 2 were there already; 1 deleted. {limited}");
        assert_eq!(line("put", false, bucket), expected);
        let dry = StoreReport { would_store: 3, deleted: 1, ..StoreReport::default() };
        assert_eq!(line("put", true, dry), format!("3 files would be put; 1 would be deleted. {limited}"));
        let grid = StoreReport {
            kind: StoreKind::Grid,
            files: 2,
            bytes: 2000,
            sent_bytes: 7000,
            shares: vec![UsedShare::default(); 3],
            ..StoreReport::default()
        };
        let amount = "2.00 kB in 2.0 s, 1.00 kB/s";
        assert_eq!(line("put", false, grid.clone()), format!("2 files, {amount}, 7.00 kB of shares. {limited}"));
        assert_eq!(line("get", false, grid), format!("{amount}, from 3 shares. {limited}"));
        let check = GridCheck {
            files: 3,
            directories: 1,
            healthy: 2,
            unhealthy: 1,
            unrecoverable: 1,
            damaged_shares: 2,
            renewed_leases: 30,
            repaired: 1,
            sent_shares: 4,
            ..GridCheck::default()
        };
        let check = StoreReport { kind: StoreKind::Grid, check: Some(check), ..StoreReport::default() };
        let expected = "3 files and 1 directory checked: 2 healthy, 1 not healthy, 1 cannot be read any more; \
                        2 shares damaged; 30 leases renewed; 1 file repaired, 4 shares made again, in 2.0 s.";
        assert_eq!(line("check", false, check), format!("{expected} {limited}"));
    }
}
