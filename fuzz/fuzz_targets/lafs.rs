//! What comes from a grid, from a node's directory or from a person: answers of servers, shares,
//! announcements, addresses, caps.
#![no_main]

use fullbore_lafs::{Cap, Extension, Layout, Nurl, Tree};
use bytes::Bytes;
use fullbore_lafs::gbs::{AllocateAnswer, Answer, AvailableSpace, WriteAnswer, held_shares};
use fullbore_lafs::servers::Announcements;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&kind, data)) = data.split_first() else { return };
    let text = String::from_utf8_lossy(data);
    match kind % 6 {
        0 => {
            if let Ok(cap) = Cap::parse(&text) {
                assert_eq!(cap.to_text(), text.trim(), "one text for each cap");
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
        _ => {
            let answer = Answer { status: 200, body: Bytes::copy_from_slice(data) };
            let _ = (AllocateAnswer::read(&answer), WriteAnswer::read(&answer), AvailableSpace::read(&answer), held_shares(&answer));
        }
    }
});
