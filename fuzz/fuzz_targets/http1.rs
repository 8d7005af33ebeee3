//! Answers of a hostile server: no panic, the same events and the same outcome however
//! the bytes are cut, and never more body bytes than bytes received.

#![no_main]

use bytes::BytesMut;
use fullbore_wire::http1::{BodyLength, Event, Http1, Http1Error, Limits, Method, RequestHead};
use libfuzzer_sys::fuzz_target;

/// Three bytes that steer, then the answers as they are: so the fuzzer's dictionary and
/// its splicing work on plain HTTP.
struct Input<'a> {
    requests: u8,
    head_requests: u8,
    cut: u8,
    answers: &'a [u8],
}

#[derive(Debug, PartialEq)]
enum Seen {
    Head(u64, u16),
    Body(u64, Vec<u8>),
    End(u64, bool),
    Failed(Http1Error),
}

fn client(input: &Input<'_>) -> Http1 {
    let mut client = Http1::new(Limits::default());
    for tag in 0..u64::from(input.requests % 8) {
        let method = match input.head_requests >> tag & 1 {
            1 => Method::Head,
            _ => Method::Get,
        };
        let head = RequestHead::new(method, "h", "/");
        client.request(&head, tag, BodyLength::None).expect("eight requests fit");
    }
    client
}

fn run<'a>(client: &mut Http1, portions: impl Iterator<Item = &'a [u8]>) -> Vec<Seen> {
    let mut seen = Vec::new();
    let mut buffer = BytesMut::new();
    for portion in portions {
        buffer.extend_from_slice(portion);
        loop {
            match client.receive(&mut buffer) {
                Ok(Some(event)) => note(&mut seen, event),
                Ok(None) => break,
                Err(error) => {
                    seen.push(Seen::Failed(match error {
                        Http1Error::UnexpectedBytes { .. } => Http1Error::UnexpectedBytes { bytes: 0 },
                        other => other,
                    }));
                    return seen;
                }
            }
        }
    }
    match client.end_of_stream() {
        Ok(Some(event)) => note(&mut seen, event),
        Ok(None) => {}
        Err(error) => seen.push(Seen::Failed(error)),
    }
    seen
}

fn note(seen: &mut Vec<Seen>, event: Event) {
    match event {
        Event::Head { tag, head } => seen.push(Seen::Head(tag, head.status)),
        Event::End { tag, keep_alive } => seen.push(Seen::End(tag, keep_alive)),
        Event::Body { tag, data } => match seen.last_mut() {
            Some(Seen::Body(last, body)) if *last == tag => body.extend_from_slice(&data),
            _ => seen.push(Seen::Body(tag, data.to_vec())),
        },
    }
}

/// The answers in portions of 1 to 64 bytes, their lengths drawn from `cut`.
fn portions(answers: &[u8], cut: u8) -> impl Iterator<Item = &[u8]> {
    let mut rest = answers;
    let mut state = u32::from(cut);
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let length = if cut == 0 { 1 } else { 1 + (state >> 26) as usize };
        let (portion, after) = rest.split_at(length.min(rest.len()));
        rest = after;
        Some(portion)
    })
}

fuzz_target!(|data: &[u8]| {
    let &[requests, head_requests, cut, ref answers @ ..] = data else {
        return;
    };
    let input = Input { requests, head_requests, cut, answers };
    let whole = run(&mut client(&input), std::iter::once(input.answers));
    let in_portions = run(&mut client(&input), portions(input.answers, input.cut));
    assert_eq!(whole, in_portions);
    let body_bytes: usize = whole
        .iter()
        .map(|seen| match seen {
            Seen::Body(_, body) => body.len(),
            _ => 0,
        })
        .sum();
    assert!(body_bytes <= input.answers.len());
});
