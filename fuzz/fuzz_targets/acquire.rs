//! Messages of APT to its methods, and its configuration: no panic; any cut of the same bytes gives
//! the same messages; a message that is written can be read again.

#![no_main]

use fullbore_apt::acquire::{Configuration, Message, Messages, Request};
use libfuzzer_sys::fuzz_target;

fn read(pieces: &[&[u8]]) -> Vec<Message> {
    let mut messages = Messages::new();
    for piece in pieces {
        if messages.feed(piece).is_err() {
            break;
        }
    }
    std::iter::from_fn(|| messages.take()).collect()
}

fuzz_target!(|input: (u8, &[u8])| {
    let (cut, bytes) = input;
    let whole = read(&[bytes]);
    let (head, tail) = bytes.split_at(usize::from(cut).min(bytes.len()));
    assert_eq!(read(&[head, tail]), whole);
    for message in whole {
        let again = read(&[&message.to_bytes()]);
        assert_eq!(again.len(), 1, "{message:?}");
        if let Ok(configuration) = Configuration::from_message(&message, "rred") {
            for (name, _) in configuration.children("") {
                let _ = (configuration.list(name), configuration.path(name), configuration.bool(name, true));
            }
        }
        let request = Request::new(message);
        let _ = (request.path(), request.expected_sha256(), request.expected_size());
        assert_eq!(read(&[&request.done().to_bytes()]).len(), 1);
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = Configuration::from_dump(text);
    }
});
