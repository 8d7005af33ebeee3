//! `fullbore get s3://bucket/key`: an object, to stdout or to a name that it gets when it is complete and right.

use bytes::Bytes;
use fullbore_engine::stage::Ledger;
use fullbore_engine::verdict::remote::Verdict;
use fullbore_engine::window::Window;
use fullbore_s3::address::SCHEME;
use fullbore_s3::download::{self, DownloadError, Got, RANGES_AT_ONCE, WINDOW_BYTES};
use fullbore_s3::key;
use fullbore_s3::verdict::{Facts, judge};
use serde_json::json;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

use super::{Sink, threads};
use crate::bucket;
use crate::cli::GetArgs;
use crate::grid::{amount, runtime, say, tell};
use crate::program::process_costs;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::{Stop, interruption};

/// Ranges between the network and the file.
const RANGES: usize = 1;

/// Gets an object; the result is the exit code.
pub fn run(arguments: &GetArgs, address: &std::ffi::OsStr) -> Result<u8, CommandError> {
    let location = bucket::location(address)?;
    if location.key.is_empty() || location.key.ends_with('/') {
        return Err(CommandError::usage(format_args!("{SCHEME}{}/{}: which object?", location.bucket, location.key)));
    }
    key::check(&location.key).map_err(CommandError::usage)?;
    let begun = Instant::now();
    let ledger = Ledger::off();
    let runtime = runtime(&ledger)?;
    let stop = Stop::listen(&runtime);
    let client = bucket::open(&arguments.s3, &arguments.grid, &location, None, stop.watch(), &ledger)?;
    let mut sink = Sink::open(arguments.output.as_deref())?;
    let (out, mut ranges) = mpsc::channel::<Vec<Bytes>>(RANGES);
    let window = Window::new(WINDOW_BYTES, RANGES_AT_ONCE);
    let (getting, key) = (client.clone(), location.key.clone());
    let required = arguments.s3_get.require_checksum;
    let task = runtime.spawn(async move { download::get(&getting, &key, &window, &out, required).await });
    let mut written = Ok(());
    while let Some(pieces) = ranges.blocking_recv() {
        written = pieces.iter().try_for_each(|piece| sink.write(piece));
        if written.is_err() || sink.is_abandoned {
            break;
        }
    }
    drop(ranges);
    let got = runtime.block_on(task).map_err(|error| CommandError::new(ErrorKind::Internal, error))?;
    written?;
    if sink.is_abandoned {
        return Ok(0);
    }
    if *stop.watch().borrow() && got.is_err() {
        return Err(interruption());
    }
    let Got { size, doubt } = got.map_err(|error| explain(&error))?;
    let target = sink.publish()?;
    if let Some(doubt) = doubt {
        say(&arguments.grid, &format!("warning: {}: {}", location.key, download::unverified(doubt)));
    }
    let wall = begun.elapsed();
    let reading = client.reading();
    let (cpu_ms, peak_rss_bytes) = process_costs();
    let Verdict { limit, reason, .. } = judge(&Facts {
        wall,
        processor: Duration::from_millis(cpu_ms),
        cores: threads(),
        threads: threads(),
        target,
        connections: reading.clone(),
        store: client.bucket().endpoint.host.clone(),
        slowed: client.slowed(),
        moved_bytes: size,
        ..Facts::default()
    });
    if arguments.grid.json {
        tell(&json!({
            "event": "summary", "bytes": size, "verified": doubt.is_none(), "duration_ms": wall.as_millis() as u64,
            "cpu_ms": cpu_ms, "peak_rss_bytes": peak_rss_bytes,
            "server": {
                "name": client.bucket().endpoint.host.clone(), "answers": reading.answers,
                "connections": reading.connections, "repeated": reading.repeated, "slow_downs": client.slowed(),
            },
            "verdict": { "limit": limit, "reason": reason },
        }));
    } else {
        say(&arguments.grid, &format!("{}. Limited by: {limit} ({reason}).", amount(size, wall)));
    }
    Ok(0)
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
