//! The log of what was written: no panic, never more bytes than there are, and cutting
//! the log after its last whole record loses nothing.

#![no_main]

use fullbore_engine::journal::whole_records;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|log: &[u8]| {
    let (count, bytes) = whole_records(log);
    let whole = usize::try_from(bytes).expect("no more than was given");
    assert!(whole <= log.len());
    assert_eq!(whole_records(&log[..whole]), (count, bytes));
    if whole > 0 {
        assert!(whole_records(&log[..whole - 1]).0 <= count);
    }
});
