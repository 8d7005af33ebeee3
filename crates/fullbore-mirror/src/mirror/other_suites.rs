//! Suites of other tools in the mirror's directory, whose files must not be deleted.
//!
//! No file is deleted that an index in the tree names. Suites are found by `InRelease` or `Release` below `dists/`, at
//! the top, and behind links in `dists/`. All their indexes are read, whatever their signatures. An unreadable index
//! prevents all deletions.

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufReader;

use fullbore_debian::classify::classify;
use fullbore_debian::compression::Form;
use fullbore_engine::files::{FileError, Kind, is_part_name};

use super::bucket::snapshots;
use super::clean::walk;
use super::index_reader::{IndexReadError, read_index};
use super::layout::{below, is_within};
use super::links;
use super::local_release::LocalRelease;
use super::plan::{Plan, PlanBuilder};
use super::select::Reading;
use super::state::State;
use super::tree::{LinkedDirectory, Tree};
use crate::settings::Filters;

/// Maximum plain size of one index of unknown origin. The largest real ones: Debian's `Sources` with 50 MB, Ubuntu's
/// `Packages` with 90 MB.
const PLAIN_BYTES_MAX: u64 = 2 << 30;

/// Maximum depth of the search below `dists/`. `dists/SUITE/VENDOR/VERSION` exists.
const DEPTH_MAX: usize = 8;

/// Directory of snapshots of a mirror in a bucket. Each is a directory of suites: `dists/snapshots/NAME/SUITE`.
pub(crate) const SNAPSHOTS: &str = "dists/snapshots";

/// Why the suites of other tools cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OtherSuitesError {
    /// The tree cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// An index is damaged.
    #[error("{path}, of a suite that fullbore does not mirror, cannot be read: {source}")]
    Index {
        /// Path of the index.
        path: String,
        /// Fault of the index.
        source: IndexReadError,
    },
    /// An index in a form that fullbore does not read.
    #[error("{path}, of a suite that fullbore does not mirror, has a form that fullbore does not read")]
    Form {
        /// Path of the index.
        path: String,
    },
    /// A link leads out of the mirror.
    #[error("{path} leads out of the mirror, where fullbore does not read")]
    Outside {
        /// Path of the link.
        path: String,
    },
}

/// The suites of other tools, and the files that they name.
pub(crate) struct OtherSuites {
    /// Directories of the suites; empty for the top of the mirror.
    pub directories: Vec<String>,
    /// Symbolic links to these directories.
    links: BTreeSet<String>,
    plan: Option<Plan>,
}

impl OtherSuites {
    /// Whether such a suite names the path, or has it in its directory.
    pub(crate) fn names(&self, path: &str) -> bool {
        let is_in = |directory: &String| !directory.is_empty() && is_within(path, directory);
        self.plan.as_ref().is_some_and(|plan| plan.find(path).is_some())
            || self.links.contains(path)
            || self.directories.iter().any(is_in)
    }
}

/// Reads the suites below `dists/` and at the top whose Release differs from the recorded one, except `ours`, the
/// directories of this run.
///
/// # Errors
/// [`OtherSuitesError`] if the tree or an index cannot be read, an index has an unknown form, or a link leads out of
/// the mirror. The caller must not delete anything then.
pub(crate) fn read(tree: &dyn Tree, state: &State, ours: &[String]) -> Result<OtherSuites, OtherSuitesError> {
    let mut found = Found::default();
    found.look_below(tree, "dists", 0)?;
    let recorded: BTreeSet<&str> =
        state.header.suites.iter().flat_map(|suite| &suite.links).map(String::as_str).collect();
    let mut linked = Vec::new();
    for link in found.links.iter().filter(|link| !recorded.contains(link.as_str())) {
        match tree.linked_directory(link)? {
            Some(LinkedDirectory::Inside(target)) if has_release(tree, &target)? => linked.push((link.clone(), target)),
            Some(LinkedDirectory::Outside) => return Err(OtherSuitesError::Outside { path: link.clone() }),
            _ => {}
        }
    }
    // Suites with incomplete lists are read as well; flat repositories may be anywhere.
    let unknown = state.header.suites.iter().filter(|suite| !suite.retired && suite.files_unknown);
    let mut directories = found.suites;
    directories.extend(unknown.map(|suite| suite.directory.clone()));
    directories.extend(snapshots::directories(tree)?);
    directories.extend(linked.iter().map(|(_, target)| target.clone()));
    directories.push(String::new());
    directories.sort_unstable();
    directories.dedup();
    directories.retain(|directory| !ours.contains(directory));
    let mut foreign = Vec::new();
    for directory in directories {
        let Some(here) = LocalRelease::read(tree, &directory)? else { continue };
        let record = state.suite(&directory).filter(|suite| !suite.files_unknown);
        if record.is_none_or(|record| record.inrelease != here.identity()) {
            foreign.push(directory);
        }
    }
    let links = linked.into_iter().filter(|(_, target)| foreign.contains(target)).map(|(link, _)| link).collect();
    let plan = read_all(tree, &foreign)?;
    Ok(OtherSuites { directories: foreign, links, plan })
}

/// Files that the suites in these directories name; `None` if `directories` is empty.
///
/// # Errors
/// [`OtherSuitesError`] if the tree or an index cannot be read, or an index has an unknown form.
pub(crate) fn read_all(tree: &dyn Tree, directories: &[String]) -> Result<Option<Plan>, OtherSuitesError> {
    if directories.is_empty() {
        return Ok(None);
    }
    let mut plan = PlanBuilder::new(Filters::default());
    for directory in directories {
        read_suite(tree, directory, &mut plan)?;
    }
    let plan = plan.finish();
    plan.map(Some).map_err(|error| OtherSuitesError::Index { path: directories.join(", "), source: error.into() })
}

/// Directories below `dists/` with a signed Release, sorted.
///
/// # Errors
/// [`FileError`] if the tree cannot be read.
pub(crate) fn suite_directories(tree: &dyn Tree) -> Result<Vec<String>, FileError> {
    let mut found = Found::default();
    found.look_below(tree, "dists", 0)?;
    let mut directories = found.suites;
    directories.extend(snapshots::directories(tree)?);
    directories.sort_unstable();
    directories.dedup();
    Ok(directories)
}

/// Suites and links that the search found below `dists/`.
#[derive(Default)]
struct Found {
    /// Directories with a Release.
    suites: Vec<String>,
    /// Symbolic links.
    links: Vec<String>,
}

impl Found {
    fn look_below(&mut self, tree: &dyn Tree, above: &str, depth: usize) -> Result<(), FileError> {
        for (name, kind) in tree.list(above)? {
            let Some(name) = name.to_str() else { continue };
            let path = format!("{above}/{name}");
            // `dists/source` is a suite like any other.
            if depth > 0 && is_of_indexes(name) {
                continue;
            }
            if kind == Kind::Symlink {
                self.links.push(path);
                continue;
            }
            if kind != Kind::Directory {
                continue;
            }
            if has_release(tree, &path)? {
                self.suites.push(path.clone());
            }
            if depth < DEPTH_MAX {
                self.look_below(tree, &path, depth + 1)?;
            }
        }
        Ok(())
    }
}

/// Whether a directory of this name has indexes: it contains no suites, but a `Release` of its own, or very many files.
fn is_of_indexes(name: &str) -> bool {
    matches!(name, "by-hash" | "source" | "i18n" | "dep11" | "cnf")
        || ["binary-", "installer-"].iter().any(|prefix| name.starts_with(prefix))
        || name.ends_with(".diff")
}

fn has_release(tree: &dyn Tree, directory: &str) -> Result<bool, FileError> {
    let has = |name: &str| Ok::<_, FileError>(links::stat(tree, &below(directory, name))?.is_some());
    Ok(has("InRelease")? || has("Release")?)
}

/// Whether a file has the name of a package or source list, in any form.
fn is_list(name: &str) -> bool {
    ["Packages", "Sources"].iter().any(|list| {
        name.strip_prefix(list).is_some_and(|rest| rest.is_empty() || (rest.starts_with('.') && !is_part_name(name)))
    })
}

/// Package and source lists of a suite.
#[derive(Default)]
struct Lists {
    /// Path without extension, and the form that is cheapest to read.
    forms: BTreeMap<String, (Form, Reading, String)>,
    /// Lists without a readable form, by path up to the first dot of the name.
    unreadable: BTreeMap<String, String>,
    /// Symbolic links with other names.
    links: Vec<String>,
}

impl Lists {
    fn note(&mut self, tree: &dyn Tree, path: &str, kind: Kind) -> Result<(), FileError> {
        let name_at = path.rfind('/').map_or(0, |slash| slash + 1);
        let name = &path[name_at..];
        if !is_list(name) {
            self.links.extend((kind == Kind::Symlink).then(|| path.to_owned()));
            return Ok(());
        }
        let Some((status, real)) = links::follow(tree, path)? else { return Ok(()) };
        if status.kind != Kind::File {
            return Ok(());
        }
        let classified = classify(path);
        match Reading::of(&classified) {
            Some(reading @ (Reading::Packages | Reading::Sources)) => {
                if self.forms.get(classified.stem).is_none_or(|(form, ..)| classified.form.is_faster_than(*form)) {
                    let real = real.unwrap_or_else(|| path.to_owned());
                    self.forms.insert(classified.stem.to_owned(), (classified.form, reading, real));
                }
            }
            _ => {
                let stem = &path[..name_at + name.find('.').unwrap_or(name.len())];
                self.unreadable.insert(stem.to_owned(), path.to_owned());
            }
        }
        Ok(())
    }

    fn note_below(&mut self, tree: &dyn Tree, directory: &str) -> Result<(), FileError> {
        walk(tree, directory, 0, &mut |path, _, kind| self.note(tree, path, kind))
    }
}

fn read_suite(tree: &dyn Tree, directory: &str, plan: &mut PlanBuilder) -> Result<(), OtherSuitesError> {
    let mut lists = Lists::default();
    if directory.is_empty() {
        // Below a repository at the top is the whole mirror. So only files at the top, and files in its Release, are
        // looked at.
        for (name, kind) in tree.list("")? {
            name.to_str().map_or(Ok(()), |name| lists.note(tree, name, kind))?;
        }
        let release = LocalRelease::read(tree, "")?.and_then(|release| release.release());
        for entry in release.iter().flat_map(|release| &release.entries) {
            lists.note(tree, entry.path.as_str(), Kind::File)?;
        }
        lists.links.clear();
    } else {
        lists.note_below(tree, directory)?;
    }
    let mut seen = BTreeSet::from([directory.to_owned()]);
    while let Some(link) = lists.links.pop() {
        match tree.linked_directory(&link)? {
            Some(LinkedDirectory::Inside(target)) => {
                let is_seen = seen.iter().any(|seen| is_within(&target, seen)) || !seen.insert(target.clone());
                if !is_seen {
                    lists.note_below(tree, &target)?;
                }
            }
            Some(LinkedDirectory::Outside) => return Err(OtherSuitesError::Outside { path: link }),
            None => {}
        }
    }
    if let Some((_, path)) = lists.unreadable.into_iter().find(|(stem, _)| !lists.forms.contains_key(stem)) {
        return Err(OtherSuitesError::Form { path });
    }
    for (form, reading, path) in lists.forms.into_values() {
        read_list(tree, (form, reading, &path), plan)?;
    }
    Ok(())
}

fn read_list(
    tree: &dyn Tree,
    (form, reading, path): (Form, Reading, &str),
    plan: &mut PlanBuilder,
) -> Result<(), OtherSuitesError> {
    let error = |source| OtherSuitesError::Index { path: path.to_owned(), source };
    let Some((file, _)) = tree.open(path)? else { return Ok(()) };
    // Suites may disagree about the content of a path, but here only names count.
    let mut alone = PlanBuilder::new(Filters::default());
    let id = alone.index(path, 0).map_err(|source| error(source.into()))?;
    let input = BufReader::new(file);
    let tally = read_index(&mut alone, id, reading, path, form, PLAIN_BYTES_MAX, input).map_err(error)?;
    // It is unknown which files such an entry needs.
    if let Some(line) = tally.lines.into_iter().next() {
        return Err(error(IndexReadError::Odd(line)));
    }
    let alone = alone.finish().map_err(|source| error(source.into()))?;
    let id = plan.index(path, 0).map_err(|source| error(source.into()))?;
    for file in alone.files() {
        plan.add_name(id, file.path).map_err(|source| error(source.into()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use fullbore_engine::digest::Sha256;
    use fullbore_engine::files::Root;

    use super::*;

    fn package(path: &str) -> String {
        format!("Package: x\nVersion: 1\nArchitecture: all\nFilename: {path}\nSize: 1\nSHA256: {}\n\n", Sha256::EMPTY)
    }

    #[test]
    fn what_a_suite_of_others_names_is_known() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        let write = |path: &str, text: &str| root.write_part(path, text.as_bytes()).unwrap().finish().unwrap();
        write("dists/theirs/InRelease", "whatever");
        write("dists/theirs/main/binary-amd64/Packages", &package("pool/a_1.deb"));
        write("dists/theirs/main/binary-amd64/Release", "Architecture: amd64\n");
        write("dists/buster/updates/Release", "whatever");
        write("dists/buster/updates/main/binary-amd64/Packages", &package("pool/b_1.deb"));
        write("dists/ours/InRelease", "whatever");
        write("dists/ours/main/binary-amd64/Packages", &package("pool/c_1.deb"));
        let ours = ["dists/ours".to_owned()];
        let foreign = read(&root, &State::default(), &ours).unwrap();
        assert_eq!(foreign.directories, ["dists/buster/updates", "dists/theirs"]);
        for (path, named) in [
            ("pool/a_1.deb", true),
            ("pool/b_1.deb", true),
            ("pool/c_1.deb", false),
            ("dists/theirs/main/whatever", true),
            ("dists/theirs2/x", false),
        ] {
            assert_eq!(foreign.names(path), named, "{path}");
        }
        write("dists/theirs/main/binary-amd64/Packages", "no control file");
        assert!(matches!(read(&root, &State::default(), &ours), Err(OtherSuitesError::Index { .. })));
    }
}
