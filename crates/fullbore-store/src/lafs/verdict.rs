//! What limited an upload: one of our own stages, the paths to the servers, or the servers' turn-around.
//!
//! The signals are the time that stages worked, and how each server's time divides (see
//! [`super::gbs::flow::Times`]). A server's processor is not seen from here: what is named is that it had
//! everything and did not answer.

use std::time::Duration;

use super::gbs::flow::FlowReading;
use super::upload::produce::Costs;

/// A part is named when it was at work for so much of the time.
const NAMED: f64 = 0.6;

/// Servers are taken to be alike when the median one was busy for so much of the busiest one's time.
const ALIKE: f64 = 0.75;

/// Processors are full.
const PROCESSOR_FULL: f64 = 0.9;

/// What is known of a run at its end.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Wall time.
    pub wall: Duration,
    /// Time on processors, all threads.
    pub processor: Duration,
    /// Processors that may be used.
    pub cores: usize,
    /// Threads that encode.
    pub threads: usize,
    /// The stages.
    pub costs: Costs,
    /// The servers.
    pub servers: Vec<(String, FlowReading)>,
    /// A limit on the rate was asked for: bytes per second.
    pub rate_limit: Option<u64>,
}

/// What limited a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The part: "server s3 (turn-around)".
    pub limit: String,
    /// Why it is thought to be that: "busy 91 % of the time".
    pub reason: String,
}

/// Judges a run.
pub fn judge(facts: &Facts) -> Verdict {
    let wall = facts.wall.as_secs_f64().max(1e-6);
    let share = |time: Duration| time.as_secs_f64() / wall;
    let percent = |part: f64| (part * 100.0).round().clamp(0.0, 100.0);
    let sent: u64 = facts.servers.iter().map(|(_, server)| server.bytes).sum();
    if let Some(limit) = facts.rate_limit
        && sent as f64 / wall >= 0.9 * limit as f64
    {
        return Verdict { limit: "the rate limit".into(), reason: "the rate is the one that was allowed".into() };
    }
    let processor = share(facts.processor) / facts.cores.max(1) as f64;
    if processor >= PROCESSOR_FULL {
        let (stage, _) = busiest_stage(facts);
        let reason = format!("{} cores {} % busy with it", facts.cores, percent(processor));
        return Verdict { limit: format!("our processor ({stage})"), reason };
    }
    let (stage, busy) = busiest_stage(facts);
    if share(busy) >= NAMED && stage != "encode" {
        let reason = format!("one thread was at it {} % of the time", percent(share(busy)));
        return Verdict { limit: format!("our side ({stage})"), reason };
    }
    let Some((name, slowest)) = facts.servers.iter().max_by_key(|(_, server)| server.times.busy()) else {
        return Verdict { limit: "nothing in particular".into(), reason: "no server was spoken to".into() };
    };
    let busy = share(slowest.times.busy());
    if busy < NAMED {
        let reason = format!(
            "{stage} {} %, the busiest server {} % of the time",
            percent(share(facts_time(facts, stage))),
            percent(busy)
        );
        return Verdict { limit: "mixed".into(), reason };
    }
    let mut all: Vec<Duration> = facts.servers.iter().map(|(_, server)| server.times.busy()).collect();
    all.sort();
    let alike = all[all.len() / 2].as_secs_f64() >= ALIKE * slowest.times.busy().as_secs_f64() && all.len() > 1;
    let (path, server) = match alike {
        false => (slowest.times.path, slowest.times.server),
        true => facts.servers.iter().fold((Duration::ZERO, Duration::ZERO), |(path, server), (_, one)| {
            (path + one.times.path, server + one.times.server)
        }),
    };
    let on_path = path.as_secs_f64() / (path + server).as_secs_f64().max(1e-9);
    let what = if on_path >= 0.5 { "path" } else { "turn-around" };
    let limit = match (alike, what) {
        (true, "path") => "the paths to the servers, or our link".to_owned(),
        (true, _) => "the servers (turn-around)".to_owned(),
        (false, what) => format!("server {name} ({what})"),
    };
    let of_it = percent(if what == "path" { on_path } else { 1.0 - on_path });
    Verdict { limit, reason: format!("busy {} % of the time, {of_it} % of that {what}", percent(busy)) }
}

fn facts_time(facts: &Facts, stage: &str) -> Duration {
    match stage {
        "source" => facts.costs.source,
        "hash" => facts.costs.hash,
        _ => facts.costs.encode / facts.threads.max(1) as u32,
    }
}

/// The stage of ours that worked most, and for how long, per thread that it may have.
fn busiest_stage(facts: &Facts) -> (&'static str, Duration) {
    ["source", "hash", "encode"]
        .map(|stage| (stage, facts_time(facts, stage)))
        .into_iter()
        .max_by_key(|(_, time)| *time)
        .unwrap_or(("encode", Duration::ZERO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lafs::gbs::flow::Times;

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
        Facts { wall: second, processor: second / 10, cores: 2, threads: 2, servers, ..Facts::default() }
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
    }
}
