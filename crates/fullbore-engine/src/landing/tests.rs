//! The landing with a caller that sends anything in any order, on targets that fail or
//! die at any operation.

use std::collections::BTreeMap;
use std::path::Path;

use proptest::prelude::*;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::*;
use crate::durability::Durability;
use crate::files::Root;
use crate::target::LocalTarget;
use crate::target::faults::{Fault, FaultyTarget};
use crate::target::memory::MemoryTarget;
use crate::window::Window;

/// Who never lies.
const JUDGE: u16 = 9;

struct Run<T> {
    landing: Landing,
    target: Arc<T>,
    outcomes: UnboundedReceiver<Outcome>,
    window: Window,
    runtime: tokio::runtime::Runtime,
}

impl<T: Target> Run<T> {
    fn new(target: T, journal: Journal) -> Run<T> {
        Run::side_by_side(target, journal, 1)
    }

    /// As on a machine that hashes so many files in the time of one.
    fn side_by_side(target: T, journal: Journal, side_by_side: usize) -> Run<T> {
        let (sender, outcomes) = unbounded_channel();
        let target = Arc::new(target);
        let ledger = Ledger::new();
        let landing = Landing::start_with(target.clone(), Arc::new(journal), 2, side_by_side, &ledger, sender).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        Run { landing, target, outcomes, window: Window::new(64 << 20, 10_000), runtime }
    }

    fn send(&self, item: u32, offset: u64, data: &[u8], source: u16) {
        let permit = self.window.acquire_blocking(data.len() as u64);
        let data = Bytes::copy_from_slice(data);
        let chunk = Chunk { item, offset, data, permit, source };
        self.runtime.block_on(self.landing.chunk(chunk));
    }

    fn next(&mut self) -> Outcome {
        self.runtime
            .block_on(async {
                let wait = std::time::Duration::from_secs(20);
                tokio::time::timeout(wait, self.outcomes.recv()).await
            })
            .expect("an outcome within 20 s")
            .expect("the landing is alive")
    }

    fn content(&self, path: &str) -> Option<Vec<u8>> {
        let (mut reader, _) = self.target.open(path).unwrap()?;
        let mut data = Vec::new();
        reader.read_to_end(&mut data).unwrap();
        Some(data)
    }

    /// Nothing is left in flight when all is done.
    fn finish(self) -> LandingCounts {
        self.landing.finish().unwrap();
        self.window.flush_blocking();
        self.landing.counts()
    }
}

fn memory() -> Run<MemoryTarget> {
    Run::new(MemoryTarget::default(), Journal::none())
}

fn spec(item: u32, path: &str, data: &[u8]) -> FileSpec {
    let (path, size) = (path.to_owned(), data.len() as u64);
    FileSpec { item, path, size, sha256: Sha256::of(data), mtime: None }
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

fn verified(outcome: Outcome) -> (u32, Vec<u16>, Vec<u16>) {
    match outcome {
        Outcome::Verified { item, sources, culprits } => (item, sources, culprits),
        other => panic!("expected a verified file, not {other:?}"),
    }
}

#[test]
fn files_land_in_order_out_of_order_and_empty() {
    let mut run = memory();
    let data = bytes(1, 1000);
    assert_eq!(run.landing.begin(spec(1, "a", &data)), []);
    run.send(1, 0, &data[..400], 1);
    run.send(1, 400, &data[400..], 1);
    assert_eq!(verified(run.next()), (1, vec![1], vec![]));
    assert_eq!(run.content("a").unwrap(), data);

    run.landing.begin(spec(2, "b", &data));
    for (at, source) in [(800, 3), (200, 1), (600, 3), (0, 2), (400, 1)] {
        run.send(2, at, &data[at as usize..at as usize + 200], source);
    }
    assert_eq!(verified(run.next()), (2, vec![1, 2, 3], vec![]));
    assert_eq!(run.content("b").unwrap(), data);

    run.landing.begin(spec(3, "empty", b""));
    assert_eq!(verified(run.next()), (3, vec![], vec![]));
    assert_eq!(run.content("empty").unwrap(), b"");
    let counts = run.finish();
    assert_eq!((counts.written_bytes, counts.wasted_bytes, counts.files), (2000, 0, 3));
}

#[test]
fn hedged_overlapping_and_foreign_bytes_do_no_harm() {
    let mut run = memory();
    let data = bytes(2, 1000);
    run.landing.begin(spec(1, "a", &data));
    run.send(1, 100, &data[100..500], 1);
    run.send(1, 300, &data[300..700], 2); // half of it is there
    run.send(1, 0, &[&data[..], b"beyond the end"].concat(), 3); // two gaps
    assert_eq!(verified(run.next()), (1, vec![1, 2, 3], vec![]));
    run.send(1, 0, &data, 4); // too late
    run.send(77, 0, b"of no file", 4);
    assert_eq!(run.content("a").unwrap(), data);
    let counts = run.finish();
    assert_eq!(counts.written_bytes, 1000);
    assert_eq!(counts.wasted_bytes, 200 + 600 + 14 + 1000 + 10);
}

#[test]
fn the_host_that_lied_is_named() {
    let mut run = memory();
    let data = bytes(3, 900);
    let mut wrong = data.clone();
    wrong[350] ^= 1;
    run.landing.begin(spec(1, "a", &data));
    run.send(1, 0, &data[..300], 1);
    run.send(1, 300, &wrong[300..600], 2);
    run.send(1, 600, &data[600..], 3);
    let Outcome::Mismatch { item, size, got, ranges } = run.next() else { panic!("no mismatch") };
    assert_eq!((item, size, got), (1, 900, Sha256::of(&wrong)));
    let told: Vec<_> = ranges.iter().map(|r| (r.range.clone(), r.source, r.sha256)).collect();
    let digest = |range: Range<usize>| Sha256::of(&wrong[range]);
    let expected = [(0..300, 1, digest(0..300)), (300..600, 2, digest(300..600)), (600..900, 3, digest(600..900))];
    assert_eq!(told, expected);
    assert_eq!(run.content("a"), None);
    // Late bytes of the first round are no answer to the second.
    run.send(1, 300, &wrong[300..600], 2);
    run.landing.retry(1, Retry::Ranges(vec![0..600]));
    run.send(1, 0, &data[..600], 3);
    assert_eq!(verified(run.next()), (1, vec![3], vec![2]));
    assert_eq!(run.content("a").unwrap(), data);
    run.finish();
}

#[test]
fn a_file_is_verified_after_two_hosts_sent_wrong_bytes() {
    let mut run = memory();
    let data = bytes(4, 500);
    run.landing.begin(spec(1, "a", &data));
    for source in [1, 2] {
        let wrong = bytes(u64::from(source) + 100, 500);
        run.send(1, 0, &wrong, source);
        let Outcome::Mismatch { got, ranges, .. } = run.next() else { panic!("no mismatch") };
        assert_eq!(got, Sha256::of(&wrong));
        assert_eq!(ranges, [RangeDigest { range: 0..500, source, sha256: got }]);
        run.landing.retry(1, Retry::Whole);
    }
    run.send(1, 0, &data, 3);
    assert_eq!(verified(run.next()), (1, vec![3], vec![1, 2]));
    run.finish();
}

#[test]
fn an_abandoned_file_keeps_only_its_unverified_part() {
    let directory = tempfile::tempdir().unwrap();
    let mut run = local(directory.path(), Fault::Never);
    let data = bytes(5, 600);
    run.landing.begin(spec(1, "wrong", &data));
    run.send(1, 0, &[0; 600], 1);
    assert!(matches!(run.next(), Outcome::Mismatch { .. }));
    run.landing.begin(spec(2, "half", &data));
    run.send(2, 0, &data[..300], 1);
    while run.landing.counts().written_bytes < 900 {
        std::thread::yield_now(); // abandoned before it is written, nothing would be kept
    }
    for item in [1, 2] {
        assert!(run.landing.abandon(item));
        assert!(!run.landing.abandon(item), "it is not under way any more");
    }
    run.send(2, 300, &data[300..], 1);
    // The same path may be begun again under another number.
    run.landing.begin(spec(3, "wrong", &data));
    run.send(3, 0, &data, 2);
    assert_eq!(verified(run.next()), (3, vec![2], vec![]));
    run.finish();
    assert!(!directory.path().join(".wrong.part").exists());
    assert_eq!(std::fs::read(directory.path().join("wrong")).unwrap(), data);
    assert!(!directory.path().join("half").exists());
    assert!(directory.path().join(".half.part").exists());
}

#[test]
fn the_end_comes_although_somebody_sends_for_ever() {
    let slow = || std::thread::sleep(std::time::Duration::from_millis(2));
    let run = Run::new(FaultyTarget::new(MemoryTarget::default(), Fault::Never).before_write(slow), Journal::none());
    let data = bytes(8, 1 << 20);
    run.landing.begin(spec(1, "a", &data));
    run.send(1, 0, &data[..10], 1);
    let (landing, window) = (run.landing.clone(), run.window.clone());
    let over = Arc::new(AtomicBool::new(false));
    let ended = over.clone();
    let sender = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        while !ended.load(Ordering::Relaxed) {
            let permit = window.acquire_blocking(1);
            let chunk = Chunk { item: 1, offset: 10, data: Bytes::from_static(b"x"), permit, source: 1 };
            runtime.block_on(landing.chunk(chunk));
        }
    });
    let (finished, told) = std::sync::mpsc::channel();
    let landing = run.landing.clone();
    std::thread::spawn(move || finished.send(landing.finish()));
    let result = told.recv_timeout(std::time::Duration::from_secs(20));
    over.store(true, Ordering::Relaxed);
    sender.join().unwrap();
    result.expect("no end within 20 s").unwrap();
}

#[test]
fn a_panic_in_a_thread_fails_its_files_and_no_others() {
    let first = AtomicBool::new(true);
    let panics = move || assert!(!first.swap(false, Ordering::Relaxed), "as the test wants it");
    let target = FaultyTarget::new(MemoryTarget::default(), Fault::Never).before_write(panics);
    let mut run = Run::new(target, Journal::none());
    let data = bytes(9, 100);
    run.landing.begin(spec(1, "a", &data));
    run.send(1, 0, &data[..50], 1);
    assert!(matches!(run.next(), Outcome::Failed { item: 1, cause: Cause::ThreadFailed { .. } }));
    run.send(1, 50, &data[50..], 1);
    for item in 2..6 {
        run.landing.begin(spec(item, &item.to_string(), &data));
        run.send(item, 0, &data, 1);
        match run.next() {
            Outcome::Failed { cause: Cause::ThreadFailed { .. }, .. } | Outcome::Verified { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    // Nor does one without bytes wait for ever.
    run.landing.begin(spec(6, "empty", b""));
    run.next();
    run.finish();
}

#[test]
fn impossible_paths_and_taken_ones_fail() {
    let mut run = memory();
    let data = bytes(6, 10);
    run.landing.begin(spec(1, "../escape", &data));
    run.send(1, 0, &data, 1);
    assert!(matches!(run.next(), Outcome::Failed { item: 1, .. }));
    run.landing.begin(spec(2, "a", &data));
    run.landing.begin(spec(3, "a", &data));
    let outcome = run.next();
    assert!(matches!(&outcome, Outcome::Failed { item: 3, cause: Cause::PathTaken { .. } }));
    run.send(2, 0, &data, 1);
    assert_eq!(verified(run.next()).0, 2);
    run.finish();
}

#[test]
fn the_mtime_comes_from_the_plan_or_the_answer() {
    let directory = tempfile::tempdir().unwrap();
    let mut run = local(directory.path(), Fault::Never);
    let data = bytes(7, 10);
    run.landing.begin(FileSpec { mtime: Some(1000), ..spec(1, "plan", &data) });
    run.landing.begin(spec(2, "answer", &data));
    run.landing.set_mtime(2, 2000);
    for item in [1, 2] {
        run.send(item, 0, &data, 1);
        verified(run.next());
    }
    let mtime = |path| run.target.inner().root().stat(path).unwrap().unwrap().mtime;
    assert_eq!((mtime("plan"), mtime("answer")), (1000, 2000));
    run.finish();
}

#[test]
fn a_sync_that_failed_once_is_not_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    // Operations: begin, write, commit, sync.
    let fault = Fault::ErrorAt { n: 4, errno: libc::EIO };
    let mut run = local(directory.path(), fault);
    run.landing.begin(spec(1, "a", b"x"));
    run.send(1, 0, b"x", 1);
    verified(run.next());
    for _ in 0..2 {
        let error = run.landing.checkpoint().unwrap_err();
        assert!(matches!(error, LandingError::Sync(_)), "{error}");
    }
    assert!(matches!(run.landing.finish(), Err(LandingError::Sync(_))));
}

#[test]
fn where_nothing_came_nothing_is_synced() {
    let directory = tempfile::tempdir().unwrap();
    let run = local(directory.path(), Fault::ErrorFrom { n: 1, errno: libc::EIO });
    run.finish();
}

// ---- any order, any split, any liar ----

#[derive(Debug, Clone)]
struct Piece {
    item: u32,
    start: usize,
    len: usize,
    source: u16,
}

const PLAN: [usize; 4] = [0, 1, 700, 5000];

fn pieces() -> impl Strategy<Value = Vec<Piece>> {
    let piece = (0..PLAN.len() as u32, 0_usize..5000, 1_usize..900, 1_u16..5).prop_map(|(item, start, len, source)| {
        let size = PLAN[item as usize];
        let start = start.min(size);
        Piece { item, start, len: len.min(size - start), source }
    });
    proptest::collection::vec(piece, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Whatever comes in whatever order from honest and lying sources: a file has its final
    /// name only when it is right, the liars whose bytes were taken are named, and no
    /// honest source is.
    #[test]
    fn whatever_arrives_only_right_files_are_named_and_only_liars_blamed(
        pieces in pieces(),
        liars in proptest::collection::btree_set(1_u16..5, 0..3),
        lies_at in proptest::collection::vec(0_usize..5000, 4),
        side_by_side in 1_usize..4,
        tells_later in proptest::bool::ANY,
    ) {
        let target = if tells_later { MemoryTarget::late(|_| false) } else { MemoryTarget::default() };
        let mut run = Run::side_by_side(target, Journal::none(), side_by_side);
        let contents: Vec<Vec<u8>> =
            PLAN.iter().enumerate().map(|(item, size)| bytes(item as u64, *size)).collect();
        let spoken = |item: u32, range: Range<usize>, source: u16| {
            let data = &contents[item as usize];
            let mut said = data[range.clone()].to_vec();
            let lie = lies_at[item as usize] % data.len().max(1);
            if liars.contains(&source) && range.contains(&lie) {
                said[lie - range.start] ^= 0x55;
            }
            said
        };
        for (item, data) in contents.iter().enumerate() {
            run.landing.begin(spec(item as u32, &format!("pool/{item}"), data));
        }
        for Piece { item, start, len, source } in pieces {
            run.send(item, start as u64, &spoken(item, start..start + len, source), source);
        }
        // Somebody at last serves everything.
        for (item, data) in contents.iter().enumerate() {
            let source = if liars.contains(&1) { 1 } else { JUDGE };
            run.send(item as u32, 0, &spoken(item as u32, 0..data.len(), source), source);
        }
        let mut expected: BTreeMap<u32, Vec<u16>> = BTreeMap::new();
        let mut open = PLAN.len();
        while open > 0 {
            match run.next() {
                Outcome::Verified { item, culprits, sources } => {
                    open -= 1;
                    prop_assert_eq!(run.content(&format!("pool/{item}")).unwrap(), &contents[item as usize][..]);
                    prop_assert_eq!(culprits, expected.remove(&item).unwrap_or_default());
                    prop_assert!(sources.iter().all(|source| *source == JUDGE || (1..5).contains(source)));
                }
                Outcome::Mismatch { item, ranges, .. } => {
                    prop_assert_eq!(run.content(&format!("pool/{item}")), None);
                    let data = &contents[item as usize];
                    let mut at = 0;
                    let mut again = Vec::new();
                    for RangeDigest { range, source, sha256 } in ranges {
                        prop_assert_eq!(range.start, at);
                        at = range.end;
                        let here = range.start as usize..range.end as usize;
                        prop_assert_eq!(sha256, Sha256::of(&spoken(item, here.clone(), source)));
                        if sha256 != Sha256::of(&data[here]) {
                            let culprits = expected.entry(item).or_default();
                            culprits.push(source);
                            culprits.sort_unstable();
                            culprits.dedup();
                        }
                        if source != JUDGE {
                            again.push(range);
                        }
                    }
                    prop_assert_eq!(at, data.len() as u64);
                    run.landing.retry(item, Retry::Ranges(again.clone()));
                    for range in again {
                        let here = range.start as usize..range.end as usize;
                        run.send(item, range.start, &data[here], JUDGE);
                    }
                }
                Outcome::Failed { cause, .. } => prop_assert!(false, "{}", cause),
            }
        }
        run.finish();
    }
}

/// A store refuses some files after the landing is done with them.
#[test]
fn a_refusal_that_comes_later_fails_that_file_alone() {
    let mut run = Run::new(MemoryTarget::late(|number| number % 3 == 0), Journal::none());
    let contents: Vec<Vec<u8>> = (0..9).map(|item| bytes(item, 1000)).collect();
    for (item, data) in contents.iter().enumerate() {
        run.landing.begin(spec(item as u32, &format!("pool/{item}"), data));
        run.send(item as u32, 0, data, 1);
    }
    let (mut verified, mut failed) = (0, 0);
    for _ in &contents {
        match run.next() {
            Outcome::Verified { item, .. } => {
                assert_eq!(run.content(&format!("pool/{item}")).unwrap(), contents[item as usize]);
                verified += 1;
            }
            Outcome::Failed { item, cause } => {
                assert_eq!(run.content(&format!("pool/{item}")), None);
                assert_eq!(cause.to_string(), format!("cannot store pool/{item}: it was given up"));
                failed += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((verified, failed), (6, 3));
    assert_eq!(run.finish().files, 6);
}

#[test]
fn late_bytes_of_a_file_that_is_being_stored_do_not_begin_it_anew() {
    let (tell, told) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(told);
    let store_when_told = move |_| gate.lock().unwrap().recv().is_err();
    let mut run = Run::new(MemoryTarget::late(store_when_told), Journal::none());
    let files = [bytes(1, 1000), Vec::new()];
    let mut handed_over = 0;
    for (item, data) in files.iter().enumerate() {
        run.landing.begin(spec(item as u32, &item.to_string(), data));
        for source in 1..4 {
            run.send(item as u32, 0, data, source);
            handed_over += data.len() as u64;
        }
    }
    let taken = |run: &Run<_>| run.landing.counts().written_bytes + run.landing.counts().wasted_bytes;
    let begun = std::time::Instant::now();
    while taken(&run) < handed_over {
        assert!(begun.elapsed() < std::time::Duration::from_secs(20));
        std::thread::yield_now();
    }
    assert_eq!(run.landing.counts().written_bytes, 1000);
    files.iter().for_each(|_| tell.send(()).unwrap());
    for _ in &files {
        let (item, ..) = verified(run.next());
        assert_eq!(run.content(&item.to_string()).unwrap(), files[item as usize]);
    }
    run.finish();
}

#[test]
fn the_end_waits_for_what_the_target_still_stores() {
    let run = Run::new(MemoryTarget::late(|_| false), Journal::none());
    let data = bytes(1, 1000);
    for item in 0..5 {
        run.landing.begin(spec(item, &format!("pool/{item}"), &data));
        run.send(item, 0, &data, 1);
    }
    let target = run.target.clone();
    assert_eq!(run.finish().files, 5);
    for item in 0..5 {
        assert_eq!(target.open(&format!("pool/{item}")).unwrap().unwrap().1, 1000);
    }
}

/// What is hashed later is hashed nevertheless, and holds no permits meanwhile.
#[test]
fn hashing_that_was_put_off_is_caught_up_with() {
    let mut run = Run::side_by_side(MemoryTarget::default(), Journal::none(), 8);
    run.window = Window::new(100_000, 100);
    let contents: Vec<Vec<u8>> = (0..40).map(|item| bytes(item, 20_000 * (1 + item as usize % 5))).collect();
    for (item, data) in contents.iter().enumerate() {
        run.landing.begin(spec(item as u32, &format!("pool/{item}"), data));
        for (index, piece) in data.chunks(7000).enumerate() {
            run.send(item as u32, 7000 * index as u64, piece, 1);
        }
    }
    for _ in &contents {
        let (item, ..) = verified(run.next());
        assert_eq!(run.content(&format!("pool/{item}")).unwrap(), contents[item as usize]);
    }
    run.finish();
}

// ---- failures and kills at every operation ----

const CHUNK: usize = 16 << 10;

fn local(directory: &Path, fault: Fault) -> Run<FaultyTarget<LocalTarget>> {
    let root = Arc::new(Root::open(directory).unwrap());
    let journal = Journal::open(&root, ".fullbore/log", &mut |_, _| {}).unwrap();
    // Without real syncs: they would take most of the tests' time, and are not what the
    // faults are about (the target counts barriers all the same).
    Run::new(FaultyTarget::new(LocalTarget::new(root, Durability::None), fault), journal)
}

fn archive() -> Vec<(String, Vec<u8>)> {
    let sizes = [0, 3000, CHUNK + 1, 5 * CHUNK + 77];
    let file = |(index, size)| (format!("pool/d{}/f{index}", index % 2), bytes(index as u64, size));
    sizes.into_iter().enumerate().map(file).collect()
}

/// Sends what is missing, the large file in two interleaved ranges; returns how many
/// bytes were sent.
fn send_missing<T: Target>(run: &mut Run<T>, archive: &[(String, Vec<u8>)]) -> u64 {
    let mut sent = 0;
    let mut wanted = 0;
    let mut queue = Vec::new();
    for (item, (path, data)) in archive.iter().enumerate() {
        // What has its final name is right, or this whole test has failed.
        if let Some(there) = run.content(path) {
            assert_eq!(&there, data, "{path} has its final name and is wrong");
            continue;
        }
        wanted += 1;
        let present = run.landing.begin(spec(item as u32, path, data));
        let present: crate::ranges::Ranges = present.into_iter().collect();
        for gap in present.missing(0..data.len() as u64) {
            let cut = (gap.start as usize..gap.end as usize).step_by(CHUNK);
            queue.extend(cut.map(|at| (item, at, (at + CHUNK).min(gap.end as usize))));
        }
    }
    let half = queue.len() / 2;
    let (first, second) = queue.split_at(half);
    let longest = first.len().max(second.len());
    for index in 0..longest {
        for part in [first, second] {
            if let Some((item, start, end)) = part.get(index).copied() {
                run.send(item as u32, start as u64, &archive[item].1[start..end], 1);
                sent += (end - start) as u64;
            }
        }
    }
    for _ in 0..wanted {
        match run.next() {
            Outcome::Verified { item, culprits, .. } => {
                assert!(culprits.is_empty());
                let (path, data) = &archive[item as usize];
                assert_eq!(&run.content(path).unwrap(), data);
            }
            Outcome::Failed { cause, .. } => assert!(cause.kind().is_some(), "{cause}"),
            Outcome::Mismatch { item, .. } => panic!("item {item}: nobody lied"),
        }
    }
    sent
}

fn operations() -> u64 {
    let directory = tempfile::tempdir().unwrap();
    let mut run = local(directory.path(), Fault::Never);
    send_missing(&mut run, &archive());
    let operations = run.target.operations();
    assert_eq!(run.finish().files, 4);
    assert!(operations > 15, "{operations}");
    operations
}

fn check_and_complete(directory: &Path, archive: &[(String, Vec<u8>)]) -> u64 {
    let mut run = local(directory, Fault::Never);
    let sent = send_missing(&mut run, archive);
    for (path, data) in archive {
        assert_eq!(&run.content(path).unwrap(), data, "{path}");
    }
    run.finish();
    sent
}

#[test]
fn errors_of_the_disk_at_any_operation_leave_nothing_wrong() {
    let archive = archive();
    for n in 1..=operations() {
        let errno = [libc::ENOSPC, libc::EIO, libc::EDQUOT][n as usize % 3];
        for fault in [Fault::ErrorAt { n, errno }, Fault::ErrorFrom { n, errno }] {
            let directory = tempfile::tempdir().unwrap();
            let mut run = local(directory.path(), fault);
            send_missing(&mut run, &archive);
            // Whether the last sync succeeds depends on n; that nothing wrong is visible
            // does not.
            let _ = run.landing.finish();
            drop(run);
            check_and_complete(directory.path(), &archive);
        }
    }
}

/// A store that answers later: it fails at an operation, or refuses an upload that the landing is done with.
#[test]
fn a_late_store_fails_at_every_operation_and_at_every_answer() {
    let archive = archive();
    let run_over = |store: MemoryTarget, fault: Fault| {
        let later = store.again();
        let mut run = Run::new(FaultyTarget::new(store, fault), Journal::none());
        send_missing(&mut run, &archive);
        let operations = run.target.operations();
        let _ = run.landing.finish();
        let files = run.landing.counts().files;
        let mut run = Run::new(later, Journal::none());
        let visible = archive.iter().filter(|(path, _)| run.content(path).is_some()).count() as u64;
        assert_eq!(visible, files, "what was told is what is visible");
        send_missing(&mut run, &archive);
        for (path, data) in &archive {
            assert_eq!(&run.content(path).unwrap(), data, "{path}");
        }
        run.finish();
        (operations, files)
    };
    let (operations, files) = run_over(MemoryTarget::late(|_| false), Fault::Never);
    assert_eq!(files, 4);
    assert!(operations > 12, "{operations}");
    for n in 1..=operations {
        for fault in [Fault::ErrorAt { n, errno: libc::EIO }, Fault::ErrorFrom { n, errno: libc::ENOSPC }] {
            run_over(MemoryTarget::late(|_| false), fault);
        }
    }
    for n in 1..=files {
        let (_, files) = run_over(MemoryTarget::late(move |number| number == n), Fault::Never);
        assert_eq!(files, 3);
    }
}

#[test]
fn a_run_killed_at_any_operation_is_resumed_with_few_bytes_again() {
    let archive = archive();
    let total: u64 = archive.iter().map(|(_, data)| data.len() as u64).sum();
    for n in 1..=operations() {
        // A kill may also lose what the log had in memory, or tear its last record.
        for lost_bytes in [0, 1, 60] {
            let directory = tempfile::tempdir().unwrap();
            let mut run = local(directory.path(), Fault::StopAt { n });
            send_missing(&mut run, &archive);
            assert!(run.target.is_stopped() || n > run.target.operations());
            let written = run.landing.counts().written_bytes;
            drop(run);
            let log = directory.path().join(".fullbore/log");
            let len = std::fs::metadata(&log).unwrap().len();
            let file = std::fs::File::options().write(true).open(&log).unwrap();
            file.set_len(len.saturating_sub(lost_bytes)).unwrap();
            let sent = check_and_complete(directory.path(), &archive);
            // Small files under way, and in the real world half a MiB per large one; and, only
            // here, a record more that the log lost.
            let again = sent.saturating_sub(total - written);
            let logged_every = 64 << 10;
            let small = 2 * CHUNK as u64;
            let limit = small + logged_every + if lost_bytes > 0 { logged_every + small } else { 0 };
            assert!(again <= limit, "n {n}: {again} bytes were fetched again");
        }
    }
}

/// A run resumes what an earlier one, ended in good order, had begun, and does not ask for
/// what is there.
#[test]
fn a_run_resumes_what_the_journal_has() {
    let directory = tempfile::tempdir().unwrap();
    let data = bytes(1, 2 << 20);
    let run = local(directory.path(), Fault::Never);
    run.landing.begin(spec(1, "a", &data));
    run.send(1, 0, &data[..600_000], 1);
    run.send(1, 1_000_000, &data[1_000_000..1_700_000], 2);
    run.finish();

    let mut run = local(directory.path(), Fault::Never);
    let sha256 = Sha256::of(&data);
    assert_eq!(run.landing.present("a", 2 << 20, sha256), [0..600_000, 1_000_000..1_700_000]);
    // Other content of that name: nothing is there.
    assert_eq!(run.landing.present("a", 2 << 20, Sha256::EMPTY), []);
    assert_eq!(run.landing.begin(spec(7, "a", &data)).len(), 2);
    run.send(7, 600_000, &data[600_000..1_000_000], 3);
    run.send(7, 1_700_000, &data[1_700_000..], 4);
    assert_eq!(verified(run.next()), (7, vec![3, 4], vec![]));
    let counts = run.finish();
    assert_eq!(counts.wasted_bytes, 0);
    // New bytes that overtake the reading back are read back as well.
    assert!((600_000 + 700_000..=2 << 20).contains(&counts.reread_bytes), "{counts:?}");
}

/// What an earlier run left turns out wrong: nobody is to blame, and it is fetched again.
#[test]
fn resumed_bytes_that_are_wrong_blame_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let data = bytes(1, 2 << 20);
    let run = local(directory.path(), Fault::Never);
    run.landing.begin(spec(1, "a", &data));
    run.send(1, 0, &data[..1 << 20], 1);
    run.finish();
    let mut part = std::fs::read(directory.path().join(".a.part")).unwrap();
    part[1000] ^= 1;
    std::fs::write(directory.path().join(".a.part"), &part).unwrap();

    let mut run = local(directory.path(), Fault::Never);
    assert_eq!(run.landing.begin(spec(1, "a", &data)), [0..1 << 20]);
    run.send(1, 1 << 20, &data[1 << 20..], 2);
    let Outcome::Mismatch { ranges, .. } = run.next() else { panic!("no mismatch") };
    assert_eq!((ranges[0].source, ranges[1].source), (RESUMED, 2));
    run.landing.retry(1, Retry::Ranges(vec![0..1 << 20]));
    run.send(1, 0, &data[..1 << 20], 2);
    assert_eq!(verified(run.next()), (1, vec![2], vec![]));
    run.finish();
}

/// Killed between the last byte and the final name: one byte is left to ask for.
#[test]
fn all_present_still_leaves_something_to_ask_for() {
    let directory = tempfile::tempdir().unwrap();
    let data = bytes(1, 1 << 20);
    let run = local(directory.path(), Fault::Never);
    run.landing.begin(spec(1, "a", &data));
    run.send(1, 0, &data[..(1 << 20) - 1], 1);
    run.finish();
    let mut run = local(directory.path(), Fault::Never);
    std::fs::write(directory.path().join(".a.part"), &data).unwrap();
    let journal = &run.landing.inner.shared.journal;
    let key = journal.part("a", 1 << 20, Sha256::of(&data), false).unwrap();
    journal.written(key, &[0..1 << 20]).unwrap();
    assert_eq!(run.landing.begin(spec(1, "a", &data)), [0..(1 << 20) - 1]);
    run.send(1, (1 << 20) - 1, &data[(1 << 20) - 1..], 1);
    verified(run.next());
    run.finish();
}

/// Files are spread over the threads by the bytes that wait before each.
#[test]
fn files_go_to_the_idler_thread() {
    let mut run = memory();
    let data = bytes(1, 100);
    let first = run.landing.clone();
    first.inner.writers[0].load.bytes.store(1000, Ordering::Relaxed);
    run.landing.begin(spec(1, "a", &data));
    run.send(1, 0, &data[..50], 1);
    let entry = run.landing.inner.shared.entry(1).unwrap();
    assert_eq!(entry.thread.load(Ordering::Relaxed), 1);
    run.send(1, 50, &data[50..], 1);
    verified(run.next());
    run.finish();
}
