//! Publishes an update: files get their names in the lists directory, unneeded files are removed.
//!
//! One sync, then names, the Release of each repository last. A run killed in between leaves new indexes beside the old
//! Release; the next run detects that and fetches what does not match.

use std::collections::BTreeSet;

use fullbore_debian::compression::Form;
use fullbore_engine::files::Kind;
use fullbore_engine::run::error::CommandError;
use fullbore_engine::target::{Name, Target};

use super::DIFF_INDEX_ENDING;
use super::files::partial;
use super::release::{OfferedRelease, name_of};
use super::repositories::Repository;
use super::session::{PARTIAL, Session, disk, file};
use super::wanted::{Present, WantedIndex};

/// Names that are never removed from the lists directory.
const KEPT_NAMES: [&str; 3] = [PARTIAL, "lock", "auxfiles"];

/// A repository whose indexes are complete.
pub(super) struct Publication<'a> {
    /// The repository to publish.
    pub repository: &'a Repository,
    /// Its new Release.
    pub offered: &'a OfferedRelease,
    /// Rebuilt indexes, in `partial/` under their final names.
    pub made: Vec<&'a WantedIndex>,
    /// Names of the `diff/Index` of patched indexes, also in `partial/`.
    pub patched: Vec<String>,
    /// Names of indexes that are current already.
    pub current: &'a [String],
    /// Indexes that are empty now; apt does not store empty ones.
    pub emptied: &'a [String],
}

/// The file name of an index as it is kept.
pub(super) fn kept_name(index: &WantedIndex) -> String {
    format!("{}{}", index.name, index.stored_form.extension())
}

impl Publication<'_> {
    /// Writes the Release into `partial/`; returns the names to give.
    fn names(&self, session: &Session, present: &Present) -> Result<Vec<Name>, CommandError> {
        let mut names = Vec::new();
        for index in &self.made {
            let new = kept_name(index);
            names.push(Name::Link { from: partial(&new), to: new.clone() });
            // apt could take a file of another form instead.
            let others = present.all(&index.name).filter(|other| *other != new);
            names.extend(others.map(|other| Name::Remove { path: other.to_owned() }));
        }
        names.extend(self.emptied.iter().map(|name| Name::Remove { path: name.clone() }));
        names.extend(self.patched.iter().map(|name| Name::Link { from: partial(name), to: name.clone() }));
        if self.offered.unchanged && self.made.is_empty() {
            return Ok(names);
        }
        // `Release.gpg` before `Release`: apt looks at the last one first.
        for (name, content) in self.offered.files.iter().rev() {
            let path = name_of(self.repository, name);
            let part = session.root.write_part(&partial(&path), content).map_err(file)?;
            if let Some(modified) = self.offered.modified {
                part.set_mtime(modified).map_err(file)?;
            }
            part.finish().map_err(file)?;
            names.push(Name::Link { from: partial(&path), to: path });
        }
        let signed: Vec<&str> = self.offered.files.iter().map(|(name, _)| *name).collect();
        for other in ["InRelease", "Release", "Release.gpg"].iter().filter(|name| !signed.contains(name)) {
            names.push(Name::Remove { path: name_of(self.repository, other) });
        }
        Ok(names)
    }

    /// The files that belong to the repository. As in apt, a current index keeps its index of patches.
    fn files(&self) -> impl Iterator<Item = String> {
        let indexes = self.made.iter().map(|index| kept_name(index)).chain(self.current.iter().cloned());
        let signed = self.offered.files.iter().map(|(name, _)| name_of(self.repository, name));
        let older = self.current.iter().map(|file| format!("{}{DIFF_INDEX_ENDING}", Form::split(file).0));
        indexes.chain(signed).chain(self.patched.iter().cloned()).chain(older)
    }
}

/// Publishes repositories. Returns whether anything changed.
///
/// # Errors
///
/// `Disk` if files cannot be synced, renamed or removed.
pub(super) fn publish(
    session: &Session,
    publications: &[Publication<'_>],
    present: &Present,
) -> Result<bool, CommandError> {
    let mut names = Vec::new();
    for publication in publications {
        names.extend(publication.names(session, present)?);
    }
    if names.is_empty() {
        return Ok(false);
    }
    session.sync.device(|| session.target.publish(&names)).map_err(|error| disk(&error))?;
    for name in &names {
        if let Name::Link { from, .. } = name {
            session.root.unlink(from).map_err(file)?;
        }
    }
    Ok(true)
}

/// Removes files of no repository, except names that begin with one of `left`.
///
/// # Errors
///
/// `Disk` if the directory cannot be read, or a file cannot be removed.
pub(super) fn clean(
    session: &Session,
    publications: &[Publication<'_>],
    left: &[&str],
    events: &mut dyn FnMut(u64),
) -> Result<(), CommandError> {
    let wanted: BTreeSet<String> = publications.iter().flat_map(Publication::files).collect();
    for (name, _) in session.root.list("").map_err(file)? {
        let Some(name) = name.to_str() else { continue };
        let stays = KEPT_NAMES.contains(&name) || wanted.contains(name);
        if stays || left.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        // Only names made of addresses can come from an update.
        if !name.contains('_') {
            continue;
        }
        if session.root.unlink(name).map_err(file)? {
            events(1);
        }
    }
    Ok(())
}

/// Empties `partial/`: patches, converted downloads, leftovers of killed runs. apt does the same; the lock excludes
/// other downloads.
///
/// # Errors
///
/// `Disk` if the directory cannot be read, or a file cannot be removed.
pub(super) fn sweep(session: &Session) -> Result<(), CommandError> {
    for (name, kind) in session.root.list(PARTIAL).map_err(file)? {
        // Directories are not fullbore's.
        let Some(name) = name.to_str().filter(|_| kind != Kind::Directory) else { continue };
        session.root.unlink(&partial(name)).map_err(file)?;
    }
    Ok(())
}

/// Whether a download in this form is kept unchanged.
pub(super) fn is_kept_as_fetched(index: &WantedIndex, form: Form) -> bool {
    index.stored_form == form
}
