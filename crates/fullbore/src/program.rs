//! What happens around a command: flags in, events rendered, reports written, exit code out.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use fullbore_apt::update;
use fullbore_debian::signature::set_policy_variables;
use fullbore_engine::output::write_atomically;
use fullbore_engine::run::Stop;
use fullbore_engine::run::costs::process_costs;
use fullbore_engine::run::error::{CommandError, EXIT_UNCHANGED, ErrorKind};
use fullbore_engine::run::report::Report;
use fullbore_install::{bootstrap, install};
use fullbore_mirror::mirror::fleet;
use fullbore_mirror::mirror::work;
use fullbore_mirror::{check, mirror};

use crate::cli::{self, AptArgs, CheckArgs, Command, ConvertArgs, MirrorArgs, PdiffArgs, PdiffCommand, UpdateArgs};
use crate::progress::Screen;
use crate::report::{html, json, perfetto, prometheus};
use crate::settings::{self, Environment, OutputSettings};
use crate::{apt, confirm, convert, copy, divert, hook, manual, namespace, nosync, pdiff, stdio};

/// Runs the command line; the result is the exit code. It fails if output was lost.
pub fn run(arguments: impl IntoIterator<Item = std::ffi::OsString>, environment: &Environment) -> u8 {
    stdio::finish(run_command(arguments, environment))
}

fn run_command(arguments: impl IntoIterator<Item = std::ffi::OsString>, environment: &Environment) -> u8 {
    set_policy_variables(environment.crypto_policy.clone());
    environment.authorities.clone().choose();
    let mut arguments = arguments.into_iter();
    let name = arguments.next();
    let words: Vec<_> = arguments.collect();
    let words = if environment.in_namespace.is_none() { as_command(name.as_ref(), words) } else { words };
    if let Some(exit_code) = hook::run(&words) {
        return exit_code;
    }
    let arguments: Vec<_> = name.into_iter().chain(words).collect();
    let command = arguments.get(1).and_then(|command| command.to_str()).map(str::to_owned);
    let is_nosync = command.as_deref() == Some("nosync");
    if !is_nosync {
        cli::unknown_variables(&environment.names).iter().for_each(|warning| stdio::say(warning));
    }
    match cli::parse(arguments) {
        Ok(cli) => match cli.command {
            Command::Mirror(arguments) => run_mirror(*arguments, environment),
            Command::Work(arguments) => run_work(&arguments, environment),
            Command::Update(arguments) => run_update(&arguments, environment),
            Command::Check(arguments) => run_check(&arguments, environment),
            Command::Pdiff(arguments) => run_pdiff(&arguments, environment),
            Command::Convert(arguments) => run_convert(&arguments, environment),
            Command::Apt(arguments) => run_apt(&arguments, environment),
            Command::Copy(arguments) => run_copy(&arguments, environment),
            Command::Probe(arguments) => run_probe(&arguments, environment),
            Command::Bootstrap(arguments) => run_bootstrap(&arguments, environment),
            Command::Install(arguments) => run_install(&arguments, environment),
            Command::Nosync(arguments) => run_nosync(&arguments, environment),
            Command::Divert(arguments) => run_divert(&arguments, environment),
            Command::Put(arguments) => run_put(&arguments, environment),
            Command::Get(arguments) => run_get(&arguments, environment),
            Command::Ls(arguments) => run_ls(&arguments, environment),
            Command::Completions(arguments) => print_completions(&arguments),
        },
        Err(error) => {
            let is_error = error.use_stderr();
            cli::show(error, command.as_deref(), environment.no_color);
            match is_error {
                false => 0,
                // Other codes may be those of the command that it runs.
                true if is_nosync => nosync::EXIT_NOT_RUN,
                true => ErrorKind::Usage.exit_code(),
            }
        }
    }
}

/// The name under which the program makes roots with mmdebstrap's arguments: wrappers call a program of this name.
const MMDEBSTRAP: &str = "mmdebstrap";

/// Whether the program is called by that name.
pub fn is_mmdebstrap(name: Option<&OsString>) -> bool {
    name.is_some_and(|name| Path::new(name).file_name().is_some_and(|name| name == MMDEBSTRAP))
}

/// The words of the command line behind the program's name, with the command that this name stands for.
pub fn as_command(name: Option<&OsString>, mut words: Vec<OsString>) -> Vec<OsString> {
    if is_mmdebstrap(name) {
        words.insert(0, "bootstrap".into());
    }
    words
}

fn print_completions(arguments: &cli::CompletionsArgs) -> u8 {
    // Lost output is told of, and counts, at the end of every run.
    let _ = stdio::Stdout.write_all(&manual::completions(arguments.shell));
    0
}

fn run_mirror(arguments: MirrorArgs, environment: &Environment) -> u8 {
    let early = early_output(&arguments.output);
    frame(&early, environment, settings::mirrors(arguments, environment), |mirrors, screen, output| {
        let mut runs = Runs::new(output, environment, mirrors.len());
        for settings in &mirrors {
            let result = mirror::run(settings, screen);
            let interrupted = result.as_ref().is_err_and(|error| error.kind == ErrorKind::Interrupted);
            runs.finished(screen, "mirror", settings.name.clone(), &settings.dir, result);
            if interrupted {
                break;
            }
        }
        runs.exit_code(screen)
    })
}

fn run_work(arguments: &cli::WorkArgs, environment: &Environment) -> u8 {
    let early = early_output(&arguments.output);
    frame(&early, environment, settings::work(arguments, environment), |settings, screen, output| {
        let (command, result) = match &settings {
            settings::Work::Shard(settings) => ("work", work::shard::run(settings, screen)),
            settings::Work::Queue(settings) => ("work", fleet::work::run(settings, screen)),
            settings::Work::Status(settings) => ("status", fleet::status::run(settings, screen)),
        };
        Runs::one(output, environment, screen, command, &settings.place(), result)
    })
}

fn run_update(arguments: &UpdateArgs, environment: &Environment) -> u8 {
    let early = early_output(&arguments.output);
    frame(&early, environment, settings::update(arguments, environment), |settings, screen, output| {
        let result = update::run(&settings, screen);
        Runs::one(output, environment, screen, "update", &settings.lists, result)
    })
}

fn run_bootstrap(arguments: &cli::BootstrapArgs, environment: &Environment) -> u8 {
    let early = early_output(&arguments.output);
    let settings = settings::bootstrap(arguments, environment);
    if let (Ok((settings, _)), None) = (&settings, environment.in_namespace) {
        return refuse(&early, environment, &namespace::enter(settings.mode));
    }
    frame(&early, environment, settings, |settings, screen, output| {
        let result = bootstrap::run(&settings, screen);
        Runs::one(output, environment, screen, "bootstrap", &settings.target, result)
    })
}

fn run_install(arguments: &cli::InstallArgs, environment: &Environment) -> u8 {
    let early = early_output(&arguments.output);
    frame(&early, environment, settings::install(arguments, environment), |settings, screen, output| {
        let result = install::run(&settings, &confirm::confirm, screen);
        Runs::one(output, environment, screen, "install", &settings.root, result)
    })
}

fn run_copy(arguments: &cli::CopyArgs, environment: &Environment) -> u8 {
    // Lines of a far end come to the near end's screen by ssh, so only those that are asked for.
    if arguments.server && environment.log.is_some() {
        let output = OutputSettings::default();
        start_log(&Screen::new(&output, environment), &output, environment);
    }
    if let Some(exit_code) = copy::instead(arguments) {
        return exit_code;
    }
    let output = settings::copy_output(arguments);
    let settings = settings::copy(arguments);
    let opened = Screen::new(&output, environment).with_log(&output);
    let mut screen = match opened {
        Ok(screen) => screen,
        Err(error) => return refuse(&output, environment, &error),
    };
    let settings = match settings {
        Ok(settings) => settings,
        Err(error) => {
            screen.fail(&error);
            return error.exit_code();
        }
    };
    start_log(&screen, &output, environment);
    let result = fullbore_copy::run::run(&settings, &mut screen);
    Runs::one(&output, environment, &mut screen, "copy", Path::new(&settings.destination), result)
}

fn run_probe(arguments: &cli::ProbeArgs, environment: &Environment) -> u8 {
    let early = settings::probe_output(arguments);
    let settings = settings::probe(arguments).map(|settings| (settings, early.clone()));
    frame(&early, environment, settings, |settings, screen, output| {
        let result = fullbore_copy::probe::run(&settings, screen);
        Runs::one(output, environment, screen, "probe", Path::new(&settings.destination), result)
    })
}

fn run_nosync(arguments: &cli::NosyncArgs, environment: &Environment) -> u8 {
    let output = OutputSettings::default();
    start_log(&Screen::new(&output, environment), &output, environment);
    nosync::run(arguments)
}

fn run_check(arguments: &CheckArgs, environment: &Environment) -> u8 {
    let early = early_output(&arguments.output);
    frame(&early, environment, settings::check(arguments, environment), |settings, screen, output| {
        let result = match &settings {
            settings::Check::Archive(settings) => check::run(settings, screen),
            settings::Check::Grid(settings) => match listen(output, environment) {
                Ok(stop) => fullbore_lafs::check::run(settings, screen, &stop),
                Err(exit_code) => return exit_code,
            },
        };
        Runs::one(output, environment, screen, "check", &settings.place(), result)
    })
}

fn run_ls(arguments: &cli::LsArgs, environment: &Environment) -> u8 {
    let early = early_output(&arguments.output);
    frame(&early, environment, settings::ls(arguments, environment), |settings, screen, output| {
        let stop = match listen(output, environment) {
            Ok(stop) => stop,
            Err(exit_code) => return exit_code,
        };
        let result = match &settings {
            settings::Ls::Bucket(settings) => fullbore_s3::ls::run(settings, screen, &stop),
            settings::Ls::Grid(settings) => fullbore_lafs::ls::run(settings, screen, &stop),
        };
        if result.is_err() && stdio::is_closed() {
            // As `fullbore ls … | head` has it: a quiet, normal end.
            screen.clear();
            return 0;
        }
        Runs::one(output, environment, screen, "ls", &settings.place(), result)
    })
}

/// What stands around each run: settings that are wrong are refused, the screen and the log begin.
fn frame<S>(
    early: &OutputSettings,
    environment: &Environment,
    settings: Result<(S, OutputSettings), CommandError>,
    run: impl FnOnce(S, &mut Screen, &OutputSettings) -> u8,
) -> u8 {
    match settings.and_then(with_room_for_reports) {
        Ok((settings, output)) => {
            let mut screen = match Screen::new(&output, environment).with_log(&output) {
                Ok(screen) => screen,
                Err(error) => return refuse(early, environment, &error),
            };
            start_log(&screen, &output, environment);
            run(settings, &mut screen, &output)
        }
        Err(error) => refuse(early, environment, &error),
    }
}

fn run_pdiff(arguments: &PdiffArgs, environment: &Environment) -> u8 {
    let output = match &arguments.command {
        PdiffCommand::Publish(publish) => {
            OutputSettings { json: publish.json, quiet: publish.quiet, ..OutputSettings::default() }
        }
        _ => OutputSettings::default(),
    };
    without_report(&output, environment, |screen| pdiff::run(arguments, environment, screen).map(|()| 0))
}

fn run_convert(arguments: &ConvertArgs, environment: &Environment) -> u8 {
    without_report(&OutputSettings::default(), environment, |screen| convert::run(arguments, screen).map(|()| 0))
}

fn run_apt(arguments: &AptArgs, environment: &Environment) -> u8 {
    without_report(&OutputSettings::default(), environment, |screen| apt::run(arguments, screen))
}

fn run_divert(arguments: &cli::DivertArgs, environment: &Environment) -> u8 {
    without_report(&OutputSettings::default(), environment, |_| divert::run(arguments).map(|()| 0))
}

/// What stands around a command that ends without a report.
fn without_report(
    output: &OutputSettings,
    environment: &Environment,
    run: impl FnOnce(&mut Screen) -> Result<u8, CommandError>,
) -> u8 {
    let mut screen = Screen::new(output, environment);
    start_log(&screen, output, environment);
    run(&mut screen).unwrap_or_else(|error| refuse(output, environment, &error))
}

fn run_put(arguments: &cli::PutArgs, environment: &Environment) -> u8 {
    let early = early_output(&arguments.shown);
    frame(&early, environment, settings::put(arguments, environment), |settings, screen, output| {
        let stop = match listen(output, environment) {
            Ok(stop) => stop,
            Err(exit_code) => return exit_code,
        };
        let result = match &settings {
            settings::Put::Bucket(settings, fleet) => {
                fullbore_s3::put::run_with(settings, fleet.as_deref(), screen, &stop)
            }
            settings::Put::Grid(settings) => fullbore_lafs::put::run(settings, screen, &stop),
        };
        Runs::one(output, environment, screen, "put", &settings.place(), result)
    })
}

fn run_get(arguments: &cli::GetArgs, environment: &Environment) -> u8 {
    let early = early_output(&arguments.shown);
    frame(&early, environment, settings::get(arguments, environment), |settings, screen, output| {
        let stop = match listen(output, environment) {
            Ok(stop) => stop,
            Err(exit_code) => return exit_code,
        };
        let mut runs = Runs::new(output, environment, 1);
        let result = match &settings {
            settings::Get::Bucket(settings) => fullbore_s3::get::run(settings, &mut stdio::Content, screen, &stop),
            settings::Get::Tree(settings) => fullbore_s3::get::tree::run(settings, screen, &stop).map(Some),
            settings::Get::Grid(settings) => fullbore_lafs::get::run(settings, &mut stdio::Content, screen, &stop),
        };
        match result.transpose() {
            Some(result) => runs.finished(screen, "get", None, &settings.place(), result),
            // Nobody reads stdout any more: a quiet, normal end.
            None => screen.clear(),
        }
        runs.exit_code(screen)
    })
}

/// Signals end the run; the exit code if they cannot be listened for.
fn listen(output: &OutputSettings, environment: &Environment) -> Result<Stop, u8> {
    let internal = |error| refuse(output, environment, &CommandError::new(ErrorKind::Internal, error));
    Stop::in_thread(|| {}).map_err(internal)
}

/// Refuses reports into directories that are not there before the run, not after it.
fn with_room_for_reports<T>((settings, output): (T, OutputSettings)) -> Result<(T, OutputSettings), CommandError> {
    let files = [("--report", &output.report), ("--metrics", &output.metrics), ("--trace", &output.trace)];
    for (flag, path) in files {
        let Some(parent) = path.as_deref().and_then(Path::parent) else { continue };
        if !parent.as_os_str().is_empty() && !parent.is_dir() {
            return Err(CommandError::usage(format_args!("{flag}: {} is not a directory", parent.display()))
                .hint("create it first; fullbore makes only the directory of --to"));
        }
    }
    Ok((settings, output))
}

/// As much of the output's settings as is needed to tell that the others are wrong.
fn early_output(arguments: &cli::OutputArgs) -> OutputSettings {
    OutputSettings { json: arguments.json, quiet: arguments.quiet, ..OutputSettings::default() }
}

fn refuse(output: &OutputSettings, environment: &Environment, error: &CommandError) -> u8 {
    Screen::new(output, environment).fail(error);
    error.exit_code()
}

/// The runs of one command, one per mirror, and what is written about them.
struct Runs<'a> {
    output: &'a OutputSettings,
    environment: &'a Environment,
    several: bool,
    cpu_ms: u64,
    reports: Vec<Report>,
    exit_code: u8,
    all_unchanged: bool,
}

impl<'a> Runs<'a> {
    fn new(output: &'a OutputSettings, environment: &'a Environment, count: usize) -> Self {
        Runs {
            output,
            environment,
            several: count > 1,
            cpu_ms: 0,
            reports: Vec::new(),
            exit_code: 0,
            all_unchanged: true,
        }
    }

    /// The end of a command that is one run; the result is the exit code.
    fn one(
        output: &'a OutputSettings,
        environment: &'a Environment,
        screen: &mut Screen,
        command: &str,
        dir: &Path,
        result: Result<Report, CommandError>,
    ) -> u8 {
        let mut runs = Runs::new(output, environment, 1);
        runs.finished(screen, command, None, dir, result);
        runs.exit_code(screen)
    }

    /// Shows how one run ended and writes its report.
    fn finished(
        &mut self,
        screen: &mut Screen,
        command: &str,
        name: Option<String>,
        dir: &Path,
        result: Result<Report, CommandError>,
    ) {
        let (report, error) = match result {
            Ok(report) => (report, None),
            Err(mut error) => (error.report.take().map(|report| *report).unwrap_or_default(), Some(error)),
        };
        let mut report = self.complete(report, command, name, dir);
        if let Some(error) = &error {
            report.summary.exit_code = error.exit_code();
            // Reports of what was put or got have no names of files.
            if !matches!(command, "put" | "get" | "ls") {
                report.summary.problem(&error.message);
            }
            screen.fail(error);
        }
        let log_error = screen.end_log(&report.summary);
        if log_error.is_some() {
            report.summary.exit_code = stdio::decided(report.summary.exit_code);
        }
        // The first failure decides; a later one of another kind is on the screen.
        if self.exit_code == 0 {
            self.exit_code = report.summary.exit_code;
        }
        self.all_unchanged &= !report.summary.changed && !report.summary.dry_run;
        if let Some(path) = &self.output.report {
            let path = self.report_path(path, &report);
            let text = if path.extension().is_some_and(|ending| ending == "json") {
                json::render(&report)
            } else {
                html::render(&report)
            };
            self.written(screen, &path, &text);
        }
        if let Some(path) = &self.output.trace {
            let path = self.report_path(path, &report);
            self.written(screen, &path, &perfetto::render(&report));
        }
        let did_something = report.summary.duration_ms > 0;
        if error.is_none() || did_something {
            screen.finish(&report.summary);
        }
        if let Some(error) = log_error {
            stdio::say_error(&error);
        }
        self.reports.push(report);
    }

    /// Fills in what the command need not know.
    fn complete(&mut self, mut report: Report, command: &str, name: Option<String>, dir: &Path) -> Report {
        let summary = &mut report.summary;
        summary.command = command.to_owned();
        summary.version = env!("CARGO_PKG_VERSION").to_owned();
        summary.name = name;
        if summary.dir.is_empty() {
            summary.dir = dir.display().to_string();
        }
        let (cpu_ms, peak_rss_bytes) = process_costs();
        summary.cpu_ms = cpu_ms.saturating_sub(self.cpu_ms);
        self.cpu_ms = cpu_ms;
        summary.peak_rss_bytes = peak_rss_bytes;
        if let Some(epoch) = self.environment.source_date_epoch {
            summary.started_unix_s = epoch;
        } else if summary.started_unix_s == 0 {
            summary.started_unix_s = jiff::Timestamp::now().as_second();
        }
        report
    }

    /// `run.html`, or `run-NAME.html` when there are several mirrors.
    fn report_path(&self, path: &Path, report: &Report) -> PathBuf {
        let Some(name) = report.summary.name.as_deref().filter(|_| self.several) else {
            return path.to_owned();
        };
        let name: String = name.chars().map(|c| if c == '/' || c.is_control() { '-' } else { c }).collect();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let ending = path.extension().map(|ending| format!(".{}", ending.to_string_lossy())).unwrap_or_default();
        path.with_file_name(format!("{stem}-{name}{ending}"))
    }

    /// A report that cannot be written fails a run that was good, no other.
    fn written(&mut self, screen: &mut Screen, path: &Path, text: &str) {
        if let Err(error) = write_atomically(path, text.as_bytes()) {
            let error = CommandError::cannot("write", path, &error);
            screen.fail(&error);
            if self.exit_code == 0 {
                self.exit_code = error.exit_code();
            }
        }
    }

    fn exit_code(mut self, screen: &mut Screen) -> u8 {
        if let Some(path) = self.output.metrics.clone() {
            let now = self.environment.source_date_epoch.unwrap_or_else(|| jiff::Timestamp::now().as_second());
            let before = prometheus::last_successes(&path);
            let text = prometheus::render(&self.reports, now, &before);
            self.written(screen, &path, &text);
        }
        if self.exit_code == 0 && self.output.changed_exit && self.all_unchanged {
            return EXIT_UNCHANGED;
        }
        self.exit_code
    }
}

/// Sends the libraries' log to stderr, between two drawings of the bar.
fn start_log(screen: &Screen, output: &OutputSettings, environment: &Environment) {
    let filter = environment.log.clone().unwrap_or_else(|| {
        match (output.quiet, output.verbose) {
            // The client of the queue also logs every error that it returns.
            (true, _) => "error,async_nats=off",
            // What is not as it should be and fails nothing: a journal that cannot be written.
            (_, 0) => "fullbore_s3=warn,fullbore_lafs=warn,error,async_nats=off",
            (_, 1) => "fullbore=info,warn",
            (_, 2) => "fullbore=debug,info",
            _ => "trace",
        }
        .to_owned()
    });
    let terminal = screen.terminal();
    let filter = tracing_subscriber::EnvFilter::builder().parse_lossy(filter);
    // Fails only when a test has set a subscriber before.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_writer(move || terminal.clone())
        .try_init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mirror_has_its_own_report() {
        let (output, environment) = (OutputSettings::default(), Environment::default());
        let mut report = Report::default();
        report.summary.name = Some("debian/security".into());
        let runs = Runs::new(&output, &environment, 2);
        assert_eq!(runs.report_path(Path::new("/x/run.html"), &report), Path::new("/x/run-debian-security.html"));
        let runs = Runs::new(&output, &environment, 1);
        assert_eq!(runs.report_path(Path::new("/x/run.html"), &report), Path::new("/x/run.html"));
    }

    #[test]
    fn a_report_into_a_missing_directory_is_refused_before_the_run() {
        let to = |report: &str| OutputSettings { report: Some(report.into()), ..OutputSettings::default() };
        assert!(with_room_for_reports(((), to("/nonexistent/run.html"))).is_err());
        assert!(with_room_for_reports(((), to("run.html"))).is_ok());
        assert!(with_room_for_reports(((), to("/run.html"))).is_ok());
        let trace = OutputSettings { trace: Some("/nonexistent/trace.json".into()), ..OutputSettings::default() };
        assert!(with_room_for_reports(((), trace)).is_err());
    }
}
