//! Where a run stands, in one line: all of it in a log, as much as fits beside a bar.

use fullbore_engine::run::events::{FleetProgress, Progress};
use fullbore_engine::units;

/// Widest bar, and the narrowest that is one.
const BAR_WIDTH: usize = 28;
const BAR_LEAST: usize = 4;
/// Columns of the name of a phase.
const PHASE_WIDTH: usize = 7;
/// ` 42 % ` behind the bar.
const PERCENT_WIDTH: usize = 6;
/// A limit that would be cut to less is left out.
const LIMIT_LEAST: usize = 8;

/// `12.3 GB of 43.1 GB, 120 of 400 files, 62 MB/s, 8 m 17 s left, limited by disk sda`.
pub fn progress_text(progress: &Progress) -> String {
    let limit = progress.limit.as_ref().map(|limit| format!("limited by {limit}"));
    let parts = [
        Some(amount(progress)),
        count(progress),
        rate(progress),
        left(progress),
        silence(progress),
        limit,
        fleet(progress),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// `12.3 GB of 43.1 GB`, or what is done where nobody knows of how much.
fn amount(progress: &Progress) -> String {
    let more = if progress.complete == Some(false) { " so far" } else { "" };
    let done = units::bytes(progress.bytes);
    match progress.total_bytes {
        0 => format!("{done}{more}"),
        total => format!("{done} of {}{more}", units::bytes(total)),
    }
}

/// Packages, where they are what is to be done, or files.
fn count(progress: &Progress) -> Option<String> {
    if let (Some(packages), Some(total)) = (progress.packages, progress.total_packages) {
        return Some(format!("{packages} of {}", units::several(total, "package", "packages")));
    }

    let total = progress.total_files;
    (total > 0).then(|| format!("{} of {}", progress.files, units::several(total, "file", "files")))
}

/// None where all has been moved and the run goes on with something else.
fn rate(progress: &Progress) -> Option<String> {
    let is_moved = progress.percent.is_some() && progress.bytes >= progress.total_bytes;
    (progress.rate_bytes_per_s > 0 || !is_moved).then(|| format!("{}/s", units::bytes(progress.rate_bytes_per_s)))
}

fn left(progress: &Progress) -> Option<String> {
    progress.eta_s.map(|eta_s| format!("{} left", units::duration(eta_s.saturating_mul(1000))))
}

fn silence(progress: &Progress) -> Option<String> {
    progress.silent_s.map(|silent_s| format!("nothing heard for {}", units::duration(silent_s.saturating_mul(1000))))
}

/// `3 workers, 8 of 8 connections, 2 tasks again, w7 silent for 12 s`.
fn fleet(progress: &Progress) -> Option<String> {
    let FleetProgress { workers, slots, slots_total, redelivered, silent } = progress.fleet.as_ref()?;
    let mut parts =
        vec![units::several(*workers, "worker", "workers"), format!("{slots} of {slots_total} connections")];
    if *redelivered > 0 {
        parts.push(format!("{} again", units::several(*redelivered, "task", "tasks")));
    }
    // The one that has been silent longest: there is one line.
    if let Some((worker, seconds)) = silent.iter().max_by_key(|(_, seconds)| *seconds) {
        parts.push(format!("{worker} silent for {seconds} s"));
    }
    Some(parts.join(", "))
}

/// A line with a bar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fitted {
    /// Whether the name of the phase fits.
    pub phase: bool,
    /// Columns of the bar; 0 for none.
    pub bar: usize,
    /// What stands behind the percentage.
    pub text: String,
}

/// As much as fits on so many columns. The bar shrinks first; then what is least worth goes, the rate last.
pub fn fitted(progress: &Progress, phase: bool, columns: usize) -> Fitted {
    let (rate, left, silence) = (rate(progress), left(progress), silence(progress));
    // A run of many machines has no limit of its own while it goes on.
    let named = fleet(progress).or_else(|| progress.limit.as_ref().map(|limit| format!("limited by {limit}")));
    let short = fleet(progress).or_else(|| progress.limit.as_ref().map(|limit| format!("limit: {limit}")));
    let texts = [
        [Some(amount(progress)), count(progress), rate.clone(), left.clone(), silence.clone(), named],
        [Some(amount(progress)), count(progress), rate.clone(), left.clone(), silence.clone(), short.clone()],
        [Some(amount(progress)), None, rate.clone(), left.clone(), silence.clone(), short.clone()],
        [None, None, rate.clone(), left.clone(), silence.clone(), short.clone()],
    ];
    let joined = |parts: &[Option<String>]| parts.iter().flatten().cloned().collect::<Vec<_>>().join(", ");
    let phase_width = |phase: bool| if phase { PHASE_WIDTH + 1 } else { 0 };
    for parts in &texts {
        let text = joined(parts);
        if let Some(free) = columns.checked_sub(phase_width(phase) + PERCENT_WIDTH + width(&text)) {
            return Fitted { phase, bar: bar_width(free), text };
        }
    }
    // Neither bar nor phase from here on; a limit by a long name loses its end.
    let free = columns.saturating_sub(PERCENT_WIDTH);
    let most = joined(&[rate.clone(), left.clone(), silence.clone()]);
    if let (Some(limit), Some(room)) = (&progress.limit, free.checked_sub(width(&most) + 2))
        && room >= LIMIT_LEAST
    {
        return Fitted { phase: false, bar: 0, text: format!("{most}, {}", cut(limit, room)) };
    }
    let fewer = [vec![rate.clone(), left, silence.clone()], vec![rate.clone(), silence], vec![rate]];
    let text = fewer.iter().map(|parts| joined(parts)).find(|text| width(text) <= free);
    Fitted { phase: false, bar: 0, text: text.unwrap_or_default() }
}

/// With its brackets and a space, if there is room for one.
fn bar_width(free: usize) -> usize {
    let bar = free.saturating_sub(3).min(BAR_WIDTH);
    if bar < BAR_LEAST { 0 } else { bar }
}

fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    text.chars().take(columns.saturating_sub(1)).chain(['…']).collect()
}

fn width(text: &str) -> usize {
    console::measure_text_width(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress() -> Progress {
        Progress {
            bytes: 400_000_000,
            total_bytes: 1_000_000_000,
            files: 12,
            total_files: 345,
            rate_bytes_per_s: 62_000_000,
            eta_s: Some(497),
            limit: Some("mirror ftp.example.org".to_owned()),
            ..Progress::default()
        }
    }

    #[test]
    fn a_line_says_what_is_done_and_what_limits_it() {
        let mut look = Progress { bytes: 1_500_000, total_bytes: 3_000_000, total_files: 2, files: 1, ..progress() };
        (look.complete, look.eta_s, look.limit, look.rate_bytes_per_s) = (Some(false), None, None, 0);
        assert_eq!(progress_text(&look), "1.50 MB of 3.00 MB so far, 1 of 2 files, 0 B/s");
        (look.complete, look.eta_s, look.rate_bytes_per_s) = (Some(true), Some(90), 16_000);
        (look.limit, look.silent_s) = (Some("the network".to_owned()), Some(20));
        assert_eq!(
            progress_text(&look),
            "1.50 MB of 3.00 MB, 1 of 2 files, 16.0 kB/s, 1 m 30 s left, nothing heard for 20 s, limited by the network"
        );
    }

    #[test]
    fn where_packages_are_configured_there_is_no_rate() {
        let look = Progress {
            bytes: 1_500_000,
            total_bytes: 1_500_000,
            rate_bytes_per_s: 0,
            percent: Some(40),
            packages: Some(12),
            total_packages: Some(96),
            limit: None,
            ..progress()
        };
        assert_eq!(progress_text(&look), "1.50 MB of 1.50 MB, 12 of 96 packages, 8 m 17 s left");
        let fetching = Progress { bytes: 0, ..look };
        assert_eq!(progress_text(&fetching), "0 B of 1.50 MB, 12 of 96 packages, 0 B/s, 8 m 17 s left");
    }

    #[test]
    fn the_bar_shrinks_first_and_lines_fit_the_screen() {
        let progress = progress();
        let mut before: Option<Fitted> = None;
        for columns in (0..200).rev() {
            let line = fitted(&progress, true, columns);
            let bar = if line.bar > 0 { line.bar + 3 } else { 0 };
            let whole = if line.phase { PHASE_WIDTH + 1 } else { 0 } + bar + PERCENT_WIDTH + width(&line.text);
            assert!(whole <= columns || line.text.is_empty(), "{columns}: {line:?}");
            if let Some(before) = before.filter(|before| before.text != line.text) {
                assert!(before.bar == 0, "{columns}: the text changes while there is a bar: {before:?}, {line:?}");
            }
            before = Some(line);
        }
        assert_eq!(fitted(&progress, true, 200).bar, BAR_WIDTH);
    }

    #[test]
    fn on_80_columns_time_left_and_limit_are_whole_and_on_40_the_rate_is() {
        let line = fitted(&progress(), true, 80);
        assert!(line.text.contains("62.0 MB/s, 8 m 17 s left, limit: mirror ftp.example.org"), "{line:?}");
        let line = fitted(&Progress { silent_s: Some(25), ..progress() }, false, 80);
        assert!(line.text.ends_with("8 m 17 s left, nothing heard for 25 s, mirror ftp.example.org"), "{line:?}");
        let line = fitted(&progress(), true, 48);
        assert_eq!(line.text, "62.0 MB/s, 8 m 17 s left, mirror ftp.exam…");
        assert_eq!(fitted(&progress(), true, 40).text, "62.0 MB/s, 8 m 17 s left, mirror …");
        assert_eq!(fitted(&progress(), true, 36).text, "62.0 MB/s, 8 m 17 s left");
        assert_eq!(fitted(&progress(), true, 20).text, "62.0 MB/s");
    }
}
