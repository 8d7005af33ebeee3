//! What limited an upload or a download: one of our own stages, the paths to the servers, or the servers' turn-around.
//!
//! What is near is judged by the engine (processors, source disk: see [`fullbore_engine::verdict`]); what is
//! far by how each server's time divides ([`super::gbs::flow::Times`]). A server's processor is not seen from
//! here: what is named is that it had everything and did not answer.

use std::time::Duration;

use fullbore_engine::units::several;
use fullbore_engine::verdict::remote::{MIXED, NAMED, NOTHING, PROCESSOR_FULL, Verdict, is_confident, percent};
use fullbore_engine::verdict::{self as engine, Limit};

use super::gbs::flow::{FlowReading, Sending};
use super::upload::produce::Costs;

/// Servers are taken to be alike when the median one was busy for so much of the busiest one's time.
const ALIKE: f64 = 0.75;

/// A run of fewer round trips was over before TCP's slow start was.
const SLOW_START_TRIPS: f64 = 20.0;

/// The servers' receive windows are worth a word.
const RECEIVE_WINDOW: f64 = 0.2;

/// What is known of a run at its end.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Wall time.
    pub wall: Duration,
    /// Time on processors, all threads.
    pub processor: Duration,
    /// Processors that may be used.
    pub cores: usize,
    /// Threads that encode, or decode.
    pub threads: usize,
    /// The stages of an upload.
    pub costs: Costs,
    /// Those of a download, instead.
    pub download: Option<DownloadCosts>,
    /// The servers.
    pub servers: Vec<(String, FlowReading)>,
    /// A limit on the rate was asked for: bytes per second.
    pub rate_limit: Option<u64>,
    /// Bytes of shares that were put, or of content that was got.
    pub moved_bytes: u64,
    /// What the engine's sampler found.
    pub engine: Option<engine::Verdict>,
}

/// The stages of a download: time that they worked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DownloadCosts {
    /// Waiting for the next cap, with nothing else to do.
    pub source: Duration,
    /// Decoding, checking and decrypting segments: all threads of the pool together.
    pub decode: Duration,
    /// Writing the content.
    pub target: Duration,
}

/// Judges a run.
pub fn judge(facts: &Facts) -> Verdict {
    let (limit, reason) = limit(facts);
    let confident = is_confident(&limit);
    Verdict { limit, reason, confident, shares: shares(facts), evidence: evidence(facts), advice: advice(facts) }
}

/// A part of the wall time.
fn share(facts: &Facts, time: Duration) -> f64 {
    time.as_secs_f64() / facts.wall.as_secs_f64().max(1e-6)
}

fn limit(facts: &Facts) -> (String, String) {
    let share = |time: Duration| share(facts, time);
    let sent: u64 = facts.servers.iter().map(|(_, server)| server.bytes).sum();
    if let Some(limit) = facts.rate_limit
        && sent as f64 / facts.wall.as_secs_f64().max(1e-6) >= 0.9 * limit as f64
    {
        return ("the rate limit".into(), "the rate is the one that was allowed".into());
    }
    let processor = share(facts.processor) / facts.cores.max(1) as f64;
    let (stage, busy) = busiest_stage(facts);
    if processor >= PROCESSOR_FULL {
        let reason = format!("{} cores {} % busy with it", facts.cores, percent(processor));
        return (format!("our processor ({stage})"), reason);
    }
    if let Some(engine) = &facts.engine
        && engine.confident
        && matches!(engine.limit, Limit::Cpu { .. } | Limit::OneCore { .. } | Limit::Disk)
    {
        return (engine.part.clone(), engine.reason.clone());
    }
    if share(busy) >= NAMED && !matches!(stage, "encode" | "decode") {
        let reason = format!("one thread was at it {} % of the time", percent(share(busy)));
        return (format!("our side ({stage})"), reason);
    }
    let Some((name, slowest)) = slowest(facts) else { return (NOTHING.into(), "no server was spoken to".into()) };
    let busy_of_ours = busy;
    let busy = share(slowest.times.busy());
    if busy < NAMED {
        if facts.moved_bytes == 0 {
            return (NOTHING.into(), "nothing was moved".into());
        }
        let reason =
            format!("{stage} {} %, the busiest server {} % of the time", percent(share(busy_of_ours)), percent(busy));
        return (MIXED.into(), reason);
    }
    let mut all: Vec<Duration> = facts.servers.iter().map(|(_, server)| server.times.busy()).collect();
    all.sort();
    let alike = all[all.len() / 2].as_secs_f64() >= ALIKE * slowest.times.busy().as_secs_f64() && all.len() > 1;
    let (path, server) = if alike { far(facts) } else { (slowest.times.path, slowest.times.server) };
    let on_path = path.as_secs_f64() / (path + server).as_secs_f64().max(1e-9);
    let what = if on_path >= 0.5 { "path" } else { "turn-around" };
    let limit = match (alike, what) {
        (true, "path") => "the paths to the servers, or our link".to_owned(),
        (true, _) => "the servers (turn-around)".to_owned(),
        (false, what) => format!("server {name} ({what})"),
    };
    let of_it = percent(if what == "path" { on_path } else { 1.0 - on_path });
    (limit, format!("busy {} % of the time, {of_it} % of that {what}", percent(busy)))
}

fn slowest(facts: &Facts) -> Option<&(String, FlowReading)> {
    facts.servers.iter().max_by_key(|(_, server)| server.times.busy())
}

/// Time on paths and at servers, over all of them.
fn far(facts: &Facts) -> (Duration, Duration) {
    facts.servers.iter().fold((Duration::ZERO, Duration::ZERO), |(path, server), (_, one)| {
        (path + one.times.path, server + one.times.server)
    })
}

fn shares(facts: &Facts) -> Vec<(String, f64)> {
    let ours = stages(facts).into_iter().map(|(stage, time)| (stage.to_owned(), time));
    let theirs = facts.servers.iter().flat_map(|(name, server)| {
        [("path", server.times.path), ("turn-around", server.times.server)]
            .map(|(what, time)| (format!("server {name} ({what})"), time))
    });
    let mut shares: Vec<(String, f64)> =
        ours.into_iter().chain(theirs).map(|(part, time)| (part, share(facts, time).min(1.0))).collect();
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    shares
}

fn evidence(facts: &Facts) -> Vec<String> {
    let ms = |time: Duration| (time.as_secs_f64() * 1000.0).round();
    let mut lines = Vec::new();
    for (name, server) in &facts.servers {
        let answers = u32::try_from(server.answers.max(1)).unwrap_or(u32::MAX);
        let mut line = format!(
            "server {name}: round trip {} ms, {} over {}, turn-around {} ms each, path {} %",
            ms(server.round_trip),
            several(server.answers, "answer", "answers"),
            several(server.connections, "connection", "connections"),
            ms(server.turn_around / answers),
            percent(share(facts, server.times.path)),
        );
        if facts.download.is_none() {
            let Sending { window_max, retransmitted, .. } = server.sending;
            line += &format!(", window of TCP up to {} kB, {retransmitted} segments sent again", window_max / 1000);
        }
        lines.push(line);
    }
    if facts.costs.memory > facts.wall / 10 {
        lines.push(format!("encoding waited {} ms for memory, that is for servers", ms(facts.costs.memory)));
    }
    lines
}

fn advice(facts: &Facts) -> String {
    let Some((name, server)) = slowest(facts) else { return String::new() };
    let held = server.sending.receive_window.as_secs_f64() / server.sending.busy.as_secs_f64().max(1e-6);
    if held >= RECEIVE_WINDOW && facts.download.is_none() {
        return format!(
            "server {name} held us back by its receive window {} % of the time: its net.ipv4.tcp_rmem",
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

/// Our own stages, and how long each worked, per thread that it may have.
fn stages(facts: &Facts) -> Vec<(&'static str, Duration)> {
    let threads = facts.threads.max(1) as u32;
    match &facts.download {
        Some(costs) => vec![("source", costs.source), ("decode", costs.decode / threads), ("target", costs.target)],
        None => {
            vec![("source", facts.costs.source), ("hash", facts.costs.hash), ("encode", facts.costs.encode / threads)]
        }
    }
}

/// The one of them that worked most.
fn busiest_stage(facts: &Facts) -> (&'static str, Duration) {
    stages(facts).into_iter().max_by_key(|(_, time)| *time).unwrap_or(("encode", Duration::ZERO))
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
    fn what_is_named_is_what_was_busy() {
        let slow = |path, turn| facts(vec![server("a", 50, 50), server("b", path, turn), server("c", 60, 60)]);
        assert_eq!(judge(&slow(100, 850)).limit, "server b (turn-around)");
        assert_eq!(judge(&slow(850, 100)).limit, "server b (path)");
        let alike = facts(vec![server("a", 900, 50), server("b", 800, 50), server("c", 850, 60)]);
        assert_eq!(judge(&alike).limit, "the paths to the servers, or our link");
        let mut full = slow(100, 850);
        full.processor = Duration::from_millis(1900);
        full.costs.encode = Duration::from_millis(1500);
        assert_eq!(judge(&full).limit, "our processor (encode)");
        let mut disk = facts(vec![server("a", 10, 10)]);
        disk.costs.source = Duration::from_millis(900);
        assert_eq!(judge(&disk).limit, "our side (source)");
        assert_eq!(judge(&facts(vec![server("a", 10, 10)])).limit, "mixed");
        let idle = judge(&Facts { moved_bytes: 0, ..facts(vec![server("a", 10, 10)]) });
        assert_eq!((idle.limit.as_str(), idle.confident), ("nothing in particular", false));
        assert_eq!(
            judge(&Facts { moved_bytes: 0, ..slow(100, 850) }).limit,
            "server b (turn-around)",
            "it was waited for"
        );
        let mut download = slow(100, 850);
        let target = Duration::from_millis(700);
        download.download =
            Some(DownloadCosts { decode: Duration::from_millis(900), target, ..DownloadCosts::default() });
        assert_eq!(judge(&download).limit, "our side (target)");
        download.download = Some(DownloadCosts { source: target, ..DownloadCosts::default() });
        assert_eq!(judge(&download).limit, "our side (source)");
        download.download = Some(DownloadCosts::default());
        assert_eq!(judge(&download).limit, "server b (turn-around)");
    }
}
