//! The client against bytes: what a server may send, in any portions.

use bytes::Buf;
use proptest::prelude::*;

use super::*;

/// An event with body pieces joined, so that portions do not show.
#[derive(Debug, Clone, PartialEq)]
enum Seen {
    Head(u64, u16),
    Body(u64, Vec<u8>),
    End(u64, bool),
    Error(Http1Error),
}

fn client(requests: u64) -> Http1 {
    let mut client = Http1::new(Limits::default());
    for tag in 1..=requests {
        let head = RequestHead::get("h", format!("/{tag}"));
        client.request(&head, tag, BodyLength::None).unwrap();
    }
    client
}

/// Feeds `portions`, then the end of the stream.
fn run<'a>(client: &mut Http1, portions: impl IntoIterator<Item = &'a [u8]>) -> Vec<Seen> {
    let mut seen = Vec::new();
    let mut input = BytesMut::new();
    for portion in portions {
        input.extend_from_slice(portion);
        loop {
            match client.receive(&mut input) {
                Ok(Some(event)) => push(&mut seen, event),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(client.receive(&mut input), Err(Http1Error::Failed));
                    assert!(client.is_closing() && client.free_slots() == 0);
                    // How many bytes were there in excess depends on the portions.
                    seen.push(Seen::Error(match error {
                        Http1Error::UnexpectedBytes { .. } => Http1Error::UnexpectedBytes { bytes: 0 },
                        other => other,
                    }));
                    return seen;
                }
            }
        }
    }
    match client.end_of_stream() {
        Ok(Some(event)) => push(&mut seen, event),
        Ok(None) => {}
        Err(error) => seen.push(Seen::Error(error)),
    }
    seen
}

fn push(seen: &mut Vec<Seen>, event: Event) {
    match event {
        Event::Head { tag, head } => seen.push(Seen::Head(tag, head.status)),
        Event::End { tag, keep_alive } => seen.push(Seen::End(tag, keep_alive)),
        Event::Body { tag, data } => {
            assert!(!data.is_empty());
            match seen.last_mut() {
                Some(Seen::Body(last, joined)) if *last == tag => joined.extend_from_slice(&data),
                _ => seen.push(Seen::Body(tag, data.to_vec())),
            }
        }
    }
}

fn body(tag: u64, text: &str) -> Seen {
    Seen::Body(tag, text.as_bytes().to_vec())
}

const OK_HI: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";

#[test]
fn answers_come_in_the_order_of_the_requests() {
    let mut client = client(4);
    let length = client.outgoing().len();
    let requests = client.outgoing().copy_to_bytes(length);
    assert_eq!(requests.windows(4).filter(|part| part == b"GET ").count(), 4);
    let answers = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi\
        HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n\
        HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n\
        HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nT: u\r\n\r\n\
        HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n";
    assert_eq!(
        run(&mut client, [answers.as_bytes()]),
        [
            Seen::Head(1, 200),
            body(1, "hi"),
            Seen::End(1, true),
            Seen::Head(2, 404),
            Seen::End(2, true),
            Seen::Head(3, 200),
            body(3, "abcde"),
            Seen::End(3, true),
            Seen::Head(4, 304),
            Seen::End(4, true),
        ]
    );
    assert_eq!((client.in_flight(), client.answered()), (0, 4));
}

#[test]
fn an_incomplete_head_waits() {
    let mut client = client(2);
    let mut input = BytesMut::from(format!("{OK_HI}HTTP/1.1 404").as_str());
    for _ in 0..3 {
        assert!(client.receive(&mut input).unwrap().is_some());
    }
    assert_eq!(client.receive(&mut input), Ok(None));
    assert_eq!(&input[..], b"HTTP/1.1 404");
    assert_eq!(client.unanswered().collect::<Vec<_>>(), [2]);
}

#[test]
fn body_data_is_not_copied() {
    let mut client = client(1);
    let mut input = BytesMut::from("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n");
    input.extend_from_slice(&[b'x'; 70_000]);
    client.receive(&mut input).unwrap();
    let start = input.as_ptr();
    let Ok(Some(Event::Body { data, .. })) = client.receive(&mut input) else { panic!("no body") };
    assert_eq!((data.as_ptr(), data.len()), (start, 70_000));
}

/// M12: a close after k answers is normal; what stood behind it is asked again elsewhere.
#[test]
fn close_after_k_answers_leaves_the_rest_unanswered() {
    let mut closing = client(4);
    let answers = format!("{OK_HI}HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nho");
    let seen = run(&mut closing, [answers.as_bytes()]);
    assert_eq!(seen.last(), Some(&Seen::End(2, false)));
    assert_eq!(closing.unanswered().collect::<Vec<_>>(), [3, 4]);
    assert_eq!((closing.answered(), closing.free_slots()), (2, 0));
    let head = RequestHead::get("h", "/");
    assert_eq!(closing.request(&head, 9, BodyLength::None), Err(RequestError::Closing));

    // The same without the announcement.
    let mut cut = client(3);
    assert_eq!(run(&mut cut, [OK_HI.as_bytes()]).last(), Some(&Seen::End(1, true)));
    assert_eq!(cut.unanswered().collect::<Vec<_>>(), [2, 3]);
    assert!(cut.is_closing());
}

/// M12: HTTP/1.0 shows in the head, so that the caller stops pipelining to this host.
#[test]
fn the_version_of_an_answer_by_http_1_0_shows_in_the_head() {
    for (head, keep_alive) in [
        ("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", false),
        ("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi", true),
        ("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\nhi", false),
        ("HTTP/1.0 200 OK\r\n\r\nhi", false),
    ] {
        let mut client = client(2);
        let mut input = BytesMut::from(head);
        let Ok(Some(Event::Head { head: parsed, .. })) = client.receive(&mut input) else { panic!("no head") };
        assert_eq!(parsed.version, Version::Http10);
        let seen = run(&mut client, [&input[..]]);
        assert_eq!(seen, [body(1, "hi"), Seen::End(1, keep_alive)], "{head:?}");
        assert_eq!(client.unanswered().collect::<Vec<_>>(), [2]);
    }
}

#[test]
fn the_end_of_the_stream_ends_or_truncates_an_answer() {
    for (answer, last) in [
        ("", None),
        ("HTTP/1.1 200 OK\r\n\r\nall of it", Some(Seen::End(1, false))),
        ("HTTP/1.1 200 OK\r\n\r\n", Some(Seen::End(1, false))),
        ("HTTP/1.1 200", Some(Seen::Error(Http1Error::TruncatedHead { tag: 1, bytes: 12 }))),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
            Some(Seen::Error(Http1Error::TruncatedBody { tag: 1, missing: Some(2) })),
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
            Some(Seen::Error(Http1Error::TruncatedBody { tag: 1, missing: None })),
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n",
            Some(Seen::Error(Http1Error::TruncatedBody { tag: 1, missing: None })),
        ),
    ] {
        assert_eq!(run(&mut client(1), [answer.as_bytes()]).last(), last.as_ref(), "{answer:?}");
    }
}

#[test]
fn bytes_that_answer_nothing_are_an_error() {
    let unexpected = Seen::Error(Http1Error::UnexpectedBytes { bytes: 0 });
    for (requests, answers) in [
        (0, OK_HI.to_owned()),
        (0, "\r\n".to_owned()),
        (1, format!("{OK_HI}{OK_HI}")),
        (1, format!("{OK_HI}x")),
        (1, "HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\nhi".to_owned()),
        (2, format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n{OK_HI}")),
    ] {
        let seen = run(&mut client(requests), [answers.as_bytes()]);
        assert_eq!(seen.last(), Some(&unexpected), "{requests} {answers:?}");
    }
}

#[test]
fn head_answers_have_no_body() {
    let mut client = Http1::new(Limits::default());
    for tag in [1, 2] {
        client.request(&RequestHead::new(Method::Head, "h", "/"), tag, BodyLength::None).unwrap();
    }
    let answers = "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n".repeat(2);
    let seen = run(&mut client, [answers.as_bytes()]);
    assert_eq!(seen[1..], [Seen::End(1, true), Seen::Head(2, 200), Seen::End(2, true)]);
}

#[test]
fn a_tunnel_leaves_its_bytes_alone() {
    let mut tunnel = Http1::new(Limits::default());
    let connect = RequestHead::new(Method::Connect, "h:443", "h:443");
    tunnel.request(&connect, 1, BodyLength::None).unwrap();
    let mut input = BytesMut::from("HTTP/1.1 200 Connection established\r\n\r\n\x16\x03");
    assert!(matches!(tunnel.receive(&mut input), Ok(Some(Event::Head { tag: 1, .. }))));
    assert_eq!(tunnel.receive(&mut input), Ok(None));
    assert_eq!(&input[..], b"\x16\x03");
    assert_eq!(tunnel.free_slots(), 0);
}

#[test]
fn interim_answers_are_bounded_and_switching_is_refused() {
    let interim = "HTTP/1.1 102 Processing\r\n\r\n";
    let enough = interim.repeat(INFORMATIONAL_MAX) + OK_HI;
    assert_eq!(run(&mut client(1), [enough.as_bytes()]).len(), 3);
    let many = interim.repeat(INFORMATIONAL_MAX + 1);
    let error = Http1Error::TooManyInformational { limit: INFORMATIONAL_MAX };
    assert_eq!(run(&mut client(1), [many.as_bytes()]), [Seen::Error(error)]);
    let switch = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n";
    assert_eq!(run(&mut client(1), [&switch[..]]), [Seen::Error(Http1Error::UnexpectedUpgrade)]);
}

#[test]
fn heads_are_bounded() {
    let line = "HTTP/1.1 200 OK\r\n";
    let endless = format!("{line}X: {}", "y".repeat(HEAD_BYTES_MAX));
    let complete = format!("{endless}\r\nContent-Length: 0\r\n\r\n");
    let no_newline = "H".repeat(HEAD_BYTES_MAX);
    let too_long = Seen::Error(Http1Error::HeadTooLong { limit: HEAD_BYTES_MAX });
    for text in [endless, complete] {
        let whole = run(&mut client(1), [text.as_bytes()]);
        let cut = run(&mut client(1), text.as_bytes().chunks(1000));
        assert_eq!((whole.first(), cut.first()), (Some(&too_long), Some(&too_long)));
    }
    assert_eq!(run(&mut client(1), [no_newline.as_bytes()]), [too_long]);
    let many = format!("{line}{}\r\n", "X: y\r\n".repeat(HEADERS_MAX + 1));
    let error = Seen::Error(Http1Error::TooManyHeaders { limit: HEADERS_MAX });
    assert_eq!(run(&mut client(1), [many.as_bytes()]), [error]);
}

#[test]
fn the_window_of_requests_is_kept() {
    let mut client = Http1::new(Limits::with_depth(2));
    let head = RequestHead::get("h", "/");
    assert_eq!(client.free_slots(), 2);
    for tag in [1, 2] {
        client.request(&head, tag, BodyLength::None).unwrap();
    }
    let full = Err(RequestError::TooManyInFlight { limit: 2 });
    assert_eq!(client.request(&head, 3, BodyLength::None), full);
    client.set_depth(1);
    assert_eq!(client.free_slots(), 0);
    run(&mut client, []);
}

#[test]
fn request_bodies_stream_out() {
    let mut client = Http1::new(Limits::default());
    let put = RequestHead::new(Method::Put, "h", "/x");
    client.request(&put, 1, BodyLength::Known(5)).unwrap();
    assert_eq!(client.request(&put, 2, BodyLength::None), Err(RequestError::BodyOpen { tag: 1 }));
    assert_eq!(client.body(2, "x".into()), Err(RequestError::NoBodyOpen { tag: 2 }));
    client.body(1, "abc".into()).unwrap();
    assert_eq!(client.body_end(1), Err(RequestError::BodyTooShort { tag: 1, missing: 2 }));
    assert_eq!(client.body(1, "defgh".into()), Err(RequestError::BodyTooLong { tag: 1, excess: 3 }));
    client.body(1, "de".into()).unwrap();
    client.body_end(1).unwrap();
    client.request(&put, 2, BodyLength::Chunked).unwrap();
    client.body(2, Bytes::new()).unwrap();
    client.body(2, Bytes::from(vec![b'z'; 5000])).unwrap();
    client.body_end(2).unwrap();
    assert_eq!(client.body_end(2), Err(RequestError::NoBodyOpen { tag: 2 }));
    let length = client.outgoing().len();
    let sent = client.outgoing().copy_to_bytes(length);
    let sent = String::from_utf8(sent.to_vec()).unwrap();
    let (first, second) = sent.split_at(sent.rfind("PUT").unwrap());
    assert!(first.ends_with("\r\nContent-Length: 5\r\n\r\nabcde"));
    let chunks = format!("\r\nTransfer-Encoding: chunked\r\n\r\n1388\r\n{}\r\n0\r\n\r\n", "z".repeat(5000));
    assert!(second.ends_with(&chunks));
}

#[test]
fn an_early_answer_to_an_upload_ends_the_connection() {
    let mut client = Http1::new(Limits::default());
    let put = RequestHead::new(Method::Put, "h", "/x");
    client.request(&put, 1, BodyLength::Known(5)).unwrap();
    let mut input = BytesMut::from("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
    client.receive(&mut input).unwrap();
    let end = client.receive(&mut input).unwrap();
    assert_eq!(end, Some(Event::End { tag: 1, keep_alive: false }));
    assert_eq!(client.body(1, "x".into()), Err(RequestError::NoBodyOpen { tag: 1 }));
}

/// A body in chunks of the given sizes, as a server would send it.
fn chunked(body: &[u8], sizes: &[usize]) -> Vec<u8> {
    let mut coded = Vec::new();
    let mut rest = body;
    for &size in sizes {
        let (chunk, after) = rest.split_at(size.min(rest.len()));
        if !chunk.is_empty() {
            coded.extend_from_slice(format!("{:X};n=1\r\n", chunk.len()).as_bytes());
            coded.extend_from_slice(chunk);
            coded.extend_from_slice(b"\r\n");
        }
        rest = after;
    }
    if !rest.is_empty() {
        coded.extend_from_slice(format!("{:x}\r\n", rest.len()).as_bytes());
        coded.extend_from_slice(rest);
        coded.extend_from_slice(b"\r\n");
    }
    coded.extend_from_slice(b"0\r\nX-T: y\r\n\r\n");
    coded
}

/// One well-formed answer, and its body.
fn answer() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let body = prop::collection::vec(any::<u8>(), 0..60);
    (body, prop::collection::vec(1usize..20, 0..5), 0u8..4).prop_map(|(body, sizes, form)| {
        let mut bytes = Vec::new();
        if form == 0 {
            bytes.extend_from_slice(b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n");
        }
        if form < 2 {
            let length = body.len();
            bytes.extend_from_slice(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").as_bytes());
            bytes.extend_from_slice(&body);
        } else {
            bytes.extend_from_slice(b"HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n");
            bytes.extend_from_slice(&chunked(&body, &sizes));
        }
        (bytes, body)
    })
}

/// Cuts `bytes` at the given places.
fn portions<'a>(bytes: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    places.extend([0, bytes.len()]);
    places.sort_unstable();
    places.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}

proptest! {
    #[test]
    fn any_split_gives_the_same_events(
        answers in prop::collection::vec(answer(), 1..6),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..30),
    ) {
        let bytes: Vec<u8> = answers.iter().flat_map(|(bytes, _)| bytes.clone()).collect();
        let mut expected = Vec::new();
        for (tag, (_, body)) in (1..).zip(&answers) {
            expected.push(Seen::Head(tag, 200));
            if !body.is_empty() {
                expected.push(Seen::Body(tag, body.clone()));
            }
            expected.push(Seen::End(tag, true));
        }
        let requests = answers.len() as u64;
        prop_assert_eq!(&run(&mut client(requests), [&bytes[..]]), &expected);
        prop_assert_eq!(&run(&mut client(requests), portions(&bytes, &cuts)), &expected);
        prop_assert_eq!(&run(&mut client(requests), bytes.chunks(1)), &expected);
    }

    /// Damaged answers too: same events, same error, however the bytes arrive.
    #[test]
    fn any_split_of_damaged_answers_gives_the_same_events(
        answers in prop::collection::vec(answer(), 1..4),
        damage in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(&b"\r\n\0 :;0aF-\xff"[..])), 1..6),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..30),
    ) {
        let mut bytes: Vec<u8> = answers.iter().flat_map(|(bytes, _)| bytes.clone()).collect();
        for (place, byte) in damage {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        let requests = answers.len() as u64;
        let whole = run(&mut client(requests), [&bytes[..]]);
        prop_assert_eq!(&run(&mut client(requests), portions(&bytes, &cuts)), &whole);
        prop_assert_eq!(&run(&mut client(requests), bytes.chunks(1)), &whole);
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        begin in prop::sample::select(vec![
            "", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", OK_HI,
        ]),
    ) {
        let mut client = client(3);
        run(&mut client, [begin.as_bytes(), &bytes]);
    }
}
