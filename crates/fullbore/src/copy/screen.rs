//! What a person sees of a copy: a bar on a terminal, a line a minute elsewhere, JSON on request.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fullbore_copy::entry::shown;
use fullbore_copy::session::{Event, Tell};
use fullbore_copy::wire::{Problem, ProblemKind};
use fullbore_engine::escape;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use super::standing::Look;
use crate::stdio;
use fullbore_engine::run::error::CommandError;

/// Time between lines of a log, and where there is no terminal.
pub const LINE_TIME: Duration = Duration::from_secs(60);
/// Time between progress events of `--json`.
const JSON_TIME: Duration = Duration::from_secs(1);
/// Problems of one kind that are named; the others are counted.
const NAMED: u64 = 20;

/// How it is shown.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Lines of JSON on stdout.
    pub json: bool,
    /// Only errors.
    pub quiet: bool,
    /// Name each file that is copied.
    pub verbose: bool,
    /// No colours.
    pub no_color: bool,
    /// Time between lines.
    pub line_time: Duration,
}

impl Default for Style {
    fn default() -> Style {
        Style { json: false, quiet: false, verbose: false, no_color: false, line_time: LINE_TIME }
    }
}

/// Shows a copy. A clone shows the same one.
#[derive(Clone)]
pub struct Screen {
    style: Style,
    bar: ProgressBar,
    state: Arc<Mutex<State>>,
}

struct State {
    problems: BTreeMap<ProblemKind, u64>,
    log: Option<Log>,
    /// When the last line was written, and the last event of `--json`.
    line: Instant,
    event: Instant,
}

/// The file of `--log-file`.
struct Log {
    path: PathBuf,
    file: File,
    /// Why it has ended before the copy.
    error: Option<io::Error>,
}

impl Log {
    /// One line, whatever the far end puts into it. A log that cannot be written to ends; the copy does not.
    fn line(&mut self, text: &str) {
        if self.error.is_none() {
            let time = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ");
            self.error = self.file.write_all(format!("{time} {}\n", escape::line(text)).as_bytes()).err();
        }
    }
}

impl Screen {
    /// A screen on this process's stdout and stderr, with an open log.
    pub fn new(style: Style, log: Option<(PathBuf, File)>) -> Screen {
        let bar = if stdio::stderr_is_terminal() && !style.quiet && !style.json {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
            let template = if style.no_color { "[{bar:28}] {wide_msg}" } else { "[{bar:28.cyan/blue}] {wide_msg}" };
            let looks = ProgressStyle::with_template(template).map(|looks| looks.progress_chars("=> "));
            bar.set_style(looks.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        } else {
            ProgressBar::hidden()
        };
        let now = Instant::now();
        let log = log.map(|(path, file)| Log { path, file, error: None });
        let state = State { problems: BTreeMap::new(), log, line: now, event: now };
        Screen { style, bar, state: Arc::new(Mutex::new(state)) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows where the copy stands.
    pub fn progress(&self, look: &Look) {
        let (line_due, event_due) = {
            let mut state = self.lock();
            let now = Instant::now();
            let is_due = |last: &mut Instant, time| {
                let due = now.duration_since(*last) >= time;
                if due {
                    *last = now;
                }
                due
            };
            (is_due(&mut state.line, self.style.line_time), is_due(&mut state.event, JSON_TIME))
        };
        if !self.bar.is_hidden() {
            self.bar.set_length(look.total_bytes.max(1));
            self.bar.set_position(look.bytes);
            self.bar.set_message(escape::line(&look.words()).into_owned());
        }
        if event_due && self.style.json {
            let mut event = json!(look);
            event["event"] = json!("progress");
            self.json(&event);
        }
        match line_due {
            true if self.bar.is_hidden() && !self.style.json && !self.style.quiet => self.line(&look.words()),
            true => self.log(&look.words()),
            false => {}
        }
    }

    /// A line in the log alone.
    pub fn log(&self, text: &str) {
        if let Some(log) = &mut self.lock().log {
            log.line(text);
        }
    }

    /// Why the log is not whole.
    pub fn log_error(&self) -> Option<CommandError> {
        let state = self.lock();
        let log = state.log.as_ref()?;
        Some(CommandError::disk(&log.path, log.error.as_ref()?).context("--log-file"))
    }

    /// A line on stderr, and in the log.
    pub fn line(&self, text: &str) {
        self.log(text);
        self.bar.suspend(|| stdio::say(text));
    }

    /// A failure: its lines on stderr and in the log, the event of `--json`.
    pub fn fail(&self, error: &CommandError) {
        error.lines().iter().for_each(|line| self.line(line));
        self.json(&json!({
            "event": "error", "kind": error.kind.name(), "exit_code": error.exit_code(), "message": error.message,
            "context": error.context, "hints": error.hints,
        }));
    }

    /// A line on stdout.
    pub fn data(&self, text: &str) {
        // Lost output ends the output, not the copy; it is told at the end.
        let _ = self.bar.suspend(|| stdio::print_line(text));
    }

    /// An event of `--json`.
    pub fn json(&self, event: &serde_json::Value) {
        if self.style.json {
            let _ = self.bar.suspend(|| stdio::print_json(event));
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
                "event": if problem.kind.is_wished() { "note" } else { "problem" }, "problem": format!("{:?}", problem.kind).to_lowercase(), "path": path,
                "message": problem.text,
            }));
        }
        if count <= NAMED {
            self.line(&format!("{path}: {}: {}", problem.kind.words(), problem.text));
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
            Event::Removed(path) if self.style.verbose => self.data(&format!("removing {}", shown(&path))),
            Event::Deleted(path) if self.style.verbose => self.data(&format!("deleting {}", shown(&path))),
            Event::Wanted(path) if self.style.verbose => self.data(&shown(&path)),
            Event::Deleted(_) | Event::Wanted(_) | Event::Removed(_) => {}
        }
    }
}
