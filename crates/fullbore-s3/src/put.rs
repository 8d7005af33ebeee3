//! `put` into a bucket: files and directories as objects.
//!
//! [`run`] does the steps in order. It makes the plan (`plan`), aborts uploads that earlier runs left open (`orphans`),
//! and lists existing objects (`known`) and unchanged files (`unchanged`). Then it sends all files, turn by turn
//! (`send`), deletes other objects if requested (`delete`), and writes the list and the report (`report`).

mod account;
mod delete;
mod fields;
pub mod fleet;
mod known;
mod orphans;
mod plan;
mod protected;
pub(crate) mod report;
mod send;
pub(crate) mod unchanged;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fullbore_engine::run::costs::process_costs;
use fullbore_engine::run::list::List;
use fullbore_engine::run::report::Report;
use fullbore_engine::run::stored::{NotStored, all_stored};
use fullbore_engine::run::{CommandError, ErrorKind, Event, Events, Phase, Stop, units};
use fullbore_engine::stage::Ledger;
use fullbore_engine::tree::Choice;
use fullbore_engine::verdict::{Sampler, SamplerConfig};
use fullbore_engine::window::Window;
use fullbore_fleet::memory::MemoryQueue;
use fullbore_wire::rate_limit::RateLimits;
use fullbore_wire::run::sending_runtime;
use tokio::sync::watch;

use crate::address::SCHEME;
use crate::bucket::{self, BucketSettings};
use crate::client::Client;
use crate::journal::{Journal, Open};
use crate::upload::Uploader;
use crate::verdict::Facts;
use crate::work::Work;
use account::{Account, Totals};
use delete::Deletion;
pub use fields::FieldSettings;
pub use fields::by_name as content_type;
use fleet::{Connect, Fleet, FleetPut};
use known::Known;
use plan::{Last, Plan};
use send::Sending;
use unchanged::Unchanged;

/// Memory for content in flight: 64 MiB carry 1 Gbit/s over half a second.
const WINDOW_BYTES: u64 = 64 << 20;

/// Number of small objects that are ready beside those in flight.
const READY: u32 = 64;

/// Settings of one `fullbore put` into a bucket.
#[derive(Debug, Clone)]
pub struct PutSettings {
    /// Destination: the bucket, and the prefix of all keys.
    pub bucket: BucketSettings,
    /// Files and directories to upload; `-` is stdin.
    pub sources: Vec<PathBuf>,
    /// Which files of directories to upload, and how to treat links.
    pub choice: Choice,
    /// Attributes of the uploaded objects.
    pub fields: FieldSettings,
    /// Patterns of files to upload after all others, in this order.
    pub last: Vec<String>,
    /// Whether to upload files whose object exists with the same content.
    pub overwrite: bool,
    /// Whether to read also files that have not changed since an earlier run, and to compare their checksums.
    pub compare_all: bool,
    /// Whether to delete objects that are not among the files; `None`: no.
    pub delete: Option<DeleteSettings>,
    /// Whether to report the plan only, and to upload and delete nothing.
    pub dry_run: bool,
    /// File for the list of uploaded files and their addresses; `None`: no list.
    pub list: Option<PathBuf>,
    /// Directory for the journals of multipart uploads, and for notes on files that need not be read again; `None`: none.
    pub journals: Option<PathBuf>,
    /// Directory for parts of pipes that are too large for memory.
    pub spool: PathBuf,
    /// Highest upload rate in bytes per second; `None`: unlimited.
    pub limit_rate_bytes_per_s: Option<u64>,
    /// Whether to sample the stage clocks even without a report that shows them.
    pub watch_stages: bool,
}

/// Limits on the deletion of objects that are not among the files.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeleteSettings {
    /// Largest share of the objects below the prefix that one run may delete, 0 to 1.
    pub share_max: f64,
    /// Whether to delete even more than `share_max`.
    pub force: bool,
}

/// Uploads all files, then deletes other objects if `delete` requests it.
///
/// # Errors
/// A [`CommandError`] whose [`ErrorKind`] tells the cause: usage for invalid settings, network if the store cannot be
/// reached or refuses, disk if a file cannot be read, partial if some files failed, interrupted after a signal.
/// Uploaded files stay, and are in the report.
pub fn run(settings: &PutSettings, events: &mut dyn Events, stop: &Stop) -> Result<Report, CommandError> {
    run_with::<NoQueue>(settings, None, events, stop)
}

/// As [`run`], with the help of other machines.
///
/// # Errors
/// As [`run`], and kind network if a required queue cannot be reached.
pub fn run_with<C: Connect>(
    settings: &PutSettings,
    fleet: Option<&FleetPut<C>>,
    events: &mut dyn Events,
    stop: &Stop,
) -> Result<Report, CommandError> {
    let common_fields = fields::common(&settings.fields)?;
    let begun = Instant::now();
    let location = &settings.bucket.location;
    events.emit(Event::started("put", format!("{SCHEME}{}/{}", location.bucket, location.key)));
    events.emit(Event::Phase { phase: Phase::Plan });
    let last = Last::new(&settings.last);
    let tell = &mut |listing: &fullbore_engine::tree::Listing| listing.tell_left_out(&mut *events);
    let mut plan = Plan::make(&settings.sources, location, &last, &settings.choice, tell)?;
    let unread = std::mem::take(&mut plan.failed);
    // After the plan, which must not include it: it may be in a directory that is uploaded.
    let mut list = List::open(settings.list.as_deref())?;
    if settings.delete.is_some() && plan.prefix.is_none() {
        return Err(CommandError::usage("--delete needs a directory among the files, to compare the objects with"));
    }
    if stop.check().is_err() {
        return Err(CommandError::new(ErrorKind::Interrupted, "interrupted; nothing was put"));
    }
    // Clocks are sampled only if somebody wants to see them: the verdict needs only sums.
    let ledger = if settings.watch_stages { Ledger::new() } else { Ledger::off() };
    let runtime = sending_runtime(&ledger)?;
    let run = Run { settings, plan: &plan, ledger: &ledger, runtime: &runtime, stop, begun };
    let fleet = fleet.filter(|_| !settings.dry_run);
    let result = put(&run, fleet, common_fields, &mut list, unread, events);
    // A thread may wait for a silent pipe, so it is not joined.
    runtime.shutdown_background();
    result
}

/// Stands for the queue in a run without one.
struct NoQueue;

impl Connect for NoQueue {
    type Queue = MemoryQueue;

    async fn connect(&self) -> Result<MemoryQueue, CommandError> {
        Err(CommandError::new(ErrorKind::Network, "no queue"))
    }
}

/// State of a run.
#[derive(Clone, Copy)]
struct Run<'a> {
    settings: &'a PutSettings,
    plan: &'a Plan,
    ledger: &'a Ledger,
    runtime: &'a tokio::runtime::Runtime,
    stop: &'a Stop,
    begun: Instant,
}

/// The run from the plan on.
fn put<C: Connect>(
    run: &Run<'_>,
    fleet: Option<&FleetPut<C>>,
    common_fields: Vec<(String, String)>,
    list: &mut List,
    unread: NotStored,
    events: &mut dyn Events,
) -> Result<Report, CommandError> {
    let Run { settings, plan, ledger, runtime, stop, .. } = *run;
    let sampler = settings.watch_stages.then(|| watch(ledger)).transpose()?;
    let limits = RateLimits::sending(settings.limit_rate_bytes_per_s);
    ledger.set_rate_limit(settings.limit_rate_bytes_per_s.unwrap_or(0));
    let client = bucket::open(&settings.bucket, limits, stop.watch(), ledger)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(4);
    let journals = settings.journals.as_deref().filter(|_| !settings.dry_run);
    let items = u32::try_from(client.connections()).unwrap_or(u32::MAX).saturating_mul(4).saturating_add(READY);
    let window = Window::new(WINDOW_BYTES, items);
    let uploader = Uploader {
        work: Arc::new(Work::new(ledger)),
        journal: journals.map(|path| Arc::new(Journal::new(path))),
        ..Uploader::new(client.clone(), window, &settings.spool)
    };
    ledger.watch_window(&uploader.window);
    let goes_on = |open: &Open| fleet.is_some() && fleet::goes_on(settings, plan, open);
    let left = match journals {
        Some(path) => runtime.block_on(orphans::give_up(events, &uploader, path, &goes_on)),
        None => Vec::new(),
    };
    let known = match settings.overwrite {
        true => Known::overwrite(),
        false => runtime.block_on(Known::find(&client, &plan.objects))?,
    };
    let unchanged = {
        let (bucket, location) = (client.bucket(), &settings.bucket.location);
        Unchanged::find(settings.journals.as_deref(), bucket.store(), location, plan, !settings.compare_all)
    };
    let content_type = {
        let given = settings.fields.content_type.clone();
        move |key: &str| fields::content_type(given.as_deref(), key)
    };
    let sending = Arc::new(Sending {
        client: client.clone(),
        uploader,
        asks_for_conditions: known.leaves_many(&plan.objects),
        known,
        unchanged,
        handle: runtime.handle().clone(),
        stop: stop.watch(),
        threads,
        dry_run: settings.dry_run,
        fields: common_fields,
        content_type: Arc::new(content_type),
        large: Sending::large_window(),
        pipes: Sending::pipes_window(),
        over: watch::Sender::new(false),
        succeeded: AtomicUsize::new(0),
        failed: AtomicUsize::new(0),
    });
    let fleet = match fleet {
        Some(fleet) => Fleet::begin(fleet, settings, plan, (&sending.uploader, left), runtime, stop, events)?,
        None => None,
    };
    events.emit(Event::Phase { phase: Phase::Put });
    let mut account = Account::new(run, &sending, list, events);
    for turn in 0..plan.turns {
        let mut numbers: Vec<usize> =
            plan.objects.iter().enumerate().filter(|(_, object)| object.turn == turn).map(|(at, _)| at).collect();
        if let Some(fleet) = &fleet {
            numbers = fleet.turn(&sending, turn, numbers, &mut |heard| account.hear(heard));
        }
        sending.send(&plan.objects, &numbers, &mut |heard| account.hear(heard));
        // The files of `--last` refer to those before.
        if !unread.is_empty() || sending.failed.load(Ordering::Relaxed) > 0 || *stop.watch().borrow() {
            break;
        }
    }
    if let Some(fleet) = &fleet {
        fleet.finish();
    }
    let (totals, mut failed, told) = account.end();
    if !settings.dry_run {
        sending.unchanged.save();
    }
    let untried = plan.objects.len() - told;
    list.publish(failed.is_empty() && unread.is_empty() && untried == 0)?;
    let mut deleted = Ok(Deleted::default());
    if let Some(wanted) = settings.delete.filter(|_| failed.is_empty() && untried == 0) {
        events.emit(Event::Phase { phase: Phase::Clean });
        deleted = runtime.block_on(delete(settings, wanted, &client, plan, events));
    } else if plan.has_mirrors {
        runtime.block_on(warn_of_private(&client, plan, events));
    }
    // Unreadable files are protected by their names, so the rest may still be deleted.
    failed.extend(unread);
    let facts = facts(run, &sending, totals.sent_bytes);
    let missing = (failed.len() + untried) as u64;
    let (gone, stages) = (*deleted.as_ref().unwrap_or(&Deleted::default()), sampler.map(Sampler::finish));
    let report = report::gather(settings, &totals, &facts, missing, gone, stages.as_ref());
    match ending(stop, &totals, failed, untried).and_then(|()| deleted.map(drop)) {
        Ok(()) => Ok(report),
        Err(error) => Err(error.with_report(report)),
    }
}

/// Returns an error if files are missing.
fn ending(stop: &Stop, totals: &Totals, failed: NotStored, untried: usize) -> Result<(), CommandError> {
    let there = totals.stored + totals.present;
    if *stop.watch().borrow() {
        let text = format!("interrupted; {there} objects are there, {untried} were not tried");
        return Err(CommandError::new(ErrorKind::Interrupted, text));
    }
    match all_stored(failed, there) {
        Err(error) if untried > 0 => Err(error.context(format_args!("{untried} more were not tried"))),
        Ok(()) if untried > 0 => {
            Err(CommandError::new(ErrorKind::Internal, format_args!("{untried} files were not tried, for no reason")))
        }
        other => other,
    }
}

/// Starts to sample the stages.
fn watch(ledger: &Ledger) -> Result<Sampler, CommandError> {
    // Acknowledged bytes count as delivered.
    let config = SamplerConfig { delivery_stage: "send".to_owned(), ..SamplerConfig::default() };
    Sampler::start(ledger, config).map_err(|error| CommandError::new(ErrorKind::Internal, error))
}

/// Result of the deletion.
#[derive(Debug, Default, Clone, Copy)]
struct Deleted {
    count: usize,
    /// Number of kept objects below excluded names.
    kept: usize,
}

async fn find_doomed(client: &Client, plan: &Plan) -> Result<Deletion, CommandError> {
    let wanted: HashSet<&str> = plan.objects.iter().map(|object| object.key.as_str()).collect();
    Deletion::find(client, plan.prefix.as_deref().unwrap_or_default(), &wanted, &plan.rules).await
}

fn tell_private(count: usize, remedy: &str, events: &mut dyn Events) {
    if count > 0 {
        let objects = units::noun(count as u64, "object", "objects");
        let count = units::count(count as u64);
        events.warn(format!("private state of mirrors or unfinished files in the bucket: {count} {objects}; {remedy}"));
    }
}

/// Without permission to list the bucket, no warning is given.
async fn warn_of_private(client: &Client, plan: &Plan, events: &mut dyn Events) {
    if let Ok(deletion) = find_doomed(client, plan).await {
        tell_private(deletion.private.len(), "--delete removes them", events);
    }
}

async fn delete(
    settings: &PutSettings,
    wanted: DeleteSettings,
    client: &Client,
    plan: &Plan,
    events: &mut dyn Events,
) -> Result<Deleted, CommandError> {
    let deletion = find_doomed(client, plan).await?;
    let kept = deletion.kept;
    // Unless something was uploaded, it is unknown what the store should list.
    if !settings.dry_run {
        deletion.refuse_other_names(client.bucket().store())?;
    }
    let remedy = if settings.dry_run { "a run without --dry-run removes them" } else { "they are removed now" };
    tell_private(deletion.private.len(), remedy, events);
    deletion.guard(wanted.share_max, wanted.force)?;
    for key in deletion.private.iter().chain(&deletion.keys) {
        let key = key.clone();
        events.emit(match settings.dry_run {
            true => Event::WouldDeleteObject { key },
            false => Event::DeletingObject { key },
        });
    }
    let all = deletion.private.len() + deletion.keys.len();
    let count = if settings.dry_run { all } else { deletion.delete(client).await? };
    Ok(Deleted { count, kept })
}

/// Facts of the run so far; `moved_bytes` is the size of uploaded objects.
fn facts(run: &Run<'_>, sending: &Sending, moved_bytes: u64) -> Facts {
    let client = &sending.client;
    Facts {
        wall: run.begun.elapsed(),
        processor: Duration::from_millis(process_costs().0),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        threads: sending.threads,
        source: sending.uploader.work.source_time(),
        hash: sending.uploader.work.hash_time(),
        target: Duration::ZERO,
        connections: client.reading(),
        store: client.bucket().endpoint.host.clone(),
        slowed: client.slowed(),
        rate_limit: run.settings.limit_rate_bytes_per_s,
        moved_bytes,
    }
}
