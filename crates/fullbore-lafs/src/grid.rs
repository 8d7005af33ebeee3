//! Common to `put` and `get`: which grid, how it is reached, and what was measured of its servers.

use std::path::PathBuf;
use std::time::Duration;

use fullbore_engine::random::random;
use fullbore_engine::run::report::{self, GivenUp, HostReport, StoreReport, StoreServer, Summary, VerdictReport};
use fullbore_engine::run::{CommandError, report::StoreKind};
use fullbore_engine::stage::Ledger;
use fullbore_wire::rate_limit::RateLimits;

use crate::gbs::flow::FlowReading;
use crate::gbs::link::LinkOptions;
use crate::node::{Node, NodeError, read_servers};
use crate::secrets::LeaseSecrets;
use crate::servers::Servers;
use crate::upload::Grid;

/// A grid, and how it is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GridSettings {
    /// Directory of a Tahoe-LAFS node, which holds all settings of the grid.
    pub node: Option<PathBuf>,
    /// File of servers in the form of `private/servers.yaml`, used without a node directory.
    pub servers: Option<PathBuf>,
    /// A server is given up after this time without progress.
    pub patience: Duration,
}

impl GridSettings {
    /// Name of the grid in reports and metrics, the same in every run.
    pub fn name(&self) -> String {
        match self.node.as_ref().or(self.servers.as_ref()) {
            Some(path) => format!("grid of {}", path.display()),
            None => "no grid".to_owned(),
        }
    }
}

/// The servers of a grid, and the secrets for it.
pub(crate) struct GridAccess {
    /// Content of the node's directory, if one is given.
    pub node: Option<Node>,
    /// The servers of the grid.
    pub servers: Servers,
    /// Secrets for leases.
    pub lease: LeaseSecrets,
}

/// Reads the grid named in the settings; `None` if they name none.
pub(crate) fn access(settings: &GridSettings) -> Result<Option<GridAccess>, CommandError> {
    if let Some(directory) = &settings.node {
        let node = Node::read(directory).map_err(|error| unreadable(&error))?;
        return Ok(Some(GridAccess { servers: node.servers.clone(), lease: node.lease.clone(), node: Some(node) }));
    }
    let Some(file) = &settings.servers else { return Ok(None) };
    let servers = read_servers(file).map_err(CommandError::usage)?;
    // A random secret: nobody can renew these leases, and they expire by themselves.
    Ok(Some(GridAccess { node: None, servers, lease: LeaseSecrets::new(&random::<32>()) }))
}

/// Converts an error of a node's directory into one for the user.
fn unreadable(error: &NodeError) -> CommandError {
    let command = CommandError::usage(error);
    match error {
        NodeError::File { .. } => {
            command.hint("pass to --node the directory that `tahoe create-node` made, usually ~/.tahoe")
        }
        _ => command,
    }
}

/// The grid of a run, counted in this ledger.
pub(crate) fn connect(patience: Duration, access: &GridAccess, limits: RateLimits, ledger: &Ledger) -> Grid {
    let options = LinkOptions { limits, ledger: ledger.clone(), ..LinkOptions::new(patience) };
    let preferred = access.node.as_ref().map(|node| node.preferred.clone()).unwrap_or_default();
    Grid::new(access.servers.clone(), preferred, options)
}

/// The measurements of the servers, for the report.
fn servers(readings: &[(String, FlowReading)]) -> Vec<StoreServer> {
    let ms = StoreReport::ms;
    let server = |(name, reading): &(String, FlowReading)| StoreServer {
        name: name.clone(),
        bytes: Some(reading.bytes),
        answers: reading.answers,
        connections: reading.connections,
        idle_ms: Some(ms(reading.times.idle)),
        path_ms: ms(reading.times.path),
        server_latency_ms: ms(reading.times.server),
        mean_server_latency_ms: ms(reading.server_latency / u32::try_from(reading.answers.max(1)).unwrap_or(u32::MAX)),
        round_trip_ms: Some(ms(reading.round_trip)),
        window_waits: Some(reading.window_waits),
        tcp_busy_ms: Some(ms(reading.sending.busy)),
        receive_window_limited_ms: Some(ms(reading.sending.receive_window)),
        send_buffer_limited_ms: Some(ms(reading.sending.send_buffer)),
        retransmitted_segments: Some(reading.sending.retransmitted),
        congestion_window_max_bytes: Some(reading.sending.window_max),
        ..StoreServer::default()
    };
    readings.iter().map(server).collect()
}

/// The summary of a run, without its totals: servers and verdict.
pub(crate) fn summary(
    settings: &GridSettings,
    wall: Duration,
    readings: &[(String, FlowReading)],
    given_up: Vec<(String, String)>,
    verdict: VerdictReport,
    store: StoreReport,
) -> Summary {
    let host = |(name, reading): &(String, FlowReading)| HostReport {
        host: name.clone(),
        protocol: if reading.answers > 0 { "HTTP/1.1".to_owned() } else { String::new() },
        received_bytes: reading.bytes,
        requests: reading.answers,
        connections: reading.connections,
        rtt_ms: (reading.round_trip > Duration::ZERO).then_some(reading.round_trip.as_secs_f64() * 1e3),
        state: match given_up.iter().find(|(server, _)| server == name) {
            Some((_, reason)) => format!("dropped: {reason}"),
            None => "good".to_owned(),
        },
        ..HostReport::default()
    };
    let hosts = readings.iter().map(host).collect();
    let given_up = given_up.into_iter().map(|(name, reason)| GivenUp { name, reason }).collect();
    Summary {
        dir: settings.name(),
        started_unix_s: report::began(wall),
        duration_ms: wall.as_millis() as u64,
        hosts,
        verdict: Some(verdict),
        store: Some(StoreReport { kind: StoreKind::Grid, servers: servers(readings), given_up, ..store }),
        ..Summary::default()
    }
}
