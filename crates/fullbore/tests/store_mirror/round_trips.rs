//! The time of a run that finds nothing new, over long ways to the store and to the origin.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;

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
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = server.trim_start_matches("http://").to_owned();
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
    let store = versitygw();
    let origin = served(0);
    let run = |endpoint: &str, from: &str, more: &[&str]| {
        let bucket = Bucket::at(endpoint);
        let mut command = bucket.mirror.command(&[], &[&["--from", from], more].concat());
        command.args(["--endpoint", endpoint]).envs(bucket.keys.iter().copied());
        let began = Instant::now();
        (bucket.mirror.finish(command), began.elapsed())
    };
    run(&store.url, &origin.url(), &[]).0.exits(0);
    let best = |endpoint: &str, from: &str| {
        let times = (0..RUNS).map(|_| {
            let (ran, time) = run(endpoint, from, &["--changed-exit"]);
            ran.exits(10);
            time
        });
        times.min().unwrap()
    };
    // The process has its own time, and more on a busy machine.
    let near = best(&store.url, &origin.url());
    let far = best(&far(&store.url), &far(&origin.url()));
    println!("{near:?} without, {far:?} with round trips of {ROUND_TRIP:?}");
    assert!(far.saturating_sub(near) <= 4 * ROUND_TRIP + ROUND_TRIP / 2, "{near:?} without, {far:?} with round trips");
    assert!(far >= 3 * ROUND_TRIP, "the way is as long as it should be: {far:?}");
    if near <= OWN_TIME {
        assert!(far <= 4 * ROUND_TRIP + OWN_TIME, "{far:?}");
    }
}
