//! Runs [`unpack`]: scripts, rounds, database.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fullbore_engine::durability::Durability;
use fullbore_engine::stage::Ledger;

use super::clocks::Clocks;
use super::directories::workers;
use super::extract::ExtractedFiles;
use super::round::{BatchContext, CreatedDirectories, Outcome, Round, UnpackFailure};
use super::{
    Batch, Options, PlannedPackage, Refusal, RunScript, Script, Scripts, UnpackError, Unpacked, UnpackedPackage,
};
use crate::database::{self, Change, Database, FileOwners, NewPackage};
use crate::root::{Root, RootError};

/// Unpacks a batch. The caller must hold [`database::Lock::database`].
///
/// # Errors
/// Every variant of [`UnpackError`]: `Archive`, `Tar`, `Data`, `Hostile` and `File` for a faulty package, `Root` and
/// `Database` for the root, and `Stopped` if the caller stopped the run. No package of the batch is then installed.
pub fn unpack(root: &Root, batch: &Batch, mut options: Options<'_>) -> Result<Unpacked, UnpackError> {
    let mut begun = StartedPreinsts { batch, numbers: BTreeSet::new() };
    let unpacked = walk(root, batch, &mut options, &mut begun);
    if unpacked.is_err() {
        begun.abort(&mut options.scripts, |_| true);
    }
    unpacked
}

fn walk(
    root: &Root,
    batch: &Batch,
    options: &mut Options<'_>,
    begun: &mut StartedPreinsts<'_>,
) -> Result<Unpacked, UnpackError> {
    let off = Ledger::off();
    let uncounted = AtomicU64::new(0);
    let clocks = Clocks::new(options.ledger.unwrap_or(&off));
    let (mut database, mut owners) = read_database(root, &clocks)?;
    let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = workers(if options.threads == 0 { count } else { options.threads });
    let context = BatchContext {
        root,
        packages: &batch.packages,
        filters: std::mem::take(&mut options.filters),
        clocks: &clocks,
        threads,
        stop: AtomicBool::new(false),
        caller_stops: options.stop,
        done_bytes: options.done_bytes.unwrap_or(&uncounted),
    };
    let mut refused = BTreeMap::new();
    let has_preinst = |number: &u32| batch.packages[*number as usize].archive.has_preinst();
    let scripted: Vec<u32> = (0..batch.packages.len() as u32).filter(has_preinst).collect();
    match &mut options.scripts {
        _ if scripted.is_empty() => {}
        Scripts::None => {
            for number in &scripted {
                batch.packages[*number as usize].archive.verify()?;
                refused.insert(*number, "it has a preinst script".to_owned());
            }
        }
        Scripts::Later => {}
        Scripts::Run(run) => {
            let asking = Round { is_dry_run: true, ..Round::new(&context, &scripted, &database, &owners) };
            refused = ask(&asking, &scripted)?;
            for number in scripted.iter().filter(|_| !asking.is_stopped()) {
                if !refused.contains_key(number)
                    && let Err(what) = begun.preinst(*number, run)
                {
                    refused.insert(*number, format!("its preinst failed: {what}"));
                }
            }
            // A script may have changed the database.
            (database, owners) = read_database(root, &clocks)?;
        }
    }
    let wanted: Vec<u32> = (0..batch.packages.len() as u32).filter(|number| !refused.contains_key(number)).collect();

    let mut done: BTreeMap<u32, ExtractedFiles> = BTreeMap::new();
    let mut made = CreatedDirectories::new();
    let mut schedule = Schedule::new(wanted);
    while let Some(numbers) = schedule.next_round() {
        let round = Round::new(&context, &numbers, &database, &owners);
        let finished = finish_round(round, &numbers, schedule.rounds > 1, &mut made)?;
        for (number, reason) in finished.refused {
            begun.abort(&mut options.scripts, |begun| *begun == number);
            refused.insert(number, reason);
        }
        schedule.later(finished.deferred);
        for outcome in finished.done {
            let planned = &batch.packages[outcome.package as usize];
            // Deferred packages find it as an installed package.
            let label = database::label(&planned.stanza);
            owners.add(&label, outcome.work.placed.iter().map(|placed| &placed.path[..]));
            database.add_unpacked(planned.stanza.clone());
            done.insert(outcome.package, outcome.work);
        }
    }
    if done.is_empty() {
        return Ok(report(batch, &done, refused));
    }
    let _role = clocks.bookkeeping.enter();
    write_database(root, database, batch, &done, options.durability)?;
    Ok(report(batch, &done, refused))
}

/// Schedule of rounds: first all packages, then conflicting ones one by one.
struct Schedule {
    rounds: usize,
    all: Option<Vec<u32>>,
    single: BTreeSet<u32>,
}

impl Schedule {
    fn new(all: Vec<u32>) -> Self {
        Schedule { rounds: 0, all: Some(all), single: BTreeSet::new() }
    }

    fn next_round(&mut self) -> Option<Vec<u32>> {
        self.rounds += 1;
        match self.all.take() {
            Some(all) => Some(all),
            None => self.single.pop_first().map(|number| vec![number]),
        }
    }

    fn later(&mut self, numbers: Vec<u32>) {
        self.single.extend(numbers);
    }
}

fn read_database(root: &Root, clocks: &Clocks) -> Result<(Database, FileOwners), UnpackError> {
    let _role = clocks.bookkeeping.enter();
    let database = Database::read(root)?;
    let owners = FileOwners::read(root, &database)?;
    Ok((database, owners))
}

/// Checks these packages without writing anything, and returns those that will certainly be refused, so that no preinst
/// runs in vain. Each package is read to its end and so verified: scripts run with all rights, so only verified bytes
/// may be trusted.
fn ask(round: &Round<'_>, numbers: &[u32]) -> Result<BTreeMap<u32, String>, UnpackError> {
    let mut refused = BTreeMap::new();
    for outcome in round.extract(numbers) {
        match outcome.failure {
            Some(UnpackFailure::Fatal(error)) => return Err(*error),
            Some(UnpackFailure::Refused(reason)) => {
                refused.insert(outcome.package, reason);
            }
            // Unpacking decides about these.
            Some(UnpackFailure::Deferred(_) | UnpackFailure::MissingDirectory(_)) => {}
            None => {
                if let Some(label) = disappears(round, &outcome.work) {
                    refused.insert(outcome.package, format!("{label} would disappear in its favour"));
                }
            }
        }
    }
    Ok(refused)
}

/// Packages whose preinst ran.
struct StartedPreinsts<'a> {
    batch: &'a Batch,
    numbers: BTreeSet<u32>,
}

impl StartedPreinsts<'_> {
    fn preinst(&mut self, number: u32, run: &mut RunScript<'_>) -> Result<(), String> {
        let archive = &self.batch.packages[number as usize].archive;
        let ended = run(archive, Script::Preinst);
        if ended.is_ok() {
            self.numbers.insert(number);
        } else {
            // The package is left to dpkg, which reports the error.
            let _ = run(archive, Script::AbortInstall);
        }
        ended
    }

    /// Runs `postrm abort-install` of these packages, as dpkg does for a package that it cannot unpack.
    fn abort(&mut self, scripts: &mut Scripts<'_>, which: impl Fn(&u32) -> bool) {
        let Scripts::Run(run) = scripts else { return };
        let gone: Vec<u32> = self.numbers.iter().filter(|number| which(number)).copied().collect();
        for number in gone {
            self.numbers.remove(&number);
            let _ = run(&self.batch.packages[number as usize].archive, Script::AbortInstall);
        }
    }
}

/// Results of a round.
#[derive(Default)]
struct RoundResult {
    done: Vec<Outcome>,
    deferred: Vec<u32>,
    refused: Vec<(u32, String)>,
}

/// Runs the workers, then renames the files of unpacked packages and removes those of others.
fn finish_round(
    round: Round<'_>,
    numbers: &[u32],
    alone: bool,
    made: &mut CreatedDirectories,
) -> Result<RoundResult, UnpackError> {
    let outcomes = round.extract(numbers);
    let disappearing = disappearing(&round, &outcomes);
    let mut finished = RoundResult::default();
    let mut failure = None;
    let mut back = Vec::new();
    for outcome in outcomes {
        let number = outcome.package;
        match outcome.failure {
            // An earlier package conflicted with it after it was done.
            None if round.deferred[number as usize].load(Ordering::Relaxed) => finished.deferred.push(number),
            None if disappearing.contains(&number) => {
                finished.refused.push((number, "it has no path of its own, and dpkg may let it disappear".to_owned()));
            }
            None => match disappears(&round, &outcome.work) {
                Some(label) => finished.refused.push((number, format!("{label} would disappear in its favour"))),
                None => {
                    finished.done.push(Outcome { failure: None, ..outcome });
                    continue;
                }
            },
            Some(UnpackFailure::Fatal(error)) => {
                failure.get_or_insert(*error);
            }
            Some(UnpackFailure::Refused(reason)) => finished.refused.push((number, reason)),
            Some(UnpackFailure::MissingDirectory(path)) if alone => {
                let reason = format!("the directory of {} is missing", String::from_utf8_lossy(&path));
                finished.refused.push((number, reason));
            }
            Some(UnpackFailure::Deferred(_)) if alone => {
                finished.refused.push((number, "its archive has one name twice".to_owned()));
            }
            Some(UnpackFailure::MissingDirectory(_) | UnpackFailure::Deferred(_)) => finished.deferred.push(number),
        }
        back.push((number, outcome.work));
    }
    if round.context.caller_stops.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
        failure.get_or_insert(UnpackError::Stopped);
    }
    if failure.is_some() {
        back.extend(finished.done.drain(..).map(|outcome| (outcome.package, outcome.work)));
    }
    let taken_back: Result<(), RootError> = back.iter().try_for_each(|(_, work)| round.roll_back(work));
    let gone: BTreeSet<u32> = back.iter().map(|(number, _)| *number).collect();
    if let Some(error) = failure {
        // The first error is the one to report.
        let _ = taken_back.and_then(|()| round.settle_directories(&gone, made));
        return Err(error);
    }
    taken_back?;
    round.place(&finished.done)?;
    round.settle_directories(&gone, made)?;
    Ok(finished)
}

/// Finds a package that loses all its files to this one: dpkg would run its postrm and forget it.
fn disappears(round: &Round<'_>, work: &ExtractedFiles) -> Option<String> {
    let losers: BTreeSet<&String> = work.lost.iter().map(|(label, _)| label).collect();
    if losers.is_empty() {
        return None;
    }
    let paths: HashSet<&[u8]> = work.placed.iter().map(|placed| &placed.path[..]).collect();
    let all_lost = |label: &&&String| round.owners.paths_of(label).all(|path| path == b"/." || paths.contains(path));
    losers.iter().find(all_lost).map(|label| (*label).clone())
}

/// Finds packages without a path of their own (usually they have only directories). dpkg removes such a package when
/// it unpacks the next one, unless a package depends on it.
fn disappearing(round: &Round<'_>, outcomes: &[Outcome]) -> HashSet<u32> {
    // Almost every package has a last path of its own and needs no further check.
    let last = |outcome: &Outcome| outcome.work.placed.last().map(|placed| placed.path.clone());
    let lasts: HashMap<Vec<u8>, u32> =
        outcomes.iter().filter_map(|outcome| Some((last(outcome)?, outcome.package))).collect();
    let mut others: HashMap<&[u8], u32> = HashMap::new();
    let mut doubtful: HashSet<u32> = HashSet::new();
    for placed in outcomes.iter().flat_map(|outcome| &outcome.work.placed) {
        if lasts.contains_key(&placed.path) {
            *others.entry(&placed.path).or_default() += 1;
        }
    }
    for outcome in outcomes.iter().filter(|outcome| outcome.work.placed.len() > 1) {
        let Some(last) = last(outcome) else { continue };
        if others.get(&last[..]).is_some_and(|count| *count > 1) || round.owners.of(&last).next().is_some() {
            doubtful.insert(outcome.package);
        }
    }
    doubtful.retain(|package| {
        let elsewhere: HashSet<&[u8]> = outcomes
            .iter()
            .filter(|outcome| outcome.package != *package)
            .flat_map(|outcome| outcome.work.placed.iter().map(|placed| &placed.path[..]))
            .collect();
        let own = outcomes.iter().find(|outcome| outcome.package == *package);
        let shared = |path: &[u8]| elsewhere.contains(path) || round.owners.of(path).next().is_some();
        own.is_some_and(|own| {
            // Paths that it takes over become its own.
            let taken = |path: &[u8]| own.work.lost.iter().any(|(_, lost)| lost == path);
            let mut paths = own.work.placed.iter().map(|placed| &placed.path[..]);
            paths.all(|path| path == b"/." || (shared(path) && !taken(path)))
        })
    });
    doubtful
}

fn write_database(
    root: &Root,
    mut database: Database,
    batch: &Batch,
    done: &BTreeMap<u32, ExtractedFiles>,
    durability: Durability,
) -> Result<(), UnpackError> {
    let mut change = Change::default();
    for (label, path) in done.values().flat_map(|work| &work.lost) {
        change.lost.entry(label.clone()).or_default().insert(path.clone());
    }
    for (number, work) in done {
        let planned = &batch.packages[*number as usize];
        let lost = change.lost.remove(&database::label(&planned.stanza)).unwrap_or_default();
        let kept = work.placed.iter().filter(|placed| !lost.contains(&placed.path));
        change.packages.push(NewPackage {
            stanza: planned.stanza.clone(),
            control: planned.archive.control(),
            list: kept.map(|placed| &placed.path[..]).collect(),
            places: work.placed.iter().map(|placed| placed.place()).collect(),
            md5sums: made_md5sums(planned, work),
            directives: planned.directives.clone(),
        });
    }
    database.write(root, change, durability)?;
    Ok(())
}

/// `md5sums` that dpkg writes for a package without them; `None` if it has them.
fn made_md5sums(planned: &PlannedPackage, work: &ExtractedFiles) -> Option<Vec<u8>> {
    if planned.archive.control().file("md5sums").is_some() {
        return None;
    }
    let mut text = Vec::new();
    for placed in &work.placed {
        let Some(md5) = placed.md5 else { continue };
        let hex = md5.iter().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        text.extend_from_slice(hex.as_bytes());
        text.extend_from_slice(b"  ");
        text.extend_from_slice(&placed.path[1..]);
        text.push(b'\n');
    }
    Some(text)
}

fn report(batch: &Batch, done: &BTreeMap<u32, ExtractedFiles>, refused: BTreeMap<u32, String>) -> Unpacked {
    let mut unpacked = Unpacked::default();
    for (number, work) in done {
        let planned = &batch.packages[*number as usize];
        unpacked.paths += work.placed.len() as u64;
        unpacked.files += work.files;
        unpacked.plain_bytes += work.plain_bytes;
        unpacked.packages.push(UnpackedPackage {
            name: planned.archive.name().to_owned(),
            architecture: planned.archive.architecture().to_owned(),
            version: planned.version().to_owned(),
        });
    }
    unpacked.refused = refused
        .into_iter()
        .map(|(number, reason)| {
            let package = batch.packages[number as usize].archive.name().to_owned();
            Refusal { package, reason }
        })
        .collect();
    unpacked
}
