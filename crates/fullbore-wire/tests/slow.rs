//! Mirrors that are slow, fall silent, die, or ask for patience.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::*;
use fullbore_testkit::server::{Fault, FaultRule, Life, PathMatch, Server};
use fullbore_wire::fetch::{FetchOptions, Get};

fn files() -> Tree {
    let mut sizes = vec![8 * MIB, 6 * MIB, 6 * MIB];
    sizes.extend((0..40).map(|n| 3000 + n * 1009));
    Tree::of(&sizes)
}

/// Beside a good host of 20 MiB/s, so that both have something to do for a second.
fn beside(tree: &Tree, other: &Server, excess: f64) -> Ran {
    let good = tree.slow(20 * MIB);
    let ran = all_arrives(tree, &[other, &good]);
    assert!(ran.excess(tree) <= excess, "{} {ran:#?}", ran.excess(tree));
    ran
}

#[test]
fn answers_that_stall_half_way_are_taken_over() {
    let tree = files();
    beside(&tree, &tree.faulty(Fault::Stall), 1.05);
}

#[test]
fn a_host_that_never_answers_costs_few_bytes() {
    let tree = files();
    beside(&tree, &tree.faulty(Fault::Hang), 1.05);
}

#[test]
fn a_host_of_one_byte_per_second_costs_few_bytes() {
    let tree = files();
    beside(&tree, &tree.faulty(Fault::Drip(1)), 1.05);
}

#[test]
fn a_host_of_22_kilobytes_per_second_costs_few_bytes() {
    let tree = files();
    // Its half would take it minutes.
    beside(&tree, &tree.slow(22_000), 1.05);
}

#[test]
fn a_host_that_falls_silent_costs_few_bytes() {
    let tree = files();
    let dies = tree.server().behaviour(|own| {
        own.rate_bytes_per_s = Some(20 * MIB);
        own.die_after_bytes = Some(4 * MIB);
        own.death = Life::Silent;
    });
    beside(&tree, &dies.start().unwrap(), 1.05);
}

#[test]
fn a_host_that_dies_costs_few_bytes() {
    let tree = files();
    let dies = tree.server().behaviour(|own| {
        own.rate_bytes_per_s = Some(20 * MIB);
        own.die_after_bytes = Some(4 * MIB);
    });
    beside(&tree, &dies.start().unwrap(), 1.05);
}

#[test]
fn a_host_that_refuses_from_the_start_costs_few_bytes() {
    let tree = files();
    let dead = tree.good();
    dead.live(Life::Refusing);
    beside(&tree, &dead, 1.03);
}

#[test]
fn a_host_that_is_down_for_a_second_is_used_again() {
    let tree = Tree::of(&[8 * MIB]);
    let server = tree.slow(8 * MIB);
    let url = server.url();
    let stopper = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        server.live(Life::Refusing);
        std::thread::sleep(Duration::from_millis(1000));
        server.live(Life::Alive);
        server
    });
    let mut client = Setup::default().client(&[url]);
    let ran = client.fetch(&tree);
    ran.all_verified(&tree);
    client.check(&tree);
    assert!(ran.excess(&tree) < 1.05, "{ran:#?}");
    drop(stopper.join());
}

#[test]
fn everything_is_given_up_when_all_hosts_are_dead() {
    let tree = files();
    let (a, b) = (tree.good(), tree.good());
    a.live(Life::Refusing);
    b.live(Life::Refusing);
    let mut client = Client::new(&[&a, &b]);
    let ran = client.fetch(&tree);
    assert_eq!(ran.given_up.len(), tree.files.len());
    assert!(ran.given_up.iter().all(|file| !file.missing));
    assert!(ran.took < Duration::from_secs(15), "{:?}", ran.took);
}

#[test]
fn a_host_that_closes_without_an_answer_is_given_up() {
    // Progress, or out: here there is none.
    let tree = Tree::of(&[1000]);
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = std::io::Read::read(&mut stream, &mut [0; 4096]);
        }
    });
    let mut client = Setup::default().client(&[url]);
    let ran = client.fetch(&tree);
    assert_eq!(ran.given_up.len(), 1);
    assert!(ran.hosts[0].totals.connections < 20, "{ran:#?}");
}

#[test]
fn retry_after_is_kept() {
    let tree = Tree::of(&[50_000, 60_000]);
    let server = tree.server();
    let server = server.fault(FaultRule::once(PathMatch::Any, Fault::RetryAfter { status: 429, seconds: 1 }));
    let server = server.start().unwrap();
    let mut client = Client::new(&[&server]);
    let ran = client.fetch(&tree);
    ran.all_verified(&tree);
    client.check(&tree);
    assert!(ran.took.as_millis() >= 1000, "{ran:#?}");
    assert!(ran.hosts[0].out.is_none());
}

#[test]
fn a_busy_host_beside_a_good_one_is_asked_rarely() {
    let tree = files();
    let busy = tree.faulty(Fault::RetryAfter { status: 503, seconds: 100 });
    beside(&tree, &busy, 1.03);
    assert!(busy.counters().requests < 400);
}

#[test]
fn limit_of_connections_is_found() {
    let tree = files();
    let server = tree.server().behaviour(|own| own.max_connections = Some(2)).start().unwrap();
    all_arrives(&tree, &[&server]);
}

#[test]
fn the_run_does_not_wait_for_a_silent_host() {
    let tree = Tree::of(&[100_000; 8]);
    let silent = tree.faulty(Fault::Hang);
    let ran = all_arrives(&tree, &[&silent, &tree.good()]);
    assert!(ran.took < Duration::from_secs(6), "{:?}", ran.took);
}

/// Bodies of a slow link, asked for outside the queue, on one connection.
fn asked_with_a_limit_of_one_second(server: &Server, paths: &[&str]) -> Vec<Option<usize>> {
    let mut options = FetchOptions::default();
    options.limits.connections_per_host = 1;
    let client = Setup { options, ..Setup::default() }.client(&[server.url()]);
    let watch = client.fetcher.watch();
    client.runtime.block_on(async {
        let mut asked = tokio::task::JoinSet::new();
        for path in paths {
            let (watch, get) = (watch.clone(), Get { path: (*path).into(), limit_bytes: MIB, ..Get::default() });
            asked.spawn(async move {
                let got = watch.while_delivering(0, Duration::from_secs(1), watch.get(0, get)).await;
                got.map(|got| got.unwrap().body.len())
            });
        }
        asked.join_all().await
    })
}

#[test]
fn a_small_file_takes_as_long_as_its_link_needs() {
    let tree = Tree::of(&[100_000, 1000]);
    let mut got = asked_with_a_limit_of_one_second(&tree.slow(40_000), &["pool/f0", "pool/f1"]);
    got.sort_unstable();
    assert_eq!(got, [Some(1000), Some(100_000)], "the second waited behind the first");
}

#[test]
fn a_host_that_delivers_less_than_a_modem_is_not_waited_for() {
    let tree = Tree::of(&[100_000]);
    for fault in [Fault::Drip(1000), Fault::Hang, Fault::Stall] {
        assert_eq!(asked_with_a_limit_of_one_second(&tree.faulty(fault), &["pool/f0"]), [None]);
    }
}
