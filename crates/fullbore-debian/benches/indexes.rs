//! How fast indexes are walked: 60 MB of `Packages` text with the fields and lengths of
//! Debian's. `cargo bench -p fullbore-debian`. The aim for the stanza walk is 500 MB/s, so
//! that one core parses faster than any link delivers.

use std::fmt::Write as _;
use std::sync::OnceLock;

use divan::counter::BytesCount;
use fullbore_debian::compression::{Form, Reader};
use fullbore_debian::deb822::{Limits, Stanzas};
use fullbore_debian::index::{self, IndexError};

const TEXT_BYTES: usize = 60_000_000;

fn main() {
    divan::main();
}

fn text() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let mut text = String::with_capacity(TEXT_BYTES + 4096);
        for number in 0u64.. {
            if text.len() >= TEXT_BYTES {
                break;
            }
            write_package(&mut text, number).expect("memory");
        }
        text
    })
}

/// About 1,100 bytes in 22 fields, as the mean package of Debian 12.
fn write_package(text: &mut String, number: u64) -> std::fmt::Result {
    let hash = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    write!(
        text,
        "Package: package-{number}\nSource: source-{}\nVersion: 1.{}-{}+b1\nInstalled-Size: {}\n\
         Maintainer: Debian Something Maintainers <pkg-something-maintainers@lists.example.org>\nArchitecture: amd64\n\
         Provides: virtual-{number} (= 1.2-3)\n\
         Depends: libc6 (>= 2.34), libgcc-s1 (>= 3.0), libstdc++6 (>= 11), libfoo{number} (>= 1.2.3), default-dbus-system-bus | dbus-system-bus\n\
         Recommends: package-{number}-data, fonts-dejavu-core\nSuggests: package-{number}-doc\nSection: libs\nPriority: optional\n\
         Multi-Arch: same\nHomepage: https://www.example.org/package-{number}/\n\
         Description: short description of the package number {number}\n\
         Description-md5: {hash:016x}{hash:016x}\nTag: devel::library, implemented-in::c++, role::shared-lib,\n uitoolkit::gtk, works-with::image\n\
         Filename: pool/main/p/package-{number}/package-{number}_1.{}-{}+b1_amd64.deb\nSize: {}\n\
         MD5sum: {hash:016x}{hash:016x}\nSHA256: {hash:016x}{hash:016x}{hash:016x}{hash:016x}\n\n",
        number / 3,
        number % 50,
        number % 9,
        hash % 100_000,
        number % 50,
        number % 9,
        hash % 10_000_000,
    )
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn stanza_walk(bencher: divan::Bencher) {
    let text = text();
    bencher.counter(BytesCount::of_str(text)).bench(|| {
        let mut stanzas = Stanzas::new(text.as_bytes(), Limits::INDEX);
        let mut bytes = 0;
        while let Some(stanza) = stanzas.next().expect("well formed") {
            bytes += stanza.text().len();
        }
        bytes
    });
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn packages(bencher: divan::Bencher) {
    let text = text();
    bencher.counter(BytesCount::of_str(text)).bench(|| {
        let mut bytes = 0;
        index::packages(text.as_bytes(), |entry| {
            bytes += entry.size;
            Ok::<_, IndexError>(())
        })
        .expect("well formed");
        bytes
    });
}

/// Bytes are of the plain text.
#[divan::bench(sample_count = 3, sample_size = 1, args = ["gz", "zst", "xz"])]
fn packages_compressed(bencher: divan::Bencher, name: &str) {
    use std::io::Write as _;
    let text = text();
    let form = Form::by_name(name).expect("a form");
    let compressed = match form {
        Form::Zst => zstd::encode_all(text.as_bytes(), 3).expect("memory"),
        Form::Xz => {
            let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
            encoder.write_all(text.as_bytes()).expect("memory");
            encoder.finish().expect("memory")
        }
        _ => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(text.as_bytes()).expect("memory");
            encoder.finish().expect("memory")
        }
    };
    bencher.counter(BytesCount::of_str(text)).bench(|| {
        let reader = Reader::open(form, &compressed[..], text.len() as u64).expect("opens");
        index::packages(reader, |_| Ok::<_, IndexError>(())).expect("well formed")
    });
}
