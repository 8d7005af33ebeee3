//! Uploads to and downloads from servers that misbehave: each ends on other servers, or in an error that
//! names servers and counts, and leaves nothing half-done behind.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "oracle/client.rs"]
mod client;
#[path = "grid_faults/flight.rs"]
mod flight;
#[path = "grid_faults/mutable.rs"]
mod mutable;
#[path = "grid_faults/server.rs"]
mod server;
#[path = "grid_faults/world.rs"]
mod world;

use fullbore_lafs::{Chk, Encoding, Geometry, GetError, convergent_key, storage_index};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fullbore_lafs::upload::journal::Journal;
use fullbore_lafs::upload::produce::SourceError;
use fullbore_lafs::upload::{KeyChoice, PutError, Stored};

use server::{Fault, GbsServer};
use world::{LONG, SECRET, SEGMENT_BYTES, SHORT, World, chk, content, known_shares, process};

/// Five servers of which one has a fault.
fn one_of_five(fault: Fault) -> [Fault; 5] {
    [Fault::None, Fault::None, fault, Fault::None, Fault::None]
}

/// Puts a file of a megabyte, which needs four of five servers, one of which has this fault.
async fn put_past(fault: Fault, patience: Duration) -> (World, Stored) {
    let world = World::new(&one_of_five(fault), patience).await;
    let data = content(1_000_000);
    let stored = world.put(&data, [3, 4, 5], None).await.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
    assert!(stored.happiness >= 4, "{fault:?}");
    assert_eq!(world.complete(), 5, "{fault:?}: every share is somewhere");
    let (got, result) = world.get(&chk(&stored)).await;
    assert!(got == data, "{fault:?}: {result:?}");
    (world, stored)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_is_refused_goes_elsewhere() {
    for status in [401, 404, 409, 500] {
        for from in [0, 200_000] {
            let (world, stored) = put_past(Fault::Write { from, status }, LONG).await;
            let told = stored.troubles.join("\n");
            assert!(told.contains("s2 (") && told.contains(&status.to_string()), "{status}: {told}");
            assert_eq!(world.incomplete(), 0, "{status}: what was begun is aborted");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_is_gone_round() {
    let (_, stored) = put_past(Fault::Full, LONG).await;
    assert!(stored.troubles.join("\n").contains("s2 ("), "{:?}", stored.troubles);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_loses_bytes_is_found_out() {
    let (world, stored) = put_past(Fault::Forgets { from: 200_000 }, LONG).await;
    assert!(stored.troubles.join("\n").contains("missing"), "{:?}", stored.troubles);
    assert_eq!(world.incomplete(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_dies_or_stalls_under_way_is_given_up() {
    for from in [0, 200_000] {
        let (_, stored) = put_past(Fault::Dies { from }, SHORT).await;
        assert!(stored.troubles.join("\n").contains("s2 ("), "{:?}", stored.troubles);
        for fault in [Fault::Stalls { from }, Fault::Drips { from }] {
            let put = tokio::time::timeout(LONG, put_past(fault, SHORT)).await;
            let (_, stored) = put.unwrap_or_else(|_| panic!("{fault:?}: no end"));
            assert!(stored.troubles.join("\n").contains("stalled"), "{fault:?}: {:?}", stored.troubles);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_takes_connections_and_says_nothing_is_tried_once() {
    let (world, stored) = put_past(Fault::Mute, SHORT).await;
    assert!(stored.troubles.join("\n").contains("TLS"), "{:?}", stored.troubles);
    assert_eq!(world.servers[2].state().connections, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn happiness_that_is_lost_late_is_an_error_with_counts() {
    let world = World::new(&one_of_five(Fault::Dies { from: 300_000 }), SHORT).await;
    let error = world.put(&content(1_000_000), [3, 5, 5], None).await.unwrap_err();
    let PutError::Unhappy { happy: 5, troubles, .. } = &error else { panic!("{error}") };
    assert!(error.to_string().contains("5 are needed (happy)"), "{error}");
    assert!(troubles.iter().any(|trouble| trouble.contains("s2 (")), "{troubles:?}");
    let alive = world.servers.iter().enumerate().filter(|(number, _)| *number != 2);
    assert_eq!(alive.map(|(_, server)| server.state().incomplete()).sum::<usize>(), 0, "all others are aborted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_gets_no_cap_before_it_can_be_read() {
    // Happiness of one is reached by any share: large shares, and small ones that go out with the question.
    for size in [1_000_000, 1000] {
        let world = World::new(&[Fault::Takes { below: 2 }], LONG).await;
        let error = world.put(&content(size), [3, 1, 10], None).await.unwrap_err();
        let PutError::Unreadable { found: 2, needed: 3, failed: 1, troubles, .. } = &error else { panic!("{error}") };
        assert!(troubles[0].contains("accepts no share"), "{troubles:?}");
        assert_eq!(world.incomplete(), 0, "what was begun is aborted");
    }
    let world = World::new(&[Fault::Takes { below: 3 }], LONG).await;
    let stored = world.put(&content(1_000_000), [3, 1, 10], None).await.unwrap();
    assert_eq!(world.get(&chk(&stored)).await.0, content(1_000_000), "three are enough");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pass_that_ends_while_memory_is_full_ends() {
    let mut servers = Vec::new();
    for _ in 0..5 {
        servers.push(GbsServer::start(Fault::None).await);
    }
    // Nobody listens there, nor will: a port that was free a moment ago may go to a server of another test.
    let port = 1;
    let pin = servers[2].nurl.split_once('@').unwrap().0.to_owned();
    servers[2].nurl = format!("{pin}@127.0.0.1:{port}/swissnum#v=1");
    let world = World::of(servers, LONG);
    // More than the window takes, so that it is full of what the missing server should have.
    let data = content(24_000_000);
    let put = tokio::time::timeout(LONG / 2, world.put(&data, [3, 5, 5], None));
    let error = put.await.expect("the pass ends").unwrap_err();
    assert!(matches!(error, PutError::Unhappy { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_that_is_held_up_can_be_interrupted() {
    let world = World::new(&one_of_five(Fault::Stalls { from: 0 }), LONG).await;
    let interrupt = async {
        let written = || world.servers.iter().map(|server| server.state().writes.len()).sum::<usize>();
        let mut before = 0;
        while before == 0 || written() > before {
            before = written();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        world.stop.send(true).unwrap();
    };
    let data = content(24_000_000);
    let both = async { tokio::join!(world.put(&data, [3, 5, 5], None), interrupt).0 };
    let error = tokio::time::timeout(LONG / 2, both).await.expect("the run ends").unwrap_err();
    assert!(matches!(error, PutError::Interrupted), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_was_closed_for_idleness_is_opened_again() {
    let world = World::new(&[Fault::ClosesIdle(Duration::from_millis(300)); 5], LONG).await;
    let first = world.put(&content(100_000), [3, 5, 5], None).await.unwrap();
    tokio::time::sleep(Duration::from_millis(700)).await;
    let second = world.put(&content(100_001), [3, 5, 5], None).await.unwrap();
    assert!(first.troubles.is_empty() && second.troubles.is_empty(), "{:?}", second.troubles);
    assert!(world.servers.iter().all(|server| server.state().connections >= 2));
    assert_eq!(world.get(&chk(&second)).await.0, content(100_001));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_connection_costs_no_more_than_what_was_under_way() {
    let (world, stored) = put_past(Fault::BreaksOnce { from: 200_000 }, LONG).await;
    assert!(stored.troubles.is_empty(), "{:?}", stored.troubles);
    let state = world.servers[2].state();
    assert!(state.connections >= 2);
    // What was acknowledged before the break is written once.
    let first = state.writes.iter().filter(|(_, from, _)| *from == 0).count();
    assert!(first <= 2, "the beginning was answered: {:?}", state.writes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_share_that_a_restarted_server_forgot_goes_elsewhere() {
    // The last write of the share is the one that is not answered, and is repeated.
    let (world, stored) = put_past(Fault::Restarts { from: 300_000 }, LONG).await;
    assert!(stored.troubles.join("\n").contains("s2 ("), "{:?}", stored.troubles);
    assert_eq!(world.incomplete(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_connections_carry_a_file_and_losing_them_loses_nothing() {
    for fault in [Fault::None, Fault::BreaksOnce { from: 100_000 }, Fault::OneConnection] {
        let world = World::new(&one_of_five(fault), LONG).await;
        // As in a run, the first connections are there before the further ones begin.
        world.put(&content(200), [3, 5, 5], None).await.unwrap();
        let before: usize = world.servers.iter().map(|server| server.state().connections).sum();
        (0..5).for_each(|server| world.grid.link(server).widen(3));
        let data = content(3_000_000);
        let stored = world.put(&data, [3, 5, 5], None).await.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        assert_eq!((stored.happiness, world.complete(), world.incomplete()), (5, 10, 0), "{fault:?}");
        assert!(stored.troubles.is_empty(), "{fault:?}: {:?}", stored.troubles);
        let after: usize = world.servers.iter().map(|server| server.state().connections).sum();
        assert!(after > before, "{fault:?}");
        let (got, result) = world.get(&chk(&stored)).await;
        assert!(got == data, "{fault:?}: {result:?}");
        assert!(result.unwrap().troubles.is_empty(), "{fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_is_read_to_its_end_although_the_connection_ends_with_it() {
    let (world, cap, data) = with_file(300_000, 1 << 20).await;
    world.servers.iter().for_each(|server| server.state().fault = Fault::ClosesAfterReads);
    let (got, result) = world.get(&cap).await;
    assert!(got == data, "{result:?}");
    assert!(result.unwrap().troubles.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_that_failed_goes_on_where_servers_stand() {
    let journals = tempfile::tempdir().unwrap();
    let journal = || Some(Journal::open(journals.path()).unwrap());
    let data = content(24_000_000);
    let servers = World::new(&[Fault::Dies { from: 6_500_000 }; 5], SHORT).await.servers;
    let (world, process) = (World::of(servers.clone(), SHORT), process());
    let (content, first) = (data.clone(), journal());
    let put = process.spawn(async move { world.put(&content, [3, 5, 5], first).await });
    let error = put.await.unwrap().unwrap_err();
    assert!(matches!(error, PutError::Unhappy { .. }), "{error}");
    process.shutdown_background();
    let world = World::of(servers, LONG);
    // A server that had not died when happiness was lost was told to give its share up.
    let aborted = |share: u16| {
        let path = format!("/{share}/abort");
        world.servers.iter().any(|server| server.state().log.iter().any(|line| line.ends_with(&path)))
    };
    let known = known_shares(journals.path(), &data);
    let there: u64 = known.iter().filter(|known| !aborted(known.share)).map(|known| known.acknowledged).sum();
    assert!(there > 0 || (0..5).any(aborted), "{known:?}");
    for server in &world.servers {
        server.state().fault = Fault::None;
        server.state().writes.clear();
    }
    let stored = world.put(&data, [3, 5, 5], journal()).await.unwrap();
    let sent: u64 = world.servers.iter().flat_map(|s| s.state().writes.clone()).map(|(_, from, to)| to - from).sum();
    let all: u64 = world
        .servers
        .iter()
        .flat_map(|s| s.state().shares.values().map(|s| s.bytes.len() as u64).collect::<Vec<_>>())
        .sum();
    assert!(sent <= all - there, "{sent} bytes of {all} were sent although {there} were there");
    assert_eq!(world.get(&chk(&stored)).await.0, data);
    assert_eq!(world.incomplete(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_random_key_is_for_one_content() {
    let journals = tempfile::tempdir().unwrap();
    let journal = || Some(Journal::open(journals.path()).unwrap());
    let mut data = content(24_000_000);
    let mut world = World::new(&[Fault::Dies { from: 6_500_000 }; 5], SHORT).await;
    world.key = KeyChoice::Random;
    world.put(&data, [3, 5, 5], journal()).await.unwrap_err();
    let key = journal().unwrap().random_key("one").expect("it is kept, to go on with");
    world.servers.iter().for_each(|server| server.state().fault = Fault::None);
    let mut world = World::of(world.servers.clone(), LONG);
    world.key = KeyChoice::Random;
    data[0] ^= 1;
    let error = world.put(&data, [3, 5, 5], journal()).await.unwrap_err();
    assert!(matches!(error, PutError::Source(SourceError::Changed)), "{error}");
    let stored = world.put(&data, [3, 5, 5], journal()).await.unwrap();
    assert_ne!(chk(&stored).key, key);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cap_by_chance_that_nobody_was_told_is_known_to_the_next_run() {
    let journals = tempfile::tempdir().unwrap();
    let journal = || Journal::open(journals.path()).unwrap();
    let mut world = World::new(&[Fault::None; 5], LONG).await;
    world.key = KeyChoice::Random;
    let data = content(300_000);
    let put = |journal| world.put(&data, [3, 5, 5], Some(journal));
    let first = put(journal()).await.unwrap();
    let again = journal();
    assert!(put(Arc::clone(&again)).await.unwrap().cap == first.cap);
    assert_eq!(world.complete(), 5, "nothing was sent for it");
    again.all_told();
    drop(again);
    assert!(put(journal()).await.unwrap().cap != first.cap, "a key of its own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_that_a_killed_run_left_is_taken_up_although_nothing_is_there() {
    let journals = tempfile::tempdir().unwrap();
    let journal = || Some(Journal::open(journals.path()).unwrap());
    let data = content(300_000);
    // No write is ever answered: all that remains is a place on each server, under a secret.
    let world = World::new(&[Fault::Dies { from: 0 }; 5], SHORT).await;
    world.put(&data, [3, 5, 5], journal()).await.unwrap_err();
    assert!(world.incomplete() > 0, "asked for, and nothing written");
    world.servers.iter().for_each(|server| server.state().fault = Fault::None);
    let world = World::of(world.servers.clone(), LONG);
    let begun = Instant::now();
    let stored = world.put(&data, [3, 5, 5], journal()).await.unwrap();
    assert!(begun.elapsed() < LONG / 2, "nobody waited for another upload of it");
    assert_eq!((world.complete(), world.incomplete()), (5, 0));
    assert_eq!(world.get(&chk(&stored)).await.0, data);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_upload_on_a_slow_link_releases_or_records_its_shares() {
    let journals = tempfile::tempdir().unwrap();
    let journal = || Some(Journal::open(journals.path()).unwrap());
    let data = content(20_000_000);
    let servers = World::new(&[Fault::None; 5], LONG).await.servers;
    let process = process();
    let world = World::limited(servers.clone(), LONG, Some(50_000));
    let (stop, content, first) = (world.stop.clone(), data.clone(), journal());
    let put = process.spawn(async move { world.put(&content, [3, 5, 5], first).await });
    let world = World::of(servers, LONG);
    while world.incomplete() < 5 {
        assert!(!put.is_finished());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    stop.send(true).unwrap();
    let error = tokio::time::timeout(LONG / 2, put).await.expect("the run ends").unwrap().unwrap_err();
    assert!(matches!(error, PutError::Interrupted), "{error}");
    process.shutdown_background();
    let stored = tokio::time::timeout(LONG, world.put(&data, [3, 5, 5], journal())).await.expect("places are free");
    assert_eq!((stored.unwrap().happiness, world.complete(), world.incomplete()), (5, 5, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shares_on_servers_that_get_none_are_found() {
    let servers = World::new(&[Fault::None; 8], LONG).await.servers;
    let data = content(3_000_000);
    let geometry = Geometry::new(Encoding::new(3, 5, 5).unwrap(), data.len() as u64, SEGMENT_BYTES).unwrap();
    let index = storage_index(&convergent_key(&geometry, SECRET, &data));
    // It was put when only the last five of its order were there.
    let order = World::of(servers.clone(), LONG).grid.order(&index);
    let of_old = World::named(order[3..].iter().map(|&number| (number, servers[number].clone())), LONG, None);
    let first = of_old.put(&data, [3, 5, 5], None).await.unwrap();
    assert_eq!(of_old.complete(), 5);
    // It is heard of late, when all shares are on their way, and long before they are there.
    order[5..].iter().for_each(|&number| servers[number].state().fault = Fault::Delays(Duration::from_secs(2)));
    let world = World::limited(servers, LONG, Some(200_000));
    let stored = world.put(&data, [3, 5, 5], None).await.unwrap();
    assert!(stored.cap == first.cap);
    assert_eq!((stored.happiness, world.complete(), world.incomplete()), (5, 5, 0), "no second copies");
    // Of the five that are asked again two have other shares, whose new ones go elsewhere, once.
    let questions: usize = world.servers.iter().map(GbsServer::asked_for_room).sum();
    assert_eq!(questions, 5 + 5 + 2, "each share is asked for once, and once more where it is better");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_files_of_a_run_are_put_once() {
    let servers = World::new(&[Fault::None; 5], LONG).await.servers;
    // So slow that all of them are asked for while the first is on its way.
    let world = World::limited(servers, LONG, Some(2_000_000));
    let (uploader, data) = (world.uploader(None), content(1_000_000));
    let put = || world.put_by(&uploader, &data, [3, 5, 5]);
    let (a, b, c) = tokio::join!(put(), put(), put());
    let (a, b, c) = (a.unwrap(), b.unwrap(), c.unwrap());
    assert!(a.cap == b.cap && b.cap == c.cap);
    assert_eq!([a.happiness, b.happiness, c.happiness], [5; 3]);
    assert_eq!((world.complete(), world.incomplete()), (5, 0));
    let asked: usize = world.servers.iter().map(|server| server.asked_for_room()).sum();
    assert_eq!(asked, 5, "each server once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_uploaders_of_one_file_help_each_other() {
    let one = World::new(&[Fault::None; 5], LONG).await;
    let other = World::of(one.servers.clone(), LONG);
    let data = content(3_000_000);
    let (a, b) = tokio::join!(one.put(&data, [3, 5, 5], None), other.put(&data, [3, 5, 5], None));
    let (a, b) = (a.unwrap(), b.unwrap());
    assert_eq!(a.cap.to_text(), b.cap.to_text());
    // A share that both had asked for on different servers is there twice.
    assert!(one.complete() >= 5, "{}", one.complete());
    assert_eq!(one.incomplete(), 0);
    assert_eq!(one.get(&chk(&a)).await.0, data);
}

/// Ten servers with a file.
async fn with_file(size: usize, segment_max: u64) -> (World, Chk, Vec<u8>) {
    let mut world = World::new(&[Fault::None; 10], LONG).await;
    world.segment_max = segment_max;
    let data = content(size);
    let stored = world.put(&data, [3, 7, 10], None).await.unwrap();
    (world, chk(&stored), data)
}

/// The server that has this share.
fn holder(world: &World, share: u16) -> &GbsServer {
    world.servers.iter().find(|server| server.state().shares.keys().any(|(_, number)| *number == share)).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_is_read_past_servers_that_do_not_answer() {
    for (size, segment_max) in [(200, 1 << 20), (1_000_000, 1 << 20), (1_000_000, 100_000), (9_000_000, 1 << 20)] {
        let (world, cap, data) = with_file(size, segment_max).await;
        for fault in [Fault::SilentReads, Fault::DripsReads] {
            for share in [0, 4] {
                holder(&world, share).state().fault = fault;
            }
            for world in [World::of(world.servers.clone(), LONG), World::near(world.servers.clone(), LONG)] {
                let begun = Instant::now();
                let (got, result) = world.get(&cap).await;
                assert!(got == data, "{fault:?}, {size}: {result:?}");
                // Others were asked before patience ended.
                assert!(begun.elapsed() < LONG / 2, "{fault:?}, {size}: {:?}", begun.elapsed());
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_shares_are_named_and_replaced() {
    for (size, segment_max) in [(200, 1 << 20), (1_000_000, 1 << 20), (1_000_000, 100_000), (9_000_000, 1 << 20)] {
        let (world, cap, data) = with_file(size, segment_max).await;
        let mut damaged = Vec::new();
        for share in [0, 1, 2, 7] {
            let server = holder(&world, share);
            for ((_, number), share) in &mut server.state().shares {
                // So often that whatever is read of it is damaged.
                for at in (100..share.bytes.len()).step_by(10_000) {
                    share.bytes[at] ^= 1;
                }
                damaged.push(format!("share {number} on "));
            }
        }
        for world in [World::of(world.servers.clone(), LONG), World::near(world.servers, LONG)] {
            let (got, result) = world.get(&cap).await;
            assert!(got == data, "{size}: {result:?}");
            let troubles = result.unwrap().troubles;
            assert!(!troubles.is_empty(), "{size}");
            for trouble in &troubles {
                assert!(damaged.iter().any(|prefix| trouble.starts_with(prefix)), "{size}: {trouble}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_few_good_shares_are_counted() {
    let (world, cap, _) = with_file(1_000_000, 1 << 20).await;
    for share in 2..10 {
        holder(&world, share).state().shares.clear();
    }
    let error = world.get(&cap).await.1.unwrap_err();
    assert_eq!(error.to_string(), "2 of the 3 shares that are needed were found; 10 servers were asked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_another_key_is_not_spoken_to() {
    let mut servers = Vec::new();
    for _ in 0..5 {
        servers.push(GbsServer::start(Fault::None).await);
    }
    let (_, address) = servers[3].nurl.split_once('@').unwrap();
    servers[3].nurl = format!("pb://{}@{address}", URL_SAFE_NO_PAD.encode([7; 32]));
    let world = World::of(servers, LONG);
    let stored = world.put(&content(300_000), [3, 4, 5], None).await.unwrap();
    assert!(stored.troubles.join("\n").contains("the certificate is not the one in the NURL"), "{:?}", stored.troubles);
    assert!(world.servers[3].state().log.is_empty(), "not even asked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_is_told_from_shares_that_are_missing() {
    for (size, segment_max) in [(200, 1 << 20), (1_000_000, 100_000)] {
        for is_damage in [true, false] {
            let (world, cap, _) = with_file(size, segment_max).await;
            for server in &world.servers[2..] {
                let mut state = server.state();
                match is_damage {
                    true => {
                        state.shares.values_mut().for_each(|share| share.bytes.iter_mut().for_each(|byte| *byte ^= 1))
                    }
                    false => state.shares.clear(),
                }
            }
            let GetError::TooFewShares(few) = world.get(&cap).await.1.unwrap_err() else { panic!("{size}") };
            assert_eq!((few.is_damage(), few.found), (is_damage, 2), "{size}: {few:?}");
        }
    }
}
