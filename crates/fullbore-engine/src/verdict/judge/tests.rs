//! Invented runs, one per limit, and balanced ones where only `mixed` is right.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::stage::{HostReading, Kind, LedgerReading, SendReading, StageReading, ThreadReading, Trial};
use crate::verdict::opinion;
use crate::verdict::sample::{CpuSample, DeviceSample, HostSample, StageSample, WindowSample};
use crate::verdict::{Limit, Verdict};
use crate::window::{Operation, Position, PositionBytes};

const TENTH_NS: f64 = 1e8;
const CORES: f64 = 4.0;

/// One tenth of a second of an invented run, in shares.
#[derive(Clone, Debug)]
struct Scene {
    /// Of the connections' time: waiting for data, and for the next stage.
    empty: f64,
    blocked: f64,
    throttled: f64,
    reads_empty: f64,
    mb_per_s: f64,
    /// Of each of two hashing threads.
    compute: f64,
    run_delay: f64,
    starved: f64,
    asleep: f64,
    /// Of the runtime's thread.
    net_compute: f64,
    /// Of the thread that calls sync.
    sync: f64,
    others_cores: f64,
    steal_cores: f64,
    throttled_cpu: f64,
    /// Of the quota's CPU time.
    quota_used: Option<f64>,
    device: Option<f64>,
    hog: Option<&'static str>,
    exhausted: f64,
    held_mb: f64,
    /// Share of held bytes that stand before the hash.
    local: f64,
    rate_limit: u64,
    sending: SendReading,
    round_trip_ms: u64,
}

/// A link that limits: sockets empty, threads starved, disk bored.
fn link_bound() -> Scene {
    Scene {
        empty: 0.93,
        blocked: 0.01,
        throttled: 0.0,
        reads_empty: 0.97,
        mb_per_s: 110.0,
        compute: 0.25,
        run_delay: 0.01,
        starved: 0.7,
        asleep: 0.02,
        net_compute: 0.2,
        sync: 0.0,
        others_cores: 0.1,
        steal_cores: 0.0,
        throttled_cpu: 0.0,
        quota_used: None,
        device: Some(0.3),
        hog: None,
        exhausted: 0.9,
        held_mb: 64.0,
        local: 0.02,
        rate_limit: 0,
        sending: SendReading::default(),
        round_trip_ms: 20,
    }
}

/// A disk that limits: connections held up, threads asleep, sockets full.
fn disk_bound() -> Scene {
    Scene {
        empty: 0.1,
        blocked: 0.85,
        reads_empty: 0.1,
        mb_per_s: 40.0,
        compute: 0.1,
        starved: 0.02,
        asleep: 0.86,
        device: Some(0.97),
        local: 0.7,
        ..link_bound()
    }
}

/// Nothing arrives, one thread waits for the disk.
fn final_sync() -> Scene {
    Scene {
        empty: 0.0,
        blocked: 0.0,
        mb_per_s: 0.0,
        compute: 0.0,
        starved: 1.0,
        asleep: 0.0,
        net_compute: 0.0,
        sync: 1.0,
        device: Some(1.0),
        held_mb: 0.0,
        exhausted: 0.0,
        ..link_bound()
    }
}

fn compute_bound() -> Scene {
    Scene {
        empty: 0.1,
        blocked: 0.8,
        reads_empty: 0.2,
        compute: 0.97,
        starved: 0.0,
        asleep: 0.01,
        local: 0.8,
        ..link_bound()
    }
}

fn sample(scene: &Scene, number: usize) -> Sample {
    let ns = |share: f64| (share * TENTH_NS) as u64;
    let connections = 8.0;
    let bytes = (scene.mb_per_s * 1e5) as u64;
    let thread = |thread_id: u32, slot: u64| ThreadReading {
        slot,
        thread_id,
        owner: true,
        alive_ns: TENTH_NS as u64,
        ..ThreadReading::default()
    };
    let hashing = |id| ThreadReading {
        compute_ns: ns(scene.compute),
        run_delay_ns: ns(scene.run_delay),
        starved_ns: ns(scene.starved),
        bytes: bytes / 2,
        ..thread(id, u64::from(id))
    };
    let writing = |id| ThreadReading {
        owner: false,
        device_ns: ns(scene.asleep),
        bytes: bytes / 2,
        ..thread(id, 100 + u64::from(id))
    };
    let stage = |name: &str, kind, threads| StageSample { threads, ..StageSample::new(name, kind) };
    let busy = (1.0 - scene.empty - scene.blocked - scene.throttled).max(0.0);
    let active = scene.empty + scene.blocked + scene.throttled > 0.0;
    let network = StageReading {
        bytes,
        reads: if active { 1000 } else { 0 },
        socket_empty: if active { (scene.reads_empty * 1000.0) as u64 } else { 0 },
        socket_empty_ns: ns(scene.empty * connections),
        blocked_ns: ns(scene.blocked * connections),
        throttled_ns: ns(scene.throttled * connections),
        poll_ns: if active { ns(busy * connections) } else { 0 },
        ..StageReading::new("network", Kind::Task)
    };
    let runtime = ThreadReading { compute_ns: ns(scene.net_compute), ..thread(9, 9) };
    let syncing = ThreadReading { owner: false, device_ns: ns(scene.sync), ..thread(8, 8) };
    let ours = 2.0 * scene.compute + scene.net_compute;
    let held = (scene.held_mb * 1e6) as u64;
    let local = (held as f64 * scene.local) as u64;
    Sample {
        at: Duration::from_millis(100 * (number as u64 + 1)),
        length: Duration::from_millis(100),
        stages: vec![
            StageSample { tasks: network, threads: vec![runtime] },
            stage("hash", Kind::Thread, vec![hashing(1), hashing(2)]),
            stage("disk write", Kind::Thread, vec![writing(1), writing(2)]),
            stage("sync", Kind::Thread, vec![syncing]),
        ],
        window: WindowSample {
            bytes: 64_000_000,
            items: 1000,
            held_byte_seconds: held as f64 * 0.1,
            positions: PositionBytes::default()
                .with(Position::Requested, held - local)
                .with(Position::Before(Operation::Hash), local),
            exhausted_ns: ns(scene.exhausted),
        },
        cpu: CpuSample {
            allowed_cores: CORES,
            busy_ns: ns((ours + scene.others_cores + scene.steal_cores).min(CORES)),
            steal_ns: ns(scene.steal_cores),
            throttled_ns: ns(scene.throttled_cpu),
            quota_ns: scene.quota_used.map_or(0, |_| ns(0.1)),
            used_ns: ns(0.1 * scene.quota_used.unwrap_or(0.0)),
            hog: scene.hog.map(|name| (name.to_owned(), scene.others_cores)),
        },
        device: scene.device.map(|busy| DeviceSample { name: "vda".into(), busy_ns: ns(busy), written_bytes: bytes }),
        hosts: vec![HostSample {
            name: "a".into(),
            bytes,
            connections: 8,
            round_trip_us: scene.round_trip_ms * 1000,
            capped: false,
        }],
        sending: scene.sending,
        delivered_bytes: bytes,
        rate_limit_bytes_per_s: scene.rate_limit,
    }
}

/// Runs of scenes (with their lengths in samples) through judge and opinion.
fn judged_with(scenes: &[(Scene, usize)], hosts: &[&str], trials: Vec<Trial>) -> Verdict {
    let mut judge = Judge::default();
    let mut number = 0;
    let mut bytes = 0;
    for (scene, length) in scenes {
        for _ in 0..*length {
            let sample = sample(scene, number);
            bytes += sample.delivered_bytes;
            judge.push(sample);
            number += 1;
        }
    }
    let host = |name: &&str| HostReading {
        name: (*name).to_owned(),
        bytes: bytes / hosts.len() as u64,
        round_trip_us: 20_000,
        ..HostReading::default()
    };
    let counters = LedgerReading { hosts: hosts.iter().map(host).collect(), trials, ..LedgerReading::default() };
    opinion::verdict(judge.finish(), counters, bytes, Duration::from_millis(100 * number as u64))
}

fn judged(scenes: &[(Scene, usize)]) -> Verdict {
    judged_with(scenes, &["a"], Vec::new())
}

/// A host that brought 40 MB/s of 100 paused, and the others brought this.
fn trial(without: f64) -> Trial {
    Trial {
        host: "b".into(),
        new_host: true,
        before_bytes_per_s: without,
        after_bytes_per_s: 1e8,
        brought_bytes_per_s: 4e7,
    }
}

#[test]
fn a_full_link_is_named_when_the_others_take_up_what_one_leaves() {
    let verdict = judged_with(&[(link_bound(), 100)], &["a", "b"], vec![trial(0.98e8)]);
    assert_eq!(verdict.limit, Limit::AccessLink, "{verdict}");
    assert!(verdict.confident);
    // Beside a full link a host may be at a limit of its own, and not take up anything.
    let verdict = judged_with(&[(link_bound(), 100)], &["a", "b"], vec![trial(0.98e8), trial(0.60e8)]);
    assert_eq!(verdict.limit, Limit::AccessLink, "{verdict}");
}

#[test]
fn the_hosts_are_named_when_they_do_not() {
    let verdict = judged_with(&[(link_bound(), 100)], &["a", "b", "c"], vec![trial(0.6e8)]);
    assert_eq!(verdict.limit, Limit::Hosts, "{verdict}");
    assert!(verdict.confident);
}

#[test]
fn all_that_lies_between_us_and_the_only_host_is_one_thing() {
    let verdict = judged(&[(link_bound(), 100)]);
    assert_eq!(verdict.limit, Limit::Host { name: "a".into() });
    assert_eq!(verdict.part, "a or the path to it");
    assert!(verdict.confident);
}

#[test]
fn without_a_trial_or_with_one_that_cannot_tell_nothing_is_guessed() {
    for trials in [vec![], vec![trial(0.64e8)]] {
        let verdict = judged_with(&[(link_bound(), 100)], &["a", "b"], trials);
        assert_eq!(verdict.limit, Limit::RemoteOrPath);
        assert!(!verdict.confident);
    }
}

#[test]
fn a_slow_disk_is_named_with_its_evidence() {
    let verdict = judged(&[(disk_bound(), 100)]);
    assert_eq!(verdict.limit, Limit::Disk);
    assert_eq!(
        verdict.to_string(),
        "400 MB in 10 s, 40.0 MB/s. Limited by: disk writes (busy 97 %; network blocked 85 %)."
    );
}

#[test]
fn a_disk_without_counters_is_named_by_the_time_in_its_calls() {
    let scene = Scene { device: None, ..disk_bound() };
    assert_eq!(judged(&[(scene, 100)]).limit, Limit::Disk);
}

#[test]
fn the_dirty_limit_is_the_disk_although_it_is_less_than_busy() {
    let scene = Scene { device: Some(0.7), ..disk_bound() };
    assert_eq!(judged(&[(scene, 100)]).limit, Limit::Disk);
}

#[test]
fn a_disk_whose_time_is_all_in_the_final_sync_is_named() {
    let verdict = judged(&[(link_bound(), 25), (final_sync(), 75)]);
    assert_eq!(verdict.limit, Limit::Disk, "{verdict}");
    assert!(verdict.reason.contains("only synced"), "{}", verdict.reason);
}

#[test]
fn a_disk_busy_all_along_owns_the_time_before_the_sync() {
    let hidden = Scene { device: Some(1.0), ..link_bound() };
    let verdict = judged(&[(hidden.clone(), 75), (final_sync(), 25)]);
    assert_eq!(verdict.limit, Limit::Disk, "{verdict}");
    // A short sync at the end of a run that the link held up is nothing.
    let verdict = judged(&[(Scene { device: Some(0.8), ..hidden.clone() }, 97), (final_sync(), 3)]);
    assert_eq!(verdict.limit, Limit::Host { name: "a".into() });
    // Nor is the link alone to blame when the disk had no time to spare.
    let verdict = judged(&[(hidden, 97), (final_sync(), 3)]);
    assert_eq!(verdict.limit, Limit::Mixed);
    assert!(verdict.reason.contains("disk busy 100 %"), "{}", verdict.reason);
}

#[test]
fn a_disk_that_takes_much_at_once_and_then_nothing_is_named() {
    // As recorded: the disk is always busy, connections run and stand by turns of half a second.
    let runs = Scene { device: Some(0.99), empty: 0.8, blocked: 0.15, mb_per_s: 97.0, held_mb: 20.0, ..link_bound() };
    let stands = Scene { device: Some(0.99), mb_per_s: 35.0, ..disk_bound() };
    let turns = |stand: usize| (0..10).flat_map(|_| [(runs.clone(), 6), (stands.clone(), stand)]).collect::<Vec<_>>();
    let verdict = judged(&turns(6));
    assert_eq!(verdict.limit, Limit::Disk, "{verdict}");
    // Where they hardly ever stand, both are full.
    let verdict = judged(&turns(1));
    assert_eq!(verdict.limit, Limit::Mixed, "{verdict}");
}

#[test]
fn a_disk_that_holds_up_less_than_the_network_could_bring_is_named() {
    // As recorded: the network carried 96 MB/s until the disk was full, and then ran for longer than it stood, at less.
    let free = Scene { device: Some(0.99), mb_per_s: 96.0, ..link_bound() };
    let runs = |mb_per_s| Scene { mb_per_s, ..free.clone() };
    let stands = Scene { device: Some(0.99), mb_per_s: 30.0, ..disk_bound() };
    let with = |rate, stand| {
        let turns = (0..10).flat_map(|_| [(runs(rate), 13), (stands.clone(), stand)]);
        judged(&std::iter::once((free.clone(), 14)).chain(turns).collect::<Vec<_>>())
    };
    let verdict = with(68.0, 6);
    assert_eq!(verdict.limit, Limit::Disk, "{verdict}");
    // Where it brings what it can, the disk is not alone.
    let verdict = with(96.0, 4);
    assert_eq!(verdict.limit, Limit::Mixed, "{verdict}");
}

#[test]
fn a_full_machine_is_no_limit_while_all_that_arrives_is_done_at_once() {
    // As recorded beside a compiler on all cores: waits for a core at each packet, the link full.
    let scene = Scene {
        run_delay: 0.5,
        compute: 0.3,
        starved: 0.2,
        others_cores: 3.3,
        held_mb: 9.0,
        exhausted: 0.0,
        ..link_bound()
    };
    assert_eq!(judged(&[(scene.clone(), 100)]).limit, Limit::Host { name: "a".into() });
    // The same where bytes pile up before them.
    let piled = Scene {
        compute: 0.4,
        starved: 0.05,
        blocked: 0.7,
        empty: 0.25,
        reads_empty: 0.3,
        local: 0.9,
        held_mb: 60.0,
        ..scene
    };
    assert!(matches!(judged(&[(piled, 100)]).limit, Limit::Cpu { .. }));
}

#[test]
fn a_bored_disk_with_a_long_sync_is_mixed() {
    let verdict = judged(&[(link_bound(), 55), (final_sync(), 45)]);
    assert_eq!(verdict.limit, Limit::Mixed);
    assert!(!verdict.confident);
}

#[test]
fn one_core_is_named_by_its_role() {
    let verdict = judged(&[(compute_bound(), 100)]);
    assert_eq!(verdict.limit, Limit::OneCore { stage: "hash".into() }, "{verdict}");
    let runtime = Scene { empty: 0.2, blocked: 0.05, reads_empty: 0.3, net_compute: 0.96, ..link_bound() };
    assert_eq!(judged(&[(runtime, 100)]).limit, Limit::OneCore { stage: "network".into() });
}

#[test]
fn full_cores_come_before_every_stage_they_disguise_themselves_as() {
    let scene = Scene { compute: 0.9, run_delay: 0.1, others_cores: 2.1, ..compute_bound() };
    assert_eq!(judged(&[(scene, 100)]).limit, Limit::Cpu { consumer: "hash".into() });
    // As a slow disk: threads seldom get a core, the disk looks asleep.
    let scene = Scene { run_delay: 0.5, compute: 0.4, asleep: 0.1, others_cores: 3.5, hog: Some("xz"), ..disk_bound() };
    assert_eq!(judged(&[(scene, 100)]).limit, Limit::Cpu { consumer: "process xz".into() });
}

#[test]
fn a_quota_is_named() {
    let scene = Scene { compute: 0.2, run_delay: 0.7, throttled_cpu: 0.8, ..disk_bound() };
    let verdict = judged(&[(scene, 100)]);
    assert_eq!(verdict.limit, Limit::Cpu { consumer: "hash, under a CPU quota".into() });
    assert!(verdict.advice.contains("quota"));
}

#[test]
fn under_a_hard_quota_sockets_seem_empty() {
    // As recorded: nobody looks at the sockets while all threads are held back, and the sender waits for us.
    let held_back = Scene {
        compute: 0.12,
        run_delay: 0.7,
        starved: 0.18,
        throttled_cpu: 1.2,
        held_mb: 2.0,
        exhausted: 0.0,
        ..link_bound()
    };
    assert!(matches!(judged(&[(held_back.clone(), 100)]).limit, Limit::Cpu { .. }));
    // Likewise if many threads share the work, none of which wants a core for long.
    let spread = Scene { compute: 0.01, run_delay: 0.45, net_compute: 0.01, ..held_back.clone() };
    assert!(matches!(judged(&[(spread, 100)]).limit, Limit::Cpu { .. }));
    // As recorded with a quota a quarter above what is needed: throttled now and then, and still in time.
    let enough = Scene { compute: 0.1, run_delay: 0.4, throttled_cpu: 0.4, ..held_back };
    assert_eq!(judged(&[(enough, 100)]).limit, Limit::Host { name: "a".into() });
}

#[test]
fn a_processor_quota_looks_like_waiting_for_an_idle_path() {
    let scene = |throttled_cpu, quota_used, busy_us| Scene {
        empty: 0.0,
        blocked: 0.0,
        compute: 0.02,
        run_delay: 0.25,
        mb_per_s: 0.0,
        held_mb: 0.0,
        throttled_cpu,
        quota_used: Some(quota_used),
        sending: SendReading { watched_us: 200_000, busy_us, ..SendReading::default() },
        ..link_bound()
    };
    let limit = |throttled, used, busy_us| judged(&[(scene(throttled, used, busy_us), 100)]).limit;
    assert!(matches!(limit(0.5, 0.7, 105_000), Limit::Cpu { .. }));
    assert_eq!(limit(0.5, 0.7, 190_000), Limit::RemoteOrPath, "the path is full all the time");
    assert!(matches!(limit(0.5, 0.9, 190_000), Limit::Cpu { .. }), "and nothing of the quota is left");
    assert!(matches!(limit(0.2, 0.9, 190_000), Limit::Cpu { .. }));
    assert_eq!(limit(0.2, 0.7, 105_000), Limit::RemoteOrPath, "hardly ever held back");
    assert_eq!(limit(0.05, 0.9, 190_000), Limit::RemoteOrPath, "never held back");
}

#[test]
fn a_quota_nobody_shows_us_is_seen_by_the_wait_for_a_core() {
    let scene = Scene { compute: 0.3, run_delay: 0.6, starved: 0.05, asleep: 0.02, ..compute_bound() };
    assert!(matches!(judged(&[(scene, 100)]).limit, Limit::Cpu { .. }));
}

#[test]
fn the_hypervisor_is_named_when_it_takes_the_cores() {
    let scene = Scene { compute: 0.3, run_delay: 0.5, starved: 0.1, steal_cores: 3.2, ..compute_bound() };
    assert_eq!(judged(&[(scene, 100)]).limit, Limit::Cpu { consumer: "other virtual machines".into() });
}

#[test]
fn cores_full_of_others_do_not_matter_to_one_who_waits_for_the_network() {
    let scene = Scene { others_cores: 4.0, hog: Some("cc1"), ..link_bound() };
    assert_eq!(judged(&[(scene, 100)]).limit, Limit::Host { name: "a".into() });
}

#[test]
fn a_window_that_is_passed_in_a_round_trip_is_too_small() {
    // 1 MB / 20 ms = 50 MB/s, sockets empty as behind any slow path.
    let scene = Scene { mb_per_s: 48.0, held_mb: 1.0, exhausted: 0.98, ..link_bound() };
    assert_eq!(judged(&[(scene, 100)]).limit, Limit::Window);
}

#[test]
fn our_own_rate_limit_is_named_however_it_is_kept() {
    let scene = Scene { throttled: 0.8, empty: 0.15, ..link_bound() };
    assert_eq!(judged(&[(scene, 100)]).limit, Limit::RateLimit);
    let scene = Scene { mb_per_s: 9.8, rate_limit: 10_000_000, ..link_bound() };
    assert_eq!(judged(&[(scene, 100)]).limit, Limit::RateLimit);
}

#[test]
fn a_sender_learns_whether_receiver_buffer_or_path_held_it_up() {
    let sending = |receiver_limited_us, buffer_limited_us| SendReading {
        busy_us: 95_000,
        receiver_limited_us,
        buffer_limited_us,
        ..SendReading::default()
    };
    let scene = |sending| Scene { empty: 0.0, blocked: 0.0, mb_per_s: 0.0, sending, held_mb: 0.0, ..link_bound() };
    let limit = |sending| judged(&[(scene(sending), 100)]).limit;
    assert_eq!(limit(sending(70_000, 0)), Limit::Receiver);
    assert_eq!(limit(sending(0, 60_000)), Limit::Window);
    assert_eq!(limit(sending(5_000, 5_000)), Limit::RemoteOrPath);
}

#[test]
fn a_reader_is_bound_by_its_core_or_its_disk() {
    let idle = Scene { compute: 0.0, run_delay: 0.0, starved: 1.0, asleep: 0.0, ..final_sync() };
    let reader = |name: &str, compute: f64, asleep: f64| {
        let mut judge = Judge::default();
        for number in 0..50 {
            let mut sample = sample(&Scene { sync: 0.0, device: Some(0.1), ..idle.clone() }, number);
            let compute_ns = (compute * TENTH_NS) as u64;
            let device_ns = (asleep * TENTH_NS) as u64;
            let thread = ThreadReading {
                slot: 50,
                thread_id: 50,
                owner: true,
                alive_ns: TENTH_NS as u64,
                compute_ns,
                device_ns,
                ..ThreadReading::default()
            };
            sample.stages.push(StageSample { threads: vec![thread], ..StageSample::new(name, Kind::Thread) });
            judge.push(sample);
        }
        opinion::verdict(judge.finish(), LedgerReading::default(), 0, Duration::from_secs(5))
    };
    assert_eq!(reader("local scan", 0.98, 0.01).limit, Limit::OneCore { stage: "local scan".into() });
    for name in ["local scan", "read"] {
        let verdict = reader(name, 0.2, 0.78);
        assert_eq!((verdict.limit.clone(), verdict.part.as_str()), (Limit::Disk, "disk reads"), "{verdict}");
        assert!(!verdict.reason.contains("synced"), "nothing arrives where all is sent: {verdict}");
    }
}

#[test]
fn who_receives_a_copy_is_not_held_up_by_a_flush_beside_it() {
    // Connections of a copy are threads; the third number is what they took.
    let judged = |busy: f64, course: [(f64, f64, f64); 2]| {
        let mut judge = Judge::default();
        let scene = Scene { sync: 0.0, device: Some(busy), ..final_sync() };
        for (number, (writing, syncing, mb_per_s)) in course.iter().flat_map(|one| [one; 25]).enumerate() {
            let mut sample = sample(&scene, number);
            sample.stages.retain(|stage| stage.name() != "hash");
            let bytes = (mb_per_s * 1e5) as u64;
            let thread = |slot, share: f64| ThreadReading {
                slot,
                alive_ns: TENTH_NS as u64,
                device_ns: (share * TENTH_NS) as u64,
                ..ThreadReading::default()
            };
            for (slot, name, share) in [(60, "receive", 0.0), (61, "disk write", *writing), (62, "sync", *syncing)] {
                let threads = vec![ThreadReading { bytes, ..thread(slot, share) }];
                sample.stages.push(StageSample { threads, ..StageSample::new(name, Kind::Thread) });
            }
            judge.push(sample);
        }
        opinion::verdict(judge.finish(), LedgerReading::default(), 0, Duration::from_secs(5))
    };
    let verdict = judged(0.6, [(0.1, 0.9, 50.0), (0.1, 0.9, 50.0)]);
    assert_ne!(verdict.limit, Limit::Disk, "{verdict}");
    let verdict = judged(0.6, [(0.9, 0.9, 50.0), (0.9, 0.9, 50.0)]);
    assert_eq!(verdict.limit, Limit::Disk, "the writers themselves have to wait: {verdict}");
    let verdict = judged(1.0, [(0.1, 0.9, 50.0), (0.0, 0.9, 0.0)]);
    assert_eq!(verdict.limit, Limit::Disk, "it was full all along, and others waited for it: {verdict}");
    assert!(verdict.reason.contains("the last 2."), "only synced, when nothing came any more: {verdict}");
}

#[test]
fn tiny_and_idle_runs_wait_for_answers() {
    let waiting = Scene {
        empty: 0.99,
        reads_empty: 1.0,
        mb_per_s: 0.0,
        compute: 0.0,
        starved: 1.0,
        net_compute: 0.01,
        ..link_bound()
    };
    for length in [1, 2, 3, 50] {
        let verdict = judged(&[(waiting.clone(), length)]);
        assert_eq!(verdict.limit, Limit::RoundTrips, "{length} samples");
    }
    let short = judged(&[(waiting, 1), (link_bound(), 2)]);
    assert_eq!(short.limit, Limit::RoundTrips);
    assert!(short.to_string().contains("waiting for answers (round trips)"), "{short}");
}

#[test]
fn a_host_that_all_waited_for_is_named() {
    let waited = |time_us| {
        let hosts = [("fast", 0), ("slow", time_us)].map(|(name, waited_alone_us)| HostReading {
            name: name.into(),
            waited_alone_us,
            ..HostReading::default()
        });
        let counters = LedgerReading { hosts: hosts.into(), ..LedgerReading::default() };
        opinion::verdict(Judge::default().finish(), counters, 0, Duration::from_secs(2))
    };
    let verdict = waited(1_500_000);
    assert!(verdict.to_string().contains("1.5 s waiting for slow alone"), "{verdict}");
    assert!(verdict.advice.contains("A faster host in the place of slow would help."), "{}", verdict.advice);
    for nothing in [0, 20_000] {
        assert!(!waited(nothing).to_string().contains("slow"));
    }
}

#[test]
fn a_run_without_a_single_sample_still_speaks() {
    let verdict = opinion::verdict(Judge::default().finish(), LedgerReading::default(), 0, Duration::from_millis(3));
    assert_eq!((&verdict.limit, verdict.confident), (&Limit::Mixed, false));
    assert_eq!(verdict.to_string(), "0 B in 3.0 ms. Limited by: mixed.");
    let host = HostReading { name: "a".into(), round_trip_us: 300, ..HostReading::default() };
    let asked = LedgerReading { hosts: vec![host], ..LedgerReading::default() };
    let verdict = opinion::verdict(Judge::default().finish(), asked, 0, Duration::from_millis(3));
    assert_eq!((&verdict.limit, verdict.confident, verdict.share), (&Limit::RoundTrips, false, 0.0));
    assert!(verdict.to_string().contains("waiting for answers (round trips) (round trip < 1 ms)"), "{verdict}");
}

#[test]
fn the_share_is_of_the_part_that_is_named() {
    let verdict = judged(&[(compute_bound(), 2)]);
    let largest = verdict.shares.first().expect("something was done").share;
    assert_eq!((&verdict.limit, verdict.share), (&Limit::OneCore { stage: "hash".into() }, largest));
}

#[test]
fn balanced_runs_are_mixed_and_say_so_in_shares() {
    // Network and disk by turns, a second each.
    let turns: Vec<_> = (0..10).flat_map(|_| [(link_bound(), 10), (disk_bound(), 10)]).collect();
    let verdict = judged(&turns);
    assert_eq!(verdict.limit, Limit::Mixed);
    assert!(verdict.reason.contains("network") && verdict.reason.contains("disk"), "{}", verdict.reason);
    // Both at once, neither signal strong.
    let both = Scene {
        empty: 0.5,
        blocked: 0.4,
        reads_empty: 0.6,
        asleep: 0.5,
        starved: 0.3,
        device: Some(0.8),
        local: 0.4,
        ..link_bound()
    };
    let verdict = judged(&[(both, 100)]);
    assert_eq!(verdict.limit, Limit::Mixed);
    assert!(!verdict.shares.is_empty());
    // Hash nearly as busy as the link is full.
    let hash = Scene {
        compute: 0.92,
        starved: 0.06,
        asleep: 0.0,
        empty: 0.7,
        reads_empty: 0.82,
        blocked: 0.2,
        ..link_bound()
    };
    assert_eq!(judged(&[(hash, 100)]).limit, Limit::Mixed);
}

#[test]
fn sleep_that_nobody_measured_makes_the_verdict_mixed() {
    let scene = Scene { compute: 0.1, asleep: 0.65, starved: 0.0, ..disk_bound() };
    let verdict = judged(&[(scene, 100)]);
    assert_eq!(verdict.limit, Limit::Mixed);
}

#[test]
fn the_next_limit_is_the_part_used_most_besides() {
    let verdict = judged(&[(Scene { device: Some(0.6), ..link_bound() }, 100)]);
    let next = verdict.next.expect("a disk at 60 %");
    assert_eq!(next.part, "disk");
    assert!((next.used - 0.6).abs() < 0.05, "{next:?}");
}

#[test]
fn a_verdict_survives_json() {
    let verdict = judged(&[(disk_bound(), 20)]);
    let text = serde_json::to_string(&verdict).expect("plain data");
    let back: Verdict = serde_json::from_str(&text).expect("the same data");
    assert_eq!(back.to_string(), verdict.to_string());
    assert_eq!(back.timeline.points.len(), 20);
}

fn any_scene() -> impl Strategy<Value = Scene> {
    let share = || 0.0..1.2_f64;
    (
        (share(), share(), share(), share(), 0.0..2000.0_f64),
        (share(), share(), share(), share(), share()),
        (share(), 0.0..9.0_f64, share(), prop::option::of(share()), share()),
    )
        .prop_map(
            |(
                (empty, blocked, throttled, reads_empty, mb_per_s),
                (compute, run_delay, starved, asleep, net_compute),
                (sync, others_cores, throttled_cpu, device, local),
            )| Scene {
                empty,
                blocked,
                throttled,
                reads_empty,
                mb_per_s,
                compute,
                run_delay,
                starved,
                asleep,
                net_compute,
                sync,
                others_cores,
                throttled_cpu,
                device,
                local: local.min(1.0),
                ..link_bound()
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_was_sampled_shares_are_shares_and_a_named_part_has_most(scenes in prop::collection::vec((any_scene(), 1..12_usize), 0..6)) {
        let verdict = judged(&scenes);
        let sum: f64 = verdict.shares.iter().map(|share| share.share).sum();
        prop_assert!(sum <= 1.01, "{:?}", verdict.shares);
        prop_assert!(verdict.shares.iter().all(|share| (0.0..=1.01).contains(&share.share)));
        match verdict.limit {
            Limit::Mixed | Limit::RemoteOrPath => prop_assert!(!verdict.confident),
            Limit::RoundTrips => prop_assert_eq!(verdict.confident, verdict.share >= 0.6),
            _ => prop_assert!(verdict.confident),
        }
        prop_assert!(!verdict.to_string().contains("NaN"));
        prop_assert!(serde_json::to_string(&verdict).is_ok());
    }
}
