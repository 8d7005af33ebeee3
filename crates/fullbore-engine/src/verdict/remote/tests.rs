//! Invented runs: a second of wall time, one peer or three.

use proptest::prelude::*;

use super::*;

const MS: Duration = Duration::from_millis(1);

fn peer(name: &str, path_ms: u32, server_ms: u32) -> Peer {
    let (path, server, open) = (MS * path_ms, MS * server_ms, MS * 1000);
    Peer { name: name.to_owned(), path, server, open, slowed: 0 }
}

fn stage(name: &'static str, busy_ms: u32) -> Stage {
    Stage { name, busy: MS * busy_ms, threads: 1 }
}

fn work(stages: &[Stage], peers: &[Peer]) -> Work<'static> {
    let (stages, peers) = (stages.to_vec(), peers.to_vec());
    Work { wall: MS * 1000, processor: MS * 100, cores: 2, stages, peers, moved_bytes: 1, ..Work::default() }
}

fn limit(work: &Work<'_>) -> String {
    judge(work).limit
}

#[test]
fn a_part_is_agreed_on_by_two_kinds_of_signals_and_no_third() {
    use Signal::{Arithmetic, Intervention, Trial};
    let of = |claims: &[(Signal, u8)]| {
        agreed(&claims.iter().map(|(signal, part)| (*signal, (*part > 0).then_some(*part))).collect::<Vec<_>>())
    };
    assert_eq!(of(&[(Trial, 1), (Intervention, 0), (Arithmetic, 1)]), Some(1));
    assert_eq!(of(&[(Trial, 1), (Trial, 1)]), None, "one kind");
    assert_eq!(of(&[(Trial, 1), (Arithmetic, 0)]), None);
    assert_eq!(of(&[(Trial, 1), (Arithmetic, 1), (Intervention, 2)]), None, "another part");
    assert_eq!(of(&[]), None);
}

#[test]
fn the_largest_part_is_named_if_none_of_size_is_beside_it() {
    assert_eq!(largest(&[("a", 0.6), ("b", 0.3)]), Some(&"a"));
    assert_eq!(largest(&[("a", 0.6), ("b", 0.31)]), None);
    assert_eq!(largest(&[("a", 0.59)]), None);
    let others =
        [OtherShare { part: 'a', share: 0.2, as_full: 0.3 }, OtherShare { part: 'b', share: 0.9, as_full: 0.8 }];
    assert_eq!(alone(&others), Err(others[1]));
    assert_eq!(alone(&others[..1]), Ok(()));
}

#[test]
fn a_peer_is_named_while_our_stages_have_time() {
    let slow = judge(&work(&[stage("hash", 300)], &[peer("s3", 75, 875)]));
    assert_eq!((slow.limit.as_str(), slow.confident, slow.share), ("server s3 (server latency)", true, 0.875));
    assert_eq!(slow.reason, "busy 95 % of the time, 92 % of that server latency");
    assert_eq!(limit(&work(&[stage("hash", 300)], &[peer("s3", 875, 75)])), "the path to s3, or our link");
    // Which half of the far side it is, is not clear.
    let both = judge(&work(&[], &[peer("s3", 500, 450)]));
    assert_eq!((both.limit.as_str(), both.confident), ("mixed", false));
    assert_eq!(both.reason, "the path to s3, or our link 50 %, server s3 (server latency) 45 %");
}

#[test]
fn a_stage_is_named_while_the_peers_stand_or_if_it_never_waits() {
    let of = |busy_ms, peer| limit(&work(&[stage("source", busy_ms), stage("hash", 200)], &[peer]));
    assert_eq!(of(700, peer("a", 300, 100)), "our side (source)");
    assert_eq!(of(950, peer("a", 900, 50)), "our side (source)");
    assert_eq!(of(700, peer("a", 900, 50)), "mixed", "the clocks do not agree");
    let threads = Stage { threads: 2, ..stage("source", 1000) };
    assert_eq!(limit(&work(&[threads], &[peer("a", 100, 100)])), "mixed", "half of each thread");
}

#[test]
fn a_full_processor_is_named_where_the_work_stands_before_it() {
    let full = |stages: &[Stage], peer: Peer| limit(&Work { processor: MS * 1900, ..work(stages, &[peer]) });
    assert_eq!(full(&[stage("hash", 700)], peer("a", 10, 900)), "our processor (hash)");
    assert_eq!(full(&[stage("hash", 200)], peer("a", 900, 10)), "our processor (send)");
    assert_eq!(full(&[stage("hash", 200)], peer("a", 10, 900)), "mixed", "somebody else is waited for");
}

#[test]
fn one_of_many_peers_is_named_and_all_of_those_that_are_alike() {
    let of = |peers: &[(u32, u32)]| {
        let peers: Vec<Peer> =
            peers.iter().zip(["a", "b", "c"]).map(|((path, server), name)| peer(name, *path, *server)).collect();
        limit(&work(&[], &peers))
    };
    assert_eq!(of(&[(50, 50), (100, 850), (60, 60)]), "server b (server latency)");
    assert_eq!(of(&[(50, 50), (850, 100), (60, 60)]), "server b (path)");
    assert_eq!(of(&[(900, 50), (800, 50), (850, 60)]), "the paths to the servers, or our link");
    assert_eq!(of(&[(50, 900), (50, 850), (60, 800)]), "the servers (server latency)");
}

#[test]
fn a_rate_limit_that_was_reached_is_certain() {
    let of = |bytes_per_s, held_ms| {
        let limit = RateLimit { bytes_per_s, bytes: 1000, held: MS * held_ms };
        judge(&Work { rate_limit: Some(limit), ..work(&[], &[peer("s3", 75, 875)]) }).limit
    };
    assert_eq!(of(1000, 0), "the rate limit");
    assert_eq!(of(10_000, 0), "server s3 (server latency)");
    assert_eq!(of(10_000, 700), "the rate limit");
}

#[test]
fn a_peer_that_asks_for_less_is_named_while_nobody_works() {
    let slowed = Peer { slowed: 7, ..peer("s3", 75, 75) };
    let verdict = judge(&work(&[], &[slowed]));
    assert_eq!(verdict.limit, "server s3 (SlowDown)");
    assert_eq!(verdict.reason, "it asked 7 times for fewer requests");
    assert_eq!(limit(&work(&[stage("source", 950)], &[Peer { slowed: 7, ..peer("s3", 75, 75) }])), "our side (source)");
}

#[test]
fn who_did_nothing_was_limited_by_nothing() {
    let idle = judge(&Work { moved_bytes: 0, ..work(&[], &[peer("s3", 75, 75)]) });
    assert_eq!((idle.limit.as_str(), idle.confident), ("nothing in particular", false));
    assert_eq!(judge(&Work::default()).limit, NOTHING);
    let waited = judge(&Work { moved_bytes: 0, ..work(&[], &[peer("s3", 75, 875)]) });
    assert_eq!(waited.limit, "server s3 (server latency)", "it was waited for");
}

prop_compose! {
    fn any_peer()(path_ms in 0..1000u32, server_ms in 0..1000u32, slowed in 0..2u64) -> Peer {
        let server_ms = server_ms.min(1000 - path_ms);
        Peer { slowed, ..peer("p", path_ms, server_ms) }
    }
}

prop_compose! {
    fn any_work()(
        stages in prop::collection::vec(0..1100u32, 0..4),
        peers in prop::collection::vec(any_peer(), 0..5),
        processor_ms in 0..2100u32,
        rate in prop::option::of((1..3000u64, 0..2000u64, 0..1000u32)),
        moved_bytes in 0..2u64,
    ) -> Work<'static> {
        let stages: Vec<Stage> = stages.into_iter().zip(["source", "hash", "encode", "target"])
            .map(|(busy, name)| stage(name, busy)).collect();
        let rate_limit = rate.map(|(bytes_per_s, bytes, held)| RateLimit { bytes_per_s, bytes, held: MS * held });
        Work { processor: MS * processor_ms, rate_limit, moved_bytes, ..work(&stages, &peers) }
    }
}

proptest! {
    #[test]
    fn shares_part_the_wall_time(work in any_work()) {
        let verdict = judge(&work);
        let sum: f64 = verdict.shares.iter().map(|(_, share)| share).sum();
        prop_assert!(sum <= 1.0 + 1e-9, "{verdict:?}");
        prop_assert!(verdict.shares.is_sorted_by(|one, other| one.1 >= other.1), "{verdict:?}");
    }

    /// Our own rate limit is certain; all else that is named has held most of the time.
    #[test]
    fn what_is_named_holds_most_of_the_time(work in any_work()) {
        let verdict = judge(&work);
        prop_assert!(!verdict.confident || verdict.share >= NAMED, "{verdict:?}");
    }

    /// However often one kind of signal names a part, it takes another kind.
    #[test]
    fn one_kind_of_signal_names_nothing(part in 0..3u8, signals in prop::collection::vec(0..3u8, 0..4)) {
        let kinds = [Signal::Stages, Signal::Requests, Signal::Processor];
        let claims: Vec<_> = signals.iter().map(|kind| (kinds[usize::from(*kind)], Some(part))).collect();
        let are_two = signals.iter().any(|kind| *kind != signals[0]);
        prop_assert_eq!(agreed(&claims).is_some(), are_two);
    }

    /// A stage that works most of the time and peers that do are two limits, unless one explains the other.
    #[test]
    fn two_that_are_busy_are_mixed(stage_ms in 600..900u32, path_ms in 600..1000u32) {
        prop_assert_eq!(limit(&work(&[stage("source", stage_ms)], &[peer("a", path_ms, 0)])), MIXED);
    }

    #[test]
    fn a_run_that_takes_longer_has_the_same_limit(work in any_work(), times in 2..50u32) {
        let longer = Work {
            wall: work.wall * times,
            processor: work.processor * times,
            stages: work.stages.iter().map(|stage| Stage { busy: stage.busy * times, ..*stage }).collect(),
            peers: work.peers.iter().map(|peer| Peer {
                path: peer.path * times,
                server: peer.server * times,
                open: peer.open * times,
                ..peer.clone()
            }).collect(),
            rate_limit: work.rate_limit.map(|limit| RateLimit {
                bytes: limit.bytes * u64::from(times),
                held: limit.held * times,
                ..limit
            }),
            ..work.clone()
        };
        let (one, other) = (judge(&work), judge(&longer));
        prop_assert_eq!((&one.limit, one.confident), (&other.limit, other.confident));
        prop_assert!((one.share - other.share).abs() < 1e-9);
    }
}
