//! Servers of HTTP/2 that take no requests, or wait for more of them: the run has an end.

#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/http2_server.rs"]
mod http2_server;

use std::time::{Duration, Instant};

use bytes::Bytes;
use common::*;
use fullbore_testkit::random::noise;
use h2::server::Builder;
use http2_server::server;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::server::TlsStream;

fn is_given_up((url, setup): (String, Setup)) -> Ran {
    let tree = Tree::of(&[1000, 2000]);
    let mut client = setup.client(&[url]);
    let ran = client.fetch(&tree);
    assert_eq!(ran.given_up.len(), 2, "{ran:#?}");
    assert!(ran.hosts[0].totals.connections < 60, "{ran:#?}");
    ran
}

#[test]
fn a_server_that_closes_after_the_handshake_is_given_up() {
    is_given_up(server(|stream| async move { drop(stream) }));
}

#[test]
fn a_server_that_says_goodbye_before_any_request_is_given_up() {
    is_given_up(server(|stream| async move {
        let Ok(mut session) = h2::server::handshake(stream).await else { return };
        session.graceful_shutdown();
        while session.accept().await.is_some() {}
    }));
}

#[test]
fn a_server_that_allows_no_streams_is_given_up() {
    let (url, mut setup) = server(|stream| async move {
        let handshake = Builder::new().max_concurrent_streams(0).handshake::<_, Bytes>(stream);
        let Ok(mut session) = handshake.await else { return };
        while session.accept().await.is_some() {}
    });
    setup.options.limits.silence = Duration::from_millis(500);
    is_given_up((url, setup));
}

/// Files that are as large as what is asked for ahead at least, and how many have to be asked for before one ends.
const HELD_FILES: u64 = 240;
const HELD_SIZE: usize = 256 << 10;
const HELD_AT_A_TIME: u64 = 60;

/// Answers all but the end at once, and ends when more has been asked for.
async fn hold_back(stream: TlsStream<TcpStream>) {
    let Ok(mut session) = h2::server::handshake(stream).await else { return };
    let asked = watch::Sender::new(0u64);
    while let Some(Ok((head, mut respond))) = session.accept().await {
        asked.send_modify(|asked| *asked += 1);
        let mut asked = asked.subscribe();
        let enough = (*asked.borrow()).next_multiple_of(HELD_AT_A_TIME);
        tokio::spawn(async move {
            let file: u64 = head.uri().path().strip_prefix("/pool/f").unwrap().parse().unwrap();
            let mut data = Bytes::from(noise(HELD_SIZE, file + 1));
            let end = data.split_off(HELD_SIZE - 1000);
            let mut body = respond.send_response(http::Response::new(()), false).unwrap();
            let _ = body.send_data(data, false);
            let _ = asked.wait_for(|asked| *asked >= enough).await;
            let _ = body.send_data(end, true);
        });
    }
}

#[test]
fn more_is_asked_for_as_answers_come_and_not_when_they_end() {
    let (url, mut setup) = server(hold_back);
    setup.options.limits.connections_per_host = 1;
    let tree = Tree::of(&[HELD_SIZE as u64; HELD_FILES as usize]);
    let mut client = setup.client(&[url]);
    // One file at each look that is due by time, four times a second: that would be longer than a run here may take.
    client.fetch(&tree).all_verified(&tree);
}

/// Says goodbye with each first request, and answers it.
async fn one_request_each(stream: TlsStream<TcpStream>) {
    let Ok(mut session) = h2::server::handshake(stream).await else { return };
    while let Some(Ok((head, mut respond))) = session.accept().await {
        session.graceful_shutdown();
        let file: u64 = head.uri().path().strip_prefix("/pool/f").unwrap().parse().unwrap();
        let mut body = respond.send_response(http::Response::new(()), false).unwrap();
        let _ = body.send_data(Bytes::from(noise(1000, file + 1)), true);
    }
}

#[test]
fn goaway_after_each_request_costs_pauses() {
    let (url, mut setup) = server(one_request_each);
    setup.options.limits.pipeline_depth = 1;
    setup.options.limits.connections_per_host = 1;
    let tree = Tree::of(&[1000; 12]);
    let begun = Instant::now();
    let ran = setup.client(&[url]).fetch(&tree);
    ran.all_verified(&tree);
    // Two pauses at least, of 250 and 500 ms; the run goes on all the same.
    assert!(begun.elapsed() > Duration::from_millis(750), "{ran:#?}");
    assert!(ran.hosts[0].totals.connections >= 10, "{ran:#?}");
}
