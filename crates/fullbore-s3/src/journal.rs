//! Journals of open multipart uploads. Uploads of a killed run stay stored, and are paid for, until a later run aborts
//! them.
//!
//! Each run has a file of its own and holds a lock on it. A file whose lock can be taken belongs to a run that is gone.
//! The files contain names of uploads, no secrets, and are still readable by their owner only.
//!
//! An upload gets a line before the store is asked to begin it ([`Journal::will_begin`]), because the run may be killed
//! before the answer gives the upload's id. A later run finds such an upload by its key, and by the time at which the
//! store began it ([`Intent::covers`]). A write without a sync is enough: it outlives the process.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fullbore_engine::journal::locked::create;
use fullbore_engine::random::random;
use serde::{Deserialize, Serialize};

use super::credentials::unix_now;
use super::key;

/// Suffix of journal files.
const SUFFIX: &str = ".s3-uploads";

/// Maximum number of bytes read from the end of one file: some hundred thousand uploads.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// An open multipart upload.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Open {
    /// Name of the store; see [`super::address::Bucket::store`].
    pub store: String,
    /// Name of the bucket.
    pub bucket: String,
    /// Key of the object.
    pub key: String,
    /// Id of the upload, given by the store.
    pub upload_id: String,
    /// Identifies the file and the part size, if several machines send its parts: a later run may continue the upload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
}

/// An upload that the store was asked to begin, without an answer that settles it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Intent {
    /// Random number of the intent.
    pub id: u64,
    /// Name of the store; see [`super::address::Bucket::store`].
    pub store: String,
    /// Name of the bucket.
    pub bucket: String,
    /// Key of the object.
    pub key: String,
    /// Time just before the request, in Unix seconds by our clock.
    pub from_s: i64,
    /// Last time at which the run was known to wait for the answer, or had it.
    pub until_s: i64,
}

/// How often a run that waits for an answer records that it is alive.
pub(crate) const ALIVE_EVERY: Duration = Duration::from_secs(5);

/// Time in which a store may still begin an upload after its run was last known to be alive, in seconds. It covers the
/// interval until the next record, and ten seconds for a request in flight when the run was killed. The latter is a
/// guess.
const LATE_S: i64 = 15;

/// Uncertainty of the store's clock, in seconds, if one of its answers had a date, which has whole seconds.
const DATED_TOLERANCE_S: i64 = 1;

/// Uncertainty of the store's clock, in seconds, if no answer had a date: stores refuse signed requests beyond it
/// (`RequestTimeTooSkewed`).
const UNDATED_TOLERANCE_S: i64 = 15 * 60;

impl Open {
    fn is_of(&self, store: &str, bucket: &str) -> bool {
        self.store == store && self.bucket == bucket
    }
}

impl Intent {
    fn is_of(&self, store: &str, bucket: &str) -> bool {
        self.store == store && self.bucket == bucket
    }

    /// Whether an upload of this key that the store began at `initiated_s`, by its clock, is the intended one.
    /// `clock_offset_s` is the store's clock minus ours, if known.
    pub fn covers(&self, initiated_s: i64, clock_offset_s: Option<i64>) -> bool {
        let (offset, tolerance) = match clock_offset_s {
            // Whole seconds may differ by one even if the clocks agree.
            Some(-1..=1) => (0, DATED_TOLERANCE_S),
            Some(offset) => (offset, DATED_TOLERANCE_S),
            None => (0, UNDATED_TOLERANCE_S),
        };
        let ours = initiated_s.saturating_sub(offset);
        let from = self.from_s.saturating_sub(tolerance);
        let until = self.until_s.saturating_add(LATE_S + tolerance);
        (from..=until).contains(&ours)
    }

    /// Whether the store cannot begin the upload any more.
    pub fn is_over(&self, now_s: i64) -> bool {
        now_s > self.until_s.saturating_add(LATE_S)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// The store is about to be asked.
    WillBegin(Intent),
    /// The store has not answered yet.
    Waits {
        id: u64,
        at_s: i64,
    },
    /// The store has answered, or will not be asked again. If that settles nothing, there may be an upload of unknown
    /// id.
    Answered {
        id: u64,
        at_s: i64,
        is_settled: bool,
    },
    Begun(Open),
    Ended {
        upload_id: String,
    },
}

impl Line {
    /// Whether key and id are those of an upload. Otherwise DELETE would be sent for the bucket or the object.
    fn names_an_upload(&self) -> bool {
        match self {
            Line::WillBegin(intent) => key::check(&intent.key).is_ok(),
            Line::Begun(open) => key::check(&open.key).is_ok() && !open.upload_id.is_empty(),
            Line::Waits { .. } | Line::Answered { .. } | Line::Ended { .. } => true,
        }
    }
}

/// The journal of this run. Its file is created when the first upload begins.
#[derive(Debug)]
pub(crate) struct Journal {
    directory: PathBuf,
    file: Mutex<Option<Own>>,
    /// A write error was reported.
    is_told: AtomicBool,
}

#[derive(Debug)]
struct Own {
    path: PathBuf,
    file: File,
    /// The last line may be incomplete.
    is_cut: bool,
}

impl Journal {
    /// Creates a journal whose file will be in this directory.
    pub(crate) fn new(directory: &Path) -> Journal {
        Journal { directory: directory.to_owned(), file: Mutex::new(None), is_told: AtomicBool::new(false) }
    }

    /// Whether to report a failure: only the first of a run, because the others say the same.
    pub(crate) fn tells(&self) -> bool {
        !self.is_told.swap(true, Ordering::Relaxed)
    }

    fn write(&self, line: &Line) -> io::Result<()> {
        let mut slot = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let own = match &mut *slot {
            Some(own) => own,
            none => {
                let (path, file) = create(&self.directory, SUFFIX)?;
                none.insert(Own { path, file, is_cut: false })
            }
        };
        let mut text = if own.is_cut { "\n".to_owned() } else { String::new() };
        text.push_str(&serde_json::to_string(line)?);
        text.push('\n');
        let written = own.file.write_all(text.as_bytes());
        own.is_cut = written.is_err();
        written
    }

    /// Records that the store is about to be asked to begin an upload. Returns the intent's id.
    ///
    /// # Errors
    /// The system's error if the line cannot be written to the journal file.
    pub(crate) fn will_begin(&self, store: &str, bucket: &str, key: &str) -> io::Result<u64> {
        let (id, now) = (u64::from_le_bytes(random()), unix_now());
        let (store, bucket, key) = (store.to_owned(), bucket.to_owned(), key.to_owned());
        self.write(&Line::WillBegin(Intent { id, store, bucket, key, from_s: now, until_s: now }))?;
        Ok(id)
    }

    /// Records that the store has not answered yet.
    ///
    /// # Errors
    /// The system's error if the line cannot be written to the journal file.
    pub(crate) fn waits(&self, id: u64) -> io::Result<()> {
        self.write(&Line::Waits { id, at_s: unix_now() })
    }

    /// Records that the store has answered, or that the run stops asking. `is_settled` means that there is no upload of
    /// unknown id.
    ///
    /// # Errors
    /// The system's error if the line cannot be written to the journal file.
    pub(crate) fn answered(&self, id: u64, is_settled: bool) -> io::Result<()> {
        self.write(&Line::Answered { id, at_s: unix_now(), is_settled })
    }

    /// Records an upload that was begun.
    ///
    /// # Errors
    /// The system's error if the line cannot be written to the journal file.
    pub(crate) fn begun(&self, open: &Open) -> io::Result<()> {
        self.write(&Line::Begun(open.clone()))
    }

    /// Records that an upload was completed or aborted.
    ///
    /// # Errors
    /// The system's error if the line cannot be written to the journal file.
    pub(crate) fn ended(&self, upload_id: &str) -> io::Result<()> {
        self.write(&Line::Ended { upload_id: upload_id.to_owned() })
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        let slot = self.file.get_mut().unwrap_or_else(PoisonError::into_inner);
        // With open uploads the file stays, for a later run.
        if let Some(own) = slot
            && read(&own.path).is_ok_and(|open| open.is_empty())
        {
            let _ = fs::remove_file(&own.path);
        }
    }
}

/// Open uploads and intents in a journal file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Uploads with a known id.
    pub open: Vec<Open>,
    /// Uploads of unknown id.
    pub intents: Vec<Intent>,
}

impl Leftovers {
    /// Parses the lines of a file; invalid lines are skipped.
    pub fn parse(text: &[u8]) -> Leftovers {
        let mut left = Leftovers::default();
        for line in text.split(|&byte| byte == b'\n') {
            // The last line of a killed run, or on a full disk, may be incomplete.
            if let Ok(line) = serde_json::from_slice::<Line>(line)
                && line.names_an_upload()
            {
                left.apply(line);
            }
        }
        left
    }

    fn apply(&mut self, line: Line) {
        match line {
            Line::WillBegin(intent) => self.intents.push(intent),
            Line::Answered { id, is_settled: true, .. } => self.intents.retain(|intent| intent.id != id),
            Line::Waits { id, at_s } | Line::Answered { id, at_s, .. } => {
                let intent = self.intents.iter_mut().find(|intent| intent.id == id);
                intent.into_iter().for_each(|intent| intent.until_s = intent.until_s.max(at_s));
            }
            Line::Begun(open) => self.open.push(open),
            Line::Ended { upload_id } => self.open.retain(|open| open.upload_id != upload_id),
        }
    }

    /// Whether there are no uploads and no intents.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty() && self.intents.is_empty()
    }

    fn is_of(&self, store: &str, bucket: &str) -> bool {
        self.open.iter().any(|open| open.is_of(store, bucket))
            || self.intents.iter().any(|intent| intent.is_of(store, bucket))
    }
}

fn read(path: &Path) -> io::Result<Leftovers> {
    let mut text = Vec::new();
    let mut file = File::open(path)?;
    // The open uploads are the latest ones. An incomplete line is skipped.
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(FILE_BYTES_MAX)))?;
    file.take(FILE_BYTES_MAX).read_to_end(&mut text)?;
    Ok(Leftovers::parse(&text))
}

/// Paths of the journals in a directory.
fn journals(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    // A pipe with such a name would block the open.
    let files = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    files.map(|entry| entry.path()).filter(|path| path.to_string_lossy().ends_with(SUFFIX))
}

/// Uploads that dead runs left open in one bucket. Holds the locks of their files.
#[derive(Debug, Default)]
pub(crate) struct Orphans {
    directory: PathBuf,
    files: Vec<(PathBuf, File, Leftovers)>,
}

impl Orphans {
    /// Finds them; unreadable files are skipped.
    pub(crate) fn find(directory: &Path, store: &str, bucket: &str) -> Orphans {
        let mut orphans = Orphans { directory: directory.to_owned(), files: Vec::new() };
        for path in journals(directory) {
            let Ok(file) = OpenOptions::new().append(true).open(&path) else { continue };
            if file.try_lock().is_err() {
                continue;
            }
            let Ok(left) = read(&path) else { continue };
            if left.is_empty() {
                let _ = fs::remove_file(&path);
            } else if left.is_of(store, bucket) {
                orphans.files.push((path, file, left));
            }
        }
        for (_, _, left) in &mut orphans.files {
            left.open.sort_by_key(|open| (!open.is_of(store, bucket), open.upload_id.clone()));
        }
        orphans
    }

    /// All uploads of this bucket with known ids.
    pub(crate) fn uploads<'a>(&'a self, store: &'a str, bucket: &'a str) -> impl Iterator<Item = &'a Open> {
        let all = self.files.iter().flat_map(|(_, _, left)| &left.open);
        all.filter(move |open| open.is_of(store, bucket))
    }

    /// All intents of this bucket.
    pub(crate) fn intents<'a>(&'a self, store: &'a str, bucket: &'a str) -> impl Iterator<Item = &'a Intent> {
        let all = self.files.iter().flat_map(|(_, _, left)| &left.intents);
        all.filter(move |intent| intent.is_of(store, bucket))
    }

    /// Uploads and intents of live runs in one bucket.
    pub(crate) fn living(&self, store: &str, bucket: &str) -> Leftovers {
        let mut living = Leftovers::default();
        let theirs = journals(&self.directory).filter(|path| self.files.iter().all(|(ours, ..)| ours != path));
        for left in theirs.filter_map(|path| read(&path).ok()) {
            living.open.extend(left.open.into_iter().filter(|open| open.is_of(store, bucket)));
            living.intents.extend(left.intents.into_iter().filter(|intent| intent.is_of(store, bucket)));
        }
        living
    }

    /// Records that an upload does not exist any more.
    pub(crate) fn ended(&mut self, upload_id: &str) {
        self.note(|| Line::Ended { upload_id: upload_id.to_owned() });
    }

    /// Records that an intent has no upload any more.
    pub(crate) fn settled(&mut self, id: u64) {
        self.note(|| Line::Answered { id, at_s: unix_now(), is_settled: true });
    }

    /// Appends the line to all files that become shorter by it.
    fn note(&mut self, line: impl Fn() -> Line) {
        for (path, file, left) in &mut self.files {
            let before = (left.open.len(), left.intents.len());
            left.apply(line());
            if left.is_empty() {
                let _ = fs::remove_file(&*path);
            } else if (left.open.len(), left.intents.len()) != before
                && let Ok(text) = serde_json::to_string(&line())
            {
                let _ = writeln!(file, "{text}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{Addressing, Bucket};
    use std::os::unix::fs::PermissionsExt;

    fn open(bucket: &str, upload_id: &str) -> Open {
        Open { store: "h".into(), bucket: bucket.into(), key: "k\n".into(), upload_id: upload_id.into(), of: None }
    }

    #[test]
    fn a_later_run_finds_what_is_open_and_a_living_one_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journals");
        let journal = Journal::new(&path);
        assert!(!path.exists());
        for id in ["1", "2", "3"] {
            journal.begun(&open(if id == "3" { "other" } else { "b" }, id)).unwrap();
        }
        journal.ended("1").unwrap();
        let file = fs::read_dir(&path).unwrap().next().unwrap().unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Orphans::find(&path, "h", "b").uploads("h", "b").count(), 0, "its run lives");
        drop(journal);
        let mut orphans = Orphans::find(&path, "h", "b");
        let ids: Vec<_> = orphans.uploads("h", "b").map(|open| open.upload_id.clone()).collect();
        assert_eq!(ids, ["2"]);
        orphans.ended("2");
        drop(orphans);
        assert_eq!(Orphans::find(&path, "h", "b").uploads("h", "b").count(), 0);
        let mut other = Orphans::find(&path, "h", "other");
        assert_eq!(other.uploads("h", "other").count(), 1);
        other.ended("3");
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
    }

    #[test]
    fn what_was_begun_before_the_bucket_was_found_in_another_region_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let bucket = |region| Bucket::new("bucket", None, region, Addressing::Auto).unwrap();
        let (asked, moved) = (bucket("us-east-1"), bucket("eu-west-1"));
        assert_ne!(asked.host, moved.host);
        Journal::new(directory.path()).begun(&Open { store: moved.store().into(), ..open("bucket", "1") }).unwrap();
        let orphans = Orphans::find(directory.path(), asked.store(), "bucket");
        assert_eq!(orphans.uploads(asked.store(), "bucket").count(), 1);
    }

    #[test]
    fn a_run_that_ends_well_leaves_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::new(directory.path());
        journal.begun(&open("b", "1")).unwrap();
        journal.ended("1").unwrap();
        drop(journal);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_upload_is_known_before_the_store_has_answered() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::new(directory.path());
        let asked: Vec<u64> = (0..4).map(|_| journal.will_begin("h", "b", "k").unwrap()).collect();
        journal.begun(&open("b", "1")).unwrap();
        journal.answered(asked[0], true).unwrap();
        journal.ended("1").unwrap();
        journal.waits(asked[1]).unwrap();
        journal.answered(asked[2], false).unwrap();
        let living = Orphans::find(directory.path(), "h", "b");
        assert_eq!((living.intents("h", "b").count(), living.living("h", "b").intents.len()), (0, 3), "its run lives");
        drop(journal);
        let mut orphans = Orphans::find(directory.path(), "h", "b");
        assert_eq!(orphans.living("h", "b"), Leftovers::default());
        let mut left: Vec<u64> = orphans.intents("h", "b").map(|intent| intent.id).collect();
        left.sort_unstable();
        let mut expected = asked[1..].to_vec();
        expected.sort_unstable();
        assert_eq!((orphans.uploads("h", "b").count(), left), (0, expected.clone()));
        orphans.settled(expected[0]);
        drop(orphans);
        let mut orphans = Orphans::find(directory.path(), "h", "b");
        assert_eq!(orphans.intents("h", "b").count(), 2);
        assert_eq!(Orphans::find(directory.path(), "h", "other").intents("h", "other").count(), 0);
        expected[1..].iter().for_each(|id| orphans.settled(*id));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_intent_in_another_bucket_hid_what_was_left_in_this_one() {
        let directory = tempfile::tempdir().unwrap();
        for (store, bucket) in [("h", "b"), ("h", "other"), ("other", "b")] {
            let journal = Journal::new(directory.path());
            journal.will_begin(store, bucket, "k").unwrap();
            journal.begun(&Open { store: store.into(), ..open(bucket, "1") }).unwrap();
        }
        let orphans = Orphans::find(directory.path(), "h", "b");
        assert_eq!((orphans.intents("h", "b").count(), orphans.uploads("h", "b").count()), (1, 1));
        assert_eq!(orphans.living("h", "b"), Leftovers::default());
    }

    #[test]
    fn only_an_upload_begun_in_the_interval_is_the_intended_one() {
        let intent =
            Intent { id: 1, store: "h".into(), bucket: "b".into(), key: "k".into(), from_s: 1000, until_s: 1010 };
        let covered = |at, offset| intent.covers(at, offset);
        for (at, expected) in [(998, false), (999, true), (1000, true), (1026, true), (1027, false)] {
            for offset in [-1, 0, 1] {
                assert_eq!(covered(at, Some(offset)), expected, "{at} {offset}");
            }
            assert_eq!(covered(at + 7200, Some(7200)), expected, "{at}, a clock that is two hours fast");
            assert_eq!(covered(at - 90, Some(-90)), expected, "{at}, a slow clock");
            assert!(covered(at, None), "{at}, a clock that is not known");
        }
        assert!(!covered(1010 - 3600, None) && !covered(1010 + 3600, None));
        assert!(!covered(i64::MIN, Some(i64::MAX)) && !covered(i64::MAX, Some(i64::MIN)));
        assert!(!intent.is_over(1025) && intent.is_over(1026));
    }

    #[test]
    fn journals_of_older_versions_are_read() {
        let old = br#"{"begun":{"store":"h","bucket":"b","key":"k","upload_id":"1"}}
{"begun":{"store":"h","bucket":"b","key":"k","upload_id":"2"}}
{"ended":{"upload_id":"1"}}
{"of a later version":{}}
"#;
        let expected = Open { store: "h".into(), bucket: "b".into(), key: "k".into(), upload_id: "2".into(), of: None };
        assert_eq!(Leftovers::parse(old), Leftovers { open: vec![expected], intents: Vec::new() });
    }

    #[test]
    fn a_journal_without_a_key_asked_to_delete_the_bucket() {
        let begun = |key: &str, upload_id: &str| Line::Begun(Open { key: key.into(), ..open("b", upload_id) });
        let intent = |key: &str| {
            let (store, bucket, key) = ("h".into(), "b".into(), key.into());
            Line::WillBegin(Intent { id: 1, store, bucket, key, from_s: 0, until_s: 0 })
        };
        for line in [begun("", "1"), begun("k", ""), begun("../other", "1"), intent(""), intent("a/..")] {
            assert!(Leftovers::parse(&serde_json::to_vec(&line).unwrap()).is_empty());
        }
        for line in [begun("k", "1"), intent("k")] {
            assert!(!Leftovers::parse(&serde_json::to_vec(&line).unwrap()).is_empty());
        }
    }

    #[test]
    fn half_a_line_is_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(format!("x{SUFFIX}"));
        let line = |id| serde_json::to_vec(&Line::Begun(Open { key: "ä".into(), ..open("b", id) })).unwrap();
        // Cut within a character.
        let half = line("2").split_inclusive(|&byte| byte == "ä".as_bytes()[0]).next().unwrap().to_vec();
        for parts in [vec![line("1"), half.clone()], vec![half, line("1")]] {
            fs::write(&path, parts.join(&b'\n')).unwrap();
            assert_eq!(Orphans::find(directory.path(), "h", "b").uploads("h", "b").count(), 1);
        }
        assert!(path.exists());
    }

    #[test]
    fn the_end_of_a_huge_journal_was_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(format!("x{SUFFIX}"));
        let line = serde_json::to_vec(&Line::Begun(open("b", "1"))).unwrap();
        let mut file = File::create(&path).unwrap();
        file.set_len(FILE_BYTES_MAX + 5).unwrap();
        file.seek(SeekFrom::End(0)).unwrap();
        file.write_all(&[b"\n", &line[..], b"\n"].concat()).unwrap();
        assert_eq!(Orphans::find(directory.path(), "h", "b").uploads("h", "b").count(), 1);
    }

    #[test]
    fn a_pipe_named_like_a_journal_blocked_the_run() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(format!("x{SUFFIX}"));
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert_eq!(Orphans::find(directory.path(), "h", "b").living("h", "b"), Leftovers::default());
        assert!(path.exists());
    }
}
