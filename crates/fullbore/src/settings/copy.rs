//! From the flags of `copy` and `probe` to settings; files of patterns and of paths are read here.

use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use fullbore_copy::filter::{Filters, RULES};
use fullbore_copy::options::{Compress, GROUP_TIME_MS, Options};
use fullbore_copy::paths;
use fullbore_copy::probe::ProbeSettings;
use fullbore_copy::run::CopySettings;
use fullbore_copy::wire::PATHS_BYTES;
use fullbore_engine::durability::Durability;
use fullbore_engine::run::error::CommandError;

use super::{OutputSettings, addresses};
use crate::cli::{CopyArgs, ProbeArgs};

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
        reach: arguments.reach.settings()?,
        retry_for: Duration::from_secs(arguments.retry_for),
    })
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
        names: arguments.verbose > 0 || arguments.dry_run,
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
    paths::parse(&read(path)?, ended_by_nul)
        .map_err(|line| CommandError::usage(format_args!("{}: {line}: not a path below SRC", path.display())))
}
