//! Hosts that redirect each file to an address of its own, as storage behind signed addresses is used.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::*;
use fullbore_testkit::server::{Fault, FaultRule, Life, PathMatch, Server};
use fullbore_wire::auth::{AuthConf, Credentials};
use fullbore_wire::fetch::Get;
use fullbore_wire::url::Url;

fn sizes() -> Vec<u64> {
    let mut sizes = vec![5 * MIB, 2 * MIB];
    sizes.extend((0..80).map(|n| 2000 + n * 1001));
    sizes
}

/// A server of which every file is at that one.
fn leads_to(tree: &Tree, target: &Server) -> Server {
    tree.faulty(Fault::RedirectSigned(target.url()))
}

#[test]
fn files_come_from_the_store_several_at_a_time() {
    let tree = Tree::of(&sizes());
    let store = tree.server().behaviour(|own| own.delay = Duration::from_millis(10)).start().unwrap();
    let server = leads_to(&tree, &store);
    let ran = all_arrives(&tree, &[&server]);
    let host = &ran.hosts[0];
    assert!(host.out.is_none() && host.totals.faults == 0 && host.totals.missing == 0, "{ran:#?}");
    assert_eq!(ran.received(), tree.bytes());
    let most = store.counters().max_open_connections;
    assert!((2..=4).contains(&most), "{most} connections at a time");
    // A store may answer pipelined requests in any order.
    let mut log = store.log();
    log.sort_by_key(|entry| (entry.connection, entry.number));
    for pair in log.windows(2).filter(|pair| pair[0].connection == pair[1].connection) {
        assert!(pair[1].at >= pair[0].at + pair[0].took, "{pair:?}");
    }
}

#[test]
fn two_hosts_redirecting_to_one_store_share_its_connections() {
    let tree = Tree::of(&sizes());
    let store = tree.server().behaviour(|own| own.delay = Duration::from_millis(5)).start().unwrap();
    let servers = [leads_to(&tree, &store), leads_to(&tree, &store)];
    all_arrives(&tree, &[&servers[0], &servers[1]]);
    assert!(most_at_once(&store) <= 4, "{} connections at a time", most_at_once(&store));
}

/// Connections on which a server was asked for something at a time: it sees later than we do that one is closed.
fn most_at_once(server: &Server) -> usize {
    let log = server.log();
    let at_once = |now| {
        let asked = log.iter().filter(|entry| (entry.at..=entry.at + entry.took).contains(&now));
        asked.map(|entry| entry.connection).collect::<std::collections::BTreeSet<_>>().len()
    };
    log.iter().map(|entry| at_once(entry.at)).max().unwrap_or_default()
}

#[test]
fn two_mirrors_that_turn_out_to_be_one_are_asked_as_one() {
    let tree = Tree::of(&sizes());
    let one = tree.server().behaviour(|own| own.delay = Duration::from_millis(5)).start().unwrap();
    let names = [tree.faulty(Fault::Redirect(one.url())), tree.faulty(Fault::Redirect(one.url()))];
    all_arrives(&tree, &[&names[0], &names[1]]);
    assert!(most_at_once(&one) <= 4, "{} connections at a time", most_at_once(&one));
}

#[test]
fn redirects_between_mirrors_of_a_run_share_their_connections() {
    let tree = Tree::of(&sizes());
    let one = tree.server().behaviour(|own| own.delay = Duration::from_millis(5)).start().unwrap();
    let other = leads_to(&tree, &one);
    Client::new(&[&other, &one]).fetch(&tree).all_verified(&tree);
    assert!(most_at_once(&one) <= 4, "{} connections at a time", most_at_once(&one));
}

#[test]
fn credentials_stay_with_the_host_they_are_for() {
    let tree = Tree::of(&[1000; 5]);
    let store = tree.good();
    let server = leads_to(&tree, &store);
    let own = Credentials::new("apt", "secret");
    server.change(|behaviour| behaviour.authorization = Some(own.basic().header_value().to_owned()));
    let mut setup = Setup::default();
    let mut auth = AuthConf::new();
    auth.add_for_url(&Url::parse(&server.url()).unwrap(), &own).unwrap();
    setup.options.auth = auth;
    let mut client = setup.client(&[server.url()]);
    client.fetch(&tree).all_verified(&tree);
    let get = Get { path: "pool/f0".into(), limit_bytes: 5000, ..Get::default() };
    assert_eq!(client.get(0, get).unwrap().body.len(), 1000);
    let log = store.log();
    assert_eq!(log.len(), 6);
    assert!(log.iter().all(|entry| entry.header("authorization").is_none()));
}

#[test]
fn a_store_with_wrong_bytes_or_none_is_a_fault_of_the_host_that_led_there() {
    let tree = Tree::of(&[20_000; 20]);
    for fault in [Fault::Corrupt, Fault::Status(404), Fault::Portal] {
        let good = tree.slow(4 * MIB);
        let store = tree.faulty(fault.clone());
        let bad = leads_to(&tree, &store);
        let ran = Client::new(&[&bad]).fetch(&tree);
        let totals = &ran.hosts[0].totals;
        assert_eq!((ran.given_up.len(), totals.faults + totals.missing), (20, 20), "{fault:?}: {ran:#?}");
        // Servers of its own: connections of the client before may still be open.
        let bad = leads_to(&tree, &store);
        let ran = all_arrives(&tree, &[&bad, &good]);
        assert_eq!(ran.hosts[1].totals.faults, 0, "{fault:?}: {ran:#?}");
    }
}

#[test]
fn a_chain_of_redirects_is_followed_to_its_end_and_a_circle_is_not() {
    let tree = Tree::of(&[20_000; 12]);
    let store = tree.good();
    let between = leads_to(&tree, &store);
    let server = leads_to(&tree, &between);
    let ran = all_arrives(&tree, &[&server]);
    assert_eq!(ran.hosts[0].totals.faults, 0, "{ran:#?}");
    store.add_fault(FaultRule::always(PathMatch::Any, Fault::RedirectSigned(between.url())));
    let ran = Client::new(&[&server]).fetch(&tree);
    assert_eq!((ran.verified.len(), ran.given_up.len()), (0, 12), "{ran:#?}");
    assert!(ran.hosts[0].totals.seen_faults[0].fault.contains("redirect loop"), "{ran:#?}");
}

#[test]
fn a_store_that_is_down_is_named() {
    let tree = Tree::of(&[20_000; 3]);
    let store = tree.good();
    store.live(Life::Refusing);
    let server = leads_to(&tree, &store);
    let mut client = Client::new(&[&server]);
    let ran = client.fetch(&tree);
    assert_eq!((ran.verified.len(), ran.given_up.len()), (0, 3), "{ran:#?}");
    let seen = &ran.hosts[0].totals.seen_faults;
    assert!(seen.iter().any(|seen| seen.fault.contains(&store.address().to_string())), "{seen:#?}");
    assert!(seen.iter().all(|seen| !seen.fault.contains("Signature")), "{seen:#?}");
}

#[test]
fn another_path_of_the_same_server_needs_no_further_connections() {
    let tree = Tree::of(&sizes());
    std::os::unix::fs::symlink(".", tree.directory.path().join("store")).unwrap();
    let server = tree.good();
    let to = format!("{}/store", server.url());
    server.add_fault(FaultRule::always(PathMatch::Prefix("/pool/".into()), Fault::RedirectSigned(to)));
    let ran = all_arrives(&tree, &[&server]);
    assert_eq!(ran.hosts[0].totals.faults, 0, "{ran:#?}");
}

#[test]
fn a_self_redirecting_server_gets_no_extra_connections() {
    let tree = Tree::of(&sizes());
    std::os::unix::fs::symlink(".", tree.directory.path().join("store")).unwrap();
    let habits = |own: &mut fullbore_testkit::server::Behaviour| {
        own.requests_per_connection = Some(1);
        own.delay = Duration::from_millis(5);
    };
    let server = tree.server().behaviour(habits).start().unwrap();
    let to = format!("{}/store", server.url());
    server.add_fault(FaultRule::always(PathMatch::Prefix("/pool/".into()), Fault::RedirectSigned(to)));
    all_arrives(&tree, &[&server]);
    assert!(most_at_once(&server) <= 4, "{} connections at a time", most_at_once(&server));
}

#[test]
fn a_store_that_asks_for_a_pause_is_left_alone_for_so_long() {
    let tree = Tree::of(&[20_000; 20]);
    let store = tree.server().behaviour(|own| own.delay = Duration::from_millis(50)).start().unwrap();
    let busy = Fault::RetryAfter { status: 429, seconds: 2 };
    store.add_fault(FaultRule::once(PathMatch::Exact("/pool/f3".into()), busy));
    let server = leads_to(&tree, &store);
    let mut setup = Setup::default();
    setup.options.limits.connections_per_host = 1;
    setup.client(&[server.url()]).fetch(&tree).all_verified(&tree);
    let log = store.log();
    let told = log.iter().find(|entry| entry.status == 429).unwrap();
    let pause = (told.at + told.took + Duration::from_millis(100))..(told.at + Duration::from_millis(1900));
    let within: Vec<_> = log.iter().filter(|entry| pause.contains(&entry.at)).collect();
    assert!(within.is_empty(), "{within:?}");
    assert!(log.iter().any(|entry| entry.at > pause.end), "the pause is over some time");
}

#[test]
fn a_small_file_is_brought_from_where_it_is() {
    let tree = Tree::of(&[1000]);
    let store = tree.good();
    let server = leads_to(&tree, &store);
    let client = Client::new(&[&server]);
    let get = || Get { path: "pool/f0".into(), limit_bytes: 5000, ..Get::default() };
    let found = client.get(0, get()).unwrap();
    assert_eq!((found.head.status, found.body.len()), (200, 1000));
    let (head, body) = client.stream(0, get()).unwrap();
    assert_eq!((head.status, body.unwrap().len()), (200, 1000));
    // The host itself was not moved.
    assert_eq!(server.counters().requests, 2);
    store.live(Life::Refusing);
    let error = client.get(0, get()).unwrap_err().to_string();
    assert!(error.contains(&store.address().to_string()), "{error}");
}
