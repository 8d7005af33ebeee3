//! What limited a run: one of our own stages, the path to the store, or the store's turn-around.
//!
//! The signals are the time that our threads worked, and how the connections' time divides: bytes on the path, or the
//! store has a whole request and its answer is waited for. The store's processor is not seen from here.

use std::time::Duration;

use fullbore_engine::units::several;
use fullbore_engine::verdict::remote::{MIXED, NAMED, NOTHING, PROCESSOR_FULL, Verdict, is_confident, percent};

use super::client::measure::Reading;

/// What is known of a run at its end.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Wall time.
    pub wall: Duration,
    /// Our time on processors, all threads.
    pub processor: Duration,
    /// Processors that may be used.
    pub cores: usize,
    /// Threads that read and hash.
    pub threads: usize,
    /// Reading files, all threads together.
    pub source: Duration,
    /// Hashing, all threads together.
    pub hash: Duration,
    /// Writing what was got; one thread.
    pub target: Duration,
    /// What the connections saw.
    pub connections: Reading,
    /// The store, as it is called.
    pub store: String,
    /// How often it asked for less.
    pub slowed: u64,
    /// A limit on the rate was asked for: bytes per second.
    pub rate_limit: Option<u64>,
    /// Bytes of objects that were put, or of the one that was got.
    pub moved_bytes: u64,
}

/// Judges a run.
pub fn judge(facts: &Facts) -> Verdict {
    let (limit, reason) = limit(facts);
    Verdict {
        confident: is_confident(&limit),
        limit,
        reason,
        shares: shares(facts),
        evidence: evidence(facts),
        advice: String::new(),
    }
}

/// How much of the time each part was at work; of connections and threads the mean one.
fn shares(facts: &Facts) -> Vec<(String, f64)> {
    let (threads, connections) = (facts.threads.max(1), facts.connections.connections_at_once.max(1));
    let wall = facts.wall.as_secs_f64().max(1e-6);
    let share = |time: Duration, over: f64| (time.as_secs_f64() / over / wall).min(1.0);
    let mut shares = vec![
        ("source".to_owned(), share(facts.source, threads as f64)),
        ("hash".to_owned(), share(facts.hash, threads as f64)),
        ("target".to_owned(), share(facts.target, 1.0)),
        ("path".to_owned(), share(facts.connections.path, connections as f64)),
        (format!("server {} (turn-around)", facts.store), share(facts.connections.server, connections as f64)),
    ];
    shares.retain(|(_, share)| *share > 0.0);
    shares.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    shares
}

fn evidence(facts: &Facts) -> Vec<String> {
    let Reading { answers, connections, connections_at_once, repeated, path, server, round_trip, .. } =
        facts.connections.clone();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let mean = |time: Duration| ms(time) / answers.max(1) as f64;
    let mut lines = vec![
        format!(
            "{} over {}, at most {connections_at_once} at once",
            several(answers, "answer", "answers"),
            several(connections, "connection", "connections"),
        ),
        format!("of a request, {:.1} ms on the path and {:.1} ms at the server, in the mean", mean(path), mean(server)),
    ];
    lines.extend(round_trip.map(|time| format!("smallest round trip {:.1} ms", ms(time))));
    if repeated > 0 {
        lines.push(format!("{repeated} requests were sent again"));
    }
    if facts.slowed > 0 {
        lines.push(format!("the store asked {} times for fewer requests", facts.slowed));
    }
    lines
}

fn limit(facts: &Facts) -> (String, String) {
    let wall = facts.wall.as_secs_f64().max(1e-6);
    let share = |time: Duration| time.as_secs_f64() / wall;
    let moved = facts.connections.sent_bytes + facts.connections.received_bytes;
    let Reading { path, server, limited, open, .. } = facts.connections.clone();
    if let Some(limit) = facts.rate_limit
        && (moved as f64 / wall >= 0.9 * limit as f64 || limited.as_secs_f64() >= NAMED * (path + server).as_secs_f64())
        && moved > 0
    {
        return ("the rate limit".into(), "the rate is the one that was allowed".into());
    }
    let threads = facts.threads.max(1) as u32;
    let stages = [("source", facts.source / threads), ("hash", facts.hash / threads), ("target", facts.target)];
    let (stage, busy) = stages.into_iter().max_by_key(|(_, time)| *time).unwrap_or(("source", Duration::ZERO));
    let busy = share(busy);
    let processor = share(facts.processor) / facts.cores.max(1) as f64;
    if processor >= PROCESSOR_FULL {
        let stage = if busy >= 0.3 { stage } else { "send" };
        let reason = format!("{} cores {} % busy with it", facts.cores, percent(processor));
        return (format!("our processor ({stage})"), reason);
    }
    if busy >= NAMED {
        let reason = format!("our threads were at it {} % of the time", percent(busy));
        return (format!("our side ({stage})"), reason);
    }
    if facts.slowed > 0 && share(path + server) / (facts.connections.connections_at_once.max(1) as f64) < NAMED {
        let reason = format!("it asked {} times for fewer requests", facts.slowed);
        return (format!("server {} (SlowDown)", facts.store), reason);
    }
    let at_work = (path + server).as_secs_f64() / open.as_secs_f64().max(1e-9);
    if at_work < NAMED || open.is_zero() {
        if facts.moved_bytes == 0 {
            return (NOTHING.into(), "nothing was moved".into());
        }
        let reason = format!("{stage} {} %, connections {} % of the time", percent(busy), percent(at_work));
        return (MIXED.into(), reason);
    }
    let at_server = server.as_secs_f64() / (path + server).as_secs_f64().max(1e-9);
    let connections = facts.connections.connections_at_once;
    let (limit, part) = if at_server >= 0.5 {
        (format!("server {} (turn-around)", facts.store), at_server)
    } else {
        (format!("the path to {}, or our link", facts.store), 1.0 - at_server)
    };
    let plural = if connections == 1 { "connection" } else { "connections" };
    let reason =
        format!("{connections} {plural} busy {} % of the time, {} % of that with it", percent(at_work), percent(part));
    (limit, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(path_ms: u64, server_ms: u64) -> Facts {
        let ms = Duration::from_millis;
        let connections = Reading {
            path: ms(path_ms),
            server: ms(server_ms),
            open: ms(4000),
            connections_at_once: 4,
            sent_bytes: 1000,
            ..Reading::default()
        };
        Facts {
            wall: ms(1000),
            processor: ms(200),
            cores: 2,
            threads: 2,
            store: "s3".into(),
            connections,
            moved_bytes: 1000,
            ..Facts::default()
        }
    }

    #[test]
    fn what_is_named_is_what_was_busy() {
        let slow = judge(&facts(300, 3500));
        assert_eq!((slow.limit.as_str(), slow.confident), ("server s3 (turn-around)", true));
        assert_eq!(slow.shares[0], ("server s3 (turn-around)".to_owned(), 3500.0 / 4.0 / 1000.0));
        assert_eq!(judge(&facts(3500, 300)).limit, "the path to s3, or our link");
        assert_eq!(judge(&facts(300, 300)).limit, "mixed");
        let idle = judge(&Facts { moved_bytes: 0, ..facts(300, 300) });
        assert_eq!((idle.limit.as_str(), idle.confident), ("nothing in particular", false));
        let mut limited = facts(300, 3500);
        limited.rate_limit = Some(1000);
        assert_eq!(judge(&limited).limit, "the rate limit");
        limited.rate_limit = Some(10_000);
        assert_eq!(judge(&limited).limit, "server s3 (turn-around)");
        let held = Reading { limited: Duration::from_millis(3000), ..facts(3500, 300).connections };
        assert_eq!(
            judge(&Facts { connections: held, rate_limit: Some(10_000), ..facts(3500, 300) }).limit,
            "the rate limit"
        );
        let mut slow = facts(300, 300);
        slow.slowed = 7;
        assert_eq!(judge(&slow).limit, "server s3 (SlowDown)");
        let mut disk = facts(3500, 300);
        disk.source = Duration::from_millis(1900);
        assert_eq!(judge(&disk).limit, "our side (source)");
        let target = Facts { target: Duration::from_millis(700), ..facts(3500, 300) };
        assert_eq!(judge(&target).limit, "our side (target)");
        disk.processor = Duration::from_millis(1900);
        disk.hash = Duration::from_millis(1950);
        assert_eq!(judge(&disk).limit, "our processor (hash)");
    }
}
