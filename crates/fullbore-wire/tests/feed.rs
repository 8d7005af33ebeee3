//! Files that become known while others are on their way, and files that not every host may bring.

#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use fullbore_testkit::server::{Fault, FaultRule, PathMatch};
use fullbore_wire::dispatcher::Limits;
use fullbore_wire::fetch::FetchOptions;
use fullbore_wire::hosts::{Fault as Seen, HostSet};
use fullbore_wire::queue::Item;

#[test]
fn files_that_come_later_are_fetched_over_the_same_connections() {
    let sizes: Vec<u64> = (0..60).map(|n| 400 + n * 311).collect();
    let tree = Tree::of(&sizes);
    let server = tree.good();
    let mut client = Client::new(&[&server]);
    let batches: Vec<Vec<Item>> = (0..60).map(|id| vec![client.item(&tree, id)]).collect();
    let ran = client.fetch_batches(&tree, batches);
    ran.all_verified(&tree);
    client.check(&tree);
    assert!(server.counters().connections <= 4, "{:?}", server.counters());
    assert_eq!(ran.received(), tree.bytes());
}

#[test]
fn a_file_that_is_kept_from_a_host_is_never_asked_of_it() {
    let tree = Tree::of(&[2 * MIB, 300 * KIB, 5000]);
    let (a, b) = (tree.good(), tree.good());
    let mut client = Client::new(&[&a, &b]);
    let mut excluded = HostSet::default();
    excluded.insert(0);
    let items = (0..3).map(|id| Item { excluded, ..client.item(&tree, id) }).collect();
    let ran = client.fetch_batches(&tree, vec![items]);
    ran.all_verified(&tree);
    assert_eq!((a.counters().requests, ran.hosts[0].totals.received_bytes), (0, 0));
}

#[test]
fn a_file_kept_from_all_others_fails_with_the_reason_of_the_one() {
    let tree = Tree::of(&[5000, 10]);
    let (a, b) = (tree.good(), tree.faulty(Fault::Status(404)));
    for fault in [Fault::Status(404), Fault::Corrupt] {
        b.change(|own| own.faults = vec![FaultRule::always(PathMatch::Suffix("f0".into()), fault.clone())]);
        let mut client = Client::new(&[&a, &b]);
        let mut excluded = HostSet::default();
        excluded.insert(0);
        let items = vec![Item { excluded, ..client.item(&tree, 0) }, client.item(&tree, 1)];
        let ran = client.fetch_batches(&tree, vec![items]);
        assert_eq!(ran.verified, [1]);
        let [given_up] = &ran.given_up[..] else { panic!("{ran:?}") };
        assert_eq!(given_up.missing, fault == Fault::Status(404));
        let why = if given_up.missing { Seen::Missing(404) } else { Seen::WrongBytes };
        assert_eq!(given_up.faults, [(1, why)]);
    }
    assert_eq!(a.log().iter().filter(|entry| entry.path.ends_with("f0")).count(), 0);
}

#[test]
fn where_redirects_are_not_followed_each_file_tells_its_own() {
    let sizes = vec![1000; 40];
    let tree = Tree::of(&sizes);
    let elsewhere = tree.good();
    let server = tree.faulty(Fault::Redirect(elsewhere.url()));
    let limits = Limits { redirects_are_faults: false, ..Limits::default() };
    let options = FetchOptions { follow_redirects: false, limits, ..FetchOptions::default() };
    let mut client = Setup { options, ..Setup::default() }.client(&[server.url()]);
    let ran = client.fetch(&tree);
    assert_eq!(ran.given_up.len(), 40);
    for given_up in &ran.given_up {
        let to = format!("{}/{}", elsewhere.url(), tree.files[given_up.item as usize].path);
        assert_eq!(given_up.faults, [(0, Seen::Elsewhere(to))]);
    }
    assert_eq!(elsewhere.counters().requests, 0);
    assert_eq!(ran.hosts[0].out, None);
}

#[test]
fn requests_go_one_at_a_time_where_that_is_wanted() {
    let tree = Tree::of(&[1000; 20]);
    let server = tree.good();
    let limits = Limits { pipeline_depth: 0, connections_per_host: 1, ..Limits::default() };
    let options = FetchOptions { limits, ..FetchOptions::default() };
    let mut client = Setup { options, ..Setup::default() }.client(&[server.url()]);
    client.fetch(&tree).all_verified(&tree);
    let mut log = server.log();
    log.sort_by_key(|entry| entry.number);
    for pair in log.windows(2) {
        assert!(pair[1].at >= pair[0].at + pair[0].took, "{pair:?}");
    }
}
