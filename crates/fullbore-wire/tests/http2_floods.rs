//! Servers of HTTP/2 that send frames without content, without an end. A program of its own, because the test looks at
//! the memory of its process.

#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/http2_server.rs"]
mod http2_server;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::*;
use fullbore_wire::fetch::{Get, GetError};
use http2_server::server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// Heads that a server sends at most.
const HEADS: usize = 1_000_000;

/// What the issue of the flood allows; without a limit it was 2.9 GB.
const RSS_MAX_KB: u64 = 100_000;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Sends SETTINGS, and nothing else.
async fn settings(stream: TlsStream<TcpStream>) {
    let many = frame(4, 0, 0, &[]).repeat(500);
    // Into the void: the replies must not stop the flood.
    let (mut replies, mut flood) = tokio::io::split(stream);
    tokio::spawn(async move { tokio::io::copy(&mut replies, &mut tokio::io::sink()).await });
    while flood.write_all(&many).await.is_ok() {}
}

static GOODBYES: AtomicUsize = AtomicUsize::new(0);

/// Says GOAWAY to the first request without an answer, and leaves it to the client to close.
async fn goodbye(mut stream: TlsStream<TcpStream>) {
    GOODBYES.fetch_add(1, Ordering::Relaxed);
    let _ = stream.write_all(&[frame(4, 0, 0, &[]), frame(7, 0, 0, &[0; 8])].concat()).await;
    let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
}

/// Says `103` to the first request, with 900 fields that are one byte each on the wire (HPACK).
async fn interim_heads(mut stream: TlsStream<TcpStream>) {
    let mut preface = [0; 24];
    stream.read_exact(&mut preface).await.unwrap();
    let _ = stream.write_all(&frame(4, 0, 0, &[])).await;
    let id = loop {
        let mut head = [0; 9];
        if stream.read_exact(&mut head).await.is_err() {
            return;
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload).await.unwrap();
        if head[3] == 1 {
            break u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        }
    };
    let status = [0x08, 3, b'1', b'0', b'3'];
    // A field for the table; index 62 is then its name and value.
    let first = [&status[..], &[0x40, 1, b'a', 1, b'b']].concat();
    let further = [&status[..], &[0xbe; 900]].concat();
    let _ = stream.write_all(&frame(1, 4, id, &first)).await;
    let many = frame(1, 4, id, &further).repeat(100);
    for _ in 0..HEADS / 100 {
        if stream.write_all(&many).await.is_err() {
            return;
        }
    }
}

fn most_memory_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn endless_interim_heads_take_no_memory() {
    let tree = Tree::of(&[20_000; 50]);
    // Beside a good mirror, everything arrives.
    let (url, setup) = server(interim_heads);
    let good = tree.slow(200_000);
    let ran = setup.client(&[url, good.url()]).fetch(&tree);
    ran.all_verified(&tree);
    assert!(ran.hosts[0].totals.faults > 0, "{ran:#?}");
    // Alone, the run has an end.
    let begun = Instant::now();
    let (url, setup) = server(interim_heads);
    let ran = setup.client(&[url]).fetch(&tree);
    assert_eq!(ran.given_up.len(), 50, "{ran:#?}");
    assert!(begun.elapsed() < Duration::from_secs(60), "{ran:#?}");
    let most = most_memory_kb();
    assert!(most < RSS_MAX_KB, "{most} KB");
}

#[test]
fn endless_settings_do_not_pass_for_a_slow_server() {
    let tree = Tree::of(&[20_000; 5]);
    let (url, setup) = server(settings);
    let begun = Instant::now();
    let ran = setup.client(&[url]).fetch(&tree);
    assert_eq!(ran.given_up.len(), 5, "{ran:#?}");
    assert!(format!("{ran:?}").contains("frames without content"), "{ran:#?}");
    // Silence is waited for longer than that.
    assert!(begun.elapsed() < Duration::from_secs(20), "{ran:#?}");
}

#[test]
fn goodbyes_without_an_answer_are_no_endless_connections() {
    let (url, setup) = server(goodbye);
    let client = setup.client(&[url]);
    let begun = Instant::now();
    let got = client.get(0, Get { path: "pool/f0".into(), limit_bytes: 1000, ..Get::default() });
    assert!(matches!(got, Err(GetError::Unreachable { .. })), "{got:?}");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let goodbyes = GOODBYES.load(Ordering::Relaxed);
    assert!((1..=8).contains(&goodbyes), "{goodbyes} connections");
}
