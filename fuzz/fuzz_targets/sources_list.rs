//! Sources files in both forms: no panic; what is accepted names a type, a URI and suites
//! whose directories stay below the archive.

#![no_main]

use fullbore_debian::path;
use fullbore_debian::sources_list::{self, ArchiveSource};
use libfuzzer_sys::fuzz_target;

fn check(sources: &[ArchiveSource]) {
    for source in sources {
        assert!(source.binary || source.source);
        assert!(!source.uris.is_empty() && !source.suites.is_empty());
        for suite in &source.suites {
            let directory = suite.release_directory();
            assert!(directory.is_empty() || path::check(&directory).is_ok() || directory.len() > path::PATH_BYTES_MAX);
        }
    }
}

fuzz_target!(|text: &str| {
    if let Ok(sources) = sources_list::parse_deb822(text, "amd64") {
        check(&sources);
    }
    if let Ok(sources) = sources_list::parse_one_line(text, "amd64") {
        check(&sources);
    }
});
