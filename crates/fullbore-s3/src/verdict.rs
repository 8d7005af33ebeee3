//! Facts of a run with a store for the verdict: our own stages, and the store with the path to it.
//!
//! The signals are the working time of our threads, and the division of the connections' time: bytes are on the path,
//! or the store has a whole request and has not answered. The store's processor is invisible from here.
//! [`fullbore_engine::verdict::remote`] judges the facts.

use std::time::Duration;

use fullbore_engine::run::report::VerdictReport;
use fullbore_engine::units::several;
use fullbore_engine::verdict::remote::{self, Peer, RateLimit, Stage, Work};

use super::client::measure::Reading;

/// Facts of a run at its end.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Wall time of the run.
    pub wall: Duration,
    /// CPU time of this process, over all threads.
    pub processor: Duration,
    /// Number of processors that may be used.
    pub cores: usize,
    /// Number of threads that read and hash.
    pub threads: usize,
    /// Time for reading files, over all threads.
    pub source: Duration,
    /// Time for hashing, over all threads.
    pub hash: Duration,
    /// Time for writing downloaded content, on one thread.
    pub target: Duration,
    /// Measurements of the connections.
    pub connections: Reading,
    /// Name of the store.
    pub store: String,
    /// Number of answers that asked for fewer requests.
    pub slowed: u64,
    /// The user's rate limit in bytes per second, if there is one.
    pub rate_limit: Option<u64>,
    /// Number of bytes of objects uploaded or downloaded.
    pub moved_bytes: u64,
}

/// Judges a run.
pub fn judge(facts: &Facts) -> VerdictReport {
    let Reading { sent_bytes, received_bytes, path, server, limited, open, .. } = facts.connections;
    let stage = |name, busy, threads| Stage { name, busy, threads };
    let work = Work {
        wall: facts.wall,
        processor: facts.processor,
        cores: facts.cores,
        stages: vec![
            stage("source", facts.source, facts.threads),
            stage("hash", facts.hash, facts.threads),
            stage("target", facts.target, 1),
        ],
        peers: vec![Peer { name: facts.store.clone(), path, server, open, slowed: facts.slowed }],
        rate_limit: facts.rate_limit.map(|bytes_per_s| RateLimit {
            bytes_per_s,
            bytes: sent_bytes + received_bytes,
            held: limited,
        }),
        moved_bytes: facts.moved_bytes,
        near: None,
    };
    VerdictReport { evidence: evidence(facts), ..remote::judge(&work) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_connections_and_two_threads_are_told_as_they_were() {
        let ms = Duration::from_millis;
        let facts = |path, server| Facts {
            wall: ms(1000),
            processor: ms(200),
            cores: 2,
            threads: 2,
            source: ms(700),
            store: "s3".into(),
            connections: Reading {
                path: ms(path),
                server: ms(server),
                open: ms(4000),
                connections_at_once: 4,
                sent_bytes: 1000,
                ..Reading::default()
            },
            moved_bytes: 1000,
            ..Facts::default()
        };
        let slow = judge(&facts(300, 3500));
        assert_eq!((slow.limit.as_str(), slow.confident), ("server s3 (server latency)", true));
        assert_eq!(slow.shares[0], ("server s3 (server latency)".to_owned(), 3500.0 / 4.0 / 1000.0));
        assert_eq!(slow.evidence[0], "0 answers over 0 connections, at most 4 at once");
        assert_eq!(judge(&facts(3500, 300)).limit, "the path to s3, or our link");
        let mixed = judge(&facts(300, 300));
        assert_eq!((mixed.limit.as_str(), mixed.shares[0].clone()), ("mixed", ("source".to_owned(), 0.35)));
        assert_eq!(judge(&Facts { rate_limit: Some(1000), ..facts(300, 3500) }).limit, "the rate limit");
        assert_eq!(judge(&Facts { slowed: 7, ..facts(300, 300) }).limit, "server s3 (SlowDown)");
        assert_eq!(judge(&Facts { target: ms(950), ..facts(3500, 300) }).limit, "our side (target)");
        let hashing = Facts { hash: ms(1950), processor: ms(1900), ..facts(3500, 300) };
        assert_eq!(judge(&hashing).limit, "our processor (hash)");
    }
}
