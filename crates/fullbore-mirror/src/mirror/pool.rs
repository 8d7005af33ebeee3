//! From the plan to the files to fetch: subtracts the present files.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use fullbore_engine::files::{FileError, Kind, PREALLOCATE_BYTES};
use fullbore_engine::run::Stop;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_s3::WHOLE_BYTES_MAX;

use super::batch::IndexDownload;
use super::bucket::BEGUN_BYTES_MAX;
use super::free_space::{FreeSpace, FreeSpaceError, Need};
use super::hash_files::{self, Job, Outcome};
use super::links;
use super::membership::SuiteId;
use super::plan::{FileId, Plan};
use super::replaced::Failure;
use super::session::{Session, disk};
use super::sizes::{self, Asked, Told};
use super::state::{Conflict, State, StateError};
use super::subtract::{Comparison, Subtraction, Tally};

/// Present and missing files of a plan, with the amounts to fetch.
pub(crate) struct FetchPlan {
    /// Files of the plan, sorted by what has to be done.
    pub subtraction: Subtraction,
    /// Sizes that mirrors reported, sorted by file.
    pub learned: Vec<(FileId, u64)>,
    /// Installer images that no mirror has, in order. The suite is published without them.
    pub skipped_images: Vec<FileId>,
    /// Installer images that cannot be fetched, because no mirror reported their size.
    pub needed_images: Vec<(FileId, Told)>,
    /// Number and size of the files to fetch, without indexes.
    pub fetch: Tally,
    /// Bytes of these files that an earlier run fetched.
    pub resumed_bytes: u64,
    /// Disk space that unfinished files already have, because large files are preallocated.
    pub reserved_bytes: u64,
    /// For a mirror in a bucket: maximum bytes in the temporary directory at one time.
    pub scratch_bytes: u64,
}

/// Subtracts the present files from the plan, and hashes unknown ones. `suites` are the suites of this run, and whether
/// each is signed. `in_conflict` makes the failure for a path that a suite of another run names with other content.
///
/// # Errors
///
/// The failure of `in_conflict`. `Disk` if a file or the state cannot be read, `Interrupted` if a signal arrived.
#[allow(clippy::too_many_arguments)]
pub(super) fn need(
    plan: &Plan,
    state: &State,
    session: &mut Session,
    suites: &[(SuiteId, bool)],
    in_conflict: &dyn Fn(&Conflict) -> Failure,
    stop: &Stop,
    warn: &mut dyn FnMut(String),
) -> Result<FetchPlan, Failure> {
    session.tree.expect(plan.parted());
    let mut comparison = Comparison::new(plan, state, suites);
    for (file, durable) in std::mem::take(&mut session.logged) {
        comparison.logged(file, durable);
    }
    let refused = |error: StateError| match &error {
        StateError::Conflict(conflict) => in_conflict(conflict),
        _ => Failure::Other(error.into()),
    };
    let mut subtraction = comparison.finish(state, &session.own, &*session.tree).map_err(refused)?;
    if let Some(damage) = &subtraction.damage {
        warn(format!("the list of files was damaged ({damage}); its missing entries were read from disk"));
    }
    adopt_known(plan, &mut subtraction, session, stop).map_err(|error| disk(&error))?;
    stop.check()?;
    let images = learn_sizes(plan, &mut subtraction, session, stop, warn)?;
    let mut fetch = Tally::default();
    let (mut resumed_bytes, mut reserved_bytes) = (0, 0);
    let (mut large_bytes, mut largest_bytes, mut replaced_bytes) = (0, 0, 0);
    for id in &subtraction.fetch {
        let file = plan.file(*id);
        let size = file.known_size().or_else(|| size_of(&images.learned, *id)).unwrap_or(0);
        let path = subtraction.landing_path(plan, *id);
        let present = session.present(&path, size, file.sha256).map_err(|error| disk(&error))?;
        let resumed = present.iter().map(|range| range.end - range.start).sum::<u64>();
        resumed_bytes += resumed;
        // Small files are not preallocated.
        let reserved = match size {
            PREALLOCATE_BYTES.. => session.own.part_room(&path).map_err(|error| disk(&error))?.min(size),
            _ => 0,
        };
        reserved_bytes += reserved.max(resumed);
        if subtraction.replace.contains(*id) {
            replaced_bytes += size;
        } else if size > WHOLE_BYTES_MAX {
            large_bytes += size;
            largest_bytes = size.max(largest_bytes);
        }
        fetch.add(size);
    }
    let scratch_bytes = replaced_bytes + large_bytes.min(largest_bytes.max(BEGUN_BYTES_MAX));
    Ok(FetchPlan {
        subtraction,
        learned: images.learned,
        skipped_images: images.skipped,
        needed_images: images.needed,
        fetch,
        resumed_bytes,
        reserved_bytes,
        scratch_bytes,
    })
}

fn size_of(learned: &[(FileId, u64)], id: FileId) -> Option<u64> {
    learned.binary_search_by_key(&id, |(id, _)| *id).ok().map(|at| learned[at].1)
}

/// Hashes present files that the state does not know: the tree is of another tool, or the state was lost.
fn adopt_known(plan: &Plan, subtraction: &mut Subtraction, session: &Session, stop: &Stop) -> Result<(), FileError> {
    let adopt = std::mem::take(&mut subtraction.adopt);
    let found = hash_known(plan, session, stop, &|number| {
        let id = *adopt.get(number)?;
        Some((id, plan.file(id).path))
    });
    for (id, right) in found {
        subtraction.adopted(id, right);
    }
    let behind = std::mem::take(&mut subtraction.behind);
    let found = hash_known(plan, session, stop, &|number| behind.get(number).map(|(id, path)| (*id, path.as_str())));
    for (id, right) in found {
        let file = plan.file(id);
        let path = behind.binary_search_by_key(&id, |(id, _)| *id).ok().map(|at| &behind[at].1);
        if let Some(path) = path.filter(|_| right.is_some() && !session.directories.is_untouched()) {
            session.tree.store(path, file.sha256)?;
        }
        subtraction.adopted_behind(id, right);
    }
    Ok(())
}

/// Hashes files of the plan at these paths. Returns the sizes of the right ones, in order.
fn hash_known<'a>(
    plan: &'a Plan,
    session: &Session,
    stop: &Stop,
    known: &(dyn Fn(usize) -> Option<(FileId, &'a str)> + Sync),
) -> Vec<(FileId, Option<u64>)> {
    let found = Mutex::new(Vec::new());
    let threads = session.tree.readers();
    let jobs = |number: usize| {
        let (id, path) = known(number)?;
        let file = plan.file(id);
        Some(Job { id, path, size: file.known_size(), sha256: file.sha256, known_is_enough: true })
    };
    hash_files::read_all(&*session.tree, jobs, threads, &session.scan, stop.flag(), &|id, outcome| {
        let right = if let Outcome::Right(size) = outcome { Some(size) } else { None };
        found.lock().unwrap_or_else(PoisonError::into_inner).push((id, right));
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_unstable();
    found
}

/// Installer images, whose index has no sizes.
#[derive(Default)]
struct Images {
    /// Reported sizes, in order of file.
    learned: Vec<(FileId, u64)>,
    /// Images that no mirror has, and that are skipped; in order.
    skipped: Vec<FileId>,
    /// Images that are needed but cannot be fetched.
    needed: Vec<(FileId, Told)>,
}

/// Requests the sizes of installer images, whose index has none. An image that no mirror has is skipped. But if another
/// file has its path, the image is needed: the new checksum would contradict that file.
fn learn_sizes(
    plan: &Plan,
    subtraction: &mut Subtraction,
    session: &Session,
    stop: &Stop,
    warn: &mut dyn FnMut(String),
) -> Result<Images, CommandError> {
    let is_unknown = |id: &FileId| plan.file(*id).known_size().is_none();
    let unknown: Vec<FileId> = subtraction.fetch.iter().copied().filter(is_unknown).collect();
    let asked = unknown.iter().map(|id| Asked { path: plan.file(*id).path.to_owned(), ..Asked::default() });
    let mut images = Images::default();
    for (id, told) in unknown.iter().copied().zip(sizes::learn(asked.collect(), session, stop)?) {
        match told {
            Told::Size(size) => images.learned.push((id, size)),
            Told::Absent if !is_file(session, plan.file(id).path)? => images.skipped.push(id),
            Told::Absent | Told::Nothing => images.needed.push((id, told)),
        }
    }
    let with_size: BTreeSet<FileId> = images.learned.iter().map(|(id, _)| *id).collect();
    subtraction.fetch.retain(|id| !is_unknown(id) || with_size.contains(id));
    images.skipped.sort_unstable();
    let mut named = images.skipped.iter().map(|id| plan.file(*id).path);
    if let Some(first) = named.next() {
        let more = match named.count() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        warn(format!("{first}{more}: skipped: no mirror has this installer image"));
    }
    images.learned.sort_unstable_by_key(|(id, _)| *id);
    Ok(images)
}

/// Whether this path is a file, perhaps behind a link.
fn is_file(session: &Session, path: &str) -> Result<bool, CommandError> {
    let there = links::follow(&*session.tree, path).map_err(|error| disk(&error))?;
    Ok(there.is_some_and(|(status, _)| status.kind == Kind::File))
}

/// Measures needed and free space; `indexes` are still to be fetched.
///
/// # Errors
///
/// `Disk` if the file system cannot be measured.
pub(super) fn free_space(
    need: &FetchPlan,
    indexes: &[IndexDownload],
    session: &Session,
) -> Result<FreeSpace, CommandError> {
    let index_bytes: u64 = indexes.iter().map(|index| index.size).sum();
    if session.directories.bucket.is_some() {
        // Files go to the store one by one. Only large ones, and those that replace others, are in the temporary
        // directory.
        let need = Need { bytes: need.scratch_bytes + index_bytes, files: indexes.len() as u64, directories: 0 };
        return super::free_space::measure(&session.directories.volume, need).map_err(|error| disk(&error));
    }
    super::free_space::measure(
        &session.directories.volume,
        Need {
            bytes: (need.fetch.bytes + index_bytes).saturating_sub(need.reserved_bytes),
            files: need.fetch.files + indexes.len() as u64,
            // A source package has its own directory and three files; an index gets three names.
            directories: need.fetch.files / 3 + 3 * indexes.len() as u64,
        },
    )
    .map_err(|error| disk(&error))
}

/// Error of a run that has not enough space.
pub(super) fn no_space(error: &FreeSpaceError, is_bucket: bool) -> CommandError {
    let hint = match is_bucket {
        true => "free some space in the temporary directory, or choose another one with --scratch",
        false => "free some space, mirror less (--arch, --component, --exclude), or choose another directory",
    };
    CommandError::new(ErrorKind::Disk, error)
        .context("nothing was fetched; the mirror as it was published before is intact")
        .hint(hint)
}
