use std::os::unix::net::UnixStream;

use super::*;
use crate::queue::Taken;
use crate::wire::Run;

/// Longer than any busy machine needs for what takes microseconds.
const PATIENCE: Duration = Duration::from_secs(60);

fn record(sequence: u64) -> Message {
    Message::Holes { sequence, id: 1, run: Run { first: 0, count: 1 } }
}

/// One end with two connections for content, and the other end.
fn pair(ledger: &Ledger) -> [(Link, Brake, Transport); 2] {
    let ends = [true, false].map(|sends| {
        let link = Link::remote();
        let brake = Brake::new(&link);
        let transport = Transport::new(&link, &brake, sends, ledger, None);
        (link, brake, transport)
    });
    for _ in 0..2 {
        let (one, other) = UnixStream::pair().unwrap();
        for (socket, (_, _, transport)) in [one, other].into_iter().zip(&ends) {
            transport.add(Lane::pipe(socket.try_clone().unwrap(), socket), false, false);
        }
    }
    ends
}

#[test]
fn what_a_connection_has_gathered_goes_out_though_another_one_takes_what_comes_next() {
    let ledger = Ledger::new();
    let clock = ledger.stage("test", Kind::Thread);
    let [(near, _, sender), (far, _, receiver)] = pair(&ledger);
    for round in 0..1000 {
        // Whoever takes the first sees the second waiting, which the other connection then takes.
        near.data.push(record(2 * round), &clock).unwrap();
        near.data.push(record(2 * round + 1), &clock).unwrap();
        for _ in 0..2 {
            let taken = far.data.pop_within(PATIENCE, &clock);
            assert!(matches!(taken, Taken::Item(Message::Holes { .. })), "round {round}: {taken:?}");
        }
    }
    far.control_out.close();
    sender.finish();
    receiver.finish();
}

/// Takes everything, and fails when it is to send it.
struct Broken;

impl Write for Broken {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::BrokenPipe.into())
    }
}

#[test]
fn a_connection_that_fails_when_it_is_flushed_ends_the_run() {
    let ledger = Ledger::new();
    let clock = ledger.stage("test", Kind::Thread);
    let link = Link::remote();
    let brake = Brake::new(&link);
    let transport = Transport::new(&link, &brake, true, &ledger, None);
    let lane = Lane { reader: Box::new(io::empty()), writer: Box::new(Broken), socket: None };
    link.data.push(record(0), &clock).unwrap();
    transport.add(lane, false, false);
    let until = Instant::now() + PATIENCE;
    while !brake.is_pulled() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(matches!(brake.reason().as_deref(), Some(CopyError::Network(_))), "{:?}", brake.reason());
    assert!(transport.is_over());
    transport.finish();
}

#[test]
fn a_connection_that_ends_between_two_records_is_missed() {
    let ledger = Ledger::new();
    let clock = ledger.stage("test", Kind::Thread);
    let link = Link::remote();
    let brake = Brake::new(&link);
    let transport = Transport::new(&link, &brake, false, &ledger, None);
    let (one, other) = UnixStream::pair().unwrap();
    transport.add(Lane::pipe(one.try_clone().unwrap(), one), false, false);
    let mut frame = Vec::new();
    encode(&record(0), &mut frame);
    (&other).write_all(&frame).unwrap();
    assert!(matches!(link.data.pop_within(PATIENCE, &clock), Taken::Item(Message::Holes { .. })));
    drop(other);
    let until = Instant::now() + PATIENCE;
    while !brake.is_pulled() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(matches!(brake.reason().as_deref(), Some(CopyError::Network(_))), "{:?}", brake.reason());
    transport.finish();
}
