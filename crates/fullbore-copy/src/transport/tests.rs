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
fn pair(ledger: &Ledger) -> [(Link, CancelToken, Transport); 2] {
    let ends = [true, false].map(|sends| {
        let link = Link::remote();
        let cancel = CancelToken::new(&link);
        let transport = Transport::new(&link, &cancel, sends, ledger, None);
        (link, cancel, transport)
    });
    for _ in 0..2 {
        let (one, other) = UnixStream::pair().unwrap();
        for (socket, (_, _, transport)) in [one, other].into_iter().zip(&ends) {
            transport.add(Stream::pipe(socket.try_clone().unwrap(), socket));
        }
    }
    ends
}

#[test]
fn gathered_data_is_sent_though_another_connection_takes_the_rest() {
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

#[test]
fn the_congestion_control_that_is_wanted_is_told_or_why_it_is_not_had() {
    for (name, told) in [("reno", "reno"), ("nosuch", "not nosuch (No such file or directory")] {
        let [near, _far] = by_tls();
        let link = Link::remote();
        let transport = Transport::new(&link, &CancelToken::new(&link), false, &Ledger::off(), Some(name));
        transport.add(near);
        let path = Path { loss: 0.25, ..transport.path() };
        assert!(path.control.as_ref().is_some_and(|control| control.starts_with(told)), "{path:?}");
        // Who receives hears it from who sends.
        assert_eq!(
            Path { streams: 1, ..Path::default() }.when_sent_by(path.clone()),
            Path { round_trip: None, ..path }
        );
        transport.fail(&io::ErrorKind::NotConnected.into());
    }
}

#[test]
fn the_last_word_arrives_though_who_said_it_has_left() {
    let ledger = Ledger::new();
    let clock = ledger.stage("test", Kind::Thread);
    let [mut near, far] = by_tls();
    let link = Link::remote();
    let transport = Transport::new(&link, &CancelToken::new(&link), false, &ledger, None);
    transport.speak(io::sink());
    transport.hand_over(far, true);
    let last = || Message::Account { account: Default::default(), last: true };
    link.control_out.push(last(), &clock).unwrap();
    transport.leave();
    let (mut said, mut expected) = (Vec::new(), Vec::new());
    near.reader.read_to_end(&mut said).unwrap();
    encode(&last(), &mut expected);
    assert_eq!(said, expected);
}

/// Two ends with ssh's pipe between them; what it is for the near one ends with the sockets that come with them.
fn by_pipe(ledger: &Ledger) -> ([(Link, CancelToken, Transport); 2], UnixStream) {
    let [forth, back] = [(); 2].map(|()| UnixStream::pair().unwrap());
    let ends = [true, false].map(|sends| {
        let link = Link::remote();
        let cancel = CancelToken::new(&link);
        let transport = Transport::new(&link, &cancel, sends, ledger, None);
        (link, cancel, transport)
    });
    let kept = forth.0.try_clone().unwrap();
    ends[0].2.speak(forth.0);
    ends[0].2.hear(Side::Near, back.0);
    ends[1].2.speak(back.1);
    ends[1].2.hear(Side::Far, forth.1);
    (ends, kept)
}

/// Two ends of a connection that proved its keys.
fn by_tls() -> [Stream; 2] {
    let (client, server) = keys::tests::friends();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = std::thread::spawn(move || tls::accept(listener.accept().unwrap().0, server).unwrap());
    let near = tls::connect(TcpStream::connect(address).unwrap(), client).unwrap();
    [near, accepting.join().unwrap()]
}

/// Each waits for the other one's end.
fn finish(one: &Transport, other: &Transport) {
    std::thread::scope(|scope| {
        scope.spawn(|| one.finish());
        other.finish();
    });
}

#[test]
fn messages_keep_their_order_when_a_connection_replaces_the_pipe() {
    let ledger = Ledger::new();
    let clock = ledger.stage("test", Kind::Thread);
    let ([(near, near_cancel, sender), (far, far_cancel, receiver)], pipe) = by_pipe(&ledger);
    let count = 2000;
    let talk = |link: &Link| {
        for records in 0..count {
            link.control_out.push(Message::Finish { records }, &clock).unwrap();
        }
    };
    let listen = |link: &Link| {
        for records in 0..count {
            assert_eq!(link.control_in.pop_within(PATIENCE, &clock), Taken::Item(Message::Finish { records }));
        }
    };
    std::thread::scope(|scope| {
        for link in [&near, &far] {
            scope.spawn(|| talk(link));
            scope.spawn(|| listen(link));
        }
        let [one, other] = by_tls();
        sender.hand_over(one, true);
        receiver.hand_over(other, false);
    });
    // From now on the pipe carries nothing; but with it ends the far end.
    let [one, other] = by_tls();
    sender.add(one);
    receiver.add(other);
    near.data.push(record(7), &clock).unwrap();
    assert_eq!(far.data.pop_within(PATIENCE, &clock), Taken::Item(record(7)));
    assert_eq!((sender.path().streams, receiver.path().streams), (1, 1));
    assert!(!near_cancel.is_cancelled() && !far_cancel.is_cancelled());
    pipe.shutdown(Shutdown::Both).unwrap();
    let until = Instant::now() + PATIENCE;
    while !near_cancel.is_cancelled() && Instant::now() < until {
        // What the far end says last goes by the connection.
        match near.control_in.pop_within(LOOK, &clock) {
            Taken::Item(Message::Abort { text, .. }) => {
                assert!(text.contains("ssh has ended"), "{text}");
                break;
            }
            Taken::TimedOut => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(far_cancel.is_cancelled());
    finish(&sender, &receiver);
}

#[test]
fn data_waiting_for_a_slow_pipe_moves_to_a_new_connection() {
    let ledger = Ledger::new();
    let clock = ledger.stage("test", Kind::Thread);
    let link = Link::remote();
    let transport = Transport::new(&link, &CancelToken::new(&link), true, &ledger, None);
    let (pipe, mut end) = UnixStream::pair().unwrap();
    let long = |number: u8| Message::Counters(vec![number; 200_000]);
    let count = 50;
    (0..count).for_each(|number| link.control_out.push(long(number), &clock).unwrap());
    transport.speak(pipe);
    let [near, far] = by_tls();
    transport.hand_over(near, true);
    let mut next = 0;
    let mut read = |mut from: Box<dyn Read + Send>, last: fn(&Message) -> bool| {
        let mut decoder = Decoder::new();
        loop {
            let count = from.read(decoder.space()).unwrap();
            assert!(count > 0, "all of it came another way");
            let Some(message) = decoder.filled(count).unwrap() else { continue };
            if last(&message) {
                return next;
            }
            assert_eq!(message, long(next));
            next += 1;
        }
    };
    // What the pipe's own memory takes in, and what was held back.
    let by_pipe = read(Box::new(end.try_clone().unwrap()), |message| *message == Message::Switch);
    assert!(by_pipe < 10, "{by_pipe} of {count}");
    // It is pushed out.
    end.read_exact(&mut [1; PUSH.len()]).unwrap();
    link.control_out.push(Message::Finish { records: 0 }, &clock).unwrap();
    assert_eq!(read(far.reader, |message| matches!(message, Message::Finish { .. })), count);
    transport.finish();
}

#[test]
fn content_uses_the_pipe_until_a_better_transport_is_known() {
    let ledger = Ledger::new();
    let clock = ledger.stage("test", Kind::Thread);
    let block = |sequence| {
        Message::Block(crate::wire::Block {
            sequence,
            id: 1,
            index: sequence,
            hash: [0; 32],
            length: 200_000,
            segments: Vec::new(),
            compressed: false,
            payload: crate::wire::Payload::new(vec![7; 200_000]),
        })
    };
    let is_block = |taken: Taken<Message>, number| matches!(taken, Taken::Item(Message::Block(crate::wire::Block { sequence, .. })) if sequence == number);
    for stays in [true, false] {
        let ([(near, _, sender), (far, _, receiver)], _pipe) = by_pipe(&ledger);
        for number in 0..4 {
            near.data.push(block(number), &clock).unwrap();
        }
        assert!(
            is_block(far.data.pop_within(PATIENCE, &clock), 0) && is_block(far.data.pop_within(PATIENCE, &clock), 1)
        );
        assert_eq!(far.data.pop_within(LOOK, &clock), Taken::TimedOut);
        if stays {
            sender.stay_with_pipe();
        } else {
            let [[one, other], [first, second]] = [by_tls(), by_tls()];
            sender.hand_over(one, true);
            receiver.hand_over(other, false);
            sender.add(first);
            receiver.add(second);
        }
        assert!(
            is_block(far.data.pop_within(PATIENCE, &clock), 2) && is_block(far.data.pop_within(PATIENCE, &clock), 3)
        );
        finish(&sender, &receiver);
    }
}

#[test]
fn an_end_that_was_killed_is_told_of_in_words_for_people() {
    let ledger = Ledger::new();
    let link = Link::remote();
    let cancel = CancelToken::new(&link);
    let transport = Transport::new(&link, &cancel, false, &ledger, None);
    let [near, far] = by_tls();
    transport.add(near);
    // As the system does it when it ends a process.
    far.socket.as_ref().unwrap().shutdown(Shutdown::Both).unwrap();
    let until = Instant::now() + PATIENCE;
    while !cancel.is_cancelled() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    let reason = cancel.reason().unwrap().to_string();
    assert!(reason.ends_with("the connection broke: the other end closed it without a last message"), "{reason}");
    transport.finish();
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
    let cancel = CancelToken::new(&link);
    let transport = Transport::new(&link, &cancel, true, &ledger, None);
    let stream = Stream { reader: Box::new(io::empty()), writer: Box::new(Broken), socket: None, lingers: false };
    link.data.push(record(0), &clock).unwrap();
    transport.add(stream);
    let until = Instant::now() + PATIENCE;
    while !cancel.is_cancelled() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(matches!(cancel.reason().as_deref(), Some(CopyError::Network(_))), "{:?}", cancel.reason());
    assert!(transport.is_over());
    transport.finish();
}

#[test]
fn a_connection_that_ends_between_two_records_is_missed() {
    let ledger = Ledger::new();
    let clock = ledger.stage("test", Kind::Thread);
    let link = Link::remote();
    let cancel = CancelToken::new(&link);
    let transport = Transport::new(&link, &cancel, false, &ledger, None);
    let (one, other) = UnixStream::pair().unwrap();
    transport.add(Stream::pipe(one.try_clone().unwrap(), one));
    let mut frame = Vec::new();
    encode(&record(0), &mut frame);
    (&other).write_all(&frame).unwrap();
    assert!(matches!(link.data.pop_within(PATIENCE, &clock), Taken::Item(Message::Holes { .. })));
    drop(other);
    let until = Instant::now() + PATIENCE;
    while !cancel.is_cancelled() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(matches!(cancel.reason().as_deref(), Some(CopyError::Network(_))), "{:?}", cancel.reason());
    transport.finish();
}

/// Much sooner than in earnest; what is there still answers within it on a busy machine.
const QUICK: Pulse = Pulse { beat: Duration::from_millis(20), silence: Duration::from_secs(3) };

/// The way between two ends: it forwards until it is told not to, and counts bytes.
#[derive(Clone, Default)]
struct Way {
    forgets: Arc<AtomicBool>,
    forwarded_bytes: Arc<AtomicU64>,
}

impl Way {
    fn forward(&self, mut from: UnixStream, mut to: UnixStream) {
        let way = self.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                // What is forgotten on the way neither arrives nor is refused.
                if !way.forgets.load(Ordering::Acquire) {
                    let _ = to.write_all(&buffer[..count]);
                    way.forwarded_bytes.fetch_add(count as u64, Ordering::Relaxed);
                }
            }
        });
    }
}

#[test]
fn ends_of_a_pipe_notice_a_path_that_drops_their_state() {
    let ledger = Ledger::new();
    let clock = ledger.stage("test", Kind::Thread);
    let way = Way::default();
    let [near, far] = [true, false].map(|sends| {
        let link = Link::remote();
        let cancel = CancelToken::new(&link);
        let transport = Transport::with(QUICK, &link, &cancel, sends, &ledger, None);
        let (inside, outside) = UnixStream::pair().unwrap();
        transport.speak(inside.try_clone().unwrap());
        transport.hear(Side::Near, inside);
        (link, cancel, transport, outside)
    });
    for (from, to) in [(&near.3, &far.3), (&far.3, &near.3)] {
        way.forward(from.try_clone().unwrap(), to.try_clone().unwrap());
    }
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        let end = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < end, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    until("nobody says that it is there", &|| way.forwarded_bytes.load(Ordering::Relaxed) > 100);
    // It disturbs nothing.
    near.0.control_out.push(Message::Finish { records: 0 }, &clock).unwrap();
    assert_eq!(far.0.control_in.pop_within(PATIENCE, &clock), Taken::Item(Message::Finish { records: 0 }));
    assert!(!near.1.is_cancelled() && !far.1.is_cancelled());
    way.forgets.store(true, Ordering::Release);
    until("the far end waits for ever", &|| far.1.is_cancelled());
    until("the near end waits for ever", &|| near.1.is_cancelled());
    for (_, cancel, transport, outside) in [near, far] {
        assert!(cancel.reason().is_some_and(|reason| reason.is_lost_connection()), "{:?}", cancel.reason());
        outside.shutdown(Shutdown::Both).unwrap();
        transport.finish();
    }
}

#[test]
fn only_waiting_for_the_same_thing_is_silence() {
    let mut silence = Silence::default();
    assert!((0..100).all(|_| silence.observe(0).is_zero()), "who does not wait misses nobody");
    assert!((1..100).all(|number| silence.observe(number).is_zero()), "something came between the looks");
    for looks in 0..10 {
        assert_eq!(silence.observe(7), LOOK * looks);
    }
    assert!(silence.observe(0).is_zero());
}
