//! `fullbore copy`: from flags to a copy, and from what became of it to words and an exit code.

mod ending;
pub mod flags;
mod place;
mod screen;
mod signals;

use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use fullbore_copy::entry::is_path;
use fullbore_copy::error::CopyError;
use fullbore_copy::filter::{Filters, RULES};
use fullbore_copy::local::LocalCopy;
use fullbore_copy::options::Options;
use fullbore_copy::receiver::Destination;
use fullbore_copy::sender::Source;
use fullbore_copy::session::Progress;
use fullbore_copy::wire::Account;
use fullbore_engine::durability::Durability;
use fullbore_engine::stage::Ledger;
use fullbore_engine::verdict::{Sampler, SamplerConfig, Verdict};

use crate::cli::CopyArgs;
use crate::error::{CommandError, ErrorKind};
use crate::settings::Environment;
use place::Place;
use screen::{Screen, Style};

/// Time between looks at where the copy stands.
const LOOK_TIME: Duration = Duration::from_millis(250);
/// Longest file of patterns or of paths that is read. A guess: a million paths.
const LIST_BYTES: u64 = 256 << 20;

/// Runs the command; the result is the exit code.
pub fn run(arguments: &CopyArgs, environment: &Environment) -> u8 {
    let style = Style {
        json: arguments.json,
        quiet: arguments.quiet,
        verbose: arguments.verbose > 0 || arguments.dry_run,
        no_color: environment.no_color,
    };
    let screen = Screen::new(style);
    let result = copy(arguments, &screen);
    screen.clear();
    match result {
        Ok(exit_code) => exit_code,
        Err(error) => {
            screen.line(&error.to_string());
            screen.json(&serde_json::json!({
                "event": "error", "kind": error.kind.name(), "exit_code": error.exit_code(), "message": error.message,
                "context": error.context, "hints": error.hints,
            }));
            error.exit_code()
        }
    }
}

fn copy(arguments: &CopyArgs, screen: &Screen) -> Result<u8, CommandError> {
    let options = options(arguments)?;
    let only = arguments.files_from.as_deref().map(paths_of).transpose()?;
    let (sources, target) = places(&arguments.paths)?;
    // Paths of a list are within SRC, with or without a slash at its end.
    let open = |path: &&Path| if only.is_some() { Source::open(&path.join("")) } else { Source::open(path) };
    let sources = sources.iter().map(open).collect::<Result<Vec<_>, _>>().map_err(|error| failure(&error))?;
    if only.is_some() && sources.len() != 1 {
        return Err(CommandError::usage("--files-from goes with one SRC"));
    }
    let single_file = sources.iter().all(|source| source.single_file().is_some());
    let destination = Destination::resolve(&target, single_file, sources.len() > 1, options.dry_run);
    let destination = destination.map_err(|error| failure(&error))?;
    let (ledger, progress, copy) = (Ledger::new(), Progress::default(), LocalCopy::default());
    let config = SamplerConfig { destination: Some(destination.directory.clone()), ..SamplerConfig::default() };
    let sampler = Sampler::start(&ledger, config).map_err(|error| CommandError::new(ErrorKind::Internal, error))?;
    let began = Instant::now();
    signals::pull(&copy.brake)?;
    let (end, ended) = mpsc::channel::<()>();
    let (result, sampler) = std::thread::scope(|scope| {
        let (screen, progress) = (screen, &progress);
        let watching = scope.spawn(move || {
            while matches!(ended.recv_timeout(LOOK_TIME), Err(RecvTimeoutError::Timeout)) {
                screen.progress(progress, sampler.present());
            }
            sampler
        });
        let result = copy.run((sources, only), &destination, &options, &ledger, progress, screen);
        drop(end);
        (result, watching.join())
    });
    let verdict = sampler.ok().map(Sampler::finish);
    screen.clear();
    let account = match result {
        Ok(account) => account,
        Err(error) => return Err(torn(&error, &progress.account())),
    };
    Ok(ended_well(screen, arguments, &account, began.elapsed(), verdict))
}

fn ended_well(
    screen: &Screen,
    arguments: &CopyArgs,
    account: &Account,
    wall: Duration,
    verdict: Option<Verdict>,
) -> u8 {
    let problems = screen.problems();
    let exit_code = if problems.is_empty() { 0 } else { ErrorKind::Partial.exit_code() };
    for (kind, count) in &problems {
        screen.line(&format!("{count} {}: {}", if *count == 1 { "file" } else { "files" }, kind.words()));
    }
    if arguments.json {
        screen.json(&ending::json(account, wall, verdict.as_ref(), &problems, exit_code));
    } else if !arguments.quiet {
        screen.data(&ending::text(account, wall, verdict.as_ref(), arguments.dry_run));
    }
    exit_code
}

fn options(arguments: &CopyArgs) -> Result<Options, CommandError> {
    let mut filters = Filters::default();
    for rule in &arguments.filters.rules {
        if rule.from {
            filters.push_lines(rule.include, &read(Path::new(&rule.value))?);
        } else {
            filters.push(rule.include, rule.value.as_bytes());
        }
    }
    if filters.len() > RULES {
        return Err(CommandError::usage(format_args!("{} patterns, at most {RULES} are taken", filters.len())));
    }
    Ok(Options {
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
        durability: if arguments.durability == "none" { Durability::None } else { Durability::AtEnd },
        ..Options::default()
    })
}

/// The last path is where to, the others what.
fn places(paths: &[OsString]) -> Result<(Vec<&Path>, std::path::PathBuf), CommandError> {
    let mut local = Vec::new();
    for path in paths {
        match Place::parse(path) {
            Place::Local(path) => local.push(path),
            Place::Remote { host, .. } => {
                return Err(CommandError::usage(format_args!("{host}: copies to other machines are not built yet"))
                    .hint("a file with a colon in its name is written ./NAME"));
            }
        }
    }
    match local.split_last() {
        Some((target, sources)) if !sources.is_empty() => Ok((sources.to_vec(), target.to_path_buf())),
        _ => Err(CommandError::usage("what to copy, and where to?")),
    }
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
        length if length as u64 == LIST_BYTES => Err(CommandError::usage(format_args!("{}: too long", path.display()))),
        _ => Ok(text),
    }
}

/// Paths of `--files-from`: one a line, `#` and `;` begin comments, made relative.
fn paths_of(path: &Path) -> Result<Vec<Vec<u8>>, CommandError> {
    let text = read(path)?;
    let mut paths = Vec::new();
    for line in text.split(|byte| matches!(byte, b'\n' | b'\r' | 0)) {
        if line.is_empty() || line.starts_with(b"#") || line.starts_with(b";") {
            continue;
        }
        let parts: Vec<&[u8]> =
            line.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".").collect();
        let relative = parts.join(&b'/');
        if relative.is_empty() {
            continue;
        }
        if !is_path(&relative) {
            let line = String::from_utf8_lossy(line);
            return Err(CommandError::usage(format_args!("{}: {line}: not a path below SRC", path.display())));
        }
        paths.push(relative);
    }
    Ok(paths)
}

/// What ended a copy that was under way.
fn torn(error: &Arc<CopyError>, account: &Account) -> CommandError {
    let mut failure = failure(error);
    if account.written_bytes > 0 {
        let files = crate::report::units::bytes(account.visible_bytes);
        failure =
            failure.context(format_args!("{files} are complete and in place")).hint("run it again to go on from there");
    }
    failure
}

fn failure(error: &CopyError) -> CommandError {
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
