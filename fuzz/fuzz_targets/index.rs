//! `Packages`, `Sources`, `SHA256SUMS`, `diff/Index`, and the same through each decompressor:
//! no panic, no path that leaves its directory, never more text than allowed.

#![no_main]

use std::io::Read;

use fullbore_debian::compression::{Form, Reader};
use fullbore_debian::diff_index::{DiffIndex, Publication};
use fullbore_debian::index::{self, IndexError};
use fullbore_debian::path;
use libfuzzer_sys::fuzz_target;

const LIMIT_BYTES: u64 = 1 << 20;

fn parse(text: &[u8]) {
    let mut buffer = String::new();
    let _ = index::packages(text, |entry| {
        assert_eq!(path::check(entry.path), Ok(()));
        Ok::<_, IndexError>(())
    });
    let _ = index::sources(text, |entry| {
        for file in entry.files() {
            assert_eq!(path::check(file.path_in(&mut buffer)), Ok(()));
        }
        Ok::<_, IndexError>(())
    });
    let _ = index::sha256sums(text, |entry| {
        assert_eq!(path::check(entry.path), Ok(()));
        Ok::<_, IndexError>(())
    });
    if let Ok(publication) = Publication::parse(text) {
        assert!(DiffIndex::parse(text).is_ok());
        let again = publication.render();
        assert!(Publication::parse(again.as_bytes()).is_ok());
    }
    if let Ok(index) = DiffIndex::parse(text) {
        assert!(index.downloads().all(|file| path::check_name(&file.name).is_ok()));
    }
}

fuzz_target!(|input: (u8, &[u8])| {
    let (form, bytes) = input;
    parse(bytes);
    let form = Form::BY_SPEED[usize::from(form) % Form::BY_SPEED.len()];
    let mut text = Vec::new();
    if let Ok(mut reader) = Reader::open(form, bytes, LIMIT_BYTES) {
        let _ = reader.read_to_end(&mut text);
    }
    assert!(text.len() as u64 <= LIMIT_BYTES);
    parse(&text);
});
