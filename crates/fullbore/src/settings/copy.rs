//! From the flags of `copy` and `probe` to settings; files of patterns and of paths are read here.

use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use fullbore_copy::chmod::{self, ModeChanges};
use fullbore_copy::filter::{Filters, RULES};
use fullbore_copy::id_map::IdMap;
use fullbore_copy::options::{BackupSettings, Compress, GROUP_TIME_MS, HashKind, Itemize, Options, SkipRules};
use fullbore_copy::paths;
use fullbore_copy::probe::ProbeSettings;
use fullbore_copy::reach::Reach;
use fullbore_copy::run::{CopySettings, is_remote};
use fullbore_copy::wire::PATHS_BYTES;
use fullbore_engine::durability::Durability;
use fullbore_engine::run::error::CommandError;

use super::{OutputSettings, addresses};
use crate::cli::{CopyArgs, FilterArgs, ProbeArgs};

/// How long a lost connection is dialled again, if the user says nothing else, in seconds.
const RETRY_FOR_S: u64 = 600;
/// What backups are called by, beside what takes their place. rsync's.
const BACKUP_SUFFIX: &str = "~";
/// What most systems set, where it cannot be known.
const USUAL_UMASK: u32 = 0o022;
/// Longest file of patterns or of paths that is read.
const LIST_BYTES: u64 = PATHS_BYTES as u64;

/// What the flags of `copy` ask for.
pub fn copy(arguments: &CopyArgs) -> Result<CopySettings, CommandError> {
    let (last, sources) = arguments.paths.split_last().ok_or_else(|| CommandError::usage("no SRC and DST given"))?;
    if sources.is_empty() {
        return Err(CommandError::usage(format_args!("only one path given, {}", last.display()))
            .hint("name SRC and DST, as in `fullbore copy /srv/data host:/srv`"));
    }
    check_places(&arguments.paths)?;
    let options = options(arguments)?;
    Ok(CopySettings {
        sources: sources.to_vec(),
        destination: last.clone(),
        only: arguments.files_from.as_deref().map(|path| paths_of(path, arguments.from0)).transpose()?,
        options,
        reach: reach(arguments)?,
        retry_for: Duration::from_secs(retry_for_s(arguments)),
        hash_list: arguments.hash_list.clone(),
    })
}

/// For how long a lost connection is dialled again: what rsync calls a time limit is one here.
fn retry_for_s(arguments: &CopyArgs) -> u64 {
    let timeout = arguments.habits.timeout.filter(|seconds| *seconds > 0);
    arguments.retry_for.or(timeout).unwrap_or(RETRY_FOR_S)
}

/// How the other machine is reached; `--rsync-path` names the program there, which is not rsync.
fn reach(arguments: &CopyArgs) -> Result<Reach, CommandError> {
    let reach = arguments.reach.settings()?;
    let habit = || arguments.habits.rsync_path.as_deref().map(remote_path);
    Ok(Reach { remote_path: reach.remote_path.or_else(habit), ..reach })
}

/// A command that would run rsync, as one that runs fullbore.
fn remote_path(rsync_path: &str) -> String {
    let (before, program) =
        rsync_path.trim().rsplit_once(' ').map_or(("", rsync_path.trim()), |(before, last)| (before, last));
    let is_rsync = Path::new(program).file_name().is_some_and(|name| name == "rsync");
    let program = if is_rsync { "fullbore" } else { program };
    if before.is_empty() { program.to_owned() } else { format!("{before} {program}") }
}

/// Refuses addresses that are neither paths nor `HOST:PATH`.
fn check_places(paths: &[OsString]) -> Result<(), CommandError> {
    paths.iter().find_map(|path| addresses::not_of_a_tree(path)).map_or(Ok(()), Err)
}

/// What the flags of `copy` ask for on the screen.
pub fn copy_output(arguments: &CopyArgs) -> OutputSettings {
    OutputSettings {
        json: arguments.json,
        quiet: arguments.quiet,
        verbose: arguments.verbose,
        names: arguments.verbose > 0
            || arguments.dry_run
            || arguments.itemize_changes > 0
            || arguments.habits.asks_for_names(),
        itemizes: arguments.itemize_changes > 0,
        log_file: arguments.log_file.clone(),
        line_time: arguments.line_time.map(Duration::from_millis),
        ..OutputSettings::default()
    }
}

/// What the flags of `probe` ask for.
pub fn probe(arguments: &ProbeArgs) -> Result<ProbeSettings, CommandError> {
    let [source, destination] = &arguments.paths[..] else {
        return Err(CommandError::usage("probe takes one SRC and one DST")
            .hint("name both, as in `fullbore probe /srv/data host:/srv`"));
    };
    check_places(&arguments.paths)?;
    Ok(ProbeSettings {
        source: source.clone(),
        destination: destination.clone(),
        time: Duration::from_secs(u64::from(arguments.time)),
        one_file_system: arguments.one_file_system,
        reach: arguments.reach.settings()?,
    })
}

/// What the flags of `probe` ask for on the screen.
pub fn probe_output(arguments: &ProbeArgs) -> OutputSettings {
    OutputSettings {
        json: arguments.json,
        quiet: arguments.quiet,
        verbose: arguments.verbose,
        ..OutputSettings::default()
    }
}

/// The rules of `--include` and `--exclude`, of `put` and `get`, too.
pub(super) fn filters(arguments: &FilterArgs, from0: bool) -> Result<Filters, CommandError> {
    let mut filters = Filters::default();
    for rule in &arguments.rules {
        if rule.from {
            filters.push_lines(rule.include, &read(Path::new(&rule.value))?, if from0 { 0 } else { b'\n' });
        } else {
            filters.push(rule.include, rule.value.as_bytes());
        }
    }
    if filters.len() > RULES {
        return Err(CommandError::usage(format_args!("{} patterns, at most {RULES} are taken", filters.len())));
    }
    Ok(filters)
}

fn options(arguments: &CopyArgs) -> Result<Options, CommandError> {
    let filters = filters(&arguments.filters, arguments.from0)?;
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
        delete: arguments.delete(),
        delete_before: arguments.delete_before,
        delete_excluded: arguments.delete_excluded,
        ignore_errors: arguments.ignore_errors,
        max_delete: arguments.max_delete.map(|most| u64::try_from(most).unwrap_or(0)),
        backup: backup(arguments)?,
        link_dest: arguments.link_dest.iter().map(|path| path.as_os_str().as_bytes().to_vec()).collect(),
        skip: SkipRules {
            newer: arguments.update,
            absent: arguments.existing,
            present: arguments.ignore_existing,
            above_bytes: arguments.max_size,
            below_bytes: arguments.min_size,
        },
        size_only: arguments.size_only,
        ignore_times: arguments.ignore_times,
        copy_links: arguments.copy_links,
        // Paths of a list are kept anyway.
        relative: arguments.relative && arguments.files_from.is_none(),
        chmod: mode_changes(arguments)?,
        owners: owners(arguments)?,
        itemize: Itemize { level: arguments.itemize_changes, pushes: pushes(arguments) },
        hashes: arguments.hash_list.as_deref().map(hash_kind),
        numeric_ids: arguments.numeric_ids,
        owner: !arguments.no_owner,
        group: !arguments.no_group,
        permissions: !arguments.no_perms,
        acls: !arguments.no_acls,
        xattrs: !arguments.no_xattrs,
        directory_times: !arguments.omit_dir_times,
        hard_links: !arguments.no_hard_links,
        specials: !arguments.no_specials,
        one_file_system: arguments.one_file_system,
        recursive: arguments.files_from.is_none() || arguments.recursive,
        tell_names: (arguments.dry_run || arguments.verbose > 0 || arguments.habits.asks_for_names())
            && arguments.itemize_changes == 0,
        filters,
        limit_bytes_per_s: arguments.bwlimit.unwrap_or(0),
        congestion: arguments.reach.congestion.clone(),
        durability: if arguments.durability == "none" { Durability::None } else { Durability::AtEnd },
        ..Options::default()
    })
}

/// Whether content goes to another machine.
fn pushes(arguments: &CopyArgs) -> bool {
    arguments.paths.last().is_some_and(|target| is_remote(target))
}

/// Where what is replaced or deleted goes.
fn backup(arguments: &CopyArgs) -> Result<Option<BackupSettings>, CommandError> {
    let directory = arguments.backup_dir.as_deref().map(|path| path.as_os_str().as_bytes().to_vec());
    if !arguments.backup && directory.is_none() {
        return Ok(None);
    }
    let usual = if directory.is_some() { "" } else { BACKUP_SUFFIX };
    let suffix = arguments.suffix.as_deref().unwrap_or(OsStr::new(usual)).as_bytes().to_vec();
    let shown = String::from_utf8_lossy(&suffix).into_owned();
    if suffix.contains(&b'/') || suffix.is_empty() && directory.is_none() {
        return Err(CommandError::usage(format_args!("--suffix `{shown}`: expected a part of a file's name")));
    }
    Ok(Some(BackupSettings { directory, suffix }))
}

fn mode_changes(arguments: &CopyArgs) -> Result<ModeChanges, CommandError> {
    let mut changes = ModeChanges::default();
    let umask = chmod::umask().unwrap_or(USUAL_UMASK);
    for text in &arguments.chmod {
        changes.add(text, umask).map_err(|error| CommandError::usage(format_args!("--chmod: {error}")))?;
    }
    Ok(changes)
}

/// Owners and groups that become others. `--chown` is for what no other rule matches.
fn owners(arguments: &CopyArgs) -> Result<IdMap, CommandError> {
    let mut map = IdMap::default();
    for (group, flag, texts) in [(false, "--usermap", &arguments.usermap), (true, "--groupmap", &arguments.groupmap)] {
        for text in texts {
            map.add(group, text).map_err(|error| CommandError::usage(format_args!("{flag}: {error}")))?;
        }
    }
    arguments.chown.iter().for_each(|text| map.own(text));
    for (group, flag, is_off) in [(false, "--no-owner", arguments.no_owner), (true, "--no-group", arguments.no_group)] {
        if is_off && map.is_of(group) {
            return Err(CommandError::usage(format_args!("{flag} contradicts --chown, --usermap and --groupmap")));
        }
    }
    Ok(map)
}

/// The hash of a list, by the name of its file.
fn hash_kind(path: &Path) -> HashKind {
    let ending = path.extension().and_then(OsStr::to_str).unwrap_or_default();
    if matches!(ending, "b3" | "b3sum" | "blake3") { HashKind::Blake3 } else { HashKind::Sha256 }
}

fn read(path: &Path) -> Result<Vec<u8>, CommandError> {
    let is_stdin = path == Path::new("-");
    let shown = if is_stdin { Path::new("stdin") } else { path };
    let mut text = Vec::new();
    let read = if is_stdin {
        std::io::stdin().lock().take(LIST_BYTES).read_to_end(&mut text)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(LIST_BYTES).read_to_end(&mut text))
    };
    match read.map_err(|error| CommandError::unreadable(shown, &error))? {
        length if length as u64 == LIST_BYTES => {
            let most = LIST_BYTES >> 20;
            Err(CommandError::usage(format_args!("{}: longer than {most} MiB, which is the most", path.display()))
                .hint("name directories instead, with -r, or copy in several runs"))
        }
        _ => Ok(text),
    }
}

/// Paths of `--files-from`.
pub(super) fn paths_of(path: &Path, ended_by_nul: bool) -> Result<Vec<Vec<u8>>, CommandError> {
    paths::parse(&read(path)?, ended_by_nul)
        .map_err(|line| CommandError::usage(format_args!("{}: {line}: not a path below SRC", path.display())))
}
