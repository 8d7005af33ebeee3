//! Writes only the files of a package, before there is a dpkg; dpkg unpacks the package again later.
//!
//! No check against the database is made, and nothing is recorded. Files get their final names at once. As in dpkg,
//! existing directories and links to directories stay.

use std::io::{self, BufRead, BufReader};

use fullbore_debian::deb::data;
use fullbore_debian::tar::{Entry, Kind, Reader, TarError};
use fullbore_engine::stage::Ledger;
use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;

use super::claims::Claims;
use super::clocks::Clocks;
use super::directories::{Directories, new_name, split};
use super::files::{self, WriteError};
use super::paths::{path_in_root, show};
use super::{Archive, Filters, UnpackError};
use crate::database::Database;
use crate::root::{Root, RootError};

/// Size of the buffer for plain bytes, as in the unpacker.
const PLAIN_BYTES: usize = 256 << 10;

/// Writes the files of a package into the root, except those that `filters` exclude.
///
/// # Errors
/// [`UnpackError::Archive`], `Tar`, `Data` or `Hostile` for the package, and `File` or `Root` if a file cannot be
/// written. Files that were written before stay.
pub fn put_files(root: &Root, archive: &Archive, filters: &Filters) -> Result<(), UnpackError> {
    let database = Database::read(root)?;
    let (clocks, claims) = (Clocks::new(&Ledger::off()), Claims::new());
    let directories = Directories::new(root, &claims, 1);
    let mut putting = FileWriter { root, archive, filters, database: &database, clocks: &clocks, directories };
    let unreadable = |source| UnpackError::Data { package: archive.name().to_owned(), source };
    let damaged = |source| UnpackError::Tar { package: archive.name().to_owned(), source };
    let plain = data(archive.data_reader()?, archive.data(), 1, archive.proof()).map_err(unreadable)?;
    let mut reader = Reader::new(BufReader::with_capacity(PLAIN_BYTES, plain));
    let (mut entry, mut links) = (Entry::default(), Vec::new());
    while reader.next_entry(&mut entry).map_err(damaged)? {
        if entry.sparse {
            let what = "a file with holes, which dpkg does not read";
            return Err(damaged(TarError::Malformed { offset: entry.offset, what }));
        }
        if entry.kind == Kind::Symlink {
            links.push(entry.clone());
        } else {
            putting.entry(&entry, &mut reader)?;
        }
    }
    links.iter().try_for_each(|link| putting.entry(link, &mut Reader::new(io::empty())))?;
    let mut rest = reader.into_inner().into_inner();
    io::copy(&mut rest, &mut io::sink()).map_err(unreadable)?;
    let mut packed = rest.finish().map_err(unreadable)?;
    io::copy(&mut packed, &mut io::sink()).map_err(unreadable)?;
    Ok(archive.check(packed.hasher)?)
}

struct FileWriter<'a> {
    root: &'a Root,
    archive: &'a Archive,
    filters: &'a Filters,
    database: &'a Database,
    clocks: &'a Clocks,
    directories: Directories<'a>,
}

impl FileWriter<'_> {
    fn entry<R: BufRead>(&mut self, entry: &Entry, content: &mut Reader<R>) -> Result<(), UnpackError> {
        let path = self.path(&entry.path)?;
        let may_lead = matches!(entry.kind, Kind::Directory | Kind::Symlink);
        if path == b"/." || self.filters.skips(&path, may_lead) {
            return Ok(());
        }
        let linked = if entry.kind == Kind::HardLink { Some(self.path(&entry.link)?) } else { None };
        if linked.as_ref().is_some_and(|target| self.filters.skips(target, false)) {
            return Ok(());
        }
        match self.put(entry, &path, linked.as_deref(), content) {
            Ok(()) => Ok(()),
            Err(WriteError::Archive(source)) => {
                Err(UnpackError::Tar { package: self.archive.name().to_owned(), source })
            }
            Err(WriteError::File(errno)) => {
                let source = RootError::new(&path, "write", errno);
                Err(UnpackError::File { package: self.archive.name().to_owned(), source })
            }
        }
    }

    fn path(&self, name: &[u8]) -> Result<Vec<u8>, UnpackError> {
        let hostile = || UnpackError::Hostile { package: self.archive.name().to_owned(), path: show(name) };
        path_in_root(name).ok_or_else(hostile)
    }

    fn put<R: BufRead>(
        &mut self,
        entry: &Entry,
        path: &[u8],
        linked: Option<&[u8]>,
        content: &mut Reader<R>,
    ) -> Result<(), WriteError> {
        let (parent_path, base) = split(path);
        let parent = self.directories.open(parent_path)?;
        let there = match rustix::fs::statat(&*parent, base, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(status) => Some(FileType::from_raw_mode(status.st_mode)),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno.into()),
        };
        let accounts = &self.database.accounts;
        let wanted = accounts.permissions(entry.mode, (&entry.user, entry.uid), (&entry.group, entry.gid));
        match (entry.kind, there) {
            (Kind::Directory | Kind::Symlink, Some(FileType::Directory)) => return Ok(()),
            (Kind::Directory, Some(_)) => return self.root.directory(path).map(drop).map_err(WriteError::from),
            (Kind::Directory, None) => return Ok(files::make_directory(&parent, base, wanted, entry.mtime_s)?),
            _ => {}
        }
        let new = new_name(base);
        match (entry.kind, linked) {
            (Kind::HardLink, Some(target)) => {
                let (target_path, target_base) = split(target);
                let from = self.directories.open(target_path)?;
                files::link(&from, target_base, &parent, &new, wanted, entry.mtime_s)?;
            }
            (Kind::File, _) => {
                files::write(&parent, &new, wanted, entry, content, false, &self.clocks.write)?;
            }
            (kind, _) => files::special(&parent, &new, wanted, kind, entry)?,
        }
        Ok(rustix::fs::renameat(&*parent, &new[..], &*parent, base)?)
    }
}
