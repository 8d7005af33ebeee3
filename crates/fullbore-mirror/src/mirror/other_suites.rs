//! Suites of other tools in the mirror's directory.
//!
//! A file that any index in the tree names is never deleted. Suites are found by `InRelease` or `Release` below `dists/`;
//! all their indexes are read, whatever their signatures. An unreadable index stops all deletions.

use std::collections::BTreeMap;
use std::io::BufReader;

use fullbore_debian::classify::classify;
use fullbore_debian::compression::Form;
use fullbore_engine::files::{FileError, Kind};

use super::bucket::snapshots;
use super::clean::walk;
use super::index_reader::{IndexReadError, read_index};
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
}

/// The suites of other tools, and the files that they name.
pub struct OtherSuites {
    /// Their directories.
    pub directories: Vec<String>,
    plan: Option<Plan>,
}

impl OtherSuites {
    /// Whether such a suite names the path, or has it in its directory.
    pub fn names(&self, path: &str) -> bool {
        self.plan.as_ref().is_some_and(|plan| plan.find(path).is_some())
            || self
                .directories
                .iter()
                .any(|directory| path.strip_prefix(directory.as_str()).is_some_and(|below| below.starts_with('/')))
    }
}

/// Reads the suites below `dists/` whose Release is not the recorded one, except `ours`, the directories of this run.
///
/// # Errors
/// See [`OtherSuitesError`]; nothing may be deleted then.
pub fn read(tree: &dyn Tree, state: &State, ours: &[String]) -> Result<OtherSuites, OtherSuitesError> {
    let mut directories = suite_directories(tree)?;
    directories.retain(|directory| !ours.contains(directory));
    let mut foreign = Vec::new();
    for directory in directories {
        let recorded = state.suite(&directory).map(|suite| suite.inrelease);
        if recorded.is_none() || LocalRelease::read(tree, &directory)?.map(|here| here.identity()) != recorded {
            foreign.push(directory);
        }
    }
    let directories = foreign;
    if directories.is_empty() {
        return Ok(OtherSuites { directories, plan: None });
    }
    let mut plan = PlanBuilder::new(Filters::default());
    for directory in &directories {
        read_suite(tree, directory, &mut plan)?;
    }
    let plan = plan
        .finish()
        .map_err(|error| OtherSuitesError::Index { path: directories.join(", "), source: error.into() })?;
    Ok(OtherSuites { directories, plan: Some(plan) })
}

/// Directories below `dists/` with a signed Release, sorted.
///
/// # Errors
/// When the tree cannot be read.
pub fn suite_directories(tree: &dyn Tree) -> Result<Vec<String>, FileError> {
    let mut directories = Vec::new();
    suites_below(tree, "dists", &mut directories)?;
    let has_snapshots = links::stat(tree, SNAPSHOTS)?.is_some_and(|status| status.kind == Kind::Directory);
    for (name, kind) in if has_snapshots { tree.list(SNAPSHOTS)? } else { Vec::new() } {
        if let (Some(name), Kind::Directory) = (name.to_str(), kind) {
            suites_below(tree, &format!("{SNAPSHOTS}/{name}"), &mut directories)?;
        }
    }
    // Those of flat repositories may be deeper.
    directories.extend(snapshots::directories(tree)?);
    directories.sort_unstable();
    directories.dedup();
    Ok(directories)
}

fn suites_below(tree: &dyn Tree, top: &str, directories: &mut Vec<String>) -> Result<(), FileError> {
    let mut level = vec![top.to_owned()];
    // TOP/SUITE and TOP/SUITE/updates; deeper there are only components.
    for _ in 0..2 {
        let mut next = Vec::new();
        for above in &level {
            for (name, kind) in tree.list(above)? {
                let (Some(name), Kind::Directory) = (name.to_str(), kind) else { continue };
                let directory = format!("{above}/{name}");
                let has = |name: &str| Ok::<_, FileError>(tree.stat(&format!("{directory}/{name}"))?.is_some());
                // Components have a Release for each architecture, none of their own.
                if has("InRelease")? || has("Release")? {
                    directories.push(directory.clone());
                }
                next.push(directory);
            }
        }
        level = next;
    }
    Ok(())
}

fn read_suite(tree: &dyn Tree, directory: &str, plan: &mut PlanBuilder) -> Result<(), OtherSuitesError> {
    // One form of each index is enough; the least work first.
    let mut indexes: BTreeMap<String, (Form, Reading, String)> = BTreeMap::new();
    walk(tree, directory, 0, &mut |path, _, kind| {
        let name = classify(&path[directory.len() + 1..]);
        let reading = Reading::of(&name).filter(|reading| matches!(reading, Reading::Packages | Reading::Sources));
        let Some(reading) = reading.filter(|_| kind == Kind::File) else { return Ok(()) };
        if indexes.get(name.stem).is_none_or(|(form, ..)| name.form.is_faster_than(*form)) {
            indexes.insert(name.stem.to_owned(), (name.form, reading, path.to_owned()));
        }
        Ok(())
    })?;
    for (form, reading, path) in indexes.into_values() {
        let error = |source| OtherSuitesError::Index { path: path.clone(), source };
        let Some((file, _)) = tree.open(&path)? else { continue };
        // Suites may disagree on the content of a path; only names count here.
        let mut alone = PlanBuilder::new(Filters::default());
        let id = alone.index(&path, 0).map_err(|source| error(source.into()))?;
        let input = BufReader::new(file);
        let tally = read_index(&mut alone, id, reading, &path, form, PLAIN_BYTES_MAX, input).map_err(error)?;
        // Nobody knows which files such an entry needs.
        if let Some(line) = tally.lines.into_iter().next() {
            return Err(error(IndexReadError::Odd(line)));
        }
        let alone = alone.finish().map_err(|source| error(source.into()))?;
        let id = plan.index(&path, 0).map_err(|source| error(source.into()))?;
        for file in alone.files() {
            plan.add_name(id, file.path).map_err(|source| error(source.into()))?;
        }
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
