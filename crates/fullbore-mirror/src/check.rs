//! `fullbore check`: compares an archive, on disk or in a bucket, with its signed indexes.
//!
//! The module `local` compares without the network: the signatures, the indexes, then size and hash of every file, or
//! of a random share. With `--repair`, missing and wrong files are fetched as in a mirror run: no file gets its name
//! before its hash is verified.

mod findings;
mod local;

use std::collections::BTreeMap;
use std::io::ErrorKind as ErrorOf;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fullbore_apt::signed_release::no_verifier;
use fullbore_engine::durability::Durability;
use fullbore_engine::files::{FileError, Root};
use fullbore_engine::machine::boot_id;
use fullbore_engine::run::Stop;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::events::{Event, Events, Phase, Progress};
use fullbore_engine::run::report::{Mirrored, Report, Summary, Timeline, VerdictReport};
use fullbore_engine::stage::{Kind, Ledger};
use fullbore_engine::target::{Name, Target as _};
use fullbore_engine::units;
use fullbore_engine::verdict::{Sampler, SamplerConfig};
use fullbore_wire::run::add_transfers;

use crate::mirror::batch::{Files, IndexDownload};
use crate::mirror::bucket::{Abandoned, BucketMirror, snapshots};
use crate::mirror::directories::Directories;
use crate::mirror::layout::{broken_links, is_within, link_target};
use crate::mirror::lock::{Lock, LockError};
use crate::mirror::session::{Session, disk};
use crate::mirror::sizes::{self, Asked, Told};
use crate::mirror::state::{OWN_DIRECTORY, State, StateError, index_path};
use crate::mirror::store;
use crate::mirror::tree::Tree;
use crate::settings::CheckSettings;
use findings::{Fault, Findings, Problem, SuiteFault};
use local::{CheckError, Options};

/// Number of problems named in an error; the report has all of them.
const PROBLEMS_NAMED: usize = 10;

/// Checks an archive, and repairs it if the settings say so.
///
/// # Errors
/// - [`ErrorKind::Verification`]: files are missing or wrong, or still are after a repair;
/// - [`ErrorKind::Usage`]: not an archive, or no known address to repair from;
/// - [`ErrorKind::Locked`]: another run works in the directory;
/// - [`ErrorKind::Disk`]: a file cannot be read or written;
/// - [`ErrorKind::Interrupted`]: a signal.
pub fn run(settings: &CheckSettings, events: &mut dyn Events) -> Result<Report, CommandError> {
    attempt(settings, events).map_err(|error| error.within(&settings.dir))
}

fn attempt(settings: &CheckSettings, events: &mut dyn Events) -> Result<Report, CommandError> {
    let ledger = Ledger::new();
    let directories = match &settings.store {
        Some(store) => Directories::of_bucket(BucketMirror::open(store, &[], &ledger)?),
        None => Directories::of(Arc::new(Root::open(&settings.dir).map_err(CommandError::usage)?)),
    };
    let Some(bucket) = directories.bucket.clone() else {
        return compare(settings, directories, &ledger, events);
    };
    let result = compare(settings, directories, &ledger, events);
    // A lock that cannot be released expires after two minutes.
    let _ = bucket.release();
    result.map_err(|error| bucket.explain(error))
}

/// The lock of a check.
enum CheckLock {
    Directory { _lock: Lock },
    Bucket,
    None,
}

/// Takes the lock, because a run in progress changes the checked files, and a repair changes them itself. A tree of
/// other tools has no fullbore runs, and a check leaves nothing behind in it. A tree that this user may only read can
/// be checked, but not repaired.
fn take_lock(settings: &CheckSettings, directories: &Directories) -> Result<CheckLock, CommandError> {
    if let Some(bucket) = &directories.bucket {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        return match (bucket.has_state() || settings.repair).then(|| bucket.lock(&host)) {
            Some(Ok(())) => Ok(CheckLock::Bucket),
            Some(Err(error)) if settings.repair || error.kind == ErrorKind::Locked => Err(error),
            Some(Err(_)) | None => Ok(CheckLock::None),
        };
    }
    let is_ours = directories.own.stat(OWN_DIRECTORY).map_err(|error| disk(&error))?.is_some();
    match (is_ours || settings.repair).then(|| Lock::take(&directories.own)) {
        Some(Ok(lock)) => Ok(CheckLock::Directory { _lock: lock }),
        Some(Err(error @ LockError::Held { .. })) => Err(CommandError::new(ErrorKind::Locked, error)),
        Some(Err(error)) if settings.repair => Err(disk(&error)),
        Some(Err(_)) | None => Ok(CheckLock::None),
    }
}

fn compare(
    settings: &CheckSettings,
    directories: Directories,
    ledger: &Ledger,
    events: &mut dyn Events,
) -> Result<Report, CommandError> {
    let lock = take_lock(settings, &directories)?;
    if let Some(bucket) = &directories.bucket {
        bucket.prepare(&[], if settings.repair { Abandoned::Remove } else { Abandoned::Keep })?;
    }
    events.emit(Event::started("check", settings.dir.display().to_string()));
    events.emit(Event::Phase { phase: Phase::Read });
    let started = Instant::now();
    let config = SamplerConfig {
        destination: Some(directories.volume.path().to_owned()),
        delivery_stage: "local scan".to_owned(),
        ..SamplerConfig::default()
    };
    let sampler = Sampler::start(ledger, config).map_err(|error| CommandError::new(ErrorKind::Internal, error))?;
    let mut warnings = Vec::new();
    let mut state = match State::open(&directories.own, &boot_id()) {
        Ok(state) => state,
        // The mirror of another user: its `.fullbore` is closed to this user, but the tree is not.
        Err(StateError::File(error))
            if matches!(lock, CheckLock::None) && error.kind() == Some(ErrorOf::PermissionDenied) =>
        {
            warnings.push(format!("{error}: without it every file that the indexes name is expected to be here"));
            State::default()
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(bucket) = &directories.bucket {
        bucket.note_takeover(&mut state)?;
    }
    let scratch = match lock {
        CheckLock::Directory { .. } => settings.dir.join(OWN_DIRECTORY),
        CheckLock::Bucket => directories.own.path().join(OWN_DIRECTORY),
        // A read-only tree cannot hold the scratch files.
        CheckLock::None => std::env::temp_dir(),
    };
    let findings = read(settings, &directories, &state, &scratch, ledger, events)?;
    let verdict = sampler.finish();
    let mut summary = summary(&findings);
    warnings.extend(absent(&findings));
    warnings.extend(extra(&findings));
    warnings.extend(unsigned(&findings));
    for warning in warnings {
        summary.warn(warning.clone());
        events.warn(warning);
    }
    summary.duration_ms = started.elapsed().as_millis() as u64;
    summary.verdict = Some(VerdictReport::of(&verdict));
    let timeline = Timeline::of(&verdict, &[(0, Phase::Read)]);

    for (path, bytes) in &findings.extra {
        events.emit(Event::Extra { path: path.clone(), bytes: *bytes });
    }
    let mut left: Vec<&Problem> = findings.problems.iter().collect();
    if settings.repair && !left.is_empty() {
        let repaired = repair(settings, directories, &state, &findings, &mut summary, events)?;
        left.retain(|problem| !repaired.contains(&problem.path));
        summary.totals.files = repaired.len() as u64;
        summary.changed = !repaired.is_empty();
    }
    summary.totals.missing_files = left.len() as u64;
    left.iter().for_each(|problem| summary.problem(problem.to_string()));
    let refused: Vec<String> = findings
        .suites
        .iter()
        .filter_map(|suite| suite.release.as_ref().err().map(|fault| format!("{}: {fault}", shown(&suite.directory))))
        .collect();
    refused.iter().for_each(|line| summary.problem(line.clone()));
    let full = findings.suites.iter().filter_map(|suite| suite.release.as_ref().err()).find_map(SuiteFault::is_local);
    let lines: Vec<String> = refused.into_iter().chain(left.iter().map(|problem| problem.to_string())).collect();
    let report = Report { summary, timeline };
    match full {
        // A local error: nothing is known to be wrong, but a file could not be read.
        Some(error) => Err(disk(error).with_report(report)),
        None if lines.is_empty() => Ok(report),
        None => Err(damaged(&lines, hint(settings, &findings, &left), settings).with_report(report)),
    }
}

/// A warning about package lists that are missing and may have been mirrored.
fn absent(findings: &Findings) -> Option<String> {
    let first = findings.absent.first()?;
    let more = match findings.absent.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!("{first}{more}: listed in the Release and missing here; no state says whether it was ever mirrored"))
}

/// A warning about files that no index names; an event reports each.
fn extra(findings: &Findings) -> Option<String> {
    let (first, _) = findings.extra.first()?;
    let bytes: u64 = findings.extra.iter().map(|(_, size)| size).sum();
    let count = findings.extra.len() as u64;
    let (files, are) = (units::several(count, "file", "files"), units::noun(count, "is", "are"));
    let more = units::noun(count, "", " and others (-v names all)");
    Some(format!("{files} ({}) {are} named by no signed index: {first}{more}", units::bytes(bytes)))
}

/// A warning about suites that were mirrored without a signature.
fn unsigned(findings: &Findings) -> Option<String> {
    let names: Vec<&str> = findings.unsigned.iter().map(|directory| shown(directory)).collect();
    (!names.is_empty()).then(|| {
        format!("{}: mirrored without a signature, and checked without one against its own indexes", names.join(", "))
    })
}

/// A suite's directory in words: a flat repository may be the top itself.
fn shown(directory: &str) -> &str {
    if directory.is_empty() { "/" } else { directory }
}

/// Reads the archive.
fn read(
    settings: &CheckSettings,
    directories: &Directories,
    state: &State,
    scratch: &Path,
    ledger: &Ledger,
    events: &mut dyn Events,
) -> Result<Findings, CommandError> {
    let verifier = settings.signed_by.verifier(scratch);
    let stop = AtomicBool::new(false);
    let course = ReadProgress::new(state.header.records, state.header.bytes, events);
    let options = Options {
        verifier: verifier.as_ref(),
        read_share: settings.read_share,
        checksums: settings.checksums,
        seed: jiff::Timestamp::now().as_nanosecond() as u64,
        threads: directories.tree.readers(),
        clock: &ledger.stage("local scan", Kind::Thread),
        stop: &stop,
        progress: &|bytes| course.looked_at(bytes),
    };
    let findings =
        local::check(&directories.own, &*directories.tree, state, &options).map_err(|error| match error {
            CheckError::NoSuites { .. } => CommandError::usage(error),
            CheckError::NoVerifier { directory, error } => no_verifier(directory, error),
            CheckError::File(error) => disk(&error),
            CheckError::State(error) => error.into(),
        })?;
    Ok(findings)
}

/// Progress of the reading; any reading thread reports it, a few times per second.
struct ReadProgress<'a> {
    files: AtomicU64,
    bytes: AtomicU64,
    total_files: u64,
    total_bytes: u64,
    began: Instant,
    progress: Mutex<(Instant, &'a mut dyn Events)>,
}

/// Time between two progress events.
const TELL_EVERY: Duration = Duration::from_millis(250);

impl<'a> ReadProgress<'a> {
    fn new(total_files: u64, total_bytes: u64, events: &'a mut dyn Events) -> Self {
        let (files, bytes, began) = (AtomicU64::new(0), AtomicU64::new(0), Instant::now());
        ReadProgress { files, bytes, total_files, total_bytes, began, progress: Mutex::new((began, events)) }
    }

    fn looked_at(&self, bytes: u64) {
        let files = self.files.fetch_add(1, Ordering::Relaxed) + 1;
        let bytes = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let Ok(mut progress) = self.progress.try_lock() else { return };
        if progress.0.elapsed() < TELL_EVERY {
            return;
        }
        progress.0 = Instant::now();
        let rate = bytes as f64 / self.began.elapsed().as_secs_f64();
        let to_go = self.total_bytes.saturating_sub(bytes) as f64;
        progress.1.emit(Event::Progress(Progress {
            files,
            bytes,
            total_files: self.total_files,
            total_bytes: self.total_bytes,
            rate_bytes_per_s: rate as u64,
            eta_s: (rate > 1.0).then(|| (to_go / rate) as u64),
            limit: None,
            ..Progress::default()
        }));
    }
}

fn summary(findings: &Findings) -> Summary {
    let mut summary = Summary { command: "check".to_owned(), ..Summary::default() };
    summary.totals.checked_files = findings.read.files;
    summary.totals.checked_bytes = findings.read.bytes;
    let (files, bytes) = (findings.wanted.files, findings.wanted.bytes);
    (summary.plan.wanted_files, summary.plan.wanted_bytes) = (files, bytes);
    summary.mirrored = Some(Mirrored { files, bytes });
    summary
}

/// Maximum size of the files for a bucket that are in the temporary directory at once. A larger file is there alone. A
/// guess.
const BATCH_BYTES_MAX: u64 = 1 << 30;

/// Repairs links and content; returns the repaired paths. A wrong file keeps its name until the right one replaces it.
fn repair(
    settings: &CheckSettings,
    directories: Directories,
    state: &State,
    findings: &Findings,
    summary: &mut Summary,
    events: &mut dyn Events,
) -> Result<Vec<String>, CommandError> {
    let tree = directories.tree.clone();
    let mut repaired = Vec::new();
    if tree.links_are_copies() {
        // Copies come last: a copy of a wrong file would be wrong as well.
        repair_content(settings, directories, state, findings, &mut repaired, summary, events)?;
        repair_aliases(&*tree, state, findings, &mut repaired, events)?;
        return Ok(repaired);
    }
    for problem in &findings.problems {
        if let Fault::Link { target, .. } = &problem.fault {
            // A directory in its place belongs to somebody else, and stays.
            if tree.symlink(target, &problem.path).is_ok() {
                events.emit(Event::Repaired { path: problem.path.clone(), bytes: 0 });
                repaired.push(problem.path.clone());
            }
        }
    }
    repair_content(settings, directories, state, findings, &mut repaired, summary, events)?;
    Ok(repaired)
}

/// Makes those aliases of a bucket anew that differ from their suites. The aliases of a suite that still has problems
/// stay as they are, because they may be better than it.
fn repair_aliases(
    tree: &dyn Tree,
    state: &State,
    findings: &Findings,
    repaired: &mut Vec<String>,
    events: &mut dyn Events,
) -> Result<(), CommandError> {
    let suites = &state.header.suites;
    let lost = broken_links(tree, suites).map_err(|error| disk(&error))?;
    let mut aliases: BTreeMap<&str, &str> = lost.iter().map(|lost| (lost.link, lost.target)).collect();
    // The copy of a wrong index may have the right size, so its size does not show that it is wrong.
    for suite in suites.iter().filter(|suite| !suite.retired) {
        let target = link_target(&suite.directory);
        if !repaired.iter().any(|path| is_within(path, &format!("dists/{target}"))) {
            continue;
        }
        for link in &suite.links {
            if tree.read_link(link).map_err(|error| disk(&error))?.as_deref() == Some(target) {
                aliases.insert(link, target);
            }
        }
    }
    for (link, target) in aliases {
        let from = format!("dists/{target}");
        let is_wrong = findings
            .problems
            .iter()
            .any(|problem| is_within(&problem.path, &from) && !repaired.contains(&problem.path))
            || findings.suites.iter().any(|suite| is_within(&suite.directory, &from) && suite.release.is_err());
        // A directory in its place belongs to somebody else, and stays.
        if is_wrong || tree.symlink(target, link).is_err() {
            continue;
        }
        if findings.problems.iter().any(|problem| problem.path == link) {
            events.emit(Event::Repaired { path: link.to_owned(), bytes: 0 });
            repaired.push(link.to_owned());
        }
    }
    Ok(())
}

/// Fetches wrong files, and notes the repaired paths.
fn repair_content(
    settings: &CheckSettings,
    directories: Directories,
    state: &State,
    findings: &Findings,
    repaired: &mut Vec<String>,
    summary: &mut Summary,
    events: &mut dyn Events,
) -> Result<(), CommandError> {
    let started = Instant::now();
    let (own, tree) = (directories.own.clone(), directories.tree.clone());
    let names = Names { tree: tree.clone(), bucket: directories.bucket.clone() };
    // An index that is as signed but cannot be parsed is not repaired by fetching it again.
    let (mut wrong, mut here) = (Vec::<&Problem>::new(), Vec::new());
    for problem in findings.problems.iter().filter(|problem| problem.fault.is_of_content()) {
        match is_here(&own, &*tree, problem)? {
            Some(bytes) => here.push((problem, bytes)),
            None => wrong.push(problem),
        }
    }
    names.give(&here, repaired, events)?.into_iter().for_each(|problem| wrong.push(problem));
    if wrong.is_empty() {
        store::sweep(&own).map_err(|error| disk(&error))?;
        return Ok(());
    }
    let known = || state.header.suites.iter().flat_map(|suite| suite.origins.iter().cloned()).collect::<Vec<_>>();
    let mut origins = if settings.origins.is_empty() { known() } else { settings.origins.clone() };
    let mut seen = std::collections::HashSet::new();
    origins.retain(|origin| seen.insert(origin.clone()));
    if origins.is_empty() {
        return Err(CommandError::usage("--repair: cannot tell where this archive came from")
            .hint("name a mirror with --from URL"));
    }
    let mut session = Session::open(directories, &origins, false, &settings.network, Durability::AtEnd)?;
    let stop = Stop::listen(&session.runtime);
    if let Some(bucket) = &names.bucket {
        bucket.stop_with(stop.watch());
    }
    events.emit(Event::Phase { phase: Phase::Fetch });
    let without_size = wrong.iter().filter(|problem| problem.size.is_none());
    let without_size = without_size.map(|problem| Asked { path: problem.path.clone(), ..Asked::default() });
    let mut learned = sizes::learn(without_size.collect(), &session, &stop)?.into_iter().map(Told::size);
    let mut wanted: Vec<IndexDownload> = Vec::new();
    for problem in &wrong {
        let Some(size) = problem.size.or_else(|| learned.next().flatten()) else { continue };
        if wanted.iter().all(|other| other.sha256 != problem.sha256) {
            let (path, other_path) = remote_names(problem);
            wanted.push(IndexDownload { path, other_path, size, sha256: problem.sha256 });
        }
    }
    for batch in batches(wanted, names.bucket.is_some()) {
        let files = Arc::new(Files::of_indexes(batch));
        let items = files.items(&[], &session);
        let fetched = session.fetch(files.clone(), items, &stop, events)?;
        session.site.landing.checkpoint().map_err(|error| disk(&error))?;
        let received: Vec<&IndexDownload> = fetched.verified.iter().filter_map(|item| files.index(*item)).collect();
        let came = |problem: &&'_ Problem| {
            received.iter().find(|index| index.sha256 == problem.sha256).map(|index| index.size)
        };
        let given: Vec<(&Problem, u64)> = wrong.iter().filter_map(|problem| Some((*problem, came(problem)?))).collect();
        names.give(&given, repaired, events)?;
        store::sweep(&own).map_err(|error| disk(&error))?;
    }
    session.site.landing.finish().map_err(|error| disk(&error))?;
    session.journal.compact().map_err(|error| disk(&error))?;
    let verdict = summary.verdict.take();
    add_transfers(summary, started, &[(0, Phase::Fetch)], &mut session.progression, [&session.site]);
    summary.verdict = verdict;
    Ok(())
}

/// Divides the files to fetch into batches, so that the files for a bucket need little local space. In a directory the
/// files stay anyway.
fn batches(wanted: Vec<IndexDownload>, is_bucket: bool) -> Vec<Vec<IndexDownload>> {
    let mut batches: Vec<Vec<IndexDownload>> = Vec::new();
    let mut bytes = 0_u64;
    for file in wanted {
        bytes = bytes.saturating_add(file.size);
        match batches.last_mut() {
            Some(batch) if !is_bucket || bytes <= BATCH_BYTES_MAX => batch.push(file),
            _ => {
                bytes = file.size;
                batches.push(vec![file]);
            }
        }
    }
    batches
}

/// Gives verified content the names of wrong content.
struct Names {
    tree: Arc<dyn Tree>,
    bucket: Option<Arc<BucketMirror>>,
}

impl Names {
    /// Gives stored content its names, and adds the repaired paths to `repaired`. Returns the problems whose paths
    /// cannot be written.
    fn give<'p>(
        &self,
        problems: &[(&'p Problem, u64)],
        repaired: &mut Vec<String>,
        events: &mut dyn Events,
    ) -> Result<Vec<&'p Problem>, CommandError> {
        if let Some(bucket) = &self.bucket {
            let link = |problem: &Problem| Name::Link { from: index_path(problem.sha256), to: problem.path.clone() };
            let names: Vec<Name> = problems.iter().map(|(problem, _)| link(problem)).collect();
            bucket.target.publish(&names).map_err(|error| disk(&error))?;
        }
        let mut left = Vec::new();
        for (problem, bytes) in problems {
            if self.bucket.is_none() {
                match self.tree.give_stored(problem.sha256, &problem.path) {
                    // The path leads through a link, and its target must not be changed. A `fullbore mirror` run
                    // replaces such links by directories.
                    Err(FileError::Symlink { .. }) => {
                        left.push(*problem);
                        continue;
                    }
                    other => other.map_err(|error| disk(&error))?,
                }
            }
            events.emit(Event::Repaired { path: problem.path.clone(), bytes: *bytes });
            repaired.push(problem.path.clone());
        }
        Ok(left)
    }
}

/// Size of an index whose content is here under another of its names, or in the store of files by hash. `None` if it is
/// not.
fn is_here(own: &Root, tree: &dyn Tree, problem: &Problem) -> Result<Option<u64>, StateError> {
    let (Some(names), Some(size)) = (&problem.names, problem.size) else { return Ok(None) };
    let is_here = store::verify(own, problem.sha256, size)? || names.adopt(tree, problem.sha256, size)?;
    Ok(is_here.then_some(size))
}

/// Paths of a file on the mirrors. For an index the by-hash path comes first, because the plain path may hold a newer
/// index by now.
fn remote_names(problem: &Problem) -> (String, Option<String>) {
    // Mirrors have no snapshots, but may still have the indexes of one.
    let path = |path: &String| snapshots::in_archive(path).unwrap_or_else(|| path.clone());
    match problem.names.as_ref().and_then(|names| Some((names.by_hash.first()?, &names.canonical))) {
        Some((by_hash, canonical)) => (path(by_hash), Some(path(canonical))),
        None => (path(&problem.path), None),
    }
}

/// The hint for the remaining problems.
fn hint(settings: &CheckSettings, findings: &Findings, left: &[&Problem]) -> &'static str {
    if left.iter().any(|problem| !matches!(problem.fault, Fault::Detached(_))) {
        return if settings.repair {
            "run `fullbore mirror` for a newer state: the mirrors lack the remaining files"
        } else {
            "pass --repair to fetch the wrong files"
        };
    }
    let refusals = || findings.suites.iter().filter_map(|suite| suite.release.as_ref().err());
    if left.is_empty() && refusals().all(SuiteFault::is_of_keyring) {
        "pass the archive's keyring with --keyring, as in the mirror's settings"
    } else {
        "run `fullbore mirror` to repair the signed files"
    }
}

fn damaged(lines: &[String], hint: &str, settings: &CheckSettings) -> CommandError {
    let files = units::several(lines.len() as u64, "file is", "files are");
    let mut error =
        CommandError::new(ErrorKind::Verification, format_args!("{}: {files} not as signed", settings.dir.display()));
    for line in lines.iter().take(PROBLEMS_NAMED) {
        error = error.context(line);
    }
    if lines.len() > PROBLEMS_NAMED {
        error = error.context(format_args!("and {} more", lines.len() - PROBLEMS_NAMED));
    }
    error.hint(hint)
}
