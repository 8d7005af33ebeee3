//! Runs in which one of two mirrors answers wrongly: all files arrive, from the other one.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::*;
use fullbore_testkit::server::{Fault, FaultRule, PathMatch, Server};
use fullbore_wire::http1::PIPELINE_DEPTH;
use fullbore_wire::run::RemoteFile;

/// Some files of every size; enough that each host is asked for several.
fn sizes() -> Vec<u64> {
    let mut sizes = vec![3 * MIB, 2 * MIB];
    sizes.extend((0..30).map(|n| 2000 + n * 3001));
    sizes
}

/// The first mirror does this to everything, the second is good.
fn beside_a_good_one(fault: Fault) -> (Tree, Ran, Server) {
    let tree = Tree::of(&sizes());
    let bad = tree.faulty(fault);
    // Not so fast that the bad one is hardly asked.
    let good = tree.slow(12 * MIB);
    let ran = all_arrives(&tree, &[&bad, &good]);
    (tree, ran, bad)
}

/// As above, and the bad one is out for the run, which took no longer than it should.
fn is_put_out(fault: Fault) -> Ran {
    let (_, ran, _) = beside_a_good_one(fault);
    // On a busy machine the run may be over before the third strike.
    assert!(ran.hosts[0].out.is_some() || ran.hosts[0].totals.faults >= 2, "{ran:#?}");
    assert!(ran.took < Duration::from_secs(10), "{ran:#?}");
    ran
}

/// Everything comes from a host that does this, alone.
fn is_no_fault(fault: Fault) -> Ran {
    let tree = Tree::of(&sizes());
    let server = tree.faulty(fault);
    let ran = all_arrives(&tree, &[&server]);
    assert!(ran.hosts[0].out.is_none(), "{ran:#?}");
    ran
}

#[test]
fn a_file_missing_on_some_hosts_comes_from_another() {
    // So many that what is asked for twice at the end is little of it.
    let tree = Tree::of(&[40_000; 600]);
    let patchy = tree.server().fault(FaultRule { sticky: true, ..FaultRule::pool(0.5, Fault::Status(404)) });
    let patchy = patchy.start().unwrap();
    let ran = all_arrives(&tree, &[&patchy, &tree.slow(10 * MIB)]);
    assert!(ran.hosts[0].out.is_none() && ran.hosts[0].totals.missing > 0, "{ran:#?}");
    assert!(ran.excess(&tree) <= 1.03, "{}", ran.excess(&tree));
}

#[test]
fn a_file_missing_on_all_hosts_is_given_up_as_missing() {
    let tree = Tree::of(&[5000, 6000, 7000]);
    let lost = || FaultRule::always(PathMatch::Exact("/pool/f1".into()), Fault::Status(404));
    let (a, b) = (tree.server().fault(lost()).start().unwrap(), tree.server().fault(lost()).start().unwrap());
    let mut client = Client::new(&[&a, &b]);
    let ran = client.fetch(&tree);
    assert_eq!(ran.verified, [0, 2]);
    assert_eq!(ran.given_up.len(), 1);
    assert!(ran.given_up[0].item == 1 && ran.given_up[0].missing, "{ran:#?}");
    assert!(ran.took < Duration::from_secs(8));
}

#[test]
fn the_other_path_is_asked_for_when_no_host_has_the_first() {
    let mut tree = Tree::of(&[5000]);
    let by_hash = tree.add("dists/by-hash/aa", 7000);
    tree.files[by_hash as usize].path = "dists/Packages".into();
    tree.files[by_hash as usize].target = "dists/Packages".into();
    tree.files[by_hash as usize].other_path = Some("dists/by-hash/aa".into());
    all_arrives(&tree, &[&tree.good(), &tree.good()]);
}

#[test]
fn plus_is_asked_for_in_its_other_form_where_a_store_wants_that() {
    let mut tree = Tree::of(&[5000]);
    for n in 0..5 {
        tree.add(&format!("pool/g++/g++_{n}+b1.deb"), 9000 + n);
    }
    // A store that reads `+` as a space serves only what is asked for as %2B.
    let store = PlusStore::start(&tree);
    let mut client = Setup::default().client(std::slice::from_ref(&store.url));
    let ran = client.fetch(&tree);
    ran.all_verified(&tree);
    client.check(&tree);
    assert!(ran.hosts[0].out.is_none(), "{ran:#?}");
}

#[test]
fn a_host_with_corrupt_bodies_is_blamed_alone() {
    let (_, ran, _) = beside_a_good_one(Fault::Corrupt);
    // It may have had a part in two files only, so that it is not out yet.
    assert!(ran.hosts[0].totals.faults > 0 && ran.hosts[1].totals.faults == 0, "{ran:#?}");
}

#[test]
fn corrupt_ranges_of_a_split_file_name_their_host() {
    let tree = Tree::of(&[16 * MIB]);
    let bad = tree.server().behaviour(|own| own.rate_bytes_per_s = Some(12 * MIB));
    let bad = bad.fault(FaultRule::always(PathMatch::Any, Fault::CorruptRanges)).start().unwrap();
    let good = tree.slow(16 * MIB);
    let ran = all_arrives(&tree, &[&bad, &good]);
    assert!(ran.hosts[0].totals.faults >= 1, "{ran:#?}");
    assert_eq!(ran.hosts[1].totals.faults, 0, "{ran:#?}");
}

#[test]
fn a_file_corrupt_on_the_only_host_is_given_up() {
    let tree = Tree::of(&[5000, 9000]);
    let server =
        tree.server().fault(FaultRule::always(PathMatch::Exact("/pool/f1".into()), Fault::Corrupt)).start().unwrap();
    let mut client = Client::new(&[&server]);
    let ran = client.fetch(&tree);
    assert_eq!((ran.verified.len(), ran.given_up.len()), (1, 1), "{ran:#?}");
    assert!(!ran.given_up[0].missing && !client.has(&tree.files[1]));
}

/// Files of which these are wrong on every server of the tree.
fn rotten(tree: &Tree, files: &[&str]) -> Server {
    let rule = |file: &&str| FaultRule::always(PathMatch::Exact(format!("/{file}")), Fault::Corrupt);
    files.iter().map(rule).fold(tree.server(), |server, rule| server.fault(rule)).start().unwrap()
}

#[test]
fn the_only_host_brings_all_but_its_rotten_files() {
    let tree = Tree::of(&[20_000; 60]);
    let bad = ["pool/f0", "pool/f1", "pool/f2", "pool/f3", "pool/f4"];
    let server = rotten(&tree, &bad);
    let ran = Client::new(&[&server]).fetch(&tree);
    assert_eq!((ran.verified.len(), ran.given_up.len()), (55, 5), "{ran:#?}");
    let host = &ran.hosts[0];
    assert!(host.out.is_none() && host.totals.faults == 5, "one fault for each file: {ran:#?}");
    let mut named: Vec<_> = host.totals.seen_faults.iter().filter_map(|fault| fault.path.as_deref()).collect();
    named.sort_unstable();
    assert_eq!(named, bad);
}

#[test]
fn files_that_are_rotten_everywhere_cost_no_others() {
    let tree = Tree::of(&[20_000; 60]);
    let servers: Vec<Server> = (0..3).map(|_| rotten(&tree, &["pool/f0", "pool/f1", "pool/f2", "pool/f3"])).collect();
    let ran = Client::new(&servers.iter().collect::<Vec<_>>()).fetch(&tree);
    assert_eq!((ran.verified.len(), ran.given_up.len()), (56, 4), "{ran:#?}");
}

#[test]
fn truncated_bodies_cost_few_bytes() {
    let (tree, ran, _) = beside_a_good_one(Fault::Truncate);
    assert!(ran.excess(&tree) <= 1.05, "{}", ran.excess(&tree));
}

#[test]
fn a_file_that_is_always_truncated_by_the_only_host_ends() {
    let tree = Tree::of(&[200_000, 50_000]);
    let server =
        tree.server().fault(FaultRule::always(PathMatch::Exact("/pool/f0".into()), Fault::Truncate)).start().unwrap();
    let mut client = Client::new(&[&server]);
    let ran = client.fetch(&tree);
    // Each try goes on where the last one broke off; whether that is enough is luck, an end is not.
    assert!(ran.verified.contains(&1) && ran.verified.len() + ran.given_up.len() == 2, "{ran:#?}");
    assert!(ran.took < Duration::from_secs(12), "{ran:#?}");
}

#[test]
fn resets_now_and_then_lose_no_file() {
    let tree = Tree::of(&sizes());
    let rough = || tree.server().fault(FaultRule::pool(0.1, Fault::Reset)).start().unwrap();
    let ran = all_arrives(&tree, &[&rough(), &rough()]);
    assert!(ran.took < Duration::from_secs(10), "{ran:#?}");
}

#[test]
fn a_captive_portal_is_put_out() {
    is_put_out(Fault::Portal);
}

#[test]
fn a_host_with_lengths_too_short_is_put_out() {
    is_put_out(Fault::ShortLength);
}

#[test]
fn a_host_with_lengths_too_long_is_put_out() {
    is_put_out(Fault::LongLength);
}

/// The answer announces more than the file has, and the rest of it never comes.
#[test]
fn a_wrong_size_is_no_slow_host() {
    let tree = Tree::of(&[700]);
    let ran = Client::new(&[&tree.faulty(Fault::LongLength)]).fetch(&tree);
    let [given_up] = &ran.given_up[..] else { panic!("{ran:#?}") };
    assert!(given_up.faults.iter().all(|(_, fault)| fault.is_wrong_content()), "{ran:#?}");
    assert!(!given_up.faults.is_empty() && ran.took < Duration::from_secs(5), "{ran:#?}");
}

#[test]
fn a_host_that_sends_another_range_is_at_fault() {
    let tree = Tree::of(&[12 * MIB]);
    let ran = all_arrives(&tree, &[&tree.faulty(Fault::WrongRange), &tree.slow(20 * MIB)]);
    assert!(ran.hosts[0].out.is_some() || ran.hosts[0].totals.faults > 0, "{ran:#?}");
}

#[test]
fn a_host_that_claims_a_range_it_did_not_send_is_at_fault() {
    let tree = Tree::of(&[12 * MIB]);
    let lying = tree.server().behaviour(|own| own.rate_bytes_per_s = Some(20 * MIB));
    let lying = lying.fault(FaultRule::always(PathMatch::Any, Fault::LyingRange)).start().unwrap();
    let ran = all_arrives(&tree, &[&lying, &tree.slow(20 * MIB)]);
    assert!(ran.hosts[0].totals.faults > 0 && ran.hosts[1].totals.faults == 0, "{ran:#?}");
}

#[test]
fn everything_comes_from_a_host_without_ranges() {
    let tree = Tree::of(&sizes());
    let server = tree.server().behaviour(|own| own.ranges = false).start().unwrap();
    all_arrives(&tree, &[&server]);
}

#[test]
fn a_file_begun_on_a_dead_host_is_finished_by_one_without_ranges() {
    let tree = Tree::of(&[12 * MIB]);
    let dies = tree.server().behaviour(|own| {
        own.rate_bytes_per_s = Some(40 * MIB);
        own.die_after_bytes = Some(3 * MIB);
    });
    let dies = dies.start().unwrap();
    let whole_only = tree.server().behaviour(|own| own.ranges = false).start().unwrap();
    let mut client = Client::new(&[&dies, &whole_only]);
    let ran = client.fetch(&tree);
    ran.all_verified(&tree);
    client.check(&tree);
}

#[test]
fn a_redirect_to_another_host_moves_the_mirror() {
    let tree = Tree::of(&sizes());
    let target = tree.good();
    let server = tree.faulty(Fault::Redirect(target.url()));
    let ran = all_arrives(&tree, &[&server]);
    assert!(ran.hosts[0].out.is_none(), "{ran:#?}");
    assert!(target.counters().max_open_connections <= 4);
}

#[test]
fn a_host_with_a_redirect_loop_is_put_out() {
    is_put_out(Fault::RedirectLoop);
}

#[test]
fn files_of_two_hosts_that_redirect_to_each_other_are_given_up() {
    let tree = Tree::of(&[5000]);
    let (a, b) = (tree.good(), tree.good());
    a.add_fault(FaultRule::always(PathMatch::Any, Fault::Redirect(b.url())));
    b.add_fault(FaultRule::always(PathMatch::Any, Fault::Redirect(a.url())));
    let mut client = Client::new(&[&a]);
    let ran = client.fetch(&tree);
    assert!(ran.verified.is_empty() && ran.given_up.len() == 1, "{ran:#?}");
}

#[test]
fn a_redirect_with_encoded_newlines_puts_its_host_out() {
    is_put_out(Fault::RedirectInjection);
}

#[test]
fn a_body_without_end_is_cut_and_a_fault() {
    let (_, ran, _) = beside_a_good_one(Fault::Endless);
    assert!(ran.hosts[0].totals.faults > 0, "{ran:#?}");
    assert!(ran.received() < 20 * MIB, "{ran:#?}");
}

#[test]
fn chunked_bodies_are_no_fault() {
    is_no_fault(Fault::Chunked);
}

#[test]
fn bodies_that_end_with_the_connection_are_no_fault() {
    is_no_fault(Fault::UntilClose);
}

#[test]
fn answers_by_http_1_0_are_no_fault() {
    is_no_fault(Fault::Http10);
}

#[test]
fn a_content_encoding_that_nobody_asked_for_puts_its_host_out() {
    is_put_out(Fault::GzipEncoding);
}

#[test]
fn an_unasked_not_modified_puts_its_host_out() {
    is_put_out(Fault::NotModified);
}

#[test]
fn a_head_too_long_costs_no_time() {
    let (_, ran, _) = beside_a_good_one(Fault::BigHeader(100_000));
    assert!(ran.took < Duration::from_secs(10), "{ran:#?}");
}

#[test]
fn permuted_answers_end_pipelining_on_that_host_only() {
    let tree = Tree::of(&sizes());
    let permutes = tree.server().behaviour(|own| own.permute = true).start().unwrap();
    let good = tree.server().behaviour(|own| own.delay = Duration::from_millis(20)).start().unwrap();
    let ran = all_arrives(&tree, &[&permutes, &good]);
    assert!(ran.hosts[0].out.is_none(), "{ran:#?}");
    assert_eq!(ran.hosts[1].totals.faults, 0, "{ran:#?}");
    assert_eq!([ran.hosts[0].depth, ran.hosts[1].depth], [1, PIPELINE_DEPTH], "{ran:#?}");
}

#[test]
fn http_1_0_ends_pipelining_on_that_host_only_and_a_clean_close_on_none() {
    let tree = Tree::of(&sizes());
    let old = tree.server().behaviour(|own| own.delay = Duration::from_millis(5));
    let old = old.fault(FaultRule::always(PathMatch::Any, Fault::Http10)).start().unwrap();
    let closes = tree.server().behaviour(|own| {
        own.delay = Duration::from_millis(5);
        own.requests_per_connection = Some(3);
    });
    let ran = all_arrives(&tree, &[&old, &closes.start().unwrap()]);
    assert_eq!([ran.hosts[0].depth, ran.hosts[1].depth], [1, PIPELINE_DEPTH], "{ran:#?}");
    assert_eq!(ran.hosts[1].totals.faults, 0, "{ran:#?}");
}

#[test]
fn permuted_answers_of_the_only_host_lose_no_file() {
    // Sizes that are equal, so that only the hash can tell.
    let tree = Tree::of(&[20_000; 24]);
    let permutes = tree.server().behaviour(|own| own.permute = true).start().unwrap();
    let ran = all_arrives(&tree, &[&permutes]);
    assert!(ran.hosts[0].out.is_none(), "{ran:#?}");
}

/// A host that always has each of two files' bytes for the other.
fn swaps(tree: &Tree) -> Server {
    let body = |file: &RemoteFile| std::fs::read(tree.directory.path().join(&file.path)).unwrap().into();
    let [a, b] = &tree.files[..] else { panic!("two files are swapped") };
    let rule =
        |asked: &RemoteFile, sent| FaultRule::always(PathMatch::Suffix(asked.path.clone()), Fault::Body(body(sent)));
    tree.server().fault(rule(a, b)).fault(rule(b, a)).start().unwrap()
}

#[test]
fn files_that_are_always_swapped_are_wrong_and_not_mixed_up() {
    let tree = Tree::of(&[20_000, 20_000]);
    let bad = swaps(&tree);
    let mut client = Client::new(&[&bad]);
    let ran = client.fetch(&tree);
    assert_eq!(ran.given_up.len(), 2, "{ran:#?}");
    // Another one like it: this one may not have seen yet that the first client is gone.
    all_arrives(&tree, &[&swaps(&tree), &tree.good()]);
}

#[test]
fn a_wrong_file_in_a_second_smaller_fetch_is_asked_for_again() {
    let tree = Tree::of(&[20_000; 6]);
    let server = tree.good();
    let mut client = Client::new(&[&server]);
    assert_eq!(client.fetch_files(&tree, &[0, 1, 2, 3, 4]).verified.len(), 5);
    server.add_fault(FaultRule::once(PathMatch::Suffix("f5".into()), Fault::Corrupt));
    let second = Tree { directory: tempfile::TempDir::new().unwrap(), files: vec![tree.files[5].clone()] };
    let ran = client.fetch(&second);
    ran.all_verified(&second);
    assert_eq!(ran.hosts[0].totals.faults, 1, "{ran:#?}");
}

#[test]
fn trouble_with_one_file_does_not_hold_up_the_others() {
    let tree = Tree::of(&sizes());
    let server = tree
        .server()
        .fault(FaultRule::always(PathMatch::Exact("/pool/f5".into()), Fault::Status(500)))
        .start()
        .unwrap();
    let mut client = Client::new(&[&server]);
    let ran = client.fetch(&tree);
    assert_eq!((ran.verified.len(), ran.given_up.len()), (tree.files.len() - 1, 1), "{ran:#?}");
    assert!(!ran.given_up[0].missing);
    assert!(ran.took < Duration::from_secs(10), "{ran:#?}");
}

/// Serves a tree by the undecoded target; `+` must come as `%2B`.
struct PlusStore {
    url: String,
}

impl PlusStore {
    fn start(tree: &Tree) -> PlusStore {
        use std::io::{Read, Write};
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let root = tree.directory.path().to_owned();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, root) = (stream.unwrap(), root.clone());
                std::thread::spawn(move || {
                    let mut asked = Vec::new();
                    let mut buffer = [0; 4096];
                    while let Ok(bytes @ 1..) = stream.read(&mut buffer) {
                        asked.extend_from_slice(&buffer[..bytes]);
                        while let Some(end) = asked.windows(4).position(|four| four == b"\r\n\r\n") {
                            let head = String::from_utf8(asked.drain(..end + 4).collect()).unwrap();
                            let target = head.split(' ').nth(1).unwrap();
                            let file = (!target.contains('+'))
                                .then(|| target.trim_start_matches('/').replace("%2B", "+"))
                                .and_then(|path| std::fs::read(root.join(path)).ok());
                            let (status, body) = match file {
                                Some(body) => ("200 OK", body),
                                None => ("404 Not Found", b"not here\n".to_vec()),
                            };
                            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
                            if stream.write_all(&[head.as_bytes(), &body].concat()).is_err() {
                                return;
                            }
                        }
                    }
                });
            }
        });
        PlusStore { url }
    }
}
