//! Messages of a copy, and journals of unfinished files: no panic, no memory for claimed lengths, and what
//! is accepted is what an honest sender could have written.

#![no_main]

use fullbore_copy::receiver::journal;
use fullbore_copy::wire::{Decoder, encode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(contents) = journal::parse(bytes) {
        assert!(contents.whole_bytes <= bytes.len());
    }
    let mut decoder = Decoder::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let space = decoder.space();
        let count = space.len().min(rest.len());
        space[..count].copy_from_slice(&rest[..count]);
        rest = &rest[count..];
        match decoder.filled(count) {
            Ok(Some(message)) => {
                let mut frame = Vec::new();
                let payload = encode(&message, &mut frame).to_vec();
                frame.extend_from_slice(&payload);
                let mut again = Decoder::new();
                let mut decoded = None;
                let mut rest = &frame[..];
                while !rest.is_empty() {
                    let space = again.space();
                    let count = space.len().min(rest.len());
                    space[..count].copy_from_slice(&rest[..count]);
                    rest = &rest[count..];
                    decoded = again.filled(count).expect("our own frame");
                }
                assert_eq!(decoded, Some(message));
            }
            Ok(None) => {}
            Err(_) => return,
        }
    }
});
