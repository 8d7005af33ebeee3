//! The end of an update: files get their names in the lists directory, what nobody needs goes.
//!
//! A repository's indexes and its Release become visible together or not at all: one barrier, then names,
//! the Release last. A run that is killed in between has left indexes of which the old Release knows
//! nothing; the next run finds that and fetches what does not fit.

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

/// One repository that is complete.
pub struct Publication<'a> {
    /// Which.
    pub repository: &'a Repository,
    /// Its Release.
    pub offered: &'a OfferedRelease,
    /// Indexes that lie in `partial/` under the name they are to have.
    pub made: Vec<&'a WantedIndex>,
    /// Names of the `diff/Index` of indexes that were patched; they lie in `partial/` too.
    pub patched: Vec<String>,
    /// Indexes that are current.
    pub current: &'a [String],
    /// Indexes that are empty now: apt keeps none of those.
    pub emptied: &'a [String],
}

/// The file name of an index as it is kept.
pub fn kept_name(index: &WantedIndex) -> String {
    format!("{}{}", index.name, index.kept.extension())
}

impl Publication<'_> {
    /// Writes the Release's files into `partial/`, and says which names are to be given.
    fn names(&self, session: &Session, present: &Present) -> Result<Vec<Name>, CommandError> {
        let mut names = Vec::new();
        for index in &self.made {
            let new = kept_name(index);
            names.push(Name::Link { from: partial(&new), to: new.clone() });
            // In another form it would be another file, and apt could take either.
            let others = present.all(&index.name).filter(|other| *other != new);
            names.extend(others.map(|other| Name::Remove { path: other.to_owned() }));
        }
        names.extend(self.emptied.iter().map(|name| Name::Remove { path: name.clone() }));
        names.extend(self.patched.iter().map(|name| Name::Link { from: partial(name), to: name.clone() }));
        if self.offered.unchanged && self.made.is_empty() {
            return Ok(names);
        }
        // `Release.gpg` before `Release`, `InRelease` alone: the last one is what apt looks at first.
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

    /// The files that belong to it. As apt, an index that is current keeps the index of its patches.
    fn files(&self) -> impl Iterator<Item = String> {
        let indexes = self.made.iter().map(|index| kept_name(index)).chain(self.current.iter().cloned());
        let signed = self.offered.files.iter().map(|(name, _)| name_of(self.repository, name));
        let older = self.current.iter().map(|file| format!("{}{DIFF_INDEX_ENDING}", Form::split(file).0));
        indexes.chain(signed).chain(self.patched.iter().cloned()).chain(older)
    }
}

/// Makes repositories visible; says whether anything changed.
pub fn publish(session: &Session, publications: &[Publication<'_>], present: &Present) -> Result<bool, CommandError> {
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

/// Removes files that belong to no repository. What begins like one of `left` is left alone.
pub fn clean(
    session: &Session,
    publications: &[Publication<'_>],
    left: &[&str],
    events: &mut dyn FnMut(u64),
) -> Result<(), CommandError> {
    let wanted: BTreeSet<String> = publications.iter().flat_map(Publication::files).collect();
    for (name, _) in session.root.list("").map_err(file)? {
        let Some(name) = name.to_str() else { continue };
        let kept = KEPT_NAMES.contains(&name) || wanted.contains(name);
        if kept || left.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        // Only what an update can have put there: names made of addresses.
        if !name.contains('_') {
            continue;
        }
        if session.root.unlink(name).map_err(file)? {
            events(1);
        }
    }
    Ok(())
}

/// Empties `partial/`: patches, downloads that were converted, and what killed runs have left. As apt does
/// when it is done; whoever else downloads into it holds the lock.
pub fn sweep(session: &Session) -> Result<(), CommandError> {
    for (name, kind) in session.root.list(PARTIAL).map_err(file)? {
        // Directories are none of ours.
        let Some(name) = name.to_str().filter(|_| kind != Kind::Directory) else { continue };
        session.root.unlink(&partial(name)).map_err(file)?;
    }
    Ok(())
}

/// Whether a download in this form is what is kept, as it is.
pub fn is_kept_as_fetched(index: &WantedIndex, form: Form) -> bool {
    index.kept == form
}
