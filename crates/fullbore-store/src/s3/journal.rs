//! Uploads in parts that are open, so that those of a run that was killed can be given up by a later one: their parts
//! are stored, and paid for, until somebody does.
//!
//! Each run has a file of its own, which it holds a lock on; a file whose lock can be taken is one of a run that is
//! gone. The files hold names of uploads, no secrets, and are for their owner alone all the same.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::journal::create;

/// How the files are called.
const SUFFIX: &str = ".s3-uploads";

/// Bytes read of one file: some hundred thousand uploads.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// An upload in parts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Open {
    /// The store, see [`super::address::Bucket::store`].
    pub store: String,
    /// The bucket.
    pub bucket: String,
    /// The object.
    pub key: String,
    /// The upload.
    pub upload_id: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Begun(Open),
    Ended { upload_id: String },
}

/// The file of this run; it is made when the first upload begins.
#[derive(Debug)]
pub struct Journal {
    directory: PathBuf,
    file: Mutex<Option<Own>>,
}

#[derive(Debug)]
struct Own {
    path: PathBuf,
    file: File,
    /// The last line may be half a one.
    is_cut: bool,
}

impl Journal {
    /// Keeps its file in this directory.
    pub fn new(directory: &Path) -> Journal {
        Journal { directory: directory.to_owned(), file: Mutex::new(None) }
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

    /// An upload was begun.
    ///
    /// # Errors
    /// The file's.
    pub fn begun(&self, open: &Open) -> io::Result<()> {
        self.write(&Line::Begun(open.clone()))
    }

    /// It is complete, or given up.
    ///
    /// # Errors
    /// The file's.
    pub fn ended(&self, upload_id: &str) -> io::Result<()> {
        self.write(&Line::Ended { upload_id: upload_id.to_owned() })
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        let slot = self.file.get_mut().unwrap_or_else(PoisonError::into_inner);
        // With uploads that are open it stays, for a later run.
        if let Some(own) = slot
            && read(&own.path).is_ok_and(|open| open.is_empty())
        {
            let _ = fs::remove_file(&own.path);
        }
    }
}

/// The uploads that a file has as open.
fn read(path: &Path) -> io::Result<Vec<Open>> {
    let mut text = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX).read_to_end(&mut text)?;
    let mut all = Vec::new();
    for line in text.split(|&byte| byte == b'\n') {
        match serde_json::from_slice(line) {
            Ok(Line::Begun(open)) => all.push(open),
            Ok(Line::Ended { upload_id }) => all.retain(|open: &Open| open.upload_id != upload_id),
            // The last line of a run that was killed, or of a full disk, may be half a one.
            Err(_) => {}
        }
    }
    Ok(all)
}

/// What runs that are gone left open in one bucket. Holds the locks of their files.
#[derive(Debug, Default)]
pub struct Orphans {
    files: Vec<(PathBuf, File, Vec<Open>)>,
}

impl Orphans {
    /// Looks for them. What cannot be read is left alone.
    pub fn find(directory: &Path, store: &str, bucket: &str) -> Orphans {
        let mut orphans = Orphans::default();
        let Ok(entries) = fs::read_dir(directory) else { return orphans };
        for path in entries.flatten().map(|entry| entry.path()) {
            if !path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(SUFFIX)) {
                continue;
            }
            let Ok(file) = OpenOptions::new().append(true).open(&path) else { continue };
            if file.try_lock().is_err() {
                continue;
            }
            let Ok(open) = read(&path) else { continue };
            if open.is_empty() {
                let _ = fs::remove_file(&path);
            } else if open.iter().any(|open| open.store == store && open.bucket == bucket) {
                orphans.files.push((path, file, open));
            }
        }
        for (_, _, open) in &mut orphans.files {
            open.sort_by_key(|open| (open.store != store || open.bucket != bucket, open.upload_id.clone()));
        }
        orphans
    }

    /// All of this bucket.
    pub fn uploads<'a>(&'a self, store: &'a str, bucket: &'a str) -> impl Iterator<Item = &'a Open> {
        let all = self.files.iter().flat_map(|(_, _, open)| open);
        all.filter(move |open| open.store == store && open.bucket == bucket)
    }

    /// Notes that an upload is no more.
    pub fn ended(&mut self, upload_id: &str) {
        for (path, file, open) in &mut self.files {
            let before = open.len();
            open.retain(|open| open.upload_id != upload_id);
            if open.is_empty() {
                let _ = fs::remove_file(&*path);
            } else if open.len() < before {
                let line = Line::Ended { upload_id: upload_id.to_owned() };
                if let Ok(text) = serde_json::to_string(&line) {
                    let _ = writeln!(file, "{text}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3::address::{Addressing, Bucket};
    use std::os::unix::fs::PermissionsExt;

    fn open(bucket: &str, upload_id: &str) -> Open {
        Open { store: "h".into(), bucket: bucket.into(), key: "k\n".into(), upload_id: upload_id.into() }
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
}
