//! What the HTTP/1.1 client costs per byte of body and per answer, without sockets.
//!
//! Body bytes are handed on, not copied, so their rate should be far above any network;
//! many small files make the cost per head count. `cargo bench -p fullbore-wire`.

use bytes::{Buf, Bytes, BytesMut};
use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use fullbore_wire::http1::{BodyLength, Event, Http1, Limits, RequestHead};

fn main() {
    divan::main();
}

/// Bytes of one read from the socket.
const READ_BYTES: usize = 256 * 1024;

/// As nginx answers for a pool file.
const HEAD: &str = "HTTP/1.1 200 OK\r\nServer: nginx/1.22.1\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
    Content-Type: application/octet-stream\r\nContent-Length: LENGTH\r\n\
    Last-Modified: Sat, 05 Nov 1994 08:49:37 GMT\r\nConnection: keep-alive\r\n\
    ETag: \"2ebadf01-1130\"\r\nAccept-Ranges: bytes\r\n\r\n";

/// Takes all events; gives the body bytes and the ends.
fn drain(client: &mut Http1, input: &mut BytesMut) -> (usize, usize) {
    let (mut bytes, mut ends) = (0, 0);
    while let Some(event) = client.receive(input).expect("well-formed answers") {
        match event {
            Event::Body { data, .. } => bytes += black_box(data).len(),
            Event::End { .. } => ends += 1,
            Event::Head { head, .. } => {
                black_box(head);
            }
        }
    }
    (bytes, ends)
}

/// One body of 64 reads, each read in a fresh buffer, as from a pool.
#[divan::bench]
fn long_body(bencher: Bencher) {
    const READS: usize = 64;
    let length = READS * READ_BYTES;
    let head = HEAD.replace("LENGTH", &length.to_string());
    bencher
        .counter(BytesCount::new(length))
        .with_inputs(|| {
            let mut client = Http1::new(Limits::default());
            let request = RequestHead::get("mirror.example", "/debian/pool/x");
            client.request(&request, 0, BodyLength::None).expect("fits");
            drain(&mut client, &mut BytesMut::from(head.as_str()));
            let reads: Vec<BytesMut> = (0..READS).map(|_| BytesMut::zeroed(READ_BYTES)).collect();
            (client, reads)
        })
        .bench_local_values(|(mut client, mut reads)| {
            let received: usize = reads.iter_mut().map(|read| drain(&mut client, read).0).sum();
            assert_eq!(received, length);
            reads
        });
}

/// 99 answers of a few bytes in one read.
#[divan::bench]
fn small_answers(bencher: Bencher) {
    const ANSWERS: usize = 99;
    let answers = format!("{}body", HEAD.replace("LENGTH", "4")).repeat(ANSWERS);
    bencher
        .counter(ItemsCount::new(ANSWERS))
        .with_inputs(|| {
            let mut client = Http1::new(Limits::default());
            let request = RequestHead::get("mirror.example", "/debian/pool/x");
            for tag in 0..ANSWERS as u64 {
                client.request(&request, tag, BodyLength::None).expect("fits");
            }
            (client, BytesMut::from(answers.as_str()))
        })
        .bench_local_values(|(mut client, mut input)| {
            assert_eq!(drain(&mut client, &mut input), (4 * ANSWERS, ANSWERS));
        });
}

/// Writing 99 requests, addresses included.
#[divan::bench]
fn requests(bencher: Bencher) {
    const REQUESTS: usize = 99;
    bencher.counter(ItemsCount::new(REQUESTS)).with_inputs(|| Http1::new(Limits::default())).bench_local_values(
        |mut client| {
            for tag in 0..REQUESTS as u64 {
                let request =
                    RequestHead::get("mirror.example", "/debian/pool/main/g/glibc/glibc_2.36-9+deb12u7.debian.tar.xz");
                client.request(&request, tag, BodyLength::None).expect("fits");
            }
            black_box(client.outgoing().remaining());
            client
        },
    );
}

/// An upload in pieces of 64 KiB: queued by reference, not copied.
#[divan::bench]
fn upload(bencher: Bencher) {
    const PIECES: usize = 64;
    let piece = Bytes::from(vec![0; 64 * 1024]);
    let length = PIECES * piece.len();
    bencher.counter(BytesCount::new(length)).with_inputs(|| Http1::new(Limits::default())).bench_local_values(
        |mut client| {
            let method = fullbore_wire::http1::Method::Put;
            let request = RequestHead::new(method, "mirror.example", "/x");
            client.request(&request, 1, BodyLength::Known(length as u64)).expect("fits");
            for _ in 0..PIECES {
                client.body(1, piece.clone()).expect("as announced");
            }
            client.body_end(1).expect("as announced");
            let outgoing = client.outgoing();
            outgoing.advance(outgoing.remaining());
        },
    );
}
