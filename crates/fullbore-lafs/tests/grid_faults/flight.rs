//! What is on its way at once, and what a run says that limited it; and shares in the layout for huge files.

use fullbore_lafs::{Cap, Chk};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fullbore_engine::run::report::VerdictReport;
use fullbore_lafs::base32;
use fullbore_lafs::verdict::{Facts, judge};
use rustls::NamedGroup;
use serde_json::json;
use tokio::task::JoinSet;

use crate::client::Oracle;
use crate::server::{Fault, StoredShare};
use crate::world::{LONG, SECRET, World, chk, content};

const FILES: usize = 10;

/// Puts ten small files at once.
async fn put_small(world: &Arc<World>) {
    let uploader = Arc::new(world.uploader(None));
    let mut puts = JoinSet::new();
    for number in 0..FILES {
        let (world, uploader) = (Arc::clone(world), Arc::clone(&uploader));
        puts.spawn(async move { world.put_by(&uploader, &content(200 + number), [3, 5, 5]).await });
    }
    while let Some(stored) = puts.join_next().await {
        assert_eq!(stored.unwrap().unwrap().happiness, 5);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_files_cost_one_round_trip_or_three_with_the_handshakes() {
    // The question for room and the write of each file: no answer comes before all of them are there.
    let all = Fault::Holds { requests: 2 * FILES };
    let cold = Arc::new(World::new(&[all; 5], LONG).await);
    put_small(&cold).await;
    let warm = Arc::new(World::new(&[Fault::None; 5], LONG).await);
    warm.put(&content(1000), [3, 5, 5], None).await.unwrap();
    warm.servers.iter().for_each(|server| server.state().fault = all);
    put_small(&warm).await;
    for world in [cold, warm] {
        assert!(world.servers.iter().all(|server| server.state().connections == 1));
        // Its first flight is a fifth of that of the hybrid, and nobody asks for that.
        assert!(world.servers.iter().all(|server| server.state().key_exchange == Some(NamedGroup::X25519)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_files_are_asked_for_in_one_flight() {
    let world = Arc::new(World::new(&[Fault::None], LONG).await);
    let mut caps = Vec::new();
    for number in 0..FILES {
        caps.push(chk(&world.put(&content(200 + number), [1, 1, 1], None).await.unwrap()));
    }
    // A share of each file.
    world.servers[0].state().fault = Fault::Holds { requests: FILES };
    let downloader = Arc::new(world.downloader());
    let mut gets = JoinSet::new();
    for (number, cap) in caps.into_iter().enumerate() {
        let (world, downloader) = (Arc::clone(&world), Arc::clone(&downloader));
        gets.spawn(async move {
            let (got, result) = world.get_by(&downloader, &cap).await;
            assert!(got == content(200 + number), "{result:?}");
        });
    }
    while let Some(got) = gets.join_next().await {
        got.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_file_is_read_from_no_more_servers_than_it_needs() {
    for (size, segment_max) in [(200, 1 << 20), (1_000_000, 1 << 20), (1_000_000, 100_000)] {
        let mut put = World::new(&[Fault::None; 10], LONG).await;
        put.segment_max = segment_max;
        let cap = chk(&put.put(&content(size), [3, 7, 10], None).await.unwrap());
        let asked = |world: &World| world.servers.iter().filter(|server| !server.state().log.is_empty()).count();
        let forget = |world: &World| world.servers.iter().for_each(|server| server.state().log.clear());
        forget(&put);
        let world = if size == 200 { World::of(put.servers, LONG) } else { World::near(put.servers, LONG) };
        let begun = Instant::now();
        let (got, result) = world.get(&cap).await;
        assert!(got == content(size), "{result:?}");
        // On a busy machine a server may be silent for a second, after which all are asked.
        let late = begun.elapsed() >= Duration::from_secs(1);
        assert!(asked(&world) == 3 || late, "{} servers were asked", asked(&world));
        // Its first share is elsewhere, and others of those that were not asked for are gone.
        let order = world.grid.order(&cap.storage_index());
        let share = std::mem::take(&mut world.servers[order[0]].state().shares);
        world.servers[order[9]].state().shares = share;
        order[3..9].iter().for_each(|&server| world.servers[server].state().shares.clear());
        forget(&world);
        let (got, result) = world.get(&cap).await;
        assert!(got == content(size), "{result:?}");
        assert_eq!((asked(&world), result.unwrap().troubles), (10, Vec::new()));
    }
}

fn verdict(world: &World, begun: Instant, rate_limit: Option<u64>) -> VerdictReport {
    let (wall, servers) = (begun.elapsed(), world.grid.readings());
    judge(&Facts { wall, cores: 2, threads: 2, servers, rate_limit, ..Facts::default() })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_server_is_named() {
    // Long beside what a busy machine takes for the handshakes and for the others.
    let delays = Fault::Delays(Duration::from_millis(150));
    let world = Arc::new(World::new(&crate::one_of_five(delays), LONG).await);
    let begun = Instant::now();
    put_small(&world).await;
    let verdict = verdict(&world, begun, None);
    let limit = &verdict.limit;
    assert!(limit.starts_with("server s2 (") && limit.ends_with("(server latency)"), "{verdict:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_take_their_time_for_each_answer_do_not_stall() {
    // All that they are asked arrives at once, and their last answer comes after three times the time limit.
    let delays = Fault::Delays(Duration::from_millis(750));
    put_small(&Arc::new(World::new(&[delays; 5], Duration::from_secs(5)).await)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_over_several_servers_is_named() {
    let rate = 100_000;
    let servers = World::new(&[Fault::None; 5], LONG).await.servers;
    let world = World::limited(servers, LONG, Some(rate));
    // The handshakes are no part of it: on a busy machine they take their time.
    world.put(&content(100), [3, 5, 5], None).await.unwrap();
    let begun = Instant::now();
    world.put(&content(200_000), [3, 5, 5], None).await.unwrap();
    let verdict = verdict(&world, begun, Some(rate));
    assert_eq!(verdict.limit, "the rate limit", "{verdict:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_holds_for_all_servers_from_the_first_byte_to_the_last() {
    let rate = 200_000;
    let servers = World::new(&[Fault::None; 10], LONG).await.servers;
    let world = World::limited(servers, LONG, Some(rate));
    let begun = Instant::now();
    let stored = world.put(&content(100_000), [3, 10, 10], None).await.unwrap();
    // A burst, a tenth of a second, is free, and the last write is not waited for, which is no longer.
    let due = Duration::from_secs_f64(stored.sent_bytes as f64 / rate as f64);
    assert!(begun.elapsed() > due.mul_f64(0.75), "{:?} of {due:?}", begun.elapsed());
}

/// A file, 3 of 10 in segments of 128 KiB, and its shares by the stock encoder.
fn stock_file(size: usize, is_huge: bool) -> (Chk, Vec<u8>, Vec<Vec<u8>>) {
    let directory = tempfile::tempdir().unwrap();
    let (file, data) = (directory.path().join("file"), content(size));
    std::fs::write(&file, &data).unwrap();
    let secret: String = SECRET.iter().map(|byte| format!("{byte:02x}")).collect();
    let answer = Oracle::start().ask(&json!({
        "file": file, "k": 3, "n": 10, "segment": 128 << 10, "secret": secret, "v2": is_huge, "out": directory.path(),
    }));
    let Cap::Chk(cap) = Cap::parse(answer["cap"].as_str().unwrap()).unwrap() else { panic!("{answer}") };
    let share = |number: usize| std::fs::read(directory.path().join(number.to_string())).unwrap();
    (cap, data, (0..10).map(share).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shares_in_the_layout_for_huge_files_are_proven_and_read() {
    let (cap, data, shares) = stock_file(500_000, true);
    let world = World::new(&[Fault::None; 10], LONG).await;
    let name = base32::encode(&cap.storage_index());
    let order = world.grid.order(&cap.storage_index());
    for (number, &server) in order.iter().enumerate() {
        let bytes = shares[number].clone();
        assert_eq!(bytes[..4], [0, 0, 0, 2], "version 2");
        world.servers[server].state().shares.insert((name.clone(), number as u16), StoredShare::whole(bytes));
    }
    let (got, result) = world.get(&cap).await;
    assert!(got == data, "{result:?}");
    assert!(result.unwrap().troubles.is_empty());
    // In each block of all but three, whichever are read first.
    for &server in &order[..7] {
        for share in world.servers[server].state().shares.values_mut() {
            (100..160_000).step_by(10_000).for_each(|at| share.bytes[at] ^= 1);
        }
    }
    let (got, result) = world.get(&cap).await;
    assert!(got == data, "{result:?}");
    let troubles = result.unwrap().troubles;
    let is_named = |trouble: &String| (0..7).any(|share| trouble.starts_with(&format!("share {share} on ")));
    assert!(!troubles.is_empty() && troubles.iter().all(is_named), "{troubles:?}");
}

/// Genuine shares, but for a byte before their blocks, which their headers tell: proven first, they must not make those of
/// others be read a byte too late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shares_that_have_their_blocks_elsewhere_do_not_spoil_the_others() {
    for size in [500_000, 8_000_000] {
        let (cap, data, shares) = stock_file(size, false);
        let world = World::new(&[Fault::None; 10], LONG).await;
        let name = base32::encode(&cap.storage_index());
        let order = world.grid.order(&cap.storage_index());
        for (number, &server) in order.iter().enumerate() {
            let mut bytes = shares[number].clone();
            if number < 2 {
                for offset in (12..36).step_by(4) {
                    let field: &mut [u8; 4] = (&mut bytes[offset..offset + 4]).try_into().unwrap();
                    *field = (u32::from_be_bytes(*field) + 1).to_be_bytes();
                }
                bytes.insert(36, 7);
            }
            world.servers[server].state().shares.insert((name.clone(), number as u16), StoredShare::whole(bytes));
        }
        let (got, result) = world.get(&cap).await;
        assert!(got == data, "{size}: {result:?}");
    }
}
