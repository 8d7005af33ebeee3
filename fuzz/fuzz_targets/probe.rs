//! Words of a probe: no panic, and orders that are heard are within their bounds.

#![no_main]

use fullbore_copy::probe::{Request, Word};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(Word::Request(order)) = Word::parse(bytes) {
        if let Request::Send { seconds, allowance, .. } = order {
            assert!((0.0..=600.0).contains(&seconds));
            assert!(((64 << 10)..=(256 << 20)).contains(&allowance));
        }
        if let fullbore_copy::wire::Message::Counters(json) = Word::Request(order).message() {
            assert!(Word::parse(&json).is_some());
        }
    }
});
