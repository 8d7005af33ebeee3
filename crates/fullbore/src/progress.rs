//! How events look: a bar on a terminal, log lines elsewhere, JSON on request.
//!
//! Everything goes to stderr but JSON and the closing line, which are data and go
//! to stdout. Output that is lost ends the output, not the run; see [`stdio`].

mod line;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fullbore_engine::escape;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::events::{Event, Events, Phase, Plan, Progress, WorkerChange};
use fullbore_engine::run::listed::{ListedEntry, ListedKind};
use fullbore_engine::run::report::Summary;
use fullbore_engine::run::stored::StoredFile;
use fullbore_engine::units;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::report::{parts, time};
use crate::settings::{Environment, OutputSettings};
use crate::stdio;
use line::Fitted;
pub use line::progress_text;

/// Time between log lines when there is no terminal. A guess: a night's run stays readable.
const LOG_INTERVAL: Duration = Duration::from_secs(30);
/// Time between progress events of `--json`.
const JSON_INTERVAL: Duration = Duration::from_secs(1);

/// Columns of the bar until it is known what stands beside it.
const FIRST_BAR: usize = 8;
/// Problems of one kind that are named; the others are counted. A guess: what fits a screen.
const PROBLEMS_NAMED: u64 = 20;

/// How urgent a line is; the numbers are syslog's, which systemd's journal reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Error = 3,
    Warning = 4,
    Info = 6,
}

/// Where the lines of stderr go; shared with the log.
#[derive(Clone)]
pub struct Terminal {
    bar: ProgressBar,
    stderr: Arc<Mutex<Box<dyn Write + Send>>>,
    /// The file of `--log-file`.
    log: Option<Arc<Mutex<LogFile>>>,
}

/// A file that has all lines of stderr as well.
struct LogFile {
    path: PathBuf,
    file: File,
    /// Why it has ended before the run.
    error: Option<std::io::Error>,
}

impl LogFile {
    /// One line, whatever a far end puts into it. A log that cannot be written to ends; the run does not.
    fn line(&mut self, text: &str) {
        if self.error.is_none() {
            let line = format!("{} {}\n", now(), escape::message(text));
            self.error = self.file.write_all(line.as_bytes()).err();
        }
    }
}

/// The time as each line of a log begins with it.
fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

impl Terminal {
    /// Writes a line to the file of `--log-file` alone.
    fn log(&self, text: &str) {
        if let Some(log) = &self.log {
            log.lock().unwrap_or_else(PoisonError::into_inner).line(text);
        }
    }

    /// Writes a line between two drawings of the bar.
    fn line(&self, text: &str) {
        self.bar.suspend(|| {
            let mut stderr = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
            // Nobody is left to be told of an error on stderr.
            let _ = stderr.write_all(format!("{}\n", escape::message(text)).as_bytes()).and_then(|()| stderr.flush());
        });
    }
}

/// For the libraries' log, which writes one record at a time.
impl Write for Terminal {
    fn write(&mut self, record: &[u8]) -> std::io::Result<usize> {
        let text = stdio::record_text(record);
        self.log(&text);
        self.line(&text);
        Ok(record.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Renders the events of a run.
pub struct Screen {
    terminal: Terminal,
    stdout: Option<Box<dyn Write + Send>>,
    json: bool,
    quiet: bool,
    verbose: bool,
    journal: bool,
    is_terminal: bool,
    no_color: bool,
    stdout_has_data: bool,
    /// Lines on stdout may come between two drawings of the bar.
    stdout_meets_bar: bool,
    last_line: Option<Instant>,
    last_json: Option<Instant>,
    faulty_hosts: HashSet<String>,
    /// See [`OutputSettings::dpkg_prints`].
    dpkg_prints: bool,
    /// It does so now.
    terminal_is_used: bool,
    /// A program of the user has the terminal now.
    terminal_is_lent: bool,
    /// Columns of the line with the bar; none: those of stderr.
    columns: Option<usize>,
    /// Name each file on stdout.
    names: bool,
    /// See [`OutputSettings::itemizes`].
    itemizes: bool,
    /// Problems told so far, by kind.
    problems: HashMap<String, u64>,
    line_time: Duration,
    /// When a line of progress was written to the log file last.
    last_logged: Option<Instant>,
}

impl Screen {
    /// A screen on the process's stdout and stderr.
    pub fn new(output: &OutputSettings, environment: &Environment) -> Self {
        let is_terminal = stdio::stderr_is_terminal();
        let stdout: Box<dyn Write + Send> =
            if output.stdout_is_taken { Box::new(stdio::Stderr) } else { Box::new(stdio::Stdout) };
        let mut screen = Screen::on(output, environment, is_terminal, stdout, Box::new(stdio::Stderr));
        screen.stdout_meets_bar = output.stdout_is_taken || stdio::stdout_is_terminal();
        screen.columns = None;
        if screen.shows_bar() {
            screen.terminal.bar = bar(ProgressDrawTarget::stderr());
            let first = Fitted { phase: true, bar: FIRST_BAR, text: String::new() };
            screen.terminal.bar.set_style(bar_style(screen.no_color, &first));
        }
        screen
    }

    /// Opens the file of `--log-file`, if there is to be one.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn with_log(mut self, output: &OutputSettings) -> Result<Self, CommandError> {
        if let Some(path) = &output.log_file {
            let file = File::options().create(true).append(true).open(path);
            let file = file.map_err(|error| CommandError::cannot("write", path, &error))?;
            self.terminal.log = Some(Arc::new(Mutex::new(LogFile { path: path.clone(), file, error: None })));
        }
        Ok(self)
    }

    /// Ends the log file with how the run ended; the error if the file is not whole.
    pub fn end_log(&mut self, summary: &Summary) -> Option<CommandError> {
        let log = self.terminal.log.clone()?;
        if !nothing_came_of_it(summary) {
            self.terminal.log(&summary.to_string());
        }
        let log = log.lock().unwrap_or_else(PoisonError::into_inner);
        Some(CommandError::cannot("write", &log.path, log.error.as_ref()?).context("--log-file"))
    }

    fn on(
        output: &OutputSettings,
        environment: &Environment,
        is_terminal: bool,
        stdout: Box<dyn Write + Send>,
        stderr: Box<dyn Write + Send>,
    ) -> Self {
        Screen {
            terminal: Terminal { bar: ProgressBar::hidden(), stderr: Arc::new(Mutex::new(stderr)), log: None },
            stdout: Some(stdout),
            json: output.json,
            quiet: output.quiet,
            verbose: output.verbose > 0,
            journal: environment.journal,
            is_terminal,
            no_color: environment.no_color,
            stdout_has_data: output.stdout_has_data,
            stdout_meets_bar: true,
            // A run that ends sooner has no line.
            last_line: Some(Instant::now()),
            last_json: None,
            faulty_hosts: HashSet::new(),
            dpkg_prints: output.dpkg_prints,
            terminal_is_used: false,
            terminal_is_lent: false,
            columns: Some(80),
            names: output.names,
            itemizes: output.itemizes,
            problems: HashMap::new(),
            line_time: output.line_time.unwrap_or(LOG_INTERVAL),
            last_logged: Some(Instant::now()),
        }
    }

    /// stderr, for the log.
    pub fn terminal(&self) -> Terminal {
        self.terminal.clone()
    }

    fn shows_bar(&self) -> bool {
        self.is_terminal && !self.quiet && !self.json && !self.journal
    }

    /// Takes the bar away.
    pub fn clear(&mut self) {
        self.terminal.bar.finish_and_clear();
    }

    /// A failure: its text on stderr, the event in JSON.
    pub fn fail(&mut self, error: &CommandError) {
        self.terminal.bar.finish_and_clear();
        self.emit_json(&Event::Error {
            kind: error.kind,
            exit_code: error.exit_code(),
            message: error.message.clone(),
            context: error.context.clone(),
            hints: error.hints.clone(),
        });
        // Each line has its own priority in the journal; the text of a failure stays together.
        for line in error.lines() {
            self.line(Level::Error, &line);
        }
    }

    /// The end of a mirror: the closing line, or the totals as the last event.
    pub fn finish(&mut self, summary: &Summary) {
        self.terminal.bar.finish_and_clear();
        if self.json {
            self.emit_json(&Event::Summary(Box::new(summary.clone())));
        } else if matches!(summary.command.as_str(), "ls" | "status") {
            // Its lines are all that it is for.
        } else if (!self.quiet || summary.probe.is_some()) && !nothing_came_of_it(summary) {
            let name = summary.name.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
            let line = format!("{name}{summary}");
            if self.stdout_has_data {
                self.close_on_stderr(&line, summary)
            } else {
                self.print_line(&line)
            }
            let columns = stdio::stdout_is_terminal().then(|| usize::from(console::Term::stdout().size().1));
            parts::below(summary, columns).iter().for_each(|line| self.print_line(line));
        }
    }

    /// The closing line beside data on stdout, and what the verdict is made of, for those who want to know.
    fn close_on_stderr(&self, line: &str, summary: &Summary) {
        let level = if self.journal { format!("<{}>", Level::Info as u8) } else { String::new() };
        self.terminal.line(&format!("{level}{line}"));
        if let Some(verdict) = summary.verdict.as_ref().filter(|_| self.verbose) {
            let advice = Some(&verdict.advice).filter(|advice| !advice.is_empty());
            for line in verdict.evidence.iter().chain(advice) {
                self.terminal.line(&format!("{level}  {line}"));
            }
        }
    }

    /// A line for people on stdout.
    pub fn print_line(&mut self, text: &str) {
        self.print(format!("{}\n", escape::line(text)).as_bytes());
    }

    /// A line of JSON on stdout.
    pub fn print_json(&mut self, value: &impl Serialize) {
        self.print(&escape::json_line(value));
    }

    /// Data for stdout, as it is.
    pub fn print(&mut self, data: &[u8]) {
        // Lost output ends no run; it is told at its end.
        let _ = self.try_print(data);
    }

    fn try_print(&mut self, data: &[u8]) -> std::io::Result<()> {
        let Some(stdout) = &mut self.stdout else { return Err(std::io::ErrorKind::BrokenPipe.into()) };
        let mut write = || stdout.write_all(data).and_then(|()| stdout.flush());
        // Drawing the bar anew for each of a million lines is worth it only where they would meet.
        let written = if self.stdout_meets_bar { self.terminal.bar.suspend(write) } else { write() };
        if written.is_err() {
            self.stdout = None;
        }
        written
    }

    /// The cap or the address of a file, or all that is known of it.
    fn print_stored(&mut self, event: &Event, file: &StoredFile) -> std::io::Result<()> {
        if self.json {
            return self.try_print(&escape::json_line(event));
        }
        if !file.is_shown {
            return Ok(());
        }
        self.try_print(format!("{}\n", escape::line(&file.cap)).as_bytes())
    }

    /// An entry of a directory.
    fn print_listed(&mut self, event: &Event, entry: &ListedEntry) -> std::io::Result<()> {
        if self.json {
            return self.try_print(&escape::json_line(event));
        }
        let size = entry.size.map_or_else(|| "-".to_owned(), |size| size.to_string());
        let modified = entry.modified_unix_s.map_or_else(|| "-".to_owned(), time::text);
        let mark = match entry.kind {
            ListedKind::File => "",
            ListedKind::Directory => "/",
            ListedKind::Unknown => " (not understood)",
        };
        let line = format!("{size:>14}  {modified:<23}  {}{mark}", entry.name);
        self.try_print(format!("{}\n", escape::line(&line)).as_bytes())
    }

    fn emit_json(&mut self, event: &Event) {
        if self.json {
            self.print_json(event);
        }
    }

    fn line(&self, level: Level, text: &str) {
        self.terminal.log(text);
        self.stderr_line(level, text);
    }

    fn stderr_line(&self, level: Level, text: &str) {
        if self.quiet && level != Level::Error {
            return;
        }
        if self.journal {
            self.terminal.line(&format!("<{}>{text}", level as u8));
        } else if self.is_terminal || level == Level::Error {
            self.terminal.line(text);
        } else {
            self.terminal.line(&format!("{} {text}", now()));
        }
    }

    fn progress(&mut self, progress: &Progress) {
        let line_time = self.line_time;
        if self.shows_bar() {
            if self.terminal_is_used || self.terminal_is_lent {
                return;
            }
            let bar = &self.terminal.bar;
            let (done, total) = match progress.percent {
                Some(percent) => (percent, 100),
                None => (progress.bytes, progress.total_bytes),
            };
            bar.set_length(total.max(1));
            bar.set_position(done.min(total));
            let columns = self.columns.unwrap_or_else(|| usize::from(console::Term::stderr().size().1));
            draw(bar, progress, columns, self.no_color);
        } else if due(&mut self.last_line, line_time) {
            self.stderr_line(Level::Info, &progress_text(progress));
        }
        if self.terminal.log.is_some() && due(&mut self.last_logged, line_time) {
            self.terminal.log(&progress_text(progress));
        }
    }

    /// While apt or dpkg print to the same terminal there is no bar between their lines.
    fn turn(&mut self, phase: Phase) {
        if !self.dpkg_prints {
            return;
        }
        let is_used = matches!(phase, Phase::Unpack | Phase::Configure);
        match (is_used, self.terminal_is_used) {
            (true, false) => self.terminal.bar.finish_and_clear(),
            (false, true) => self.terminal.bar.reset(),
            _ => {}
        }
        self.terminal_is_used = is_used;
    }

    fn problem(&mut self, problem: String, level: Level, line: &str) {
        let count = self.problems.entry(problem).or_default();
        *count += 1;
        // A log names all of them.
        self.terminal.log(line);
        if *count <= PROBLEMS_NAMED {
            self.stderr_line(level, line);
        }
    }

    /// The name of a file on stdout.
    fn name(&mut self, text: &str) {
        if self.names && !self.json && !self.quiet {
            self.print_line(text);
        }
    }
}

impl Events for Screen {
    fn lend_terminal(&mut self, is_lent: bool) {
        self.terminal_is_lent = is_lent;
        if is_lent {
            self.terminal.bar.finish_and_clear();
        } else if !self.terminal_is_used {
            self.terminal.bar.reset();
        }
    }

    fn tell(&mut self, event: Event) -> Result<(), CommandError> {
        match &event {
            Event::Stored(file) | Event::Present(file) | Event::WouldStore(file) => {
                self.print_stored(&event, file).map_err(|error| stdio::stdout_error(&error))
            }
            Event::Listed(entry) => self.print_listed(&event, entry).map_err(|error| stdio::stdout_error(&error)),
            _ => {
                self.emit(event);
                Ok(())
            }
        }
    }

    fn emit(&mut self, event: Event) {
        if let Event::Stored(file) | Event::Present(file) | Event::WouldStore(file) = &event {
            // Lost output ends no run; it is told at its end.
            let _ = self.print_stored(&event, file);
            return;
        }
        let often = matches!(event, Event::Progress(_));
        if !often || due(&mut self.last_json, JSON_INTERVAL) {
            self.emit_json(&event);
        }
        match event {
            Event::Started { name, dir, .. } => {
                // The bar of the mirror before is finished and would stay hidden.
                self.terminal.bar.reset();
                let name = name.map(|name| format!("{name}, ")).unwrap_or_default();
                if !self.is_terminal && !self.stdout_has_data {
                    self.line(Level::Info, &format!("started: {name}{dir}"));
                }
            }
            Event::Phase { phase } => {
                self.terminal.bar.set_prefix(phase.name());
                self.turn(phase);
                if self.shows_bar() && !self.terminal_is_used && !self.terminal_is_lent {
                    self.terminal.bar.tick();
                }
            }
            // An update does not count what is there.
            Event::Plan(plan) if plan.wanted_files == 0 && plan.delete_files == 0 => self.line(
                Level::Info,
                &format!("to fetch: {}, {}", files(plan.fetch_files), units::bytes(plan.fetch_bytes)),
            ),
            Event::Plan(plan) => self.line(
                Level::Info,
                &format!(
                    "wanted: {}, {}; to fetch: {}, {}; to delete: {}, {}",
                    files(plan.wanted_files),
                    units::bytes(plan.wanted_bytes),
                    plan.fetch_files,
                    units::bytes(plan.fetch_bytes),
                    plan.delete_files,
                    units::bytes(plan.delete_bytes),
                ),
            ),
            // In JSON it is printed already.
            Event::Pinned(pinned) if !self.json => self.print_line(&pinned.run),
            Event::Pinned(_) => {}
            Event::Queue(status) if !self.json => status.lines().iter().for_each(|line| self.print_line(line)),
            Event::Queue(_) => {}
            Event::WouldDelete { path, bytes } => {
                if self.verbose {
                    self.line(Level::Info, &format!("would delete {path}, {}", units::bytes(bytes)));
                }
            }
            Event::WouldDeleteObject { key } => self.line(Level::Info, &format!("would delete {key}")),
            // Those were printed, these would be too many.
            Event::Stored(_) | Event::Present(_) | Event::WouldStore(_) | Event::DeletingObject { .. } => {}
            Event::Progress(progress) => self.progress(&progress),
            Event::Worker { worker, change } => match change {
                WorkerChange::Joined if self.verbose => self.line(Level::Info, &format!("worker {worker} joined")),
                WorkerChange::Joined => {}
                WorkerChange::Left => {
                    let text = format!("warning: worker {worker} has been silent for 30 s: others do its work");
                    self.line(Level::Warning, &text);
                }
                WorkerChange::Fault { path, fault } => {
                    let first = self.faulty_hosts.insert(format!("worker {worker}"));
                    if first || self.verbose {
                        self.line(Level::Warning, &format!("warning: worker {worker}: {path}: {fault}"));
                    }
                }
            },
            Event::HostFault { host, path, fault, .. } => {
                let first = self.faulty_hosts.insert(host.clone());
                if first || self.verbose {
                    let path = path.map(|path| format!("{path}: ")).unwrap_or_default();
                    self.line(Level::Warning, &format!("warning: {host}: {path}{fault}"));
                }
            }
            Event::Published { suite, codename, date_unix_s } => {
                let name = if suite == codename { suite } else { format!("{suite} ({codename})") };
                let of =
                    if date_unix_s == 0 { ", undated".to_owned() } else { format!(" of {}", time::text(date_unix_s)) };
                self.line(Level::Info, &format!("published {name}{of}"));
            }
            // Printed by whoever was told of it.
            Event::Listed(_) => {}
            Event::Checked(file) => {
                let line = format!("{}: {}", file.path, file.message);
                match (file.healthy, file.recoverable) {
                    (true, _) if !file.damaged.is_empty() => self.line(Level::Warning, &format!("warning: {line}")),
                    (true, _) if file.is_shown || self.verbose => self.line(Level::Info, &line),
                    (true, _) => {}
                    (false, true) => self.problem("unhealthy".to_owned(), Level::Error, &line),
                    (false, false) => self.problem("unrecoverable".to_owned(), Level::Error, &line),
                }
            }
            Event::Repaired { path, bytes } => {
                self.line(Level::Info, &format!("repaired {path}, {}", units::bytes(bytes)));
            }
            Event::Extra { path, bytes } => {
                if self.verbose {
                    self.line(Level::Info, &format!("named by no signed index: {path}, {}", units::bytes(bytes)));
                }
            }
            // Said in words by who publishes.
            Event::Index(_) => {}
            Event::Problem { problem, path, message, harmless } => {
                let level = if harmless { Level::Info } else { Level::Error };
                self.problem(problem, level, &format!("{path}: {message}"));
            }
            // Often the reason of the failure that follows.
            Event::Said { host, message } => self.line(Level::Error, &format!("{host}: {message}")),
            Event::Copy { path, change: None } => self.name(&path),
            Event::Copy { path, change: Some(change) } => self.name(&format!("{change} {path}")),
            Event::Deleted { path } if self.itemizes => self.name(&format!("*deleting   {path}")),
            Event::Deleted { path } => self.name(&format!("deleting {path}")),
            Event::Removed { path } => self.name(&format!("removing {path}")),
            // Whoever reads a log later learns nothing of it.
            Event::Trial { what } if self.shows_bar() => {
                // Trials take the time that they are given: there is nothing to measure them by.
                self.terminal.bar.finish_and_clear();
                self.terminal.line(&format!("trying: {what}"));
            }
            Event::Trial { .. } => {}
            Event::Note { message } => self.line(Level::Info, &message),
            Event::Warning { message } => self.line(Level::Warning, &format!("warning: {message}")),
            // Come by `fail` and `finish`.
            Event::Error { .. } | Event::Summary(_) => {}
        }
    }
}

fn files(count: u64) -> String {
    units::several(count, "file", "files")
}

/// Whether the error that was shown says it all.
fn nothing_came_of_it(summary: &Summary) -> bool {
    let totals = &summary.totals;
    if let Some(copy) = &summary.copy {
        return !copy.finished;
    }
    if summary.exit_code == 0 {
        return false;
    }
    if summary.dry_run {
        return summary.plan == Plan::default();
    }
    let interrupted = summary.exit_code == ErrorKind::Interrupted.exit_code() && totals.received_bytes > 0;
    totals.written_bytes == 0 && totals.checked_files == 0 && !interrupted
}

/// Whether it is time again; notes that it was done.
fn due(last: &mut Option<Instant>, interval: Duration) -> bool {
    let now = Instant::now();
    let due = last.is_none_or(|last| now.duration_since(last) >= interval);
    if due {
        *last = Some(now);
    }
    due
}

fn bar(target: ProgressDrawTarget) -> ProgressBar {
    // A bar of no length says that all is done.
    ProgressBar::with_draw_target(Some(1), target)
}

/// Puts a bar and the text beside it on so many columns.
fn draw(bar: &ProgressBar, progress: &Progress, columns: usize, no_color: bool) {
    let escaped = |text: &String| escape::message(text).into_owned();
    let progress = Progress { limit: progress.limit.as_ref().map(escaped), ..progress.clone() };
    let fitted = line::fitted(&progress, !bar.prefix().is_empty(), columns);
    bar.set_style(bar_style(no_color, &fitted));
    bar.set_message(fitted.text);
}

fn bar_style(no_color: bool, fitted: &Fitted) -> ProgressStyle {
    let colour = if no_color { "" } else { ".cyan/blue" };
    let phase = if fitted.phase { "{prefix:7} " } else { "" };
    let bar = if fitted.bar > 0 { format!("[{{bar:{}{colour}}}] ", fitted.bar) } else { String::new() };
    ProgressStyle::with_template(&format!("{phase}{bar}{{percent:>3}} % {{wide_msg}}"))
        .map(|style| style.progress_chars("=> "))
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_engine::run::report::{StoreReport, VerdictReport};

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(text);
            Ok(text.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Shared {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    fn screen(output: OutputSettings, environment: Environment) -> (Screen, Shared, Shared) {
        let (stdout, stderr) = (Shared::default(), Shared::default());
        let screen = Screen::on(&output, &environment, false, Box::new(stdout.clone()), Box::new(stderr.clone()));
        (screen, stdout, stderr)
    }

    fn a_run(screen: &mut Screen) {
        screen.emit(Event::Phase { phase: Phase::Plan });
        screen.emit(Event::Plan(Plan { fetch_files: 3, fetch_bytes: 5_000_000, ..Plan::default() }));
        for i in 0..1000 {
            screen.emit(Event::Progress(Progress { bytes: i, total_bytes: 5_000_000, ..Progress::default() }));
        }
        for strikes in 1..10 {
            screen.emit(Event::HostFault { host: "a".into(), path: None, fault: "404".into(), strikes });
        }
        screen.emit(Event::Published { suite: "stable".into(), codename: "trixie".into(), date_unix_s: 0 });
        screen.fail(&CommandError::new(ErrorKind::Partial, "1 file is missing").hint("run again"));
        screen.finish(&Summary {
            command: "mirror".into(),
            exit_code: 2,
            totals: fullbore_engine::run::report::Totals { files: 2, written_bytes: 3_000_000, ..Default::default() },
            duration_ms: 1500,
            ..Summary::default()
        });
    }

    /// A terminal of 80 columns that keeps what was drawn last.
    #[derive(Clone, Debug, Default)]
    struct Narrow(Arc<Mutex<String>>);

    impl indicatif::TermLike for Narrow {
        fn width(&self) -> u16 {
            80
        }
        fn move_cursor_up(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> std::io::Result<()> {
            self.write_str(text)
        }
        fn write_str(&self, text: &str) -> std::io::Result<()> {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }
        fn clear_line(&self) -> std::io::Result<()> {
            self.0.lock().unwrap().clear();
            Ok(())
        }
        fn flush(&self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn eighty_columns_show_time_left_and_limit_in_full() {
        let term = Narrow::default();
        let bar = bar(ProgressDrawTarget::term_like(Box::new(term.clone())));
        bar.set_prefix("release");
        draw(&bar, &Progress::default(), 80, true);
        bar.tick();
        assert!(term.0.lock().unwrap().contains("  0 %"), "nothing is known yet: {term:?}");
        bar.set_length(100);
        bar.set_prefix("fetch");
        bar.set_position(40);
        let progress = Progress {
            bytes: 400_000_000,
            total_bytes: 1_000_000_000,
            rate_bytes_per_s: 62_000_000,
            eta_s: Some(497),
            limit: Some("mirror ftp.example.org".to_owned()),
            ..Progress::default()
        };
        draw(&bar, &progress, 80, true);
        bar.tick();
        let line = term.0.lock().unwrap().clone();
        assert!(line.contains("8 m 17 s left, limit: mirror ftp.example.org"), "{line:?}");
    }

    #[test]
    fn there_is_no_bar_between_the_lines_of_dpkg() {
        let output = OutputSettings { dpkg_prints: true, ..OutputSettings::default() };
        let (mut screen, ..) = screen(output, Environment::default());
        let term = Narrow::default();
        screen.is_terminal = true;
        screen.terminal.bar = bar(ProgressDrawTarget::term_like(Box::new(term.clone())));
        let progress = || Event::Progress(Progress { percent: Some(40), ..Progress::default() });
        let shown = |screen: &mut Screen| {
            screen.terminal.bar.tick();
            std::mem::take(&mut *term.0.lock().unwrap())
        };
        screen.emit(Event::Phase { phase: Phase::Fetch });
        screen.emit(progress());
        assert!(shown(&mut screen).contains("40 %"));
        screen.emit(Event::Phase { phase: Phase::Unpack });
        screen.emit(progress());
        screen.emit(Event::Phase { phase: Phase::Configure });
        screen.emit(progress());
        assert_eq!(std::mem::take(&mut *term.0.lock().unwrap()), "");
        screen.emit(Event::Phase { phase: Phase::Sync });
        screen.emit(progress());
        assert!(shown(&mut screen).contains("sync"));
    }

    #[test]
    fn the_journal_gets_priorities_and_few_lines() {
        let environment = Environment { journal: true, ..Environment::default() };
        let (mut screen, stdout, stderr) = screen(OutputSettings::default(), environment);
        a_run(&mut screen);
        insta::assert_snapshot!(stderr.text(), @r"
        <6>to fetch: 3 files, 5.00 MB
        <4>warning: a: 404
        <6>published stable (trixie), undated
        <3>error: 1 file is missing
        <3>hint: run again
        ");
        assert_eq!(stdout.text(), "3.00 MB in 1.5 s, 2.00 MB/s.\n");
    }

    #[test]
    fn json_has_the_totals_last() {
        let output = OutputSettings { json: true, quiet: true, ..OutputSettings::default() };
        let (mut screen, stdout, stderr) = screen(output, Environment::default());
        a_run(&mut screen);
        let text = stdout.text();
        let names: Vec<String> = text
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["event"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(names[..3], ["phase", "plan", "progress"]);
        assert_eq!(names[names.len() - 2..], ["error", "summary"]);
        assert_eq!(stderr.text(), "error: 1 file is missing\nhint: run again\n");
    }

    #[test]
    fn a_closed_pipe_ends_the_output_only() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(std::io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let output = OutputSettings { json: true, ..OutputSettings::default() };
        let stderr = Shared::default();
        let mut screen =
            Screen::on(&output, &Environment::default(), false, Box::new(Closed), Box::new(stderr.clone()));
        a_run(&mut screen);
        assert!(screen.stdout.is_none());
    }

    #[test]
    fn beside_data_on_stdout_the_closing_line_goes_to_stderr() {
        let output = OutputSettings { stdout_has_data: true, verbose: 1, ..OutputSettings::default() };
        let (mut screen, stdout, stderr) = screen(output, Environment::default());
        let (command, version, dir) = ("put".to_owned(), "1".to_owned(), "a grid".to_owned());
        screen.emit(Event::Started { command: command.clone(), version, name: None, dir, started_unix_s: 0 });
        screen.emit(Event::Progress(Progress::default()));
        assert_eq!(stderr.text(), "", "a run that soon ends has nothing to say");
        screen.last_line = Instant::now().checked_sub(LOG_INTERVAL);
        screen.emit(Event::Progress(Progress { bytes: 5, ..Progress::default() }));
        screen.emit(Event::Progress(Progress { bytes: 6, ..Progress::default() }));
        let lines = std::mem::take(&mut *stderr.0.lock().unwrap());
        let lines = String::from_utf8(lines).unwrap();
        assert!(lines.ends_with("Z 5 B, 0 B/s\n") && lines.lines().count() == 1, "{lines}");
        let file = StoredFile { is_shown: true, ..StoredFile::new(std::path::Path::new("a"), 5, "URI:x\u{1b}") };
        screen.emit(Event::Stored(file.clone()));
        screen.tell(Event::Stored(StoredFile { is_shown: false, ..file })).unwrap();
        let evidence = vec!["one figure".to_owned()];
        let verdict = VerdictReport { limit: "mixed".into(), reason: "x".into(), evidence, ..VerdictReport::default() };
        let store = Some(StoreReport { files: 1, ..StoreReport::default() });
        screen.finish(&Summary { command, store, verdict: Some(verdict), duration_ms: 2000, ..Summary::default() });
        assert_eq!(stdout.text(), "URI:x\\u{1b}\n");
        assert_eq!(stderr.text(), "1 file, 0 B in 2.0 s, 0 B/s. Limited by: mixed (x).\n  one figure\n");
    }

    #[test]
    fn an_event_that_somebody_has_to_read_fails_where_nobody_does() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(std::io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let (output, environment) = (OutputSettings { json: true, ..Default::default() }, Environment::default());
        let mut screen = Screen::on(&output, &environment, false, Box::new(Closed), Box::new(Shared::default()));
        let stored = || Event::Stored(StoredFile::new(std::path::Path::new("a"), 5, "URI:x"));
        assert!(screen.tell(stored()).is_err());
        assert!(screen.tell(stored()).is_err(), "and so do those after it");
    }

    #[test]
    fn control_characters_of_a_host_do_not_reach_the_terminal() {
        let (mut screen, _, stderr) = screen(OutputSettings::default(), Environment::default());
        screen.warn("\u{1b}]0;owned\u{7}".to_owned());
        assert!(!stderr.text().contains('\u{1b}'));
    }
}
