//! `Release`: the fields of a suite, and the list of its indexes with size and SHA-256.
//!
//! Every other check depends on this file, so it is parsed only from a [`SignedText`]. Where readers could differ,
//! apt's reading counts: the first entry of a path, the last field of a name, the first stanza. Entries that no client
//! could use are skipped, with a line in [`Release::notes`].

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry::{Occupied, Vacant};

use thiserror::Error;

use crate::compression::Form;
use crate::date::{self, AnyDate, DateError};
use crate::deb822::{Deb822Error, Limits, Stanza, Stanzas};
use crate::path::{ArchivePath, PathError};
use crate::signature::SignedText;
use fullbore_digest::Sha256;

/// Maximum number of entries. Debian unstable has about 3,000 (all architectures and languages); the size limit of the
/// file allows about this number.
const ENTRIES_MAX: usize = 100_000;

/// Maximum size of an index, in bytes. The largest known, `Contents` of everything, stays below 2 GB; a larger claim is
/// a mistake or an attack.
const INDEX_BYTES_MAX: u64 = 64 << 30;

/// Maximum number of lines in [`Release::notes`], so that a broken generator does not flood a log.
const NOTES_MAX: usize = 8;

/// An entry of the `SHA256` list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexEntry {
    /// Path relative to the directory of the `Release`.
    pub path: ArchivePath,
    /// Size of the index file, in bytes.
    pub size: u64,
    /// SHA-256 of the file as served, compressed or not.
    pub sha256: Sha256,
    /// SHA-512 of the same file in hexadecimal, if the suite serves indexes by hash and lists it: clients request
    /// files by the strongest hash. It verifies nothing.
    pub sha512: Option<Box<str>>,
}

impl IndexEntry {
    /// Paths by hash under which clients may request the file.
    ///
    /// # Errors
    /// A [`PathError`] if a path by hash exceeds [`PATH_BYTES_MAX`](crate::path::PATH_BYTES_MAX).
    pub fn by_hash(&self) -> Result<Vec<ArchivePath>, PathError> {
        let sha256 = self.path.by_hash("SHA256", self.sha256.to_hex().as_str());
        let sha512 = self.sha512.as_ref().map(|hex| self.path.by_hash("SHA512", hex));
        std::iter::once(sha256).chain(sha512).collect()
    }
}

/// A parsed `Release`; its text was verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// Field `Origin`: who publishes the archive, such as `Debian`.
    pub origin: Option<String>,
    /// Field `Label`, such as `Debian` or `Debian-Security`.
    pub label: Option<String>,
    /// Field `Suite`, such as `stable`; may change with time.
    pub suite: Option<String>,
    /// Field `Codename`, such as `bookworm`; does not change.
    pub codename: Option<String>,
    /// Field `Version` of the distribution, such as `12.5`.
    pub version: Option<String>,
    /// Field `Description`, a free text of one line.
    pub description: Option<String>,
    /// `Date`, in seconds since 1970 UTC. Missing in some flat repositories, and `None` if it cannot be read.
    pub date: Option<i64>,
    /// `Valid-Until`, in seconds since 1970 UTC.
    pub valid_until: Option<i64>,
    /// Words of field `Architectures`, which never contain `source`.
    pub architectures: Vec<String>,
    /// `Components`, perhaps with slashes (`updates/main`); empty in flat repositories.
    pub components: Vec<String>,
    /// Whether the field `Acquire-By-Hash` is `yes`.
    pub acquire_by_hash: bool,
    /// Default priority of the packages (apt_preferences(5)): 100 with `NotAutomatic` and `ButAutomaticUpgrades`, 1
    /// with `NotAutomatic` alone, otherwise 500.
    pub default_priority: u16,
    /// `No-Support-for-Architecture-all: Packages`: each `binary-ARCH/Packages` contains the packages of architecture
    /// `all`, and clients skip `binary-all`.
    pub no_support_for_architecture_all: bool,
    /// `Signed-By`: keys that may sign the next `Release`.
    pub signed_by: Vec<String>,
    /// Sorted by path, each path once; without the suite's own signed files (`is_signed_file`).
    pub entries: Vec<IndexEntry>,
    /// Lines for the user: oddities of this file, and skipped entries.
    pub notes: Vec<String>,
}

/// Why the text of a `Release` was refused.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// The file is not a control file.
    #[error("Release: {0}")]
    Syntax(#[from] Deb822Error),
    /// The file has no stanza.
    #[error("Release: {0}")]
    Stanzas(&'static str),
    /// There is no SHA-256 list.
    #[error("Release has no SHA256 list{}", if found.is_empty() { String::new() } else { format!(", only {}", found.join(" and ")) })]
    NoSha256 {
        /// Other lists in the file.
        found: Vec<&'static str>,
    },
    /// A line of the list is not `hash size path`.
    #[error("Release, SHA256 entry {number} ({text:?}): {what}")]
    Entry {
        /// Entry number, counted from 1.
        number: usize,
        /// The line, at most 120 characters of it.
        text: String,
        /// The fault.
        what: &'static str,
    },
    /// The list is too long.
    #[error("Release has more than {ENTRIES_MAX} entries")]
    TooMany,
    /// A date is invalid.
    #[error("Release, {field}: {source}")]
    Date {
        /// `Valid-Until`.
        field: &'static str,
        /// The underlying error.
        #[source]
        source: DateError,
    },
}

impl Release {
    /// Parses a `Release`.
    ///
    /// ```
    /// use fullbore_debian::release::Release;
    /// use fullbore_debian::signature::SignedText;
    ///
    /// let text = "Codename: bookworm\nComponents: main\nSHA256:\n \
    ///             e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 738242 main/source/Sources.xz\n";
    /// // For sources with `Trusted: yes`; a `Verifier` checks the signature of all others.
    /// let release = Release::parse(&SignedText::trusted(text.as_bytes())?)?;
    /// assert_eq!(release.find("main/source/Sources.xz").unwrap().size, 738_242);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ReleaseError::Syntax`] or [`ReleaseError::Stanzas`] if the text is not one stanza; [`ReleaseError::NoSha256`]
    /// without such a list; [`ReleaseError::Entry`] or [`ReleaseError::TooMany`] if the list is invalid;
    /// [`ReleaseError::Date`] for an invalid date.
    pub fn parse(text: &SignedText) -> Result<Release, ReleaseError> {
        let mut stanzas = Stanzas::new(text.as_str().as_bytes(), Limits::RELEASE);
        let mut release = match stanzas.next()? {
            Some(stanza) => Self::from_stanza(&stanza)?,
            None => return Err(ReleaseError::Stanzas("is empty")),
        };
        if !matches!(stanzas.next(), Ok(None)) {
            release.note("the Release has more than one stanza: only the first counts".to_owned());
        }
        Ok(release)
    }

    fn note(&mut self, line: String) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(line);
        }
    }

    fn from_stanza(stanza: &Stanza<'_>) -> Result<Release, ReleaseError> {
        let text = |field| stanza.last_text(field).filter(|value| !value.is_empty());
        let owned = |field| text(field).map(Cow::into_owned);
        let words = |field| list(text(field).as_deref(), char::is_whitespace);
        let yes = |field| text(field).is_some_and(|value| value.eq_ignore_ascii_case("yes"));
        let Some(sha256) = text("SHA256") else {
            let others = ["MD5Sum", "SHA1", "SHA512"].into_iter().filter(|field| stanza.get(field).is_some());
            return Err(ReleaseError::NoSha256 { found: others.collect() });
        };
        let valid_until = text("Valid-Until").map(|value| date::parse(&value)).transpose();
        let acquire_by_hash = yes("Acquire-By-Hash");
        let mut notes = Vec::new();
        let date = date_of(text("Date").as_deref(), &mut notes);
        let mut entries = entries(&sha256, &mut notes)?;
        if let Some(sha512) = text("SHA512").filter(|_| acquire_by_hash) {
            add_sha512(&mut entries, &sha512);
        }
        Ok(Release {
            origin: owned("Origin"),
            label: owned("Label"),
            suite: owned("Suite"),
            codename: owned("Codename"),
            version: owned("Version"),
            description: owned("Description"),
            date,
            valid_until: valid_until.map_err(|source| ReleaseError::Date { field: "Valid-Until", source })?,
            architectures: words("Architectures"),
            components: words("Components"),
            acquire_by_hash,
            default_priority: match (yes("NotAutomatic"), yes("ButAutomaticUpgrades")) {
                (false, _) => 500,
                (true, true) => 100,
                (true, false) => 1,
            },
            no_support_for_architecture_all: words("No-Support-for-Architecture-all")
                .iter()
                .any(|word| word == "Packages"),
            signed_by: list(text("Signed-By").as_deref(), |c| c == ',' || c.is_whitespace()),
            entries,
            notes,
        })
    }

    /// Finds the entry of a path.
    pub fn find(&self, path: &str) -> Option<&IndexEntry> {
        let at = self.entries.binary_search_by(|entry| entry.path.as_str().cmp(path)).ok()?;
        self.entries.get(at)
    }

    /// Whether the suite has `component`. As in apt, the last part of a component counts too: the security archive
    /// once wrote `updates/main` for `main`.
    pub fn has_component(&self, component: &str) -> bool {
        self.components.iter().any(|own| own == component || own.rsplit('/').next() == Some(component))
    }
}

fn list(value: Option<&str>, separator: impl Fn(char) -> bool) -> Vec<String> {
    value.unwrap_or_default().split(separator).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// Parses `Date`. A date that apt does not read still shows which Release is newer.
fn date_of(text: Option<&str>, notes: &mut Vec<String>) -> Option<i64> {
    let Some(text) = text else {
        notes.push("the Release has no Date: it cannot be told whether another one is newer".to_owned());
        return None;
    };
    match date::parse_any(text) {
        Ok(AnyDate { unix_s, is_for_apt }) => {
            if !is_for_apt {
                notes.push(format!("the Release is dated {text:?}: APT ignores a Date in another time zone than UTC"));
            }
            Some(unix_s)
        }
        Err(error) => {
            notes.push(format!("the Release counts as undated: its Date {error}"));
            None
        }
    }
}

/// Reads a list. Useless entries are skipped, as by apt, which never requests them.
fn entries(list: &str, notes: &mut Vec<String>) -> Result<Vec<IndexEntry>, ReleaseError> {
    let mut entries: HashMap<ArchivePath, (u64, Sha256)> = HashMap::new();
    let mut note = |line: String| {
        if notes.len() < NOTES_MAX {
            notes.push(line);
        }
    };
    for (line, number) in list.lines().filter(|line| !line.trim().is_empty()).zip(1usize..) {
        if number > ENTRIES_MAX {
            return Err(ReleaseError::TooMany);
        }
        let entry = match entry(line, number)? {
            Ok(entry) => entry,
            Err(why) => {
                note(format!("entry {number} of the Release is left out: {why}"));
                continue;
            }
        };
        if is_signed_file(&entry.path) {
            continue;
        }
        let content = (entry.size, entry.sha256);
        match entries.entry(entry.path) {
            Occupied(first) if *first.get() != content => {
                note(format!("the Release names {} twice with different content: the first counts", first.key()));
            }
            Occupied(_) => {}
            Vacant(free) => drop(free.insert(content)),
        }
    }
    let mut entries: Vec<_> =
        entries.into_iter().map(|(path, (size, sha256))| IndexEntry { path, size, sha256, sha512: None }).collect();
    entries.sort_unstable_by(|left, right| left.path.cmp(&right.path));
    Ok(entries)
}

/// Whether an entry names a signed file of a suite, in any compression. Such an entry is not an index: a `Release`
/// cannot contain its own hash, so the entry describes an earlier state. Scripts that list whole directories write such
/// entries, and so does `apt-ftparchive release . > Release`. A `Release` below the top is the ordinary one of a
/// component's directory; an `InRelease` or a `Release.gpg` there belongs to another suite.
fn is_signed_file(path: &ArchivePath) -> bool {
    let (name, _) = Form::split(path.file_name());
    match name {
        "InRelease" | "Release.gpg" => true,
        "Release" => path.directory().is_empty(),
        _ => false,
    }
}

/// Parses `hash size path`. The inner error gives the reason why the entry is useless.
fn entry(line: &str, number: usize) -> Result<Result<IndexEntry, String>, ReleaseError> {
    let shown = || line.trim().chars().take(120).collect::<String>();
    let mut words = line.split_ascii_whitespace();
    let (Some(hash), Some(size), Some(path), None) = (words.next(), words.next(), words.next(), words.next()) else {
        return Err(ReleaseError::Entry { number, text: shown(), what: "is not `hash size path`" });
    };
    let size = parse_size(size.as_bytes()).filter(|&size| size <= INDEX_BYTES_MAX);
    let Some(size) = size else {
        return Err(ReleaseError::Entry {
            number,
            text: shown(),
            what: "the size is not a number, or larger than any index",
        });
    };
    // apt compares hashes as text, so capital letters never match.
    let is_lower = !hash.bytes().any(|byte| byte.is_ascii_uppercase());
    let Some(sha256) = Sha256::from_hex(hash.as_bytes()).ok().filter(|_| is_lower) else {
        return Ok(Err(format!("{:?} has no SHA-256 in lower-case hexadecimal", shown())));
    };
    Ok(match ArchivePath::parse_spelled(path) {
        Ok(path) => Ok(IndexEntry { path, size, sha256, sha512: None }),
        Err(error) => Err(error.to_string()),
    })
}

/// Adds the hashes of the SHA-512 list. They only name files, so malformed lines and unknown files are skipped.
fn add_sha512(entries: &mut [IndexEntry], list: &str) {
    for line in list.lines().take(ENTRIES_MAX) {
        let mut words = line.split_ascii_whitespace();
        let (Some(hex), Some(size), Some(path), None) = (words.next(), words.next(), words.next(), words.next()) else {
            continue;
        };
        let is_hash = hex.len() == 128 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
        let Some(path) = ArchivePath::parse_spelled(path).ok().filter(|_| is_hash) else { continue };
        if let Ok(at) = entries.binary_search_by(|entry| entry.path.cmp(&path))
            && parse_size(size.as_bytes()) == Some(entries[at].size)
        {
            entries[at].sha512 = Some(hex.into());
        }
    }
}

/// Parses decimal digits only: `u64::from_str` would accept a `+`.
pub(crate) fn parse_size(digits: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    digits.parse().ok()
}

/// A `Release` with a modification time this much later than its `Date` comes from a tool that keeps no times. A
/// server would answer "not modified" for newer ones too.
const CHANGED_AFTER_DATE_S: i64 = 3600;

/// Unix time for an `If-Modified-Since` request, for a `Release` with this `Date` and a local copy with the
/// modification time `modified`.
pub fn if_modified_since(date: Option<i64>, modified: i64) -> i64 {
    date.map_or(modified, |date| modified.min(date.saturating_add(CHANGED_AFTER_DATE_S)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HASH: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn parse(text: &str) -> Result<Release, ReleaseError> {
        Release::parse(&SignedText::trusted(text.as_bytes()).expect("text"))
    }

    /// The head and a few entries in the words of Debian 12.
    fn bookworm() -> String {
        format!(
            "Origin: Debian\nLabel: Debian\nSuite: stable\nVersion: 12.5\nCodename: bookworm\n\
             Changelogs: https://metadata.ftp-master.example.org/changelogs/@CHANGEPATH@_changelog\n\
             Date: Sat, 10 Feb 2024 11:07:25 UTC\nAcquire-By-Hash: yes\nNo-Support-for-Architecture-all: Packages\n\
             Architectures: all amd64 arm64\nComponents: main contrib non-free-firmware non-free\n\
             Description: Debian 12.5 Released 10 February 2024\n\
             MD5Sum:\n 0ed6d4c8891eb86358b94bb35d9e4da4 1484322 contrib/Contents-all\n\
             SHA256:\n {HASH}  1484322 contrib/Contents-all\n {HASH}   738242 main/binary-amd64/Packages.xz\n \
             {HASH}      104 main/binary-amd64/Release\n"
        )
    }

    #[test]
    fn a_release_of_debian_is_read() {
        let release = parse(&bookworm()).expect("valid");
        assert_eq!((release.codename.as_deref(), release.suite.as_deref()), (Some("bookworm"), Some("stable")));
        assert_eq!((release.date, release.valid_until), (Some(1_707_563_245), None));
        assert_eq!(release.components, ["main", "contrib", "non-free-firmware", "non-free"]);
        assert!(release.acquire_by_hash && release.no_support_for_architecture_all);
        assert_eq!(release.entries.len(), 3);
        assert_eq!(release.find("main/binary-amd64/Packages.xz").map(|entry| entry.size), Some(738_242));
        assert!(release.find("main").is_none());
    }

    #[test]
    fn the_old_security_archive_has_its_components_and_valid_until() {
        let text = format!(
            "Codename: buster\nComponents: updates/main updates/contrib\nValid-Until: Sat, 17 Feb 2024 10:00:00 UTC\nSHA256:\n {HASH} 1 main/x\n"
        );
        let release = parse(&text).expect("valid");
        assert!(release.has_component("main") && release.has_component("updates/contrib"));
        assert!(!release.has_component("non-free"));
        assert_eq!(release.valid_until, Some(1_708_164_000));
    }

    #[test]
    fn a_flat_release_without_head_is_read() {
        let release = parse(&format!("SHA256:\n {HASH} 10 ./Packages.gz\n")).expect("valid");
        assert_eq!(release.entries[0].path.as_str(), "Packages.gz");
        assert_eq!(release.date, None);
    }

    #[test]
    fn signed_files_named_in_a_release_are_no_indexes() {
        let signed = ["Release", "./Release", "InRelease", "./InRelease", "Release.gpg", "./Release.gpg"];
        let forms =
            ["Release.gz", "InRelease.xz", "Release.gpg.zst", "./Release.bz2", "updates/InRelease", "a/b/Release.gpg"];
        let ordinary =
            ["main/binary-amd64/Release", "main/source/Release.gz", "Release.txt", "OldRelease", "Release/Packages"];
        for path in signed.iter().chain(&forms).chain(&ordinary) {
            // Twice with other content: an entry that does not count contradicts nothing.
            let text = format!("SHA256:\n {HASH} 38 {path}\n {HASH} 1 Packages\n");
            let release = parse(&text).expect("valid");
            assert_eq!(release.find(path).is_some(), ordinary.contains(path), "{path}");
            assert!(release.find("Packages").is_some(), "{path}");
        }
        let twice = format!("SHA256:\n {HASH} 38 Release\n {HASH} 39 ./Release\n {HASH} 1 Packages\n");
        assert_eq!(parse(&twice).expect("valid").entries.len(), 1);
    }

    #[test]
    fn indexes_have_names_by_each_strong_hash() {
        let strong = HASH.repeat(2);
        let lists = |head: &str| {
            let lines = format!("\n {strong} 10 a/x\n {strong} 11 b\n {HASH} 10 b\n {strong} 1 ../c\n nonsense\n");
            parse(&format!("{head}SHA256:\n {HASH} 10 a/x\n {HASH} 10 b\nSHA512:{lines}")).expect("valid")
        };
        let release = lists("Acquire-By-Hash: yes\n");
        let names: Vec<String> = release.entries[0].by_hash().expect("legal").iter().map(ToString::to_string).collect();
        assert_eq!(names, [format!("a/by-hash/SHA256/{HASH}"), format!("a/by-hash/SHA512/{strong}")]);
        assert_eq!(release.entries[1].sha512, None, "of another size, or no SHA-512");
        assert!(lists("").entries.iter().all(|entry| entry.sha512.is_none()));
    }

    #[test]
    fn only_weaker_hashes_are_refused_by_name() {
        let error = parse("Suite: x\nMD5Sum:\n 0 1 x\nSHA1:\n 0 1 x\n").expect_err("weak");
        assert_eq!(error.to_string(), "Release has no SHA256 list, only MD5Sum and SHA1");
        assert!(matches!(parse("Suite: x\n"), Err(ReleaseError::NoSha256 { found }) if found.is_empty()));
    }

    #[test]
    fn entries_that_nobody_can_use_are_left_out_and_named() {
        let long = "x/".repeat(2048) + "x";
        for path in ["../x", "/../passwd", "main/../../x", "main/%2e%2e/x", ".fullbore/lock", "a\\..\\b", &long] {
            let release = parse(&format!("Date: x\nSHA256:\n {HASH} 1 {path}\n {HASH} 1 main/x\n")).expect(path);
            assert_eq!(release.entries.len(), 1, "{path}");
            assert!(release.notes.iter().any(|note| note.starts_with("entry 1 of the Release is left out")), "{path}");
        }
        let upper = HASH.to_uppercase();
        let release = parse(&format!("SHA256:\n {upper} 1 a\n 12 1 b\n {HASH} 1 c//d\n")).expect("valid");
        assert_eq!(release.entries.iter().map(|entry| entry.path.as_str()).collect::<Vec<_>>(), ["c/d"]);
        let many: String = (0..1000).map(|_| format!(" {HASH} 1 ../x\n")).collect();
        assert!(parse(&format!("SHA256:\n{many}")).expect("valid").notes.len() <= NOTES_MAX);
    }

    #[test]
    fn where_readers_could_differ_apt_counts() {
        let release = parse(&format!("{}\nSuite: evil\n", bookworm())).expect("valid");
        assert_eq!(release.suite.as_deref(), Some("stable"), "the first stanza");
        assert!(release.notes.iter().any(|note| note.contains("more than one stanza")));
        let release = parse(&format!("{}suite: last\n", bookworm())).expect("valid");
        assert_eq!(release.suite.as_deref(), Some("last"), "the last field");
        for second in [format!("{HASH} 2 path"), format!("{} 1 path", HASH.replace('e', "f"))] {
            let release = parse(&format!("SHA256:\n {HASH} 1 path\n {second}\n")).expect("valid");
            assert_eq!(
                release.find("path").map(|entry| (entry.size, entry.sha256.to_string())),
                Some((1, HASH.into()))
            );
            assert!(release.notes.iter().any(|note| note.contains("path twice")), "{second}");
        }
        // The same twice is harmless.
        let release = parse(&format!("SHA256:\n {HASH} 1 path\n {HASH} 1 path\n")).expect("valid");
        assert_eq!(release.entries.len(), 1);
        assert!(matches!(parse(""), Err(ReleaseError::Stanzas("is empty"))));
    }

    #[test]
    fn dates_that_apt_ignores_are_noted() {
        let dated = |date: &str| parse(&format!("{date}SHA256:\n {HASH} 1 path\n")).expect(date);
        let release = dated("Date: Sun, 15 Jun 2025 17:06:40 +0200\n");
        assert_eq!((release.date, release.notes.len()), (Some(1_750_000_000), 1));
        for undated in ["", "Date:\n", "Date: 2025-06-15 15:06:40 UTC\n"] {
            let release = dated(undated);
            assert_eq!((release.date, release.notes.len()), (None, 1), "{undated}");
        }
        assert!(dated("Date: Sun, 15 Jun 2025 15:06:40 UTC\n").notes.is_empty());
        let text = format!("Valid-Until: Sun, 15 Jun 2045 17:06:40 +0200\nSHA256:\n {HASH} 1 path\n");
        assert!(matches!(parse(&text), Err(ReleaseError::Date { .. })), "as for apt");
    }

    #[test]
    fn lines_that_no_client_can_read_are_refused() {
        for line in [
            "x 1 path more".to_owned(),
            format!("{HASH} path"),
            format!("{HASH} -1 path"),
            format!("{HASH} +1 path"),
            format!("{HASH} 99999999999999999999999 path"),
            format!("{HASH} 1000000000000000 path"),
        ] {
            assert!(matches!(parse(&format!("SHA256:\n {line}\n")), Err(ReleaseError::Entry { .. })), "{line}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_input_never_panics(text in "(SHA256|Date|Suite|: ?|\n|\n |[a-z0-9/.%]{1,9}){0,40}") {
            let _ = parse(&text);
        }

        #[test]
        fn entries_round_trip(paths in prop::collection::btree_map("[a-z]{1,8}(/[a-z+~]{1,8}){0,3}", any::<(u32, [u8; 32])>(), 0..20)) {
            let lines: String = paths.iter()
                .map(|(path, (size, hash))| format!("\n {} {size} {path}", Sha256(*hash)))
                .collect();
            prop_assume!(!paths.is_empty());
            let release = parse(&format!("SHA256:{lines}\n")).expect("valid");
            let found: std::collections::BTreeMap<_, _> = release.entries.into_iter()
                .map(|entry| (entry.path.to_string(), (entry.size as u32, entry.sha256.0)))
                .collect();
            prop_assert_eq!(found, paths);
        }
    }
}
