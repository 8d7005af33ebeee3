//! An origin that is busy, breaks off or is gone: what a run does before it follows another mirror or gives up.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

use fullbore_testkit::archive::Archive;
use fullbore_testkit::server::{Fault, FaultRule, Life, PathMatch, Server};
use harness::{Mirror, common, own_archive, published, verified};

fn named(name: &str) -> PathMatch {
    PathMatch::Suffix(format!("/{name}"))
}

fn asked_for(server: &Server) -> Vec<String> {
    let name = |path: String| path.rsplit('/').next().unwrap_or_default().to_owned();
    server.take_log().into_iter().map(|entry| name(entry.path)).collect()
}

/// A mirror of state 0, and a server that has state 1 by now.
fn updating(archive: &Archive) -> (Mirror, Server) {
    let server = Server::start(&archive.state(0).root).unwrap();
    let mirror = Mirror::new(archive);
    mirror.run(&[&server]).exits(0);
    server.switch_root(&archive.state(1).root);
    server.take_log();
    (mirror, server)
}

#[test]
fn one_break_or_busy_moment_of_the_only_origin_is_waited_for() {
    let archive = common();
    for fault in [Fault::Reset, Fault::Status(500), Fault::RetryAfter { status: 429, seconds: 1 }] {
        let server = Server::builder(&archive.state(1).root);
        let server = server.fault(FaultRule::once(named("InRelease"), fault.clone())).start().unwrap();
        let mirror = Mirror::new(archive);
        mirror.run(&[&server]).exits(0);
        verified(&mirror.to, archive, 1);
        let asked = asked_for(&server);
        assert_eq!(asked.iter().filter(|name| *name == "InRelease").count(), 2, "{fault:?}: {asked:?}");
    }
}

#[test]
fn a_signature_whose_host_is_busy_is_not_one_that_is_missing() {
    let (_directory, archive) = own_archive(|builder| builder);
    let (mirror, server) = updating(&archive);
    let before = mirror.tree();
    server.add_fault(FaultRule::always(named("InRelease"), Fault::Status(404)));
    server.add_fault(FaultRule::always(named("Release.gpg"), Fault::Status(503)));
    mirror.run(&[&server]).exits(3).says("Release.gpg: 503").says("overloaded");
    assert_eq!(before, mirror.tree());
    let server = Server::builder(&archive.state(1).root)
        .fault(FaultRule::always(named("InRelease"), Fault::Status(404)))
        .fault(FaultRule::once(named("Release.gpg"), Fault::Status(503)));
    mirror.run(&[&server.start().unwrap()]).exits(0);
}

#[test]
fn an_inrelease_that_its_host_has_no_time_for_is_not_taken_for_missing() {
    let archive = common();
    let (mirror, server) = updating(archive);
    let before = mirror.tree();
    for status in [500, 503] {
        server.change(|behaviour| behaviour.faults.clear());
        server.add_fault(FaultRule::always(named("InRelease"), Fault::Status(status)));
        mirror.run(&[&server]).exits(3).says(&format!("InRelease: {status}")).says("overloaded");
        assert_eq!(before, mirror.tree());
        assert!(asked_for(&server).iter().all(|name| name == "InRelease"));
    }
}

#[test]
fn an_origin_that_asks_for_a_long_pause_is_asked_once() {
    let archive = common();
    let (mirror, server) = updating(archive);
    let before = mirror.tree();
    server.add_fault(FaultRule::always(PathMatch::Any, Fault::RetryAfter { status: 429, seconds: 1800 }));
    mirror.run(&[&server]).exits(3).says("InRelease: 429, asks for a pause of 1800 s").says("overloaded");
    assert_eq!(asked_for(&server), ["InRelease"]);
    assert_eq!(before, mirror.tree());
    // Another mirror stands in for it.
    let other = Server::start(&archive.state(1).root).unwrap();
    mirror.run(&[&server, &other]).exits(0).says("cannot use the origin").says(&other.url());
    verified(&mirror.to, archive, 1);
}

#[test]
fn a_dead_origin_is_replaced_by_the_newest_of_the_others() {
    let archive = common();
    let dead = Server::start(&archive.state(1).root).unwrap();
    dead.live(Life::Refusing);
    let servers = [0, 1].map(|state| Server::start(&archive.state(state).root).unwrap());
    let [old, new] = &servers;
    for others in [[old, new], [new, old]] {
        let mirror = Mirror::new(archive);
        let ran = mirror.run(&[&dead, others[0], others[1]]).exits(0);
        ran.says(&format!("cannot use the origin {}", dead.url())).says(&format!("this run uses {}", new.url()));
        assert_eq!(published(&mirror.to, archive), Some(1));
        verified(&mirror.to, archive, 1);
    }
}

#[test]
fn an_archive_behind_signed_addresses_is_mirrored() {
    let archive = common();
    let store = Server::start(&archive.state(0).root).unwrap();
    let rule = FaultRule::always(PathMatch::Any, Fault::RedirectSigned(store.url()));
    let server = Server::builder(&archive.state(0).root).fault(rule).start().unwrap();
    let mirror = Mirror::new(archive);
    let ran = mirror.run(&[&server]).exits(0);
    verified(&mirror.to, archive, 0);
    assert_eq!(ran.report["summary"]["hosts"][0]["strikes"], 0, "{ran:?}");
    // Nothing new: the question is conditional there as well.
    store.take_log();
    mirror.run(&[&server]).exits(0);
    assert_eq!(store.take_log().iter().map(|entry| entry.status).collect::<Vec<_>>(), [304]);
}

#[test]
fn a_refused_release_names_the_mirror_that_it_came_from() {
    let (_directory, archive) = own_archive(|builder| builder);
    let (mirror, server) = updating(&archive);
    mirror.run(&[&server]).exits(0);
    server.live(Life::Refusing);
    let old = Server::start(&archive.state(0).root).unwrap();
    mirror.run(&[&server, &old]).exits(5).says(&format!("from {}", old.url()));
    archive.forge(1, "trixie").valid_until(1_700_000_000).unwrap();
    let expired = Server::start(&archive.state(1).root).unwrap();
    let ran = mirror.run(&[&server, &expired]).exits(5).says("valid until");
    assert!(ran.stderr.contains(&format!("from {}", expired.url())), "{}", ran.stderr);
    assert!(!ran.stderr.contains(&format!("from {}", server.url())), "{}", ran.stderr);
}
