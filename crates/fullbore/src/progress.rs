//! How events look: a bar on a terminal, log lines elsewhere, JSON on request.
//!
//! Everything goes to stderr but JSON and the closing line, which are data and go
//! to stdout. Output that is lost ends the output, not the run; see [`stdio`].

use std::collections::HashSet;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fullbore_engine::escape;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::report::time;
use crate::settings::{Environment, OutputSettings};
use crate::stdio;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::events::{Event, Events, Plan, Progress};
use fullbore_engine::run::report::Summary;
use fullbore_engine::run::stored::StoredFile;
use fullbore_engine::run::units;

/// Time between log lines when there is no terminal. A guess: a night's run stays readable.
const LOG_INTERVAL: Duration = Duration::from_secs(30);
/// Time between progress events of `--json`.
const JSON_INTERVAL: Duration = Duration::from_secs(1);

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
}

impl Terminal {
    /// Writes a line between two drawings of the bar.
    fn line(&self, text: &str) {
        self.bar.suspend(|| {
            let mut stderr = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
            // Nobody is left to be told of an error on stderr.
            let _ = stderr.write_all(format!("{}\n", escape::line(text)).as_bytes()).and_then(|()| stderr.flush());
        });
    }
}

/// For the libraries' log, which writes one record at a time.
impl Write for Terminal {
    fn write(&mut self, record: &[u8]) -> std::io::Result<usize> {
        self.line(&stdio::record_text(record));
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
    /// Columns of the terminal.
    columns: u16,
}

impl Screen {
    /// A screen on the process's stdout and stderr.
    pub fn new(output: &OutputSettings, environment: &Environment) -> Self {
        let is_terminal = stdio::stderr_is_terminal();
        let stdout: Box<dyn Write + Send> =
            if output.stdout_is_taken { Box::new(stdio::Stderr) } else { Box::new(stdio::Stdout) };
        let mut screen = Screen::on(output, environment, is_terminal, stdout, Box::new(stdio::Stderr));
        screen.stdout_meets_bar = output.stdout_is_taken || stdio::stdout_is_terminal();
        if screen.shows_bar() {
            screen.columns = console::Term::stderr().size().1;
            screen.terminal.bar = bar(ProgressDrawTarget::stderr(), screen.no_color, screen.columns);
        }
        screen
    }

    fn on(
        output: &OutputSettings,
        environment: &Environment,
        is_terminal: bool,
        stdout: Box<dyn Write + Send>,
        stderr: Box<dyn Write + Send>,
    ) -> Self {
        Screen {
            terminal: Terminal { bar: ProgressBar::hidden(), stderr: Arc::new(Mutex::new(stderr)) },
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
            columns: WIDE_COLUMNS,
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
        } else if !self.quiet && !nothing_came_of_it(summary) {
            let name = summary.name.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
            let line = format!("{name}{summary}");
            if self.stdout_has_data { self.close_on_stderr(&line, summary) } else { self.print_line(&line) }
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

    fn emit_json(&mut self, event: &Event) {
        if self.json {
            self.print_json(event);
        }
    }

    fn line(&self, level: Level, text: &str) {
        if self.quiet && level != Level::Error {
            return;
        }
        if self.journal {
            self.terminal.line(&format!("<{}>{text}", level as u8));
        } else if self.is_terminal || level == Level::Error {
            self.terminal.line(text);
        } else {
            let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ");
            self.terminal.line(&format!("{now} {text}"));
        }
    }

    fn progress(&mut self, progress: &Progress) {
        if self.shows_bar() {
            let bar = &self.terminal.bar;
            bar.set_length(progress.total_bytes.max(1));
            bar.set_position(progress.bytes.min(progress.total_bytes));
            bar.set_message(escape::line(&bar_text(progress, self.columns)).into_owned());
        } else if due(&mut self.last_line, LOG_INTERVAL) {
            self.line(Level::Info, &progress_text(progress));
        }
    }
}

impl Events for Screen {
    fn tell(&mut self, event: Event) -> Result<(), CommandError> {
        match &event {
            Event::Stored(file) | Event::Present(file) | Event::WouldStore(file) => {
                self.print_stored(&event, file).map_err(|error| stdio::stdout_error(&error))
            }
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
                if self.shows_bar() {
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
            Event::WouldDelete { path, bytes } => {
                if self.verbose {
                    self.line(Level::Info, &format!("would delete {path}, {}", units::bytes(bytes)));
                }
            }
            Event::WouldDeleteObject { key } => self.line(Level::Info, &format!("would delete {key}")),
            // Those were printed, these would be too many.
            Event::Stored(_) | Event::Present(_) | Event::WouldStore(_) | Event::DeletingObject { .. } => {}
            Event::Progress(progress) => self.progress(&progress),
            Event::HostFault { host, path, fault, .. } => {
                let first = self.faulty_hosts.insert(host.clone());
                if first || self.verbose {
                    let path = path.map(|path| format!("{path}: ")).unwrap_or_default();
                    self.line(Level::Warning, &format!("warning: {host}: {path}{fault}"));
                }
            }
            Event::Published { suite, codename, date_unix_s } => {
                let name = if suite == codename { suite } else { format!("{suite} ({codename})") };
                self.line(Level::Info, &format!("published {name} of {}", time::text(date_unix_s)));
            }
            Event::Repaired { path, bytes } => {
                self.line(Level::Info, &format!("repaired {path}, {}", units::bytes(bytes)));
            }
            Event::Extra { path, bytes } => {
                if self.verbose {
                    self.line(Level::Info, &format!("named by no signed index: {path}, {}", units::bytes(bytes)));
                }
            }
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

/// `12.3 GB of 43.1 GB, 62 MB/s, 8 m 17 s left, limited by disk sda`.
fn progress_text(progress: &Progress) -> String {
    let mut text = format!("{}, {}/s", amount_text(progress), units::bytes(progress.rate_bytes_per_s));
    if let Some(eta_s) = progress.eta_s {
        text.push_str(&format!(", {} left", units::duration(eta_s.saturating_mul(1000))));
    }
    if let Some(limit) = &progress.limit {
        text.push_str(&format!(", limited by {limit}"));
    }
    text
}

/// `12.3 GB of 43.1 GB`, or what is done where nobody knows of how much.
fn amount_text(progress: &Progress) -> String {
    let done = units::bytes(progress.bytes);
    if progress.total_bytes == 0 { done } else { format!("{done} of {}", units::bytes(progress.total_bytes)) }
}

/// The same beside a bar. Where there is little room, what matters most comes first.
fn bar_text(progress: &Progress, columns: u16) -> String {
    if columns >= WIDE_COLUMNS {
        return progress_text(progress);
    }
    let mut parts = vec![format!("{}/s", units::bytes(progress.rate_bytes_per_s))];
    parts.extend(progress.eta_s.map(|eta_s| format!("{} left", units::duration(eta_s.saturating_mul(1000)))));
    parts.extend(progress.limit.as_ref().map(|limit| format!("limit: {limit}")));
    parts.push(amount_text(progress));
    parts.join(", ")
}

/// Columns from which the bar may be wide; below them the room is for the time to go and the limit by name.
const WIDE_COLUMNS: u16 = 120;

fn bar(target: ProgressDrawTarget, no_color: bool, columns: u16) -> ProgressBar {
    // A bar of no length says that all is done.
    let bar = ProgressBar::with_draw_target(Some(1), target);
    bar.set_style(bar_style(no_color, columns));
    bar
}

fn bar_style(no_color: bool, columns: u16) -> ProgressStyle {
    let width = if columns < WIDE_COLUMNS { 8 } else { 28 };
    let colour = if no_color { "" } else { ".cyan/blue" };
    ProgressStyle::with_template(&format!("{{prefix:7}} [{{bar:{width}{colour}}}] {{percent:>3}} % {{wide_msg}}"))
        .map(|style| style.progress_chars("=> "))
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_engine::run::events::Phase;
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
    fn on_a_terminal_of_80_columns_time_to_go_and_limit_are_read_to_their_ends() {
        let term = Narrow::default();
        let bar = bar(ProgressDrawTarget::term_like(Box::new(term.clone())), true, 80);
        bar.set_prefix("release");
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
        bar.set_message(bar_text(&progress, 80));
        bar.tick();
        let line = term.0.lock().unwrap().clone();
        assert!(line.contains("8 m 17 s left, limit: mirror ftp.example.org"), "{line:?}");
    }

    #[test]
    fn the_journal_gets_priorities_and_few_lines() {
        let environment = Environment { journal: true, ..Environment::default() };
        let (mut screen, stdout, stderr) = screen(OutputSettings::default(), environment);
        a_run(&mut screen);
        insta::assert_snapshot!(stderr.text(), @r"
        <6>to fetch: 3 files, 5.00 MB
        <4>warning: a: 404
        <6>published stable (trixie) of 1970-01-01 00:00:00 UTC
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
