//! The metrics of a run in Prometheus' text format, for the textfile collector.
//!
//! A failed run must not look like a first one: the time of the last success is
//! carried over from the file that was there before.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::path::Path;

use fullbore_engine::escape;
use fullbore_engine::run::report::{Report, SuiteState, Totals};

/// Largest earlier file read. A guess: ten thousand mirrors.
const FILE_BYTES_MAX: u64 = 4 << 20;

const LAST_SUCCESS: &str = "fullbore_last_success_timestamp_seconds";

/// The value of one metric with its labels.
struct Metrics {
    text: String,
    described: Vec<&'static str>,
}

impl Metrics {
    fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        if !self.described.contains(&name) {
            self.described.push(name);
            let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        }
    }

    fn value(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            let _ = write!(self.text, "{}{label}=\"{}\"", if i == 0 { "{" } else { "," }, quoted(text));
        }
        let _ = writeln!(self.text, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }
}

/// A label's value as the format writes it. Hidden characters are escaped before, as in every line for people; so no
/// line break is left, and backslash and quote are what the format escapes.
fn quoted(text: &str) -> String {
    escape::line(text).replace('\\', "\\\\").replace('"', "\\\"")
}

/// The name a mirror has in the metrics: its section's, or its directory.
fn mirror_name(report: &Report) -> &str {
    report.summary.name.as_deref().unwrap_or(&report.summary.dir)
}

/// The metrics of these runs; `now_unix_s` is the time of a success, `before` what
/// [`last_successes`] found.
pub fn render(reports: &[Report], now_unix_s: i64, before: &BTreeMap<String, i64>) -> String {
    let mut metrics = Metrics { text: String::new(), described: Vec::new() };
    let mut each = |name: &'static str, kind: &str, help: &str, value: &dyn Fn(&Report) -> Option<String>| {
        for report in reports {
            if let Some(value) = value(report) {
                metrics.family(name, kind, help);
                metrics.value(name, &[("mirror", mirror_name(report)), ("command", &report.summary.command)], value);
            }
        }
    };
    let number = |value: u64| Some(value.to_string());
    each("fullbore_exit_code", "gauge", "Exit code of the last run; 0 is success.", &|report| {
        number(u64::from(report.summary.exit_code))
    });
    each("fullbore_last_run_timestamp_seconds", "gauge", "Start of the last run.", &|report| {
        Some(report.summary.started_unix_s.to_string())
    });
    each(LAST_SUCCESS, "gauge", "End of the last run that succeeded.", &|report| {
        if report.summary.exit_code == 0 {
            Some(now_unix_s.to_string())
        } else {
            // As the label has it, which the file was read from.
            before.get(escape::line(mirror_name(report)).as_ref()).map(i64::to_string)
        }
    });
    each("fullbore_duration_seconds", "gauge", "Wall time of the last run.", &|report| {
        Some(seconds(report.summary.duration_ms))
    });
    each("fullbore_cpu_seconds", "gauge", "Processor time of the last run.", &|report| {
        Some(seconds(report.summary.cpu_ms))
    });
    each("fullbore_peak_memory_bytes", "gauge", "Largest resident memory of the last run.", &|report| {
        number(report.summary.peak_rss_bytes)
    });
    each("fullbore_changed", "gauge", "Whether the last run published anything new.", &|report| {
        number(u64::from(report.summary.changed))
    });
    let mut total = |name, help, value: fn(&Totals) -> u64| {
        each(name, "gauge", help, &|report| number(value(&report.summary.totals)));
    };
    total("fullbore_files_written", "Files verified and written by the last run.", |totals| totals.files);
    total("fullbore_needed_bytes", "Bytes the last run needed.", |totals| totals.needed_bytes);
    total("fullbore_received_bytes", "Body bytes the last run received.", |totals| totals.received_bytes);
    total("fullbore_written_bytes", "Bytes verified and written by the last run.", |totals| totals.written_bytes);
    total("fullbore_missing_files", "Files missing or wrong after the last run.", |totals| totals.missing_files);
    total("fullbore_deleted_files", "Files deleted by the last run.", |totals| totals.deleted_files);
    total("fullbore_requests", "Requests sent by the last run.", |totals| totals.requests);
    each("fullbore_mirrored_files", "gauge", "Files that the published suites name, indexes included.", &|report| {
        number(report.summary.mirrored?.files)
    });
    each("fullbore_mirrored_bytes", "gauge", "Bytes of the files that the published suites name.", &|report| {
        number(report.summary.mirrored?.bytes)
    });
    for report in reports {
        hosts(&mut metrics, report);
        suites(&mut metrics, report, now_unix_s);
        fleet(&mut metrics, report);
        if let Some(verdict) = &report.summary.verdict {
            metrics.family("fullbore_limit", "gauge", "What limited the last run, with its share of the time.");
            let labels = [("mirror", mirror_name(report)), ("limit", verdict.limit.as_str())];
            metrics.value("fullbore_limit", &labels, verdict.share);
        }
    }
    grouped(&metrics.text)
}

fn hosts(metrics: &mut Metrics, report: &Report) {
    for host in &report.summary.hosts {
        let labels = [("mirror", mirror_name(report)), ("host", host.host.as_str())];
        metrics.family("fullbore_host_received_bytes", "gauge", "Body bytes received from a host.");
        metrics.value("fullbore_host_received_bytes", &labels, host.received_bytes);
        metrics.family("fullbore_host_errors", "gauge", "Faults of a host.");
        metrics.value("fullbore_host_errors", &labels, host.strikes);
    }
}

fn suites(metrics: &mut Metrics, report: &Report, now_unix_s: i64) {
    for suite in &report.summary.suites {
        let labels = [("mirror", mirror_name(report)), ("suite", suite.suite.as_str())];
        metrics.family("fullbore_suite_date_seconds", "gauge", "Date of the Release that was offered.");
        metrics.value("fullbore_suite_date_seconds", &labels, suite.date_unix_s);
        metrics.family("fullbore_suite_age_seconds", "gauge", "Age of that Release at the end of the run.");
        metrics.value("fullbore_suite_age_seconds", &labels, now_unix_s.saturating_sub(suite.date_unix_s));
        metrics.family("fullbore_suite_served", "gauge", "Whether that Release is the one served now.");
        let served = u8::from(suite.state != SuiteState::NotPublished);
        metrics.value("fullbore_suite_served", &labels, served);
    }
}

/// The workers of a queue.
fn fleet(metrics: &mut Metrics, report: &Report) {
    let Some(fleet) = &report.summary.fleet else { return };
    let labels = [("mirror", mirror_name(report))];
    for (name, kind, help, value) in [
        ("fullbore_fleet_workers", "gauge", "Workers of the last run.", fleet.workers.len() as u64),
        ("fullbore_fleet_tasks_total", "counter", "Tasks of the last run, in all rounds.", fleet.tasks),
        (
            "fullbore_fleet_tasks_pending",
            "gauge",
            "Tasks that the queue had at the end of the run.",
            fleet.pending_tasks,
        ),
        (
            "fullbore_fleet_redelivered_total",
            "counter",
            "Failed files whose tasks were given out again.",
            fleet.redelivered,
        ),
        ("fullbore_fleet_rounds_total", "counter", "Rounds; more than one if tasks were lost.", fleet.rounds.into()),
        (
            "fullbore_fleet_slots_held",
            "gauge",
            "Connections to mirrors that were leased at most at once.",
            fleet.slots_most,
        ),
        ("fullbore_fleet_left_files", "gauge", "Files that workers left to the planner.", fleet.left_files),
    ] {
        metrics.family(name, kind, help);
        metrics.value(name, &labels, value);
    }
    for worker in &fleet.workers {
        let labels = [("mirror", mirror_name(report)), ("worker", worker.worker.as_str())];
        metrics.family(
            "fullbore_fleet_worker_bytes_total",
            "counter",
            "Bytes that a worker has stored in the last run.",
        );
        metrics.value("fullbore_fleet_worker_bytes_total", &labels, worker.bytes);
    }
}

/// The format wants all values of a metric together; ours come mirror by mirror.
fn grouped(text: &str) -> String {
    let mut families: Vec<(&str, String)> = Vec::new();
    for line in text.lines() {
        let name = line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE ")).unwrap_or(line);
        let name = name.split([' ', '{']).next().unwrap_or_default();
        let at = families.iter().position(|(other, _)| *other == name).unwrap_or_else(|| {
            families.push((name, String::new()));
            families.len() - 1
        });
        families[at].1.push_str(line);
        families[at].1.push('\n');
    }
    families.into_iter().map(|(_, lines)| lines).collect()
}

fn seconds(ms: u64) -> String {
    format!("{}.{:03}", ms / 1000, ms % 1000)
}

/// When each mirror last succeeded, as an earlier file says it; empty if there is none.
pub fn last_successes(path: &Path) -> BTreeMap<String, i64> {
    use std::io::Read;
    let mut text = String::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text));
    if read.is_err() {
        return BTreeMap::new();
    }
    text.lines().filter_map(last_success).collect()
}

fn last_success(line: &str) -> Option<(String, i64)> {
    let (labels, value) = line.strip_prefix(LAST_SUCCESS)?.strip_prefix("{mirror=\"")?.rsplit_once("} ")?;
    let mut name = String::new();
    let mut letters = labels.chars();
    loop {
        match letters.next()? {
            '"' => break,
            '\\' => match letters.next()? {
                'n' => name.push('\n'),
                other => name.push(other),
            },
            other => name.push(other),
        }
    }
    Some((name, value.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn metrics_have_all_figures_of_a_run() {
        insta::assert_snapshot!(render(&[sample::report()], 1_795_218_006, &BTreeMap::new()));
    }

    #[test]
    fn a_failed_run_keeps_the_time_of_the_last_success() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fullbore.prom");
        let mut report = sample::report();
        report.summary.name = Some("odd \"name\" \\ with\nall".into());
        std::fs::write(&path, render(std::slice::from_ref(&report), 1000, &BTreeMap::new())).unwrap();
        report.summary.exit_code = 3;
        let text = render(&[report], 2000, &last_successes(&path));
        assert!(text.contains("\",command=\"mirror\"} 1000\n"), "{text}");
        assert!(!text.contains("} 2000\n"), "{text}");
        assert!(last_successes(Path::new("/no/such/file")).is_empty());
    }

    #[test]
    fn hostile_names_stay_one_label() {
        let mut report = sample::report();
        let evil = "a\n\"} 1\nforged{x=\"\u{1b}[2K\r\u{9b}\u{7f}\u{202e}\\";
        report.summary.hosts[0].host = evil.into();
        let text = render(&[report], 0, &BTreeMap::new());
        assert!(!text.contains("\nforged") && !text.chars().any(|c| escape::is_hidden(c) && c != '\n'), "{text}");
        let label = "host=\"a\\\\n\\\"} 1\\\\nforged{x=\\\"\\\\u{1b}[2K\\\\r\\\\u{9b}\\\\u{7f}\\\\u{202e}\\\\\"}";
        assert!(text.contains(label), "{text}");
    }

    #[test]
    fn values_of_a_metric_stand_together() {
        let mut other = sample::report();
        other.summary.name = Some("other".into());
        let text = render(&[sample::report(), other], 0, &BTreeMap::new());
        let mut seen = Vec::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split('{').next().unwrap();
            if seen.last() != Some(&name) {
                assert!(!seen.contains(&name), "{name} is scattered");
                seen.push(name);
            }
        }
        assert_eq!(text.matches("# TYPE fullbore_host_errors").count(), 1);
    }

    proptest::proptest! {
        #[test]
        fn any_earlier_file_is_survived(line in ".{0,60}") {
            let _ = last_success(&format!("{LAST_SUCCESS}{{mirror=\"{line}"));
        }
    }
}
