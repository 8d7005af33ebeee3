//! A worker of a pinned plan: `work s3://BUCKET/PREFIX --run RUN --shard 3/16`.
//!
//! It stores the files of its shard. Then it helps the others: it takes files that the store still lacks, in random
//! order, and asks the store before each. Workers do not talk to each other, and none keeps a lease or reads a clock.
//! So a worker that is started twice, late or never costs only time.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::events::{Event, Events, Phase, Plan};
use fullbore_engine::run::report::Report;
use fullbore_engine::run::{Stop, stopped};
use fullbore_engine::stage::Ledger;
use fullbore_engine::units;
use fullbore_fleet::names::RunId;
use fullbore_fleet::shards::{self, Shard, files_of, help_order};
use fullbore_s3::bucket::{BucketSettings, explain};
use fullbore_s3::objects::Objects;
use fullbore_s3::{CallError, SCHEME, WHOLE_BYTES_MAX};
use fullbore_wire::run::refusals::Why;
use fullbore_wire::run::{NetworkSettings, RunReport, sending_runtime};
use fullbore_wire::url::Url;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use super::Item;
use super::feed::{Ended, Feed, Outcome, Outcomes, Refusal};
use super::pinned::{Pinned, plan_path};
use super::session::{Seen, Session, SessionSettings, look};
use super::stored::{self, ASKED_AT_ONCE};
use crate::mirror::bucket::{BEGUN_BYTES_MAX, OWN_BYTES_MAX};
use crate::mirror::free_space::{self, Need};
use crate::mirror::session::disk;

/// Files of other shards that a helper has in progress, and their bytes, for each connection. Enough to keep a
/// connection busy for a round trip. Files that two helpers have in progress at the end of a run may be fetched twice.
const HELPED_FILES: usize = 8;
const HELPED_BYTES: u64 = 4 << 20;

/// Interval at which a helper asks the store again for the files of others. A guess; files that others have stored
/// meanwhile need not be awaited.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Maximum number of missing files in an error.
const MISSING_NAMED: usize = 8;

/// Settings of a worker for one shard of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardSettings {
    /// Bucket and prefix of the mirror.
    pub bucket: BucketSettings,
    /// Bucket with fullbore's own files, below `.fullbore/`; by default the mirror's.
    pub state: Option<BucketSettings>,
    /// Directory for temporary files: files above 16 MiB, until they are stored.
    pub scratch: std::path::PathBuf,
    /// Name of the run, as `fullbore mirror --pin` printed it.
    pub run: RunId,
    /// Number of this shard, and the number of all shards.
    pub shard: Shard,
    /// Maximum number of connections to each mirror; by default the share that the plan allows.
    pub connections_max: Option<usize>,
    /// Proxies, certificates and rate limit of this worker.
    pub network: NetworkSettings,
}

impl ShardSettings {
    /// Address of the mirror, as its plans and reports show it.
    pub fn mirror(&self) -> String {
        let location = &self.bucket.location;
        format!("{SCHEME}{}/{}", location.bucket, location.key.trim_end_matches('/'))
    }
}

/// Stores the files of a shard, and then helps the others.
///
/// # Errors
/// - [`ErrorKind::Usage`]: the run does not exist, its plan cannot be used, or the store refuses requests;
/// - [`ErrorKind::Partial`], [`ErrorKind::Verification`], [`ErrorKind::Network`]: files that no mirror of this worker
///   served right, and that no other worker has stored yet;
/// - [`ErrorKind::Disk`]: the temporary directory fails or is too small;
/// - [`ErrorKind::Interrupted`]: a signal.
pub fn run(settings: &ShardSettings, events: &mut dyn Events) -> Result<Report, CommandError> {
    let mirror = settings.mirror();
    let mut report = RunReport::start("work", None, std::path::Path::new(&mirror), events);
    let plans = Plans::open(settings)?;
    let Pinned { header, missing, .. } = plans.read(&settings.run, &mirror)?;
    let mut hosts = Vec::new();
    for host in &header.hosts {
        let url = Url::parse(host).map_err(|error| CommandError::usage(format_args!("{host}: {error}")))?;
        hosts.push((host.clone(), url.host_and_port()));
    }
    let names: Vec<&str> = hosts.iter().map(|(_, name)| name.as_str()).collect();
    let allowed = |name: &str| {
        let allowed = settings.shard.connections(name, header.connections) as usize;
        settings.connections_max.map_or(allowed, |most| most.min(allowed))
    };
    let connected =
        hosts.iter().enumerate().map(|(at, (host, name))| (host.clone(), of_address(allowed(name), &names, at)));
    let connected: Vec<(String, usize)> = connected.filter(|(_, allowed)| *allowed > 0).collect();
    let sizes: Vec<u64> = missing.iter().map(|file| file.size).collect();
    let own = files_of(settings.shard, &names, header.connections, &sizes);

    let mut network = settings.network.clone();
    network.connections_per_host = connected.iter().map(|(_, allowed)| *allowed).max().unwrap_or(1);
    // All workers together keep the limit of the planner; the limit of this worker also holds.
    let fetching = shards::connected(settings.shard.count(), &names, header.connections).len().max(1);
    let share = header.rate_bytes_per_s.map(|rate| (rate / fetching as u64).max(1));
    network.limit_rate_bytes_per_s = [network.limit_rate_bytes_per_s, share].into_iter().flatten().min();
    let mut session = Session::open(&SessionSettings {
        bucket: settings.bucket.clone(),
        scratch: settings.scratch.clone(),
        hosts: connected.iter().map(|(host, _)| host.clone()).collect(),
        cache_control: header.cache_control.clone(),
        network,
    })?;
    let allow = session.allowance();
    (0..).zip(&connected).for_each(|(host, (_, allowed))| allow(host, *allowed));
    let stop = Stop::listen(&session.network);
    session.stop_with(stop.watch());

    let mut account = Account::default();
    let result = if connected.is_empty() && !missing.is_empty() {
        let (most, count) = (header.connections, settings.shard.count());
        report.warn(
            events,
            format!(
                "shard {}/{count} has no connection to a mirror: {most} to each of {} are shared by {count} workers; \
                 the others store its files",
                settings.shard.index(),
                units::several(hosts.len() as u64, "mirror", "mirrors"),
            ),
        );
        Ok(())
    } else {
        let connections = connected.iter().map(|(_, allowed)| *allowed).sum();
        store(&missing, own, connections, &plans, &settings.run, &mut session, &stop, &mut account, &mut report, events)
    };
    let closed = session.close();
    let mut summary = report.finish(&mut session.progression, [&session.site]);
    let totals = &mut summary.summary.totals;
    (totals.files, totals.written_bytes) = (account.stored.0, account.stored.1);
    totals.wasted_bytes += account.twice_bytes;
    (totals.kept_files, totals.kept_bytes) = account.present;
    totals.missing_files = account.given_up.len() as u64;
    summary.summary.changed = account.stored.0 > 0;
    summary.summary.verdict = session.judge(summary.summary.verdict.take(), account.stored.1);
    match result.and(closed).and_then(|()| account.verdict(&missing, &session)) {
        Ok(()) => Ok(summary),
        Err(error) => {
            account.given_up.iter().for_each(|(at, refusal)| {
                summary.summary.problem(format!("{}: {}", missing[*at].path, refusal.reason));
            });
            Err(error.with_report(summary))
        }
    }
}

/// Number of connections to one address. Several addresses of a mirror share the connections that are allowed to it.
fn of_address(allowed: usize, names: &[&str], at: usize) -> usize {
    let is_same = |name: &&&str| **name == names[at];
    let (before, all) = (names[..at].iter().filter(is_same).count(), names.iter().filter(is_same).count());
    allowed / all + usize::from(before < allowed % all)
}

/// Access to the plans, which may be in another bucket than the mirror.
struct Plans {
    objects: Objects,
    /// Ends the requests when dropped.
    _stop: watch::Sender<bool>,
    runtime: Runtime,
}

impl Plans {
    fn open(settings: &ShardSettings) -> Result<Plans, CommandError> {
        let runtime = sending_runtime(&Ledger::off())?;
        let (stop, stopped) = watch::channel(false);
        let objects = {
            let _inside = runtime.enter();
            Objects::open(settings.state.as_ref().unwrap_or(&settings.bucket), stopped, &Ledger::off())?
        };
        Ok(Plans { objects, _stop: stop, runtime })
    }

    fn read(&self, run: &RunId, mirror: &str) -> Result<Pinned, CommandError> {
        let found = self.runtime.block_on(self.objects.get(&plan_path(run), OWN_BYTES_MAX));
        let found = found.map_err(|error| explain(&error))?.ok_or_else(|| {
            CommandError::usage(format_args!("{mirror} has no plan of the run {run}"))
                .hint("pass the name that `fullbore mirror --pin` printed; a finished run has no plan any more")
                .hint("if fullbore's own files are elsewhere, pass --state as for `fullbore mirror`")
        })?;
        Pinned::read(&found.content, run, mirror)
            .map_err(|error| CommandError::usage(format_args!("the plan of the run {run} cannot be used: {error}")))
    }

    /// Whether the run continues: its plan is still in the store.
    async fn has(&self, run: &RunId) -> Result<bool, CallError> {
        Ok(self.objects.head(&plan_path(run)).await?.is_some())
    }
}

/// Progress of the files of a plan, by their places in it.
#[derive(Default)]
struct Account {
    /// Number and size of the files that this worker has stored.
    stored: (u64, u64),
    /// Number and size of the files that the store already had.
    present: (u64, u64),
    /// Bytes that were fetched in vain, because another worker stored the file meanwhile.
    twice_bytes: u64,
    /// Files that no mirror of this worker served right.
    given_up: HashMap<usize, Refusal>,
    /// Files that are in the store.
    done: HashSet<usize>,
}

impl Account {
    fn found(&mut self, at: usize, file: &Item) {
        if self.done.insert(at) {
            self.present.0 += 1;
            self.present.1 += file.size;
            self.given_up.remove(&at);
        }
    }

    fn saw(&mut self, missing: &[Item], found: Vec<(usize, Seen)>) {
        for (at, seen) in found {
            match seen {
                Seen::Absent => {}
                Seen::Present => self.found(at, &missing[at]),
                Seen::Other => self.found_other(at),
            }
        }
    }

    /// Notes that the store has other content at the path, which the planner replaces when it publishes.
    fn found_other(&mut self, at: usize) {
        let reason = "the store has other content there".to_owned();
        self.given_up.insert(at, Refusal { reason, ..Refusal::default() });
    }

    fn ended(&mut self, at: usize, file: &Item, outcome: Outcome) {
        match outcome {
            Outcome::Stored => {
                self.done.insert(at);
                self.stored.0 += 1;
                self.stored.1 += file.size;
            }
            Outcome::Present => {
                self.twice_bytes += file.size;
                self.found(at, file);
            }
            Outcome::GivenUp(refusal) => drop(self.given_up.insert(at, refusal)),
        }
    }

    /// Returns the error of a worker that leaves files behind.
    fn verdict(&self, missing: &[Item], session: &Session) -> Result<(), CommandError> {
        if self.given_up.is_empty() {
            return Ok(());
        }
        let hosts = session.site.fetcher.hosts();
        let is_reached = hosts.iter().any(|host| host.totals.requests > 0);
        let has_wrong = self.given_up.values().any(|refusal| refusal.why != Why::Various);
        let kind = match (is_reached, has_wrong) {
            (false, _) => ErrorKind::Network,
            (true, true) => ErrorKind::Verification,
            (true, false) => ErrorKind::Partial,
        };
        let count = self.given_up.len() as u64;
        let files = units::several(count, "file", "files");
        let error = CommandError::new(kind, format_args!("{files} could not be stored by this worker"));
        let mut named: Vec<&usize> = self.given_up.keys().collect();
        named.sort_unstable();
        let line = |at: &&usize| format!("{}: {}", missing[**at].path, self.given_up[*at].reason);
        let error = named.iter().take(MISSING_NAMED).map(line).fold(error, CommandError::context);
        let error = match named.len().saturating_sub(MISSING_NAMED) {
            0 => error,
            more => error.context(format_args!("and {more} more (named in the report, up to 200)")),
        };
        Err(error.hint(
            "other workers may store them from other mirrors; `fullbore mirror --finish` fetches what is missing then",
        ))
    }
}

/// Stores the worker's own files, then those of others.
#[allow(clippy::too_many_arguments)]
fn store(
    missing: &[Item],
    own: Vec<usize>,
    connections: usize,
    plans: &Plans,
    run: &RunId,
    session: &mut Session,
    stop: &Stop,
    account: &mut Account,
    report: &mut RunReport,
    events: &mut dyn Events,
) -> Result<(), CommandError> {
    report.phase(events, &session.ledger, Phase::Plan);
    // A restarted worker continues where it was.
    let objects = session.objects.clone();
    session.ask(find(&objects, missing, account))?;
    let wanted = (0..missing.len()).filter(|at| account.is_wanted(*at)).map(|at| missing[at].size);
    has_room(session, wanted)?;
    let own: Vec<usize> = own.into_iter().filter(|at| account.is_wanted(*at)).collect();
    let bytes = own.iter().map(|at| missing[*at].size).sum();
    report.summary.plan = Plan {
        wanted_files: missing.len() as u64,
        wanted_bytes: missing.iter().map(|file| file.size).sum(),
        fetch_files: own.len() as u64,
        fetch_bytes: bytes,
        ..Plan::default()
    };
    events.emit(Event::Plan(report.summary.plan));
    report.phase(events, &session.ledger, Phase::Fetch);
    let mut stopping = stop.watch();
    session.work(events, |feed, outcomes| async {
        let worker = Worker { missing, feed, outcomes, objects, account, plans, run, on_their_way: (0, 0) };
        tokio::select! {
            biased;
            () = stopped(&mut stopping) => Err(interruption()),
            result = worker.store(own, connections) => result,
        }
    })?
}

/// Returns an error if there is no room for large files, which are in the temporary directory until they are stored.
fn has_room(session: &Session, sizes: impl Iterator<Item = u64>) -> Result<(), CommandError> {
    let large: Vec<u64> = sizes.filter(|size| *size > WHOLE_BYTES_MAX).collect();
    let largest = large.iter().copied().max().unwrap_or_default();
    let need = Need { bytes: large.iter().sum::<u64>().min(largest.max(BEGUN_BYTES_MAX)), ..Need::default() };
    let space = free_space::measure(session.scratch(), need).map_err(|error| disk(&error))?;
    space.check().map_err(|error| {
        CommandError::new(ErrorKind::Disk, error)
            .context("nothing was fetched")
            .hint("free some space in the temporary directory, or choose another one with --scratch")
    })
}

fn interruption() -> CommandError {
    CommandError::new(ErrorKind::Interrupted, "interrupted").hint("start the shard again: what was stored is found")
}

impl Account {
    fn is_wanted(&self, at: usize) -> bool {
        !self.done.contains(&at) && !self.given_up.contains_key(&at)
    }
}

/// State of a worker while it fetches.
struct Worker<'a> {
    missing: &'a [Item],
    feed: Feed,
    outcomes: Outcomes,
    objects: Objects,
    account: &'a mut Account,
    plans: &'a Plans,
    run: &'a RunId,
    /// Number and size of the files of other shards in progress.
    on_their_way: (usize, u64),
}

impl Worker<'_> {
    async fn store(mut self, own: Vec<usize>, connections: usize) -> Result<(), CommandError> {
        let mut open = own.len();
        let files: Vec<(u64, Item)> = own.iter().map(|at| (*at as u64, self.missing[*at].clone())).collect();
        if self.feed.add(files).await.is_err() {
            return ended().await;
        }
        while open > 0 {
            let Some(one) = self.outcomes.recv().await else { return ended().await };
            self.note(one);
            open -= 1;
        }
        // If the run is over, stored files might belong to no suite, and nobody would delete them.
        if !self.plans.has(self.run).await.map_err(|error| explain(&error))? {
            return Ok(());
        }
        find(&self.objects, self.missing, self.account).await.map_err(|error| explain(&error))?;
        let mut others: Vec<usize> = (0..self.missing.len()).filter(|at| self.account.is_wanted(*at)).collect();
        // A worker that is started twice helps in another order.
        help_order(&mut others, RandomState::new().hash_one(()));
        self.help(others, connections).await?;
        self.look_again().await
    }

    fn note(&mut self, one: Ended) {
        let at = usize::try_from(one.tag).unwrap_or(usize::MAX);
        if let Some(file) = self.missing.get(at) {
            self.account.ended(at, file, one.outcome);
        }
    }

    /// Stores files of other shards, each unless the store has it by now.
    async fn help(&mut self, others: Vec<usize>, connections: usize) -> Result<(), CommandError> {
        let (files_max, bytes_max) = (HELPED_FILES * connections.max(1), HELPED_BYTES * connections.max(1) as u64);
        let mut waiting = VecDeque::from(others);
        let mut asking = JoinSet::new();
        let mut looking = tokio::time::interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
        looking.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            while asking.len() < ASKED_AT_ONCE && self.has_room(files_max, bytes_max) {
                let Some(at) = waiting.pop_front() else { break };
                if !self.account.is_wanted(at) {
                    continue;
                }
                let (objects, file) = (self.objects.clone(), self.missing[at].clone());
                self.begin(&file);
                asking.spawn(async move { (at, look(&objects, &file).await) });
            }
            if self.on_their_way.0 == 0 {
                return Ok(());
            }
            tokio::select! {
                Some(asked) = asking.join_next(), if !asking.is_empty() => {
                    let failed = |error| CommandError::new(ErrorKind::Internal, format_args!("a task failed: {error}"));
                    let (at, seen) = asked.map_err(failed)?;
                    let file = &self.missing[at];
                    match seen.map_err(|error| explain(&error))? {
                        Seen::Absent => {
                            if self.feed.add([(at as u64, file.clone())]).await.is_err() {
                                return ended().await;
                            }
                            continue;
                        }
                        Seen::Present => self.account.found(at, file),
                        Seen::Other => self.account.found_other(at),
                    }
                    self.end(at);
                }
                _ = looking.tick() => {
                    find(&self.objects, self.missing, self.account).await.map_err(|error| explain(&error))?;
                    // Other workers have stored all files that are still in progress here.
                    if !(0..self.missing.len()).any(|at| self.account.is_wanted(at)) {
                        return Ok(());
                    }
                }
                one = self.outcomes.recv() => {
                    let Some(one) = one else { return ended().await };
                    self.end(usize::try_from(one.tag).unwrap_or(usize::MAX));
                    self.note(one);
                }
            }
        }
    }

    /// Whether one more file may be in progress. The first one always may, even if it is large.
    fn has_room(&self, files_max: usize, bytes_max: u64) -> bool {
        let (files, bytes) = self.on_their_way;
        files < files_max && bytes < bytes_max
    }

    fn begin(&mut self, file: &Item) {
        self.on_their_way = (self.on_their_way.0 + 1, self.on_their_way.1 + file.size);
    }

    fn end(&mut self, at: usize) {
        let size = self.missing.get(at).map_or(0, |file| file.size);
        self.on_their_way = (self.on_their_way.0.saturating_sub(1), self.on_their_way.1.saturating_sub(size));
    }

    /// Asks again for the files that no mirror of this worker had: other workers may have stored them.
    async fn look_again(&mut self) -> Result<(), CommandError> {
        let given_up: Vec<usize> = self.account.given_up.keys().copied().collect();
        let found = stored::ask_each(&self.objects, self.missing, &given_up).await.map_err(|error| explain(&error))?;
        self.account.saw(self.missing, found);
        Ok(())
    }
}

/// Waits for the error of the failed session, which ends this future.
async fn ended() -> Result<(), CommandError> {
    std::future::pending().await
}

/// Finds out which files the store has.
async fn find(objects: &Objects, missing: &[Item], account: &mut Account) -> Result<(), CallError> {
    let wanted: Vec<usize> = (0..missing.len()).filter(|at| account.is_wanted(*at)).collect();
    account.saw(missing, stored::find(objects, missing, &wanted).await?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_mirror_share_its_connections() {
        let names = ["a:443", "b:443", "a:443"];
        let of = |allowed| [0, 1, 2].map(|at| of_address(allowed, &names, at));
        assert_eq!((of(4), of(3), of(1)), ([2, 4, 2], [2, 3, 1], [1, 1, 0]));
    }
}
