//! `get` out of a bucket: an object, to stdout or to a name that it gets when it is complete and right.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fullbore_engine::run::costs::process_costs;
use fullbore_engine::run::pace::PROGRESS_EVERY;
use fullbore_engine::run::report::{self, Report, StageTimes, StoreKind, StoreReport, Summary};
use fullbore_engine::run::sink::Sink;
use fullbore_engine::run::{CommandError, Counts, ErrorKind, Event, Events, Pace, Phase, Stop, interruption};
use fullbore_engine::stage::Ledger;
use fullbore_engine::window::Window;
use fullbore_wire::run::sending_runtime;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::address::SCHEME;
use crate::bucket::{self, BucketSettings};
use crate::client::Client;
use crate::download::{self, DownloadError, Downloaded, RANGES_AT_ONCE, WINDOW_BYTES};
use crate::key;
use crate::put::report::of_store;
use crate::verdict::{Facts, judge};

/// Ranges between the network and the file.
const RANGES: usize = 1;

/// Settings of one `fullbore get` from a bucket.
#[derive(Debug, Clone)]
pub struct GetSettings {
    /// The bucket, and the object's key.
    pub bucket: BucketSettings,
    /// File to write; `None`: stdout.
    pub output: Option<PathBuf>,
    /// Whether to fail, and write nothing, if no checksum of the store verifies the object.
    pub require_checksum: bool,
}

/// Downloads an object to a file or to `stdout`. Returns `None` if the reader of stdout has closed it.
///
/// # Errors
/// See [`ErrorKind`]. No file has its name then.
pub fn run(
    settings: &GetSettings,
    stdout: &mut (dyn Write + Send),
    events: &mut dyn Events,
    stop: &Stop,
) -> Result<Option<Report>, CommandError> {
    let location = &settings.bucket.location;
    let address = format!("{SCHEME}{}/{}", location.bucket, location.key);
    if location.key.is_empty() || location.key.ends_with('/') {
        return Err(CommandError::usage(format_args!("{address}: the address names no object")));
    }
    key::check(&location.key).map_err(CommandError::usage)?;
    let begun = Instant::now();
    events.emit(Event::started("get", address));
    let ledger = Ledger::off();
    let runtime = sending_runtime(&ledger)?;
    let client = bucket::open(&settings.bucket, None, stop.watch(), &ledger)?;
    let name = location.key.rsplit('/').next();
    let mut sink = Sink::open(settings.output.as_deref(), name, stdout)?;
    events.emit(Event::Phase { phase: Phase::Fetch });
    let (out, mut ranges) = mpsc::channel::<Vec<Bytes>>(RANGES);
    let window = Window::new(WINDOW_BYTES, RANGES_AT_ONCE);
    let (getting, key, size) = (client.clone(), location.key.clone(), Arc::new(AtomicU64::new(0)));
    let (required, known) = (settings.require_checksum, Arc::clone(&size));
    let task = runtime.spawn(async move { download::get(&getting, &key, &window, &out, required, &known).await });
    let mut pace = Pace::with_peers(begun);
    let mut written = Ok(());
    loop {
        match runtime.block_on(async { timeout(PROGRESS_EVERY, ranges.recv()).await }) {
            Ok(Some(pieces)) => {
                written = pieces.iter().try_for_each(|piece| sink.write(piece));
                if written.is_err() || sink.is_abandoned {
                    break;
                }
            }
            Ok(None) => break,
            Err(_) => {}
        }
        if pace.is_due(Instant::now()) {
            let verdict = judge(&facts(&client, begun, sink.worked(), sink.written));
            let limit = verdict.confident.then_some(verdict.limit);
            let counts = counts(sink.written, size.load(Ordering::Relaxed));
            events.emit(Event::Progress(pace.progress(counts, limit, Instant::now())));
        }
    }
    drop(ranges);
    let got = runtime.block_on(task).map_err(|error| CommandError::new(ErrorKind::Internal, error))?;
    written?;
    if sink.is_abandoned {
        return Ok(None);
    }
    if *stop.watch().borrow() && got.is_err() {
        return Err(interruption());
    }
    let Downloaded { size, doubt } = got.map_err(|error| explain(&error))?;
    let target = sink.publish()?;
    events.emit(Event::Progress(pace.progress(Counts { files: 1, ..counts(size, size) }, None, Instant::now())));
    if let Some(doubt) = doubt {
        events.warn(format!("{}: {}", location.key, download::unverified(doubt)));
    }
    let facts = facts(&client, begun, target, size);
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

/// One object, of which so many bytes are written.
fn counts(bytes: u64, total_bytes: u64) -> Counts {
    Counts { files: 0, bytes, total_files: 1, total_bytes }
}

/// What is known of the run now; writing took `target`.
fn facts(client: &Client, begun: Instant, target: Duration, moved_bytes: u64) -> Facts {
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
        moved_bytes,
        ..Facts::default()
    }
}

fn explain(error: &DownloadError) -> CommandError {
    let kind = match error {
        DownloadError::Call(error) => return bucket::explain(error),
        DownloadError::Unverified { .. } => {
            let hint = "without --require-checksum the object is written, with a warning";
            return CommandError::from_error(ErrorKind::Verification, error).hint(hint);
        }
        DownloadError::Missing { .. } => ErrorKind::Usage,
        DownloadError::Wrong { .. } => ErrorKind::Verification,
        DownloadError::Unwanted => ErrorKind::Interrupted,
        _ => ErrorKind::Network,
    };
    CommandError::from_error(kind, error)
}
