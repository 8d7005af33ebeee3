//! What `-v` tells of the network: connections, faults, retries, and never a secret.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

use fullbore_testkit::server::{Fault, FaultRule, PathMatch, Server};
use harness::{Mirror, common};

/// A mirror run with these faults of the second host, told in detail.
fn told(level: &str, rules: Vec<FaultRule>, more: &[&str]) -> String {
    let archive = common();
    let (good, bad) = (Server::start(&archive.state(0).root).unwrap(), Server::start(&archive.state(0).root).unwrap());
    rules.into_iter().for_each(|rule| bad.add_fault(rule));
    let mirror = Mirror::new(archive);
    mirror.run_with(&[&good, &bad], &[&[level], more].concat()).exits(0).stderr
}

/// The lines of the libraries' log that have all of these texts.
fn lines<'a>(text: &'a str, with: &[&str]) -> Vec<&'a str> {
    text.lines().filter(|line| line.contains(" fullbore_") && with.iter().all(|part| line.contains(part))).collect()
}

#[test]
fn connections_are_told() {
    let text = told("-v", Vec::new(), &[]);
    assert!(!lines(&text, &["INFO", "connected to 127.0.0.1:", "HTTP/1.1", " ms"]).is_empty(), "{text}");
    let quiet = told("--quiet", Vec::new(), &[]);
    assert!(lines(&quiet, &[]).is_empty(), "{quiet}");
}

#[test]
fn a_refused_port_is_told() {
    // No server of another test gets this port, as one that was free a moment ago.
    const NOBODY: &str = "127.0.0.1:1";
    let good = Server::start(&common().state(0).root).unwrap();
    // Slow enough that the other one is asked as well.
    good.change(|own| own.connection_rate_bytes_per_s = Some(50_000));
    let more = ["-v", "--from", &format!("http://{NOBODY}")];
    let text = Mirror::new(common()).run_with(&[&good], &more).exits(0).stderr;
    assert!(!lines(&text, &["INFO", NOBODY, "refused"]).is_empty(), "{text}");
}

#[test]
fn a_missing_file_is_told_with_its_name() {
    let (good, bad) =
        (Server::start(&common().state(0).root).unwrap(), Server::start(&common().state(0).root).unwrap());
    good.change(|own| own.connection_rate_bytes_per_s = Some(50_000));
    bad.add_fault(FaultRule::always(PathMatch::Prefix("/pool/".into()), Fault::Status(404)));
    let text = Mirror::new(common()).run_with(&[&good, &bad], &["-vv"]).exits(0).stderr;
    assert!(!lines(&text, &["pool/", "404"]).is_empty(), "{text}");
    assert!(!lines(&text, &["INFO", "pool/", "asked for again"]).is_empty(), "{text}");
}

#[test]
fn a_part_that_breaks_off_is_asked_for_again() {
    let (good, bad) =
        (Server::start(&common().state(0).root).unwrap(), Server::start(&common().state(0).root).unwrap());
    bad.add_fault(FaultRule::always(PathMatch::Prefix("/pool/".into()), Fault::Truncate));
    good.change(|own| own.connection_rate_bytes_per_s = Some(50_000));
    let text = Mirror::new(common()).run_with(&[&good, &bad], &["-v"]).exits(0).stderr;
    assert!(!lines(&text, &["INFO", "connection ended: "]).is_empty(), "{text}");
    assert!(!lines(&text, &["INFO", "pool/", "asked for again, from byte "]).is_empty(), "{text}");
}

#[test]
fn a_stalled_host_is_told() {
    let (good, bad) =
        (Server::start(&common().state(0).root).unwrap(), Server::start(&common().state(0).root).unwrap());
    bad.add_fault(FaultRule::always(PathMatch::Prefix("/pool/".into()), Fault::Stall));
    // It has been silent for long when the good one has nothing else to do.
    good.change(|own| own.connection_rate_bytes_per_s = Some(50_000));
    let text = Mirror::new(common()).run_with(&[&good, &bad], &["-vv"]).exits(0).stderr;
    let host = bad.url().replace("http://", "");
    // Whichever comes first: the good one takes its work, or its connections are given up.
    let is_told = |what: &str| !lines(&text, &[&host, what]).is_empty();
    assert!(is_told("taken over") || is_told("connection ended: too slow"), "{text}");
}

#[test]
fn a_redirect_is_told_and_no_secret_is() {
    let archive = common();
    let elsewhere = Server::start(&archive.state(0).root).unwrap();
    let origin = Server::builder(&archive.state(0).root)
        .behaviour(|behaviour| behaviour.authorization = Some("Basic dXM6c2VrcmV0".to_owned()))
        .fault(FaultRule::always(PathMatch::Prefix("/pool/".into()), Fault::Redirect(elsewhere.url())))
        .start()
        .unwrap();
    let from = origin.url().replace("http://", "http://us:sekret@");
    let mirror = Mirror::new(archive);
    let mut command = mirror.command(&[], &["-vvv", "--from", &from]);
    let ran =
        mirror.finish(std::mem::replace(command.env("FULLBORE_LOG", "trace"), std::process::Command::new("true")));
    let text = ran.exits(0).stderr;
    assert!(!lines(&text, &["INFO", "redirect"]).is_empty(), "{text}");
    assert!(!text.contains("sekret") && !text.contains("dXM6c2VrcmV0"), "{text}");
}
