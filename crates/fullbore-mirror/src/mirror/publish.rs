//! Publishes a new state of the archive, name by name, in an order in which clients never see an inconsistent archive.
//!
//! All content is on disk before: pool files under their names, indexes in the store. Then names are given for all
//! suites together: by-hash names; canonical names of indexes and of files with new content; removals. Then for each
//! suite `Release.gpg`, `Release` and, last, `InRelease`. At the end come links between suites, and removals of
//! outdated links. Clients with the previous `InRelease` find its indexes by hash, and its packages in the pool, until
//! retention ends. The engine's `Target` gives the names in this order, with a barrier before and after.

use std::collections::{BTreeSet, HashSet};

use fullbore_engine::digest::Sha256;
use fullbore_engine::files::{FileError, Kind, Root};
use fullbore_engine::target::Name;

use super::commit::PublishedFile;
use super::layout::{Layout, is_within, link_target};
use super::links;
use super::membership::SuiteId;
use super::plan::{FileId, Plan};
use super::signed_files::SIGNED_FILES;
use super::state::{State, StateError, SuiteRecord, index_path};
use super::tree::Tree;

/// A file in the store of files by hash, with the name that it gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredFile {
    /// Path relative to the suite's directory.
    pub path: String,
    /// Size of the file in bytes.
    pub size: u64,
    /// SHA-256 of the content, which names the file in the store.
    pub sha256: Sha256,
    /// SHA-512 in hex, if clients may request the file by it.
    pub sha512: Option<Box<str>>,
}

/// Names and files of one suite to be published.
#[derive(Debug, Clone)]
pub(super) struct Publication {
    /// Number of the suite in the state.
    pub id: SuiteId,
    /// Directory and links of the suite.
    pub layout: Layout,
    /// Whether the Release has `Acquire-By-Hash: yes`.
    pub by_hash: bool,
    /// Fetched indexes, in all fetched forms.
    pub indexes: Vec<StoredFile>,
    /// Indexes of the Release that are not mirrored. If an earlier run left other content in such a path, it is
    /// removed, because clients would report it as damaged.
    pub left_out: Vec<StoredFile>,
    /// `Release.gpg`, if the archive has one.
    pub release_gpg: Option<StoredFile>,
    /// `Release`, if the archive has one.
    pub release: Option<StoredFile>,
    /// `InRelease`, if the archive has one.
    pub inrelease: Option<StoredFile>,
}

impl Publication {
    fn signed_files(&self) -> impl Iterator<Item = &StoredFile> {
        [&self.release_gpg, &self.release, &self.inrelease].into_iter().flatten()
    }

    fn by_hash_paths(&self, index: &StoredFile) -> Vec<String> {
        if !self.by_hash {
            return Vec::new();
        }
        let directory = index.path.rsplit_once('/').map_or("", |(directory, _)| directory);
        let slash = if directory.is_empty() { "" } else { "/" };
        let path =
            |algorithm: &str, hex: &str| self.layout.path(&format!("{directory}{slash}by-hash/{algorithm}/{hex}"));
        let sha512 = index.sha512.as_ref().map(|hex| path("SHA512", hex));
        std::iter::once(path("SHA256", index.sha256.to_hex().as_str())).chain(sha512).collect()
    }

    /// Files of this publication with their published paths, for the state.
    pub(super) fn files(&self) -> impl Iterator<Item = PublishedFile> {
        let named = |path: String, file: &StoredFile| PublishedFile {
            path,
            size: file.size,
            sha256: file.sha256,
            suite: self.id,
        };
        let by_hash = self
            .indexes
            .iter()
            .flat_map(move |file| self.by_hash_paths(file).into_iter().map(move |path| named(path, file)));
        let canonical = self.indexes.iter().chain(self.signed_files());
        by_hash.chain(canonical.map(move |file| named(self.layout.path(&file.path), file)))
    }
}

/// An index names a package under the path of another index.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: named by {index} with other content than in the Release")]
pub(super) struct PathClash {
    /// Path with two contents.
    pub path: String,
    /// Path of the index that names the package.
    pub index: String,
}

/// Checks that no file of the plan has the path of an index.
///
/// # Errors
/// [`PathClash`] if the plan has other content under the path of an index.
pub(super) fn check(publications: &[Publication], plan: &Plan) -> Result<(), PathClash> {
    for file in publications.iter().flat_map(Publication::files) {
        if let Some(planned) = plan.find(&file.path)
            && !planned.is(file.size, file.sha256)
        {
            return Err(PathClash { path: file.path, index: plan.index_of(planned.id).to_owned() });
        }
    }
    Ok(())
}

/// Names to give, in order. `before` has the suites as they were published until now. `replaced` has files of the plan
/// that wait in the store because their path holds other content. Names that are already right are left out.
///
/// # Errors
/// [`FileError`] if a file or link of the tree cannot be read.
pub(super) fn names(
    tree: &dyn Tree,
    publications: &[Publication],
    before: &[SuiteRecord],
    plan: &Plan,
    replaced: impl IntoIterator<Item = FileId>,
) -> Result<Vec<Name>, FileError> {
    let mut names = Vec::new();
    for publication in publications {
        for index in &publication.indexes {
            for path in publication.by_hash_paths(index) {
                link_unless_same(tree, &mut names, index, path)?;
            }
        }
    }
    for id in replaced {
        let file = plan.file(id);
        names.push(Name::Link { from: index_path(file.sha256), to: file.path.to_owned() });
    }
    for publication in publications {
        for index in &publication.indexes {
            link_unless_same(tree, &mut names, index, publication.layout.path(&index.path))?;
        }
    }
    // A Release may list a by-hash name, or a file of the pool.
    let published: HashSet<String> = match publications.iter().any(|publication| !publication.left_out.is_empty()) {
        true => publications.iter().flat_map(Publication::files).map(|file| file.path).collect(),
        false => HashSet::new(),
    };
    for publication in publications {
        for index in &publication.left_out {
            let path = publication.layout.path(&index.path);
            if !published.contains(&path) && plan.find(&path).is_none() && has_other_content(tree, &path, index)? {
                names.push(Name::Remove { path });
            }
        }
    }
    for publication in publications {
        for name in SIGNED_FILES {
            let path = publication.layout.path(name);
            match publication.signed_files().find(|file| file.path == name) {
                Some(file) => link_unless_same(tree, &mut names, file, path)?,
                // The archive no longer has it, and an old one would contradict the new files.
                None if links::stat(tree, &path)?.is_some() => names.push(Name::Remove { path }),
                None => {}
            }
        }
    }
    for (link, target) in publications.iter().flat_map(|publication| &publication.layout.links) {
        if tree.links_are_copies() || tree.read_link(link)?.as_deref() != Some(target) {
            names.push(Name::Symlink { target: target.clone(), link: link.clone() });
        }
    }
    let is_ours =
        |target: &str| publications.iter().any(|publication| link_target(&publication.layout.directory) == target);
    let mut removed = BTreeSet::new();
    for link in given_up(publications, before) {
        if tree.read_link(link)?.is_some_and(|target| is_ours(&target)) {
            removed.insert(link.clone());
        }
    }
    // The state does not record the copies of killed runs.
    for (link, target) in tree.copied_links()? {
        if is_ours(&target) && !is_claimed(publications, &link) && !is_of_other_run(publications, before, &link) {
            removed.insert(link);
        }
    }
    names.extend(removed.into_iter().map(|path| Name::Remove { path }));
    let mut ordered = in_the_way(tree, publications, &names)?;
    ordered.append(&mut names);
    Ok(ordered)
}

/// Removes the withdrawal of files that a suite of another run names: a Release may list files of the pool, perhaps
/// with outdated content.
///
/// # Errors
/// [`StateError`] if the state's list cannot be opened. A damaged list is not an error.
pub(super) fn keep_what_others_name(
    names: &mut Vec<Name>,
    own: &Root,
    state: &State,
    publications: &[Publication],
) -> Result<(), StateError> {
    let withdrawn = |name: &Name| if let Name::Remove { path } = name { Some(path.clone()) } else { None };
    let withdrawn: HashSet<String> = names.iter().filter_map(withdrawn).collect();
    let records = match state.records(own) {
        // The entries of a damaged list were read from the disk.
        _ if withdrawn.is_empty() => return Ok(()),
        Err(StateError::List { .. }) => None,
        records => records?,
    };
    let Some(mut records) = records else { return Ok(()) };
    let of_run = |member: &SuiteId| publications.iter().any(|publication| publication.id == *member);
    let is_published = |member: &SuiteId| {
        state.header.suites.get(usize::from(*member)).is_some_and(|suite| !suite.retired) && !of_run(member)
    };
    let mut recorded = HashSet::new();
    while let Ok(Some(record)) = records.next() {
        let members = state.header.memberships.get(record.membership as usize).map(|membership| &membership.members);
        if withdrawn.contains(record.path) && members.is_some_and(|members| members.iter().any(is_published)) {
            recorded.insert(record.path.to_owned());
        }
    }
    names.retain(|name| !matches!(name, Name::Remove { path } if recorded.contains(path)));
    Ok(())
}

/// Removals of symbolic links that are parents of new names: links below the suites' directories, and links in place of
/// suite directories.
fn in_the_way(tree: &dyn Tree, publications: &[Publication], names: &[Name]) -> Result<Vec<Name>, FileError> {
    let (mut seen, mut links) = (HashSet::new(), BTreeSet::new());
    for name in names {
        let Name::Link { to, .. } = name else { continue };
        let Some((directory, _)) = to.rsplit_once('/').filter(|(directory, _)| seen.insert(*directory)) else {
            continue;
        };
        let suites = publications.iter().map(|publication| publication.layout.directory.as_str());
        let Some(suite) =
            suites.filter(|suite| directory.starts_with(&format!("{suite}/"))).max_by_key(|suite| suite.len())
        else {
            continue;
        };
        let above = if suite.starts_with("dists/") { "dists" } else { suite };
        links.extend(links::first_link(tree, above, to)?);
    }
    Ok(links.into_iter().map(|link| Name::Remove { path: link.to_owned() }).collect())
}

/// Former links of these suites that no suite has, and that are not the name of one: `stable`, after the suite became
/// `oldstable`.
fn given_up<'a>(publications: &'a [Publication], before: &'a [SuiteRecord]) -> impl Iterator<Item = &'a String> {
    let is_published =
        |suite: &&SuiteRecord| !suite.retired && publications.iter().any(|one| one.layout.directory == suite.directory);
    let links = before.iter().filter(is_published).flat_map(|suite| &suite.links);
    links.filter(move |link| !is_claimed(publications, link))
}

/// Whether a suite of this run has this link, or has this name as its directory.
fn is_claimed(publications: &[Publication], link: &str) -> bool {
    publications
        .iter()
        .any(|one| is_within(&one.layout.directory, link) || one.layout.links.iter().any(|(new, _)| new == link))
}

/// Whether a suite that this run does not publish has this link.
fn is_of_other_run(publications: &[Publication], before: &[SuiteRecord], link: &str) -> bool {
    let is_other =
        |suite: &&SuiteRecord| !suite.retired && publications.iter().all(|one| one.layout.directory != suite.directory);
    before.iter().filter(is_other).any(|suite| suite.links.iter().any(|of| of == link))
}

fn link_unless_same(tree: &dyn Tree, names: &mut Vec<Name>, file: &StoredFile, to: String) -> Result<(), FileError> {
    if !tree.has_stored(&to, file.sha256)? {
        names.push(Name::Link { from: index_path(file.sha256), to });
    }
    Ok(())
}

fn has_other_content(tree: &dyn Tree, path: &str, index: &StoredFile) -> Result<bool, FileError> {
    match links::stat(tree, path)? {
        None => return Ok(false),
        Some(status) if status.kind != Kind::File => return Ok(status.kind == Kind::Symlink),
        Some(_) => {}
    }
    let Some((file, status)) = tree.open(path)? else { return Ok(false) };
    if status.size != index.size {
        return Ok(true);
    }
    let (sha256, _) = super::store::hash(file).map_err(|source| FileError::Io {
        operation: "read",
        path: path.to_owned(),
        source,
    })?;
    Ok(sha256 != index.sha256)
}

#[cfg(test)]
mod tests;
