//! Small files in memory: the first of a chain of trust.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::*;
use fullbore_engine::digest::Sha256;
use fullbore_testkit::server::{Fault, FaultRule, Life, PathMatch};
use fullbore_wire::fetch::{FetchOptions, Get, GetError};

fn get(path: &str, limit_bytes: u64) -> Get {
    Get { path: path.into(), limit_bytes, ..Get::default() }
}

#[test]
fn a_file_is_found_unchanged_missing_or_too_large() {
    let tree = Tree::of(&[1000]);
    let server = tree.good();
    let client = Client::new(&[&server]);
    let found = client.get(0, get("pool/f0", 5000)).unwrap();
    assert_eq!((found.head.status, found.body.len()), (200, 1000));
    let known = Get { if_none_match: found.head.etag.clone(), ..get("pool/f0", 5000) };
    let unchanged = client.get(0, known).unwrap();
    assert_eq!((unchanged.head.status, unchanged.body.len()), (304, 0));
    assert_eq!(client.get(0, get("pool/none", 5000)).unwrap().head.status, 404);
    let large = client.get(0, get("pool/f0", 999));
    assert!(matches!(large, Err(GetError::TooLarge { limit_bytes: 999, .. })), "{large:?}");
    // A run that finds nothing new opens one connection; being too large cost another.
    assert!(server.counters().connections <= 2);
    assert_eq!(client.get(0, get("pool/f0", 1000)).unwrap().body.len(), 1000);
}

#[test]
fn a_request_for_the_head_alone_gets_no_body() {
    let tree = Tree::of(&[1000]);
    let server = tree.good();
    let client = Client::new(&[&server]);
    let head = client.get(0, Get { head_only: true, ..get("pool/f0", 5000) }).unwrap();
    assert_eq!((head.head.content_length, head.body.len()), (Some(1000), 0));
}

#[test]
fn a_host_that_cannot_be_reached_is_told_soon() {
    let tree = Tree::of(&[1000]);
    let server = tree.good();
    server.live(Life::Refusing);
    let client = Client::new(&[&server]);
    let began = std::time::Instant::now();
    let refused = client.get(0, get("pool/f0", 5000));
    assert!(matches!(refused, Err(GetError::Unreachable { .. })), "{refused:?}");
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_name_that_may_not_be_looked_up_is_refused_for_good() {
    let client = Setup::default().client(&["http://x.onion/".to_owned()]);
    for _ in 0..2 {
        let refused = client.get(0, get("pool/f0", 5000));
        let Err(GetError::Final { reason, .. }) = refused else { panic!("{refused:?}") };
        assert!(reason.contains(".onion"), "{reason}");
    }
}

#[test]
fn a_redirect_of_a_small_file_is_followed() {
    let tree = Tree::of(&[1000]);
    let target = tree.good();
    let server = tree.faulty(Fault::Redirect(target.url()));
    let client = Client::new(&[&server]);
    let found = client.get(0, get("pool/f0", 5000)).unwrap();
    assert_eq!((found.head.status, found.body.len()), (200, 1000));
    let there = client.get(0, get("pool/f0", 5000)).unwrap();
    assert_eq!((there.head.status, target.counters().requests), (200, 2));
}

#[test]
fn redirected_to_nowhere_is_told_as_it_is() {
    let tree = Tree::of(&[1000]);
    let server = tree.faulty(Fault::RedirectLoop);
    let client = Client::new(&[&server]);
    assert_eq!(client.get(0, get("pool/f0", 5000)).unwrap().head.status, 302);
}

#[test]
fn reset_in_the_middle_is_an_error_and_the_next_try_is_answered() {
    let tree = Tree::of(&[100_000]);
    let server = tree.server().fault(FaultRule::once(PathMatch::Any, Fault::Reset)).start().unwrap();
    let client = Client::new(&[&server]);
    assert!(client.get(0, get("pool/f0", MIB)).is_err());
    assert_eq!(client.get(0, get("pool/f0", MIB)).unwrap().body.len(), 100_000);
}

#[test]
fn the_next_after_a_long_pause_is_answered() {
    let tree = Tree::of(&[1000]);
    let server = tree.good();
    let client = Client::new(&[&server]);
    assert!(client.get(0, get("pool/f0", 5000)).is_ok());
    // The server drops its idle connections, as they do after some seconds.
    server.live(Life::Refusing);
    std::thread::sleep(Duration::from_millis(50));
    server.live(Life::Alive);
    std::thread::sleep(Duration::from_millis(50));
    assert!(client.get(0, get("pool/f0", 5000)).is_ok());
}

#[test]
fn a_file_arrives_as_a_stream_up_to_its_limit() {
    let tree = Tree::of(&[3_000_000]);
    let server = tree.good();
    let client = Client::new(&[&server]);
    let (head, body) = client.stream(0, get("pool/f0", 3_000_000)).unwrap();
    assert_eq!((head.status, head.content_length), (200, Some(3_000_000)));
    assert!(Sha256::of(&body.unwrap()) == tree.files[0].sha256);
    let (_, body) = client.stream(0, get("pool/f0", 2_999_999)).unwrap();
    // A reader that is behind has no room for the error, and sees that the end is missing.
    let error = body.unwrap_err();
    assert!(error.contains("larger than 2999999 bytes") || error == "no end", "{error}");
    assert_eq!(client.stream(0, get("pool/none", 100)).unwrap().0.status, 404);
    server.live(Life::Refusing);
    assert!(matches!(client.stream(0, get("pool/f0", MIB)), Err(GetError::Unreachable { .. })));
}

#[test]
fn a_stream_that_breaks_off_has_no_end() {
    let tree = Tree::of(&[100_000]);
    for fault in [Fault::Reset, Fault::Truncate] {
        let server = tree.faulty(fault);
        let client = Client::new(&[&server]);
        if let Ok((_, body)) = client.stream(0, get("pool/f0", MIB)) {
            body.unwrap_err();
        }
    }
}

#[test]
fn encoded_paths_other_fields_and_another_name_go_out_as_they_are() {
    let mut tree = Tree::of(&[]);
    tree.add("a/x+y.deb", 10);
    let server = tree.good();
    let options =
        FetchOptions { paths_are_encoded: true, user_agent: Some("Other/1".into()), ..FetchOptions::default() };
    let client = Setup { options, ..Setup::default() }.client(&[server.url()]);
    let fields = vec![("Cache-Control".to_owned(), "max-age=0".to_owned())];
    let found = client.get(0, Get { fields, ..get("a/x%2by.deb", 100) }).unwrap();
    assert_eq!(found.head.status, 200);
    let log = server.log();
    let header =
        |name: &str| log[0].headers.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str());
    assert_eq!((header("User-Agent"), header("Cache-Control")), (Some("Other/1"), Some("max-age=0")));
    assert!(client.get(0, get("../a", 100)).is_err(), "it would leave the mirror's address");
}
