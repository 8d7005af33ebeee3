//! What comes from a grid, from a node's directory or from a person: answers of servers, shares, directories,
//! announcements, addresses, caps.
#![no_main]

use fullbore_lafs::{Cap, Extension, Layout, Nurl, Tree};
use bytes::Bytes;
use fullbore_lafs::directory::entries;
use fullbore_lafs::gbs::{AllocateAnswer, Answer, AvailableSpace, WriteAnswer, held_shares};
use fullbore_lafs::mutable::{MutableHeader, SignedShare};
use fullbore_lafs::servers::Announcements;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&kind, data)) = data.split_first() else { return };
    let text = String::from_utf8_lossy(data);
    match kind % 8 {
        0 => {
            if let Ok(cap) = Cap::parse(&text) {
                assert_eq!(Cap::parse(&cap.to_text()), Ok(cap), "what is written is read");
            }
        }
        1 => drop(Nurl::parse(&text)),
        2 => {
            if let Ok(extension) = Extension::parse(data, 3, 10, 1_000_000) {
                assert_eq!(extension.geometry.size, 1_000_000);
            }
        }
        3 => {
            if let Ok(layout) = Layout::parse(data) {
                assert!(layout.share_len(0) >= layout.extension);
            }
            let _ = Tree::from_stored(data, data.len() / 64);
        }
        4 => {
            let mut announcements = Announcements::default();
            let _ = announcements.add_introducer_cache(&text);
            let _ = announcements.add_servers_yaml(&text);
            let _ = announcements.servers();
        }
        5 => {
            let Ok(entries) = entries(data) else { return };
            assert!(entries.len() <= data.len(), "each child takes some bytes");
            for entry in entries {
                if let Some(time) = entry.modified {
                    assert!(time.nanoseconds < 1_000_000_000);
                }
            }
        }
        6 => {
            let _ = SignedShare::verify(0, data, &[0; 32]);
            let Ok(header) = MutableHeader::parse(data) else { return };
            let tree = header.block_tree_range();
            assert!(tree.start <= tree.end);
            if header.segments > 0 {
                let last = header.segments - 1..header.segments;
                let range = header.blocks_range(&last);
                assert!(range.start < range.end);
                let sum: u64 = (0..header.segments.min(1000)).map(|segment| header.segment_len(segment)).sum();
                assert!(header.segments > 1000 || sum == header.size);
                let _ = header.split(&last, data);
            }
        }
        _ => {
            let answer = Answer { status: 200, body: Bytes::copy_from_slice(data) };
            let _ = (AllocateAnswer::read(&answer), WriteAnswer::read(&answer), AvailableSpace::read(&answer), held_shares(&answer));
        }
    }
});
