//! The log as its users see it: killed, cut, rebooted, compacted.

use proptest::prelude::*;

use super::*;

fn root() -> (tempfile::TempDir, Arc<Root>) {
    let directory = tempfile::tempdir().unwrap();
    let root = Arc::new(Root::open(directory.path()).unwrap());
    (directory, root)
}

fn digest(number: u8) -> Sha256 {
    Sha256::of(&[number])
}

fn open(root: &Arc<Root>) -> (Journal, Vec<(String, bool)>) {
    let mut finished = Vec::new();
    let journal = Journal::open(root, "log", &mut |file, trusted| finished.push((file.path, trusted)));
    (journal.unwrap(), finished)
}

/// As after a power cut: the log says that another run of the kernel wrote it.
fn reboot(directory: &tempfile::TempDir) {
    let path = directory.path().join("log");
    let log = std::fs::read(&path).unwrap();
    let mut reader = record::Reader::new(&log[..]).unwrap().unwrap();
    let mut other = Vec::new();
    // The same length, so that the offsets of marks stay right.
    record::start(&mut other, &"x".repeat(boot_id().len()));
    reader.next().unwrap();
    assert_eq!(other.len() as u64, reader.bytes);
    while let Some((_, record)) = reader.next().unwrap() {
        record.encode(&mut other);
    }
    std::fs::write(path, other).unwrap();
}

#[test]
fn unfinished_and_finished_are_taken_up() {
    let (_directory, root) = root();
    let (journal, _) = open(&root);
    let key = journal.part("a", 100, digest(1), false).unwrap();
    journal.written(key, &[0..10, 50..60]).unwrap();
    journal.written(key, &[10..20]).unwrap();
    let gone = journal.part("b", 100, digest(2), false).unwrap();
    journal.written(gone, &[0..10]).unwrap();
    journal.forget(gone).unwrap();
    journal.finished("c", 5, digest(3)).unwrap();
    std::mem::forget(journal); // killed: what waits in memory is lost
    let (journal, finished) = open(&root);
    assert_eq!(finished, []);
    assert_eq!(journal.present("a", 100, digest(1)).as_slice(), [0..20, 50..60]);
    assert!(journal.present("a", 99, digest(1)).is_empty());
    assert!(journal.present("a", 100, digest(2)).is_empty());
    assert!(journal.present("b", 100, digest(2)).is_empty());
    journal.finished("c", 5, digest(3)).unwrap();
    journal.finished("a", 100, digest(1)).unwrap();
    drop(journal);
    let (journal, finished) = open(&root);
    assert_eq!(finished, [("c".to_owned(), true), ("a".to_owned(), true)]);
    assert!(journal.unfinished().is_empty());
}

#[test]
fn other_content_of_the_same_path_starts_from_nothing() {
    let (_directory, root) = root();
    let (journal, _) = open(&root);
    let old = journal.part("a", 100, digest(1), false).unwrap();
    journal.written(old, &[0..10]).unwrap();
    assert_eq!(journal.part("a", 100, digest(1), false).unwrap(), old);
    let new = journal.part("a", 100, digest(2), false).unwrap();
    assert_ne!(old, new);
    journal.written(old, &[10..20]).unwrap(); // a late word about the old one
    assert!(journal.present("a", 100, digest(2)).is_empty());
    journal.written(new, &[0..10]).unwrap();
    let afresh = journal.part("a", 100, digest(2), true).unwrap();
    assert_ne!(new, afresh);
    drop(journal);
    assert!(open(&root).0.present("a", 100, digest(2)).is_empty());
}

#[test]
fn after_a_power_cut_only_checkpoints_count() {
    let (directory, root) = root();
    let (journal, _) = open(&root);
    let key = journal.part("big", 100, digest(1), false).unwrap();
    journal.finished("early", 1, digest(2)).unwrap();
    journal.written(key, &[0..10]).unwrap();
    let checkpoint = journal.begin_checkpoint().unwrap();
    // Logged while the sync ran: not covered by it.
    journal.finished("during", 1, digest(3)).unwrap();
    journal.written(key, &[10..20]).unwrap();
    journal.complete_checkpoint(checkpoint).unwrap();
    journal.finished("late", 1, digest(4)).unwrap();
    drop(journal);

    let (journal, finished) = open(&root);
    assert!(finished.iter().all(|(_, trusted)| *trusted), "the same boot");
    drop(journal);
    reboot(&directory);
    let (journal, finished) = open(&root);
    let expected = [("early", true), ("during", false), ("late", false)];
    assert_eq!(finished, expected.map(|(path, trusted)| (path.to_owned(), trusted)));
    assert_eq!(journal.present("big", 100, digest(1)).as_slice(), [0..10]);

    // Distrust does not end by waiting for the next checkpoint or the next boot.
    let checkpoint = journal.begin_checkpoint().unwrap();
    journal.complete_checkpoint(checkpoint).unwrap();
    drop(journal);
    reboot(&directory);
    let (journal, finished) = open(&root);
    assert_eq!(finished, [("early".to_owned(), true)]);
    assert_eq!(journal.present("big", 100, digest(1)).as_slice(), [0..10]);
}

#[test]
fn compaction_keeps_what_matters() {
    let (directory, root) = root();
    let (journal, _) = open(&root);
    let key = journal.part("big", 1 << 30, digest(1), false).unwrap();
    journal.finished("a", 1, digest(2)).unwrap();
    let checkpoint = journal.begin_checkpoint().unwrap();
    journal.complete_checkpoint(checkpoint).unwrap();
    journal.finished("b", 1, digest(3)).unwrap();
    for at in 0..1000 {
        journal.written(key, &[at * 10..at * 10 + 10]).unwrap();
    }
    let before = root.stat("log").unwrap().unwrap().size;
    let pending = journal.begin_checkpoint().unwrap();
    journal.rewrite_keeping_finished().unwrap();
    assert!(root.stat("log").unwrap().unwrap().size < before / 10);
    // A checkpoint that began before the log was written anew proves nothing about it.
    journal.complete_checkpoint(pending).unwrap();
    journal.written(key, &[10_000..10_010]).unwrap();
    drop(journal);
    reboot(&directory);
    let (journal, finished) = open(&root);
    assert_eq!(finished, [("a".to_owned(), true), ("b".to_owned(), false)]);
    assert!(journal.present("big", 1 << 30, digest(1)).is_empty());
    drop(journal);
    let (journal, finished) = open(&root);
    assert_eq!(finished, [("a".to_owned(), true)]);
    journal.compact().unwrap();
    journal.finished("c", 1, digest(3)).unwrap();
    drop(journal);
    assert_eq!(open(&root).1, [("c".to_owned(), true)]);
}

#[test]
fn what_is_no_log_is_replaced() {
    let (_directory, root) = root();
    root.write_part("log", b"something else entirely").unwrap().finish().unwrap();
    let (journal, finished) = open(&root);
    assert_eq!(finished, []);
    journal.finished("a", 1, digest(1)).unwrap();
    drop(journal);
    assert_eq!(open(&root).1, [("a".to_owned(), true)]);
}

#[test]
fn without_a_log_nothing_is_present() {
    let journal = Journal::none();
    let key = journal.part("a", 100, digest(1), false).unwrap();
    journal.written(key, &[0..10]).unwrap();
    assert!(journal.present("a", 100, digest(1)).is_empty());
    journal.compact().unwrap();
}

/// Torn at every byte: what was logged last may be missing, nothing is invented, and
/// the log goes on from there.
#[test]
fn a_log_torn_at_any_byte_is_continued() {
    let (directory, root) = root();
    let (journal, _) = open(&root);
    let key = journal.part("a", 100, digest(1), false).unwrap();
    journal.written(key, &[0..10]).unwrap();
    journal.finished("b", 5, digest(2)).unwrap();
    journal.written(key, &[10..20]).unwrap();
    drop(journal);
    let path = directory.path().join("log");
    let log = std::fs::read(&path).unwrap();
    let mut most = 0;
    for cut in 0..=log.len() {
        std::fs::write(&path, &log[..cut]).unwrap();
        let (journal, finished) = open(&root);
        let present = journal.present("a", 100, digest(1));
        assert!([0, 10, 20].contains(&present.bytes()));
        assert!(present.bytes() >= most);
        most = present.bytes();
        journal.finished("after", 1, digest(4)).unwrap();
        drop(journal);
        let (_, again) = open(&root);
        assert_eq!(again[..finished.len()], finished);
        assert_eq!(again.last(), Some(&("after".to_owned(), true)));
    }
    assert_eq!(most, 20);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_file_is_taken(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let (_directory, root) = root();
        root.write_part("log", &bytes).unwrap().finish().unwrap();
        open(&root).0.finished("a", 1, digest(1)).unwrap();
        prop_assert_eq!(open(&root).1.len(), 1);
    }
}

#[test]
fn what_another_program_left_is_taken_up_where_nothing_is_logged() {
    let prefix = || std::iter::once(0..10).collect::<Ranges>();
    let journal = Journal::none();
    journal.found("/a", 100, digest(1), prefix());
    assert_eq!(journal.present("/a", 100, digest(1)), prefix());
    assert!(journal.present("/a", 100, digest(2)).is_empty(), "it was said of other content");
    assert_eq!(journal.part("/a", 100, digest(1), false).unwrap(), Key(0));
    journal.finished("/a", 100, digest(1)).unwrap();
    assert!(journal.present("/a", 100, digest(1)).is_empty());
    let (_directory, root) = root();
    let (logging, _) = open(&root);
    logging.found("/a", 100, digest(1), prefix());
    assert!(logging.present("/a", 100, digest(1)).is_empty());
}
