//! How fast patches are read, joined, applied and made: 430 MB of `Contents` text and 56 steps
//! with the numbers of hunks and bytes of Debian's. `cargo bench -p fullbore-debian --bench pdiff`.
//! The aim for one pass over the old text is 0.15 s: beside hashing and writing, which take
//! twice as long, it should not show.

use std::fmt::Write as _;
use std::sync::OnceLock;

use bytes::Bytes;
use divan::counter::BytesCount;
use fullbore_debian::pdiff::{Edits, Piece, Splice, generate};

const OLD_BYTES: usize = 430_000_000;
const STEPS: usize = 56;
/// In the middle of what 56 steps of sid's `Contents-all` had: 3.6 KB to 1.5 MB.
const STEP_TEXT_BYTES: usize = 120_000;
const STEP_HUNKS: u64 = 233;
/// What a reader of files would hand over at once.
const PIECE_BYTES: usize = 256 << 10;
/// As large as a `Packages` of sid.
const PACKAGES_BYTES: usize = 60_000_000;

fn main() {
    divan::main();
}

fn line(text: &mut String, number: u64) {
    let hash = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let (directory, file) = (number / 40, hash % 100_000);
    let _ = writeln!(
        text,
        "usr/share/doc/package-{directory}/html/reference/page-{number}-{file}.html{:>20}devel/package-{directory}-doc",
        ""
    );
}

fn old() -> &'static str {
    static OLD: OnceLock<String> = OnceLock::new();
    OLD.get_or_init(|| {
        let mut text = String::with_capacity(OLD_BYTES + 256);
        for number in 0.. {
            if text.len() >= OLD_BYTES {
                break;
            }
            line(&mut text, number);
        }
        text
    })
}

/// One step: as many lines come as go, so that all steps fit.
fn script(step: usize) -> Bytes {
    let lines = old().lines().count() as u64;
    let per_hunk = STEP_TEXT_BYTES / 100 / STEP_HUNKS as usize;
    let gap = lines / (STEP_HUNKS + 1);
    let mut script = String::new();
    for hunk in (0..STEP_HUNKS).rev() {
        let first = hunk * gap + 1 + (step as u64 * 7919 + hunk * 104_729) % (gap - 10);
        let _ = writeln!(script, "{first},{}c", first + per_hunk as u64 - 1);
        for number in 0..per_hunk as u64 {
            line(&mut script, first + number + ((step as u64 + 1) << 32));
        }
        script.push_str(".\n");
    }
    Bytes::from(script)
}

fn scripts() -> &'static [Bytes] {
    static SCRIPTS: OnceLock<Vec<Bytes>> = OnceLock::new();
    SCRIPTS.get_or_init(|| (0..STEPS).map(script).collect())
}

/// Copies all pieces into a buffer that stays in the cache, as a hasher or writer would have it.
fn apply(edits: &Edits, old: &[u8]) -> u64 {
    let (mut buffer, mut bytes) = (vec![0; PIECE_BYTES], 0);
    let mut splice = Splice::new(edits);
    for piece in old.chunks(PIECE_BYTES) {
        splice.feed(piece, &mut |out| {
            let out = match out {
                Piece::Old(range) => &piece[range],
                Piece::New(text) => text,
            };
            buffer[..out.len()].copy_from_slice(out);
            bytes += out.len() as u64;
        });
    }
    splice.finish(&mut |_| {}).expect("fits");
    bytes
}

#[divan::bench(args = [1, 4, 56], sample_count = 10, sample_size = 1)]
fn splice(bencher: divan::Bencher, steps: usize) {
    let edits = scripts()[..steps].iter().map(|script| Edits::parse(script.clone()).expect("ours")).collect();
    let edits = Edits::chain(edits).expect("few");
    let old = old().as_bytes();
    bencher.counter(BytesCount::new(old.len())).bench_local(|| apply(&edits, old));
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn untouched_frames(bencher: divan::Bencher) {
    let edits = Edits::parse(scripts()[0].clone()).expect("ours");
    let old = old().as_bytes();
    bencher.counter(BytesCount::new(old.len())).bench_local(|| {
        let mut splice = Splice::new(&edits);
        let mut untouched = 0;
        for frame in old.chunks(PIECE_BYTES) {
            match splice.pass_untouched(frame) {
                true => untouched += 1,
                false => splice.feed(frame, &mut |_| {}),
            }
        }
        untouched
    });
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn read_56_scripts(bencher: divan::Bencher) {
    let scripts = scripts();
    let bytes: usize = scripts.iter().map(Bytes::len).sum();
    let read = || scripts.iter().map(|script| Edits::parse(script.clone()).expect("ours").edits().len()).sum::<usize>();
    bencher.counter(BytesCount::new(bytes)).bench_local(read);
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn chain_56_scripts(bencher: divan::Bencher) {
    let steps: Vec<Edits> = scripts().iter().map(|script| Edits::parse(script.clone()).expect("ours")).collect();
    bencher.with_inputs(|| steps.clone()).bench_local_values(|steps| Edits::chain(steps).expect("few").edits().len());
}

#[divan::bench(sample_count = 5, sample_size = 1)]
fn generate_60_mb(bencher: divan::Bencher) {
    let old = &old()[..=old()[..PACKAGES_BYTES].rfind('\n').expect("lines")];
    // Every 300th line is another one.
    let mut new = String::with_capacity(old.len());
    for (number, text) in old.split_inclusive('\n').enumerate() {
        match number % 300 {
            7 => line(&mut new, number as u64 | 1 << 40),
            _ => new.push_str(text),
        }
    }
    let (old, new) = (old.as_bytes(), new.as_bytes());
    bencher.counter(BytesCount::new(old.len())).bench_local(|| generate(old, new).expect("expressed").edits().len());
}
