//! Pinned plans from the planner's view: which files they protect, and which of them end with this run.

use std::collections::HashSet;

use fullbore_engine::run::error::CommandError;
use fullbore_fleet::message::Item;
use fullbore_fleet::names::RunId;
use fullbore_wire::run::address;

use super::pinned::{Header, Pinned};
use crate::mirror::bucket::BucketMirror;
use crate::mirror::membership::Membership;
use crate::mirror::plan::Plan;
use crate::mirror::pool::FetchPlan;
use crate::mirror::session::disk;
use crate::mirror::state::{State, StateError};
use crate::mirror::subtract::{LoggedFile, Tally};
use crate::mirror::tree::Tree;
use crate::settings::MirrorSettings;

/// Age in days at which nobody waits for the end of a run any more: its plan no longer protects files, and is removed.
/// A guess, with room for a terabyte at 10 Mbit/s.
const PIN_DAYS: i64 = 14;

const DAY_S: i64 = 86_400;

/// Plans of unfinished runs, as found in the bucket.
#[derive(Default)]
pub(crate) struct Pins {
    /// Files of runs that continue.
    named: HashSet<String>,
    /// Files of runs that end with this one.
    ended_files: Vec<Item>,
    /// Runs that end with this one.
    ended: Vec<RunId>,
}

impl Pins {
    /// Reads the plans in the bucket. Too old plans end, as does the plan of the finished run. `warn` gets a line about
    /// each plan that cannot be used.
    ///
    /// # Errors
    /// `Network` if the store does not answer, `Usage` if it refuses the request.
    pub(crate) fn read(
        bucket: &BucketMirror,
        finish: Option<&RunId>,
        warn: &mut dyn FnMut(String),
    ) -> Result<Pins, CommandError> {
        let mut pins = Pins::default();
        for run in bucket.runs()? {
            let Some(stored) = bucket.plan(&run)? else { continue };
            let is_over = stored.age_s.is_some_and(|age_s| age_s > PIN_DAYS * DAY_S);
            let ends = is_over || finish == Some(&run);
            match Pinned::read(&stored.content, &run, &bucket.tree.name()) {
                Ok(pinned) if ends => pins.ended_files.extend(pinned.missing),
                Ok(pinned) => pins.named.extend(pinned.missing.into_iter().chain(pinned.present).map(|file| file.path)),
                Err(error) => warn(format!("the plan of the run {run} is not used: {error}")),
            }
            if ends {
                pins.ended.push(run);
            }
        }
        if let Some(run) = finish.filter(|run| !pins.ended.contains(run)) {
            warn(format!(
                "the store has no plan of the run {run}: it is finished, or was pinned elsewhere; what the store has \
                 counts all the same"
            ));
        }
        Ok(pins)
    }

    /// Whether a run that continues needs this path.
    pub(crate) fn names(&self, path: &str) -> bool {
        self.named.contains(path)
    }

    /// Files of ended runs that are in the store. A later run deletes those that belong to no suite.
    ///
    /// # Errors
    /// `Network` if the store does not answer, `Usage` if it refuses the request.
    pub(crate) fn stored_files(&mut self, tree: &dyn Tree) -> Result<Vec<LoggedFile>, CommandError> {
        let mut stored = Vec::new();
        for Item { path, size, sha256 } in std::mem::take(&mut self.ended_files) {
            let status = tree.stat(&path).map_err(|error| disk(&error))?;
            if status.is_some_and(|status| status.size == size) {
                stored.push(LoggedFile { path, size, sha256 });
            }
        }
        Ok(stored)
    }

    /// Runs that end with this one.
    pub(crate) fn ended(&self) -> &[RunId] {
        &self.ended
    }
}

/// Pins the files that the store lacks. Files that only the planner writes are left out: indexes, installer images, and
/// replacements of existing files.
///
/// # Errors
/// `Disk` if the state cannot be read, `Usage` for addresses that workers cannot use, and the errors of
/// [`BucketMirror::pin`].
pub(crate) fn pin(
    settings: &MirrorSettings,
    bucket: &BucketMirror,
    plan: &Plan,
    wanted: &FetchPlan,
    state: &State,
    now: i64,
) -> Result<(RunId, Tally), CommandError> {
    let subtraction = &wanted.subtraction;
    let item = |id| {
        let file = plan.file(id);
        let item = Item { path: file.path.to_owned(), size: file.known_size()?, sha256: file.sha256 };
        item.check().is_ok().then_some(item)
    };
    let mut missing: Vec<Item> =
        subtraction.fetch.iter().filter(|id| !subtraction.replace.contains(**id)).filter_map(|id| item(*id)).collect();
    // Files that were hashed and found wrong are at the end.
    missing.sort_unstable();
    let mut present = Vec::new();
    let named = named_paths(bucket, state)?;
    for file in plan.files().filter(|file| subtraction.done.contains(file.id) && !named.contains(file.path)) {
        present.extend(item(file.id));
    }
    let mut tally = Tally::default();
    missing.iter().for_each(|file| tally.add(file.size));
    Ok((store(settings, bucket, missing, present, now)?, tally))
}

/// Pins a plan without files, so that scripts need no special case when nothing is missing.
///
/// # Errors
/// `Usage` for addresses that workers cannot use, and the errors of [`BucketMirror::pin`].
pub(crate) fn pin_nothing(settings: &MirrorSettings, bucket: &BucketMirror, now: i64) -> Result<RunId, CommandError> {
    store(settings, bucket, Vec::new(), Vec::new(), now)
}

fn store(
    settings: &MirrorSettings,
    bucket: &BucketMirror,
    missing: Vec<Item>,
    present: Vec<Item>,
    now: i64,
) -> Result<RunId, CommandError> {
    let hosts = settings.mirrors_for_workers()?;
    for host in &hosts {
        address(host).map_err(|error| error.context("workers fetch from the mirrors of the plan"))?;
    }
    let header = Header {
        mirror: bucket.tree.name(),
        hosts,
        connections: u32::try_from(settings.network.connections_per_host).unwrap_or(u32::MAX),
        rate_bytes_per_s: settings.network.limit_rate_bytes_per_s,
        cache_control: settings.store.as_ref().and_then(|store| store.cache_control.clone()),
        made_at: now,
        planner: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        ..Header::default()
    };
    let (run, bytes) = Pinned { header, missing, present }.to_bytes().map_err(CommandError::usage)?;
    bucket.pin(&run, bytes)?;
    Ok(run)
}

/// Paths that published suites name, by the state.
fn named_paths(bucket: &BucketMirror, state: &State) -> Result<HashSet<String>, CommandError> {
    let mut named = HashSet::new();
    let Some(mut records) = state.records(bucket.own()).map_err(CommandError::from)? else { return Ok(named) };
    let damaged = |source| CommandError::from(StateError::List { path: state.list_path(), source });
    let is_named = |membership: &Membership| !membership.members.is_empty();
    while let Some(record) = records.next().map_err(damaged)? {
        if is_named(&state.header.memberships[record.membership as usize]) {
            named.insert(record.path.to_owned());
        }
    }
    Ok(named)
}
