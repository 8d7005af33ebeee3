//! Runs over mirrors that do nothing wrong: right bytes, little twice, few connections.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::HashMap;
use std::time::Duration;

use common::*;
use fullbore_testkit::server::LogEntry;

#[test]
fn one_mirror_sends_every_byte_once() {
    let tree = Tree::of(&archive());
    let server = tree.good();
    let ran = all_arrives(&tree, &[&server]);
    assert_eq!(ran.received(), tree.bytes());
    assert_eq!(ran.hosts[0].totals.faults, 0, "{ran:#?}");
}

#[test]
fn two_mirrors_share_a_big_file() {
    let tree = Tree::of(&[24 * MIB]);
    let (a, b) = (tree.slow(15 * MIB), tree.slow(15 * MIB));
    let ran = all_arrives(&tree, &[&a, &b]);
    for host in &ran.hosts {
        assert!(host.totals.received_bytes > 6 * MIB, "{ran:#?}");
    }
    assert!(ran.excess(&tree) <= 1.03, "{}", ran.excess(&tree));
}

#[test]
fn four_uneven_mirrors_receive_little_twice() {
    let mut sizes = archive();
    sizes.extend([9 * MIB, 5 * MIB, 2 * MIB]);
    let tree = Tree::of(&sizes);
    let servers = [tree.slow(3 * MIB), tree.slow(6 * MIB), tree.slow(12 * MIB), tree.slow(2 * MIB)];
    let ran = all_arrives(&tree, &servers.iter().collect::<Vec<_>>());
    assert!(ran.excess(&tree) <= 1.03, "{}", ran.excess(&tree));
    // 27 MiB at 23 MiB/s in all; the slowest alone would need 13 s.
    assert!(ran.took < Duration::from_secs(9), "{ran:#?}");
}

#[test]
fn a_round_trip_of_50_ms_is_hidden_by_asking_ahead() {
    let sizes: Vec<u64> = (0..400).map(|n| 500 + n * 7).collect();
    let tree = Tree::of(&sizes);
    let server = tree.server().behaviour(|own| own.delay = Duration::from_millis(50)).start().unwrap();
    all_arrives(&tree, &[&server]);
    // One by one, none would be asked for before the one before it on the connection was answered.
    let log = server.log();
    let places: HashMap<_, _> = log.iter().map(|entry| ((entry.connection, entry.number), entry)).collect();
    let before = |entry: &LogEntry| places.get(&(entry.connection, entry.number - 1)).copied();
    let ahead =
        log.iter().filter(|entry| before(entry).is_some_and(|before| entry.at < before.at + before.took)).count();
    assert!(ahead > log.len() / 2, "{ahead} of {}", log.len());
}

#[test]
fn empty_files_come_without_a_request() {
    let tree = Tree::of(&[0, 10, 0, 20, 0]);
    let server = tree.good();
    all_arrives(&tree, &[&server]);
    assert_eq!(server.counters().requests, 2);
}

#[test]
fn empty_files_alone_open_no_connection() {
    let tree = Tree::of(&[0, 0]);
    let server = tree.good();
    all_arrives(&tree, &[&server]);
    assert_eq!(server.counters().connections, 0);
}
