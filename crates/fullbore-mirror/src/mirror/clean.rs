//! Deletes files that no signed index names any more.
//!
//! The decision is made when the state is committed: files whose retention has ended are marked as expired, and the
//! delete guard is asked. This module deletes them one by one, and then notes the end in the header. If a run is killed
//! in between, the header says "begun", and the next run first completes the deletion; until then these files count as
//! missing. Only [`remove_untracked`] deletes files of other tools.

use std::collections::{BTreeSet, HashSet};

use fullbore_engine::files::{FileError, Kind, PART_ENDING, Root, is_part_name};

use super::bucket::snapshots;
use super::commit::PathSet;
use super::plan::Plan;
use super::signed_files;
use super::state::{Removal, State, StateError, SuiteRecord};
use super::subtract::{FileSet, Tally};
use super::tree::Tree;

/// Maximum depth of a walk. A guess: archives have ten levels.
const DEPTH_MAX: usize = 32;

/// Number of files that are removed by one call. A store removes a thousand by one request.
const REMOVED_AT_ONCE: usize = 1000;

/// Removes the expired files if the state's header says that their deletion has begun, and then notes its end there.
/// Call it right after opening the state (for a killed run) and after publishing it. `sync` makes the header durable
/// first: otherwise a power cut could bring back a state that lists deleted files.
///
/// # Errors
/// [`StateError`] if a file cannot be removed or the header cannot be written, and the errors of `sync`. The next run
/// continues.
pub(crate) fn remove_expired<E: From<StateError>>(
    own: &Root,
    tree: &dyn Tree,
    state: &mut State,
    sync: impl FnOnce() -> Result<(), E>,
) -> Result<Tally, E> {
    if state.header.removal != Removal::Begun {
        return Ok(Tally::default());
    }
    sync()?;
    let mut emptied = Emptied::default();
    let mut removed = Tally::default();
    let mut some: Vec<(String, u64)> = Vec::new();
    let mut remove = |some: &mut Vec<(String, u64)>| {
        let paths: Vec<&str> = some.iter().map(|(path, _)| path.as_str()).collect();
        let there = tree.remove_files(&paths)?;
        for ((path, size), _) in some.drain(..).zip(there).filter(|(_, there)| *there) {
            removed.add(size);
            emptied.note(&path);
        }
        Ok::<_, FileError>(())
    };
    each_expired(own, state, &mut |path, size| {
        some.push((path.to_owned(), size));
        if some.len() < REMOVED_AT_ONCE { Ok(()) } else { remove(&mut some) }
    })?;
    remove(&mut some).map_err(StateError::from)?;
    emptied.remove(tree).map_err(StateError::from)?;
    state.header.removal = Removal::Done;
    state.write_header(own)?;
    Ok(removed)
}

/// Remaining files of a deletion that has begun, with their sizes.
///
/// # Errors
/// [`StateError`] if the state's list or a file of the mirror cannot be read.
pub(crate) fn begun(own: &Root, tree: &dyn Tree, state: &State) -> Result<Vec<(String, u64)>, StateError> {
    let mut files = Vec::new();
    if state.header.removal == Removal::Begun {
        each_expired(own, state, &mut |path, size| {
            if tree.stat(path)?.is_some_and(|status| status.kind == Kind::File) {
                files.push((path.to_owned(), size));
            }
            Ok(())
        })?;
    }
    Ok(files)
}

fn each_expired(
    own: &Root,
    state: &State,
    visit: &mut dyn FnMut(&str, u64) -> Result<(), FileError>,
) -> Result<(), StateError> {
    let mut records = match state.records(own) {
        Ok(Some(records)) => records,
        Ok(None) | Err(StateError::List { .. }) => return Ok(()),
        Err(error) => return Err(error),
    };
    // The comparison with the plan reports damage; here the list simply ends.
    while let Ok(Some(record)) = records.next() {
        // A state of an earlier version may be wrong about them: the signed files of a published suite stay.
        if state.header.memberships[record.membership as usize].expired
            && !signed_files::is_recorded(&state.header.suites, record.path)
        {
            visit(record.path, record.size)?;
        }
    }
    Ok(())
}

/// Directories that may have become empty.
#[derive(Default)]
struct Emptied(BTreeSet<String>);

impl Emptied {
    fn note(&mut self, path: &str) {
        if let Some((directory, _)) = path.rsplit_once('/')
            && !self.0.contains(directory)
        {
            self.0.insert(directory.to_owned());
        }
    }

    /// Removes the empty ones, and parents that become empty, but not `dists` and `pool`.
    fn remove(&self, tree: &dyn Tree) -> Result<(), FileError> {
        for directory in self.0.iter().rev() {
            let mut directory = directory.as_str();
            while directory.contains('/') && tree.remove_directory(directory)? {
                directory = directory.rsplit_once('/').map_or("", |(above, _)| above);
            }
        }
        Ok(())
    }
}

/// Removes unfinished files that are not in the plan; `unfinished` is the list of the journal after a run. In a
/// directory, such files are beside their final names.
///
/// # Errors
/// [`FileError`] if a file of the mirror cannot be read or removed.
pub(crate) fn stale_parts(own: &Root, unfinished: &[String], plan: &Plan) -> Result<u64, FileError> {
    let mut removed = 0;
    for path in unfinished {
        if plan.find(path).is_none() && own.remove_part(path)? {
            removed += 1;
        }
    }
    Ok(removed)
}

/// Removes the unfinished files of a killed run that the plan no longer needs. Walks the tree, because the journal does
/// not list small files.
///
/// # Errors
/// [`FileError`] if a directory of the mirror cannot be read, or a file cannot be removed.
pub(crate) fn abandoned_parts(own: &Root, plan: &Plan, done: &FileSet) -> Result<u64, FileError> {
    let mut tops: BTreeSet<&str> = ["dists", "pool"].into();
    // Flat repositories have their files at any path.
    tops.extend(plan.files().filter_map(|file| Some(file.path.split_once('/')?.0)));
    let mut parts = Vec::new();
    let mut note = |path: &str, name: &str| {
        let Some(stem) = name.strip_prefix('.').and_then(|name| name.strip_suffix(PART_ENDING)) else { return };
        let planned = plan.find(&format!("{}{stem}", &path[..path.len() - name.len()]));
        if planned.is_none_or(|file| done.contains(file.id)) {
            parts.push(path.to_owned());
        }
    };
    for (name, kind) in own.list("")? {
        if let (Some(name), Kind::File) = (name.to_str(), kind) {
            note(name, name);
        }
    }
    for top in tops {
        walk(own, top, 0, &mut |path, name, kind| {
            if kind == Kind::File {
                note(path, name);
            }
            Ok(())
        })?;
    }
    parts.iter().map(|path| own.unlink(path).map(u64::from)).sum()
}

/// Finds files in `dists/` and `pool/` that neither the state nor a suite of another tool names. `known` has the paths
/// of the state, `suites` its suites, and `named_elsewhere` tells of the other tools.
///
/// # Errors
/// [`FileError`] if a directory of the mirror cannot be read.
pub(crate) fn find_untracked(
    tree: &dyn Tree,
    known: &PathSet,
    suites: &[SuiteRecord],
    named_elsewhere: &dyn Fn(&str) -> bool,
) -> Result<Vec<(String, u64)>, FileError> {
    let links: HashSet<&str> = suites.iter().flat_map(|suite| &suite.links).map(String::as_str).collect();
    let mut foreign = Vec::new();
    for top in ["dists", "pool"] {
        walk(tree, top, 0, &mut |path, name, kind| {
            let ours = known.contains(path)
                || links.contains(path)
                || signed_files::is_recorded(suites, path)
                || snapshots::is_marker(path);
            // Unfinished files are removed, even in directories of other tools.
            if !ours && (is_part_name(name) || !named_elsewhere(path)) && kind != Kind::Directory {
                let size = tree.stat(path)?.map_or(0, |status| status.size);
                foreign.push((path.to_owned(), size));
            }
            Ok(())
        })?;
    }
    foreign.sort_unstable();
    Ok(foreign)
}

/// Removes the files of [`find_untracked`]; returns those that existed.
///
/// # Errors
/// [`FileError`] if a file or directory cannot be removed.
pub(crate) fn remove_untracked(tree: &dyn Tree, files: &[(String, u64)]) -> Result<Tally, FileError> {
    let mut emptied = Emptied::default();
    let mut removed = Tally::default();
    for (path, size) in files {
        // Links are removed like files.
        if tree.unlink(path)? {
            removed.add(*size);
            emptied.note(path);
        }
    }
    emptied.remove(tree)?;
    Ok(removed)
}

/// Visits everything below a directory: path, name, kind. Links are not followed.
pub(crate) fn walk(
    tree: &dyn Tree,
    directory: &str,
    depth: usize,
    visit: &mut dyn FnMut(&str, &str, Kind) -> Result<(), FileError>,
) -> Result<(), FileError> {
    for (name, kind) in tree.list(directory)? {
        // Names that are not UTF-8 cannot be in an index, and stay.
        let Some(name) = name.to_str() else { continue };
        let path = format!("{directory}/{name}");
        visit(&path, name, kind)?;
        if kind == Kind::Directory && depth < DEPTH_MAX {
            walk(tree, &path, depth + 1, visit)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use fullbore_engine::digest::Sha256;
    use fullbore_engine::files::PartWriter;

    use super::super::membership::Membership;
    use super::super::records::{Record, RecordWriter};
    use super::super::state::list_path;
    use super::*;

    fn write(root: &Root, path: &str) {
        root.write_part(path, b"content").unwrap().finish().unwrap();
    }

    fn state(root: &Root, files: &[(&str, bool)]) -> State {
        let mut state = State { trusted: true, ..State::default() };
        state.header.number = 1;
        state.header.records = files.len() as u64;
        state.header.removal = Removal::Begun;
        state.header.memberships =
            vec![Membership::member(0, false), Membership { expired: true, ..Membership::default() }];
        let part = root.create_part(&list_path(1), 0).unwrap();
        let mut writer = RecordWriter::new(PartWriter::new(part)).unwrap();
        for &(path, expired) in files {
            writer.write(Record { path, size: 7, sha256: Sha256::EMPTY, membership: u32::from(expired) }).unwrap();
            write(root, path);
        }
        writer.finish().unwrap().1.into_part().finish().unwrap();
        state.write_header(root).unwrap();
        state
    }

    #[test]
    fn expired_files_and_empty_directories_go() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        let files = [("pool/a/b/1", true), ("pool/a/c/2", false), ("pool/d/e/f/3", true)];
        let mut state = state(&root, &files);
        write(&root, "pool/d/theirs");
        // As if a run had been killed when the first was gone.
        root.unlink("pool/a/b/1").unwrap();
        let removed = remove_expired(&root, &root, &mut state, || Ok::<_, StateError>(())).unwrap();
        assert_eq!(removed, Tally { files: 1, bytes: 7 });
        let at = |path: &str| directory.path().join(path).exists();
        assert!(at("pool/a/c/2") && at("pool/d/theirs") && !at("pool/d/e"));
        let mut again = State::open(&root, "").unwrap();
        assert_eq!(again.header.removal, Removal::Done);
        write(&root, "pool/a/b/1");
        remove_expired(&root, &root, &mut again, || Ok::<_, StateError>(())).unwrap();
        assert!(at("pool/a/b/1"), "what is done is not done twice: the file may be wanted again");
    }

    #[test]
    fn foreign_files_are_those_that_nobody_names() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        let state = state(&root, &[("dists/x/InRelease", false), ("pool/a/1", false)]);
        for path in ["pool/a/theirs", "pool/junk", "dists/other/InRelease", "project/trace/x", "README"] {
            write(&root, path);
        }
        root.create_part("pool/a/unfinished", 3).unwrap().write_at(0, b"abc").unwrap();
        std::os::unix::fs::symlink("../..", directory.path().join("pool/link")).unwrap();
        let named = |path: &str| path == "pool/a/theirs" || path.starts_with("dists/other/");
        let mut known = PathSet::default();
        ["dists/x/InRelease", "pool/a/1"].iter().for_each(|path| known.insert(path));
        let found = find_untracked(&root, &known, &state.header.suites, &named).unwrap();
        let paths: Vec<_> = found.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(paths, ["pool/a/.unfinished.part", "pool/junk", "pool/link"]);
        assert_eq!(remove_untracked(&root, &found).unwrap().files, 3);
        assert!(directory.path().exists() && directory.path().join("pool/a/theirs").exists());
    }
}
