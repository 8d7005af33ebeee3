//! The journal of interrupted runs: the secrets, servers, progress and random keys of their uploads.
//!
//! Each run has one file of JSON lines, appended as things happen, with mode 0600: the secrets give the right to write,
//! keys and caps the right to read. If a file's lock can be taken its run is gone, and the next run takes over its
//! content. It is not synced: after a power cut the last lines may be missing, and their bytes are sent again.
//!
//! An upload is found by its storage index, whatever its file is called by now. With a random key the index identifies
//! nothing; then the caller has a name for the file.
//!
//! Acknowledged bytes of a share count only for the same content. A convergent key proves that; with a random key a
//! chained hash over the segments read does.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use fullbore_engine::digest::Sha256;
use fullbore_engine::journal::locked::create;
use serde::{Deserialize, Serialize};

use super::Stored;
use crate::base32;
use crate::cap::{Cap, Key, StorageIndex};
use crate::gbs::UploadSecret;

/// Suffix of the journals' file names.
const SUFFIX: &str = ".grid-uploads";

/// Longest journal that is read, in bytes; more than a regularly rewritten one has.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// Slack before a journal is rewritten with its current content: it may exceed twice its last size by this many bytes.
const REWRITE_BYTES: u64 = 16 << 20;

/// Older entries are dropped. Stock servers keep the place of a share for half an hour after its last byte; complete
/// shares of an unfinished upload are useful for longer.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// An acknowledgement is recorded after this many more bytes of a share.
const NOTE_EVERY_BYTES: u64 = 1 << 20;

/// A share as an interrupted run left it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownShare {
    /// Id of its server.
    pub server: String,
    /// Number of the share.
    pub share: u16,
    /// The secret for writing it.
    pub secret: UploadSecret,
    /// Bytes acknowledged, from its beginning.
    pub acknowledged: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// An upload begins or resumes. `at`: seconds since 1970. `random`: the caller's name, and the random key.
    Upload { index: String, at: u64, random: Option<(String, String)> },
    /// Shares were requested at a server.
    Asked { index: String, server: String, shares: BTreeSet<u16>, secret: String },
    /// `bytes` of a share were acknowledged. They come from this many segments; `chain` is the chained hash of those.
    There { index: String, share: u16, bytes: u64, segments: u64, chain: String },
    /// A share is complete.
    Done { index: String, share: u16 },
    /// An upload has nothing left to resume.
    Ended { index: String },
    /// A file with a random key is in the grid, but its cap has not been reported.
    Stored { name: String, at: u64, cap: String, happiness: usize },
}

#[derive(Debug, Default, Clone)]
struct Share {
    server: String,
    secret: UploadSecret,
    bytes: u64,
    noted: u64,
}

/// The current state of one upload.
#[derive(Debug, Default)]
struct Upload {
    at: u64,
    /// Whether this run began it.
    is_own: bool,
    random: Option<(String, Key)>,
    shares: BTreeMap<u16, Share>,
    /// Most segments that acknowledged bytes come from, and their chained hash.
    read_before: (u64, String),
}

/// A cap that was not reported.
#[derive(Debug)]
struct UnreportedCap {
    at: u64,
    /// Whether this run put the file, or will report the cap.
    is_own: bool,
    cap: String,
    happiness: usize,
}

/// The journal of a run.
#[derive(Debug)]
pub struct Journal {
    directory: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Created with the first line.
    file: Option<(PathBuf, File)>,
    bytes: u64,
    /// Size in bytes at which the file is rewritten.
    rewrite_at: u64,
    /// Whether a line could not be written: later lines would mean nothing.
    is_broken: bool,
    uploads: BTreeMap<String, Upload>,
    untold: BTreeMap<String, UnreportedCap>,
}

impl Journal {
    /// Opens the journal of this run in a directory, and takes over the journals of dead runs. Their files are removed,
    /// and entries that are too old dropped.
    ///
    /// # Errors
    /// The system's error, with its path, if the directory cannot be read, or the journal taken over cannot be written.
    pub fn open(directory: &Path) -> Result<Arc<Journal>, (PathBuf, io::Error)> {
        let mut state = State { rewrite_at: REWRITE_BYTES, ..State::default() };
        let mut taken_over = Vec::new();
        let entries: Vec<_> = match fs::read_dir(directory) {
            Ok(entries) => entries.collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err((directory.to_owned(), error)),
        };
        for entry in entries {
            let path = entry.map_err(|error| (directory.to_owned(), error))?.path();
            if path.to_string_lossy().ends_with(SUFFIX)
                && let Ok(file) = File::open(&path)
                // The lock is held until the file is removed.
                && file.try_lock().is_ok()
            {
                state.merge(State::read(&file));
                taken_over.push((path, file));
            }
        }
        let oldest = now().saturating_sub(KEPT.as_secs());
        state.uploads.retain(|_, upload| upload.at >= oldest);
        state.untold.retain(|_, untold| untold.at >= oldest);
        let journal = Journal { directory: directory.to_owned(), state: Mutex::new(state) };
        if !journal.lock().is_empty() {
            let rewritten = journal.lock().rewrite(directory);
            rewritten.map_err(|error| (directory.to_owned(), error))?;
        }
        for (path, _file) in taken_over {
            let _ = fs::remove_file(path);
        }
        Ok(Arc::new(journal))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a line. A failure does not fail uploads; it ends the journal.
    fn write(&self, state: &mut State, line: &Line) {
        if !state.is_broken
            && let Err(error) = state.append(&self.directory, line)
        {
            state.is_broken = true;
            let directory = self.directory.display();
            tracing::warn!(%directory, %error, "the journal cannot be written: this run cannot be taken up");
        }
    }

    /// The random key with which an interrupted run began the file of this name.
    pub fn random_key(&self, name: &str) -> Option<Key> {
        let state = self.lock();
        let mut earlier = state.uploads.values().filter(|upload| !upload.is_own).filter_map(|one| one.random.as_ref());
        earlier.find(|(known, _)| known == name).map(|(_, key)| *key)
    }

    /// The stored file of this name, with a random key, whose cap an earlier run did not report.
    pub fn untold(&self, name: &str) -> Option<Stored> {
        let mut state = self.lock();
        let untold = state.untold.get_mut(name).filter(|untold| !untold.is_own)?;
        let (cap, happiness) = (Cap::parse(&untold.cap).ok()?, untold.happiness);
        untold.is_own = true;
        Some(Stored { cap, happiness, shares: (0, 0), sent_bytes: 0, troubles: Vec::new() })
    }

    /// Records that a file with a random key is in the grid. Its cap is kept until [`Journal::all_told`].
    pub fn stored(&self, name: &str, stored: &Stored) {
        let (at, cap, happiness) = (now(), stored.cap.to_text(), stored.happiness);
        let mut state = self.lock();
        self.write(&mut state, &Line::Stored { name: name.to_owned(), at, cap: cap.clone(), happiness });
        state.untold.insert(name.to_owned(), UnreportedCap { at, is_own: true, cap, happiness });
    }

    /// Records that all caps of this run were reported.
    pub fn all_told(&self) {
        let mut state = self.lock();
        let before = state.untold.len();
        state.untold.retain(|_, untold| !untold.is_own);
        if state.untold.len() < before
            && let Err(error) = state.rewrite(&self.directory)
        {
            tracing::warn!(directory = %self.directory.display(), %error, "the journal cannot be written");
        }
    }

    /// Ends the journal: removes the file if nothing is left to resume.
    pub fn close(&self) {
        let mut state = self.lock();
        if state.is_empty()
            && let Some((path, _)) = state.file.take()
        {
            let _ = fs::remove_file(path);
        }
    }

    /// Records the beginning of an upload. `random`: the caller's name for the file, and its random key.
    pub fn begin(self: &Arc<Self>, index: &StorageIndex, random: Option<(&str, &Key)>) -> Notes {
        let (index, at) = (base32::encode(index), now());
        let mut state = self.lock();
        let line = Line::Upload {
            index: index.clone(),
            at,
            random: random.map(|(n, key)| (n.to_owned(), base32::encode(key))),
        };
        self.write(&mut state, &line);
        let upload = state.uploads.entry(index.clone()).or_default();
        (upload.at, upload.is_own) = (at, true);
        upload.random = random.map(|(name, key)| (name.to_owned(), *key));
        drop(state);
        Notes { journal: Arc::clone(self), index, is_random: random.is_some(), chain: Vec::new() }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.close();
    }
}

/// The current time in seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

impl State {
    fn is_empty(&self) -> bool {
        self.uploads.is_empty() && self.untold.is_empty()
    }

    fn read(file: &File) -> State {
        let mut state = State::default();
        let lines = BufReader::new(file.take(FILE_BYTES_MAX)).lines();
        // A crash may have cut off a line; the lines after it count for nothing.
        lines.map_while(|line| serde_json::from_str(&line.ok()?).ok()).for_each(|line| state.apply(line));
        state
    }

    fn merge(&mut self, other: State) {
        for (index, upload) in other.uploads {
            let own = self.uploads.entry(index).or_default();
            if upload.at >= own.at {
                (own.at, own.random) = (upload.at, upload.random);
            }
            if upload.read_before.0 >= own.read_before.0 {
                own.read_before = upload.read_before;
            }
            own.shares.extend(upload.shares);
        }
        self.untold.extend(other.untold);
    }

    fn apply(&mut self, line: Line) {
        match line {
            Line::Upload { index, at, random } => {
                let upload = self.uploads.entry(index).or_default();
                upload.at = at;
                upload.random = random.and_then(|(name, key)| Some((name, base32::decode_array(&key).ok()?)));
            }
            Line::Asked { index, server, shares, secret } => {
                if let (Some(upload), Ok(secret)) = (self.uploads.get_mut(&index), base32::decode_array(&secret)) {
                    upload.asked(&server, &shares, &secret);
                }
            }
            Line::There { index, share, bytes, segments, chain } => {
                let Some(upload) = self.uploads.get_mut(&index) else { return };
                if let Some(share) = upload.shares.get_mut(&share) {
                    share.bytes = bytes;
                }
                if segments >= upload.read_before.0 {
                    upload.read_before = (segments, chain);
                }
            }
            Line::Done { index, share } => {
                if let Some(upload) = self.uploads.get_mut(&index) {
                    upload.shares.remove(&share);
                }
            }
            Line::Ended { index } => {
                self.uploads.remove(&index);
            }
            Line::Stored { name, at, cap, happiness } => {
                self.untold.insert(name, UnreportedCap { at, is_own: false, cap, happiness });
            }
        }
    }

    fn append(&mut self, directory: &Path, line: &Line) -> io::Result<()> {
        if self.bytes >= self.rewrite_at {
            self.rewrite(directory)?;
        }
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.file(directory)?.write_all(&text)?;
        self.bytes += text.len() as u64;
        Ok(())
    }

    fn file(&mut self, directory: &Path) -> io::Result<&mut File> {
        let file = match self.file.take() {
            Some(file) => file,
            None => create(directory, SUFFIX)?,
        };
        Ok(&mut self.file.insert(file).1)
    }

    /// Writes the current content to a new file, which becomes this run's.
    fn rewrite(&mut self, directory: &Path) -> io::Result<()> {
        let mut text = Vec::new();
        for line in self.lines() {
            serde_json::to_writer(&mut text, &line)?;
            text.push(b'\n');
        }
        let (path, mut file) = create(directory, SUFFIX)?;
        file.write_all(&text)?;
        if let Some((before, _)) = self.file.replace((path, file)) {
            fs::remove_file(before)?;
        }
        self.bytes = text.len() as u64;
        self.rewrite_at = 2 * self.bytes + REWRITE_BYTES;
        Ok(())
    }

    fn lines(&self) -> impl Iterator<Item = Line> + '_ {
        let uploads = self.uploads.iter().flat_map(|(index, upload)| {
            let random = upload.random.as_ref().map(|(name, key)| (name.clone(), base32::encode(key)));
            let first = Line::Upload { index: index.clone(), at: upload.at, random };
            let shares = upload.shares.iter().flat_map(move |(&share, known)| {
                let (server, secret) = (known.server.clone(), base32::encode(&known.secret));
                let asked = Line::Asked { index: index.clone(), server, shares: [share].into(), secret };
                let (segments, chain) = upload.read_before.clone();
                let there = Line::There { index: index.clone(), share, bytes: known.bytes, segments, chain };
                [asked, there]
            });
            std::iter::once(first).chain(shares)
        });
        let untold = self.untold.iter().map(|(name, untold)| {
            let UnreportedCap { at, cap, happiness, .. } = untold;
            Line::Stored { name: name.clone(), at: *at, cap: cap.clone(), happiness: *happiness }
        });
        uploads.chain(untold)
    }
}

impl Upload {
    fn asked(&mut self, server: &str, shares: &BTreeSet<u16>, secret: &UploadSecret) {
        for &share in shares {
            self.shares.insert(share, Share { server: server.to_owned(), secret: *secret, bytes: 0, noted: 0 });
        }
    }
}

/// The journal's notes of one upload.
#[derive(Debug)]
pub struct Notes {
    journal: Arc<Journal>,
    index: String,
    is_random: bool,
    /// The chained hash after each segment read by this run.
    chain: Vec<Sha256>,
}

impl Notes {
    /// Changes the upload's state; `change` returns the line to write.
    fn note(&self, change: impl FnOnce(&mut Upload) -> Option<Line>) {
        let mut state = self.journal.lock();
        if let Some(line) = state.uploads.get_mut(&self.index).and_then(change) {
            self.journal.write(&mut state, &line);
        }
    }

    /// Whether the key is random.
    pub(crate) fn is_random(&self) -> bool {
        self.is_random
    }

    /// Shares begun and not completed, including those without acknowledged bytes: for half an hour the server keeps
    /// their place for the holder of the secret, and gives it to nobody else.
    pub fn shares(&self) -> Vec<KnownShare> {
        let state = self.journal.lock();
        let Some(upload) = state.uploads.get(&self.index) else { return Vec::new() };
        let known = |(&share, state): (&u16, &Share)| KnownShare {
            server: state.server.clone(),
            share,
            secret: state.secret,
            acknowledged: state.bytes,
        };
        upload.shares.iter().map(known).collect()
    }

    /// Records that shares were requested at a server.
    pub fn asked(&self, server: &str, shares: &BTreeSet<u16>, secret: &UploadSecret) {
        self.note(|upload| {
            upload.asked(server, shares, secret);
            let (index, server) = (self.index.clone(), server.to_owned());
            Some(Line::Asked { index, server, shares: shares.clone(), secret: base32::encode(secret) })
        });
    }

    /// Records the hash of a segment. Returns false if the interrupted run read other content.
    pub fn segment(&mut self, index: u64, leaf: &[u8; 32]) -> bool {
        // Another pass over the file reads the same segments again.
        if index < self.chain.len() as u64 {
            return true;
        }
        let before = self.chain.last().map_or([0; 32], |last| last.0);
        let next = Sha256::of(&[before, *leaf].concat());
        self.chain.push(next);
        let state = self.journal.lock();
        let Some(upload) = state.uploads.get(&self.index) else { return true };
        let (segments, chain) = &upload.read_before;
        index + 1 != *segments || next.to_hex().as_str() == chain
    }

    /// Records that a share's first `bytes` were acknowledged. `data`: offset of its first block.
    pub fn acknowledged(&self, share: u16, bytes: u64, data: u64, block_size: u64) {
        self.note(|upload| {
            let state = upload.shares.get_mut(&share)?;
            if bytes < state.noted + NOTE_EVERY_BYTES {
                return None;
            }
            let segments = bytes.saturating_sub(data).div_ceil(block_size.max(1)).min(self.chain.len() as u64);
            let chain = self.chain.get(usize::try_from(segments.checked_sub(1)?).ok()?)?;
            let chain = chain.to_hex().as_str().to_owned();
            (state.noted, state.bytes) = (bytes, bytes);
            if segments >= upload.read_before.0 {
                upload.read_before = (segments, chain.clone());
            }
            Some(Line::There { index: self.index.clone(), share, bytes, segments, chain })
        });
    }

    /// Records that a share is complete, here or elsewhere.
    pub fn done(&self, share: u16) {
        self.note(|upload| {
            upload.shares.remove(&share)?;
            Some(Line::Done { index: self.index.clone(), share })
        });
    }

    /// Records that nothing is left to resume.
    pub fn ended(self) {
        let mut state = self.journal.lock();
        if state.uploads.remove(&self.index).is_some() {
            self.journal.write(&mut state, &Line::Ended { index: self.index.clone() });
        }
    }
}

#[cfg(test)]
mod tests;
