//! Input of the verdict for a run with a grid: our own stages, and each server with the path to it.
//!
//! The engine judges local limits (processors, source disk: see [`fullbore_engine::verdict`]).
//! [`fullbore_engine::verdict::remote`] judges remote ones by how each server's time divides
//! ([`super::gbs::flow::Times`]). A server's processor cannot be seen from here. The verdict only says that it had
//! everything and did not answer.

use std::time::Duration;

use fullbore_engine::run::report::VerdictReport;
use fullbore_engine::units::several;
use fullbore_engine::verdict as engine;
use fullbore_engine::verdict::remote::{self, Peer, RateLimit, Stage, Work, percent};
use fullbore_engine::verdict::thresholds::{SLIGHT, SLOW_START_TRIPS};

use super::gbs::flow::{FlowReading, Sending};
use super::upload::produce::Costs;

/// Measurements of a run at its end.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Duration of the run.
    pub wall: Duration,
    /// Processor time of all threads together.
    pub processor: Duration,
    /// Number of processors that this process may use.
    pub cores: usize,
    /// Number of threads that encode or decode.
    pub threads: usize,
    /// Time in each stage of an upload.
    pub costs: Costs,
    /// Time in each stage of a download, for a run of `get`.
    pub download: Option<DownloadCosts>,
    /// Name and measurements of each server.
    pub servers: Vec<(String, FlowReading)>,
    /// Rate limit in bytes per second, if one was set.
    pub rate_limit: Option<u64>,
    /// Bytes of shares put, or of content got.
    pub moved_bytes: u64,
    /// The verdict of the engine's sampler.
    pub engine: Option<engine::Verdict>,
}

/// Busy times of the stages of a download.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DownloadCosts {
    /// Waiting for the next cap, with nothing else to do.
    pub source: Duration,
    /// Decoding, checking and decrypting segments, over all threads of the pool.
    pub decode: Duration,
    /// Writing the content.
    pub target: Duration,
}

/// Judges which part limited the run.
pub fn judge(facts: &Facts) -> VerdictReport {
    let peer = |(name, server): &(String, FlowReading)| Peer {
        name: name.clone(),
        path: server.times.path,
        server: server.times.server,
        open: facts.wall,
        slowed: 0,
    };
    let bytes = facts.servers.iter().map(|(_, server)| server.bytes).sum();
    let work = Work {
        wall: facts.wall,
        processor: facts.processor,
        cores: facts.cores,
        stages: stages(facts),
        peers: facts.servers.iter().map(peer).collect(),
        rate_limit: facts.rate_limit.map(|bytes_per_s| RateLimit { bytes_per_s, bytes, held: Duration::ZERO }),
        moved_bytes: facts.moved_bytes,
        near: facts.engine.as_ref(),
    };
    VerdictReport { evidence: evidence(facts), advice: advice(facts), ..remote::judge(&work) }
}

/// A time as a fraction of the wall time.
fn share(facts: &Facts, time: Duration) -> f64 {
    time.as_secs_f64() / facts.wall.as_secs_f64().max(f64::EPSILON)
}

fn slowest(facts: &Facts) -> Option<&(String, FlowReading)> {
    facts.servers.iter().max_by_key(|(_, server)| server.times.busy())
}

fn evidence(facts: &Facts) -> Vec<String> {
    let ms = |time: Duration| (time.as_secs_f64() * 1000.0).round();
    let mut lines = Vec::new();
    for (name, server) in &facts.servers {
        let answers = u32::try_from(server.answers.max(1)).unwrap_or(u32::MAX);
        let mut line = format!(
            "server {name}: round trip {} ms, {} over {}, server latency {} ms each, path {} %, server {} %",
            ms(server.round_trip),
            several(server.answers, "answer", "answers"),
            several(server.connections, "connection", "connections"),
            ms(server.server_latency / answers),
            percent(share(facts, server.times.path)),
            percent(share(facts, server.times.server)),
        );
        if facts.download.is_none() {
            let Sending { window_max, retransmitted, .. } = server.sending;
            line += &format!(", window of TCP up to {} kB, {retransmitted} segments sent again", window_max / 1000);
        }
        lines.push(line);
    }
    if share(facts, facts.costs.memory) > SLIGHT {
        lines.push(format!("encoding waited {} ms for memory, that is for servers", ms(facts.costs.memory)));
    }
    lines
}

fn advice(facts: &Facts) -> String {
    let Some((name, server)) = slowest(facts) else { return String::new() };
    let held = server.sending.receive_window.as_secs_f64() / server.sending.busy.as_secs_f64().max(1e-6);
    if held >= SLIGHT && facts.download.is_none() {
        return format!(
            "the receive window of server {name} held fullbore back {} % of the time: its net.ipv4.tcp_rmem",
            percent(held)
        );
    }
    let trips = facts.wall.as_secs_f64() / server.round_trip.as_secs_f64().max(1e-3);
    if trips < SLOW_START_TRIPS && server.times.path > server.times.server && server.bytes > 0 {
        return format!(
            "the run was over in {trips:.0} round trips, in TCP's slow start: more files in one run, or a larger first window \
             (`ip route change … initcwnd 64`), would help"
        );
    }
    String::new()
}

/// The local stages. Encoding that waits for memory waits for servers; that time is not counted here.
fn stages(facts: &Facts) -> Vec<Stage> {
    let stage = |name, busy, threads| Stage { name, busy, threads };
    match &facts.download {
        Some(costs) => vec![
            stage("source", costs.source, 1),
            stage("decode", costs.decode, facts.threads),
            stage("target", costs.target, 1),
        ],
        None => vec![
            stage("source", facts.costs.source, 1),
            stage("hash", facts.costs.hash, 1),
            stage("encode", facts.costs.encode, facts.threads),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gbs::flow::Times;

    fn server(name: &str, path_ms: u64, server_ms: u64) -> (String, FlowReading) {
        let times = Times {
            idle: Duration::ZERO,
            path: Duration::from_millis(path_ms),
            server: Duration::from_millis(server_ms),
        };
        (name.into(), FlowReading { times, ..FlowReading::default() })
    }

    fn facts(servers: Vec<(String, FlowReading)>) -> Facts {
        let second = Duration::from_secs(1);
        Facts {
            wall: second,
            processor: second / 10,
            cores: 2,
            threads: 2,
            servers,
            moved_bytes: 1,
            ..Facts::default()
        }
    }

    #[test]
    fn each_server_is_told_with_its_times_and_each_stage_with_its_threads() {
        let slow = |path, turn| facts(vec![server("a", 50, 50), server("b", path, turn), server("c", 60, 60)]);
        let verdict = judge(&slow(100, 850));
        assert_eq!((verdict.limit.as_str(), verdict.share), ("server b (server latency)", 0.85));
        assert_eq!(verdict.evidence.len(), 3);
        assert_eq!(judge(&slow(850, 100)).limit, "server b (path)");
        let alike = facts(vec![server("a", 900, 50), server("b", 800, 50), server("c", 850, 60)]);
        assert_eq!(judge(&alike).limit, "the paths to the servers, or our link");
        let mut full = slow(100, 850);
        full.processor = Duration::from_millis(1900);
        full.costs.encode = Duration::from_millis(1500);
        assert_eq!(judge(&full).limit, "our processor (encode)");
        let mut disk = facts(vec![server("a", 10, 10)]);
        assert_eq!(judge(&disk).limit, "mixed");
        disk.costs.source = Duration::from_millis(900);
        assert_eq!(judge(&disk).limit, "our side (source)");
        assert_eq!(
            judge(&Facts { rate_limit: Some(10), moved_bytes: 9, ..slow(100, 850) }).limit,
            "server b (server latency)"
        );
    }

    #[test]
    fn the_stages_of_a_download_are_others() {
        let busy = Duration::from_millis(700);
        let of = |download, server| judge(&Facts { download: Some(download), ..facts(vec![server]) }).limit;
        let idle = || server("b", 100, 50);
        assert_eq!(of(DownloadCosts { target: busy, ..DownloadCosts::default() }, idle()), "our side (target)");
        assert_eq!(of(DownloadCosts { source: busy, ..DownloadCosts::default() }, idle()), "our side (source)");
        assert_eq!(of(DownloadCosts { decode: busy, ..DownloadCosts::default() }, idle()), "mixed", "of two threads");
        assert_eq!(of(DownloadCosts::default(), server("b", 100, 850)), "server b (server latency)");
    }
}
