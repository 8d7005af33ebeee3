//! From plan to files: what is there, what must come, and the coming of it.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use fullbore_engine::digest::Sha256;
use fullbore_wire::fetch::Get;
use fullbore_wire::hosts::HostId;

use super::adopt::{self, Job, Outcome};
use super::batch::{Files, StoredIndex};
use super::offer::state_error;
use super::plan::{FileId, Plan};
use super::room::{Need, Room, RoomError};
use super::session::{Session, Stop, disk};
use super::standing::SuiteId;
use super::state::State;
use super::subtract::{Comparison, Subtraction, Tally};
use crate::error::{CommandError, ErrorKind};
use crate::events::Events;

/// Sizes asked for at once, of files whose index tells none. Some hundred installer images.
const HEADS_AT_ONCE: usize = 64;

/// What is there and what must come.
pub struct Wanted {
    /// The files of the plan, sorted by what has to be done for them.
    pub subtraction: Subtraction,
    /// Sizes learned from mirrors, sorted by file.
    pub learned: Vec<(FileId, u64)>,
    /// Files and bytes to be fetched, those of indexes not counted.
    pub fetch: Tally,
    /// Of these, bytes that an earlier run left.
    pub resumed_bytes: u64,
}

/// Subtracts what is there from the plan; hashes what is there and unknown. `suites` are those of
/// this run, and whether each is signed.
pub fn need(
    plan: &Plan,
    state: &State,
    session: &mut Session,
    suites: &[(SuiteId, bool)],
    warn: &mut dyn FnMut(String),
) -> Result<Wanted, CommandError> {
    let mut comparison = Comparison::new(plan, state, suites);
    for (file, durable) in std::mem::take(&mut session.logged) {
        comparison.logged(file, durable);
    }
    let mut subtraction = comparison.finish(state, &session.root).map_err(|error| state_error(&error))?;
    if let Some(damage) = &subtraction.damage {
        warn(format!("the list of files was damaged ({damage}); what it did not tell was read from the disk"));
    }
    adopt_known(plan, &mut subtraction, session);
    let learned = learn_sizes(plan, &subtraction.fetch, session)?;
    let mut fetch = Tally::default();
    let mut resumed_bytes = 0;
    for id in &subtraction.fetch {
        let file = plan.file(*id);
        let size = file.known_size().or_else(|| size_of(&learned, *id)).unwrap_or(0);
        let path = subtraction.landing_path(plan, *id);
        let present = session.present(&path, size, file.sha256).map_err(|error| disk(&error))?;
        resumed_bytes += present.iter().map(|range| range.end - range.start).sum::<u64>();
        fetch.add(size);
    }
    Ok(Wanted { subtraction, learned, fetch, resumed_bytes })
}

fn size_of(learned: &[(FileId, u64)], id: FileId) -> Option<u64> {
    learned.binary_search_by_key(&id, |(id, _)| *id).ok().map(|at| learned[at].1)
}

/// Reads files that are there but unknown: an archive that somebody else mirrored, a lost state.
fn adopt_known(plan: &Plan, subtraction: &mut Subtraction, session: &Session) {
    let found = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(2, |cores| cores.get());
    {
        let adopt = &subtraction.adopt;
        let jobs = |number: usize| {
            let file = plan.file(*adopt.get(number)?);
            Some(Job { id: file.id, path: file.path, size: file.known_size(), sha256: file.sha256 })
        };
        adopt::read_all(&session.root, jobs, threads, &session.scan, &AtomicBool::new(false), &|id, outcome| {
            let right = matches!(outcome, Outcome::Right(_));
            found.lock().unwrap_or_else(PoisonError::into_inner).push((id, right));
        });
    }
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_unstable();
    for (id, right) in found {
        subtraction.adopted(id, right);
        if right {
            subtraction.present.add(plan.file(id).known_size().unwrap_or(0));
        }
    }
}

/// Asks for the sizes of installer images: `SHA256SUMS` has none, and bytes need a bound.
fn learn_sizes(plan: &Plan, fetch: &[FileId], session: &Session) -> Result<Vec<(FileId, u64)>, CommandError> {
    let unknown: Vec<FileId> = fetch.iter().copied().filter(|id| plan.file(*id).known_size().is_none()).collect();
    let mut learned = Vec::new();
    for group in unknown.chunks(HEADS_AT_ONCE) {
        learned.extend(session.runtime.block_on(async {
            let mut asked = tokio::task::JoinSet::new();
            for id in group.iter().copied() {
                let watch = session.fetcher.watch();
                let path = plan.file(id).path.to_owned();
                asked.spawn(async move { (id, size_on_some_host(&watch, path).await) });
            }
            asked.join_all().await
        }));
    }
    learned.sort_unstable_by_key(|(id, _)| *id);
    let mut sizes = Vec::new();
    for (id, size) in learned {
        let Some(size) = size else {
            return Err(CommandError::new(
                ErrorKind::Network,
                format_args!("{}: no mirror tells its size", plan.file(id).path),
            )
            .context(format_args!("named by {}", plan.index_of(id)))
            .hint("leave installer images out with --without installer"));
        };
        sizes.push((id, size));
    }
    Ok(sizes)
}

async fn size_on_some_host(watch: &fullbore_wire::fetch::Watch, path: String) -> Option<u64> {
    for host in 0..watch.names().len() {
        let get = Get { path: path.clone(), limit_bytes: 0, head_only: true, ..Get::default() };
        if let Ok(got) = watch.get(host as HostId, get).await
            && got.head.status == 200
            && let Some(length) = got.head.content_length
        {
            return Some(length);
        }
    }
    None
}

/// Whether it all fits; with `indexes`, those still to come.
pub fn room(need: &Wanted, indexes: &[StoredIndex], session: &Session) -> Result<Room, CommandError> {
    let index_bytes: u64 = indexes.iter().map(|index| index.size).sum();
    super::room::measure(
        &session.places.volume,
        Need {
            bytes: (need.fetch.bytes + index_bytes).saturating_sub(need.resumed_bytes),
            files: need.fetch.files + indexes.len() as u64,
            // A source package has a directory of its own and three files; indexes get three names.
            directories: need.fetch.files / 3 + 3 * indexes.len() as u64,
        },
    )
    .map_err(|error| disk(&error))
}

/// The refusal of a run that does not fit.
pub fn no_room(error: &RoomError) -> CommandError {
    CommandError::new(ErrorKind::Disk, error)
        .context("nothing was fetched; the mirror as it was published before is intact")
        .hint("make room, mirror less (--arch, --component, --exclude), or choose another directory")
}

/// What came of the fetching.
pub struct Came {
    /// Files of the plan that no host served right, with what is known of why.
    pub missing: Vec<String>,
    /// Suites that cannot be published for them.
    pub incomplete: Vec<SuiteId>,
    /// Indexes that came.
    pub indexes: Vec<Sha256>,
}

/// Fetches the files of the plan and the remaining indexes.
pub fn fetch(
    plan: &Arc<Plan>,
    need: &mut Wanted,
    indexes: Vec<StoredIndex>,
    session: &mut Session,
    stop: &Stop,
    events: &mut dyn Events,
) -> Result<Came, CommandError> {
    let subtraction = &mut need.subtraction;
    let files = Arc::new(Files::of_plan(plan.clone(), subtraction.replace.clone(), need.learned.clone(), indexes));
    let items = files.items(&subtraction.fetch, session);
    let fetched = session.fetch(files.clone(), items, stop, events)?;
    let mut came = Came { missing: Vec::new(), incomplete: Vec::new(), indexes: Vec::new() };
    for item in fetched.verified {
        match files.index(item) {
            Some(index) => came.indexes.push(index.sha256),
            None => drop(subtraction.done.insert(item)),
        }
    }
    let names: Vec<String> = session.fetcher.hosts().into_iter().map(|host| host.name).collect();
    for given_up in fetched.given_up.iter().filter(|given_up| files.index(given_up.item).is_none()) {
        let file = plan.file(given_up.item);
        let tried: Vec<&str> =
            given_up.tried.iter().filter_map(|host| names.get(host as usize)).map(String::as_str).collect();
        let why = match (given_up.missing, tried.is_empty()) {
            (true, _) => format!("not on {}", tried.join(", ")),
            (false, false) => format!("wrong or broken from {}", tried.join(", ")),
            (false, true) => "no mirror could be reached".to_owned(),
        };
        came.missing.push(format!("{}: {why}", file.path));
        came.incomplete.extend(file.suites);
    }
    came.incomplete.sort_unstable();
    came.incomplete.dedup();
    Ok(came)
}
