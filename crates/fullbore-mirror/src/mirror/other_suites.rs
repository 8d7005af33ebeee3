//! Suites of other tools in the mirror's directory.
//!
//! A file that any index in the tree names is never deleted. Suites are found by `InRelease` or `Release` below `dists/`,
//! at the top, and behind links of `dists/`; all their indexes are read, whatever their signatures. An unreadable index
//! stops all deletions.

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
use super::tree::Tree;
use crate::settings::Filters;

/// Plain text accepted from one index of unknown origin. The largest real one, Debian's
/// `Sources`, has 50 MB; Ubuntu's `Packages` 90 MB.
const PLAIN_BYTES_MAX: u64 = 2 << 30;

/// Directory levels below `dists/` that are searched: `dists/SUITE/VENDOR/VERSION` is real.
const DEPTH_MAX: usize = 8;

/// The directory of snapshots of a mirror in a bucket, which are suites too: `dists/snapshots/NAME/SUITE`.
pub const SNAPSHOTS: &str = "dists/snapshots";

/// Suites of other tools that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum OtherSuitesError {
    /// The tree cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// An index is damaged.
    #[error("{path}, of a suite that fullbore does not mirror, cannot be read: {source}")]
    Index {
        /// The index.
        path: String,
        /// What is wrong.
        source: IndexReadError,
    },
    /// An index in a form that fullbore does not read.
    #[error("{path}, of a suite that fullbore does not mirror, has a form that fullbore does not read")]
    Form {
        /// The index.
        path: String,
    },
    /// A link to outside of the mirror.
    #[error("{path} leads out of the mirror, where fullbore does not read")]
    Outside {
        /// The link.
        path: String,
    },
}

/// The suites of other tools, and the files that they name.
pub struct OtherSuites {
    /// Their directories; empty for the top of the mirror.
    pub directories: Vec<String>,
    /// Symbolic links to them.
    links: BTreeSet<String>,
    plan: Option<Plan>,
}

impl OtherSuites {
    /// Whether such a suite names the path, or has it in its directory.
    pub fn names(&self, path: &str) -> bool {
        let is_in = |directory: &String| !directory.is_empty() && is_within(path, directory);
        self.plan.as_ref().is_some_and(|plan| plan.find(path).is_some())
            || self.links.contains(path)
            || self.directories.iter().any(is_in)
    }
}

/// Reads the suites below `dists/` and at the top whose Release is not the recorded one, except `ours`, the directories of this run.
///
/// # Errors
/// See [`OtherSuitesError`]; nothing may be deleted then.
pub fn read(tree: &dyn Tree, state: &State, ours: &[String]) -> Result<OtherSuites, OtherSuitesError> {
    let mut directories = suite_directories(tree)?;
    if has_release(tree, "")? {
        directories.push(String::new());
    }
    let linked = linked_suites(tree, state)?;
    directories.extend(linked.iter().map(|(_, target)| target.clone()));
    directories.sort_unstable();
    directories.dedup();
    directories.retain(|directory| !ours.contains(directory));
    let mut foreign = Vec::new();
    for directory in directories {
        let recorded = state.suite(&directory).map(|suite| suite.inrelease);
        if recorded.is_none() || LocalRelease::read(tree, &directory)?.map(|here| here.identity()) != recorded {
            foreign.push(directory);
        }
    }
    let links = linked.into_iter().filter(|(_, target)| foreign.contains(target)).map(|(link, _)| link).collect();
    let directories = foreign;
    if directories.is_empty() {
        return Ok(OtherSuites { directories, links, plan: None });
    }
    let mut plan = PlanBuilder::new(Filters::default());
    for directory in &directories {
        read_suite(tree, directory, &mut plan)?;
    }
    let plan = plan
        .finish()
        .map_err(|error| OtherSuitesError::Index { path: directories.join(", "), source: error.into() })?;
    Ok(OtherSuites { directories, links, plan: Some(plan) })
}

/// Directories below `dists/` with a signed Release, sorted. Links to directories within the mirror are among them if
/// their target is not.
///
/// # Errors
/// When the tree cannot be read.
pub fn suite_directories(tree: &dyn Tree) -> Result<Vec<String>, FileError> {
    let mut directories = Vec::new();
    suites_below(tree, "dists", 0, &mut directories)?;
    // Those of flat repositories may be deeper.
    directories.extend(snapshots::directories(tree)?);
    directories.sort_unstable();
    directories.dedup();
    Ok(directories)
}

/// Directories of a suite that have no other suites in them, but a `Release` of their own, or very many files.
fn is_of_indexes(name: &str) -> bool {
    matches!(name, "by-hash" | "source" | "i18n" | "dep11" | "cnf")
        || ["binary-", "installer-"].iter().any(|prefix| name.starts_with(prefix))
        || name.ends_with(".diff")
}

fn suites_below(tree: &dyn Tree, above: &str, depth: usize, directories: &mut Vec<String>) -> Result<(), FileError> {
    for (name, kind) in tree.list(above)? {
        let (Some(name), Kind::Directory) = (name.to_str(), kind) else { continue };
        let directory = format!("{above}/{name}");
        // `dists/source` is a suite like any other.
        if depth > 0 && is_of_indexes(name) {
            continue;
        }
        if has_release(tree, &directory)? {
            directories.push(directory.clone());
        }
        if depth < DEPTH_MAX {
            suites_below(tree, &directory, depth + 1, directories)?;
        }
    }
    Ok(())
}

fn has_release(tree: &dyn Tree, directory: &str) -> Result<bool, FileError> {
    let has = |name: &str| Ok::<_, FileError>(links::stat(tree, &below(directory, name))?.is_some());
    Ok(has("InRelease")? || has("Release")?)
}

/// Links of others in the place of suites: their names, and their targets within the mirror.
fn linked_suites(tree: &dyn Tree, state: &State) -> Result<Vec<(String, String)>, OtherSuitesError> {
    let recorded: BTreeSet<&str> =
        state.header.suites.iter().flat_map(|suite| &suite.links).map(String::as_str).collect();
    let mut found = Vec::new();
    for (name, kind) in tree.list("dists")? {
        let (Some(name), Kind::Symlink) = (name.to_str(), kind) else { continue };
        let link = format!("dists/{name}");
        if recorded.contains(link.as_str()) {
            continue;
        }
        match links::resolve(tree, &link)? {
            Some(target) if has_release(tree, &target)? => found.push((link, target)),
            Some(_) => {}
            // Who knows what is there.
            None => return Err(OtherSuitesError::Outside { path: link }),
        }
    }
    Ok(found)
}

/// Whether a file has the name of a list of packages or sources, in whatever form.
fn is_list(name: &str) -> bool {
    ["Packages", "Sources"].iter().any(|list| {
        name.strip_prefix(list).is_some_and(|rest| rest.is_empty() || (rest.starts_with('.') && !is_part_name(name)))
    })
}

/// Lists of packages and sources: by directory and kind, the form that is read with the least work.
type Lists = BTreeMap<String, (Form, Reading, String)>;

fn read_suite(tree: &dyn Tree, directory: &str, plan: &mut PlanBuilder) -> Result<(), OtherSuitesError> {
    let mut lists = Lists::new();
    // Those in no form that can be read.
    let mut unknown: BTreeMap<String, String> = BTreeMap::new();
    let mut note = |path: &str, name: &str, kind: Kind| {
        if kind == Kind::Directory || !is_list(name) {
            return Ok(());
        }
        let Some((status, real)) = links::follow(tree, path)? else { return Ok(()) };
        let classified = classify(path.strip_prefix(directory).map_or(path, |rest| rest.trim_start_matches('/')));
        let reading =
            Reading::of(&classified).filter(|reading| matches!(reading, Reading::Packages | Reading::Sources));
        let Some(reading) = reading.filter(|_| status.kind == Kind::File) else {
            let stem = path.split_at(path.len() - name.len() + name.find('.').unwrap_or(name.len())).0;
            unknown.insert(stem.to_owned(), path.to_owned());
            return Ok(());
        };
        let stem = below(directory, classified.stem);
        if lists.get(&stem).is_none_or(|(form, ..)| classified.form.is_faster_than(*form)) {
            lists.insert(stem, (classified.form, reading, real.unwrap_or_else(|| path.to_owned())));
        }
        Ok(())
    };
    if directory.is_empty() {
        // The whole mirror is below it: only what lies at the top, and what its Release lists.
        for (name, kind) in tree.list("")? {
            name.to_str().map_or(Ok(()), |name| note(name, name, kind))?;
        }
        let release = LocalRelease::read(tree, "")?.and_then(|release| release.release());
        for path in release.iter().flat_map(|release| &release.entries).map(|entry| entry.path.as_str()) {
            note(path, path.rsplit('/').next().unwrap_or(path), Kind::File)?;
        }
    } else {
        walk(tree, directory, 0, &mut note)?;
    }
    if let Some((_, path)) = unknown.into_iter().find(|(stem, _)| !lists.contains_key(stem)) {
        return Err(OtherSuitesError::Form { path });
    }
    for (form, reading, path) in lists.into_values() {
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
    // Suites may disagree on the content of a path; only names count here.
    let mut alone = PlanBuilder::new(Filters::default());
    let id = alone.index(path, 0).map_err(|source| error(source.into()))?;
    let input = BufReader::new(file);
    let tally = read_index(&mut alone, id, reading, path, form, PLAIN_BYTES_MAX, input).map_err(error)?;
    // Nobody knows which files such an entry needs.
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
