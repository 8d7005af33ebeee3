//! `fullbore put … s3://bucket/prefix`: files and directories as objects in a bucket.
//!
//! [`run`] is the walk: what goes where (`plan`) → uploads that an earlier run left open are given up → what is there
//! (`known`) → all files, turn by turn (`send`) → objects that are not among them, if asked (`delete`) → the list of keys,
//! and what limited the run.

mod delete;
mod fields;
mod known;
mod orphans;
mod plan;
mod protected;
mod report;
mod send;

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fullbore_engine::stage::Ledger;
use fullbore_engine::verdict::remote::Verdict;
use fullbore_engine::verdict::{Sampler, SamplerConfig};
use fullbore_engine::window::Window;
use fullbore_s3::address::{Location, SCHEME};
use fullbore_s3::client::Client;
use fullbore_s3::conditions::Conditions;
use fullbore_s3::gather::Gathering;
use fullbore_s3::journal::Journal;
use fullbore_s3::parts::Growth;
use fullbore_s3::spool::Spool;
use fullbore_s3::upload::Uploader;
use fullbore_s3::verdict::{Facts, judge};
use fullbore_s3::work::Work;
use fullbore_wire::rate_limit::RateLimit;
use serde_json::json;
use tokio::sync::watch;

use super::list::{self, List};
use super::spool;
use super::tree::Choice;
use super::{fail, tell_left_out};
use crate::bucket;
use crate::cli::PutArgs;
use crate::grid::{amount, print_line, runtime, say, tell};
use crate::program::process_costs;
use delete::Doomed;
use fullbore_engine::run::Stop;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::units;
use known::Known;
use plan::{Last, Plan};
use send::{Done, Outcome, Sending};

/// Memory for content on its way: 64 MiB carry 1 Gbit/s over half a second.
const WINDOW_BYTES: u64 = 64 << 20;

/// Small objects that are ready beside those that are on their way.
const READY: u32 = 64;

/// Share of the objects that `--delete` may take, unless told otherwise.
const MAX_DELETE: f64 = 0.4;

/// Puts everything; the result is the exit code.
pub fn run(arguments: &PutArgs, address: &std::ffi::OsStr) -> Result<u8, CommandError> {
    refuse_flags_of_grids(arguments)?;
    let location = bucket::location(address)?;
    let sources = &arguments.paths[..arguments.paths.len() - 1];
    if sources.is_empty() {
        return Err(CommandError::usage("what is to be put? FILE|DIR comes before the address"));
    }
    let common_fields = fields::common(&arguments.s3_put)?;
    let begun = Instant::now();
    let choice = Choice { copy_links: arguments.copy_links, with_snapshots: arguments.with_snapshots };
    let last = Last::new(&arguments.s3_put.last);
    let mut plan = Plan::make(sources, &location, &last, choice, &mut |listing| tell_left_out(arguments, listing))?;
    let unread = std::mem::take(&mut plan.failed);
    // Behind the plan, which it is no part of: it may be in a directory that is put.
    let mut list = List::open(arguments.caps.as_deref())?;
    if arguments.s3_put.delete && plan.prefix.is_none() {
        return Err(CommandError::usage("--delete needs a directory among the files: what is not in it is deleted"));
    }
    // Clocks of stages are looked at where somebody wants to see them: judging needs sums alone.
    let ledger = if super::report::is_wanted(arguments) { Ledger::new() } else { Ledger::off() };
    let runtime = runtime(&ledger)?;
    let run = Run { arguments, location: &location, plan: &plan, ledger: &ledger, runtime: &runtime, begun };
    let result = put(&run, common_fields, &mut list, unread);
    // A thread may wait for a pipe that gives nothing: it is not waited for.
    runtime.shutdown_background();
    result
}

/// What a run is about.
struct Run<'a> {
    arguments: &'a PutArgs,
    location: &'a Location,
    plan: &'a Plan,
    ledger: &'a Ledger,
    runtime: &'a tokio::runtime::Runtime,
    begun: Instant,
}

/// The walk, from the plan on.
fn put(
    run: &Run<'_>,
    common_fields: Vec<(String, String)>,
    list: &mut List,
    unread: Vec<(PathBuf, CommandError)>,
) -> Result<u8, CommandError> {
    let Run { arguments, location, plan, ledger, runtime, begun } = *run;
    let sampler = super::report::is_wanted(arguments).then(|| watch(ledger)).transpose()?;
    let stop = Stop::listen(runtime);
    let limit = arguments.limit_rate.map(|rate| Arc::new(RateLimit::new(rate.0, Instant::now())));
    ledger.set_rate_limit(arguments.limit_rate.map_or(0, |rate| rate.0));
    let client = bucket::open(&arguments.s3, &arguments.grid, location, limit, stop.watch(), ledger)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(4);
    let journals = arguments.journals.clone().or_else(bucket::state_directory);
    let items = u32::try_from(client.connections()).unwrap_or(u32::MAX).saturating_mul(4).saturating_add(READY);
    let window = Window::new(WINDOW_BYTES, items);
    let uploader = Uploader {
        client: client.clone(),
        pipes: Gathering::new(&window),
        window,
        work: Arc::new(Work::new(ledger)),
        journal: journals.as_deref().filter(|_| !arguments.dry_run).map(|path| Arc::new(Journal::new(path))),
        spool: Spool::new(&spool::directory()),
        growth: Growth::default(),
        conditions: Arc::new(Conditions::of(client.bucket().is_default)),
    };
    ledger.watch_window(&uploader.window);
    if let Some(path) = journals.as_deref().filter(|_| !arguments.dry_run) {
        runtime.block_on(orphans::give_up(&arguments.grid, &uploader, path));
    }
    let known = match arguments.s3_put.resend {
        true => Known::resend(),
        false => runtime.block_on(Known::find(&client, &plan.objects))?,
    };
    let content_type = {
        let given = arguments.s3_put.content_type.clone();
        move |key: &str| fields::content_type(given.as_deref(), key)
    };
    let sending = Arc::new(Sending {
        client: client.clone(),
        uploader,
        asks_for_conditions: known.leaves_many(&plan.objects),
        known,
        handle: runtime.handle().clone(),
        stop: stop.watch(),
        threads,
        dry_run: arguments.dry_run,
        fields: common_fields,
        content_type: Box::new(content_type),
        large: Sending::large_window(),
        pipes: Sending::pipes_window(),
        over: watch::Sender::new(false),
        succeeded: AtomicUsize::new(0),
        failed: AtomicUsize::new(0),
    });
    let mut account = Account::new(arguments, plan, location, list);
    for turn in 0..plan.turns {
        let numbers: Vec<usize> =
            plan.objects.iter().enumerate().filter(|(_, object)| object.turn == turn).map(|(at, _)| at).collect();
        sending.send(&plan.objects, &numbers, &mut |done| account.done(done));
        // What comes last refers to what came before.
        if !unread.is_empty() || sending.failed.load(Ordering::Relaxed) > 0 || *stop.watch().borrow() {
            break;
        }
    }
    account.rest();
    let Account { totals, mut failed, told, .. } = account;
    let untried = plan.objects.len() - told;
    list.publish(failed.is_empty() && unread.is_empty() && untried == 0)?;
    let mut deleted = Ok(Deleted::default());
    if failed.is_empty() && untried == 0 && arguments.s3_put.delete {
        deleted = runtime.block_on(delete(arguments, &client, plan));
    } else if plan.has_mirrors {
        runtime.block_on(warn_of_private(arguments, &client, plan));
    }
    // What could not be read is protected by its name, and so does not keep the rest from being deleted.
    failed.extend(unread);
    let facts = facts(&sending, &client, &totals, begun.elapsed(), arguments.limit_rate.map(|rate| rate.0));
    let verdict = judge(&facts);
    let reported = super::report::write(arguments, || {
        report::of_store(location, &totals, &facts, &verdict, failed.len() + untried, sampler.map(Sampler::finish))
    });
    conclude(
        arguments,
        &totals,
        &facts,
        &verdict,
        failed.len() + untried,
        *deleted.as_ref().unwrap_or(&Deleted::default()),
    );
    if *stop.watch().borrow() {
        return Err(CommandError::new(
            ErrorKind::Interrupted,
            format_args!("interrupted; {} objects are there, {untried} were not tried", totals.stored + totals.present),
        ));
    }
    let result = fail(failed, totals.stored + totals.present);
    let result = match result {
        Err(error) if untried > 0 => Err(error.context(format_args!("{untried} more were not tried"))),
        Ok(_) if untried > 0 => {
            Err(CommandError::new(ErrorKind::Internal, format_args!("{untried} files were not tried, for no reason")))
        }
        other => other,
    };
    result.and_then(|code| deleted.map(|_| code.max(reported)))
}

fn refuse_flags_of_grids(arguments: &PutArgs) -> Result<(), CommandError> {
    let given = [
        ("--node", arguments.grid.node.is_some()),
        ("--servers", arguments.grid.servers.is_some()),
        ("--encoding", arguments.encoding.is_some()),
        ("--convergence", arguments.convergence.is_some()),
        ("--convergence-file", arguments.convergence_file.is_some()),
        ("--size", arguments.size.is_some()),
        ("--segment-size", arguments.segment_size.is_some()),
        ("--random-key", arguments.random_key),
    ];
    match given.iter().find(|(_, given)| *given) {
        Some((flag, _)) => Err(CommandError::usage(format_args!("{flag} is about Tahoe-LAFS grids, not S3 stores"))),
        None => Ok(()),
    }
}

/// Begins to look at the stages.
fn watch(ledger: &Ledger) -> Result<Sampler, CommandError> {
    // Bytes that the store acknowledged are what is delivered.
    let config = SamplerConfig { delivery_stage: "send".to_owned(), ..SamplerConfig::default() };
    Sampler::start(ledger, config).map_err(|error| CommandError::new(ErrorKind::Internal, error))
}

/// What was done.
#[derive(Debug, Default)]
struct Totals {
    stored: u64,
    present: u64,
    wanted: u64,
    bytes: u64,
    sent_bytes: u64,
    unconfirmed: u64,
}

/// Tells what is done, in the order of the arguments.
struct Account<'a> {
    arguments: &'a PutArgs,
    plan: &'a Plan,
    location: &'a Location,
    list: &'a mut List,
    waiting: BTreeMap<usize, Done>,
    told: usize,
    next: usize,
    totals: Totals,
    failed: Vec<(std::path::PathBuf, CommandError)>,
}

impl<'a> Account<'a> {
    fn new(arguments: &'a PutArgs, plan: &'a Plan, location: &'a Location, list: &'a mut List) -> Account<'a> {
        Account {
            arguments,
            plan,
            location,
            list,
            waiting: BTreeMap::new(),
            told: 0,
            next: 0,
            totals: Totals::default(),
            failed: Vec::new(),
        }
    }

    fn done(&mut self, done: Done) {
        self.waiting.insert(done.number, done);
        while let Some(done) = self.waiting.remove(&self.next) {
            self.next += 1;
            self.tell(done);
        }
    }

    /// What was done after something that was not.
    fn rest(&mut self) {
        for (_, done) in std::mem::take(&mut self.waiting) {
            self.tell(done);
        }
    }

    fn tell(&mut self, done: Done) {
        let object = &self.plan.objects[done.number];
        self.told += 1;
        let outcome = match done.result {
            Ok(outcome) => outcome,
            Err(error) if error.kind == ErrorKind::Interrupted => {
                self.told -= 1;
                return;
            }
            Err(error) => return self.failed.push((object.path.clone(), error)),
        };
        self.totals.bytes += done.size;
        let mut checksum = None;
        let event = match outcome {
            Outcome::Stored(stored) => {
                self.totals.stored += 1;
                self.totals.sent_bytes += stored.size;
                self.totals.unconfirmed += u64::from(!stored.confirmed);
                checksum = Some(stored.checksum);
                "stored"
            }
            Outcome::Present => {
                self.totals.present += 1;
                "present"
            }
            Outcome::Wanted => {
                self.totals.wanted += 1;
                "would_store"
            }
        };
        let address = format!("{SCHEME}{}/{}", self.location.bucket, object.key);
        self.list.add(&object.path, done.size, &address);
        if self.arguments.grid.json {
            let mut entry = list::entry(&object.path, done.size, &address, None);
            entry["event"] = event.into();
            entry["checksum_sha256"] = checksum.into();
            tell(&entry);
        } else {
            print_line(&address);
        }
    }
}

/// What `--delete` did.
#[derive(Debug, Default, Clone, Copy)]
struct Deleted {
    count: usize,
    /// Objects beneath names that were left out.
    kept: usize,
}

async fn find_doomed(client: &Client, plan: &Plan) -> Result<Doomed, CommandError> {
    let wanted: HashSet<&str> = plan.objects.iter().map(|object| object.key.as_str()).collect();
    Doomed::find(client, plan.prefix.as_deref().unwrap_or_default(), &wanted, &plan.rules).await
}

fn say_private(arguments: &PutArgs, count: usize, remedy: &str) {
    if count > 0 {
        let plural = if count == 1 { "" } else { "s" };
        let text = format!(
            "warning: private state of mirrors or unfinished files in the bucket: {} object{plural}; {remedy}",
            units::count(count as u64)
        );
        say(&arguments.grid, &text);
    }
}

/// Without a right to list the bucket nothing is said.
async fn warn_of_private(arguments: &PutArgs, client: &Client, plan: &Plan) {
    if let Ok(doomed) = find_doomed(client, plan).await {
        say_private(arguments, doomed.private.len(), "--delete removes them");
    }
}

async fn delete(arguments: &PutArgs, client: &Client, plan: &Plan) -> Result<Deleted, CommandError> {
    let doomed = find_doomed(client, plan).await?;
    let kept = doomed.kept;
    // Without having put anything it is not known what the store should list.
    if !arguments.dry_run {
        doomed.refuse_other_names(client.bucket().store())?;
    }
    let remedy = if arguments.dry_run { "a run without --dry-run removes them" } else { "they are removed now" };
    say_private(arguments, doomed.private.len(), remedy);
    let share_max = arguments.s3_put.max_delete.map_or(MAX_DELETE, crate::settings::values::Percent::fraction);
    doomed.guard(share_max, arguments.s3_put.force_delete)?;
    for key in doomed.private.iter().chain(&doomed.keys) {
        if arguments.grid.json {
            let event = if arguments.dry_run { "would_delete" } else { "deleting" };
            tell(&json!({"event": event, "key": key}));
        } else if arguments.dry_run {
            say(&arguments.grid, &format!("would delete {key}"));
        }
    }
    let all = doomed.private.len() + doomed.keys.len();
    let count = if arguments.dry_run { all } else { doomed.delete(client).await? };
    Ok(Deleted { count, kept })
}

fn facts(sending: &Sending, client: &Client, totals: &Totals, wall: Duration, rate_limit: Option<u64>) -> Facts {
    Facts {
        wall,
        processor: Duration::from_millis(process_costs().0),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        threads: sending.threads,
        source: sending.uploader.work.source_time(),
        hash: sending.uploader.work.hash_time(),
        target: Duration::ZERO,
        connections: client.reading(),
        store: client.bucket().endpoint.host.clone(),
        slowed: client.slowed(),
        rate_limit,
        moved_bytes: totals.sent_bytes,
    }
}

/// The last line, or the last line of JSON.
fn conclude(arguments: &PutArgs, totals: &Totals, facts: &Facts, verdict: &Verdict, failed: usize, deleted: Deleted) {
    let Verdict { limit, reason, confident, shares, evidence, .. } = verdict;
    let connections = &facts.connections;
    if arguments.grid.json {
        let (cpu_ms, peak_rss_bytes) = process_costs();
        let ms = |time: Duration| (time.as_secs_f64() * 1e4).round() / 10.0;
        let answers = u32::try_from(connections.answers.max(1)).unwrap_or(u32::MAX);
        tell(&json!({
            "event": "summary",
            "stored": totals.stored, "present": totals.present, "would_store": totals.wanted,
            "failed": failed, "deleted": deleted.count, "kept": deleted.kept,
            "bytes": totals.bytes, "sent_bytes": totals.sent_bytes, "unconfirmed": totals.unconfirmed,
            "duration_ms": ms(facts.wall), "cpu_ms": cpu_ms, "peak_rss_bytes": peak_rss_bytes,
            "stages": {"source_ms": ms(facts.source), "hash_ms": ms(facts.hash)},
            "server": {
                "name": facts.store, "answers": connections.answers, "connections": connections.connections,
                "connections_at_once": connections.connections_at_once, "repeated": connections.repeated,
                "slow_downs": facts.slowed, "open_ms": ms(connections.open), "path_ms": ms(connections.path),
                "turn_around_ms": ms(connections.server), "mean_turn_around_ms": ms(connections.server / answers),
                "round_trip_ms": connections.round_trip.map(ms),
            },
            "verdict": {
                "limit": limit, "reason": reason, "confident": confident, "shares": shares, "evidence": evidence,
            },
        }));
        return;
    }
    let plural = |count: u64| if count == 1 { "" } else { "s" };
    let mut text = if arguments.dry_run {
        format!("{} file{} would be put", totals.wanted, plural(totals.wanted))
    } else {
        format!("{} file{}, {}", totals.stored, plural(totals.stored), amount(totals.sent_bytes, facts.wall))
    };
    if totals.present > 0 {
        text.push_str(&format!("; {} were there already", totals.present));
    }
    if deleted.count > 0 {
        text.push_str(&format!(
            "; {} {}",
            units::count(deleted.count as u64),
            if arguments.dry_run { "would be deleted" } else { "deleted" }
        ));
    }
    if deleted.kept > 0 {
        text.push_str(&format!("; {} kept beneath names that were left out", units::count(deleted.kept as u64)));
    }
    if totals.unconfirmed > 0 {
        text.push_str("; the store does not say what checksums it has");
    }
    say(&arguments.grid, &format!("{text}. Limited by: {limit} ({reason})."));
    if arguments.grid.verbose > 0 {
        evidence.iter().for_each(|line| say(&arguments.grid, &format!("  {line}")));
    }
}
