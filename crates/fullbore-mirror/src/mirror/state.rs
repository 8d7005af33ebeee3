//! The state of a mirror: the files that it contains, so that a run need not walk the tree.
//!
//! `.fullbore/state` is small. It has the suites, with the hash of the published `InRelease` and the selections, and
//! the table of memberships. Reading it alone shows whether anything has changed. The list of files is beside it in
//! `files-N.zst` (see `records`), and is read as a stream only when a run has something to plan. Both are rewritten,
//! and become current by one rename of `state`, the last write of a run. The log has the finished files of a killed
//! run. If the state is lost or damaged, the next run reads the files on disk and downloads nothing.

use std::fs::File;
use std::io;

use fullbore_debian::release_date::{DateCheck, FutureDate, Succession};
use fullbore_engine::digest::Sha256;
use fullbore_engine::durability::sync_file;
use fullbore_engine::files::{FileError, Root};
use fullbore_engine::run::error::{CommandError, ErrorKind};
use serde::{Deserialize, Serialize};

use super::membership::{Departure, MEMBERSHIPS_MAX, Membership, SuiteId};
use super::records::RecordReader;
use super::retention::Retention;
use super::session::disk;
use super::subtract::Tally;

/// Directory of fullbore's own files, relative to the mirror, with mode 0700.
pub const OWN_DIRECTORY: &str = ".fullbore";
/// Path of the state's header.
pub(crate) const STATE_PATH: &str = ".fullbore/state";
/// Path of the journal: files written after the state.
pub(crate) const LOG_PATH: &str = ".fullbore/log";
/// Path of the mark that exists from the first change of a run until its state is written.
pub(super) const MARK_PATH: &str = ".fullbore/unfinished";
/// Directory of indexes and replaced files, named by hash until they are published.
pub(crate) const INDEX_DIRECTORY: &str = ".fullbore/index";

/// Version of the format. A state of a later version is refused and not overwritten.
const VERSION: u32 = 1;
/// First word of the header file.
const MAGIC: &str = "fullbore-state";
/// Maximum size of a header. 10,000 suites and 100,000 memberships stay below 16 MiB.
const HEADER_BYTES_MAX: u64 = 64 << 20;

/// Content of the mark if the run accepted something without a signature.
const MARK_UNSIGNED: &[u8] = b"unsigned";

/// Path of a file with this hash until it is published.
pub(crate) fn index_path(sha256: Sha256) -> String {
    format!("{INDEX_DIRECTORY}/{sha256}")
}

/// Why a state cannot be read, used or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The list of files cannot be read or written.
    #[error("{path}: {source}")]
    List {
        /// Path of the list, relative to the mirror.
        path: String,
        /// Error of the list or of the system.
        source: io::Error,
    },
    /// A later fullbore wrote the state.
    #[error("{STATE_PATH} has version {found}, this fullbore knows up to {VERSION}")]
    Newer {
        /// Version of the state.
        found: u32,
    },
    /// The offered Release is older than the mirrored one (M10).
    #[error("{directory}: the Release offered is {}, older than the one mirrored, of {}", dated(*.offered), date(*.have))]
    Older {
        /// Directory of the suite, relative to the mirror.
        directory: String,
        /// Date of the offered Release, Unix seconds.
        offered: i64,
        /// Date of the mirrored Release, Unix seconds.
        have: i64,
    },
    /// A path belongs to a suite mirrored in another run, with other content.
    #[error(transparent)]
    Conflict(Box<Conflict>),
}

impl From<StateError> for CommandError {
    fn from(error: StateError) -> CommandError {
        match &error {
            StateError::Older { .. } => CommandError::new(ErrorKind::Stale, error).hint(
                "this mirror is behind: try another origin; to go back on purpose, mirror into another directory",
            ),
            StateError::Conflict { .. } => CommandError::new(ErrorKind::Verification, error),
            StateError::Newer { .. } => CommandError::usage(error),
            other => disk(other),
        }
    }
}

/// A path with two contents: one from an index of this run, the other from a suite mirrored before.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {index} says SHA-256 {wanted}, but {directory}, mirrored before, says {have}")]
pub struct Conflict {
    /// Path of the file, relative to the mirror.
    pub path: String,
    /// Path of the index of this run.
    pub index: String,
    /// SHA-256 in that index.
    pub wanted: Sha256,
    /// Directory of the other suite.
    pub directory: String,
    /// Name under which the other suite was requested.
    pub requested: String,
    /// Selection of the other suite as text, for messages.
    pub selection: String,
    /// Fingerprint of the other suite's settings.
    pub fingerprint: Sha256,
    /// Fingerprint of the other suite's trust settings.
    pub trust: Option<Sha256>,
    /// Addresses of the other suite's archive.
    pub origins: Vec<String>,
    /// SHA-256 of the file in the other suite.
    pub have: Sha256,
}

/// Formats Unix seconds as an RFC 3339 time.
pub(crate) fn date(unix_s: i64) -> String {
    jiff::Timestamp::from_second(unix_s).map_or_else(|_| unix_s.to_string(), |time| time.to_string())
}

/// Formats the date of a Release for a sentence; 0 means that it has none.
fn dated(unix_s: i64) -> String {
    if unix_s == 0 { "without a usable date, which counts as".to_owned() } else { format!("of {}", date(unix_s)) }
}

/// A published suite, as the state records it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SuiteRecord {
    /// Directory of the suite, such as `dists/bookworm`. For a flat repository the directory of its Release.
    pub directory: String,
    /// Name under which the suite was requested.
    pub requested: String,
    /// Addresses of the archive, the origin first. `check --repair` uses them.
    #[serde(default)]
    pub origins: Vec<String>,
    /// Symbolic links to the directory, such as `dists/stable`.
    #[serde(default)]
    pub links: Vec<String>,
    /// SHA-256 of `InRelease`, or of `Release` if there is no `InRelease`.
    pub inrelease: Sha256,
    /// `ETag` of the Release at the first origin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// `Date` of the Release, Unix seconds.
    pub date: i64,
    /// Whether the Release had a valid signature.
    pub signed: bool,
    /// Fingerprint of all settings that decide which files are mirrored.
    pub fingerprint: Sha256,
    /// Fingerprint of the trust settings; missing in states of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust: Option<Sha256>,
    /// Selection as text, for messages.
    #[serde(default)]
    pub selection: String,
    /// Whether filters left out files that its indexes name.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub filtered: bool,
    /// Whether files or indexes were missing on every mirror when it was published (`--ignore-missing`). Each run
    /// requests them again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lacking: bool,
    /// Whether the list of files was damaged after its publication, and so lacks files of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub files_unknown: bool,
    /// Number of its Releases published here, from 1.
    pub generation: u32,
    /// Time of its last publication, Unix seconds.
    pub published_at: i64,
    /// For a suite that was here before this mirror: the generation since which untracked files are kept for clients of
    /// the earlier Release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopted: Option<Departure>,
    /// In a bucket, if a run has taken over the lock: time, by the store's clock, until which the former holder may
    /// still give names by unconditional requests. Runs compare the names with this state and give them again, until
    /// one has done so after this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mend_until: Option<i64>,
    /// Whether its Release is gone from the directory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retired: bool,
}

impl SuiteRecord {
    /// Whether clients may still use files of an earlier tree.
    pub(crate) fn is_adopted_lately(&self, retention: &Retention, now: i64) -> bool {
        let is_kept = |left: &Departure| !retention.is_over(left, Some(self.generation), now);
        !self.retired && self.adopted.as_ref().is_some_and(is_kept)
    }
}

impl Header {
    /// Parses a header as [`Header::to_text`] writes it; `None` for any other text.
    pub(crate) fn parse(text: &[u8]) -> Option<Header> {
        parse(text).ok()
    }

    /// The text of a state with this header.
    pub(crate) fn to_text(&self) -> Vec<u8> {
        render(self)
    }

    /// Requires that the names of all suites are mended at least until this time.
    pub(crate) fn mend_until(&mut self, until: i64) {
        for suite in &mut self.suites {
            suite.mend_until = suite.mend_until.max(Some(until));
        }
    }
}

/// Progress of the deletion of expired files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Removal {
    /// Not decided, or refused by the guard: expired files exist.
    #[default]
    None,
    /// Decided: expired files may exist or not.
    Begun,
    /// Complete: expired files are gone.
    Done,
}

/// All of a state except the list of files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    /// Number of states written; part of the list's name.
    pub number: u64,
    /// Address of the mirror, if it is in a bucket. Its state may be in another place, and must not be used for another
    /// mirror.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<String>,
    /// Time of writing, Unix seconds.
    pub written_at: i64,
    /// The kernel's id of the boot in which the state was written.
    pub boot_id: String,
    /// Whether files and state were synced to disk before the state became current.
    pub synced: bool,
    /// Number of records in the list.
    pub records: u64,
    /// Size of all files in the list, in bytes.
    pub bytes: u64,
    /// Files that signed files and indexes name, each counted once. Missing in states of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub named: Option<Tally>,
    /// Progress of the deletion of expired files.
    #[serde(default)]
    pub removal: Removal,
    /// Earliest time at which an unnamed file may be deleted, Unix seconds.
    #[serde(default)]
    pub clean_due: Option<i64>,
    /// All suites; the index is the number.
    pub suites: Vec<SuiteRecord>,
    /// Memberships of the files; the index is the number.
    #[serde(rename = "standings")]
    pub memberships: Vec<Membership>,
}

/// Release of a suite, as mirrors offer it now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OfferedRelease<'a> {
    /// Directory of the suite in the mirror.
    pub directory: &'a str,
    /// SHA-256 of the received `InRelease`.
    pub inrelease: Sha256,
    /// `Date` of the offered Release, Unix seconds.
    pub date: i64,
    /// Whether the offered Release has a valid signature.
    pub signed: bool,
    /// Fingerprint of the settings of this run.
    pub fingerprint: Sha256,
    /// `Date` of the Release on disk, if it differs from the recorded one.
    pub here: Option<i64>,
    /// Latest `Date` of the suites to which the requested name, such as `stable`, has led. The name never leads back to
    /// an earlier one.
    pub successor: Option<i64>,
    /// Date limits of the source.
    pub check: DateCheck,
}

/// Change from the mirrored Release to the offered one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReleaseChange {
    /// No change: nothing to do for this suite.
    Unchanged,
    /// Not mirrored here before.
    NewSuite,
    /// A later Release.
    NewRelease,
    /// Another Release of the same date: signed again, or a faulty archive.
    SameDate,
    /// The same Release, other settings.
    NewSettings,
    /// The same Release, until now accepted without a signature.
    NowSigned,
    /// The same Release, but the last run did not complete, or files were missing.
    Unfinished,
}

/// State of a mirror, as read from its directory.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Header of the state.
    pub header: Header,
    /// Reason why the state on disk could not be used; `None` if it could.
    pub lost: Option<String>,
    /// Whether the last run did not complete.
    pub unfinished: bool,
    /// Whether it was killed or failed after its first change. The log has its finished files.
    pub marked: bool,
    /// Whether it accepted some of its files without a signature.
    pub unfinished_unsigned: bool,
    /// Whether the list is reliable: it was synced, or written since this boot.
    pub trusted: bool,
    /// Whether the tree belongs to another state, so that only files on disk count.
    pub overtaken: bool,
}

impl State {
    /// Reads the header, but not the list of files. A missing or damaged state counts as an empty one.
    ///
    /// # Errors
    /// [`StateError::File`] if a file cannot be read, [`StateError::Newer`] for a state of a later version.
    pub(crate) fn open(own: &Root, boot_id: &str) -> Result<State, StateError> {
        let mark = own.read(MARK_PATH, MARK_UNSIGNED.len() as u64)?;
        let marked = mark.is_some();
        let unfinished_unsigned = mark.is_some_and(|mark| mark == MARK_UNSIGNED);
        let Some(text) = own.read(STATE_PATH, HEADER_BYTES_MAX)? else {
            return Ok(State { unfinished: marked, marked, unfinished_unsigned, ..State::default() });
        };
        match parse(&text) {
            Ok(header) => {
                let trusted = header.synced || header.boot_id == boot_id;
                let unfinished = marked || header.removal == Removal::Begun || !trusted;
                Ok(State { header, unfinished, marked, unfinished_unsigned, trusted, ..State::default() })
            }
            Err(Damage::Newer(found)) => Err(StateError::Newer { found }),
            Err(Damage::Text(reason)) => {
                Ok(State { lost: Some(reason), unfinished: true, marked, unfinished_unsigned, ..State::default() })
            }
        }
    }

    /// After damage of the list: marks all suites except these, because the new list may lack files of them.
    pub(crate) fn forget_files_of_others(&mut self, published: &[SuiteId]) {
        for (id, suite) in (0..).zip(&mut self.header.suites) {
            suite.files_unknown |= !published.contains(&id);
        }
    }

    /// Numbers of the suites in these directories; a suite without a number gets a new one.
    pub(crate) fn number_suites(&self, directories: &[&str]) -> Vec<SuiteId> {
        let mut next = self.header.suites.len();
        let mut number = |directory: &&str| {
            self.suite_id(directory).unwrap_or_else(|| {
                next += 1;
                // With 65,535 suites in one directory, the next run would refuse the header.
                SuiteId::try_from(next - 1).unwrap_or(SuiteId::MAX)
            })
        };
        directories.iter().map(&mut number).collect()
    }

    /// The number of the suite in this directory, if it has one.
    pub(crate) fn suite_id(&self, directory: &str) -> Option<SuiteId> {
        self.header
            .suites
            .iter()
            .position(|suite| suite.directory == directory)
            .and_then(|at| SuiteId::try_from(at).ok())
    }

    /// Record of the suite in this directory.
    pub(crate) fn suite(&self, directory: &str) -> Option<&SuiteRecord> {
        self.header.suites.iter().find(|suite| suite.directory == directory && !suite.retired)
    }

    /// Compares the date of the offered Release with the recorded one and with the one on disk. Returns a date in the
    /// future that the offered Release corrects, if there is one.
    ///
    /// # Errors
    /// [`StateError::Older`] if the offered Release is older, which would be a rollback (M10).
    pub(crate) fn judge_date(&self, offer: &OfferedRelease<'_>) -> Result<Option<FutureDate>, StateError> {
        let suite = self.suite(offer.directory);
        // An unsigned Release with a far date must not block the signed ones that follow.
        let recorded = suite.filter(|suite| suite.signed || !offer.signed).map(|suite| suite.date);
        let may_correct = offer.signed || (offer.here.is_none() && suite.is_some_and(|suite| !suite.signed));
        let mut corrected = None;
        // Each date is compared separately, because the first that does not count must not hide the next.
        for have in [recorded, offer.here, offer.successor].into_iter().flatten() {
            // A Release without a date has the date 0 here, and so is older than all others.
            match offer.check.succession(Some(offer.date), Some(have), may_correct && offer.date != 0) {
                Succession::Follows => {}
                Succession::Corrects(future) => corrected = Some(future),
                Succession::Older => {
                    return Err(StateError::Older { directory: offer.directory.to_owned(), offered: offer.date, have });
                }
            }
        }
        Ok(corrected)
    }

    /// Compares the offered Release with the mirrored one, without reading files.
    ///
    /// # Errors
    /// [`StateError::Older`] if the offered Release is older, as in [`State::judge_date`].
    pub(crate) fn judge(&self, offer: &OfferedRelease<'_>) -> Result<ReleaseChange, StateError> {
        self.judge_date(offer)?;
        let Some(suite) = self.suite(offer.directory) else { return Ok(ReleaseChange::NewSuite) };
        Ok(if offer.signed && !suite.signed {
            ReleaseChange::NowSigned
        } else if offer.inrelease != suite.inrelease {
            if offer.date == suite.date { ReleaseChange::SameDate } else { ReleaseChange::NewRelease }
        } else if offer.fingerprint != suite.fingerprint {
            ReleaseChange::NewSettings
        } else if self.unfinished || suite.lacking || suite.files_unknown {
            ReleaseChange::Unfinished
        } else {
            ReleaseChange::Unchanged
        })
    }

    /// Whether the list has this path, and the file is not expired. False if the list cannot be read. Paths below
    /// `dists/` are near its start.
    pub(crate) fn has_record(&self, own: &Root, path: &str) -> bool {
        let Ok(Some(mut records)) = self.records(own) else { return false };
        while let Ok(Some(record)) = records.next() {
            if record.path >= path {
                let membership = self.header.memberships.get(record.membership as usize);
                return record.path == path && membership.is_some_and(|membership| !membership.expired);
            }
        }
        false
    }

    /// Opens the list of files, in order of path; `None` if there is none.
    ///
    /// # Errors
    /// [`StateError::List`] or [`StateError::File`] if the list exists and cannot be opened.
    pub(crate) fn records(&self, own: &Root) -> Result<Option<RecordReader<File>>, StateError> {
        if self.header.number == 0 {
            return Ok(None);
        }
        let path = list_path(self.header.number);
        let Some((file, _)) = own.open_file(&path)? else { return Ok(None) };
        // The table's length was checked when the header was read.
        let memberships = self.header.memberships.len() as u32;
        RecordReader::new(file, self.header.records, memberships)
            .map(Some)
            .map_err(|source| StateError::List { path, source })
    }

    /// Writes the header and makes it current.
    ///
    /// # Errors
    /// [`StateError::File`] if the header cannot be written or renamed.
    pub(crate) fn write_header(&self, own: &Root) -> Result<(), StateError> {
        let part = own.write_part(STATE_PATH, &render(&self.header))?;
        if self.header.synced {
            // Some file systems write the rename before the content, which would leave an empty state.
            sync_file(&part, STATE_PATH)?;
        }
        Ok(part.finish()?)
    }

    /// Marks the mirror before the first change of a run. `unsigned` means that a suite of the run has no valid
    /// signature. Committing a state removes the mark.
    ///
    /// # Errors
    /// [`StateError::File`] if the mark cannot be written.
    pub(crate) fn begin(&mut self, own: &Root, unsigned: bool) -> Result<(), StateError> {
        self.unfinished_unsigned |= unsigned;
        own.create_directory(OWN_DIRECTORY, 0o700)?;
        let mark: &[u8] = if self.unfinished_unsigned { MARK_UNSIGNED } else { b"" };
        Ok(own.write_part(MARK_PATH, mark)?.finish()?)
    }

    /// Removes the mark of an unfinished run.
    pub(super) fn end(own: &Root) -> Result<(), StateError> {
        own.unlink(MARK_PATH)?;
        Ok(())
    }

    /// Path of the current list, for messages.
    pub(crate) fn list_path(&self) -> String {
        list_path(self.header.number)
    }
}

/// Path of the list of the state with this number.
pub(crate) fn list_path(number: u64) -> String {
    format!("{OWN_DIRECTORY}/files-{number}.zst")
}

enum Damage {
    Newer(u32),
    Text(String),
}

fn parse(text: &[u8]) -> Result<Header, Damage> {
    let damage = |reason: &str| Damage::Text(format!("{STATE_PATH}: {reason}"));
    let end = text.iter().take(120).position(|&byte| byte == b'\n').ok_or_else(|| damage("no first line"))?;
    let (line, json) = text.split_at(end + 1);
    let line = std::str::from_utf8(line).map_err(|_| damage("first line is not text"))?;
    let mut words = line.split_whitespace();
    if words.next() != Some(MAGIC) {
        return Err(damage("not a state of fullbore"));
    }
    let version: u32 = words.next().and_then(|word| word.parse().ok()).ok_or_else(|| damage("no version"))?;
    if version > VERSION {
        return Err(Damage::Newer(version));
    }
    let sha256: Sha256 = words.next().and_then(|word| word.parse().ok()).ok_or_else(|| damage("no hash"))?;
    if Sha256::of(json) != sha256 {
        return Err(damage("content does not match its hash"));
    }
    let header: Header = serde_json::from_slice(json).map_err(|error| damage(&error.to_string()))?;
    if header.memberships.len() > MEMBERSHIPS_MAX || header.suites.len() > usize::from(SuiteId::MAX) {
        return Err(damage("too many suites or memberships"));
    }
    Ok(header)
}

fn render(header: &Header) -> Vec<u8> {
    let json = serde_json::to_vec(header).expect("a header has only strings as keys");
    let mut text = format!("{MAGIC} {VERSION} {}\n", Sha256::of(&json)).into_bytes();
    text.extend_from_slice(&json);
    text
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// After all dates of these tests.
    const NOW: i64 = 2_000_000;

    /// A suite as some run published it.
    pub(in crate::mirror) fn suite() -> SuiteRecord {
        SuiteRecord {
            directory: "dists/trixie".into(),
            requested: "stable".into(),
            origins: Vec::new(),
            links: vec!["dists/stable".into()],
            inrelease: Sha256::of(b"1"),
            tag: None,
            date: 1_000_000,
            signed: true,
            fingerprint: Sha256::of(b"settings"),
            trust: None,
            selection: "main; amd64".into(),
            filtered: false,
            lacking: false,
            files_unknown: false,
            generation: 1,
            adopted: None,
            published_at: 1_000_100,
            mend_until: None,
            retired: false,
        }
    }

    fn state() -> State {
        State { header: Header { suites: vec![suite()], ..Header::default() }, trusted: true, ..State::default() }
    }

    fn offer(suite: &SuiteRecord) -> OfferedRelease<'_> {
        OfferedRelease {
            directory: &suite.directory,
            inrelease: suite.inrelease,
            date: suite.date,
            signed: suite.signed,
            fingerprint: suite.fingerprint,
            here: None,
            successor: None,
            check: DateCheck::new(NOW, true, 10),
        }
    }

    #[test]
    fn what_lay_here_before_has_its_time_as_well() {
        let retention = Retention::default();
        let at = 1_000_000;
        let day_later = at + 24 * 3600;
        let left = Departure { suite: 0, generation: 1, at };
        let adopted = |generation| SuiteRecord { generation, adopted: Some(left.clone()), ..suite() };
        assert!(adopted(4).is_adopted_lately(&retention, day_later - 1));
        assert!(adopted(3).is_adopted_lately(&retention, day_later));
        assert!(!adopted(4).is_adopted_lately(&retention, day_later));
        assert!(!SuiteRecord { adopted: None, ..adopted(1) }.is_adopted_lately(&retention, at));
        assert!(!SuiteRecord { retired: true, ..adopted(1) }.is_adopted_lately(&retention, at));
    }

    #[test]
    fn the_same_release_and_settings_are_nothing_new() {
        let (state, suite) = (state(), suite());
        let same = offer(&suite);
        let judge = |offer| state.judge(&offer).unwrap();
        assert_eq!(judge(same), ReleaseChange::Unchanged);
        assert_eq!(judge(OfferedRelease { directory: "dists/sid", ..same }), ReleaseChange::NewSuite);
        assert_eq!(
            judge(OfferedRelease { inrelease: Sha256::of(b"2"), date: 1_000_001, ..same }),
            ReleaseChange::NewRelease
        );
        assert_eq!(judge(OfferedRelease { inrelease: Sha256::of(b"2"), ..same }), ReleaseChange::SameDate);
        assert_eq!(judge(OfferedRelease { fingerprint: Sha256::EMPTY, ..same }), ReleaseChange::NewSettings);
        let unfinished = State { unfinished: true, ..self::state() };
        assert_eq!(unfinished.judge(&same).unwrap(), ReleaseChange::Unfinished);
    }

    #[test]
    fn an_older_release_is_refused() {
        let (state, suite) = (state(), suite());
        let older = OfferedRelease { inrelease: Sha256::of(b"0"), date: 999_999, ..offer(&suite) };
        let error = state.judge(&older).unwrap_err();
        assert_eq!(
            error.to_string(),
            "dists/trixie: the Release offered is of 1970-01-12T13:46:39Z, older than the one mirrored, of 1970-01-12T13:46:40Z"
        );
        // What lies in the directory counts as well, with a state or without one.
        for state in [&state, &State::default()] {
            let older = OfferedRelease { here: Some(suite.date + 1), ..offer(&suite) };
            assert!(matches!(state.judge(&older), Err(StateError::Older { have: 1_000_001, .. })));
        }
    }

    #[test]
    fn a_recorded_release_of_the_future_is_replaced_by_a_signed_one_alone() {
        let far = NOW + 86_400;
        for (recorded, here, recorded_signed, signed, date, is_replaced) in [
            (far, None, true, true, NOW, true),
            (far, None, true, false, NOW, false),
            (far, None, false, false, NOW, true),
            (far, None, true, true, 0, false),
            (far, None, true, true, far - 1, false),
            (NOW - 9, Some(far), true, true, NOW, true),
            (NOW - 9, Some(far), true, true, NOW - 10, false),
            (NOW - 9, Some(far), true, false, NOW, false),
            (NOW - 9, Some(far), false, false, NOW, false),
            (far, Some(NOW - 9), true, true, NOW - 10, false),
        ] {
            let mut state = state();
            (state.header.suites[0].date, state.header.suites[0].signed) = (recorded, recorded_signed);
            let suite = suite();
            let offered = OfferedRelease { date, signed, here, inrelease: Sha256::of(b"2"), ..offer(&suite) };
            let judged = state.judge_date(&offered);
            let case = format!("{recorded} {here:?} {recorded_signed} {signed} {date}");
            assert_eq!(matches!(judged, Ok(Some(_))), is_replaced, "{case}");
            assert_eq!(judged.is_err(), !is_replaced, "{case}");
            let unchecked = OfferedRelease { check: DateCheck::new(NOW, false, 10), ..offered };
            assert!(recorded_signed != signed || state.judge_date(&unchecked).is_err(), "{case}: not checked");
        }
    }

    #[test]
    fn what_was_unsigned_is_not_unchanged_once_signed() {
        let mut state = state();
        state.header.suites[0].signed = false;
        let suite = suite();
        assert_eq!(state.judge(&offer(&suite)).unwrap(), ReleaseChange::NowSigned);
        // And an unsigned Release with a date in the future does not lock out the signed one.
        state.header.suites[0].date = i64::MAX;
        assert_eq!(state.judge(&offer(&suite)).unwrap(), ReleaseChange::NowSigned);
    }

    #[test]
    fn a_run_that_did_not_end_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        let mut state = State { header: Header { boot_id: "boot".into(), ..Header::default() }, ..state() };
        state.write_header(&root).unwrap();
        state.begin(&root, true).unwrap();
        state.begin(&root, false).unwrap();
        let read = State::open(&root, "boot").unwrap();
        assert!(read.unfinished && read.unfinished_unsigned);
        State::end(&root).unwrap();
        let read = State::open(&root, "boot").unwrap();
        assert!(!read.unfinished && !read.unfinished_unsigned);
    }

    #[test]
    fn a_header_comes_back_from_disk_and_damage_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        assert_eq!(State::open(&root, "boot").unwrap().lost, None);
        let mut state = state();
        state.header.boot_id = "boot".into();
        state.write_header(&root).unwrap();
        let read = State::open(&root, "boot").unwrap();
        assert_eq!((&read.header, read.unfinished, read.trusted), (&state.header, false, true));
        let other_boot = State::open(&root, "later").unwrap();
        assert!(other_boot.unfinished && !other_boot.trusted, "never synced, and the machine was started again");

        let path = directory.path().join(STATE_PATH);
        let mut text = std::fs::read(&path).unwrap();
        *text.last_mut().unwrap() ^= 1;
        std::fs::write(&path, &text).unwrap();
        let read = State::open(&root, "boot").unwrap();
        assert_eq!(read.lost.as_deref(), Some(".fullbore/state: content does not match its hash"));
        std::fs::write(&path, "fullbore-state 2 whatever\n").unwrap();
        assert!(matches!(State::open(&root, "boot"), Err(StateError::Newer { found: 2 })));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
            let mut framed = format!("{MAGIC} 1 {}\n", Sha256::of(&bytes)).into_bytes();
            framed.extend_from_slice(&bytes);
            let _ = parse(&framed);
        }
    }
}
