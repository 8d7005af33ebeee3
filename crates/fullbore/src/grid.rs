//! What `put` and `get` share: the grid as flags and files name it, its errors, and what is said at the end.

use std::sync::Arc;
use std::time::Duration;

use fullbore_engine::random::random;
use fullbore_engine::stage::{Kind, Ledger};
use fullbore_engine::verdict::remote::Verdict;
use fullbore_lafs::gbs::flow::FlowReading;
use fullbore_lafs::gbs::link::LinkOptions;
use fullbore_lafs::node::{Node, NodeError, read_servers};
use fullbore_lafs::secrets::LeaseSecrets;
use fullbore_lafs::servers::Servers;
use fullbore_lafs::upload::Grid;
use fullbore_wire::rate_limit::RateLimit;
use serde_json::{Value, json};

use crate::cli::GridArgs;
use crate::stdio;
use fullbore_engine::run::error::CommandError;
use fullbore_engine::run::units;

/// Files on their way at once: as many as fill a path of 100 ms with files of 200 bytes at the rate that ten
/// servers of one core each take.
pub const FILES_AT_ONCE: usize = 128;

/// Threads for blocking work. Each file on its way has one, which may wait for servers; names of servers are looked up
/// by others.
const BLOCKING_THREADS: usize = FILES_AT_ONCE + 64;

/// Where things are stored, and by which secrets.
pub struct Place {
    /// What the node's directory says, if there is one.
    pub node: Option<Node>,
    /// The servers.
    pub servers: Servers,
    /// For leases.
    pub lease: LeaseSecrets,
}

/// Reads the grid that the flags name; `None` if they name none.
pub fn place(arguments: &GridArgs) -> Result<Option<Place>, CommandError> {
    if let Some(directory) = &arguments.node {
        let node = Node::read(directory).map_err(|error| unreadable(&error))?;
        return Ok(Some(Place { servers: node.servers.clone(), lease: node.lease.clone(), node: Some(node) }));
    }
    let Some(file) = &arguments.servers else { return Ok(None) };
    let servers = read_servers(file).map_err(CommandError::usage)?;
    // Nobody could renew leases whose secret is not kept; they end by themselves.
    Ok(Some(Place { node: None, servers, lease: LeaseSecrets::new(&random::<32>()) }))
}

/// An error of a node's directory.
fn unreadable(error: &NodeError) -> CommandError {
    let command = CommandError::usage(error);
    match error {
        NodeError::File { .. } => {
            command.hint("--node wants the directory that `tahoe create-node` made, often ~/.tahoe")
        }
        _ => command,
    }
}

/// The connections of a run, counted in this ledger.
pub fn connect(arguments: &GridArgs, place: &Place, limit: Option<Arc<RateLimit>>, ledger: &Ledger) -> Grid {
    let patience = Duration::from_secs(arguments.timeout);
    let options = LinkOptions { limit, ledger: ledger.clone(), ..LinkOptions::new(patience) };
    let preferred = place.node.as_ref().map(|node| node.preferred.clone()).unwrap_or_default();
    Grid::new(place.servers.clone(), preferred, options)
}

/// Where connections live; its threads play the stage `send`.
pub fn runtime(ledger: &Ledger) -> Result<tokio::runtime::Runtime, CommandError> {
    let clock = ledger.stage("send", Kind::Task);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(std::thread::available_parallelism().map_or(1, usize::from).min(4))
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name("network")
        .on_thread_start(move || clock.adopt_thread())
        .enable_all()
        .build()
        .map_err(|error| CommandError::new(fullbore_engine::run::error::ErrorKind::Internal, error))
}

/// Sends the libraries' log to stderr.
pub fn start_log(arguments: &GridArgs) {
    let filter = match (arguments.quiet, arguments.verbose) {
        (true, _) => "error",
        // What is not as it should be and fails nothing: a journal that cannot be written.
        (_, 0) => "fullbore=warn,fullbore_s3=warn,fullbore_lafs=warn,error",
        (_, 1) => "fullbore=info,fullbore_s3=info,fullbore_lafs=info,warn",
        (_, 2) => "fullbore=debug,fullbore_s3=debug,fullbore_lafs=debug,fullbore_wire=debug,info",
        // Bytes of caps are in no log, however much is asked for.
        _ => "fullbore=trace,fullbore_s3=trace,fullbore_lafs=trace,fullbore_wire=debug,info",
    };
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(|| stdio::Log).try_init();
}

/// One line to stderr, unless quiet.
pub fn say(arguments: &GridArgs, line: &str) {
    if !arguments.quiet {
        stdio::say(line);
    }
}

/// A line of JSON to stdout.
pub fn tell(value: &Value) {
    // Lost output ends no run; it is told at its end.
    let _ = stdio::print_json(value);
}

/// A line to stdout.
pub fn print_line(line: &str) {
    let _ = stdio::print_line(line);
}

/// What was measured of the servers, for JSON.
pub fn server_table(readings: &[(String, FlowReading)]) -> Vec<Value> {
    let ms = |time: Duration| (time.as_secs_f64() * 1e4).round() / 10.0;
    readings
        .iter()
        .map(|(name, reading)| {
            json!({
                "name": name,
                "bytes": reading.bytes,
                "answers": reading.answers,
                "connections": reading.connections,
                "idle_ms": ms(reading.times.idle),
                "path_ms": ms(reading.times.path),
                "turn_around_ms": ms(reading.times.server),
                "mean_turn_around_ms": ms(reading.turn_around / u32::try_from(reading.answers.max(1)).unwrap_or(u32::MAX)),
                "round_trip_ms": ms(reading.round_trip),
                "window_waits": reading.window_waits,
                "tcp_busy_ms": ms(reading.sending.busy),
                "receive_window_limited_ms": ms(reading.sending.receive_window),
                "send_buffer_limited_ms": ms(reading.sending.send_buffer),
                "retransmitted_segments": reading.sending.retransmitted,
                "congestion_window_max_bytes": reading.sending.window_max,
            })
        })
        .collect()
}

/// What limited the run, for JSON.
pub fn verdict_table(verdict: &Verdict) -> Value {
    json!({
        "limit": verdict.limit, "reason": verdict.reason, "confident": verdict.confident, "shares": verdict.shares,
        "evidence": verdict.evidence, "advice": verdict.advice,
    })
}

/// What the verdict is made of, for those who want to know.
pub fn say_evidence(arguments: &GridArgs, verdict: &Verdict) {
    if arguments.verbose > 0 {
        verdict.evidence.iter().for_each(|line| say(arguments, &format!("  {line}")));
        if !verdict.advice.is_empty() {
            say(arguments, &format!("  {}", verdict.advice));
        }
    }
}

/// `1.2 MB in 0.4 s, 3.0 MB/s`.
pub fn amount(bytes: u64, wall: Duration) -> String {
    let rate = (bytes as f64 / wall.as_secs_f64().max(1e-6)) as u64;
    let ms = wall.as_millis() as u64;
    format!("{} in {}, {}/s", units::bytes(bytes), units::duration(ms), units::bytes(rate))
}
