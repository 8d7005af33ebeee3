//! Snapshots: hard links to the published files under `snapshots/NAME/`.
//!
//! A snapshot takes no space for content, and later runs do not change it, because files are never written in place. It
//! is built under a temporary name, and renamed when it is complete.

use fullbore_engine::files::{FileError, Kind, PartWriter, Root};
use fullbore_engine::units;

use super::membership::SuiteId;
use super::records::{Record, RecordWriter};
use super::state::{Header, OWN_DIRECTORY, Removal, STATE_PATH, State, StateError, list_path};
use super::subtract::Tally;
use super::tree::Tree;

/// Directory of snapshots, relative to the mirror.
pub const SNAPSHOT_DIRECTORY: &str = "snapshots";

/// Prefix of the temporary names of snapshots, in `.fullbore`.
const UNFINISHED: &str = "snapshot-";

/// Maximum length of a name in bytes. With a path of 1024 bytes it is still far below `PATH_MAX`.
const NAME_BYTES_MAX: usize = 100;

/// Why a snapshot cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// An invalid name.
    #[error(
        "invalid snapshot name {name:?}: use letters, digits and . _ + -, begin with a letter or digit, at most {NAME_BYTES_MAX} bytes"
    )]
    Name {
        /// The name as given.
        name: String,
    },
    /// A snapshot of this name exists.
    #[error("snapshot {name:?} already exists")]
    Exists {
        /// Name of the snapshot.
        name: String,
    },
    /// A file is too large for a store to copy.
    #[error(
        "cannot make a full snapshot: {path} has {}, and stores copy objects of at most {} at once; make a snapshot without --snapshot-full, whose packages stay in the pool",
        units::bytes(*size),
        units::bytes(*bytes_max)
    )]
    TooLarge {
        /// Path of the file.
        path: String,
        /// Size of the file in bytes.
        size: u64,
        /// Maximum size that one request can copy, in bytes.
        bytes_max: u64,
    },
    /// The file system has no hard links.
    #[error("cannot make a snapshot: the file system has no hard links")]
    NoLinks,
    /// The state cannot be read.
    #[error(transparent)]
    State(#[from] StateError),
    /// A file cannot be read, linked or written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Checks that `name` can name a snapshot: letters, digits and `. _ + -`, a letter or digit first, at most 100 bytes.
///
/// # Errors
/// [`SnapshotError::Name`] if the name breaks this rule.
///
/// ```
/// assert!(fullbore_mirror::check_snapshot_name("2026-11-20").is_ok());
/// assert!(fullbore_mirror::check_snapshot_name("../etc").is_err());
/// ```
pub fn check_snapshot_name(name: &str) -> Result<(), SnapshotError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._+-".contains(&byte);
    let first = name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
    if !first || name.len() > NAME_BYTES_MAX || !name.bytes().all(allowed) {
        return Err(SnapshotError::Name { name: name.to_owned() });
    }
    Ok(())
}

/// Checks that a snapshot `name` can be made. Call it before the run.
///
/// # Errors
/// [`SnapshotError::Name`] for a bad name, [`SnapshotError::Exists`] if the snapshot exists, and
/// [`SnapshotError::File`] if the tree cannot be read.
pub(crate) fn check_name(tree: &dyn Tree, name: &str) -> Result<(), SnapshotError> {
    check_snapshot_name(name)?;
    if tree.stat(&format!("{SNAPSHOT_DIRECTORY}/{name}"))?.is_some() {
        return Err(SnapshotError::Exists { name: name.to_owned() });
    }
    Ok(())
}

/// Makes a snapshot of all files that the published suites name. Returns their number and size.
///
/// # Errors
/// [`SnapshotError::Name`] for a bad name, [`SnapshotError::NoLinks`] if the file system has no hard links,
/// [`SnapshotError::State`] for a damaged state, and [`SnapshotError::File`] if a file cannot be linked.
pub(crate) fn make(root: &Root, state: &State, name: &str) -> Result<Tally, SnapshotError> {
    check_name(root, name)?;
    let building = format!("{OWN_DIRECTORY}/{UNFINISHED}{name}");
    sweep(root)?;
    let mut linked = Tally::default();
    let mut has_no_links = false;
    each_named(root, state, &mut |record, _| {
        if has_no_links {
            return Ok(());
        }
        let is_link = root.hard_link(record.path, &format!("{building}/{}", record.path))?;
        has_no_links = !is_link && linked.files == 0 && record.size > 0;
        linked.add(record.size);
        Ok(())
    })?;
    if has_no_links {
        remove_tree(root, &building)?;
        return Err(SnapshotError::NoLinks);
    }
    for link in state.header.suites.iter().filter(|suite| !suite.retired).flat_map(|suite| &suite.links) {
        if let Some(target) = root.read_link(link)? {
            root.symlink(&target, &format!("{building}/{link}"))?;
        }
    }
    root.create_directory(&building, 0o755)?;
    // The selections, and whether a suite was accepted without a signature, so that `check` can tell what is missing.
    root.create_directory(&format!("{building}/{OWN_DIRECTORY}"), 0o700)?;
    let header = write_list(root, state, &format!("{building}/{}", list_path(1)), None)?;
    root.write_part(&format!("{building}/{STATE_PATH}"), &header.to_text())?.finish()?;
    root.rename(&building, &format!("{SNAPSHOT_DIRECTORY}/{name}"))?;
    Ok(linked)
}

/// Callback for a file, and the suites that name it.
type Visit<'a> = dyn FnMut(&Record<'_>, &[SuiteId]) -> Result<(), SnapshotError> + 'a;

/// Visits the files that the published suites name, with the suites of each.
///
/// # Errors
/// [`SnapshotError::State`] if the state's list is missing or damaged, and the errors of `visit`.
pub(super) fn each_named(own: &Root, state: &State, visit: &mut Visit<'_>) -> Result<(), SnapshotError> {
    let Some(mut records) = state.records(own)? else { return Ok(()) };
    while let Some(record) = records.next().map_err(|source| StateError::List { path: state.list_path(), source })? {
        let members = &state.header.memberships[record.membership as usize].members;
        if !members.is_empty() {
            visit(&record, members)?;
        }
    }
    Ok(())
}

/// Writes a state's list of these files; returns its header. `mirror` is the address of the snapshot, if it is in a
/// bucket.
///
/// # Errors
/// [`SnapshotError::State`] if the state's list is damaged, [`SnapshotError::File`] if the new list cannot be written.
pub(super) fn write_list(
    own: &Root,
    state: &State,
    path: &str,
    mirror: Option<String>,
) -> Result<Header, SnapshotError> {
    let failed = |source| StateError::List { path: path.to_owned(), source };
    let mut writer = RecordWriter::new(PartWriter::new(own.create_part(path, 0)?)).map_err(failed)?;
    let mut bytes = 0;
    each_named(own, state, &mut |record, _| {
        bytes += record.size;
        Ok(writer.write(*record).map_err(failed)?)
    })?;
    let (records, out) = writer.finish().map_err(failed)?;
    out.into_part().finish()?;
    let mut header =
        Header { number: 1, mirror, records, bytes, removal: Removal::None, clean_due: None, ..state.header.clone() };
    header.suites.iter_mut().for_each(|suite| suite.mend_until = None);
    Ok(header)
}

/// Removes unfinished snapshots of killed runs: their links would keep deleted files on disk.
///
/// # Errors
/// [`FileError`] if a directory cannot be read or a file cannot be removed.
pub(crate) fn sweep(own: &Root) -> Result<(), FileError> {
    for (name, kind) in own.list(OWN_DIRECTORY)? {
        if let Some(name) = name.to_str().filter(|name| kind == Kind::Directory && name.starts_with(UNFINISHED)) {
            remove_tree(own, &format!("{OWN_DIRECTORY}/{name}"))?;
        }
    }
    Ok(())
}

fn remove_tree(root: &Root, directory: &str) -> Result<(), FileError> {
    for (name, kind) in root.list(directory)? {
        let Some(name) = name.to_str() else { continue };
        let path = format!("{directory}/{name}");
        if kind == Kind::Directory {
            remove_tree(root, &path)?;
        } else {
            root.unlink(&path)?;
        }
    }
    root.remove_directory(directory)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_run_began_goes_with_the_next() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        let write = |path: &str| root.write_part(path, b"x").unwrap().finish().unwrap();
        for path in [".fullbore/snapshot-monday/pool/a/x", ".fullbore/log", "snapshots/sunday/pool/a/x"] {
            write(path);
        }
        make(&root, &State::default(), "tuesday").unwrap();
        let there = |path: &str| directory.path().join(path).exists();
        assert!(!there(".fullbore/snapshot-monday") && !there(".fullbore/snapshot-tuesday"));
        assert!(there(".fullbore/log") && there("snapshots/sunday/pool/a/x") && there("snapshots/tuesday"));
    }

    #[test]
    fn names_are_checked() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        for name in ["2026-11-20", "before_13.2", "a+b"] {
            assert!(check_name(&root, name).is_ok(), "{name}");
        }
        for name in ["", "..", ".hidden", "a/b", "-x", "a b", "\u{e4}", &"x".repeat(101)] {
            assert!(matches!(check_name(&root, name), Err(SnapshotError::Name { .. })), "{name}");
        }
        std::fs::create_dir_all(directory.path().join("snapshots/x")).unwrap();
        assert!(matches!(check_name(&root, "x"), Err(SnapshotError::Exists { .. })));
    }
}
