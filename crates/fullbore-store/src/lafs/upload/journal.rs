//! What an interrupted upload left behind: by which secrets, on which servers, how far.
//!
//! One file per upload, lines of JSON, appended as things happen, mode 0600 (the secrets are the right to
//! write, a random key the right to read). It is not synced: after a power cut the last lines may be
//! missing, and what they said is sent again. It goes when the upload ends.
//!
//! A share's acknowledged bytes count only for the same bytes: of a convergent file the key says so; of
//! another one a chained hash over the segments that were read.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use fullbore_engine::digest::Sha256;
use serde::{Deserialize, Serialize};

use crate::lafs::base32;
use crate::lafs::cap::{Key, storage_index};
use crate::lafs::gbs::UploadSecret;

/// Bytes of a journal that are read: an upload of 1 TiB to 10 servers in writes of 1 MiB makes 400 MB, of
/// which only each share's last line counts; it is rewritten when it is opened.
const JOURNAL_BYTES_MAX: u64 = 1 << 30;

/// Acknowledgements of a share are noted when so many more bytes are there.
const NOTE_EVERY_BYTES: u64 = 1 << 20;

/// A share as an interrupted run left it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// Id of its server.
    pub server: String,
    /// Number.
    pub share: u16,
    /// By which it is written.
    pub secret: UploadSecret,
    /// Bytes from its beginning that are there.
    pub acknowledged: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// The file: its storage index, and its key where that is random.
    File { index: String, key: Option<String> },
    /// A share was asked for.
    Asked { share: u16, server: String, secret: String },
    /// Bytes are there; they come from so many segments, whose chained hash is this.
    There { share: u16, bytes: u64, segments: u64, chain: String },
    /// A share is complete.
    Done { share: u16 },
}

#[derive(Debug, Default, Clone)]
struct Share {
    server: String,
    secret: UploadSecret,
    bytes: u64,
    noted: u64,
}

/// The journal of one upload.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    index: Option<String>,
    key: Option<Key>,
    shares: BTreeMap<u16, Share>,
    /// Of the run before: segments read, and their chained hash.
    read_before: (u64, String),
    /// Of this run: the chain after each segment.
    chain: Vec<Sha256>,
}

impl Journal {
    /// Opens the journal of what `identity` names, in a directory of journals that is made when needed.
    /// `None`: another run has it.
    ///
    /// # Errors
    /// The system's, for the path it is about.
    pub fn open(directory: &Path, identity: &[&[u8]]) -> Result<Option<Journal>, (PathBuf, io::Error)> {
        let mut name = Vec::new();
        identity.iter().for_each(|part| crate::lafs::hash::netstring(&mut name, part));
        let path = directory.join(format!("{}.journal", Sha256::of(&name).to_hex().as_str()));
        let at = |error| (path.clone(), error);
        std::fs::create_dir_all(directory).map_err(at)?;
        let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&path).map_err(at)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Ok(None),
            Err(std::fs::TryLockError::Error(error)) => return Err(at(error)),
        }
        let mut text = String::new();
        let _ = (&mut file).take(JOURNAL_BYTES_MAX).read_to_string(&mut text);
        let mut journal = Journal {
            path: path.clone(),
            file,
            index: None,
            key: None,
            shares: BTreeMap::new(),
            read_before: (0, String::new()),
            chain: Vec::new(),
        };
        // A line that was cut by a crash says nothing, and neither do those behind it.
        text.lines().map_while(|line| serde_json::from_str(line).ok()).for_each(|line| journal.replay(line));
        Ok(Some(journal))
    }

    fn replay(&mut self, line: Line) {
        match line {
            Line::File { index, key } => {
                self.index = Some(index);
                self.key = key.and_then(|key| base32::decode_array(&key).ok());
                self.shares.clear();
                self.read_before = (0, String::new());
            }
            Line::Asked { share, server, secret } => {
                if let Ok(secret) = base32::decode_array(&secret) {
                    self.shares.insert(share, Share { server, secret, bytes: 0, noted: 0 });
                }
            }
            Line::There { share, bytes, segments, chain } => {
                if let Some(share) = self.shares.get_mut(&share) {
                    share.bytes = bytes;
                }
                if segments >= self.read_before.0 {
                    self.read_before = (segments, chain);
                }
            }
            Line::Done { share } => {
                self.shares.remove(&share);
            }
        }
    }

    /// The random key of the interrupted run.
    pub fn random_key(&self) -> Option<Key> {
        self.key
    }

    /// Shares that were begun and not completed. Also those of which nothing is known to be there: the server
    /// holds their place for whoever has the secret, and gives it to nobody else for half an hour.
    pub fn shares(&self) -> Vec<Known> {
        let known = |(&share, state): (&u16, &Share)| Known {
            server: state.server.clone(),
            share,
            secret: state.secret,
            acknowledged: state.bytes,
        };
        self.shares.iter().map(known).collect()
    }

    /// The upload begins. What was noted of a file with another key is forgotten.
    pub fn begin(&mut self, key: &Key, random: bool) {
        let index = base32::encode(&storage_index(key));
        if self.index.as_deref() != Some(&index) {
            self.shares.clear();
            self.read_before = (0, String::new());
            self.index = Some(index.clone());
        }
        let known = std::mem::take(&mut self.shares);
        let _ = self.file.set_len(0).and_then(|()| self.file.rewind());
        self.write(&Line::File { index, key: random.then(|| base32::encode(key)) });
        for (number, share) in &known {
            self.write(&Line::Asked {
                share: *number,
                server: share.server.clone(),
                secret: base32::encode(&share.secret),
            });
            let (segments, chain) = self.read_before.clone();
            self.write(&Line::There { share: *number, bytes: share.bytes, segments, chain });
        }
        self.shares = known;
    }

    /// A journal that cannot be written makes no upload fail; it is of no use then.
    fn write(&mut self, line: &Line) {
        let Ok(mut text) = serde_json::to_vec(line) else { return };
        text.push(b'\n');
        if let Err(error) = self.file.write_all(&text) {
            tracing::warn!(path = %self.path.display(), %error, "the journal cannot be written");
        }
    }

    /// A share is asked for.
    pub fn asked(&mut self, server: &str, share: u16, secret: &UploadSecret) {
        self.shares.insert(share, Share { server: server.to_owned(), secret: *secret, bytes: 0, noted: 0 });
        self.write(&Line::Asked { share, server: server.to_owned(), secret: base32::encode(secret) });
    }

    /// A segment was read and has this hash. False when the interrupted run read something else.
    pub fn segment(&mut self, index: u64, leaf: &[u8; 32]) -> bool {
        // Another pass over the file reads the same segments again.
        if index < self.chain.len() as u64 {
            return true;
        }
        let before = self.chain.last().map_or([0; 32], |last| last.0);
        let next = Sha256::of(&[before, *leaf].concat());
        self.chain.push(next);
        let (segments, chain) = &self.read_before;
        index + 1 != *segments || next.to_hex().as_str() == chain
    }

    /// The bytes of a share up to here are there. `data` is where its blocks begin.
    pub fn acknowledged(&mut self, share: u16, bytes: u64, data: u64, block_size: u64) {
        let Some(state) = self.shares.get_mut(&share) else { return };
        if bytes < state.noted + NOTE_EVERY_BYTES {
            return;
        }
        let segments = bytes.saturating_sub(data).div_ceil(block_size.max(1)).min(self.chain.len() as u64);
        let Some(chain) = segments.checked_sub(1).and_then(|last| self.chain.get(last as usize)) else { return };
        let chain = chain.to_hex().as_str().to_owned();
        state.noted = bytes;
        state.bytes = bytes;
        self.write(&Line::There { share, bytes, segments, chain });
    }

    /// A share is complete, or somewhere else already.
    pub fn done(&mut self, share: u16) {
        if self.shares.remove(&share).is_some() {
            self.write(&Line::Done { share });
        }
    }

    /// Nothing is left to take up.
    pub fn remove(self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // Nothing was begun: an empty file would be left.
        if self.index.is_none() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn open(directory: &Path) -> Journal {
        Journal::open(directory, &[b"file", b"1"]).unwrap().unwrap()
    }

    fn interrupted(directory: &Path, key: &Key, random: bool) {
        let mut journal = open(directory);
        journal.begin(key, random);
        journal.asked("v0-a", 3, &[7; 20]);
        journal.asked("v0-b", 4, &[8; 20]);
        for segment in 0..4 {
            assert!(journal.segment(segment, &[segment as u8; 32]));
        }
        journal.acknowledged(3, 3 << 20, 36, 1 << 20);
        journal.done(4);
    }

    #[test]
    fn what_was_acknowledged_is_known_to_the_next_run() {
        let directory = tempfile::tempdir().unwrap();
        interrupted(directory.path(), &[1; 16], true);
        let mut journal = open(directory.path());
        assert_eq!(journal.random_key(), Some([1; 16]));
        let known = Known { server: "v0-a".into(), share: 3, secret: [7; 20], acknowledged: 3 << 20 };
        assert_eq!(journal.shares(), std::slice::from_ref(&known));
        journal.begin(&[1; 16], true);
        assert_eq!(journal.shares(), [known]);
        // The same file, and another one.
        assert!((0..4).all(|segment| journal.segment(segment, &[segment as u8; 32])));
        drop(journal);
        let mut journal = open(directory.path());
        assert!(!(0..4).all(|segment| journal.segment(segment, &[9; 32])));
        let path = journal.path.clone();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        journal.remove();
        assert!(!path.exists());
    }

    #[test]
    fn an_upload_that_never_began_leaves_no_file() {
        let directory = tempfile::tempdir().unwrap();
        drop(open(directory.path()));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn another_content_knows_nothing() {
        let directory = tempfile::tempdir().unwrap();
        interrupted(directory.path(), &[1; 16], false);
        let mut journal = open(directory.path());
        assert_eq!(journal.random_key(), None);
        journal.begin(&[2; 16], false);
        assert!(journal.shares().is_empty());
    }

    #[test]
    fn a_second_run_has_none_and_a_cut_line_is_nothing() {
        let directory = tempfile::tempdir().unwrap();
        interrupted(directory.path(), &[1; 16], true);
        let first = open(directory.path());
        assert!(Journal::open(directory.path(), &[b"file", b"1"]).unwrap().is_none());
        let path = first.path.clone();
        drop(first);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 40]).unwrap();
        let _ = open(directory.path()).shares();
        std::fs::write(&path, b"\xff\xff").unwrap();
        assert!(open(directory.path()).shares().is_empty());
    }
}
