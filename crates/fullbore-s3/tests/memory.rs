//! Memory of a process that puts a long pipe into an S3 store, in parts too large for memory. The only test of its binary:
//! what is measured is the process.

#![allow(clippy::unwrap_used)]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fullbore_engine::window::Window;
use fullbore_s3::{Addressing, Bucket, Client, CredentialCache, Growth, Options, Uploader};
use tokio::sync::watch;

/// The window of memory.
const WINDOW_BYTES: u64 = 64 << 20;

/// Serves one connection of a store that throws everything away; `got` counts the bytes of parts, and `largest` has the
/// largest one's.
fn throw_away(stream: TcpStream, got: &AtomicU64, largest: &AtomicU64) -> Option<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok().filter(|count| *count > 0)?;
        let (method, target) = line.split_once(' ')?;
        let (is_part, begins) = (method == "PUT", target.contains("?uploads"));
        let mut length = 0;
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().ok()?;
            }
        }
        io::copy(&mut (&mut stream).take(length), &mut io::sink()).ok()?;
        if is_part {
            got.fetch_add(length, Ordering::Relaxed);
            largest.fetch_max(length, Ordering::Relaxed);
        }
        let body = match begins {
            true => "<R><UploadId>1</UploadId></R>",
            false => "<R><ETag>\"x\"</ETag></R>",
        };
        let answer = format!("HTTP/1.1 200 OK\r\nETag: \"x\"\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        stream.get_mut().write_all(answer.as_bytes()).ok()?;
    }
}

/// Most memory that this process had, bytes.
fn peak_rss() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn a_pipe_in_parts_that_are_kept_in_files_stays_within_the_window() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (got, largest) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (count, most) = (Arc::clone(&got), Arc::clone(&largest));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (count, most) = (Arc::clone(&count), Arc::clone(&most));
            std::thread::spawn(move || throw_away(stream, &count, &most));
        }
    });
    let bucket = Bucket::new("bucket", Some(&url), "us-east-1", Addressing::Path).unwrap();
    let options = Options::new(Duration::from_secs(60));
    let (_stop, stopped) = watch::channel(false);
    // Not /tmp, which may be in memory.
    let spool = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let window = Window::new(WINDOW_BYTES, u32::MAX);
    let client = Client::new(bucket, CredentialCache::anonymous(), options, stopped);
    let mut uploader = Uploader::new(client, window, spool.path());
    uploader.growth = Growth { double_after: 4, then_after: 4, ..Growth::default() };
    // Four parts each of 8, 16, 32 and 64 MiB.
    let size = 480 << 20;
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let put = runtime
        .block_on(uploader.put_pipe("pipe", Vec::new(), io::repeat(7).take(size), std::future::pending()))
        .unwrap();
    assert_eq!((put.size, got.load(Ordering::Relaxed), largest.load(Ordering::Relaxed)), (size, size, 64 << 20));
    let peak = peak_rss();
    assert!(peak < 2 * WINDOW_BYTES, "{} MiB", peak >> 20);
}
