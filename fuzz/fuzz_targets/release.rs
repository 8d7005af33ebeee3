//! `Release`, clear-signed or not: no panic; every path stays below its directory, entries
//! are sorted and found again, and their names can be taken apart.

#![no_main]

use fullbore_debian::classify::classify;
use fullbore_debian::path;
use fullbore_debian::release::Release;
use fullbore_debian::signature::SignedText;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = SignedText::trusted(bytes) else {
        return;
    };
    let Ok(release) = Release::parse(&text) else {
        return;
    };
    assert!(release.entries.is_sorted_by(|left, right| left.path < right.path));
    for entry in &release.entries {
        assert_eq!(path::check(entry.path.as_str()), Ok(()));
        assert_eq!(release.find(entry.path.as_str()), Some(entry));
        assert!(entry.path.as_str().split('/').all(|part| !part.starts_with('.')));
        assert!(entry.path.as_str().ends_with(classify(entry.path.as_str()).form.extension()));
    }
});
