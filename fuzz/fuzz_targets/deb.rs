//! Packages: no panic; members lie one behind the other within the archive; control files have
//! plain names, each once; `data.tar` ends within the package.

#![no_main]

use std::io::Read;

use fullbore_debian::ar;
use fullbore_debian::deb::{Package, Proof, blocks_of_xz, data};
use libfuzzer_sys::fuzz_target;

/// What a bomb may unfold to here.
const PLAIN_BYTES: u64 = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    let mut archive = ar::Reader::new(bytes);
    let mut end = ar::MAGIC.len() as u64;
    while let Ok(Some(member)) = archive.next_member() {
        assert_eq!(member.offset, end + ar::HEADER_BYTES as u64);
        end = member.offset + member.size + member.size % 2;
        let mut content = Vec::new();
        if archive.content().read_to_end(&mut content).is_ok() {
            assert_eq!(content.len() as u64, member.size);
        }
    }
    let _ = blocks_of_xz(bytes, bytes.len() as u64);
    let Ok(package) = Package::read(bytes) else {
        return;
    };
    for file in &package.control.files {
        assert!(!file.name.contains('/') && !file.name.starts_with('.'));
        assert_eq!(package.control.file(&file.name), Some(file));
    }
    let offset = usize::try_from(package.data.offset).expect("within the input");
    if let Ok(reader) = data(&bytes[offset.min(bytes.len())..], package.data, 1, Proof::Checksums) {
        let _ = reader.take(PLAIN_BYTES).read_to_end(&mut Vec::new());
    }
});
