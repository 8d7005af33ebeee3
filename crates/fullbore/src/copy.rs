//! `fullbore copy`: from flags to a copy, and from what became of it to words and an exit code.

mod control;
mod ending;
pub mod flags;
pub(crate) mod place;
pub(crate) mod reach;
pub(crate) mod remote;
pub(crate) mod screen;
mod send_program;
mod server;
pub(crate) mod signals;
pub(crate) mod ssh_messages;
mod standing;
mod table;

use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use fullbore_copy::entry::is_path;
use fullbore_copy::error::CopyError;
use fullbore_copy::filter::{Filters, RULES};
use fullbore_copy::judgement::Judgement;
use fullbore_copy::local::LocalCopy;
use fullbore_copy::options::{Compress, GROUP_TIME_MS, Options};
use fullbore_copy::overlap;
use fullbore_copy::probe::{DiskFacts, Disks};
use fullbore_copy::receiver::{self, Destination};
use fullbore_copy::sender::Source;
use fullbore_copy::session::Progress;
use fullbore_copy::transport::Path as NetworkPath;
use fullbore_copy::wire::{Account, PATHS_BYTES};
use fullbore_engine::durability::Durability;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::stage::Ledger;
use fullbore_engine::verdict::{Sampler, SamplerConfig, Verdict};

use crate::cli::CopyArgs;
use crate::settings::Environment;
use crate::stdio;
use control::{Levers, Request};
use place::{Common, Place};
use screen::{LINE_TIME, Screen, Style};
use standing::Standing;

/// Time between looks at where the copy stands.
const LOOK_TIME: Duration = Duration::from_millis(250);
/// Longest file of patterns or of paths that is read.
const LIST_BYTES: u64 = PATHS_BYTES as u64;

/// Runs the command; the result is the exit code.
pub fn run(arguments: &CopyArgs, environment: &Environment) -> u8 {
    allow_open_files();
    if arguments.server {
        return match &arguments.join {
            Some(name) => server::join(name),
            None => server::run(arguments.remove_self),
        };
    }
    if arguments.status || arguments.set.is_some() {
        return ask(arguments);
    }
    if arguments.paths.is_empty() {
        return help();
    }
    let style = Style {
        json: arguments.json,
        quiet: arguments.quiet,
        verbose: arguments.verbose > 0 || arguments.dry_run,
        no_color: environment.no_color,
        line_time: arguments.line_time.map_or(LINE_TIME, Duration::from_millis),
    };
    let log = arguments.log_file.as_ref().map(|path| {
        let file = std::fs::File::options().create(true).append(true).open(path);
        file.map(|file| (path.clone(), file)).map_err(|error| CommandError::disk(path, &error))
    });
    let log = match log.transpose() {
        Ok(log) => log,
        Err(error) => {
            Screen::new(style, None).fail(&error);
            return error.exit_code();
        }
    };
    let screen = Screen::new(style, log);
    let result = copy(arguments, &screen);
    screen.clear();
    let exit_code = result.unwrap_or_else(|error| {
        screen.fail(&error);
        error.exit_code()
    });
    if let Some(error) = screen.log_error() {
        stdio::say_error(&error);
    }
    exit_code
}

/// Most files that a copy has open, if the system lets it.
const OPEN_FILES: u64 = 65_536;

/// Directories are held open; the limit that a shell gives is for programs that use select(2).
fn allow_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(OPEN_FILES).min(OPEN_FILES);
    if limit.current.is_some_and(|current| current < most) {
        // Refused, it stays at what it is: then directories are opened more often.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..limit });
    }
    receiver::reserve_descriptors();
}

/// Prints what `-h` alone asks for.
fn help() -> u8 {
    let mut command = crate::cli::command();
    command.build();
    if let Some(copy) = command.find_subcommand_mut("copy") {
        copy.render_help().to_string().lines().for_each(|line| {
            // Lost output is told at the end of the run.
            let _ = stdio::print_line(line);
        });
    }
    0
}

/// Talks to copies that run.
fn ask(arguments: &CopyArgs) -> u8 {
    let request = arguments.set.map_or(Request::Status, Request::Limit);
    let screen = Screen::new(Style { json: arguments.json, ..Style::default() }, None);
    match control::ask(&control::directory(), request, arguments.pid) {
        Ok(answers) => {
            for answer in answers {
                if arguments.json { screen.json(&answer) } else { screen.data(&request.words(&answer)) }
            }
            0
        }
        Err(error) => {
            stdio::say_error(&error);
            error.exit_code()
        }
    }
}

/// Makes a run answer to `--status` and `--set`, as long as what is returned is held.
fn listen(arguments: &CopyArgs, levers: &Levers, standing: &Arc<Standing>, screen: &Screen) -> Option<control::Socket> {
    let directory = control::directory();
    let socket = control::serve(&directory, levers.clone(), places(arguments), standing.clone());
    socket
        .inspect_err(|error| {
            screen.line(&format!("{}: {error}: --status and --set will not find this copy", directory.display()));
        })
        .ok()
}

/// What came of a copy that went well.
pub(crate) struct Done {
    account: Account,
    wall: Duration,
    /// What limited it, in words.
    limit: Option<String>,
    verdict: Option<Verdict>,
    far: Option<Judgement>,
    /// How content went, in words; empty on one machine.
    way: String,
    ends: Ends,
}

/// What the table at the end needs besides the clocks.
#[derive(Default)]
struct Ends {
    /// The source is on this machine, the destination is.
    here: (bool, bool),
    /// The connections.
    path: Option<NetworkPath>,
    /// What the disks of this machine did.
    disks: DiskFacts,
    /// Those of the destination, if source and destination are here.
    target_disks: DiskFacts,
    /// Source and destination, as the user named them.
    places: (String, String),
}

/// Sources and destination as the user named them.
fn places(arguments: &CopyArgs) -> (String, String) {
    let Some((last, sources)) = arguments.paths.split_last() else { return Default::default() };
    let first = sources.first().map_or_else(String::new, |first| first.to_string_lossy().into_owned());
    let source = if sources.len() > 1 { format!("{first} and {} more", sources.len() - 1) } else { first };
    (source, last.to_string_lossy().into())
}

fn copy(arguments: &CopyArgs, screen: &Screen) -> Result<u8, CommandError> {
    let options = options(arguments)?;
    let only = arguments.files_from.as_deref().map(|path| paths_of(path, arguments.from0)).transpose()?;
    let (last, sources) = arguments.paths.split_last().ok_or_else(|| CommandError::usage("what, and where to?"))?;
    if only.is_some() && sources.len() != 1 {
        return Err(CommandError::usage("--files-from goes with one SRC"));
    }
    let done = match (Place::common(sources)?, Place::parse(last)?) {
        (Common::Local(paths), Place::Local(target)) => copy_here(arguments, (&paths, only), target, &options, screen)?,
        (Common::Local(paths), Place::Remote { host, path }) => {
            let sources = open(&paths, only.is_some())?;
            let task = remote::Task { sends: Some(sources), paths: Vec::new(), only, target: path, host };
            remote::run(arguments, task, &options, screen)?
        }
        (Common::Remote { host, paths }, Place::Local(target)) => {
            let task = remote::Task { sends: None, paths, only, target: target.into(), host };
            remote::run(arguments, task, &options, screen)?
        }
        (Common::Remote { .. }, Place::Remote { .. }) => {
            return Err(CommandError::usage("one of SRC and DST has to be on this machine"));
        }
    };
    Ok(ended_well(screen, arguments, &done))
}

/// Opens sources of this machine.
fn open(paths: &[&Path], listed: bool) -> Result<Vec<Source>, CommandError> {
    // Paths of a list are within SRC, with or without a slash at its end.
    let open = |path: &&Path| if listed { Source::open(&path.join("")) } else { Source::open(path) };
    paths.iter().map(open).collect::<Result<Vec<_>, _>>().map_err(|error| failure(&error))
}

fn copy_here(
    arguments: &CopyArgs,
    (paths, only): (&[&Path], Option<Vec<Vec<u8>>>),
    target: &Path,
    options: &Options,
    screen: &Screen,
) -> Result<Done, CommandError> {
    let sources = open(paths, only.is_some())?;
    let single_file = sources.iter().all(|source| source.single_file().is_some());
    let destination = Destination::resolve(target, single_file, sources.len() > 1, options.dry_run);
    let destination = Destination { beside_source: true, ..destination.map_err(|error| failure(&error))? };
    let whereabouts: Vec<_> = sources.iter().filter_map(Source::whereabouts).collect();
    overlap::refuse(&whereabouts, &destination, options).map_err(|error| failure(&error))?;
    let (ledger, progress) = (Ledger::new(), Arc::new(Progress::default()));
    let disks = [paths.first().copied().unwrap_or(Path::new(".")), &destination.directory].map(Disks::under);
    let before = [disks[0].read(), disks[1].read()];
    let mut copy = LocalCopy::default();
    let config = SamplerConfig { destination: Some(destination.directory.clone()), ..SamplerConfig::default() };
    let sampler = Sampler::start(&ledger, config).map_err(|error| CommandError::new(ErrorKind::Internal, error))?;
    let began = Instant::now();
    signals::pull(&signals::Current::of(&copy.brake))?;
    let levers = Levers::new(options.limit_bytes_per_s, &ledger);
    copy.limit = levers.limit.clone();
    let standing = Arc::new(Standing::of(&progress));
    let _socket = listen(arguments, &levers, &standing, screen);
    let result = watched(screen, &standing, &levers, &sampler, || {
        copy.run((sources, only), &destination, options, &ledger, &progress, screen)
    });
    let verdict = sampler.finish();
    screen.clear();
    let account = result.map_err(|error| torn(failure(&error), &progress.account()))?;
    let wall = began.elapsed();
    let limit = Some(levers.reached(account.written_bytes, wall).unwrap_or_else(|| verdict.limited_by()));
    let ends = Ends {
        here: (true, true),
        disks: disks[0].since(&before[0]),
        target_disks: disks[1].since(&before[1]).written(progress.is_direct()),
        places: places(arguments),
        ..Ends::default()
    };
    Ok(Done { account, wall, limit, verdict: Some(verdict), far: None, way: String::new(), ends })
}

/// Runs something and shows where it stands meanwhile.
fn watched<R>(screen: &Screen, standing: &Standing, levers: &Levers, sampler: &Sampler, work: impl FnOnce() -> R) -> R {
    let (end, ended) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let ended = std::sync::Mutex::new(ended);
        scope.spawn(move || {
            let Ok(ended) = ended.into_inner() else { return };
            while matches!(ended.recv_timeout(LOOK_TIME), Err(RecvTimeoutError::Timeout)) {
                screen.progress(&standing.look(levers.present(sampler.present())));
            }
        });
        let result = work();
        drop(end);
        result
    })
}

fn ended_well(screen: &Screen, arguments: &CopyArgs, done: &Done) -> u8 {
    let problems = screen.problems();
    let is_well = problems.keys().all(|kind| kind.is_wished());
    let exit_code = if is_well { 0 } else { ErrorKind::Partial.exit_code() };
    for (kind, count) in &problems {
        screen.line(&format!("{count} {}: {}", if *count == 1 { "file" } else { "files" }, kind.words()));
    }
    if arguments.delete && done.account.deleted == 0 && problems.keys().any(|kind| kind.prevents_deletion()) {
        screen.line("nothing was deleted: the copy is not whole");
    }
    let lines = ending::lines(done, arguments.dry_run);
    lines.iter().take(1).for_each(|line| screen.log(line));
    let exit_code = if screen.log_error().is_some() { stdio::decided(exit_code) } else { exit_code };
    if arguments.json {
        screen.json(&ending::json(done, &problems, exit_code));
    } else if !arguments.quiet {
        lines.iter().for_each(|line| screen.data(line));
    }
    exit_code
}

fn options(arguments: &CopyArgs) -> Result<Options, CommandError> {
    let mut filters = Filters::default();
    for rule in &arguments.filters.rules {
        if rule.from {
            filters.push_lines(rule.include, &read(Path::new(&rule.value))?, if arguments.from0 { 0 } else { b'\n' });
        } else {
            filters.push(rule.include, rule.value.as_bytes());
        }
    }
    if filters.len() > RULES {
        return Err(CommandError::usage(format_args!("{} patterns, at most {RULES} are taken", filters.len())));
    }
    if arguments.durability == "none" && (arguments.remove_source_files || arguments.verify) {
        return Err(CommandError::usage(
            "--remove-source-files and --verify need the sync that --durability none omits",
        ));
    }
    Ok(Options {
        checksum: arguments.checksum,
        remove_source_files: arguments.remove_source_files,
        verify: arguments.verify,
        delta: !arguments.whole_file,
        group_time_ms: arguments.group_time.unwrap_or(GROUP_TIME_MS),
        compress: match (arguments.compress, arguments.no_compress) {
            (true, _) => Compress::Always,
            (_, true) => Compress::Never,
            _ => Compress::Auto,
        },
        dry_run: arguments.dry_run,
        delete: arguments.delete,
        numeric_ids: arguments.numeric_ids,
        owner: !arguments.no_owner,
        group: !arguments.no_group,
        permissions: !arguments.no_perms,
        acls: !arguments.no_acls,
        xattrs: !arguments.no_xattrs,
        hard_links: !arguments.no_hard_links,
        specials: !arguments.no_specials,
        one_file_system: arguments.one_file_system,
        recursive: arguments.files_from.is_none() || arguments.recursive,
        tell_names: arguments.dry_run || arguments.verbose > 0,
        filters,
        limit_bytes_per_s: arguments.bwlimit.unwrap_or(0),
        congestion: arguments.reach.congestion.clone(),
        durability: if arguments.durability == "none" { Durability::None } else { Durability::AtEnd },
        ..Options::default()
    })
}

fn read(path: &Path) -> Result<Vec<u8>, CommandError> {
    let wrong = |error: std::io::Error| CommandError::usage(format_args!("{}: {error}", path.display()));
    let mut text = Vec::new();
    let read = if path == Path::new("-") {
        std::io::stdin().lock().take(LIST_BYTES).read_to_end(&mut text)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(LIST_BYTES).read_to_end(&mut text))
    };
    match read.map_err(wrong)? {
        length if length as u64 == LIST_BYTES => {
            let most = LIST_BYTES >> 20;
            Err(CommandError::usage(format_args!("{}: longer than {most} MiB, which is the most", path.display()))
                .hint("name directories instead, with -r, or copy in several runs"))
        }
        _ => Ok(text),
    }
}

/// Paths of `--files-from`.
fn paths_of(path: &Path, ended_by_nul: bool) -> Result<Vec<Vec<u8>>, CommandError> {
    parse_paths(&read(path)?, ended_by_nul)
        .map_err(|line| CommandError::usage(format_args!("{}: {line}: not a path below SRC", path.display())))
}

/// Paths made relative, one a line; `#` and `;` begin comments. A text with a NUL has a NUL behind each path and
/// nothing else. One with a slash at its end, or a `.`, stands for what is in the directory.
fn parse_paths(text: &[u8], ended_by_nul: bool) -> Result<Vec<Vec<u8>>, String> {
    let by_nul = ended_by_nul || text.contains(&0);
    let mut paths = Vec::new();
    for line in text.split(|byte| if by_nul { *byte == 0 } else { matches!(byte, b'\n' | b'\r') }) {
        if line.is_empty() || !by_nul && matches!(line[0], b'#' | b';') {
            continue;
        }
        let wrong = || String::from_utf8_lossy(line).into_owned();
        let mut parts: Vec<&[u8]> = Vec::new();
        for part in line.split(|byte| *byte == b'/') {
            match part {
                b"" | b"." => {}
                b".." => {
                    parts.pop().ok_or_else(wrong)?;
                }
                part => parts.push(part),
            }
        }
        let mut relative = parts.join(&b'/');
        if !is_path(&relative) {
            return Err(wrong());
        }
        if relative.is_empty() || line.ends_with(b"/") || line.ends_with(b"/.") {
            relative.push(b'/');
        }
        paths.push(relative);
    }
    Ok(paths)
}

/// With what was done of a copy that was under way.
fn torn(failure: CommandError, account: &Account) -> CommandError {
    if account.written_bytes == 0 {
        return failure;
    }
    let files = fullbore_engine::units::bytes(account.visible_bytes);
    failure.context(format_args!("{files} are complete and in place")).hint("run it again to go on from there")
}

/// What ended something that is done with another machine: what happened there says so.
pub(crate) fn failure_with(host: &str, error: &CopyError) -> CommandError {
    let failure = failure(error);
    match error {
        CopyError::Remote { .. } => CommandError { message: format!("{host}: {}", failure.message), ..failure },
        _ => failure,
    }
}

pub(crate) fn failure(error: &CopyError) -> CommandError {
    let kind = match error.exit_code() {
        2 => ErrorKind::Partial,
        3 => ErrorKind::Network,
        4 => ErrorKind::Verification,
        6 => ErrorKind::Locked,
        7 => ErrorKind::Disk,
        130 => ErrorKind::Interrupted,
        _ => ErrorKind::Usage,
    };
    CommandError::new(kind, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_paths_are_lines_or_end_in_nuls() {
        let paths = |text: &str, by_nul| {
            let paths = parse_paths(text.as_bytes(), by_nul);
            paths.map(|paths| paths.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect::<Vec<_>>())
        };
        for (text, by_nul, expected) in [
            ("/a\n\n#b\nc//./d\r\n", false, &["a", "c/d"][..]),
            ("./a\nb\0#c\0", false, &["a\nb", "#c"]),
            ("a\nb", true, &["a\nb"]),
            ("a/\nb/.\n.\n/\n", false, &["a/", "b/", "/", "/"]),
            ("d/../a/x", false, &["a/x"]),
        ] {
            assert_eq!(paths(text, by_nul).unwrap(), expected, "{text}");
        }
        assert_eq!(paths("a\na/../../b", false), Err("a/../../b".to_owned()));
    }
}
