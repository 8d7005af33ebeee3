//! What of an index can be reached: no panic; stanzas of the index, in order; nothing more where less is asked for.

#![no_main]

use fullbore_install::{Seeds, dependency_closure};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (bool, Vec<u8>)| {
    let (recommends, text) = input;
    let indexes = [text];
    let few = Seeds { priorities: &["required"], ..Seeds::default() };
    let more = Seeds { recommends, suggests: true, ..few };
    let (few, more) =
        (dependency_closure(&indexes, &few).unwrap().remove(0), dependency_closure(&indexes, &more).unwrap().remove(0));
    let place = |stanza: &&[u8]| stanza.as_ptr() as usize - indexes[0].as_ptr() as usize;
    assert!(more.is_sorted_by_key(place));
    assert!(more.iter().all(|stanza| stanza.starts_with(b"Package:")));
    assert!(few.iter().all(|stanza| more.iter().any(|other| place(stanza) == place(other))));
});
