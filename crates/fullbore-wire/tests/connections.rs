//! How long connections last: closes announced and unannounced, idle ones, and between two runs.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::*;
use fullbore_testkit::server::{Fault, FaultRule, PathMatch};

fn many() -> Tree {
    Tree::of(&(0..300).map(|n| 500 + n * 13).collect::<Vec<_>>())
}

#[test]
fn announced_closes_are_learned_and_no_strike() {
    let tree = many();
    let server = tree.server().behaviour(|own| own.requests_per_connection = Some(20)).start().unwrap();
    let ran = all_arrives(&tree, &[&server]);
    assert_eq!((ran.hosts[0].totals.faults, &ran.hosts[0].out), (0, &None), "{ran:#?}");
    let log = server.log();
    let deep = log.iter().filter(|entry| entry.number == 20).count();
    assert!(deep >= 10, "connections of 20 requests: {deep}");
    assert!(ran.hosts[0].totals.connections <= 24, "{ran:#?}");
}

#[test]
fn unannounced_closes_are_learned_and_no_strike() {
    let tree = many();
    let server = tree.server().behaviour(|own| {
        own.requests_per_connection = Some(20);
        own.announce_close = false;
    });
    let server = server.start().unwrap();
    let ran = all_arrives(&tree, &[&server]);
    assert_eq!((ran.hosts[0].totals.faults, &ran.hosts[0].out), (0, &None), "{ran:#?}");
    assert!(ran.hosts[0].totals.connections <= 24, "{ran:#?}");
}

#[test]
fn a_host_with_one_answer_per_connection_is_used_to_the_end() {
    let tree = Tree::of(&(0..40).map(|n| 500 + n * 131).collect::<Vec<_>>());
    let server = tree.faulty(Fault::Close);
    let ran = all_arrives(&tree, &[&server]);
    assert!(ran.hosts[0].out.is_none() && ran.hosts[0].totals.connections <= 60, "{ran:#?}");
}

#[test]
fn two_runs_use_the_same_connections() {
    let tree = Tree::of(&[20_000; 12]);
    let server = tree.good();
    let mut setup = Setup::default();
    // Of several, one may be opened so late that nothing is left for it; it is closed then.
    setup.options.limits.connections_per_host = 1;
    let mut client = setup.client(&[server.url()]);
    assert_eq!(client.fetch_files(&tree, &[0, 1, 2, 3]).verified.len(), 4);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(client.fetch_files(&tree, &[4, 5, 6, 7]).verified, [4, 5, 6, 7]);
    assert_eq!(server.counters().connections, 1);
    // A connection hears of the run's end a moment after its caller.
    until("nothing is outstanding", || client.reading().hosts[0].connections == 0);
}

#[test]
fn connections_that_closed_between_two_runs_are_opened_again() {
    let tree = Tree::of(&[20_000; 12]);
    let server = tree.good();
    let mut client = Client::new(&[&server]);
    assert_eq!(client.fetch_files(&tree, &[0, 1, 2, 3]).verified.len(), 4);
    server.live(fullbore_testkit::server::Life::Refusing);
    std::thread::sleep(Duration::from_millis(100));
    server.live(fullbore_testkit::server::Life::Alive);
    std::thread::sleep(Duration::from_millis(100));
    let ran = client.fetch_files(&tree, &[4, 5, 6, 7]);
    assert_eq!(ran.verified, [4, 5, 6, 7]);
    assert!(ran.hosts[0].out.is_none(), "{ran:#?}");
}

#[test]
fn a_window_smaller_than_the_buffers_of_all_connections_is_no_deadlock() {
    let tree = Tree::of(&archive());
    let (a, b) = (tree.good(), tree.good());
    let setup = Setup { window_bytes: 100_000, ..Setup::default() };
    let mut client = setup.client(&[a.url(), b.url()]);
    let ran = client.fetch(&tree);
    ran.all_verified(&tree);
    client.check(&tree);
}

#[test]
fn the_rate_limit_is_kept() {
    let tree = Tree::of(&[2 * MIB, 2 * MIB]);
    let (a, b) = (tree.good(), tree.good());
    let mut setup = Setup::default();
    setup.options.rate_limit_bytes_per_s = Some(2 * MIB);
    let mut client = setup.client(&[a.url(), b.url()]);
    let ran = client.fetch(&tree);
    ran.all_verified(&tree);
    assert!(ran.took.as_millis() >= 1600, "{:?}", ran.took);
}

#[test]
fn a_killed_run_goes_on_where_it_was() {
    let tree = Tree::of(&[12 * MIB]);
    let server = tree.slow(8 * MIB);
    let setup = Setup { journal: true, ..Setup::default() };
    let directory = setup.client(&[server.url()]).fetch_until(&tree, 6 * MIB);
    server.change(|own| own.rate_bytes_per_s = None);
    let other = tree.good();
    let setup = Setup { journal: true, directory: Some(directory), ..Setup::default() };
    let mut client = setup.client(&[server.url(), other.url()]);
    let ran = client.fetch(&tree);
    ran.all_verified(&tree);
    client.check(&tree);
    assert!(ran.received() < 9 * MIB, "{} bytes came again", ran.received());
}

#[test]
fn what_a_killed_run_left_may_be_wrong() {
    let tree = Tree::of(&[6 * MIB]);
    let bad = tree.server().behaviour(|own| own.rate_bytes_per_s = Some(4 * MIB));
    let bad = bad.fault(FaultRule::always(PathMatch::Any, Fault::Corrupt)).start().unwrap();
    let setup = Setup { journal: true, ..Setup::default() };
    let directory = setup.client(&[bad.url()]).fetch_until(&tree, 2 * MIB);
    let (a, b) = (tree.good(), tree.good());
    let setup = Setup { journal: true, directory: Some(directory), ..Setup::default() };
    let mut client = setup.client(&[a.url(), b.url()]);
    let ran = client.fetch(&tree);
    ran.all_verified(&tree);
    client.check(&tree);
    assert!(ran.hosts.iter().all(|host| host.totals.faults == 0), "{ran:#?}");
}

#[test]
fn a_server_that_closes_at_once_is_not_asked_in_advance_without_a_pause() {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let accepted = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = accepted.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            drop(stream.unwrap());
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    });
    let client = Setup::default().client(&[url]);
    client.fetcher.warm(true);
    std::thread::sleep(Duration::from_secs(1));
    let accepted = accepted.load(std::sync::atomic::Ordering::Relaxed);
    // Four slots, five times a second each.
    assert!((1..=40).contains(&accepted), "{accepted} connections");
}

#[test]
fn nothing_is_open_after_a_halt() {
    let tree = Tree::of(&[MIB; 8]);
    let server = tree.good();
    let mut client = Client::new(&[&server]);
    client.disk.close();
    client.fetch_while(&tree, |_| server.counters().open_connections == 0);
    client.fetcher.halt();
    until("all connections are closed", || server.counters().open_connections == 0);
    client.disk.open();
}

#[test]
fn busy_time_of_the_ledger_ends_with_the_run() {
    let tree = Tree::of(&archive());
    let server = tree.good();
    let mut client = Client::new(&[&server]);
    client.fetch(&tree).all_verified(&tree);
    until("the last connection hears of it", || client.reading().hosts[0].connections == 0);
    let reading = client.reading();
    // Heads included.
    assert!(reading.hosts[0].bytes > tree.bytes(), "{reading:?}");
}
