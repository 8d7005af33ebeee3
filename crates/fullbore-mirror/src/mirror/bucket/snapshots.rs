//! Snapshots of a mirror in a bucket.
//!
//! A usual snapshot, `dists/snapshots/NAME/SUITE/`, has copies of the suites' files, made within the store, but of no
//! package. apt reads `snapshots/NAME/SUITE` as a suite with the common pool. Flat repositories are below `flat/`
//! there. The snapshot keeps its packages, because no file is deleted that a signed suite below `dists/` names. A full
//! snapshot, `snapshots/NAME/`, has copies of all files and its own state: it is a mirror.
//!
//! The last written object makes a snapshot complete. It is a state's header with the suites as they were selected, for
//! `check`. Beside it is a list of files. In a usual snapshot it has the snapshot's own names, and the packages that
//! filters selected.

use std::collections::{BTreeMap, HashSet};
use std::io;

use fullbore_debian::release::Release;
use fullbore_debian::signature::SignedText;
use fullbore_engine::files::{FileError, Kind, PartWriter};
use fullbore_s3::target::Layout as _;

use super::super::layout::{below, link_target};
use super::super::membership::{Membership, SuiteId};
use super::super::other_suites::SNAPSHOTS;
use super::super::records::{Record, RecordReader, RecordWriter};
use super::super::signed_files::SIGNED_FILES;
use super::super::snapshot::{self, SNAPSHOT_DIRECTORY, SnapshotError, check_snapshot_name, each_named};
use super::super::state::{Header, OWN_DIRECTORY, STATE_PATH, State, SuiteRecord, list_path};
use super::super::tree::Tree;
use super::aliases::Copied;
use super::tree::{KEPT_BYTES_MAX, StoreTree, failed};

/// Object that is written last, and makes the snapshot complete.
const MARKER: &str = ".fullbore-snapshot";

/// List of the snapshot's files.
const LIST: &str = ".fullbore-files.zst";

/// Directory of flat repositories in a snapshot.
const FLAT: &str = "flat";

/// Maximum size of a marker, in bytes. A suite takes about 500.
const MARKER_BYTES_MAX: u64 = 4 << 20;

/// Number of files of a full snapshot that are copied by one call. A guess: the lock is checked between calls.
const COPIED_AT_ONCE: usize = 1000;

/// Maximum size of an object that Amazon copies by one request ("CopyObject", Amazon S3 API reference).
const COPY_BYTES_MAX: u64 = 5 << 30;

/// Whether this path is an object that identifies a snapshot. No index names these objects, and only the person who
/// removes the snapshot may delete them.
pub(crate) fn is_marker(path: &str) -> bool {
    let below = path.strip_prefix(SNAPSHOTS).and_then(|below| below.strip_prefix('/'));
    below.and_then(|below| below.split_once('/')).is_some_and(|(_, rest)| rest == MARKER || rest == LIST)
}

/// Converts the path of a snapshot's file to its path in the archive; `None` for a path outside of snapshots.
pub(crate) fn in_archive(path: &str) -> Option<String> {
    let below = path.strip_prefix(SNAPSHOTS)?.strip_prefix('/')?;
    let (_, rest) = below.split_once('/')?;
    Some(rest.strip_prefix("flat/").map_or_else(|| format!("dists/{rest}"), str::to_owned))
}

/// Directory of a suite within a snapshot.
fn directory_of(name: &str, suite: &str) -> String {
    let rest = suite.strip_prefix("dists/").map_or_else(|| below(FLAT, suite), str::to_owned);
    format!("{SNAPSHOTS}/{name}/{}", rest.trim_end_matches('/'))
}

/// Suites of a snapshot, and its listed files.
pub(crate) struct SnapshotFiles {
    /// The suites, each with its directory in the snapshot.
    pub suites: Vec<SuiteRecord>,
    /// Paths of the snapshot's files, as its list has them.
    pub files: Vec<String>,
}

/// Reads the headers and lists of complete snapshots. Snapshots of earlier versions have neither.
///
/// # Errors
/// [`FileError`] if the tree, a header or a list cannot be read.
pub(crate) fn read_all(tree: &dyn Tree) -> Result<Vec<SnapshotFiles>, FileError> {
    let mut found = Vec::new();
    for name in names(tree)? {
        let Some(header) = header(tree, &name)? else { continue };
        let list = format!("{SNAPSHOTS}/{name}/{LIST}");
        let mut files = Vec::new();
        if let Some((content, _)) = tree.open(&list)? {
            let damaged = |source| FileError::Io { operation: "read", path: list.clone(), source };
            let mut records = RecordReader::new(content, header.records, 1).map_err(damaged)?;
            while let Some(record) = records.next().map_err(damaged)? {
                files.push(record.path.to_owned());
            }
        }
        found.push(SnapshotFiles { suites: header.suites, files });
    }
    Ok(found)
}

/// Directories of the suites in complete snapshots, as their headers name them.
///
/// # Errors
/// [`FileError`] if the tree or a header cannot be read.
pub(crate) fn directories(tree: &dyn Tree) -> Result<Vec<String>, FileError> {
    let mut directories = Vec::new();
    for name in names(tree)? {
        let header = header(tree, &name)?.unwrap_or_default();
        directories.extend(header.suites.into_iter().map(|suite| suite.directory));
    }
    Ok(directories)
}

fn names(tree: &dyn Tree) -> Result<Vec<String>, FileError> {
    if !tree.links_are_copies() {
        return Ok(Vec::new());
    }
    let listed = tree.list(SNAPSHOTS)?.into_iter().filter(|(_, kind)| *kind == Kind::Directory);
    Ok(listed.filter_map(|(name, _)| name.into_string().ok()).collect())
}

fn header(tree: &dyn Tree, name: &str) -> Result<Option<Header>, FileError> {
    let marker = tree.read(&format!("{SNAPSHOTS}/{name}/{MARKER}"), MARKER_BYTES_MAX)?;
    let header = marker.and_then(|marker| Header::parse(&marker));
    // The marker of another program could name any directory.
    let top = format!("{SNAPSHOTS}/{name}/");
    Ok(header.filter(|header| header.suites.iter().all(|suite| suite.directory.starts_with(&top))))
}

impl StoreTree {
    /// Checks that a snapshot can be made. An incomplete one of a killed run does not count.
    ///
    /// # Errors
    /// [`SnapshotError::Name`] for a bad name, [`SnapshotError::Exists`] for a complete snapshot of that name,
    /// [`SnapshotError::File`] if the store cannot be read.
    pub(crate) fn check_snapshot_name(&self, name: &str, is_full: bool) -> Result<(), SnapshotError> {
        check_snapshot_name(name)?;
        let marker = match is_full {
            true => format!("{SNAPSHOT_DIRECTORY}/{name}/{STATE_PATH}"),
            false => format!("{SNAPSHOTS}/{name}/{MARKER}"),
        };
        let there = self.runtime().block_on(self.objects().head(&marker));
        match there.map_err(|error| failed("look at", &marker, fullbore_s3::bucket::failure(&error)))? {
            Some(_) => Err(SnapshotError::Exists { name: name.to_owned() }),
            None => Ok(()),
        }
    }

    /// Makes a snapshot of the published suites.
    ///
    /// # Errors
    /// The errors of [`StoreTree::check_snapshot_name`]. [`SnapshotError::State`] if the state's list cannot be read,
    /// [`SnapshotError::File`] if an object cannot be read, copied or written.
    pub(crate) fn make_snapshot(&self, state: &State, name: &str) -> Result<(), SnapshotError> {
        self.check_snapshot_name(name, false)?;
        let is_published = |suite: &&SuiteRecord| !suite.retired;
        let mut flat: Vec<(SuiteId, &SuiteRecord, HashSet<String>)> = Vec::new();
        for (id, suite) in (0..).zip(&state.header.suites).filter(|(_, suite)| is_published(suite)) {
            match suite.directory.starts_with("dists/") {
                true => self.make_copies(&suite.directory, &directory_of(name, &suite.directory))?,
                false => flat.push((id, suite, self.names_of(&suite.directory)?)),
            }
        }
        let is_filtered = state.header.suites.iter().filter(is_published).any(|suite| suite.filtered);
        let mut listed = BTreeMap::new();
        let mut of_flat: Vec<Vec<Copied>> = vec![Vec::new(); flat.len()];
        each_named(self.own(), state, &mut |record, members| {
            let mut is_name = false;
            for id in members {
                let Some(suite) = state.header.suites.get(usize::from(*id)).filter(is_published) else { continue };
                let Some(rest) = rest_below(record.path, &suite.directory) else { continue };
                let place = flat.iter().position(|(flat, ..)| flat == id);
                if let Some(place) = place {
                    if !flat[place].2.contains(rest) {
                        continue;
                    }
                    of_flat[place].push((rest.to_owned(), Some((record.sha256, record.size))));
                }
                is_name = true;
                let path = format!("{}/{rest}", directory_of(name, &suite.directory));
                listed.insert(path, (record.size, record.sha256));
            }
            if is_filtered && !is_name {
                listed.insert(record.path.to_owned(), (record.size, record.sha256));
            }
            Ok(())
        })?;
        for ((_, suite, _), rests) in flat.iter().zip(of_flat) {
            self.copy_named(&suite.directory, &directory_of(name, &suite.directory), rests)?;
        }
        let mut writer =
            RecordWriter::new(PartWriter::new(self.own().create_part(&own_list(name), 0)?)).map_err(list)?;
        for (path, (size, sha256)) in &listed {
            writer.write(Record { path, size: *size, sha256: *sha256, membership: 0 }).map_err(list)?;
        }
        let (records, out) = writer.finish().map_err(list)?;
        out.into_part().finish()?;
        let place = |suite: &SuiteRecord| SuiteRecord {
            directory: directory_of(name, &suite.directory),
            links: Vec::new(),
            mend_until: None,
            ..suite.clone()
        };
        let suites = state.header.suites.iter().filter(is_published).map(place).collect();
        let memberships = vec![Membership::default()];
        let header = Header { number: 1, records, suites, memberships, ..Header::default() };
        let last = format!("{SNAPSHOTS}/{name}/{MARKER}");
        self.complete(name, &format!("{SNAPSHOTS}/{name}/{LIST}"), &last, &header.to_text())
    }

    /// Copies all files that the published suites name to `snapshots/NAME/`, and makes it a mirror of its own.
    ///
    /// # Errors
    /// The errors of [`StoreTree::make_snapshot`], and [`SnapshotError::TooLarge`] for a file that stores cannot copy
    /// by one request.
    pub(crate) fn make_full_snapshot(&self, state: &State, name: &str) -> Result<(), SnapshotError> {
        self.check_snapshot_name(name, true)?;
        // Checked first: otherwise hours of copying could end without a snapshot.
        each_named(self.own(), state, &mut |record, _| can_be_copied(record.path, record.size))?;
        let top = format!("{SNAPSHOT_DIRECTORY}/{name}");
        self.list_top(SNAPSHOT_DIRECTORY)?;
        let header = snapshot::write_list(self.own(), state, &own_list(name), Some(format!("{}/{top}", self.name())))?;
        let mut some = Vec::new();
        // Signed files come last, when the files that they lead to are there.
        let mut signed = Vec::new();
        let mut copied = Ok(());
        each_named(self.own(), state, &mut |record, _| {
            if copied.is_err() {
                return Ok(());
            }
            match record.path.rsplit('/').next().is_some_and(|name| SIGNED_FILES.contains(&name)) {
                true => signed.push((record.path.to_owned(), Some((record.sha256, record.size)))),
                false => some.push((record.path.to_owned(), Some((record.sha256, record.size)))),
            }
            if some.len() >= COPIED_AT_ONCE {
                copied = self.copy_named("", &top, std::mem::take(&mut some));
            }
            Ok(())
        })?;
        copied?;
        self.copy_named("", &top, some)?;
        self.copy_named("", &top, signed)?;
        for suite in state.header.suites.iter().filter(|suite| !suite.retired) {
            for link in suite.links.iter().filter(|_| self.has_links()) {
                let target = format!("{top}/dists/{}", link_target(&suite.directory));
                self.make_alias_below(&format!("{top}/{link}"), &target)?;
            }
        }
        let list_place = format!("{top}/{}", list_path(header.number));
        self.complete(name, &list_place, &format!("{top}/{STATE_PATH}"), &header.to_text())
    }

    /// Copies these files of a directory, unless the other directory has them already.
    fn copy_named(&self, from: &str, to: &str, rests: Vec<Copied>) -> Result<(), SnapshotError> {
        let is_missing = |(rest, _): &Copied| {
            let known = self.known();
            let (source, copy) = (below(from, rest), below(to, rest));
            // A killed run may have copied files of an earlier state.
            let content = |path: &str| {
                let (top, _) = path.split_once('/')?;
                let listed = known.listed.get(top)?.get(path)?;
                Some((listed.size, listed.tag.clone()?))
            };
            content(&copy).is_none() || content(&copy) != content(&source)
        };
        let missing: Vec<_> = rests.into_iter().filter(is_missing).collect();
        self.may_publish().map_err(|error| -> FileError { failed("publish", to, error) })?;
        self.runtime().block_on(self.copy_all(from, to, missing))?;
        Ok(())
    }

    /// Writes the list of a snapshot, and then the object that makes it complete.
    fn complete(&self, name: &str, list_at: &str, last: &str, header: &[u8]) -> Result<(), SnapshotError> {
        self.may_publish().map_err(|error| -> FileError { failed("publish", last, error) })?;
        let content = self.own().read(&own_list(name), u64::from(u32::MAX))?.unwrap_or_default();
        self.own().unlink(&own_list(name))?;
        self.write_object(list_at, &content)?;
        self.write_object(last, header)?;
        Ok(())
    }

    /// Names in the Release of a flat repository, with the signed files. All other files of its directory are packages.
    fn names_of(&self, directory: &str) -> Result<HashSet<String>, FileError> {
        let mut names: HashSet<String> = SIGNED_FILES.map(str::to_owned).into();
        let text = match self.read(&below(directory, "InRelease"), KEPT_BYTES_MAX as u64)? {
            Some(text) => Some(text),
            None => self.read(&below(directory, "Release"), KEPT_BYTES_MAX as u64)?,
        };
        let text = text.and_then(|text| SignedText::trusted(&text).ok());
        if let Some(release) = text.and_then(|text| Release::parse(&text).ok()) {
            for entry in &release.entries {
                names.insert(entry.path.as_str().to_owned());
                names.extend(entry.by_hash().unwrap_or_default().iter().map(|path| path.as_str().to_owned()));
            }
        }
        Ok(names)
    }
}

fn can_be_copied(path: &str, size: u64) -> Result<(), SnapshotError> {
    match size <= COPY_BYTES_MAX {
        true => Ok(()),
        false => Err(SnapshotError::TooLarge { path: path.to_owned(), size, bytes_max: COPY_BYTES_MAX }),
    }
}

/// Local path of a snapshot's list until it is stored.
fn own_list(name: &str) -> String {
    format!("{OWN_DIRECTORY}/snapshot-{name}.zst")
}

fn list(source: io::Error) -> SnapshotError {
    SnapshotError::File(FileError::Io { operation: "write", path: LIST.to_owned(), source })
}

/// Rest of a path below a directory, which may be the top.
fn rest_below<'p>(path: &'p str, directory: &str) -> Option<&'p str> {
    match directory.is_empty() {
        true => Some(path),
        false => path.strip_prefix(directory)?.strip_prefix('/'),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_above_5_gib_cannot_be_copied() {
        assert!(can_be_copied("pool/a", 5 << 30).is_ok());
        let refused = can_be_copied("pool/a", (5 << 30) + 1).unwrap_err().to_string();
        assert!(refused.contains("pool/a") && refused.contains("without --snapshot-full"), "{refused}");
    }

    #[test]
    fn the_marker_is_directly_below_the_name_of_a_snapshot() {
        for path in ["dists/snapshots/s/.fullbore-snapshot", "dists/snapshots/s/.fullbore-files.zst"] {
            assert!(is_marker(path), "{path}");
        }
        for path in ["dists/snapshots/.fullbore-snapshot", "dists/snapshots/s/trixie/.fullbore-snapshot", "pool/s"] {
            assert!(!is_marker(path), "{path}");
        }
    }

    #[test]
    fn suites_and_flat_repositories_have_their_places() {
        for (suite, place) in [
            ("dists/trixie", "dists/snapshots/s/trixie"),
            ("dists/buster/updates", "dists/snapshots/s/buster/updates"),
            ("deb/amd64", "dists/snapshots/s/flat/deb/amd64"),
            ("", "dists/snapshots/s/flat"),
        ] {
            assert_eq!(directory_of("s", suite), place);
            assert_eq!(in_archive(&format!("{place}/Release")).unwrap(), below(suite, "Release"));
        }
    }
}
