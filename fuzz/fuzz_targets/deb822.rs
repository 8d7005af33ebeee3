//! Control files: no panic; the same stanzas however the bytes are cut into reads; a field
//! that is listed is found by name.

#![no_main]

use std::io::{self, Read};

use fullbore_debian::deb822::{Limits, Stanzas};
use libfuzzer_sys::fuzz_target;

/// Gives at most `step` bytes at once.
struct Slow<'a> {
    rest: &'a [u8],
    step: usize,
}

impl Read for Slow<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.step.min(buffer.len());
        (&mut self.rest).take(length as u64).read(buffer)
    }
}

fn read(reader: impl Read, limits: Limits) -> (Vec<(u64, Vec<u8>)>, Option<String>) {
    let mut stanzas = Stanzas::new(reader, limits);
    let mut found = Vec::new();
    loop {
        match stanzas.next() {
            Ok(Some(stanza)) => {
                for (name, _) in stanza.fields() {
                    let name = std::str::from_utf8(name).expect("names are ASCII");
                    assert!(stanza.get(name).is_some());
                }
                found.push((stanza.line(), stanza.text().to_vec()));
            }
            Ok(None) => return (found, None),
            Err(error) => return (found, Some(error.to_string())),
        }
    }
}

fuzz_target!(|input: (u8, &[u8])| {
    let (step, text) = input;
    for limits in [Limits::INDEX, Limits::RELEASE, Limits::SOURCES_LIST] {
        let whole = read(text, limits);
        let pieces = read(Slow { rest: text, step: usize::from(step) + 1 }, limits);
        assert_eq!(whole, pieces);
    }
});
