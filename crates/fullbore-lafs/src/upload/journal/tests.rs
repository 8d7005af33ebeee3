use std::os::unix::fs::PermissionsExt;

use super::*;

const INDEX: StorageIndex = [1; 16];

fn open(directory: &Path) -> Arc<Journal> {
    Journal::open(directory).unwrap()
}

fn files(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn interrupted(directory: &Path, random: Option<(&str, &Key)>) {
    let mut notes = open(directory).begin(&INDEX, random);
    notes.asked("v0-a", &[3].into(), &[7; 20]);
    notes.asked("v0-b", &[4, 5].into(), &[8; 20]);
    for segment in 0..4 {
        assert!(notes.segment(segment, &[segment as u8; 32]));
    }
    notes.acknowledged(3, 3 << 20, 36, 1 << 20);
    notes.done(4);
    notes.done(5);
}

fn known() -> KnownShare {
    KnownShare { server: "v0-a".into(), share: 3, secret: [7; 20], acknowledged: 3 << 20 }
}

#[test]
fn what_was_acknowledged_is_known_to_the_next_run() {
    let directory = tempfile::tempdir().unwrap();
    let random = Some(("file", &[2; 16]));
    interrupted(directory.path(), random);
    let journal = open(directory.path());
    assert_eq!(journal.random_key("file"), Some([2; 16]));
    assert_eq!(journal.random_key("another"), None);
    let mut notes = journal.begin(&INDEX, random);
    assert_eq!(notes.shares(), [known()]);
    // The same file, and another one.
    assert!((0..4).all(|segment| notes.segment(segment, &[segment as u8; 32])));
    drop((journal, notes));
    let mut notes = open(directory.path()).begin(&INDEX, random);
    assert!(!(0..4).all(|segment| notes.segment(segment, &[9; 32])));
    let [file] = &files(directory.path())[..] else { panic!("one file") };
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    notes.ended();
    assert!(files(directory.path()).is_empty(), "nothing is left to take up");
}

#[test]
fn another_content_knows_nothing() {
    let directory = tempfile::tempdir().unwrap();
    interrupted(directory.path(), None);
    let journal = open(directory.path());
    assert!(journal.begin(&[9; 16], None).shares().is_empty());
    assert_eq!(journal.begin(&INDEX, None).shares(), [known()]);
}

#[test]
fn an_upload_that_never_began_leaves_no_file() {
    let directory = tempfile::tempdir().unwrap();
    drop(open(directory.path()));
    assert!(files(directory.path()).is_empty());
}

#[test]
fn a_run_that_is_under_way_keeps_its_own_and_a_cut_line_is_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let first = open(directory.path()).begin(&INDEX, None);
    first.asked("v0-a", &[3].into(), &[7; 20]);
    assert!(open(directory.path()).begin(&INDEX, None).shares().is_empty(), "another run has it");
    drop(first);
    // Both files have the upload; the second run asked for nothing.
    let notes = open(directory.path()).begin(&INDEX, None);
    assert_eq!(notes.shares().len(), 1);
    drop(notes);
    let [path] = &files(directory.path())[..] else { panic!("one file") };
    let text = fs::read_to_string(path).unwrap();
    let asked = text.find("asked").unwrap();
    fs::write(path, &text[..asked + 40]).unwrap();
    assert!(open(directory.path()).begin(&INDEX, None).shares().is_empty());
}

#[test]
fn a_journal_that_cannot_be_written_stops_nothing() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("journals");
    let journal = open(&directory);
    fs::write(&directory, b"in its place").unwrap();
    let notes = journal.begin(&INDEX, None);
    notes.asked("v0-a", &[3].into(), &[7; 20]);
    assert_eq!(notes.shares().len(), 1);
    assert!(journal.lock().is_broken);
}

#[test]
fn what_is_old_is_swept() {
    let directory = tempfile::tempdir().unwrap();
    let old = Line::Upload { index: base32::encode(&INDEX), at: now() - KEPT.as_secs() - 10, random: None };
    fs::write(directory.path().join(format!("1{SUFFIX}")), serde_json::to_vec(&old).unwrap()).unwrap();
    fs::write(directory.path().join("1.other"), b"").unwrap();
    drop(open(directory.path()));
    assert_eq!(files(directory.path()), [directory.path().join("1.other")]);
}

#[test]
fn caps_are_kept_until_they_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let cap = Cap::Literal(b"content".to_vec());
    let stored = Stored { cap: cap.clone(), happiness: 4, shares: (5, 0), sent_bytes: 9, troubles: Vec::new() };
    open(directory.path()).stored("file", &stored);
    let journal = open(directory.path());
    let known = journal.untold("file").expect("it was not told");
    assert!(known.cap == cap && known.happiness == 4 && known.sent_bytes == 0);
    assert!(journal.untold("another").is_none());
    assert!(journal.untold("file").is_none(), "each file of a run has a cap of its own");
    drop(journal);
    // A run that is about other files.
    let journal = open(directory.path());
    journal.all_told();
    drop(journal);
    let journal = open(directory.path());
    assert!(journal.untold("file").is_some());
    journal.all_told();
    drop(journal);
    assert!(files(directory.path()).is_empty());
}

#[test]
fn a_file_that_was_rewritten_says_from_what_the_bytes_came() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path());
    let mut notes = journal.begin(&INDEX, None);
    notes.asked("v0-a", &[3].into(), &[7; 20]);
    assert!(notes.segment(0, &[1; 32]) && notes.segment(1, &[2; 32]));
    notes.acknowledged(3, 2 << 20, 36, 1 << 20);
    journal.lock().rewrite(directory.path()).unwrap();
    drop((journal, notes));
    let mut notes = open(directory.path()).begin(&INDEX, None);
    assert!(notes.segment(0, &[1; 32]) && !notes.segment(1, &[9; 32]), "another content");
}

#[test]
fn a_long_run_does_not_fill_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path());
    let kept = journal.begin(&INDEX, None);
    kept.asked("v0-a", &[3].into(), &[7; 20]);
    journal.lock().rewrite_at = 10_000;
    for _ in 0..100 {
        let notes = journal.begin(&[2; 16], None);
        notes.asked("v0-b", &(0..100).collect(), &[8; 20]);
        notes.ended();
    }
    let [file] = &files(directory.path())[..] else { panic!("one file") };
    let text = fs::read_to_string(file).unwrap();
    assert_eq!(text.lines().filter(|line| line.contains("v0-a")).count(), 1);
    assert!(journal.lock().rewrite_at > 10_000, "it was rewritten");
    drop((journal, kept));
    assert_eq!(open(directory.path()).begin(&INDEX, None).shares().len(), 1);
}
