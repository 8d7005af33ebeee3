//! Downloads from a store that answers when the test wants it to.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use fullbore_engine::window::Window;
use fullbore_s3::{
    Addressing, Bucket, CallError, Client, CredentialCache, DownloadError, Feature, Options, Support, download,
};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

/// Bytes of each object: more than three ranges, however large those are.
const OBJECT_BYTES: u64 = 40 << 20;

/// Objects that are got at once.
const OBJECTS: usize = 4;

/// Longest time of a download that ends.
const LIMIT: Duration = Duration::from_secs(60);

/// Serves one connection of a store whose objects are all zeros. Without `ranges` it sends the beginning of an object
/// and then nothing. Answers to HEAD wait until all of `heads` are asked for.
fn serve(stream: TcpStream, ranges: bool, heads: &Barrier) -> Option<()> {
    let mut stream = BufReader::new(stream);
    let zeros = vec![0; 1 << 20];
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok().filter(|count| *count > 0)?;
        let is_head = line.starts_with("HEAD");
        let mut range = None;
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            if name.eq_ignore_ascii_case("range") {
                let (first, last) = value.trim().strip_prefix("bytes=")?.split_once('-')?;
                range = Some((first.parse::<u64>().ok()?, last.parse::<u64>().ok()?.min(OBJECT_BYTES - 1)));
            }
        }
        let (status, length) = match range.filter(|_| ranges) {
            Some((first, last)) => {
                (format!("206 Partial Content\r\nContent-Range: bytes {first}-{last}/{OBJECT_BYTES}"), last + 1 - first)
            }
            None => ("200 OK".to_owned(), OBJECT_BYTES),
        };
        if is_head {
            heads.wait();
        }
        let answer = format!("HTTP/1.1 {status}\r\nETag: \"x\"\r\nContent-Length: {length}\r\n\r\n");
        stream.get_mut().write_all(answer.as_bytes()).ok()?;
        if is_head {
            continue;
        }
        let mut left = length;
        while left > 0 {
            let bytes = left.min(zeros.len() as u64);
            stream.get_mut().write_all(&zeros[..bytes as usize]).ok()?;
            left -= bytes;
            if !ranges {
                // Until the client goes away.
                return stream.read_line(&mut String::new()).ok().map(|_| ());
            }
        }
    }
}

/// A client of such a store, and what stops it.
fn client(ranges: bool, heads: usize) -> (Client, watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let heads = Arc::new(Barrier::new(heads));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let heads = Arc::clone(&heads);
            std::thread::spawn(move || serve(stream, ranges, &heads));
        }
    });
    let bucket = Bucket::new("bucket", Some(&url), "us-east-1", Addressing::Path).unwrap();
    let (stop, stopped) = watch::channel(false);
    (Client::new(bucket, CredentialCache::anonymous(), Options::new(LIMIT), stopped), stop)
}

#[test]
fn objects_whose_ranges_share_a_small_window_do_not_wait_for_each_other() {
    // One thread, which begins the last task that it was given first.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (client, _stop) = client(true, OBJECTS);
    let window = Window::new(u64::MAX, OBJECTS as u32);
    let got = runtime.block_on(async {
        let tasks: Vec<_> = (0..OBJECTS)
            .map(|number| {
                let (client, window) = (client.clone(), window.clone());
                let (out, mut pieces) = mpsc::channel::<Vec<bytes::Bytes>>(1);
                tokio::spawn(async move {
                    let (key, known) = (format!("object-{number}"), AtomicU64::new(0));
                    let reading = async move {
                        let mut bytes = 0;
                        while let Some(range) = pieces.recv().await {
                            bytes += range.iter().map(|piece| piece.len() as u64).sum::<u64>();
                        }
                        bytes
                    };
                    let getting = async {
                        let got = download(&client, &key, &window, &out, false, &known).await;
                        drop(out);
                        got.unwrap().size
                    };
                    tokio::join!(getting, reading)
                })
            })
            .collect();
        let mut got = Vec::new();
        for task in tasks {
            got.push(timeout(LIMIT, task).await.expect("the download hangs").unwrap());
        }
        got
    });
    assert_eq!(got, [(OBJECT_BYTES, OBJECT_BYTES); OBJECTS]);
    assert_eq!(window.reading().held_items, 0);
}

#[test]
fn a_stop_ends_the_download_of_an_object_without_ranges() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (client, stop) = client(false, 1);
    client.dialect().learn(Feature::Ranges, Support::Lacking);
    let got = runtime.block_on(async {
        let (out, mut pieces) = mpsc::channel(1);
        let known = AtomicU64::new(0);
        let window = Window::new(u64::MAX, 1);
        let getting = download(&client, "object", &window, &out, false, &known);
        let stopping = async {
            // When content is there.
            pieces.recv().await;
            assert_eq!(known.load(Ordering::Relaxed), OBJECT_BYTES);
            stop.send(true).unwrap();
            while pieces.recv().await.is_some() {}
        };
        tokio::pin!(stopping);
        tokio::select! {
            got = timeout(LIMIT / 6, getting) => got.expect("the stop does not end the download"),
            () = &mut stopping => unreachable!("the download holds its channel"),
        }
    });
    assert!(matches!(got, Err(DownloadError::Call(CallError::Interrupted))), "{got:?}");
}
