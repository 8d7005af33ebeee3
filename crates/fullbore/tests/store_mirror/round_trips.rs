//! The time of a run that finds nothing new, over long ways to the store and to the origin.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;

use fullbore_testkit::server::{TestCa, TlsSpec};

use super::servers::{versitygw_with_keep_alive, versitygw_with_tls};
use super::*;

const ROUND_TRIP: Duration = Duration::from_millis(100);

/// Time of the process itself, on an idle machine.
const OWN_TIME: Duration = Duration::from_millis(50);

/// Runs of which the fastest counts: the machine has other work.
const RUNS: usize = 8;

/// A long way to this server: all bytes take half a round trip, and the first of a connection one more, in which it would
/// be made.
fn far(server: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (scheme, server) = server.split_once("://").unwrap();
    let (url, server) =
        (format!("{scheme}://{}", listener.local_addr().unwrap()), server.trim_end_matches('/').to_owned());
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(there) = TcpStream::connect(&server) else { continue };
            let made = Instant::now() + ROUND_TRIP;
            let (from, to) = (near.try_clone().unwrap(), there.try_clone().unwrap());
            near.set_nodelay(true).unwrap();
            there.set_nodelay(true).unwrap();
            delay(from, to, made);
            delay(there, near, made);
        }
    });
    url
}

/// Passes bytes on after half a round trip, and not before the connection is made.
fn delay(mut from: TcpStream, mut to: TcpStream, made: Instant) {
    let (sender, receiver) = mpsc::channel::<(Instant, Vec<u8>)>();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(count) = from.read(&mut buffer) {
            let due = Instant::now().max(made) + ROUND_TRIP / 2;
            if count == 0 || sender.send((due, buffer[..count].to_vec())).is_err() {
                return;
            }
        }
    });
    std::thread::spawn(move || {
        for (due, bytes) in receiver {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                return;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
}

/// On a busy machine the process takes longer than the ways.
#[test]
#[ignore = "long"]
fn nothing_new_takes_four_round_trips_at_most() {
    takes_at_most(4, &versitygw_with_keep_alive().url, &served(0).url(), &[]);
}

/// One more is for the keys.
#[test]
#[ignore = "long"]
fn nothing_new_takes_five_round_trips_at_most_with_tls() {
    let (store, authority) = (versitygw_with_tls(), TestCa::new().unwrap());
    let builder = Server::builder(&common().state(0).root);
    let origin = builder.tls(&authority, &TlsSpec::default()).unwrap().start().unwrap();
    let both = store.directory.path().join("both.pem");
    fs::write(&both, fs::read_to_string(store.directory.path().join("cert.pem")).unwrap() + authority.pem()).unwrap();
    let store_url = store.url.replace("http://", "https://");
    takes_at_most(5, &store_url, &origin.url(), &["--cacert", both.to_str().unwrap()]);
}

fn takes_at_most(round_trips: u32, store: &str, origin: &str, flags: &[&str]) {
    let run = |endpoint: &str, from: &str, more: &[&str]| {
        let bucket = Bucket::at(endpoint);
        let mut command = bucket.mirror.command(&[], &[&["--from", from], flags, more].concat());
        command.args(["--endpoint", endpoint]).envs(bucket.keys.iter().copied());
        let began = Instant::now();
        (bucket.mirror.finish(command), began.elapsed())
    };
    run(store, origin, &[]).0.exits(0);
    let best = |endpoint: &str, from: &str| {
        let times = (0..RUNS).map(|_| {
            let (ran, time) = run(endpoint, from, &["--changed-exit"]);
            ran.exits(10);
            time
        });
        times.min().unwrap()
    };
    // The process has its own time, and more on a busy machine.
    let near = best(store, origin);
    let far = best(&far(store), &far(origin));
    println!("{near:?} without, {far:?} with round trips of {ROUND_TRIP:?}");
    let most = round_trips * ROUND_TRIP;
    assert!(far.saturating_sub(near) <= most + ROUND_TRIP / 2, "{near:?} without, {far:?} with round trips");
    assert!(far >= most - ROUND_TRIP, "the way is as long as it should be: {far:?}");
    if near <= OWN_TIME {
        assert!(far <= most + OWN_TIME, "{far:?}");
    }
}
