//! Servers of HTTP/2 that take no requests, or wait for more of them: the run has an end.

#![allow(clippy::unwrap_used)]

mod common;

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::*;
use fullbore_testkit::random::noise;
use fullbore_wire::connect::ConnectOptions;
use fullbore_wire::tls::{Authorities, Tls, Trust};
use h2::server::Builder;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// A server that does this with each connection, on a thread until the test is over; its address, and how
/// to make a client that trusts it.
fn server<F>(serve: fn(TlsStream<TcpStream>) -> F) -> (String, Setup)
where
    F: Future<Output = ()> + Send + 'static,
{
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let chain = vec![certificate.der().clone()];
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols.push(b"h2".to_vec());
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let acceptor = TlsAcceptor::from(Arc::new(config));
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        serve(stream).await;
                    }
                });
            }
        });
    });
    let authorities = Authorities::parse(certificate.pem().as_bytes(), Path::new("test.pem")).unwrap();
    let mut setup = Setup::default();
    setup.options.connect = ConnectOptions { tls: Tls::new(Trust::Only(authorities)), ..ConnectOptions::default() };
    setup.options.limits.failures_until_dead = 3;
    (url, setup)
}

fn is_given_up((url, setup): (String, Setup)) -> Ran {
    let tree = Tree::of(&[1000, 2000]);
    let mut client = setup.client(&[url]);
    let ran = client.fetch(&tree);
    assert_eq!(ran.given_up.len(), 2, "{ran:#?}");
    assert!(ran.hosts[0].totals.connections < 60, "{ran:#?}");
    ran
}

#[test]
fn closes_after_the_handshake() {
    is_given_up(server(|stream| async move { drop(stream) }));
}

#[test]
fn says_goodbye_before_any_request() {
    is_given_up(server(|stream| async move {
        let Ok(mut session) = h2::server::handshake(stream).await else { return };
        session.graceful_shutdown();
        while session.accept().await.is_some() {}
    }));
}

#[test]
fn allows_no_streams() {
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
