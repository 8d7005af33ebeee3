//! tar: no panic; the same entries however the bytes are cut into reads; content only where a
//! regular file is, within its size, in order and apart; nothing read beyond the archive.

#![no_main]

use std::io::BufReader;

use fullbore_debian::tar::{Entry, Kind, Reader};
use libfuzzer_sys::fuzz_target;

type Pieces = Vec<(u64, Vec<u8>)>;

fn read(bytes: &[u8], buffer: usize) -> Result<Vec<(Entry, Pieces)>, String> {
    let mut reader = Reader::new(BufReader::with_capacity(buffer, bytes));
    let mut entry = Entry::default();
    let mut entries = Vec::new();
    while reader.next_entry(&mut entry).map_err(|error| error.to_string())? {
        assert!(entry.kind == Kind::File || (entry.size == 0 && !entry.sparse));
        assert!(!entry.path.is_empty() && !entry.path.contains(&0) && entry.mode <= 0o7777);
        let mut pieces: Pieces = Vec::new();
        while let Some(chunk) = reader.chunk().map_err(|error| error.to_string())? {
            let count = chunk.bytes.len();
            assert!(count > 0 && chunk.offset + count as u64 <= entry.size);
            match pieces.last_mut() {
                Some((offset, piece)) if *offset + piece.len() as u64 == chunk.offset => {
                    piece.extend_from_slice(chunk.bytes);
                }
                last => {
                    assert!(last.is_none_or(|(offset, piece)| *offset + (piece.len() as u64) < chunk.offset));
                    pieces.push((chunk.offset, chunk.bytes.to_vec()));
                }
            }
            reader.consume(count);
        }
        let whole: u64 = pieces.iter().map(|(_, piece)| piece.len() as u64).sum();
        assert!(entry.sparse || whole == entry.size);
        assert!(reader.offset() <= bytes.len() as u64);
        entries.push((entry.clone(), pieces));
    }
    Ok(entries)
}

fuzz_target!(|input: (u16, &[u8])| {
    let (buffer, bytes) = input;
    let one = read(bytes, 1 << 16);
    assert_eq!(one, read(bytes, usize::from(buffer).max(1)));
});
