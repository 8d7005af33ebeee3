//! Creates the file of an entry: directories under their names, other files as `NAME.dpkg-new`.

use std::io;
use std::rc::Rc;

use fullbore_debian::tar::{Entry, Kind, Reader};
use rustix::io::Errno;

use super::super::claims::{Attributes, Taken};
use super::super::directories::{Directory, new_name, split};
use super::super::files;
use super::super::paths::{listed_path, show};
use super::super::round::UnpackFailure;
use super::{Extraction, PathState};
use crate::database::Permissions;

impl Extraction<'_, '_> {
    /// Claims a directory, and creates it if it does not exist.
    pub(super) fn directory(
        &mut self,
        entry: &Entry,
        wanted: Permissions,
        parent: &Rc<Directory>,
        base: &[u8],
        place: &[u8],
        exists: bool,
    ) -> Result<(), UnpackFailure> {
        let attributes = Attributes { permissions: wanted, mtime_s: entry.mtime_s };
        let make = || -> Result<bool, Errno> {
            if exists {
                return Ok(false);
            }
            match files::make_directory(parent, base, wanted, entry.mtime_s) {
                Err(Errno::EXIST) => Ok(false),
                made => made.map(|()| true),
            }
        };
        let mut made = false;
        let claimed = self.round.claims.directory(parent.identity, base, &place[1..], self.number, attributes, || {
            make().inspect(|is_new| made = *is_new)
        });
        match claimed.map_err(|errno| self.failed(place, "create the directory", errno))? {
            Ok(()) => {}
            Err(Taken { by }) => return Err(UnpackFailure::Deferred(by)),
        }
        if made {
            let opened = self.directories.open_fresh(parent, base, &place[1..]);
            opened.map_err(|errno| self.failed(place, "open the directory", errno))?;
        } else if !exists && !self.leads_to_directory(place) {
            return Err(self.no_directory(place));
        }
        Ok(())
    }

    /// Creates a file other than a directory under dpkg's temporary name. Returns the MD5 of a regular file, if
    /// requested.
    pub(super) fn make<R: io::BufRead>(
        &mut self,
        entry: &Entry,
        wanted: Permissions,
        content: &mut Reader<R>,
        parent: &Directory,
        base: &[u8],
        place: &[u8],
    ) -> Result<Option<[u8; 16]>, UnpackFailure> {
        let new = new_name(base);
        match entry.kind {
            Kind::File => {
                let written = files::write(
                    parent,
                    &new,
                    wanted,
                    entry,
                    content,
                    self.wants_md5,
                    &self.round.context.clocks.write,
                );
                self.work.files += 1;
                match written {
                    Ok(md5) => Ok(md5),
                    Err(files::WriteError::Archive(error)) => Err(self.damaged(error)),
                    Err(files::WriteError::File(errno)) => Err(self.failed(place, "write", errno)),
                }
            }
            Kind::HardLink => {
                let at = self.linked(entry, place)?;
                let target = self.work.placed[at].place().to_vec();
                let (target_path, target_base) = split(&target);
                let from = self.directories.open(target_path);
                let from = from.map_err(|errno| self.failed(&target, "open the directory of", errno))?;
                files::link(&from, &new_name(target_base), parent, &new, wanted, entry.mtime_s)
                    .map_err(|errno| self.failed(place, "link", errno))?;
                Ok(self.work.placed[at].md5)
            }
            kind => {
                files::special(parent, &new, wanted, kind, entry)
                    .map_err(|errno| self.failed(place, "create", errno))?;
                Ok(None)
            }
        }
    }

    /// Index in `placed` of the target of a hard link.
    pub(super) fn linked(&mut self, entry: &Entry, place: &[u8]) -> Result<usize, UnpackFailure> {
        let target = listed_path(&entry.link).map_err(|reason| self.invalid_path(entry, reason))?;
        self.regular_file(&target).ok_or_else(|| {
            UnpackFailure::refused(format!("{} is a hard link to a file outside the package", show(place)))
        })
    }

    /// Index in `placed` of a file of this package that is written as `.dpkg-new`.
    fn regular_file(&mut self, path: &[u8]) -> Option<usize> {
        // The last entry is the link itself.
        let end = self.work.placed.len() - 1;
        for (at, placed) in self.work.placed[..end].iter().enumerate().skip(self.indexed) {
            if placed.role != PathState::Listed {
                self.regular.insert(placed.path.clone(), at);
            }
        }
        self.indexed = end;
        self.regular.get(path).copied()
    }

    /// Owner and mode of an entry. As in dpkg, an override has the path in the archive, also of a diverted file.
    pub(super) fn wanted(&self, entry: &Entry, path: &[u8]) -> Permissions {
        let database = self.round.database;
        let own = || database.accounts.permissions(entry.mode, (&entry.user, entry.uid), (&entry.group, entry.gid));
        database.overrides.get(path).unwrap_or_else(own)
    }
}
