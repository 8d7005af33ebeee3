//! What a person sees of a copy: a bar on a terminal, a line a minute elsewhere, JSON on request.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{IsTerminal as _, Write as _};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fullbore_copy::entry::shown;
use fullbore_copy::session::{Event, Progress, Tell};
use fullbore_copy::wire::{Problem, ProblemKind};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use crate::error::printable;
use crate::report::units;

/// Time between lines when there is no terminal.
const LINE_TIME: Duration = Duration::from_secs(60);
/// Time between progress events of `--json`.
const JSON_TIME: Duration = Duration::from_secs(1);
/// Problems of one kind that are named; the others are counted.
const NAMED: u64 = 20;
/// Weight of the newest look in the rate that is shown; looks come four times a second.
const RATE_WEIGHT: f64 = 0.15;

/// How it is shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// Lines of JSON on stdout.
    pub json: bool,
    /// Only errors.
    pub quiet: bool,
    /// Name each file that is copied.
    pub verbose: bool,
    /// No colours.
    pub no_color: bool,
}

/// Shows a copy.
pub struct Screen {
    style: Style,
    bar: ProgressBar,
    state: Mutex<State>,
}

struct State {
    problems: BTreeMap<ProblemKind, u64>,
    log: Option<File>,
    began: Instant,
    line: Instant,
    last: Option<(Instant, u64)>,
    rate_bytes_per_s: f64,
}

impl Screen {
    /// A screen on this process's stdout and stderr.
    pub fn new(style: Style, log: Option<File>) -> Screen {
        let bar = if std::io::stderr().is_terminal() && !style.quiet && !style.json {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
            let template = if style.no_color { "[{bar:28}] {wide_msg}" } else { "[{bar:28.cyan/blue}] {wide_msg}" };
            let looks = ProgressStyle::with_template(template).map(|looks| looks.progress_chars("=> "));
            bar.set_style(looks.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        } else {
            ProgressBar::hidden()
        };
        let now = Instant::now();
        let state = State { problems: BTreeMap::new(), log, began: now, line: now, last: None, rate_bytes_per_s: 0.0 };
        Screen { style, bar, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows where the copy stands.
    pub fn progress(&self, progress: &Progress, limit: Option<String>) {
        let account = progress.account();
        let mut state = self.lock();
        let now = Instant::now();
        let (then, before) = state.last.unwrap_or((state.began, 0));
        let seconds = now.duration_since(then).as_secs_f64().max(0.01);
        let newest = account.written_bytes.saturating_sub(before) as f64 / seconds;
        let weight = if state.last.is_none() { 1.0 } else { RATE_WEIGHT };
        state.rate_bytes_per_s += weight * (newest - state.rate_bytes_per_s);
        state.last = Some((now, account.written_bytes));
        let rate = state.rate_bytes_per_s;
        let left = account.wanted_bytes.saturating_sub(account.written_bytes);
        let eta_s = (progress.is_complete() && rate > 1.0).then(|| (left as f64 / rate) as u64);
        let line_due = now.duration_since(state.line) >= if self.style.json { JSON_TIME } else { LINE_TIME };
        if line_due {
            state.line = now;
        }
        drop(state);
        let more = if progress.is_complete() { "" } else { " so far" };
        let mut text = format!(
            "{} of {}{more}, {} of {} files, {}/s",
            units::bytes(account.written_bytes),
            units::bytes(account.wanted_bytes),
            account.files,
            account.wanted_files,
            units::bytes(rate as u64),
        );
        if let Some(eta_s) = eta_s {
            text.push_str(&format!(", {} left", units::duration(eta_s.saturating_mul(1000))));
        }
        if let Some(limit) = &limit {
            text.push_str(&format!(", limited by {}", printable(limit)));
        }
        if line_due && let Some(log) = &mut self.lock().log {
            // A log that cannot be written to ends; the copy does not.
            let _ = writeln!(log, "{} {text}", jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ"));
        }
        if !self.bar.is_hidden() {
            self.bar.set_length(account.wanted_bytes.max(1));
            self.bar.set_position(account.written_bytes);
            self.bar.set_message(text);
        } else if line_due && self.style.json {
            self.json(&json!({
                "event": "progress", "bytes": account.written_bytes, "total_bytes": account.wanted_bytes,
                "files": account.files, "total_files": account.wanted_files, "complete": progress.is_complete(),
                "rate_bytes_per_s": rate as u64, "eta_s": eta_s, "limit": limit,
            }));
        } else if line_due && !self.style.quiet {
            self.line(&text);
        }
    }

    /// A line on stderr.
    pub fn line(&self, text: &str) {
        if let Some(log) = &mut self.lock().log {
            let _ = writeln!(log, "{} {text}", jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ"));
        }
        self.bar.suspend(|| {
            // Nobody is left to be told of an error on stderr.
            let _ = writeln!(std::io::stderr(), "{text}");
        });
    }

    /// A line of data on stdout.
    pub fn data(&self, text: &str) {
        self.bar.suspend(|| {
            // A reader that goes away ends the output, not the copy.
            let _ = writeln!(std::io::stdout(), "{text}");
        });
    }

    /// An event of `--json`.
    pub fn json(&self, event: &serde_json::Value) {
        if self.style.json {
            self.data(&event.to_string());
        }
    }

    /// Takes the bar away.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }

    /// How often each kind of problem was told.
    pub fn problems(&self) -> BTreeMap<ProblemKind, u64> {
        self.lock().problems.clone()
    }

    fn problem(&self, problem: &Problem) {
        let count = {
            let mut state = self.lock();
            let count = state.problems.entry(problem.kind).or_default();
            *count += 1;
            *count
        };
        let path = shown(&problem.path);
        let path = if path.is_empty() { ".".to_owned() } else { path };
        if self.style.json {
            self.json(&json!({
                "event": "problem", "problem": format!("{:?}", problem.kind).to_lowercase(), "path": path,
                "message": problem.text,
            }));
        }
        if count <= NAMED {
            self.line(&format!("{}: {}: {}", printable(&path), problem.kind.words(), printable(&problem.text)));
        }
    }
}

impl Tell for Screen {
    fn tell(&self, event: Event) {
        match event {
            Event::Problem(problem) => self.problem(&problem),
            Event::Deleted(path) if self.style.json => self.json(&json!({"event": "deleted", "path": shown(&path)})),
            Event::Wanted(path) if self.style.json => self.json(&json!({"event": "copy", "path": shown(&path)})),
            Event::Removed(path) if self.style.json => self.json(&json!({"event": "removed", "path": shown(&path)})),
            Event::Removed(path) if self.style.verbose => self.data(&format!("removing {}", printable(&shown(&path)))),
            Event::Deleted(path) if self.style.verbose => self.data(&format!("deleting {}", printable(&shown(&path)))),
            Event::Wanted(path) if self.style.verbose => self.data(&printable(&shown(&path))),
            Event::Deleted(_) | Event::Wanted(_) | Event::Removed(_) => {}
        }
    }
}
