//! `get` from a bucket: one object, to stdout or to a file that gets its name when it is complete and right. [`tree`]
//! downloads several objects.

pub mod tree;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fullbore_engine::run::costs::process_costs;
use fullbore_engine::run::pace::PROGRESS_EVERY;
use fullbore_engine::run::report::{self, Report, StageTimes, StoreKind, StoreReport, Summary};
use fullbore_engine::run::sink::{Left, Sink};
use fullbore_engine::run::{CommandError, Counts, ErrorKind, Event, Events, Pace, Phase, Stop, interruption};
use fullbore_engine::stage::Ledger;
use fullbore_engine::window::Window;
use fullbore_wire::rate_limit::RateLimits;
use fullbore_wire::run::sending_runtime;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::address::{Location, SCHEME};
use crate::bucket::{self, BucketSettings};
use crate::client::Client;
use crate::download::{self, Beginning, DownloadError, Downloaded, RANGE_BYTES, RANGES_AT_ONCE, WINDOW_BYTES};
use crate::key;
use crate::put::report::of_store;
use crate::verdict::{Facts, judge};

/// Maximum number of ranges between the network and the file.
const RANGES: usize = 1;

/// Minimum size of an unfinished file that is kept for the next run, in bytes.
const KEPT_BYTES: u64 = RANGE_BYTES;

/// Settings of one `fullbore get` from a bucket.
#[derive(Debug, Clone)]
pub struct GetSettings {
    /// The bucket, and the object's key.
    pub bucket: BucketSettings,
    /// File to write; `None`: stdout.
    pub output: Option<PathBuf>,
    /// Whether to fail, and write nothing, if no checksum of the store verifies the object.
    pub require_checksum: bool,
    /// Highest download rate in bytes per second; `None`: unlimited.
    pub limit_rate_bytes_per_s: Option<u64>,
}

/// Downloads an object to a file or to `stdout`. Returns `None` if the reader of stdout has closed it.
///
/// # Errors
/// A [`CommandError`] whose [`ErrorKind`] tells the cause: usage for an invalid key or `-o`, network if the store
/// cannot be reached or refuses, verification for wrong content, disk if the file cannot be written, interrupted after
/// a signal. No file gets its name then.
pub fn run(
    settings: &GetSettings,
    stdout: &mut (dyn Write + Send),
    events: &mut dyn Events,
    stop: &Stop,
) -> Result<Option<Report>, CommandError> {
    let location = &settings.bucket.location;
    let address = format!("{SCHEME}{}/{}", location.bucket, location.key);
    if location.key.is_empty() || location.key.ends_with('/') {
        return Err(CommandError::usage(format_args!("{address}: the address does not name an object")));
    }
    key::check(&location.key).map_err(CommandError::usage)?;
    let begun = Instant::now();
    events.emit(Event::started("get", address));
    let ledger = Ledger::off();
    let runtime = sending_runtime(&ledger)?;
    let limits = RateLimits::receiving(settings.limit_rate_bytes_per_s);
    let client = bucket::open(&settings.bucket, limits, stop.watch(), &ledger)?;
    let name = location.key.rsplit('/').next();
    let mut sink = Sink::resume(settings.output.as_deref(), name, stdout)?;
    events.emit(Event::Phase { phase: Phase::Fetch });
    let left = sink.left()?;
    let was_noted = left.as_ref().is_some_and(|left| left.version.is_some());
    let here = Arc::new(AtomicU64::new(left.map_or(0, |left| left.bytes)));
    let pace = Pace::with_peers(begun);
    let mut transfer = Transfer { client: &client, runtime: &runtime, settings, pace, begun, events, here };
    let (mut got, used) = transfer.run(&mut sink)?;
    if download::is_of_another(&got, used, was_noted) {
        sink.start_over()?;
        transfer.here.store(0, Ordering::Relaxed);
        got = transfer.run(&mut sink)?.0;
    }
    let Transfer { mut pace, events, here, .. } = transfer;
    if sink.is_abandoned {
        return Ok(None);
    }
    let Downloaded { size, doubt, modified } = match got {
        Ok(got) => got,
        Err(error) => {
            let is_interrupted = *stop.watch().borrow();
            let command = if is_interrupted { interruption() } else { explain(&error, location) };
            let is_useful = matches!(error, DownloadError::Call(_) | DownloadError::Range { .. });
            let is_kept = is_useful && sink.written.max(here.load(Ordering::Relaxed)) >= KEPT_BYTES && sink.keep();
            return Err(if is_kept { command.hint("run the same command again to resume") } else { command });
        }
    };
    if let Some(modified) = modified {
        sink.set_mtime(modified)?;
    }
    let target = sink.publish()?;
    events.emit(Event::Progress(pace.progress(Counts { files: 1, ..counts(size, size) }, None, Instant::now())));
    if let Some(doubt) = doubt {
        events.warn(format!("{}: {}", location.key, download::unverified(doubt)));
    }
    let facts = facts(&client, settings.limit_rate_bytes_per_s, begun, target, size);
    let store = StoreReport {
        kind: StoreKind::Bucket,
        files: 1,
        bytes: size,
        verified: Some(doubt.is_none()),
        stages: StageTimes { target_ms: Some(StoreReport::ms(target)), ..StageTimes::default() },
        ..StoreReport::default()
    };
    let totals = report::Totals {
        files: 1,
        needed_bytes: size,
        received_bytes: facts.connections.received_bytes,
        written_bytes: size,
        ..report::Totals::default()
    };
    let dir = format!("{SCHEME}{}", location.bucket);
    let summary = Summary { changed: true, dir, ..of_store(&facts, totals, store) };
    Ok(Some(Report { summary, ..Report::default() }))
}

/// State shared by the attempts of a run.
struct Transfer<'a> {
    client: &'a Client,
    runtime: &'a Runtime,
    settings: &'a GetSettings,
    pace: Pace,
    begun: Instant,
    events: &'a mut dyn Events,
    /// Bytes of an earlier run, until they turn out to belong to another object.
    here: Arc<AtomicU64>,
}

impl Transfer<'_> {
    /// Downloads the object behind the bytes of an earlier run. Also returns the number of reused bytes. The outer
    /// error concerns the sink.
    fn run(&mut self, sink: &mut Sink<'_>) -> Result<(Result<Downloaded, DownloadError>, u64), CommandError> {
        let used = Arc::<AtomicU64>::default();
        let beginning = match sink.left()? {
            None => Beginning::none(),
            Some(Left { bytes, version, file }) => {
                let (file, used) = (Arc::new(file), Arc::clone(&used));
                let (reader, here) = (Arc::clone(&file), Arc::clone(&self.here));
                Beginning {
                    bytes,
                    etag: version,
                    read: Box::new(move |offset, buffer| reader.read_at(offset, buffer)),
                    settle: Box::new(move |bytes, etag| {
                        used.store(bytes, Ordering::Relaxed);
                        here.store(bytes, Ordering::Relaxed);
                        file.settle(bytes, etag)
                    }),
                }
            }
        };
        let (out, mut ranges) = mpsc::channel::<Vec<Bytes>>(RANGES);
        let window = Window::new(WINDOW_BYTES, RANGES_AT_ONCE);
        let (client, key) = (self.client.clone(), self.settings.bucket.location.key.clone());
        let (required, size) = (self.settings.require_checksum, Arc::new(AtomicU64::new(0)));
        let known = Arc::clone(&size);
        let task = self
            .runtime
            .spawn(async move { download::get_rest(&client, &key, &window, &out, required, &known, beginning).await });
        let mut written = Ok(());
        let mut is_placed = false;
        loop {
            match self.runtime.block_on(async { timeout(PROGRESS_EVERY, ranges.recv()).await }) {
                Ok(Some(pieces)) => {
                    if !std::mem::replace(&mut is_placed, true) {
                        sink.go_on_at(used.load(Ordering::Relaxed))?;
                    }
                    written = pieces.iter().try_for_each(|piece| sink.write(piece));
                    if written.is_err() || sink.is_abandoned {
                        break;
                    }
                }
                Ok(None) => break,
                Err(_) => {}
            }
            if self.pace.is_due(Instant::now()) {
                let rate_limit = self.settings.limit_rate_bytes_per_s;
                let verdict = judge(&facts(self.client, rate_limit, self.begun, sink.worked(), sink.written));
                let limit = verdict.confident.then_some(verdict.limit);
                let counts = counts(sink.written, size.load(Ordering::Relaxed));
                self.events.emit(Event::Progress(self.pace.progress(counts, limit, Instant::now())));
            }
        }
        drop(ranges);
        let got = self.runtime.block_on(task).map_err(|error| CommandError::new(ErrorKind::Internal, error))?;
        written.map(|()| (got, used.load(Ordering::Relaxed)))
    }
}

/// Counts for one object, of which `bytes` are written.
fn counts(bytes: u64, total_bytes: u64) -> Counts {
    Counts { files: 0, bytes, total_files: 1, total_bytes }
}

/// Facts of the run so far; `target` is the time spent writing.
pub(crate) fn facts(
    client: &Client,
    rate_limit: Option<u64>,
    begun: Instant,
    target: Duration,
    moved_bytes: u64,
) -> Facts {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    Facts {
        wall: begun.elapsed(),
        processor: Duration::from_millis(process_costs().0),
        cores: threads,
        threads,
        target,
        connections: client.reading(),
        store: client.bucket().endpoint.host.clone(),
        slowed: client.slowed(),
        rate_limit,
        moved_bytes,
        ..Facts::default()
    }
}

/// As [`explain_object`]; a missing object may be a prefix.
fn explain(error: &DownloadError, location: &Location) -> CommandError {
    let command = explain_object(error);
    match error {
        DownloadError::Missing { .. } if location.key.contains(['*', '?']) => {
            let prefix = location.key.rsplit_once('/').map(|(above, _)| format!("{above}/")).unwrap_or_default();
            let pattern = location.key.rsplit('/').next().unwrap_or_default();
            command.hint(format_args!(
                "addresses have no patterns: `fullbore get -o DIR {SCHEME}{}/{prefix} --include '{pattern}' --exclude '*'`",
                location.bucket
            ))
        }
        DownloadError::Missing { .. } => command.hint(format_args!(
            "for all objects below it, end it with a slash: `fullbore get -o DIR {SCHEME}{}/{}/`",
            location.bucket, location.key
        )),
        _ => command,
    }
}

/// Converts a failed download to a command's error.
fn explain_object(error: &DownloadError) -> CommandError {
    let kind = match error {
        DownloadError::Call(error) => return bucket::explain(error),
        DownloadError::Unverified { .. } => {
            let hint = "without --require-checksum the object is written, with a warning";
            return CommandError::from_error(ErrorKind::Verification, error).hint(hint);
        }
        DownloadError::Missing { .. } => ErrorKind::Usage,
        DownloadError::Wrong { .. } => ErrorKind::Verification,
        DownloadError::Changed { .. } => ErrorKind::Locked,
        DownloadError::Beginning { .. } => ErrorKind::Disk,
        DownloadError::Unwanted => ErrorKind::Interrupted,
        DownloadError::Range { .. } | DownloadError::Truncated { .. } => ErrorKind::Network,
    };
    CommandError::from_error(kind, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_downloads_have_the_exit_codes_of_the_guide() {
        let key = || "k".to_owned();
        let source = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        for (error, code) in [
            (DownloadError::Missing { key: key() }, 1),
            (DownloadError::Range { key: key() }, 3),
            (DownloadError::Truncated { key: key(), bytes: 1, size: 2 }, 3),
            (DownloadError::Wrong { key: key() }, 4),
            (DownloadError::Changed { key: key() }, 6),
            (DownloadError::Beginning { key: key(), source }, 7),
        ] {
            assert_eq!(explain_object(&error).kind.exit_code(), code, "{error}");
        }
    }
}
