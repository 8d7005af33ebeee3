//! Mirrors that are slow, fall silent, die, or ask for patience.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::*;
use fullbore_testkit::server::{Fault, FaultRule, Life, PathMatch, Server};

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
fn answers_that_stall_half_way() {
    let tree = files();
    beside(&tree, &tree.faulty(Fault::Stall), 1.05);
}

#[test]
fn no_answers_at_all() {
    let tree = files();
    beside(&tree, &tree.faulty(Fault::Hang), 1.05);
}

#[test]
fn one_byte_per_second() {
    let tree = files();
    beside(&tree, &tree.faulty(Fault::Drip(1)), 1.05);
}

#[test]
fn twenty_two_kilobytes_per_second() {
    let tree = files();
    // Its half would take it minutes.
    beside(&tree, &tree.slow(22_000), 1.05);
}

#[test]
fn silent_in_mid_run() {
    let tree = files();
    let dies = tree.server().behaviour(|own| {
        own.rate_bytes_per_s = Some(20 * MIB);
        own.die_after_bytes = Some(4 * MIB);
        own.death = Life::Silent;
    });
    beside(&tree, &dies.start().unwrap(), 1.05);
}

#[test]
fn dead_in_mid_run() {
    let tree = files();
    let dies = tree.server().behaviour(|own| {
        own.rate_bytes_per_s = Some(20 * MIB);
        own.die_after_bytes = Some(4 * MIB);
    });
    beside(&tree, &dies.start().unwrap(), 1.05);
}

#[test]
fn refused_from_the_start() {
    let tree = files();
    let dead = tree.good();
    dead.live(Life::Refusing);
    beside(&tree, &dead, 1.03);
}

#[test]
fn down_for_a_second_and_back() {
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
fn all_dead_gives_everything_up() {
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
fn closes_without_an_answer() {
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
fn busy_for_ever_beside_a_good_host() {
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
