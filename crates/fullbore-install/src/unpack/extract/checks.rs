//! dpkg's checks of each path of a package: diversions, existing files, owners, filters.

use std::io;

use fullbore_debian::tar::{Entry, Kind, Reader};
use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;

use super::super::claims::Taken;
use super::super::directories::{Directory, split};
use super::super::paths::{listed_path, show};
use super::super::round::UnpackFailure;
use super::{Extraction, PathState, UnpackedPath};
use crate::database::State;

impl Extraction<'_, '_> {
    /// Checks an entry in dpkg's order, and creates its file.
    pub(super) fn entry<R: io::BufRead>(
        &mut self,
        entry: &Entry,
        content: &mut Reader<R>,
    ) -> Result<(), UnpackFailure> {
        let path = listed_path(&entry.path).map_err(|reason| self.invalid_path(entry, reason))?;
        let (round, name) = (self.round, self.planned.archive.name());
        let diversions = &round.database.diversions;
        if diversions.is_target(&path) {
            return Err(UnpackFailure::refused(format!("{} is where another file is diverted to", show(&path))));
        }
        let place = diversions.place(&path, name);
        let diverted = (place != path).then(|| place.to_vec());
        let is_conffile = self.planned.is_conffile(&path);
        let wanted = self.wanted(entry, &path);
        let mut placed = UnpackedPath { path, diverted, role: PathState::Listed, md5: None };
        if placed.path == b"/." {
            if entry.kind != Kind::Directory {
                return Err(UnpackFailure::refused(
                    "its archive has the root itself as something else than a directory",
                ));
            }
            self.work.placed.push(placed);
            return Ok(());
        }
        let place = placed.place().to_vec();
        let (parent_path, base) = split(&place);
        let may_lead = matches!(entry.kind, Kind::Directory | Kind::Symlink);
        let parent = match self.directories.open(parent_path) {
            Ok(parent) => Some(parent),
            // Excluded with its directory.
            Err(Errno::NOENT | Errno::NOTDIR) if round.context.filters.skips(&placed.path, may_lead) => {
                // As in dpkg, also of an excluded path.
                if self.may_have(&placed.path, entry.kind, None)? {
                    self.work.placed.push(placed);
                }
                return Ok(());
            }
            // It will be created.
            Err(Errno::NOENT | Errno::NOTDIR) if round.is_dry_run => None,
            // Another package of this round may create it; dpkg would fail.
            Err(Errno::NOENT | Errno::NOTDIR) => return Err(UnpackFailure::MissingDirectory(place.clone())),
            Err(errno) => return Err(self.failed(&place, "open the directory of", errno)),
        };
        let on_disk = parent.as_ref().map_or(Ok(None), |parent| self.on_disk(parent, base, &place))?;
        if let Some(parent) = &parent
            && entry.kind != Kind::Directory
            && on_disk == Some(FileType::Directory)
        {
            let found = round.claims.found_directory(parent.identity, base, self.number);
            found.map_err(|Taken { by }| UnpackFailure::Deferred(by))?;
        }
        let keeps_directory = match (entry.kind, on_disk) {
            (Kind::Directory, Some(FileType::Directory)) => true,
            (Kind::Directory, Some(_)) => self.leads_to_directory(&place),
            (Kind::Symlink, Some(FileType::Directory)) => true,
            (Kind::Symlink, Some(FileType::Symlink)) => self.leads_to_same(&place, &entry.link),
            _ => false,
        };
        if !keeps_directory && !self.may_have(&placed.path, entry.kind, on_disk)? {
            return Ok(());
        }
        if round.context.filters.skips(&placed.path, may_lead) {
            self.work.placed.push(placed);
            return Ok(());
        }
        if entry.kind == Kind::Directory {
            if on_disk.is_some() && !keeps_directory {
                return Err(self.no_directory(&place));
            }
            if let Some(parent) = parent.filter(|_| !round.is_dry_run) {
                self.directory(entry, wanted, &parent, base, &place, on_disk.is_some())?;
            }
            self.work.placed.push(placed);
            return Ok(());
        }
        if keeps_directory {
            self.work.placed.push(placed);
            return Ok(());
        }
        if on_disk == Some(FileType::Directory) {
            return Err(UnpackFailure::refused(format!("{} is a directory in the root", show(&place))));
        }
        if is_conffile && on_disk == Some(FileType::Symlink) {
            return Err(UnpackFailure::refused(format!(
                "its conffile {} is a symbolic link in the root",
                show(&place)
            )));
        }
        placed.role = if is_conffile { PathState::Conffile } else { PathState::New };
        let Some(parent) = parent.filter(|_| !round.is_dry_run) else {
            self.work.placed.push(placed);
            return if entry.kind == Kind::HardLink { self.linked(entry, &place).map(drop) } else { Ok(()) };
        };
        round.claims.other(parent.identity, base, self.number).map_err(|Taken { by }| UnpackFailure::Deferred(by))?;
        // Recorded first, so that it is removed after a failure.
        self.work.placed.push(placed);
        let at = self.work.placed.len() - 1;
        let md5 = self.make(entry, wanted, content, &parent, base, &place)?;
        self.work.placed[at].md5 = md5;
        Ok(())
    }

    pub(super) fn no_directory(&self, place: &[u8]) -> UnpackFailure {
        UnpackFailure::refused(format!("{} is not a directory in the root", show(place)))
    }

    /// Type of the existing file; a directory created in this round contains only claimed names.
    fn on_disk(&self, parent: &Directory, base: &[u8], place: &[u8]) -> Result<Option<FileType>, UnpackFailure> {
        if parent.fresh {
            return Ok(None);
        }
        match rustix::fs::statat(parent, base, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(status) => Ok(Some(FileType::from_raw_mode(status.st_mode))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.failed(place, "look at", errno)),
        }
    }

    pub(super) fn leads_to_directory(&self, place: &[u8]) -> bool {
        self.round.context.root.directory(&place[1..]).is_ok()
    }

    /// Whether an existing link and the new one lead to the same directory.
    fn leads_to_same(&self, place: &[u8], target: &[u8]) -> bool {
        let target = match target {
            [b'/', ..] => target.to_vec(),
            _ => [split(place).0, b"/", target].concat(),
        };
        let identity = |path: &[u8]| {
            let status = rustix::fs::fstat(self.round.context.root.directory(path).ok()?).ok()?;
            Some((status.st_dev, status.st_ino))
        };
        identity(&place[1..]).is_some_and(|is| identity(&target) == Some(is))
    }

    /// Whether the package may write this path if other packages list it. With `false`, dpkg keeps the file of the
    /// other package.
    fn may_have(&mut self, path: &[u8], kind: Kind, on_disk: Option<FileType>) -> Result<bool, UnpackFailure> {
        let mut keeps = true;
        for label in self.round.owners.of(path) {
            let owner = self.round.database.labelled(label);
            let Some(owner) = owner else { continue };
            // dpkg takes the path out of the old list, and compares a conffile with the hash that the old record has.
            // Otherwise a purge of the old package would delete the new file.
            if owner.state == State::ConfigFiles {
                return Err(UnpackFailure::refused(format!(
                    "{} belongs to {label}, which is removed and not purged",
                    show(path)
                )));
            }
            if on_disk.is_none() && kind == Kind::Directory {
                continue;
            }
            if owner.name() == self.planned.archive.name() {
                return Err(UnpackFailure::refused(format!(
                    "{} is shared with another architecture's package",
                    show(path)
                )));
            }
            if let Some(diverted_for) = self.round.database.diversions.owner(path)
                && (diverted_for == owner.name() || diverted_for == self.planned.archive.name())
            {
                // Both keep the file, but dpkg compares the new conffile with the hash of the other.
                keeps &= !self.planned.is_conffile(path);
                continue;
            }
            if self.planned.replaces(owner) {
                if self.planned.is_conffile(path) {
                    return Err(UnpackFailure::refused(format!(
                        "it takes over the conffile {} from {label}",
                        show(path)
                    )));
                }
                self.work.lost.push((label.to_owned(), path.to_vec()));
            } else if super::super::replaces(&owner.stanza, self.planned.archive.name(), self.planned.version()) {
                keeps = false;
            } else {
                return Err(UnpackFailure::refused(format!(
                    "{} belongs to {label}, which it does not replace",
                    show(path)
                )));
            }
        }
        if !keeps && self.planned.is_conffile(path) {
            return Err(UnpackFailure::refused(format!("its conffile {} is another package's", show(path))));
        }
        Ok(keeps)
    }
}
